"""Scanning against the naive parser: batches, keys, aborted ranges, and nothing past the bounds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from stratalog.record.kernel import arrays, scan
from tests.clean.damaging import raw_batch, raw_record, varint
from tests.naive import files
from tests.naive.logs import Features, write_random_log
from tests.naive.records import Batch, parse_log
from tests.oracle import rounds
from tests.record.kernel.helpers import (
    MAX_BATCH_BYTES,
    SECRET_WORDS,
    as_array,
    naive_hash,
    scanned,
    times,
)


def random_segments(tmp_path: Path, count: int, **features: bool) -> list[bytes]:
    """The segments of random logs without codecs, whose payloads need no decompression."""
    found = []
    for seed in range(count):
        (tmp_path / f"{seed}").mkdir()
        plain = Features(codecs=(0,), **features)
        log = write_random_log(seed, tmp_path / f"{seed}", plain)
        found += [s.data for s in files.read_segments(log.partition) if s.data]
    return found


def golden_segments() -> list[bytes]:
    paths = [path for kafka in rounds()[:60:3] for path in sorted(kafka.before.glob("*.log"))]
    return [data for data in map(Path.read_bytes, paths) if data]


def columns(batch: Batch, position: int) -> dict[str, int]:
    shared = {
        "position": position,
        "size_bytes": len(batch.raw),
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "magic": batch.magic,
        "payload_end": position + len(batch.raw),
        "payload_is_plain": 0,
        "is_aborted": 0,
        "control_type": arrays.NOT_CONTROL,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
    }
    if batch.magic < 2:
        return shared
    return shared | {
        "attributes": batch.attributes,
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "count": batch.count,
        "payload_start": position + 61,
    }


@pytest.mark.requirement("LOG-3", "LOG-4")
def test_batches_are_those_of_the_naive_parser(tmp_path: Path) -> None:
    segments = golden_segments() + random_segments(tmp_path, times(12), legacy=True)
    for data in segments:
        table, position = scanned(data), 0
        batches = parse_log(data)
        assert len(table) == len(batches)
        for row, batch in zip(table, batches, strict=True):
            expected = columns(batch, position)
            assert {name: int(row[name]) for name in expected} == expected
            position += len(batch.raw)


def test_whole_batches_hops_to_every_cut(tmp_path: Path) -> None:
    (data,) = random_segments(tmp_path, 1)[:1]
    raw, batches = as_array(data), parse_log(data)
    ends = np.cumsum([len(batch.raw) for batch in batches]).tolist()
    for filled in range(0, len(data) + 1, 1 if len(data) < 2000 else 7):
        rows, size, last_offset, following = scan.whole_batches(raw, filled, MAX_BATCH_BYTES)
        whole = sum(end <= filled for end in ends)
        assert (rows, size) == (whole, ends[whole - 1] if whole else 0)
        assert last_offset == (batches[whole - 1].last_offset if whole else -1)
        # The header's first 17 bytes tell how much is wanted.
        seen = filled - size >= 17
        assert following == (len(batches[whole].raw) if seen and whole < len(batches) else 0)


@pytest.mark.requirement("CMP-4", "CMP-6", "CMP-10")
def test_keys_and_offsets_are_those_of_the_naive_parser(tmp_path: Path) -> None:
    hashed = without_key = 0
    for number, data in enumerate(random_segments(tmp_path, times(8))):
        raw, table = as_array(data), scanned(data)
        batches = parse_log(data)
        aborted = [number % 3 == 0 and i % 4 == 1 for i in range(len(batches))]
        table["is_aborted"] = aborted
        upper = batches[-1].last_offset - number % 4
        expected = [
            (record.key, record.offset)
            for batch, skipped in zip(batches, aborted, strict=True)
            if not batch.control and not skipped
            for record in batch.records()
            if record.offset < upper
        ]
        count = sum(max(batch.count, 0) for batch in batches)
        hashes, offsets = np.empty((count, 2), np.uint64), np.empty(count, np.int64)
        keyless = np.full(1, 7, np.int64)
        written, error, _ = scan.index_records(
            raw, raw, table, 0, len(table), upper, *SECRET_WORDS, hashes, offsets, keyless
        )
        assert error == arrays.OK
        keyed = [(key, offset) for key, offset in expected if key is not None]
        assert offsets[:written].tolist() == [offset for _, offset in keyed]
        assert list(map(tuple, hashes[:written].tolist())) == [naive_hash(k) for k, _ in keyed]
        assert keyless[0] == 7 + len(expected) - len(keyed)
        hashed, without_key = hashed + len(keyed), without_key + len(expected) - len(keyed)
    assert hashed > 100
    assert without_key > 0


def test_hash_many_hashes_keys_side_by_side() -> None:
    random = Random(6)
    keys = [random.randbytes(random.randrange(30)) for _ in range(40)]
    hashes = np.empty((len(keys), 2), np.uint64)
    lengths = np.array([len(key) for key in keys], np.int64)
    scan.hash_many(as_array(b"".join(keys) + b"\0"), lengths, *SECRET_WORDS, hashes)
    assert list(map(tuple, hashes.tolist())) == [naive_hash(key) for key in keys]


@pytest.mark.requirement("CMP-14")
def test_aborted_batches_are_those_in_a_range_of_their_producer() -> None:
    random = Random(7)
    for _ in range(times(60)):
        ranges = []
        for producer in range(1, 4):
            at = 0
            for _ in range(random.randrange(4)):
                first = at + random.randrange(1, 30)
                at = first + random.randrange(1, 30)
                ranges.append((producer, first, at))
        columns = np.array(ranges, np.int64).reshape(-1, 3).T.copy()
        table = np.zeros(60, arrays.BATCH)
        table["base_offset"] = 2 * np.arange(60)
        table["last_offset"] = table["base_offset"] + 1
        table["magic"] = [random.choice([1, 2, 2, 2]) for _ in table]
        table["attributes"] = [random.choice([0, 0x10, 0x10, 0x30, 0x13]) for _ in table]
        table["producer_id"] = [random.randrange(5) for _ in table]
        scan.mark_aborted(table, len(table), *columns)
        for row in table:
            is_data = row["magic"] == 2 and row["attributes"] & 0x30 == 0x10
            inside = any(
                producer == row["producer_id"]
                and first <= row["last_offset"]
                and row["base_offset"] <= last
                for producer, first, last in ranges
            )
            assert row["is_aborted"] == (is_data and inside), (row, ranges)


@pytest.mark.requirement("CMP-14")
def test_control_types_are_those_of_the_markers(tmp_path: Path) -> None:
    seen = set()
    for data in random_segments(tmp_path, times(12)):
        raw, table = as_array(data), scanned(data)
        scan.read_control_types(raw, raw, table, 0, len(table))
        for row, batch in zip(table, parse_log(data), strict=True):
            kind = batch.control_type() if batch.control else arrays.NOT_CONTROL
            expected = arrays.EMPTY_CONTROL if kind is None else kind
            assert row["control_type"] == expected
            seen.add(expected)
    assert seen == {arrays.NOT_CONTROL, arrays.EMPTY_CONTROL, 0, 1}


@pytest.mark.requirement("CMP-16")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80",
        raw_record(length=varint(99)),
        raw_record(timestamp_delta=b"\xff" * 12),
        raw_record(offset_delta=b"\xff" * 12),
        raw_record(key_size=varint(4), key=b"\0\0", value_size=b"", value=b"", headers=b""),
        raw_record(key_size=varint(3), key=b"\0\0\0"),
        raw_record(key_size=varint(-1), key=b""),
        raw_record(key_size=varint(1 << 62)),
    ],
)
def test_a_control_record_that_is_none_counts_as_empty(payload: bytes) -> None:
    data = raw_batch(payload + bytes(8), count=1, attributes=0x30)
    raw, table = as_array(data), scanned(data)
    table["payload_end"] = 61 + len(payload)  # what follows must not be taken for the key
    scan.read_control_types(raw, raw, table, 0, 1)
    assert table["control_type"].tolist() == [arrays.EMPTY_CONTROL]
