"""The scan of recovery against a naive parser, on random logs with random damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stratalog.base.errors import StorageIOError
from stratalog.log import scanning
from stratalog.log.scanning import LogScan
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import MAX_OFFSET
from tests.naive.random_batches import Features, Writer
from tests.naive.records import Record, build_v2, parse_log
from tests.naive.scanning import sound_prefix

if TYPE_CHECKING:
    from typing_extensions import Buffer

FEATURES = Features(batches=24, legacy=True, huge_gaps=False)


class BytesFile:
    """A file in memory; `missing` bytes at its end are not there any more when they are read."""

    path = "memory.log"

    def __init__(self, data: bytes, missing: int = 0):
        self.data = data
        self.missing = missing

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        found = self.data[: len(self.data) - self.missing][position : position + len(view)]
        view[: len(found)] = found
        return len(found)

    def pwrite(self, data: Buffer, position: int) -> None:
        raise AssertionError("a scan writes nothing")

    def size_bytes(self) -> int:
        return len(self.data)

    def file_id(self) -> int:
        return 0

    def truncate(self, size_bytes: int) -> None:
        raise AssertionError("a scan writes nothing")

    def fsync(self) -> None:
        raise AssertionError("a scan writes nothing")

    def close(self) -> None:
        pass


def random_segment(random: Random) -> tuple[int, bytes]:
    """Base offset and bytes; some batches are made large."""
    writer = Writer(random, FEATURES)
    for _ in range(random.randint(4, 24)):
        writer.step()
        if random.random() < 0.1:
            value = random.randbytes(random.choice([700, 3000]))
            record = Record(writer.offset, writer.time_ms, b"large", value)
            writer.append(build_v2([record], base_offset=record.offset, last_offset=record.offset))
    segment = max(writer.segments, key=lambda one: one.size)
    return segment.base, b"".join(batch.raw for batch in segment.batches)


def damaged(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    match random.randrange(8):
        case 0:
            return data
        case 1:
            return data[:at]
        case 2:  # one bit
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 3:  # one bit of a header's first bytes, which no checksum covers
            batches = parse_log(data)
            starts = np.cumsum([0, *(len(batch.raw) for batch in batches[:-1])]).tolist()
            at = random.choice(starts) + random.randrange(17)
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 4:  # a tail that was never written
            return data[:at] + bytes(len(data) - at)
        case 5:
            return data[:at] + random.randbytes(random.randrange(1, 200))
        case 6:  # a piece twice
            return data[:at] + data[max(at - 300, 0) :]
        case _:  # a sector from elsewhere
            size = min(64, len(data) - at)
            other = random.randrange(len(data) - size + 1)
            return data[:at] + data[other : other + size] + data[at + size :]


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1")
def test_a_scan_believes_what_a_naive_parser_believes(
    monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[str, int], None]
) -> None:
    random, cases, stopped = Random(20), 0, 0
    for _ in range(60):
        base, good = random_segment(random)
        for _ in range(70):
            data = damaged(random, good)
            limit = random.choice([MAX_OFFSET, base + (1 << 31), base + random.randint(1, 60)])
            # The smallest chunks are smaller than a header, and than most batches.
            monkeypatch.setattr(
                scanning, "CHUNK_BYTES", random.choice([10, 90, 500, 5000, 1 << 22])
            )
            monkeypatch.setattr(scanning, "_ROWS", random.choice([1, 2, 7, 100]))
            scan = LogScan(LogFile(BytesFile(data)), base, len(data), limit)
            rows: list[tuple[int, int, int, int]] = []
            pieces = b""
            for found in scan:
                rows += zip(*(column.tolist() for column in found.columns()), strict=True)
                for row in range(len(found.table)):
                    batch = found.batch(row)
                    assert batch.position == len(pieces)
                    pieces += batch.data
            end, next_offset = sound_prefix(data, base, limit)
            assert (scan.end, scan.next_offset) == (end, next_offset)
            assert (scan.damage is not None) == (end < len(data))
            assert pieces == data[:end]
            batches = parse_log(data[:end])
            assert [row[1:] for row in rows] == [
                (len(batch.raw), batch.last_offset, batch.max_timestamp) for batch in batches
            ]
            if scan.damage is not None:
                assert (scan.damage.file, scan.damage.position) == ("memory.log", end)
                stopped += 1
            cases += 1
    assert cases == 4200
    assert 1500 < stopped < cases - 300
    count_cases("scans of damaged segments equal to the naive parser's", cases)


@pytest.mark.requirement("RCV-1")
def test_every_flip_of_a_bit_is_met_where_it_is() -> None:
    """But for what lies outside the checksum and changes no order: offset up, leader epoch."""
    writer = Writer(Random(4), replace(FEATURES, legacy=False))
    while len(writer.segments[0].batches) < 3:
        writer.step()
    segment = writer.segments[0]
    data = b"".join(batch.raw for batch in segment.batches)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        scan = LogScan(LogFile(BytesFile(bytes(flipped))), segment.base, len(data), MAX_OFFSET)
        for _ in scan:
            pass
        assert (scan.end, scan.next_offset) == sound_prefix(
            bytes(flipped), segment.base, MAX_OFFSET
        )


@pytest.mark.requirement("RCV-1")
def test_a_batch_larger_than_the_chunk_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK_BYTES", 100)
    data = b""
    for offset, size in ((0, 5), (1, 20_000), (2, 5), (3, 150_000)):
        record = Record(offset, 7, b"k", b"v" * size)
        data += build_v2([record], base_offset=offset, last_offset=offset)
    scan = LogScan(LogFile(BytesFile(data)), 0, len(data))
    assert [len(found.table) for found in scan] == [1, 1, 1, 1]
    assert (scan.end, scan.next_offset, scan.damage) == (len(data), 4, None)
    scan = LogScan(LogFile(BytesFile(data[:-1])), 0, len(data) - 1)
    assert [len(found.table) for found in scan] == [1, 1, 1]
    assert scan.next_offset == 3
    assert scan.damage is not None


@pytest.mark.requirement("RCV-1")
def test_a_length_of_nonsense_reserves_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that claims a gigabyte in a file of some bytes."""
    record = Record(0, 7, b"k", b"v" * 500)
    data = bytearray(build_v2([record], base_offset=0, last_offset=0))
    data[8:12] = ((1 << 30) - 1).to_bytes(4, "big")
    monkeypatch.setattr(scanning, "CHUNK_BYTES", 100)
    reserved: list[int] = []
    empty = np.empty

    def counting(shape: int, dtype: object) -> object:
        reserved.append(shape)
        return empty(shape, dtype)  # type: ignore[call-overload]

    monkeypatch.setattr(np, "empty", counting)
    scan = LogScan(LogFile(BytesFile(bytes(data))), 0, len(data))
    for _ in scan:
        raise AssertionError("nothing of it is sound")
    assert (scan.end, scan.damage is not None) == (0, True)
    assert max(reserved) <= scanning._ROWS


@pytest.mark.requirement("RCV-1")
def test_a_file_that_gets_shorter_meanwhile_is_no_damage() -> None:
    record = Record(0, 7, b"k", b"v" * 500)
    data = build_v2([record], base_offset=0, last_offset=0)
    scan = LogScan(LogFile(BytesFile(data, missing=3)), 0, len(data))
    with pytest.raises(StorageIOError, match="shorter than it was"):
        list(scan)
    assert scan.damage is None


def batch_at(offset: int, said: int | None = None) -> bytes:
    """A batch of two records at `offset`, which says it were at `said`."""
    records = [Record(offset + n, 5, b"k", b"v") for n in range(2)]
    data = build_v2(records, base_offset=offset, last_offset=offset + 1)
    return (offset if said is None else said).to_bytes(8, "big") + data[8:]


@pytest.mark.requirement("RCV-1", "RCV-7")
@pytest.mark.parametrize("chunk_bytes", [80, 1 << 20])
def test_whose_offset_is_wrong(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    """A batch out of place may be right where the one before it may be wrong, and only there: else
    it is one that a torn write took the first bytes of."""
    monkeypatch.setattr(scanning, "CHUNK_BYTES", chunk_bytes)

    def claimed(*batches: bytes, base_offset: int = 300) -> int | None:
        data = b"".join(batches)
        scan = LogScan(LogFile(BytesFile(data)), base_offset, len(data), MAX_OFFSET)
        for _ in scan:
            pass
        assert scan.damage is not None
        assert scan.damage.reason == "offsets do not increase"
        return scan.claimed_offset

    sound = [batch_at(300), batch_at(302)]
    assert claimed(*sound, batch_at(304, said=0)) is None
    assert claimed(sound[0], batch_at(302, said=46)) is None
    assert claimed(sound[0], batch_at(302, said=310), batch_at(304)) == 304
    assert claimed(*sound, batch_at(304, said=316), batch_at(306)) == 306
    assert claimed(batch_at(298), base_offset=300) == 298, "of another file, perhaps"
    assert claimed(batch_at(306, said=310), batch_at(308), base_offset=306) == 308
