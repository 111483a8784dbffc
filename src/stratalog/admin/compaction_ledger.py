"""Partitions in ledger mode, where nobody has them open: planned, settled and told as the others.

    plan_for_ledger ─► a run that has begun (in place), or what it would do (dry run)
    LedgerRuns      the runs of one `compact`: settled one by one, or all of them undone

Invariants
- I1  The raw log is only read. It is synced before a generation counts: the process that wrote it
      may have died with it in memory.
- I2  A run that is not settled leaves no files; how it ended is written down (LDG-4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from stratalog.admin.directories import PartitionPlace
from stratalog.admin.floors import choice_settings, log_settings
from stratalog.admin.report import Mode
from stratalog.admin.state import open_to_read
from stratalog.base.clock import Clock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.job import CleanedPartition, CleaningJob, CleanSpec
from stratalog.clean.ledger_ends import note_ended
from stratalog.clean.ledger_plan import LedgerInputs, plan_ledger
from stratalog.clean.ledger_round import (
    PlannedRun,
    begin_run,
    check_digests,
    fail_run,
    read_inputs,
    settle_run,
)
from stratalog.config.settings import Settings
from stratalog.ledger.ledgers import Ledgers, has_ledgers
from stratalog.ledger.manifest import Generation, read_manifest
from stratalog.log.view import LogView
from stratalog.segment.names import FileKind, TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class LedgerPlan:
    """What a run would do, or does: `run` None in a dry run, and where there is nothing to do."""

    inputs: LedgerInputs
    job: CleaningJob | None
    run: PlannedRun | None
    ledgers: Ledgers
    retained: int


@dataclass(frozen=True, slots=True, eq=False)
class _BareLog:
    """A log that nobody has open: where it lies, and its view, if it was read."""

    path: str
    read: LogView | None

    @property
    def view(self) -> LogView:
        assert self.read is not None
        return self.read

    @property
    def log_end_offset(self) -> int:
        return self.view.log_end_offset


@dataclass(frozen=True, slots=True, eq=False)
class _BareLogs:
    """One of them as a store, for `Ledgers`."""

    place: PartitionPlace
    view: LogView | None = None

    def get(self, _: TopicPartition, /) -> _BareLog:
        return _BareLog(self.place.path, self.view)

    def writable_logs(self) -> Iterator[tuple[TopicPartition, _BareLog]]:
        yield self.place.topic_partition, self.get(self.place.topic_partition)


def uses_ledger(settings: Settings) -> bool:
    """Whether `compaction.mode` is ledger."""
    return settings.text("compaction.mode") == "ledger"


def refuse_other_mode(place: PartitionPlace, settings: Settings, filesystem: FileSystem) -> None:
    """A log with a ledger is not rewritten by accident: what the ledger builds upon would be gone.

    Raises `UsageError` unless somebody gave `compaction.mode=inplace`.
    """
    if settings.is_given("compaction.mode"):
        return
    if read_manifest(filesystem, place.path).current is not None:
        raise UsageError(
            f"{place.path}: it has a ledger; say --config compaction.mode=ledger to go on with it, "
            "or --config compaction.mode=inplace to do without it"
        )


def drop_ledger(place: PartitionPlace, filesystem: FileSystem) -> None:
    """The log is about to be cleaned in place. Raises `StorageIOError`."""
    if has_ledgers(filesystem, place.path):
        Ledgers(_BareLogs(place), filesystem).drop(place.topic_partition)


def plan_for_ledger(
    place: PartitionPlace,
    settings: Settings,
    mode: Mode,
    spec: CleanSpec,
    filesystem: FileSystem,
    clock: Clock,
    *,
    checks_digests: bool = True,
) -> LedgerPlan:
    """What is to be done with a partition in ledger mode. But for a dry run its directory is there.
    `checks_digests`: see `round.state_of`.

    Raises `UsageError`, `CorruptionError`, `StorageIOError`.
    """
    assert mode is not Mode.OUT, "that is for `location_run`"
    key = place.topic_partition
    with open_to_read(place, log_settings(settings), filesystem, clock) as log:
        view = log.view
    ledgers = Ledgers(_BareLogs(place, view), filesystem)
    if mode is Mode.IN_PLACE:
        ledgers.sweep(partial(note_ended, filesystem))
    retained = choice_settings(settings).ledgers_retained
    with ledgers.pin(key) as pin:
        inputs = read_inputs(pin, key, place.path, view, spec)
        if checks_digests:
            check_digests(inputs, pin, lambda: None)
    if mode is Mode.DRY_RUN:
        return LedgerPlan(inputs, plan_ledger(inputs, place.path), None, ledgers, retained)
    run = begin_run(ledgers, key, inputs, "command")
    return LedgerPlan(inputs, None if run is None else run.job, run, ledgers, retained)


@dataclass(slots=True)
class LedgerRuns:
    """The runs that have begun and not ended."""

    filesystem: FileSystem
    clock: Clock
    begun: dict[TopicPartition, LedgerPlan] = field(default_factory=dict)

    def add(self, plan: LedgerPlan) -> None:
        if plan.run is not None:
            self.begun[plan.run.key] = plan

    def settle(
        self, plan: LedgerPlan, cleaned: CleanedPartition, engine: str, seconds: float
    ) -> Generation:
        """Let the generation count. Raises `StorageIOError`, `CorruptionError`."""
        run = plan.run
        assert run is not None
        sync_raw(cleaned.job, plan.inputs, self.filesystem)
        made = settle_run(
            self.filesystem,
            plan.ledgers,
            run,
            cleaned,
            retained=plan.retained,
            engine=engine,
            duration_ms=round(seconds * 1000),
        )
        self.begun.pop(run.key, None)
        return made

    def fail(self, key: TopicPartition, error: BaseException) -> None:
        """Undo the run of one partition, if it has begun."""
        plan = self.begun.pop(key, None)
        if plan is not None and plan.run is not None:
            fail_run(plan.ledgers, key, plan.run.status, error, self.clock.now_ms())

    def fail_all(self, error: BaseException) -> None:
        """Undo what has begun."""
        for key in list(self.begun):
            self.fail(key, error)


def sync_raw(job: CleaningJob, inputs: LedgerInputs, filesystem: FileSystem) -> None:
    """Make the raw log that a job reads durable (I1). Raises `StorageIOError`."""
    raw = [source for source in job.segments if not source.may_stay]
    kinds = (FileKind.LOG, FileKind.TXN_INDEX)
    for path in (source.file_path(job.directory, kind) for source in raw for kind in kinds):
        try:
            file = filesystem.open(path, "read")
        except FileNotFoundError:
            continue  # most segments have no .txnindex
        try:
            file.fsync()
        finally:
            file.close()
    filesystem.fsync_directory(inputs.path)
