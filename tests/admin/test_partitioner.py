"""Kafka's partitioner, against the numbers in Kafka's own tests."""

from __future__ import annotations

import pytest

from stratalog.admin.partitioner import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_of_key(key, 7) == (signed & 0x7FFFFFFF) % 7


def test_keys_of_every_length_have_a_partition() -> None:
    assert {partition_of_key(bytes(range(size)), 3) for size in range(40)} == {0, 1, 2}
