"""What does a service with 10,000 partitions cost while nothing happens?

What      One process with a `LogStore` of 10,000 small compacted partitions (three segments each,
          all cleaned, one log directory), a `CleanerManager` and a `Cleaner` with one thread, all
          threads started. Nobody appends or reads.
              idle       processor time of the whole process while it does nothing for 60 s, as a
                         share of one core; target: under 1 %. Retention, which is due every five
                         minutes, is added from the next table
              jobs       each job of the store and the cleaner by itself: processor time of one
                         call, how often it is due, and so its share of a core
              selection  `CleanerManager.facts` over all logs when nothing has changed, and
                         `select.choose`; target: under 20 ms. `first` reads each partition's note
              scrape     making the text of the metrics, without and with those of each partition
              memory     what the process has more when the store is open, and when the cleaner has
                         looked at everything, a partition
              first loop what a cleaner's first loop takes if nothing was cleaned: choosing, not
                         the cleaning of 10,000 logs
Against   The targets.
How often Jobs, selection and scrapes: medians of 5 calls (`--runs`); the idle minute is one
          (`--quick`: 50 partitions and a second).

    python benchmarks/idle_bench.py [--quick] [--save] [--runs N]
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from harness import Options, Report, median, parse_options, progress, scratch_directory
from sparing import file_system_for
from yardstick import Yardstick

from stratalog.base.clock import SystemClock
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.cleaner import Cleaner
from stratalog.clean.manager import CleanerManager
from stratalog.clean.select import choose
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.checkpoint import read_checkpoint, write_checkpoint
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.metrics import collect, exposition
from stratalog.record.builder import NewRecord
from stratalog.segment.names import STATE_DIRECTORY, TopicPartition

_PARTITIONS, _QUICK_PARTITIONS = 10_000, 50
_IDLE_SECONDS, _QUICK_IDLE_SECONDS = 60, 1
_SEGMENTS = 3
_FILES_EACH = _SEGMENTS + 2  # a log for each segment, the indexes of the active one
_IDLE_TARGET, _SELECTION_TARGET_MS = 0.01, 20.0
_SETTINGS = LogSettings(cleanup_policy=("compact",), segment_bytes=1 << 20)
_TOPIC = TopicCleaning(is_compacted=True, deletes=False)
_STORE = StoreSettings()
_CLEANER = CleanerSettings()
_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


def main() -> None:
    options = parse_options(__doc__, mib=0)
    report = Report("A service with many partitions, idle", options)
    yardstick = Yardstick(quick=options.quick)
    yardstick.take()
    partitions = _QUICK_PARTITIONS if options.quick else _PARTITIONS
    filesystem, line = file_system_for(partitions * _FILES_EACH)
    report.line(line)
    with scratch_directory() as scratch:
        log_dir = os.path.join(scratch, "logs")
        progress(f"making {partitions} partitions of {_SEGMENTS} segments")
        make_partitions(log_dir, partitions)
        _measure(report, options, log_dir, partitions, filesystem)
    yardstick.take()
    report.line()
    report.line(yardstick.describe())
    report.finish()


def make_partitions(log_dir: str, partitions: int) -> None:
    """One partition is made by the log itself, cleaned as far as its note says, and copied: a
    batch does not name its topic."""
    clock = SystemClock()
    first = TopicPartition("topic", 0)
    with LogStore.open([log_dir], lambda _: _SETTINGS, LocalFileSystem(), clock) as store:
        manager = CleanerManager(store, lambda _: _TOPIC, LocalFileSystem(), clock, _CLEANER)
        log = store.create(first)
        for segment in range(_SEGMENTS):
            for batch in range(4):
                log.append_records([NewRecord(b"key-%d" % batch, bytes(200), clock.now_ms())])
            if segment < _SEGMENTS - 1:
                log.roll()
        while log.build_digest():
            pass
        manager.cleaned(first, log.segments.active.base_offset, None)
    source = os.path.join(log_dir, str(first))
    for number in range(1, partitions):
        _copy(source, os.path.join(log_dir, f"topic-{number}"))
    for name in _CHECKPOINTS:
        path = os.path.join(log_dir, name)
        [offset] = read_checkpoint(LocalFileSystem(), path).values() or [0]
        everywhere = {TopicPartition("topic", number): offset for number in range(partitions)}
        write_checkpoint(LocalFileSystem(), path, everywhere)


def _copy(source: str, target: str) -> None:
    # Sealed files are linked: nothing is ever written into them.
    os.makedirs(os.path.join(target, STATE_DIRECTORY))
    names = sorted(name for name in os.listdir(source) if name.endswith(".log"))
    active = names[-1].partition(".")[0]
    for where, _, files in os.walk(source):
        for name in files:
            old = os.path.join(where, name)
            new = os.path.join(target, os.path.relpath(old, source))
            is_sealed = name[0].isdigit() and not name.startswith(active)
            (os.link if is_sealed else shutil.copy)(old, new)


def _measure(
    report: Report, options: Options, log_dir: str, partitions: int, filesystem: FileSystem
) -> None:
    clock = SystemClock()
    before_bytes = memory_bytes()
    start = time.perf_counter()
    store = LogStore.open([log_dir], lambda _: _SETTINGS, filesystem, clock, _STORE)
    opening_seconds = time.perf_counter() - start
    assert len(list(store.writable_logs())) == partitions, store.failed
    opened_bytes = memory_bytes()
    manager = CleanerManager(store, lambda _: _TOPIC, filesystem, clock, _CLEANER)
    store.attach(manager)
    cleaner = Cleaner(store, manager, lambda _: _TOPIC, filesystem, clock, _CLEANER)
    first_seconds = _cpu(manager.facts)
    known_bytes = memory_bytes()
    progress("digests are looked for")
    for _ in range(_SEGMENTS):
        store.build_digests()
    jobs = _jobs(store, cleaner, options.runs)
    selection = _selection(manager, clock, options.runs)
    seconds = _QUICK_IDLE_SECONDS if options.quick else _IDLE_SECONDS
    progress(f"doing nothing for {seconds} s")
    store.start()
    cleaner.start()
    idle, wall = _idle(seconds)
    scrapes = _scrapes(store, manager, cleaner, options.runs)
    cleaner.close()
    store.abandon()  # closing would flush 10,000 logs, which recovery_bench measures

    retention_share = next(share for name, *_, share in jobs if name == "retention")
    total = idle / wall + retention_share
    report.line(f"opened in {opening_seconds:.1f} s")
    _print_jobs(report, jobs)
    report.table(
        f"Idle, {partitions:,} partitions of {_SEGMENTS} segments",
        ("", "measured", "target", "met"),
        [
            _row("processor, of one core, %", total * 100, _IDLE_TARGET * 100),
            _row("selection, warm, ms", selection * 1000, _SELECTION_TARGET_MS),
            *((name, f"{taken * 1000:.1f}", "", "") for name, taken in scrapes),
            ("selection, first, ms", f"{first_seconds * 1000:.2f}", "", ""),
            ("open log, KiB a partition", _kib(opened_bytes - before_bytes, partitions), "", ""),
            ("what the cleaner knows", _kib(known_bytes - opened_bytes, partitions), "", ""),
        ],
    )


def _jobs(store: LogStore, cleaner: Cleaner, runs: int) -> list[tuple[str, float, float, float]]:
    """(name, seconds of one call, seconds between calls, share of a core)."""
    jobs: list[tuple[str, Callable[[], object], float]] = [
        ("each second", store.run_due, 1000),
        ("roll", store.roll_idle, _STORE.roll_check_ms),
        ("recovery points", store.checkpoint_points, _STORE.point_checkpoint_ms),
        ("log starts", store.checkpoint_starts, _STORE.start_checkpoint_ms),
        ("digests", store.build_digests, _STORE.digest_ms),
        ("retention", store.run_retention, _STORE.retention_check_ms),
        ("cleaner's loop", cleaner.run_once, _CLEANER.backoff_ms),
    ]
    found = []
    for name, call, every_ms in jobs:
        progress(name)
        call()
        taken = median([_cpu(call) for _ in range(runs)])
        found.append((name, taken, every_ms / 1000, taken / (every_ms / 1000)))
    return found


def _print_jobs(report: Report, jobs: list[tuple[str, float, float, float]]) -> None:
    report.table(
        "Jobs, processor time of one call",
        ("", "ms", "every s", "% of a core"),
        [
            (name, f"{taken * 1000:.2f}", f"{every:.0f}", f"{share * 100:.3f}")
            for name, taken, every, share in jobs
        ],
    )


def _selection(manager: CleanerManager, clock: SystemClock, runs: int) -> float:
    def select() -> None:
        assert choose(manager.facts(), clock.now_ms()) is None

    return median([_cpu(select) for _ in range(runs)])


def _scrapes(
    store: LogStore, manager: CleanerManager, cleaner: Cleaner, runs: int
) -> list[tuple[str, float]]:
    """Seconds of making the metrics' text, without and with each partition's."""
    found = []
    for name, per_partition in (("scrape, ms", False), ("scrape with each partition, ms", True)):

        def scrape(each: bool = per_partition) -> None:
            exposition(collect(store, manager, cleaner, SystemClock(), per_partition=each))

        scrape()
        found.append((name, median([_cpu(scrape) for _ in range(runs)])))
    return found


def _row(name: str, measured: float, target: float) -> tuple[str, str, str, str]:
    return name, f"{measured:.2f}", f"{target:.2f}", "yes" if measured < target else "no"


def _kib(size_bytes: int, partitions: int) -> str:
    return f"{size_bytes / partitions / 1024:.1f}"


def _cpu(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _idle(seconds: float) -> tuple[float, float]:
    """Processor time of all threads, and how long it really was."""
    time.sleep(1)  # threads begin
    cpu, wall = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return time.process_time() - cpu, time.perf_counter() - wall


def memory_bytes() -> int:
    """What of this process is in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
