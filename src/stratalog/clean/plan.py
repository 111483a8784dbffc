"""What one round is to do: from a partition's state to a `CleaningJob`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stratalog.clean.job import ActiveProducer, CleaningJob, CleanSpec, Order, SourceSegment
from stratalog.clean.policy import CleanableRange, SegmentFacts, cleanable_range
from stratalog.segment.names import MAX_OFFSET
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
    partition: PartitionState,
    cleanable: CleanableRange,
    spec: CleanSpec,
    *,
    is_expired: bool = False,
) -> CleaningJob | None:
    """The job of a round, or None if the range holds no bytes to clean.

    `is_expired`: the clean part is gone through even so, for what has expired there (CMP-9).

    With an order of versions a record that was cleaned before may lose to a late one, or win over
    it: all keys from the log start on are mapped (CMP-17). What lies below the log start is not
    there for any reader, so it must hide nothing. Where the round ends, and the horizon of old
    message formats, still come from the cleanable range. What lies at or beyond the round's end is
    named, too (`CleaningJob.later`): the active segment with the size that it has now.
    """
    first_dirty, end_offset = cleanable.first_dirty, cleanable.first_uncleanable
    if cleanable.cleanable_bytes == 0:
        # A bound can be moved down to below what was cleaned before.
        first_dirty = end_offset = min(first_dirty, end_offset)
        if not is_expired or end_offset <= partition.segments[0].base_offset:
            return None
    bases = [*(segment.base_offset for segment in partition.segments[1:]), MAX_OFFSET]
    placed = [_source(*pair) for pair in zip(partition.segments, bases, strict=True)]
    # The active segment is not cleaned, whatever the range says.
    sources = tuple(s for s in placed[:-1] if s.base_offset < end_offset)
    below_dirty = [s for s in sources if s.base_offset < first_dirty]
    legacy_horizon_ms = below_dirty[-1].modified_ms - spec.delete_retention_ms if below_dirty else 0
    # Ranges that end below the log start are unknown to Kafka's cleaner, too: what they aborted
    # is then cleaned like any other data, and their markers have none left.
    aborted = tuple(a for a in partition.aborted if a.last_offset >= partition.log_start_offset)
    job = CleaningJob(
        partition.name,
        partition.directory,
        spec,
        sources,
        first_dirty,
        end_offset,
        aborted,
        partition.producers,
        legacy_horizon_ms,
    )
    if spec.order is Order.OFFSET:
        return job
    later = tuple(s for s in placed if s.next_offset > end_offset and s.size_bytes > 0)
    mapped_from = partition.log_start_offset
    return replace(job, first_dirty=mapped_from, cleaned_below=first_dirty, later=later)


def _source(segment: SegmentState, next_offset: int) -> SourceSegment:
    return SourceSegment(
        segment.base_offset,
        next_offset,
        segment.size_bytes,
        segment.offset_index_bytes,
        segment.time_index_bytes,
        segment.modified_ms,
    )
