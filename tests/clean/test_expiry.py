"""When what stays of a log may go by the passing of time, and what each source gave to a group."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.clean.expiry import WINDOW_BYTES, next_expiry_of
from stratalog.clean.job import CleanedPartition, SourceSegment, Volume
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    NOW_MS,
    Case,
    batch_of,
    clean_case,
    move_checkpoint,
    place,
    range_and_job,
    run,
    state_of,
    write_case,
)
from tests.naive import cleaner as naive_cleaner
from tests.naive import files
from tests.naive.logs import Features, write_random_log
from tests.naive.records import build_marker, parse_log
from tests.oracle import golden_rounds

SWEEP = int(os.environ.get("STRATALOG_SWEEP", "1"))
HOUR_MS = 3_600_000
ANY_KEYS = 1 << 40

Count = Callable[[str, int], None]


def engine() -> LocalEngine:
    return LocalEngine(FS, threads=1)


def at(case: Case, now_ms: int) -> Case:
    return replace(case, inputs=replace(case.inputs, now_ms=now_ms))


def random_case(seed: int, directory: Path, features: Features, **settings: str) -> Case:
    directory.mkdir()
    log = write_random_log(seed, directory, features)
    inputs = replace(log.inputs, settings={**log.inputs.settings, **settings})
    return Case(f"seed {seed}", log.partition, inputs)


def seeds(count: int) -> range:
    return range(max(2, count * SWEEP // (1 if JIT else 8)))


# ---------------------------------------------------------------- next_expiry_ms


def round_at(case: Case, now_ms: int) -> CleanedPartition | None:
    """A round over the same range at another time, in place."""
    cleanable, job = range_and_job(at(case, now_ms), max_keys=None)
    if job is None:
        return None
    (cleaned,) = run(engine(), [job])
    place(case, cleaned)
    move_checkpoint(case, cleanable.first_dirty)
    return cleaned


def clean_prefixes(case: Case, random: Random) -> None:
    """Rounds at earlier times over parts of the log: so its batches get different horizons."""
    for minutes_ago in sorted(random.sample(range(1, 120), 3), reverse=True):
        cleanable, job = range_and_job(at(case, NOW_MS - minutes_ago * 60_000), max_keys=None)
        if job is None:
            return
        ends = [s.base_offset for s in job.segments if s.base_offset > job.first_dirty]
        end = random.choice([*ends, job.first_uncleanable])
        below = tuple(segment for segment in job.segments if segment.base_offset < end)
        (cleaned,) = run(engine(), [replace(job, segments=below, first_uncleanable=end)])
        place(case, cleaned)
        move_checkpoint(case, cleanable.first_dirty)


def timed_drops(cleaned: CleanedPartition | None) -> int:
    assert cleaned is not None
    drops = cleaned.volume.drops
    return drops.tombstone_expired + drops.control_expired


@pytest.mark.requirement("CMP-9", "CMP-13", "CMP-14")
def test_nothing_goes_before_the_expiry_and_something_at_it(
    tmp_path: Path, count_cases: Count
) -> None:
    """And rounds at the respective next expiry come to an end: the service does not run in circles.

    Without old formats, whose tombstones do not go by time.
    """
    expiries = logs = copies = 0
    for seed in seeds(50):
        random = Random(seed)
        retention_ms = random.choice([0, 2 * HOUR_MS, 3 * HOUR_MS, 24 * HOUR_MS])
        features = Features(
            legacy=False,
            min_lag=False,
            batches=random.choice([15, 40, 80]),
            horizons=seed % 2 == 0,
        )
        settings = {"delete.retention.ms": str(retention_ms), "min.compaction.lag.ms": "0"}
        case = random_case(seed, tmp_path / f"{seed}", features, **settings)
        now_ms = case.inputs.now_ms
        clean_prefixes(case, random)
        if features.horizons:
            # Random logs give any marker a horizon, a cleaner only those whose data is gone.
            round_at(case, now_ms)
        cleaned = round_at(case, now_ms)
        logs += cleaned is not None and cleaned.next_expiry_ms is not None
        while cleaned is not None and (expiry_ms := cleaned.next_expiry_ms) is not None:
            expiries += 1
            assert expiries < 1000 * SWEEP, case.name
            if expiry_ms - now_ms > 1:
                copies += 1
                between_ms = random.choice([expiry_ms - 1, random.randrange(now_ms, expiry_ms)])
                copy = case.copied(tmp_path / f"{seed}-{expiries}")
                between = round_at(copy, between_ms)
                assert timed_drops(between) == 0, (case.name, between_ms)
                assert between is not None
                assert between.next_expiry_ms is not None
                assert between.next_expiry_ms <= expiry_ms
            now_ms = expiry_ms
            cleaned = round_at(case, now_ms)
            assert timed_drops(cleaned) > 0, (case.name, expiry_ms)
    assert not JIT or (logs > 10 and copies > 10)
    count_cases("rounds at a next expiry", expiries)


@pytest.mark.requirement("CMP-9", "CLN-10")
def test_the_naive_twin_names_the_same_expiry(tmp_path: Path, count_cases: Count) -> None:
    """With and without a limit of keys, old formats too, twice over the same range: the second
    round leaves much as it is. What a group's sources gave adds up."""
    found = unchanged = 0
    for seed in seeds(30):
        case = random_case(seed, tmp_path / f"{seed}", Features(legacy=seed % 5 == 0))
        limited = seed % 2 == 0
        buffer_bytes = case.inputs.dedupe_buffer_bytes if limited else ANY_KEYS
        for _ in range(2):
            before = {s.base: len(s.data) for s in files.read_segments(case.partition)}
            inputs = replace(case.inputs, dedupe_buffer_bytes=buffer_bytes)
            expected = naive_cleaner.clean(case.partition, inputs)
            wanted = {} if limited else {"max_keys": None}
            chunk_bytes = [64, 1 << 20][seed // 2 % 2]
            threads = LocalEngine(FS, threads=1 + seed // 4 % 2)
            cleaned = clean_case(threads, case, chunk_bytes=chunk_bytes, **wanted)
            if cleaned is None:
                continue
            move_checkpoint(case, cleaned.job.first_dirty)
            assert cleaned.next_expiry_ms == expected.next_expiry_ms, case.name
            found += cleaned.next_expiry_ms is not None
            unchanged += any(g.unchanged and g.next_expiry_ms is not None for g in cleaned.groups)
            _check_volumes(case, cleaned, before)
            # What the headers say is never later.
            by_headers = next_expiry_of(FS, str(case.partition), state_of(case).segments)
            if cleaned.next_expiry_ms is not None:
                assert by_headers is not None
                assert by_headers <= cleaned.next_expiry_ms
    assert not JIT or (found > 20 and unchanged > 5)
    count_cases("random logs, next expiry as the naive twin says", found)


def _check_volumes(case: Case, cleaned: CleanedPartition, before: dict[int, int]) -> None:
    for group in cleaned.groups:
        assert len(group.by_source) == len(group.sources)
        assert sum(group.by_source, Volume()) == group.volume
        assert [v.bytes_before for v in group.by_source] == [before[b] for b in group.sources]
        output = case.partition / files.name(group.sources[0], ".log")
        assert group.volume.bytes_after == output.stat().st_size


@pytest.mark.requirement("CMP-9")
def test_the_earliest_deadline_of_batches_that_stay_as_they_are(tmp_path: Path) -> None:
    """Copied batches of a group that is not even written; a value alone has no deadline."""
    early, late = (
        batch_of(offset, (key, None), horizon_ms=NOW_MS + hours * HOUR_MS)
        for offset, key, hours in [(1, b"a", 2), (2, b"b", 1)]
    )
    value = batch_of(0, (b"c", b"1"), horizon_ms=NOW_MS + 1)
    case = write_case(tmp_path / "log", {0: [value, early, late], 3: []})
    cleaned = clean_case(engine(), case)
    assert cleaned is not None
    (group,) = cleaned.groups
    assert group.unchanged
    assert cleaned.next_expiry_ms == group.next_expiry_ms == NOW_MS + HOUR_MS
    assert next_expiry_of(FS, str(case.partition), state_of(case).segments) == NOW_MS + 1


@pytest.mark.requirement("CMP-9", "CMP-13")
def test_an_emptied_marker_of_an_active_producer_has_no_deadline_left(tmp_path: Path) -> None:
    marker = build_marker(1, offset=0, timestamp=NOW_MS, producer_id=7, producer_epoch=0)
    settings = {"delete.retention.ms": str(HOUR_MS)}
    segments = {0: [marker, batch_of(1, (b"a", b"1"))], 2: []}
    case = write_case(tmp_path / "log", segments, settings)
    first = round_at(case, NOW_MS)
    assert first is not None
    assert first.next_expiry_ms == NOW_MS + HOUR_MS
    second = round_at(case, NOW_MS + HOUR_MS)
    assert timed_drops(second) == 1
    (emptied, _) = files.read_segments(case.partition)[0].batches
    assert (emptied.base_offset, emptied.count) == (0, 0)
    assert second is not None
    assert second.next_expiry_ms is None


@pytest.mark.requirement("CMP-9")
@pytest.mark.parametrize("retain_keyless", [False, True])
def test_a_record_without_key_and_value_is_no_tombstone(
    retain_keyless: bool, tmp_path: Path
) -> None:
    batches = [batch_of(0, (None, None), (b"a", b"1")), batch_of(2, (b"b", b"2"))]
    case = write_case(tmp_path / "log", {0: batches, 3: []})
    cleaned = clean_case(engine(), case, retain_keyless=retain_keyless)
    assert cleaned is not None
    assert cleaned.volume.drops.no_key == (not retain_keyless)
    assert cleaned.next_expiry_ms is None


@pytest.mark.requirement("CMP-9")
def test_a_tombstone_past_the_end_of_the_round_is_the_next_round_s_business(
    tmp_path: Path,
) -> None:
    """The map holds one key: the round ends inside the batch."""
    batches = [batch_of(0, (b"a", b"1"), (b"b", None))]
    case = write_case(tmp_path / "log", {0: batches, 2: []})
    cleaned = clean_case(engine(), case, max_keys=1)
    assert cleaned is not None
    assert cleaned.end_offset == 1
    assert parse_log(files.read_segments(case.partition)[0].data)[0].horizon_ms is not None
    assert cleaned.next_expiry_ms is None


@pytest.mark.requirement("CMP-8", "CMP-9")
def test_a_deadline_past_all_time_is_none(tmp_path: Path) -> None:
    settings = {"delete.retention.ms": str((1 << 63) - 1)}
    case = write_case(tmp_path / "log", {0: [batch_of(0, (b"a", None))], 1: []}, settings)
    cleaned = clean_case(engine(), case)
    assert cleaned is not None
    assert cleaned.next_expiry_ms is None


# ---------------------------------------------------------------- by_source


@pytest.mark.requirement("CLN-10")
@pytest.mark.parametrize("writes", [False, True], ids=["dry", "written"])
def test_each_source_says_what_it_lost(writes: bool, tmp_path: Path) -> None:
    segments = {
        0: [batch_of(0, (b"a", b"1"), (b"b", b"1"))],
        2: [batch_of(2, (b"a", b"2")), batch_of(3, (None, b"x"))],
        4: [batch_of(4, (b"b", b"2"))],
        5: [],
    }
    case = write_case(tmp_path / "log", segments)
    _, job = range_and_job(case)
    assert job is not None
    (cleaned,) = run(engine(), [job], writes=writes)
    (group,) = cleaned.groups
    assert group.sources == (0, 2, 4)
    first, second, third = group.by_source
    assert (first.records_before, first.records_after, first.drops.superseded) == (2, 0, 2)
    assert (first.bytes_before, first.bytes_after) == (len(segments[0][0]), 0)
    assert (second.records_before, second.records_after, second.drops.no_key) == (2, 1, 1)
    assert second.bytes_after == len(segments[2][0])
    assert (third.records_before, third.records_after, third.drops.total) == (1, 1, 0)
    assert third.bytes_before == third.bytes_after == len(segments[4][0])
    assert first + second + third == group.volume


# ---------------------------------------------------------------- next_expiry_of


@pytest.mark.requirement("CMP-9")
def test_headers_alone_tell_the_earliest_horizon_of_what_kafka_left(count_cases: Count) -> None:
    known = 0
    for kafka in golden_rounds():
        case = Case(kafka.name, kafka.after, kafka.inputs, kafka.producer_expiration_ms)
        segments = state_of(case).segments
        deadlines = [
            batch.horizon_ms
            for segment in files.read_segments(kafka.after)
            for batch in segment.batches
            if batch.horizon_ms is not None
        ]
        assert next_expiry_of(FS, str(kafka.after), segments) == min(deadlines, default=None)
        known += bool(deadlines)
    assert known > 5
    count_cases("directories of Kafka's with a horizon", known)


@pytest.mark.requirement("CMP-9")
def test_headers_at_every_place_of_the_window_are_read(tmp_path: Path) -> None:
    """A batch that ends anywhere near the window's end, so that the next header lies across it;
    then one larger than the window."""
    path = tmp_path / files.name(0, ".log")
    for over in range(-70, 5):
        first = batch_with(0, WINDOW_BYTES + over)
        rest = [batch_with(1, 100, horizon_ms=90 + over), batch_with(2, 100)]
        large = batch_with(3, 2 * WINDOW_BYTES + over)
        last = batch_with(4, 100, horizon_ms=[80, 100][over % 2])
        data = b"".join([first, *rest, large, last])
        path.write_bytes(data)
        segment = SourceSegment(0, 5, len(data), 0, 0, NOW_MS)
        expected = min(90 + over, [80, 100][over % 2])
        assert next_expiry_of(FS, str(tmp_path), [segment]) == expected


def batch_with(offset: int, size_bytes: int, horizon_ms: int | None = None) -> bytes:
    """A batch of that size in bytes."""
    for value_bytes in range(max(0, size_bytes - 90), size_bytes):
        records = [NewRecord(b"k", bytes(value_bytes), 0)]
        batch = build_batch(records, base_offset=offset, delete_horizon_ms=horizon_ms)
        if len(batch) >= size_bytes:
            return batch
    raise AssertionError(size_bytes)


@pytest.mark.requirement("CMP-9", "LOG-13")
def test_hostile_headers_are_damage_and_nothing_else(tmp_path: Path, count_cases: Count) -> None:
    """Cut anywhere, any byte of it changed, or no log at all."""
    batches = [batch_of(n, (b"k", b"v"), horizon_ms=NOW_MS + n) for n in range(3)]
    case = write_case(tmp_path / "log", {0: batches, 3: []})
    segments = state_of(case).segments[:1]
    path = case.partition / files.name(0, ".log")
    good = path.read_bytes()

    def answer(data: bytes) -> int | str | None:
        path.write_bytes(data)
        sized = [replace(segments[0], size_bytes=len(data))]
        try:
            return next_expiry_of(FS, str(case.partition), sized)
        except CorruptionError as error:
            assert error.file == str(path)
            assert 0 <= (error.position or 0) <= len(data)
            return "damage"

    assert answer(good) == NOW_MS
    bounds = {0, *(len(b"".join(batches[:n])) for n in (1, 2, 3))}
    for cut in range(len(good)):
        assert (answer(good[:cut]) == "damage") == (cut not in bounds), cut
    random = Random(5)
    damaged = 0
    for place_ in range(len(good)):
        changed = bytearray(good)
        changed[place_] ^= random.randint(1, 255)
        damaged += answer(bytes(changed)) == "damage"
    for _ in range(300):
        damaged += answer(random.randbytes(random.randint(1, 300))) == "damage"
    assert damaged > 300
    # The file is shorter than its segment is said to be.
    path.write_bytes(good[: len(batches[0])])
    with pytest.raises(CorruptionError, match="ends"):
        next_expiry_of(FS, str(case.partition), segments)
    count_cases("hostile headers", len(good) * 2 + 300)
