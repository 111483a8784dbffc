"""What do appends and reads lose while the cleaner works in the same process?

What      One process with a `LogStore`, a `CleanerManager` and a `Cleaner` of one thread without a
          throttle. One thread appends batches of 16 KiB to a partition as fast as it can, or reads
          another from end to end, 1 MiB at a time from the page cache: while the cleaner cleans a
          log of 512 MiB (`--mib`; 100-byte values, 10 % distinct keys; as it is, lz4 and zstd),
          and for as long while it rests.
              kept     the speed beside the cleaner, of that without; aim: 0.85 on two cores
              hashing  the same beside a thread that hashes instead and never holds the
                       interpreter's lock: what is lost to a second busy thread as such, which
                       on a machine that is busy otherwise is a lot
              stall    the longest single append or read of a phase
              cleaning how fast the cleaner is beside the traffic, of its speed alone
Against   The same loop without the cleaner, and beside the hashing, in the same run: by turns.
How often Medians of 5 runs (`--runs`) of each, after one that does not count; ratios are of the
          phases of the same run.

    python benchmarks/cleaning_beside_bench.py [--quick] [--save] [--mib N] [--runs N] [--only C]
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle

from append_bench import make_batches
from cleaning import warm_kernels
from harness import MIB, Options, Report, median, parse_options, progress, scratch_directory
from logs import BenchLog, LogShape, generate
from yardstick import Yardstick

from stratalog.base.clock import SystemClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.cleaner import Cleaner
from stratalog.clean.manager import CleanerManager, Request
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.log_store import LogStore
from stratalog.log.settings import LogSettings
from stratalog.record.codec import Codec
from stratalog.segment.names import TopicPartition

_AIM = 0.85
_CODECS = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_TRAFFIC = ("append", "read")
_READ_BYTES = 1 * MIB
_READ_LOG_MIB = 128
_SENT_MIB = 8
_READ = TopicPartition("read", 0)

Loop = Callable[[Callable[[], bool]], "Phase"]
"""Traffic until it is told to stop."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase did."""

    size_bytes: int
    seconds: float
    longest_seconds: float

    @property
    def rate(self) -> float:
        return self.size_bytes / self.seconds


@dataclass(slots=True)
class Measured:
    """One codec, one kind of traffic: phases with and without the cleaner, one of each a run."""

    beside: list[Phase] = field(default_factory=list)
    alone: list[Phase] = field(default_factory=list)
    hashing: list[Phase] = field(default_factory=list)
    clean_seconds: list[float] = field(default_factory=list)
    clean_alone_seconds: list[float] = field(default_factory=list)

    @property
    def kept(self) -> float:
        return _of(self.beside, self.alone)

    def row(self, name: str, kind: str) -> tuple[str, ...]:
        return (
            f"{kind}, cleaning {name}",
            *(f"{median([p.rate for p in ps]) / 1e6:,.0f}" for ps in (self.alone, self.beside)),
            f"{self.kept:.2f}",
            f"{_of(self.hashing, self.alone):.2f}",
            "yes" if self.kept >= _AIM else "no",
            *(
                f"{median([p.longest_seconds for p in ps]) * 1000:.1f}"
                f" ({max(p.longest_seconds for p in ps) * 1000:.1f})"
                for ps in (self.alone, self.beside)
            ),
            f"{median(self.clean_seconds):.2f}",
            f"{median(self.clean_alone_seconds) / median(self.clean_seconds):.2f}",
        )


def _of(phases: list[Phase], others: list[Phase]) -> float:
    return median([one.rate / other.rate for one, other in zip(phases, others, strict=True)])


HEADER = (
    "",
    "MB/s alone",
    "MB/s beside",
    "kept",
    "hashing",
    "met",
    "stall alone, ms (longest)",
    "stall beside, ms (longest)",
    "cleaning s",
    "of its speed alone",
)


class Service:
    """A store with its cleaner, and logs that wait to be cleaned: links to the same files."""

    def __init__(self, log_dir: str, log: BenchLog, rounds: int):
        for number in range(rounds):
            log.linked(os.path.join(log_dir, f"dirty-{number}"))
        clock, disk = SystemClock(), LocalFileSystem()
        settings = CleanerSettings(threads=1)
        self._left = iter(range(rounds))
        self.store = LogStore.open([log_dir], _settings_of, disk, clock)
        self._manager = CleanerManager(self.store, _cleaning_of, disk, clock, settings)
        self.store.attach(self._manager)
        self._cleaner = Cleaner(self.store, self._manager, _cleaning_of, disk, clock, settings)

    def clean(self) -> float:
        """Clean the next log; seconds."""
        request = Request(TopicPartition("dirty", next(self._left)), rolls=False)
        self._manager.ask(request)
        start = time.perf_counter()
        self._cleaner.run_once("cleaner")
        seconds = time.perf_counter() - start
        assert request.error is None, request.error
        assert request.entry is not None
        assert request.entry.result == "cleaned", request.entry
        self.store.delete(request.topic_partition)
        return seconds

    def cleaning(self) -> tuple[threading.Thread, list[float]]:
        """The same in a thread of its own, which has begun; the seconds come into the list."""
        seconds: list[float] = []
        thread = threading.Thread(target=lambda: seconds.append(self.clean()))
        thread.start()
        return thread, seconds


def _settings_of(key: TopicPartition) -> LogSettings:
    policy = ("compact",) if key.topic == "dirty" else ("delete",)
    return LogSettings(cleanup_policy=policy, file_delete_delay_ms=0, retention_ms=-1)


def _cleaning_of(key: TopicPartition) -> TopicCleaning:
    return TopicCleaning(is_compacted=key.topic == "dirty", deletes=False)


def appending(service: Service, sent: list[bytes]) -> Loop:
    """Batches into a partition that is new in each phase."""
    numbers = iter(range(1 << 30))

    def run(stops: Callable[[], bool]) -> Phase:
        key = TopicPartition("live", next(numbers))
        log = service.store.create(key)
        batches = cycle(sent)
        done_bytes, longest = 0, 0.0
        start = last = time.perf_counter()
        while done_bytes == 0 or not stops():
            batch = next(batches)
            log.append(batch)
            done_bytes += len(batch)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        phase = Phase(done_bytes, last - start, longest)
        service.store.delete(key)
        service.store.unlink_due()
        return phase

    return run


def reading(service: Service, sent: list[bytes], size_bytes: int) -> Loop:
    """A partition from its start to its end, again and again."""
    log = service.store.create(_READ)
    batches = cycle(sent)
    while log.segments.size_bytes < size_bytes:
        log.append(next(batches))

    def run(stops: Callable[[], bool]) -> Phase:
        offset, done_bytes, longest = 0, 0, 0.0
        start = last = time.perf_counter()
        while done_bytes == 0 or not stops():
            chunk = log.read(offset, _READ_BYTES)
            for batch in chunk.batches():
                offset = batch.header.next_offset
            if offset >= log.log_end_offset:
                offset = 0
            done_bytes += len(chunk.data)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return Phase(done_bytes, last - start, longest)

    return run


def beside_hashing(loop: Loop, seconds: float) -> Phase:
    """The loop, beside a thread that hashes without the interpreter's lock."""
    end = time.perf_counter() + seconds
    content = bytes(4 * MIB)

    def hash_on() -> None:
        while time.perf_counter() < end:
            hashlib.md5(content, usedforsecurity=False).digest()

    thread = threading.Thread(target=hash_on)
    thread.start()
    phase = loop(lambda: not thread.is_alive())
    thread.join()
    return phase


def measure(service: Service, loop: Loop, runs: int) -> Measured:
    """A phase beside the cleaner and one without, by turns."""
    measured = Measured()
    for number in range(runs + 1):
        os.sync()
        alone_seconds = service.clean()
        os.sync()
        thread, seconds = service.cleaning()
        beside = loop(lambda: not thread.is_alive())  # noqa: B023  (called in this turn)
        thread.join()
        os.sync()
        hashing = beside_hashing(loop, seconds[0])
        os.sync()
        end = time.perf_counter() + seconds[0]
        alone = loop(lambda: time.perf_counter() >= end)  # noqa: B023
        if number > 0:
            measured.beside.append(beside)
            measured.alone.append(alone)
            measured.hashing.append(hashing)
            measured.clean_seconds += seconds
            measured.clean_alone_seconds.append(alone_seconds)
    return measured


def print_all(report: Report, options: Options, scratch: str) -> None:
    """Every codec, appends and reads."""
    sent, _ = make_batches(scratch, Codec.NONE, min(_SENT_MIB, options.mib) * MIB)
    rows = []
    for name, codec in _CODECS.items():
        if options.only not in (None, name):
            continue
        shape = LogShape(
            codec=codec, record_bytes=options.log_bytes, segment_bytes=options.segment_bytes
        )
        log = generate(os.path.join(scratch, name), shape)
        for kind in _TRAFFIC:
            progress(f"{name}: {kind}")
            log_dir = os.path.join(scratch, f"{name}-{kind}")
            os.makedirs(log_dir)
            service = Service(log_dir, log, 2 * (options.runs + 1))
            size_bytes = min(_READ_LOG_MIB, options.mib) * MIB
            loop = (
                appending(service, sent) if kind == "append" else reading(service, sent, size_bytes)
            )
            rows.append(measure(service, loop, options.runs).row(name, kind))
            service.store.close()
    report.table(f"Beside the cleaner, logs of {options.mib} MiB", HEADER, rows)


def main() -> None:
    options = parse_options(__doc__, mib=512, cases=tuple(_CODECS))
    report = Report("Appends and reads beside the cleaner", options)
    warm_kernels()
    yardstick = Yardstick(quick=options.quick)
    yardstick.take()
    with scratch_directory() as scratch:
        print_all(report, options, scratch)
    yardstick.take()
    report.line()
    report.line(f"load at the end: {os.getloadavg()[0]:.1f}")
    report.line(yardstick.describe())
    report.finish()


if __name__ == "__main__":
    main()
