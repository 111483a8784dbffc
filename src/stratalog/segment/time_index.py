"""The `.timeindex` file: from a timestamp to an offset at or before the first record that late.

    file   := entry*  zero*                 big-endian, 12 bytes an entry
    entry  := timestamp int64 (ms), relative offset int32 (offset - base offset)

An entry says: no record up to and including the batch that ends at `offset` is later than
`timestamp`, and that batch holds one with exactly this timestamp. When a segment is closed, a last
entry for its largest timestamp is added, so the last entry is the segment's largest timestamp
(RET-2). Trailing zeros are padding of a running Kafka's file.

Invariants
- I1  timestamps grow strictly, offsets do not fall.
- I2  timestamp >= 0; base offset <= offset <= base offset + 2^31 - 1.
- I3  A trailing entry of zero bytes is padding. (A segment whose records are all of 1970-01-01
      00:00 loses its entry this way; its largest timestamp is then read from the batches.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import CorruptionError
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET, Int64s

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY_BYTES = 12
_ONE = struct.Struct(">qi")
_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """The entries of one time index, as columns of equal length (int64, ms, absolute offsets)."""

    base_offset: int
    timestamps: Int64s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.timestamps)

    def offset_before(self, timestamp: int) -> int:
        """Where to start looking for a record of at least `timestamp`.

        The offset of the last entry <= it, else the base offset: no record before that offset is
        later than the entry's timestamp.
        """
        slot = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        return self.base_offset if slot < 0 else int(self.offsets[slot])

    @property
    def last(self) -> tuple[int, int]:
        """Timestamp and offset of the last entry; (-1, base offset) when there is none."""
        if len(self.timestamps) == 0:
            return -1, self.base_offset
        return int(self.timestamps[-1]), int(self.offsets[-1])


def empty(base_offset: int) -> TimeIndex:
    """An index without entries."""
    return TimeIndex(base_offset, np.empty(0, np.int64), np.empty(0, np.int64))


def decode(data: Buffer, base_offset: int) -> TimeIndex:
    """Parse a whole `.timeindex` file.

    Raises `CorruptionError` (position: bytes in the index file) when the size is no multiple of an
    entry or the entries are out of order.
    """
    raw = np.frombuffer(memoryview(data), np.uint8)
    if len(raw) % ENTRY_BYTES:
        raise CorruptionError(f"{len(raw)} bytes are no multiple of {ENTRY_BYTES}")
    used = raw.nonzero()[0]
    entries = raw.view(_ENTRY)[: int(used[-1]) // ENTRY_BYTES + 1 if len(used) else 0]
    timestamps = entries["timestamp"].astype(np.int64)
    relative = entries["relative_offset"].astype(np.int64)
    _refuse(relative < 0, "negative relative offset")
    _refuse(timestamps < 0, "negative timestamp")
    _refuse(timestamps[1:] <= timestamps[:-1], "timestamps do not grow")
    _refuse(relative[1:] < relative[:-1], "offsets fall")
    if base_offset > np.iinfo(np.int64).max - MAX_RELATIVE_OFFSET:
        _refuse(relative > np.iinfo(np.int64).max - base_offset, "offset past 2^63 - 1")
    return TimeIndex(base_offset, timestamps, relative + base_offset)


def encode(base_offset: int, timestamps: Int64s, offsets: Int64s) -> bytes:
    """The bytes of entries: timestamps in ms and absolute offsets, both of shape (n,)."""
    entries = np.empty(len(timestamps), _ENTRY)
    relative = offsets - base_offset
    assert len(relative) == 0 or (relative.min() >= 0 and relative.max() <= MAX_RELATIVE_OFFSET)
    entries["timestamp"] = timestamps
    entries["relative_offset"] = relative
    return entries.tobytes()


def encode_entry(base_offset: int, timestamp: int, offset: int) -> bytes:
    """One entry, as `encode` gives it."""
    return _ONE.pack(timestamp, offset - base_offset)


def max_entries(index_bytes_max: int) -> int:
    """How many entries `segment.index.bytes` allows; rolling leaves one for the closing entry."""
    return index_bytes_max // ENTRY_BYTES


def _refuse(bad: npt.NDArray[np.bool_], reason: str) -> None:
    if bad.any():
        raise CorruptionError(reason, position=int(bad.argmax()) * ENTRY_BYTES)
