"""What the sink refuses, where rows go and what they become: without a session."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from stratalog.admin.partitioner import partition_of_key
from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogLockedError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.locking import locked
from stratalog.log.settings import LogSettings
from stratalog.pipeline import sink, sink_commit, sink_rows
from stratalog.pipeline.sink_options import read_sink_options
from stratalog.pipeline.sink_places import plan_topics
from stratalog.pipeline.sink_rows import RowWriter
from stratalog.pipeline.staging import StagedWriter, staged_name
from tests.naive.records import parse_log
from tests.pipeline.sink_driver import NOW, STORE, left_over

pytestmark = pytest.mark.requirement("SPK-6")

FS = LocalFileSystem()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def batch_of(columns: dict[str, list[Any]]) -> pa.RecordBatch:
    arrays = {name: pa.array(values, TYPES[name]) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def write(log_dir: Path, *batches: pa.RecordBatch, task: int = 0, **options: str) -> int:
    """One task and its commit."""
    told = read_sink_options(
        {"path": str(log_dir), **{k.replace("_", "."): v for k, v in options.items()}},
        is_stream=False,
    )
    plan = plan_topics(told, FS)
    staged = StagedWriter(FS, told.log_dir, staged_name("job", 0))
    rows = RowWriter(plan, staged, task)
    try:
        for batch in batches:
            rows.add(batch, NOW)
        rows.finish()
        file = staged.finish(rows.counts)
    except BaseException:
        staged.abandon()
        raise
    job = sink_commit.Batch("job", 0, is_once=True)
    rules = sink_commit.Rules(lambda _: LogSettings(), STORE)
    return sink_commit.commit(told.log_dir, job, [file], rules, FS, FixedClock(NOW))


def records_in(log_dir: Path) -> dict[str, list[Any]]:
    return {
        partition.name: [
            record
            for path in sorted(partition.glob("*.log"))
            for batch in parse_log(path.read_bytes())
            for record in batch.records()
        ]
        for partition in sorted(log_dir.iterdir())
        if partition.is_dir()
    }


# -- options and columns --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no directory is given"),
        ({"path": "s3://bucket/logs"}, "no log can be written to s3"),
        ({"topic": "a b"}, "topic is 'a b'"),
        ({"topik": "a"}, "unknown option 'topik': did you mean 'topic'?"),
        ({"retention.mss": "5"}, "did you mean 'retention.ms'?"),
        ({"retention.ms": "soon"}, "Invalid value soon for configuration retention.ms"),
        ({"txnAppId": "a"}, "txnAppId and txnVersion go together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion go together"),
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId has 1 to 1000 characters"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion is '-1'"),
        ({"txnAppId": "a", "txnVersion": "9" * 19}, "txnVersion is"),
        ({"num.partitions": "0"}, "num.partitions is '0'"),
        ({"auto.create.topics.enable": "maybe"}, "auto.create.topics.enable is 'maybe'"),
        ({"kafka.compression.type": "rar"}, "kafka.compression.type is 'rar'"),
        ({"configFile": "/nowhere"}, "configFile: /nowhere: No such file"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], message: str) -> None:
    given = options if not options or "path" in options else {"path": "/data", **options}
    with pytest.raises(UsageError) as raised:
        read_sink_options(given, is_stream=False)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_stream_numbers_its_batches_itself() -> None:
    with pytest.raises(UsageError, match="leave it out"):
        read_sink_options({"path": "/d", "txnAppId": "a", "txnVersion": "1"}, is_stream=True)
    told = read_sink_options(
        {"path": "file:///d", "txnAppId": "a", "checkpointLocation": "/c", "queryName": "q"},
        is_stream=True,
    )
    assert (told.log_dir, told.app, told.version) == ("/d", "a", None)


def test_options_of_files(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("[topic a]\ncleanup.policy=shrink\n")
    with pytest.raises(UsageError, match=r"topicConfig: .*/bad: line 2") as raised:
        read_sink_options({"path": "/d", "topicConfig": str(tmp_path / "bad")}, is_stream=False)
    assert "\n" not in str(raised.value)
    (tmp_path / "server.properties").write_text("num.partitions=4\nlog.segment.bytes=9999999\n")
    (tmp_path / "topics").write_text("[topic a]\ncleanup.policy=compact\n")
    given = {"path": "/d", "configFile": str(tmp_path / "server.properties")}
    given["topicConfig"] = str(tmp_path / "topics")
    told = read_sink_options(given, is_stream=False)
    assert told.partitions == 4
    assert told.book.of("a").is_compacted
    assert not told.book.of("b").is_compacted
    assert told.book.of("b").segment_bytes == 9_999_999
    assert read_sink_options({**given, "NUM.partitions": "2"}, is_stream=False).partitions == 2


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("key string", "there is no column 'value'"),
        ("Value string", "there is no column 'value': is it 'Value'?"),
        ("value int", "column 'value' is int; it must be binary or string"),
        ("value string, key bigint", "column 'key' is bigint; it must be binary or string"),
        ("value string, partition bigint", "column 'partition' is bigint; it must be int"),
        ("value string, timestamp date", "column 'timestamp' is date; it must be timestamp"),
        ("value string, timestamp timestamp_ntz", "it must be timestamp"),
        ("value string, topic binary", "column 'topic' is binary; it must be string"),
        ("value string, headers map<string,binary>", "must be array<struct<key:string,value:bin"),
        ("value string, headers array<struct<key:string,v:binary>>", "column 'headers' is array<"),
    ],
)
def test_columns_that_cannot_be(schema: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        sink.batch_writer({"path": str(tmp_path), "topic": "t"}, struct_of(schema), False)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def struct_of(schema: str) -> StructType:
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DateType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )

    kinds: dict[str, Any] = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "binary": BinaryType(),
        "date": DateType(),
        "timestamp": TimestampType(),
        "timestamp_ntz": TimestampNTZType(),
        "map<string,binary>": MapType(StringType(), BinaryType()),
        "array<struct<key:string,v:binary>>": ArrayType(
            StructType().add("key", StringType()).add("v", BinaryType())
        ),
    }
    struct = StructType()
    for part in schema.split(", "):
        name, kind = part.split(" ")
        struct = struct.add(name, kinds[kind])
    return struct


def test_directories_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_commit, "START_WAIT_MS", 100)
    schema = struct_of("value string")
    options = {"path": str(tmp_path / "log"), "topic": "t"}
    with pytest.raises(UsageError, match="only appended to"):
        sink.batch_writer(options, schema, True)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: not a directory"):
        sink.batch_writer({**options, "path": str(tmp_path / "file")}, schema, False)
    write(tmp_path / "log", batch_of({"value": [b"v"]}), topic="t")
    with pytest.raises(UsageError, match="is a partition; give the log directory"):
        sink.batch_writer({**options, "path": str(tmp_path / "log" / "t-0")}, schema, False)
    with (
        locked([str(tmp_path / "log")], FS, exclusive=True),
        pytest.raises(LogLockedError, match="in use by a running process"),
    ):
        sink.stream_writer(options, schema, False)
    sink.batch_writer(options, schema, False)
    # A stream in complete mode is one of upserts.
    sink.stream_writer(options, schema, True)


# -- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"topic": ["t", None]}, {}, "a row has no topic: fill the column, or give option topic"),
        ({"topic": ["t", "a/b"]}, {}, "'a/b' is no name for a topic"),
        ({"topic": ["t", ".."]}, {}, "'..' is no name for a topic"),
        ({"topic": ["t", "__cluster_metadata"]}, {}, "is no name for a topic"),
        ({"partition": [0, 1]}, {"topic": "t"}, "topic t has no partition 1: they are 0 to 0"),
        ({"partition": [0, -1]}, {"topic": "t"}, "topic t has no partition -1"),
        (
            {"key": [b"k", None]},
            {"topic": "c", "cleanup_policy": "compact"},
            "topic c is compacted",
        ),
        ({"timestamp": [5, -2000]}, {"topic": "t"}, "timestamp lies before 1970"),
        (
            {"timestamp": [5, (NOW + 3_700_000) * 1000]},
            {"topic": "t"},
            "lies 3700000 ms after now, message.timestamp.after.max.ms is 3600000",
        ),
        (
            {"timestamp": [NOW * 1000, 5000]},
            {"topic": "t", "message_timestamp_before_max_ms": "60000"},
            "message.timestamp.before.max.ms is 60000",
        ),
        ({"headers": [[{"key": None, "value": b"v"}], None]}, {"topic": "t"}, "without a key"),
        ({"headers": [[None], []]}, {"topic": "t"}, "a row has a header that is null"),
        (
            {"value": [b"x", b"y" * 2000]},
            {"topic": "t", "max_message_bytes": "1000"},
            "max.message",
        ),
        ({"value": [b"x"] * 2}, {"topic": "t", "auto_create_topics_enable": "false"}, "no topic t"),
    ],
)
def test_rows_that_cannot_be(
    columns: dict[str, list[Any]], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    """One line each, and nothing is left of their batch."""
    with pytest.raises(UsageError) as raised:
        write(tmp_path, batch_of({"value": [b"v", b"w"], **columns}), **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert records_in(tmp_path) == {}
    assert not left_over(FS, str(tmp_path))


@pytest.mark.parametrize("seed", range(4))
def test_random_rows_are_the_twins_records(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Arrow batches come in, sliced and with offsets of their own, and however small the
    batches are that come of them."""
    random = Random(seed)
    monkeypatch.setattr(sink_rows, "BATCH_BYTES", random.choice((300, 5000, 1 << 18)))
    monkeypatch.setattr(sink_rows, "HELD_BYTES", random.choice((20_000, 1 << 20)))

    def text(most: int) -> bytes | None:
        return None if random.random() < 0.2 else random.randbytes(random.randrange(most))

    rows: list[dict[str, Any]] = [
        {
            "topic": random.choice(("a", "b")),
            "partition": random.choice((None, None, 0, 2)),
            "key": text(20),
            "value": b"%d " % place + (text(300) or b""),
            "headers": random.choice(
                (None, [], [{"key": "k", "value": text(5)}, {"key": "é", "value": b""}])
            ),
            "timestamp": random.choice((None, (NOW - place) * 1000 + 999, -1000)),
        }
        for place in range(600)
    ]
    whole = batch_of({name: [row[name] for row in rows] for name in TYPES})
    if seed % 2:  # as Spark sends them where it is told to
        kinds = {**TYPES, "key": pa.large_binary(), "topic": pa.large_string()}
        whole = whole.cast(pa.schema(list(kinds.items())))
    cuts = sorted({0, 600, *(random.randrange(600) for _ in range(5))})
    parts = [whole.slice(a, b - a) for a, b in pairwise(cuts)]
    codec = random.choice(("none", "gzip", "lz4", "snappy", "zstd"))
    written = write(
        tmp_path, *parts, whole.slice(0, 0), num_partitions="3", kafka_compression_type=codec
    )
    assert written == 600
    seen = 0
    for name, records in records_in(tmp_path).items():
        before = -1
        for record in records:
            place = int(record.value.split(b" ")[0])
            assert place > before or rows[place]["key"] is None
            before = place
            row, seen = rows[place], seen + 1
            assert (name[:-2], record.key, record.value) == (row["topic"], row["key"], row["value"])
            given = [(h["key"].encode(), h["value"]) for h in row["headers"] or []]
            assert [tuple(header) for header in record.headers] == given
            time = row["timestamp"]
            assert record.timestamp == (NOW if time is None else time // 1000)
            if row["partition"] is not None:
                assert name.endswith(f"-{row['partition']}")
            elif row["key"] is not None:
                assert name.endswith(f"-{partition_of_key(row['key'], 3)}")
    assert seen == 600


def test_rows_without_a_key_spread_over_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_rows, "BATCH_BYTES", 1000)
    batches = [batch_of({"value": [b"v" * 100] * 20}) for _ in range(8)]
    write(tmp_path, *batches, topic="t", num_partitions="4")
    assert all(len(records) >= 20 for records in records_in(tmp_path).values())


def test_a_topic_of_which_partitions_lie_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, batch_of({"value": [b"v"], "partition": [2]}), topic="t", num_partitions="3")
    shutil.rmtree(tmp_path / "t-1")
    with pytest.raises(UsageError, match="has not all of its partitions here"):
        write(tmp_path, batch_of({"value": [b"v"]}), topic="t")
    with pytest.raises(UsageError, match="there is no partition t-1"):
        write(tmp_path, batch_of({"value": [b"v"], "partition": [1]}), topic="t")
    assert write(tmp_path, batch_of({"value": [b"w"], "partition": [2]}), topic="t") == 1
