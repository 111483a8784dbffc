"""Cleans a directory as its owner does: what lies there -> job -> engine -> swap -> checkpoint.

Everything but the engine is the real code of the lower floors. What a round needs besides the
directory comes as `tests.naive.plan.Inputs`, which golden rounds and random logs both have.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.engine import Engine, Progress
from stratalog.clean.job import ActiveProducer, CleanedPartition, CleaningJob, CleanSpec, Order
from stratalog.clean.plan import PartitionState, SegmentState, plan_clean, range_of
from stratalog.clean.policy import CleanableRange
from stratalog.log import swap
from stratalog.log.checkpoint import read_checkpoint, write_checkpoint
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.segment import offset_index, time_index
from stratalog.segment.names import FileKind, parse_partition_directory
from stratalog.segment.segment import Segment
from tests.naive import cleaner, files
from tests.naive.plan import Inputs
from tests.naive.records import Record, build_v2, parse_log
from tests.oracle import Round

FS = LocalFileSystem()
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
Pair = tuple["bytes | None", "bytes | None"]
FILE_KINDS = ("log", "index", "timeindex", "txnindex")


@dataclass(frozen=True)
class Case:
    """A partition directory that may be changed, and the round to run on it."""

    name: str
    partition: Path
    inputs: Inputs
    producer_expiration_ms: int = DAY_MS

    def copied(self, target: Path) -> Case:
        """The same on a copy of the whole log directory."""
        shutil.copytree(self.partition.parent, target)
        return replace(self, partition=target / self.partition.name)


def case_of(kafka: Round, target: Path) -> Case:
    """A round of Kafka's, its state before copied to the new directory `target`."""
    original = Case(kafka.name, kafka.before, kafka.inputs, kafka.producer_expiration_ms)
    return original.copied(target)


def write_case(
    log_dir: Path,
    segments: Mapping[int, Sequence[bytes]],
    settings: Mapping[str, str] | None = None,
) -> Case:
    """A log of these batches, by base offset of their segment; the last segment is active.

    The clock stands at `NOW_MS`, the files' times an hour before.
    """
    partition = log_dir / "topic-0"
    partition.mkdir(parents=True)
    settings = {"min.cleanable.dirty.ratio": "0", **(settings or {})}
    log_end_offset = max(segments)
    for base, batches in segments.items():
        data = b"".join(batches)
        files.write_segment(
            partition, base, data, [], interval_bytes=4096, mtime_ms=NOW_MS - 3_600_000
        )
        for batch in parse_log(data):
            log_end_offset = batch.last_offset + 1
    inputs = Inputs(settings, NOW_MS, min(segments), log_end_offset, log_end_offset)
    return Case(log_dir.name, partition, inputs)


def batch_of(first_offset: int, *pairs: Pair, codec: int = 0, **fields: Any) -> bytes:
    """A batch of (key, value) records, one offset after another."""
    records = [
        Record(first_offset + place, NOW_MS - DAY_MS + first_offset, key, value)
        for place, (key, value) in enumerate(pairs)
    ]
    last_offset = first_offset + len(pairs) - 1
    return build_v2(
        records, base_offset=first_offset, last_offset=last_offset, codec=codec, **fields
    )


def surviving(partition: Path) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Offset -> (key, value) of all data records of a log."""
    return {
        record.offset: (record.key, record.value)
        for segment in files.read_segments(partition)
        for batch in segment.batches
        if not batch.control
        for record in batch.records()
    }


def state_of(case: Case) -> PartitionState:
    """What lies there, as opening the log at the case's time finds it."""
    log_dir = case.partition.parent
    key = parse_partition_directory(case.partition.name)
    assert key is not None
    starts = read_checkpoint(FS, str(log_dir / "log-start-offset-checkpoint"))
    checkpoints = read_checkpoint(FS, str(log_dir / "cleaner-offset-checkpoint"))
    settings = LogSettings(
        index_interval_bytes=case.inputs.number("index.interval.bytes"),
        producer_expiration_ms=case.producer_expiration_ms,
    )
    with PartitionLog.open(
        str(case.partition),
        settings,
        FS,
        FixedClock(case.inputs.now_ms),
        log_start_offset=starts.get(key),
        read_only=True,
    ) as log:
        producers = tuple(
            ActiveProducer(producer_id, epoch, -1 if last is None else last)
            for producer_id, (epoch, last) in log.active_producers().items()
        )
        return PartitionState(
            case.name,
            str(case.partition),
            tuple(map(_segment_state, log.view.segments)),
            log.log_start_offset,
            log.log_end_offset,
            log.last_stable_offset,
            checkpoints.get(key),
            producers,
            tuple(entry for segment in log.view.segments for entry in segment.aborted),
        )


def _segment_state(segment: Segment) -> SegmentState:
    offsets, times = segment.indexes.entries()
    return SegmentState(
        segment.base_offset,
        segment.size_bytes,
        len(offsets) * offset_index.ENTRY_BYTES,
        len(times) * time_index.ENTRY_BYTES,
        segment.modified_ms,
        segment.largest_timestamp_ms(),
    )


def spec_of(inputs: Inputs, **changes: Any) -> CleanSpec:
    """The inputs' settings, with their limit of keys unless `changes` says otherwise."""
    spec = CleanSpec(
        now_ms=inputs.now_ms,
        delete_retention_ms=inputs.number("delete.retention.ms"),
        segment_bytes=inputs.number("segment.bytes"),
        segment_index_bytes=inputs.number("segment.index.bytes"),
        index_interval_bytes=inputs.number("index.interval.bytes"),
        max_keys=inputs.map_limit,
        by_segment=inputs.settings.get("tombstone.horizon") == "segment",
        order=Order(inputs.settings.get("compaction.strategy", "offset")),
        version_header=inputs.settings.get("compaction.strategy.header", ""),
    )
    return replace(spec, **changes)


def range_and_job(case: Case, **changes: Any) -> tuple[CleanableRange, CleaningJob | None]:
    """The cleanable range and the job; `changes` are those of the spec."""
    state = state_of(case)
    cleanable = range_of(
        state,
        min_compaction_lag_ms=case.inputs.number("min.compaction.lag.ms"),
        now_ms=case.inputs.now_ms,
    )
    return cleanable, plan_clean(state, cleanable, spec_of(case.inputs, **changes))


def ignore_progress(progress: Progress) -> None:
    """For tests that do not look at it."""


def run(engine: Engine, jobs: Sequence[CleaningJob], writes: bool = True) -> list[CleanedPartition]:
    return engine.clean(jobs, writes=writes, on_progress=ignore_progress)


def place(case: Case, cleaned: CleanedPartition, filesystem: FileSystem = FS) -> None:
    """Swap the groups in, remove what they replaced, move the checkpoint."""
    for group in cleaned.groups:
        if group.parts:
            parts = {FileKind(kind): name for kind, name in group.parts}
            new = (swap.SegmentParts(group.sources[0], parts),)
            swap.swap(filesystem, str(case.partition), swap.Replacement(group.sources, new))
    swap.remove_deleted(filesystem, str(case.partition))
    move_checkpoint(case, cleaned.end_offset, filesystem)


def move_checkpoint(case: Case, offset: int, filesystem: FileSystem = FS) -> None:
    path = str(case.partition.parent / "cleaner-offset-checkpoint")
    key = parse_partition_directory(case.partition.name)
    assert key is not None
    write_checkpoint(filesystem, path, {**read_checkpoint(filesystem, path), key: offset})


def clean_case(engine: Engine, case: Case, **changes: Any) -> CleanedPartition | None:
    """One round in place; None if there was nothing to clean."""
    cleanable, job = range_and_job(case, **changes)
    if job is None:
        if cleanable.checkpoint_was_reset:
            move_checkpoint(case, cleanable.first_dirty)
        return None
    (cleaned,) = run(engine, [job])
    place(case, cleaned)
    return cleaned


def clean_naively(case: Case, target: Path, **changes: Any) -> cleaner.Result:
    """The naive twin's round, written to the new log directory `target`."""
    inputs = replace(case.inputs, **changes)
    target.mkdir(parents=True)
    result = cleaner.clean(case.partition, inputs)
    cleaner.write_result(result, case.partition, target / case.partition.name, inputs)
    return result


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below `directory`, by relative name."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def segment_files(partition: Path) -> dict[str, tuple[bytes, int]]:
    """What two engines must agree on: bytes and times of the segments' files, by name."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(partition.iterdir())
        if path.suffix[1:] in FILE_KINDS
    }
