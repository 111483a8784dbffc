"""Consumers where what they read goes: a ledger, a topic, what was committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.errors import CorruptionError, UnknownPartitionError, UsageError
from tests.embedded.driving import LEDGER, opened, put

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
