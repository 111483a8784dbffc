"""Whether a key is gone from every file of a partition: what a receipt of `forget` says (CLN-11).

All files that hold records are gone through, whatever they are called: segments, what waits to be
deleted, what a cleaning has left half done, what a repair has put aside, and those of its ledgers,
whether they count (LDG-1) or not; every batch in them, of aborted transactions, too. Two answers
are good: no value of the key is left (its tombstones may be: readers learn of the deletion by
them), and the key itself is nowhere.

Invariants
- I1  What cannot be read is a problem, and nothing is said to be gone then.
- I2  A file that is renamed or made meanwhile is looked at under its new name.
- I3  Hashes only choose what to look at: what is reported was compared byte by byte.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from stratalog.admin.columns import Secret, record_columns
from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.dump import text_of
from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Chunk, ChunkReader, Scratch, Table, scan_chunk
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.index import hash_keys
from stratalog.clean.job import CleanSpec
from stratalog.ledger.manifest import ledgers_path
from stratalog.record import layout
from stratalog.record.batch import batches
from stratalog.record.kernel.columns import KEYS

_HOLDS_RECORDS = re.compile(r"(\d{20})\.log(\..+)?")
_SHOWN = 1000
"""Records that are told one by one, of each partition."""
_ATTEMPTS = 10


def is_log_name(name: str) -> bool:
    """Whether a file of that name holds records, in whatever state."""
    return _HOLDS_RECORDS.fullmatch(name) is not None


def ledger_log_files(partition_dir: str, filesystem: FileSystem) -> list[str]:
    """The files below a partition's ledgers that hold records, in whatever directory there; paths
    relative to the partition. One that goes meanwhile is left out. Raises `StorageIOError`."""
    found: list[str] = []
    left = [os.path.relpath(ledgers_path(partition_dir), partition_dir)]
    while left:
        directory = left.pop()
        path = os.path.join(partition_dir, directory)
        try:
            names = filesystem.list_directory(path) if filesystem.is_directory(path) else []
        except FileNotFoundError:
            continue
        for name in names:
            if is_log_name(name):
                found.append(os.path.join(directory, name))
            elif filesystem.is_directory(os.path.join(path, name)):
                left.append(os.path.join(directory, name))
    return sorted(found)


class Stage(Enum):
    """How far a key is gone; the better ones later."""

    UNKNOWN = "unknown"
    VALUE_PRESENT = "value-present"
    VALUE_ABSENT = "value-absent"
    KEY_ABSENT = "key-absent"


@dataclass(frozen=True, slots=True)
class KeyFound:
    """A record of the key. `position`: that of its batch in the file; `expires_ms`: of a tombstone,
    from when on a cleaning removes it, None while that is not known."""

    file: str
    position: int
    offset: int
    has_value: bool
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be looked at, and why; `position` None: the whole file."""

    file: str
    position: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionSearch:
    """What was gone through, and what was found there. `found`: the first `_SHOWN` records."""

    partition: str
    directory: str
    files: int
    records: int
    size_bytes: int
    values: int
    tombstones: int
    found: tuple[KeyFound, ...]
    problems: tuple[Unread, ...]

    @property
    def stage(self) -> Stage:
        if self.values:
            return Stage.VALUE_PRESENT
        if self.problems:
            return Stage.UNKNOWN
        return Stage.VALUE_ABSENT if self.tombstones else Stage.KEY_ABSENT


@dataclass(frozen=True, slots=True)
class AbsentReport:
    """`wanted`: the stage that is asked for, VALUE_ABSENT or KEY_ABSENT."""

    key: str
    wanted: Stage
    partitions: tuple[PartitionSearch, ...]

    @property
    def is_ok(self) -> bool:
        """Every partition has reached the stage."""
        good = {Stage.KEY_ABSENT, self.wanted}
        return all(item.stage in good for item in self.partitions)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.is_ok,
            "key": self.key,
            "wanted": self.wanted.value,
            "partitions": [{**asdict(item), "stage": item.stage.value} for item in self.partitions],
        }


def find_key(
    targets: Sequence[str],
    key: bytes,
    wanted: Stage,
    filesystem: FileSystem,
    on_progress: OnProgress,
) -> AbsentReport:
    """Look for a key in the partitions of `targets`. Raises `UsageError`."""
    text = text_of(key)
    assert text is not None
    places = find_partitions(targets, filesystem)
    searches = [_Search(place, key, filesystem, on_progress) for place in places]
    return AbsentReport(text, wanted, tuple(search.run() for search in searches))


def _base_of(name: str) -> int:
    return int(os.path.basename(name)[:20])


@dataclass(slots=True)
class _Search:
    """One partition's search in progress."""

    place: PartitionPlace
    key: bytes
    filesystem: FileSystem
    on_progress: OnProgress
    spec: CleanSpec = field(default_factory=lambda: CleanSpec(0))
    scratch: Scratch = field(default_factory=Scratch)
    files: int = 0
    records: int = 0
    size_bytes: int = 0
    values: int = 0
    tombstones: int = 0
    found: list[KeyFound] = field(default_factory=list)
    problems: list[Unread] = field(default_factory=list)

    def run(self) -> PartitionSearch:
        seen: set[tuple[str, int]] = set()
        for _ in range(_ATTEMPTS):
            new = [item for item in self._files() if item not in seen]
            if not new:
                break
            for name, _ in new:
                self._file(name)
            seen.update(new)
        else:
            self._unread(self.place.path, None, "its files change all the time; try again")
        return PartitionSearch(
            self.place.name,
            self.place.path,
            self.files,
            self.records,
            self.size_bytes,
            self.values,
            self.tombstones,
            tuple(self.found),
            tuple(self.problems),
        )

    def _files(self) -> Iterator[tuple[str, int]]:
        """The files that hold records: their names and identities."""
        names = filter(is_log_name, sorted(self.filesystem.list_directory(self.place.path)))
        for name in (*names, *ledger_log_files(self.place.path, self.filesystem)):
            try:
                path = os.path.join(self.place.path, name)
                yield name, self.filesystem.stat(path).file_id
            except FileNotFoundError:
                continue  # renamed or unlinked: the next listing knows

    def _unread(self, path: str, position: int | None, reason: str) -> None:
        self.problems.append(Unread(path, position, reason))

    def _file(self, name: str) -> None:
        path = os.path.join(self.place.path, name)
        try:
            size_bytes = self.filesystem.stat(path).size_bytes
            reader = ChunkReader(self.filesystem, path, _base_of(name), size_bytes, self.spec)
            try:
                while (chunk := reader.take(self.scratch)) is not None:
                    self._chunk(chunk)
                    self.size_bytes += chunk.size_bytes
                    self.on_progress(Progress("verify", self.size_bytes, 0))
            finally:
                reader.close()
        except FileNotFoundError:
            return
        except CorruptionError as error:
            self._unread(error.file or path, error.position, error.reason)
        except StorageIOError as error:
            self._unread(path, None, str(error))
        self.files += 1

    def _chunk(self, chunk: Chunk) -> None:
        spec = self.spec
        secret: Secret = (np.uint64(spec.hash_secret[0]), np.uint64(spec.hash_secret[1]))
        wanted = hash_keys([self.key], secret)[0]
        table = scan_chunk(chunk, spec, -1, self.scratch)
        is_control = (table["magic"] == layout.MAGIC_V2) & (
            table["attributes"] & layout.CONTROL_MASK != 0
        )
        rows: set[int] = set()
        for columns in record_columns(
            chunk, table, ~is_control, spec, secret, self.scratch, hashing=KEYS
        ):
            self.records += len(columns.offsets)
            is_same = (columns.key_sizes == len(self.key)) & (columns.keys == wanted).all(axis=1)
            rows.update(columns.rows[is_same].tolist())
        for row in sorted(rows):
            self._batch(chunk, table[row])

    def _batch(self, chunk: Chunk, row: Table) -> None:
        start, size_bytes = int(row["position"]), int(row["size_bytes"])
        position = chunk.position + start
        for batch in batches(memoryview(chunk.raw)[start : start + size_bytes]):
            expires_ms = batch.header.delete_horizon_ms
            for record in batch.records():
                if record.key != self.key:
                    continue
                has_value = record.value is not None
                self.values += has_value
                self.tombstones += not has_value
                if len(self.found) < _SHOWN:
                    expires = None if has_value else expires_ms
                    self.found.append(
                        KeyFound(chunk.path, position, record.offset, has_value, expires)
                    )
