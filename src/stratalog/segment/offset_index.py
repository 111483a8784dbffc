"""The `.index` file: from an offset to a place in the log file at or before it.

    file   := entry*  zero*                 big-endian, 8 bytes an entry
    entry  := relative offset int32 (offset - base offset), position int32 (bytes in the .log)

An entry says: the batch that starts at `position` holds offsets up to `offset` or is followed by
ones that do; every batch before it ends below. So a reader that starts at the position of the last
entry at or below its offset and walks forward misses nothing. Not every batch has an entry.

A running Kafka leaves the file preallocated and zero-filled; a real entry never has position 0
(the first entry comes after `index.interval.bytes` of data), so trailing zeros are cut (I3).
There is no checksum: what does not hold together is rebuilt from the log (RCV-4).

Invariants
- I1  offsets and positions grow strictly.
- I2  base offset <= offset <= base offset + 2^31 - 1; position < size of the log file.
- I3  An entry of eight zero bytes is padding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stratalog.base.errors import CorruptionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY_BYTES = 8
MAX_RELATIVE_OFFSET = (1 << 31) - 1
_ONE = struct.Struct(">ii")
_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """The entries of one offset index, as columns of equal length (int64; absolute, bytes)."""

    base_offset: int
    offsets: Int64s
    positions: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def position_before(self, offset: int) -> int:
        """Where to start walking to reach `offset`: position of the last entry <= it, else 0."""
        slot = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return 0 if slot < 0 else int(self.positions[slot])


def empty(base_offset: int) -> OffsetIndex:
    """An index without entries."""
    return OffsetIndex(base_offset, np.empty(0, np.int64), np.empty(0, np.int64))


def decode(data: Buffer, base_offset: int, log_size_bytes: int | None = None) -> OffsetIndex:
    """Parse a whole `.index` file.

    Raises `CorruptionError` (position: bytes in the index file) when the size is no multiple of an
    entry, entries do not grow, or a position lies outside `log_size_bytes`.
    """
    raw = np.frombuffer(memoryview(data), np.uint8)
    if len(raw) % ENTRY_BYTES:
        raise CorruptionError(f"{len(raw)} bytes are no multiple of {ENTRY_BYTES}")
    used = raw.view(">i8").nonzero()[0]
    entries = raw.view(_ENTRY)[: int(used[-1]) + 1 if len(used) else 0]
    relative = entries["relative_offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    _refuse(relative < 0, "negative relative offset")
    _refuse(positions <= 0, "position is not above 0")
    _refuse(np.diff(relative) <= 0, "offsets do not grow")
    _refuse(np.diff(positions) <= 0, "positions do not grow")
    if log_size_bytes is not None:
        _refuse(positions >= log_size_bytes, f"position past the log's {log_size_bytes} bytes")
    if base_offset > np.iinfo(np.int64).max - MAX_RELATIVE_OFFSET:
        _refuse(relative > np.iinfo(np.int64).max - base_offset, "offset past 2^63 - 1")
    return OffsetIndex(base_offset, relative + base_offset, positions)


def encode(base_offset: int, offsets: Int64s, positions: Int64s) -> bytes:
    """The bytes of entries: absolute offsets and positions, both of shape (n,)."""
    entries = np.empty(len(offsets), _ENTRY)
    relative = offsets - base_offset
    assert len(relative) == 0 or (relative.min() >= 0 and relative.max() <= MAX_RELATIVE_OFFSET)
    assert len(positions) == 0 or positions.max() <= MAX_RELATIVE_OFFSET
    entries["relative_offset"] = relative
    entries["position"] = positions
    return entries.tobytes()


def encode_entry(base_offset: int, offset: int, position: int) -> bytes:
    """One entry, as `encode` gives it; an append has one at a time, and arrays cost more."""
    return _ONE.pack(offset - base_offset, position)


def max_entries(index_bytes_max: int) -> int:
    """How many entries `segment.index.bytes` allows."""
    return index_bytes_max // ENTRY_BYTES


def _refuse(bad: npt.NDArray[np.bool_], reason: str) -> None:
    if bad.any():
        raise CorruptionError(reason, position=int(bad.argmax()) * ENTRY_BYTES)
