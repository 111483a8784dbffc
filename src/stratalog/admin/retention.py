"""`retention`: which segments are past their time, or too many, and deleting them (RET-*).

    dry run    every log opened for reading, under a shared lock; `log.retention` decides
    apply      the directories' `LogStore` decides and deletes; it is closed in order at the end

Invariants
- I1  A dry run changes nothing on disk.
- I2  Only the named partitions lose anything, whatever else their directories hold.
- I3  What is reported as deleted is gone, files and all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.policies import settings_by_topic
from stratalog.admin.state import open_to_read
from stratalog.admin.store import open_store, problem_of
from stratalog.base.clock import Clock, StoppedClock
from stratalog.base.errors import StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import OnProgress
from stratalog.config.settings import Settings
from stratalog.ledger.copies import held_from
from stratalog.log.locking import locked
from stratalog.log.log_store import LogStore
from stratalog.log.retention import RetentionDecision, decide, view_of
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition

SettingsOf = Callable[[TopicPartition], LogSettings]
"""What each partition's log is told."""


def told_by(settings: Settings | SettingsOf) -> SettingsOf:
    """Of all topics the same, but for Kafka's own; or as somebody says it of each."""
    return settings_by_topic(settings) if isinstance(settings, Settings) else settings


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """One partition. `decision` None: nothing goes; `error`: why not all of it could be done.

    `log_bytes` and `segments` are those before.
    """

    partition: str
    directory: str
    cleanup_policy: tuple[str, ...]
    segments: int = 0
    log_bytes: int = 0
    log_start_offset: int = 0
    decision: RetentionDecision | None = None
    error: str | None = None

    @property
    def freed_bytes(self) -> int:
        return 0 if self.decision is None or self.error else self.decision.size_bytes

    def as_json(self) -> dict[str, Any]:
        decision = {
            "deletions": [],
            "deleted_segments": 0,
            "deleted_bytes": 0,
            "rolls": False,
            "new_log_start_offset": self.log_start_offset,
            "problems": [],
            "held_from": None,
        }
        if self.decision is not None:
            decision = self.decision.as_json()
        return {
            "partition": self.partition,
            "directory": self.directory,
            "cleanup_policy": list(self.cleanup_policy),
            "segments": self.segments,
            "log_bytes": self.log_bytes,
            "log_start_offset": self.log_start_offset,
            **decision,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """A whole run at `now_ms`."""

    applied: bool
    now_ms: int
    partitions: tuple[PartitionRetention, ...]

    @property
    def is_ok(self) -> bool:
        """Nothing stood in the way."""
        return not any(
            item.error or (item.decision is not None and item.decision.problems)
            for item in self.partitions
        )

    def as_json(self) -> dict[str, Any]:
        deciding = [item.decision for item in self.partitions if item.freed_bytes]
        return {
            "ok": self.is_ok,
            "applied": self.applied,
            "now_ms": self.now_ms,
            "partitions": [item.as_json() for item in self.partitions],
            "totals": {
                "deleted_segments": sum(len(made.deletions) for made in deciding if made),
                "deleted_bytes": sum(item.freed_bytes for item in self.partitions),
            },
        }


def plan_retention(
    targets: Sequence[str], settings: Settings | SettingsOf, filesystem: FileSystem, clock: Clock
) -> RetentionReport:
    """What would go now (I1). Raises `UsageError`, among them `LogLockedError`; what is wrong with
    one partition is told with it."""
    places = find_partitions(targets, filesystem)
    settings_of = told_by(settings)
    clock = StoppedClock(clock.now_ms())
    with locked((place.log_dir for place in places), filesystem, exclusive=False):
        found = tuple(
            _planned(place, settings_of(place.topic_partition), filesystem, clock)
            for place in places
        )
    return RetentionReport(False, clock.now_ms(), found)


def _planned(
    place: PartitionPlace, told: LogSettings, filesystem: FileSystem, clock: Clock
) -> PartitionRetention:
    try:
        with open_to_read(place, told, filesystem, clock, may_be_torn=True) as log:
            view = view_of(log.view)
            held = held_from(filesystem, place.path, told, view.log_start_offset)
            decision = decide(view, told, clock.now_ms(), held_from=held)
            is_told = decision.deletions or decision.problems or decision.held_from is not None
            return PartitionRetention(
                place.name,
                place.path,
                told.cleanup_policy,
                len(view.segments),
                view.size_bytes,
                view.log_start_offset,
                decision if is_told else None,
            )
    except StratalogError as error:
        return PartitionRetention(place.name, place.path, told.cleanup_policy, error=str(error))


def run_retention(
    targets: Sequence[str],
    settings: Settings | SettingsOf,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
    on_opened: Callable[[], None] = lambda: None,
) -> RetentionReport:
    """Delete what is past its time, durably, and unlink its files.

    `on_opened` is called when the logs are open and nothing is deleted yet. Raises `UsageError`
    (among them `LogLockedError`), `CorruptionError`, `StorageIOError`; what is wrong with one
    partition is told with it.
    """
    places = find_partitions(targets, filesystem)
    settings_of = told_by(settings)
    clock = StoppedClock(clock.now_ms())
    log_dirs = [place.log_dir for place in places]
    with open_store(log_dirs, settings_of, filesystem, clock, on_progress) as store:
        on_opened()
        only = {place.topic_partition: place for place in places}
        before = {key: _before(store, place, settings_of(key)) for key, place in only.items()}
        decided = store.run_retention(only)
        store.unlink_due()
        done = tuple(_done(store, key, item, decided.get(key)) for key, item in before.items())
    return RetentionReport(True, clock.now_ms(), done)


def _before(store: LogStore, place: PartitionPlace, told: LogSettings) -> PartitionRetention:
    error = problem_of(store, place.topic_partition)
    if place.topic_partition in store.failed:
        return PartitionRetention(place.name, place.path, told.cleanup_policy, error=error)
    log = store.get(place.topic_partition)
    return PartitionRetention(
        place.name,
        place.path,
        told.cleanup_policy,
        len(log.segments),
        log.segments.size_bytes,
        log.log_start_offset,
        error=error,
    )


def _done(
    store: LogStore,
    key: TopicPartition,
    item: PartitionRetention,
    decision: RetentionDecision | None,
) -> PartitionRetention:
    error = item.error or problem_of(store, key)
    if decision is not None and decision.deletions and error is None:
        gone = store.get(key).segments.bases[0] >= decision.deletions[-1].end_offset
        error = None if gone else "the log changed meanwhile; run it again"
    return PartitionRetention(
        item.partition,
        item.directory,
        item.cleanup_policy,
        item.segments,
        item.log_bytes,
        item.log_start_offset,
        decision,
        error,
    )
