"""What does a ledger cost, against cleaning the same log in place?

What      `compact` of one partition with 100-byte values, 10 % of the keys distinct: in place, and
          into a ledger (`compaction.mode=ledger`); then, after 1 % of new records (keys that are
          there), once more: in place, and a ledger upon the last one. Both engines, two cores. All
          of it is timed: planning, reading, writing, fsync, the swap or the switch.
Against   Cleaning in place, same log, same engine, same run.
How often Medians of 3 runs (`--runs`) after one that does not count, the cases by turns; page
          cache, kernels and Spark's session warm.

    python benchmarks/ledger_bench.py [--quick] [--save] [--mib N] [--runs N] [--only local]
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cleaning import warm_kernels
from harness import (
    MIB,
    Report,
    median,
    parse_options,
    progress,
    scratch_directory,
    seconds_and_spread,
)
from logs import BenchLog, LogShape, generate

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.report import Mode
from stratalog.base.clock import SystemClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.settings import Settings, resolve
from stratalog.ledger.manifest import read_manifest
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.batch import batches

_ENGINES = ("local", "spark")
_MODES = ("inplace", "ledger")
_THREADS = 2
_RUNS = 3
_NEW_SHARE = 0.01
_DISK = LocalFileSystem()


def settings_for(mode: str, segment_bytes: int) -> Settings:
    """What `compact` is told."""
    given = {"compaction.mode": mode, "internal.segment.bytes": str(segment_bytes)}
    return resolve(given, {"cleanup.policy": ("compact",)})


@contextmanager
def linked_partition(log: BenchLog, scratch: str) -> Iterator[str]:
    """The log in a fresh directory: links, but for the last segment, which will be written to."""
    directory = os.path.join(scratch, "run", "bench-0")
    log.linked(directory)
    last = max(name for name in os.listdir(directory) if name.endswith(".log"))
    for name in os.listdir(directory):
        if name.split(".")[0] == last.split(".")[0]:
            path = os.path.join(directory, name)
            shutil.copy2(path, path + ".copy")
            os.replace(path + ".copy", path)
    os.sync()
    try:
        yield directory
    finally:
        shutil.rmtree(os.path.dirname(directory))


def append(directory: str, new: BenchLog) -> None:
    """Append the records of `new` to the log, as producers' batches."""
    settings = LogSettings(segment_bytes=1 << 30, max_message_bytes=MIB)
    with PartitionLog.open(directory, settings, _DISK, SystemClock()) as log:
        for path in new.log_paths:
            with open(path, "rb") as file:
                for batch in batches(memoryview(file.read())):
                    data = bytearray(batch.data)
                    data[:8] = bytes(8)  # a producer knows no offsets
                    log.append(data)
    os.sync()


def timed(directory: str, mode: str, segment_bytes: int, name: str, engine: Engine) -> float:
    """One `compact`; its seconds."""
    options = CompactionOptions(
        Mode.IN_PLACE, settings_for(mode, segment_bytes), keep_active=False, engine=name
    )
    start = time.perf_counter()
    compact([directory], options, lambda: engine, _DISK, SystemClock(), lambda _: None)
    return time.perf_counter() - start


def check(directory: str, mode: str, keys: int) -> None:
    """A ledger that lost a key, or an old value that stayed, is no use."""
    if mode == "ledger":
        current = read_manifest(_DISK, directory).current
        if current is None or current.records != keys:
            raise SystemExit(f"wrong ledger: {current and current.as_json()}, not {keys} records")


def main() -> None:
    """Measure and print."""
    options = parse_options(__doc__, mib=4096, cases=_ENGINES)
    report = Report("Compaction into a ledger", options)
    warm_kernels()
    seconds: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    with scratch_directory() as scratch:
        progress("generating")
        shape = LogShape(record_bytes=options.log_bytes, segment_bytes=options.segment_bytes)
        log = generate(os.path.join(scratch, "log"), shape)
        few = LogShape(record_bytes=int(options.log_bytes * _NEW_SHARE), distinct=10.0)
        new = generate(os.path.join(scratch, "new"), few)
        engines = _engines((options.only,) if options.only else _ENGINES)
        runs = options.runs if options.quick else min(options.runs, _RUNS)
        for number in range(runs + 1):
            for name, start in engines.items():
                for mode in _MODES:
                    engine = start()
                    with linked_partition(log, scratch) as directory:
                        first = timed(directory, mode, shape.segment_bytes, name, engine)
                        check(directory, mode, log.keys)
                        append(directory, new)
                        second = timed(directory, mode, shape.segment_bytes, name, engine)
                    progress(f"{name}, {mode}, run {number}: {first:.2f} s, {second:.2f} s")
                    if number > 0:
                        seconds[name, mode, "scratch"].append(first)
                        seconds[name, mode, "upon"].append(second)
    _print(report, log, seconds, list(engines))
    report.finish()


def _engines(names: Sequence[str]) -> dict[str, Callable[[], Engine]]:
    found: dict[str, Callable[[], Engine]] = {}
    if "local" in names:
        found["local"] = lambda: LocalEngine(_DISK, threads=_THREADS)
    if "spark" in names:
        from stratalog.spark.engine import SparkEngine
        from stratalog.spark.session import spark_session

        spark = spark_session(f"local[{_THREADS}]")
        found["spark"] = lambda: SparkEngine(spark)
    return found


def _print(
    report: Report,
    log: BenchLog,
    seconds: dict[tuple[str, str, str], list[float]],
    engines: list[str],
) -> None:
    titles = {"scratch": "all of the log", "upon": "1 % new, upon the last one"}
    rows = []
    for name in engines:
        for what, title in titles.items():
            in_place, ledger = (seconds[name, mode, what] for mode in _MODES)
            ratio = median(ledger) / median(in_place)
            rows.append(
                (
                    name,
                    title,
                    seconds_and_spread(in_place),
                    seconds_and_spread(ledger),
                    f"{ratio:.2f}",
                    f"{log.log_bytes / median(ledger) / 1e6:.0f}",
                )
            )
    head = ("engine", "what", "in place, s", "into a ledger, s", "ratio", "MB of log a second")
    report.table(f"Into a ledger, a log of {log.log_bytes / MIB:.0f} MiB", head, rows)


if __name__ == "__main__":
    main()
