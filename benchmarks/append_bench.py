"""How fast does a partition take what producers send, and what does the disk leave possible?

What      `PartitionLog.append` of batches of 16 KiB before compression (16-byte keys, values of
          100 bytes), one by one on one thread, into a new log: uncompressed, lz4, and uncompressed
          into a topic that stores lz4 (`compression.type`). Everything that an append does is in
          it: checksum, a look at every record, offsets, indexes.
              page cache   nothing is made durable
              flush each   `flush` after every batch, so that each is on the disk before the next
              group commit `flush.messages=1` with 1 to 16 threads: each append returns when
                           its batch is on the disk, and those that wait together share an fsync
              steps        the checks alone; placing (offsets, times) alone; the rest is files,
                           indexes and the log's state
Against   The same bytes as the log holds in the end, written batch by batch to one file: a loop of
          `write`, and a loop of `write` and `fdatasync`. No log can do with less.
How often Medians of 5 runs (`--runs`) over 256 MiB of batches (`--mib`), and over a 16th of that
          where every batch is flushed; each run is followed by its floor, the disk at rest before.

    python benchmarks/append_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import cycle, islice

from cleaning import warm_kernels
from harness import MIB, Options, Report, median, parse_options, progress, scratch_directory
from logs import NOW_MS, LogShape, generate
from yardstick import Yardstick

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.partition_log import PartitionLog
from stratalog.log.prepare import CheckedSet, check_produced, place_produced
from stratalog.log.settings import LogSettings
from stratalog.record.batch import batches
from stratalog.record.builder import assign_offsets
from stratalog.record.codec import Codec

_VALUE_BYTES = 100
_DISTINCT_MIB = 8
"""So many different batches are made and sent again and again."""
_FLUSHED_SHARE = 16


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent, and the topic it is sent to."""

    name: str
    codec: Codec
    settings: LogSettings


CASES = (
    Case("none", Codec.NONE, LogSettings()),
    Case("lz4", Codec.LZ4, LogSettings()),
    Case("none, stored as lz4", Codec.NONE, LogSettings(compression=Codec.LZ4)),
)


@dataclass(slots=True)
class Measured:
    """One way of writing: seconds of each run, of the log and of its floor."""

    batches: int
    stored_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    floor_seconds: list[float] = field(default_factory=list)

    def row(self, case: Case, record_bytes: int) -> tuple[str, ...]:
        """Cells of the table; `record_bytes`: of one batch, uncompressed."""
        taken, floor = median(self.seconds), median(self.floor_seconds)
        return (
            case.name,
            f"{self.stored_bytes / self.batches / 1024:.1f}",
            f"{self.batches / taken:,.0f}",
            f"{self.batches / max(self.seconds):,.0f}-{self.batches / min(self.seconds):,.0f}",
            f"{taken / self.batches * 1e6:,.0f}",
            f"{self.batches * record_bytes / taken / 1e6:,.0f}",
            f"{self.stored_bytes / taken / 1e6:,.0f}",
            f"{self.batches / floor:,.0f}",
            f"{taken / floor:.1f} x",
        )


HEADER = (
    "batches",
    "stored KiB",
    "batches/s",
    "range",
    "us each",
    "MB/s sent",
    "MB/s stored",
    "floor batches/s",
    "of floor",
)


def make_batches(scratch: str, codec: Codec, size_bytes: int) -> tuple[list[bytes], int]:
    """Different batches as producers send them, and the bytes of records in each."""
    directory = os.path.join(scratch, "made")
    log = generate(directory, LogShape(_VALUE_BYTES, codec, record_bytes=size_bytes))
    made: list[bytes] = []
    for path in log.log_paths:
        with open(path, "rb") as file:
            for batch in batches(file.read()):
                produced = bytearray(batch.data)
                assign_offsets(produced, 0, -1)
                made.append(bytes(produced))
    shutil.rmtree(directory)
    return made, log.record_bytes // len(made)


def append_all(
    directory: str, case: Case, sent: Sequence[bytes], count: int, *, flushes: bool
) -> tuple[float, str]:
    """Append `count` batches to a new log; seconds, and the path of what it wrote."""
    log = PartitionLog.open(
        directory, case.settings, LocalFileSystem(), FixedClock(NOW_MS), create=True
    )
    waiting = list(islice(cycle(sent), count))
    os.sync()
    start = time.perf_counter()
    for batch in waiting:
        log.append(batch)
        if flushes:
            log.flush()
    seconds = time.perf_counter() - start
    assert len(log.segments) == 1
    assert log.log_end_offset >= count
    path = log.segments.active.log.path
    log.close()
    return seconds, path


def write_all(path: str, stored: Sequence[memoryview], *, syncs: bool) -> float:
    """The floor: the same batches, each by one `write`. Seconds."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.sync()
        start = time.perf_counter()
        for batch in stored:
            os.write(descriptor, batch)
            if syncs:
                os.fdatasync(descriptor)
        return time.perf_counter() - start
    finally:
        os.close(descriptor)
        os.unlink(path)


def measure(
    case: Case, sent: Sequence[bytes], count: int, scratch: str, runs: int, *, flushes: bool
) -> Measured:
    """Append and its floor by turns; the first run of each does not count."""
    measured = Measured(count)
    directory = os.path.join(scratch, "bench-0")
    for _ in range(runs + 1):
        seconds, path = append_all(directory, case, sent, count, flushes=flushes)
        measured.seconds.append(seconds)
        with open(path, "rb") as file:
            stored = [batch.data for batch in batches(file.read())]
        assert len(stored) == count, (len(stored), count)
        measured.stored_bytes = sum(map(len, stored))
        shutil.rmtree(directory)
        floor = write_all(os.path.join(scratch, "floor"), stored, syncs=flushes)
        measured.floor_seconds.append(floor)
    del measured.seconds[0], measured.floor_seconds[0]
    return measured


def grouped(case: Case, sent: Sequence[bytes], count: int, scratch: str, threads: int) -> float:
    """Batches a second when `threads` append at once and each waits until its own is durable."""
    directory = os.path.join(scratch, "bench-0")
    settings = replace(case.settings, flush_messages=1)
    log = PartitionLog.open(directory, settings, LocalFileSystem(), FixedClock(NOW_MS), create=True)
    share = count // threads
    os.sync()
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for done in [
            pool.submit(lambda: [log.append(batch) for batch in islice(cycle(sent), share)])
            for _ in range(threads)
        ]:
            done.result()
    seconds = time.perf_counter() - start
    assert log.recovery_point == log.log_end_offset
    log.close()
    shutil.rmtree(directory)
    return share * threads / seconds


def step_seconds(case: Case, sent: Sequence[bytes]) -> tuple[float, float]:
    """Seconds a batch of checking and of placing, over all different batches."""
    checked: list[CheckedSet] = []

    def check() -> None:
        checked.extend(check_produced(batch, case.settings, NOW_MS) for batch in sent)

    def place() -> None:
        for number, one in enumerate(checked):
            place_produced(one, case.settings, NOW_MS, 1000 * number, 0)

    return _timed(check) / len(sent), _timed(place) / len(sent)


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def file_system_of(path: str) -> str:
    """The type of the file system that `path` lies on, if this system says."""
    found = ("", "unknown")
    try:
        with open("/proc/self/mounts", encoding="utf-8") as lines:
            for line in lines:
                _, place, kind, *_ = line.split()
                inside = os.path.commonpath([place, path]) == place
                if inside and len(place) >= len(found[0]):
                    found = (place, kind)
    except OSError:
        pass  # not Linux
    return found[1]


def print_all(report: Report, options: Options, scratch: str) -> None:
    """Every case, every way."""
    cached, flushed, groups, steps = [], [], [], []
    for case in CASES:
        progress(case.name)
        size_bytes = min(_DISTINCT_MIB * MIB, options.log_bytes)
        sent, record_bytes = make_batches(scratch, case.codec, size_bytes)
        count = max(1, options.log_bytes // record_bytes)
        few = max(8, count // _FLUSHED_SHARE)
        memory = measure(case, sent, count, scratch, options.runs, flushes=False)
        disk = measure(case, sent, few, scratch, options.runs, flushes=True)
        if case.codec is Codec.NONE and case.settings.compression is None:
            floor = few / median(disk.floor_seconds)
            for threads in (1, 2, 4, 8, 16):
                rates = [
                    grouped(case, sent, few, scratch, threads) for _ in range(options.runs + 1)
                ][1:]
                rate = median(rates)
                groups.append(
                    (
                        f"{threads}",
                        f"{rate:,.0f}",
                        f"{min(rates):,.0f}-{max(rates):,.0f}",
                        f"{rate * disk.stored_bytes / few / 1e6:,.0f}",
                        f"{rate / floor:.2f} x",
                    )
                )
        cached.append(memory.row(case, record_bytes))
        flushed.append(disk.row(case, record_bytes))
        taken = [step_seconds(case, sent) for _ in range(options.runs + 1)][1:]
        check, place = (median(column) for column in zip(*taken, strict=True))
        whole = median(memory.seconds) / count
        shares = (check, place, whole - check - place, whole)
        steps.append((case.name, *(f"{seconds * 1e6:.1f}" for seconds in shares)))
    report.table("Appending on one thread, page cache", HEADER, cached)
    report.table("Appending on one thread, flush each", HEADER, flushed)
    report.table(
        "Group commit: uncompressed, every append waits for the disk",
        ("threads", "batches/s", "range", "MB/s", "of write + fdatasync"),
        groups,
    )
    report.table(
        "Steps without flush, microseconds a batch",
        ("batches", "check", "place", "files and state", "append"),
        steps,
    )


def main() -> None:
    options = parse_options(__doc__, mib=256)
    report = Report("Appending batches of 16 KiB", options)
    warm_kernels()
    yardstick = Yardstick(quick=options.quick)
    yardstick.take()
    with scratch_directory() as scratch:
        report.line(f"scratch files: {file_system_of(os.path.realpath(scratch))}")
        print_all(report, options, scratch)
    yardstick.take()
    report.line()
    report.line(yardstick.describe())
    report.finish()


if __name__ == "__main__":
    main()
