"""A store and its cleaner as one thing: what can be asked of it (CLN-9, CLN-10, CLN-11)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from stratalog.admin.forgetting import forget
from stratalog.admin.service import Service, open_service
from stratalog.base.clock import FixedClock
from stratalog.base.errors import RoundAbortedError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.select import Obstacle
from stratalog.config.book import SettingsBook
from stratalog.record.builder import NewRecord
from stratalog.record.control import ControlType
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, contents, put

DISK = LocalFileSystem()
ORDERS = TopicPartition("orders", 0)
BOOK = SettingsBook(
    topics={
        "orders": {"cleanup.policy": "compact", "delete.retention.ms": "1000"},
        "times": {"cleanup.policy": "compact", "compaction.strategy": "timestamp"},
        "versions": {
            "cleanup.policy": "compact",
            "compaction.strategy": "header",
            "compaction.strategy.header": "v",
        },
    }
)


def _files_with(service: Service, key: TopicPartition, needle: bytes) -> list[str]:
    path = Path(service.store.get(key).path)
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and needle in file.read_bytes()
    )


@pytest.mark.requirement("CLN-9", "CLN-10")
def test_compaction_on_demand_pause_and_history(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with open_service([str(tmp_path)], BOOK, DISK, clock) as service:
        log = service.store.create(ORDERS)
        put(log, ("a", "1"), ("b", "1"), ("a", "2"))
        assert service.explain(ORDERS).obstacle is Obstacle.NOTHING_CLEANABLE
        [entry] = service.compact(ORDERS)
        assert (entry.trigger, entry.result, entry.records_before, entry.records_after) == (
            "asked",
            "cleaned",
            3,
            2,
        )
        assert contents(log) == [(1, "b", "1"), (2, "a", "2")]
        assert service.history(ORDERS) == [entry]
        assert service.pause(ORDERS)
        assert not service.pause(ORDERS), "it is paused already"
        with pytest.raises(UsageError, match="paused"):
            service.compact(ORDERS)
    with open_service([str(tmp_path)], BOOK, DISK, clock) as service:
        assert service.explain(ORDERS).obstacle is Obstacle.PAUSED, "also after a restart"
        assert service.status().paused == (ORDERS,)
        assert service.resume(ORDERS)
        assert not service.resume(ORDERS)
        assert service.explain(ORDERS).obstacle is Obstacle.NOTHING_CLEANABLE
        assert [entry.result for entry in service.history(ORDERS)] == ["cleaned"]


@pytest.mark.requirement("CLN-11")
def test_forgetting_a_key_has_two_stages(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with open_service([str(tmp_path)], BOOK, DISK, clock) as service:
        log = service.store.create(ORDERS)
        put(log, ("alice", "secret-1"), ("bob", "1"))
        service.compact(ORDERS)
        put(log, ("alice", "secret-2"), ("bob", "2"))
        receipt = forget(service, ORDERS, b"alice", DISK, clock)
        assert receipt.was_there
        assert (receipt.values_gone_ms, receipt.keys_gone_ms) == (NOW, NOW + 1000)
        assert contents(log) == [(3, "bob", "2"), (4, "alice", None)]
        assert _files_with(service, ORDERS, b"secret") == []
        assert receipt.files_unlinked > 0
        clock.sleep_ms(1000)
        assert service.cleaner.run_once()
        assert contents(log) == [(3, "bob", "2")]
        service.store.unlink_deleted(ORDERS)
        assert _files_with(service, ORDERS, b"alice") == []
        assert not forget(service, ORDERS, b"nobody", DISK, clock).was_there
        assert log.log_end_offset == 5, "nothing is written for a key that is not there"


@pytest.mark.requirement("CLN-11")
def test_forgetting_at_once_leaves_no_tombstone(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with open_service([str(tmp_path)], BOOK, DISK, clock) as service:
        log = service.store.create(ORDERS)
        put(log, ("alice", "secret"), ("bob", "1"), ("carol", None))
        receipt = forget(service, ORDERS, b"alice", DISK, clock, keeps_tombstone=False)
        assert receipt.values_gone_ms == receipt.keys_gone_ms == NOW
        assert contents(log) == [(1, "bob", "1"), (2, "carol", None)], "other tombstones stay"
        assert _files_with(service, ORDERS, b"alice") == []


@pytest.mark.requirement("CLN-11", "CMP-17")
@pytest.mark.parametrize("topic", ["times", "versions"])
def test_forgetting_wins_over_the_highest_version(tmp_path: Path, topic: str) -> None:
    clock = FixedClock(NOW)
    key = TopicPartition(topic, 0)
    with open_service([str(tmp_path)], BOOK, DISK, clock) as service:
        log = service.store.create(key)
        for version in (5, 900, 7):
            header = (b"v", str(version).encode())
            log.append_records([NewRecord(b"alice", b"secret", NOW + version, (header,))])
        put(log, ("bob", "1"))
        forget(service, key, b"alice", DISK, clock)
        assert contents(log) == [(3, "bob", "1"), (4, "alice", None)]
        assert _files_with(service, key, b"secret") == []


@pytest.mark.requirement("CLN-11")
def test_what_cannot_be_forgotten_is_not_begun(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with open_service([str(tmp_path)], BOOK, DISK, clock) as service:
        plain = TopicPartition("plain", 0)
        service.store.create(plain)
        with pytest.raises(UsageError, match="nobody says"):
            forget(service, plain, b"a", DISK, clock)
        log = service.store.create(ORDERS)
        put(log, ("a", "1"))
        from stratalog.record.builder import build_batch

        batch = build_batch(
            [NewRecord(b"b", b"1", NOW)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append(batch)
        with pytest.raises(UsageError, match="open"):
            forget(service, ORDERS, b"a", DISK, clock)
        assert log.log_end_offset == 2, "nothing was written"
        log.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0)
        assert forget(service, ORDERS, b"b", DISK, clock).was_there
        assert _files_with(service, ORDERS, b"secret") == []


@pytest.mark.requirement("CFG-2", "CLN-4")
def test_settings_change_at_run_time(tmp_path: Path) -> None:
    with open_service([str(tmp_path)], BOOK, DISK, FixedClock(NOW)) as service:
        log = service.store.create(ORDERS)
        put(log, ("a", "1"), ("a", "2"))
        log.roll()
        service.change(service.book.with_topic("orders", {"cleanup.policy": "delete"}))
        assert service.explain(ORDERS).obstacle is Obstacle.NOT_COMPACTED
        assert not service.cleaner.run_once()
        assert not log.settings.is_compacted
        service.change(service.book.with_topic("orders", {"cleanup.policy": "compact,delete"}))
        assert service.explain(ORDERS).obstacle is None
        assert service.cleaner.run_once()
        assert contents(log) == [(1, "a", "2")]


@pytest.mark.requirement("CLN-9")
def test_who_waits_when_the_service_is_closed_is_told(tmp_path: Path) -> None:
    told: list[BaseException] = []
    with open_service([str(tmp_path)], BOOK, DISK, FixedClock(NOW)) as service:
        log = service.store.create(ORDERS)
        put(log, ("a", "1"), ("a", "2"))
        service.manager.abort_and_pause(ORDERS)  # somebody has the partition for himself

        def ask() -> None:
            try:
                service.compact(ORDERS)
            except RoundAbortedError as error:
                told.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not service.manager.asked():
            time.sleep(0.001)
    thread.join(20)
    assert len(told) == 1
    with pytest.raises(UsageError, match="closed"):
        service.pause(ORDERS)


@pytest.mark.requirement("CLN-12", "RET-10")
def test_a_policy_for_all_does_not_reach_the_systems_topics(tmp_path: Path) -> None:
    offsets = TopicPartition("__consumer_offsets", 0)
    rest = SettingsBook(overrides={"cleanup.policy": "delete", "retention.ms": "1"})
    with open_service([str(tmp_path)], rest, DISK, FixedClock(NOW + 10_000_000)) as service:
        log = service.store.create(offsets)
        put(log, ("group", "1"))
        log.roll()
        assert service.store.run_retention() == {}
        assert service.cleaning(offsets).is_compacted


@pytest.mark.requirement("CLN-12")
def test_the_systems_own_topics_are_cleaned_like_any_other(tmp_path: Path) -> None:
    """Whatever the broker's default is, and with the same cleaner."""
    offsets = TopicPartition("__consumer_offsets", 3)
    broker = SettingsBook(broker={"log.cleanup.policy": "delete", "log.retention.ms": "1"})
    with open_service([str(tmp_path)], broker, DISK, FixedClock(NOW)) as service:
        log = service.store.create(offsets)
        for committed in range(5):
            put(log, ("group", str(committed)))
            log.roll()
        assert service.cleaner.run_once()
        assert contents(log) == [(4, "group", "4")]
        service.store.run_retention()
        assert contents(log) == [(4, "group", "4")], "retention.ms is not for it"
        said = service.book.with_topic("__consumer_offsets", {"cleanup.policy": "compact,delete"})
        service.change(said)
        assert service.cleaning(offsets).deletes, "by name it can be said"
