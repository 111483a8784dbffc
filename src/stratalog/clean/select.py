"""What to clean next, and why or why not: pure functions over a snapshot of all logs.

A log can be chosen if nobody works on it or keeps it paused, it is not in quarantine, its policy
has `compact`, and there is something below its first uncleanable offset. Of those, in this order:

    FORCED              it has cleanable bytes, and max.compaction.lag.ms has passed since the
                        earliest timestamp of its first uncleaned segment: earliest deadline first
    RATIO               its dirty ratio is above min.cleanable.dirty.ratio: highest ratio first
    BACKLOG             in ledger mode: more bytes than compaction.threshold have come since the
                        last ledger, or retention waits for the next: largest backlog first
    EXPIRED_TOMBSTONES  a tombstone or marker below its first uncleanable offset may go, even with
                        nothing new to clean: earliest expiry first

Kafka puts forced logs in one pool with the others, where dirtier ones can keep them waiting for
ever, and has nothing like the third.

Invariants
- I1  The order is total (equals: more dirty bytes first, then by name), so that the same snapshot
      gives the same answer whatever the order of the logs.
- I2  `choose` is the first of `rank`, and `explain` says why for exactly the logs in `rank`.
- I3  The minimum lag holds for forced logs too: it is part of the cleanable range, and without
      cleanable bytes no deadline counts (CLN-2).

Source: CLN-2, CMP-2, CMP-3, CMP-9, LDG-2; Kafka's LogCleanerManager.grabFilthiestCompactedLog.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from stratalog.clean.policy import CleanableRange
from stratalog.clean.states import NONE, Kind, State
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition


class Reason(Enum):
    """Why a log is cleaned; the order is that of the queue."""

    FORCED = "forced"
    RATIO = "ratio"
    BACKLOG = "backlog"
    EXPIRED_TOMBSTONES = "expired_tombstones"


class Obstacle(Enum):
    """Why a log is not chosen; the first that applies."""

    NOT_COMPACTED = "not_compacted"
    IN_PROGRESS = "in_progress"
    STOPPING = "stopping"
    PAUSED = "paused"
    QUARANTINED = "quarantined"
    NOTHING_CLEANABLE = "nothing_cleanable"
    RATIO_TOO_LOW = "ratio_too_low"
    BELOW_THRESHOLD = "below_threshold"


class Bound(Enum):
    """What keeps the records from the first uncleanable offset on (CMP-3)."""

    ACTIVE_SEGMENT = "active_segment"
    OPEN_TRANSACTION = "open_transaction"
    MIN_LAG = "min_lag"


def bound_of(
    cleanable: CleanableRange, *, active_base_offset: int, last_stable_offset: int
) -> Bound:
    """Which of the bounds of CMP-3 was the smallest."""
    if cleanable.limit_offset == active_base_offset:
        return Bound.ACTIVE_SEGMENT
    is_stable = cleanable.limit_offset == last_stable_offset
    return Bound.OPEN_TRANSACTION if is_stable else Bound.MIN_LAG


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A log as selection sees it; the first five are what `policy.cleanable_range` answers.

    `first_uncleaned_timestamp_ms`: the earliest timestamp of the first uncleaned segment; None, or
    anything below 1, is unknown and forces nothing, as in Kafka. `next_expiry_ms`: when the first
    tombstone or marker below `first_uncleanable` may go (CMP-9), None for never.
    `quarantined_until_ms`: when an error's back-off ends (CLN-7), INT64_MAX for never.

    In ledger mode `backlog_bytes` is what no ledger has taken, which is dirty, and the ledger is
    what is clean; the dirty part begins at the horizon. `threshold_bytes` 0: nothing is done by
    itself, unless `retention_waits`, or the ledger was made by another order of versions,
    `outdated_order`, and does not count any more.
    """

    topic_partition: TopicPartition
    clean_bytes: int
    dirty_bytes: int
    first_dirty: int
    first_uncleanable: int
    bound: Bound = Bound.ACTIVE_SEGMENT
    is_compacted: bool = True
    min_dirty_ratio: float = 0.5
    max_lag_ms: int = INT64_MAX
    first_uncleaned_timestamp_ms: int | None = None
    next_expiry_ms: int | None = None
    state: State = NONE
    quarantined_until_ms: int | None = None
    quarantine_cause: str = ""
    backlog_bytes: int | None = None
    threshold_bytes: int = 0
    retention_waits: bool = False
    outdated_order: str = ""

    @property
    def uses_ledger(self) -> bool:
        """Whether what is made is a ledger."""
        return self.backlog_bytes is not None

    @property
    def has_backlog(self) -> bool:
        """Whether the next ledger is due."""
        backlog_bytes = self.backlog_bytes or 0
        is_above = 0 < self.threshold_bytes < backlog_bytes
        is_wanted = self.retention_waits or self.outdated_order != ""
        return is_above or (is_wanted and self.first_dirty < self.first_uncleanable)

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes over clean and dirty bytes (CLN-2); 0 for an empty log."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def deadline_ms(self) -> int | None:
        """After this time the log is forced. None if nothing sets a deadline."""
        if self.dirty_bytes <= 0 or self.max_lag_ms == INT64_MAX:
            return None
        earliest = self.first_uncleaned_timestamp_ms
        return None if earliest is None or earliest < 1 else earliest + self.max_lag_ms


@dataclass(frozen=True, slots=True)
class Choice:
    """A log that is to be cleaned, and why."""

    facts: LogFacts
    reason: Reason

    @property
    def topic_partition(self) -> TopicPartition:
        return self.facts.topic_partition


Ranked = Choice
"""A log in the queue; its place is its place in the list."""


def choose(facts: Iterable[LogFacts], now_ms: int) -> Choice | None:
    """The log to clean now, None if there is none. `facts`: all logs; `now_ms`: ms since 1970."""
    queues = _queues(facts, now_ms)
    for reason, queue in zip(Reason, queues, strict=True):
        if queue:
            return Choice(min(queue)[-1], reason)
    return None


def rank(facts: Iterable[LogFacts], now_ms: int) -> list[Ranked]:
    """All logs that are to be cleaned, the next one first. 10,000 logs take a few ms."""
    queues = _queues(facts, now_ms)
    return [
        Choice(key[-1], reason)
        for reason, queue in zip(Reason, queues, strict=True)
        for key in sorted(queue)
    ]


_Key = tuple[float, int, str, int, LogFacts]
"""The measure of the reason, dirty bytes (negative), topic, partition; the names are unique, so
the facts are never compared."""


def _queues(facts: Iterable[LogFacts], now_ms: int) -> tuple[list[_Key], ...]:
    """The eligible logs of each reason, unsorted. Written out: this loop sees every log."""
    forced: list[_Key] = []
    by_ratio: list[_Key] = []
    by_backlog: list[_Key] = []
    expired: list[_Key] = []
    none = Kind.NONE
    for log in facts:
        backlog_bytes = log.backlog_bytes
        if not (log.is_compacted or backlog_bytes is not None) or log.state.kind is not none:
            continue
        dirty_bytes = log.dirty_bytes
        total_bytes = log.clean_bytes + dirty_bytes
        if total_bytes <= 0:
            continue
        until_ms = log.quarantined_until_ms
        if until_ms is not None and now_ms < until_ms:
            continue
        expiry_ms = log.next_expiry_ms
        name = log.topic_partition
        if backlog_bytes is not None:
            if log.has_backlog:
                by_backlog.append((-backlog_bytes, -dirty_bytes, name.topic, name.partition, log))
                continue
            if log.threshold_bytes <= 0:
                continue  # only when it is asked for
        elif dirty_bytes > 0:
            deadline_ms = log.deadline_ms if log.max_lag_ms != INT64_MAX else None
            if deadline_ms is not None and now_ms > deadline_ms:
                forced.append((deadline_ms, -dirty_bytes, name.topic, name.partition, log))
                continue
            ratio = dirty_bytes / total_bytes
            if ratio > log.min_dirty_ratio:
                by_ratio.append((-ratio, -dirty_bytes, name.topic, name.partition, log))
                continue
        if expiry_ms is not None and expiry_ms <= now_ms:
            expired.append((expiry_ms, -dirty_bytes, name.topic, name.partition, log))
    return forced, by_ratio, by_backlog, expired


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a log is cleaned (`reason`) or not (`obstacle`): one of the two is set (CLN-10).

    `place`: its place in the queue, from 1, if the queue was given. Times are ms since 1970.
    """

    facts: LogFacts
    now_ms: int
    reason: Reason | None
    obstacle: Obstacle | None
    sentence: str
    place: int | None = None

    def as_json(self) -> dict[str, Any]:
        facts = self.facts
        return {
            "topic": facts.topic_partition.topic,
            "partition": facts.topic_partition.partition,
            "is_eligible": self.reason is not None,
            "reason": None if self.reason is None else self.reason.value,
            "obstacle": None if self.obstacle is None else self.obstacle.value,
            "sentence": self.sentence,
            "place": self.place,
            "now_ms": self.now_ms,
            "clean_bytes": facts.clean_bytes,
            "dirty_bytes": facts.dirty_bytes,
            "dirty_ratio": facts.dirty_ratio,
            "min_dirty_ratio": facts.min_dirty_ratio,
            "first_dirty": facts.first_dirty,
            "first_uncleanable": facts.first_uncleanable,
            "bound": facts.bound.value,
            "is_compacted": facts.is_compacted,
            "max_lag_ms": facts.max_lag_ms,
            "first_uncleaned_timestamp_ms": facts.first_uncleaned_timestamp_ms,
            "deadline_ms": facts.deadline_ms,
            "next_expiry_ms": facts.next_expiry_ms,
            "state": str(facts.state),
            "quarantined_until_ms": facts.quarantined_until_ms,
            "quarantine_cause": facts.quarantine_cause,
            "mode": "ledger" if facts.uses_ledger else "inplace",
            "backlog_bytes": facts.backlog_bytes,
            "threshold_bytes": facts.threshold_bytes,
            "retention_waits": facts.retention_waits,
        }


def explain(facts: LogFacts, now_ms: int, queue: Sequence[Ranked] = ()) -> Explanation:
    """Why a log is, or is not, to be cleaned at `now_ms`, with the values that decide.

    `queue`: what `rank` answered for the same moment; it adds the log's place to the answer.
    """
    chosen = choose([facts], now_ms)
    names = [ranked.topic_partition for ranked in queue] if chosen is not None else []
    place = 1 + names.index(facts.topic_partition) if facts.topic_partition in names else None
    if chosen is None:
        obstacle, clause = _obstacle(facts, now_ms)
        text = f"is not cleaned: {clause}"
        return Explanation(facts, now_ms, None, obstacle, f"{facts.topic_partition} {text}.")
    where = "" if place is None else f" (number {place} of {len(names)} in the queue)"
    text = f"is to be cleaned{where}: {_cause(facts, chosen.reason, now_ms)}"
    return Explanation(
        facts, now_ms, chosen.reason, None, f"{facts.topic_partition} {text}.", place
    )


def _cause(facts: LogFacts, reason: Reason, now_ms: int) -> str:
    if reason is Reason.FORCED:
        assert facts.deadline_ms is not None
        age_ms = now_ms - facts.deadline_ms + facts.max_lag_ms
        return (
            f"its first uncleaned segment began {span(age_ms)} ago, "
            f"which is over max.compaction.lag.ms={facts.max_lag_ms}"
        )
    if reason is Reason.BACKLOG and facts.outdated_order:
        return (
            f"its ledger was made by compaction.strategy={facts.outdated_order}, which is another "
            f"by now: it is made anew from offset {facts.first_dirty} on"
        )
    if reason is Reason.BACKLOG:
        past = f"{facts.backlog_bytes} bytes past the ledger's horizon, offset {facts.first_dirty}"
        if 0 < facts.threshold_bytes < (facts.backlog_bytes or 0):
            return f"its backlog of {past}, is above compaction.threshold={facts.threshold_bytes}"
        return f"retention waits for a ledger that holds its backlog of {past}"
    if reason is Reason.RATIO:
        return f"{_ratio(facts)} is above min.cleanable.dirty.ratio={facts.min_dirty_ratio}"
    assert facts.next_expiry_ms is not None
    return (
        f"a tombstone or transaction marker below offset {facts.first_uncleanable} expired "
        f"{span(now_ms - facts.next_expiry_ms)} ago"
    )


def _obstacle(facts: LogFacts, now_ms: int) -> tuple[Obstacle, str]:
    """The first thing that keeps a log from being chosen; one that `choose` has not chosen."""
    if not (facts.is_compacted or facts.uses_ledger):
        return Obstacle.NOT_COMPACTED, "its cleanup.policy does not contain compact"
    if facts.state.kind is Kind.IN_PROGRESS:
        return Obstacle.IN_PROGRESS, "a cleaner thread is working on it now"
    if facts.state.kind is Kind.ABORTED:
        return Obstacle.STOPPING, "its round is being stopped, after which it is paused"
    if facts.state.kind is Kind.PAUSED:
        times = "" if facts.state.pauses == 1 else f" {facts.state.pauses} times"
        return Obstacle.PAUSED, f"it is paused and has to be resumed{times}"
    until_ms = facts.quarantined_until_ms
    if until_ms is not None and now_ms < until_ms:
        cause = f" ({facts.quarantine_cause})" if facts.quarantine_cause else ""
        wait = "only if asked for" if until_ms == INT64_MAX else f"in {span(until_ms - now_ms)}"
        return Obstacle.QUARANTINED, f"cleaning it has failed{cause}; it is tried again {wait}"
    if facts.uses_ledger:
        return _no_ledger_due(facts, now_ms)
    if facts.dirty_bytes <= 0:
        return Obstacle.NOTHING_CLEANABLE, f"{_nothing(facts)}{_coming(facts, now_ms)}"
    return Obstacle.RATIO_TOO_LOW, (
        f"{_ratio(facts)} is not above min.cleanable.dirty.ratio={facts.min_dirty_ratio}"
        f"{_coming(facts, now_ms)}"
    )


def _no_ledger_due(facts: LogFacts, now_ms: int) -> tuple[Obstacle, str]:
    if facts.first_dirty >= facts.first_uncleanable:
        held = {Bound.OPEN_TRANSACTION: "where an open transaction begins"}
        where = held.get(facts.bound, "the end of the log")
        text = f"its ledger reaches {where}, offset {facts.first_uncleanable}"
        return Obstacle.NOTHING_CLEANABLE, text + _coming(facts, now_ms)
    if facts.threshold_bytes <= 0:
        return Obstacle.BELOW_THRESHOLD, (
            f"compaction.threshold is 0: its backlog of {facts.backlog_bytes} bytes goes into a "
            "ledger when somebody asks for it"
        )
    return Obstacle.BELOW_THRESHOLD, (
        f"its backlog of {facts.backlog_bytes} bytes is not above "
        f"compaction.threshold={facts.threshold_bytes}{_coming(facts, now_ms)}"
    )


def _ratio(facts: LogFacts) -> str:
    ratio, bound = facts.dirty_ratio, facts.min_dirty_ratio
    total = facts.clean_bytes + facts.dirty_bytes
    short = f"{ratio:.3f}"
    # Just above the bound it must not read "0.500 is above 0.5".
    is_fair = (float(short) > bound) == (ratio > bound)
    text = short if is_fair else repr(ratio)
    return f"its dirty ratio of {text} ({facts.dirty_bytes} of {total} bytes)"


def _nothing(facts: LogFacts) -> str:
    end = facts.first_uncleanable
    if facts.first_dirty < end:
        return f"offsets {facts.first_dirty} to {end - 1} hold no bytes"
    why = {
        Bound.ACTIVE_SEGMENT: "belongs to the active segment",
        Bound.OPEN_TRANSACTION: "is held back by an open transaction",
        Bound.MIN_LAG: "is younger than min.compaction.lag.ms",
    }[facts.bound]
    return f"nothing is cleanable from offset {facts.first_dirty} on: it {why}"


def _coming(facts: LogFacts, now_ms: int) -> str:
    """What would make it eligible by the mere passing of time."""
    text = ""
    if facts.deadline_ms is not None:
        wait_ms = facts.deadline_ms + 1 - now_ms
        text += f"; max.compaction.lag.ms={facts.max_lag_ms} forces it in {span(wait_ms)}"
    if facts.next_expiry_ms is not None and facts.clean_bytes + facts.dirty_bytes > 0:
        text += f"; its next tombstone expires in {span(facts.next_expiry_ms - now_ms)}"
    return text


def span(ms: int) -> str:
    """A span of time for people, in its two largest units: `3 d 4 h`, `12 min 5 s`, `250 ms`."""
    if ms < 1000:
        return f"{ms} ms"
    days, rest = divmod(ms // 1000, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    while parts[0][0] == 0:
        del parts[0]
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number)
