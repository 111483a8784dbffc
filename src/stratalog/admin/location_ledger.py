"""A partition in ledger mode whose compacted copy is kept at another location (LDG-1).

    base_of ─► what a run builds upon: the copy at the location, the ledger beside the log, or none
      plan_copy ─► the same job as that of a ledger beside the log; only where files lie differs
        settle_copy ─► names, digests; what is carried over as it is

Invariants
- L1  What the copy at a location has held is in the next one, or the run is refused: a log that
      begins behind it, ends before it, or is another one by now is no successor.
- L2  The raw log is read from the copy's horizon on; without a copy, from its start.
- L3  A copy that is damaged is made anew where the log, or the ledger beside it, has all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from stratalog.admin.directories import PartitionPlace
from stratalog.admin.location_manifest import PartitionEntry
from stratalog.admin.location_tail import check_tail, tail_crc
from stratalog.admin.report import Counts, PartitionReport, Rewritten, segment_reports
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.job import CleanedPartition, CleaningJob, CleanSpec
from stratalog.clean.ledger_plan import LedgerInputs, order_name, plan_ledger
from stratalog.clean.ledger_round import (
    PlannedRun,
    check_digests,
    dirty_ratio_of,
    made_by,
    name_files,
    read_inputs,
    write_digest,
)
from stratalog.ledger.ledgers import Pin
from stratalog.ledger.manifest import (
    Generation,
    LedgerSegment,
    generation_path,
    held_alone,
    is_outdated,
    read_manifest,
)
from stratalog.ledger.mending import advising
from stratalog.ledger.status import RunState, RunStatus
from stratalog.ledger.view import open_generation
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.leftovers import sort_out
from stratalog.log.view import LogView
from stratalog.segment.names import LOG_START_OFFSET_CHECKPOINT, FileKind, FileState, parse


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before a log is read. `root`: the location; `before`: what it holds of the
    partition; `order`: of versions; `clean_end`: the cleaner checkpoint; `beside`: reads the ledger
    beside the log; `damage`: why what the location holds cannot be built upon."""

    path: str
    root: str
    log_start_offset: int
    topic_id: str
    order: str
    clean_end: int
    before: PartitionEntry | None
    beside: Callable[[], Generation | None]
    damage: CorruptionError | None = None


def log_start_of(filesystem: FileSystem, place: PartitionPlace) -> int:
    """Where a log begins that nobody has opened. Raises `StorageIOError`, `CorruptionError`."""
    path = os.path.join(place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    start = read_checkpoint(filesystem, path).get(place.topic_partition, 0)
    bases = sort_out(filesystem.list_directory(place.path)).bases
    return max(start, min(bases, default=0))


def check_mode(
    filesystem: FileSystem, place: PartitionPlace, root: str, before: PartitionEntry | None
) -> None:
    """Of a topic that is not in ledger mode: raise `UsageError` if a ledger, beside the log or at
    the location `root`, has what its raw log has lost, and what is made of that would lack it."""
    start = log_start_of(filesystem, place)
    beside = ledger_beside(filesystem, place.path)
    held = None if before is None else before.ledger
    for one, where in ((beside, "its ledger"), (held, f"its ledger at {root}")):
        if one is not None and one.start_offset < start:
            raise UsageError(
                f"{place.path}: {where} holds records from {one.start_offset} on, its raw log only "
                f"from {start} on; say --config compaction.mode=ledger to go on with the ledger"
            )


@dataclass(frozen=True, slots=True)
class Base:
    """What a run builds upon. `is_beside`: it is the ledger beside the log."""

    generation: Generation
    is_beside: bool = False


def ledger_beside(filesystem: FileSystem, path: str) -> Generation | None:
    """The ledger in use beside a log. Raises `CorruptionError`, which says what mends it."""
    with advising(path):
        return read_manifest(filesystem, path).current


def base_of(known: Known) -> Base | None:
    """What to build upon; None: the raw log, which has all of it.

    Raises `UsageError` if something would be lost (L1), `CorruptionError` if that is as what the
    location holds is damaged.
    """
    before, start = known.before, known.log_start_offset
    if before is None:
        beside = known.beside()
        return Base(beside, True) if beside and held_alone(beside, start) else None
    if before.topic_id and known.topic_id and before.topic_id != known.topic_id:
        raise UsageError(
            f"{known.path}: another topic of that name than the one whose copy is at {known.root}: "
            "give --out another place"
        )
    held = before.ledger
    if (
        held is not None
        and known.damage is None
        and start <= held.horizon
        and not is_outdated(held, known.order, start)
    ):
        return Base(held)
    if start <= before.start_offset:
        return None
    beside = known.beside()
    if beside and beside.start_offset <= before.start_offset and start <= beside.horizon:
        return Base(beside, True)
    raise _lost(known, before)


def _lost(known: Known, before: PartitionEntry) -> Exception:
    start = known.log_start_offset
    if known.damage is not None:
        reason = (
            f"{known.damage.reason}; the raw log, {known.path}, begins at offset {start} by now: "
            f"the copy of offsets {before.start_offset} to {start - 1} cannot be made anew; bring "
            "the file back, or give --out another place"
        )
        return CorruptionError(reason, file=known.damage.file, position=known.damage.position)
    if before.ledger is None:
        what = f"holds offsets from {before.start_offset} on, and not as a ledger"
    else:
        what = f"ends at offset {before.end_offset}"
    return UsageError(
        f"{known.path}: the raw log begins at offset {start}, and its copy at {known.root} {what}: "
        "what lies between would be lost; give --out another place"
    )


@dataclass(frozen=True, slots=True, eq=False)
class CopyPlan:
    """What is to be done with a partition. `run` None: no batch has to be looked at."""

    place: PartitionPlace
    inputs: LedgerInputs
    number: int
    directory: str
    topic_id: str
    base: Base | None
    run: PlannedRun | None

    @property
    def job(self) -> CleaningJob | None:
        return None if self.run is None else self.run.job

    @property
    def is_new(self) -> bool:
        """Whether the copy will be another one than what the location holds."""
        return self.run is not None or self.base is None or self.base.is_beside

    @property
    def size_bytes(self) -> int:
        """How much there is to read."""
        return 0 if self.run is None else sum(part.size_bytes for part in self.run.job.segments)


def plan_copy(
    place: PartitionPlace,
    view: LogView,
    known: Known,
    base: Base | None,
    spec: CleanSpec,
    number: int,
    directory: str,
    filesystem: FileSystem,
    *,
    base_directory: str,
    checks_digests: bool = True,
) -> CopyPlan:
    """Plan a copy that is written to `directory`, as generation `number`. `view`: of the log, from
    the base's horizon on at least; `base_directory`: where the base's files lie, unless beside it.

    Raises `UsageError` (L1), `CorruptionError`, `StorageIOError`.
    """
    _check_end(known, base, view)
    pin = Pin(place.topic_partition)
    lies_in = "" if base is None or base.is_beside else base_directory
    if base is not None:
        try:
            opened = open_generation(filesystem, place.path, base.generation, lies_in)
        except FileNotFoundError as error:
            file = error.filename or lies_in or place.path
            raise CorruptionError("the compacted copy lacks a file", file=file) from error
        pin = Pin(place.topic_partition, base.generation, opened)
    inputs = read_inputs(pin, place.topic_partition, place.path, view, spec)
    inputs = replace(inputs, previous_directory=lies_in)
    job = plan_ledger(inputs, directory)
    run = None
    if job is not None:
        if checks_digests:
            check_digests(inputs, pin, lambda: None)
        status = RunStatus(RunState.RUNNING, number)
        run = PlannedRun(place.topic_partition, inputs, number, job, status)
    return CopyPlan(place, inputs, number, directory, known.topic_id, base, run)


def idle_copy(
    place: PartitionPlace,
    view: LogView,
    known: Known,
    base: Base | None,
    spec: CleanSpec,
    number: int,
) -> CopyPlan | None:
    """The plan of a partition of which nothing is new, without a look into its copy; None: it has
    to be looked at. Raises `UsageError` (L1)."""
    _check_end(known, base, view)
    if base is None or base.is_beside:
        return None
    held = base.generation
    expiry_ms = None if spec.by_segment else held.next_expiry_ms
    inputs = LedgerInputs(place.name, place.path, view, spec, held)
    if inputs.end_offset > held.horizon or (expiry_ms is not None and expiry_ms <= spec.now_ms):
        return None
    return CopyPlan(place, inputs, number, "", known.topic_id, base, None)


def _check_end(known: Known, base: Base | None, view: LogView) -> None:
    log_end_offset = view.log_end_offset
    ends = [] if known.before is None else [known.before.end_offset]
    ends += [] if base is None else [base.generation.horizon]
    if max(ends, default=0) > log_end_offset:
        where = "the ledger beside it" if base and base.is_beside else f"its copy at {known.root}"
        raise UsageError(
            f"{known.path}: the raw log ends at offset {log_end_offset}, and {where} at "
            f"{max(ends)}: it was cut, or is another log; give --out another place"
        )
    check_tail(known.path, known.root, known.before, view, known.clean_end)


def is_blamed(error: CorruptionError, base_directory: str) -> bool:
    """Whether the damage is in what a location holds."""
    return error.file is not None and (
        error.file == base_directory or error.file.startswith(base_directory + os.sep)
    )


Carried = list[tuple[str, LedgerSegment]]
"""Segments that stay as they are, and the directory that each lies in."""


def settle_copy(
    plan: CopyPlan,
    cleaned: CleanedPartition | None,
    filesystem: FileSystem,
    engine: str,
    duration_ms: int,
) -> tuple[Generation, Carried]:
    """Give the files that were written their names, durably. Raises `StorageIOError`."""
    carried: list[LedgerSegment] = []
    if cleaned is not None:
        assert plan.run is not None
        name_files(filesystem, plan.directory, cleaned)
        made = made_by(filesystem, plan.run, cleaned, engine, duration_ms)
        written = {group.sources[0] for group in cleaned.groups if group.parts}
        carried = [part for part in made.segments if part.base_offset not in written]
    elif plan.base is not None:
        made = plan.base.generation
        carried = list(made.segments)
    else:
        made = _empty(plan)
    lies_in = plan.inputs.previous_directory
    own = tuple(replace(part, generation=plan.number) for part in made.segments)
    return replace(made, number=plan.number, segments=own), [
        (lies_in or generation_path(plan.inputs.path, part.generation), part) for part in carried
    ]


def _empty(plan: CopyPlan) -> Generation:
    """Of a log without a record that is decided: it has one segment, which `frame_files` makes."""
    inputs, spec = plan.inputs, plan.inputs.spec
    start = inputs.start_offset
    part = LedgerSegment(plan.number, start, start, 0, 0, 0, spec.now_ms)
    order = order_name(spec.order, spec.version_header)
    return Generation(plan.number, start, start, spec.now_ms, (part,), order=order)


def write_digests(carried: Carried, directory: str, filesystem: FileSystem) -> None:
    """For segments that were copied to `directory`."""
    for _, part in carried:
        write_digest(filesystem, directory, part.base_offset)


def entry_of(plan: CopyPlan, made: Generation) -> PartitionEntry:
    """What the manifest says of it."""
    return PartitionEntry(
        plan.place.name,
        made.start_offset,
        made.horizon,
        made.size_bytes,
        topic_id=plan.topic_id,
        ledger=made,
        tail_crc=tail_crc(plan.inputs.view, made.horizon),
    )


def report_of(
    plan: CopyPlan,
    path: str,
    cleaned: CleanedPartition | None,
    made: Generation,
    raw: tuple[int, int],
) -> PartitionReport:
    """What a run tells of a partition whose log is at `path`, of `raw` segments and bytes. Without
    anything new that is the copy that there is."""
    view, inputs = plan.inputs.view, plan.inputs
    skipped = None
    if cleaned is None:
        skipped = f"its ledger reaches offset {made.horizon}: nothing is new"
    return PartitionReport(
        partition=plan.place.name,
        directory=path,
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        first_dirty=inputs.first_dirty,
        first_uncleanable=max(inputs.end_offset, inputs.first_dirty),
        end_offset=made.horizon,
        dirty_ratio=0.0 if plan.run is None else dirty_ratio_of(plan.run),
        rolled=False,
        map_is_full=False,
        log_segments_before=raw[0],
        log_segments_after=raw[0],
        log_bytes_before=raw[1],
        log_bytes_after=raw[1],
        counts=Counts() if cleaned is None else Counts.of(cleaned),
        skipped=skipped,
        next_expiry_ms=made.next_expiry_ms,
        segments=() if cleaned is None else segment_reports(cleaned),
        rewritten=Rewritten() if cleaned is None else Rewritten.of(cleaned),
        ledger=made.as_json(),
    )


def raw_size(filesystem: FileSystem, path: str) -> tuple[int, int]:
    """Segments of a log, and their bytes, as its directory is listed. Raises `StorageIOError`."""
    found = [
        os.path.join(path, name)
        for name in filesystem.list_directory(path)
        if (parsed := parse(name)) is not None
        and parsed.kind is FileKind.LOG
        and parsed.state is FileState.FINAL
    ]
    return len(found), sum(filesystem.stat(one).size_bytes for one in found)
