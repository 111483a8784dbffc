"""How long until a store is open: after a clean stop, and after one that was not.

What      open       `LogStore.open` of one log directory with 1,000 partitions of 5 segments each,
                     a few batches a segment, closed in order; all files in the page cache. With
                     one thread and with two.
          recovery   `LogStore.open` of a directory with one log of 4 GiB in segments of 1 GiB,
                     16 KiB batches, no clean-shutdown marker and no recovery point: every batch's
                     checksum is checked, indexes are made and held against those that are there.
                     One worker. `first` is the first segment alone, in a fresh process whose
                     kernels are compiled but not loaded.
Against   The md5 yardstick (1 GiB on one thread) over the same number of bytes, in the same run;
          and reading the same bytes from the page cache into one buffer.
How often Medians of 5 runs (`--runs`); `--mib` sets the size of the log to recover.

    python benchmarks/recovery_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cleaning import warm_kernels
from harness import MIB, Options, Report, median, parse_options, progress, scratch_directory
from logs import BenchLog, LogShape, generate
from yardstick import Yardstick

from stratalog.base.clock import SystemClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE, TopicPartition

_GIB = 1 << 30
_SEGMENTS = 5
_PARTITIONS = 1000
_QUICK_PARTITIONS = 20

_ONE_SEGMENT = """
import sys, time
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.recovery import recover
start = time.perf_counter()
found = recover(LocalFileSystem(), sys.argv[1], recovery_point=0, log_start_offset=0,
                interval_bytes=4096, now_ms=0)
print(found.scanned_bytes, time.perf_counter() - start)
"""


def main() -> None:
    options = parse_options(__doc__, mib=4096)
    report = Report("Opening a store", options)
    yardstick = Yardstick(quick=options.quick)
    warm_kernels()
    with scratch_directory() as scratch:
        _measure_open(options, report, os.path.join(scratch, "many"))
        yardstick.take()
        _measure_recovery(options, report, yardstick, os.path.join(scratch, "large"))
    report.line(yardstick.describe())
    report.finish()


def _open(log_dir: str, threads: int) -> tuple[LogStore, float]:
    settings = LogSettings(cleanup_policy=("compact",))
    start = time.perf_counter()
    store = LogStore.open(
        [log_dir],
        lambda _: settings,
        LocalFileSystem(),
        SystemClock(),
        StoreSettings(recovery_threads=threads),
    )
    return store, time.perf_counter() - start


def _measure_open(options: Options, report: Report, log_dir: str) -> None:
    partitions = _QUICK_PARTITIONS if options.quick else _PARTITIONS
    progress(f"making {partitions} partitions of {_SEGMENTS} segments")
    settings = LogSettings(segment_bytes=1 << 20)
    with LogStore.open([log_dir], lambda _: settings, LocalFileSystem(), SystemClock()) as store:
        for number in range(partitions):
            log = store.create(TopicPartition("topic", number))
            for segment in range(_SEGMENTS):
                for batch in range(4):
                    log.append_records([NewRecord(b"key-%d" % batch, bytes(1000))])
                if segment < _SEGMENTS - 1:
                    log.roll()
    rows = []
    for threads in (1, 2):
        opening, closing = [], []
        for _ in range(options.runs):
            store, seconds = _open(log_dir, threads)
            assert not store.failed, store.failed
            opening.append(seconds)
            start = time.perf_counter()
            store.close()
            closing.append(time.perf_counter() - start)
        rows.append(
            (
                f"{threads}",
                f"{median(opening):.2f}",
                f"{partitions / median(opening):,.0f}",
                f"{min(opening):.2f}-{max(opening):.2f}",
                f"{median(closing):.2f}",
            )
        )
    report.table(
        f"Opening {partitions} partitions of {_SEGMENTS} segments after a clean stop",
        ("threads", "s", "partitions/s", "range s", "close s"),
        rows,
    )


def _measure_recovery(options: Options, report: Report, yardstick: Yardstick, log_dir: str) -> None:
    os.makedirs(log_dir)
    size_bytes = options.log_bytes
    shape = LogShape(record_bytes=size_bytes, segment_bytes=min(_GIB, size_bytes // 4))
    progress(f"making a log of {options.mib} MiB")
    log = generate(os.path.join(log_dir, "topic-0"), shape)
    total_bytes = sum(segment.size_bytes for segment in log.segments)
    first = _first_segment(log, os.path.join(log_dir, "..", "first"))
    taken, reading = [], []
    for _ in range(options.runs):
        for name in (CLEAN_SHUTDOWN_FILE, "recovery-point-offset-checkpoint"):
            Path(log_dir, name).unlink(missing_ok=True)
        progress("recovering")
        store, seconds = _open(log_dir, 1)
        assert not store.failed, store.failed
        found = store.get(TopicPartition("topic", 0)).recovery
        assert found is not None, found
        assert found.scanned_bytes == total_bytes, (found, total_bytes)
        store.close()
        taken.append(seconds)
        reading.append(_seconds_to_read(log))
        yardstick.take()
    unit = yardstick.seconds * total_bytes / _GIB
    rows = [
        _row("recovery", total_bytes, median(taken), unit, f"{min(taken):.2f}-{max(taken):.2f}"),
        _row("reading alone", total_bytes, median(reading), unit, ""),
        _row(
            "first segment, fresh process",
            first[0],
            first[1],
            yardstick.seconds * first[0] / _GIB,
            "",
        ),
    ]
    report.table(
        f"Recovering {total_bytes / MIB:,.0f} MiB after an unclean stop, one worker",
        ("", "s", "MB/s", "of md5", "range s"),
        rows,
    )


def _row(name: str, size_bytes: int, seconds: float, unit: float, spread: str) -> tuple[str, ...]:
    ratio = f"{seconds / unit:.3f}"
    return name, f"{seconds:.2f}", f"{size_bytes / seconds / 1e6:,.0f}", ratio, spread


def _seconds_to_read(log: BenchLog) -> float:
    filesystem = LocalFileSystem()
    buffer = memoryview(bytearray(4 * MIB))
    start = time.perf_counter()
    for segment in log.segments:
        path = os.path.join(log.directory, f"{segment.base_offset:020d}.log")
        file = filesystem.open(path, "read")
        position = 0
        while (count := file.pread_into(buffer, position)) > 0:
            position += count
        file.close()
    return time.perf_counter() - start


def _first_segment(log: BenchLog, directory: str) -> tuple[int, float]:
    """Bytes and seconds of recovering the first segment alone, in a process of its own."""
    os.makedirs(directory)
    base = log.segments[0].base_offset
    for kind in ("log", "index", "timeindex"):
        name = f"{base:020d}.{kind}"
        shutil.copy(os.path.join(log.directory, name), os.path.join(directory, name))
    done = subprocess.run(
        [sys.executable, "-c", _ONE_SEGMENT, directory],
        capture_output=True,
        text=True,
        check=True,
    )
    size, seconds = done.stdout.split()
    shutil.rmtree(directory)
    return int(size), float(seconds)


if __name__ == "__main__":
    main()
