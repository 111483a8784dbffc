"""The `.txnindex` file: the aborted transactions whose marker lies in this segment.

    file   := entry*                        big-endian, 34 bytes an entry
    entry  := version int16 = 0, producer id int64, first offset int64, last offset int64,
              last stable offset int64

`first offset` is that of the transaction's first record (often in an earlier segment), `last
offset` that of the abort marker, `last stable offset` the first offset of the earliest transaction
still open when the marker came, or marker + 1. A reader that has passed an entry with
last stable offset >= its end need look no further. A segment without aborts has no such file.

Invariants
- I1  base offset <= last offset, and last offsets grow.
- I2  first offset <= last offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stratalog.base.errors import CorruptionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY_BYTES = 34
_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """One aborted transaction; all offsets absolute."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode(data: Buffer, base_offset: int) -> tuple[AbortedTxn, ...]:
    """Parse a whole `.txnindex` file of the segment at `base_offset`.

    Raises `CorruptionError` (position: bytes in the index file) for an unknown version, a size that
    is no multiple of an entry, or entries out of order.
    """
    raw = np.frombuffer(memoryview(data), np.uint8)
    if len(raw) % ENTRY_BYTES:
        raise CorruptionError(f"{len(raw)} bytes are no multiple of {ENTRY_BYTES}")
    entries: list[AbortedTxn] = []
    previous = base_offset - 1
    for slot, (version, producer_id, first, last, stable) in enumerate(raw.view(_ENTRY).tolist()):
        if version != 0:
            reason = f"version {version} of a transaction entry is not known"
        elif last <= previous:
            reason = f"marker offset {last} does not follow {previous}"
        elif not 0 <= first <= last:
            reason = f"transaction from {first} to {last}"
        else:
            entries.append(AbortedTxn(producer_id, first, last, stable))
            previous = last
            continue
        raise CorruptionError(reason, position=slot * ENTRY_BYTES)
    return tuple(entries)


def encode(entries: Iterable[AbortedTxn]) -> bytes:
    """The bytes of entries, in the order given (which must be that of the markers)."""
    rows = [
        (0, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset) for e in entries
    ]
    return np.array(rows, _ENTRY).tobytes()


def aborted_between(
    entries: Iterable[AbortedTxn], start_offset: int, end_offset: int
) -> list[AbortedTxn]:
    """Those that touch [start_offset, end_offset): what a read_committed reader must leave out."""
    return [e for e in entries if e.last_offset >= start_offset and e.first_offset < end_offset]
