"""What a log store asks before records go: whether a ledger still has to take them (LDG-1).

In `compaction.mode=ledger` retention by time and size goes as far as the ledger in use does, its
horizon. Without a ledger, and with a threshold that will make one, nothing goes: keys would be lost
between the log and its first ledger. Without either the topic is a log like any other.

In another mode a ledger that is left holds just as much: past its horizon it would lapse, and what
only it has would be gone. Who gives it up (`admin.desk.leaving`) drops it, and retention goes on.

Invariants
- I1  What cannot be known (a damaged manifest) lets nothing go.
- I2  It never waits for the store, whose lock is held by who asks.
"""

from __future__ import annotations

import logging
import threading

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.ledger.ledgers import Ledgers
from stratalog.ledger.manifest import Generation, read_manifest
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.ledger")


def held_from(
    filesystem: FileSystem, partition_dir: str, settings: LogSettings, log_start_offset: int
) -> int | None:
    """`Copies.held_from` of a partition that nobody has open. Raises `StorageIOError`."""
    try:
        current = read_manifest(filesystem, partition_dir).current
    except CorruptionError:
        return 0
    return _held_from(current, settings, log_start_offset)


def _held_from(
    current: Generation | None, settings: LogSettings, log_start_offset: int
) -> int | None:
    if settings.has_ledger_mode:
        if current is not None:
            return current.horizon
        return 0 if settings.ledger_threshold_bytes > 0 else None
    if current is None or log_start_offset > current.horizon:
        return None
    return current.horizon


def left_behind(topic_partition: TopicPartition, horizon: int) -> str:
    """What is said of a ledger whose topic is not in ledger mode, and who can change that."""
    return (
        f"{topic_partition}: it has a ledger, though its compaction.mode is inplace: the ledger "
        f"stays, and retention goes no further than its end, offset {horizon}, until "
        f"compaction.mode is ledger again, or somebody gives it up: `stratalog config alter "
        f"{topic_partition.topic} --add-config compaction.mode=inplace`"
    )


class LedgerCopies:
    """The `Copies` of a store with ledgers; `_lock` guards who waits."""

    def __init__(self, ledgers: Ledgers):
        self._ledgers = ledgers
        self._lock = threading.Lock()
        self._waiting: set[TopicPartition] = set()
        self._told: set[TopicPartition] = set()

    def held_from(self, topic_partition: TopicPartition, settings: LogSettings) -> int | None:
        """See `Copies`."""
        try:
            current = self._ledgers.manifest(topic_partition).current
        except CorruptionError:
            return 0
        start = 0 if current is None else self._ledgers.log_start(topic_partition)
        held = _held_from(current, settings, start)
        is_left = held is not None and not settings.has_ledger_mode
        if is_left and "delete" in settings.cleanup_policy and topic_partition not in self._told:
            self._told.add(topic_partition)
            _LOG.warning("%s", left_behind(topic_partition, held or 0))
        return held

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
