"""The streaming source without a session: the reader, driven as Spark's engine does it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from stratalog.base.clock import FixedClock
from stratalog.base.errors import UsageError
from stratalog.log.settings import LogSettings
from stratalog.pipeline.given_options import STREAM_ONLY
from stratalog.pipeline.options import read_options
from stratalog.pipeline.source import StratalogDataSource
from stratalog.pipeline.stream import StratalogStreamReader
from stratalog.pipeline.stream_offsets import (
    from_json,
    is_too_little,
    shared_out,
    to_json,
)
from stratalog.pipeline.stream_options import read_stream_options
from stratalog.segment.names import TopicPartition
from tests.clean.driving import write_case
from tests.log.helpers import NOW
from tests.naive.records import Record, build_v2
from tests.pipeline.stream_play import Killed, Query, fill, stands

pytestmark = [pytest.mark.requirement("SPK-5"), pytest.mark.usefixtures("hasty_disk")]
EARLIEST = {"startingOffsets": "earliest"}
BOTH = LogSettings(cleanup_policy=("compact", "delete"))


# ---------------------------------------------------------------- beginning, going on, ending


def test_a_stream_reads_what_is_there_and_then_what_comes(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 5, 5)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    assert query.batches() == [[*range(10)]]
    query.run()
    assert query.batches() == [[*range(10)]], "nothing new, no batch"
    fill(tmp_path / "a-0", 3)
    query.run()
    assert query.batches() == [[*range(10)], [10, 11, 12]]
    assert query.offsets == ['{"a": {"0": 10}}', '{"a": {"0": 13}}']


def test_a_stream_begins_at_the_end_unless_told_otherwise(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 10)
    query = Query(tmp_path)
    query.run()
    assert query.batches() == [[]]
    fill(tmp_path / "a-0", 4)
    fill(tmp_path / "a-1", 2)
    query.run()
    assert query.batches() == [[], [0, 1, 10, 11, 12, 13]], "a new partition from its beginning"


@pytest.mark.parametrize("died", ["after the checkpoint", "before the sink", "before the commit"])
def test_the_first_batch_is_done_again_from_where_the_stream_began(
    tmp_path: Path, died: str
) -> None:
    """Spark asks anew where a stream begins that has not finished its first batch."""
    fill(tmp_path / "a-0", 10)
    fill(tmp_path / "b-0", 3)
    query = Query(tmp_path, {"startingOffsets": '{"a":{"0":-1},"b":{"0":-2}}'})

    def die(place: str) -> None:
        if place == "before latestOffset":
            fill(tmp_path / "a-0", 2)
        if place == died:
            raise Killed

    query.between = die
    with pytest.raises(Killed):
        query.run()
    fill(tmp_path / "a-0", 2)
    query.between = lambda _: None
    query.run()
    assert query.batches() == [[0, 1, 2], [10, 11, 12, 13]], "neither left out nor read twice"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": str(NOW + 7)}, [7, 8, 9]),
        ({"startingOffsetsByTimestamp": json.dumps({"a": {"0": NOW + 8}})}, [8, 9]),
        ({"startingOffsets": '{"a":{"0":9}}'}, [9]),
        (
            {
                "startingTimestamp": str(NOW + 99),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [],
        ),
        ({"startingOffsets": "EARLIEST", "subscribe": "a", "columns": "offset"}, [*range(10)]),
        ({**EARLIEST, "assign": '{"a":[0]}', "maxRecordsPerPartition": "3"}, [*range(10)]),
        ({**EARLIEST, "subscribePattern": "a|later", "minPartitions": "4"}, [*range(10)]),
        ({**EARLIEST, "tombstones": "drop", "includeMetadata": "true"}, [*range(10)]),
    ],
)
def test_bounds_choice_and_columns(
    tmp_path: Path, options: dict[str, str], expected: list[int]
) -> None:
    fill(tmp_path / "a-0", 10)
    if "subscribe" in options or "assign" in options or "subscribePattern" in options:
        fill(tmp_path / "b-0", 4)
    query = Query(tmp_path, options)
    query.run()
    assert query.batches() == [expected]
    assert query.sink[0] == [] or len(query.sink[0][0]) == (
        1 if "columns" in options else 11 if "includeMetadata" in options else 7
    )


def test_tasks_are_as_small_as_they_are_wanted(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", *[10] * 10)
    fill(tmp_path / "b-0", 4)
    for options, least, most in (
        ({}, 1, 1),
        ({"minPartitions": "5"}, 5, 8),
        ({"maxRecordsPerPartition": "7"}, 15, 16),
        ({"maxPartitionBytes": "500"}, 2, 20),
    ):
        source = StratalogDataSource(CaseInsensitiveDict({"path": str(tmp_path), **options}))
        reader = source.streamReader(source.schema())
        end = {"a": {"0": 100}, "b": {"0": 4}}
        tasks = reader.partitions({"a": {"0": 0}, "b": {"0": 0}}, end)
        assert least <= len(tasks) <= most, options
        counts = [sum(batch.num_rows for batch in reader.read(task)) for task in tasks]
        assert sum(counts) == 104
        assert max(counts) <= int(options.get("maxRecordsPerPartition", "104"))
        assert reader.partitions(end, end) == [], "nothing new"
        assert reader.partitions({"a": {"0": 7}}, {"a": {"0": 3}}) == []


def test_a_pattern_may_match_later(tmp_path: Path) -> None:
    fill(tmp_path / "other-0", 4)
    query = Query(tmp_path, {"subscribePattern": "a.*", **EARLIEST})
    query.run()
    assert query.rows() == []
    fill(tmp_path / "a1-0", 2)
    query.run()
    assert query.batches()[-1] == [0, 1]


def test_available_now_ends_where_the_log_ended(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", *[5] * 13)
    query = Query(tmp_path, {**EARLIEST, "maxOffsetsPerTrigger": "20"})

    def more(place: str) -> None:
        if place == "before a task":
            fill(tmp_path / "a-0", 5)
            if not (tmp_path / "new-0").exists():
                fill(tmp_path / "new-0", 5)

    query.between = more
    query.run(available_now=True)
    assert [len(batch) for batch in query.batches()] == [20, 20, 20, 5]
    query.between = lambda _: None
    query.run(available_now=True)
    assert [len(batch) for batch in query.batches()][4:] == [20, 5]
    assert sorted(row["offset"] for row in query.rows() if row["topic"] == "a") == [*range(85)]
    assert {row["topic"] for row in query.rows()} == {"a", "new"}


def test_trigger_once_reads_everything_in_spite_of_limits(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", *[5] * 13)
    options = {**EARLIEST, "maxOffsetsPerTrigger": "20", "minOffsetsPerTrigger": "10"}
    query = Query(tmp_path, options)
    query.run(once=True)
    assert query.batches() == [[*range(65)]]


# ---------------------------------------------------------------- limits


def test_a_limit_is_shared_out_and_no_partition_starves(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 1000)
    fill(tmp_path / "a-1", 3)
    fill(tmp_path / "b-0", 500)
    query = Query(tmp_path, {**EARLIEST, "maxOffsetsPerTrigger": "100"})
    query.run(max_batches=1)
    assert stands(query) == {"a": {"0": 66, "1": 1}, "b": {"0": 33}}
    query.run()
    assert max(len(batch) for batch in query.batches()) <= 102
    assert len(query.rows()) == 1503


def test_what_cleaning_took_away_does_not_count(tmp_path: Path) -> None:
    """One batch every million offsets: nobody waits a year for a limit of ten offsets."""
    batches = [
        build_v2(
            [Record(base + at, NOW, b"k%d" % at, b"v") for at in (0, 4)],
            base_offset=base,
            last_offset=base + 4,
        )
        for base in range(0, 10_000_000, 1_000_000)
    ]
    write_case(tmp_path / "logs", {0: batches})
    query = Query(tmp_path / "logs", {**EARLIEST, "maxOffsetsPerTrigger": "10"})
    query.run(max_batches=12)
    expected = [base + at for base in range(0, 10_000_000, 1_000_000) for at in (0, 4)]
    assert [offset for batch in query.batches() for offset in batch] == expected
    assert all(len(batch) == 2 for batch in query.batches())


offsets_of_two = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 12)),
    st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)),
    min_size=1,
)


@settings(deadline=None)
@given(offsets_of_two, st.integers(1, 1 << 63))
def test_shares_of_a_limit(spans: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    begin = {key: first for key, (first, _) in spans.items()}
    until = {key: first + size for key, (first, size) in spans.items()}
    found = shared_out(limit, begin, until)
    assert found.keys() == until.keys()
    sizes = {key: found[key] - begin[key] for key in found}
    assert all(0 <= size <= until[key] - begin[key] for key, size in sizes.items())
    assert all(size > 0 for key, size in sizes.items() if until[key] > begin[key])
    assert sum(sizes.values()) <= limit + sum(size == 1 for size in sizes.values())
    if sum(until.values()) - sum(begin.values()) <= limit:
        assert found == until
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


def test_a_trigger_waits_for_enough_but_not_for_ever(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 10)
    clock = FixedClock(NOW)
    options = read_stream_options(
        {
            "path": str(tmp_path),
            **EARLIEST,
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "2m",
        }
    )
    reader = StratalogStreamReader(options, None, clock)  # type: ignore[arg-type]

    def ask(start: dict[str, Any]) -> dict[str, Any]:
        return reader.latestOffset(start, reader.getDefaultReadLimit())

    start = ask(reader.initialOffset())
    assert start == {"a": {"0": 10}}
    fill(tmp_path / "a-0", 4)
    assert ask(start) is start, "four are too few"
    assert reader.reportLatestOffset() == {"a": {"0": 14}}
    clock.sleep_ms(119_999)
    assert ask(start) is start
    clock.sleep_ms(1)
    start = ask(start)
    assert start == {"a": {"0": 14}}, "two minutes are enough"
    fill(tmp_path / "a-0", 4)
    assert ask(start) is start
    fill(tmp_path / "a-0", 1)
    start = ask(start)
    assert start == {"a": {"0": 19}}, "five are enough"
    fill(tmp_path / "a-0", 1)
    assert reader.latestOffset(start, ReadAllAvailable()) == {"a": {"0": 20}}
    reader.prepareForTriggerAvailableNow()
    assert ask(start) == {"a": {"0": 20}}, "nobody waits for what may not be read"


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"minOffsetsPerTrigger": "7"}, ReadMinRows(7)),
        ({"minOffsetsPerTrigger": "7", "maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
    ],
)
def test_the_limit_that_spark_is_told(options: dict[str, str], limit: object) -> None:
    asked = read_stream_options({"path": "x", **options})
    assert StratalogStreamReader(asked, None).getDefaultReadLimit() == limit  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        *(("15m", 900_000), ("15MIN", 900_000), (" 90s ", 90_000), ("1h", 3_600_000)),
        *(("2d", 172_800_000), ("7ms", 7), ("3000us", 3), ("5", 5)),
    ],
)
def test_times_are_written_as_spark_has_them(text: str, delay_ms: int) -> None:
    assert read_stream_options({"path": "x", "maxTriggerDelay": text}).max_delay_ms == delay_ms


def test_waiting_is_for_a_least_count_only() -> None:
    for least, count, past_ms, waits in (
        (None, 0, 0, False),
        (5, 4, 99, True),
        (5, 5, 99, False),
        (5, 4, 100, False),
    ):
        assert waits == is_too_little(count, least, now_ms=past_ms, last_ms=0, delay_ms=100)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is not for a stream: a stream has no end"),
        ({"endingTimestamp": "1"}, "endingTimestamp is not for a stream"),
        ({"endingOffsetsByTimestamp": '{"a":{"0":1}}'}, "is not for a stream"),
        ({"dedupeBufferBytes": "1"}, "belongs to view=latest"),
        ({"compaction.strategy": "offset"}, "belongs to view=latest"),
        ({"view": "compacted"}, "view=compacted is not for a stream: a ledger is made anew"),
        ({"asOf": "5"}, "asOf is not for a stream: a stream has no end"),
        ({"view": "latest"}, "view=latest is not for a stream: what it has given"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is 0; it must be greater than 0"),
        ({"minOffsetsPerTrigger": "x"}, "must be a whole number"),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"}, "(3) is above"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'; it must be a time like 30s"),
        ({"maxTriggerDelay": "-5s"}, "must be a time"),
        ({"maxTriggerDelay": "5y"}, "must be a time"),
        ({"flushBeforeRead": "1"}, "must be true or false"),
        ({"startingOffsets": "first"}, "startingOffsets is neither earliest nor latest nor JSON"),
        ({"startingOffsets": '{"a":{"1":0}}'}, "a-0 is missing"),
        ({"startingTimestamp": str(NOW + 99)}, "no record at or past that time"),
        ({"subscribe": "nobody"}, "no topic nobody"),
        ({"path": "/nowhere/at/all"}, "no such directory"),
        ({"maxOffsetPerTriger": "1"}, "did you mean 'maxOffsetsPerTrigger'?"),
        ({"columns": "ofset"}, "did you mean 'offset'?"),
        ({"columns": "ofset", "maxTriggerDelay": "1s"}, "did you mean 'offset'?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    fill(tmp_path / "a-0", 3)
    with pytest.raises(UsageError, match=r"\A[^\n]+\Z") as caught:
        Query(tmp_path, options).run(available_now="view" in options)
    assert words in str(caught.value)


def test_a_schema_that_does_not_fit_is_refused_when_something_is_asked(tmp_path: Path) -> None:
    from pyspark.sql.types import StringType, StructType

    source = StratalogDataSource(CaseInsensitiveDict({"path": str(tmp_path)}))
    reader = source.streamReader(StructType().add("key", StringType()))
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    for call in (
        reader.initialOffset,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(UsageError, match="column 'key' is binary, the schema asks for string"):
            call()


def test_every_option_of_a_stream_is_read_and_a_batch_ignores_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = read_stream_options({"path": "x"})
    values = {
        "maxOffsetsPerTrigger": "7",
        "minOffsetsPerTrigger": "3",
        "maxTriggerDelay": "3s",
        "flushBeforeRead": "false",
    }
    assert values.keys() == {*STREAM_ONLY}
    for name, value in values.items():
        assert read_stream_options({"path": "x", name.upper(): value}) != plain, name
        assert read_options({"path": "x", name: value}) == read_options({"path": "x"})
    fill(tmp_path / "a-0", 3)
    source = StratalogDataSource(CaseInsensitiveDict({"path": str(tmp_path), **values}))
    with caplog.at_level(logging.WARNING):
        source.reader(source.schema())
    assert "ignored, as this is no stream" in caplog.text


@pytest.mark.parametrize(
    "content", [[], {"a": 1}, {"a": {"x": 1}}, {"a": {"0": "1"}}, {"a": {"0": -1}}, {"fileId": {}}]
)
def test_a_checkpoint_of_another_source_is_refused(content: Any) -> None:
    if content == {"fileId": {}}:
        assert from_json(content) == {}
        return
    with pytest.raises(UsageError, match=r"\Athe checkpoint is not of this source: [^\n]+\Z"):
        from_json(content)
