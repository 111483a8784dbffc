"""Append, flush, roll: whatever a cut leaves, what was flushed is there, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import UsageError
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from tests.sim.disk import SimDisk
from tests.sim.explore import Depth2, ExploreStats, Journal, explore

NOW = 1_700_000_000_000
PATH = "/data/t-0"
Step = tuple[str, int]


@dataclass(frozen=True)
class Appending:
    """`steps`: ("append", how many records in a batch), ("flush", 0), ("roll", 0)."""

    name: str
    steps: tuple[Step, ...]
    value_bytes: int = 40
    index_interval_bytes: int = 64
    segment_bytes: int = 1 << 20

    def open(self, disk: SimDisk, **arguments: Any) -> PartitionLog:
        settings = LogSettings(
            index_interval_bytes=self.index_interval_bytes, segment_bytes=self.segment_bytes
        )
        return PartitionLog.open(PATH, settings, disk, FixedClock(NOW), **arguments)

    def records(self) -> list[tuple[int, bytes, bytes]]:
        """All that is ever appended: offset, key, value."""
        count = sum(n for kind, n in self.steps if kind == "append")
        return [(i, b"k%d" % i, bytes([i + 1]) * self.value_bytes) for i in range(count)]

    def run(self, disk: SimDisk, journal: Journal) -> None:
        coming = iter(self.records())
        log = self.open(disk, create=True)
        journal.promise((0, False))
        for kind, count in self.steps:
            match kind:
                case "append":
                    batch = [next(coming) for _ in range(count)]
                    log.append_records([NewRecord(key, value, NOW + i) for i, key, value in batch])
                case "flush":
                    journal.promise((log.flush(), False))
                case "roll":
                    log.roll()
        log.close()
        journal.promise((len(self.records()), True))

    def judge(self, image: SimDisk, promise: Hashable, _in_flight: Hashable) -> None:
        """`promise`: the recovery point, and whether the log was closed in order; None while it was
        not made."""
        flushed, is_closed = promise or (0, False)
        try:
            log = self.open(image, unclean=None if is_closed else Unclean(flushed))
        except (UsageError, FileNotFoundError):
            assert promise is None, "the log is gone"
            return
        assert log.quarantine is None
        found = [
            (record.offset, record.key, record.value)
            for batch in log.read_batches(0)
            for record in batch.records()
        ]
        appended = self.records()
        assert found[:flushed] == appended[:flushed], "what was flushed is not there"
        assert all(record in appended for record in found), "something else than was appended"
        assert found == sorted(found)
        # Not equal: a segment that was never flushed may be lost and a later one survive.
        assert log.log_end_offset >= (found[-1][0] + 1 if found else 0)
        for offset, _, _ in found:
            header = next(iter(log.read_batches(offset))).header
            assert header.base_offset <= offset <= header.last_offset, "found by its offset"
            at = log.offset_for_timestamp(NOW + offset)
            assert at is not None
            assert at.offset == offset, "found by its timestamp"
        log.append_records([NewRecord(b"more", b"", NOW)])
        log.close()

    def recover(self, disk: SimDisk) -> None:
        with suppress(UsageError, FileNotFoundError):
            self.open(disk, unclean=Unclean(0)).close()


CASES = (
    Appending(
        "batches below a sector",
        (("append", 1), ("flush", 0), ("append", 2), ("append", 1), ("flush", 0), ("append", 1))
        * 2,
    ),
    Appending(
        "rolled and flushed",
        (
            *(("append", 1), ("roll", 0), ("append", 2), ("flush", 0), ("append", 1)),
            *(("roll", 0), ("append", 1), ("append", 1), ("flush", 0), ("append", 1)),
        ),
    ),
    Appending(
        "batches of many sectors, rolled by size",
        (*(("append", 2),) * 4, ("flush", 0), *(("append", 1),) * 3, ("flush", 0)),
        value_bytes=700,
        index_interval_bytes=1024,
        segment_bytes=4096,
    ),
)


def empty_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/data")
    return disk.sync_all()


def random_case(seed: int) -> Appending:
    rng = Random(seed)
    steps = rng.choices(("append", "flush", "roll"), (6, 2, 1), k=rng.randint(6, 16))
    return Appending(
        f"random case {seed}",
        tuple((kind, rng.randint(1, 3)) for kind in steps),
        value_bytes=rng.choice((5, 60, 300, 900)),
        index_interval_bytes=rng.choice((1, 100, 1000)),
        segment_bytes=rng.choice((3100, 5000, 1 << 20)),
    )


def explored(case: Appending, max_states: int, seed: int = 1) -> ExploreStats:
    return explore(
        case.run,
        case.judge,
        seed=seed,
        max_states=max_states,
        start=empty_disk(),
        depth2=Depth2(case.recover, share=0.02, max_states=max_states // 5),
        name=case.name,
    )


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "LOG-7")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_flushed_survives_every_cut(
    case: Appending, count_cases: Callable[[str, int], None]
) -> None:
    stats = explored(case, 3_000).count(count_cases)
    assert stats.operations > 40
    assert stats.states > 900
    assert stats.recoveries > 10
    assert stats.depth2_states > 100


def explore_many(seeds: range, max_states: int, count_cases: Callable[[str, int], None]) -> None:
    states = 0
    for seed in seeds:
        states += explored(random_case(seed), max_states, seed).count(count_cases).states
    assert states > len(seeds) * max_states // 2


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "LOG-7")
def test_whatever_is_appended(count_cases: Callable[[str, int], None]) -> None:
    explore_many(range(12), 400, count_cases)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "LOG-7")
def test_whatever_is_appended_at_length(count_cases: Callable[[str, int], None]) -> None:
    explore_many(range(1_000, 1_100), 3_000, count_cases)
