"""When a log's tombstones and markers may go by the mere passing of time (CMP-9).

A round says it exactly for what it leaves (`CleanedPartition.next_expiry_ms`). For a log whose last
round told nobody, because a real Kafka ran it or the log was imported, `next_expiry_of` asks the
batch headers, window by window: memory is one window, and a batch larger than it is hopped over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.base.limits import MAX_BATCH_BYTES
from stratalog.record.kernel import arrays, horizon, retain
from stratalog.segment.names import FileKind
from stratalog.segment.segment import segment_path

WINDOW_BYTES = 64 << 10
"""What is read at a time: many small batches, and of large ones little more than the headers."""


class SizedSegment(Protocol):
    """A segment and how many bytes of its log count: `SegmentState` and `SourceSegment` are."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


def next_expiry_of(
    filesystem: FileSystem, directory: str, segments: Iterable[SizedSegment]
) -> int | None:
    """The earliest delete horizon (ms) in the headers of `segments`; None if no batch has one.

    Never too late by `tombstone.horizon=batch`, but perhaps too early: a batch keeps its horizon
    when its last tombstone was superseded, and a header does not tell. The round that is run for
    it makes it exact. By `tombstone.horizon=segment` horizons mean nothing: do not ask.

    Checksums are not looked at. Raises `CorruptionError` for what cannot be a batch's header or is
    not a whole batch, `StorageIOError` and `FileNotFoundError` if a file cannot be read.
    """
    earliest_ms = retain.NEVER_MS
    window = np.empty(WINDOW_BYTES, np.uint8)
    for segment in segments:
        path = segment_path(directory, segment.base_offset, FileKind.LOG)
        file = filesystem.open(path, "read")
        try:
            position = 0
            while position < segment.size_bytes:
                wanted = min(WINDOW_BYTES, segment.size_bytes - position)
                filled = file.pread_into(window[:wanted], position)
                if filled < wanted:
                    reason = f"file ends {wanted - filled} bytes early"
                    raise CorruptionError(reason, file=path, position=position)
                hopped, found_ms, error = horizon.earliest_horizon(window, filled, MAX_BATCH_BYTES)
                if error != arrays.OK:
                    at = position + int(hopped)
                    raise CorruptionError(arrays.DAMAGE[int(error)], file=path, position=at)
                if hopped == 0 or position + int(hopped) > segment.size_bytes:
                    raise CorruptionError("last batch is cut off", file=path, position=position)
                position += int(hopped)
                earliest_ms = min(earliest_ms, int(found_ms))
        finally:
            file.close()
    return earliest_ms if earliest_ms < retain.NEVER_MS else None
