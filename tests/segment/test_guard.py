"""Reading a segment through its digest: nothing is answered that was not written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.segment import digest as digests
from stratalog.segment.guard import Guard, damaged_blocks
from stratalog.segment.indexes import StoredIndexes
from stratalog.segment.names import FileKind
from stratalog.segment.segment import Segment, load_aborted
from tests.naive.digest import blocks_of
from tests.naive.records import Record, build_legacy
from tests.segment.digests import (
    ABORTED,
    BASE,
    FS,
    batch,
    overwrite,
    path_of,
    reopened,
    small_batches,
    write_digest,
    write_segment,
)

Count = Callable[[str, int], None]


def contents(segment: Segment, position: int = 0, window_bytes: int = 1 << 20) -> bytes:
    return b"".join(bytes(found.data) for found in segment.batches(position, window_bytes))


def chunk_at(segment: Segment, offset: int, max_bytes: int) -> bytes:
    placed = segment.find(offset)
    assert placed is not None
    return bytes(segment.read_chunk(placed, max_bytes))


def large_batches() -> list[bytes]:
    """Four blocks: of three batches, of one and a half that are larger than a block, of few."""
    sizes = [30_000, 30_000, 30_000, 200_000, 100, 70_000, 100, 100]
    return [batch(BASE + 10 * i, size=size, count=1) for i, size in enumerate(sizes)]


# ---------------------------------------------------------------- damage to the log


@pytest.mark.requirement("RCV-7")
def test_every_flip_in_a_header_is_found_by_whoever_reads(
    tmp_path: Path, count_cases: Count
) -> None:
    old = build_legacy([Record(BASE + 3 + i, 900, b"k", b"v", ()) for i in range(2)], magic=1)
    older = build_legacy([Record(BASE, -1, None, None, ())], magic=0)
    batches = [older, old[: len(old) // 2], old[len(old) // 2 :], *small_batches(5)[1:]]
    log = b"".join(batches)
    write_segment(tmp_path, log)
    ways: list[Callable[[Segment], object]] = [
        contents,
        lambda segment: list(segment.headers()),
        lambda segment: segment.find(BASE + 44),
        lambda segment: segment.find(BASE + 1000),
        lambda segment: segment.find_timestamp(1300, BASE),
        lambda segment: contents(segment, len(log) - len(batches[-1]), 1),
    ]
    for way in ways:
        assert way(reopened(tmp_path)) is not NotImplemented
    cases = position = 0
    for raw in batches:
        for bit in range(8 * min(len(raw), 61)):
            at = position + bit // 8
            overwrite(path_of(tmp_path), bytes([log[at] ^ (1 << bit % 8)]), position=at)
            with pytest.raises(CorruptionError) as caught:
                ways[cases % len(ways)](reopened(tmp_path))
            assert (caught.value.file, caught.value.position) == (str(path_of(tmp_path)), 0)
            overwrite(path_of(tmp_path), log[at : at + 1], position=at)
            cases += 1
        position += len(raw)
    assert contents(reopened(tmp_path)) == log
    count_cases("flips in headers below a digest", cases)


@pytest.mark.requirement("RCV-7")
def test_what_is_whole_stays_readable_and_damage_is_named(tmp_path: Path) -> None:
    batches = large_batches()
    log = b"".join(batches)
    write_segment(tmp_path, log)
    starts = [sum(map(len, batches[:i])) for i in range(len(batches))]
    blocks = [sum(size for size, _ in blocks_of(log)[:i]) for i in range(len(blocks_of(log)))]
    assert len(blocks) == 4
    for damaged in range(len(batches)):
        block = max(start for start in blocks if start <= starts[damaged])
        past = min((start for start in blocks if start > block), default=len(log))
        overwrite(path_of(tmp_path), b"\x04", position=starts[damaged] + 15)  # the leader epoch
        for wanted, start in enumerate(starts):
            segment = reopened(tmp_path)
            if block <= start < past:
                with pytest.raises(CorruptionError) as caught:
                    segment.find(BASE + 10 * wanted)
                assert caught.value.position == block
            else:
                chunk = chunk_at(segment, BASE + 10 * wanted, len(log))
                assert chunk == log[start : block if start < block else len(log)]
        for window_bytes in (100, 1 << 20):
            segment, seen = reopened(tmp_path), b""
            with pytest.raises(CorruptionError) as caught:
                for found in segment.batches(0, window_bytes):
                    seen += bytes(found.data)
            assert (seen, caught.value.position) == (log[:block], block)
        with pytest.raises(CorruptionError, match="headers from here on"):
            contents(segment)  # again, without another look at the whole log
        with pytest.raises(CorruptionError):
            reopened(tmp_path).check_digest()
        overwrite(path_of(tmp_path), b"\x03", position=starts[damaged] + 15)
    reopened(tmp_path).check_digest()


@pytest.mark.requirement("RCV-7")
def test_the_edges_of_what_is_read_are_checked_too(tmp_path: Path) -> None:
    batches = large_batches()
    log, second = b"".join(batches), len(batches[0])
    write_segment(tmp_path, log)
    plain = list(reopened(tmp_path, use_digest=False).headers())
    third = plain[3].position  # where the second block starts
    overwrite(path_of(tmp_path), b"\x04", position=15)
    for way in (
        lambda segment: next(segment.batches(second, 1 << 20)),
        lambda segment: next(segment.headers(second)),
        lambda segment: segment.read_chunk(plain[1], 1 << 20),
        lambda segment: segment.read_batch(plain[1]),
    ):
        with pytest.raises(CorruptionError) as caught:
            way(reopened(tmp_path))
        assert caught.value.position == 0
    overwrite(path_of(tmp_path), log)
    overwrite(path_of(tmp_path), b"\x04", position=third + 15)
    assert chunk_at(reopened(tmp_path), BASE + 10, third + 100) == log[second:third]


def test_a_block_is_checked_once_in_a_process(tmp_path: Path) -> None:
    batches = large_batches()
    write_segment(tmp_path, b"".join(batches))
    segment = reopened(tmp_path)
    assert chunk_at(segment, BASE, 10).startswith(batches[0])
    overwrite(path_of(tmp_path), b"\x09", position=15)
    assert len(contents(segment)) == sum(map(len, batches))
    with pytest.raises(CorruptionError):
        contents(reopened(tmp_path))


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("batches", [small_batches(), large_batches()], ids=["small", "large"])
def test_a_log_that_lost_its_end_is_no_shorter_log(tmp_path: Path, batches: list[bytes]) -> None:
    log = b"".join(batches)
    ends = [sum(map(len, batches[: i + 1])) for i in range(len(batches))]
    cuts = [0, *ends[:-1], len(log) - 1, 5, 30, ends[1] + 20, ends[0] + 61]
    for cut in cuts:
        write_segment(tmp_path, log)
        overwrite(path_of(tmp_path), b"", position=cut, cut=True)
        for way in (
            contents,
            lambda segment: list(segment.headers()),
            lambda segment: segment.find(BASE + 1000),
            lambda segment: segment.check_digest(),
        ):
            with pytest.raises(CorruptionError):
                way(reopened(tmp_path))
        path_of(tmp_path).unlink()
    write_segment(tmp_path, log)
    reopened(tmp_path).check_digest()


def test_a_log_that_is_short_and_out_of_order_is_no_other_log(tmp_path: Path) -> None:
    write_segment(tmp_path, b"".join(large_batches()))
    ends = [placed.end for placed in reopened(tmp_path).headers()]
    overwrite(path_of(tmp_path), b"\x7f", position=ends[0] + 6)  # the second batch's offset
    overwrite(path_of(tmp_path), b"", position=ends[2], cut=True)
    with pytest.raises(CorruptionError):
        contents(reopened(tmp_path))


def test_which_blocks_are_damaged(tmp_path: Path) -> None:
    log = b"".join(large_batches())
    made = write_segment(tmp_path, log)
    ends = [sum(size for size, _ in blocks_of(log)[: i + 1]) for i in range(4)]
    assert damaged_blocks(reopened(tmp_path).log, made) == []
    overwrite(path_of(tmp_path), b"\x09", position=15)
    overwrite(path_of(tmp_path), b"\x09", position=ends[1] + 15)
    assert damaged_blocks(reopened(tmp_path).log, made) == [(0, ends[0]), (ends[1], ends[2])]
    overwrite(path_of(tmp_path), b"", position=ends[2], cut=True)
    assert damaged_blocks(reopened(tmp_path).log, made)[2:] == [(ends[2], len(log))]


# ---------------------------------------------------------------- digests that do not fit


def test_a_digest_of_the_beginning_checks_the_beginning(tmp_path: Path) -> None:
    batches = small_batches(8)
    half = sum(map(len, batches[:4]))
    write_segment(tmp_path, b"".join(batches))
    write_digest(tmp_path, half)
    segment = reopened(tmp_path)
    assert segment.guard is not None
    assert segment.guard.covered_bytes == half
    assert contents(segment) == b"".join(batches)
    assert [placed.header.base_offset for placed in reopened(tmp_path).headers()] == [
        BASE + 10 * i for i in range(8)
    ]
    for placed in reopened(tmp_path).headers():
        assert bytes(reopened(tmp_path).read_batch(placed).data) in batches
    overwrite(path_of(tmp_path), b"\x09", position=half + 15)
    assert len(contents(reopened(tmp_path))) == sum(map(len, batches))
    overwrite(path_of(tmp_path), b"\x09", position=15)
    with pytest.raises(CorruptionError):
        contents(reopened(tmp_path))
    # The walk to what lies behind goes through the damage, unless an index entry leads past it.
    assert next(reopened(tmp_path).headers(half)).header.base_offset == BASE + 40


def test_indexes_of_a_log_that_has_grown_are_not_held_against_the_digest(tmp_path: Path) -> None:
    write_segment(tmp_path, b"".join(small_batches(4)))
    stored = Path(digests.digest_path(str(tmp_path), BASE))
    content = stored.read_bytes()
    write_segment(tmp_path, b"".join(small_batches(8)))
    stored.write_bytes(content)
    path = path_of(tmp_path, FileKind.OFFSET_INDEX)
    before = path.stat().st_ino
    assert reopened(tmp_path, repair=True).find(BASE + 70) is not None
    assert path.stat().st_ino == before
    assert stored.read_bytes() == content


@pytest.mark.parametrize("kept", ["same", "longer", "shorter", "equal"])
def test_another_log_in_a_file_of_the_same_id_is_read_as_it_is(tmp_path: Path, kept: str) -> None:
    """File ids are used again: Kafka's cleaner may have been at work twice since."""
    write_segment(tmp_path, b"".join(large_batches()))
    other = {
        "same": large_batches(),  # other values
        "longer": [*large_batches(), batch(BASE + 100)],
        "shorter": large_batches()[1:5],
        "equal": [batch(BASE + 10 * i, size=25_000) for i in range(len(large_batches()))],
    }[kept]
    overwrite(path_of(tmp_path), b"".join(other), cut=True)
    assert contents(reopened(tmp_path)) == b"".join(other)
    segment = reopened(tmp_path)
    assert len(list(segment.headers())) == len(other)
    segment.check_digest()
    third = other[2 if kept != "shorter" else 1]
    assert chunk_at(reopened(tmp_path), BASE + 20, 100).startswith(third)
    made = digests.load_digest(FS, str(tmp_path), BASE)
    assert made is not None
    assert damaged_blocks(segment.log, made) == []


def test_without_a_digest_nothing_is_asked(tmp_path: Path) -> None:
    batches = small_batches()
    write_segment(tmp_path, b"".join(batches))
    overwrite(path_of(tmp_path), b"\x09", position=15)
    with pytest.raises(CorruptionError):
        contents(reopened(tmp_path))
    assert len(contents(reopened(tmp_path, use_digest=False))) == sum(map(len, batches))
    assert digests.load_head(FS, str(tmp_path), BASE) is not None
    reopened(tmp_path, use_digest=False, repair=True)
    assert digests.load_head(FS, str(tmp_path), BASE) is None
    assert len(contents(reopened(tmp_path))) == sum(map(len, batches))


@pytest.mark.requirement("LOG-12")
def test_a_retired_segment_is_held_against_its_own_digest(tmp_path: Path) -> None:
    log = b"".join(small_batches())
    write_segment(tmp_path, log)
    old = reopened(tmp_path)
    old.indexes.retire()
    path_of(tmp_path).rename(tmp_path / "old")
    write_segment(tmp_path, b"".join(small_batches(2)))
    overwrite(tmp_path / "old", b"\x09", position=15)
    with pytest.raises(CorruptionError):
        contents(old)
    overwrite(tmp_path / "old", log)
    assert contents(old) == log


def test_a_segment_whose_entries_are_known_loads_its_digest_when_it_retires(tmp_path: Path) -> None:
    log = b"".join(small_batches())
    write_segment(tmp_path, log)
    opened = reopened(tmp_path)
    entries = opened.indexes.entries()
    guard = Guard(FS, str(tmp_path), BASE, opened.log, path_of(tmp_path).stat().st_ino)
    StoredIndexes(
        FS,
        str(tmp_path),
        BASE,
        opened.log,
        len(log),
        100,
        repair=False,
        loaded=entries,
        guard=guard,
    ).retire()
    digests.remove_digest(FS, str(tmp_path), BASE)
    assert guard.covered_bytes == len(log)


# ---------------------------------------------------------------- reading


@pytest.mark.requirement("LOG-12")
def test_reading_is_the_same_with_a_digest(tmp_path: Path, count_cases: Count) -> None:
    random, cases = Random(7), 0
    for number in range(12):
        sizes = [random.choice([10, 500, 9_000, 40_000, 70_000, 200_000]) for _ in range(20)]
        batches = [batch(BASE + 10 * i, size=size, count=1) for i, size in enumerate(sizes)]
        directory = tmp_path / str(number)
        write_segment(directory, b"".join(batches))
        if number % 3 == 0:
            write_digest(directory, sum(map(len, batches[: random.randrange(20)])))
        plain, shared = reopened(directory, use_digest=False), reopened(directory)
        for _ in range(40):
            segment = random.choice([shared, reopened(directory)])
            index = random.randrange(21)
            position, offset = sum(map(len, batches[:index])), BASE + 10 * index - 3
            window = random.choice([1, 100, 66_000, 1 << 20])
            assert contents(segment, position, window) == b"".join(batches[index:])
            assert list(segment.headers(position)) == list(plain.headers(position))
            assert segment.find(offset) == plain.find(offset)
            found = plain.find(offset)
            if found is not None:
                chunk = segment.read_chunk(found, window)
                assert chunk == plain.read_chunk(found, window)
                assert segment.read_batch(found).data == plain.read_batch(found).data
            cases += 1
    count_cases("reads with and without a digest", cases)


def test_threads_share_a_guard(tmp_path: Path) -> None:
    log = b"".join(batch(BASE + 10 * i, size=5_000) for i in range(100))
    write_segment(tmp_path, log)
    segment, seen = reopened(tmp_path), []
    threads = [
        threading.Thread(target=lambda: seen.append(contents(segment, 0, 70_000) == log))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 8


# ---------------------------------------------------------------- index files


@pytest.mark.requirement("RCV-4")
def test_every_flip_in_an_index_file_leads_to_a_rebuild(tmp_path: Path, count_cases: Count) -> None:
    batches = small_batches(10)
    write_segment(tmp_path, b"".join(batches))
    whole = reopened(tmp_path)
    answers = [whole.find(BASE + i) for i in range(100)]
    entries = [[list(column) for column in _columns(whole)]]
    cases = 0
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        path = path_of(tmp_path, kind)
        good = path.read_bytes()
        assert len(good) >= 24
        for bit in range(8 * len(good)):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bad)
            segment = reopened(tmp_path, repair=bit % 2 == 1)
            entries.append([list(column) for column in _columns(segment)])
            assert entries.pop() == entries[0]
            if bit % 16 == 1:
                assert [segment.find(BASE + i) for i in range(100)] == answers
            assert (path.read_bytes() == good) == (bit % 2 == 1)
            cases += 1
        path.write_bytes(good)
    count_cases("flips in index files below a digest", cases)


def _columns(segment: Segment) -> list[object]:
    offsets, times = segment.indexes.entries()
    return [offsets.offsets, offsets.positions, times.timestamps, times.offsets]  # type: ignore[list-item]


def test_an_index_with_other_entries_is_replaced_once(tmp_path: Path) -> None:
    """Kafka may have made it anew with another interval; afterwards the digest speaks of ours."""
    write_segment(tmp_path, b"".join(small_batches(10)))
    path = path_of(tmp_path, FileKind.OFFSET_INDEX)
    path.write_bytes(path.read_bytes()[8:])
    from stratalog.segment.segment import open_segment

    other = open_segment(FS, str(tmp_path), BASE, interval_bytes=1, repair=True)
    other.indexes.retire()
    rebuilt = path.stat()
    again = open_segment(FS, str(tmp_path), BASE, interval_bytes=1, repair=True)
    again.indexes.retire()
    assert path.stat().st_ino == rebuilt.st_ino
    assert len(again.indexes.entries()[0]) == 9
    again.check_digest()


def test_indexes_are_not_rebuilt_from_headers_that_are_wrong(tmp_path: Path) -> None:
    write_segment(tmp_path, b"".join(small_batches(10)))
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        path_of(tmp_path, kind).unlink()
    overwrite(path_of(tmp_path), b"\xf5", position=7)  # 501 for 500: nothing else shows it
    with pytest.raises(CorruptionError):
        reopened(tmp_path, repair=True).find(BASE)
    assert not path_of(tmp_path, FileKind.OFFSET_INDEX).exists()


@pytest.mark.requirement("RCV-4")
def test_a_changed_transaction_index_is_never_believed(tmp_path: Path, count_cases: Count) -> None:
    write_segment(tmp_path, b"".join(small_batches()), aborted=True)
    path = path_of(tmp_path, FileKind.TXN_INDEX)
    good = path.read_bytes()
    assert load_aborted(FS, str(tmp_path), BASE) == tuple(ABORTED)
    mutants: list[bytes | None] = [None, *(good[:size] for size in range(len(good)))]
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        mutants.append(bytes(flipped))
    for mutant in mutants:
        if mutant is None:
            path.unlink()
        else:
            path.write_bytes(mutant)
        with pytest.raises(CorruptionError) as caught:
            load_aborted(FS, str(tmp_path), BASE)
        assert caught.value.file == str(path)
    path.unlink()
    assert load_aborted(FS, str(tmp_path), BASE, use_digest=False) == ()
    path.write_bytes(good)
    # A log that has grown may have more aborted transactions than the digest knows.
    overwrite(path_of(tmp_path), batch(BASE + 100), position=os.path.getsize(path_of(tmp_path)))
    path.write_bytes(good[:34])
    assert load_aborted(FS, str(tmp_path), BASE) == tuple(ABORTED[:1])
    count_cases("damaged transaction indexes below a digest", len(mutants))
