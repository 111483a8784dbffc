"""Commits of the sink: what is refused, what a crash or an error leaves, and who finishes it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import CorruptionError, LogLockedError, StratalogError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.locking import locked
from stratalog.log.log_store import LogStore
from stratalog.log.settings import LogSettings
from stratalog.pipeline import sink_commit
from stratalog.record.layout import TimestampType
from stratalog.segment.names import TopicPartition
from tests.pipeline.sink_driver import NOW, STORE, Driver, attempts_of, left_over, stored_rows
from tests.pipeline.source_rows import naive_rows

pytestmark = pytest.mark.requirement("SPK-6")

FS = LocalFileSystem()


@pytest.fixture
def query(tmp_path: Path) -> Driver:
    return Driver(FS, str(tmp_path), batches=4, records=1, settings=LogSettings())


def rows_in(query: Driver) -> list[bytes]:
    rows = stored_rows(FS, query.settings, query.log_dir)
    return [row for found in rows.values() for row in found]


def broken(query: Driver, version: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit whose process dies after so many appends."""
    from stratalog.log.partition_log import PartitionLog

    append, done = PartitionLog.append, []

    def dying(log: PartitionLog, data: Any) -> Any:
        if len(done) == calls:
            raise KeyboardInterrupt
        done.append(1)
        return append(log, data)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", dying)
        with pytest.raises(KeyboardInterrupt):
            query.write(version, {"a": 1})


def test_a_topic_that_has_grown_since_its_rows_were_placed(query: Driver) -> None:
    files = query.stage(0, {"a": 2})
    with LogStore.open([query.log_dir], lambda _: LogSettings(), FS, query.clock, STORE) as store:
        for number in range(3):
            store.create(TopicPartition("a", number))
    with pytest.raises(
        UsageError, match="topic a has 3 partitions by now, its rows were placed among 2"
    ):
        query.commit(0, files)
    assert rows_in(query) == []
    sink_commit.abort(query.log_dir, query.batch(0), FS)
    assert not left_over(FS, query.log_dir)
    assert query.write(0, {"a": 3}) == 24


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_staged_files_that_are_not_what_was_written(query: Driver, damage: str) -> None:
    files = query.stage(0, {"a": 1})
    path = Path(query.log_dir, files[1].name)
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(CorruptionError, match=r"staged"):
        query.commit(0, files)
    assert rows_in(query) == []


def test_a_record_that_cannot_be_read_is_no_empty_one(query: Driver) -> None:
    query.write(0, {"a": 1})
    (path,) = Path(query.log_dir).glob("*.state")
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(CorruptionError, match="state"):
            query.write(1, {"a": 1}, attempt=place)
    # Another writer goes on, and sweeps nothing of a writer that it cannot ask.
    other = Driver(FS, query.log_dir, writer="other", settings=LogSettings())
    assert other.write(0, {"a": 1}) == 8
    assert len(left_over(FS, query.log_dir)) > 2
    path.write_bytes(content)
    assert query.write(1, {"a": 1}, attempt=99_999) == 8
    assert not left_over(FS, query.log_dir)
    assert attempts_of(rows_in(query), query, 0) == {0}


def test_another_writer_finishes_what_was_decided(
    query: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(query, 0, 3, monkeypatch)
    other = Driver(FS, query.log_dir, writer="other", settings=LogSettings())
    other.write(0, {"a": 1})
    rows = rows_in(query)
    assert attempts_of(rows, query, 0) == {0}
    assert attempts_of(rows, other, 0) == {0}
    assert query.write(0, {"a": 1}, attempt=1) == 0
    assert not left_over(FS, query.log_dir)


@pytest.mark.parametrize("appended", [0, 1, 7, 8])
@pytest.mark.parametrize("between", ["nothing", "others", "forgotten", "deleted"])
def test_a_batch_is_finished_after_a_crash(
    query: Driver, appended: int, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others have done with the log since, as long as it can be told."""
    query.write(0, {"a": 1})
    query.old_ms = 2 * 86_400_000 if between == "forgotten" else 0
    if appended < 8:
        broken(query, 1, appended, monkeypatch)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(LogStore, "close", lambda self: self.abandon())
            real = sink_commit.sink_state.write_state

            def dying(*arguments: Any) -> None:
                if arguments[2].pending is None:
                    raise KeyboardInterrupt
                real(*arguments)

            patch.setattr(sink_commit.sink_state, "write_state", dying)
            with pytest.raises(KeyboardInterrupt):
                query.write(1, {"a": 1})
    key = TopicPartition("a", 0)
    with LogStore.open([query.log_dir], lambda _: LogSettings(), FS, query.clock, STORE) as store:
        log = store.get(key)
        if between == "others":
            log.append(a_batch())
        if between == "forgotten":
            log.roll()  # a snapshot, which is loaded without the producer
            log.append(a_batch())
        if between == "deleted":
            log.roll()
            store.delete_records(key, max(log.log_end_offset - 1, 8))
    if between == "forgotten":
        with LogStore.open(
            [query.log_dir], lambda _: LogSettings(), FS, query.clock, STORE
        ) as store:
            state = sink_commit.sink_state.read_state(FS, query.log_dir, query.writer)
            assert state is not None
            assert state.producer_id not in store.get(key).producers().entries or appended == 0
    query.write(1, {"a": 1}, attempt=1)
    rows = [row for row in rows_in(query) if row != b"other"]
    if between == "deleted":
        assert rows == query.expected(1, 0)[max(appended - 1, 0) :]
    else:
        assert attempts_of(rows, query, 1) == {0}
    assert not left_over(FS, query.log_dir)


def a_batch() -> bytes:
    from stratalog.record.builder import NewRecord, build_batch

    return build_batch([NewRecord(b"k", b"other", NOW)])


@pytest.mark.parametrize("how", ["deleted", "cleaned"])
def test_what_cannot_be_told_any_more_is_refused(
    query: Driver, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the batch that was appended may be gone, and its producer is forgotten."""
    query.old_ms = 2 * 86_400_000
    query.write(0, {"a": 1})
    broken(query, 1, 3, monkeypatch)
    key = TopicPartition("a", 0)
    for _ in range(2):
        with LogStore.open(
            [query.log_dir], lambda _: LogSettings(), FS, query.clock, STORE
        ) as store:
            log = store.get(key)
            log.append(a_batch())
            log.roll()
            store.delete_records(key, log.log_end_offset)
    with pytest.raises(
        StratalogError, match="nobody can tell how much of batch 1 of query"
    ) as told:
        query.write(1, {"a": 1}, attempt=1)
    assert "\n" not in str(told.value)
    path = str(told.value).split("without the file ")[1].split(" ")[0]
    Path(path).unlink()
    assert query.write(1, {"a": 1}, attempt=2) == 8
    assert attempts_of(rows_in(query), query, 1) == {2}


def test_a_partition_that_is_gone_is_not_guessed_at(
    query: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.write(0, {"a": 1})
    broken(query, 1, 3, monkeypatch)
    shutil.rmtree(Path(query.log_dir, "a-0"))
    with pytest.raises(StratalogError, match=r"partition a-0 is gone, so that nobody .* all of it"):
        query.write(1, {"a": 1}, attempt=1)


def test_a_log_that_sets_its_times(query: Driver) -> None:
    query.settings = LogSettings(timestamp_type=TimestampType.LOG_APPEND_TIME)
    query.old_ms = 86_400_000
    query.write(0, {"a": 1})
    rows = naive_rows(Path(query.log_dir, "a-0"), start=0)
    assert {(row["timestamp"], row["timestampType"]) for row in rows} == {(NOW * 1000, 1)}


def test_a_log_that_takes_no_writes_is_refused_whole(query: Driver) -> None:
    query.write(0, {"a": 2})
    (log,) = Path(query.log_dir, "a-1").glob("*.log")
    content = bytearray(log.read_bytes())
    content[30] ^= 1
    log.write_bytes(content)
    Path(
        query.log_dir, ".kafka_cleanshutdown"
    ).unlink()  # it is scanned, and what was flushed counts
    with pytest.raises(StratalogError, match="a-1: quarantined"):
        query.write(1, {"a": 2})
    assert b" 1 0 " not in Path(query.log_dir, "a-0", log.name).read_bytes()


def test_a_producer_of_every_batch(query: Driver, count_cases: Callable[[str, int], None]) -> None:
    """Epochs go up to 32767 and begin again with another producer; the log takes them all."""
    from dataclasses import replace

    query.write(0, {"a": 1})
    state = sink_commit.sink_state.read_state(FS, query.log_dir, query.writer)
    assert state is not None
    assert (state.epoch, state.done) == (0, 0)
    sink_commit.sink_state.write_state(FS, query.log_dir, replace(state, epoch=32_766))
    for version in (1, 2, 3):
        assert query.write(version, {"a": 1}) == 8
    after = sink_commit.sink_state.read_state(FS, query.log_dir, query.writer)
    assert after is not None
    assert after.epoch == 1
    assert after.producer_id != state.producer_id
    for version in range(4):
        assert attempts_of(rows_in(query), query, version) == {0}
    # Without the record a writer is a new one.
    Path(query.log_dir, sink_commit.sink_state.state_name(query.writer)).unlink()
    assert query.write(0, {"a": 1}, attempt=1) == 8


def test_a_directory_that_another_commits_to(query: Driver) -> None:
    """It is waited for: two queries may write to one directory."""
    query.clock = SystemClock()
    files = query.stage(0, {"a": 1})
    release = FS.lock(str(Path(query.log_dir, ".lock")), exclusive=True)
    timer = threading.Timer(0.3, release)
    timer.start()
    assert query.commit(0, files) == 8
    timer.join()


def test_a_directory_that_another_owns(query: Driver) -> None:
    files = query.stage(0, {"a": 1})
    with (
        locked([query.log_dir], FS, exclusive=True),
        pytest.raises(LogLockedError, match="in use by a running process"),
    ):
        query.commit(0, files)
    assert query.commit(0, files) == 8
