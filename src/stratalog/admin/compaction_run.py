"""The rounds of a `compact`: partitions planned, cleaned in batches by an engine, put in place.

    tidy ─► read ─► plan ─► batches, biggest partitions first ─► engine ─► place ─► note, history
                              └─ a dry run ends at the engine; it may name the top keys

All or nothing, the default: no partition is put in place before all batches are through the engine.
With `partial_progress` a batch is put in place as soon as it is through, and what goes wrong with a
partition is told in its report while the others go on (SPK-8).

Invariants
- I1  A partition whose report has an `error` is as it was or wholly cleaned, without `.part` files.
- I2  Without `partial_progress` the first failure is raised, and nothing is in place before the
      engine has gone through every batch of every job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from stratalog.admin import placing
from stratalog.admin.compaction_ledger import LedgerRuns, drop_ledger
from stratalog.admin.compaction_plan import CompactionOptions, Planned, plan
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.floors import log_settings
from stratalog.admin.report import (
    CompactionReport,
    Counts,
    Mode,
    PartitionReport,
    Rewritten,
    TopKey,
    failed_report,
    segment_reports,
)
from stratalog.admin.state import why_nothing
from stratalog.base.clock import Clock, StoppedClock
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.clean.history import Entry, append_history
from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.clean.note import UNKNOWN, read_note, write_note
from stratalog.ledger.manifest import Generation

Outcome = CleanedPartition | Exception


@dataclass(frozen=True, slots=True)
class _Item:
    """What is known of a partition so far. `skipped`: why nobody looked into it."""

    place: PartitionPlace
    planned: Planned | None = None
    cleaned: CleanedPartition | None = None
    made: Generation | None = None
    top_keys: tuple[TopKey, ...] = ()
    skipped: str | None = None
    error: str | None = None

    @property
    def job(self) -> CleaningJob | None:
        return None if self.planned is None or self.error is not None else self.planned.job

    @property
    def work_bytes(self) -> int:
        return 0 if self.job is None else sum(part.size_bytes for part in self.job.segments)


@dataclass(slots=True)
class _Run:
    """One call of `run`. `items` are replaced as it goes; `done_bytes`: how far each phase is over
    all batches; `stopped_by`: what an observer of progress has raised to end the work."""

    options: CompactionOptions
    filesystem: FileSystem
    clock: Clock
    on_progress: OnProgress
    items: list[_Item]
    work_bytes: int = 0
    done_bytes: dict[str, int] = field(default_factory=dict)
    stopped_by: BaseException | None = None
    ledgers: LedgerRuns = field(init=False)

    def __post_init__(self) -> None:
        self.ledgers = LedgerRuns(self.filesystem, self.clock)

    @property
    def writes(self) -> bool:
        return self.options.mode is not Mode.DRY_RUN

    def tell(self, progress: Progress) -> None:
        try:
            self.on_progress(progress)
        except BaseException as error:
            self.stopped_by = error
            raise

    def telling(self) -> OnProgress:
        """What is told of a batch, as a part of the whole."""
        before = dict(self.done_bytes)

        def tell(progress: Progress) -> None:
            phase = progress.phase
            self.done_bytes[phase] = before.get(phase, 0) + progress.done_bytes
            total_bytes = max(progress.total_bytes, self.work_bytes)
            self.tell(Progress(phase, self.done_bytes[phase], total_bytes))

        return tell

    def try_at(self, number: int, step: Callable[[_Item], _Item]) -> None:
        """Replace an item by what `step` makes of it; a failure is told, or raised."""
        try:
            self.items[number] = step(self.items[number])
        except Exception as error:  # noqa: BLE001  whatever it was, the others go on
            self.fail(number, error)

    def fail(self, number: int, error: Exception) -> None:
        """Tell what is wrong with a partition, where that is wanted, and leave it tidy (I1)."""
        if not self.options.partial_progress or error is self.stopped_by:
            raise error
        item = self.items[number]
        self.ledgers.fail(item.place.topic_partition, error)
        if self.writes:
            placing.tidy_all([item.place], self.filesystem)
        self.items[number] = replace(item, cleaned=None, error=_one_line(error))


def run(
    places: Sequence[PartitionPlace],
    options: CompactionOptions,
    start_engine: Callable[[], Engine],
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> CompactionReport:
    """Compact `places`, which the caller has locked. Raises as `compaction.compact`."""
    now = StoppedClock(clock.now_ms())
    this = _Run(options, filesystem, now, on_progress, [_Item(place) for place in places])
    seconds = 0.0
    try:
        _prepare(this)
        batches = _batches(this)
        engine = start_engine() if batches else None
        started = time.perf_counter()
        if engine is not None:
            _clean(this, batches, engine)
        elif this.writes:
            _place(this, range(len(this.items)), started)
        if batches:
            seconds = time.perf_counter() - started
        if not this.writes and options.top:
            for number in range(len(this.items)):
                this.try_at(number, lambda item: _with_top_keys(item, this))
    except BaseException as error:
        this.ledgers.fail_all(error)
        if this.writes:
            placing.tidy_all(places, filesystem)
        raise
    reports = tuple(_report(item) for item in this.items)
    return CompactionReport(options.mode, options.out, now.now_ms(), seconds, reports)


def _prepare(this: _Run) -> None:
    """Tidy all partitions, then plan them."""
    options, filesystem = this.options, this.filesystem

    def tidied(item: _Item) -> _Item:
        placing.tidy(item.place.path, filesystem)
        if options.partial_progress and read_note(filesystem, item.place.path).paused:
            return replace(item, skipped="cleaning is paused")
        return item

    def planned(item: _Item) -> _Item:
        found = plan(item.place, options, filesystem, this.clock)
        if found.ledger is not None:
            this.ledgers.add(found.ledger)
        return replace(item, planned=found)

    for number in range(len(this.items) if this.writes else 0):
        this.try_at(number, tidied)
    for number, item in enumerate(this.items):
        if item.error is None and item.skipped is None:
            this.try_at(number, planned)
    this.work_bytes = sum(item.work_bytes for item in this.items)


def _batches(this: _Run) -> list[list[int]]:
    """The items that have work, by number: as many together as may be in work at once."""
    todo = [number for number, item in enumerate(this.items) if item.job is not None]
    at_once = this.options.max_concurrent or len(todo)
    if at_once < len(todo):
        todo.sort(key=lambda number: (-this.items[number].work_bytes, number))
    return [todo[start : start + at_once] for start in range(0, len(todo), at_once or 1)]


def _clean(this: _Run, batches: Sequence[Sequence[int]], engine: Engine) -> None:
    """Clean batch after batch, each put in place at once or, all or nothing, all at the end."""
    started = time.perf_counter()
    is_partial = this.options.partial_progress
    if is_partial and this.writes:
        idle = [number for number, item in enumerate(this.items) if item.job is None]
        _place(this, idle, started)
    for batch in batches:
        began = time.perf_counter()
        for number, outcome in zip(batch, _outcomes(this, batch, engine), strict=True):
            if isinstance(outcome, Exception):
                this.fail(number, outcome)
            else:
                this.items[number] = replace(this.items[number], cleaned=outcome)
        if is_partial and this.writes:
            _place(this, batch, began)
    if this.writes and not is_partial:
        _place(this, range(len(this.items)), started)


# ---------------------------------------------------------------- an engine and its failures


def _outcomes(this: _Run, batch: Sequence[int], engine: Engine) -> Sequence[Outcome]:
    """What the engine makes of a batch; its failures are answered if partial progress is wanted.

    Damage names a file: its partition is left out and the others are worked on again. Of another
    failure nobody knows whose it is: then one partition after the other, so that the others go on.
    """
    found: dict[int, Outcome] = {}
    left = list(batch)
    while left:
        jobs = [job for number in left if (job := this.items[number].job) is not None]
        done_before = dict(this.done_bytes)
        try:
            cleaned = engine.clean(jobs, writes=this.writes, on_progress=this.telling())
            found.update(zip(left, cleaned, strict=True))
            break
        except Exception as error:
            if not this.options.partial_progress or error is this.stopped_by:
                raise
            damaged = left[0] if len(left) == 1 else _damaged(this, left, error)
            if damaged is not None:
                found[damaged] = error
                left.remove(damaged)
        this.done_bytes = done_before
        if this.writes:
            placing.tidy_all([this.items[number].place for number in batch], this.filesystem)
        if damaged is None:
            found.update((number, _outcomes(this, [number], engine)[0]) for number in left)
            break
    return [found[number] for number in batch]


def _damaged(this: _Run, numbers: Sequence[int], error: Exception) -> int | None:
    """Whose file the damage is in."""
    file = error.file if isinstance(error, CorruptionError) else None
    for number in numbers:
        if file is not None and file.startswith(this.items[number].place.path + os.sep):
            return number
    return None


def _one_line(error: Exception) -> str:
    """An error for a report. Ours are one line; of others the kind, and how they begin."""
    text = " ".join(str(error).split())
    is_ours = type(error).__module__.startswith("stratalog.")
    return text if is_ours else f"{type(error).__name__}: {text}"[:500]


# ---------------------------------------------------------------- afterwards


def _with_top_keys(item: _Item, this: _Run) -> _Item:
    if item.cleaned is None:
        return item
    from stratalog.admin.top_keys import top_keys  # kernels

    found = top_keys(item.cleaned, this.options.top, this.filesystem, this.tell)
    return replace(item, top_keys=found)


def _place(this: _Run, numbers: Iterable[int], started: float) -> None:
    """Put what was cleaned in place; then write down what was done. `started`: the time that the
    histories count from, as nobody knows the partitions' shares of it."""
    numbers = [number for number in numbers if this.items[number].error is None]
    for number in numbers:
        this.try_at(number, lambda item: _placed(item, this, started))
    seconds = time.perf_counter() - started
    for number in numbers:
        if this.items[number].cleaned is not None:
            this.try_at(number, lambda item: _remembered(item, seconds, this))


def _placed(item: _Item, this: _Run, started: float) -> _Item:
    planned = item.planned
    if planned is None:
        return item
    if planned.ledger is not None:
        if item.cleaned is None:
            return item
        seconds = time.perf_counter() - started
        engine = this.options.engine
        made = this.ledgers.settle(planned.ledger, item.cleaned, engine, seconds)
        return replace(item, made=made)
    if planned.settings.is_compacted:
        drop_ledger(item.place, this.filesystem)
    if item.cleaned is not None:
        told = log_settings(planned.settings)
        placing.place_round(planned.partition, item.cleaned, told, this.filesystem, this.clock)
        done_bytes = this.done_bytes.get("swap", 0) + item.cleaned.volume.bytes_before
        this.done_bytes["swap"] = done_bytes
        this.tell(Progress("swap", done_bytes, max(done_bytes, this.work_bytes)))
    elif planned.cleanable.checkpoint_was_reset:
        first_dirty = planned.cleanable.first_dirty
        placing.move_checkpoint(item.place, first_dirty, this.filesystem)
    return item


def _remembered(item: _Item, seconds: float, this: _Run) -> _Item:
    """What the next round, and whoever looks, has to know: when something expires (CMP-9), what was
    done (CLN-9). A crash before it leaves a note of another checkpoint, which says nothing."""
    cleaned = item.cleaned
    assert cleaned is not None
    path = item.place.path
    if item.made is not None:
        note = replace(read_note(this.filesystem, path), failure=None)
        write_note(this.filesystem, path, note)
        append_history(this.filesystem, path, _entry(item, cleaned, seconds, this))
        return item
    expiry_ms = UNKNOWN if cleaned.job.spec.by_segment else cleaned.next_expiry_ms
    note = read_note(this.filesystem, path).after_round(cleaned.end_offset, expiry_ms)
    write_note(this.filesystem, path, note)
    append_history(this.filesystem, path, _entry(item, cleaned, seconds, this))
    return item


def _entry(item: _Item, cleaned: CleanedPartition, seconds: float, this: _Run) -> Entry:
    assert item.planned is not None
    volume = cleaned.volume
    return Entry(
        started_ms=this.clock.now_ms(),
        duration_ms=round(seconds * 1000),
        trigger="command",
        result="cleaned",
        engine=this.options.engine,
        first_dirty=item.planned.cleanable.first_dirty,
        end_offset=cleaned.end_offset,
        dirty_ratio=item.planned.cleanable.dirty_ratio,
        segments_before=sum(len(group.sources) for group in cleaned.groups),
        segments_after=len(cleaned.groups),
        bytes_before=volume.bytes_before,
        bytes_after=volume.bytes_after,
        records_before=volume.records_before,
        records_after=volume.records_after,
        keys=cleaned.keys,
        drops=volume.drops,
        mode="inplace" if item.made is None else "ledger",
        generation=0 if item.made is None else item.made.number,
    )


def _report(item: _Item) -> PartitionReport:
    planned, cleaned = item.planned, item.cleaned
    if planned is None:
        return failed_report(item.place, skipped=item.skipped, error=item.error)
    settings, partition, cleanable = planned.settings, planned.partition, planned.cleanable
    state = partition.state
    counts, merged, rolled, end_offset = Counts(), 0, False, cleanable.first_dirty
    skipped = None
    if not settings.is_compacted and planned.ledger is None:
        skipped = "its cleanup.policy does not contain compact"
    elif cleaned is not None:
        sources = sum(len(group.sources) for group in cleaned.groups)
        # A ledger leaves the log as it is.
        merged = 0 if planned.ledger is not None else sources - len(cleaned.groups)
        rolled = planned.ledger is None and placing.needs_roll(partition, cleaned)
        end_offset = cleaned.end_offset
        counts = Counts.of(cleaned)
    elif item.error is None and planned.ledger is not None:
        skipped = f"its ledger reaches offset {cleanable.first_dirty}: nothing is new"
    elif item.error is None:
        lag_ms = settings.integer("min.compaction.lag.ms")
        skipped = why_nothing(partition, cleanable, min_compaction_lag_ms=lag_ms)
    return PartitionReport(
        partition=item.place.name,
        directory=item.place.path,
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
        log_bytes_after=partition.size_bytes
        if planned.ledger is not None
        else partition.size_bytes - counts.bytes_before + counts.bytes_after,
        counts=counts,
        skipped=skipped,
        next_expiry_ms=None if cleaned is None else cleaned.next_expiry_ms,
        segments=() if cleaned is None else segment_reports(cleaned),
        top_keys=item.top_keys,
        rewritten=Rewritten() if cleaned is None else Rewritten.of(cleaned),
        error=item.error,
        ledger=None if item.made is None else item.made.as_json(),
    )
