"""`view=compacted|latest` and `asOf` of the Spark source: the rows are those of the Python API."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogChangedError, UsageError
from stratalog.embedded import Record, Store, Topic
from stratalog.pipeline import places
from stratalog.pipeline.source import StratalogDataSource
from stratalog.pipeline.source_tasks import SourceTask
from stratalog.record.kernel.compile import JIT
from tests.embedded.driving import LEDGER, NOW, end, log_of, opened, put, retain, transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-4", "LDG-3", "LDG-6", "LDG-7"),
    pytest.mark.usefixtures("hasty_disk"),
]
Row = tuple[int, int, bytes | None, bytes | None]


class Planned:
    """A read between planning and its tasks, as Spark has it."""

    def __init__(self, path: Path, **options: str):
        source = StratalogDataSource(CaseInsensitiveDict({"path": str(path), **options}))
        self.reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
        self.tasks: list[SourceTask] = pickle.loads(pickle.dumps(self.reader.partitions()))

    def rows(self) -> list[Row]:
        found = [
            row for task in self.tasks for b in self.reader.read(task) for row in b.to_pylist()
        ]
        return sorted((r["partition"], r["offset"], r["key"], r["value"]) for r in found)


def rows_of(records: Any) -> list[Row]:
    found: list[Record] = list(records)
    return sorted((r.partition, r.offset, r.key, r.value) for r in found)


def filled(store: Store, clock: FixedClock, random: Random, partitions: int = 2) -> Topic:
    """Three ledgers, of which two are kept; a log that has lost its head; a tail."""
    topic = store.create_topic(
        "t", partitions, {**LEDGER, "retention.ms": 5000, "compaction.ledgers.retained": 2}
    )
    for number in range(3):
        topic.append_many(
            [
                (f"k{random.randrange(30)}", None if random.random() < 0.2 else f"{number} {n}")
                for n in range(60)
            ]
        )
        for partition in topic.partitions:
            transaction(log_of(store, partition=partition), 5, number, [("k1", f"txn{number}")])
            end(log_of(store, partition=partition), 5, commits=number % 2 == 0)
        topic.compact()
        retain(store)
        clock.time_ms += 4000
    put(topic, *[(f"k{random.randrange(40)}", f"tail {n}") for n in range(20)])
    transaction(log_of(store), 6, 0, [("k2", "open")])
    return topic


@pytest.mark.parametrize("seed", range(2))
def test_rows_are_those_of_the_python_api(
    tmp_path: Path, seed: int, count_cases: Callable[[str, int], None]
) -> None:
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = filled(store, clock, Random(seed))
        assert log_of(store).log_start_offset > 0
        cases = refused = 0
        ends = [log_of(store, partition=p).log_end_offset for p in topic.partitions]
        for as_of in (None, "ledger:2", "ledger:3", str(min(ends) - 3), "1", f"@{NOW + 9000}"):
            words = {} if as_of is None else {"asOf": as_of}
            for view, more in (
                ("raw", {}),
                ("raw", {"isolation": "read_committed"}),
                ("compacted", {}),
                ("compacted", {"isolation": "read_committed", "maxPartitionBytes": "700"}),
                ("compacted", {"minPartitions": "9", "maxRecordsPerPartition": "3"}),
                ("latest", {}),
                ("latest", {"dedupeBufferBytes": "3000"}),
            ):
                cases += 1
                asked: Any = {"as_of": as_of, "isolation": more.get("isolation")}
                try:
                    expected = rows_of(topic.read(view, **asked))
                except UsageError as refusal:
                    with pytest.raises(UsageError) as ours:
                        Planned(tmp_path, view=view, **words, **more)
                    assert str(ours.value) == str(refusal)
                    refused += 1
                    continue
                assert Planned(tmp_path, view=view, **words, **more).rows() == expected, (
                    as_of,
                    view,
                )
        assert 0 < refused < cases
        count_cases("views of ledgers through the source", cases)


def test_a_ledger_that_is_collected_meanwhile_is_told(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = filled(store, clock, Random(1), partitions=1)
        compacted, latest = (Planned(tmp_path, view=view) for view in ("compacted", "latest"))
        end(log_of(store), 6, commits=True)
        topic.configure({"compaction.ledgers.retained": 1})
        for number in range(2):
            put(topic, ("k1", f"later {number}"))
            topic.compact()
        with pytest.raises(LogChangedError, match=r"^t-0: its ledger was removed since the query"):
            compacted.rows()
        # A latest view is planned anew, up to where the log ends by now.
        assert latest.rows() == rows_of(topic.read("latest"))
        with pytest.raises(UsageError, match=r"^t-0: there is no ledger 3; there is ledger:5"):
            Planned(tmp_path, view="latest", asOf="ledger:3")


def test_a_ledger_that_is_replaced_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is read, and then the owner goes on: it is planned again."""
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = filled(store, clock, Random(1), partitions=1)
        end(log_of(store), 6, commits=True)
        topic.configure({"compaction.ledgers.retained": 1, "retention.ms": 1})
        original, tries = places._ledger_view, []

        def replaced(*arguments: Any) -> Any:
            tries.append(arguments)
            if len(tries) == 1:  # before the files are opened
                put(topic, ("k1", "later"))
                topic.compact()
                return original(*arguments)
            if len(tries) == 2:  # after, and the log loses what only the newer one has
                view = original(*arguments)
                put(topic, ("k1", "much later"))
                clock.time_ms += 10_000
                topic.compact()
                retain(store)
                return view
            return original(*arguments)

        monkeypatch.setattr(places, "_ledger_view", replaced)
        monkeypatch.setattr(places, "_WAIT_MS", 0)
        found = Planned(tmp_path, view="latest")
        assert len(tries) == 3
        assert found.rows() == rows_of(topic.read("latest"))
        assert (0, b"k1", b"much later") in [(p, k, v) for p, _, k, v in found.rows()]

        def never(*_: Any) -> Any:
            raise places._LedgerReplacedError

        monkeypatch.setattr(places, "_ledger_view", never)
        with pytest.raises(LogChangedError, match=r"its ledgers go on being replaced$"):
            Planned(tmp_path, view="latest")


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store.create_topic("t", config=LEDGER), ("a", "1"))
        for options, reason in (
            ({"view": "newest"}, "view is 'newest'; it must be raw or compacted or latest"),
            ({"asOf": "soon"}, "asOf is 'soon'; it must be ledger:NUMBER, an offset"),
            (
                {"asOf": "0", "endingOffsets": '{"t":{"0":1}}'},
                "asOf says where reading ends: leave",
            ),
            ({"asOf": "0", "endingTimestamp": "5"}, "leave out endingTimestamp"),
            ({"asOf": "ledger:1"}, "t-0: there is no ledger 1; there is no ledger"),
            ({"asOf": "2"}, "t-0: as of offset 2: the log ends at 1"),
            ({"view": "compacted", "compaction.strategy": "timestamp"}, "use view=latest"),
        ):
            with pytest.raises(UsageError, match=reason) as refusal:
                Planned(tmp_path, **options)
            assert "\n" not in str(refusal.value)


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
def test_on_a_session(spark: SparkSession, tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with opened(tmp_path, clock) as store:
        topic = filled(store, clock, Random(5))
        source = spark.read.format("stratalog").option("view", "compacted").load(str(tmp_path))
        assert session_rows(source.where("partition = 1")) == rows_of(
            topic.read("compacted", partitions=[1])
        )
        source = spark.read.format("stratalog").options(view="latest", asOf="ledger:2")
        assert session_rows(source.load(str(tmp_path))) == rows_of(
            topic.read("latest", as_of="ledger:2")
        )


def session_rows(frame: DataFrame) -> list[Row]:
    return sorted(
        (row["partition"], row["offset"], row["key"], row["value"])
        for row in frame.toArrow().to_pylist()
    )
