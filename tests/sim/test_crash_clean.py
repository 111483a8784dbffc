"""A round of cleaning is cut anywhere: each group is old or new, and the last value of a key stays.

The round is that of `stratalog compact`: tidy, read, plan, the local engine, swaps, checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property

import pytest

from stratalog.admin import placing
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.state import read_partition
from stratalog.base.clock import FixedClock
from stratalog.clean.job import CleanSpec
from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.plan import plan_clean, range_of
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.settings import LogSettings
from stratalog.record.batch import batches
from stratalog.segment.names import TopicPartition
from tests.sim.client import Client, Step
from tests.sim.disk import SimDisk
from tests.sim.explore import Depth2, Journal, explore
from tests.sim.logs import (
    DIR,
    NOW,
    check_log,
    opened_store,
    recover_store,
    stored_batches,
)
from tests.sim.scenario import Scenario
from tests.sim.sweeps import budget

KEY = TopicPartition("a", 0)
PLACE = PartitionPlace(DIR, KEY)
SETTINGS = LogSettings(index_interval_bytes=64, cleanup_policy=("compact",))
LATER_MS = NOW + 10_000
CHECKPOINT = f"{DIR}/cleaner-offset-checkpoint"

CLOSED: tuple[Step, ...] = (
    *(("create", "a"), ("append", "a", 3), ("write", "a", 5, 2), ("roll", "a")),
    *(("append", "a", 3), ("abort", "a", 5), ("roll", "a"), ("append", "a", 3)),
    *(("produce", "a", 4, 2), ("roll", "a"), ("append", "a", 3), ("append", "a", 2)),
)


def clean(disk: SimDisk, segment_bytes: int, max_keys: int | None) -> None:
    """One round. Small groups: `segment_bytes` is what a cleaned segment may hold."""
    placing.tidy(PLACE.path, disk)
    clock = FixedClock(LATER_MS)
    partition = read_partition(PLACE, SETTINGS, disk, clock, keep_active=False)
    cleanable = range_of(partition.state, min_compaction_lag_ms=0, now_ms=LATER_MS)
    spec = CleanSpec(
        LATER_MS,
        delete_retention_ms=86_400_000,
        segment_bytes=segment_bytes,
        segment_index_bytes=1 << 20,
        index_interval_bytes=SETTINGS.index_interval_bytes,
        max_keys=max_keys,
        memory_bytes=1 << 20,
        hash_secret=(1, 2),
    )
    job = plan_clean(partition.state, cleanable, spec)
    assert job is not None
    (cleaned,) = LocalEngine(disk, threads=1).clean([job], writes=True, on_progress=lambda _: None)
    placing.place_round(partition, cleaned, SETTINGS, disk, clock)


@dataclass(frozen=True)
class Cleaning:
    """`before`: how the log came to be; `flushed`: the promise with which the round begins."""

    name: str
    before: tuple[Step, ...]
    segment_bytes: int
    rounds: int = 1
    is_synced: bool = True
    max_keys: int | None = None

    @cached_property
    def scene(self) -> tuple[SimDisk, Client]:
        scenario = Scenario(self.name, (), SETTINGS, self.before)
        if self.is_synced:
            return scenario.laid()
        disk, client = scenario.laid_unsynced()
        return disk, client

    @cached_property
    def contents(self) -> list[tuple[bytes, ...]]:
        """The log before, and after each round, from a run that nothing cuts."""
        disk = self.scene[0].fork()
        found = [contents(disk.fork())]
        for _ in range(self.rounds):
            clean(disk, self.segment_bytes, self.max_keys)
            found.append(contents(disk.fork()))
        return found

    def run(self, disk: SimDisk, journal: Journal) -> None:
        for number in range(self.rounds):
            journal.promise(number)
            journal.begin(number + 1)
            clean(disk, self.segment_bytes, self.max_keys)
        journal.promise(self.rounds)

    def judge(self, image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
        if promise is None:
            return
        assert isinstance(promise, int)
        store = opened_store(image, SETTINGS)
        assert not store.failed, store.failed
        log = store.get(KEY)
        assert log.quarantine is None, log.quarantine
        found = tuple(stored_batches(log))
        flushed = self.scene[1].state[KEY].flushed
        after = self.contents[promise if in_flight is None else promise + 1]
        check_mixture(found, self.contents[promise], after, log.segments.bases, flushed)
        checkpoint = read_checkpoint(image, CHECKPOINT).get(KEY, 0)
        assert checkpoint <= log.log_end_offset
        if in_flight is None and promise > 0:
            assert checkpoint > 0, "the checkpoint was promised"
        check_log(image, log, found)

    def recover(self, disk: SimDisk) -> None:
        recover_store(SETTINGS, disk)


def contents(disk: SimDisk) -> tuple[bytes, ...]:
    return tuple(stored_batches(opened_store(disk, SETTINGS).get(KEY)))


def keys_of(found: tuple[bytes, ...]) -> dict[bytes | None, int]:
    """The offset of each key's last record. Aborted ones count, too: who knows them, drops them."""
    return {
        record.key: record.offset
        for data in found
        for batch in batches(data)
        if not batch.header.is_control and not batch.header.is_transactional
        for record in batch.records()
    }


def check_mixture(
    found: tuple[bytes, ...],
    old: tuple[bytes, ...],
    new: tuple[bytes, ...],
    bases: tuple[int, ...],
    flushed: int,
) -> None:
    """New up to a segment's base, old from there on."""

    def below(content: tuple[bytes, ...], base: int) -> tuple[bytes, ...]:
        return tuple(data for data in content if offset_of(data) < base)

    mixtures = [
        below(new, base) + tuple(data for data in old if offset_of(data) >= base)
        for base in (*bases, 1 << 60)
    ]
    if found not in mixtures:
        # What was not flushed may be lost, but for each key that was, the last value or a later.
        assert set(found) <= {*old, *new}
        promised = keys_of(tuple(data for data in old if end_of(data) <= flushed))
        there = keys_of(found)
        lost = {key for key, offset in promised.items() if there.get(key, -1) < offset}
        assert not lost, f"the last values of {sorted(map(str, lost))}"
        kept = [data for data in found if end_of(data) <= flushed]
        complete = [tuple(d for d in mix if end_of(d) <= flushed) for mix in mixtures]
        assert tuple(kept) in complete, "neither old nor new"


def offset_of(data: bytes) -> int:
    return int.from_bytes(data[:8], "big")


def end_of(data: bytes) -> int:
    (batch,) = batches(data)
    return batch.header.next_offset


CASES = (
    Cleaning("into one segment", (*CLOSED, ("close",)), 1 << 20),
    Cleaning("in small groups", (*CLOSED, ("close",)), 700),
    Cleaning("in two rounds", (*CLOSED, ("close",)), 900, rounds=2, max_keys=5),
    Cleaning("after no close", (*CLOSED, ("flush", "a"), ("checkpoint",), ("stop",)), 700),
    Cleaning(
        "what was never flushed",
        (
            *(("create", "a"), ("append", "a", 7), ("flush", "a"), ("roll", "a")),
            *(("append", "a", 7), ("roll", "a"), ("append", "a", 1), ("stop",)),
        ),
        400,
        is_synced=False,
    ),
)


@pytest.mark.sweep
@pytest.mark.requirement("CMP-12", "RCV-5", "RCV-6", "RCV-1")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_round_of_cleaning_stands_every_cut(
    case: Cleaning, count_cases: Callable[[str, int], None]
) -> None:
    states = budget(2_000)
    explore(
        case.run,
        case.judge,
        seed=1,
        max_states=states,
        start=case.scene[0],
        depth2=Depth2(case.recover, share=0.02, max_states=states // 5),
        name=case.name,
    ).count(count_cases)
