"""Rules of cleaning, one little log each: tombstones, keys that are not there, last batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratalog.clean.job import CleanedPartition
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    NOW_MS,
    Case,
    batch_of,
    case_of,
    clean_case,
    clean_naively,
    move_checkpoint,
    place,
    range_and_job,
    run,
    surviving,
    write_case,
)
from tests.naive import files
from tests.naive.files import Aborted
from tests.naive.logs import Features, write_random_log
from tests.naive.records import Batch, build_marker, build_v2, parse_log
from tests.oracle import compare_partitions, golden_rounds

HOUR_MS = 3_600_000


def engine() -> LocalEngine:
    return LocalEngine(FS, threads=1)


def at(case: Case, now_ms: int) -> Case:
    return replace(case, inputs=replace(case.inputs, now_ms=now_ms))


def again(case: Case, now_ms: int) -> None:
    """Clean the same range at another time."""
    move_checkpoint(case, 0)
    assert clean_case(engine(), at(case, now_ms)) is not None


def batches_of(case: Case) -> list[Batch]:
    return [b for segment in files.read_segments(case.partition) for b in segment.batches]


@pytest.mark.requirement("CMP-8")
def test_a_tombstone_goes_when_the_horizon_in_its_batch_has_come(tmp_path: Path) -> None:
    records = [(b"a", b"1"), (b"a", None), (b"b", b"2")]
    settings = {"delete.retention.ms": str(HOUR_MS)}
    case = write_case(tmp_path / "log", {0: [batch_of(0, *records)], 3: []}, settings)
    timestamps = [record.timestamp for record in batches_of(case)[0].records()]

    clean_case(engine(), case)
    assert surviving(case.partition) == {1: (b"a", None), 2: (b"b", b"2")}
    (batch,) = batches_of(case)
    assert batch.horizon_ms == NOW_MS + HOUR_MS
    assert [record.timestamp for record in batch.records()] == timestamps[1:]

    again(case, NOW_MS + HOUR_MS - 1)
    assert surviving(case.partition) == {1: (b"a", None), 2: (b"b", b"2")}
    assert batches_of(case) == [batch]  # the horizon that was set once stays

    again(case, NOW_MS + HOUR_MS)
    assert surviving(case.partition) == {2: (b"b", b"2")}


@pytest.mark.requirement("CMP-8")
def test_a_retention_past_all_time_sets_no_horizon(tmp_path: Path) -> None:
    settings = {"delete.retention.ms": str((1 << 63) - 1)}
    case = write_case(tmp_path / "log", {0: [batch_of(0, (b"a", None))], 1: []}, settings)
    before = batches_of(case)
    clean_case(engine(), case)
    again(case, NOW_MS + 1_000_000 * HOUR_MS)
    assert batches_of(case) == before


@pytest.mark.requirement("CMP-8")
def test_a_later_value_removes_a_tombstone_at_once(tmp_path: Path) -> None:
    batches = [batch_of(0, (b"a", None)), batch_of(1, (b"a", b"2"))]
    case = write_case(tmp_path / "log", {0: batches, 2: []})
    clean_case(engine(), case)
    assert surviving(case.partition) == {1: (b"a", b"2")}


@pytest.mark.requirement("CMP-10")
def test_records_without_a_key_go_and_are_counted_or_stay_if_asked(tmp_path: Path) -> None:
    (kafka,) = [kafka for kafka in golden_rounds() if kafka.name.startswith("null-keys")]
    before = surviving(kafka.before)
    without_key = {offset for offset, (key, _) in before.items() if key is None}
    dropped = case_of(kafka, tmp_path / "dropped")
    cleaned = clean_case(engine(), dropped)
    assert cleaned is not None
    assert cleaned.volume.drops.no_key == len(without_key) == 30

    kept = case_of(kafka, tmp_path / "kept")
    cleaned = clean_case(engine(), kept, retain_keyless=True)
    assert cleaned is not None
    assert cleaned.volume.drops.no_key == 0
    left = surviving(kept.partition)
    assert without_key <= left.keys()
    assert {offset: left[offset] for offset in left.keys() - without_key} == surviving(
        dropped.partition
    )


@pytest.mark.requirement("CMP-13")
def test_the_last_batch_of_the_range_stays_without_its_records(tmp_path: Path) -> None:
    """Also when it ends the range of a segment that is not the last of its log."""
    batches = [batch_of(0, (b"a", b"1")), batch_of(1, (None, b"no key"))]
    case = write_case(tmp_path / "log", {0: batches, 2: []})
    clean_case(engine(), case)
    first, last = batches_of(case)
    assert (first.base_offset, first.count) == (0, 1)
    assert (last.base_offset, last.last_offset, last.count) == (1, 1, 0)
    assert last.crc_ok()


@pytest.mark.requirement("CMP-1", "CMP-2")
def test_the_active_segment_takes_no_part(tmp_path: Path) -> None:
    active = batch_of(1, (b"a", b"new"))
    case = write_case(tmp_path / "log", {0: [batch_of(0, (b"a", b"old"))], 1: [active]})
    cleaned = clean_case(engine(), case)
    assert cleaned is not None
    assert cleaned.keys == 1
    assert surviving(case.partition) == {0: (b"a", b"old"), 1: (b"a", b"new")}


@pytest.mark.requirement("CMP-15")
def test_a_batch_that_loses_nothing_is_copied_with_its_neighbours_rewritten(tmp_path: Path) -> None:
    for codec in range(5):
        batches = [
            batch_of(0, (b"a", b"1"), (b"b", b"2"), codec=codec),
            batch_of(2, (b"c", b"3"), (b"d", b"4"), codec=codec),
            batch_of(4, (b"b", b"5"), (b"e", b"6"), codec=codec),
        ]
        case = write_case(tmp_path / f"{codec}", {0: batches, 6: []})
        clean_case(engine(), case)
        made = batches_of(case)
        assert [batch.raw for batch in made[1:]] == batches[1:]
        rewritten, original = made[0], parse_log(batches[0])[0]
        assert rewritten.crc_ok()
        assert [record.key for record in rewritten.records()] == [b"a"]
        for name in ("base_offset", "last_offset", "leader_epoch", "attributes", "base_timestamp"):
            assert getattr(rewritten, name) == getattr(original, name)


@pytest.mark.requirement("CMP-11", "CMP-19")
def test_a_segment_that_loses_nothing_is_left_alone(tmp_path: Path) -> None:
    case = write_case(tmp_path / "log", {0: [batch_of(0, (b"a", b"1"))], 1: []})

    def files_there() -> dict[str, tuple[int, int]]:
        stats = {path.name: path.stat() for path in case.partition.iterdir()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}

    before = files_there()
    cleaned = clean_case(engine(), case)
    assert cleaned is not None
    (group,) = cleaned.groups
    assert group.unchanged
    assert group.parts == ()
    assert files_there() == before


@pytest.mark.requirement("CMP-14")
def test_an_aborted_range_without_data_leaves_the_index_of_an_untouched_segment(
    tmp_path: Path,
) -> None:
    """The marker stays until its horizon has come; no batch of its segment changes."""
    aborted = Aborted(7, 0, 5, 6)
    plain = build_marker(0, offset=5, timestamp=1, producer_id=7, producer_epoch=0)
    marker = build_v2(
        parse_log(plain)[0].records(),
        base_offset=5,
        last_offset=5,
        horizon_ms=NOW_MS + HOUR_MS,
        producer_id=7,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    batches = [marker, batch_of(6, (b"a", b"1"))]
    case = write_case(tmp_path / "log", {5: batches, 7: []})
    path = case.partition / files.name(5, ".txnindex")
    path.write_bytes(files.encode_txn_index([aborted]))
    clean_case(engine(), case)
    assert [batch.raw for batch in batches_of(case)] == batches
    assert not path.exists()


@pytest.mark.requirement("CMP-5")
def test_a_full_map_ends_the_round_after_what_needs_no_place_in_it(tmp_path: Path) -> None:
    """Batches without keys to map, before the first that finds the map full, are behind it."""
    keyless = [batch_of(2, (None, b"x")), batch_of(3, (None, b"y"))]
    batches = [batch_of(0, (b"a", b"1"), (b"b", b"2")), *keyless, batch_of(4, (b"c", b"3"))]
    case = write_case(tmp_path / "log", {0: batches, 5: []})
    cleaned = clean_case(engine(), case, max_keys=2)
    assert cleaned is not None
    assert (cleaned.keys, cleaned.end_offset) == (2, 4)
    # Inside a batch the round ends with the last record that was mapped.
    together = [batch_of(0, (b"a", b"1"), (b"b", b"2"), (None, b"x"), (b"c", b"3"))]
    case = write_case(tmp_path / "together", {0: together, 4: []})
    cleaned = clean_case(engine(), case, max_keys=2)
    assert cleaned is not None
    assert cleaned.end_offset == 2
    # And if nothing more is to be mapped, the map has stopped nothing.
    case = write_case(tmp_path / "all", {0: batches[:-1], 4: []})
    cleaned = clean_case(engine(), case, max_keys=2)
    assert cleaned is not None
    assert cleaned.end_offset == 4


# ---------------------------------------------------------------- forgotten tombstones (CLN-11)


def forget(case: Case, *offsets: int) -> CleanedPartition:
    """A round in place in which these tombstones go at once."""
    _, job = range_and_job(case)
    assert job is not None
    (cleaned,) = run(engine(), [replace(job, forgotten=offsets)])
    place(case, cleaned)
    return cleaned


@pytest.mark.requirement("CLN-11", "CMP-8")
@pytest.mark.parametrize("first_dirty", [0, 4], ids=["in the dirty part", "in the clean part"])
@pytest.mark.parametrize("by_segment", [False, True])
def test_a_forgotten_tombstone_goes_at_once(
    first_dirty: int, by_segment: bool, tmp_path: Path
) -> None:
    """It alone: the other tombstone of its batch waits for its time, the value stays."""
    settings = {"tombstone.horizon": "segment"} if by_segment else {}
    tombstones = batch_of(0, (b"a", None), (b"b", None), (b"c", b"1"))
    segments = {0: [tombstones, batch_of(3, (b"d", b"1"))], 4: [batch_of(4, (b"e", b"1"))], 5: []}
    case = write_case(tmp_path / "log", segments, settings)
    move_checkpoint(case, first_dirty)
    cleaned = forget(case, 0)
    assert list(surviving(case.partition)) == [1, 2, 3, 4]
    assert cleaned.volume.drops.tombstone_expired == cleaned.volume.drops.total == 1
    (first, *rest) = batches_of(case)
    assert first.horizon_ms == (None if by_segment else NOW_MS + 24 * HOUR_MS)
    assert [batch.raw for batch in rest] == [*segments[0][1:], *segments[4]]
    assert cleaned.next_expiry_ms == first.horizon_ms


@pytest.mark.requirement("CLN-11")
def test_only_a_tombstone_that_is_its_key_s_last_is_forgotten(tmp_path: Path) -> None:
    """An offset of a value says nothing; one with a later record of its key goes for that."""
    batches = [batch_of(0, (b"a", b"1"), (b"b", None)), batch_of(2, (b"b", b"2"), (None, None))]
    case = write_case(tmp_path / "log", {0: batches, 4: []})
    cleaned = forget(case, 3, 2, 1, 0)
    assert surviving(case.partition) == {0: (b"a", b"1"), 2: (b"b", b"2")}
    drops = cleaned.volume.drops
    assert (drops.superseded, drops.no_key, drops.tombstone_expired) == (1, 1, 0)


@pytest.mark.requirement("CLN-11")
def test_a_tombstone_past_the_end_of_the_round_is_not_forgotten_yet(tmp_path: Path) -> None:
    case = write_case(tmp_path / "log", {0: [batch_of(0, (b"a", b"1"), (b"b", None))], 2: []})
    _, job = range_and_job(case, max_keys=1)
    assert job is not None
    (cleaned,) = run(engine(), [replace(job, forgotten=(1,))])
    assert cleaned.end_offset == 1
    assert cleaned.volume.drops.total == 0


@pytest.mark.requirement("CLN-11", "CMP-13")
def test_the_last_batch_of_the_range_outlives_its_forgotten_tombstone(tmp_path: Path) -> None:
    case = write_case(tmp_path / "log", {0: [batch_of(0, (b"a", b"1"), (b"a", None))], 2: []})
    cleaned = forget(case, 1)
    (batch,) = batches_of(case)
    assert (batch.base_offset, batch.last_offset, batch.count) == (0, 1, 0)
    assert batch.horizon_ms is None
    assert cleaned.next_expiry_ms is None


@pytest.mark.requirement("CLN-11", "CMP-13", "CMP-15", "LOG-4")
def test_random_logs_forget_as_the_naive_twin_does(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """Half of all tombstones, whatever else they are; the old formats in every third log."""
    forgotten_count = 0
    for seed in range(36 if JIT else 3):
        directory = tmp_path / f"{seed}"
        directory.mkdir()
        log = write_random_log(seed, directory, Features(legacy=seed % 3 == 0))
        chosen = [o for o, (_, value) in surviving(log.partition).items() if value is None]
        forgotten = frozenset(Random(seed).sample(chosen, (len(chosen) + 1) // 2))
        case = Case(f"seed {seed}", log.partition, replace(log.inputs, forgotten=forgotten))
        before = case.copied(tmp_path / f"{seed}-before")
        expected = clean_naively(before, tmp_path / f"{seed}-naive")
        usual = clean_naively(before, tmp_path / f"{seed}-usual", forgotten=frozenset())
        _, job = range_and_job(case, chunk_bytes=[500, 1 << 20][seed % 2])
        assert (job is not None) == expected.cleaned
        if job is None:
            continue
        cleaned = forget(case, *forgotten)
        made = tmp_path / f"{seed}-naive" / case.partition.name
        assert compare_partitions(made, case.partition, before.partition) == [], case.name
        assert cleaned.volume.drops.tombstone_expired == expected.drops["tombstone"], case.name
        assert cleaned.next_expiry_ms == expected.next_expiry_ms, case.name
        forgotten_count += expected.drops["tombstone"] - usual.drops["tombstone"]
    assert forgotten_count > (20 if JIT else 0)
    count_cases("tombstones forgotten in random logs", forgotten_count)
