"""Tombstones and markers by their segment's time: `tombstone.horizon=segment`, the older rule."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.clean.job import CleanedPartition
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    NOW_MS,
    Case,
    batch_of,
    clean_case,
    clean_naively,
    surviving,
    write_case,
)
from tests.naive import cleaner as naive_cleaner
from tests.naive import files
from tests.naive.logs import Features, write_random_log
from tests.naive.plan import Inputs
from tests.naive.records import Batch, build_marker, build_v2, parse_log
from tests.oracle import compare_partitions, fold, index_problems

HOUR_MS = 3_600_000
BY_SEGMENT = {"tombstone.horizon": "segment"}


def engine() -> LocalEngine:
    return LocalEngine(FS, threads=1)


def batches_of(case: Case) -> list[Batch]:
    return [b for segment in files.read_segments(case.partition) for b in segment.batches]


def clean_both(case: Case, target: Path) -> CleanedPartition:
    """One round in place, which the naive twin agrees with to the byte."""
    before = case.copied(target / "before")
    expected = clean_naively(before, target / "naive")
    cleaned = clean_case(engine(), case)
    assert cleaned is not None
    assert compare_partitions(target / "naive" / "topic-0", case.partition, before.partition) == []
    assert index_problems(case.partition) == []
    times_ms = [segment.mtime_ms for segment in files.read_segments(case.partition)]
    of_twin = [segment.mtime_ms for segment in files.read_segments(target / "naive" / "topic-0")]
    assert times_ms == of_twin
    assert cleaned.volume.drops.tombstone_expired == expected.drops["tombstone"]
    return cleaned


def with_checkpoint(case: Case, offset: int) -> Case:
    """Written as Kafka writes it, which the naive twin reads."""
    path = case.partition.parent / "cleaner-offset-checkpoint"
    path.write_text(files.encode_checkpoint({case.partition.name: offset}))
    return replace(case, inputs=replace(case.inputs, checkpoint=offset))


# ---------------------------------------------------------------- EX-4

DAY_START_MS = NOW_MS // 86_400_000 * 86_400_000


def at_time(hour_and_minute: str) -> int:
    hour, minute = hour_and_minute.split(":")
    return DAY_START_MS + int(hour) * HOUR_MS + int(minute) * 60_000


def time_of(mtime_ms: int) -> str:
    minutes = (mtime_ms - DAY_START_MS) // 60_000
    return f"{minutes // 60}:{minutes % 60:02d}"


# What each segment holds beside a tombstone and a record that stays: (key, bytes of the value).
# A value of 1 byte removes the larger one that an earlier segment has under the same key.
SEGMENTS = {
    "6:00": [("a1", 6000), ("b1", 2500)],
    "6:20": [("a2", 6000), ("b2", 2500)],
    "6:30": [("a3", 6000), ("b3", 2500)],
    "6:35": [("a4", 5000), ("b4", 3500)],
    "7:00": [("a5", 5000), ("b5", 3500)],
    "7:40": [("a6", 2000), ("b6", 6000), *((f"a{n}", 1) for n in range(1, 7))],
    "8:00": [("b7", 8500)],
    "8:10": [("d", 8800), *((f"b{n}", 1) for n in range(1, 8))],
    "8:40": [("e", 9000)],
}
SEGMENT_BYTES = 10_000


class GrowingLog:
    """The log of EX-4: segments are added as they are full, rounds run between."""

    def __init__(self, log_dir: Path) -> None:
        self.partition = log_dir / "topic-0"
        self.partition.mkdir(parents=True)
        self.next_offset = 0
        self.checkpoint = 0

    def add(self, *times: str) -> None:
        for time in times:
            base = self.next_offset
            fillers = [(key, b"v" * size) for key, size in SEGMENTS[time]]
            pairs = [(f"deleted at {time}", None), (f"stays from {time}", b""), *fillers]
            data = b"".join(
                batch_of(base + place, (key.encode(), value))
                for place, (key, value) in enumerate(pairs)
            )
            self._write(base, data, time)
            self.next_offset += len(pairs)

    def roll(self) -> None:
        """An empty active segment."""
        self._write(self.next_offset, b"", "8:50")

    def _write(self, base: int, data: bytes, time: str) -> None:
        files.write_segment(
            self.partition, base, data, [], interval_bytes=4096, mtime_ms=at_time(time)
        )

    def clean(self, target: Path) -> list[list[str]]:
        """A round; the times of each group's sources."""
        time_at = {s.base: time_of(s.mtime_ms) for s in files.read_segments(self.partition)}
        settings = {
            **BY_SEGMENT,
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": str(HOUR_MS),
            "segment.bytes": str(SEGMENT_BYTES),
        }
        end = self.next_offset
        case = Case("EX-4", self.partition, Inputs(settings, at_time("9:00"), 0, end, end))
        cleaned = clean_both(with_checkpoint(case, self.checkpoint), target)
        self.checkpoint = cleaned.end_offset
        assert cleaned.next_expiry_ms is None
        return [[time_at[base] for base in group.sources] for group in cleaned.groups]

    def tombstones(self) -> list[str]:
        return [
            key.decode().removeprefix("deleted at ")
            for key, value in surviving(self.partition).values()
            if value is None and key is not None
        ]

    def times(self) -> list[str]:
        return [time_of(segment.mtime_ms) for segment in files.read_segments(self.partition)]


@pytest.mark.requirement("EX-4", "CMP-8", "CMP-11")
def test_ex_4_three_rounds(tmp_path: Path) -> None:
    """delete.retention.ms is one hour; sizes are such that the groups are those of the example."""
    log = GrowingLog(tmp_path / "log")
    first = ["6:00", "6:20", "6:30", "6:35", "7:00", "7:40"]
    log.add(*first, "8:00")
    assert log.clean(tmp_path / "1") == [[time] for time in first]
    assert log.tombstones() == [*first, "8:00"]  # nothing was clean: none goes
    assert log.times() == [*first, "8:00"]

    log.add("8:10", "8:40")
    # The clean part ends with the segment of 7:40, so the horizon is 6:40.
    assert log.clean(tmp_path / "2") == [
        ["6:00", "6:20", "6:30"],
        ["6:35", "7:00"],
        ["7:40"],
        ["8:00"],
        ["8:10"],
    ]
    assert log.tombstones() == ["7:00", "7:40", "8:00", "8:10", "8:40"]
    assert log.times() == ["6:30", "7:00", "7:40", "8:00", "8:10", "8:40"]

    log.roll()
    # 8:10 is the last of the clean part, the horizon 7:10.
    assert log.clean(tmp_path / "3") == [["6:30", "7:00", "7:40", "8:00"], ["8:10"], ["8:40"]]
    assert log.tombstones() == ["7:40", "8:00", "8:10", "8:40"]
    assert log.times() == ["8:00", "8:10", "8:40", "8:50"]
    assert sorted(key for key, _ in surviving(log.partition).values() if key) == sorted(
        [b"d", b"e", *(b"a%d" % n for n in range(1, 7)), *(b"b%d" % n for n in range(1, 8))]
        + [f"stays from {time}".encode() for time in SEGMENTS]
        + [f"deleted at {time}".encode() for time in log.tombstones()]
    )


# ---------------------------------------------------------------- the rule by itself


def two_segments(tmp_path: Path, batch: bytes, next_offset: int, age_ms: int) -> Case:
    """A clean segment of that batch, `age_ms` older than the next clean one, and a dirty one."""
    segments = {
        0: [batch],
        next_offset: [batch_of(next_offset, (b"x", b"1"))],
        next_offset + 1: [batch_of(next_offset + 1, (b"y", b"1"))],
        next_offset + 2: [],
    }
    # Each segment is a group of its own.
    settings = {**BY_SEGMENT, "delete.retention.ms": str(HOUR_MS), "segment.bytes": "1"}
    case = write_case(tmp_path, segments, settings)
    data = (case.partition / files.name(0, ".log")).read_bytes()
    mtime_ms = NOW_MS - HOUR_MS - age_ms
    files.write_segment(case.partition, 0, data, [], interval_bytes=4096, mtime_ms=mtime_ms)
    return with_checkpoint(case, next_offset + 1)


@pytest.mark.requirement("CMP-8")
@pytest.mark.parametrize(("age_ms", "goes"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_a_segment_as_old_as_the_horizon_loses_its_tombstones(
    age_ms: int, goes: bool, tmp_path: Path
) -> None:
    """It stays while its time > the last clean segment's time - delete.retention.ms."""
    case = two_segments(tmp_path / "log", batch_of(0, (b"a", None), (b"b", b"1")), 2, age_ms)
    cleaned = clean_both(case, tmp_path)
    assert (0 in surviving(case.partition)) == (not goes)
    assert cleaned.volume.drops.tombstone_expired == goes
    assert all(batch.horizon_ms is None for batch in batches_of(case))


@pytest.mark.requirement("CMP-8", "CMP-14")
@pytest.mark.parametrize(("age_ms", "goes"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_markers_of_nothing_go_with_their_segment_s_time(
    age_ms: int, goes: bool, tmp_path: Path
) -> None:
    marker = build_marker(1, offset=0, timestamp=1, producer_id=7, producer_epoch=0)
    case = two_segments(tmp_path / "log", marker, 1, age_ms)
    inputs = replace(case.inputs, active_producers={7: (0, None)})
    cleaned = clean_both(replace(case, inputs=inputs), tmp_path)
    assert cleaned.volume.drops.control_expired == goes
    (left,) = [batch for batch in batches_of(case) if batch.control]
    # The one that stays is copied: no horizon is set. Of the other the producer's epoch is left.
    assert left.raw == marker if not goes else left.count == 0


@pytest.mark.requirement("CMP-8", "CMP-15")
@pytest.mark.parametrize("loses", [False, True], ids=["copied", "rewritten"])
def test_a_horizon_that_a_newer_cleaner_has_set_stays_and_says_nothing(
    loses: bool, tmp_path: Path
) -> None:
    """Its deadline is long past; by the segment's time the tombstone stays."""
    pairs = [(b"a", None), (b"x", b"0") if loses else (b"b", b"1")]
    plain = parse_log(batch_of(0, *pairs))[0]
    timestamps = [record.timestamp for record in plain.records()]
    batch = build_v2(plain.records(), base_offset=0, last_offset=1, horizon_ms=5)
    case = two_segments(tmp_path / "log", batch, 2, age_ms=0)
    if loses:  # its other record is superseded by the segment after it, which is then dirty, too
        case = with_checkpoint(case, 2)
    cleaned = clean_both(case, tmp_path)
    first = batches_of(case)[0]
    assert first.horizon_ms == 5
    assert (first.raw == batch) == (not loses)
    kept = [(b"a", None)] if loses else pairs
    assert [(record.key, record.value) for record in first.records()] == kept
    assert [record.timestamp for record in first.records()] == timestamps[: len(kept)]
    assert cleaned.next_expiry_ms is None


@pytest.mark.requirement("CMP-8")
def test_without_a_clean_part_none_goes(tmp_path: Path) -> None:
    case = two_segments(tmp_path / "log", batch_of(0, (b"a", None)), 1, age_ms=1000 * HOUR_MS)
    clean_both(with_checkpoint(case, 0), tmp_path)
    assert surviving(case.partition)[0] == (b"a", None)


def aged_case(seed: int, directory: Path) -> Case:
    """A random log of which all but the last segments is clean, a few hours between two of them."""
    directory.mkdir()
    features = Features(legacy=seed % 5 == 0, checkpoints=False, small_map=False)
    log = write_random_log(seed, directory, features)
    settings = {**log.inputs.settings, **BY_SEGMENT, "segment.bytes": "1500"}
    # With this retention nothing is old enough yet.
    inputs = replace(log.inputs, settings={**settings, "delete.retention.ms": str(NOW_MS)})
    earlier = naive_cleaner.clean(log.partition, inputs)
    naive_cleaner.replace_segments(earlier, log.partition, inputs)
    segments = files.read_segments(log.partition)
    for place, segment in enumerate(segments):
        hour = NOW_MS // HOUR_MS - (len(segments) - place)
        path = log.partition / files.name(segment.base, ".log")
        os.utime(path, (hour * 3600, hour * 3600))
    settings["delete.retention.ms"] = str(HOUR_MS * (seed % 3))
    inputs = replace(log.inputs, settings=settings)
    below = [s.base for s in segments if s.base < earlier.end_offset] or [segments[0].base]
    checkpoint = max(inputs.log_start_offset, below[-1])
    return with_checkpoint(Case(f"seed {seed}", log.partition, inputs), checkpoint)


@pytest.mark.requirement("CMP-8")
def test_the_head_loses_none_whatever_its_file_s_time(tmp_path: Path) -> None:
    """Files that were copied here may have any. Nor does it with a retention of 0, by which all of
    the clean part goes, in the segment where the two meet."""
    case = two_segments(tmp_path / "log", batch_of(0, (b"a", None)), 1, age_ms=0)
    marker = build_marker(1, offset=2, timestamp=1, producer_id=7, producer_epoch=0)
    old = batch_of(1, (b"x", None)) + marker + batch_of(3, (b"y", None))
    for base in (1, 2, 3):
        for path in case.partition.glob(f"*{base}.*"):
            path.unlink()
    files.write_segment(case.partition, 1, old, [], interval_bytes=4096, mtime_ms=HOUR_MS)
    files.write_segment(case.partition, 4, b"", [], interval_bytes=4096, mtime_ms=NOW_MS)
    settings = {**case.inputs.settings, "delete.retention.ms": "0"}
    bounds = {"last_stable_offset": 4, "log_end_offset": 4, "active_producers": {7: (0, None)}}
    case = replace(case, inputs=replace(case.inputs, settings=settings, **bounds))
    clean_both(with_checkpoint(case, 1), tmp_path / "1")
    assert surviving(case.partition) == {1: (b"x", None), 3: (b"y", None)}
    clean_both(with_checkpoint(case, 2), tmp_path / "2")
    assert surviving(case.partition) == {3: (b"y", None)}
    assert [batch.count for batch in batches_of(case) if batch.control] == [1]


@pytest.mark.requirement("CMP-8", "CMP-13", "CMP-14", "CMP-15", "CMP-18")
def test_random_logs_as_the_naive_twin_makes_them(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """Old formats, transactions, horizons of newer cleaners; both rules differ in some of them."""
    cleaned_count = gone = differ = 0
    for seed in range(40 if JIT else 4):
        case = aged_case(seed, tmp_path / f"{seed}")
        before = case.copied(tmp_path / f"{seed}-before")
        state = fold(case.partition)
        expected = clean_naively(before, tmp_path / f"{seed}-naive")
        cleaned = clean_case(engine(), case, chunk_bytes=[500, 1 << 20][seed % 2])
        made = tmp_path / f"{seed}-naive" / case.partition.name
        assert compare_partitions(made, case.partition, before.partition) == [], case.name
        assert fold(case.partition) == state, case.name
        assert (cleaned is not None) == expected.cleaned
        if cleaned is None:
            continue
        cleaned_count += 1
        assert cleaned.next_expiry_ms is None
        drops = cleaned.volume.drops
        assert (drops.tombstone_expired, drops.control_expired) == (
            expected.drops["tombstone"],
            expected.drops["control"],
        ), case.name
        gone += (drops.tombstone_expired > 0) + (drops.control_expired > 0)
        by_batch = clean_naively(
            before,
            tmp_path / f"{seed}-batch",
            settings={**case.inputs.settings, "tombstone.horizon": "batch"},
        )
        differ += by_batch.groups != expected.groups
    assert not JIT or (gone > 10 and differ > 10)
    count_cases("random logs by segment time, naive = local engine", cleaned_count)
