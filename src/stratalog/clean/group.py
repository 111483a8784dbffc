"""Which segments become one: in order, as long as they fit (CMP-11, EX-3). Pure.

Sizes are those before cleaning, so a group always fits, whatever stays of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.clean.job import SourceSegment

_MAX_OFFSET_SPAN = (1 << 31) - 1


def group_segments(
    segments: Sequence[SourceSegment],
    *,
    segment_bytes: int,
    segment_index_bytes: int,
    first_uncleanable: int,
) -> list[tuple[SourceSegment, ...]]:
    """Cut `segments` into runs, each to become one segment named by its first base offset.

    A run holds at most `segment_bytes` of .log, at most `segment_index_bytes` of either index,
    and offsets of at most 2^31 - 1 past its first base; a segment alone is always a run. An empty
    segment joins whatever its offsets, or a quiet log would keep one every 2^31 offsets
    (KAFKA-12889).
    """
    groups: list[tuple[SourceSegment, ...]] = []
    run: list[SourceSegment] = []
    sums = (0, 0, 0)
    for place, segment in enumerate(segments):
        is_last = place + 1 == len(segments)
        end = first_uncleanable if is_last else segments[place + 1].base_offset
        sizes = (segment.size_bytes, segment.offset_index_bytes, segment.time_index_bytes)
        log_bytes, offset_index_bytes, time_index_bytes = map(sum, zip(sums, sizes, strict=True))
        fits = not run or (
            log_bytes <= segment_bytes
            and offset_index_bytes <= segment_index_bytes
            and time_index_bytes <= segment_index_bytes
            and (segment.size_bytes == 0 or end - 1 - run[0].base_offset <= _MAX_OFFSET_SPAN)
        )
        if fits:
            run.append(segment)
            sums = (log_bytes, offset_index_bytes, time_index_bytes)
        else:
            groups.append(tuple(run))
            run, sums = [segment], sizes
    if run:
        groups.append(tuple(run))
    return groups
