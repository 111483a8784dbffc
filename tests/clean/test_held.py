"""By an order of versions a tombstone whose time is over stays as long as a record past the round's
end has only it to lose to: nothing that was deleted comes back because of a round (CMP-18)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.clean.job import CleanedPartition, CleaningJob, Order
from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.manager import Request
from stratalog.clean.plan import plan_clean, range_of
from stratalog.clean.settings import TopicCleaning
from stratalog.record.builder import NewRecord
from stratalog.segment.names import MAX_OFFSET
from stratalog.segment.txn_index import AbortedTxn
from tests.clean.driving import (
    DAY_MS,
    FS,
    NOW_MS,
    Case,
    clean_naively,
    place,
    range_and_job,
    run,
    segment_files,
    spec_of,
    state_of,
    surviving,
    write_case,
)
from tests.clean.services import NOW, ORDERS, Parts, contents, opened
from tests.clean.test_versions import BY_HEADER, BY_SEGMENT, BY_TIME, events
from tests.naive import files
from tests.naive.random_batches import HOUR_MS
from tests.naive.records import Record, build_legacy
from tests.oracle import compare_partitions, fold

pytestmark = pytest.mark.usefixtures("hasty_disk")
EXPIRED: dict[str, Any] = {"horizon_ms": NOW_MS - 1}


def log_of(log_dir: Path, later: bytes, settings: dict[str, str] | None = None) -> Case:
    """`a` was deleted at hour 9 and its tombstone's time is over; `later` is in the active segment,
    which begins at offset 10."""
    first = events(0, (b"a", None, 9), (b"b", b"1", 1), **EXPIRED)
    return write_case(log_dir, {0: [first], 10: [later]}, settings or BY_TIME)


def clean(case: Case, job: CleaningJob | None = None) -> CleanedPartition:
    """A round of the local engine, which gives what the naive twin makes if the job is the usual
    one."""
    before = case.copied(case.partition.parent.with_name("before"))
    if job is None:
        clean_naively(before, case.partition.parent.with_name("naive"))
        _, job = range_and_job(case)
        assert job is not None
        (cleaned,) = run(LocalEngine(FS, threads=1), [job])
        place(case, cleaned)
        made = case.partition.parent.with_name("naive") / case.partition.name
        assert compare_partitions(made, case.partition, before.partition) == []
        return cleaned
    (cleaned,) = run(LocalEngine(FS, threads=1), [job])
    place(case, cleaned)
    return cleaned


# ---------------------------------------------------------------- what holds


@pytest.mark.requirement("CMP-17", "CMP-18")
@pytest.mark.parametrize(
    ("later", "stays"),
    [
        ((b"a", b"late", 8), True),
        ((b"a", None, 8), True),
        ((b"a", b"newer", 10), False),
        ((b"a", b"as new", 9), False),
        ((b"c", b"late", 8), False),
        ((None, b"no key", 8), False),
    ],
    ids=["older value", "older tombstone", "newer", "of the same version", "other key", "no key"],
)
def test_an_older_record_of_the_key_holds_a_tombstone(
    later: Any, stays: bool, tmp_path: Path
) -> None:
    """Of the same version it is the newer one, being later: it wins with and without the other."""
    case = log_of(tmp_path / "log", events(10, later))
    state = fold(case.partition, BY_TIME)
    cleaned = clean(case)
    assert sorted(surviving(case.partition)) == ([0] if stays else []) + [1, 10]
    assert fold(case.partition, BY_TIME) == state
    assert cleaned.volume.drops.tombstone_expired == (not stays)
    assert cleaned.next_expiry_ms is None, "no time alone lets it go"


@pytest.mark.requirement("CMP-17", "CMP-18")
def test_by_header_it_is_the_same(tmp_path: Path) -> None:
    first = events(0, (b"a", None, [b"9"]), (b"b", None, [b"9"]), **EXPIRED)
    later = events(10, (b"a", b"late", []), (b"b", b"new", [b"10"]))
    first += events(2, (b"c", b"", []))
    case = write_case(tmp_path / "log", {0: [first], 10: [later]}, BY_HEADER)
    case = replace(
        case, inputs=replace(case.inputs, settings={**case.inputs.settings, **BY_HEADER})
    )
    clean(case)
    assert sorted(surviving(case.partition)) == [0, 2, 10, 11]


@pytest.mark.requirement("CMP-14", "CMP-17", "CMP-18")
def test_a_record_of_an_open_transaction_holds_it(tmp_path: Path) -> None:
    """Readers do not see it yet, and a commit would make it the newest."""
    opened_at_10 = events(
        10, (b"a", b"late", 8), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    case = log_of(tmp_path / "log", opened_at_10)
    case = replace(case, inputs=replace(case.inputs, last_stable_offset=10))
    assert state_of(case).last_stable_offset == 10
    clean(case)
    assert sorted(surviving(case.partition)) == [0, 1, 10]
    assert fold(case.partition, BY_TIME, commits=True) == {b"b": b"1"}


@pytest.mark.requirement("CMP-17", "CMP-18")
def test_a_sealed_segment_past_the_end_holds_it_too(tmp_path: Path) -> None:
    """As when an open transaction begins inside of it: the round then ends where it begins."""
    first = [events(0, (b"a", None, 9), (b"b", None, 9), **EXPIRED), events(2, (b"x", b"", 0))]
    second = [events(10, (b"a", b"late", 8)), events(11, (b"x", b"open", 8))]
    third = [events(20, (b"b", b"late", 8))]
    case = write_case(tmp_path / "log", {0: first, 10: second, 20: third, 30: []}, BY_TIME)
    state = replace(state_of(case), last_stable_offset=11)
    cleanable = range_of(state, min_compaction_lag_ms=0, now_ms=NOW_MS)
    job = plan_clean(state, cleanable, spec_of(case.inputs))
    assert job is not None
    clean(case, job)
    assert sorted(surviving(case.partition)) == [0, 1, 2, 10, 11, 20]


@pytest.mark.requirement("CMP-14", "CMP-18")
def test_aborted_data_past_the_end_holds_it_a_while_longer(tmp_path: Path) -> None:
    """Nobody would see it, but telling is not worth a second look: it goes with that data."""
    aborted = events(10, (b"a", b"late", 8), producer_id=7, producer_epoch=0, transactional=True)
    case = log_of(tmp_path / "log", aborted)
    _, job = range_and_job(case)
    assert job is not None
    clean(case, replace(job, aborted=(AbortedTxn(7, 10, 10, 10),)))
    assert sorted(surviving(case.partition)) == [0, 1, 10]


@pytest.mark.requirement("CMP-8", "CMP-18", "LOG-4")
@pytest.mark.parametrize("stays", [True, False])
def test_tombstones_that_go_by_their_segments_time_are_held_alike(
    stays: bool, tmp_path: Path
) -> None:
    """Those of the old formats, and all of them with `tombstone.horizon=segment`."""
    later = events(10, (b"a", b"late", 8 if stays else 10), (b"m", b"late", 8 if stays else 10))
    hour_9 = NOW_MS - DAY_MS + 9 * HOUR_MS
    old = build_legacy([Record(0, hour_9, b"m", None)], magic=1)
    new = events(1, (b"a", None, 9), (b"b", b"1", 1))
    settings = {**BY_TIME, **BY_SEGMENT}
    segments = {0: [old, new], 5: [events(5, (b"c", b"", 1))], 10: [later]}
    case = write_case(tmp_path / "log", segments, settings)
    path = case.partition.parent / "cleaner-offset-checkpoint"
    path.write_text(files.encode_checkpoint({case.partition.name: 5}))
    case = replace(case, inputs=replace(case.inputs, checkpoint=5))
    clean(case)
    assert sorted(surviving(case.partition)) == ([0, 1] if stays else []) + [2, 5, 10, 11]


@pytest.mark.requirement("CLN-11", "CMP-18")
def test_a_forgotten_tombstone_that_is_held_stays_and_waits_for_its_time(tmp_path: Path) -> None:
    first = events(0, (b"a", None, 9), (b"b", None, 9), (b"c", b"1", 1))
    case = write_case(tmp_path / "log", {0: [first], 10: [events(10, (b"a", b"late", 8))]}, BY_TIME)
    _, job = range_and_job(case)
    assert job is not None
    cleaned = clean(case, replace(job, forgotten=(0, 1)))
    assert sorted(surviving(case.partition)) == [0, 2, 10]
    assert cleaned.next_expiry_ms == NOW_MS + DAY_MS


# ---------------------------------------------------------------- what is looked at


@pytest.mark.requirement("CMP-18", "CMP-3")
def test_a_job_names_what_lies_at_or_past_its_end_by_an_order_of_versions_only(
    tmp_path: Path,
) -> None:
    case = write_case(
        tmp_path / "log",
        {0: [events(0, (b"a", b"", 1))], 10: [events(10, (b"a", b"", 2))], 20: []},
        BY_TIME,
    )

    def later(upto: int, **changes: Any) -> list[tuple[int, int]]:
        state = replace(state_of(case), last_stable_offset=upto)
        cleanable = range_of(state, min_compaction_lag_ms=0, now_ms=NOW_MS)
        job = plan_clean(state, cleanable, spec_of(case.inputs, **changes))
        assert job is not None
        assert job.first_uncleanable == upto
        return [(segment.base_offset, segment.next_offset) for segment in job.later]

    assert later(10) == [(10, 20)]
    assert later(10, order=Order.HEADER, version_header="v") == [(10, 20)]
    assert later(20) == [], "the active segment is empty"
    assert later(10, order=Order.OFFSET) == []
    data = events(20, (b"a", b"", 3))
    files.write_segment(case.partition, 20, data, [], interval_bytes=4096, mtime_ms=NOW_MS)
    assert later(20) == [(20, MAX_OFFSET)]
    assert later(10) == [(10, 20), (20, MAX_OFFSET)]


@pytest.mark.requirement("CMP-18", "LOG-12")
def test_what_is_appended_after_the_plan_is_not_followed(tmp_path: Path) -> None:
    """Nor is half a batch of it read: an append may be at work just then."""
    case = log_of(tmp_path / "log", events(10, (b"c", b"1", 1)))
    copy = case.copied(tmp_path / "copy")
    (_, job), (_, same) = range_and_job(case), range_and_job(copy)
    assert job is not None
    assert same is not None
    with (case.partition / files.name(10, ".log")).open("ab") as active:
        active.write(events(11, (b"a", b"late", 8))[:-7])
    clean(copy, same)
    (cleaned,) = run(LocalEngine(FS, threads=2), [job])
    place(case, cleaned)
    name = files.name(0, ".log")
    assert segment_files(case.partition)[name] == segment_files(copy.partition)[name]
    assert 0 not in surviving(copy.partition)


# ---------------------------------------------------------------- the cleaner as a service


def put(parts: Parts, value: str | None, hour: int) -> None:
    content = None if value is None else value.encode()
    parts.log().append_records([NewRecord(b"a", content, NOW + hour * HOUR_MS)])


def asked(parts: Parts) -> None:
    """A round on demand, the active segment taken in."""
    request = parts.manager.ask(Request(ORDERS))
    assert parts.cleaner.run_once("test")
    assert request.done.is_set()
    assert request.error is None


@pytest.mark.requirement("CMP-9", "CMP-17", "CMP-18")
def test_the_cleaner_does_not_run_again_and_again_for_what_is_held(tmp_path: Path) -> None:
    """One round finds out when the time has come; the tombstone goes with what it hides, and an
    event that comes when it has gone stands."""
    topic = TopicCleaning(
        is_compacted=True,
        deletes=False,
        order=Order.TIMESTAMP,
        delete_retention_ms=1000,
        min_dirty_ratio=0.99,
    )
    with opened([str(tmp_path)], topics={"orders": topic}) as parts:
        log = parts.log()
        put(parts, "1", -9)
        put(parts, None, 0)
        asked(parts)
        assert contents(log) == [(1, "a", None)]
        put(parts, "late", -1)
        parts.clock.sleep_ms(1000)
        assert parts.clean_all() == 1, "its time has come, and that is looked at once"
        assert contents(log) == [(1, "a", None), (2, "a", "late")]
        parts.clock.sleep_ms(DAY_MS)
        assert parts.clean_all() == 0
        asked(parts)
        assert contents(log) == []
        put(parts, "later", -2)
        asked(parts)
        assert contents(log) == [(3, "a", "later")]
