"""Taking a log's end back to an offset, in one step that no crash can tear (RET-6).

What stays of the segment that holds the offset is written aside as a new segment, and the swap of
the cleaner puts it in the place of that segment and of all behind it. So readers keep the old
files, a crash leaves the old end or the new one, and there is one protocol to trust.

Invariants
- I1  Batches are never cut: the log ends before the batch that holds the offset.
- I2  Producer snapshots of more than what stays are gone, durably, before the swap can no longer go
      back: its first directory fsync, before the intent, takes their names along.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from stratalog.base.filesystem import FileSystem
from stratalog.base.limits import CHUNK_BYTES
from stratalog.log import snapshots
from stratalog.log.leftovers import sort_out
from stratalog.log.swap import Replacement, SegmentParts
from stratalog.segment import index_builder, txn_index
from stratalog.segment.index_builder import IndexState
from stratalog.segment.index_files import columns
from stratalog.segment.names import FileKind, part_name
from stratalog.segment.segment import Segment
from stratalog.segment.segments import Segments

_JOB = "truncate"


@dataclass(frozen=True, slots=True)
class TruncationPlan:
    """`old_bases` go; the first `size_bytes` of the segment at `source_base` come back as a segment
    at `base_offset`; the log then ends at `end_offset`."""

    old_bases: tuple[int, ...]
    source_base: int
    size_bytes: int
    base_offset: int
    end_offset: int


def plan_truncation(segments: Segments, offset: int, log_start_offset: int) -> TruncationPlan:
    """How the log is to end at or before `offset`, which lies in it, and not before its start.

    Raises `CorruptionError`.
    """
    segment = segments.floor(offset)
    assert segment is not None, offset
    old = tuple(base for base in segments.bases if base >= segment.base_offset)
    end_offset, size_bytes = segment.base_offset, 0
    for placed in segment.headers():
        header = placed.header
        if header.last_offset >= offset:
            if size_bytes == 0 and header.magic >= 2:
                end_offset = min(header.base_offset, offset)
            break
        end_offset, size_bytes = header.next_offset, placed.end
    if size_bytes == 0 or end_offset < log_start_offset:
        # Nothing to read stays. An empty segment says by its name where the log goes on: the first
        # of all no later than the log's start, or it would look as if others were missing.
        is_first = segment.base_offset == segments.bases[0]
        end_offset = log_start_offset if is_first else max(end_offset, log_start_offset)
        return TruncationPlan(old, segment.base_offset, 0, end_offset, end_offset)
    return TruncationPlan(old, segment.base_offset, size_bytes, segment.base_offset, end_offset)


def write_truncated(
    filesystem: FileSystem,
    directory: str,
    plan: TruncationPlan,
    source: Segment,
    interval_bytes: int,
) -> Replacement:
    """Write what stays aside, durably, for the swap. Raises `StorageIOError`, `CorruptionError`."""
    for offset in sort_out(filesystem.list_directory(directory)).snapshots:
        if offset > plan.end_offset:
            filesystem.unlink(snapshots.snapshot_path(directory, offset))
    parts = {
        kind: part_name(plan.base_offset, kind, _JOB, 0)
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    }
    rows = [
        (
            placed.position,
            placed.header.size_bytes,
            placed.header.last_offset,
            placed.header.max_timestamp,
        )
        for placed in source.log.headers(0, plan.size_bytes)
    ]
    state, entries = index_builder.extend(
        IndexState(plan.base_offset, interval_bytes), *columns(rows)
    )
    _, closing = index_builder.finish(state)
    index, times = entries.encode(plan.base_offset)
    _copy_prefix(filesystem, os.path.join(directory, parts[FileKind.LOG]), source, plan.size_bytes)
    _write(filesystem, os.path.join(directory, parts[FileKind.OFFSET_INDEX]), index)
    closed = times + closing.encode(plan.base_offset)[1]
    _write(filesystem, os.path.join(directory, parts[FileKind.TIME_INDEX]), closed)
    kept = [entry for entry in source.aborted if entry.last_offset < plan.end_offset]
    if kept and plan.size_bytes > 0:
        parts[FileKind.TXN_INDEX] = part_name(plan.base_offset, FileKind.TXN_INDEX, _JOB, 0)
        _write(
            filesystem, os.path.join(directory, parts[FileKind.TXN_INDEX]), txn_index.encode(kept)
        )
    return Replacement(plan.old_bases, (SegmentParts(plan.base_offset, parts),))


def _copy_prefix(filesystem: FileSystem, path: str, source: Segment, size_bytes: int) -> None:
    file = filesystem.open(path, "create")
    try:
        for position in range(0, size_bytes, CHUNK_BYTES):
            data = source.log.read(position, min(CHUNK_BYTES, size_bytes - position))
            file.pwrite(data, position)
        file.fsync()
    finally:
        file.close()
    filesystem.set_modified(path, source.modified_ms)


def _write(filesystem: FileSystem, path: str, content: bytes) -> None:
    file = filesystem.open(path, "create")
    try:
        file.pwrite(content, 0)
        file.fsync()
    finally:
        file.close()
