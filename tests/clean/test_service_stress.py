"""Readers and writers go on while the cleaner works, and every answer is right (LOG-12, CLN-8).

Real threads, tiny segments, a cleaner that never rests; a value is `key:count`, so each record says
what it has to be. Writers stop after so many batches, everybody else when they have.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from stratalog.clean.settings import CleanerSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment.names import TopicPartition
from tests.clean.gates import PATIENCE_SECONDS, Threads, wait_until
from tests.clean.services import COMPACTED, NOW, Parts, opened
from tests.clean.watching import newest
from tests.sim.sweeps import budget

ROOT = Path(__file__).resolve().parents[2]
KEYS = [TopicPartition("orders", number) for number in range(2)]
LOGS = LogSettings(cleanup_policy=("compact",), segment_bytes=3000, index_interval_bytes=300)
TOPIC = replace(COMPACTED, segment_bytes=12_000, min_dirty_ratio=0.05, index_interval_bytes=300)
PACE = 40
"""Batches that fill more than a segment."""
SETTINGS = CleanerSettings(threads=2, dedupe_buffer_bytes=2 << 20, backoff_ms=1)


def is_past(rounds: Callable[[], int], before: int) -> bool:
    return rounds() > before


@dataclass
class Writer:
    """Owns its keys. `acknowledged` has the newest count of each that the log has taken."""

    log: PartitionLog
    name: str
    producer_id: int = -1
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    duplicates: int = 0
    count: int = 0
    sequence: int = 0

    def run(self, batches: int, rounds: Callable[[], int]) -> None:
        """After each `PACE` batches the cleaner is waited for."""
        rng, seen = Random(self.name), -1
        for number in range(batches):
            if number % PACE == 0:
                wait_until(partial(is_past, rounds, seen), "another round")
                seen = rounds()
            made = []
            for _ in range(rng.randint(1, 5)):
                key = f"{self.name}{rng.randrange(12)}".encode()
                made.append(NewRecord(key, b"%s:%d" % (key, self.count), NOW + self.count))
                self.count += 1
            is_idempotent = self.producer_id >= 0
            batch = build_batch(
                made,
                producer_id=self.producer_id,
                producer_epoch=0 if is_idempotent else -1,
                base_sequence=self.sequence if is_idempotent else -1,
            )
            result = self.log.append(batch)
            assert not result.is_duplicate
            if is_idempotent:
                self.sequence += len(made)
                if rng.random() < 0.1:
                    again = self.log.append(batch)
                    assert again.is_duplicate
                    assert again.first_offset == result.first_offset
                    self.duplicates += 1
            for record in made:
                assert record.key is not None
                assert record.value is not None
                self.acknowledged[record.key] = int(record.value.partition(b":")[2])


def read_at_random(log: PartitionLog, stop: threading.Event, seed: int) -> int:
    """From anywhere a few records: each as it was sent, in order."""
    rng, reads = Random(seed), 0
    while not stop.is_set() or reads == 0:
        view = log.view
        first = rng.randint(view.log_start_offset, view.log_end_offset)
        found = []
        for record in view.read_records(first):
            found.append(record)
            if len(found) == 40:
                break
        newest(found, first, view.log_end_offset)
        reads += 1
    return reads


def read_latest(log: PartitionLog, writers: list[Writer], stop: threading.Event) -> int:
    """What was acknowledged before the reading began is there, or something newer of its key."""
    reads = 0
    while not stop.is_set() or reads == 0:
        promised = {key: n for writer in writers for key, n in dict(writer.acknowledged).items()}
        view = log.view
        found = newest(view.read_records(0), 0, view.log_end_offset)
        lost = {key: n for key, n in promised.items() if found.get(key, -1) < n}
        assert not lost, lost
        reads += 1
    return reads


def follow(log: PartitionLog, stop: threading.Event) -> dict[bytes, int]:
    """A reader that goes on where it was: it sees the newest of every key in the end (CMP-20)."""
    place, counts = 0, dict[bytes, int]()
    while True:
        is_last = stop.is_set()
        view = log.view
        for record in view.read_records(place):
            assert record.offset >= place
            assert record.value is not None
            key, _, count = record.value.partition(b":")
            assert int(count) > counts.get(key, -1)
            counts[key] = int(count)
            place = record.offset + 1
        place = max(place, view.log_end_offset)
        if is_last:
            return counts


def all_clean(parts: Parts) -> bool:
    logs = {key: parts.store.get(key) for key in KEYS}
    return all(
        parts.store.cleaner_point(key) == log.segments.active.base_offset
        for key, log in logs.items()
    )


@pytest.mark.sweep
@pytest.mark.requirement("LOG-12", "CLN-8", "CMP-1", "CMP-20")
def test_readers_and_writers_beside_the_cleaner(
    tmp_path: Path, hasty_disk: None, count_cases: Callable[[str, int], None]
) -> None:
    stop, stop_file = threading.Event(), tmp_path / "stop"
    with (
        Threads(20) as threads,
        opened(
            [str(tmp_path / "data")], topics={"orders": TOPIC}, log_settings=LOGS, settings=SETTINGS
        ) as parts,
    ):
        logs = [parts.log(key) for key in KEYS]
        writers = {
            key: [Writer(log, "plain"), Writer(log, "idempotent", 7)]
            for key, log in zip(KEYS, logs, strict=True)
        }
        for both in writers.values():
            # The first of everything takes long: readers would only spin on empty logs.
            for writer in both:
                writer.run(2, lambda: 1)
            both[0].log.roll()
        assert parts.clean_all() == 2
        outsider = subprocess.Popen(
            [sys.executable, "-m", "tests.clean.watching", logs[0].path, str(stop_file)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert outsider.stdout is not None
            assert outsider.stdout.readline() == "ready\n"
            parts.cleaner.start()
            batches = budget(600)

            def rounds() -> int:
                return parts.cleaner.stats.runs["ratio", "cleaned"]

            running = [
                threads.run(writer.run, batches, rounds)
                for both in writers.values()
                for writer in both
            ]
            readers = [threads.run(read_at_random, log, stop, 1) for log in logs]
            latest = [
                threads.run(read_latest, parts.store.get(key), both, stop)
                for key, both in writers.items()
            ]
            tails = {key: threads.run(follow, parts.store.get(key), stop) for key in KEYS}
            for writing in running:
                writing.result(10 * PATIENCE_SECONDS)
            wait_until(lambda: all_clean(parts), "all is cleaned")
        finally:
            stop.set()
            stop_file.touch()
            out, err = outsider.communicate(timeout=PATIENCE_SECONDS)
        assert outsider.returncode == 0, err[-3000:]
        counts = [reading.result(PATIENCE_SECONDS) for reading in (*readers, *latest)]
        for key, tail in tails.items():
            sent = {name: n for one in writers[key] for name, n in one.acknowledged.items()}
            assert tail.result(PATIENCE_SECONDS) == sent
            log = parts.store.get(key)
            assert newest(log.read_records(0), 0, log.log_end_offset) == sent
            assert parts.manager.note_of(key).failure is None
        assert parts.store.offline_dirs == {}
        assert parts.cleaner.dead_threads == 0
        runs = parts.cleaner.stats.runs
        assert {result for _, result in runs} <= {"cleaned", "nothing"}, runs
        assert runs["ratio", "cleaned"] >= batches // PACE
        assert sum(one.duplicates for both in writers.values() for one in both) > 10
    right, changed = map(int, out.split())
    count_cases("rounds beside readers and writers", runs["ratio", "cleaned"])
    count_cases("reads beside the cleaner", sum(counts))
    count_cases("reads by another process beside the cleaner", right)
    count_cases("reads by another process that were told to try again", changed)
