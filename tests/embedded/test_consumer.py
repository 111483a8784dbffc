"""Consumers of the embedded library: positions, commits, resets, what is compacted meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.embedded import Consumer, Store, open_store
from tests.embedded.driving import LEDGER, NOW, brief, end, log_of, opened, put, transaction
from tests.embedded.driving import retain as retain_now

pytestmark = [
    pytest.mark.usefixtures("hasty_disk"),
    pytest.mark.requirement("LDG-3"),
]


def filled(store: Store, **settings: object) -> None:
    topic = store.create_topic("t", config=settings)
    put(topic, *[(f"k{number % 3}", str(number)) for number in range(10)])


def offsets(consumer: Consumer, most: int = 500) -> list[int]:
    return [record.offset for record in consumer.poll(most)]


def test_poll_position_and_seek(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        with store.consumer("t", auto_offset_reset="earliest") as consumer:
            assert consumer.assignment() == [("t", 0)]
            assert consumer.position("t", 0) == 0
            assert offsets(consumer, 4) == [0, 1, 2, 3]
            assert consumer.position("t", 0) == 4
            consumer.seek("t", 0, 8)
            assert offsets(consumer) == [8, 9]
            assert offsets(consumer) == []
            consumer.seek_to_beginning()
            assert offsets(consumer, 1) == [0]
            consumer.seek_to_end("t", 0)
            assert offsets(consumer) == []
            put(store.topic("t"), ("a", "b"))
            assert offsets(consumer) == [10]


def test_where_a_consumer_begins(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        assert offsets(store.consumer("t", auto_offset_reset="earliest"), 1) == [0]
        latest = store.consumer("t")
        assert offsets(latest) == []
        put(store.topic("t"), ("a", "b"))
        assert offsets(latest) == [10]
        none = store.consumer("t", group="g", auto_offset_reset="none")
        reason = r"^t-0: nothing is committed, and auto_offset_reset is none$"
        with pytest.raises(OffsetOutOfRangeError, match=reason):
            none.poll()
        with pytest.raises(OffsetOutOfRangeError, match=reason):
            none.position("t", 0)
        none.seek("t", 0, 3)
        assert offsets(none, 2) == [3, 4]
        none.seek("t", 0, 999)
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 999 lies outside \[0, 11\]"):
            none.poll()


def test_offsets_that_are_gone_are_settled_as_told(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.desk.delete_records([{"topic": "t", "partition": 0, "offset": 6}])
        for reset, expected in (("earliest", [6, 7, 8, 9]), ("latest", [])):
            consumer = store.consumer("t", auto_offset_reset=reset)  # type: ignore[arg-type]
            consumer.seek("t", 0, 2)
            assert offsets(consumer) == expected
            consumer.seek("t", 0, 12)
            assert offsets(consumer) == expected


def test_a_group_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        consumer = store.consumer("t", group="g", auto_offset_reset="earliest")
        assert consumer.committed("t", 0) is None
        offsets(consumer, 4)
        consumer.commit()
        offsets(consumer, 3)  # not committed
        assert consumer.committed("t", 0) == 4
        store.consumer("t", group="other").commit({("t", 0): 9})
    with opened(tmp_path) as store:
        assert offsets(store.consumer("t", group="g", auto_offset_reset="none"), 2) == [4, 5]
        assert offsets(store.consumer("t", group="other", auto_offset_reset="none")) == [9]
        store.delete_topic("t")
        filled(store)
        again = store.consumer("t", group="g", auto_offset_reset="earliest")
        assert offsets(again, 1) == [0]  # of the topic that is gone nothing is left


def test_reading_to_the_end_passes_over_what_is_no_record(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t")
        log = log_of(store)
        transaction(log, 1, 0, [("a", "1")])
        end(log, 1, commits=False)  # offset 1
        transaction(log, 2, 0, [("b", "1")])
        committed = store.consumer(
            "t", auto_offset_reset="earliest", isolation_level="read_committed"
        )
        assert offsets(committed) == []
        assert committed.position("t", 0) == 2
        uncommitted = store.consumer("t", auto_offset_reset="earliest")
        assert offsets(uncommitted) == [0, 2]
        end(log, 2, commits=True)
        assert offsets(committed, 1) == [2]
        assert committed.position("t", 0) == 3
        assert offsets(committed) == []
        assert committed.position("t", 0) == 4


def test_partitions_take_turns_and_new_ones_are_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=2)
        for partition in (0, 1):
            topic.append_many([("k", str(n)) for n in range(6)], partition=partition)
        consumer = store.consumer(["t"], auto_offset_reset="earliest")
        found = [record.partition for _ in range(4) for record in consumer.poll(3)]
        assert found == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
        store.desk.add_partitions("t", 3)
        topic.append("k", "new", partition=2)
        assert [record.partition for record in consumer.poll()] == [2]
        assert consumer.assignment() == [("t", 0), ("t", 1), ("t", 2)]
        consumer.assign([("t", 1)])
        assert consumer.assignment() == [("t", 1)]
        assert consumer.position("t", 1) == 6  # it goes on there
        with pytest.raises(UsageError, match="t-0 is not assigned"):
            consumer.position("t", 0)


@pytest.mark.requirement("LDG-6")
def test_a_ledger_that_is_switched_in_the_middle(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store, **LEDGER)
        topic = store.topic("t")
        topic.compact()
        consumer = store.consumer("t", auto_offset_reset="earliest", read_compacted=True)
        assert offsets(consumer, 1) == [7]
        put(topic, ("k1", "x"), ("k2", None))
        topic.compact()
        put(topic, ("k0", "y"))
        # The stretch that was begun goes on to its end; what follows is the newer ledger's.
        assert offsets(consumer) == [8, 9]
        assert offsets(consumer) == [10, 11, 12]
        anew = store.consumer("t", auto_offset_reset="earliest", read_compacted=True)
        assert offsets(anew) == [9, 10, 11, 12]
        anew.seek("t", 0, 2)  # was compacted away
        assert offsets(anew, 1) == [9]


@pytest.mark.requirement("LDG-6")
def test_a_slow_reader_finds_in_the_ledger_what_the_log_has_lost(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        filled(store, **{**LEDGER, "retention.ms": 1000})
        topic = store.topic("t")
        topic.compact()
        consumer = store.consumer("t", auto_offset_reset="none", read_compacted=True)
        consumer.seek("t", 0, 10)
        assert offsets(consumer) == []
        put(topic, ("k0", "x"), ("k0", "y"), ("k1", "z"))
        topic.compact()
        clock.time_ms += 5000
        retain_now(store)
        assert log_of(store).log_start_offset == 13
        assert offsets(consumer) == [11, 12]
        raw = store.consumer("t", auto_offset_reset="none")
        raw.seek("t", 0, 10)
        with pytest.raises(OffsetOutOfRangeError, match=r"lies outside \[13, 13\]"):
            raw.poll()


@pytest.mark.requirement("LDG-6")
def test_a_consumer_as_of_then_ends_there(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store, **LEDGER)
        topic = store.topic("t")
        topic.compact()
        put(topic, ("k0", "x"), ("k0", "y"))
        topic.compact()
        for as_of, expected in (("ledger:1", [7, 8, 9]), (11, [7, 8, 9, 10]), (4, [0, 1, 2, 3])):
            consumer = store.consumer(
                "t",
                auto_offset_reset="earliest",
                read_compacted=True,
                as_of=as_of,  # type: ignore[arg-type]
            )
            assert offsets(consumer) == expected
            assert offsets(consumer) == []
        raw = store.consumer("t", auto_offset_reset="earliest", as_of="ledger:1")
        assert offsets(raw) == list(range(10))


def test_poll_waits_for_a_record(tmp_path: Path) -> None:
    class Appending(FixedClock):
        def sleep_ms(self, duration_ms: int) -> None:
            self.time_ms += duration_ms
            if self.time_ms == NOW + 500:
                put(store.topic("t"), ("late", "1"))

    clock = Appending(NOW)
    with open_store(tmp_path, background=False, clock=clock) as store:
        filled(store)
        consumer = store.consumer("t")
        assert brief(consumer.poll(timeout=10)) == [(10, b"late", b"1")]
        assert clock.time_ms == NOW + 500
        assert consumer.poll(timeout=0.25) == []
        assert clock.time_ms == NOW + 750


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        consumer = store.consumer()
        with pytest.raises(UsageError, match="nothing is assigned: call subscribe or assign"):
            consumer.poll()
        with pytest.raises(UsageError, match="has no group to commit to"):
            consumer.commit()
        with pytest.raises(UsageError, match="has no group"):
            consumer.committed("t", 0)
        for call, kind, reason in (
            (lambda: consumer.subscribe("x"), UnknownPartitionError, "there is no topic 'x'"),
            (lambda: consumer.subscribe([]), UsageError, "give the name of a topic"),
            (
                lambda: consumer.assign([("t", 1)]),
                UnknownPartitionError,
                "partitions 0 to 0, not 1",
            ),
            (lambda: consumer.assign(["t"]), UsageError, r"a partition is \(topic, number\)"),
            (lambda: consumer.seek("t", 0, 1), UsageError, "t-0 is not assigned"),
            (lambda: consumer.seek_to_end("t"), UsageError, "give a topic and a partition"),
            (lambda: store.consumer("t").seek("t", 0, -1), UsageError, "offset is -1"),
            (lambda: store.consumer("t").poll(0), UsageError, "max_records is 0"),
            (lambda: store.consumer("t").poll(timeout=-1), UsageError, "timeout is -1"),
            (lambda: store.consumer("t").poll(timeout="1"), UsageError, "timeout is '1'"),
            (lambda: store.consumer(auto_offset_reset="first"), UsageError, "auto_offset_reset is"),
            (lambda: store.consumer(isolation_level="none"), UsageError, "isolation_level is"),
            (lambda: store.consumer(as_of="never"), UsageError, "asOf is 'never'"),
            (lambda: store.consumer(group="a/b"), UsageError, "'a/b' is no name of a group"),
            (lambda: store.consumer(group="a.tmp"), UsageError, "not .tmp at its end"),
            (lambda: store.consumer(group=""), UsageError, "'' is no name of a group"),
            (lambda: store.consumer(group="g").commit({("t", 0): -1}), UsageError, "offset is -1"),
            (
                lambda: store.consumer(group="g").commit({("t", 9): 1}),
                UnknownPartitionError,
                "not 9",
            ),
        ):
            with pytest.raises(kind, match=reason) as refusal:
                call()  # type: ignore[no-untyped-call]
            assert "\n" not in str(refusal.value)
        consumer.close()
        consumer.close()
        with pytest.raises(UsageError, match=r"^the consumer is closed$"):
            consumer.subscribe("t")
        reader = store.consumer("t")
        store.delete_topic("t")
        with pytest.raises(UnknownPartitionError):
            reader.poll()


def test_damage_to_what_was_committed_is_told(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        consumer = store.consumer("t", group="g")
        consumer.commit({("t", 0): 1234567})
        path = tmp_path / "stratalog-offsets-g"
        content = path.read_bytes()
        for changed in (
            content.replace(b"1234567", b"1234568"),
            content.replace(b"1234567", b"123456"),
            content.rstrip() + b"\n",  # as if another had written it
            content[:-20],
            b"\0" * len(content),
        ):
            path.write_bytes(changed)
            with pytest.raises(CorruptionError, match=rf"^{path}: "):
                consumer.committed("t", 0)
            with pytest.raises(CorruptionError):
                consumer.commit({("t", 0): 1})
            assert path.read_bytes() == changed
        path.write_bytes(content)
        assert consumer.committed("t", 0) == 1234567
