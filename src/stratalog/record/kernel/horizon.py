"""The delete horizons of a log file, from the headers of its batches alone (CMP-9).

Invariants
- Never reads outside `raw[:filled]` (K2); a hop over a batch is within its stated bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stratalog.record.kernel.arrays import BAD_COUNT, BAD_LENGTH, BAD_MAGIC, OK
from stratalog.record.kernel.compile import kernel
from stratalog.record.kernel.primitives import load_i16, load_i32, load_i64

_HEADER_BYTES = 61
_LOG_OVERHEAD = 12
_SMALLEST_BATCH_BYTES = 17
"""Up to the magic, which says what follows."""
_SMALLEST_LEGACY_LENGTH = 14
_HORIZON_MASK = 0x40
_NEVER_MS = (1 << 63) - 1


@kernel
def earliest_horizon(raw: Any, filled: int, max_batch_bytes: int) -> Any:
    """The smallest delete horizon among the batches whose headers lie in `raw[:filled]`.

    raw: uint8[]. A batch that is its header alone holds nothing that could go and is passed over.
    Returns (bytes hopped, past `filled` if the last batch ends there; horizon in ms, 2^63 - 1 if
    there is none; error). Stops without an error where less than a header is left.
    """
    earliest = np.int64(_NEVER_MS)
    position = 0
    while filled - position >= _SMALLEST_BATCH_BYTES:
        length = load_i32(raw, position + 8)
        magic = raw[position + 16]
        if magic > 2:
            return position, earliest, BAD_MAGIC
        smallest = _HEADER_BYTES - _LOG_OVERHEAD if magic == 2 else _SMALLEST_LEGACY_LENGTH
        if length < smallest or length > max_batch_bytes:
            return position, earliest, BAD_LENGTH
        if magic == 2:
            if filled - position < _HEADER_BYTES:
                break
            count = load_i32(raw, position + 57)
            if count < 0:
                return position, earliest, BAD_COUNT
            if count > 0 and (load_i16(raw, position + 21) & _HORIZON_MASK) != 0:
                earliest = min(earliest, load_i64(raw, position + 27))
        position += length + _LOG_OVERHEAD
    return position, earliest, OK
