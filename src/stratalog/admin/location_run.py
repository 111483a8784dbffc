"""`compact --out` for topics in ledger mode, from directories into one: the next generation of it.

    claim the location ─► plan ─► engine, all partitions in one go ─► settle, carry over ─► switch

Topics that are not in ledger mode are compacted into the new generation as into any directory.

Invariants
- I1  Of two runs at a location one is refused: whoever writes holds its lock.
- I2  Whatever is raised, the generation before counts, or the new one, and of a run that failed
      nothing is left. The sources are only read.
- I3  Without anything new there is no new generation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from stratalog.admin import location
from stratalog.admin.compaction_ledger import sync_raw, uses_ledger
from stratalog.admin.compaction_plan import CompactionOptions
from stratalog.admin.copying import CHECKPOINTS, IDENTITY_FILE
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.floors import choice_settings, clean_spec, log_settings
from stratalog.admin.location import DirectoryTarget
from stratalog.admin.location_ledger import (
    CopyPlan,
    Known,
    base_of,
    check_mode,
    entry_of,
    is_blamed,
    ledger_beside,
    plan_copy,
    raw_size,
    report_of,
    settle_copy,
    write_digests,
)
from stratalog.admin.location_manifest import (
    Manifest,
    PartitionEntry,
    new_directory,
    read_manifest,
)
from stratalog.admin.location_tail import cleaned_below
from stratalog.admin.report import CompactionReport, Mode, PartitionReport
from stratalog.admin.state import open_to_read
from stratalog.base.clock import Clock, StoppedClock
from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.base.filesystem import FileSystem, make_durable_directory, read_file
from stratalog.clean.engine import Engine, OnProgress
from stratalog.clean.job import CleanedPartition
from stratalog.clean.ledger_plan import order_name
from stratalog.config.settings import Settings
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.deletion import remove_tree
from stratalog.log.locking import locked
from stratalog.log.topic_id import read_topic_id
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE

CLEAN_SHUTDOWN = b'{"version":0,"brokerEpoch":-1}'
"""What Kafka writes into the marker of a clean shutdown."""
_SMALL_BYTES = 1 << 20

CopyPlain = Callable[[Sequence[PartitionPlace], str], CompactionReport]
"""Compacts partitions into a fresh directory."""


@dataclass(slots=True, eq=False)
class _Run:
    """One run: what it is told, and the generation that it writes."""

    target: DirectoryTarget
    before: Manifest | None
    directory: str
    options: CompactionOptions
    disk: FileSystem
    clock: Clock

    @property
    def number(self) -> int:
        return 1 if self.before is None else self.before.generation + 1

    def old_path(self, place: PartitionPlace) -> str:
        """Where the generation before has a partition."""
        assert self.before is not None
        return os.path.join(self.target.root, self.before.directory, place.name)

    def new_path(self, place: PartitionPlace) -> str:
        return os.path.join(self.target.root, self.directory, place.name)


def compact_into(
    places: Sequence[PartitionPlace],
    options: CompactionOptions,
    start_engine: Callable[[], Engine],
    disk: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
    copy_plain: CopyPlain,
) -> CompactionReport:
    """Make the next generation of the location `options.out`, of `places`, whose directories are
    locked. Raises as `compaction.compact`."""
    assert options.out is not None
    root = os.path.abspath(options.out)
    _check_apart(places, root)
    now = StoppedClock(clock.now_ms())
    with claimed(root, disk):
        target = DirectoryTarget(root, disk)
        before = location.check_target(target)
        number = 1 if before is None else before.generation + 1
        run = _Run(target, before, new_directory(number), options, disk, now)
        location.sweep(target, before)
        try:
            report, kept = _make(run, places, start_engine, on_progress, copy_plain)
        except BaseException:
            with suppress(StorageIOError, FileNotFoundError):
                _undo(run)
            raise
        if report.generation is not None:
            location.remove_old(target, before, kept)
        return report


def _undo(run: _Run) -> None:
    """Remove what was written, unless it counts after all."""
    manifest = read_manifest(run.disk, run.target.root)
    if manifest is None or manifest.directory != run.directory:
        run.target.remove(run.directory)


def _check_apart(places: Sequence[PartitionPlace], root: str) -> None:
    names: dict[str, PartitionPlace] = {}
    for place in places:
        other = names.setdefault(place.name, place)
        if other is not place:
            raise UsageError(f"{other.path} and {place.path} cannot go into one directory")
        real, source = os.path.realpath(root), os.path.realpath(place.log_dir)
        if os.path.commonpath([real, source]) in (real, source):
            raise UsageError(f"{root}: --out wants a place apart from {place.log_dir}")


@contextmanager
def claimed(root: str, disk: FileSystem) -> Iterator[None]:
    """The location, for this run alone; one that was made for it goes if the run fails.

    Raises `UsageError` (`LogLockedError` if another run is at it), `StorageIOError`.
    """
    was_there = disk.exists(root)
    if was_there and not disk.is_directory(root):
        raise UsageError(f"{root}: is there and is no directory")
    if was_there:
        location.check_target(DirectoryTarget(root, disk))  # before anything is put there
    make_durable_directory(disk, root)
    with locked([root], disk, exclusive=True):
        try:
            yield
        except BaseException:
            with suppress(StorageIOError, FileNotFoundError, CorruptionError):
                if not was_there and read_manifest(disk, root) is None:
                    remove_tree(disk, root)
            raise


# ---------------------------------------------------------------- the new generation


def _make(
    run: _Run,
    places: Sequence[PartitionPlace],
    start_engine: Callable[[], Engine],
    on_progress: OnProgress,
    copy_plain: CopyPlain,
) -> tuple[CompactionReport, tuple[str, ...]]:
    options, now_ms = run.options, run.clock.now_ms()
    ledgers = [place for place in places if uses_ledger(options.of(place))]
    plain = [place for place in places if place not in ledgers]
    _check_plain(run, plain)
    plans = [_plan(run, place) for place in ledgers]
    if not plain and not any(plan.is_new for plan in plans):
        reports = [_unchanged(run, plan) for plan in plans]
        return CompactionReport(Mode.OUT, run.target.root, now_ms, 0.0, tuple(reports)), ()
    engine = start_engine() if any(plan.run for plan in plans) else None
    started = time.perf_counter()
    told: dict[str, PartitionReport] = {}
    entries: list[PartitionEntry] = []
    if plain:
        done = copy_plain(plain, os.path.join(run.target.root, run.directory))
        told = {item.partition: item for item in done.partitions}
        entries = [_plain_entry(run, item) for item in done.partitions]
    for plan, cleaned in _cleaned(run, plans, engine, on_progress):
        seconds = time.perf_counter() - started
        entry, report = _settled(run, plan, cleaned, round(seconds * 1000))
        entries.append(entry)
        told[entry.partition] = report
    entries += _absent(run, {place.name for place in places})
    entries.sort(key=lambda entry: entry.partition)
    _write_frame(run, places, entries)
    kept = location.kept_of(run.before, _older(options, ledgers))
    made = Manifest(run.number, run.directory, kept, now_ms, tuple(entries))
    location.switch(run.target, run.before, made)
    seconds = time.perf_counter() - started
    partitions = tuple(told[place.name] for place in places)
    root = run.target.root
    return CompactionReport(Mode.OUT, root, now_ms, seconds, partitions, run.directory), kept


def older_generations(settings: Sequence[Settings], given: int | None) -> int:
    """How many generations stay beside the one in use: as many as the topics in ledger mode keep
    ledgers, unless somebody says a number; without such a topic one, for readers at it."""
    if given is not None:
        return given
    retained = [choice_settings(one).ledgers_retained for one in settings if uses_ledger(one)]
    return max(retained, default=2) - 1


def _older(options: CompactionOptions, ledgers: Sequence[PartitionPlace]) -> int:
    return older_generations([options.of(place) for place in ledgers], options.kept_generations)


def _check_plain(run: _Run, plain: Sequence[PartitionPlace]) -> None:
    for place in plain:
        before = None if run.before is None else run.before.entry(place.name)
        check_mode(run.disk, place, run.target.root, before)


def _plan(run: _Run, place: PartitionPlace, damage: CorruptionError | None = None) -> CopyPlan:
    settings = run.options.of(place)
    spec = clean_spec(settings, run.clock.now_ms())
    with open_to_read(place, log_settings(settings), run.disk, run.clock) as log:
        view = log.view
    before = None if run.before is None else run.before.entry(place.name)
    known = Known(
        place.path,
        run.target.root,
        view.log_start_offset,
        read_topic_id(run.disk, place.path),
        order_name(spec.order, spec.version_header),
        cleaned_below(run.disk, place),
        before,
        lambda: ledger_beside(run.disk, place.path),
        damage,
    )
    base_directory = "" if before is None else run.old_path(place)
    try:
        return plan_copy(
            place,
            view,
            known,
            base_of(known),
            spec,
            run.number,
            run.new_path(place),
            run.disk,
            base_directory=base_directory,
            checks_digests=not run.options.engine_checks_digests,
        )
    except CorruptionError as error:
        if damage is not None or not base_directory or not is_blamed(error, base_directory):
            raise
        return _plan(run, place, error)


def _unchanged(run: _Run, plan: CopyPlan) -> PartitionReport:
    assert plan.base is not None
    raw = raw_size(run.disk, plan.place.path)
    return report_of(plan, plan.place.path, None, plan.base.generation, raw)


def _cleaned(
    run: _Run,
    plans: list[CopyPlan],
    engine: Engine | None,
    on_progress: OnProgress,
) -> list[tuple[CopyPlan, CleanedPartition | None]]:
    """What the engine made of the plans. A damaged base is done without, if it can be (L3)."""
    if engine is None:
        return [(plan, None) for plan in plans]
    while True:
        found: dict[int, CleanedPartition] = {}
        try:
            for batch in _batches(plans, run.options.max_concurrent):
                jobs = [job for number in batch if (job := plans[number].job) is not None]
                for job in jobs:
                    make_durable_directory(run.disk, job.directory)
                made = engine.clean(jobs, writes=True, on_progress=on_progress)
                found.update(zip(batch, made, strict=True))
        except CorruptionError as error:
            _without_base(run, plans, error)
            continue
        return [(plan, found.get(number)) for number, plan in enumerate(plans)]


def _batches(plans: Sequence[CopyPlan], at_once: int | None) -> list[list[int]]:
    """The plans that have work, by number, the biggest first: as many as may be in work at once."""
    todo = [number for number, plan in enumerate(plans) if plan.job is not None]
    todo.sort(key=lambda number: (-plans[number].size_bytes, number))
    step = at_once or max(len(todo), 1)
    return [todo[start : start + step] for start in range(0, len(todo), step)]


def _without_base(run: _Run, plans: list[CopyPlan], error: CorruptionError) -> None:
    """Plan the partition anew whose copy at the location is damaged. Raises `error` otherwise."""
    for number, plan in enumerate(plans):
        lies_in = plan.inputs.previous_directory
        if lies_in and is_blamed(error, lies_in):
            plans[number] = _plan(run, plan.place, error)
            return
    raise error


def _settled(
    run: _Run, plan: CopyPlan, cleaned: CleanedPartition | None, duration_ms: int
) -> tuple[PartitionEntry, PartitionReport]:
    place, disk = plan.place, run.disk
    raw = raw_size(disk, place.path)
    if not plan.is_new:
        assert run.before is not None
        entry = run.before.entry(place.name)
        assert entry is not None
        assert entry.ledger is not None
        location.carry_over(run.target, run.before, entry, run.directory)
        return entry, report_of(plan, place.path, None, entry.ledger, raw)
    if cleaned is not None:
        sync_raw(cleaned.job, plan.inputs, disk)
    made, carried = settle_copy(plan, cleaned, disk, run.options.engine, duration_ms)
    pairs = [
        pair
        for lies_in, part in carried
        for pair in location.segment_files(disk, lies_in, part, plan.directory)
    ]
    run.target.copy(pairs)
    write_digests(carried, plan.directory, disk)
    for name, content in location.frame_files(made, location.metadata_of(disk, place.path)).items():
        run.target.write(os.path.join(run.directory, place.name, name), content)
    return entry_of(plan, made), report_of(plan, place.path, cleaned, made, raw)


def _plain_entry(run: _Run, item: PartitionReport) -> PartitionEntry:
    path = os.path.join(run.target.root, run.directory, item.partition)
    _, size_bytes = raw_size(run.disk, path)
    return PartitionEntry(item.partition, item.log_start_offset, item.log_end_offset, size_bytes)


def _absent(run: _Run, names: set[str]) -> list[PartitionEntry]:
    """The ledgers of partitions that nobody named: they stay as they are."""
    if run.before is None:
        return []
    found = [
        entry
        for entry in run.before.partitions
        if entry.ledger is not None and entry.partition not in names
    ]
    for entry in found:
        location.carry_over(run.target, run.before, entry, run.directory)
    return found


def _write_frame(
    run: _Run, places: Sequence[PartitionPlace], entries: Sequence[PartitionEntry]
) -> None:
    """What makes a log directory of the partitions."""
    files: location.Checkpoints = {}
    path = os.path.join(run.target.root, run.directory)
    for name in CHECKPOINTS:
        found = read_checkpoint(run.disk, os.path.join(path, name))  # of those not in ledger mode
        if found:
            files[name] = found
    ledgers = [entry for entry in entries if entry.ledger is not None]
    for entry in ledgers:
        location.add_checkpoints(files, entry)
    location.write_checkpoints(run.target, run.directory, files)
    if len(ledgers) == len(entries):
        run.target.write(os.path.join(run.directory, CLEAN_SHUTDOWN_FILE), CLEAN_SHUTDOWN)
    log_dirs = {place.log_dir for place in places}
    identity = os.path.join(next(iter(log_dirs)), IDENTITY_FILE)
    if len(log_dirs) == 1 and run.disk.exists(identity):
        content = read_file(run.disk, identity, _SMALL_BYTES)
        run.target.write(os.path.join(run.directory, IDENTITY_FILE), content)
