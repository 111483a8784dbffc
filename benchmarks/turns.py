"""Cases that take turns, so that what the machine does meanwhile it does to all of them; and the
Spark session that such cases share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness import median, progress, seconds_and_spread

from stratalog.pipeline import register
from stratalog.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
"""Of the machine that the project is measured on."""


def by_turns(
    cases: Mapping[str, Callable[[], object]],
    runs: int,
    *,
    once: Sequence[str] = (),
    after: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each case, `runs` times, after one that does not count if there are several.

    Those named `once` are run once, which counts. `after` is called after each run, untimed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(0 if runs > 1 else 1, runs + 1):
        for name, run in cases.items():
            if name in once and number != 1:
                continue
            start = time.perf_counter()
            run()
            taken = time.perf_counter() - start
            after()
            progress(f"{name}: run {number} of {runs}: {taken:.2f} s")
            if number > 0:
                seconds[name].append(taken)
    return seconds


def speeds(
    seconds: Mapping[str, Sequence[float]], rows: int, size_bytes: int
) -> list[tuple[str, str, str, str]]:
    """A table's rows: case, seconds, million rows a second, MB a second."""
    return [
        (
            name,
            seconds_and_spread(list(taken)),
            f"{rows / median(list(taken)) / 1e6:.2f}",
            f"{size_bytes / median(list(taken)) / 1e6:.0f}",
        )
        for name, taken in seconds.items()
    ]


@contextmanager
def bench_session(scratch: str) -> Iterator[SparkSession]:
    """A session on `CORES` cores that knows the source, with its own files in `scratch`."""
    conf = {"spark.local.dir": os.path.join(scratch, "spark")}
    spark = spark_session(f"local[{CORES}]", "stratalog-bench", conf)
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()
