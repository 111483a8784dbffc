"""How much slower than the local engine is Spark on this machine?

What      4 GiB of uncompressed records in one partition, values of 100 bytes, 16-byte keys of
          which 10 % are distinct, cleaned by the Spark engine on `local[2]`, fsync included, the
          session up and the kernels warm. How long a session takes to start, and the first small
          clean on it (which starts the Python workers), is told apart.
Against   The local engine with two threads on the same log, by turns in the same run; the target
          is at most 1.6 times its time. The yardstick (md5 of 1 GiB) as well.
How often Medians of 5 runs of each (`--runs`) after one that does not count.

    python benchmarks/spark_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import os
import time

from cleaning import Run, clean_once, linked_run, warm_kernels
from harness import (
    MIB,
    QUICK_MIB,
    QUICK_SEGMENT_BYTES,
    Report,
    median,
    parse_options,
    progress,
    scratch_directory,
    seconds_and_spread,
)
from logs import BenchLog, LogShape, generate
from yardstick import Yardstick

from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.local_engine import LocalEngine
from stratalog.spark.engine import SparkEngine
from stratalog.spark.session import spark_session

_CORES = 2
_TARGET = 1.6


def measure(
    engines: dict[str, Engine], log: BenchLog, scratch: str, runs: int, yardstick: Yardstick
) -> dict[str, list[Run]]:
    """The runs of each engine, by turns, after one that does not count if there are several."""
    measured: dict[str, list[Run]] = {name: [] for name in engines}
    for number in range(0 if runs > 1 else 1, runs + 1):
        yardstick.take()
        for name, engine in engines.items():
            with linked_run(log, scratch) as linked:
                run = clean_once(engine, linked)
            progress(f"{name}: run {number} of {runs}: {run.seconds:.2f} s")
            if number > 0:
                measured[name].append(run)
    yardstick.take()
    return measured


def main() -> None:
    options = parse_options(__doc__, mib=4096)
    report = Report("Cleaning one partition on Spark and with the local engine", options)
    yardstick = Yardstick(quick=options.quick)
    warm_kernels()
    small_mib = min(QUICK_MIB, options.mib)
    with scratch_directory() as scratch:
        progress("generating")
        shape = LogShape(record_bytes=options.log_bytes, segment_bytes=options.segment_bytes)
        log = generate(os.path.join(scratch, "log"), shape)
        small = generate(
            os.path.join(scratch, "small"),
            LogShape(record_bytes=small_mib * MIB, segment_bytes=QUICK_SEGMENT_BYTES),
        )
        start = time.perf_counter()
        session = spark_session(
            f"local[{_CORES}]",
            "stratalog-bench",
            {"spark.local.dir": os.path.join(scratch, "spark")},
        )
        started = time.perf_counter() - start
        try:
            spark = SparkEngine(session)
            with linked_run(small, scratch) as linked:
                first = clean_once(spark, linked).seconds
            local = LocalEngine(LocalFileSystem(), threads=_CORES)
            engines: dict[str, Engine] = {"local": local, "spark": spark}
            measured = measure(engines, log, scratch, options.runs, yardstick)
        finally:
            session.stop()
    report.line(
        f"{log.records:,} records of 100-byte values, {log.keys:,} keys, "
        f"{log.log_bytes / MIB:.0f} MiB in {len(log.segments)} segments"
    )
    report.line(
        f"session start {started:.1f} s, first clean on it ({small_mib} MiB) {first:.1f} s, "
        "neither counted below"
    )
    report.line(yardstick.describe())
    unit = yardstick.seconds * log.record_bytes / (1 << 30)
    seconds = {name: [run.seconds for run in runs] for name, runs in measured.items()}
    report.table(
        f"{_CORES} cores, fsync included, without the swap. Yardsticks: for each GiB of records.",
        ("engine", "seconds", "MB/s", "yardsticks", "index", "rewrite"),
        [
            (
                name,
                seconds_and_spread(seconds[name]),
                f"{log.record_bytes / median(seconds[name]) / 1e6:.0f}",
                f"{median(seconds[name]) / unit:.2f}",
                f"{median([run.index_seconds for run in runs]):.2f}",
                f"{median([run.rewrite_seconds for run in runs]):.2f}",
            )
            for name, runs in measured.items()
        ],
    )
    ratio = median(seconds["spark"]) / median(seconds["local"])
    met = "met" if ratio <= _TARGET else "NOT met"
    verdict = f"target {_TARGET}: {met}" if options.is_full_size else f"target {_TARGET} on 4 GiB"
    report.line()
    report.line(f"Spark takes {ratio:.2f} times the local engine's time ({verdict})")
    report.finish()


if __name__ == "__main__":
    main()
