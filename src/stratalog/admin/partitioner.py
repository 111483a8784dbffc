"""Which partition a key goes to: Kafka's default partitioner, murmur2 of the key's bytes.

Producers in all languages agree on it, so that a key of an imported log lies where a producer would
have put it.

Source: Kafka's Utils.murmur2 and BuiltInPartitioner.partitionForKey.
"""

from __future__ import annotations

from struct import unpack_from

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, as an unsigned number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for word in unpack_from(f"<{length >> 2}I", data):
        word = word * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER ^ (word ^ word >> 24) * _MULTIPLIER) & _MASK
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of `key` among `partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions if partitions > 1 else 0
