"""How does the cost of cleaning grow with the log, and fall with the cores?

What      One partition of uncompressed records, values of 100 bytes, 16-byte keys of which 10 % are
          distinct, of 1, 4 and 16 GiB (`--mib` is the largest; the others are a quarter and a
          sixteenth of it), cleaned with fsync: by the local engine on 1 and 2 threads, with the
          128 MiB for keys and offsets that are the default, which the largest log's do not fit,
          and with 1 GiB; by Spark on `local[1]`, `local[2]`, and on two executors of one core each
          (`local-cluster`), whose workers share no process.
Against   Each other on the same log, and the yardstick (md5 of 1 GiB), in the same run.
How often Medians of 3 runs of each (`--runs`) after one that does not count, which starts Spark's
          workers. Sessions are up and kernels warm before anything counts.

    python benchmarks/spark_scale_bench.py [--quick] [--save] [--mib N] [--runs N] [--only WAY]
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cleaning import Run, clean_once, linked_run, warm_kernels
from harness import (
    MIB,
    Options,
    Report,
    median,
    parse_options,
    progress,
    scratch_directory,
    seconds_and_spread,
)
from logs import DEFAULT_MEMORY_BYTES, BenchLog, LogShape, generate
from yardstick import Yardstick

from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.local_engine import LocalEngine
from stratalog.spark.engine import SparkEngine
from stratalog.spark.session import spark_session

_SIZES = (16, 4, 1)


def sizes_of(options: Options) -> list[int]:
    """MiB of each log, the smallest first."""
    return sorted({max(1, options.mib // share) for share in _SIZES})


@dataclass(frozen=True)
class Way:
    """How a log is cleaned: by threads here, with that much memory, or by Spark on a master."""

    threads: int = 0
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    master: str = ""


WAYS = {
    "local, 1 thread": Way(threads=1),
    "local, 2 threads": Way(threads=2),
    "local, 2 threads, 1 GiB": Way(threads=2, memory_bytes=1 << 30),
    "Spark, 1 core": Way(master="local[1]"),
    "Spark, 2 cores": Way(master="local[2]"),
    "Spark, 2 executors": Way(master="local-cluster[2,1,2048]"),
}


@contextmanager
def engine_of(way: Way, scratch: str) -> Iterator[Engine]:
    """The engine; on Spark with a session of its own."""
    if not way.master:
        yield LocalEngine(LocalFileSystem(), threads=way.threads)
        return
    folder = os.path.join(scratch, "spark")
    session = spark_session(way.master, "stratalog-bench", {"spark.local.dir": folder})
    try:
        yield SparkEngine(session)
    finally:
        session.stop()


def measure(
    engine: Engine, name: str, log: BenchLog, scratch: str, runs: int, yardstick: Yardstick
) -> list[Run]:
    """The runs of one way; the first does not count."""
    measured = []
    for number in range(runs + 1):
        yardstick.take()
        with linked_run(log, scratch) as linked:
            run = clean_once(engine, linked, WAYS[name].memory_bytes)
        progress(f"{name}, {log.log_bytes // MIB} MiB: run {number} of {runs}: {run.seconds:.2f} s")
        if number > 0:
            measured.append(run)
    return measured


def main() -> None:
    options = parse_options(__doc__, mib=16384, cases=tuple(WAYS))
    runs = 3 if options.runs == 5 else options.runs
    report = Report("Cleaning logs of growing size, with more and more cores", options)
    yardstick = Yardstick(quick=options.quick)
    warm_kernels()
    ways = {name: way for name, way in WAYS.items() if options.only in (None, name)}
    measured: dict[tuple[str, int], list[Run]] = {}
    with scratch_directory() as scratch:
        logs = {}
        for size_mib in sizes_of(options):
            progress(f"generating {size_mib} MiB")
            segment_bytes = min(options.segment_bytes, max(1, size_mib // 4) * MIB)
            shape = LogShape(record_bytes=size_mib * MIB, segment_bytes=segment_bytes)
            logs[size_mib] = generate(os.path.join(scratch, f"log{size_mib}"), shape)
        for name, way in ways.items():
            with engine_of(way, scratch) as engine:
                for size_mib, log in logs.items():
                    measured[name, size_mib] = measure(engine, name, log, scratch, runs, yardstick)
        yardstick.take()
    tell(report, logs, list(ways), measured, yardstick)
    report.finish()


def tell(
    report: Report,
    logs: dict[int, BenchLog],
    engines: list[str],
    measured: dict[tuple[str, int], list[Run]],
    yardstick: Yardstick,
) -> None:
    """A table of all, then how cost grows and scales."""
    report.line(yardstick.describe())
    rows = []
    for name in engines:
        for size_mib, log in logs.items():
            seconds = [run.seconds for run in measured[name, size_mib]]
            unit = yardstick.seconds * log.record_bytes / (1 << 30)
            rows.append(
                (
                    name,
                    f"{size_mib:,}",
                    f"{log.keys:,}",
                    seconds_and_spread(seconds),
                    f"{log.record_bytes / median(seconds) / 1e6:.0f}",
                    f"{median(seconds) / unit:.2f}",
                )
            )
    report.table(
        "fsync included, without the swap. Yardsticks: for each GiB of records.",
        ("engine", "MiB", "keys", "seconds", "MB/s", "yardsticks"),
        rows,
    )
    small, large = min(logs), max(logs)

    def taken(name: str, size_mib: int) -> float:
        return median([run.seconds for run in measured[name, size_mib]])

    report.line()
    for name in engines:
        growth = taken(name, large) / taken(name, small)
        report.line(f"{name}: {growth:.1f} times the time for {large / small:.0f} times the log")
    for one, two in (("local, 1 thread", "local, 2 threads"), ("Spark, 1 core", "Spark, 2 cores")):
        if not {one, two} <= set(engines):
            continue
        gain = taken(one, large) / taken(two, large)
        report.line(f"{two}: {gain:.2f} times as fast as {one} on {large:,} MiB")


if __name__ == "__main__":
    main()
