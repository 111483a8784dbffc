"""What a log store asks before records go: whether a ledger still has to take them (LDG-1).

In `compaction.mode=ledger` retention by time and size goes as far as the ledger in use does, its
horizon. Without a ledger, and with a threshold that will make one, nothing goes: keys would be lost
between the log and its first ledger. Without either the topic is a log like any other.

Invariants
- I1  What cannot be known (a damaged manifest) lets nothing go.
- I2  It never waits for the store, whose lock is held by who asks.
"""

from __future__ import annotations

import threading

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.ledger.ledgers import Ledgers
from stratalog.ledger.manifest import read_manifest
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition


def held_from(filesystem: FileSystem, partition_dir: str, settings: LogSettings) -> int | None:
    """`Copies.held_from` of a partition that nobody has open. Raises `StorageIOError`."""
    if not settings.has_ledger_mode:
        return None
    try:
        current = read_manifest(filesystem, partition_dir).current
    except CorruptionError:
        return 0
    if current is not None:
        return current.horizon
    return 0 if settings.ledger_threshold_bytes > 0 else None


class LedgerCopies:
    """The `Copies` of a store with ledgers; `_lock` guards who waits."""

    def __init__(self, ledgers: Ledgers):
        self._ledgers = ledgers
        self._lock = threading.Lock()
        self._waiting: set[TopicPartition] = set()

    def held_from(self, topic_partition: TopicPartition, settings: LogSettings) -> int | None:
        """See `Copies`."""
        if not settings.has_ledger_mode:
            return None
        try:
            current = self._ledgers.manifest(topic_partition).current
        except CorruptionError:
            return 0
        if current is not None:
            return current.horizon
        return 0 if settings.ledger_threshold_bytes > 0 else None

    def retention_waits(self, topic_partition: TopicPartition) -> None:
        """See `Copies`."""
        with self._lock:
            self._waiting.add(topic_partition)

    def cut_back(self, topic_partition: TopicPartition, end_offset: int) -> None:
        """See `Copies`."""
        self._ledgers.cut_back(topic_partition, end_offset)

    def waits(self, topic_partition: TopicPartition) -> bool:
        """Whether retention has found something since the last run that waits for the next."""
        return topic_partition in self._waiting

    def has_run(self, topic_partition: TopicPartition) -> None:
        """A run has ended well, or the partition is gone: what waited need not."""
        with self._lock:
            self._waiting.discard(topic_partition)
