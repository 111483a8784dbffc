"""A store with a cleaner on a simulated disk: what is done to it, what is promised, what holds.

    Life("name", steps, before=...)   run, judge and recover for `tests.sim.explore`

Steps (partition 0 of the topics "a" and "b"):

    create T         delete T           open          close        stop: leave it as it is
    put T keys       a record for each letter: a new value; an upper case letter is a tombstone
    produce T keys   the same, by an idempotent producer
    flush T          roll T             checkpoint    retention
    clean            rounds until nothing is to be done            later ms     only the clock
    ask T            a round that somebody asks for                due ms       later, and run_due
    delete_records T offset             truncate T offset          pause T      resume T
    cut T n          truncate, n offsets before the end

What has to hold, whatever was cut (`Kept.problem`):

- nothing is there that was not written, and of what was flushed at least the newest record of each
  key, unless it is a tombstone whose time is over; then nothing older of its key is there either;
- what was not flushed is there from its beginning on;
- below the cleaner checkpoint each key has one record, and each tombstone its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import NamedTuple

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import FileSystem
from stratalog.clean.cleaner import Cleaner
from stratalog.clean.manager import CleanerManager, Request
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE, FileState, TopicPartition, parse
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal

NOW = 1_700_000_000_000
HOUR = 3_600_000
DIR = "/data"
ANY = -2
"""As a checkpoint: whatever is true."""
PRODUCER = 4
LOGS = LogSettings(
    index_interval_bytes=64,
    cleanup_policy=("compact", "delete"),
    retention_ms=-1,
    retention_bytes=-1,
)
TOPIC = TopicCleaning(
    is_compacted=True,
    min_dirty_ratio=0.0,
    delete_retention_ms=HOUR,
    index_interval_bytes=64,
    segment_bytes=400,
)
SETTINGS = CleanerSettings(dedupe_buffer_bytes=1 << 16, retry_backoff_ms=60_000, history_size=2)
STORE = StoreSettings(recovery_threads=1)

Step = tuple[str | int, ...]


class Rec(NamedTuple):
    """A record that was sent; `value` None: a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


class Kept(NamedTuple):
    """What is known of one partition. `flushed`, `start`, `end` are offsets; `deadlines`: of
    tombstones, the earliest that a round may have given them; `expired`: those that may be gone;
    `checkpoint`: the cleaner's."""

    sent: tuple[Rec, ...] = ()
    flushed: int = 0
    start: int = 0
    end: int = 0
    checkpoint: int | None = None
    deadlines: tuple[tuple[int, int], ...] = ()
    expired: frozenset[int] = frozenset()

    def problem(self, found: Found) -> str | None:
        """What is wrong with a log that was opened again; None: nothing."""
        start, end, checkpoint = found.start, found.end, found.checkpoint
        if start != self.start:
            return f"it starts at {start}, not at {self.start}"
        if not max(self.flushed, self.start) <= end <= self.end:
            return f"it ends at {end}; {self.flushed} of {self.end} were promised"
        if self.checkpoint != ANY and checkpoint != self.checkpoint:
            return f"the checkpoint is {checkpoint}, not {self.checkpoint}"
        if checkpoint is not None and checkpoint > end:
            return f"the checkpoint {checkpoint} lies past the end {end}"
        recs = found.records
        return self._strange(recs) or self._lost(recs, end) or found.unclean()

    def _strange(self, found: list[Rec]) -> str | None:
        strange = set(found) - set(self.sent)
        if strange or [rec.offset for rec in found] != sorted({rec.offset for rec in found}):
            return f"never written: {sorted(strange)[:3]}"
        return None

    def _lost(self, found: list[Rec], end: int) -> str | None:
        there = {rec.offset for rec in found}
        for rec in self.sent:
            if max(self.flushed, self.start) <= rec.offset < end and rec.offset not in there:
                return f"{rec} is missing, though a later one is there"
        newest = {rec.key: rec for rec in self.sent if self.start <= rec.offset < self.flushed}
        last_found = {rec.key: rec for rec in found}
        for key, rec in newest.items():
            if key not in last_found:
                if rec.offset not in self.expired:
                    return f"{rec} is lost"
            elif last_found[key].offset < rec.offset:
                return f"{last_found[key]} is back, {rec} was newer"
        return None


class Found(NamedTuple):
    """What an opened log holds. `deadlines`: of its tombstones, by offset (ms)."""

    start: int
    end: int
    checkpoint: int | None
    records: list[Rec]
    deadlines: dict[int, int | None]

    @classmethod
    def of(cls, log: PartitionLog, checkpoint: int | None) -> Found:
        found = cls(log.log_start_offset, log.log_end_offset, checkpoint, [], {})
        for batch in log.read_batches(found.start):
            for record in batch.records():
                if record.offset >= found.start:
                    found.records.append(Rec(record.offset, record.key or b"", record.value))
                    if record.value is None:
                        found.deadlines[record.offset] = batch.header.delete_horizon_ms
        return found

    def unclean(self) -> str | None:
        """Why the checkpoint promises more than was cleaned."""
        below = [rec for rec in self.records if rec.offset < (self.checkpoint or 0)]
        newest = {rec.key: rec.offset for rec in below}
        for rec in below:
            if rec.offset < newest[rec.key]:
                return f"{rec} is superseded below the checkpoint {self.checkpoint}"
            if rec.value is None and self.deadlines[rec.offset] is None:
                return f"{rec} has no deadline below the checkpoint {self.checkpoint}"
        return None


def records_of(log: PartitionLog) -> list[Rec]:
    return Found.of(log, None).records


def tombstones(log: PartitionLog) -> dict[int, int | None]:
    """Offset -> deadline (ms) of each tombstone."""
    return Found.of(log, None).deadlines


@dataclass
class Driver:
    """Does steps, and says in the journal what is promised. Raises what the product raises."""

    disk: SimDisk
    journal: Journal
    topic: TopicCleaning = TOPIC
    logs: LogSettings = LOGS
    settings: CleanerSettings = SETTINGS
    clock: FixedClock = field(default_factory=lambda: FixedClock(NOW))
    filesystem: FileSystem | None = None
    dirs: tuple[str, ...] = (DIR,)
    kept: dict[TopicPartition, Kept] = field(default_factory=dict)
    count: int = 0
    sequence: int = 0
    epoch: int = 0
    rounds: int = 0
    store: LogStore | None = None

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            self.do(step)

    def do(self, step: Step) -> None:
        name, *arguments = step
        action: Callable[..., None] = getattr(self, f"do_{name}")
        if self.store is None and name != "open":
            self.do_open()
        if arguments and isinstance(arguments[0], str):
            arguments[0] = TopicPartition(arguments[0], 0)
        action(*arguments)
        self.promise()

    # -- promises --------------------------------------------------------------------------------

    def promise(self) -> None:
        store = self.store
        for key, kept in self.kept.items():
            if store is not None and key not in store.failed and store.get(key).is_open:
                flushed = max(kept.flushed, store.get(key).recovery_point)
                self.kept[key] = kept._replace(flushed=min(flushed, kept.end))
        self.journal.promise(tuple(sorted(self.kept.items())))

    def begin(self, **coming: Kept | None) -> None:
        """From now on the topics given may be found like this (None: not at all)."""
        changed = {TopicPartition(topic, 0): made for topic, made in coming.items()}
        after = {**self.kept, **changed}
        self.journal.begin(tuple(sorted((k, v) for k, v in after.items() if v is not None)))

    def begin_cleaning(self, **rolled: Kept) -> None:
        now_ms = self.clock.now_ms()
        for key, kept in self.kept.items():
            upto = kept.end if key.topic in rolled else self.log(key).segments.active.base_offset
            known = dict(kept.deadlines)
            for rec in kept.sent:
                if rec.value is None and rec.offset < upto:
                    known.setdefault(rec.offset, now_ms + self.topic.delete_retention_ms)
            gone = {offset for offset, deadline_ms in known.items() if deadline_ms <= now_ms}
            self.kept[key] = kept._replace(
                deadlines=tuple(sorted(known.items())), expired=kept.expired | gone
            )
        self.promise()
        made = {key.topic: kept for key, kept in self.kept.items()} | rolled
        self.begin(**{topic: kept._replace(checkpoint=ANY) for topic, kept in made.items()})

    def end_cleaning(self) -> None:
        assert self.store is not None
        for key, kept in self.kept.items():
            self.kept[key] = kept._replace(checkpoint=self.store.cleaner_point(key))

    def log(self, key: TopicPartition) -> PartitionLog:
        assert self.store is not None
        return self.store.get(key)

    # -- steps -----------------------------------------------------------------------------------

    def do_open(self) -> None:
        filesystem = self.filesystem or self.disk
        self.store = LogStore.open(
            list(self.dirs), lambda _: self.logs, filesystem, self.clock, STORE
        )

        def topic_of(_: TopicPartition) -> TopicCleaning:
            return self.topic

        self.manager = CleanerManager(self.store, topic_of, filesystem, self.clock, self.settings)
        self.store.attach(self.manager)
        self.cleaner = Cleaner(
            self.store, self.manager, topic_of, filesystem, self.clock, self.settings
        )

    def do_close(self) -> None:
        assert self.store is not None
        store, self.store = self.store, None
        self.cleaner.close()
        store.close()
        for key, kept in self.kept.items():
            self.kept[key] = kept._replace(flushed=kept.end)

    def do_stop(self) -> None:
        self.store = None
        self.disk.forget_locks()

    def do_create(self, key: TopicPartition) -> None:
        assert self.store is not None
        self.begin(**{key.topic: Kept()})
        self.store.create(key)
        self.kept[key] = Kept()

    def do_delete(self, key: TopicPartition) -> None:
        assert self.store is not None
        self.begin(**{key.topic: None})
        self.store.delete(key)
        del self.kept[key]

    def do_put(self, key: TopicPartition, keys: str) -> None:
        self._append(key, keys, -1)

    def do_produce(self, key: TopicPartition, keys: str) -> None:
        self._append(key, keys, PRODUCER)
        self.sequence += len(keys)

    def _append(self, key: TopicPartition, keys: str, producer_id: int) -> None:
        kept, made = self.kept[key], []
        for place, letter in enumerate(keys):
            self.count += 1
            fill = Random(self.count).randbytes(8).hex()
            value = None if letter.isupper() else f"{letter}{self.count}-{fill}".encode()
            made.append(Rec(kept.end + place, letter.lower().encode(), value))
        batch = build_batch(
            [NewRecord(rec.key, rec.value, self.clock.now_ms()) for rec in made],
            producer_id=producer_id,
            producer_epoch=self.epoch if producer_id >= 0 else -1,
            base_sequence=self.sequence if producer_id >= 0 else -1,
        )
        coming = kept._replace(sent=(*kept.sent, *made), end=kept.end + len(made))
        self.begin(**{key.topic: coming})
        assert self.log(key).append(batch).first_offset == kept.end
        self.kept[key] = coming

    def do_flush(self, key: TopicPartition) -> None:
        assert self.log(key).flush() == self.kept[key].end

    def do_roll(self, key: TopicPartition) -> None:
        self.log(key).roll()

    def do_checkpoint(self) -> None:
        assert self.store is not None
        self.store.checkpoint_points()
        self.store.checkpoint_starts()

    def do_clean(self, **rolled: Kept) -> None:
        self.begin_cleaning(**rolled)
        rounds = 0
        while self.cleaner.run_once("sim"):
            rounds += 1
            assert rounds < 30, "the cleaner loops"
        self.rounds += rounds
        self.end_cleaning()

    def do_ask(self, key: TopicPartition) -> None:
        self.begin_cleaning()
        request = self.manager.ask(Request(key))
        # The round rolls first, which makes everything durable.
        self.do_clean(**{key.topic: self.kept[key]._replace(flushed=self.kept[key].end)})
        assert request.done.is_set()
        if request.error is not None:
            raise request.error
        self.end_cleaning()

    def do_later(self, ms: int) -> None:
        self.clock.time_ms += ms

    def do_due(self, ms: int) -> None:
        assert self.store is not None
        self.clock.time_ms += ms
        self.store.run_due()

    def do_retention(self) -> None:
        assert self.store is not None
        self.store.run_retention()

    def do_delete_records(self, key: TopicPartition, offset: int) -> None:
        assert self.store is not None
        offset = min(offset, self.kept[key].end)
        coming = self.kept[key]._replace(start=max(offset, self.kept[key].start))
        self.begin(**{key.topic: coming})
        assert self.store.delete_records(key, offset) == coming.start
        self.kept[key] = coming

    def do_truncate(self, key: TopicPartition, offset: int) -> None:
        assert self.store is not None
        kept, log = self.kept[key], self.log(key)
        end = log.end_if_truncated_to(offset)
        # What a later record had superseded may be cleaned away.
        there = tuple(rec for rec in records_of(log) if rec.offset < end)
        point = None if kept.checkpoint is None else min(kept.checkpoint, end)
        coming = Kept(
            there,
            min(kept.flushed, end),
            kept.start,
            end,
            point,
            tuple(one for one in kept.deadlines if one[0] < end),
            frozenset(offset for offset in kept.expired if offset < end),
        )
        # The checkpoints come down first.
        self.kept[key] = kept._replace(checkpoint=ANY)
        self.promise()
        self.begin(**{key.topic: coming})
        assert self.store.truncate(key, offset) == end
        self.kept[key] = coming._replace(checkpoint=self.store.cleaner_point(key))
        self.epoch, self.sequence = self.epoch + 1, 0  # the log knows what is left, nobody else

    def do_cut(self, key: TopicPartition, count: int) -> None:
        kept = self.kept[key]
        self.do_truncate(key, max(kept.start, kept.end - count))

    def do_pause(self, key: TopicPartition) -> None:
        self.manager.pause(key)

    def do_resume(self, key: TopicPartition) -> None:
        self.manager.resume(key)


def opened(
    image: SimDisk,
    topic: TopicCleaning = TOPIC,
    now_ms: int = NOW,
    dirs: tuple[str, ...] = (DIR,),
) -> Driver:
    driver = Driver(image, Journal(), topic, clock=FixedClock(now_ms), dirs=dirs)
    driver.do_open()
    return driver


def check_service(
    image: SimDisk,
    topic: TopicCleaning,
    allowed: dict[TopicPartition, set[Kept | None]],
    goes_on: bool,
    now_ms: int,
    dirs: tuple[str, ...] = (DIR,),
) -> None:
    """Each partition is as one of `allowed` says. `goes_on`: and the cleaner does its work."""
    driver = opened(image, topic, now_ms, dirs)
    store = driver.store
    assert store is not None
    assert not store.failed, store.failed
    assert not store.offline_dirs, store.offline_dirs
    there = store.partitions()
    for key in {*allowed, *there}:
        states = allowed.get(key, {None})
        if key not in there:
            assert None in states, f"{key} is gone"
            continue
        log = store.get(key)
        assert log.quarantine is None, log.quarantine
        found = Found.of(log, store.cleaner_point(key))
        problems = ["it is back" if kept is None else kept.problem(found) for kept in states]
        assert None in problems, f"{key}: {problems}"
        for name in image.list_directory(log.path):
            parsed = parse(name)
            assert parsed is None or parsed.state is FileState.FINAL, name
        assert not image.exists(f"{log.path}/.stratalog/swap-intent")
    if goes_on:
        clean_through(driver)


def clean_through(driver: Driver) -> None:
    """After a start the cleaner comes to its end, and no tombstone stays for ever."""
    store = driver.store
    assert store is not None
    before = {}
    for key in store.partitions():
        log = store.get(key)
        if log.log_end_offset > log.log_start_offset:
            driver.manager.resume(key)
            log.roll()
        before[key] = {rec.key: rec.value for rec in records_of(log)}
    rounds = 0
    for wait_ms in (0, 1, HOUR, HOUR):
        driver.clock.time_ms += wait_ms
        while driver.cleaner.run_once("judge"):
            rounds += 1
            assert rounds < 20, "the cleaner loops"
    for key, values in before.items():
        log = store.get(key)
        # Segments without a byte hold nothing to clean.
        has_bytes = any(segment.size_bytes for segment in log.segments.sealed)
        assert store.cleaner_point(key) == log.log_end_offset or not has_bytes
        after = records_of(log)
        assert {rec.key: rec.value for rec in after} == {
            name: value for name, value in values.items() if value is not None
        }
        assert len({rec.key for rec in after}) == len(after), "a superseded value stays"


@dataclass(frozen=True)
class Life:
    """`before` is durable when the power may go first. Of the images, one in `one_in` is also used
    to go on cleaning."""

    name: str
    steps: tuple[Step, ...]
    before: tuple[Step, ...] = ()
    topic: TopicCleaning = TOPIC
    one_in: int = 48

    @cached_property
    def laid(self) -> tuple[SimDisk, Driver]:
        disk = SimDisk()
        disk.make_directory(DIR)
        driver = Driver(disk.sync_all(), Journal(), self.topic)
        driver.run((*self.before, ("close",)))
        return disk.fork().sync_all(), driver

    @property
    def start(self) -> SimDisk:
        return self.laid[0].fork()

    def driver(self, disk: SimDisk, journal: Journal) -> Driver:
        known = self.laid[1]
        driver = Driver(disk, journal, self.topic, clock=FixedClock(known.clock.time_ms))
        driver.kept, driver.count = dict(known.kept), known.count
        driver.sequence, driver.epoch = known.sequence, known.epoch
        driver.promise()
        return driver

    def run(self, disk: SimDisk, journal: Journal) -> None:
        self.driver(disk, journal).run(self.steps)

    def judge(self, image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
        promised: dict[TopicPartition, Kept] = dict(promise or ())  # type: ignore[call-overload]
        coming = promised if in_flight is None else dict(in_flight)  # type: ignore[call-overload]
        keys = {*promised, *coming}
        allowed = {key: {promised.get(key), coming.get(key)} for key in keys}
        goes_on = image.next_node % self.one_in == 0
        check_service(image, self.topic, allowed, goes_on, NOW + 100 * HOUR)

    def recover(self, disk: SimDisk) -> None:
        """A start after a cut. After a stop in order it takes a second one to be a recovery."""
        was_clean = disk.exists(f"{DIR}/{CLEAN_SHUTDOWN_FILE}")
        opened(disk, self.topic)
        if was_clean:
            disk.forget_locks()
            opened(disk, self.topic)
