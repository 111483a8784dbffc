"""The keys that lose most in a round: what a slow twin counts, whatever the memory and the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.admin import top_keys as module
from stratalog.admin.dump import text_of
from stratalog.admin.report import Mode, TopKey
from stratalog.admin.top_keys import top_keys
from stratalog.base.errors import CorruptionError
from stratalog.clean.engine import Progress
from stratalog.clean.job import CleanedPartition
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.codec import Codec
from tests.admin.helpers import DISK, records, run, tree, write_log
from tests.clean.driving import Case, clean_naively, range_and_job
from tests.clean.driving import run as run_engine
from tests.naive import cleaner, codecs
from tests.naive.logs import Features, write_random_log
from tests.naive.records import Batch, Record, _read_varint, parse_log

pytestmark = pytest.mark.usefixtures("hasty_disk")
ALL = 1 << 30
Sums = dict[bytes, tuple[int, int]]


def _quiet(_: Progress) -> None:
    """Nobody watches."""


def _sizes(batch: Batch) -> list[int]:
    """The sizes of a batch's records, in order."""
    if batch.magic < 2:
        if not batch.codec:
            return [len(batch.raw)]
        start = 26 if batch.magic == 1 else 18
        value = batch.raw[start + 8 :] if batch.raw[start : start + 4] == b"\xff" * 4 else None
        assert value is not None, "wrappers have no key"
        return [len(message.raw) for message in parse_log(codecs.decompress(batch.codec, value))]
    data = batch.raw[61:]
    if batch.codec:
        data = codecs.decompress(batch.codec, data)
    sizes, position = [], 0
    while position < len(data):
        length, after = _read_varint(data, position)
        sizes.append(after - position + length)
        position = after + length
    return sizes


@pytest.fixture
def naive_sums(monkeypatch: pytest.MonkeyPatch) -> Sums:
    """What the naive cleaner drops as superseded, by key: records and bytes; filled as it runs."""
    sums: Sums = defaultdict(lambda: (0, 0))
    decide = cleaner.Cleaning.drop_reason

    def note(
        self: cleaner.Cleaning, record: Record, batch: Batch, segment: object, discard: bool
    ) -> str | None:
        reason = decide(self, record, batch, segment, discard)  # type: ignore[arg-type]
        if reason == "superseded":
            assert record.key is not None
            offsets = [other.offset for other in batch.records()]
            size = _sizes(batch)[offsets.index(record.offset)]
            count, size_bytes = sums[record.key]
            sums[record.key] = count + 1, size_bytes + size
        return reason

    monkeypatch.setattr(cleaner.Cleaning, "drop_reason", note)
    return sums


def _cleaned(case: Case) -> CleanedPartition | None:
    _, job = range_and_job(case)
    if job is None:
        return None
    return run_engine(LocalEngine(DISK, threads=2), [job], writes=False)[0]


@pytest.mark.sweep
@pytest.mark.requirement("CLN-10", "CMP-17")
@pytest.mark.parametrize("versions", [False, True], ids=["by offset", "by version"])
def test_the_sums_are_those_of_the_naive_twin(
    tmp_path: Path,
    naive_sums: Sums,
    versions: bool,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[str, int], None],
) -> None:
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    cases = 0
    for seed in range(24):
        features = Features(legacy=seed % 3 == 0, versions=versions)
        (tmp_path / f"{seed}").mkdir()
        log = write_random_log(seed, tmp_path / f"{seed}", features)
        case = Case(f"seed {seed}", log.partition, log.inputs)
        naive_sums.clear()
        expected = clean_naively(case, tmp_path / f"{seed}-naive")
        cleaned = _cleaned(case)
        assert expected.cleaned == (cleaned is not None)
        if cleaned is None:
            continue
        found = top_keys(cleaned, ALL, DISK, _quiet)
        wanted = {text_of(key): sums for key, sums in naive_sums.items()}
        assert {key.key: (key.records, key.bytes) for key in found} == wanted, seed
        assert sum(key.records for key in found) == cleaned.volume.drops.superseded
        assert [-key.records for key in found] == sorted(-key.records for key in found)
        assert top_keys(cleaned, 3, DISK, _quiet) == found[:3], seed
        cases += 1
    assert cases > 12
    count_cases("logs of which the top keys are those of the naive twin", cases)


@pytest.mark.requirement("CLN-10", "CMP-7")
def test_hash_ranges_chunks_and_threads_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Features(batches=700, keys=4_000, small_map=False, checkpoints=False)
    log = write_random_log(5, tmp_path, many)
    cleaned = _cleaned(Case("many", log.partition, log.inputs))
    assert cleaned is not None
    expected = top_keys(cleaned, 50, DISK, _quiet)
    assert len(expected) == 50
    ranges = []
    largest = module._Finder.largest

    def note(self: module._Finder, top: int, range_bits: int) -> object:
        ranges.append(range_bits)
        return largest(self, top, range_bits)

    monkeypatch.setattr(module._Finder, "largest", note)
    small = replace(
        cleaned, job=replace(cleaned.job, spec=replace(cleaned.job.spec, chunk_bytes=500))
    )
    assert top_keys(small, 50, DISK, _quiet, map_bytes=8 << 10) == expected
    assert ranges == list(range(max(ranges) + 1))
    assert max(ranges) >= 2
    monkeypatch.setattr(module.os, "cpu_count", lambda: 1)
    assert top_keys(cleaned, 50, DISK, _quiet) == expected


@pytest.mark.requirement("CLN-10")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_dry_run_names_the_keys_and_segments(tmp_path: Path, codec: Codec) -> None:
    partition = write_log(
        tmp_path / "orders-0",
        [[records("aabac"), records("ab")], [records("aaab"), records("x", None)]],
        codec=codec,
    )
    before = tree(tmp_path)
    (found,) = run([partition], Mode.DRY_RUN, top=10).partitions
    assert tree(tmp_path) == before
    # A record here: length, attributes, three deltas and sizes of a byte each, key, value, headers.
    size = 1 + 1 + 1 + 1 + 1 + 1 + 1 + len("value-0") + 1
    assert found.top_keys == (TopKey("a", 6, 6 * size), TopKey("b", 2, 2 * size))
    assert [segment.base_offset for segment in found.segments] == [0, 7]
    assert [segment.dropped.superseded for segment in found.segments] == [6, 2]
    totals = found.counts
    for name in ("records_before", "records_after", "bytes_before", "bytes_after"):
        assert sum(getattr(item, name) for item in found.segments) == getattr(totals, name)
    (one,) = run([partition], Mode.DRY_RUN, top=1).partitions
    assert one.top_keys == found.top_keys[:1]
    (none,) = run([partition], Mode.DRY_RUN).partitions
    assert none.top_keys == ()
    assert run([partition], Mode.IN_PLACE, top=10).partitions[0].top_keys == ()


@pytest.mark.requirement("CLN-10")
def test_keys_that_are_no_text_are_shown_in_hexadecimal(tmp_path: Path) -> None:
    partition = write_log(tmp_path / "orders-0", [[[*records("a\na\n")] * 2]])
    (found,) = run([partition], Mode.DRY_RUN, top=5).partitions
    assert [key.key for key in found.top_keys] == ["a", "hex:0a"]


def test_damage_is_named_and_the_threads_end(tmp_path: Path) -> None:
    partition = write_log(tmp_path / "orders-0", [[records("aab"), records("ab")]], rolls_last=True)
    cleaned = run_with_outcome(partition)
    path = partition / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[61] = 0xFF  # the first record's length
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"0{20}\.log"):
        top_keys(cleaned, 5, DISK, _quiet)


def run_with_outcome(partition: Path) -> CleanedPartition:
    """The engine's outcome of a dry run."""
    outcomes: list[CleanedPartition] = []

    class Keeping(LocalEngine):
        def clean(self, *args: object, **named: object) -> list[CleanedPartition]:
            outcomes.extend(super().clean(*args, **named))  # type: ignore[arg-type]
            return list(outcomes)

    run([partition], Mode.DRY_RUN, engine=lambda: Keeping(DISK, threads=1))
    return outcomes[0]
