"""Snapshots: the newest record of each key, as a DataFrame or as files for others (SPK-7).

    snapshot_frame    a DataFrame, up to the log end, an offset or a time
    snapshot          the same as Parquet files or a Delta table, whole or built upon the last one

What a partition needs is planned on the driver (`snapshot_plan`); new records come from
`latest_frame`, are brought together by bucket of their keys' hash, and each bucket that anything
has happened to is written anew by one task (`snapshot_files`); the rest stays as it is. The last
step makes the new files the snapshot (`snapshot_output`, `snapshot_delta`).

Invariants
- S1  The rows are the newest committed record of each key in [log start, end offset) of each
      partition, without deleted keys, whether the snapshot was built upon another or not.
- S2  Whatever ends it, Ctrl-C or a crash, leaves the last snapshot as it was.
- S3  Logs are read and nothing else, also those that a live process owns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import (
    CorruptionError,
    LogChangedError,
    OffsetOutOfRangeError,
    UsageError,
)
from stratalog.base.filesystem import translated_errors
from stratalog.clean.engine import OnProgress, Progress
from stratalog.pipeline import latest_frame as latest
from stratalog.pipeline import places, planning, snapshot_plan
from stratalog.pipeline.options import SourceOptions
from stratalog.pipeline.places import Place
from stratalog.pipeline.schema import schema_of
from stratalog.pipeline.snapshot_manifest import DataFile, Manifest, PartitionSnapshot
from stratalog.pipeline.snapshot_plan import AsOf, PlannedPartition
from stratalog.pipeline.snapshot_work import Work, written_apart, written_shared
from stratalog.pipeline.uris import directory
from stratalog.spark.describing import description, watched
from stratalog.spark.failures import one_line_failures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PARQUET, DELTA = "parquet", "delta"
_ATTEMPTS = 4
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition of a snapshot: `kind` is whole, incremental or unchanged; `reason` why it was
    taken whole although there was a snapshot to build upon."""

    name: str
    kind: str
    start_offset: int
    end_offset: int
    rows: int
    size_bytes: int
    files: int
    files_written: int
    read_bytes: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """What a snapshot came to. `path` is what to read; `note` why it is a whole one although an
    incremental one was wanted."""

    path: str
    to: str
    generation: int
    as_of: str | None
    created_ms: int
    rows: int
    size_bytes: int
    partitions: tuple[PartitionReport, ...]
    note: str | None = None


class _Output(Protocol):
    @property
    def shown(self) -> str: ...
    def opened(self) -> Any: ...
    def check(self) -> None: ...
    def manifest(self) -> Manifest | None: ...
    def file(self, file: DataFile) -> str: ...
    def begin(self, older: Manifest | None) -> tuple[int, str]: ...
    def commit(self, manifest: Manifest, directory: str, kept: Sequence[DataFile]) -> None: ...
    def abandon(self, directory: str, generation: int) -> None: ...


def snapshot_frame(
    spark: SparkSession, path: Paths, *, as_of: AsOf = None, **options: object
) -> DataFrame:
    """The newest record of each key as of an offset or a time (`snapshot_plan.as_of_bound`).

    `options` are the source's, but for those that say what a snapshot is, and `shuffleBytes`
    (`latest_frame`). Raises as `latest_frame`.
    """
    text = latest.options_text(path, options)
    shuffle_bytes = latest.taken_shuffle_bytes(text)
    source = snapshot_plan.snapshot_options(text)

    def planned() -> list[Any]:
        return [item.part for item in _planned(_ended(source, as_of), None, frozenset())]

    return latest.framed(spark, planned, source, shuffle_bytes)


def snapshot(
    spark: SparkSession,
    path: Paths,
    out: str | os.PathLike[str],
    *,
    to: str = PARQUET,
    as_of: AsOf = None,
    incremental: bool = False,
    clock: Clock | None = None,
    on_progress: OnProgress = lambda _: None,
    before_commit: Callable[[], None] = lambda: None,
    **options: object,
) -> SnapshotReport:
    """Write the newest record of each key to the directory `out`.

    `incremental` builds upon the snapshot that is there: only what is new is read, and only files
    that it concerns are written; the rows are those of a whole one. `before_commit` is called when
    all is written and nothing shown yet. Raises `UsageError`, `CorruptionError`, `StorageIOError`,
    `LogLockedError` (another snapshot is being written there), `MissingExtraError` (Delta).
    """
    source, shuffle_bytes, found, output = _asked(path, out, to, as_of, options)
    clock = clock or SystemClock()
    with output.opened(), one_line_failures():
        older, note = _older(output, source, incremental)
        run = _Run(spark, source, shuffle_bytes, output, older, clock, on_progress, before_commit)
        return run.report(found, as_of, to, note)


def check_request(
    path: Paths,
    out: str | os.PathLike[str],
    *,
    to: str = PARQUET,
    as_of: AsOf = None,
    incremental: bool = False,
    **options: object,
) -> None:
    """Refuse what `snapshot` would, as far as that can be said without Spark. Changes nothing."""
    source, _, found, output = _asked(path, out, to, as_of, options)
    output.check()
    _older(output, source, incremental)
    if as_of is not None:
        _planned(found, None, frozenset())


Asked = tuple[SourceOptions, list[Place]]


def _asked(
    path: Paths, out: str | os.PathLike[str], to: str, as_of: AsOf, options: Mapping[str, object]
) -> tuple[SourceOptions, int, Asked, _Output]:
    text = latest.options_text(path, options)
    shuffle_bytes = latest.taken_shuffle_bytes(text)
    source = snapshot_plan.snapshot_options(text)
    target = directory(os.fspath(out), "snapshot")
    output = _output(to, target, source)
    found = _ended(source, as_of)
    _refuse_inside(source, target)
    return source, shuffle_bytes, found, output


def _ended(source: SourceOptions, as_of: AsOf) -> Asked:
    found = places.find_places(source.paths, source.choice, source.store)
    ended = replace(source, ending=snapshot_plan.as_of_bound(as_of, found))
    planning.check_bounds(ended, found)
    return ended, found


def _planned(
    asked: Asked, older: Manifest | None, restless: frozenset[str]
) -> list[PlannedPartition]:
    options, found = asked
    planned = []
    for place in found:
        with_ledger = snapshot_plan.plan_with_ledger(options, place, older)
        if with_ledger is not None:
            planned.append(with_ledger)
            continue
        with places.opened_view(place) as view:
            name = str(place.topic_partition)
            planned.append(
                snapshot_plan.plan(options, place, view, older, is_restless=name in restless)
            )
    return planned


def _output(to: str, path: str, source: SourceOptions) -> _Output:
    from pyspark.sql.pandas.types import to_arrow_schema

    from stratalog.pipeline.snapshot_delta import DeltaOutput
    from stratalog.pipeline.snapshot_output import ParquetOutput

    schema = to_arrow_schema(schema_of(source.columns), timezone="UTC")
    if to == PARQUET:
        return ParquetOutput(path, schema)
    if to == DELTA:
        return DeltaOutput(path, schema)
    raise UsageError(f"to is {to!r}; it must be {PARQUET} or {DELTA}")


def _refuse_inside(source: SourceOptions, out: str) -> None:
    """A directory among logs would be taken for their owner's, and be removed or refused by it."""
    real = os.path.realpath(out)
    for path in source_of(source):
        if real == path or real.startswith(path + os.sep):
            raise UsageError(f"{out}: lies in {path}, which is read; give another directory")


def _older(
    output: _Output, source: SourceOptions, incremental: bool
) -> tuple[Manifest | None, str | None]:
    """The snapshot to build upon, or why there is none. Raises `UsageError`, `CorruptionError`."""
    try:
        older = output.manifest()
    except CorruptionError as error:
        if not incremental:
            return None, None  # a whole one mends it
        raise CorruptionError(
            f"{error.reason}: a whole snapshot (not incremental) mends it", file=error.file
        ) from error
    wanted = source_of(source)
    if older is not None and older.source != wanted:
        raise UsageError(
            f"{output.shown}: is a snapshot of {', '.join(older.source)}, "
            f"not of {', '.join(wanted)}; give another directory"
        )
    if not incremental:
        return None, None
    if older is None:
        return None, "there is no snapshot to build upon"
    return older, None


def source_of(source: SourceOptions) -> tuple[str, ...]:
    """The logs' directories as a manifest names them."""
    return tuple(sorted(path if "://" in path else os.path.realpath(path) for path in source.paths))


@dataclass(frozen=True, slots=True)
class _Run:
    """Making one snapshot."""

    spark: SparkSession
    source: SourceOptions
    shuffle_bytes: int
    output: _Output
    older: Manifest | None
    clock: Clock
    on_progress: OnProgress
    before_commit: Callable[[], None]

    def report(self, asked: Asked, as_of: AsOf, to: str, note: str | None) -> SnapshotReport:
        created_ms = self.clock.now_ms()
        generation, directory = self.output.begin(self.older)
        try:
            planned, written = self._written(asked, directory)
            partitions, kept, reports = self._settled(planned, written, generation, directory)
            manifest = Manifest(
                generation,
                source_of(self.source),
                snapshot_plan.shown_as_of(as_of),
                created_ms,
                self.source.columns,
                self.source.order.value,
                self.source.version_header,
                partitions,
            )
            self.before_commit()
        except BaseException:
            self.output.abandon(directory, generation)
            raise
        self.output.commit(manifest, directory, kept)
        size_bytes = sum(partition.size_bytes for partition in partitions)
        return SnapshotReport(
            *(self.output.shown, to, generation, manifest.as_of, created_ms),
            *(manifest.rows, size_bytes, tuple(reports), note),
        )

    def _written(
        self, asked: Asked, directory: str
    ) -> tuple[list[PlannedPartition], dict[int, Any]]:
        """The partitions as they were read, and what was written, by unit.

        A log that is cleaned or shortened while it is read is planned anew; one that comes to no
        rest is read by one task, which holds its files open.
        """
        restless: set[str] = set()
        for attempt in range(_ATTEMPTS):
            is_last = attempt == _ATTEMPTS - 1
            if is_last:
                restless = {str(place.topic_partition) for place in asked[1]}
            planned = _planned(asked, self.older, frozenset(restless))
            try:
                with one_line_failures():
                    return planned, self._write(planned, directory, is_last)
            except (LogChangedError, OffsetOutOfRangeError) as error:
                if is_last:
                    raise
                restless.add(str(error).partition(": ")[0])
        raise AssertionError("the last attempt returns or raises")

    def _write(
        self, planned: Sequence[PlannedPartition], directory: str, is_last: bool
    ) -> dict[int, Any]:
        work = self._with_survivors(Work.of(planned, self.output.file), directory)
        threshold = None if is_last else self.shuffle_bytes
        apart: list[int] = []
        shared: list[int] = []
        for number in work.touched:
            size_bytes = planned[number].part.size_bytes
            fits = threshold is None or size_bytes <= threshold
            (apart if fits and planned[number].buckets == 1 else shared).append(number)
        # Deletions count where there is something to delete from.
        options = replace(self.source, keeps_tombstones=self.older is not None)
        rows: list[Any] = []
        if apart:
            of_apart = work.only(apart)
            with self._watched("write", of_apart.planned):
                rows += written_apart(self.spark, of_apart, options, directory)
        if shared:
            of_shared = work.only(shared)
            parts = [item.part for item in of_shared.planned]
            with self._watched("index", of_shared.planned):
                frame = latest.frame_of(self.spark, parts, options, threshold)
            with self._watched("write", of_shared.planned):
                rows += written_shared(self.spark, frame, of_shared, options, directory)
        return {row.unit: row for row in rows}

    def _with_survivors(self, work: Work, directory: str) -> Work:
        """The units, with what is left of ranges that were rewritten."""
        from stratalog.pipeline import snapshot_files

        pieces = [
            ((number, place), piece)
            for number, item in enumerate(work.planned)
            for place, (_, of_range) in enumerate(item.rewritten)
            for piece in of_range
        ]
        paths: dict[tuple[int, int], list[str]] = {}
        if pieces:
            job = latest.job_of(self.spark, self.source)
            rows = self.spark.sparkContext.parallelize(pieces, min(len(pieces), 1024))
            with self._watched("compare", work.planned):
                for key, path in rows.mapValues(
                    lambda piece: snapshot_files.survivors(piece, job, directory)
                ).collect():
                    paths.setdefault(key, []).append(path)
        units = []
        for number, item in enumerate(work.planned):
            survivors = tuple(
                snapshot_files.Survivors(
                    bounds.start, bounds.end, tuple(paths.get((number, place), ()))
                )
                for place, (bounds, _) in enumerate(item.rewritten)
            )
            units.append(tuple(replace(unit, survivors=survivors) for unit in work.units[number]))
        return replace(work, units=tuple(units))

    def _watched(self, phase: str, planned: Sequence[PlannedPartition]) -> Any:
        size_bytes = sum(item.part.size_bytes for item in planned)
        names = [str(item.key) for item in planned]

        def on_share(share: float) -> None:
            self.on_progress(Progress(phase, int(share * size_bytes), size_bytes))

        text = description(f"snapshot: {phase}", names, size_bytes)
        return watched(self.spark.sparkContext, text, on_share)

    def _settled(
        self,
        planned: Sequence[PlannedPartition],
        written: Mapping[int, Any],
        generation: int,
        directory: str,
    ) -> tuple[tuple[PartitionSnapshot, ...], list[DataFile], list[PartitionReport]]:
        """Files get their names; what is kept of the last snapshot; what to tell."""
        work = Work.of(planned, self.output.file)
        partitions, kept, reports = [], [], []
        for number, item in enumerate(planned):
            files, fresh = [], 0
            older = {} if item.previous is None else {f.bucket: f for f in item.previous.files}
            for bucket, unit in enumerate(work.units[number]):
                row = written.get(unit.number)
                if row is None or row.kept:
                    if bucket in older:
                        files.append(older[bucket])
                        kept.append(older[bucket])
                elif row.name:
                    name = f"part-{generation:06d}-{unit.number:05d}-{str(item.key)[:180]}.parquet"
                    with translated_errors(directory):
                        os.rename(os.path.join(directory, row.name), os.path.join(directory, name))
                    files.append(DataFile(name, bucket, row.rows, row.size_bytes, row.least_offset))
                    fresh += 1
            found = PartitionSnapshot(
                *(item.key.topic, item.key.partition, item.log_start, item.end_offset),
                *(item.buckets, tuple(files), item.marks, item.topic_id),
            )
            partitions.append(found)
            reports.append(_reported(item, found, fresh))
        return tuple(partitions), kept, reports


def _reported(item: PlannedPartition, found: PartitionSnapshot, fresh: int) -> PartitionReport:
    kind = "whole" if item.previous is None else "unchanged" if item.is_unchanged else "incremental"
    checked = sum(piece.size_bytes for _, pieces in item.rewritten for piece in pieces)
    return PartitionReport(
        *(str(item.key), kind, found.start_offset, found.end_offset, found.rows),
        *(found.size_bytes, len(found.files), fresh, item.part.size_bytes + checked, item.reason),
    )
