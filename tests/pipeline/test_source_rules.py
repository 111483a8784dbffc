"""The batch source without a session: planned and read in this process, against the naive rows.

Whatever Spark does between planning and reading is done here, too: options with names in lower
case, values pickled on their way. Random logs have everything that may occur, old formats too.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema

from stratalog.base.errors import (
    CorruptionError,
    LogChangedError,
    OffsetOutOfRangeError,
    StratalogError,
    UsageError,
)
from stratalog.clean.local_engine import LocalEngine
from stratalog.pipeline import batches as batches_module
from stratalog.pipeline import locating, reading
from stratalog.pipeline import places as places_module
from stratalog.pipeline.given_options import OPTIONS
from stratalog.pipeline.options import read_options
from stratalog.pipeline.source import FilteringReader, StratalogDataSource
from stratalog.pipeline.source_tasks import SourceTask
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec
from stratalog.record.kernel import arrow_columns as kernels
from stratalog.record.kernel.compile import JIT, compiled
from tests.clean.driving import (
    FS,
    Case,
    batch_of,
    clean_case,
    contents,
    state_of,
    write_case,
)
from tests.clean.test_properties import features_of, random_case, seeds
from tests.clean.test_versions import features_of as versions_of
from tests.log.helpers import NOW, open_log, records
from tests.naive import files
from tests.naive.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from tests.naive.records import Record, build_legacy, build_v2
from tests.oracle import fold
from tests.pipeline.source_rows import Row, naive_latest, naive_rows

pytestmark = [pytest.mark.requirement("SPK-4"), pytest.mark.usefixtures("hasty_disk")]
Count = Callable[[str, int], None]
EVERYTHING = {"includeHeaders": "true", "includeMetadata": "true"}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Random], None]:
    """Chunks and batches so small that random logs are cut anywhere."""

    def change(random: Random) -> None:
        chunk_bytes = random.choice([64, 500, 1 << 20])
        monkeypatch.setattr(reading, "SPEC", replace(reading.SPEC, chunk_bytes=chunk_bytes))
        monkeypatch.setattr(locating, "BATCH_BYTES", random.choice([1, 100, 1 << 20]))
        monkeypatch.setattr(batches_module, "_SMALL_BYTES", random.choice([1, 2000, 1 << 20]))

    return change


class Planned:
    """A read between planning and its tasks."""

    def __init__(self, path: Path, **options: str):
        source = StratalogDataSource(CaseInsensitiveDict({"path": str(path), **options}))
        self.schema = source.schema()
        self.reader = pickle.loads(pickle.dumps(source.reader(self.schema)))
        self.tasks: list[SourceTask] = pickle.loads(pickle.dumps(self.reader.partitions()))

    def batches(self) -> list[pa.RecordBatch]:
        return [batch for task in self.tasks for batch in self.reader.read(task)]

    def rows(self) -> list[Row]:
        """All rows by partition and offset; timestamps in microseconds."""
        schema = to_arrow_schema(self.schema, timezone="UTC")
        found: list[Row] = []
        for batch in self.batches():
            assert batch.schema.equals(schema, check_metadata=True)
            batch.validate(full=True)
            assert batch.num_rows > 0
            if "timestamp" in batch.schema.names:
                place = batch.schema.names.index("timestamp")
                numbers = batch.column(place).cast(pa.int64())
                batch = batch.set_column(place, "timestamp", numbers)
            found += batch.to_pylist()
        if "topic" in schema.names:
            found.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
        return found


def read(path: Path, **options: str) -> list[Row]:
    return Planned(path, **options).rows()


def only(rows: list[Row], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def offsets(rows: list[Row]) -> list[int]:
    return [row["offset"] for row in rows]


# ---------------------------------------------------------------- random logs


def test_rows_of_random_logs_are_the_naive_ones(
    tmp_path: Path, small_chunks: Callable[[Random], None], count_cases: Count
) -> None:
    logs = old = cut = 0
    for seed in seeds(30):
        random = Random(seed)
        small_chunks(random)
        case = random_case(seed, tmp_path / f"{seed}", features_of(seed))
        before = contents(case.partition.parent)
        options = dict(EVERYTHING)
        if random.random() < 0.5:
            options["maxPartitionBytes"] = str(random.choice([100, 1000, 5000]))
        if random.random() < 0.3:
            options["maxRecordsPerPartition"] = str(random.choice([1, 3, 10]))
        if random.random() < 0.3:
            options["minPartitions"] = str(random.randint(1, 9))
        with_control = random.random() < 0.5
        options["includeControl"] = str(with_control).lower()
        planned = Planned(case.partition.parent, **options)
        expected = naive_rows(case.partition, control=with_control)
        assert planned.rows() == expected, (seed, options)
        cut += len(planned.tasks) > len(files.read_segments(case.partition))
        committed_to = state_of(case).last_stable_offset
        found = read(case.partition, isolation="read_committed", **EVERYTHING)
        assert found == naive_rows(case.partition, committed_to=committed_to), seed
        dropped = read(case.partition, tombstones="drop", **EVERYTHING)
        assert dropped == [row for row in naive_rows(case.partition) if row["value"] is not None], (
            seed
        )
        assert contents(case.partition.parent) == before, "reading changed a file"
        logs += 1
        old += any(row["timestampType"] == -1 for row in expected)
    assert cut > logs // 5
    assert old or logs < 10
    count_cases("random logs through the source", logs)


@pytest.mark.requirement("CMP-17", "CMP-18")
def test_latest_values_of_random_logs_before_and_after_a_cleaning(
    tmp_path: Path, small_chunks: Callable[[Random], None], count_cases: Count
) -> None:
    logs = cleaned = moved = 0
    for seed in seeds(30):
        random = Random(seed)
        small_chunks(random)
        features = versions_of(seed) if seed % 2 else features_of(seed)
        case = random_case(seed, tmp_path / f"{seed}", features)
        settings = case.inputs.settings
        options = {"view": "latest", **EVERYTHING}
        strategy = settings.get("compaction.strategy", "offset")
        if strategy != "offset":
            options["compaction.strategy"] = strategy
        if strategy == "header":
            options["compaction.strategy.header"] = settings["compaction.strategy.header"]
        committed_to = state_of(case).last_stable_offset
        for tombstones in ("keep", "drop"):
            found = read(case.partition.parent, tombstones=tombstones, **options)
            expected = naive_latest(
                case.partition,
                settings,
                committed_to=committed_to,
                tombstones=tombstones == "keep",
            )
            assert found == expected, (seed, options, tombstones)
        state = {row["key"]: row["value"] for row in found}
        assert state == fold(case.partition, settings), seed
        planned = Planned(case.partition.parent, **options)
        if clean_case(LocalEngine(FS, threads=1), case) is not None:
            cleaned += 1
            after = read(case.partition.parent, **options)
            assert {row["key"]: row["value"] for row in after} == state, seed
            # Cleaned between planning and reading: the same state, too.
            assert only(planned.rows(), "key", "value") == only(after, "key", "value"), seed
            moved += fold(case.partition, {}) != state
        logs += 1
    assert cleaned > logs // 3
    assert moved or logs < 10, "no order of versions made a difference"
    count_cases("random latest views", logs)
    count_cases("random latest views after a cleaning", cleaned)


@pytest.mark.requirement("CMP-7")
def test_keys_that_do_not_fit_the_map_are_done_range_by_range(tmp_path: Path) -> None:
    keys = 3000
    random = Random(7)
    order = [random.randrange(keys) for _ in range(12_000)]
    segments: dict[int, list[bytes]] = {}
    for first in range(0, len(order), 50):
        pairs = [(b"key-%d" % key, b"%d" % first) for key in order[first : first + 50]]
        segments.setdefault(first // 4000 * 4000, []).append(batch_of(first, *pairs, codec=LZ4))
    case = write_case(tmp_path / "logs", segments)
    expected = naive_latest(case.partition, committed_to=len(order))
    assert 2500 < len(expected) < keys
    for dedupe_bytes in ("1", "100000", "100000000"):
        found = read(tmp_path / "logs", view="latest", dedupeBufferBytes=dedupe_bytes, **EVERYTHING)
        assert found == expected, dedupe_bytes


@pytest.mark.requirement("CMP-17")
def test_latest_values_of_a_part_of_the_log(tmp_path: Path) -> None:
    """As of an offset, and since one: what lies outside decides nothing, not even by its time."""
    times = [50, 90, 10, 70, 30, 60, 20, 80]
    stamped = [Record(at, time, b"k%d" % (at % 2), b"%d" % at) for at, time in enumerate(times)]
    segments = {
        first: [build_v2(stamped[first : first + 4], base_offset=first, last_offset=first + 3)]
        for first in (0, 4)
    }
    case = write_case(tmp_path / "logs", segments)
    for strategy in ("offset", "timestamp"):
        for start in range(9):
            for end in range(start, 9):
                found = read(
                    tmp_path / "logs",
                    **{"view": "latest", "compaction.strategy": strategy},
                    startingOffsets=json.dumps({"topic": {"0": start}}),
                    endingOffsets=json.dumps({"topic": {"0": end}}),
                    **EVERYTHING,
                )
                assert found == naive_latest(
                    case.partition,
                    {"compaction.strategy": strategy},
                    committed_to=8,
                    start=start,
                    end=end,
                )


@pytest.mark.requirement("CMP-18")
def test_a_cleaning_that_knew_more_hides_no_key(tmp_path: Path) -> None:
    """Records that come after planning supersede others, and a cleaning removes those: the view is
    then that of the longer log, not one in which their keys are missing."""
    old = [batch_of(0, (b"a", b"1"), (b"b", b"1")), batch_of(2, (b"c", b"1"))]
    new = [batch_of(3, (b"a", b"2"), (b"d", b"2"))]
    case = write_case(tmp_path / "logs", {0: old, 3: []})
    latest = Planned(tmp_path / "logs", view="latest")
    as_of = Planned(tmp_path / "logs", view="latest", endingOffsets=json.dumps({"topic": {"0": 3}}))
    for path in case.partition.glob("*3.log"):
        path.write_bytes(b"".join(new))
    assert only(latest.rows(), "key", "value") == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    files.write_segment(case.partition, 5, b"", [], interval_bytes=4096, mtime_ms=1)
    grown = replace(case, inputs=replace(case.inputs, log_end_offset=5, last_stable_offset=5))
    assert clean_case(LocalEngine(FS, threads=1), grown) is not None
    assert only(naive_rows(case.partition), "key") == [(b"b",), (b"c",), (b"a",), (b"d",)]
    assert only(latest.rows(), "key", "value") == [
        *((b"b", b"1"), (b"c", b"1"), (b"a", b"2"), (b"d", b"2"))
    ]
    assert only(as_of.rows(), "key", "value") == [(b"b", b"1"), (b"c", b"1")], "it says its end"


# ---------------------------------------------------------------- bounds


@pytest.fixture
def two_topics(tmp_path: Path) -> Path:
    """orders-0 of offsets 0 to 29 (time 1000 + offset), orders-1 and users-0 of ten each."""
    root = tmp_path / "logs"
    for name, count in (("orders-0", 30), ("orders-1", 10), ("users-0", 10)):
        with open_log(root / name) as log:
            for first in range(0, count, 5):
                log.append_records(
                    [
                        NewRecord(b"k%d" % (number % 4), b"v%d" % number, timestamp=1000 + number)
                        for number in range(first, first + 5)
                    ],
                    codec=Codec.ZSTD if first % 2 else Codec.NONE,
                )
    return root


ORDERS = {"subscribe": "orders"}


def bounded(**bounds: dict[str, int]) -> str:
    return json.dumps(bounds)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "users"}, {"users-0": (0, 10)}),
        (
            {"subscribe": "users, orders"},
            {"orders-0": (0, 30), "orders-1": (0, 10), "users-0": (0, 10)},
        ),
        ({"subscribePattern": "u.*|nothing"}, {"users-0": (0, 10)}),
        ({"assign": '{"orders":[1],"users":[0]}'}, {"orders-1": (0, 10), "users-0": (0, 10)}),
        (
            {**ORDERS, "startingOffsets": bounded(orders={"0": 7, "1": -2})},
            {"orders-0": (7, 30), "orders-1": (0, 10)},
        ),
        (
            {**ORDERS, "endingOffsets": bounded(orders={"0": 7, "1": -1})},
            {"orders-0": (0, 7), "orders-1": (0, 10)},
        ),
        (
            {
                **ORDERS,
                "startingOffsets": bounded(orders={"0": 3, "1": 10}),
                "endingOffsets": bounded(orders={"0": 21, "1": 10}),
            },
            {"orders-0": (3, 21), "orders-1": (10, 10)},
        ),
        (
            {**ORDERS, "startingOffsets": " EARLIEST ", "endingOffsets": "Latest"},
            {"orders-0": (0, 30), "orders-1": (0, 10)},
        ),
        ({"subscribe": "users", "startingTimestamp": "1003"}, {"users-0": (3, 10)}),
        ({**ORDERS, "endingTimestamp": "1012"}, {"orders-0": (0, 12), "orders-1": (0, 10)}),
        (
            {
                **ORDERS,
                "startingTimestamp": "1012",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            {"orders-0": (12, 30), "orders-1": (10, 10)},
        ),
        (
            {
                **ORDERS,
                "startingOffsetsByTimestamp": bounded(orders={"0": 1020, "1": 0}),
                "endingOffsetsByTimestamp": bounded(orders={"0": 1025, "1": 1009}),
                "startingOffsets": "nonsense that is not looked at",
            },
            {"orders-0": (20, 25), "orders-1": (0, 9)},
        ),
        (
            {
                **ORDERS,
                "startingTimestamp": "1005",
                "startingOffsetsByTimestamp": bounded(orders={"0": 1020, "1": 0}),
            },
            {"orders-0": (5, 30), "orders-1": (5, 10)},
        ),
        (
            {
                **ORDERS,
                "failOnDataLoss": "false",
                "startingOffsets": bounded(orders={"0": 31, "1": 4}),
                "endingOffsets": bounded(orders={"0": 99, "1": 99}),
            },
            {"orders-0": (30, 30), "orders-1": (4, 10)},
        ),
    ],
)
@pytest.mark.parametrize("cuts", [{}, {"maxPartitionBytes": "1"}, {"maxRecordsPerPartition": "2"}])
def test_bounds(
    two_topics: Path,
    options: dict[str, str],
    expected: dict[str, tuple[int, int]],
    cuts: dict[str, str],
) -> None:
    found: dict[str, list[int]] = {}
    for row in read(two_topics, **options, **cuts):
        found.setdefault(f"{row['topic']}-{row['partition']}", []).append(row["offset"])
    assert found == {name: [*range(*span)] for name, span in expected.items() if span[0] < span[1]}


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"startingOfset": "earliest"}, UsageError, "did you mean 'startingOffsets'?"),
        ({"wholly": "wrong"}, UsageError, "unknown option 'wholly': there are subscribe"),
        ({"subscribe": "users", "assign": "{}"}, UsageError, "cannot both be given"),
        ({"subscribe": " "}, UsageError, "subscribe is empty"),
        ({"subscribe": "nobody"}, UsageError, "no topic nobody; there are orders-0"),
        ({"subscribePattern": "(("}, UsageError, "no regular expression"),
        ({"subscribePattern": "nobody"}, UsageError, "no partition was chosen"),
        ({"assign": "users"}, UsageError, "assign is no JSON"),
        ({"assign": '{"users":["0"]}'}, UsageError, "assign must look like"),
        ({"assign": '{"users":[7]}'}, UsageError, "there is no users-7"),
        ({"startingOffsets": "latest"}, UsageError, "cannot begin at latest"),
        ({"endingOffsets": "earliest"}, UsageError, "cannot end at earliest"),
        (
            {"startingOffsets": "first"},
            UsageError,
            "startingOffsets is neither",
        ),
        ({"startingOffsets": "[]"}, UsageError, "startingOffsets must look like"),
        ({"startingOffsets": '{"users":{"0":-1}}'}, UsageError, "cannot begin at latest"),
        ({"endingOffsets": '{"users":{"0":-2}}'}, UsageError, "cannot end at earliest"),
        ({"startingOffsets": '{"users":{"0":-3}}'}, UsageError, "users-0 is -3"),
        ({"startingOffsets": '{"users":{"0":1.5}}'}, UsageError, "users-0 is 1.5"),
        ({"startingOffsets": '{"users":{"x":1}}'}, UsageError, "'x' is no number of a partition"),
        ({"startingOffsets": '{"users":{"0":1}}'}, UsageError, "orders-0, orders-1 is missing"),
        (
            {"subscribe": "users", "startingOffsets": '{"users":{"0":1,"1":1}}'},
            UsageError,
            "users-1 is not read",
        ),
        ({"startingTimestamp": "-5"}, UsageError, "milliseconds since 1970"),
        ({"startingTimestamp": "soon"}, UsageError, "must be a whole number"),
        ({"startingTimestamp": "1020"}, UsageError, "orders-1 has no record at or past that time"),
        (
            {"subscribe": "users", "startingOffsets": '{"users":{"0":11}}'},
            OffsetOutOfRangeError,
            "users-0 has offsets 0 to 10, not 11",
        ),
        (
            {"subscribe": "users", "endingOffsets": '{"users":{"0":11}}'},
            OffsetOutOfRangeError,
            "failOnDataLoss=false reads what is there",
        ),
        ({"startingOffsetsByTimestampStrategy": "x"}, UsageError, "must be error or latest"),
        ({"failOnDataLoss": "maybe"}, UsageError, "must be true or false"),
        ({"minPartitions": "0"}, UsageError, "must be greater than 0"),
        ({"maxRecordsPerPartition": "-1"}, UsageError, "must be greater than 0"),
        ({"includeHeaders": "1"}, UsageError, "must be true or false"),
        ({"view": "newest"}, UsageError, "view is 'newest'; it must be raw or compacted or latest"),
        ({"isolation": "dirty"}, UsageError, "must be read_uncommitted or read_committed"),
        ({"view": "latest", "isolation": "read_uncommitted"}, UsageError, "committed data"),
        ({"view": "latest", "includeControl": "true"}, UsageError, "no control records"),
        ({"columns": "key,ofset"}, UsageError, "no column 'ofset': did you mean 'offset'?"),
        ({"columns": "key,KEY"}, UsageError, "twice"),
        ({"columns": ","}, UsageError, "columns is empty"),
        ({"tombstones": "hide"}, UsageError, "must be keep or drop"),
        ({"compaction.strategy": "timestamp"}, UsageError, "use view=latest"),
        ({"view": "latest", "compaction.strategy": "header"}, UsageError, "go together"),
        ({"compaction.strategy.header": "v"}, UsageError, "go together"),
        ({"path": "gs://bucket/logs"}, UsageError, "from directories and from s3://BUCKET/PATH"),
        ({"path": ""}, UsageError, "no directory is given"),
        ({"paths": "{}"}, UsageError, "paths must be a JSON list"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    two_topics: Path, options: dict[str, str], kind: type[StratalogError], words: str
) -> None:
    with pytest.raises(kind, match=r"\A[^\n]+\Z") as caught:
        read(**{"path": two_topics, **options})  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_every_option_is_read_and_those_of_a_client_are_passed_over(two_topics: Path) -> None:
    given = {"path": str(two_topics), "kafka.bootstrap.servers": "localhost:9092"}
    assert read_options(given) == read_options({"path": str(two_topics)})
    committed = read_options({**given, "kafka.isolation.level": "read_committed"})
    assert committed.is_committed
    # A name that is in no table would be refused; one that nobody reads would change nothing.
    values = {
        "paths": '["x"]',
        "subscribe": "a",
        "subscribePattern": "a",
        "assign": '{"a":[0]}',
        "startingOffsets": '{"a":{"0":1}}',
        "endingOffsets": '{"a":{"0":1}}',
        "startingTimestamp": "1",
        "endingTimestamp": "1",
        "startingOffsetsByTimestamp": '{"a":{"0":1}}',
        "endingOffsetsByTimestamp": '{"a":{"0":1}}',
        "startingOffsetsByTimestampStrategy": "latest",
        "failOnDataLoss": "false",
        "minPartitions": "3",
        "maxRecordsPerPartition": "3",
        "includeHeaders": "true",
        "includeMetadata": "true",
        "includeControl": "true",
        "view": "latest",
        "asOf": "5",
        "isolation": "read_committed",
        "columns": "key",
        "tombstones": "drop",
        "maxPartitionBytes": "3",
        "dedupeBufferBytes": "3",
        "s3.endpoint": "http://localhost:9000",
        "s3.region": "here",
        "s3.access-key-id": "me",
        "s3.secret-access-key": "secret",
        "s3.session-token": "token",
        "s3.anonymous": "true",
    }
    assert set(values) | {"path", "compaction.strategy", "compaction.strategy.header"} == {*OPTIONS}
    plain = read_options({"path": "x"})
    for name, value in values.items():
        assert read_options({"path": "x", name: value}) != plain, name
        assert read_options({"PATH": "x", name.upper(): value}) != plain, name


def test_a_users_schema_narrows_and_is_checked(two_topics: Path) -> None:
    from pyspark.sql.types import BinaryType, LongType, StringType, StructType

    source = StratalogDataSource(CaseInsensitiveDict({"path": str(two_topics)}))
    chosen = StructType().add("offset", LongType()).add("value", BinaryType())
    reader = source.reader(chosen)
    names = {tuple(b.schema.names) for t in reader.partitions() for b in reader.read(t)}
    assert names == {("offset", "value")}
    for schema, words in (
        (
            StructType().add("key", StringType()),
            "column 'key' is binary, the schema asks for string",
        ),
        (StructType().add("keys", BinaryType()), "no column 'keys': did you mean 'key'?"),
        (StructType().add("Key", BinaryType()), "no column 'Key': did you mean 'key'?"),
        (StructType().add("key", BinaryType(), False), "may be null"),
        (StructType().add("key", BinaryType()).add("key", BinaryType()), "twice"),
        (StructType(), "no columns"),
    ):
        with pytest.raises(UsageError, match=r"\A[^\n]+\Z") as caught:
            source.reader(schema)
        assert words in str(caught.value)


def test_directories(two_topics: Path, tmp_path: Path) -> None:
    several = json.dumps([str(two_topics / "users-0"), f"file://{two_topics}/orders-1"])
    source = StratalogDataSource(CaseInsensitiveDict({"paths": several}))
    reader = source.reader(source.schema())
    found = [b for t in reader.partitions() for b in reader.read(t)]
    assert sum(batch.num_rows for batch in found) == 20
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no partition here"):
        read(tmp_path / "empty")
    with pytest.raises(UsageError, match="no such directory"):
        read(tmp_path / "nothing")
    (two_topics / "orders-0").rename(two_topics / "neither")
    with pytest.raises(UsageError, match="is not named <topic>-<partition>"):
        read(two_topics / "neither")
    other = tmp_path / "other"
    other.mkdir()
    (two_topics / "neither").rename(other / "users-0")
    with pytest.raises(UsageError, match="a copy is read from"):
        Planned(two_topics, paths=json.dumps([str(other)]))


def test_an_empty_log_has_no_rows(tmp_path: Path) -> None:
    with open_log(tmp_path / "empty-0", log_start_offset=17):
        pass
    for options in ({}, {"view": "latest"}, {"startingOffsets": '{"empty":{"0":17}}'}):
        planned = Planned(tmp_path, **options)
        assert planned.rows() == []
    # Spark asks for one partition even if there is none.
    assert list(planned.reader.read(InputPartition(None))) == []


# ---------------------------------------------------------------- tasks


def test_tasks_cover_the_log_once_and_come_biggest_first(tmp_path: Path) -> None:
    shapes = {"big-0": 40, "small-0": 3, "small-1": 2}
    for name, count in shapes.items():
        with open_log(tmp_path / name, segment_bytes=30_000) as log:
            for _ in range(count):
                log.append_records(records(5, size=400))
    for options, least in (
        ({}, 1),
        ({"maxPartitionBytes": "10000"}, 8),
        ({"minPartitions": "6"}, 6),
        ({"minPartitions": "20"}, 15),
        ({"maxRecordsPerPartition": "7"}, 29),
    ):
        planned = Planned(tmp_path, **options)
        sizes = [task.size_bytes for task in planned.tasks]
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) >= least, (options, sizes)
        rows = planned.rows()
        expected = {name: [*range(5 * count)] for name, count in shapes.items()}
        for name, wanted in expected.items():
            topic, _, number = name.rpartition("-")
            of_log = [r for r in rows if (r["topic"], r["partition"]) == (topic, int(number))]
            assert offsets(of_log) == wanted
        if "maxRecordsPerPartition" in options:
            most = max(
                sum(batch.num_rows for batch in planned.reader.read(task)) for task in planned.tasks
            )
            assert most <= 7
    assert len(Planned(tmp_path).tasks) == 1, "little logs share a task"
    assert len(Planned(tmp_path, view="latest").tasks) == 1
    assert len(Planned(tmp_path, view="latest", minPartitions="2").tasks) == 3


def test_cuts_by_count_pass_over_gaps_however_wide(tmp_path: Path) -> None:
    """Cleaned batches: few records in a range of a billion offsets, and gaps between batches."""

    def sparse(first: int, *places: int, last: int) -> bytes:
        kept = [Record(first + place, 5, b"k", b"%d" % place) for place in places]
        return build_v2(kept, base_offset=first, last_offset=first + last)

    case = write_case(
        tmp_path / "logs",
        {
            0: [
                sparse(0, 3, 999_999_999, last=2_000_000_000),
                sparse(2_100_000_000, 0, 1, 2, last=5),
            ]
        },
    )
    expected = naive_rows(case.partition)
    for most in ("1", "2", "3"):
        planned = Planned(tmp_path / "logs", maxRecordsPerPartition=most, **EVERYTHING)
        assert planned.rows() == expected
        assert len(planned.tasks) <= 8


def test_batches_are_bounded(tmp_path: Path) -> None:
    with open_log(tmp_path / "big-0", max_message_bytes=64 << 20) as log:
        for _ in range(3):
            log.append_records(records(40_000, size=100), codec=Codec.LZ4)
        log.append_records([NewRecord(b"huge", b"x" * (20 << 20))], codec=Codec.ZSTD)
        log.append_records(records(100_000, size=0))
    planned = Planned(tmp_path)
    sizes = [(batch.nbytes, batch.num_rows) for batch in planned.batches()]
    assert sum(rows for _, rows in sizes) == 220_001
    small = [size for size, _ in sizes if size < 20 << 20]
    assert len(small) >= len(sizes) - 1
    assert max(small) <= 8 << 20
    assert max(rows for _, rows in sizes) <= 1 << 17
    assert len(sizes) < 16, "little ones are put together"


# ---------------------------------------------------------------- filters


def pushed_down(path: Path, *given: Filter, **options: str) -> tuple[list[Row], list[Filter], int]:
    """The rows that a reader with these filters yields, what it leaves to Spark, and its bytes."""
    planned = Planned(path, **options)
    planned.reader = FilteringReader(read_options({"path": str(path), **options}), planned.schema)
    rest = list(planned.reader.pushFilters(list(given)))
    planned.tasks = planned.reader.partitions()
    return planned.rows(), rest, sum(task.size_bytes for task in planned.tasks)


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        (EqualTo(("topic",), "users"), lambda row: row["topic"] == "users"),
        (In(("topic",), ("users", "x")), lambda row: row["topic"] == "users"),
        (EqualNullSafe(("partition",), 1), lambda row: row["partition"] == 1),
        (GreaterThan(("partition",), 0), lambda row: row["partition"] > 0),
        (GreaterThanOrEqual(("partition",), 1), lambda row: row["partition"] >= 1),
        (LessThan(("partition",), 1), lambda row: row["partition"] < 1),
        (LessThanOrEqual(("partition",), 0), lambda row: row["partition"] <= 0),
        (EqualTo(("offset",), 7), lambda row: row["offset"] == 7),
        (EqualNullSafe(("offset",), 7), lambda row: row["offset"] == 7),
        (GreaterThan(("offset",), 7), lambda row: row["offset"] > 7),
        (GreaterThanOrEqual(("offset",), 7), lambda row: row["offset"] >= 7),
        (LessThan(("offset",), 7), lambda row: row["offset"] < 7),
        (LessThanOrEqual(("offset",), 7), lambda row: row["offset"] <= 7),
        (LessThan(("offset",), -7), lambda row: False),
        (IsNotNull(("topic",)), lambda row: True),
    ],
)
def test_filters_that_are_taken_over_are_answered_for(
    two_topics: Path, given: Filter, holds: Callable[[Row], bool]
) -> None:
    everything = read(two_topics, **EVERYTHING)
    found, rest, _ = pushed_down(two_topics, given, **EVERYTHING)
    assert rest == []
    assert found == [row for row in everything if holds(row)]
    # What comes first decides what is the latest, so only whole partitions may be left out.
    latest = read(two_topics, view="latest", **EVERYTHING)
    found, rest, _ = pushed_down(two_topics, given, view="latest", **EVERYTHING)
    expected = latest if rest else [row for row in latest if holds(row)]
    assert found == expected
    assert rest == ([given] if given.attribute == ("offset",) else [])


def test_other_filters_are_left_to_spark(two_topics: Path) -> None:
    given: list[Filter] = [
        EqualTo(("key",), b"k1"),
        IsNotNull(("key",)),
        Not(EqualTo(("topic",), "users")),
        In(("offset",), (1, 2)),
        EqualTo(("headers", "key"), "x"),
    ]
    found, rest, _ = pushed_down(two_topics, *given, **EVERYTHING)
    assert rest == given
    assert found == read(two_topics, **EVERYTHING)


def test_a_filter_by_time_leaves_out_older_segments(tmp_path: Path) -> None:
    with open_log(tmp_path / "aged-0", segment_bytes=3_000) as log:
        for number in range(8):
            log.append_records(records(10, size=100, timestamp=NOW + number * 60_000))
    everything, _, whole = pushed_down(tmp_path)
    for kind in (EqualTo, GreaterThan, GreaterThanOrEqual):
        moment = datetime.fromtimestamp((NOW + 4 * 60_000) / 1000, UTC)
        found, rest, size = pushed_down(tmp_path, kind(("timestamp",), moment))
        assert [item.value for item in rest] == [moment], "Spark goes on filtering"
        assert size < whole
        newer = [row for row in everything if row["timestamp"] >= (NOW + 4 * 60_000) * 1000]
        assert found[-len(newer) :] == newer
        assert len(newer) <= len(found) < len(everything)
    _, _, size = pushed_down(tmp_path, LessThan(("timestamp",), moment))
    assert size == whole


# ---------------------------------------------------------------- odd records


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_codec_of_every_format(tmp_path: Path, magic: int, codec: int) -> None:
    content = [Record(number, 1000 + number, b"k%d" % number, None) for number in range(4)]
    content[2] = replace(content[2], key=None, value=b"v" * 500)
    if magic < 2:
        if magic == 0:
            content = [replace(record, timestamp=-1) for record in content]
        data = build_legacy(content, magic=magic, codec=codec)
    else:
        data = build_v2(content, base_offset=0, last_offset=3, codec=codec)
    after = batch_of(10, (b"a", b"b"), codec=codec)
    case = write_case(tmp_path / "logs", {0: [data, after], 11: []})
    expected = naive_rows(case.partition)
    assert read(tmp_path / "logs", **EVERYTHING) == expected
    assert len(expected) == 5
    for cut in range(1, 11):
        bound = json.dumps({"topic": {"0": cut}})
        head = read(tmp_path / "logs", endingOffsets=bound, **EVERYTHING)
        tail = read(tmp_path / "logs", startingOffsets=bound, **EVERYTHING)
        assert head + tail == expected, cut
        pieces = read(tmp_path / "logs", maxRecordsPerPartition=str(cut), **EVERYTHING)
        assert pieces == expected
    latest = read(tmp_path / "logs", view="latest", tombstones="keep", **EVERYTHING)
    assert latest == naive_latest(case.partition, committed_to=99, tombstones=True)


def test_header_names_that_are_no_text_and_times_that_are_none(tmp_path: Path) -> None:
    odd = [
        Record(0, -1, b"", b"", ((b"\xff\xfe", b""), ("ключ".encode(), None))),
        Record(1, (1 << 62), None, None),
    ]
    write_case(tmp_path / "logs", {0: [build_v2(odd, base_offset=0, last_offset=1)]})
    first, second = read(tmp_path / "logs", **EVERYTHING)
    assert first["headers"] == [
        {"key": "\ufffd\ufffd", "value": b""},
        {"key": "ключ", "value": None},
    ]
    assert (first["key"], first["value"], first["timestamp"]) == (b"", b"", -1000)
    assert second["headers"] is None
    assert second["timestamp"] == ((1 << 63) - 1) // 1000 * 1000, "the latest that there is"


# ---------------------------------------------------------------- a log that goes on


def test_a_log_that_is_cleaned_after_planning_is_read_as_it_is_then(tmp_path: Path) -> None:
    changed = 0
    for seed in seeds(12):
        case = random_case(seed, tmp_path / f"{seed}", features_of(seed))
        everything = naive_rows(case.partition)
        planned = Planned(case.partition.parent, **EVERYTHING)
        committed = Planned(case.partition.parent, isolation="read_committed", **EVERYTHING)
        stable = state_of(case).last_stable_offset
        clean_case(LocalEngine(FS, threads=1), case)
        left = naive_rows(case.partition)
        assert planned.rows() == left, seed
        assert committed.rows() == naive_rows(case.partition, committed_to=stable), seed
        changed += left != everything
    assert changed > len(seeds(12)) // 3


@pytest.mark.requirement("LOG-12")
def test_a_log_that_another_has_open_for_writing(tmp_path: Path) -> None:
    with open_log(tmp_path / "live-0", segment_bytes=4_000) as log:
        log.append_records(records(10, size=100))
        before = contents(tmp_path)
        planned = Planned(tmp_path)
        assert contents(tmp_path) == before
        log.append_records(records(30, size=100))
        log.append_records(records(30, size=100))
        assert offsets(planned.rows()) == [*range(10)], "as it was when the query was planned"
        assert offsets(read(tmp_path)) == [*range(70)]
        latest = read(tmp_path, view="latest")
        assert offsets(latest) == [*range(40, 70)]
        # A writer in the middle of an append: what is there of it is no batch yet.
        active = max((tmp_path / "live-0").glob("*.log"))
        whole = active.read_bytes()
        with active.open("ab") as file:
            file.write(whole[:40])
        assert offsets(read(tmp_path)) == [*range(70)]
        with active.open("r+b") as file:
            file.truncate(len(whole))


def test_what_retention_deletes_meanwhile_is_lost(tmp_path: Path) -> None:
    with open_log(tmp_path / "live-0", segment_bytes=1_500, file_delete_delay_ms=0) as log:
        for _ in range(5):
            log.append_records(records(10, size=100))
        options = {"maxPartitionBytes": "1"}
        strict, loose = (Planned(tmp_path, failOnDataLoss=f, **options) for f in ("true", "false"))
        latest = Planned(tmp_path, view="latest")
        partial = Planned(tmp_path, startingOffsets='{"live":{"0":30}}')
        log.advance_log_start(25)
        bases = [segment.base_offset for segment in log.segments if segment.base_offset < 20]
        assert bases
        for name in [n for base in bases for n in (tmp_path / "live-0").glob(f"{base:020d}.*")]:
            name.unlink()
        from stratalog.log.checkpoint import write_checkpoint
        from stratalog.segment.names import TopicPartition

        write_checkpoint(
            FS, str(tmp_path / "log-start-offset-checkpoint"), {TopicPartition("live", 0): 25}
        )
        with pytest.raises(OffsetOutOfRangeError, match="live-0: offsets 0 to"):
            strict.rows()
        with pytest.raises(OffsetOutOfRangeError, match="were deleted since the query began"):
            latest.rows()
        found = offsets(loose.rows())
        assert found[-25:] == [*range(25, 50)]
        assert set(found) <= {*range(20, 50)}
        assert offsets(partial.rows()) == [*range(30, 50)]


def test_an_unfinished_swap_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path / "live-0") as log:
        log.append_records(records(10))
    opened = places_module.PartitionLog.open
    waits: list[int] = []

    def busy(*arguments: Any, **named: Any) -> Any:
        if len(waits) < 3:
            raise LogChangedError("segments are being replaced")
        return opened(*arguments, **named)

    monkeypatch.setattr(places_module.PartitionLog, "open", busy)
    monkeypatch.setattr(places_module.SystemClock, "sleep_ms", lambda _, ms: waits.append(ms))
    assert offsets(read(tmp_path)) == [*range(10)]
    assert len(waits) == 3
    waits.clear()
    monkeypatch.setattr(places_module.SystemClock, "sleep_ms", lambda _, ms: None)
    with pytest.raises(LogChangedError):
        read(tmp_path)


# ---------------------------------------------------------------- damage


def damaged(case: Case, position: int, change: int = 1) -> Path:
    log = min(case.partition.glob("*.log"))
    content = bytearray(log.read_bytes())
    content[position] ^= change
    log.write_bytes(content)
    return log


@pytest.mark.requirement("CMP-16")
def test_damage_is_an_error_or_a_batch_that_is_missing(tmp_path: Path, count_cases: Count) -> None:
    """One byte of the middle batch, wherever: all other batches are there, or an error is."""
    three = [
        batch_of(first, (b"a", b"%d" % first), (b"b", b"x" * 20), codec=codec)
        for first, codec in ((0, NONE), (2, LZ4), (4, NONE))
    ]
    start, size = len(three[0]), len(three[1])
    cases = 0
    for at in range(size):
        case = write_case(tmp_path / f"{at}", {0: three, 6: [batch_of(6, (b"c", b"d"))]})
        log = damaged(case, start + at, 1 << at % 8)
        found = Planned(case.partition.parent, failOnDataLoss="false")
        good = {0, 1, 4, 5, 6}
        left = offsets(found.rows())
        cases += 1
        if at in range(12, 16):  # the leader epoch, which no checksum covers
            assert left == [*range(7)]
            continue
        if at < 8:  # the offset: no checksum either; what does not fit the order is passed over
            assert {0, 1, 6} <= set(left), at
            continue
        if at in range(8, 12):  # the length: nobody knows where the next one begins
            assert {0, 1, 6} <= set(left) <= good, at
        else:
            assert left == sorted(good), at
        with pytest.raises(CorruptionError) as caught:
            read(case.partition.parent)
        assert (caught.value.file, caught.value.position) == (str(log), start), at
        with pytest.raises(CorruptionError):
            read(case.partition.parent, view="latest", failOnDataLoss="false")
    count_cases("bytes of a batch damaged under the source", cases)


@pytest.mark.requirement("CMP-16")
def test_damage_at_the_end_is_not_taken_for_the_end(tmp_path: Path) -> None:
    three = [batch_of(first, (b"a", b"%d" % first), (b"b", b"x")) for first in (0, 2, 4)]
    for change in (70, 2 * len(three[0]) + 70, 2 * len(three[0]) + 10):
        case = write_case(tmp_path / f"{change}", {0: three})
        log = damaged(case, change, 0x40)
        # The length of the last batch makes it one that is being written.
        is_torn = change % len(three[0]) == 10
        if is_torn:
            assert offsets(read(case.partition.parent)) == [0, 1, 2, 3]
            continue
        for options in ({}, {"view": "latest", "failOnDataLoss": "false"}):
            with pytest.raises(CorruptionError) as caught:
                read(case.partition.parent, **options)
            assert (caught.value.file, caught.value.position) == (str(log), change - 70)
        left = offsets(read(case.partition.parent, failOnDataLoss="false"))
        assert left == [*range(change // len(three[0]) * 2)], "as far as a recovery would go"


@pytest.mark.requirement("RCV-4")
def test_a_header_outside_the_checksum_is_held_against_the_digest(tmp_path: Path) -> None:
    with open_log(tmp_path / "own-0", segment_bytes=3_000) as log:
        for _ in range(8):
            log.append_records(records(10, size=100))
    log_file = min((tmp_path / "own-0").glob("*.log"))
    content = bytearray(log_file.read_bytes())
    content[15] ^= 1  # the leader epoch of the first batch
    log_file.write_bytes(content)
    with pytest.raises(CorruptionError, match="not those that were written"):
        read(tmp_path)
    assert offsets(read(tmp_path, failOnDataLoss="false")) == [*range(80)]


@pytest.mark.skipif(not JIT, reason="nothing is compiled under NUMBA_DISABLE_JIT=1")
def test_reading_meets_no_types_that_were_not_warmed_up(two_topics: Path) -> None:
    read(two_topics, **EVERYTHING)
    read(two_topics, view="latest", **EVERYTHING)
    for kernel in (kernels.locate_records, kernels.copy_fields, kernels.copy_headers):
        assert len(compiled(kernel).signatures) == 1, compiled(kernel).signatures
