"""Streams over logs that live: whatever happens when, each record comes once and none is left out.

An owner appends, commits and aborts, rolls, cleans, deletes records, makes and removes partitions,
stops and crashes, before, between and in the middle of triggers; the stream's driver dies anywhere
and goes on from its checkpoint. Every batch is held against the files as they are when it is read,
the sum of all batches against what is on the disk in the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import OffsetOutOfRangeError, StratalogError, UsageError
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.log_store import StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.pipeline.places import Place, opened_view
from stratalog.pipeline.stream_offsets import Offsets, from_json
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, Parts, opened
from tests.pipeline.source_rows import naive_rows
from tests.pipeline.stream_play import Json, Killed, Query, Row
from tests.sim.sweeps import budget

pytestmark = [pytest.mark.requirement("SPK-5"), pytest.mark.usefixtures("hasty_disk")]
Count = Callable[[str, int], None]
BOTH = LogSettings(
    cleanup_policy=("compact", "delete"),
    retention_ms=-1,
    segment_bytes=1500,
    index_interval_bytes=200,
    file_delete_delay_ms=0,
)
EAGER = TopicCleaning(is_compacted=True, deletes=True, min_dirty_ratio=0.0)
PLACES = (
    *("before latestOffset", "before the checkpoint", "after the checkpoint"),
    *("before a task", "before the sink", "before the commit"),
)


class Owner:
    """The process that has the log open, as a series of chances."""

    def __init__(self, root: Path, random: Random):
        self.root = root
        self.random = random
        self._stack = ExitStack()
        self._parts = self._open()
        self._producers = 0
        self._open_transactions: set[tuple[TopicPartition, int]] = set()
        self.removed = 0
        self.create()

    def _open(self) -> Parts:
        return self._stack.enter_context(
            opened(
                [str(self.root)],
                topics={"a": EAGER, "b": EAGER},
                settings=CleanerSettings(dedupe_buffer_bytes=1 << 20),
                log_settings=BOTH,
                store_settings=StoreSettings(recovery_threads=1),
            )
        )

    def close(self) -> None:
        self._stack.close()

    def keys(self) -> list[TopicPartition]:
        return self._parts.store.partitions()

    def act(self) -> None:
        action = self.random.choices(
            (
                *(self.append, self.send, self.end, self.roll, self.clean),
                *(self.create, self.delete_records, self.restart, self.remove),
            ),
            (9, 4, 3, 3, 3, 0.7, 0.7, 0.7, 0.15),
        )[0]
        action()

    def _some(self) -> TopicPartition:
        return self.random.choice(self.keys())

    def _records(self) -> list[NewRecord]:
        count = self.random.randint(1, 9)
        return [
            NewRecord(
                b"k%d" % self.random.randrange(6),
                None if self.random.random() < 0.2 else b"v" * self.random.randrange(60),
                NOW + self.random.randrange(1000),
            )
            for _ in range(count)
        ]

    def append(self) -> None:
        codec = self.random.choice((Codec.NONE, Codec.LZ4, Codec.ZSTD))
        self._parts.log(self._some()).append_records(self._records(), codec=codec)

    def send(self) -> None:
        """Data of a transaction, which it opens."""
        key = self._some()
        self._producers += 1
        data = build_batch(
            self._records(),
            producer_id=self._producers,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        self._parts.log(key).append(data)
        self._open_transactions.add((key, self._producers))

    def end(self) -> None:
        if self._open_transactions:
            key, producer = self.random.choice(sorted(self._open_transactions))
            kind = self.random.choice((ControlType.COMMIT, ControlType.ABORT))
            self._parts.log(key).append_marker(kind, producer_id=producer, producer_epoch=0)
            self._open_transactions.discard((key, producer))

    def roll(self) -> None:
        self._parts.log(self._some()).roll()

    def clean(self) -> None:
        self._parts.clean_all()

    def create(self) -> None:
        key = TopicPartition(self.random.choice("ab"), self.random.randrange(3))
        self._parts.log(key)

    def delete_records(self) -> None:
        """And perhaps the files that hold none any more."""
        key = self._some()
        log = self._parts.log(key)
        offset = self.random.randint(log.log_start_offset, log.log_end_offset)
        self._parts.store.delete_records(key, offset)
        if self.random.random() < 0.5:
            self._parts.store.run_retention()
            self._parts.clock.sleep_ms(1)
            self._parts.store.unlink_due()

    def remove(self) -> None:
        if len(self.keys()) > 1:
            key = self._some()
            self._parts.store.delete(key)
            self._open_transactions = {one for one in self._open_transactions if one[0] != key}
            self.removed += 1

    def restart(self) -> None:
        if self.random.random() < 0.5:
            self._parts.store.abandon()
        self._stack.close()
        self._parts = self._open()


class Judge:
    """What a stream should give. `lost`: a loss was said, or must have been."""

    def __init__(self, root: Path, query: Query, is_committed: bool):
        self.root = root
        self.query = query
        self.is_committed = is_committed
        self.checked = 0
        self.changed = 0
        self.began: Offsets = {}
        self._possible: set[tuple[Any, ...]] = set()
        query.planned = self.plan
        query.check = self.check

    def ends(self, key: TopicPartition) -> tuple[int, int, int]:
        with opened_view(Place(str(self.root), key)) as view:
            last = view.last_stable_offset if self.is_committed else view.log_end_offset
            return view.log_start_offset, last, view.log_end_offset

    def there(self) -> list[TopicPartition]:
        names = sorted(path.name for path in self.root.iterdir() if path.is_dir())
        found = [name.rpartition("-") for name in names if name[0] in "ab" and len(name) == 3]
        return [TopicPartition(topic, int(number)) for topic, _, number in found]

    def rows(self, key: TopicPartition, start: int, end: int) -> list[Row]:
        low, last, _ = self.ends(key)
        return naive_rows(
            self.root / str(key),
            start=max(start, low),
            end=end,
            committed_to=last if self.is_committed else None,
        )

    def plan(self, start: Json, end: Json) -> None:
        """A batch is about to be read: no more than this may be in it."""
        first = from_json(start)
        self._possible = {
            row
            for key, until in from_json(end).items()
            if key in self.there()
            for row in plain(self.rows(key, first.get(key, 0), until))
        }

    def check(self, number: int, start: Json, end: Json, rows: list[Row]) -> None:
        """A batch has just been read: what has not gone meanwhile is in it, once."""
        found, possible = plain(rows), self._possible
        assert len(set(found)) == len(found), (number, start, end)
        assert set(found) <= possible, (number, start, end)
        self.plan(start, end)
        assert possible & self._possible <= set(found), (number, start, end)
        self.checked += 1
        self.changed += possible != self._possible

    def is_lossy(self, start: Json, end: Json | None, *, known: bool = False) -> bool:
        """Whether something between here and there cannot be read any more; `known`: of partitions
        that the stream has met before."""
        first, until, there = from_json(start), from_json(end or {}), self.there()
        for key in {*first} if known else {*first, *until, *there}:
            if key not in there:
                return True
            low, last, high = self.ends(key)
            if low > first.get(key, 0) or high < first.get(key, 0):
                return True
            if end is not None and last < until.get(key, 0):
                return True
        return False


def plain(rows: list[Row]) -> list[tuple[Any, ...]]:
    columns = ("topic", "partition", "offset", "key", "value", "timestamp")
    return [tuple(row[column] for column in columns) for row in rows]


class Chances:
    """Something may happen between any two steps of the engine."""

    def __init__(self, owner: Owner, random: Random, judge: Judge):
        self.owner = owner
        self.random = random
        self.judge = judge
        self.kills: set[str] = set()
        self._must_raise = False

    def __call__(self, place: str) -> None:
        query = self.judge.query
        if place == "before the checkpoint":
            assert not self._must_raise, "a loss is not said"
        is_new = len(query.offsets) < 2
        if self.random.random() < (0.6 if is_new else 0.15):
            self.owner.act()
        if place == "before latestOffset":
            assert query.under_way is not None
            start, _ = query.under_way
            if not query.offsets:
                self.judge.began = from_json(start)
            if query.options["failOnDataLoss"] == "true":
                self._must_raise = self.judge.is_lossy(start, None, known=True)
        if self.random.random() < (0.15 if is_new else 0.03):
            self.kills.add(place)
            raise Killed


def lives(seed: int, root: Path) -> Iterator[tuple[str, int]]:
    """One life of a log and its stream; what happened, for the count."""
    random = Random(seed)
    root.mkdir()
    owner = Owner(root, random)
    is_committed = random.random() < 0.5
    options = {
        "startingOffsets": random.choice(("earliest", "latest")),
        "isolation": "read_committed" if is_committed else "read_uncommitted",
    }
    query = Query(root, options)
    judge = Judge(root, query, is_committed)
    losses = 0
    pardoned = False
    for _ in range(random.randint(0, 12)):
        owner.act()
    for _ in range(random.randint(4, 10)):
        for _ in range(random.randint(0, 12)):
            owner.act()
        for name, values in (
            ("maxOffsetsPerTrigger", (None, "1", "5", "40")),
            ("minPartitions", (None, "3")),
            ("maxRecordsPerPartition", (None, "2", "10")),
            ("maxPartitionBytes", (None, "300")),
        ):
            value = random.choice(values)
            options.pop(name, None)
            if value is not None:
                options[name] = value
        options["failOnDataLoss"] = str(not pardoned).lower()
        chances = Chances(owner, random, judge)
        query.between = chances
        before = len(query.offsets)
        try:
            query.run(available_now=random.random() < 0.5, max_batches=random.choice((1, 3, 200)))
            pardoned = False
        except Killed:
            yield from ((f"drivers killed {place}", 1) for place in chances.kills)
        except (OffsetOutOfRangeError, UsageError) as error:
            assert query.under_way is not None
            assert judge.is_lossy(*query.under_way), (seed, error)
            assert not pardoned or isinstance(error, UsageError), (seed, error)
            pardoned = True
            losses += 1
        limit = int(options.get("maxOffsetsPerTrigger", 1 << 60))
        for number in range(before, len(query.offsets)):
            assert len(query.sink.get(number, [])) <= limit + 6, (seed, number)
    yield "losses that were said", losses
    yield from finish(seed, owner, query, judge, losses)
    owner.close()


def finish(
    seed: int, owner: Owner, query: Query, judge: Judge, losses: int
) -> Iterator[tuple[str, int]]:
    """The owner rests, the stream reads to the end: what is there has come, once."""
    query.between = lambda _: None
    query.options.pop("maxOffsetsPerTrigger", None)
    query.options["failOnDataLoss"] = "false"
    query.run(available_now=True)
    query.run()
    seen: dict[tuple[str, int, int], int] = {}
    for row in query.rows():
        key = row["topic"], row["partition"], row["offset"]
        seen[key] = seen.get(key, 0) + 1
    if owner.removed == 0:
        assert max(seen.values(), default=1) == 1, (seed, "a record came twice")
    final = from_json(json.loads(query.offsets[-1]))
    is_latest = query.options["startingOffsets"] == "latest"
    for key in judge.there():
        low, last, _ = judge.ends(key)
        assert final[key] == max(low, last), (seed, key)
        first = judge.began.get(key, 0) if is_latest else 0
        for row in judge.rows(key, first, final[key]):
            name = row["topic"], row["partition"], row["offset"]
            assert name in seen or (losses and owner.removed), (seed, name)
    if losses == 0 and owner.removed == 0:
        for earlier, later in zip(query.offsets, query.offsets[1:], strict=False):
            before, after = from_json(json.loads(earlier)), from_json(json.loads(later))
            assert all(offset <= after[key] for key, offset in before.items()), seed
    yield "batches of streams", judge.checked
    yield "batches of streams that changed while they were read", judge.changed
    yield "records in streams", len(seen)


def test_every_record_once_whatever_happens(tmp_path: Path, count_cases: Count) -> None:
    totals: dict[str, int] = {}
    count = budget(15)
    for seed in range(count):
        try:
            for name, number in lives(seed, tmp_path / str(seed)):
                totals[name] = totals.get(name, 0) + number
        except StratalogError as error:
            raise AssertionError(f"seed {seed}") from error
    for name, number in totals.items():
        count_cases(name, number)
    count_cases("lives of a log and its stream", count)
    assert totals["batches of streams"] > 3 * count
    assert totals["losses that were said"] > 0
    if count > 100:
        kills = {name for name in totals if name.startswith("drivers killed")}
        assert kills == {f"drivers killed {place}" for place in PLACES}
