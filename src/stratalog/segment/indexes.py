"""The offset and time index of one segment, as one object: loaded on first use, or growing.

`StoredIndexes` belongs to a segment that no longer changes. It reads its files when it is first
asked, and makes both anew from the log when one is missing, does not hold together, or is not the
one that the segment's digest knows (RCV-4).
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

import threading
from array import array
from bisect import bisect_right
from typing import Protocol

import numpy as np

from stratalog.base.errors import CorruptionError, StratalogError
from stratalog.base.filesystem import File, FileSystem
from stratalog.segment import index_builder, offset_index, time_index
from stratalog.segment.guard import Guard
from stratalog.segment.index_builder import IndexState
from stratalog.segment.index_files import Row, check_tail, columns, load, paths, rebuild, store
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileState
from stratalog.segment.offset_index import Int64s, OffsetIndex
from stratalog.segment.time_index import TimeIndex


class SegmentIndexes(Protocol):
    """What a segment asks of its indexes. Offsets absolute, positions bytes, timestamps ms."""

    def position_before(self, offset: int) -> int:
        """The start of a batch at or before the first one that reaches `offset`."""
        ...

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record of at least `timestamp`."""
        ...

    def max_timestamp(self) -> tuple[int, int]:
        """The segment's largest timestamp and the last offset of its batch; -1 without any.

        Raises `CorruptionError`."""
        ...

    def entries(self) -> tuple[OffsetIndex, TimeIndex]:
        """All entries, as values."""
        ...

    def retire(self) -> None:
        """Load what is still on disk only: the files are about to go (I2)."""
        ...


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
        guard: Guard | None = None,
    ):
        """`repair`: indexes that had to be made anew are also written to disk.

        `loaded`: the entries, if they are known already. `guard`: what the segment's digest knows.
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
        self._guard = guard
        self._damage: CorruptionError | None = None

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
        """Of a damaged log nobody knows: raises `CorruptionError`."""
        last = self.entries()[1].last
        if self._damage is not None:
            raise self._damage
        return last

    def retire(self) -> None:
        self.entries()
        if self._guard is not None:
            self._guard.load()

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
                None if self._guard is None else self._guard.index_sum,
            )
            check_tail(self._log, self._size_bytes, self._interval_bytes, *made)
            if self._guard is None or not self._guard.is_replaced():
                return made
        except (FileNotFoundError, CorruptionError):
            pass
        log, base_offset, size_bytes = self._log, self._base_offset, self._size_bytes
        try:
            if self._guard is not None:
                self._guard.check(0, size_bytes)
                self._guard.check_end(size_bytes)
            made = rebuild(log, base_offset, size_bytes, self._interval_bytes)
        except CorruptionError as error:
            self._damage = error
            # The log itself is damaged. What lies before the damage stays readable; a reader who
            # walks into it is told (RCV-7). Nothing is written over what recovery may need.
            return rebuild(log, base_offset, size_bytes, self._interval_bytes, up_to_damage=True)
        if self._repair:
            store(self._filesystem, self._directory, *made, self._state)
            if self._guard is not None:
                self._guard.indexes_rebuilt()
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
        try:
            self._time_file = _open_for_update(filesystem, time_path)
        except StratalogError:
            self._file.close()
            raise
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

    def append(self, rows: list[Row]) -> None:
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
            self._add_one(state, entry, timed)
            return
        self._add(*index_builder.extend(self.state, *columns(rows)))

    def finish(self) -> None:
        """Write the closing time entry."""
        self._add(*index_builder.finish(self.state))

    def fsync_times(self) -> None:
        """Sync the time index, whose closing entry nothing else shows to be missing. A short offset
        index costs time at most."""
        self._time_file.fsync()

    def close(self) -> None:
        self._file.close()
        self._time_file.close()

    def _add_one(
        self, state: IndexState, entry: tuple[int, int], timed: tuple[int, int] | None
    ) -> None:
        """`_add` of what one batch brings, without arrays."""
        base = state.base_offset
        data = offset_index.encode_entry(base, *entry)
        self._file.pwrite(data, len(self._offsets) * offset_index.ENTRY_BYTES)
        if timed is not None:
            data = time_index.encode_entry(base, *timed)
            self._time_file.pwrite(data, len(self._timestamps) * time_index.ENTRY_BYTES)
        self._positions.append(entry[1])
        self._offsets.append(entry[0])
        if timed is not None:
            self._time_offsets.append(timed[1])
            self._timestamps.append(timed[0])
        self.state = state

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
