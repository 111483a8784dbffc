"""A store whose clock stands still and whose threads do not run, and what its records are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stratalog.base.clock import FixedClock
from stratalog.embedded import Record, Store, Topic, open_store
from stratalog.log.partition_log import PartitionLog
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.control import ControlType
from stratalog.segment.names import TopicPartition

NOW = 1_700_000_000_000
LEDGER = {
    "cleanup.policy": "delete",
    "compaction.mode": "ledger",
    "segment.bytes": 1 << 20,
    "file.delete.delay.ms": 0,
    "delete.retention.ms": 1_000_000,
    "retention.ms": -1,
}


@contextmanager
def opened(
    path: Path, clock: FixedClock | None = None, config: Mapping[str, object] | None = None
) -> Iterator[Store]:
    with open_store(path, background=False, clock=clock or FixedClock(NOW), config=config) as store:
        yield store


def log_of(store: Store, topic: str = "t", partition: int = 0) -> PartitionLog:
    return store.desk.service.store.get(TopicPartition(topic, partition))


def brief(records: Iterable[Record]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records]


def latest(topic: Topic, **asked: Any) -> dict[bytes, bytes]:
    """Key -> value; that no key comes twice is asserted."""
    records = list(topic.read("latest", **asked))
    found = {r.key: r.value for r in records if r.key is not None and r.value is not None}
    assert len(found) == len(records)
    return found


def put(topic: Topic, *pairs: tuple[str, str | None]) -> None:
    """Each record a batch of its own."""
    for key, value in pairs:
        topic.append(key, value)


def transaction(
    log: PartitionLog, producer_id: int, sequence: int, pairs: Iterable[tuple[str, str | None]]
) -> int:
    """Records of a transaction that stays open; their number."""
    records = [NewRecord(k.encode(), None if v is None else v.encode(), NOW) for k, v in pairs]
    log.append(
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
    )
    return len(records)


def end(log: PartitionLog, producer_id: int, *, commits: bool) -> None:
    kind = ControlType.COMMIT if commits else ControlType.ABORT
    log.append_marker(kind, producer_id=producer_id, producer_epoch=0)


def retain(store: Store) -> None:
    """Close the active segments, and let retention do what it may."""
    for key in store.desk.service.store.partitions():
        store.desk.service.store.get(key).roll()
    store.desk.service.store.run_retention()
    store.desk.service.store.unlink_due()


def manifest_of(store: Store, topic: str = "t", partition: int = 0) -> Any:
    return store.desk.service.ledgers.manifest(TopicPartition(topic, partition))
