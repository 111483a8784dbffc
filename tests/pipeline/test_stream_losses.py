"""What a stream has lost, what it may not see yet, and what is on the disk before it reads it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from stratalog.base.errors import OffsetOutOfRangeError, StorageIOError
from stratalog.base.filesystem import LocalFile
from stratalog.log.settings import LogSettings
from stratalog.pipeline.stream_offsets import (
    LogEnds,
    advance,
)
from stratalog.record.control import ControlType
from stratalog.segment.names import TopicPartition
from tests.clean.driving import contents
from tests.clean.services import opened
from tests.log.helpers import open_log, records, sent
from tests.pipeline.object_server import object_server
from tests.pipeline.stream_play import Killed, Query, fill, stands

pytestmark = [pytest.mark.requirement("SPK-5"), pytest.mark.usefixtures("hasty_disk")]
EARLIEST = {"startingOffsets": "earliest"}
BOTH = LogSettings(cleanup_policy=("compact", "delete"))


def delete_records(root: Path, name: str, offset: int) -> None:
    topic, _, number = name.rpartition("-")
    with opened([str(root)], log_settings=BOTH) as parts:
        parts.store.delete_records(TopicPartition(topic, int(number)), offset)


# ---------------------------------------------------------------- what is lost


def test_retention_that_goes_past_a_stream_is_a_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path / "a-0", 10)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    fill(tmp_path / "a-0", 10)
    delete_records(tmp_path, "a-0", 10)
    query.run()
    assert query.batches()[-1] == [*range(10, 20)], "up to where it stands is no loss"
    fill(tmp_path / "a-0", 10)
    delete_records(tmp_path, "a-0", 25)
    with pytest.raises(OffsetOutOfRangeError, match=r"\Adata was lost: a-0: offsets 20 to 25 were"):
        query.run()
    assert len(query.offsets) == 2, "it is said before the checkpoint goes on"
    query.options["failOnDataLoss"] = "false"
    with caplog.at_level(logging.WARNING):
        query.run()
    assert "a-0: offsets 20 to 25 were deleted unread" in caplog.text
    assert query.batches()[-1] == [*range(25, 30)]


@pytest.mark.parametrize("died", ["after the checkpoint", "before a task"])
def test_retention_between_the_checkpoint_and_the_read(tmp_path: Path, died: str) -> None:
    fill(tmp_path / "a-0", 10)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    fill(tmp_path / "a-0", 10)

    def retain(place: str) -> None:
        if place == died:
            with opened([str(tmp_path)], log_settings=BOTH) as parts:
                parts.log(TopicPartition("a", 0)).roll()
            delete_records(tmp_path, "a-0", 20)
            for path in sorted((tmp_path / "a-0").glob(f"{0:020d}.*")):
                path.unlink()  # as retention does some time later

    query.between = retain
    with pytest.raises(OffsetOutOfRangeError, match="deleted"):
        query.run()
    query.between = lambda _: None
    with pytest.raises(OffsetOutOfRangeError, match="offsets 10 to 20 were deleted unread"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.batches() == [[*range(10)], []]


def test_a_partition_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    """With `failOnDataLoss` it is an error as long as it is away; pardoned, it is gone on with."""
    fill(tmp_path / "a-0", 5)
    fill(tmp_path / "a-1", 5)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    fill(tmp_path / "a-0", 1)
    away = tmp_path / "away"
    (tmp_path / "a-1").rename(away)
    with pytest.raises(OffsetOutOfRangeError, match="a-1 is gone; the stream has read it up to"):
        query.run()
    strict = Query(tmp_path, dict(EARLIEST), list(query.offsets), query.committed)
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert stands(query) == {"a": {"0": 6, "1": 5}}
    away.rename(tmp_path / "a-1")
    fill(tmp_path / "a-1", 1)
    for each in (query, strict):
        each.run()
        assert stands(each) == {"a": {"0": 6, "1": 6}}
        new = [(row["partition"], row["offset"]) for n in each.sink if n for row in each.sink[n]]
        assert sorted(new) == [(0, 5), (1, 5)]


def test_a_partition_that_goes_while_its_batch_is_under_way(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 5)
    fill(tmp_path / "a-1", 5)
    query = Query(tmp_path, dict(EARLIEST))

    def die(place: str) -> None:
        if place == "after the checkpoint":
            (tmp_path / "a-1").rename(tmp_path / "away")
            raise Killed

    query.between = die
    with pytest.raises(Killed):
        query.run()
    query.between = lambda _: None
    with pytest.raises(OffsetOutOfRangeError, match="a-1 is gone, and what was to be read of it"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.batches() == [[*range(5)]]


def test_a_partition_that_is_not_chosen_any_more_is_no_loss(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 5)
    fill(tmp_path / "b-0", 5)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    fill(tmp_path / "a-0", 1)
    fill(tmp_path / "b-0", 1)
    query.options["subscribe"] = "a"
    query.run()
    assert [row["topic"] for row in query.sink[1]] == ["a"]
    del query.options["subscribe"]
    query.run()
    assert [(row["topic"], row["offset"]) for row in query.sink[2]] == [("b", 5)]


def test_a_new_partition_that_has_lost_its_beginning(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 5)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    with open_log(tmp_path / "a-1", log_start_offset=17) as log:
        log.append_records(records(2))
    with pytest.raises(OffsetOutOfRangeError, match="a-1 has come new, and begins at offset 17"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.batches()[-1] == [17, 18]


def test_an_end_that_was_cut_off(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 5, 5)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    with open_log(tmp_path / "a-0") as log:
        log.truncate_to(5)
    words = "a-0 ends at offset 5, the stream has read it up to 10: its end was cut off"
    with pytest.raises(OffsetOutOfRangeError, match=words):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert stands(query) == {"a": {"0": 5}}
    fill(tmp_path / "a-0", 2)
    query.run()
    assert query.batches() == [[*range(10)], [], [5, 6]]


def test_an_end_that_was_cut_off_while_its_batch_is_under_way(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 5, 5)
    query = Query(tmp_path, dict(EARLIEST))

    def die(place: str) -> None:
        if place == "after the checkpoint":
            with open_log(tmp_path / "a-0") as log:
                log.truncate_to(5)
            raise Killed

    query.between = die
    with pytest.raises(Killed):
        query.run()
    query.between = lambda _: None
    with pytest.raises(OffsetOutOfRangeError, match="a-0 can be read up to offset 5, the batch"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.batches()[0] == [*range(5)]


# ---------------------------------------------------------------- transactions


def test_committed_data_only_and_up_to_the_first_open_transaction(tmp_path: Path) -> None:
    query = Query(tmp_path, {**EARLIEST, "isolation": "read_committed"})
    uncommitted = Query(tmp_path, dict(EARLIEST))
    expected: list[list[int]] = []

    def read(*batch: int) -> None:
        query.run()
        if batch:
            expected.append([*batch])
        assert query.batches() == expected

    with open_log(tmp_path / "a-0") as log:
        log.append_records(records(2))
        read(0, 1)
        log.append(sent(7, 0, transactional=True))
        log.append_records(records(2))
        read()
        uncommitted.run()
        assert uncommitted.batches() == [[*range(6)]]
        log.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0)
        read(4, 5)
        log.append(sent(7, 2, transactional=True))
        read()
        log.append_marker(ControlType.COMMIT, producer_id=7, producer_epoch=0)
        read(7, 8)
    # A stream that was not of committed data has read on: what it has read is no loss.
    uncommitted.run()
    uncommitted.options["isolation"] = "read_committed"
    with open_log(tmp_path / "a-0") as log:
        log.append(sent(7, 4, transactional=True))
        uncommitted.run()
        log.append_records(records(1))
        uncommitted.run()
        assert uncommitted.batches() == [[*range(6)], [7, 8]]


# ---------------------------------------------------------------- what is on the disk


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(LocalFile, "fsync", lambda file: names.append(os.path.basename(file.path)))
    return names


def test_what_an_offset_is_told_of_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path / "a-0", segment_bytes=2000) as log:
        for _ in range(9):
            log.append_records(records(5, size=100))
        bases = [segment.base_offset for segment in log.segments]
        assert len(bases) > 2
        names = synced(monkeypatch)
        query = Query(tmp_path, {**EARLIEST, "maxOffsetsPerTrigger": "10"})
        query.run()
        assert names == [f"{base:020d}.log" for base in bases[-2:]], "once, not for each batch"
        names.clear()
        query.run()
        assert len(names) == 2, "another run does not know"
        names.clear()
        reader = query.run()
        names.clear()
        for _ in range(5):
            log.append_records(records(5, size=100))
        names.clear()
        added = [s.base_offset for s in log.segments if s.base_offset >= bases[-1]]
        assert len(added) > 2
        reader.latestOffset(stands(query), ReadAllAvailable())
        assert names == [f"{base:020d}.log" for base in added], "what was rolled meanwhile, too"
        names.clear()
        reader.latestOffset(stands(query), ReadAllAvailable())
        assert names == [], "nothing has changed"
        query.options["flushBeforeRead"] = "false"
        query.run()
        assert names == []


def test_a_disk_that_cannot_sync_is_an_error_unless_there_is_nothing_to_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    fill(tmp_path / "a-0", 5)
    for number, is_error in ((errno.EIO, True), (errno.EROFS, False), (errno.EINVAL, False)):

        def fail(file: LocalFile, number: int = number) -> None:
            cause = OSError(number, "on purpose")
            raise StorageIOError(f"{file.path}: failed") from cause

        monkeypatch.setattr(LocalFile, "fsync", fail)
        query = Query(tmp_path, dict(EARLIEST))
        if is_error:
            with pytest.raises(StorageIOError):
                query.run()
            assert query.offsets == []
        else:
            query.run()
            assert query.batches() == [[*range(5)]]


def test_an_append_that_is_taken_back_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk is full after the first of two batches: its owner cuts it off again."""
    fill(tmp_path / "a-0", 5)
    log = next((tmp_path / "a-0").glob("*.log"))
    whole = log.read_bytes()
    with open_log(tmp_path / "other") as other:
        other.append_records(records(5))
        other.append_records(records(2))
        longer = next((tmp_path / "other").glob("*.log")).read_bytes()
    (tmp_path / "other").rename(tmp_path.parent / f"{tmp_path.name}-other")
    log.write_bytes(longer)
    syncs: list[str] = []

    def sync(file: LocalFile) -> None:
        syncs.append(file.path)
        log.write_bytes(whole)

    monkeypatch.setattr(LocalFile, "fsync", sync)
    query = Query(tmp_path, dict(EARLIEST))
    query.run()
    assert query.batches() == [[*range(5)]]
    assert len(syncs) > 1, "it looked again"


def test_a_stream_changes_no_file_and_idles_without_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stratalog.pipeline import stream_logs

    fill(tmp_path / "a-0", 5)
    fill(tmp_path / "b-0", 5)
    before = contents(tmp_path)
    query = Query(tmp_path, dict(EARLIEST))
    reader = query.run()
    assert contents(tmp_path) == before
    opened_view = stream_logs.opened_view
    names: list[str] = []

    def counted(place: Any, **named: Any) -> Any:
        names.append(str(place.topic_partition))
        return opened_view(place, **named)

    monkeypatch.setattr(stream_logs, "opened_view", counted)
    for _ in range(3):
        assert reader.latestOffset(stands(query), ReadAllAvailable()) == stands(query)
    assert names == []
    fill(tmp_path / "b-0", 1)
    assert reader.latestOffset(stands(query), ReadAllAvailable())["b"] == {"0": 6}
    assert names == ["b-0"]
    delete_records(tmp_path, "a-0", 5)
    reader.latestOffset(stands(query), ReadAllAvailable())
    assert set(names) == {"a-0", "b-0"}, "where logs begin stands in one file"


@pytest.mark.requirement("SPK-9")
def test_a_stream_of_a_log_on_object_storage(tmp_path: Path) -> None:
    with object_server() as server:
        fill(tmp_path / "a-0", 10)
        path = server.put(tmp_path, "logs")
        query = Query(path, {**EARLIEST, **server.options, "maxOffsetsPerTrigger": "6"})
        query.run()
        fill(tmp_path / "a-0", 5)
        fill(tmp_path / "a-1", 3)
        server.put(tmp_path, "logs")
        query.run()
        found = sorted((row["partition"], row["offset"]) for row in query.rows())
        assert found == [(n, offset) for n, end in ((0, 15), (1, 3)) for offset in range(end)]
        assert max(len(batch) for batch in query.batches()) == 6


def test_an_unbounded_advance_says_every_loss() -> None:
    a, b, c, d = (TopicPartition("t", number) for number in range(4))
    logs = {a: LogEnds(5, 9, 9), b: LogEnds(0, 4, 2), c: LogEnds(3, 3, 3)}
    step = advance({a: 2, b: 7, d: 1}, logs)
    assert step.until == {a: 9, b: 2, c: 3, d: 1}
    assert step.begin == {a: 5, b: 2, c: 3, d: 1}
    assert [loss.split()[0].rstrip(":") for loss in step.losses] == ["t-0", "t-1", "t-2", "t-3"]
    assert step.count == 4
    assert advance({d: 1}, {}, {d}).losses == ()
