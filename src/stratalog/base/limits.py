"""Every bound in one place, each with its reason. Sizes are bytes."""

from __future__ import annotations

MAX_BATCH_BYTES = 1 << 30
"""Largest stored batch that is read at all. Kafka's length field allows 2 GiB - 1; no client can
send more than socket.request.max.bytes (100 MiB by default), so 1 GiB leaves a factor of ten."""

MAX_DECOMPRESSED_BATCH_BYTES = 1 << 28
"""Default bound of what one batch may decompress to (LOG-13): 256 MiB is 256 times the default
max.message.bytes, above what gzip makes of any honest record and below what hurts a worker."""

MAX_HEADERS_PER_RECORD = 1 << 20
"""A record header takes at least two bytes; the bytes that are left bound it further."""

CHUNK_BYTES = 4 << 20
"""Unit of reading while scanning and cleaning: large enough to hide call overhead, small enough
that a chunk and its columns stay in the last-level cache."""

SHUFFLE_BLOCK_BYTES = 8 << 20
"""Largest binary block that crosses between Spark's JVM and Python; larger ones cost heap."""

LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: whoever names a later time means another unit."""

MAX_CHECKPOINT_BYTES = 64 << 20
"""A checkpoint file with a line for each of a million partitions is under 300 MiB of names; 64 MiB
is far above the 10,000 partitions a log directory is planned for."""

MAX_SNAPSHOT_BYTES = 256 << 20
"""Producer snapshots hold 46 bytes a producer: room for five million."""

MAX_TXN_INDEX_BYTES = 1 << 30
"""34 bytes an aborted transaction: thirty million in one segment."""
