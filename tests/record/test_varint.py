from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.record.varint import (
    decode_varint,
    decode_varlong,
    encode_varint,
    encode_varlong,
    size_of_varint,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.requirement("LOG-3")
@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (300, "d804"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_known_encodings(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert encode_varlong(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


def test_known_long_encodings() -> None:
    assert encode_varlong(2**63 - 1).hex() == "fe" + "ff" * 8 + "01"
    assert encode_varlong(-(2**63)).hex() == "ff" * 9 + "01"


@given(INT32, st.binary(max_size=3), st.binary(max_size=3))
def test_varint_round_trip(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert len(encoded) == size_of_varint(value)
    end = len(before) + len(encoded)
    assert decode_varint(before + encoded + after, len(before)) == (value, end)
    assert decode_varint(memoryview(before + encoded + after), len(before)) == (value, end)


@given(INT64)
def test_varlong_round_trip(value: int) -> None:
    encoded = encode_varlong(value)
    assert len(encoded) == size_of_varint(value)
    assert decode_varlong(encoded, 0) == (value, len(encoded))


@given(INT64)
def test_truncated(value: int) -> None:
    encoded = encode_varlong(value)
    for size in range(len(encoded)):
        with pytest.raises(CorruptionError, match="truncated"):
            decode_varlong(encoded[:size], 0)


def test_position_beyond_the_end_is_truncated() -> None:
    with pytest.raises(CorruptionError, match="truncated"):
        decode_varint(b"\x00", 5)


@pytest.mark.parametrize("encoded", ["8080808080", "ffffffff10", "8080808010"])
def test_no_int32(encoded: str) -> None:
    with pytest.raises(CorruptionError, match="too long"):
        decode_varint(bytes.fromhex(encoded) + b"\x00" * 8, 0)


@pytest.mark.parametrize("encoded", ["80" * 10, "ff" * 9 + "02"])
def test_no_int64(encoded: str) -> None:
    with pytest.raises(CorruptionError, match="too long"):
        decode_varlong(bytes.fromhex(encoded) + b"\x00" * 8, 0)


def test_longer_than_needed_is_accepted() -> None:
    assert decode_varint(bytes.fromhex("8000"), 0) == (0, 2)
    assert decode_varint(bytes.fromhex("8280808000"), 0) == (1, 5)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_encode_outside_int32(value: int) -> None:
    with pytest.raises(OverflowError):
        encode_varint(value)
    assert decode_varlong(encode_varlong(value), 0)[0] == value


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_encode_outside_int64(value: int) -> None:
    with pytest.raises(OverflowError):
        encode_varlong(value)
