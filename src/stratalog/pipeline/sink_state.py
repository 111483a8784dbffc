"""What a directory remembers of one who writes to it: the sink's durable record (SPK-6).

`<log directory>/stratalog-sink-<writer>.state` is a line of JSON and a line of its CRC-32C,
replaced atomically. It says which batch was appended last (`done`), and which one is being appended
(`pending`): from the moment that is on the disk the batch is decided, and whoever finds it finishes
it from the files that it names.

    nothing ─► pending ─► done ─► (of a job that nobody will ask for again) nothing
                 └── a crash, an error: to be finished ──┘

Each batch is appended with a producer id of the writer and an epoch of its own, sequences from 0 in
every partition. So the log itself says how much of a batch it holds, and fences off an older one.

Invariants
- I1  `decode(encode(x)) == x`; whatever else a file holds raises `CorruptionError`.
- I2  An epoch of a producer id is given to one batch only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.pipeline.staging import MAX_VERSION, PREFIX, Staged, parse_staged, writer_key
from stratalog.record.checksum import crc32c
from stratalog.segment.names import MAX_OFFSET, TopicPartition, parse_partition_directory

STATE_SUFFIX = ".state"
NOTHING = -1
MAX_EPOCH = (1 << 15) - 1
_VERSION = 1
_MAX_BYTES = 64 << 20
"""A hundred bytes a staged file, fifty a partition: room for 500,000 tasks."""
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{16}})\{STATE_SUFFIX}(\.tmp)?")


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch that is decided. `starts`: where each of its partitions ended when it was;
    `creates`: partitions of new topics, all of them, rows or none."""

    version: int
    starts: Mapping[TopicPartition, int]
    creates: tuple[TopicPartition, ...]
    files: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class SinkState:
    """`writer`: a query or a job, by its id; `is_once`: a job that writes one batch, ever.

    `producer_id` and `epoch` are those of the pending batch, else of the last one.
    """

    writer: str
    is_once: bool = False
    done: int = NOTHING
    producer_id: int = NOTHING
    epoch: int = NOTHING
    pending: Pending | None = field(default=None)

    def is_done(self, version: int) -> bool:
        """Whether a batch was appended; versions of one writer increase."""
        return version <= self.done

    def claims(self, name: str) -> bool:
        """Whether a staged file is still to be appended."""
        return self.pending is not None and any(file.name == name for file in self.pending.files)


def state_name(writer: str) -> str:
    return f"{PREFIX}{writer_key(writer)}{STATE_SUFFIX}"


def key_of(name: str) -> str:
    """The `writer_key` of a state file's name."""
    return name.removeprefix(PREFIX)[:16]


def state_files(names: list[str]) -> list[str]:
    """The state files among the names of a log directory, unfinished ones left out."""
    return [name for name in names if (m := _NAME.fullmatch(name)) is not None and m[2] is None]


def unfinished_files(names: list[str]) -> list[str]:
    """What was about to replace a state file when a process died."""
    return [name for name in names if (m := _NAME.fullmatch(name)) is not None and m[2]]


def read_state(filesystem: FileSystem, log_dir: str, writer: str) -> SinkState | None:
    """What is remembered of a writer; None: nothing.

    Raises `CorruptionError` naming the file, `StorageIOError`.
    """
    state = read_state_file(filesystem, os.path.join(log_dir, state_name(writer)))
    if state is not None and state.writer != writer:
        path = os.path.join(log_dir, state_name(writer))
        raise CorruptionError(f"of {state.writer!r}, not of {writer!r}", file=path)
    return state


def read_state_file(filesystem: FileSystem, path: str) -> SinkState | None:
    """As `read_state`, by the file."""
    try:
        return decode(read_file(filesystem, path, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except CorruptionError as error:
        raise error.located(path) from None


def write_state(filesystem: FileSystem, log_dir: str, state: SinkState) -> None:
    """Replace what is remembered, durably. Raises `StorageIOError`."""
    path = os.path.join(log_dir, state_name(state.writer))
    write_file_atomically(filesystem, path, encode(state))


def encode(state: SinkState) -> bytes:
    pending = state.pending
    fields: dict[str, Any] = {
        "version": _VERSION,
        "writer": state.writer,
        "is_once": state.is_once,
        "done": state.done,
        "producer_id": state.producer_id,
        "epoch": state.epoch,
        "pending": None
        if pending is None
        else {
            "version": pending.version,
            "starts": {str(key): start for key, start in pending.starts.items()},
            "creates": [str(key) for key in pending.creates],
            "files": [[f.name, f.size_bytes, f.crc, f.records] for f in pending.files],
        },
    }
    line = json.dumps(fields).encode() + b"\n"
    return line + b"%08x\n" % crc32c(line)


def decode(content: bytes) -> SinkState:
    line, _, seal = content.partition(b"\n")
    line += b"\n"
    if seal != b"%08x\n" % crc32c(line):
        raise CorruptionError("the sink's record does not match its checksum")
    try:
        fields = json.loads(line)
        if fields["version"] != _VERSION:
            raise CorruptionError(f"version {fields['version']!r} of the sink's record")
        state = SinkState(
            _of(str, fields["writer"]),
            _of(bool, fields["is_once"]),
            _number(fields["done"], MAX_VERSION),
            _number(fields["producer_id"], MAX_OFFSET),
            _number(fields["epoch"], MAX_EPOCH),
            None if fields["pending"] is None else _pending(fields["pending"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptionError(f"no record of the sink: {type(error).__name__}") from None
    return state


def _pending(fields: Mapping[str, Any]) -> Pending:
    starts = {_key(name): _number(start, MAX_OFFSET) for name, start in fields["starts"].items()}
    creates = tuple(_key(name) for name in fields["creates"])
    files = tuple(
        Staged(_of(str, name), *(_number(value, MAX_OFFSET) for value in rest))
        for name, *rest in fields["files"]
    )
    if any(parse_staged(file.name) is None for file in files):
        raise ValueError("name")  # it would be opened
    return Pending(_number(fields["version"], MAX_VERSION), starts, creates, files)


def _key(name: str) -> TopicPartition:
    key = parse_partition_directory(name)
    if key is None:
        raise ValueError(name)
    return key


def _number(value: Any, largest: int) -> int:
    if type(value) is not int or not NOTHING <= value <= largest:
        raise ValueError(value)
    return value


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(value)
    return value
