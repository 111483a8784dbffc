"""A segment's digest from the grammar in docs/FORMAT.md, batch by batch."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.naive.crc32c import crc32c
from tests.naive.records import parse_log

_BLOCK_BYTES = 65_536
_HEAD_BYTES = 61


def blocks_of(log: bytes) -> list[tuple[int, int]]:
    """(bytes, checksum) of each block."""
    blocks, size, covered = [], 0, b""
    for batch in parse_log(log):
        size += len(batch.raw)
        covered += batch.raw[:_HEAD_BYTES]
        if size >= _BLOCK_BYTES:
            blocks.append((size, crc32c(covered)))
            size, covered = 0, b""
    if size:
        blocks.append((size, crc32c(covered)))
    return blocks


def digest_of(log: bytes, file_id: int, index_files: Sequence[bytes | None]) -> bytes:
    """The digest file of a log of whole batches; `index_files`: .index, .timeindex, .txnindex."""
    table = b"".join(struct.pack(">II", *block) for block in blocks_of(log))
    fields = [
        batch.raw[17:21] if batch.magic == 2 else batch.raw[12:16] for batch in parse_log(log)
    ]
    rest = struct.pack(">I", crc32c(table))
    rest += struct.pack(">QQ", file_id, len(log))
    rest += struct.pack(">II", crc32c(b"".join(fields)), len(table) // 8)
    for content in index_files:
        rest += struct.pack(
            ">qI", *((-1, 0) if content is None else (len(content), crc32c(content)))
        )
    return b"SLDG" + struct.pack(">II", 1, crc32c(rest)) + rest + table
