"""The `.index` and `.timeindex` of a segment against its batches.

An offset entry must lead no search past its offset: its position is a batch's start, and that batch
begins at or below the entry's offset (whatever lies before then ends below it). A time entry must
name the largest timestamp up to its offset, and the last one that of the whole segment.

Where batches are damaged, an entry is held only against what is known without them: damage to a
batch is that batch's problem, not its entries'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Int64s, Table
from stratalog.segment import index_files, offset_index, time_index
from stratalog.segment.names import FileKind
from stratalog.segment.offset_index import OffsetIndex
from stratalog.segment.segment import segment_path
from stratalog.segment.time_index import TimeIndex

_FIELDS = ("base_offset", "last_offset", "max_timestamp")


@dataclass(slots=True)
class BatchTable:
    """The sound batches of a segment, gathered chunk by chunk; 32 bytes a batch.

    `doubtful`: where (start, end) in the file nothing certain lies; batches in there do not count.
    """

    doubtful: list[tuple[int, int]] = field(default_factory=list)
    _positions: list[Int64s] = field(default_factory=list)
    _columns: dict[str, list[Int64s]] = field(default_factory=lambda: {f: [] for f in _FIELDS})
    count: int = 0

    def add(self, position: int, table: Table) -> None:
        """Add the batches of a chunk that lies at `position` of the file."""
        self._positions.append(table["position"] + position)
        for name, parts in self._columns.items():
            parts.append(table[name].copy())
        self.count += len(table)

    def doubt(self, start: int, end: int) -> None:
        """Let nothing in [start, end) of the file count, nor be missed."""
        self.doubtful.append((start, end))

    def positions(self) -> Int64s:
        """Of each batch, in bytes."""
        found = self._all_positions()
        return found[self.certain(found)]

    def column(self, name: str) -> Int64s:
        """One of `base_offset`, `last_offset`, `max_timestamp`."""
        values = np.concatenate([np.empty(0, np.int64), *self._columns[name]])
        return values[self.certain(self._all_positions())]

    def _all_positions(self) -> Int64s:
        return np.concatenate([np.empty(0, np.int64), *self._positions])

    def certain(self, starts: Int64s, ends: Int64s | None = None) -> npt.NDArray[np.bool_]:
        """Of positions in the file, or of ranges: whether they lie outside all that is doubtful."""
        ends = starts + 1 if ends is None else ends
        if not self.doubtful:
            return np.ones(len(starts), np.bool_)
        doubts, until = np.array(sorted(self.doubtful), np.int64).T
        farthest = np.concatenate([[-1], np.maximum.accumulate(until)])
        return farthest[np.searchsorted(doubts, ends)] <= starts


def check_indexes(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    size_bytes: int,
    rows: BatchTable,
    *,
    is_active: bool,
) -> Iterator[tuple[FileKind, CorruptionError]]:
    """The problems of both index files; `rows` are all batches of the segment."""
    missing = [
        kind
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
        if not filesystem.exists(segment_path(directory, base_offset, kind))
    ]
    for kind in missing:
        yield kind, CorruptionError("missing; it is made anew when the log is opened")
    if missing:
        return
    try:
        offsets, times = index_files.load(filesystem, directory, base_offset, size_bytes)
    except CorruptionError as error:
        is_times = (error.file or "").endswith(FileKind.TIME_INDEX.value)
        yield FileKind.TIME_INDEX if is_times else FileKind.OFFSET_INDEX, error
        return
    for problem in _offset_problems(offsets, rows):
        yield FileKind.OFFSET_INDEX, problem
    for problem in _time_problems(times, rows, is_active):
        yield FileKind.TIME_INDEX, problem


def _offset_problems(offsets: OffsetIndex, rows: BatchTable) -> Iterator[CorruptionError]:
    positions, bases = rows.positions(), rows.column("base_offset")
    certain = rows.certain(offsets.positions)
    for slot, (offset, position) in enumerate(
        zip(offsets.offsets.tolist(), offsets.positions.tolist(), strict=True)
    ):
        row = int(np.searchsorted(positions, position))
        at = slot * offset_index.ENTRY_BYTES
        if not certain[slot]:
            continue
        if row == len(positions) or positions[row] != position:
            yield CorruptionError(f"no batch starts at position {position}", position=at)
        elif bases[row] > offset:
            reason = f"the batch at position {position} lies past offset {offset}"
            yield CorruptionError(reason, position=at)


def _time_problems(
    times: TimeIndex, rows: BatchTable, is_active: bool
) -> Iterator[CorruptionError]:
    latest = np.maximum.accumulate(rows.column("max_timestamp"))
    # Of a magic 1 wrapper the table knows the last offset only, which is what the entry says too.
    upto = np.searchsorted(rows.column("base_offset"), times.offsets, side="right")
    for slot, (timestamp, count) in enumerate(
        zip(times.timestamps.tolist(), upto.tolist(), strict=True)
    ):
        true = int(latest[count - 1]) if count else -1
        # A batch that does not count may have had the larger one.
        is_excused = bool(rows.doubtful) and timestamp > true
        if true != timestamp and not is_excused:
            reason = f"timestamp {timestamp}, the log has {true} up to there"
            yield CorruptionError(reason, position=slot * time_index.ENTRY_BYTES)
            if slot == len(times) - 1:
                return
    largest = max(int(latest[-1]) if len(latest) else -1, -1)
    # A log that was not closed has no closing entry in its last segment.
    if largest > times.last[0] and not is_active:
        yield CorruptionError(f"ends at timestamp {times.last[0]}, the log has {largest}")
