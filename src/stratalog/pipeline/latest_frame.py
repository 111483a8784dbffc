"""`view=latest` for partitions of any size: within one task where that is quick, else by a shuffle.

The source's `view=latest` goes through a partition in one task, because a reader of Spark's can run
no jobs of its own. A function on the driver can, so here a large partition is shared by all cores:

    index tasks ──shuffle by key hash──► merge ──shuffle by place──► read tasks ──► rows
     runs of its segments                 newest offset of each key     just those records

What is shuffled is 24 bytes a key (32 by an order of versions) and 8 bytes a record that is given,
as binary blocks; keys and values are read from the log where they are needed. The first half runs
when the frame is made, so that damage is told then; the second runs with the query.

Invariants
- L1  The rows are those of the source's `view=latest` for the same offsets (LDG-7, CMP-17, CMP-18):
      one record a key, none that is deleted, up to the log end when the frame was made.
- L2  A log that its owner cleans meanwhile gives the same rows or `LogChangedError`; never fewer.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stratalog.base.errors import LogChangedError, UsageError
from stratalog.clean.job import new_secret
from stratalog.pipeline import places, planning, source_tasks
from stratalog.pipeline.options import SourceOptions, read_options
from stratalog.pipeline.planning import LatestPart
from stratalog.pipeline.schema import schema_of
from stratalog.pipeline.source_tasks import SourceTask
from stratalog.spark.cutting import buckets_of, past_all
from stratalog.spark.describing import described, description
from stratalog.spark.failures import one_line_failures

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from stratalog.log.view import LogView
    from stratalog.pipeline.as_of import AsOf
    from stratalog.pipeline.latest_frame_tasks import LatestJob
    from stratalog.pipeline.parts import Parts
    from stratalog.pipeline.places import Place

SHUFFLE_BYTES_OPTION = "shuffleBytes"
DEFAULT_SHUFFLE_BYTES = 1 << 30
"""On two cores one task was faster at every size measured, up to 1 GiB: it works half as much in
all. From some four cores on sharing pays at 1 to 2 GiB (docs/BENCHMARKS.md), where a task's map
(`dedupeBufferBytes`) begins to take more than one walk."""

_RUN_BYTES = 2 << 30
_LEAST_RUN_BYTES = 64 << 20
_BIN_BYTES = 256 << 20
_ATTEMPTS = 3


def latest_frame(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    **options: object,
) -> DataFrame:
    """The newest record of each key of the logs at `path`, as `view=latest` of the source.

    `options` are those of the source, which are all in `given_options.OPTIONS`, and one more:
    `shuffleBytes`, the bytes of log above which a partition is shared by all cores in place of
    being read by one task (0: all are).

    Raises `UsageError`; `CorruptionError` if a shared partition is damaged, those of one task raise
    it with the query; `LogChangedError` if such a partition was cleaned again and again meanwhile.
    """
    text = options_text(path, options)
    shuffle_bytes = taken_shuffle_bytes(text)
    if text.setdefault("view", "latest").strip().lower() != "latest":
        raise UsageError(f"view is {text['view']!r}; latest_frame has latest only")
    source = read_options(text)
    return framed(spark, lambda: planned_parts(source), source, shuffle_bytes)


def framed(
    spark: SparkSession,
    plan: Callable[[], Sequence[LatestPart]],
    options: SourceOptions,
    shuffle_bytes: int,
) -> DataFrame:
    """`frame_of` what `plan` answers, planned anew if it was replaced before it was indexed."""
    for attempt in range(_ATTEMPTS):
        # A log that does not come to rest is read by one task, which holds its files open.
        threshold = shuffle_bytes if attempt < _ATTEMPTS - 1 else None
        try:
            return frame_of(spark, plan(), options, threshold)
        except LogChangedError:
            if threshold is None:
                raise
    raise AssertionError("the last attempt returns or raises")


def options_text(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: Mapping[str, object]
) -> dict[str, str]:
    """Options as Spark hands them over: text, with the paths among them."""
    text = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
    listed = [path] if isinstance(path, str | os.PathLike) else path
    return {**text, "paths": json.dumps([os.fspath(item) for item in listed])}


def taken_shuffle_bytes(text: dict[str, str]) -> int:
    """`shuffleBytes` out of the options, which then are the source's. Raises `UsageError`."""
    for name in [name for name in text if name.lower() == SHUFFLE_BYTES_OPTION.lower()]:
        value = text.pop(name)
        if not value.strip().isdecimal():
            raise UsageError(f"{SHUFFLE_BYTES_OPTION} is {value!r}; it must be a whole number")
        return int(value)
    return DEFAULT_SHUFFLE_BYTES


def planned_parts(options: SourceOptions) -> list[LatestPart]:
    """The chosen partitions as they are now. Raises as `StratalogReader.partitions`."""
    found = places.find_places(options.paths, options.choice, options.store)
    planning.check_bounds(options, found)
    return [_planned(options, place) for place in found]


def _planned(options: SourceOptions, place: Place) -> LatestPart:
    """As the source plans it: a ledger answers below its horizon, if there is one of the order of
    versions that is asked for, or that has what the raw log has lost. What a ledger
    answers, or a state of then, is read by one task, which opens it anew."""
    opening = places.opened_parts(
        place, with_ledger=True, as_of=options.as_of, order=options.ledger_order
    )
    with opening as (parts, end):
        bounds, _ = planning.resolve(options, place, parts)
        if parts.is_raw and end is None:
            return part_of(options, place, parts.views[0], bounds)
        return part_with_ledger(place, parts, bounds, end, options.as_of)


def part_with_ledger(
    place: Place, parts: Parts, bounds: planning.Range, end: int | None, as_of: AsOf | None
) -> LatestPart:
    """A partition's records in `bounds`, below `end`, as one task reads them."""
    if end is not None:
        bounds = replace(bounds.within(0, end), follows=False)
    pieces = [piece for _, piece in planning.pieces_in(place, parts, bounds.start, bounds.end)]
    return LatestPart(place, bounds, tuple(pieces), with_ledger=True, as_of=as_of)


def part_of(
    options: SourceOptions, place: Place, view: LogView, bounds: planning.Range
) -> LatestPart:
    """A partition's records in `bounds`, cut into pieces that tasks can share."""
    pieces = planning.pieces_of(
        place,
        view,
        bounds.start,
        bounds.end,
        max_bytes=options.partition_bytes,
        is_committed=True,
    )
    return LatestPart(place, bounds, tuple(pieces))


def frame_of(
    spark: SparkSession,
    parts: Sequence[LatestPart],
    options: SourceOptions,
    shuffle_bytes: int | None,
) -> DataFrame:
    """The newest records of `parts`; those above `shuffle_bytes` by a shuffle (None: no part is).

    Raises `CorruptionError`, `LogChangedError` (a part's files were replaced since).
    """
    schema = schema_of(options.columns)
    whole: list[LatestPart] = []
    shared: list[LatestPart] = []
    for part in parts:
        is_large = shuffle_bytes is not None and part.size_bytes > shuffle_bytes
        if part.pieces:
            (shared if is_large and not part.with_ledger else whole).append(part)
    frames = []
    if shared:
        frames.append(_shared_frame(spark, shared, options))
    if whole:
        frames.append(_whole_frame(spark, whole, options))
    if not frames:
        return spark.createDataFrame([], schema)
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def job_of(spark: SparkSession, options: SourceOptions, buckets: Sequence[range] = ()) -> LatestJob:
    """What the tasks of a read are told; the keys of each partition are shuffled into `buckets`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from stratalog.pipeline.latest import LatestRules
    from stratalog.pipeline.latest_frame_tasks import LatestJob
    from stratalog.pipeline.reading import ReadRules

    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    return LatestJob(
        to_arrow_schema(schema_of(options.columns), timezone=zone),
        ReadRules(options.fail_on_data_loss, True, False, options.keeps_tombstones),
        LatestRules(options.order, options.version_header, options.dedupe_bytes),
        new_secret(),
        tuple(buckets),
        past_all(buckets) if buckets else 0,
    )


# ---------------------------------------------------------------- a task a partition


def _whole_frame(
    spark: SparkSession, parts: Sequence[LatestPart], options: SourceOptions
) -> DataFrame:
    from stratalog.pipeline import latest_frame_tasks as work

    reads = source_tasks.latest_tasks(parts, options.min_partitions)
    rows = spark.sparkContext.parallelize([(pickle.dumps(task),) for task in reads], len(reads))
    job = job_of(spark, options)
    return spark.createDataFrame(rows, "task binary", verifySchema=False).mapInArrow(
        lambda batches: work.read_whole(batches, job), schema_of(options.columns)
    )


# ---------------------------------------------------------------- a partition by many


@dataclass(frozen=True, slots=True)
class _Sharing:
    """How partitions are shared. `runs`: pieces to index, with their partition's number, a list for
    each Spark task. `reads`: what is read as one, by its place in `reads`; `bin_of` says in which
    of `bins` Spark tasks. `owners`: the reads of each partition, with the offset where each ends.
    """

    runs: tuple[tuple[tuple[int, SourceTask], ...], ...]
    reads: tuple[SourceTask, ...]
    bin_of: tuple[int, ...]
    bins: int
    owners: Mapping[int, Sequence[tuple[int, int]]]
    size_bytes: int


def _sharing(parts: Sequence[LatestPart], task_bytes: int, cores: int) -> _Sharing:
    total_bytes = sum(part.size_bytes for part in parts)
    run_bytes = min(_RUN_BYTES, max(_LEAST_RUN_BYTES, -(-total_bytes // cores)))
    runs: list[tuple[int, SourceTask]] = []
    reads: list[SourceTask] = []
    owners: dict[int, list[tuple[int, int]]] = {}
    for number, part in enumerate(parts):
        runs += [(number, task) for task in source_tasks.tasks_of(part.pieces, run_bytes, None)]
        # In the order of the log, as merging wants them.
        in_order = sorted(source_tasks.tasks_of(part.pieces, task_bytes, None), key=_end)
        owners[number] = [(len(reads) + n, _end(task)) for n, task in enumerate(in_order)]
        reads += in_order
    run_bin, run_bins = _bins([task.size_bytes for _, task in runs], cores)
    bin_of, bins = _bins([task.size_bytes for task in reads], cores)
    binned: list[list[tuple[int, SourceTask]]] = [[] for _ in range(run_bins)]
    for run, place in zip(runs, run_bin, strict=True):
        binned[place].append(run)
    return _Sharing(
        tuple(map(tuple, binned)), tuple(reads), tuple(bin_of), bins, owners, total_bytes
    )


def _end(task: SourceTask) -> int:
    return task.pieces[-1].end_offset


def _bins(sizes: Sequence[int], cores: int) -> tuple[list[int], int]:
    """Which of how many Spark tasks does each piece of work: little ones share, and each task gets
    as many of the large ones as the others."""
    count = max(1, min(len(sizes), max(4 * cores, sum(sizes) // _BIN_BYTES)))
    bin_of = [0] * len(sizes)
    for place, number in enumerate(sorted(range(len(sizes)), key=lambda n: -sizes[n])):
        bin_of[number] = place % count
    return bin_of, count


def _shared_frame(
    spark: SparkSession, parts: Sequence[LatestPart], options: SourceOptions
) -> DataFrame:
    from stratalog.pipeline import latest_frame_tasks as work

    context = spark.sparkContext
    cores = context.defaultParallelism
    sharing = _sharing(parts, options.partition_bytes, cores)
    job = job_of(spark, options, buckets_of([part.size_bytes for part in parts], cores))
    blocks = _indexed(spark, sharing, job, [str(part.place.topic_partition) for part in parts])
    owners, bin_of, reads = sharing.owners, sharing.bin_of, context.broadcast(sharing.reads)

    def merge(rows: Iterable[Any]) -> Iterator[Any]:
        for number, offsets in work.merge(rows, owners):
            yield bin_of[number], (number, offsets)

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        return work.read_chosen(batches, reads.value, job)

    offsets = blocks.mapPartitions(merge).partitionBy(sharing.bins, _same).values()
    frame = spark.createDataFrame(offsets, "task int, offsets binary", verifySchema=False)
    return frame.mapInArrow(read, schema_of(options.columns))


def _indexed(
    spark: SparkSession, sharing: _Sharing, job: LatestJob, names: Sequence[str]
) -> RDD[Any]:
    """The shuffled blocks, computed once; what is wrong with a piece is raised."""
    from stratalog.pipeline import latest_frame_tasks as work

    def run(bins: Iterable[Sequence[tuple[int, SourceTask]]]) -> Iterator[Any]:
        for part, task in (run for runs in bins for run in runs):
            yield from work.index(part, task.pieces, job)

    context = spark.sparkContext
    rows = context.parallelize(sharing.runs, len(sharing.runs))
    blocks = rows.mapPartitions(run).partitionBy(job.told + 1, _same)
    text = description("latest: index", names, sharing.size_bytes)
    with described(context, text), one_line_failures():
        troubles = [found for _, found in context.runJob(blocks, list, [job.told])]
    if troubles:
        troubles.sort(key=lambda trouble: trouble.damage is None)
        raise troubles[0].raised()
    return blocks


def _same(key: int) -> int:
    return key
