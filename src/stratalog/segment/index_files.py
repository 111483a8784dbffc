"""The two index files of a segment on disk: reading, checking, making anew from the log, writing.

Invariants
- I1  `load` and `check_tail` refuse what does not hold together or does not reach the log's end;
      `rebuild` gives what `index_builder` gives for the log's batches (RCV-4).
- I2  `store` replaces each file atomically.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from stratalog.base.errors import CorruptionError, StorageIOError, TooManyFilesError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.base.limits import CHUNK_BYTES
from stratalog.segment import index_builder, offset_index, time_index
from stratalog.segment.digest import FileSum
from stratalog.segment.index_builder import IndexState
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind, FileState, file_name
from stratalog.segment.offset_index import Int64s, OffsetIndex
from stratalog.segment.time_index import TimeIndex

MAX_INDEX_BYTES = 256 << 20
"""A 2 GiB segment of the smallest batches with an entry for each: 250 MiB. Larger is damage."""
_REBUILD_ROWS = 65_536
_REBUILD_WINDOW_BYTES = 1 << 20

Row = tuple[int, int, int, int]
"""A batch: position, size, last offset, max timestamp."""


def paths(directory: str, base_offset: int, state: FileState = FileState.FINAL) -> tuple[str, str]:
    """The paths of a segment's `.index` and `.timeindex`."""
    return (
        os.path.join(directory, file_name(base_offset, FileKind.OFFSET_INDEX, state)),
        os.path.join(directory, file_name(base_offset, FileKind.TIME_INDEX, state)),
    )


KnownSum = Callable[[FileKind, int], FileSum | None]
"""What an index file of a log of so many bytes must be, if that is known."""


def load(
    filesystem: FileSystem,
    directory: str,
    base_offset: int,
    log_size_bytes: int,
    state: FileState = FileState.FINAL,
    known_sum: KnownSum | None = None,
) -> tuple[OffsetIndex, TimeIndex]:
    """Read both index files. Raises `FileNotFoundError` or `CorruptionError`, naming the file."""
    path, time_path = paths(directory, base_offset, state)
    try:
        content = _read(filesystem, path)
        _check_sum(content, FileKind.OFFSET_INDEX, log_size_bytes, known_sum)
        offsets = offset_index.decode(content, base_offset, log_size_bytes)
    except CorruptionError as error:
        raise error.located(path) from None
    try:
        content = _read(filesystem, time_path)
        _check_sum(content, FileKind.TIME_INDEX, log_size_bytes, known_sum)
        times = time_index.decode(content, base_offset)
    except CorruptionError as error:
        raise error.located(time_path) from None
    return offsets, times


def _check_sum(
    content: bytes, kind: FileKind, log_size_bytes: int, known_sum: KnownSum | None
) -> None:
    known = None if known_sum is None else known_sum(kind, log_size_bytes)
    if known is not None and FileSum.of(content) != known:
        raise CorruptionError("not the index that was written")


def _read(filesystem: FileSystem, path: str) -> bytes:
    try:
        return read_file(filesystem, path, MAX_INDEX_BYTES)
    except TooManyFilesError:
        raise  # it need not be there at all
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
    rows: list[Row] = []
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


def _rows(log: LogFile, base_offset: int, size_bytes: int) -> Iterator[Row]:
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


def columns(rows: list[Row]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Rows of (position, size, last offset, max timestamp) as what `index_builder` takes."""
    table = np.array(rows, np.int64).reshape(len(rows), 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]
