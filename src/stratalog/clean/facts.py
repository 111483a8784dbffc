"""A log's view, checkpoint, settings and note -> the facts that choosing and explaining go by.

    measure    view, checkpoint, lags, time -> Measured     the sections of the log and their bounds
    facts_of   Measured, settings, state, note -> LogFacts   what `select` sees

The cleaner asks this for every log in every loop, so `measure` answers what it has answered before
as long as nothing has changed that counts: it reads no index that it need not (largest timestamps
only with a minimum lag, the first batch of one segment only with a maximum lag).

Invariants
- I1  `measure(..., known=any)` equals `measure(...)`: a remembered answer is used only where it is
      the right one, also when the clock goes backwards.
- I2  A `Measured` holds no segment: who remembers it keeps no file open.

Source: CLN-2, CMP-3, CMP-9; Kafka's LogCleanerManager.maxCompactionDelay for the first timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.clean.ledger_plan import backlog_bytes, order_name
from stratalog.clean.note import UNKNOWN, Note
from stratalog.clean.policy import CleanableRange, SegmentFacts, cleanable_range
from stratalog.clean.select import Bound, LogFacts, bound_of
from stratalog.clean.settings import TopicCleaning
from stratalog.clean.states import NONE, State
from stratalog.ledger.manifest import Generation, is_outdated
from stratalog.log.view import LogView
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition

_EMPTY_NOTE = Note()


@dataclass(frozen=True, slots=True)
class Sections:
    """The bytes of a log's segments, from its start on (interfaces, `stratalog_partition_bytes`).

    clean: up to the cleaner checkpoint; cleanable: what a round may take in; uncleanable: sealed,
    but held back by a lag or a transaction; active: the active segment. A segment that the
    checkpoint cuts counts as cleanable, as it does for a round.
    """

    clean: int
    cleanable: int
    uncleanable: int
    active: int

    @property
    def total(self) -> int:
        return self.clean + self.cleanable + self.uncleanable + self.active


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What `measure` found, and what it depends on: it holds from `since_ms` until before
    `until_ms` as long as `inputs` and the segments (`bases`) are the same."""

    cleanable: CleanableRange
    bound: Bound
    first_uncleaned_timestamp_ms: int | None
    bases: tuple[int, ...]
    inputs: tuple[int | bool | None, ...]
    since_ms: int
    until_ms: int

    def holds(
        self, bases: tuple[int, ...], inputs: tuple[int | bool | None, ...], now_ms: int
    ) -> bool:
        # Sealed segments change only with the set that they are in, and each set has a tuple of its
        # own; which is held here, so that no other one can come to its address.
        return (
            bases is self.bases
            and inputs == self.inputs
            and self.since_ms <= now_ms < self.until_ms
        )


def measure(
    view: LogView,
    checkpoint: int | None,
    topic: TopicCleaning,
    now_ms: int,
    known: Measured | None = None,
) -> Measured:
    """The sections of a log at `now_ms` (ms since 1970). `known`: an earlier answer for this log.

    Raises `CorruptionError` where a log with lags is damaged.
    """
    active = view.segments.active
    is_valid = checkpoint is not None and view.log_start_offset <= checkpoint <= view.log_end_offset
    inputs = (
        view.log_start_offset,
        checkpoint,
        is_valid,
        min(view.last_stable_offset, active.base_offset),
        # Of the active segment's bytes none count, unless the checkpoint lies in it.
        active.size_bytes if is_valid and (checkpoint or 0) > active.base_offset else 0,
        topic.min_lag_ms,
        topic.max_lag_ms,
    )
    if known is not None and known.holds(view.segments.bases, inputs, now_ms):
        return known
    first_dirty = checkpoint if is_valid and checkpoint is not None else view.log_start_offset
    segments, until_ms = _segment_facts(view, first_dirty, topic.min_lag_ms, now_ms)
    cleanable = cleanable_range(
        segments,
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        last_stable_offset=view.last_stable_offset,
        checkpoint=checkpoint,
        min_compaction_lag_ms=topic.min_lag_ms,
        now_ms=now_ms,
    )
    bound = bound_of(
        cleanable,
        active_base_offset=active.base_offset,
        last_stable_offset=view.last_stable_offset,
    )
    first_ms = None
    if cleanable.cleanable_bytes > 0 and topic.max_lag_ms != INT64_MAX:
        first_ms = first_timestamp_ms(view, first_dirty)
    return Measured(cleanable, bound, first_ms, view.segments.bases, inputs, now_ms, until_ms)


def _segment_facts(
    view: LogView, first_dirty: int, min_lag_ms: int, now_ms: int
) -> tuple[list[SegmentFacts], int]:
    """The segments for `policy`, and when the youngest bound among them will have grown old.

    Largest timestamps are in the indexes: only those that the minimum lag asks for are read, which
    are the ones from `first_dirty` up to the first that is too young.
    """
    found = []
    until_ms = INT64_MAX
    for slot, segment in enumerate(view.segments):
        largest_ms = segment.modified_ms
        is_asked = (
            min_lag_ms > 0
            and until_ms == INT64_MAX
            and view.segments.end_of(slot, first_dirty) > first_dirty
        )
        if is_asked:
            largest_ms = segment.largest_timestamp_ms()
            if largest_ms > now_ms - min_lag_ms:
                until_ms = min(largest_ms + min_lag_ms, INT64_MAX - 1)
        found.append(SegmentFacts(segment.base_offset, segment.size_bytes, largest_ms))
    return found, until_ms


def first_timestamp_ms(view: LogView, first_dirty: int) -> int | None:
    """When the first uncleaned segment began: the largest timestamp of its first batch, as in
    Kafka; None without one. Raises `CorruptionError`."""
    segment = view.segments.floor(first_dirty) or view.segments[0]
    first = next(segment.headers(), None)
    if first is None or first.header.max_timestamp < 1:
        return None
    return first.header.max_timestamp


def sections_of(view: LogView, cleanable: CleanableRange) -> Sections:
    """The bytes of each section. They add up to the size of the log."""
    active_bytes = view.segments.active.size_bytes
    sealed_bytes = view.segments.size_bytes - active_bytes
    clean_bytes = cleanable.clean_bytes
    if cleanable.first_dirty > view.segments.active.base_offset:
        clean_bytes -= active_bytes
    cut = view.segments.floor(cleanable.first_dirty)
    if (
        cut is not None
        and cleanable.cleanable_bytes > 0
        and cut.base_offset < cleanable.first_dirty
    ):
        clean_bytes -= cut.size_bytes  # it is in both of the range's numbers
    uncleanable_bytes = sealed_bytes - clean_bytes - cleanable.cleanable_bytes
    return Sections(clean_bytes, cleanable.cleanable_bytes, uncleanable_bytes, active_bytes)


def ledger_facts_of(
    topic_partition: TopicPartition,
    view: LogView,
    current: Generation | None,
    topic: TopicCleaning,
    *,
    state: State = NONE,
    note: Note = _EMPTY_NOTE,
    retention_waits: bool = False,
) -> LogFacts:
    """A log in ledger mode as `select` sees it. `current`: the ledger in use."""
    if current is not None and not (
        view.log_start_offset <= current.horizon <= view.log_end_offset
    ):
        current = None  # the log does not follow on it: it is made anew
    order, outdated_order = order_name(topic.order, topic.version_header), ""
    if current is not None and is_outdated(current, order, view.log_start_offset):
        outdated_order, current = current.order, None
    first_dirty = view.log_start_offset if current is None else current.horizon
    end = max(min(view.log_end_offset, view.last_stable_offset), first_dirty)
    backlog = backlog_bytes(view, first_dirty, end)
    failure = note.failure
    return LogFacts(
        topic_partition,
        0 if current is None else current.size_bytes,
        backlog,
        first_dirty,
        end,
        bound=Bound.OPEN_TRANSACTION if end < view.log_end_offset else Bound.ACTIVE_SEGMENT,
        is_compacted=topic.is_compacted,
        min_dirty_ratio=topic.min_dirty_ratio,
        max_lag_ms=INT64_MAX,
        next_expiry_ms=None if current is None or topic.by_segment else current.next_expiry_ms,
        state=state,
        quarantined_until_ms=None if failure is None else failure.retry_at_ms,
        quarantine_cause="" if failure is None else failure.cause,
        backlog_bytes=backlog,
        threshold_bytes=topic.threshold_bytes,
        retention_waits=retention_waits,
        outdated_order=outdated_order,
    )


def facts_of(
    topic_partition: TopicPartition,
    view: LogView,
    checkpoint: int | None,
    topic: TopicCleaning,
    *,
    now_ms: int,
    state: State = NONE,
    note: Note = _EMPTY_NOTE,
    measured: Measured | None = None,
    expiry_ms: int | None = UNKNOWN,
) -> LogFacts:
    """A log as `select` sees it at `now_ms`.

    `measured`: what `measure` answered for the same arguments, if it has been asked. `expiry_ms`
    is taken where the note does not know the expiry (`expiry.next_expiry_of` looks it up); where
    neither does, a round is due, which finds it out (CMP-9). Raises as `measure`.
    """
    if measured is None:
        measured = measure(view, checkpoint, topic, now_ms)
    cleanable = measured.cleanable
    failure = note.failure
    next_expiry_ms = note.expiry(checkpoint, by_segment=topic.by_segment)
    return LogFacts(
        topic_partition,
        cleanable.clean_bytes,
        cleanable.cleanable_bytes,
        cleanable.first_dirty,
        cleanable.first_uncleanable,
        bound=measured.bound,
        is_compacted=topic.is_compacted,
        min_dirty_ratio=topic.min_dirty_ratio,
        max_lag_ms=topic.max_lag_ms,
        first_uncleaned_timestamp_ms=measured.first_uncleaned_timestamp_ms,
        next_expiry_ms=expiry_ms if next_expiry_ms == UNKNOWN else next_expiry_ms,
        state=state,
        quarantined_until_ms=None if failure is None else failure.retry_at_ms,
        quarantine_cause="" if failure is None else failure.cause,
    )
