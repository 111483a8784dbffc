"""What the tests of the cleaner as a service share: store, manager, cleaner, and one clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.cleaner import Cleaner
from stratalog.clean.manager import CleanerManager
from stratalog.clean.round import EngineOf, local_engine_of
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition

NOW = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
SMALL = LogSettings(cleanup_policy=("compact",), segment_bytes=1 << 20)
COMPACTED = TopicCleaning(is_compacted=True, deletes=False)


@dataclass
class Parts:
    """A service's parts. `topics` and `logs` may be changed; what is missing there has defaults."""

    store: LogStore
    manager: CleanerManager
    cleaner: Cleaner
    clock: FixedClock
    topics: dict[str, TopicCleaning]

    def log(self, key: TopicPartition = ORDERS) -> PartitionLog:
        if key not in self.store.partitions():
            self.store.create(key)
        return self.store.get(key)

    def clean_all(self) -> int:
        """Run loops until nothing is to be done; how many rounds there were."""
        rounds = 0
        while self.cleaner.run_once("test"):
            rounds += 1
            assert rounds < 1000, "the cleaner loops"
        return rounds


@contextmanager
def opened(
    log_dirs: list[str],
    *,
    topics: Mapping[str, TopicCleaning] | None = None,
    log_settings: LogSettings = SMALL,
    settings: CleanerSettings | None = None,
    clock: FixedClock | None = None,
    filesystem: FileSystem | None = None,
    engine_of: EngineOf = local_engine_of,
    store_settings: StoreSettings | None = None,
) -> Iterator[Parts]:
    """A store and its cleaner, without threads."""
    clock = clock or FixedClock(NOW)
    disk = filesystem or LocalFileSystem()
    told = dict(topics or {})
    settings = settings or CleanerSettings()
    store = LogStore.open(
        log_dirs, lambda _: log_settings, disk, clock, store_settings or StoreSettings()
    )

    def topic_of(key: TopicPartition) -> TopicCleaning:
        return told.get(key.topic, COMPACTED)

    manager = CleanerManager(store, topic_of, disk, clock, settings)
    store.attach(manager)
    cleaner = Cleaner(store, manager, topic_of, disk, clock, settings, engine_of)
    try:
        yield Parts(store, manager, cleaner, clock, told)
    finally:
        cleaner.close()
        store.close()


def put(log: PartitionLog, *pairs: tuple[str, str | None], timestamp: int = NOW) -> None:
    """Append one batch of records; a value of None is a tombstone."""
    log.append_records(
        [
            NewRecord(key.encode(), None if value is None else value.encode(), timestamp)
            for key, value in pairs
        ]
    )


def contents(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of every record."""
    return [
        (
            record.offset,
            (record.key or b"").decode(),
            None if record.value is None else record.value.decode(),
        )
        for record in log.read_records(log.log_start_offset)
    ]
