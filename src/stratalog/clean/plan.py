"""What one round is to do: from a partition's state to a `CleaningJob`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from stratalog.clean.job import ActiveProducer, CleaningJob, CleanSpec, SourceSegment
from stratalog.clean.policy import CleanableRange, SegmentFacts, cleanable_range
from stratalog.segment.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment as it lies there; the active one is the last of its partition."""

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    modified_ms: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as it lies there, at one moment. `checkpoint`: the cleaner's, None without one.

    `aborted`: the entries of all .txnindex files, in segment order.
    """

    name: str
    directory: str
    segments: tuple[SegmentState, ...]
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    checkpoint: int | None
    producers: tuple[ActiveProducer, ...] = ()
    aborted: tuple[AbortedTxn, ...] = ()


def range_of(
    partition: PartitionState, *, min_compaction_lag_ms: int, now_ms: int
) -> CleanableRange:
    """The cleanable range of a partition (CMP-3)."""
    facts = [
        SegmentFacts(segment.base_offset, segment.size_bytes, segment.largest_timestamp)
        for segment in partition.segments
    ]
    return cleanable_range(
        facts,
        log_start_offset=partition.log_start_offset,
        log_end_offset=partition.log_end_offset,
        last_stable_offset=partition.last_stable_offset,
        checkpoint=partition.checkpoint,
        min_compaction_lag_ms=min_compaction_lag_ms,
        now_ms=now_ms,
    )


def plan_clean(
    partition: PartitionState, cleanable: CleanableRange, spec: CleanSpec
) -> CleaningJob | None:
    """The job of a round, or None if the range holds no bytes to clean."""
    if cleanable.cleanable_bytes == 0:
        return None
    sources = tuple(
        SourceSegment(
            segment.base_offset,
            following.base_offset,
            segment.size_bytes,
            segment.offset_index_bytes,
            segment.time_index_bytes,
            segment.modified_ms,
        )
        for segment, following in pairwise(partition.segments)
        if segment.base_offset < cleanable.first_uncleanable
    )
    below_dirty = [s for s in sources if s.base_offset < cleanable.first_dirty]
    legacy_horizon_ms = below_dirty[-1].modified_ms - spec.delete_retention_ms if below_dirty else 0
    # Ranges that end below the log start are unknown to Kafka's cleaner, too: what they aborted
    # is then cleaned like any other data, and their markers have none left.
    aborted = tuple(a for a in partition.aborted if a.last_offset >= partition.log_start_offset)
    return CleaningJob(
        partition.name,
        partition.directory,
        spec,
        sources,
        cleanable.first_dirty,
        cleanable.first_uncleanable,
        aborted,
        partition.producers,
        legacy_horizon_ms,
    )
