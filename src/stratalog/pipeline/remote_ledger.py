"""What a worker does for a partition in ledger mode: the next copy, upon the one that there is.

    the raw log from the copy's horizon on, and the copy ─► scratch ─► the job of a ledger, by the
    local engine ─► what was written is uploaded, what stays as it is is copied where it lies

Invariants
- G1  Of the raw log only segments are fetched that hold offsets past the copy's last one, and the
      one that holds that (`location_tail`); what is decided by where the log begins, is so before.
- G2  What is fetched lies below the scratch directory as it does at the source and the location, so
      that damage can be told by the names that the user knows.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from stratalog.admin import copying, location
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.floors import clean_spec, log_settings
from stratalog.admin.location_ledger import (
    Base,
    CopyPlan,
    Known,
    base_of,
    entry_of,
    idle_copy,
    is_blamed,
    ledger_beside,
    log_start_of,
    plan_copy,
    raw_size,
    report_of,
    settle_copy,
)
from stratalog.admin.location_manifest import PartitionEntry
from stratalog.admin.location_tail import cleaned_below
from stratalog.admin.report import PartitionReport
from stratalog.admin.state import open_to_read
from stratalog.base.clock import StoppedClock
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.ledger_plan import order_name
from stratalog.config.settings import Settings
from stratalog.ledger.manifest import Generation, LedgerSegment, generation_path
from stratalog.log.leftovers import sort_out
from stratalog.log.topic_id import read_topic_id
from stratalog.pipeline.object_store import SCHEME
from stratalog.pipeline.places import Place
from stratalog.pipeline.remote_target import Location
from stratalog.segment.names import LOG_START_OFFSET_CHECKPOINT, STATE_DIRECTORY, parse

RAW, BEFORE, MADE = "raw", "before", "made"
"""Directories of the scratch: of the source, of the generation before, of the new one."""


@dataclass(frozen=True, slots=True)
class LedgerTask:
    """One partition. `before`: what the location holds of it, in the directory `before_directory`;
    `below`: the directory of the new generation, which is number `number`."""

    place: Place
    target: Location
    below: str
    number: int
    before: PartitionEntry | None
    before_directory: str
    settings: Settings
    now_ms: int

    @property
    def held(self) -> Generation:
        """The ledger that the location holds, if it does."""
        assert self.before is not None
        assert self.before.ledger is not None
        return self.before.ledger

    @property
    def base_directory(self) -> str:
        """Where the location has the partition now."""
        return os.path.join(self.target.root, self.before_directory, self.place.name)


@dataclass(frozen=True, slots=True)
class LedgerDone:
    """What came of it. `entry` None: the location has all of it already."""

    report: PartitionReport
    entry: PartitionEntry | None


def copy_ledger(scratch: str, task: LedgerTask, engine: Engine) -> LedgerDone:
    """Make the next copy of a partition; a damaged one is done without, if that can be.

    Raises `UsageError`, `CorruptionError`, `StorageIOError`.
    """
    try:
        return _copied(os.path.join(scratch, "1"), task, engine, None)
    except CorruptionError as error:
        found = named_by_user(error, os.path.join(scratch, "1"), task)
        if not task.before_directory or not is_blamed(found, task.base_directory):
            raise found from error
    try:
        return _copied(os.path.join(scratch, "2"), task, engine, found)
    except CorruptionError as error:
        raise named_by_user(error, os.path.join(scratch, "2"), task) from error


def named_by_user(error: CorruptionError, scratch: str, task: LedgerTask) -> CorruptionError:
    """The error with the path that the user knows (G2)."""
    roots = {
        os.path.join(scratch, RAW): task.place.log_dir,
        os.path.join(scratch, BEFORE): os.path.dirname(task.base_directory),
    }
    file, reason = error.file, error.reason
    for here, there in roots.items():
        file = None if file is None else file.replace(here, there)
        reason = reason.replace(here, there)
    return CorruptionError(reason, file=file, position=error.position)


def _copied(
    scratch: str, task: LedgerTask, engine: Engine, damage: CorruptionError | None
) -> LedgerDone:
    began = time.perf_counter()
    origin, disk = task.place.filesystem(), LocalFileSystem()
    spec = clean_spec(task.settings, task.now_ms)
    known = Known(
        task.place.path,
        task.target.root,
        log_start_of(origin, task.place),
        read_topic_id(origin, task.place.path),
        order_name(spec.order, spec.version_header),
        cleaned_below(origin, task.place),
        task.before,
        lambda: ledger_beside(origin, task.place.path),
        damage,
    )
    base = base_of(known)
    copy = _fetch_raw(task.place, os.path.join(scratch, RAW), origin, base)
    clock = StoppedClock(task.now_ms)
    with open_to_read(copy, log_settings(task.settings), disk, clock) as log:
        view = log.view
    raw = raw_size(origin, task.place.path)
    idle = idle_copy(copy, view, known, base, spec, task.number)
    if idle is not None and _is_whole(task, idle):
        report = report_of(idle, task.place.path, None, task.held, raw)
        return LedgerDone(_of_source(report, known), None)
    base_directory = _fetch_base(task, base, os.path.join(scratch, BEFORE))
    made_in = os.path.join(scratch, MADE)
    directory = os.path.join(made_in, task.place.name)
    plan = plan_copy(
        *(copy, view, known, base, spec, task.number, directory, disk),
        base_directory=base_directory,
    )
    disk.make_directory(directory)
    cleaned = None
    if plan.job is not None:
        [cleaned] = engine.clean([plan.job], writes=True, on_progress=lambda _: None)
    duration_ms = round((time.perf_counter() - began) * 1000)
    made, carried = settle_copy(plan, cleaned, disk, "spark", duration_ms)
    _write_frame(plan, made, location.metadata_of(origin, task.place.path), disk)
    _place(task, plan, carried, made_in, disk)
    report = report_of(plan, task.place.path, cleaned, made, raw)
    return LedgerDone(_of_source(report, known), entry_of(plan, made))


def _is_whole(task: LedgerTask, plan: CopyPlan) -> bool:
    """Whether the location still has what its manifest says; what else may be wrong is carried
    over, and found by who reads it."""
    assert plan.base is not None
    there = task.target.filesystem()
    return location.missing_file(there, task.base_directory, plan.base.generation) is None


def _of_source(report: PartitionReport, known: Known) -> PartitionReport:
    """Where the log begins, not what was fetched of it."""
    return replace(report, log_start_offset=known.log_start_offset)


# ---------------------------------------------------------------- fetching


def _fetch_raw(place: Place, log_dir: str, origin: FileSystem, base: Base | None) -> PartitionPlace:
    """The log's files from the base's horizon on (G1), and a ledger beside it that is the base."""
    copy = PartitionPlace(log_dir, place.topic_partition)
    contents = sort_out(origin.list_directory(place.path))
    first = 0
    if base is not None and not contents.unfinished:
        reached = [one for one in contents.bases if one < base.generation.horizon]
        first = max(reached, default=0)
    state = os.path.join(place.path, STATE_DIRECTORY)
    wanted = [
        path
        for path in copying.files_of(place.path, origin)
        if not (os.path.dirname(path) == state and path.endswith(".digest"))
        and ((name := parse(os.path.basename(path))) is None or name.base_offset >= first)
    ]
    pairs = [(path, os.path.join(copy.path, os.path.relpath(path, place.path))) for path in wanted]
    starts = os.path.join(place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    if origin.exists(starts):
        pairs.append((starts, os.path.join(log_dir, LOG_START_OFFSET_CHECKPOINT)))
    if base is not None and base.is_beside:
        for part in base.generation.segments:
            pairs += location.segment_files(
                origin,
                generation_path(place.path, part.generation),
                part,
                generation_path(copy.path, part.generation),
            )
    _fetch(pairs, origin)
    return copy


def _fetch_base(task: LedgerTask, base: Base | None, scratch: str) -> str:
    """The copy that the location holds; where its files lie then."""
    if base is None or base.is_beside:
        return ""
    if not task.target.is_remote:
        return task.base_directory
    goal = os.path.join(scratch, task.place.name)
    origin = task.target.filesystem()
    pairs = [
        pair
        for part in base.generation.segments
        for pair in location.segment_files(origin, task.base_directory, part, goal)
    ]
    try:
        _fetch(pairs, origin)
    except FileNotFoundError as error:
        file = os.path.join(task.base_directory, os.path.basename(pairs[0][0]))
        raise CorruptionError(f"the compacted copy lacks a file: {error}", file=file) from error
    return goal


def _fetch(pairs: list[location.Pair], origin: FileSystem) -> None:
    disk = LocalFileSystem()
    for source, goal in pairs:
        disk.make_directory(os.path.dirname(goal))
        copying.copy_file(source, goal, disk, origin=origin)
        if not source.startswith(SCHEME):
            # What a copy holds must not be lost by its log with the cache.
            file = disk.open(source, "read")
            try:
                file.fsync()
            finally:
                file.close()


# ---------------------------------------------------------------- placing


def _write_frame(
    plan: CopyPlan, made: Generation, metadata: bytes | None, disk: FileSystem
) -> None:
    for name, content in location.frame_files(made, metadata).items():
        file = disk.open(os.path.join(plan.directory, name), "create")
        try:
            file.pwrite(content, 0)
        finally:
            file.close()


def _place(
    task: LedgerTask,
    plan: CopyPlan,
    carried: list[tuple[str, LedgerSegment]],
    made_in: str,
    disk: FileSystem,
) -> None:
    """Put the new copy where it belongs; the manifest does not name it yet."""
    is_there = plan.base is not None and not plan.base.is_beside
    if is_there:
        goal = os.path.join(task.target.root, task.below, task.place.name)
        origin = task.target.filesystem()
        pairs = [
            pair
            for _, part in carried
            for pair in location.segment_files(origin, task.base_directory, part, goal)
        ]
        task.target.copy(pairs)
    else:
        for lies_in, part in carried:
            for path, goal in location.segment_files(disk, lies_in, part, plan.directory):
                disk.rename(path, goal)
    names = disk.list_directory(plan.directory)
    paths = [os.path.join(plan.directory, name) for name in names]
    files = [path for path in paths if not disk.is_directory(path)]
    task.target.upload(files, made_in, task.below)
