"""What goes wrong in a round stays with its partition: back-off, retry, a reason (CLN-7).

And what must not go wrong: deadlines that nobody knows any more, files that nobody unlinks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.base.errors import (
    CorruptionError,
    RoundAbortedError,
    StorageFullError,
    StorageIOError,
)
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean import manager as manager_module
from stratalog.clean.engine import Engine, OnProgress
from stratalog.clean.history import read_history
from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.manager import Request
from stratalog.clean.note import read_note
from stratalog.clean.select import Obstacle
from stratalog.clean.settings import CleanerSettings
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition
from tests.clean.gates import PATIENCE_SECONDS, Threads, wait_until
from tests.clean.services import COMPACTED, NOW, ORDERS, Parts, contents, opened, put

OTHER = TopicPartition("other", 0)
HOUR = 3_600_000
MINUTE = 60_000
BACKOFF = CleanerSettings(retry_backoff_ms=MINUTE, retry_backoff_max_ms=4 * MINUTE)
EAGER = replace(COMPACTED, min_dirty_ratio=0.0, delete_retention_ms=HOUR)


class Failing:
    """`engine_of`: raises `errors` in turn for ORDERS, then works."""

    def __init__(self, *errors: BaseException):
        self.errors = list(errors)

    def engine_of(self, job: CleaningJob, filesystem: FileSystem) -> tuple[str, Engine]:
        return "failing", _Engine(self, filesystem)


class _Engine:
    def __init__(self, failing: Failing, filesystem: FileSystem):
        self._failing = failing
        self._filesystem = filesystem

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        if jobs[0].name == str(ORDERS) and self._failing.errors:
            stray = os.path.join(jobs[0].directory, f"{0:020d}.log.stray-0.part")
            Path(stray).write_bytes(b"half a segment")
            raise self._failing.errors.pop(0)
        engine = LocalEngine(self._filesystem, threads=1)
        return engine.clean(jobs, writes=writes, on_progress=on_progress)


def fill(parts: Parts, *keys: TopicPartition) -> None:
    for key in keys:
        log = parts.log(key)
        for number in range(3):
            put(log, ("a", f"{number}"), (f"b{number}", "0"))
            log.roll()


def flip(path: str, position: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[position] ^= 1
    Path(path).write_bytes(data)


@pytest.mark.requirement("CLN-7", "CMP-16")
@pytest.mark.parametrize("has_digest", [False, True], ids=["no digest", "digest"])
def test_damage_quarantines_its_partition_and_no_other(tmp_path: Path, has_digest: bool) -> None:
    with opened([str(tmp_path)], settings=BACKOFF) as parts:
        fill(parts, ORDERS, OTHER)
        log = parts.log()
        if has_digest:
            for _ in range(3):
                parts.store.build_digests()
        whole = log.segments.sealed[1].log.path
        shutil.copy(whole, tmp_path / "whole")
    flip(whole, 70)
    with opened([str(tmp_path)], settings=BACKOFF) as parts:
        log = parts.log()
        assert parts.clean_all() == 2
        assert len(contents(parts.log(OTHER))) == 4
        for tries, wait_minutes in enumerate((1, 2, 4, 4), 1):
            failure = parts.manager.note_of(ORDERS).failure
            assert failure is not None
            assert failure.tries == tries
            assert whole in failure.cause
            assert "position" in failure.cause
            assert failure.retry_at_ms == parts.clock.now_ms() + wait_minutes * MINUTE
            why = parts.manager.explain(ORDERS)
            assert why.obstacle is Obstacle.QUARANTINED
            assert whole in why.sentence
            assert read_note(LocalFileSystem(), log.path).failure == failure
            [*_, entry] = read_history(LocalFileSystem(), log.path)
            assert entry.result == "failed"
            assert whole in entry.cause
            parts.clock.sleep_ms(wait_minutes * MINUTE - 1)
            assert parts.clean_all() == 0
            parts.clock.sleep_ms(1)
            assert parts.clean_all() == 1
        assert parts.store.cleaner_point(ORDERS) is None
        assert parts.store.offline_dirs == {}
        failure = parts.manager.note_of(ORDERS).failure
        clock = parts.clock
    with opened([str(tmp_path)], settings=BACKOFF, clock=clock) as parts:
        assert parts.clean_all() == 0
        assert parts.manager.note_of(ORDERS).failure == failure, "it outlives the process"
    shutil.copy(tmp_path / "whole", whole)
    with opened([str(tmp_path)], settings=BACKOFF, clock=clock) as parts:
        assert parts.manager.retry(ORDERS) is True
        assert parts.clean_all() == 1, "at once"
        assert parts.manager.retry(ORDERS) is False
        assert read_note(LocalFileSystem(), parts.log().path).failure is None
        assert len(contents(parts.log())) == 4


@pytest.mark.requirement("CLN-7")
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a bug"),
        MemoryError(),
        CorruptionError("bad", file="f", position=3),
        OSError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_of_an_engine_ends_the_thread(tmp_path: Path, error: Exception) -> None:
    failing = Failing(error)
    settings = replace(BACKOFF, backoff_ms=1)
    with opened([str(tmp_path)], settings=settings, engine_of=failing.engine_of) as parts:
        fill(parts, ORDERS, OTHER)
        parts.cleaner.start()
        wait_until(lambda: parts.store.cleaner_point(OTHER) == 6, "the other one is cleaned")
        wait_until(lambda: parts.manager.note_of(ORDERS).failure is not None, "it is noted")
        failure = parts.manager.note_of(ORDERS).failure
        assert failure is not None
        assert failure.cause.startswith(str(error) or type(error).__name__)
        assert parts.store.cleaner_point(ORDERS) is None
        assert parts.cleaner.dead_threads == 0
        assert parts.store.offline_dirs == {}
        wait_until(lambda: parts.manager.state_of(ORDERS).is_free, "it is given back")
        assert not list(Path(parts.log().path).glob("*.part")), "strays are swept"
        parts.manager.retry(ORDERS)
        wait_until(lambda: parts.store.cleaner_point(ORDERS) == 6, "it is tried again")
        assert parts.cleaner.stats.runs["ratio", "failed"] == 1


@pytest.mark.requirement("CLN-7")
def test_an_error_of_the_disk_leaves_the_other_directory_working(tmp_path: Path) -> None:
    failing = Failing(StorageIOError("the disk is gone"))
    dirs = [str(tmp_path / name) for name in ("one", "two")]
    with opened(dirs, engine_of=failing.engine_of) as parts:
        fill(parts, ORDERS, OTHER)
        assert parts.clean_all() == 2
        assert list(parts.store.offline_dirs) == [parts.store.log_dir_of(ORDERS)]
        assert parts.store.cleaner_point(OTHER) == 6
        put(parts.log(OTHER), ("a", "goes on"))
        assert parts.manager.note_of(ORDERS).failure is None


@pytest.mark.requirement("CLN-7")
@pytest.mark.parametrize(
    "error", [ValueError("odd"), FileNotFoundError("gone"), StorageIOError("io")]
)
def test_a_log_that_cannot_be_measured_keeps_no_other_from_being_cleaned(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = manager_module.measure
    dirs = [str(tmp_path / name) for name in ("one", "two")]
    with opened(dirs, settings=BACKOFF) as parts:
        fill(parts, ORDERS, OTHER)
        bad = parts.log().view.segments.bases

        def measured(view, *arguments):  # type: ignore[no-untyped-def]
            if view.segments.bases is bad:
                raise error
            return measure(view, *arguments)

        monkeypatch.setattr(manager_module, "measure", measured)
        assert parts.clean_all() == 1
        assert parts.store.cleaner_point(OTHER) == 6
        is_disk = not isinstance(error, ValueError)
        assert bool(parts.store.offline_dirs) == is_disk
        assert (parts.manager.note_of(ORDERS).failure is None) == is_disk


# -- deadlines that have to be found again (CMP-9) -------------------------------------------------


def with_tombstone(parts: Parts) -> None:
    put(parts.log(), ("a", "1"), ("b", "1"))
    put(parts.log(), ("a", None))
    parts.log().roll()
    assert parts.clean_all() == 1
    assert contents(parts.log())[-1] == (2, "a", None)


@pytest.mark.requirement("CMP-9", "CLN-9")
@pytest.mark.parametrize("rolls", [False, True])
def test_a_round_with_nothing_to_do_forgets_no_deadline(tmp_path: Path, rolls: bool) -> None:
    with opened([str(tmp_path)], topics={"orders": EAGER}) as parts:
        with_tombstone(parts)
        request = parts.manager.ask(Request(ORDERS, rolls=rolls))
        parts.clean_all()
        assert request.entry is not None
        assert request.entry.result == "nothing"
        parts.clock.sleep_ms(HOUR)
        assert parts.clean_all() == 1
        assert contents(parts.log()) == [(1, "b", "1")]


@pytest.mark.requirement("CMP-9", "CLN-4")
def test_a_tombstone_that_a_truncation_left_in_the_active_segment_goes_in_time(
    tmp_path: Path,
) -> None:
    log_settings = LogSettings(cleanup_policy=("compact",))
    with opened([str(tmp_path)], topics={"orders": EAGER}, log_settings=log_settings) as parts:
        log = parts.log()
        with_tombstone(parts)
        put(log, ("c", "1"))
        log.roll()
        parts.clean_all()
        assert parts.store.truncate(ORDERS, 3) == 3
        assert len(log.segments) == 1, "the tombstone lies in the active segment"
        assert parts.store.cleaner_point(ORDERS) == 3
        parts.clean_all()
        parts.clock.sleep_ms(2 * HOUR)
        assert parts.clean_all() == 0, "of the active segment nothing is cleaned"
        put(log, ("d", "1"), timestamp=parts.clock.now_ms())
        log.roll()
        parts.topics["orders"] = replace(EAGER, min_dirty_ratio=0.9)
        assert parts.clean_all() == 1, "by its deadline alone"
        assert [key for _, key, _ in contents(log)] == ["b", "d"]


@pytest.mark.requirement("CMP-9", "CMP-3", "CMP-5")
def test_a_bound_below_what_was_cleaned_neither_loops_nor_forgets(tmp_path: Path) -> None:
    settings, topic = CleanerSettings(max_keys=3), replace(EAGER, segment_bytes=1)
    with opened([str(tmp_path)], topics={"orders": topic}, settings=settings) as parts:
        log = parts.log()
        put(log, ("x", "1"))
        log.roll()
        for pair in (("a", "1"), ("a", None), ("b", "1"), ("c", "1"), ("d", "1")):
            put(log, pair)
        log.roll()
        assert parts.cleaner.run_once("test")
        checkpoint = parts.store.cleaner_point(ORDERS)
        assert checkpoint is not None
        assert 2 < checkpoint < 6, "the map was full within the second segment"
        parts.topics["orders"] = replace(topic, min_lag_ms=3 * HOUR)
        parts.clock.sleep_ms(HOUR)
        assert parts.clean_all() == 0, "the second segment is younger than the lag now"
        request = parts.manager.ask(Request(ORDERS))
        parts.clean_all()
        assert request.done.is_set()
        assert (2, "a", None) in contents(log)
        parts.clock.sleep_ms(2 * HOUR - 1)
        assert parts.clean_all() == 0
        parts.topics["orders"] = replace(topic, min_lag_ms=3 * HOUR, min_dirty_ratio=1.0)
        parts.clock.sleep_ms(2)
        assert parts.clean_all() == 1, "by its deadline alone"
        assert [key for _, key, _ in contents(log)] == ["x", "b", "c", "d"]


@pytest.mark.requirement("CMP-9", "CLN-7")
def test_a_deadline_that_cannot_be_looked_up_is_tried_after_the_back_off(tmp_path: Path) -> None:
    with opened([str(tmp_path)], topics={"orders": EAGER}, settings=BACKOFF) as parts:
        with_tombstone(parts)
        segment = parts.log().segments.sealed[0].log.path
        note = Path(parts.log().path, ".stratalog", "cleaner-note")
    for digest in Path(segment).parent.glob(".stratalog/*.digest"):
        digest.unlink()
    note.unlink()
    flip(segment, 9)
    with opened([str(tmp_path)], topics={"orders": EAGER}, settings=BACKOFF) as parts:
        for _ in range(3):
            assert parts.cleaner.run_once("test") is False
        failure = parts.manager.note_of(ORDERS).failure
        assert failure is not None
        assert failure.tries == 1
        assert parts.manager.unknown_expiries() == []
        flip(segment, 9)
        parts.clock.sleep_ms(MINUTE)
        parts.clean_all()
        assert parts.manager.note_of(ORDERS).next_expiry_ms == NOW + HOUR


# -- files that go ---------------------------------------------------------------------------------


@pytest.mark.requirement("CMP-12", "RET-8", "CLN-4")
def test_the_old_files_of_a_round_that_ends_half_way_are_unlinked(tmp_path: Path) -> None:
    topic = replace(EAGER, segment_bytes=1)
    with opened([str(tmp_path)], topics={"orders": topic}) as parts:
        log = parts.log()
        for number in range(4):
            put(log, ("a", f"{number}"), (f"b{number}", "0"))
            log.roll()
        swap_in, swaps = log.swap_in, []

        def counted(replacement):  # type: ignore[no-untyped-def]
            swaps.append(replacement)
            return swap_in(replacement)

        check = parts.cleaner._check

        def checked(key: TopicPartition) -> None:
            if swaps:
                raise RoundAbortedError("told to stop between two groups")
            check(key)

        log.swap_in = counted  # type: ignore[method-assign]
        parts.cleaner._check = checked  # type: ignore[method-assign]
        parts.cleaner.run_once("test")
        assert len(swaps) == 1
        assert parts.store.cleaner_point(ORDERS) is None
        assert list(Path(log.path).glob("*.deleted"))
        assert not list(Path(log.path).glob("*.part"))
        parts.clock.sleep_ms(MINUTE)
        parts.store.run_due()
        assert not list(Path(log.path).glob("*.deleted")), "they would stay until the next start"


class Beaten(LocalFileSystem):
    """Somebody else unlinks `.deleted` files just before we do."""

    def unlink(self, path: str) -> None:
        if path.endswith(".deleted"):
            os.unlink(path)
        super().unlink(path)


@pytest.mark.requirement("RET-8", "CLN-11")
@pytest.mark.parametrize("at_once", [False, True])
def test_two_may_unlink_the_same_file(tmp_path: Path, at_once: bool) -> None:
    with opened([str(tmp_path)], filesystem=Beaten()) as parts:
        fill(parts, ORDERS)
        assert parts.clean_all() == 1
        assert list(Path(parts.log().path).glob("*.deleted"))
        if at_once:
            parts.store.unlink_deleted(ORDERS)
        else:
            parts.clock.sleep_ms(MINUTE)
            parts.store.run_due()
        assert parts.store.offline_dirs == {}
        assert not list(Path(parts.log().path).glob("*.deleted"))


@pytest.mark.requirement("CLN-7", "CMP-12")
@pytest.mark.parametrize("place", [1, 2])
def test_an_unknown_error_in_a_swap_keeps_the_intent_from_being_written_over(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened([str(tmp_path)], settings=BACKOFF) as parts:
        fill(parts, ORDERS)
        log, publish, calls = parts.log(), parts.log()._publish_swapped, []

        def failing(*arguments):  # type: ignore[no-untyped-def]
            calls.append(arguments)
            if len(calls) == place:
                raise MemoryError
            publish(*arguments)

        monkeypatch.setattr(log, "_publish_swapped", failing)
        assert parts.clean_all() == 1
        assert log.offline is not None
        assert len(contents(log)) in (4, 6), "what is there stays readable"
        assert parts.store.cleaner_point(ORDERS) is None
    with opened([str(tmp_path)]) as parts:
        assert [value for _, key, value in contents(parts.log()) if key == "a"] == ["2"]
        log = parts.log()
        log.append_records([NewRecord(b"goes", b"on", NOW)])


@pytest.mark.requirement("CLN-7", "CLN-2")
def test_a_round_that_failed_half_way_is_tried_again_whatever_it_left(tmp_path: Path) -> None:
    topic = replace(COMPACTED, segment_bytes=1)
    with opened([str(tmp_path)], topics={"orders": topic}, settings=BACKOFF) as parts:
        log = parts.log()
        put(log, *((f"k{number}", "x" * 100) for number in range(10)))
        log.roll()
        assert parts.clean_all() == 1
        for values in (30, 3):
            put(log, *((f"d{values}", "y" * 100) for _ in range(values)))
            log.roll()
        swap_in, swaps = log.swap_in, []

        def full_at_last(replacement):  # type: ignore[no-untyped-def]
            swaps.append(replacement)
            if len(swaps) == 2:
                raise StorageFullError("no room for the second one")
            return swap_in(replacement)

        log.swap_in = full_at_last  # type: ignore[method-assign]
        assert parts.clean_all() == 1
        facts = parts.manager.facts_of(ORDERS)
        assert 0 < facts.dirty_ratio < topic.min_dirty_ratio, "by its ratio it would never be tried"
        assert parts.store.cleaner_point(ORDERS) == 10
        put(log, ("more", "is taken"))
        parts.clock.sleep_ms(MINUTE)
        assert parts.clean_all() == 1
        assert parts.store.cleaner_point(ORDERS) == 43
        assert parts.manager.facts_of(ORDERS).min_dirty_ratio == topic.min_dirty_ratio


@pytest.mark.requirement("CLN-4", "CMP-9")
def test_looking_a_deadline_up_is_stopped_within_a_chunk(tmp_path: Path) -> None:
    with opened([str(tmp_path)], topics={"orders": EAGER}) as parts:
        with_tombstone(parts)
        note = Path(parts.log().path, ".stratalog", "cleaner-note")
    note.unlink()
    with Threads() as threads, opened([str(tmp_path)], topics={"orders": EAGER}) as parts:
        draw, waiting = parts.cleaner.throttle.draw, []

        def stopping(size_bytes: int, check: Callable[[], None]) -> None:
            if not waiting:
                waiting.append(threads.run(parts.store.truncate, ORDERS, 2))
                wait_until(lambda: parts.manager.must_stop(ORDERS), "it is told to stop")
            draw(size_bytes, check)

        parts.cleaner.throttle.draw = stopping  # type: ignore[method-assign]
        assert parts.cleaner.run_once("test") is False
        assert waiting[0].result(PATIENCE_SECONDS) == 2
        assert parts.manager.note_of(ORDERS).failure is None
        assert parts.manager.note_of(ORDERS).checkpoint is None, "it was not found out"
        parts.cleaner.run_once("test")
        assert parts.manager.note_of(ORDERS).checkpoint == 2
