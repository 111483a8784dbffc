"""What the lower floors count -> samples of the table's metrics, at one moment.

A scrape reads memory: the counters of the cleaner and of retention, and what the cleaner knows of
each log, which it keeps at hand (`CleanerManager.facts`). With a sample for each partition it also
reads one batch header of each log that has something to clean.

Invariants
- I1  A scrape raises for no single log, never waits for a round, and changes nothing, but that a
      damaged log that it meets is noted as one that cannot be cleaned, as in a cleaner's loop.
- I2  The sections of a log add up to what was there when it was looked at; a round that is being
      put in place meanwhile makes none of them negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from stratalog.base.clock import Clock
from stratalog.base.disk_space import DiskSpace, disk_space
from stratalog.base.errors import StratalogError
from stratalog.clean.cleaner import Cleaner
from stratalog.clean.facts import first_timestamp_ms, sections_of
from stratalog.clean.manager import CleanerManager
from stratalog.clean.policy import CleanableRange
from stratalog.clean.select import LogFacts, rank
from stratalog.clean.stats import BOUNDS_SECONDS
from stratalog.log.log_store import LogStore
from stratalog.log.retention import SIZE, START_OFFSET, TIME
from stratalog.log.view import LogView
from stratalog.metrics import table as t
from stratalog.metrics.samples import Buckets, Sample
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition

_TRIGGERS = ("forced", "ratio", "expired_tombstones", "asked")
_RESULTS = ("cleaned", "nothing", "aborted", "failed")
_REASONS = {
    "superseded": "superseded",
    "tombstone_expired": "tombstone",
    "aborted": "aborted",
    "control_expired": "control",
    "no_key": "no_key",
}
"""`job.Drops` -> the label."""
_SECTIONS = ("clean", "cleanable", "uncleanable", "active")


def collect(
    store: LogStore,
    manager: CleanerManager,
    cleaner: Cleaner,
    clock: Clock,
    *,
    per_partition: bool,
    space_of: Callable[[str], DiskSpace] = disk_space,
) -> list[Sample]:
    """All samples at the clock's time. `per_partition`: those too that each partition has.

    A scrape of thousands of partitions with `per_partition` is text of many megabytes.
    """
    facts = manager.facts()
    samples = [
        *_of_rounds(cleaner, clock.now_ms()),
        *_of_choosing(manager, cleaner, facts, clock.now_ms()),
        *_of_failures(store, manager, facts),
        *_of_directories(store, space_of),
        *_of_retention(store),
        *_of_compacted(store, facts, per_partition=per_partition),
    ]
    if per_partition:
        samples += _of_logs(store)
    return samples


# -- the cleaner ----------------------------------------------------------------------------------


def _of_rounds(cleaner: Cleaner, now_ms: int) -> Iterator[Sample]:
    """What the cleaner counts of its rounds. Copies are taken first: threads go on counting."""
    stats = cleaner.stats
    last = list(dict(stats.last).values())
    before = sum(entry.bytes_before for entry in last)
    utilization = max((entry.map_utilization for entry in last), default=0.0)
    yield Sample(t.RECOPY, 100 * sum(entry.bytes_after for entry in last) / max(before, 1))
    yield Sample(t.CLEAN_TIME, max((entry.duration_ms for entry in last), default=0) / 1000)
    yield Sample(t.BUFFER_UTILIZATION, 100 * utilization)
    if stats.last_loop_ms is not None:
        yield Sample(t.SINCE_LAST_RUN, max(now_ms - stats.last_loop_ms, 0))
    runs = {(trigger, result): 0 for trigger in _TRIGGERS for result in _RESULTS}
    for labels, count in {**runs, **dict(stats.runs)}.items():
        yield Sample(t.RUNS, count, labels)
    yield Sample(t.BYTES_READ, stats.read_bytes)
    yield Sample(t.BYTES_WRITTEN, stats.written_bytes)
    removed = dict(stats.removed)
    for name, reason in _REASONS.items():
        yield Sample(t.REMOVED, removed.get(name, 0), (reason,))
    for phase, durations in stats.durations.items():
        buckets = Buckets(BOUNDS_SECONDS, tuple(durations.counts), durations.total_seconds)
        yield Sample(t.DURATION, buckets, (phase,))
    yield Sample(t.MAP_UTILIZATION, utilization)
    yield Sample(t.THROTTLED, cleaner.throttle.waited_ms / 1000)


def _of_choosing(
    manager: CleanerManager, cleaner: Cleaner, facts: Sequence[LogFacts], now_ms: int
) -> Iterator[Sample]:
    eligible = {choice.topic_partition for choice in rank(facts, now_ms)}
    overdue_ms, ratio = 0, 0.0
    for log in facts:
        ratio = max(ratio, log.dirty_ratio)
        if log.max_lag_ms != INT64_MAX and log.deadline_ms is not None:
            overdue_ms = max(overdue_ms, now_ms - log.deadline_ms)
    yield Sample(t.COMPACTION_DELAY, overdue_ms / 1000)
    yield Sample(t.MAX_DIRTY, 100 * ratio)
    yield Sample(t.QUEUE, len(eligible.union(manager.asked())))
    dead = cleaner.dead_threads
    busy = min(len(cleaner.activities()), cleaner.thread_count - dead)
    yield Sample(t.DEAD_THREADS, dead)
    yield Sample(t.THREADS, busy, ("busy",))
    yield Sample(t.THREADS, cleaner.thread_count - dead - busy, ("idle",))
    yield Sample(t.THREADS, dead, ("dead",))


def _of_failures(
    store: LogStore, manager: CleanerManager, facts: Iterable[LogFacts]
) -> Iterator[Sample]:
    """Logs whose cleaning failed; also those that cannot even be measured."""
    known = {log.topic_partition: log for log in facts}
    partitions = dict.fromkeys(_directories(store), 0)
    dirty_bytes = dict.fromkeys(partitions, 0)
    for key, log in store.writable_logs():
        try:
            if manager.note_of(key).failure is None:
                continue
            directory, view = store.log_dir_of(key), log.view
        except StratalogError:
            continue  # it is gone
        sealed_bytes = view.segments.size_bytes - view.segments.active.size_bytes
        partitions[directory] += 1
        dirty_bytes[directory] += known[key].dirty_bytes if key in known else sealed_bytes
    for directory, count in partitions.items():
        yield Sample(t.UNCLEANABLE_PARTITIONS, count, (directory,))
        yield Sample(t.UNCLEANABLE_BYTES, dirty_bytes[directory], (directory,))


# -- the store ------------------------------------------------------------------------------------


def _directories(store: LogStore) -> list[str]:
    return sorted({*store.log_dirs, *store.failed_dirs})


def _of_directories(store: LogStore, space_of: Callable[[str], DiskSpace]) -> Iterator[Sample]:
    offline = store.offline_dirs
    yield Sample(t.OFFLINE_DIRS, len(offline))
    for directory in _directories(store):
        yield Sample(t.DIR_OFFLINE, int(directory in offline), (directory,))
        try:
            space = space_of(directory)
        except (StratalogError, FileNotFoundError):
            continue
        yield Sample(t.DIR_TOTAL, space.total_bytes, (directory,))
        yield Sample(t.DIR_USABLE, space.usable_bytes, (directory,))
    states = Counter(_state_of(store, key) for key in store.partitions())
    for state in ("online", "quarantined", "offline", "failed"):
        yield Sample(t.PARTITIONS, states[state], (state,))


def _state_of(store: LogStore, key: TopicPartition) -> str:
    try:
        log = store.get(key)
    except StratalogError:
        return "failed"
    if log.is_writable:
        return "online"
    return "offline" if log.offline is not None else "quarantined"


def _of_retention(store: LogStore) -> Iterator[Sample]:
    known = dict.fromkeys((TIME, SIZE, START_OFFSET), 0)
    counted: Mapping[str, int] = dict(store.retained.size_bytes)
    for reason, size_bytes in {**known, **counted}.items():
        yield Sample(t.DELETED_BYTES, size_bytes, (reason,))
    counted = dict(store.retained.segments)
    for reason, count in {**known, **counted}.items():
        yield Sample(t.DELETED_SEGMENTS, count, (reason,))


# -- partitions -----------------------------------------------------------------------------------


def _of_logs(store: LogStore) -> Iterator[Sample]:
    for key, log in store.logs():
        try:
            view = log.view
        except StratalogError:
            continue  # closed meanwhile
        labels = (key.topic, str(key.partition))
        yield Sample(t.LOG_SIZE, view.segments.size_bytes, labels)
        yield Sample(t.LOG_SEGMENTS, len(view.segments), labels)
        yield Sample(t.LOG_START, view.log_start_offset, labels)
        yield Sample(t.LOG_END, view.log_end_offset, labels)


def _of_compacted(
    store: LogStore, facts: Iterable[LogFacts], *, per_partition: bool
) -> Iterator[Sample]:
    totals = dict.fromkeys(_SECTIONS, 0)
    for log in facts:
        try:
            view = store.get(log.topic_partition).view
        except StratalogError:
            continue
        sizes = _sections(view, log)
        for section, size_bytes in sizes.items():
            totals[section] += size_bytes
        if per_partition:
            yield from _of_partition(view, log, sizes)
    for section, size_bytes in totals.items():
        yield Sample(t.BYTES, size_bytes, (section,))


def _sections(view: LogView, log: LogFacts) -> dict[str, int]:
    cleanable = CleanableRange(
        log.first_dirty,
        log.first_uncleanable,
        log.first_uncleanable,
        log.clean_bytes,
        log.dirty_bytes,
        checkpoint_was_reset=False,
    )
    found = sections_of(view, cleanable)
    sizes = (found.clean, found.cleanable, found.uncleanable, found.active)
    return {name: max(size, 0) for name, size in zip(_SECTIONS, sizes, strict=True)}


def _of_partition(view: LogView, log: LogFacts, sizes: Mapping[str, int]) -> Iterator[Sample]:
    key = log.topic_partition
    labels = (key.topic, str(key.partition))
    for section, size_bytes in sizes.items():
        yield Sample(t.PARTITION_BYTES, size_bytes, (*labels, section))
    yield Sample(t.PARTITION_SEGMENTS, len(view.segments), labels)
    yield Sample(t.FIRST_DIRTY, log.first_dirty, labels)
    oldest_ms = _oldest_dirty_ms(view, log)
    if oldest_ms is not None:
        yield Sample(t.OLDEST_DIRTY, oldest_ms / 1000, labels)
    if log.next_expiry_ms is not None:
        yield Sample(t.NEXT_EXPIRY, log.next_expiry_ms / 1000, labels)


def _oldest_dirty_ms(view: LogView, log: LogFacts) -> int | None:
    """The cleaner knows it where there is a maximum lag."""
    if log.dirty_bytes <= 0 or log.first_uncleaned_timestamp_ms is not None:
        return log.first_uncleaned_timestamp_ms
    try:
        return first_timestamp_ms(view, log.first_dirty)
    except StratalogError:
        return None  # the cleaner will say so
