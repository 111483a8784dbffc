"""The end of a log: the last segment's last batch, found by walking from its last index entry.

Whatever lies behind the last index entry is checked batch by batch: header, order of offsets,
checksum. Two kinds of damage end the walk (RCV-1): a part of a batch at the file's end, as a crash
leaves it, and bytes that are no batch. Before the last index entry nothing is looked at.

Invariants
- I1  The log ends before damage only if `may_be_torn` says so; otherwise damage is an error.
- I2  A wrong index is never taken for a damaged log: if the indexes do not fit or are missing, the
      walk starts at the file's beginning and makes them anew (RCV-4).
- I3  With `writable` false no file is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, write_file_atomically
from stratalog.record.batch import Batch
from stratalog.segment import index_builder, index_files, offset_index, time_index, txn_index
from stratalog.segment.guard import Guard
from stratalog.segment.index_builder import IndexEntries, IndexState
from stratalog.segment.indexes import StoredIndexes
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind, FileState
from stratalog.segment.offset_index import OffsetIndex
from stratalog.segment.segment import Segment, segment_path
from stratalog.segment.time_index import TimeIndex
from stratalog.segment.txn_index import AbortedTxn

_ROWS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The last segment and where it ends.

    `segment` is a readable value of it, closing time entry included; `state` and `entries` are what
    goes on growing, without that entry. `entries_changed`: they are not those of the files.
    `cut_bytes` behind its end were damaged and are left out.
    """

    segment: Segment
    state: IndexState
    entries: tuple[OffsetIndex, TimeIndex]
    entries_changed: bool
    next_offset: int
    cut_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """What a walk from `start` found. `damage` is what it stopped at, at position `end`."""

    start: int
    end: int
    next_offset: int
    state: IndexState
    entries: tuple[OffsetIndex, TimeIndex]
    changed: bool
    damage: CorruptionError | None


def load_tail(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    *,
    interval_bytes: int,
    aborted: tuple[AbortedTxn, ...],
    writable: bool,
    may_be_torn: bool,
) -> Tail:
    """Find the end of the log in its last segment; `aborted` are its `.txnindex` entries.

    Raises `CorruptionError` (naming file and position) for a torn or damaged end, unless
    `may_be_torn`: then the log ends before it, and the file is left as it is.
    """
    path = segment_path(directory, base_offset, FileKind.LOG)
    log = LogFile.open(filesystem, path, "update" if writable else "read")
    size_bytes = log.size_bytes()
    stat = filesystem.stat(path)
    guard = Guard(filesystem, directory, base_offset, log, stat.file_id)
    walk = _walk_from_indexes(filesystem, directory, base_offset, guard, log, interval_bytes)
    if walk is None:
        walk = _walk_all(log, base_offset, size_bytes, interval_bytes, check_from=0)
    if walk.damage is not None:
        if not may_be_torn:
            raise walk.damage
        # An entry may point at what is cut off, so what is left is indexed anew.
        walk = _walk_all(log, base_offset, walk.end, interval_bytes, check_from=walk.end)
        if walk.damage is not None:
            raise walk.damage
    if not may_be_torn:
        # Where the log ends is what appends go by, and a header lies outside its batch's checksum.
        guard.check(walk.start, walk.end)
    kept = tuple(entry for entry in aborted if entry.last_offset < walk.next_offset)
    if writable and kept != aborted:
        txn_path = segment_path(directory, base_offset, FileKind.TXN_INDEX)
        write_file_atomically(filesystem, txn_path, txn_index.encode(kept))
    segment = Segment(
        base_offset,
        walk.end,
        stat.modified_ms,
        log,
        StoredIndexes(
            filesystem,
            directory,
            base_offset,
            log,
            walk.end,
            interval_bytes,
            repair=False,
            loaded=_closed(walk),
        ),
        kept,
        guard,
    )
    return Tail(
        segment,
        walk.state,
        walk.entries,
        walk.changed,
        walk.next_offset,
        size_bytes - walk.end,
    )


def _walk_from_indexes(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    guard: Guard,
    log: LogFile,
    interval_bytes: int,
) -> _Walk | None:
    """Walk from the last index entry; None if the indexes are missing or do not fit the log."""
    size_bytes = log.size_bytes()
    try:
        offsets, times = index_files.load(
            filesystem, directory, base_offset, size_bytes, FileState.FINAL, guard.index_sum
        )
    except (FileNotFoundError, CorruptionError):
        return None
    timestamp, timestamp_offset = times.last
    start = 0
    if len(offsets):
        start = int(offsets.positions[-1])
        try:
            first = next(log.headers(start, size_bytes), None)
        except CorruptionError:
            return None
        if first is None or not (
            base_offset <= first.header.base_offset <= offsets.offsets[-1]
            and first.header.max_timestamp <= timestamp
        ):
            return None
    state = IndexState(base_offset, interval_bytes, start, timestamp, timestamp_offset, timestamp)
    walk = _walk(log, size_bytes, state, (offsets, times), check_from=start)
    # The file was cut off below an entry that a clean close wrote.
    return None if len(times) and timestamp_offset >= walk.next_offset else walk


def _walk_all(
    log: LogFile, base_offset: int, size_bytes: int, interval_bytes: int, *, check_from: int
) -> _Walk:
    empty = offset_index.empty(base_offset), time_index.empty(base_offset)
    state = IndexState(base_offset, interval_bytes)
    walk = _walk(log, size_bytes, state, empty, check_from=check_from)
    return _Walk(
        walk.start,
        walk.end,
        walk.next_offset,
        walk.state,
        walk.entries,
        changed=True,
        damage=walk.damage,
    )


def _walk(
    log: LogFile,
    size_bytes: int,
    state: IndexState,
    entries: tuple[OffsetIndex, TimeIndex],
    *,
    check_from: int,
) -> _Walk:
    """Walk from the state's last entry to the end, adding the index entries that are due.

    Checksums are checked from position `check_from` on.
    """
    base_offset = state.base_offset
    start = end = state.last_entry_position
    previous = base_offset - 1
    added: list[IndexEntries] = []
    rows: list[tuple[int, int, int, int]] = []
    damage: CorruptionError | None = None
    try:
        for batch in log.batches(end, size_bytes):
            header = batch.header
            _check(batch, base_offset, previous, crc=batch.position >= check_from)
            rows.append(
                (batch.position, header.size_bytes, header.last_offset, header.max_timestamp)
            )
            previous = header.last_offset
            end = batch.position + header.size_bytes
            if len(rows) == _ROWS:
                state, more = index_builder.extend(state, *index_files.columns(rows))
                added.append(more)
                rows.clear()
    except CorruptionError as error:
        damage = error.located(log.path)
    state, more = index_builder.extend(state, *index_files.columns(rows))
    added.append(more)
    if damage is None and end < size_bytes:
        reason = f"the log ends in {size_bytes - end} bytes that are no whole batch"
        damage = CorruptionError(reason, file=log.path, position=end)
    changed = any(len(more.offsets) or len(more.timestamps) for more in added)
    return _Walk(start, end, previous + 1, state, _joined(entries, added), changed, damage)


def _check(batch: Batch, base_offset: int, previous: int, *, crc: bool) -> None:
    header = batch.header
    if header.base_offset <= previous:
        raise CorruptionError(
            f"offset {header.base_offset} does not follow {previous}", position=batch.position
        )
    if header.last_offset - base_offset > offset_index.MAX_RELATIVE_OFFSET:
        raise CorruptionError(
            f"offset {header.last_offset} does not fit the segment", position=batch.position
        )
    if crc and not batch.crc_ok():
        raise CorruptionError("batch fails its checksum", position=batch.position)


def _joined(
    entries: tuple[OffsetIndex, TimeIndex], added: list[IndexEntries]
) -> tuple[OffsetIndex, TimeIndex]:
    offsets, times = entries
    return (
        OffsetIndex(
            offsets.base_offset,
            np.concatenate([offsets.offsets, *(more.offsets for more in added)]),
            np.concatenate([offsets.positions, *(more.positions for more in added)]),
        ),
        TimeIndex(
            times.base_offset,
            np.concatenate([times.timestamps, *(more.timestamps for more in added)]),
            np.concatenate([times.offsets, *(more.time_offsets for more in added)]),
        ),
    )


def _closed(walk: _Walk) -> tuple[OffsetIndex, TimeIndex]:
    return _joined(walk.entries, [index_builder.finish(walk.state)[1]])
