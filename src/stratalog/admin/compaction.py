"""`compact`: clean partitions in place, into a fresh directory, or not at all (a dry run).

    find ─► lock ─► (copy) ─► tidy ─► read ─► plan ─► engine, all jobs at once ─► place, one by one
                                                   ─► note, history; in a dry run: the top keys

Invariants
- I1  A dry run changes nothing on disk; `out` changes nothing but the fresh directory, which is
      removed again if anything fails.
- I2  In place, nothing is changed before the engine has gone through every batch of every job: a
      damaged batch leaves all logs as they were (but for strays of earlier runs and `.lock`).
- I3  After any failure or interrupt each log is as it was or wholly cleaned, without `.part` files.
- I4  The dirty ratio is ignored: whoever asks wants it now. The lag and open transactions are not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stratalog.admin import copying, placing
from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.floors import clean_spec, log_settings
from stratalog.admin.report import (
    CompactionReport,
    Counts,
    Mode,
    PartitionReport,
    TopKey,
    segment_reports,
)
from stratalog.admin.state import ReadPartition, read_partition, why_nothing
from stratalog.base.clock import Clock, FixedClock
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.clean.expiry import next_expiry_of
from stratalog.clean.history import Entry, append_history
from stratalog.clean.job import CleanedPartition, CleaningJob, CleanSpec
from stratalog.clean.note import UNKNOWN, read_note, write_note
from stratalog.clean.plan import plan_clean, range_of
from stratalog.clean.policy import CleanableRange
from stratalog.config.settings import Settings
from stratalog.log.locking import locked
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """How to compact. `out`: the fresh directory, with `Mode.OUT` only.

    `keep_active`: leave the active segment alone instead of rolling it first. `top`: how many of
    the keys that lose most a dry run looks for. `engine`: the engine's name, for the history.
    `settings_of`: those of each topic, where `settings` are not the same for all.
    """

    mode: Mode
    settings: Settings
    out: str | None = None
    keep_active: bool = False
    top: int = 0
    engine: str = "local"
    settings_of: Callable[[str], Settings] | None = None

    def of(self, place: PartitionPlace) -> Settings:
        """A partition's settings."""
        topic = place.topic_partition.topic
        return self.settings if self.settings_of is None else self.settings_of(topic)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A partition and what is to be done with it; no job: nothing."""

    settings: Settings
    partition: ReadPartition
    cleanable: CleanableRange
    job: CleaningJob | None


@dataclass(frozen=True, slots=True)
class _Done:
    """What came of it; no outcome: nothing was to be done."""

    planned: _Planned
    cleaned: CleanedPartition | None
    top_keys: tuple[TopKey, ...] = ()


def compact(
    targets: Sequence[str],
    options: CompactionOptions,
    start_engine: Callable[[], Engine],
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> CompactionReport:
    """Compact the partitions in `targets`: partition directories or log directories.

    `start_engine` is called only if there is something to clean. Raises `UsageError` (among them
    `LogLockedError`), `CorruptionError` naming file, position and reason, `StorageIOError`.
    """
    if options.settings_of is None and not options.settings.is_compacted:
        raise UsageError("cleanup.policy is without compact: there is nothing to compact")
    if (options.mode is Mode.OUT) != (options.out is not None):
        raise UsageError("a directory to write to goes with mode out, and with that only")
    places = find_partitions(targets, filesystem)
    if options.mode is Mode.IN_PLACE:
        _refuse_paused(places, filesystem)
    with locked(
        (place.log_dir for place in places), filesystem, exclusive=options.mode is Mode.IN_PLACE
    ):
        if options.out is None:
            return _compact(places, options, start_engine, filesystem, clock, on_progress)
        target = os.path.abspath(options.out)
        with _working_copy(places, target, filesystem, on_progress) as copies:
            return _compact(copies, options, start_engine, filesystem, clock, on_progress)


def _refuse_paused(places: Sequence[PartitionPlace], filesystem: FileSystem) -> None:
    for place in places:
        if read_note(filesystem, place.path).paused:
            raise UsageError(
                f"{place.path}: cleaning is paused; `stratalog compaction resume` ends that"
            )


@contextmanager
def _working_copy(
    places: Sequence[PartitionPlace], target: str, filesystem: FileSystem, on_progress: OnProgress
) -> Iterator[list[PartitionPlace]]:
    """A copy of `places` in `target`, durable at the end, gone if anything is raised (I1)."""
    copying.check_fresh(target, places, filesystem)
    was_there = filesystem.exists(target)
    total_bytes = copying.copied_bytes(places, filesystem)
    done_bytes = 0

    def on_copied(size_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += size_bytes
        on_progress(Progress("copy", done_bytes, total_bytes))

    try:
        copies = copying.copy_partitions(places, target, filesystem, on_copied)
        with locked([target], filesystem, exclusive=True):
            yield copies
        copying.fsync_copy(copies, target, filesystem)
    except CorruptionError as error:
        copying.remove_copy(target, was_there=was_there)
        raise _named_by_source(error, target, places) from error
    except UsageError as error:
        copying.remove_copy(target, was_there=was_there)
        message = str(error)
        for place in places:
            message = message.replace(os.path.join(target, place.name), place.path)
        raise type(error)(message) from error
    except BaseException:
        copying.remove_copy(target, was_there=was_there)
        raise


def _named_by_source(
    error: CorruptionError, target: str, places: Sequence[PartitionPlace]
) -> CorruptionError:
    """The error with the file that was copied: the copy is gone when somebody reads it."""
    for place in places:
        copy = os.path.join(target, place.name)
        if error.file is not None and error.file.startswith(copy + os.sep):
            file = place.path + error.file[len(copy) :]
            reason = error.reason.replace(copy, place.path)
            return CorruptionError(reason, file=file, position=error.position)
    return error


def _compact(
    places: Sequence[PartitionPlace],
    options: CompactionOptions,
    start_engine: Callable[[], Engine],
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> CompactionReport:
    writes = options.mode is not Mode.DRY_RUN
    clock = FixedClock(clock.now_ms())
    if writes:
        for place in places:
            placing.tidy(place.path, filesystem)
    planned = [_plan(place, options, filesystem, clock) for place in places]
    jobs = [plan.job for plan in planned if plan.job is not None]
    seconds = 0.0
    cleaned: list[CleanedPartition] = []
    try:
        if jobs:
            engine = start_engine()
            started = time.perf_counter()
            cleaned = engine.clean(jobs, writes=writes, on_progress=on_progress)
        outcomes = iter(cleaned)
        done = [_Done(plan, next(outcomes) if plan.job else None) for plan in planned]
        if writes:
            _place(done, filesystem, clock, on_progress)
        if jobs:
            seconds = time.perf_counter() - started
        if writes:
            _remember(done, options.engine, seconds, filesystem, clock)
        else:
            done = [_with_top_keys(item, options.top, filesystem, on_progress) for item in done]
    except BaseException:
        if writes:
            placing.tidy_all(places, filesystem)
        raise
    return CompactionReport(
        options.mode,
        options.out,
        clock.now_ms(),
        seconds,
        tuple(map(_report, done)),
    )


def _with_top_keys(done: _Done, top: int, filesystem: FileSystem, on_progress: OnProgress) -> _Done:
    if done.cleaned is None or top == 0:
        return done
    from stratalog.admin.top_keys import top_keys  # kernels

    return replace(done, top_keys=top_keys(done.cleaned, top, filesystem, on_progress))


def _plan(
    place: PartitionPlace, options: CompactionOptions, filesystem: FileSystem, clock: Clock
) -> _Planned:
    settings = options.of(place)
    spec = clean_spec(settings, clock.now_ms())
    try:
        partition = read_partition(
            place, log_settings(settings), filesystem, clock, keep_active=options.keep_active
        )
    except CorruptionError as error:
        raise _with_advice(error, place, filesystem) from error
    cleanable = range_of(
        partition.state,
        min_compaction_lag_ms=settings.integer("min.compaction.lag.ms"),
        now_ms=spec.now_ms,
    )
    if not settings.is_compacted:
        return _Planned(settings, partition, replace(cleanable, checkpoint_was_reset=False), None)
    is_expired = False
    if cleanable.cleanable_bytes == 0:
        is_expired = _is_expired(partition, cleanable, spec, filesystem)
    job = plan_clean(partition.state, cleanable, spec, is_expired=is_expired)
    return _Planned(settings, partition, cleanable, job)


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


def _place(
    done: Sequence[_Done], filesystem: FileSystem, clock: Clock, on_progress: OnProgress
) -> None:
    total_bytes = sum(item.cleaned.volume.bytes_before for item in done if item.cleaned)
    done_bytes = 0
    for item in done:
        partition, cleanable = item.planned.partition, item.planned.cleanable
        if item.cleaned is not None:
            told = log_settings(item.planned.settings)
            placing.place_round(partition, item.cleaned, told, filesystem, clock)
            done_bytes += item.cleaned.volume.bytes_before
            on_progress(Progress("swap", done_bytes, total_bytes))
        elif cleanable.checkpoint_was_reset:
            placing.move_checkpoint(partition.place, cleanable.first_dirty, filesystem)


def _remember(
    done: Sequence[_Done], engine: str, seconds: float, filesystem: FileSystem, clock: Clock
) -> None:
    """What the next round, and whoever looks, has to know: when something expires (CMP-9), what was
    done (CLN-9). A crash before it leaves a note of another checkpoint, which says nothing."""
    for item in done:
        if item.cleaned is None:
            continue
        path = item.planned.partition.place.path
        by_segment = item.cleaned.job.spec.by_segment
        expiry_ms = UNKNOWN if by_segment else item.cleaned.next_expiry_ms
        note = read_note(filesystem, path).after_round(item.cleaned.end_offset, expiry_ms)
        write_note(filesystem, path, note)
        append_history(filesystem, path, _entry(item, engine, seconds, clock.now_ms()))


def _entry(done: _Done, engine: str, seconds: float, now_ms: int) -> Entry:
    """`seconds` is the time of the whole run, of which nobody knows the partitions' shares."""
    cleaned = done.cleaned
    assert cleaned is not None
    volume = cleaned.volume
    return Entry(
        started_ms=now_ms,
        duration_ms=round(seconds * 1000),
        trigger="command",
        result="cleaned",
        engine=engine,
        first_dirty=done.planned.cleanable.first_dirty,
        end_offset=cleaned.end_offset,
        dirty_ratio=done.planned.cleanable.dirty_ratio,
        segments_before=sum(len(group.sources) for group in cleaned.groups),
        segments_after=len(cleaned.groups),
        bytes_before=volume.bytes_before,
        bytes_after=volume.bytes_after,
        records_before=volume.records_before,
        records_after=volume.records_after,
        keys=cleaned.keys,
        drops=volume.drops,
    )


def _report(done: _Done) -> PartitionReport:
    settings = done.planned.settings
    partition, cleanable, cleaned = done.planned.partition, done.planned.cleanable, done.cleaned
    state = partition.state
    counts, merged, rolled, end_offset = Counts(), 0, False, cleanable.first_dirty
    skipped = None
    if not settings.is_compacted:
        skipped = "its cleanup.policy does not contain compact"
    elif cleaned is None:
        lag_ms = settings.integer("min.compaction.lag.ms")
        skipped = why_nothing(partition, cleanable, min_compaction_lag_ms=lag_ms)
    else:
        volume = cleaned.volume
        sources = sum(len(group.sources) for group in cleaned.groups)
        merged = sources - len(cleaned.groups)
        rolled = placing.needs_roll(partition, cleaned)
        end_offset = cleaned.end_offset
        counts = Counts(
            sources,
            len(cleaned.groups),
            volume.records_before,
            volume.records_after,
            volume.bytes_before,
            volume.bytes_after,
            cleaned.keys,
            volume.drops,
            volume.dropped_bytes,
        )
    return PartitionReport(
        partition=partition.place.name,
        directory=partition.place.path,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty=cleanable.first_dirty,
        first_uncleanable=cleanable.first_uncleanable,
        end_offset=end_offset,
        dirty_ratio=cleanable.dirty_ratio,
        rolled=rolled,
        map_is_full=cleaned is not None and end_offset < cleanable.first_uncleanable,
        log_segments_before=partition.segment_count,
        log_segments_after=partition.segment_count + rolled - merged,
        log_bytes_before=partition.size_bytes,
        log_bytes_after=partition.size_bytes - counts.bytes_before + counts.bytes_after,
        counts=counts,
        skipped=skipped,
        next_expiry_ms=None if cleaned is None else cleaned.next_expiry_ms,
        segments=() if cleaned is None else segment_reports(cleaned),
        top_keys=done.top_keys,
    )
