"""What a `compact` is told, and what it is to do with each partition."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from stratalog.admin.compaction_ledger import (
    LedgerPlan,
    plan_for_ledger,
    refuse_other_mode,
    uses_ledger,
)
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.floors import clean_spec, log_settings
from stratalog.admin.giving_up import check_given_up
from stratalog.admin.report import Mode
from stratalog.admin.state import ReadPartition, read_partition
from stratalog.base.clock import Clock
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.expiry import next_expiry_of
from stratalog.clean.job import CleaningJob, CleanSpec
from stratalog.clean.ledger_plan import backlog_bytes
from stratalog.clean.note import UNKNOWN, read_note
from stratalog.clean.plan import plan_clean, range_of
from stratalog.clean.policy import CleanableRange
from stratalog.config.settings import Settings
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """How to compact. `out`: the fresh directory, with `Mode.OUT` only; of topics in ledger mode a
    location, whose next generation is made, and `kept_generations` older ones stay there (None: as
    `compaction.ledgers.retained` says).

    `keep_active`: leave the active segment alone instead of rolling it first. `top`: how many of
    the keys that lose most a dry run looks for. `engine`: the engine's name, for the history.
    `engine_checks_digests`: it is Spark's (`round.state_of`).
    `settings_of`: those of each topic, where `settings` are not the same for all.
    `max_concurrent`: partitions that the engine has in work at once; None: all in one go.
    `partial_progress`: not with `Mode.OUT`. `gives_up_ledgers`: what only a ledger has may go with
    it, where a log with one is cleaned in place.
    """

    mode: Mode
    settings: Settings
    out: str | None = None
    keep_active: bool = False
    top: int = 0
    engine: str = "local"
    engine_checks_digests: bool = False
    settings_of: Callable[[str], Settings] | None = None
    max_concurrent: int | None = None
    partial_progress: bool = False
    kept_generations: int | None = None
    gives_up_ledgers: bool = False

    def __post_init__(self) -> None:
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise UsageError(f"max_concurrent is {self.max_concurrent}; it must be at least 1")
        if self.partial_progress and self.mode is Mode.OUT:
            raise UsageError("partial_progress is for a compaction in place: a copy is whole")
        if self.kept_generations is not None and self.kept_generations < 0:
            raise UsageError(f"kept_generations is {self.kept_generations}; it must be at least 0")

    def of(self, place: PartitionPlace) -> Settings:
        """A partition's settings."""
        topic = place.topic_partition.topic
        return self.settings if self.settings_of is None else self.settings_of(topic)


@dataclass(frozen=True, slots=True)
class Planned:
    """A partition and what is to be done with it; no job: nothing. `ledger`: it is in that mode."""

    settings: Settings
    partition: ReadPartition
    cleanable: CleanableRange
    job: CleaningJob | None
    ledger: LedgerPlan | None = None


def plan(
    place: PartitionPlace, options: CompactionOptions, filesystem: FileSystem, clock: Clock
) -> Planned:
    """What is to be done with a partition; nothing on disk is touched, but that a run of its ledger
    begins.

    Raises `CorruptionError`, `StorageIOError`, `UsageError`.
    """
    settings = options.of(place)
    spec = clean_spec(settings, clock.now_ms())
    try:
        partition = read_partition(
            place,
            log_settings(settings),
            filesystem,
            clock,
            keep_active=options.keep_active or uses_ledger(settings),
            checks_digests=not options.engine_checks_digests,
        )
    except CorruptionError as error:
        raise _with_advice(error, place, filesystem) from error
    cleanable = range_of(
        partition.state,
        min_compaction_lag_ms=settings.integer("min.compaction.lag.ms"),
        now_ms=spec.now_ms,
    )
    if uses_ledger(settings):
        return _ledger_planned(place, options, spec, partition, filesystem, clock)
    if not settings.is_compacted:
        return Planned(settings, partition, replace(cleanable, checkpoint_was_reset=False), None)
    if options.mode is not Mode.DRY_RUN:
        refuse_other_mode(place, settings, filesystem)
    if options.mode is Mode.IN_PLACE and not options.gives_up_ledgers:
        check_given_up(place, partition.state.log_start_offset, filesystem)
    is_expired = False
    if cleanable.cleanable_bytes == 0:
        is_expired = _is_expired(partition, cleanable, spec, filesystem)
    job = plan_clean(partition.state, cleanable, spec, is_expired=is_expired)
    return Planned(settings, partition, cleanable, job)


def _ledger_planned(
    place: PartitionPlace,
    options: CompactionOptions,
    spec: CleanSpec,
    partition: ReadPartition,
    filesystem: FileSystem,
    clock: Clock,
) -> Planned:
    settings = options.of(place)
    found = plan_for_ledger(
        place,
        settings,
        options.mode,
        spec,
        filesystem,
        clock,
        checks_digests=not options.engine_checks_digests,
    )
    inputs = found.inputs
    end = max(inputs.end_offset, inputs.first_dirty)
    new_bytes = backlog_bytes(inputs.view, inputs.first_dirty, end)
    old_bytes = 0 if inputs.previous is None else inputs.previous.size_bytes
    cleanable = CleanableRange(inputs.first_dirty, end, end, old_bytes, new_bytes, False)
    return Planned(settings, partition, cleanable, found.job, found)


def _is_expired(
    partition: ReadPartition, cleanable: CleanableRange, spec: CleanSpec, filesystem: FileSystem
) -> bool:
    """Whether something that was cleaned before may go by now, which is reason enough (CMP-9)."""
    state = partition.state
    path = partition.place.path
    note = read_note(filesystem, path)
    expiry_ms = note.expiry(state.checkpoint, by_segment=spec.by_segment)
    if expiry_ms == UNKNOWN:
        end = min(cleanable.first_dirty, cleanable.first_uncleanable)
        segments = [segment for segment in state.segments if segment.base_offset < end]
        expiry_ms = next_expiry_of(filesystem, path, segments)
    return expiry_ms is not None and expiry_ms <= spec.now_ms


def _with_advice(
    error: CorruptionError, place: PartitionPlace, filesystem: FileSystem
) -> CorruptionError:
    """What a crash may have left is no case for a cleaner: it says who cuts a torn end off."""
    if filesystem.exists(os.path.join(place.log_dir, CLEAN_SHUTDOWN_FILE)):
        return error
    reason = (
        f"{error.reason}; the log was not closed in order: "
        f"`stratalog log repair {place.path} --apply` puts it in order"
    )
    return CorruptionError(reason, file=error.file, position=error.position)
