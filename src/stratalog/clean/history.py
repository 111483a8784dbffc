"""What was cleaned: one line of JSON a round, in `<partition>/.stratalog/cleaner-history`.

Entries are appended without a sync, as nothing depends on most of them; when there are twice as
many as are to be kept, the file is written anew with the newest. A line that a crash has torn is
passed over.

Invariants
- I1  An entry holds no keys and no values (CLN-11).
- I2  The file holds at most twice the entries that are kept, each of a few KiB at most.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from stratalog.base.errors import StorageIOError, TooManyFilesError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.clean.job import Drops
from stratalog.segment.names import STATE_DIRECTORY

HISTORY_FILE = "cleaner-history"
KEPT = 256
ASKED = "asked"
"""The trigger of what somebody has asked for."""
_MAX_CAUSE = 1000
_TEXTS = frozenset({"trigger", "result", "engine", "thread", "cause", "mode"})
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One round, as Kafka's log cleaner reports it, and why it ran and how it ended (CLN-9).

    `trigger`: `forced`, `ratio`, `backlog`, `expired_tombstones`, `asked`, `command` or `forget`;
    `result`: `cleaned`, `aborted` or `failed`, with `cause`. Offsets are those of the dirty part
    and of the round's end; bytes are of `.log` files, records count control records. `mode`: the
    topic's `compaction.mode`; in ledger mode `generation` is the number of what was made.
    """

    started_ms: int
    duration_ms: int
    trigger: str
    result: str
    engine: str = "local"
    thread: str = ""
    cause: str = ""
    first_dirty: int = 0
    end_offset: int = 0
    dirty_ratio: float = 0.0
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    keys: int = 0
    map_utilization: float = 0.0
    index_ms: int = 0
    rewrite_ms: int = 0
    throttled_ms: int = 0
    drops: Drops = field(default_factory=Drops)
    mode: str = "inplace"
    generation: int = 0

    @property
    def bytes_saved(self) -> int:
        return self.bytes_before - self.bytes_after

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes_saved": self.bytes_saved}


def append_history(
    filesystem: FileSystem, directory: str, entry: Entry, kept: int = KEPT, *, syncs: bool = False
) -> None:
    """Add an entry; of the older ones at least the newest `kept` stay. `syncs`: it is durable when
    this returns. Raises `StorageIOError`."""
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    path = os.path.join(state_directory, HISTORY_FILE)
    line = _encode(entry)
    lines = _lines(filesystem, path)
    if len(lines) >= 2 * kept:
        content = b"".join([*lines[len(lines) - kept + 1 :], line])
        write_file_atomically(filesystem, path, content)
        return
    if not filesystem.exists(state_directory):
        filesystem.make_directory(state_directory)
    is_new = not filesystem.exists(path)
    file = filesystem.open(path, "create" if is_new else "update")
    try:
        size_bytes = sum(map(len, lines))
        file.truncate(size_bytes)  # what a crash has torn goes
        file.pwrite(line, size_bytes)
        if syncs:
            file.fsync()
    finally:
        file.close()
    if syncs:
        filesystem.fsync_directory(state_directory)


def read_history(filesystem: FileSystem, directory: str, limit: int = KEPT) -> list[Entry]:
    """The newest entries, oldest first; what is no entry is passed over.

    Raises `StorageIOError`.
    """
    path = os.path.join(directory, STATE_DIRECTORY, HISTORY_FILE)
    entries = (_decode(line) for line in _lines(filesystem, path))
    found = [entry for entry in entries if entry is not None]
    return found[max(len(found) - limit, 0) :]


def _lines(filesystem: FileSystem, path: str) -> list[bytes]:
    """The whole lines of the file, each with its end. A file out of all bounds is none of ours."""
    try:
        content = read_file(filesystem, path, _MAX_BYTES)
    except FileNotFoundError:
        return []
    except TooManyFilesError:
        raise  # it need not be there at all
    except StorageIOError:
        if filesystem.stat(path).size_bytes <= _MAX_BYTES:
            raise
        return []
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


def _encode(entry: Entry) -> bytes:
    content = {**asdict(entry), "cause": entry.cause[:_MAX_CAUSE]}
    return json.dumps(content).encode() + b"\n"


def _decode(line: bytes) -> Entry | None:
    try:
        content = json.loads(line)
        drops = content.pop("drops")
        right = all(type(value) is int for value in drops.values()) and all(
            isinstance(value, str) == (name in _TEXTS) and type(value) in (int, float, str)
            for name, value in content.items()
        )
        return Entry(**content, drops=Drops(**drops)) if right else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
