"""Does uneven data make cleaning on Spark slow?

What      1 GiB of uncompressed records, values of 100 bytes, 16-byte keys of which 10 % are
          distinct, cleaned by the Spark engine on `local[2]`, fsync included, session up and
          kernels warm, in five layouts:
            even          one partition, eight segments
            hot key       the same, but one key has half of the records
            partition     ten partitions, one of which holds 90 % of the bytes
            segment       one partition that is one segment
            both          ten partitions, one of which is a single segment of 90 % of the bytes
Against   The even log, by turns in the same run; the target is at most 1.5 times its time. With
          `--only uncut` nothing is cut that a task works on (`spark/cutting.py`), to see what
          cutting is good for. The yardstick (md5 of 1 GiB) as well.
How often Medians of 3 runs of each (`--runs`) after one that does not count.

    python benchmarks/spark_skew_bench.py [--quick] [--save] [--mib N] [--runs N] [--only uncut]
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from cleaning import Phases, warm_kernels
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
from logs import BenchLog, LogShape, generate
from yardstick import Yardstick

from stratalog.spark import cutting
from stratalog.spark.engine import SparkEngine
from stratalog.spark.session import spark_session

_CORES = 2
_RUNS = 3
_TARGET = 1.5
_PARTITIONS = 10
_LARGE = 0.9
_EVEN = "even"

Logs = Sequence[BenchLog]


def write_logs(scratch: str, options: Options) -> dict[str, Logs]:
    """The layouts, each of as many bytes."""
    even = LogShape(record_bytes=options.log_bytes, segment_bytes=options.log_bytes // 8)
    alone = 4 * options.log_bytes  # a segment that is never full
    large = replace(even, record_bytes=int(options.log_bytes * _LARGE))
    small_bytes = (options.log_bytes - large.record_bytes) // (_PARTITIONS - 1)
    small = [replace(even, record_bytes=small_bytes, seed=2 + n) for n in range(_PARTITIONS - 1)]
    shapes = {
        _EVEN: [even],
        "hot key": [replace(even, hot=0.5)],
        "partition": [large, *small],
        "segment": [replace(even, segment_bytes=alone)],
        "both": [replace(large, segment_bytes=alone), *small],
    }
    logs = {}
    for name, of_name in shapes.items():
        progress(f"generating: {name}")
        logs[name] = [
            generate(os.path.join(scratch, name.replace(" ", "-"), f"{number}"), shape)
            for number, shape in enumerate(of_name)
        ]
    return logs


@contextmanager
def linked(logs: Logs, scratch: str) -> Iterator[Logs]:
    """The logs in fresh directories, and the disk at rest."""
    directory = os.path.join(scratch, "run")
    made = [log.linked(os.path.join(directory, f"bench-{n}")) for n, log in enumerate(logs)]
    os.sync()
    try:
        yield made
    finally:
        shutil.rmtree(directory)


def clean_once(engine: SparkEngine, logs: Logs, scratch: str) -> tuple[float, float]:
    """Seconds of one job over all of them, and of its index phase; checks the outcome."""
    with linked(logs, scratch) as made:
        jobs = [replace(log.job(), name=f"bench-{number}") for number, log in enumerate(made)]
        phases = Phases()
        start = time.perf_counter()
        outcomes = engine.clean(jobs, writes=True, on_progress=phases)
        end = time.perf_counter()
    for log, outcome in zip(logs, outcomes, strict=True):
        if (outcome.volume.records_after, outcome.keys) != (log.keys, log.keys):
            raise SystemExit(f"wrong outcome: {outcome.keys} keys, not {log.keys}")
    return end - start, phases.began["rewrite"][0] - start


def measure(
    engine: SparkEngine, logs: dict[str, Logs], scratch: str, runs: int, yardstick: Yardstick
) -> dict[str, list[tuple[float, float]]]:
    """The runs of each layout, by turns; the first of each does not count."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in logs}
    for number in range(runs + 1):
        yardstick.take()
        for name, of_name in logs.items():
            seconds = clean_once(engine, of_name, scratch)
            progress(f"{name}: run {number} of {runs}: {seconds[0]:.2f} s")
            if number > 0:
                measured[name].append(seconds)
    yardstick.take()
    return measured


def main() -> None:
    options = parse_options(__doc__, mib=1024, cases=("uncut",))
    runs = min(options.runs, _RUNS)
    report = Report("Cleaning uneven logs on Spark", options)
    yardstick = Yardstick(quick=options.quick)
    warm_kernels()
    if options.only == "uncut":
        cutting.LEAST_SHARE_BYTES = 1 << 62
        report.line("nothing is cut: what a task works on is a whole segment or group")
    with scratch_directory() as scratch:
        logs = write_logs(scratch, options)
        session = spark_session(
            f"local[{_CORES}]",
            "stratalog-bench",
            {"spark.local.dir": os.path.join(scratch, "spark")},
        )
        try:
            measured = measure(SparkEngine(session), logs, scratch, runs, yardstick)
        finally:
            session.stop()
    report.line(yardstick.describe())
    even = median([seconds for seconds, _ in measured[_EVEN]])
    ratios = {
        name: median([seconds for seconds, _ in runs_of]) / even
        for name, runs_of in measured.items()
    }
    report.table(
        f"{_CORES} cores, {options.mib} MiB of records each, fsync included, without the swap",
        ("layout", "seconds", "index", "times even", "largest partition", "largest segment"),
        [
            (
                name,
                seconds_and_spread([seconds for seconds, _ in runs_of]),
                f"{median([index for _, index in runs_of]):.2f}",
                f"{ratios[name]:.2f}",
                f"{max(log.log_bytes for log in logs[name]) / MIB:.0f} MiB",
                f"{max(s.size_bytes for log in logs[name] for s in log.segments) / MIB:.0f} MiB",
            )
            for name, runs_of in measured.items()
        ],
    )
    worst = max(ratios, key=lambda name: ratios[name])
    met = "met" if ratios[worst] <= _TARGET else "NOT met"
    report.line()
    report.line(f"worst: {worst}, {ratios[worst]:.2f} times even (target {_TARGET}: {met})")
    report.finish()


if __name__ == "__main__":
    main()
