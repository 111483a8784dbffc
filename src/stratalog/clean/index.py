"""One chunk's keys: their hashes and offsets, and what the chunk reports besides.

The rows of a chunk come in offset order, so the caller splits them at first dirty: rows above it
go into the offset map, rows below it are looked up there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.clean.chunk import Bytes, Chunk, Int64s, Scratch, Table, damage, pieces, scan_chunk
from stratalog.clean.job import CleaningJob, CleanSpec
from stratalog.clean.offset_map import Hashes
from stratalog.clean.settle import TransactionReport, aborted_columns, report_transactions
from stratalog.record import layout
from stratalog.record.batch import Batch, batches
from stratalog.record.kernel import arrays, scan

Visit = Callable[[Hashes, Int64s], None]
"""Receives one piece's rows: hashes uint64[n, 2] and offsets int64[n], valid during the call."""


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """What a chunk says besides its keys. `segment` is the base offset of its segment."""

    segment: int
    ordinal: int
    has_keyless: bool
    transactions: TransactionReport

    @property
    def place(self) -> tuple[int, int]:
        """Sorts reports into file order."""
        return self.segment, self.ordinal


@dataclass(frozen=True, slots=True, eq=False)
class IndexContext:
    """What indexing needs of a job, prepared once: the aborted ranges as columns, the secret."""

    spec: CleanSpec
    aborted: tuple[Int64s, Int64s, Int64s]
    secret: tuple[np.uint64, np.uint64]

    @classmethod
    def of(cls, job: CleaningJob) -> IndexContext:
        key0, key1 = job.spec.hash_secret
        return cls(job.spec, aborted_columns(job.aborted), (np.uint64(key0), np.uint64(key1)))


def index_chunk(
    chunk: Chunk,
    context: IndexContext,
    segment: int,
    *,
    crc_from: int,
    upper_offset: int,
    scratch: Scratch,
    visit: Visit,
) -> ChunkReport:
    """Scan a chunk, give the rows of its keys below `upper_offset` to `visit`, and report.

    Control batches and data of aborted transactions have no rows (CMP-14). Raises
    `CorruptionError` for damage anywhere in the chunk.
    """
    table = scan_chunk(chunk, context.spec, crc_from, scratch)
    scan.mark_aborted(table, len(table), *context.aborted)
    keyless = np.zeros(1, np.int64)
    wanted = table["is_aborted"] == 0
    for first_row, end_row, plain in pieces(chunk, table, wanted, context.spec, scratch):
        scan.read_control_types(chunk.raw, plain, table, first_row, end_row)
        rows = table[first_row:end_row]
        hashes, offsets = _key_rows(chunk, plain, rows, context, upper_offset, keyless, scratch)
        if (rows["magic"] < layout.MAGIC_V2).any():
            hashes, offsets = _with_legacy(
                chunk, rows, context, upper_offset, keyless, hashes, offsets
            )
        visit(hashes, offsets)
    return ChunkReport(segment, chunk.ordinal, bool(keyless[0]), report_transactions(table))


def _key_rows(
    chunk: Chunk,
    plain: Bytes,
    rows: Table,
    context: IndexContext,
    upper_offset: int,
    keyless: Int64s,
    scratch: Scratch,
) -> tuple[Hashes, Int64s]:
    # Nobody looks into the others, so their counts may be anything.
    is_read = (rows["is_aborted"] == 0) & (rows["attributes"] & layout.CONTROL_MASK == 0)
    count = int(rows["count"][is_read].sum())
    hashes = scratch.take("hashes", count, np.uint64, columns=2)
    offsets = scratch.take("offsets", count, np.int64)
    written, error, position = scan.index_records(
        chunk.raw,
        plain,
        rows,
        0,
        len(rows),
        upper_offset,
        *context.secret,
        hashes,
        offsets,
        keyless,
    )
    if error != arrays.OK:
        raise damage(chunk, int(error), int(position))
    return hashes[:written], offsets[:written]


def legacy_batch(chunk: Chunk, row: Table) -> Batch:
    """The magic 0 or 1 message at `row`, its CRC-32 checked."""
    start, size = int(row["position"]), int(row["size_bytes"])
    try:
        (batch,) = batches(chunk.raw[start : start + size])
        if not batch.crc_ok():
            raise CorruptionError("CRC-32 does not match", position=0)
    except CorruptionError as error:
        raise error.located(chunk.path, chunk.position + start) from error
    return batch


def _with_legacy(
    chunk: Chunk,
    rows: Table,
    context: IndexContext,
    upper_offset: int,
    keyless: Int64s,
    hashes: Hashes,
    offsets: Int64s,
) -> tuple[Hashes, Int64s]:
    """Add the rows of magic 0 and 1 messages, one record at a time, and sort by offset again."""
    keys: list[bytes] = []
    places: list[int] = []
    for row in rows[rows["magic"] < layout.MAGIC_V2]:
        batch = legacy_batch(chunk, row)
        for record in batch.records(context.spec.max_decompressed_bytes):
            if record.offset >= upper_offset:
                continue
            if record.key is None:
                keyless[0] += 1
            else:
                keys.append(record.key)
                places.append(record.offset)
    all_offsets = np.concatenate([offsets, np.array(places, np.int64)])
    all_hashes = np.concatenate([hashes, hash_keys(keys, context.secret)])
    order = np.argsort(all_offsets)
    return all_hashes[order], all_offsets[order]


def hash_keys(keys: list[bytes], secret: tuple[np.uint64, np.uint64]) -> Hashes:
    """The hashes of `keys`, as uint64[n, 2]."""
    lengths = np.array([len(key) for key in keys], np.int64)
    joined = np.frombuffer(bytearray(b"".join(keys) + bytes(1)), np.uint8)
    hashes = np.empty((len(keys), 2), np.uint64)
    scan.hash_many(joined, lengths, *secret, hashes)
    return cast("Hashes", hashes)
