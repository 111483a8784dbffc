"""The offset and time index of one segment, as one object: loaded on first use, or growing.

`StoredIndexes` belongs to a segment that no longer changes. It reads its files when it is first
asked, and makes both anew from the log when one is missing or does not hold together (RCV-4).
`GrowingIndexes` belongs to the active segment: its one writer adds entries, readers look up
without a lock.

Invariants
- I1  What lookups answer is a place at or before the one asked for, never past it.
- I2  After `retire` no file is opened by name any more: whoever renames or replaces the files
      calls it first, so a reader of the old segment never sees the new segment's index.
- I3  GrowingIndexes: files first, memory last; an append that fails leaves memory as it was, and
      the next one writes over what it left in the files.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import File, FileSystem, read_file, write_file_atomically
from stratalog.base.limits import CHUNK_BYTES
from stratalog.segment import index_builder, offset_index, time_index
from stratalog.segment.index_builder import IndexState
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind, FileState, file_name
from stratalog.segment.offset_index import Int64s, OffsetIndex
from stratalog.segment.time_index import TimeIndex

MAX_INDEX_BYTES = 256 << 20
"""A 2 GiB segment of the smallest batches with an entry for each: 250 MiB. Larger is damage."""
_REBUILD_ROWS = 65_536
_REBUILD_WINDOW_BYTES = 1 << 20


class SegmentIndexes(Protocol):
    """What a segment asks of its indexes. Offsets absolute, positions bytes, timestamps ms."""

    def position_before(self, offset: int) -> int:
        """The start of a batch at or before the first one that reaches `offset`."""
        ...

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record of at least `timestamp`."""
        ...

    def max_timestamp(self) -> tuple[int, int]:
        """The segment's largest timestamp and the last offset of its batch; -1 without any."""
        ...

    def entries(self) -> tuple[OffsetIndex, TimeIndex]:
        """All entries, as values."""
        ...

    def retire(self) -> None:
        """Load what is still on disk only: the files are about to go (I2)."""
        ...


def paths(directory: str, base_offset: int, state: FileState = FileState.FINAL) -> tuple[str, str]:
    """The paths of a segment's `.index` and `.timeindex`."""
    return (
        os.path.join(directory, file_name(base_offset, FileKind.OFFSET_INDEX, state)),
        os.path.join(directory, file_name(base_offset, FileKind.TIME_INDEX, state)),
    )


def load(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    log_size_bytes: int,
    state: FileState = FileState.FINAL,
) -> tuple[OffsetIndex, TimeIndex]:
    """Read both index files. Raises `FileNotFoundError` or `CorruptionError`, naming the file."""
    path, time_path = paths(directory, base_offset, state)
    try:
        offsets = offset_index.decode(_read(filesystem, path), base_offset, log_size_bytes)
    except CorruptionError as error:
        raise error.located(path) from None
    try:
        times = time_index.decode(_read(filesystem, time_path), base_offset)
    except CorruptionError as error:
        raise error.located(time_path) from None
    return offsets, times


def _read(filesystem: FileSystem, path: str) -> bytes:
    try:
        return read_file(filesystem, path, MAX_INDEX_BYTES)
    except StorageIOError as error:
        if filesystem.stat(path).size_bytes > MAX_INDEX_BYTES:
            raise CorruptionError("larger than any index") from error
        raise


def check_tail(
    log: LogFile, size_bytes: int, interval_bytes: int, offsets: OffsetIndex, times: TimeIndex
) -> None:
    """Whether the indexes of a closed segment reach its end.

    Walks the batches from the last offset entry. Raises `CorruptionError` if that entry points to
    something else than its batch, if much of the log has no entry, or if the last time entry is not
    that of the latest batch (retention and lookups by time would go wrong).
    """
    start = int(offsets.positions[-1]) if len(offsets) else 0
    latest, _ = times.last
    if start > 0 and next(log.headers(start, size_bytes), None) is None:
        raise CorruptionError("the last index entry points at no whole batch", position=start)
    last_offset = -1
    for position, header in log.headers(start, size_bytes):
        last_offset = header.last_offset
        if position == start > 0 and header.base_offset > offsets.offsets[-1]:
            raise CorruptionError("the last index entry points past its offset", position=start)
        if position - start > interval_bytes + CHUNK_BYTES:
            raise CorruptionError("the offset index is short", position=position)
        if header.max_timestamp > latest:
            raise CorruptionError("the time index is short", position=position)
    if len(times) and times.last[1] > last_offset:
        raise CorruptionError(f"the time index goes past the log's last offset {last_offset}")


def rebuild(
    log: LogFile,
    base_offset: int,
    size_bytes: int,
    interval_bytes: int,
    *,
    up_to_damage: bool = False,
) -> tuple[OffsetIndex, TimeIndex]:
    """Both indexes of a closed segment, from the headers of its batches.

    Raises `CorruptionError` where the log itself is damaged, or stops there if `up_to_damage`; a
    part of a batch at its end is not looked at.
    """
    state = IndexState(base_offset, interval_bytes)
    chunks: list[index_builder.IndexEntries] = []
    rows: list[tuple[int, int, int, int]] = []
    try:
        for row in _rows(log, base_offset, size_bytes):
            rows.append(row)
            if len(rows) == _REBUILD_ROWS:
                state, entries = index_builder.extend(state, *columns(rows))
                chunks.append(entries)
                rows.clear()
    except CorruptionError:
        if not up_to_damage:
            raise
    state, entries = index_builder.extend(state, *columns(rows))
    chunks.append(entries)
    chunks.append(index_builder.finish(state)[1])
    return (
        OffsetIndex(
            base_offset,
            np.concatenate([chunk.offsets for chunk in chunks]),
            np.concatenate([chunk.positions for chunk in chunks]),
        ),
        TimeIndex(
            base_offset,
            np.concatenate([chunk.timestamps for chunk in chunks]),
            np.concatenate([chunk.time_offsets for chunk in chunks]),
        ),
    )


def _rows(log: LogFile, base_offset: int, size_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    previous = base_offset - 1
    for position, header in log.headers(0, size_bytes, _REBUILD_WINDOW_BYTES):
        if header.base_offset <= previous:
            reason = f"offset {header.base_offset} does not follow {previous}"
        elif header.last_offset - base_offset > offset_index.MAX_RELATIVE_OFFSET:
            reason = f"offset {header.last_offset} does not fit the segment"
        else:
            previous = header.last_offset
            yield position, header.size_bytes, previous, header.max_timestamp
            continue
        raise CorruptionError(reason, file=log.path, position=position)


def store(
    filesystem: FileSystem,
    directory: str,
    offsets: OffsetIndex,
    times: TimeIndex,
    state: FileState = FileState.FINAL,
) -> None:
    """Replace both index files, durably and each atomically."""
    base = offsets.base_offset
    path, time_path = paths(directory, base, state)
    content = offset_index.encode(base, offsets.offsets, offsets.positions)
    write_file_atomically(filesystem, path, content)
    content = time_index.encode(base, times.timestamps, times.offsets)
    write_file_atomically(filesystem, time_path, content)


def columns(rows: list[tuple[int, int, int, int]]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Rows of (position, size, last offset, max timestamp) as what `index_builder` takes."""
    table = np.array(rows, np.int64).reshape(len(rows), 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


class StoredIndexes:
    """The indexes of a segment that no longer changes. `_lock` guards loading."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        base_offset: int,
        log: LogFile,
        size_bytes: int,
        interval_bytes: int,
        *,
        repair: bool,
        state: FileState = FileState.FINAL,
        loaded: tuple[OffsetIndex, TimeIndex] | None = None,
    ):
        """`repair`: indexes that had to be made anew are also written to disk.

        `loaded`: the entries, if they are known already.
        """
        self._filesystem = filesystem
        self._directory = directory
        self._base_offset = base_offset
        self._log = log
        self._size_bytes = size_bytes
        self._interval_bytes = interval_bytes
        self._repair = repair
        self._state = state
        self._lock = threading.Lock()
        self._loaded = loaded

    def entries(self) -> tuple[OffsetIndex, TimeIndex]:
        """Of a damaged log: those of what lies before the damage."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load_locked()
            return self._loaded

    def position_before(self, offset: int) -> int:
        return self.entries()[0].position_before(offset)

    def offset_before(self, timestamp: int) -> int:
        return self.entries()[1].offset_before(timestamp)

    def max_timestamp(self) -> tuple[int, int]:
        return self.entries()[1].last

    def retire(self) -> None:
        self.entries()

    def check(self) -> None:
        """Rebuild now what is missing or of an odd size; the rest is checked when it is loaded."""
        path, time_path = paths(self._directory, self._base_offset, self._state)
        try:
            odd = self._filesystem.stat(path).size_bytes % offset_index.ENTRY_BYTES
            odd += self._filesystem.stat(time_path).size_bytes % time_index.ENTRY_BYTES
        except FileNotFoundError:
            odd = 1
        if odd:
            self.entries()

    def _load_locked(self) -> tuple[OffsetIndex, TimeIndex]:
        try:
            made = load(
                self._filesystem,
                self._directory,
                self._base_offset,
                self._size_bytes,
                self._state,
            )
            check_tail(self._log, self._size_bytes, self._interval_bytes, *made)
            return made
        except (FileNotFoundError, CorruptionError):
            pass
        log, base_offset, size_bytes = self._log, self._base_offset, self._size_bytes
        try:
            made = rebuild(log, base_offset, size_bytes, self._interval_bytes)
        except CorruptionError:
            # The log itself is damaged. What lies before the damage stays readable; a reader who
            # walks into it is told (RCV-7). Nothing is written over what recovery may need.
            return rebuild(log, base_offset, size_bytes, self._interval_bytes, up_to_damage=True)
        if self._repair:
            store(self._filesystem, self._directory, *made, self._state)
        return made


class GrowingIndexes:
    """The indexes of the active segment: one writer, readers without a lock.

    A reader sees a prefix of the entries: columns only grow, and each position is there before its
    offset is.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        state: IndexState,
        offsets: OffsetIndex,
        times: TimeIndex,
        *,
        rewrite: bool = False,
    ):
        """Takes both files over (made if missing) and cuts off what lies behind the entries.

        `state` is the builder's after the segment's last batch. `rewrite`: the files hold other
        entries than these.
        """
        self.state = state
        self._offsets = array("q", offsets.offsets.tolist())
        self._positions = array("q", offsets.positions.tolist())
        self._timestamps = array("q", times.timestamps.tolist())
        self._time_offsets = array("q", times.offsets.tolist())
        path, time_path = paths(directory, state.base_offset)
        self._file = _open_for_update(filesystem, path)
        self._time_file = _open_for_update(filesystem, time_path)
        self._file.truncate(len(self._offsets) * offset_index.ENTRY_BYTES)
        self._time_file.truncate(len(self._timestamps) * time_index.ENTRY_BYTES)
        if rewrite:
            base = state.base_offset
            content = offset_index.encode(base, offsets.offsets, offsets.positions)
            self._file.pwrite(content, 0)
            content = time_index.encode(base, times.timestamps, times.offsets)
            self._time_file.pwrite(content, 0)

    @property
    def offset_entries(self) -> int:
        return len(self._offsets)

    @property
    def time_entries(self) -> int:
        return len(self._timestamps)

    def position_before(self, offset: int) -> int:
        slot = bisect_right(self._offsets, offset) - 1
        return 0 if slot < 0 else self._positions[slot]

    def offset_before(self, timestamp: int) -> int:
        slot = bisect_right(self._timestamps, timestamp) - 1
        return self.state.base_offset if slot < 0 else self._time_offsets[slot]

    def max_timestamp(self) -> tuple[int, int]:
        return self.state.max_timestamp, self.state.max_timestamp_offset

    def entries(self) -> tuple[OffsetIndex, TimeIndex]:
        base = self.state.base_offset
        count, time_count = len(self._offsets), len(self._timestamps)
        return (
            OffsetIndex(base, _column(self._offsets, count), _column(self._positions, count)),
            TimeIndex(
                base,
                _column(self._timestamps, time_count),
                _column(self._time_offsets, time_count),
            ),
        )

    def retire(self) -> None:
        """Everything is in memory already."""

    def append(self, rows: list[tuple[int, int, int, int]]) -> None:
        """Fold batches in: (position, size, last offset, max timestamp) of each.

        Raises `CorruptionError` for an offset that does not fit, `StorageIOError`; then nothing
        changed (I3).
        """
        if len(rows) == 1:
            position, _, last_offset, max_timestamp = rows[0]
            state, entry, timed = index_builder.add(
                self.state, position, last_offset, max_timestamp
            )
            if entry is None:
                self.state = state
                return
            self._add(state, index_builder.entries_of(entry, timed))
            return
        self._add(*index_builder.extend(self.state, *columns(rows)))

    def finish(self) -> None:
        """Write the closing time entry."""
        self._add(*index_builder.finish(self.state))

    def fsync(self) -> None:
        self._file.fsync()
        self._time_file.fsync()

    def close(self) -> None:
        self._file.close()
        self._time_file.close()

    def _add(self, state: IndexState, entries: index_builder.IndexEntries) -> None:
        data, time_data = entries.encode(state.base_offset)
        if data:
            self._file.pwrite(data, len(self._offsets) * offset_index.ENTRY_BYTES)
        if time_data:
            self._time_file.pwrite(time_data, len(self._timestamps) * time_index.ENTRY_BYTES)
        # The order lets readers go without a lock: what a slot points to comes first.
        self._positions.extend(entries.positions.tolist())
        self._offsets.extend(entries.offsets.tolist())
        self._time_offsets.extend(entries.time_offsets.tolist())
        self._timestamps.extend(entries.timestamps.tolist())
        self.state = state


def _column(values: array[int], count: int) -> Int64s:
    return np.array(values[:count], np.int64)


def _open_for_update(filesystem: FileSystem, path: str) -> File:
    return filesystem.open(path, "update" if filesystem.exists(path) else "create")
