"""`log repair`: what is wrong with partitions, and putting it right (RCV-5, RCV-7).

    checkpoints of the directory ─► leftovers ─► scan of everything ─► damage ─► what is lost
    ─► derived ─► note of the quarantine ─► marker of a clean stop

Showing is doing on a `Preview`: nothing is changed, and what is shown is what happens.
What a crash explains is put right without a question. Damage that no crash explains is settled only
by whoever says how: `cut` or `skip` (`damage`). Of what is gone as a whole (`lost`) nothing comes
back: both accept that.

The marker is written by a `LogStore`, which opens and closes everything once, and only after all
logs of a directory are in order.

Invariants
- I1  A partition with damage and without a choice is left as it is, and others go on.
- I2  Without an order to apply no byte changes.
- I3  A second run finds nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratalog.admin import mend
from stratalog.admin.damage import Damage, Scanned, damage_of, end_of, is_torn_end, scan_partition
from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.lost import Known, Lost, is_unfinished, look, lost_of, without_digests
from stratalog.admin.mend import Mender, Step
from stratalog.admin.oddities import Preview, put_aside, read_offsets
from stratalog.admin.repair_checkpoints import (
    MEANINGS,
    damage_of_checkpoint,
    is_ours,
    put_checkpoints_aside,
)
from stratalog.admin.repair_report import (
    CUT,
    SKIP,
    WAITS,
    DirectoryRepair,
    PartitionRepair,
    RepairOptions,
    RepairReport,
)
from stratalog.admin.store import open_store, problem_of
from stratalog.admin.verify import Problem, verify_partition
from stratalog.base.clock import Clock
from stratalog.base.errors import CorruptionError, StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.note import read_note, write_note
from stratalog.ledger.manifest import Generation, ledgers_path, read_manifest
from stratalog.ledger.mending import advice
from stratalog.log.leader_epochs import read_leader_epochs
from stratalog.log.leftovers import sort_out
from stratalog.log.locking import locked
from stratalog.log.quarantine import read_quarantine, remove_quarantine
from stratalog.log.settings import LogSettings
from stratalog.segment.names import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    MAX_OFFSET,
    RECOVERY_POINT_CHECKPOINT,
    STATE_DIRECTORY,
    FileKind,
    parse,
)
from stratalog.segment.segment import segment_path

CLOSED = "closed"
_ACCEPTS = "--damage cut and --damage skip both accept the loss"

__all__ = ["CUT", "SKIP", "PartitionRepair", "RepairOptions", "RepairReport", "repair"]


@dataclass(slots=True)
class _Meter:
    """Progress over all `.log` files; whoever is told may raise, to end the work."""

    total_bytes: int
    on_progress: OnProgress
    done_bytes: int = 0

    def add(self, count: int) -> None:
        self.done_bytes += count
        self.on_progress(Progress("scan", self.done_bytes, max(self.total_bytes, self.done_bytes)))


def repair(
    targets: Sequence[str],
    options: RepairOptions,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> RepairReport:
    """Show, or put right, what is wrong with the partitions in `targets`.

    Raises `UsageError` (among them `LogLockedError`). An error of a disk is told with its
    partition.
    """
    places = find_partitions(targets, filesystem)
    directories: list[DirectoryRepair] = []
    partitions: list[PartitionRepair] = []
    log_dirs = list(dict.fromkeys(place.log_dir for place in places))
    with locked(log_dirs, filesystem, exclusive=options.applies):
        disk = filesystem if options.applies else Preview(filesystem)
        meter = _Meter(sum(_log_bytes(disk, place) for place in places), on_progress)
        for log_dir in log_dirs:
            mine = [place for place in places if place.log_dir == log_dir]
            steps = put_checkpoints_aside(
                disk, log_dir, (*MEANINGS.keys() - {RECOVERY_POINT_CHECKPOINT},)
            )
            was_clean = disk.exists(os.path.join(log_dir, CLEAN_SHUTDOWN_FILE))
            done = [
                _guarded(
                    Mender(place, disk, options.interval_bytes, clock.now_ms()), options, meter
                )
                for place in mine
            ]
            steps += _settle_points(disk, log_dir, done)
            if not was_clean:
                steps.append(_marking(disk, log_dir, done))
            directories.append(DirectoryRepair(log_dir, was_clean, tuple(steps)))
            partitions += done
    if options.applies:
        directories = [_marked(item, options, filesystem, clock) for item in directories]
    return RepairReport(options.applies, tuple(directories), tuple(partitions))


def _log_bytes(filesystem: FileSystem, place: PartitionPlace) -> int:
    bases = sort_out(filesystem.list_directory(place.path)).bases
    paths = (segment_path(place.path, base, FileKind.LOG) for base in bases)
    return sum(filesystem.stat(path).size_bytes for path in paths)


# -- the directory's files -----------------------------------------------------------------------


def _settle_points(disk: FileSystem, log_dir: str, done: Sequence[PartitionRepair]) -> list[Step]:
    """The recovery points go last: without them a log that has not been looked at would be cut at
    its first damage when it is opened, while a damaged file keeps that from happening."""
    path = os.path.join(log_dir, RECOVERY_POINT_CHECKPOINT)
    reason = damage_of_checkpoint(disk, log_dir, RECOVERY_POINT_CHECKPOINT)
    if reason is None or _is_settled(disk, log_dir, done):
        return put_checkpoints_aside(disk, log_dir, [RECOVERY_POINT_CHECKPOINT])
    text = f"{path} is unreadable ({reason}); it stays until all logs here are settled"
    return [Step("checkpoint", text)]


def _is_settled(disk: FileSystem, log_dir: str, done: Sequence[PartitionRepair]) -> bool:
    """Whether all partitions of a directory were looked at and are in order."""
    there = {place.path for place in find_partitions([log_dir], disk)}
    return there <= {item.directory for item in done if item.undecided is None and not item.error}


def _marking(disk: FileSystem, log_dir: str, done: Sequence[PartitionRepair]) -> Step:
    """What becomes of a directory that was not closed in order."""
    if not is_ours(disk, log_dir):
        return Step(WAITS, "Kafka wrote it: whoever opens it next scans what is not flushed")
    if not (_is_settled(disk, log_dir, done) and all(item.is_ok for item in done)):
        return Step(WAITS, "it counts as not closed in order until all its logs are settled")
    text = "all logs are opened and closed once: from then on it counts as closed in order"
    return Step(CLOSED, text)


def _marked(
    item: DirectoryRepair, options: RepairOptions, filesystem: FileSystem, clock: Clock
) -> DirectoryRepair:
    """Open and close a directory that is to count as closed in order; only a store that found all
    logs in order writes the marker."""
    if not any(step.what == CLOSED for step in item.steps):
        return item
    settings = LogSettings(index_interval_bytes=options.interval_bytes)
    try:
        with open_store([item.directory], lambda _: settings, filesystem, clock) as store:
            found = [(key, problem_of(store, key)) for key in store.partitions()]
    except StratalogError as error:
        reason = str(error)
    else:
        if filesystem.exists(os.path.join(item.directory, CLEAN_SHUTDOWN_FILE)):
            return item
        reason = "; ".join(f"{key}: {problem}" for key, problem in found if problem is not None)
    steps = [step for step in item.steps if step.what != CLOSED]
    steps.append(Step(WAITS, f"it still counts as not closed in order: {reason}"))
    return replace(item, steps=tuple(steps))


def _points_of(work: Mender) -> int | None:
    path = os.path.join(work.place.log_dir, RECOVERY_POINT_CHECKPOINT)
    try:
        return read_offsets(work.filesystem, path).get(work.place.topic_partition)
    except CorruptionError:
        return MAX_OFFSET  # any damage may lie below


# -- one partition -------------------------------------------------------------------------------


def _guarded(work: Mender, options: RepairOptions, meter: _Meter) -> PartitionRepair:
    try:
        return _repair(work, options, meter)
    except (StratalogError, FileNotFoundError) as error:
        return PartitionRepair(
            work.place.name, work.directory, steps=tuple(work.steps), error=str(error)
        )


def _repair(work: Mender, options: RepairOptions, meter: _Meter) -> PartitionRepair:
    disk, place = work.filesystem, work.place
    mend.clear_oddities(work)
    has_state = disk.exists(os.path.join(place.path, STATE_DIRECTORY))
    note = read_quarantine(disk, place.path) if has_state else None
    quarantine = None if note is None else str(note)
    ledger, ledger_error = _ledger_of(disk, place.path)

    def outcome(scanned: Scanned | None, **more: Any) -> PartitionRepair:
        segments = [] if scanned is None else scanned.segments
        size_bytes = 0 if scanned is None else scanned.size_bytes
        return PartitionRepair(
            place.name,
            place.path,
            len(segments),
            size_bytes,
            quarantine,
            tuple(work.steps),
            ledger=ledger,
            **more,
        )

    # An unfinished swap may have files of old segments without their logs.
    known = None if is_unfinished(disk, place.path) else look(place, disk)
    if options.choice is None and known is not None and (known.indexes or known.digests):
        # What shows that a log is missing is a left-over file, too: nothing goes before somebody
        # has accepted that.
        scanned = scan_partition(disk, place.path, trusted_below=0, on_scanned=lambda _: None)
        lost = _lost(work, known, scanned)
        if any(one.what == "segment" for one in lost):
            damage = damage_of(scanned) if scanned.damaged else None
            return outcome(scanned, damage=damage, undecided=_wants(lost), lost=_texts(lost))
    try:
        mend.resolve_leftovers(work)
    except CorruptionError as error:
        if options.choice is None:
            return outcome(None, undecided=f"what an unfinished swap left is damaged: {error}")
        mend.force_leftovers(work)
        mend.resolve_leftovers(work)
    _settle_epochs(work)
    point = _points_of(work)
    was_clean = disk.exists(os.path.join(place.log_dir, CLEAN_SHUTDOWN_FILE))
    trusted = MAX_OFFSET if was_clean or note is not None else point or 0
    scanned = scan_partition(disk, place.path, trusted_below=trusted, on_scanned=meter.add)
    if not scanned.segments:
        return outcome(scanned, error=f"{place.path}: there is no log")
    changed = [segment.base_offset for segment in scanned.damaged]
    lost = _lost(work, known or look(place, disk), scanned)
    if ledger_error is not None and (scanned.damaged or lost):
        # How far it reaches nobody knows, and the log must not go on below that.
        told = f"{ledger_error}; {advice(place.path, None, None)}"
        return outcome(scanned, undecided=told, lost=_texts(lost))
    damage, undecided = _settle_damage(
        work, scanned, options.choice, is_crash=not was_clean and note is None, point=point
    )
    if undecided is not None and lost:
        undecided = f"{'; '.join(_texts(lost))}; {undecided}"
    if undecided is None:
        undecided = _settle_start(work, scanned, options.choice)
    if undecided is None and lost:
        if options.choice is None:
            undecided = _wants(lost)
        else:
            # Settling damage has brought the checkpoints down already.
            open_ones = [one for one in lost if one.what != "end" or damage is None]
            mend.accept(work, open_ones, scanned)
            mend.remove_stale_digests(work, without_digests(lost))
    if undecided is not None:
        return outcome(scanned, damage=damage, undecided=undecided, lost=_texts(lost))
    starts_over = _start_of(work) > end_of(disk, place.path)
    left = _settle_derived(work, changed, meter.add, starts_over=starts_over)
    mend.follow_ledger(work, ledger)
    if note is not None:
        remove_quarantine(disk, place.path)
        work.note("quarantine", f"the quarantine is lifted ({quarantine})")
    cleaning = read_note(disk, place.path)
    if cleaning.failure is not None:
        write_note(disk, place.path, replace(cleaning, failure=None))
        work.note("quarantine", "it is cleaned again at once, where that had failed")
    return outcome(scanned, damage=damage, left=left, lost=_texts(lost))


def _ledger_of(
    disk: FileSystem, directory: str
) -> tuple[Generation | None, CorruptionError | None]:
    """The ledger in use, or why nobody knows it."""
    if not disk.is_directory(ledgers_path(directory)):
        return None, None  # or something else is in its place, which is told apart
    try:
        return read_manifest(disk, directory).current, None
    except CorruptionError as error:
        return None, error


def _lost(work: Mender, known: Known, scanned: Scanned) -> tuple[Lost, ...]:
    """What is gone, but for a start past the end, which has a choice of its own."""
    ends = [
        (segment.base_offset, None if segment.mending else segment.next_offset)
        for segment in scanned.segments
    ]
    found = lost_of(known, work.directory, ends, known.start)
    return tuple(one for one in found if one.what != "past")


def _texts(lost: Sequence[Lost]) -> tuple[str, ...]:
    return tuple(one.text for one in lost)


def _wants(lost: Sequence[Lost]) -> str:
    return f"{'; '.join(_texts(lost))}: {_ACCEPTS}"


def _settle_epochs(work: Mender) -> None:
    path = os.path.join(work.directory, LEADER_EPOCH_CHECKPOINT)
    try:
        read_leader_epochs(work.filesystem, path)
    except CorruptionError as error:
        name = put_aside(work.filesystem, path)
        work.note(
            "checkpoint",
            f"{LEADER_EPOCH_CHECKPOINT} is unreadable ({error.reason}) and becomes {name}: leader "
            "epochs are noted from now on",
        )


def _settle_damage(
    work: Mender, scanned: Scanned, choice: str | None, *, is_crash: bool, point: int | None
) -> tuple[Damage | None, str | None]:
    """The damage that no crash explains, and why it is left as it is, if it is."""
    if not scanned.damaged:
        return None, None
    damage = damage_of(scanned)
    if is_crash and is_torn_end(scanned, point):
        mend.cut(work, scanned, damage, is_torn=True)
        return None, None
    if choice == CUT:
        mend.cut(work, scanned, damage)
    elif choice == SKIP:
        mend.skip(work, scanned, damage)
    else:
        return damage, "damage that no crash explains: --damage cut or --damage skip settles it"
    return damage, None


def _settle_start(work: Mender, scanned: Scanned, choice: str | None) -> str | None:
    """A log that starts behind its end: why it is left as it is, if it is."""
    start = _start_of(work)
    if start <= scanned.next_offset or scanned.damaged:
        return None
    if choice is None:
        return (
            f"the log starts at {start} and ends at {scanned.next_offset}: --damage cut takes the "
            "start for right (nothing is left), --damage skip the log"
        )
    if choice == SKIP:
        mend.forget_log_start(work)
    else:
        work.note("start", f"an empty log begins at offset {start}")
    return None


def _start_of(work: Mender) -> int:
    path = os.path.join(work.place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    return read_offsets(work.filesystem, path).get(work.place.topic_partition, 0)


def _settle_derived(
    work: Mender,
    changed: Sequence[int],
    on_scanned: Callable[[int], None],
    *,
    starts_over: bool,
) -> tuple[Problem, ...]:
    """Make anew what does not fit the log; what is wrong all the same afterwards."""
    check = verify_partition(work.place, work.filesystem, lambda _: None)
    # What is wrong with files that were just written is not worth a word.
    if not changed and not check.problems and not starts_over:
        return ()
    mend.make_anew(work, _start_of(work), on_scanned)
    if starts_over:
        mend.make_anew(work, _start_of(work), on_scanned)  # the indexes of the empty log
    stale = {
        parsed.base_offset
        for problem in check.problems
        if (parsed := parse(os.path.basename(problem.file))) is not None
    }
    mend.remove_stale_digests(work, sorted({*stale, *changed}))
    return verify_partition(work.place, work.filesystem, lambda _: None).problems
