"""Versions of records and the map that keeps the highest, against a few lines of Python each."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from stratalog.record.kernel import arrays, columns, offset_map, scan, version_map, versions
from tests.naive import files
from tests.naive.logs import Features, write_random_log
from tests.naive.random_batches import VERSION_HEADER
from tests.naive.records import Record, build_v2, parse_log
from tests.naive.versions import LOWEST, integer_of, version_of
from tests.record.kernel.helpers import (
    SECRET_WORDS,
    as_array,
    naive_hash,
    random_hashes,
    scanned,
    times,
)

NAME = as_array(VERSION_HEADER)
BY = {
    "timestamp": {"compaction.strategy": "timestamp"},
    "header": {
        "compaction.strategy": "header",
        "compaction.strategy.header": VERSION_HEADER.decode(),
    },
}


# ---------------------------------------------------------------- integers

EDGES = [0, 1, 9, 10, 47, 48, 57, 58, 127, 128, 255, 256, 12_336, 2**31, 2**62, 2**63 - 1]
INTEGERS = sorted({sign * edge + step for edge in EDGES for sign in (1, -1) for step in (0, -1)})


@pytest.mark.requirement("CMP-17")
@pytest.mark.parametrize("number", INTEGERS, ids=str)
def test_an_integer_is_read_from_digits_and_from_bytes(number: int) -> None:
    assert versions.read_integer(as_array(b"%d" % number)) == number
    assert versions.read_integer(as_array(b"%030d" % number)) == number
    as_long = number.to_bytes(8, "big", signed=True)
    assert versions.read_integer(as_array(as_long)) == number
    for size in range(1, 8):
        if -(1 << (8 * size - 1)) <= number < 1 << (8 * size - 1):
            content = number.to_bytes(size, "big", signed=True)
            wanted = int(content) if content.isdigit() else number
            if content[:1] == b"-" and content[1:].isdigit():
                wanted = int(content)
            assert versions.read_integer(as_array(content)) == wanted, content


@pytest.mark.requirement("CMP-17")
@pytest.mark.parametrize(
    ("content", "version"),
    [
        (b"", LOWEST),
        (b"-", 0x2D),
        (b"--1", 0x2D2D31),
        (b"+1", 0x2B31),
        (b" 1", 0x2031),
        (b"1.5", 0x312E35),
        (b"00", 0),
        (b"-0", 0),
        (b"20260131", 20_260_131),
        (b"99999999", 99_999_999),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", LOWEST),
        (b"-9223372036854775808", LOWEST),
        (b"-9223372036854775809", LOWEST),
        (b"92233720368547758070", LOWEST),
        (b"123456789x", LOWEST),
        (b"\0" * 9, LOWEST),
        (b"\x80" + bytes(7), LOWEST),
        (b"\x7f" + b"\xff" * 7, 2**63 - 1),
    ],
)
def test_what_is_meant_is_settled_by_the_bytes_alone(content: bytes, version: int) -> None:
    """Digits come first; what int64 does not hold, and other text than 8 bytes, is no integer."""
    assert versions.read_integer(as_array(content)) == version == integer_of(content)


@pytest.mark.requirement("CMP-17")
def test_any_bytes_are_read_as_the_naive_twin_reads_them() -> None:
    random = Random(1)
    alphabets = [bytes(range(256)), b"0123456789", b"-0123456789", b"9", b"0189-\x80\xff"]
    for _ in range(times(4_000)):
        alphabet = random.choice(alphabets)
        content = bytes(random.choices(alphabet, k=random.choice([1, 2, 4, 8, 9, 18, 19, 20, 25])))
        assert versions.read_integer(as_array(content)) == integer_of(content), content


# ---------------------------------------------------------------- rows


@pytest.mark.requirement("CMP-17")
@pytest.mark.parametrize("by", list(BY))
def test_rows_are_those_of_the_order_by_offset_with_the_naive_versions(
    by: str, tmp_path: Path
) -> None:
    seen = set()
    for number in range(times(5)):
        (tmp_path / f"{number}").mkdir()
        features = Features(codecs=(0,), versions=True)
        log = write_random_log(number, tmp_path / f"{number}", features)
        for data in (s.data for s in files.read_segments(log.partition) if s.data):
            raw, table = as_array(data), scanned(data)
            parsed = parse_log(data)
            table["is_aborted"] = [number % 3 == 0 and i % 4 == 1 for i in range(len(parsed))]
            upper = parsed[-1].last_offset - number % 4
            count = sum(batch.count for batch in parsed)
            plain = np.zeros((count, 2), np.uint64), np.zeros(count, np.int64)
            keyless = [np.full(1, 7, np.int64) for _ in range(2)]
            bounds = (raw, raw, table, 0, len(table), upper, *SECRET_WORDS)
            expected = scan.index_records(*bounds, *plain, keyless[0])
            mine = np.zeros((count, 2), np.uint64), np.zeros(count, np.int64)
            found = np.zeros(count, np.int64)
            is_header = by == "header"
            done = versions.index_versions(*bounds, is_header, NAME, *mine, found, keyless[1])
            assert done == expected
            assert keyless[0] == keyless[1]
            assert mine[0].tolist() == plain[0].tolist()
            assert mine[1].tolist() == plain[1].tolist()
            by_offset = {
                record.offset: version_of(record, BY[by])
                for batch in parsed
                if not batch.control
                for record in batch.records()
            }
            rows = int(done[0])
            wanted = [by_offset[offset] for offset in mine[1][:rows].tolist()]
            assert found[:rows].tolist() == wanted
            seen.update(wanted)
    assert len(seen) > 20


@pytest.mark.requirement("CMP-16", "CMP-17")
def test_damaged_headers_are_refused_or_read_as_whole_records_are() -> None:
    """One byte of the records is another; nothing outside is read, and no version is invented."""
    random = Random(3)
    headers = ((b"other", b"1"), (VERSION_HEADER, b"17"), (b"", None), (VERSION_HEADER, b"42"))
    records = [Record(n, 5 + n, b"k%d" % n, b"value"[:n], headers[: n + 1]) for n in range(4)]
    original = build_v2(records, base_offset=0, last_offset=3)
    refused = 0
    for _ in range(times(1_500)):
        data = bytearray(original)
        data[random.randrange(61, len(data))] = random.choice((0, 1, 2, 3, 7, 126, 127, 128, 255))
        raw = as_array(bytes(data))
        table = scanned(bytes(data), crc_from=1 << 62)
        hashes, offsets = np.zeros((4, 2), np.uint64), np.zeros(4, np.int64)
        found, keyless = np.zeros(4, np.int64), np.zeros(1, np.int64)
        rows, error, position = versions.index_versions(
            *(raw, raw, table, 0, 1, 1 << 62, *SECRET_WORDS, True, NAME),
            *(hashes, offsets, found, keyless),
        )
        numbers, both = np.zeros((4, 6), np.int64), np.zeros((4, 4), np.uint64)
        whole, whole_error, _ = columns.read_records(
            *(raw, raw, table, np.ones(1, np.bool_), 0, 1, columns.KEYS, *SECRET_WORDS),
            *(columns.BY_HEADER, NAME, numbers, both),
        )
        if error != arrays.OK:
            refused += 1
            assert whole_error != arrays.OK
            assert position == 0
        elif whole_error == arrays.OK:
            keyed = numbers[:whole][numbers[:whole, 2] >= 0]
            assert offsets[:rows].tolist() == keyed[:, 0].tolist()
            assert found[:rows].tolist() == keyed[:, 5].tolist()
            assert keyless[0] == whole - rows
    assert refused > 0


def test_naive_hashes_are_the_kernels() -> None:
    """So that rows above are compared by their keys, not by an accident of both."""
    data = build_v2([Record(0, 0, b"key", b"")], base_offset=0, last_offset=0)
    hashes, one = np.zeros((1, 2), np.uint64), np.zeros(1, np.int64)
    raw, table = as_array(data), scanned(data)
    versions.index_versions(
        *(raw, raw, table, 0, 1, 1, *SECRET_WORDS, False, NAME, hashes, one, one.copy()),
        one.copy(),
    )
    assert tuple(hashes[0].tolist()) == naive_hash(b"key")


# ---------------------------------------------------------------- the map

Best = dict[tuple[int, int], tuple[int, int]]


def random_rows(random: Random, count: int, keys: int):  # type: ignore[no-untyped-def]
    """Rows over few hashes, some of them neighbours in the map, with few versions each."""
    known = random_hashes(random, keys)
    known[: keys // 2, 1] &= np.uint64(0xFFFFFFFF)  # all at home in the first slot
    known[: keys // 4, 1] = known[0, 1]  # and apart in the high word only
    chosen = np.array([random.randrange(keys) for _ in range(count)], np.int64)
    offsets = np.array(random.sample(range(1 << 20), count), np.int64)
    of_rows = [random.choice([LOWEST, -1, 0, 1, 5, 2**63 - 1]) for _ in range(count)]
    return known[chosen], offsets, np.array(of_rows, np.int64)


def best_of(hashes: np.ndarray, offsets: np.ndarray, of_rows: np.ndarray) -> Best:
    found: Best = {}
    columns_ = hashes.tolist(), of_rows.tolist(), offsets.tolist()
    for (high, low), version, offset in zip(*columns_, strict=True):
        mine = version, offset
        found[high, low] = max(mine, found.get((high, low), mine))
    return found


def content(slots: np.ndarray) -> Best:
    signed = slots[:, 3].astype(np.int64).tolist()
    return {
        (high, low): (version, value - 1)
        for (high, low, value, _), version in zip(slots.tolist(), signed, strict=True)
        if value
    }


@pytest.mark.requirement("CMP-5", "CMP-17")
def test_map_holds_what_a_dict_holds() -> None:
    random = Random(1)
    for _ in range(times(150)):
        count = random.randrange(60)
        rows = random_rows(random, count, random.randrange(1, 40))
        offsets = rows[1]
        expected = best_of(*rows)
        slots = np.zeros((len(expected) + random.randrange(2, 40), 4), np.uint64)
        half = count // 2
        used, row = version_map.insert(slots, 0, len(slots) - 1, *rows, 0, half)
        used, row = version_map.insert(slots, used, len(slots) - 1, *rows, row, count)
        assert (used, row) == (len(expected), count)
        assert content(slots) == expected

        larger = np.zeros((2 * len(slots), 4), np.uint64)
        version_map.rehash(slots, larger)
        assert content(larger) == expected

        for source in (slots, larger):
            found = np.empty(count, np.int64)
            written = version_map.probe(source, *rows, 0, count, found)
            live = {offset for _, offset in expected.values()}
            assert found[:written].tolist() == [o for o in offsets.tolist() if o not in live]
            unknown = random_hashes(random, 5), np.zeros(5, np.int64), np.full(5, -9, np.int64)
            assert version_map.probe(source, *unknown, 0, 5, np.empty(5, np.int64)) == 0

        out_offsets = np.empty(used, np.int64)
        offset_map.extract_offsets(slots, out_offsets)
        assert sorted(out_offsets.tolist()) == sorted(offset for _, offset in expected.values())
        for stride in (s for s in range(1, used + 1) if np.gcd(s, used) == 1):
            out = np.empty((used, 2), np.uint64), np.empty(used, np.int64), np.empty(used, np.int64)
            version_map.extract(slots, stride, *out)
            assert best_of(*out) == expected


@pytest.mark.requirement("CMP-5")
def test_a_full_map_stops_even_a_key_that_it_knows() -> None:
    hashes = random_hashes(Random(2), 4)[[0, 1, 0, 2, 0, 3]]
    offsets, of_rows = np.arange(6, dtype=np.int64), np.array([9, 0, 3, 0, 0, 0], np.int64)
    slots = np.zeros((9, 4), np.uint64)
    assert version_map.insert(slots, 0, 3, hashes, offsets, of_rows, 0, 6) == (3, 4)
    assert content(slots)[tuple(hashes[0].tolist())] == (9, 0)
    assert version_map.insert(slots, 3, 4, hashes, offsets, of_rows, 4, 6) == (4, 6)


def test_versions_go_where_their_rows_go() -> None:
    random = Random(3)
    for _ in range(times(60)):
        count, bits = random.randrange(80), random.randrange(1, 8)
        hashes = random_hashes(random, count)
        offsets = np.arange(count, dtype=np.int64)
        of_rows = offsets * 7 - 100
        out_hashes, out_offsets = np.empty_like(hashes), np.empty_like(offsets)
        starts = np.empty((1 << bits) + 1, np.int64)
        offset_map.partition(hashes, offsets, count, bits, out_hashes, out_offsets, starts)
        before, out_versions = starts.tolist(), np.empty_like(of_rows)
        version_map.partition_versions(hashes, of_rows, count, bits, starts, out_versions)
        assert out_versions.tolist() == (out_offsets * 7 - 100).tolist()
        assert starts.tolist() == before
        assert all(first <= last for first, last in pairwise(before))
