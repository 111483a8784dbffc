"""Orders of versions: which record of a key stays when it need not be the last one (CMP-17).

Random logs go through the naive twin and the local engine, some of them over several rounds with
events that come late; the rules that a reader would ask about are spelt out one by one below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.plan import plan_clean, range_of
from stratalog.clean.round_end import key_limit
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    DAY_MS,
    FS,
    NOW_MS,
    Case,
    clean_case,
    clean_naively,
    move_checkpoint,
    place,
    range_and_job,
    run,
    segment_files,
    spec_of,
    state_of,
    surviving,
    write_case,
)
from tests.clean.test_properties import random_case, seeds
from tests.naive import files
from tests.naive.logs import Features
from tests.naive.random_batches import HOUR_MS
from tests.naive.records import ABORT, Record, build_legacy, build_marker, build_v2
from tests.naive.versions import version_of
from tests.oracle import compare_partitions, fold, index_problems

pytestmark = pytest.mark.usefixtures("hasty_disk")
Count = Callable[[str, int], None]
BY_SEGMENT = {"tombstone.horizon": "segment", "delete.retention.ms": "0"}


def features_of(seed: int) -> Features:
    return Features(versions=True, legacy=seed % 5 == 0, batches=80)


def folds(partition: Path, settings: Mapping[str, str]) -> list[dict[bytes, bytes]]:
    """The state of the whole log, now and once all open transactions are committed."""
    return [fold(partition, settings, commits=commits) for commits in (False, True)]


# ---------------------------------------------------------------- random logs


@pytest.mark.requirement("CMP-17", "CMP-18", "CMP-7", "CMP-8", "CMP-13", "CMP-14", "CMP-15")
def test_local_engine_makes_what_the_naive_twin_makes(tmp_path: Path, count_cases: Count) -> None:
    engines = [LocalEngine(FS, threads=threads) for threads in (1, 2)]
    cleaned_count = older_lost = aged = 0
    for seed in seeds(50):
        case = random_case(seed, tmp_path / f"{seed}", features_of(seed))
        settings = {**case.inputs.settings, **(BY_SEGMENT if seed % 4 == 1 else {})}
        case = replace(case, inputs=replace(case.inputs, settings=settings))
        states = folds(case.partition, settings)
        before = case.copied(tmp_path / f"{seed}-before")
        expected = clean_naively(before, tmp_path / f"{seed}-naive")
        chunk_bytes = Random(seed).choice([64, 500, 1 << 20])
        cleaned = clean_case(engines[seed % 2], case, chunk_bytes=chunk_bytes)
        made = tmp_path / f"{seed}-naive" / case.partition.name
        assert compare_partitions(made, case.partition, before.partition) == [], case.name
        assert index_problems(case.partition) == [], case.name
        assert expected.cleaned == (cleaned is not None), case.name
        assert folds(case.partition, settings) == states, case.name
        if cleaned is None:
            continue
        cleaned_count += 1
        end = cleaned.end_offset
        assert end == expected.end_offset == cleaned.job.first_uncleanable, case.name
        assert cleaned.keys == expected.map_entries, case.name
        assert cleaned.next_expiry_ms == expected.next_expiry_ms, case.name
        aged += cleaned.job.spec.by_segment and cleaned.volume.drops.tombstone_expired
        old = fold(before.partition, settings, end)
        assert fold(case.partition, settings, end) == old, case.name
        older_lost += old != fold(before.partition, {}, end)
    assert cleaned_count > len(seeds(50)) // 2
    assert older_lost > cleaned_count // 3, "the order by offset would have done the same"
    assert aged > 0 or not JIT, "no tombstone went by its segment's time"
    count_cases("random logs by timestamp or header, naive = local engine", cleaned_count)


@pytest.mark.requirement("CMP-17", "CMP-18")
def test_over_many_rounds_no_late_event_wins_against_a_newer_record(
    tmp_path: Path, count_cases: Count
) -> None:
    """Each round sees one segment more, as if it had been appended since, and a later hour. What
    lies beyond is there for readers all the same, and no round brings an older value of it up."""
    engine = LocalEngine(FS, threads=2)
    rounds = late_dropped = hidden = held = 0
    for seed in seeds(20):
        features = replace(features_of(seed), checkpoints=False, min_lag=False)
        case = random_case(seed, tmp_path / f"{seed}", features)
        settings = {**case.inputs.settings, "delete.retention.ms": f"{3 * HOUR_MS}"}
        bases = [segment.base for segment in files.read_segments(case.partition)]
        for number, upper in enumerate(bases[1:]):
            now_ms = NOW_MS + number * HOUR_MS
            case = replace(case, inputs=replace(case.inputs, settings=settings, now_ms=now_ms))
            state = state_of(case)
            upper = min(upper, state.last_stable_offset)
            state = replace(state, last_stable_offset=upper)
            cleanable = range_of(state, min_compaction_lag_ms=0, now_ms=now_ms)
            job = plan_clean(state, cleanable, spec_of(case.inputs, chunk_bytes=700))
            if job is None:
                continue
            end = job.first_uncleanable
            before, earlier = fold(case.partition, settings, end), surviving(case.partition)
            whole = folds(case.partition, settings)
            gone_before = set(surviving(case.partition))
            records = newest_by_key(case, end)
            (cleaned,) = run(engine, [job])
            place(case, cleaned)
            rounds += 1
            assert fold(case.partition, settings, end) == before, (case.name, number)
            assert folds(case.partition, settings) == whole, (case.name, number)
            held += len(overdue(case, end))
            left = surviving(case.partition)
            dropped = gone_before - set(left)
            late_dropped += sum(
                cleanable.first_dirty <= offset and newest < cleanable.first_dirty
                for offset, newest in ((o, records.get(earlier[o][0], -1)) for o in dropped)
            )
            # What stays of a key is its newest record alone, but for the log below its start.
            for offset, (key, value) in left.items():
                if key is not None and job.first_dirty <= offset < end:
                    assert records.get(key, offset) == offset, (case.name, number, offset)
                    hidden += value is None and cleanable.first_dirty > offset
    assert late_dropped > rounds // 10
    assert hidden > 0, "no tombstone was remembered"
    assert held > 0, "no tombstone was held for a record past the round's end"
    count_cases("rounds by timestamp or header with late events", rounds)
    count_cases("expired tombstones held in them for what lay past the round's end", held)
    count_cases("late events that lost to a record cleaned before", late_dropped)


def overdue(case: Case, end: int) -> list[int]:
    """Offsets of tombstones below `end` whose time is over."""
    return [
        record.offset
        for segment in files.read_segments(case.partition)
        for batch in segment.batches
        if batch.horizon_ms is not None and batch.horizon_ms <= case.inputs.now_ms
        for record in ([] if batch.control else batch.records())
        if record.value is None and case.inputs.log_start_offset <= record.offset < end
    ]


def newest_by_key(case: Case, end: int) -> dict[bytes | None, int]:
    """Key -> offset of its highest version below `end`, of data that is not transactional."""
    found: dict[bytes | None, tuple[int, int]] = {}
    aborted = state_of(case).aborted
    for segment in files.read_segments(case.partition):
        for batch in segment.batches:
            is_aborted = batch.transactional and any(
                entry.producer_id == batch.producer_id
                and entry.first_offset <= batch.base_offset <= entry.last_offset
                for entry in aborted
            )
            for record in [] if batch.control or is_aborted else batch.records():
                if case.inputs.log_start_offset <= record.offset < end:
                    mine = version_of(record, case.inputs.settings), record.offset
                    found[record.key] = max(mine, found.get(record.key, mine))
    return {key: offset for key, (_, offset) in found.items()}


@pytest.mark.requirement("CMP-7", "CMP-17")
def test_secrets_threads_chunks_and_memory_leave_no_trace(tmp_path: Path) -> None:
    """With so little memory it takes several ranges of the hash, and there is no limit of keys."""
    many_keys = Features(batches=500, keys=3_000, versions=True)
    for seed in seeds(3):
        case = random_case(seed, tmp_path / f"{seed}", many_keys)
        made = []
        for number, (threads, changes) in enumerate(
            [
                (1, {"max_keys": None}),
                (2, {"max_keys": 3, "chunk_bytes": 1 << 10}),
                (2, {"max_keys": None, "memory_bytes": 24 << 10}),
            ]
        ):
            copy = case.copied(tmp_path / f"{seed}-{number}")
            _, job = range_and_job(copy, **changes)
            if job is not None:
                (cleaned,) = run(LocalEngine(FS, threads=threads), [job])
                place(copy, cleaned)
                made.append((segment_files(copy.partition), cleaned.volume, cleaned.keys))
        assert all(one == made[0] for one in made), seed


@pytest.mark.requirement("CMP-17")
def test_versions_that_rise_with_the_offset_give_the_bytes_of_the_order_by_offset(
    tmp_path: Path,
) -> None:
    """Where offset and time agree, so do the orders, in whatever state the log is."""
    compared = 0
    for seed in seeds(12):
        features = Features(legacy=False, append_time=False, odd_timestamps=False, log_start=False)
        case = random_case(seed, tmp_path / f"{seed}", features)
        copies = [case.copied(tmp_path / f"{seed}-{order.value}") for order in Order]
        for order, copy in zip(Order, copies, strict=True):
            # Without such a header every version is the lowest, and offsets decide the tie.
            move_checkpoint(copy, copy.inputs.log_start_offset)
            clean_case(LocalEngine(FS), copy, order=order, version_header="none", max_keys=None)
        made = [segment_files(copy.partition) for copy in copies]
        assert made[0] == made[1] == made[2], case.name
        compared += made[0] != segment_files(case.partition)
    assert compared > len(seeds(12)) // 2


# ---------------------------------------------------------------- rule by rule

Event = tuple[bytes, "bytes | None", Any]
"""Key, value, and a version: hours after yesterday, or the values of the header."""

BY_TIME = {"compaction.strategy": "timestamp"}
BY_HEADER = {"compaction.strategy": "header", "compaction.strategy.header": "v"}


def events(first_offset: int, *pairs: Event, **fields: Any) -> bytes:
    """A batch: a number is a time, anything else the values of headers `v` among others."""
    records = []
    for number, (key, value, version) in enumerate(pairs):
        time_ms, headers = NOW_MS - DAY_MS, []
        if isinstance(version, int):
            time_ms += version * HOUR_MS
        else:
            headers = [(b"v", content) for content in version] + [(b"vv", b"99"), (b"", b"98")]
        records.append(Record(first_offset + number, time_ms, key, value, tuple(headers)))
    last_offset = first_offset + len(pairs) - 1
    return build_v2(records, base_offset=first_offset, last_offset=last_offset, **fields)


def written(log_dir: Path, settings: dict[str, str], *segments: list[bytes]) -> Case:
    """A log of these segments, of ten offsets each, and an empty active one."""
    laid: dict[int, list[bytes]] = {10 * n: list(batches) for n, batches in enumerate(segments)}
    return write_case(log_dir, {**laid, 10 * len(segments): []}, settings)


def offsets_left(case: Case, **changes: Any) -> list[int]:
    assert clean_case(LocalEngine(FS, threads=1), case, **changes) is not None
    return sorted(surviving(case.partition))


@pytest.mark.requirement("CMP-17")
def test_the_highest_time_wins_and_ties_go_to_the_later_record(tmp_path: Path) -> None:
    batch = events(0, (b"a", b"1", 5), (b"a", b"2", 4), (b"b", b"1", 3), (b"b", b"2", 3))
    case = written(tmp_path / "log", BY_TIME, [batch])
    assert offsets_left(case) == [0, 3]


@pytest.mark.requirement("CMP-17")
def test_a_log_append_times_batch_has_one_version(tmp_path: Path) -> None:
    late = events(0, (b"a", b"1", 9), (b"a", b"2", 8), append_time_ms=NOW_MS - DAY_MS + 6 * HOUR_MS)
    case = written(tmp_path / "log", BY_TIME, [late, events(2, (b"a", b"3", 7), (b"b", b"1", 0))])
    assert offsets_left(case) == [2, 3]


@pytest.mark.requirement("CMP-17")
@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ([b"9"], [b"10"]),
        ([b"-10"], [b"-9"]),
        ([b"10"], [b"\0\0\0\0\0\0\0\x0b"]),
        ([b"\xff" * 8], [b"0"]),
        ([b"\xff\xfe"], [b"\xff"]),
        ([b"20251231"], [b"20260101"]),
        ([b"12345678"], [(12345679).to_bytes(8, "big")]),
        ([b"\0\0\0\x01"], [b"\0\x02"]),
        ([], [b"-9223372036854775807"]),
        ([None], [b"0"]),
        ([b""], [b"0"]),
        ([b"seven, in words"], [b"-5"]),
        ([b"9223372036854775808"], [b"-9223372036854775807"]),
        ([b"-9223372036854775809"], [b"-9223372036854775807"]),
        ([b"9223372036854775806"], [b"9223372036854775807"]),
        ([b"50", b"3"], [b"4"]),
        ([b"50", None], [b"4"]),
        ([b"50", b"five thousand"], [b"4"]),
    ],
    ids=str,
)
def test_the_last_header_of_the_name_is_the_version(
    tmp_path: Path, older: list[bytes | None], newer: list[bytes | None]
) -> None:
    for number, (first, second, left) in enumerate([(newer, older, [0]), (older, newer, [1])]):
        batch = events(0, (b"a", b"1", first), (b"a", b"2", second), codec=number)
        case = written(tmp_path / f"{number}", BY_HEADER, [batch])
        assert offsets_left(case) == left


@pytest.mark.requirement("CMP-17")
@pytest.mark.parametrize(
    "nothing",
    [[], [None], [b""], [b"not a number at all"], [b"-9223372036854775808"], [b"1" * 30]],
    ids=str,
)
def test_without_an_integer_a_record_has_the_lowest_version(
    tmp_path: Path, nothing: list[bytes | None]
) -> None:
    batch = events(0, (b"a", b"1", []), (b"a", b"2", nothing), (b"b", b"", [b"1"]))
    assert offsets_left(written(tmp_path / "log", BY_HEADER, [batch])) == [1, 2]


@pytest.mark.requirement("CMP-17", "LOG-4")
def test_old_formats_have_times_from_1_on_and_no_headers(tmp_path: Path) -> None:
    time_ms = NOW_MS - DAY_MS
    old = build_legacy([Record(0, -1, b"a", b"0")], magic=0)
    old += build_legacy([Record(1, time_ms + HOUR_MS, b"a", b"1")], magic=1)
    wrapped = [Record(2, time_ms, b"a", b"2"), Record(3, time_ms + 2, b"b", b"3")]
    old += build_legacy(wrapped, magic=1, codec=1)
    old += events(4, (b"b", b"4", 0))
    assert offsets_left(written(tmp_path / "time", BY_TIME, [old])) == [1, 3]
    assert offsets_left(written(tmp_path / "header", BY_HEADER, [old])) == [2, 4]


@pytest.mark.requirement("CMP-17", "CMP-18")
@pytest.mark.parametrize("value", [b"value", None], ids=["value", "tombstone"])
def test_a_late_event_loses_to_a_record_that_was_cleaned_before(
    tmp_path: Path, value: bytes | None
) -> None:
    first = [events(0, (b"a", b"1", 3), (b"a", value, 9), (b"b", b"1", 1))]
    late = [events(10, (b"a", b"late", 8), (b"b", b"2", 2))]
    case = written(tmp_path / "log", BY_TIME, first, late)
    move_checkpoint(case, 10)
    assert offsets_left(case) == [1, 11]
    assert (b"a" in fold(case.partition, BY_TIME)) == (value is not None)


@pytest.mark.requirement("CMP-8", "CMP-9", "CMP-17")
def test_a_tombstone_stays_while_something_later_has_only_it_to_lose_to(tmp_path: Path) -> None:
    first = [events(0, (b"a", b"1", 3), (b"a", None, 9), (b"b", b"1", 1))]
    late = [events(10, (b"a", b"late", 8)), events(11, (b"a", b"later", 7))]
    case = written(tmp_path / "log", BY_TIME, first, late, [events(20, (b"a", b"latest", 6))])

    def left_after_round(end: int, hours: int, checkpoint: int) -> tuple[list[int], int | None]:
        """A round of `hours` after the first one, when the log below `end` was all there was."""
        now_ms = NOW_MS + hours * HOUR_MS
        state = replace(state_of(case), last_stable_offset=end, checkpoint=checkpoint)
        cleanable = range_of(state, min_compaction_lag_ms=0, now_ms=now_ms)
        job = plan_clean(state, cleanable, spec_of(case.inputs, now_ms=now_ms))
        assert job is not None
        (cleaned,) = run(LocalEngine(FS, threads=1), [job])
        place(case, cleaned)
        assert fold(case.partition, BY_TIME) == {b"b": b"1"}
        left = sorted(offset for offset in surviving(case.partition) if offset < end)
        return left, cleaned.next_expiry_ms

    deadline_ms = NOW_MS + DAY_MS
    assert left_after_round(10, 0, checkpoint=0) == ([1, 2], deadline_ms)
    both_lost = left_after_round(20, 23, checkpoint=10)
    assert both_lost == ([1, 2], deadline_ms), "both late events lost to it"
    held = left_after_round(20, 25, checkpoint=10)
    assert held == ([1, 2], None), "its day was over, but the latest had nothing else to lose to"
    assert left_after_round(30, 26, checkpoint=20) == ([2], None), "they went together"


@pytest.mark.requirement("CMP-14", "CMP-17")
def test_aborted_data_of_the_highest_version_hides_nothing(tmp_path: Path) -> None:
    aborted = events(1, (b"a", b"never", 20), producer_id=7, producer_epoch=0, transactional=True)
    marker = build_marker(ABORT, offset=2, timestamp=NOW_MS, producer_id=7, producer_epoch=0)
    last = events(3, (b"a", b"2", 2), (b"b", b"1", 1))
    case = written(tmp_path / "log", BY_TIME, [events(0, (b"a", b"1", 3)), aborted, marker, last])
    first = files.read_segments(case.partition)[0]
    entry = files.Aborted(7, 1, 2, 1)
    files.write_segment(
        case.partition, 0, first.data, [entry], interval_bytes=4096, mtime_ms=NOW_MS - 1
    )
    assert offsets_left(case) == [0, 4]


@pytest.mark.requirement("CMP-13", "CMP-17")
def test_the_batch_of_an_active_producer_stays_though_its_records_are_old(tmp_path: Path) -> None:
    late = events(1, (b"a", b"late", 1), producer_id=7, producer_epoch=0, base_sequence=0)
    case = written(tmp_path / "log", BY_TIME, [events(0, (b"a", b"1", 3)), late])
    state = state_of(case)
    assert [producer.last_data_offset for producer in state.producers] == [1]
    assert offsets_left(case) == [0]
    batches = files.read_segments(case.partition)[0].batches
    assert [(batch.base_offset, batch.count, batch.producer_id) for batch in batches] == [
        (0, 1, -1),
        (1, 0, 7),
    ]


@pytest.mark.requirement("CMP-17", "CMP-18", "RET-6")
def test_what_lies_below_the_log_start_hides_nothing(tmp_path: Path) -> None:
    """Nobody can read it any more, so its versions are as good as gone."""
    batch = events(0, (b"a", b"1", 9), (b"b", b"1", 1), (b"a", b"2", 3), (b"b", b"2", 2))
    case = written(tmp_path / "log", BY_TIME, [batch])
    path = case.partition.parent / "log-start-offset-checkpoint"
    path.write_text(files.encode_checkpoint({case.partition.name: 2}))
    ends = {"last_stable_offset": 10, "log_end_offset": 10}
    case = replace(case, inputs=replace(case.inputs, log_start_offset=2, **ends))
    state = fold(case.partition, BY_TIME)
    assert state == {b"a": b"2", b"b": b"2"}
    copy = case.copied(tmp_path / "copy")
    naive = clean_naively(copy, tmp_path / "naive")
    assert offsets_left(case) == [0, 2, 3]
    assert fold(case.partition, BY_TIME) == state
    assert dict(naive.drops) == {"superseded": 1}


@pytest.mark.requirement("CMP-5", "CMP-17")
def test_a_limit_of_keys_holds_by_offset_only() -> None:
    spec = CleanSpec(NOW_MS, max_keys=5)
    assert key_limit(spec) == 5
    assert key_limit(replace(spec, order=Order.TIMESTAMP)) is None
    assert key_limit(replace(spec, order=Order.HEADER, version_header="v")) is None
