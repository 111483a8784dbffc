"""What the tests of runs share: a store with a topic in ledger mode, and what its readers see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import FileSystem
from stratalog.clean.cleaner import Cleaner
from stratalog.clean.history import Entry
from stratalog.clean.ledger_ends import note_ended
from stratalog.clean.manager import CleanerManager, Request
from stratalog.clean.round import EngineOf, local_engine_of
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.ledger.following import follow_ledgers
from stratalog.ledger.ledgers import Ledgers
from stratalog.ledger.manifest import Generation
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.values import Record
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, ORDERS

DAY_MS = 86_400_000
TOPIC = TopicCleaning(
    is_compacted=False, deletes=True, uses_ledger=True, segment_bytes=2000, delete_retention_ms=1000
)
LOG = LogSettings(segment_bytes=2000, has_ledger_mode=True, retention_ms=-1, file_delete_delay_ms=0)


@dataclass
class Life:
    """A store with one partition in ledger mode. `topic` and `log_settings` may be changed."""

    store: LogStore
    manager: CleanerManager
    cleaner: Cleaner
    clock: FixedClock
    disk: FileSystem
    topic: TopicCleaning
    key: TopicPartition = ORDERS

    @property
    def log(self) -> PartitionLog:
        return self.store.get(self.key)

    @property
    def ledgers(self) -> Ledgers:
        return self.manager.ledgers

    @property
    def current(self) -> Generation | None:
        return self.ledgers.manifest(self.key).current

    def ask(self) -> Entry:
        """A run on demand, in this thread. Raises what made it fail."""
        request = self.manager.ask(Request(self.key))
        assert self.cleaner.run_once("test")
        if request.error is not None:
            raise request.error
        assert request.entry is not None
        return request.entry

    def run_all(self) -> int:
        """Loops until nothing is due; how many runs there were."""
        runs = 0
        while self.cleaner.run_once("test"):
            runs += 1
            assert runs < 100, "the cleaner loops"
        return runs

    def close(self) -> None:
        self.cleaner.close()
        self.store.close()

    def compacted(self) -> list[Record]:
        with self.ledgers.compacted(self.key) as view:
            return list(view.read_records(view.start_offset))

    def ledger(self) -> list[Record]:
        """What the ledger in use holds."""
        with self.ledgers.pin(self.key) as pin:
            return (
                [] if pin.view is None else list(pin.view.read_records(pin.view.log_start_offset))
            )

    def configure(self, **changes: Any) -> None:
        self.topic = replace(self.topic, **changes)
        told = replace(
            self.log.settings,
            has_ledger_mode=self.topic.uses_ledger,
            ledger_threshold_bytes=self.topic.threshold_bytes,
        )
        self.log.configure(told)

    def configure_log(self, **changes: Any) -> None:
        self.log.configure(replace(self.log.settings, **changes))


def open_life(
    disk: FileSystem,
    *,
    topic: TopicCleaning = TOPIC,
    log_settings: LogSettings = LOG,
    clock: FixedClock | None = None,
    engine_of: EngineOf = local_engine_of,
    path: str = "/data",
    settings: CleanerSettings | None = None,
) -> Life:
    """Open, or make, the store; without threads. Close it, or abandon its store."""
    clock = clock or FixedClock(NOW)
    log_settings = replace(log_settings, ledger_threshold_bytes=topic.threshold_bytes)
    store = LogStore.open([path], lambda _: log_settings, disk, clock, StoreSettings())
    told = settings or CleanerSettings(dedupe_buffer_bytes=1 << 20)
    life: Life

    def topic_of(_: TopicPartition) -> TopicCleaning:
        return life.topic

    manager = CleanerManager(store, topic_of, disk, clock, told)
    store.attach(manager)
    cleaner = Cleaner(store, manager, topic_of, disk, clock, told, engine_of)
    life = Life(store, manager, cleaner, clock, disk, topic)
    follow_ledgers(store, disk)
    manager.ledgers.sweep(partial(note_ended, disk))
    if ORDERS not in store.partitions():
        store.create(ORDERS)
    return life


@contextmanager
def living(disk: FileSystem, **arguments: Any) -> Iterator[Life]:
    """`open_life`, closed at the end."""
    life = open_life(disk, **arguments)
    try:
        yield life
    finally:
        life.close()


def latest(records: list[Record]) -> dict[bytes, tuple[int, bytes | None]]:
    """Key -> (offset, value) of its newest record."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    for record in records:
        if record.key is not None:
            found[record.key] = (record.offset, record.value)
    return found
