"""Consumers where what they read goes: a ledger, a topic, what was committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.admin.desk import BareDesk
from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.checkpoint import render
from stratalog.segment.names import TopicPartition
from tests.embedded.driving import LEDGER, NOW, opened, put

pytestmark = pytest.mark.usefixtures("hasty_disk")


@pytest.mark.requirement("LDG-6")
def test_what_was_read_to_its_end_as_of_then_needs_no_ledger_any_more(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config={**LEDGER, "compaction.ledgers.retained": 1})
        put(topic, ("a", "1"), ("a", "2"), ("b", "3"))
        topic.compact()
        options = {"read_compacted": True, "auto_offset_reset": "earliest"}
        through = store.consumer("t", as_of="ledger:1", **options)  # type: ignore[arg-type]
        by_offset = store.consumer("t", as_of=3, **options)  # type: ignore[arg-type]
        for consumer in (through, by_offset):
            assert [r.offset for r in consumer.poll()] == [1, 2]
            assert consumer.poll() == []
        for value in ("4", "5"):
            put(topic, ("a", value))
            topic.compact()
        for consumer in (through, by_offset):
            assert consumer.poll() == []
            assert consumer.position("t", 0) == 3
        through.seek("t", 0, 0)
        with pytest.raises(UsageError, match="there is no ledger 1"):
            through.poll()


def test_a_topic_that_is_made_again_is_not_read_from_the_old_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t")
        topic.append_many([("old", str(number)) for number in range(50)])
        consumer = store.consumer("t", auto_offset_reset="earliest")
        assert len(consumer.poll(max_records=5)) == 5
        store.delete_topic("t")
        with pytest.raises(UnknownPartitionError):
            consumer.poll()
        again = store.create_topic("t")
        again.append_many([("new", str(number)) for number in range(3)])
        assert [(r.offset, r.key) for r in consumer.poll()] == [(n, b"new") for n in range(3)]


def test_a_group_does_not_go_on_in_the_topic_that_another_tool_made_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t").append_many([("old", str(number)) for number in range(9)])
        with store.consumer("t", group="g", auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(max_records=4)) == 4
            consumer.commit()
    # `stratalog topic delete`: it knows of no groups.
    desk = BareDesk([str(tmp_path)], LocalFileSystem(), FixedClock(NOW))
    desk.delete_topic("t")
    desk.create_topic("t")
    with opened(tmp_path) as store:
        store.topic("t").append_many([("new", str(number)) for number in range(9)])
        with store.consumer("t", group="g", auto_offset_reset="earliest") as consumer:
            assert consumer.committed("t", 0) is None
            assert [(r.offset, r.key) for r in consumer.poll(2)] == [(0, b"new"), (1, b"new")]
            consumer.commit()
            assert consumer.committed("t", 0) == 2
        with pytest.raises(OffsetOutOfRangeError, match="nothing is committed"):
            store.consumer("t", group="h", auto_offset_reset="none").poll()


def test_a_group_does_not_go_on_in_the_topic_that_kafka_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "t-0" / "partition.metadata"
    with opened(tmp_path) as store:
        store.create_topic("t").append_many([("k", str(number)) for number in range(9)])
    (tmp_path / "stratalog-topics").unlink()  # the topic is Kafka's
    for topic_id, offset in (("7sHZVXyuQV-bqwTqLHb_sA", 0), ("9sHZVXyuQV-bqwTqLHb_sA", 0)):
        path.write_text(f"version: 0\ntopic_id: {topic_id}\n")
        for begun in (offset, 4):
            with opened(tmp_path) as store:
                consumer = store.consumer("t", group="g", auto_offset_reset="earliest")
                assert consumer.position("t", 0) == begun
                consumer.commit({("t", 0): 4})
                consumer.close()


def test_a_consumer_that_reads_begins_anew_in_a_longer_topic(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t").append_many([("old", str(number)) for number in range(9)])
        consumer = store.consumer("t", group="g", auto_offset_reset="earliest")
        consumer.poll()
        store.delete_topic("t")
        again = store.create_topic("t")
        again.append_many([("new", str(number)) for number in range(20)])
        consumer.commit()  # where it was in the old topic: that is nothing to the new one
        assert consumer.committed("t", 0) is None
        assert consumer.position("t", 0) == 0
        assert len(consumer.poll()) == 20


def test_offsets_of_an_earlier_version_count(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t").append_many([("k", str(number)) for number in range(9)])
        (tmp_path / "stratalog-offsets-g").write_bytes(render({TopicPartition("t", 0): 7}))
        consumer = store.consumer("t", group="g", auto_offset_reset="earliest")
        assert consumer.committed("t", 0) == 7
        assert [record.offset for record in consumer.poll()] == [7, 8]


def test_one_damaged_group_keeps_no_other_from_forgetting_a_topic(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for name in ("t", "u"):
            store.create_topic(name).append("k", "v")
        for group in "abc":
            with store.consumer("t", group=group, auto_offset_reset="earliest") as consumer:
                consumer.commit({("t", 0): 1, ("u", 0): 1})
        damaged = tmp_path / "stratalog-offsets-b"
        damaged.write_bytes(damaged.read_bytes()[:-3])
        with pytest.raises(CorruptionError, match="without the file, group b begins anew"):
            store.delete_topic("t")
        assert store.topics() == ["u"]
        for group in "ac":
            committed = store.consumer(group=group).committed
            assert (committed("t", 0), committed("u", 0)) == (None, 1)
        damaged.unlink()
        assert store.consumer(group="b").committed("u", 0) is None
