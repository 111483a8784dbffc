"""The tables that kernels fill, and the numbers by which they report damage.

A chunk of a log file is described by one `BATCH` row for each batch in it. Scanning fills the
header columns, decompression the payload columns, deciding the rest. All columns are int64: a
row is 28 words for a batch of at least 61 bytes, and only one chunk's rows exist at a time.
"""

from __future__ import annotations

import numpy as np

_COLUMNS = (
    # from the header
    "position",  # in the chunk's buffer, bytes
    "size_bytes",  # of the whole batch
    "base_offset",  # magic 0 and 1: the message's own offset, which is also the last
    "last_offset",
    "magic",
    "attributes",
    "base_timestamp",  # the raw field: the delete horizon if bit 6 is set
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "count",
    # where the records lie once decompressed
    "payload_start",
    "payload_end",
    "payload_is_plain",  # 1: in the buffer of decompressed bytes; 0: in the chunk itself
    "control_type",  # -1: not a control batch; -2: an empty one; else the marker's type
    "is_aborted",  # 1: data of an aborted transaction
    # what becomes of it
    "discard",  # 1: its records go, whatever they are (Kafka's discardBatchRecords)
    "retain_empty",  # 1: its header stays though all records go (CMP-13)
    "superseded",  # 1: every record has a later one of its key; no look inside is needed
    "needs_horizon",  # 1: control batch whose transaction is gone: start its horizon
    "action",
    "kept_start",  # the records that stay, in the buffer of kept bytes
    "kept_end",
    "kept_count",
    "new_base_timestamp",
    "new_max_timestamp",
    "packed_start",  # the same after compression, in the buffer of packed bytes
    "packed_end",
)

# np.record: in plain Python, too, a row has its columns as attributes (K1).
BATCH = np.dtype((np.record, [(name, np.int64) for name in _COLUMNS]))

NOT_CONTROL = -1
EMPTY_CONTROL = -2

# Actions: what becomes of a batch.
DROP, COPY, REWRITE, EMPTY, REPLACE = 0, 1, 2, 3, 4
"""REPLACE: the packed bytes are the whole new batch (magic 0 and 1, which Python rebuilds)."""

# Drop reasons, also the indices into the array of counters (records dropped for each).
SUPERSEDED, TOMBSTONE, ABORTED, NO_KEY, CONTROL = 0, 1, 2, 3, 4
REASONS = ("superseded", "tombstone_expired", "aborted", "no_key", "control_expired")

# Damage found by a kernel.
OK = 0
BAD_LENGTH, BAD_MAGIC, BAD_CRC, BAD_ORDER, BAD_COUNT = 1, 2, 3, 4, 5
BAD_RECORD, BAD_DELTA, BAD_KEY, BAD_VALUE, BAD_CONTROL, BAD_SEGMENT = 6, 7, 8, 9, 10, 11
BAD_TIMESTAMP = 12
DAMAGE = {
    BAD_LENGTH: "batch length out of bounds",
    BAD_MAGIC: "unknown magic",
    BAD_CRC: "CRC-32C does not match",
    BAD_ORDER: "offsets do not increase",
    BAD_COUNT: "record count does not fit the batch",
    BAD_RECORD: "record length out of bounds",
    BAD_DELTA: "offset delta of a record out of order or bounds",
    BAD_KEY: "key length out of bounds",
    BAD_VALUE: "value length out of bounds",
    BAD_CONTROL: "control batch is compressed",
    BAD_SEGMENT: "offset belongs to the next segment",
    BAD_TIMESTAMP: "timestamp out of bounds",
}
