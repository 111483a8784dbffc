"""Reading a topic by its three views: what people ask for, also wrongly."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    CorruptionError,
    LogChangedError,
    OffsetOutOfRangeError,
    StratalogError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.embedded import topic as topic_module
from stratalog.embedded.topic import READ_COLUMNS
from stratalog.pipeline import locating
from stratalog.pipeline.arrow_schema import arrow_schema
from stratalog.pipeline.schema import ALL_COLUMNS, schema_of
from stratalog.pipeline.source import StratalogDataSource
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec
from stratalog.segment.names import TopicPartition
from tests.embedded.driving import (
    LEDGER,
    NOW,
    brief,
    end,
    latest,
    log_of,
    manifest_of,
    opened,
    put,
    retain,
    transaction,
)

pytestmark = pytest.mark.usefixtures("hasty_disk")
PRICES = [("ACME", "1"), ("BETA", "1"), ("ACME", "2"), ("COLA", "9"), ("BETA", None), ("ACME", "3")]


@pytest.mark.requirement("LDG-3", "LDG-7")
@pytest.mark.parametrize("settings", [LEDGER, {"cleanup.policy": "compact"}])
def test_three_views_of_prices(tmp_path: Path, settings: dict[str, object]) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config=settings)
        put(topic, *PRICES)
        everything = brief(topic.read())
        assert [value for _, _, value in everything] == [b"1", b"1", b"2", b"9", None, b"3"]
        assert brief(topic.read("compacted")) == everything  # nothing was compacted yet
        assert latest(topic) == {b"ACME": b"3", b"COLA": b"9"}
        assert topic.compact()["ok"]
        put(topic, ("ACME", "4"), ("COLA", None))
        assert [(o, v) for o, _, v in brief(topic.read("compacted"))] == [
            *[(3, b"9"), (4, None), (5, b"3")],  # the deletion is told (LDG-5)
            *[(6, b"4"), (7, None)],
        ]
        assert latest(topic) == {b"ACME": b"4"}
        offsets = [record.offset for record in topic.read("raw")]
        assert offsets == (list(range(8)) if settings is LEDGER else [3, 4, 5, 6, 7])
        # Whatever is asked for below: what is there next.
        assert [o for o, _, _ in brief(topic.read("compacted", start=4))] == [4, 5, 6, 7]
        assert [o for o, _, _ in brief(topic.read("compacted", start=1))] == [3, 4, 5, 6, 7]


@pytest.mark.requirement("LDG-5")
def test_a_deletion_is_seen_for_delete_retention_and_no_longer(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t", config={**LEDGER, "delete.retention.ms": 1000})
        put(topic, ("a", "1"), ("b", "1"), ("a", None))
        topic.compact()
        lagging = store.consumer("t", auto_offset_reset="earliest", read_compacted=True)
        clock.time_ms += 999
        put(topic, ("b", "2"))
        topic.compact()
        assert brief(lagging.poll()) == [(2, b"a", None), (3, b"b", b"2")]
        clock.time_ms += 2
        put(topic, ("b", "3"))
        topic.compact()
        assert brief(topic.read("compacted")) == [(4, b"b", b"3")]
        lagging.close()


@pytest.mark.requirement("LDG-3")
def test_a_ledger_serves_what_the_log_has_lost(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t", config={**LEDGER, "retention.ms": 1000})
        put(topic, *PRICES)
        topic.compact()
        clock.time_ms += 5000
        retain(store)
        assert log_of(store).log_start_offset == 6
        put(topic, ("DELL", "7"))
        assert [r.key for r in topic.read("raw")] == [b"DELL"]
        assert latest(topic) == {b"ACME": b"3", b"COLA": b"9", b"DELL": b"7"}
        assert [o for o, _, _ in brief(topic.read("compacted"))] == [3, 4, 5, 6]
        consumer = store.consumer("t", auto_offset_reset="earliest", read_compacted=True)
        assert [r.offset for r in consumer.poll()] == [3, 4, 5, 6]
        consumer.close()


@pytest.mark.requirement("LDG-7")
def test_latest_is_as_of_the_beginning_of_the_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config=LEDGER)
        put(topic, *PRICES)
        topic.compact()
        reading = topic.read("latest")
        put(topic, ("ACME", "4"), ("NEW", "1"))
        topic.compact()
        assert brief(reading) == [(3, b"COLA", b"9"), (5, b"ACME", b"3")]


@pytest.mark.requirement("LDG-7")
def test_latest_goes_by_the_order_of_versions(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        settings = {**LEDGER, "compaction.strategy": "timestamp"}
        topic = store.create_topic("t", config=settings)
        topic.append("a", "new", timestamp=NOW)
        topic.append("b", "old", timestamp=NOW - 10)
        topic.append("b", None, timestamp=NOW)
        topic.compact()
        topic.append("a", "late", timestamp=NOW - 5)
        topic.append("b", "late", timestamp=NOW - 5)  # does not bring it back (CMP-17)
        assert latest(topic) == {b"a": b"new"}
        topic.compact()
        assert latest(topic) == {b"a": b"new"}


@pytest.mark.requirement("LDG-7")
def test_more_keys_than_fit_the_map_are_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_module, "LATEST_BYTES", 1 << 13)
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config=LEDGER)
        topic.append_many([(f"k{n}", "1") for n in range(3000)])
        topic.compact()
        topic.append_many([(f"k{n}", "2") for n in range(0, 3000, 2)])
        found = latest(topic)
        assert found == {f"k{n}".encode(): b"12"[n % 2 == 0 :][:1] for n in range(3000)}


@pytest.mark.requirement("LDG-3")
def test_transactions_by_isolation(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config=LEDGER)
        log = log_of(store)
        transaction(log, 1, 0, [("a", "1"), ("b", "1")])
        end(log, 1, commits=True)  # offset 2
        transaction(log, 2, 0, [("a", "gone")])
        end(log, 2, commits=False)  # offset 4
        put(topic, ("c", "1"))
        transaction(log, 3, 0, [("c", "open")])
        put(topic, ("d", "behind"))
        assert [r.offset for r in topic.read()] == [0, 1, 3, 5, 6, 7]
        assert [r.offset for r in topic.read(isolation="read_committed")] == [0, 1, 5]
        assert latest(topic) == {b"a": b"1", b"b": b"1", b"c": b"1"}
        topic.compact()
        assert manifest_of(store).current.horizon == 6
        assert [r.offset for r in topic.read("compacted")] == [0, 1, 5, 6, 7]
        committed = topic.read("compacted", isolation="read_committed")
        assert [r.offset for r in committed] == [0, 1, 5]
        end(log, 3, commits=True)
        assert latest(topic) == {b"a": b"1", b"b": b"1", b"c": b"open", b"d": b"behind"}


@pytest.mark.requirement("LDG-6")
def test_who_reads_a_ledger_keeps_it(tmp_path: Path) -> None:
    key = TopicPartition("t", 0)
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config={**LEDGER, "compaction.ledgers.retained": 1})
        ledgers = store.desk.service.ledgers
        put(topic, *PRICES)
        topic.compact()
        readings = [topic.read("compacted"), topic.read("latest"), topic.read("compacted")]
        consumer = store.consumer("t", auto_offset_reset="earliest", read_compacted=True)
        assert [r.offset for r in consumer.poll(1)] == [3]
        put(topic, ("ACME", "4"))
        topic.compact()
        put(topic, ("COLA", "8"))
        topic.compact()
        assert [g.number for g in manifest_of(store).generations] == [3]
        assert ledgers.pinned(key) == [1]
        directory = Path(log_of(store).path) / ".stratalog/ledgers/00000001"
        assert directory.exists()
        assert [o for o, _, _ in brief(readings.pop(0))] == [3, 4, 5]
        with readings.pop(0) as reading:
            assert next(reading).offset == 3
        assert list(reading) == []  # it was closed half-way
        # What the consumer has not seen comes once, by whichever ledger.
        assert [r.offset for r in consumer.poll()] == [4, 5]
        assert [r.offset for r in consumer.poll()] == [6, 7]
        del readings[:]  # nobody closed it
        gc.collect()
        consumer.close()
        assert ledgers.pinned(key) == []
        assert not directory.exists()
        with pytest.raises(UsageError, match=r"^t-0: there is no ledger 1; there is ledger:3"):
            topic.read("compacted", as_of="ledger:1")


@pytest.mark.requirement("LDG-6")
def test_a_ledger_that_is_switched_while_a_read_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between pin and raw view the log may lose what only a newer ledger has."""
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t", config={**LEDGER, "retention.ms": 1000})
        put(topic, *PRICES)
        topic.compact()
        ledgers = store.desk.service.ledgers
        original, tries = ledgers.pin, []

        def pin(*asked: Any) -> Any:
            found = original(*asked)
            tries.append(found)
            if len(tries) == 1:
                put(topic, ("DELL", "7"))
                clock.time_ms += 5000
                topic.compact()
                retain(store)
            return found

        monkeypatch.setattr(ledgers, "pin", pin)
        reading = topic.read("latest")
        assert tries[0].generation.number < tries[-1].generation.number
        assert brief(reading) == [(3, b"COLA", b"9"), (5, b"ACME", b"3"), (6, b"DELL", b"7")]
        tries.clear()
        assert latest(topic, as_of=7) == {b"COLA": b"9", b"ACME": b"3", b"DELL": b"7"}
        assert ledgers.pinned(TopicPartition("t", 0)) == []


@pytest.mark.requirement("LDG-6")
def test_as_of_a_ledger_an_offset_and_a_time(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t", config=LEDGER)
        for value in range(6):
            clock.time_ms = NOW + 1000 * value
            put(topic, ("a", str(value)), (f"k{value}", str(value)))
            if value in (1, 3):
                topic.compact()
                log_of(store).roll()
        for as_of, last in (
            *[("ledger:1", 1), (4, 1), ("4", 1), (f"@{NOW + 1001}", 1), (f"@{NOW + 2000}", 1)],
            *[("ledger:2", 3), (10, 4), (12, 5), (2, 0), (f"@{NOW + 99_000}", 5)],
            (datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(seconds=3.5), 3),
            ("2023-11-14T22:13:22.5Z", 2),
            ("2023-11-14T22:13:22.5", 2),
        ):
            expected = {f"k{n}".encode(): str(n).encode() for n in range(last + 1)}
            assert latest(topic, as_of=as_of) == {b"a": str(last).encode(), **expected}, as_of
        assert latest(topic, as_of=0) == {}
        assert [r.offset for r in topic.read("raw", as_of="ledger:1")] == [0, 1, 2, 3]
        assert [r.offset for r in topic.read("compacted", as_of=6)] == [1, 2, 3, 4, 5]
        clock.time_ms += 10_000
        topic.configure({"retention.ms": 5000})
        retain(store)
        assert log_of(store).log_start_offset == 8
        assert latest(topic, as_of="ledger:1")[b"a"] == b"1"
        assert latest(topic, as_of=4)[b"a"] == b"1"
        assert latest(topic, as_of=9)[b"a"] == b"4"
        with pytest.raises(UsageError, match="the raw log begins at offset 8 by now; the comp"):
            topic.read("raw", as_of="ledger:1")
        for as_of, reason in (
            (
                6,
                "the raw log begins at offset 8 by now, and no ledger ends at 6; there is ledger:1",
            ),
            (1, "the raw log begins at offset 8 by now, and no ledger ends at 1"),
            (f"@{NOW + 1500}", f"as of @{NOW + 1500}: the raw log begins later by now"),
            (13, "as of offset 13: the log ends at 12"),
            ("ledger:9", r"there is no ledger 9; there is ledger:1 \(ends at 4\), ledger:2"),
        ):
            with pytest.raises(UsageError, match=reason) as refusal:
                topic.read("latest", as_of=as_of)  # type: ignore[arg-type]
            assert "\n" not in str(refusal.value)


@pytest.mark.requirement("LDG-6")
def test_as_of_is_refused_where_cleaning_has_gone_past(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config={"cleanup.policy": "compact"})
        put(topic, *PRICES)
        assert latest(topic, as_of=1) == {b"ACME": b"1"}
        topic.compact()
        with pytest.raises(UsageError, match=r"offsets below 6 have been cleaned since"):
            topic.read("latest", as_of=1)
        assert latest(topic, as_of=6) == {b"ACME": b"3", b"COLA": b"9"}
        with pytest.raises(UsageError, match=r"there is no ledger 1; there is no ledger"):
            topic.read("compacted", as_of="ledger:1")


def test_batches_of_arrow_are_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=3, config=LEDGER)
        for codec in ("uncompressed", "zstd"):
            topic.configure({"compression.type": codec})
            topic.append_many(
                [
                    (f"k{n}", None if n % 7 == 0 else f"v{n}", NOW + n, [("h", b"x"), ("n", None)])
                    if n % 3 == 0
                    else (f"k{n}", "x" * (n % 50))
                    for n in range(300)
                ]
            )
        topic.compact(partition=1)
        topic.append_many([(f"k{n}", "new") for n in range(0, 300, 9)])
        monkeypatch.setattr(locating, "BATCH_BYTES", 500)
        for view in ("raw", "compacted", "latest"):
            records = list(topic.read(view))  # type: ignore[arg-type]
            table = pa.Table.from_batches(topic.read_arrow(view))  # type: ignore[arg-type]
            assert table.schema.names == list(READ_COLUMNS)
            rows = table.set_column(
                3, "timestamp", table.column("timestamp").cast(pa.int64())
            ).to_pylist()
            assert [
                (
                    *(row["topic"], row["partition"], row["offset"], row["timestamp"] // 1000),
                    *(row["key"], row["value"]),
                    tuple((h["key"], h["value"]) for h in row["headers"] or ()),
                )
                for row in rows
            ] == records
            assert {record.partition for record in records} == {0, 1, 2}
        narrow = list(topic.read_arrow("latest", columns=["value", "KEY"]))
        assert narrow[0].schema.names == ["value", "key"]
        with pytest.raises(UsageError, match=r"^no column 'price'"):
            topic.read_arrow(columns=["price"])
        with pytest.raises(UsageError, match="twice"):
            topic.read_arrow(columns=["key", "KEY"])
        with pytest.raises(UsageError, match="a list of names"):
            topic.read_arrow(columns="key")


def test_the_arrow_columns_are_sparks() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert arrow_schema(ALL_COLUMNS).equals(
        to_arrow_schema(schema_of(ALL_COLUMNS), timezone="UTC"), check_metadata=True
    )


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=2)
        put(topic, *PRICES)
        for asked, kind, reason in (
            ({"view": "newest"}, UsageError, "view is 'newest'; it must be raw or compacted or"),
            ({"view": None}, UsageError, "view is None"),
            ({"partitions": [2]}, UnknownPartitionError, "t has partitions 0 to 1, not 2"),
            ({"partitions": ["0"]}, UnknownPartitionError, "not '0'"),
            ({"partitions": [True]}, UnknownPartitionError, "not True"),
            ({"partitions": "0"}, UsageError, "partitions are numbers, not '0'"),
            ({"partitions": 9}, UnknownPartitionError, "not 9"),
            ({"start": -1}, UsageError, "start is -1; it must be from 0"),
            ({"start": "0"}, UsageError, "start is '0'; it must be a whole number"),
            ({"start": 99}, OffsetOutOfRangeError, r"t-0: offset 99 lies outside \[0, \d\]"),
            ({"start": {5: 0}}, UnknownPartitionError, "start: partition 5 is not read"),
            ({"start": {0: None}}, UsageError, "start is None"),
            ({"view": "latest", "start": 0}, UsageError, "leave out start"),
            ({"isolation": "serializable"}, UsageError, "isolation is 'serializable'"),
            (
                {"view": "latest", "isolation": "read_uncommitted"},
                UsageError,
                "committed data: leave out isolation",
            ),
            ({"as_of": "yesterday"}, UsageError, "asOf is 'yesterday'; it must be ledger:NUMBER"),
            ({"as_of": -1}, UsageError, "-1 is no offset"),
            ({"as_of": True}, UsageError, "asOf is True"),
            ({"as_of": "ledger:0"}, UsageError, "asOf is 'ledger:0'"),
            ({"as_of": "@999999999999999999"}, UsageError, "asOf is"),
            ({"as_of": datetime(1900, 1, 1, tzinfo=UTC)}, UsageError, "no time that a record can"),
        ):
            with pytest.raises(kind, match=reason) as refusal:
                topic.read(**asked)  # type: ignore[arg-type]
            assert "\n" not in str(refusal.value)
        assert list(topic.read(partitions=[])) == []
        assert list(topic.read(partitions=1)) == list(topic.read(partitions=[1, 1]))
        assert store.desk.service.ledgers.pinned(TopicPartition("t", 0)) == []


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t")
        put(topic, *PRICES)
        path = Path(log_of(store).path) / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        reading = topic.read()
        with pytest.raises(CorruptionError, match=rf"^{path}: position \d+: "):
            list(reading)
        assert list(reading) == []
    # The store closes; what is damaged is met again by the next read.


def test_damage_to_a_ledger_is_told_and_the_log_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config=LEDGER)
        put(topic, *PRICES)
        topic.compact()
        ledgers = Path(log_of(store).path) / ".stratalog/ledgers"
    manifest = ledgers / "manifest"
    content = manifest.read_bytes()
    [ledger] = ledgers.glob("00000001/*.log")
    damaged = bytearray(ledger.read_bytes())
    damaged[-5] ^= 1
    for file, changed in (
        (manifest, content.replace(b'"horizon":6', b'"horizon":5')),
        (manifest, b""),
        (ledger, bytes(damaged)),
        (ledger, bytes(damaged[:-9])),
        (ledger, None),
    ):
        before = file.read_bytes()
        if changed is None:
            file.unlink()
        else:
            file.write_bytes(changed)
        with opened(tmp_path) as store:
            topic = store.topic("t")
            for view in ("compacted", "latest"):
                with pytest.raises(CorruptionError, match=str(file)) as damage:
                    list(topic.read(view))  # type: ignore[arg-type]
                assert "\n" not in str(damage.value)
                source = spark_source(tmp_path, view)
                with pytest.raises((CorruptionError, LogChangedError)) as told:
                    source()
                assert "\n" not in str(told.value)
            assert [r.offset for r in topic.read("raw")] == list(range(6))
            assert spark_source(tmp_path, "raw")() == 6
        file.write_bytes(before)


def spark_source(path: Path, view: str) -> Callable[[], int]:
    """How many rows Spark's source has."""

    def read() -> int:
        source = StratalogDataSource({"path": str(path), "view": view})
        reader = source.reader(source.schema())
        return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))

    return read


def test_batches_of_all_codecs_and_sizes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t")
        expected = []
        for number, codec in enumerate(Codec):
            records = [NewRecord(b"k%d" % n, b"v" * n, NOW) for n in range(number * 40 + 1)]
            log_of(store).append_records(records, codec=codec)
            expected += [(record.key, record.value) for record in records]
        assert [(key, value) for _, key, value in brief(topic.read())] == expected
        halves = [topic.read(start=len(expected) // 2), topic.read(start=len(expected))]
        assert [len(list(reading)) for reading in halves] == [-(-len(expected) // 2), 0]


def test_every_error_is_of_the_tree() -> None:
    assert issubclass(UsageError, StratalogError)
