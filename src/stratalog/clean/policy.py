"""Which part of a log can be cleaned and how dirty it is: pure functions over sizes and times.

    log start ... first dirty ......... first uncleanable ... active segment ... log end
    |<--- clean part ---->|<--- cleanable part --->|

Rules: CMP-2, CMP-3 and, where they are silent, Kafka's LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment as selection sees it. `largest_timestamp`: ms, the file's time if it has none."""

    base_offset: int
    size_bytes: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """[first_dirty, first_uncleanable), moved down to segment bounds at its upper end.

    `limit_offset` is the bound before it was moved down; `checkpoint_was_reset` asks for the
    checkpoint to be rewritten to `first_dirty` even if nothing is cleaned.
    """

    first_dirty: int
    first_uncleanable: int
    limit_offset: int
    clean_bytes: int
    cleanable_bytes: int
    checkpoint_was_reset: bool

    @property
    def dirty_ratio(self) -> float:
        """Cleanable bytes over clean and cleanable bytes (CLN-2); 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def cleanable_range(
    segments: Sequence[SegmentFacts],
    *,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    checkpoint: int | None,
    min_compaction_lag_ms: int,
    now_ms: int,
) -> CleanableRange:
    """The range that a round may clean (CMP-3). `segments` are all of the log, the active one last.

    A checkpoint below the log start or past the log end is reset to the log start. The result is
    empty (no cleanable bytes) when nothing can be cleaned.
    """
    is_valid = checkpoint is not None and log_start_offset <= checkpoint <= log_end_offset
    first_dirty = checkpoint if is_valid and checkpoint is not None else log_start_offset
    bounds = [last_stable_offset, segments[-1].base_offset]
    if min_compaction_lag_ms > 0:
        youngest_ms = now_ms - min_compaction_lag_ms
        for segment, is_dirty in _with_dirtiness(segments, first_dirty)[:-1]:
            if is_dirty and segment.largest_timestamp > youngest_ms:
                bounds.append(segment.base_offset)
                break
    limit_offset = min(bounds)
    bases = [segment.base_offset for segment in segments if segment.base_offset <= limit_offset]
    first_uncleanable = bases[-1] if bases else limit_offset
    clean = _overlapping(segments, -1, first_dirty)
    cleanable = _overlapping(segments, first_dirty, first_uncleanable)
    return CleanableRange(
        first_dirty,
        first_uncleanable,
        limit_offset,
        sum(segment.size_bytes for segment in clean),
        sum(segment.size_bytes for segment in cleanable),
        checkpoint is not None and not is_valid,
    )


def _overlapping(segments: Sequence[SegmentFacts], start: int, end: int) -> list[SegmentFacts]:
    """Segments that hold offsets of [start, end): from the one that contains `start`."""
    chosen = []
    for place, segment in enumerate(segments):
        is_last = place + 1 == len(segments)
        reaches_start = is_last or segments[place + 1].base_offset > start
        if reaches_start and segment.base_offset < end and start < end:
            chosen.append(segment)
    return chosen


def _with_dirtiness(
    segments: Sequence[SegmentFacts], first_dirty: int
) -> list[tuple[SegmentFacts, bool]]:
    """Each segment with whether it may hold offsets at or above `first_dirty`."""
    return [
        (
            segment,
            place + 1 == len(segments) or segments[place + 1].base_offset > first_dirty,
        )
        for place, segment in enumerate(segments)
    ]
