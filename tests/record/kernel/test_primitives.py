"""Checksums, hashes and varints of the kernels against their naive twins."""

from __future__ import annotations

from random import Random

import google_crc32c
import numpy as np
import pytest

from stratalog.record import varint
from stratalog.record.kernel import primitives
from stratalog.record.kernel.compile import compiled
from stratalog.record.kernel.primitives import BAD_VARINT
from tests.naive import crc32c as naive_crc32c
from tests.naive.siphash import siphash128 as naive_siphash128
from tests.record.kernel.helpers import SECRET_WORDS, as_array, naive_hash, times

crc32c = compiled(primitives.crc32c)
read_varint = compiled(primitives.read_varint)
siphash128 = compiled(primitives.siphash128)
size_of_varint = compiled(primitives.size_of_varint)
write_varint = compiled(primitives.write_varint)

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
EXTREMES = [0, 1, -1, 63, 64, -64, -65, 1 << 31, -(1 << 31), INT64_MAX, INT64_MIN]


@pytest.mark.requirement("LOG-3")
def test_crc_has_its_published_values() -> None:
    assert crc32c(as_array(b"123456789"), 0, 9) == 0xE3069283
    assert crc32c(as_array(bytes(32)), 0, 32) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(as_array(b"\xff" * 32), 0, 32) == 0x62A8AB43
    assert crc32c(as_array(bytes(range(32))), 0, 32) == 0x46DD794E


@pytest.mark.requirement("LOG-3")
def test_crc_equals_the_twin_for_every_way_to_cut_it() -> None:
    """Three streams of 1024, of 128, words and bytes: all lengths around the borders."""
    random = Random(1)
    data = random.randbytes(9000)
    buffer = as_array(data)
    around = [n * k + d for n in (8, 384, 3072) for k in (0, 1, 2) for d in range(-9, 10)]
    for length in sorted({n for n in around if n >= 0}):
        start = random.randrange(64)
        expected = google_crc32c.value(data[start : start + length])
        assert crc32c(buffer, start, start + length) == expected, (start, length)
    for _ in range(times(20)):
        start, end = sorted(random.choices(range(600), k=2))
        assert crc32c(buffer, start, end) == naive_crc32c.crc32c(data[start:end])


def test_crc_tables_serve_machines_without_the_instruction() -> None:
    data = Random(2).randbytes(4000)
    assert primitives._crc_by_table(as_array(data), 3, 300) == google_crc32c.value(data[3:300])


@pytest.mark.requirement("CMP-6")
def test_hash_has_its_published_values() -> None:
    """Appendix A's key, 00 01 ... 0f, and the first outputs of the authors' list."""
    for length, expected in [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
    ]:
        high, low = siphash128(as_array(bytes(range(64))), 0, length, *SECRET_WORDS)
        made = int(high).to_bytes(8, "little") + int(low).to_bytes(8, "little")
        assert made.hex() == expected


@pytest.mark.requirement("CMP-6")
def test_hash_equals_the_twin() -> None:
    random = Random(3)
    data = random.randbytes(700)
    buffer = as_array(data)
    for length in [*range(70), 255, 256, 257, 600]:
        start = random.randrange(40)
        secret = random.getrandbits(64), random.getrandbits(64)
        words = np.uint64(secret[0]), np.uint64(secret[1])
        made = siphash128(buffer, start, length, *words)
        assert (int(made[0]), int(made[1])) == naive_hash(data[start : start + length], secret)
    assert naive_siphash128(bytes(16), b"") != naive_siphash128(bytes(15) + b"\1", b"")


def signed(random: Random) -> int:
    return random.getrandbits(random.randrange(1, 64)) * random.choice([1, -1])


@pytest.mark.requirement("LOG-3")
def test_varints_equal_the_twin_and_come_back() -> None:
    random = Random(4)
    for value in [*EXTREMES, *(signed(random) for _ in range(times(300)))]:
        expected = varint.encode_varlong(value)
        buffer = as_array(bytes(3) + b"\xee" * 12)
        end = write_varint(buffer, 3, np.int64(value))
        assert bytes(buffer[3:end]) == expected
        assert set(buffer[end:].tolist()) == {0xEE}
        assert size_of_varint(np.int64(value)) == len(expected) == end - 3
        read, at = read_varint(buffer, 3, len(buffer))
        assert (int(read), int(at)) == (value, end)
        for cut in range(3, end):
            assert read_varint(buffer, 3, cut)[1] == BAD_VARINT


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 10 + b"\x01", b"\x80" * 11 + b"\0"])
def test_varints_that_are_cut_off_or_too_long_are_bad(data: bytes) -> None:
    assert read_varint(as_array(data + bytes(1)), 0, len(data))[1] == BAD_VARINT


def test_loads_and_stores_are_big_endian_at_any_place() -> None:
    random = Random(5)
    loads = (primitives.load_i64, primitives.load_i32, primitives.load_i16)
    signs = list(zip(map(compiled, loads), (8, 4, 2), strict=True))
    stores = {
        8: compiled(primitives.store_64),
        4: compiled(primitives.store_32),
        2: compiled(primitives.store_16),
    }
    for _ in range(times(50)):
        at = random.randrange(9)
        for load, size in signs:
            data = random.randbytes(24)
            expected = int.from_bytes(data[at : at + size], "big", signed=True)
            assert load(as_array(data), at) == expected
            buffer = as_array(data)
            value = random.getrandbits(8 * size - 1) * random.choice([1, -1])
            stores[size](buffer, at, value)
            encoded = value.to_bytes(size, "big", signed=True)
            assert bytes(buffer) == data[:at] + encoded + data[at + size :]
    assert compiled(primitives.load_u32)(as_array(b"\xff" * 4), 0) == 0xFFFFFFFF
