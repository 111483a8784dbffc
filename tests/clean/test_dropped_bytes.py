"""The bytes of what a clean drops, by reason: counted by hand here, and against the naive twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.clean.job import Drops, Volume
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    NOW_MS,
    Case,
    batch_of,
    range_and_job,
    run,
    write_case,
)
from tests.naive import cleaner, codecs, files
from tests.naive.logs import Features, write_random_log
from tests.naive.records import Batch, Record, build_legacy, parse_log

AROUND = 7
"""Bytes of a short record besides key and value: length, attributes, two deltas, three counts."""
CODECS = range(5)


def volume_of(case: Case, **changes: object) -> Volume:
    """What cleaning would drop; nothing is written."""
    _, job = range_and_job(case, **changes)
    assert job is not None
    (cleaned,) = run(LocalEngine(FS, threads=1), [job], writes=False)
    by_source = [volume for group in cleaned.groups for volume in group.by_source]
    assert sum(by_source, Volume()) == cleaned.volume
    return cleaned.volume


@pytest.mark.requirement("CLN-10")
@pytest.mark.parametrize("codec", CODECS, ids=codecs.NAMES)
def test_records_of_a_batch_that_is_opened_count_as_they_are_unpacked(
    codec: int, tmp_path: Path
) -> None:
    pairs = [(b"a", b"one"), (None, b"no key"), (b"bb", None), (b"c", b"x" * 50), (b"a", b"four")]
    horizon_is_over = batch_of(0, *pairs, codec=codec, horizon_ms=NOW_MS)
    case = write_case(tmp_path / "log", {0: [horizon_is_over], 5: []})
    volume = volume_of(case)
    assert volume.drops == Drops(superseded=1, tombstone_expired=1, no_key=1)
    # The timestamps are told from the horizon, a day off: 4 bytes instead of 1.
    around = AROUND + 3
    assert volume.dropped_bytes == Drops(around + 4, around + 2, no_key=around + 6)


@pytest.mark.requirement("CLN-10")
@pytest.mark.parametrize("codec", CODECS, ids=codecs.NAMES)
def test_a_batch_that_goes_for_one_reason_counts_as_it_is_stored(
    codec: int, tmp_path: Path
) -> None:
    """Of both parts: in the dirty one it is not opened, in the clean one it is."""
    gone = [(b"a", b"text " * 100), (b"b", b"text " * 100)]
    batches = [
        batch_of(0, *gone, codec=codec),
        batch_of(2, (None, b"no key " * 50), codec=codec),
        batch_of(3, *gone, codec=codec),
        batch_of(5, (b"a", b"1"), (b"b", b"2")),
    ]
    in_file = [len(batch) - 61 for batch in batches]
    assert not codec or max(in_file[:3]) < 350
    case = write_case(tmp_path / "log", {0: batches, 7: []})
    (tmp_path / "log" / "cleaner-offset-checkpoint").write_text("0\n1\ntopic 0 3\n")
    volume = volume_of(case)
    assert volume.drops == Drops(superseded=4, no_key=1)
    assert volume.dropped_bytes == Drops(in_file[0] + in_file[2], no_key=in_file[1])


@pytest.mark.requirement("CLN-10", "SPK-2")
def test_where_chunks_end_does_not_show(tmp_path: Path) -> None:
    """The round ends for want of memory before the record without a key. Whether anybody has seen
    it depends on chunks, and on that whether the first batch is opened."""
    batches = [
        batch_of(0, (b"a", b"text " * 100), codec=codecs.GZIP),
        batch_of(1, (b"a", b"2")),
        batch_of(2, (b"b", b"3")),
        batch_of(3, (b"c", b"4")),
        batch_of(4, (None, b"no key")),
    ]
    case = write_case(tmp_path / "log", {0: batches, 5: []})
    volumes = [volume_of(case, max_keys=2, chunk_bytes=size) for size in (1, 1 << 20)]
    assert volumes[0] == volumes[1]
    assert volumes[0].dropped_bytes == Drops(superseded=len(batches[0]) - 61)


@pytest.mark.requirement("CLN-10", "LOG-4")
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_the_old_formats_count_with_their_headers(magic: int, tmp_path: Path) -> None:
    def message(offset: int, key: bytes | None, value: bytes | None) -> Record:
        return Record(offset, NOW_MS - 1 if magic else -1, key, value)

    whole = [message(1, b"a", b"text " * 100), message(2, b"a", b"text " * 100)]
    part = [message(3, b"a", b"four"), message(4, None, b"five"), message(5, b"b", b"six")]
    entries = [
        build_legacy([message(0, b"a", b"one")], magic=magic),
        build_legacy(whole, magic=magic, codec=codecs.GZIP),
        build_legacy(part, magic=magic, codec=codecs.GZIP),
        build_legacy([message(6, b"a", b"seven")], magic=magic),
    ]
    case = write_case(tmp_path / "log", {0: entries, 7: []})
    volume = volume_of(case)
    assert volume.drops == Drops(superseded=4, no_key=1)
    header = 26 if magic == 0 else 34
    assert len(entries[0]) == header + len(b"aone")
    assert volume.dropped_bytes == Drops(
        superseded=header + len(b"aone") + len(entries[1]) + header + len(b"afour"),
        no_key=header + len(b"five"),
    )


@pytest.mark.requirement("CLN-10")
def test_random_logs_drop_the_bytes_that_the_naive_twin_drops(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen: Counter[str] = Counter()
    compared = 0
    for seed in range(900, 940 if JIT else 906):
        (tmp_path / f"{seed}").mkdir()
        features = Features(legacy=seed % 3 == 0, small_map=False)
        log = write_random_log(seed, tmp_path / f"{seed}", features)
        case = Case(f"seed {seed}", log.partition, log.inputs)
        expected = cleaner.clean(case.partition, replace(case.inputs, dedupe_buffer_bytes=1 << 40))
        _, job = range_and_job(case, max_keys=None, chunk_bytes=(1, 700, 1 << 20)[seed % 3])
        assert (job is not None) == expected.cleaned
        if job is None:
            continue
        (cleaned,) = run(LocalEngine(FS, threads=1 + seed % 2), [job], writes=False)
        sizes = cleaned.volume.dropped_bytes
        found = {
            "superseded": sizes.superseded,
            "tombstone": sizes.tombstone_expired,
            "aborted": sizes.aborted,
            "no_key": sizes.no_key,
            "control": sizes.control_expired,
        }
        assert {why: size for why, size in found.items() if size} == expected.dropped_bytes
        assert_volumes_add_up(cleaned.volume, [v for g in cleaned.groups for v in g.by_source])
        seen.update(found.keys() & expected.dropped_bytes.keys())
        compared += 1
    assert not JIT or (len(seen) == 5 and min(seen.values()) >= 5), seen
    count_cases("random logs, bytes by reason as the naive twin counts them", compared)


def assert_volumes_add_up(volume: Volume, by_source: list[Volume]) -> None:
    assert sum(by_source, Volume()) == volume
    assert volume.records_before - volume.records_after == volume.drops.total


@pytest.mark.requirement("CLN-10")
def test_the_naive_sizes_are_those_of_the_payload(tmp_path: Path) -> None:
    """The twin's own sum: a payload is its records, each with its length, and nothing else."""
    log = write_random_log(7, tmp_path, Features(legacy=True))
    batches = [batch for segment in files.read_segments(log.partition) for batch in segment.batches]
    assert len({(batch.magic, batch.codec) for batch in batches}) > 5
    for batch in batches:
        assert sum(cleaner.record_sizes(batch)) == len(unpacked(batch))


def unpacked(batch: Batch) -> bytes:
    if batch.magic == 2:
        return codecs.decompress(batch.codec, batch.raw[61:]) if batch.codec else batch.raw[61:]
    if not batch.codec:
        return batch.raw
    content = codecs.decompress(batch.codec, batch.raw[(26 if batch.magic else 18) + 8 :])
    assert parse_log(content)
    return content
