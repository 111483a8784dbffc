"""How long does cleaning one partition take, against a real Kafka's cleaner?

What      The local engine on 1 GiB of uncompressed records in one partition, 16-byte keys, 10 %
          of them distinct: values of 100 bytes and of 1 KiB, without a codec, with lz4, with zstd.
          Two threads, and one. Fsync of all that is written is included. The swap is timed apart;
          the unlinking of what it replaced is nearly free here, as the log is hard-linked.
Against   The yardstick (md5 of 1 GiB on one thread, same run); the figures of Kafka's own cleaner
          (one thread, warmed JVM, 2 cores) and the targets, both in yardsticks; the floor: reading
          the bytes once and writing and fsyncing the output alone, both on two threads.
How often Medians of 5 runs (`--runs`) after one that does not count; page cache and kernels warm.

    python benchmarks/clean_bench.py [--quick] [--save] [--mib N] [--runs N] [--only 100-lz4]
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass, field

from cleaning import Run, clean_once, linked_run, swap_in, warm_kernels
from disk import TimedFileSystem, seconds_to_read, seconds_to_write
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
from logs import BenchLog, LogShape, generate, value_ratios
from yardstick import Yardstick

from stratalog.clean.local_engine import LocalEngine
from stratalog.record.codec import Codec

_THREADS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """What is cleaned; what Kafka takes for it and what is aimed at, in yardsticks."""

    value_bytes: int
    codec: Codec
    kafka: float
    target: float

    @property
    def name(self) -> str:
        return f"{self.value_bytes}-{self.codec.name.lower()}"


CASES = (
    Case(100, Codec.NONE, 5.3, 1.0),
    Case(100, Codec.LZ4, 6.4, 2.0),
    Case(100, Codec.ZSTD, 8.7, 3.0),
    Case(1024, Codec.NONE, 1.15, 0.45),
    Case(1024, Codec.LZ4, 2.0, 0.8),
    Case(1024, Codec.ZSTD, 4.3, 1.5),
)


@dataclass(slots=True)
class Measured:
    """All runs of a case, by what was measured: seconds, or cores busy."""

    case: Case
    log: BenchLog
    figures: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, what: str, value: float) -> None:
        self.figures[what].append(value)

    def median(self, what: str) -> float:
        return median(self.figures[what])


def measure(case: Case, options: Options, yardstick: Yardstick, scratch: str) -> Measured:
    """All runs of one case, one- and two-threaded ones and the floor by turns."""
    progress(f"{case.name}: generating")
    shape = LogShape(
        case.value_bytes,
        case.codec,
        record_bytes=options.log_bytes,
        segment_bytes=options.segment_bytes,
    )
    log = generate(os.path.join(scratch, "log"), shape)
    disk, lazy = TimedFileSystem(), TimedFileSystem(skips_fsync=True)
    engines = {threads: LocalEngine(disk, threads=threads) for threads in (_THREADS, 1)}
    without_fsync = LocalEngine(lazy, threads=_THREADS)
    warm = Measured(case, log)
    measured = Measured(case, log)
    for number in range(options.runs + 1):
        into = measured if number else warm
        if number % 2 == 0:
            yardstick.take()
        with linked_run(log, scratch) as linked:
            disk.spent.clear()
            run = clean_once(engines[_THREADS], linked)
            _add_run(into, run, disk)
            start = time.perf_counter()
            swap_in(run.outcome)
            into.add("swap", time.perf_counter() - start)
        with linked_run(log, scratch) as linked:
            into.add("one thread", clean_once(engines[1], linked).seconds)
        with linked_run(log, scratch) as linked:
            into.add("without fsync", clean_once(without_fsync, linked).seconds)
        into.add("floor read", seconds_to_read(log.log_paths, _THREADS))
        os.sync()
        sizes = [group.volume.bytes_after for group in run.outcome.groups]
        into.add("floor write", seconds_to_write(scratch, sizes, _THREADS))
        progress(f"{case.name}: run {number} of {options.runs}: {run.seconds:.2f} s")
    shutil.rmtree(log.directory)
    return measured


def _add_run(into: Measured, run: Run, disk: TimedFileSystem) -> None:
    into.add("clean", run.seconds)
    into.add("index", run.index_seconds)
    into.add("rewrite", run.rewrite_seconds)
    into.add("index cores", run.index_cores)
    into.add("rewrite cores", run.rewrite_cores)
    for what in ("read", "write", "fsync"):
        into.add(what, disk.spent[what])


def print_speed(
    report: Report, all_measured: list[Measured], yardstick: Yardstick, options: Options
) -> None:
    """How fast it is, in seconds and in yardsticks."""
    rows = []
    for measured in all_measured:
        case, log = measured.case, measured.log
        seconds = measured.median("clean")
        # Yardsticks for a GiB of records: smaller logs count for as much as they are.
        unit = yardstick.seconds * log.record_bytes / (1 << 30)
        ratio = seconds / unit
        with_swap = (seconds + measured.median("swap")) / unit
        met = ("yes" if ratio <= case.target else "NO") if options.is_full_size else "-"
        rows.append(
            (
                case.name,
                f"{log.log_bytes / MIB:.0f}",
                seconds_and_spread(measured.figures["clean"]),
                f"{log.record_bytes / seconds / 1e6:.0f}",
                f"{ratio:.2f}",
                f"{case.target:.2f}",
                met,
                f"{case.kafka:.2f}",
                f"{case.kafka / ratio:.1f} x",
                f"{with_swap:.2f}",
                f"{measured.median('one thread') / unit:.2f}",
            )
        )
    report.table(
        "Speed on two threads, fsync included. MB/s: uncompressed record bytes over seconds; "
        "from 'reached' on: yardsticks.",
        (
            "case",
            "log MiB",
            "seconds",
            "MB/s",
            "reached",
            "target",
            "met",
            "Kafka",
            "faster",
            "with swap",
            "one thread",
        ),
        rows,
    )


def print_costs(report: Report, all_measured: list[Measured]) -> None:
    """Where the seconds go."""
    rows = []
    for measured in all_measured:
        floor = measured.median("floor read") + measured.median("floor write")
        rows.append(
            (
                measured.case.name,
                *(f"{measured.median(what):.2f}" for what in ("clean", "index", "rewrite")),
                f"{measured.median('index cores'):.1f}/{measured.median('rewrite cores'):.1f}",
                *(f"{measured.median(what):.2f}" for what in ("read", "write", "fsync")),
                *(
                    f"{measured.median(what):.2f}"
                    for what in ("without fsync", "swap", "floor read", "floor write")
                ),
                f"{measured.median('clean') / floor:.1f} x",
            )
        )
    report.table(
        "Where the time goes, in seconds. Cores: busy while indexing/rewriting; read, write, fsync:"
        " summed over both threads, inside index and rewrite.",
        (
            "case",
            "clean",
            "index",
            "rewrite",
            "cores",
            "read",
            "write",
            "fsync",
            "without fsync",
            "swap",
            "floor read",
            "floor write",
            "of floor",
        ),
        rows,
    )


def main() -> None:
    options = parse_options(__doc__, mib=1024, cases=[case.name for case in CASES])
    report = Report("Cleaning one partition with the local engine", options)
    for value_bytes in (100, 1024):
        lz4, zstd = value_ratios(value_bytes)
        report.line(f"values of {value_bytes} bytes: lz4 shrinks them {lz4:.2f}, zstd {zstd:.2f} x")
    yardstick = Yardstick(quick=options.quick)
    warm_kernels()
    with scratch_directory() as scratch:
        cases = [case for case in CASES if options.only in (None, case.name)]
        all_measured = [measure(case, options, yardstick, scratch) for case in cases]
    yardstick.take()
    for measured in all_measured:
        log = measured.log
        report.line(
            f"{measured.case.name}: {log.records:,} records, {log.keys:,} keys, "
            f"{len(log.segments)} segments, all of it shrunk {log.ratio:.2f} x"
        )
    report.line(yardstick.describe())
    print_speed(report, all_measured, yardstick, options)
    print_costs(report, all_measured)
    report.finish()


if __name__ == "__main__":
    main()
