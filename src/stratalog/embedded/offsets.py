"""Where the consumers of a group stopped: one plain file at the root of the first log directory.

`stratalog-offsets-GROUP` has the form of Kafka's checkpoints with our checksum in it
(`log/checkpoint`), and a word more in each row: the id of the topic that was read, `-` where it had
none. So whoever deletes a topic and makes another of its name, with whatever tool, leaves nobody in
the middle of the new one. Version 0, which earlier versions wrote, is without that word, and read;
`?` stands for it then. The file is replaced atomically and durably; Kafka passes over files that
lie there.

Invariants
- I1  What `commit` has answered is there after a crash; what it has not is there wholly or not.
- I2  A damaged file is an error: it is never read as if nobody had read anything.
- I3  Groups of one process take turns (`_LOCK`); the directory's lock keeps others away.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.embedded.words import short
from stratalog.log.checkpoint import integer, is_sealed, parse, render, render_rows, text_rows
from stratalog.segment.names import MAX_OFFSET, MAX_PARTITION, TopicPartition, is_topic_name

PREFIX = "stratalog-offsets-"
_GROUP = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_LOCK = threading.Lock()
_VERSION = 1
_NO_ID, _UNKNOWN_ID = "-", "?"
_ID = re.compile(r"[\x21-\x7e]{1,64}")


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a group stopped. `topic_id` "": the topic had none; None: nobody wrote it down."""

    offset: int
    topic_id: str | None = None

    def is_of(self, topic_id: str) -> bool:
        """Whether it speaks of the topic that has this id now. One without an id says nothing of
        being another."""
        return self.topic_id is None or topic_id in ("", self.topic_id)


@dataclass(frozen=True, slots=True)
class OffsetsFile:
    """The offsets of one group in the log directory `log_dir`."""

    filesystem: FileSystem
    log_dir: str
    group: str

    def __post_init__(self) -> None:
        """Raises `UsageError` for a name that cannot be a file's."""
        if not _is_group(self.group):
            raise UsageError(
                f"{short(self.group)} is no name of a group: letters, digits, '.', '_' and '-', "
                "at most 200, not .tmp at its end"
            )

    @property
    def path(self) -> str:
        return os.path.join(self.log_dir, PREFIX + self.group)

    def read(self) -> dict[TopicPartition, Committed]:
        """What is committed; no file means nothing. Raises `CorruptionError`, `StorageIOError`."""
        try:
            content = read_file(self.filesystem, self.path, MAX_CHECKPOINT_BYTES)
        except FileNotFoundError:
            return {}
        try:
            committed = _parse(content)
            if not (is_sealed(content) or content in (render({}), _render({}))):
                raise CorruptionError("the committed offsets have no checksum")
            return committed
        except CorruptionError as error:
            mended = f"without the file, group {self.group} begins anew"
            raise CorruptionError(f"{error.reason}; {mended}", file=self.path) from None

    def commit(self, changes: Mapping[TopicPartition, Committed]) -> None:
        """Let these count, beside those of other partitions; durable when it returns."""
        self._change(lambda offsets: offsets.update(changes))

    def forget(self, topic: str) -> None:
        """Nothing is said of a topic any more: one of the same name may come."""

        def without(offsets: dict[TopicPartition, Committed]) -> None:
            for key in [key for key in offsets if key.topic == topic]:
                del offsets[key]

        self._change(without)

    def _change(self, change: Callable[[dict[TopicPartition, Committed]], None]) -> None:
        with _LOCK:
            before = self.read()
            after = dict(before)
            change(after)
            if after != before:
                write_file_atomically(self.filesystem, self.path, _render(after))


def _render(committed: Mapping[TopicPartition, Committed]) -> bytes:
    return render_rows(
        _VERSION,
        [
            f"{key.topic} {key.partition} {it.offset} {_id_word(it.topic_id)}"
            for key, it in sorted(committed.items())
        ],
    )


def _id_word(topic_id: str | None) -> str:
    return _UNKNOWN_ID if topic_id is None else topic_id or _NO_ID


def _parse(content: bytes) -> dict[TopicPartition, Committed]:
    """Raises `CorruptionError`."""
    if content.startswith(b"0\n"):
        return {key: Committed(offset) for key, offset in parse(content).items()}
    found: dict[TopicPartition, Committed] = {}
    for number, row in enumerate(text_rows(content, _VERSION, 4), start=3):
        topic, partition, offset, word = row
        key = TopicPartition(topic, integer(partition, number, MAX_PARTITION))
        if not is_topic_name(topic) or not _ID.fullmatch(word) or key in found:
            raise CorruptionError(f"line {number} is no offset of a topic, or stands there twice")
        topic_id = None if word == _UNKNOWN_ID else "" if word == _NO_ID else word
        found[key] = Committed(integer(offset, number, MAX_OFFSET), topic_id)
    return found


def groups_in(filesystem: FileSystem, log_dir: str) -> list[str]:
    """The groups that have committed something."""
    names = (n for n in filesystem.list_directory(log_dir) if n.startswith(PREFIX))
    return [name[len(PREFIX) :] for name in names if _is_group(name[len(PREFIX) :])]


def _is_group(name: object) -> bool:
    # What is written aside has .tmp at its end.
    is_name = isinstance(name, str) and _GROUP.fullmatch(name) is not None
    return is_name and not str(name).endswith(".tmp")
