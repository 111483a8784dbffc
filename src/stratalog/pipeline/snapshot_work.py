"""How a snapshot's rows come to the tasks that write them: by bucket, and only where needed.

    Work            the buckets of all partitions (units), and which Spark task writes which
    written_apart   partitions of one bucket, each read and written within one task
    written_shared  larger ones: rows are read by many tasks, and shuffled to that of their bucket

A unit that must be looked at though no new row may come for it has a row without a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratalog.pipeline.latest_frame import job_of
from stratalog.pipeline.options import SourceOptions
from stratalog.pipeline.schema import schema_of
from stratalog.pipeline.snapshot_manifest import DataFile
from stratalog.pipeline.snapshot_plan import PlannedPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stratalog.pipeline.snapshot_files import Unit

_TASK_BYTES = 64 << 20
_UNIT_BYTES = 1 << 20
"""What a file costs besides its bytes, in bytes of log."""


@dataclass(frozen=True, slots=True)
class Work:
    """Which units there are, and which Spark task writes them: partitions of one bucket share."""

    planned: tuple[PlannedPartition, ...]
    units: tuple[tuple[Unit, ...], ...]
    first_tasks: tuple[int, ...]
    tasks: int

    @classmethod
    def of(cls, planned: Sequence[PlannedPartition], file_of: Callable[[DataFile], str]) -> Work:
        from stratalog.pipeline.snapshot_files import Unit

        units: list[tuple[Unit, ...]] = []
        number = 0
        for item in planned:
            older = {} if item.previous is None else {f.bucket: f for f in item.previous.files}
            end = 0 if item.previous is None else item.previous.end_offset
            units.append(
                tuple(
                    Unit(
                        number + bucket,
                        str(item.key),
                        file_of(older[bucket]) if bucket in older else None,
                        end,
                        item.log_start,
                    )
                    for bucket in range(item.buckets)
                )
            )
            number += item.buckets
        return cls(tuple(planned), tuple(units), tuple(of[0].number for of in units), number)

    @property
    def touched(self) -> list[int]:
        """The partitions of which anything is to be read or written, by number."""
        return [
            number
            for number, item in enumerate(self.planned)
            if item.part.pieces or (item.previous is not None and not item.is_unchanged)
        ]

    def only(self, numbers: Sequence[int]) -> Work:
        """The part of it about some partitions, with tasks numbered anew."""
        first_tasks, tasks = [], 0
        for number in numbers:
            first_tasks.append(tasks)
            tasks += len(self.units[number])
        return Work(
            tuple(self.planned[number] for number in numbers),
            tuple(self.units[number] for number in numbers),
            tuple(first_tasks),
            tasks,
        )

    def routes(self) -> list[tuple[str, int, int, int, int]]:
        """(topic, partition, first unit, buckets, first task) of every partition."""
        return [
            (item.key.topic, item.key.partition, units[0].number, len(units), task)
            for item, units, task in zip(self.planned, self.units, self.first_tasks, strict=True)
        ]

    def looked_after(self) -> list[tuple[int, int]]:
        """(unit, task) of what must be seen though no new row may come."""
        return [
            (unit.number, task + bucket)
            for item, units, task in zip(self.planned, self.units, self.first_tasks, strict=True)
            for bucket, unit in enumerate(units)
            if unit.older is not None and not item.is_unchanged
        ]


def written_apart(
    spark: SparkSession, work: Work, options: SourceOptions, directory: str
) -> list[Any]:
    """Read and write partitions of one bucket; rows of `snapshot_files.REPORT`."""
    from pyspark.sql import Row
    from pyspark.sql.pandas.types import to_arrow_schema

    from stratalog.pipeline import snapshot_files

    schema = to_arrow_schema(schema_of(options.columns), timezone="UTC")
    job = job_of(spark, options)
    biggest_first = sorted(
        zip(work.planned, work.units, strict=True), key=lambda pair: -pair[0].part.size_bytes
    )
    items = [(item.part, *units) for item, units in biggest_first]
    sizes = [item.part.size_bytes + _UNIT_BYTES for item, _ in biggest_first]
    cores = spark.sparkContext.defaultParallelism
    count = max(1, min(len(items), max(cores, sum(sizes) // _TASK_BYTES)))
    bins = [items[place::count] for place in range(count)]

    def write(found: Iterable[Sequence[Any]]) -> Iterator[Any]:
        for part, unit in (item for of_bin in found for item in of_bin):
            yield snapshot_files.write_part(part, unit, job, schema, directory)

    rows = spark.sparkContext.parallelize(bins, count).mapPartitions(write).collect()
    names = snapshot_files.REPORT_NAMES
    return [Row(**dict(zip(names, row, strict=True))) for row in rows]


def written_shared(
    spark: SparkSession, frame: DataFrame, work: Work, options: SourceOptions, directory: str
) -> list[Any]:
    """Write the rows of `frame`, which are those of `work`; rows of `snapshot_files.REPORT`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from stratalog.pipeline import snapshot_files

    schema = to_arrow_schema(schema_of(options.columns), timezone="UTC")
    units = {unit.number: unit for of_partition in work.units for unit in of_partition}
    shared = spark.sparkContext.broadcast(units)

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        return snapshot_files.write_units(batches, shared.value, schema, directory)

    try:
        rows = _routed(spark, frame, work, options)
        return rows.mapInArrow(write, snapshot_files.REPORT).collect()
    finally:
        shared.destroy()


def _routed(spark: SparkSession, frame: DataFrame, work: Work, options: SourceOptions) -> DataFrame:
    """The rows with their unit, in the partition of the task that writes it."""
    from pyspark.sql import functions

    names = list(options.columns)
    routes = spark.createDataFrame(
        work.routes(), "topic string, partition int, _first int, _buckets int, _task int"
    )
    bucket = functions.expr("cast(pmod(xxhash64(key), _buckets) as int)")
    rows = frame.join(functions.broadcast(routes), ["topic", "partition"]).select(
        *names,
        (functions.col("_first") + bucket).alias("_unit"),
        (functions.col("_task") + bucket).alias("_task"),
    )
    seen = work.looked_after()
    if seen:
        schema = schema_of(names).add("_unit", "integer").add("_task", "integer")
        nothing = (None,) * len(names)
        rows = rows.unionByName(
            spark.createDataFrame([(*nothing, unit, task) for unit, task in seen], schema)
        )
    return rows.repartitionById(work.tasks, functions.col("_task")).drop("_task")
