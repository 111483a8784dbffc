"""How fast does Spark write to a log, against the same rows to Parquet?

What      Rows with keys of 16 bytes, once with values of 100 bytes and once of 1 KiB, that lie in
          Spark's cache, written by `format("stratalog")` on `local[2]` to a topic of four
          partitions, in one batch. Nothing is compressed. The tasks write aside and sync, the
          commit appends and syncs again: each byte goes to the disk twice.
Against   Spark writing the same rows as uncompressed Parquet, which nobody syncs, by turns in the
          same session; and the tasks' part of ours alone.
How often Medians of 5 runs of each (`--runs`) after one that does not count.

    python benchmarks/spark_write_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness import (
    MIB,
    Report,
    median,
    parse_options,
    scratch_directory,
)
from pyspark.sql.datasource import DataSource, DataSourceWriter
from turns import CORES, bench_session, by_turns, speeds

from stratalog.pipeline import sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PARTITIONS = 4
_KEY_BYTES = 16
_VALUE_BYTES = (100, 1024)


class StagingSink(sink.BatchSink):
    """The tasks' part alone: what they have staged is thrown away."""

    def commit(self, messages: list[Any]) -> None:
        """Append nothing."""
        self.abort(messages)


class Staging(DataSource):
    """`format("staging")`."""

    @classmethod
    def name(cls) -> str:
        return "staging"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        made = sink.batch_writer(self.options, schema, overwrite)
        assert isinstance(made, sink.BatchSink)
        return StagingSink(made._options, made._plan)


def rows_of(spark: SparkSession, count: int, value_bytes: int) -> DataFrame:
    """That many rows, in memory."""
    frame = spark.range(0, count, 1, CORES * 2).selectExpr(
        f"encode(lpad(cast(id % {count // 2 + 1} as string), {_KEY_BYTES}, '0'), 'utf-8') key",
        f"encode(rpad(sha2(cast(id as string), 512), {value_bytes}, 'x'), 'utf-8') value",
    )
    frame = frame.cache()
    frame.count()
    return frame


def cases_of(frame: DataFrame, path: str) -> dict[str, Callable[[], None]]:
    """What is measured, by name."""
    to_log = frame.write.format("stratalog").mode("append").option("topic", "t")
    to_log = to_log.option("num.partitions", str(_PARTITIONS))
    aside = frame.write.format("staging").mode("append").option("topic", "t")
    aside = aside.option("num.partitions", str(_PARTITIONS))
    to_parquet = frame.write.mode("append").option("compression", "none")
    return {
        "stratalog": lambda: to_log.save(path),
        "stratalog, tasks only": lambda: aside.save(path),
        "parquet": lambda: to_parquet.parquet(path),
    }


def main() -> None:
    options = parse_options(__doc__, mib=512)
    report = Report("Spark writes to a log, and the same rows to Parquet", options)
    with scratch_directory() as scratch, bench_session(scratch) as spark:
        spark.dataSource.register(Staging)
        for value_bytes in _VALUE_BYTES[:1] if options.quick else _VALUE_BYTES:
            count = options.log_bytes // (_KEY_BYTES + value_bytes)
            frame = rows_of(spark, count, value_bytes)
            path = os.path.join(scratch, "written")
            cases = cases_of(frame, path)
            seconds = by_turns(cases, options.runs, after=lambda path=path: shutil.rmtree(path))
            tell(report, count, value_bytes, seconds)
            frame.unpersist()
    report.finish()


def tell(report: Report, count: int, value_bytes: int, seconds: dict[str, list[float]]) -> None:
    """The table of one size of values."""
    size_bytes = count * (_KEY_BYTES + value_bytes)
    report.table(
        f"Values of {value_bytes} bytes: {count:,} rows, {size_bytes / MIB:.0f} MiB, {CORES} cores",
        ("write", "seconds", "million rows/s", "MB/s of rows"),
        speeds(seconds, count, size_bytes),
    )
    ratio = median(seconds["stratalog"]) / median(seconds["parquet"])
    report.line()
    report.line(f"The log takes {ratio:.2f} times the time of Parquet")


if __name__ == "__main__":
    main()
