"""One round over a log that this process has open: what is there, what is to be done, the swap.

    clean_log   state_of ─► `plan` ─► the engine writes `.part` files ─► place: swap group by group

Appends and reads go on meanwhile; nobody else changes sealed segments, which is what the states
(`states_keeper`) are for.

Invariants
- I1  Whatever is raised, each group is in place wholly or not at all; `sweep` removes the rest.
- I2  `check` is asked between any two pieces of work, and what it raises ends the round there: what
      is in place stays, the checkpoint does not move.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.clean.history import Entry
from stratalog.clean.job import SLOT_BYTES, ActiveProducer, CleanedPartition, CleaningJob, CleanSpec
from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.plan import PartitionState, SegmentState, plan_clean, range_of
from stratalog.clean.policy import CleanableRange
from stratalog.clean.settings import CleanerSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.swap import Replacement, SegmentParts, has_intent
from stratalog.log.view import LogView
from stratalog.segment import offset_index, time_index
from stratalog.segment.names import FileKind, FileState, parse
from stratalog.segment.segment import Segment

EngineOf = Callable[[CleaningJob, FileSystem], tuple[str, Engine]]
"""The engine for a job, and its name. The file system is metered: in-process engines use it."""


def local_engine_of(_: CleaningJob, filesystem: FileSystem) -> tuple[str, Engine]:
    """One thread a round, as in Kafka: several partitions are cleaned side by side."""
    return "local", LocalEngine(filesystem, threads=1)


@dataclass(frozen=True, slots=True, eq=False)
class RoundInputs:
    """What to clean. `spec` has the round's time and its share of memory; `is_expired`: the clean
    part is gone through even if nothing is dirty; `forgotten`: see `CleaningJob`."""

    name: str
    log: PartitionLog
    checkpoint: int | None
    spec: CleanSpec
    min_lag_ms: int
    is_expired: bool = False
    forgotten: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What came of it. `cleaned` None: there was nothing to do; `seconds` by phase."""

    cleanable: CleanableRange
    engine: str = ""
    cleaned: CleanedPartition | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def clean_log(
    inputs: RoundInputs,
    engine_of: EngineOf,
    filesystem: FileSystem,
    check: Callable[[], None],
    on_progress: OnProgress,
    on_replaced: Callable[[Sequence[str]], None],
) -> RoundOutcome:
    """Clean a log and put the result in place. `check` raises to end the round (I2); `on_replaced`
    gets the paths of old files, to be unlinked later, also those of a round that then fails.

    Raises `CorruptionError`, `StorageIOError`, `LogOfflineError`, and what `check` raises.
    """
    log = inputs.log
    view = log.view
    state = state_of(inputs.name, log.path, view, log.active_producers(), inputs.checkpoint, check)
    cleanable = range_of(state, min_compaction_lag_ms=inputs.min_lag_ms, now_ms=inputs.spec.now_ms)
    # Part of what was cleaned before would leave nobody who knows the deadlines of the rest.
    is_expired = inputs.is_expired and cleanable.first_dirty <= cleanable.first_uncleanable
    job = plan_clean(state, cleanable, inputs.spec, is_expired=is_expired)
    if job is None:
        return RoundOutcome(cleanable)
    watch = Watch(check, on_progress)
    job = replace(job, forgotten=inputs.forgotten)
    name, engine = engine_of(job, filesystem)
    [cleaned] = engine.clean([job], writes=True, on_progress=watch)
    watch.stop()
    # Markers and producers' later batches, by which was decided, may lie in the active segment:
    # what they decided must not outlive them.
    if log.recovery_point < state.log_end_offset:
        log.flush()
    place(log, cleaned, check, on_replaced)
    return RoundOutcome(cleanable, name, cleaned, watch.seconds)


class Watch:
    """Passes progress on, asks `check`, and times the phases. Any thread may call it."""

    def __init__(self, check: Callable[[], None], on_progress: OnProgress):
        self.seconds: dict[str, float] = {}
        self._check = check
        self._on_progress = on_progress
        self._phase = ""
        self._began = time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        self._check()
        if progress.phase != self._phase:
            self.stop()
            self._phase = progress.phase
        self._on_progress(progress)

    def stop(self) -> None:
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._began
        self._began = now


def state_of(
    name: str,
    path: str,
    view: LogView,
    producers: dict[int, tuple[int, int | None]],
    checkpoint: int | None,
    check: Callable[[], None] = lambda: None,
    *,
    checks_digests: bool = True,
) -> PartitionState:
    """A partition as a plan sees it. `producers`: `PartitionLog.active_producers`, taken after
    `view`.

    Each sealed segment is held against its digest first: cleaning would write what a damaged header
    says into the new segment as the truth. `checks_digests` false: the engine does so, as that of
    Spark, whose driver would go through all of a cluster's logs alone. Raises `CorruptionError`,
    and what `check` raises.
    """
    for segment in view.segments.sealed if checks_digests else ():
        check()
        segment.check_digest()
    return PartitionState(
        name,
        path,
        tuple(segment_state(segment) for segment in view.segments),
        view.log_start_offset,
        view.log_end_offset,
        view.last_stable_offset,
        checkpoint,
        tuple(
            ActiveProducer(producer_id, epoch, -1 if last_offset is None else last_offset)
            for producer_id, (epoch, last_offset) in producers.items()
        ),
        tuple(entry for segment in view.segments for entry in segment.aborted),
    )


def segment_state(segment: Segment) -> SegmentState:
    """A segment as a plan sees it; loads its indexes."""
    offsets, times = segment.indexes.entries()
    return SegmentState(
        segment.base_offset,
        segment.size_bytes,
        len(offsets) * offset_index.ENTRY_BYTES,
        len(times.timestamps) * time_index.ENTRY_BYTES,
        segment.modified_ms,
        segment.largest_timestamp_ms(),
    )


def entry_of(entry: Entry, outcome: RoundOutcome, settings: CleanerSettings) -> Entry:
    """The history's entry of a round that came to its end."""
    cleaned, cleanable = outcome.cleaned, outcome.cleanable
    entry = replace(
        entry,
        first_dirty=cleanable.first_dirty,
        end_offset=cleanable.first_dirty,
        dirty_ratio=cleanable.dirty_ratio,
    )
    if cleaned is None:
        return replace(entry, result="nothing")
    volume = cleaned.volume
    slots = settings.thread_buffer_bytes / SLOT_BYTES * settings.load_factor
    return replace(
        entry,
        engine=outcome.engine,
        end_offset=max(cleaned.end_offset, cleanable.first_dirty),
        segments_before=sum(len(group.sources) for group in cleaned.groups),
        segments_after=len(cleaned.groups),
        bytes_before=volume.bytes_before,
        bytes_after=volume.bytes_after,
        records_before=volume.records_before,
        records_after=volume.records_after,
        keys=cleaned.keys,
        map_utilization=cleaned.keys / (settings.max_keys or max(slots, 1)),
        index_ms=int(outcome.seconds.get("index", 0.0) * 1000),
        rewrite_ms=int(outcome.seconds.get("rewrite", 0.0) * 1000),
        drops=volume.drops,
    )


def place(
    log: PartitionLog,
    cleaned: CleanedPartition,
    check: Callable[[], None],
    on_replaced: Callable[[Sequence[str]], None],
) -> None:
    """Swap the groups of a round in, lowest first; each time the paths of the old files are told.

    Raises as `PartitionLog.swap_in`, and what `check` raises.
    """
    for group in cleaned.groups:
        if group.parts:
            check()
            parts = {FileKind(kind): name for kind, name in group.parts}
            new = (SegmentParts(group.sources[0], parts),)
            on_replaced(log.swap_in(Replacement(group.sources, new)))


def sweep(filesystem: FileSystem, path: str) -> Sequence[str]:
    """Remove what a round, or an attempt in it, that did not come to its end has left in a
    partition's directory."""
    if has_intent(filesystem, path):
        return []  # opening the log finishes that swap
    states = (FileState.PART, FileState.CLEANED)
    strays = [
        name
        for name in filesystem.list_directory(path)
        if (parsed := parse(name)) is not None and parsed.state in states
    ]
    for name in strays:
        filesystem.unlink(os.path.join(path, name))
    return strays
