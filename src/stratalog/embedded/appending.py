"""What becomes of many records that are appended at once: partitions, then batches.

Invariants
- I1  A record's partition is that of `partition_of_key`, however many come with it.
- I2  Within a partition records stay in the order in which they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers_from
from itertools import repeat

import numpy as np

from stratalog.admin.partitioner import partition_of_key
from stratalog.embedded.records import Appended
from stratalog.record.builder import NewRecord
from stratalog.record.kernel.arrow_records import place_keys
from stratalog.record.kernel.compile import runs_plain

_BATCH_BYTES = 256 << 10
_RECORD_BYTES = 64
"""About what a record takes beside its key, value and headers."""
_FEW_KEYS = 32
_MOST_KEY_BYTES = 1 << 30


_new_appended: Callable[[type[Appended], tuple[int, int]], Appended] = tuple.__new__


def partitions_of(keys: Sequence[bytes], count: int) -> list[int]:
    """The partition of each key among `count`."""
    size_bytes = sum(map(len, keys))
    # Two microseconds for each in Python, more for long ones; in the kernel a tenth of that.
    cost = 2 * len(keys) + size_bytes // 10
    if len(keys) < _FEW_KEYS or size_bytes > _MOST_KEY_BYTES or runs_plain(cost):
        return [partition_of_key(key, count) for key in keys]
    joined = np.frombuffer(bytearray(b"".join(keys)) or bytearray(1), np.uint8)
    ends = np.zeros(len(keys) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), out=ends[1:])
    placed = np.empty(len(keys), np.int64)
    place_keys(joined, ends, np.ones(len(keys), np.bool_), count, placed)
    answer: list[int] = placed.tolist()
    return answer


def batches_of(records: Sequence[NewRecord], room_bytes: int) -> Iterator[tuple[int, int]]:
    """Records [a, b) that share a batch: at most `room_bytes`, unless it is one alone."""
    room_bytes = min(_BATCH_BYTES, room_bytes)
    first = size_bytes = 0
    for number, (key, value, _, headers) in enumerate(records):
        more = len(key or b"") + len(value or b"") + _RECORD_BYTES
        if headers:
            more += sum(len(name) + len(content or b"") + 8 for name, content in headers)
        if size_bytes + more > room_bytes and first < number:
            yield first, number
            first, size_bytes = number, 0
        size_bytes += more
    if first < len(records):
        yield first, len(records)


def appended(partition: int, first_offset: int) -> Iterator[Appended]:
    """Where records went that follow one another, without end."""
    return map(_new_appended, repeat(Appended), zip(repeat(partition), numbers_from(first_offset)))
