"""A run of the ledger's compactor: a new generation beside the raw log, then the switch (LDG-1).

    run_ledger   plan ─► begin ─► engine writes `.part` files ─► flush the log ─► settle ─► switch
                                                                   └ failed: abandon

What a crash leaves after each step stands in `ledger/ledgers.py`; the raw log is only read.

Invariants
- R1  Before the switch everything is on the disk: the raw log up to the horizon (a record that made
      older ones go must not be lost with the cache), the generation's files, their names.
- R2  Whatever is raised, the previous generation is in use, or the new one, and no directory of a
      run that failed is left; how the run ended is written down, "running" before it begins.
- R3  `check` is asked between any two pieces of work; after the switch has begun nothing asks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from stratalog.base.errors import CorruptionError, StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import OnProgress
from stratalog.clean.history import ASKED, Entry
from stratalog.clean.job import CleanedGroup, CleanedPartition, CleaningJob, CleanSpec
from stratalog.clean.ledger_plan import LedgerInputs, ends_of, order_name, plan_ledger, usable
from stratalog.clean.round import EngineOf, Watch
from stratalog.ledger.following import check_follows
from stratalog.ledger.ledgers import Ledgers, Pin
from stratalog.ledger.manifest import (
    Generation,
    LedgerSegment,
    ledgers_path,
    manifest_path,
)
from stratalog.ledger.status import RunState, RunStatus
from stratalog.log.view import LogView
from stratalog.segment import digest
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind, FileState, TopicPartition, file_name, parse
from stratalog.segment.segment import segment_path

_LOG = logging.getLogger("stratalog.clean")


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """What came of a run. `made` None: there was nothing to do; `seconds` by phase."""

    first_dirty: int
    horizon: int
    dirty_ratio: float = 0.0
    engine: str = ""
    made: Generation | None = None
    cleaned: CleanedPartition | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRun:
    """A run that has begun: its directory is there. End it by `settle_run` or `fail_run`."""

    key: TopicPartition
    inputs: LedgerInputs
    number: int
    job: CleaningJob
    status: RunStatus


def read_inputs(
    pin: Pin, key: TopicPartition, path: str, view: LogView, spec: CleanSpec
) -> LedgerInputs:
    """A partition as a run sees it; `pin` holds the ledger in use, `view` was taken after it.

    Raises `CorruptionError` for a log that ends below the ledger's horizon."""
    check_follows(pin.generation, view, path)
    previous = usable(pin.generation, view, spec)
    inputs = LedgerInputs(str(key), path, view, spec)
    if previous is not None and pin.view is not None:
        expiry_ms = None if spec.by_segment else previous.next_expiry_ms
        inputs = replace(
            inputs,
            previous=previous,
            previous_aborted=tuple(e for segment in pin.view.segments for e in segment.aborted),
            is_expired=expiry_ms is not None and expiry_ms <= spec.now_ms,
        )
    return inputs


def check_digests(inputs: LedgerInputs, pin: Pin, check: Callable[[], None]) -> None:
    """Hold what is about to be read against its digests, as headers lie outside of checksums.

    Raises `CorruptionError`, and what `check` raises.
    """
    ledger = pin.view.segments if inputs.previous is not None and pin.view is not None else ()
    raw = inputs.view.segments.from_offset(inputs.first_dirty)
    for segment in (*ledger, *raw[:-1]):
        check()
        segment.check_digest()


def begin_run(
    ledgers: Ledgers, key: TopicPartition, inputs: LedgerInputs, trigger: str
) -> PlannedRun | None:
    """Plan a run and make its directory; None: there is nothing to do.

    Raises `CorruptionError`, `StorageIOError`.
    """
    if plan_ledger(inputs, inputs.path) is None:
        return None
    number, directory = ledgers.begin(key)
    status = RunStatus(
        RunState.RUNNING,
        number,
        trigger,
        started_ms=inputs.spec.now_ms,
        horizon=inputs.end_offset,
    )
    try:
        ledgers.note(key, status)
        job = plan_ledger(inputs, directory)
        assert job is not None
        return PlannedRun(key, inputs, number, job, status)
    except BaseException:
        ledgers.abandon(key)
        raise


def fail_run(
    ledgers: Ledgers, key: TopicPartition, status: RunStatus, error: BaseException, now_ms: int
) -> None:
    """The run has failed: its files go, and it is written down why (LDG-4). Raises nothing."""
    cause = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        cause = "interrupted"
    try:
        ledgers.abandon(key)
    except (StratalogError, FileNotFoundError) as second:
        _LOG.error("%s: files of a run that failed are left: %s", key, second)
    try:
        # A switch that nobody knows of: what counts now is told, not what was meant.
        if not status.number or ledgers.manifest(key).find(status.number) is None:
            ledgers.note(key, status.ended(now_ms, cause))
    except (StratalogError, FileNotFoundError) as second:
        _LOG.error("%s: how its run ended cannot be noted: %s", key, second)


def settle_run(
    filesystem: FileSystem,
    ledgers: Ledgers,
    run: PlannedRun,
    cleaned: CleanedPartition,
    *,
    retained: int,
    engine: str,
    duration_ms: int,
    check: Callable[[], None] = lambda: None,
) -> Generation:
    """Give the files their names, durably, and let the generation count. The raw log is on the disk
    up to the horizon. Raises `StorageIOError`, `CorruptionError`, and what `check` raises."""
    name_files(filesystem, run.job.directory, cleaned, check)
    check()
    made = made_by(filesystem, run, cleaned, engine, duration_ms)
    ledgers.switch(run.key, made, retained)
    _note_end(ledgers, run, made)
    return made


def name_files(
    filesystem: FileSystem,
    directory: str,
    cleaned: CleanedPartition,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Give what an engine wrote to `directory` its names, and digests, durably."""
    for group in cleaned.groups:
        check()
        for kind, name in group.parts:
            final = os.path.join(directory, file_name(group.sources[0], FileKind(kind)))
            filesystem.rename(os.path.join(directory, name), final)
        if group.parts:
            write_digest(filesystem, directory, group.sources[0])
    for name in filesystem.list_directory(directory):
        parsed = parse(name)
        if parsed is not None and parsed.state is FileState.PART:
            filesystem.unlink(os.path.join(directory, name))  # of an attempt that died elsewhere
    filesystem.fsync_directory(directory)


def _note_end(ledgers: Ledgers, run: PlannedRun, made: Generation) -> None:
    status = replace(run.status, engine=made.engine, horizon=made.horizon)
    try:
        ledgers.note(run.key, status.ended(made.created_ms))
    except (StratalogError, FileNotFoundError) as error:
        _LOG.error("%s: how its run ended cannot be noted: %s", run.key, error)


def write_digest(filesystem: FileSystem, directory: str, base_offset: int) -> None:
    """The digest of a segment that is there, whole. Raises `CorruptionError`, `StorageIOError`."""
    log = LogFile.open(filesystem, segment_path(directory, base_offset, FileKind.LOG))
    try:
        made = digest.build_digest(filesystem, directory, base_offset, log, log.size_bytes())
        digest.store_digest(filesystem, directory, base_offset, made)
    finally:
        log.close()


def made_by(
    filesystem: FileSystem,
    run: PlannedRun,
    cleaned: CleanedPartition,
    engine: str,
    duration_ms: int,
) -> Generation:
    """The generation whose files a run has written and named."""
    found = [_segment(filesystem, run, group) for group in cleaned.groups]
    # Of a group of which nothing is left no file is needed; but a ledger has at least one.
    found = [segment for segment in found if segment.size_bytes > 0] or found[:1]
    ends = ends_of([segment.base_offset for segment in found], cleaned.end_offset)
    segments = tuple(
        replace(segment, next_offset=end) for segment, end in zip(found, ends, strict=True)
    )
    inputs = run.inputs
    return Generation(
        run.number,
        inputs.start_offset,
        cleaned.end_offset,
        inputs.spec.now_ms,
        segments,
        records=cleaned.volume.records_after,
        distinct_keys=_keys_in(cleaned, inputs.spec),
        size_bytes=sum(segment.size_bytes for segment in segments),
        engine=engine,
        next_expiry_ms=cleaned.next_expiry_ms,
        order=order_name(inputs.spec.order, inputs.spec.version_header),
        read_bytes=sum(source.size_bytes for source in run.job.segments),
        duration_ms=duration_ms,
        lost_from=0 if inputs.previous is None else inputs.previous.lost_from,
        lost_below=0 if inputs.previous is None else inputs.previous.lost_below,
    )


def _keys_in(cleaned: CleanedPartition, spec: CleanSpec) -> int | None:
    """How many keys a generation holds: one record a key is left of all that was read. Not known
    where records without a key stay."""
    volume = cleaned.volume
    return None if spec.retain_keyless else volume.records_after - volume.markers_after


def _segment(filesystem: FileSystem, run: PlannedRun, group: CleanedGroup) -> LedgerSegment:
    """A group's outcome; where it ends is not its own business."""
    base = group.sources[0]
    if not group.parts:
        assert run.inputs.previous is not None
        [kept] = [part for part in run.inputs.previous.segments if part.base_offset == base]
        return kept
    sizes = {}
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        sizes[kind] = filesystem.stat(segment_path(run.job.directory, base, kind)).size_bytes
    return LedgerSegment(
        run.number,
        base,
        base,
        sizes[FileKind.LOG],
        sizes[FileKind.OFFSET_INDEX],
        sizes[FileKind.TIME_INDEX],
        group.modified_ms,
    )


@dataclass(frozen=True, slots=True, eq=False)
class LedgerRun:
    """What the cleaner tells a run. `view_of` takes the log's view; `flush` makes the raw log
    durable up to an offset; `check` raises to end the run (R3); `now_ms` asks the clock."""

    key: TopicPartition
    path: str
    view_of: Callable[[], LogView]
    spec: CleanSpec
    retained: int
    trigger: str
    flush: Callable[[int], None]
    check: Callable[[], None]
    now_ms: Callable[[], int]


def run_ledger(
    told: LedgerRun,
    ledgers: Ledgers,
    engine_of: EngineOf,
    filesystem: FileSystem,
    on_progress: OnProgress,
) -> LedgerOutcome:
    """Make the next generation of a partition's ledger and let it count.

    Where the ledger in use is damaged and the raw log still has all of it, it is made from scratch.
    Raises `CorruptionError`, `StorageIOError`, `LogOfflineError`, and what `check` raises.
    """
    try:
        return _run(told, ledgers, engine_of, filesystem, on_progress, from_scratch=False)
    except CorruptionError as error:
        if not _has_all_of_it(told, ledgers, error):
            raise
        _LOG.warning("%s: the ledger is made anew, as it is damaged: %s", told.key, error)
    return _run(told, ledgers, engine_of, filesystem, on_progress, from_scratch=True)


def _has_all_of_it(told: LedgerRun, ledgers: Ledgers, error: CorruptionError) -> bool:
    """Whether it is the ledger that is damaged, and the raw log begins where it does."""
    if error.file is None or not error.file.startswith(ledgers_path(told.path) + os.sep):
        return False
    if error.file == manifest_path(told.path):
        return False  # nobody knows what it has held
    current = ledgers.manifest(told.key).current
    return current is not None and told.view_of().log_start_offset <= current.start_offset


def _run(
    told: LedgerRun,
    ledgers: Ledgers,
    engine_of: EngineOf,
    filesystem: FileSystem,
    on_progress: OnProgress,
    *,
    from_scratch: bool,
) -> LedgerOutcome:
    began = time.perf_counter()
    watch = Watch(told.check, on_progress)
    status = RunStatus(RunState.RUNNING, 0, told.trigger, started_ms=told.spec.now_ms)
    try:
        with Pin(told.key) if from_scratch else ledgers.pin(told.key) as pin:
            inputs = read_inputs(pin, told.key, told.path, told.view_of(), told.spec)
            run = begin_run(ledgers, told.key, inputs, told.trigger)
            if run is None:
                if told.trigger == ASKED:
                    # Who asks is not told that all is well over damage that is cheap to see: files
                    # and headers. The bytes of records are `log verify`'s.
                    check_digests(inputs, pin, told.check)
                return LedgerOutcome(inputs.first_dirty, inputs.first_dirty)
            status = run.status
            check_digests(inputs, pin, told.check)
            name, engine = engine_of(run.job, filesystem)
            [cleaned] = engine.clean([run.job], writes=True, on_progress=watch)
            watch.stop()
            told.flush(run.job.first_uncleanable)
            made = settle_run(
                filesystem,
                ledgers,
                run,
                cleaned,
                retained=told.retained,
                engine=name,
                duration_ms=int((time.perf_counter() - began) * 1000),
                check=told.check,
            )
    except BaseException as error:
        fail_run(ledgers, told.key, status, error, told.now_ms())
        raise
    ratio = dirty_ratio_of(run)
    return LedgerOutcome(
        inputs.first_dirty, made.horizon, ratio, name, made, cleaned, watch.seconds
    )


def dirty_ratio_of(run: PlannedRun) -> float:
    """The share of what is read that is new."""
    total = sum(source.size_bytes for source in run.job.segments)
    new = sum(source.size_bytes for source in run.job.segments if not source.may_stay)
    return new / total if total else 0.0


def ledger_entry(entry: Entry, outcome: LedgerOutcome) -> Entry:
    """The history's entry of a run that came to its end."""
    made, cleaned = outcome.made, outcome.cleaned
    entry = replace(
        entry,
        mode="ledger",
        first_dirty=outcome.first_dirty,
        end_offset=outcome.horizon,
        dirty_ratio=outcome.dirty_ratio,
    )
    if made is None or cleaned is None:
        return replace(entry, result="nothing")
    volume = cleaned.volume
    return replace(
        entry,
        engine=outcome.engine,
        generation=made.number,
        segments_before=sum(len(group.sources) for group in cleaned.groups),
        segments_after=len(made.segments),
        bytes_before=volume.bytes_before,
        bytes_after=volume.bytes_after,
        records_before=volume.records_before,
        records_after=volume.records_after,
        keys=cleaned.keys,
        index_ms=int(outcome.seconds.get("index", 0.0) * 1000),
        rewrite_ms=int(outcome.seconds.get("rewrite", 0.0) * 1000),
        drops=volume.drops,
    )
