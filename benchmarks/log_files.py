"""Batches into the files of a log: cut into segments, with both indexes, durable.

Every batch holds as many records as the others, one a millisecond, so its number says its offsets
and timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.job import SourceSegment
from stratalog.log.snapshots import write_snapshot
from stratalog.segment import index_builder
from stratalog.segment.names import FileKind
from stratalog.segment.segment import segment_path

Int64s = npt.NDArray[np.int64]

FIRST_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Block:
    """Whole batches one after another: their bytes, each one's size, the number of the first."""

    data: memoryview
    sizes: Int64s
    first_batch: int


class LogWriter:
    """Takes blocks in order. `records`: how many a batch holds."""

    def __init__(self, directory: str, segment_bytes: int, records: int):
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._records = records
        self._open: _SegmentWriter | None = None
        self._closed: list[SourceSegment] = []

    def write(self, block: Block) -> None:
        """Append a block's batches, each to a new segment if it does not fit the last one."""
        ends = np.cumsum(block.sizes)
        row = done = 0
        while row < len(ends):
            size = 0 if self._open is None else self._open.size_bytes
            fitting = int(np.searchsorted(ends, done + self._segment_bytes - size, side="right"))
            if self._open is None or fitting == row:
                base_offset = (block.first_batch + row) * self._records
                self._close(base_offset)
                self._open = _SegmentWriter(self._directory, base_offset)
                continue
            end = int(ends[fitting - 1])
            numbers = np.arange(block.first_batch + row, block.first_batch + fitting)
            last_offsets = (numbers + 1) * self._records - 1
            self._open.append(block.data[done:end], block.sizes[row:fitting], last_offsets)
            row, done = fitting, end

    def finish(self, end_offset: int) -> tuple[SourceSegment, ...]:
        """Close the last segment, add the empty active one; the segments before that one."""
        self._close(end_offset)
        _SegmentWriter(self._directory, end_offset).close(end_offset)
        filesystem = LocalFileSystem()
        # Where the log's producers are looked up, so that opening it does not read all of it.
        write_snapshot(filesystem, self._directory, end_offset, {})
        filesystem.fsync_directory(self._directory)
        return tuple(self._closed)

    def _close(self, next_offset: int) -> None:
        if self._open is not None:
            self._closed.append(self._open.close(next_offset))
            self._open = None


class _SegmentWriter:
    """Writes one segment."""

    def __init__(self, directory: str, base_offset: int):
        self._directory = directory
        self._base_offset = base_offset
        self._filesystem = LocalFileSystem()
        self._log = self._filesystem.open(self._path(FileKind.LOG), "create")
        self._index = index_builder.IndexState(base_offset)
        self._entries: list[index_builder.IndexEntries] = []
        self.size_bytes = 0

    def append(self, data: memoryview, sizes: Int64s, last_offsets: Int64s) -> None:
        """Append whole batches of these sizes and last offsets."""
        self._log.pwrite(data, self.size_bytes)
        positions = self.size_bytes + np.cumsum(sizes) - sizes
        timestamps = last_offsets + FIRST_TIMESTAMP_MS
        self._index, entries = index_builder.extend(
            self._index, positions, sizes, last_offsets, timestamps
        )
        self._entries.append(entries)
        self.size_bytes += len(data)

    def close(self, next_offset: int) -> SourceSegment:
        """Write the indexes, fsync, set the time of the last record; what was written."""
        self._index, entries = index_builder.finish(self._index)
        encoded = [part.encode(self._base_offset) for part in [*self._entries, entries]]
        offsets, times = (b"".join(parts) for parts in zip(*encoded, strict=True))
        self._log.fsync()
        self._log.close()
        for kind, content in ((FileKind.OFFSET_INDEX, offsets), (FileKind.TIME_INDEX, times)):
            file = self._filesystem.open(self._path(kind), "create")
            try:
                file.pwrite(content, 0)
                file.fsync()
            finally:
                file.close()
        modified_ms = FIRST_TIMESTAMP_MS + next_offset
        self._filesystem.set_modified(self._path(FileKind.LOG), modified_ms)
        return SourceSegment(
            self._base_offset, next_offset, self.size_bytes, len(offsets), len(times), modified_ms
        )

    def _path(self, kind: FileKind) -> str:
        return segment_path(self._directory, self._base_offset, kind)
