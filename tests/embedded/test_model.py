"""The three views, consumers and readings as of then against a model of what was appended.

The model is a list of everything that was ever appended and what became of its transaction. Steps
are random: appends, deletions of keys, transactions, compactions, retention of the raw log, polls,
seeks, commits, restarts, readings that are kept open over all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import UsageError
from stratalog.embedded import Consumer, Record, Store, Topic
from stratalog.embedded.topic import Reading
from stratalog.segment.names import TopicPartition
from tests.embedded.driving import (
    LEDGER,
    NOW,
    brief,
    end,
    latest,
    log_of,
    manifest_of,
    opened,
    retain,
    transaction,
)
from tests.pipeline.source_rows import naive_rows
from tests.sim.sweeps import budget

Count = Callable[[str, int], None]
Brief = tuple[int, bytes | None, bytes | None]
OPEN, COMMITTED, ABORTED = range(3)
KEYS = [f"k{number}" for number in range(7)]
MODES = {
    "ledger": LEDGER,
    "inplace": {**LEDGER, "compaction.mode": "inplace", "cleanup.policy": "compact"},
}


@dataclass
class Appended:
    offset: int
    key: bytes
    value: bytes | None
    state: int = COMMITTED


@dataclass
class World:
    """What is there, and the model of it. `open_txn`: offsets of the transaction that is open;
    `sequence`, of its producer; `states`: at the horizon of each ledger."""

    random: Random
    store: Store
    topic: Topic
    clock: FixedClock
    history: list[Appended] = field(default_factory=list)
    open_txn: list[Appended] = field(default_factory=list)
    sequence: int = 0
    states: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    kept: list[tuple[Reading[Record], list[Brief] | None, dict[bytes, bytes]]] = field(
        default_factory=list
    )
    seen: dict[bytes, bytes | None] = field(default_factory=dict)
    seen_to: int = -1

    @property
    def stable(self) -> int:
        return self.open_txn[0].offset if self.open_txn else log_of(self.store).log_end_offset

    def fold(self, end_offset: int | None = None) -> dict[bytes, bytes]:
        last = self.stable if end_offset is None else min(end_offset, self.stable)
        found: dict[bytes, bytes] = {}
        for one in self.history:
            if one.offset < last and one.state == COMMITTED:
                found.pop(one.key, None)
                if one.value is not None:
                    found[one.key] = one.value
        return found

    def committed(self) -> list[Brief]:
        start, stable = log_of(self.store).log_start_offset, self.stable
        return [
            (one.offset, one.key, one.value)
            for one in self.history
            if start <= one.offset < stable and one.state == COMMITTED
        ]

    # -- steps --------------------------------------------------------------------------------

    def append(self) -> None:
        pairs = [self.pair() for _ in range(self.random.randint(1, 4))]
        for (key, value), where in zip(pairs, self.topic.append_many(pairs), strict=True):
            encoded = None if value is None else value.encode()
            self.history.append(Appended(where.offset, key.encode(), encoded))

    def pair(self) -> tuple[str, str | None]:
        value = None if self.random.random() < 0.25 else f"v{self.random.randrange(10**6)}"
        return self.random.choice(KEYS), value

    def transact(self) -> None:
        if self.open_txn:
            commits = self.random.random() < 0.5
            end(log_of(self.store), 7, commits=commits)
            for one in self.open_txn:
                one.state = COMMITTED if commits else ABORTED
            self.open_txn = []
            return
        pairs = [self.pair() for _ in range(self.random.randint(1, 3))]
        first = log_of(self.store).log_end_offset
        transaction(log_of(self.store), 7, self.sequence, pairs)
        self.sequence += len(pairs)
        for step, (key, value) in enumerate(pairs):
            encoded = None if value is None else value.encode()
            self.open_txn.append(Appended(first + step, key.encode(), encoded, OPEN))
        self.history += self.open_txn

    def compact(self) -> None:
        self.topic.compact()
        current = manifest_of(self.store).current
        if current is not None and current.number not in self.states:
            self.states[current.number] = self.fold(current.horizon)

    def retention(self) -> None:
        """The raw log may lose what a ledger has: all sealed segments up to its horizon. (Before
        there is one, keys would be lost, as the policy says.)"""
        if manifest_of(self.store).current is None:
            return
        self.clock.time_ms += 1000
        self.topic.configure({"retention.ms": 500})
        retain(self.store)
        self.topic.configure({"retention.ms": -1})

    @property
    def is_ledger(self) -> bool:
        return self.topic.config["compaction.mode"] == "ledger"

    def keep_reading(self) -> None:
        """A reading that goes on while everything else happens."""
        view = self.random.choice(["raw", "compacted", "latest"])
        reading = self.topic.read(view, isolation="read_committed")  # type: ignore[arg-type]
        expected = self.committed() if view == "raw" and self.is_ledger else None
        self.kept.append((reading, expected, self.fold()))

    def end_reading(self) -> None:
        if self.kept:
            reading, expected, state = self.kept.pop(self.random.randrange(len(self.kept)))
            found = brief(reading)
            assert expected is None or found == expected
            if expected is None:
                assert folded(found) == state

    def poll(self, consumer: Consumer) -> None:
        for record in consumer.poll(self.random.choice([1, 2, 5, 100])):
            assert record.offset > self.seen_to  # nothing comes twice
            assert record.key is not None
            self.seen_to = record.offset
            self.seen[record.key] = record.value

    # -- checks -------------------------------------------------------------------------------

    def check(self) -> None:
        log = log_of(self.store)
        assert latest(self.topic) == self.fold()
        if self.is_ledger:
            assert brief(self.topic.read("raw", isolation="read_committed")) == self.committed()
        shown = [row["offset"] for row in naive_rows(Path(log.path), start=log.log_start_offset)]
        assert [record.offset for record in self.topic.read("raw")] == shown
        self.check_compacted()
        for number in [g.number for g in manifest_of(self.store).generations]:
            assert latest(self.topic, as_of=f"ledger:{number}") == self.states[number]
            records = brief(self.topic.read("compacted", as_of=f"ledger:{number}"))
            assert folded(records) == self.states[number]
            assert len({key for _, key, _ in records}) == len(records)

    def check_compacted(self) -> None:
        records = brief(self.topic.read("compacted", isolation="read_committed"))
        known = {(a.offset, a.key, a.value) for a in self.history if a.state == COMMITTED}
        offsets = [offset for offset, _, _ in records]
        assert offsets == sorted(set(offsets))
        assert set(records) <= known
        assert folded(records) == self.fold()
        current = manifest_of(self.store).current
        if current is not None:
            below = [key for offset, key, _ in records if offset < current.horizon]
            assert len(set(below)) == len(below)
        # A seek into removed offsets goes to the next that is there.
        start, last = offsets[0] if offsets else 0, log_of(self.store).log_end_offset
        wanted = self.random.randint(start, last)
        begun = self.topic.read("compacted", start=wanted, isolation="read_committed")
        assert brief(begun) == [record for record in records if record[0] >= wanted]

    def check_as_of(self) -> None:
        """Exact or refused, and not refused where the raw log is whole."""
        log = log_of(self.store)
        offset = self.random.randint(0, self.stable)
        try:
            found = latest(self.topic, as_of=offset)
        except UsageError:
            horizons = [g.horizon for g in manifest_of(self.store).generations]
            is_cleaned = (self.store.desk.service.store.cleaner_point(KEY) or 0) > offset
            below = [horizon for horizon in horizons if horizon <= offset]
            assert is_cleaned or log.log_start_offset > (max(below) if below else 0)
        else:
            assert found == self.fold(offset)


KEY = TopicPartition("t", 0)


def folded(records: list[Brief]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for _, key, value in records:
        assert key is not None
        state.pop(key, None)
        if value is not None:
            state[key] = value
    return state


def consumer_of(store: Store) -> Consumer:
    return store.consumer(
        "t",
        group="g",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        read_compacted=True,
    )


@pytest.mark.requirement("LDG-3", "LDG-5", "LDG-6", "LDG-7")
@pytest.mark.usefixtures("hasty_disk")
@pytest.mark.parametrize("mode", MODES)
def test_views_and_consumers_are_those_of_the_model(
    mode: str, tmp_path: Path, count_cases: Count
) -> None:
    steps = 0
    for seed in range(budget(8)):
        random = Random(f"{mode} {seed}")
        clock = FixedClock(NOW)
        data = tmp_path / str(seed)
        retained = random.choice([1, 2, 5])
        with opened(data, clock) as store:
            settings = {**MODES[mode], "compaction.ledgers.retained": retained}
            world = World(random, store, store.create_topic("t", config=settings), clock)
            consumer = consumer_of(store)
            for _ in range(60):
                steps += 1
                step = random.choices(
                    ["append", "transact", "compact", "retention", "poll", "again", "keep", "end"],
                    [30, 12, 8, 6, 25, 4, 6, 6],
                )[0]
                if step == "poll":
                    world.poll(consumer)
                elif step == "again":
                    consumer.commit()
                    consumer.close()
                    consumer = consumer_of(store)
                elif step == "keep":
                    world.keep_reading()
                elif step == "end":
                    world.end_reading()
                else:
                    getattr(world, step)()
                if random.random() < 0.3:
                    world.check()
                    world.check_as_of()
            world.check()
            while world.kept:
                world.end_reading()
            while consumer.position("t", 0) < world.stable:
                world.poll(consumer)
            assert {k: v for k, v in world.seen.items() if v is not None} == world.fold()
            consumer.close()
            assert store.desk.service.ledgers.pinned(KEY) == []
    count_cases(f"steps of the {mode} API model", steps)
