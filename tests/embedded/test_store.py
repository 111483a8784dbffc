"""Opening a store; topics that come, go and survive; what is appended, also wrongly."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import stratalog
from stratalog.admin.partitioner import partition_of_key
from stratalog.base.errors import (
    InvalidConfigError,
    InvalidRecordError,
    LogLockedError,
    PartitionExistsError,
    RecordTooLargeError,
    UnknownPartitionError,
    UsageError,
)
from tests.embedded.driving import LEDGER, NOW, brief, log_of, opened, put

pytestmark = pytest.mark.usefixtures("hasty_disk")


@pytest.mark.requirement("ADM-1")
def test_topics_survive_with_their_settings(tmp_path: Path) -> None:
    with opened(tmp_path / "new" / "data") as store:
        assert store.topics() == []
        made = store.create_topic("stocks", partitions=3, config={"retention.ms": 1000, **LEDGER})
        store.create_topic("empty.one")
        put(made, ("ACME", "1"))
        assert made.partitions == range(3)
        assert [t.name for t in map(store.topic, store.topics())] == ["empty.one", "stocks"]
    with opened(tmp_path / "new" / "data") as store:
        assert store.topics() == ["empty.one", "stocks"]
        stocks = store.topic("stocks")
        assert stocks.partitions == range(3)
        assert stocks.config["compaction.mode"] == "ledger"
        assert stocks.settings()["delete.retention.ms"] == "1000000"
        changed = stocks.configure({"segment.ms": 5000}, unset=["retention.ms"])
        assert changed["applied"]
        assert "retention.ms" not in stocks.config
        assert stocks.config["segment.ms"] == "5000"
        assert stocks.describe()["partition_count"] == 3
        assert [r.value for r in stocks.read()] == [b"1"]
        assert store.delete_topic("empty.one")
        assert not store.delete_topic("empty.one", if_exists=True)
        assert store.topics() == ["stocks"]


def test_a_brokers_settings_are_what_topics_go_by(tmp_path: Path) -> None:
    given = {"log.retention.ms": 5000, "auto.create.topics.enable": False}
    with pytest.warns(UserWarning, match="auto.create"), opened(tmp_path, config=given) as s:
        assert s.create_topic("t").settings()["retention.ms"] == "5000"
    with pytest.raises(InvalidConfigError):
        stratalog.open(tmp_path, config={"log.cleaner.threads": "many"})
    with pytest.raises(UsageError, match=r"retention.ms is None; a setting is text, a number"):
        stratalog.open(tmp_path, config={"retention.ms": None})


def test_opening_what_cannot_be_opened(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        with pytest.raises(LogLockedError, match=r"data.*\.lock"):
            stratalog.open(tmp_path / "data")
        store.create_topic("t")
    (tmp_path / "file").write_text("x")
    with pytest.raises(stratalog.StratalogError) as refusal:
        stratalog.open(tmp_path / "file")
    assert "\n" not in str(refusal.value)
    for nothing in ([], "", [""]):
        with pytest.raises(UsageError):
            stratalog.open(nothing)
    with stratalog.open([tmp_path / "data", tmp_path / "more"], background=False) as store:
        assert store.topics() == ["t"]
        assert len(store.paths) == 2


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = stratalog.open(tmp_path, background=False)
    topic = store.create_topic("t")
    store.close()
    store.close()
    for call in (
        store.topics,
        lambda: store.topic("t"),
        lambda: store.create_topic("u"),
        lambda: store.consumer("t"),
        lambda: topic.append("k", "v"),
        topic.read,
        topic.compact,
        lambda: topic.config,
    ):
        with pytest.raises(UsageError, match=r"^the store is closed$"):
            call()


def test_threads_run_unless_they_are_not_wanted(tmp_path: Path) -> None:
    with stratalog.open(tmp_path) as store:
        assert store.desk.server_info()["cleaner"]["running"]
        topic = store.create_topic("t", config=LEDGER)
        put(topic, ("a", "1"), ("a", "2"))
        assert topic.compact()["partitions"][0]["ledger"]["horizon"] == 2
        begun = topic.compact(wait=False)
        assert begun["partitions"][0]["request"] in ("started", "running")
    with opened(tmp_path) as store:
        assert not store.desk.server_info()["cleaner"]["running"]


@pytest.mark.requirement("LDG-4")
def test_status_and_history_survive(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=2, config=LEDGER)
        assert [row["state"] for row in topic.status()["partitions"]] == ["never", "never"]
        put(topic, ("a", "1"), ("a", "2"))
        topic.compact(partition=partition_of_key(b"a", 2))
    with opened(tmp_path) as store:
        topic = store.topic("t")
        states = {row["partition"]: row["state"] for row in topic.status()["partitions"]}
        where = partition_of_key(b"a", 2)
        assert states == {where: "succeeded", 1 - where: "never"}
        [row] = topic.history(partition=where, limit=5)["partitions"]
        assert [entry["records_after"] for entry in row["history"]] == [1]


def test_records_go_where_kafkas_producers_put_them(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", partitions=5)
        placed = topic.append_many([(f"k{n}", str(n)) for n in range(40)])
        for number, where in enumerate(placed):
            assert where.partition == partition_of_key(b"k%d" % number, 5)
        found = {(r.partition, r.offset): r.key for r in topic.read()}
        assert [found[where] for where in placed] == [b"k%d" % n for n in range(40)]
        assert topic.append("k0", b"", partition=4).partition == 4
        assert {topic.append(None, "x").partition for _ in range(5)} == set(range(5))
        assert topic.append_many([]) == []


def test_everything_a_record_has(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t")
        moment = datetime(2023, 11, 14, 22, 0, 0, 500, tzinfo=UTC)
        topic.append(
            bytearray(b"k\xff"),  # type: ignore[arg-type]
            "vé",
            timestamp=moment,
            headers=[("h", None), (b"n", "x"), ("h", b"")],
        )
        topic.append_many([("a", None), ("b", "c", None, [("d", "e")])])
        assert [tuple(record)[3:] for record in topic.read()] == [
            (1699999200000, b"k\xff", "vé".encode(), (("h", None), ("n", b"x"), ("h", b""))),
            (NOW, b"a", None, ()),
            (NOW, b"b", b"c", (("d", b"e"),)),
        ]
        topic.flush()
        assert log_of(store).recovery_point == 3


def test_what_cannot_be_appended_is_refused_in_one_line(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config={"max.message.bytes": 1000})
        compacted = store.create_topic("c", config={"cleanup.policy": "compact"})
        for call, kind, reason in (
            (lambda: topic.append(1, "x"), UsageError, "a key is bytes, str or None, not int"),
            (lambda: topic.append("k", 1.5), UsageError, "a value is bytes, str or None"),
            (lambda: topic.append("k", "v", partition=1), UnknownPartitionError, "0 to 0, not 1"),
            (lambda: topic.append("k", "v", partition="0"), UnknownPartitionError, "not '0'"),
            (lambda: topic.append("k", "v", timestamp=-1), UsageError, "-1 is no time"),
            (lambda: topic.append("k", "v", timestamp="now"), UsageError, "ms since 1970 or a"),
            (
                lambda: topic.append("k", "v", headers=[(None, "x")]),
                UsageError,
                "header has a name",
            ),
            (lambda: topic.append("k", "v" * 2000), RecordTooLargeError, "1000"),
            (lambda: topic.append_many([("k",)]), UsageError, r"a record is \(key, value"),
            (lambda: topic.append_many(["kv"]), UsageError, "a record is"),
            (lambda: compacted.append(None, "x"), InvalidRecordError, "key"),
            (lambda: store.topic("u"), UnknownPartitionError, "^there is no topic 'u'"),
            (lambda: store.topic("tt"), UnknownPartitionError, "did you mean 't'"),
            (lambda: store.create_topic("t"), PartitionExistsError, "t"),
            (lambda: store.create_topic("a/b"), UsageError, "a/b"),
            (lambda: store.create_topic("u", 0), UsageError, "0"),
            (lambda: store.create_topic("u", config={"no.such": 1}), InvalidConfigError, "no.such"),
            (lambda: store.create_topic("u", "3"), UsageError, "partitions is '3'; it must be a w"),
            (lambda: store.create_topic("u", config="x"), UsageError, "settings are a mapping"),
            (lambda: store.create_topic("u", config={5: 6}), InvalidConfigError, "5"),
            (lambda: store.delete_topic("u"), UnknownPartitionError, "u"),
            (lambda: topic.configure({"retention.ms": "soon"}), InvalidConfigError, "retention"),
            (lambda: topic.status(partition=7), UnknownPartitionError, "not 7"),
            (lambda: topic.compact(partition=7), UnknownPartitionError, "not 7"),
        ):
            with pytest.raises(kind, match=reason) as refusal:
                call()  # type: ignore[no-untyped-call]
            assert "\n" not in str(refusal.value)
        assert brief(topic.read()) == []
        assert store.topics() == ["c", "t"]
        assert store.create_topic("t", 9, if_not_exists=True).partitions == range(1)


def test_many_records_become_batches_that_fit(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = store.create_topic("t", config={"max.message.bytes": 2000})
        pairs = [(f"k{n}", "v" * (n * 37 % 700)) for n in range(200)]
        placed = topic.append_many(pairs)
        assert [where.offset for where in placed] == list(range(200))
        assert [(r.key, r.value) for r in topic.read()] == [
            (key.encode(), value.encode()) for key, value in pairs
        ]


def test_importing_the_package_loads_nothing_else() -> None:
    program = (
        "import sys; before = set(sys.modules); import stratalog; "
        "print(sorted(name for name in set(sys.modules) - before if 'stratalog' in name)); "
        "print(stratalog.Store.__name__, stratalog.open.__name__, dir(stratalog)); "
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'click') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert first == "['stratalog']"
    assert second.startswith("Store open_store ['Appended', 'ConfirmationNeededError', 'Con")
    assert third == "[]"
    with pytest.raises(AttributeError, match="no attribute 'opens'"):
        stratalog.opens  # type: ignore[attr-defined]  # noqa: B018


def test_reading_records_needs_neither_arrow_nor_spark(tmp_path: Path) -> None:
    program = (
        "import sys, stratalog\n"
        f"with stratalog.open({str(tmp_path)!r}, background=False) as store:\n"
        "    topic = store.create_topic('t', config={'compaction.mode': 'ledger'})\n"
        "    topic.append('a', '1'); topic.compact(); topic.append('b', '2')\n"
        "    views = ('raw', 'compacted', 'latest')\n"
        "    print([sum(1 for _ in topic.read(view)) for view in views])\n"
        "    sys.modules['pyarrow'] = None\n"
        "    try:\n"
        "        topic.read_arrow()\n"
        "    except stratalog.StratalogError as error:\n"
        "        print(type(error).__name__, error)\n"
        "heavy = ('pyspark', 'pandas', 'pyarrow.')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    assert (first, third) == ("[2, 2, 2]", "[]")
    assert second.startswith("MissingExtraError pyarrow is not installed")
