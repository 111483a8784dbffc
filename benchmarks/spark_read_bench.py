"""How fast does Spark read a log, against the same rows from Parquet?

What      One partition of uncompressed records, 16-byte keys, once with values of 100 bytes and
          once of 1 KiB, read by `format("stratalog")` on `local[2]`: every column of every row
          (hashed into one number); then `columns=offset` alone; then `view=latest` against a
          window query over the raw rows, which is run once.
Against   Spark reading the same rows from uncompressed Parquet, all columns, by turns in the same
          session, and `dd` of the log's files to /dev/null, both from the page cache.
How often Medians of 5 runs of each (`--runs`) after one that does not count.

    python benchmarks/spark_read_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness import (
    MIB,
    Report,
    median,
    parse_options,
    progress,
    scratch_directory,
)
from logs import BenchLog, LogShape, generate
from turns import CORES, bench_session, by_turns, speeds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VALUE_BYTES = (100, 1024)
_SLOW = "window query over raw"
_WINDOW = """
SELECT bit_xor(xxhash64(key, value, offset)) FROM (
    SELECT *, row_number() OVER (PARTITION BY key ORDER BY offset DESC) AS place FROM {table}
) WHERE place = 1 AND value IS NOT NULL
"""


def scan(frame: DataFrame) -> None:
    """Look at every column of every row; a count would be optimised to look at none."""
    frame.selectExpr(f"bit_xor(xxhash64({', '.join(frame.columns)}))").collect()


def with_dd(log: BenchLog) -> None:
    """Read the files as the operating system does."""
    for path in log.log_paths:
        command = ["dd", f"if={path}", "of=/dev/null", "bs=4M"]
        subprocess.run(command, check=True, capture_output=True)


def cases_of(spark: SparkSession, log: BenchLog, parquet: str) -> dict[str, Callable[[], None]]:
    """What is measured, by name."""
    raw = spark.read.format("stratalog").load(log.directory)
    raw.write.option("compression", "none").parquet(parquet)
    offsets = spark.read.format("stratalog").option("columns", "offset").load(log.directory)
    latest = spark.read.format("stratalog").option("view", "latest").load(log.directory)
    stored = spark.read.parquet(parquet)
    raw.createOrReplaceTempView("raw_log")
    return {
        "stratalog, all columns": lambda: scan(raw),
        "stratalog, offset only": lambda: scan(offsets),
        "parquet, all columns": lambda: scan(stored),
        "parquet, offset only": lambda: scan(stored.select("offset")),
        "dd": lambda: with_dd(log),
        "view=latest": lambda: scan(latest),
        _SLOW: lambda: [*spark.sql(_WINDOW.format(table="raw_log")).collect()] and None,
    }


def main() -> None:
    options = parse_options(__doc__, mib=1024)
    report = Report("Spark reads a log, and the same rows from Parquet", options)
    with scratch_directory() as scratch, bench_session(scratch) as spark:
        for value_bytes in _VALUE_BYTES[:1] if options.quick else _VALUE_BYTES:
            progress(f"generating values of {value_bytes} bytes")
            shape = LogShape(
                value_bytes=value_bytes,
                record_bytes=options.log_bytes,
                segment_bytes=options.segment_bytes,
            )
            log = generate(os.path.join(scratch, f"values{value_bytes}-0"), shape)
            cases = cases_of(spark, log, os.path.join(scratch, f"parquet{value_bytes}"))
            tell(report, log, by_turns(cases, options.runs, once=[_SLOW]))
    report.finish()


def tell(report: Report, log: BenchLog, seconds: dict[str, list[float]]) -> None:
    """The table of one log, and the two ratios that matter."""
    report.table(
        f"Values of {log.shape.value_bytes} bytes: {log.records:,} records, "
        f"{log.log_bytes / MIB:.0f} MiB, {CORES} cores",
        ("read", "seconds", "million rows/s", "MB/s of log"),
        speeds(seconds, log.records, log.log_bytes),
    )
    of_log, of_parquet = (
        median(seconds[f"{name}, all columns"]) for name in ("stratalog", "parquet")
    )
    latest, window = (median(seconds[name]) for name in ("view=latest", _SLOW))
    report.line()
    report.line(f"The log takes {of_log / of_parquet:.2f} times the time of Parquet")
    report.line(f"view=latest is {window / latest:.1f} times as fast as the window query (aim: 5)")


if __name__ == "__main__":
    main()
