"""One chunk's keys: hashes, offsets, where asked for versions, and what else the chunk reports.

The rows of a chunk come in offset order, so the caller splits them at first dirty: rows above it
go into the offset map, rows below it are looked up there. Versions (CMP-17) are what
`record/kernel/versions.py` says; messages of magic 0 and 1 have no headers, those of 0 no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.clean.chunk import Bytes, Chunk, Int64s, Scratch, Table, damage, pieces, scan_chunk
from stratalog.clean.job import CleaningJob, CleanSpec, Order
from stratalog.clean.offset_map import Hashes, KeyRows
from stratalog.clean.settle import TransactionReport, aborted_columns, report_transactions
from stratalog.record import layout
from stratalog.record.batch import Batch, batches
from stratalog.record.kernel import arrays, scan, versions
from stratalog.record.values import Record

Visit = Callable[[KeyRows], None]
"""Receives one piece's rows, which are valid during the call."""


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
    """What indexing needs of a job, prepared once: the aborted ranges as columns, the secret, the
    name of the header that holds versions as uint8[]."""

    spec: CleanSpec
    aborted: tuple[Int64s, Int64s, Int64s]
    secret: tuple[np.uint64, np.uint64]
    version_header: Bytes

    @classmethod
    def of(cls, job: CleaningJob) -> IndexContext:
        key0, key1 = job.spec.hash_secret
        return cls(
            job.spec,
            aborted_columns(job.aborted),
            (np.uint64(key0), np.uint64(key1)),
            header_name(job.spec),
        )

    @classmethod
    def of_later(cls, job: CleaningJob) -> IndexContext:
        """For what lies beyond the round's end: no transaction there counts as aborted. A commit
        may yet make any of its records visible, and one that will not only keeps a tombstone for
        longer (CMP-18)."""
        return replace(cls.of(job), aborted=aborted_columns(()))

    @property
    def has_versions(self) -> bool:
        """Whether rows carry versions."""
        return self.spec.order is not Order.OFFSET


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
        piece = table[first_row:end_row]
        rows = _key_rows(chunk, plain, piece, context, upper_offset, keyless, scratch)
        if (piece["magic"] < layout.MAGIC_V2).any():
            rows = _with_legacy(chunk, piece, context, upper_offset, keyless, rows)
        visit(rows)
    return ChunkReport(segment, chunk.ordinal, bool(keyless[0]), report_transactions(table))


def _key_rows(
    chunk: Chunk,
    plain: Bytes,
    piece: Table,
    context: IndexContext,
    upper_offset: int,
    keyless: Int64s,
    scratch: Scratch,
) -> KeyRows:
    # Nobody looks into the others, so their counts may be anything.
    is_read = (piece["is_aborted"] == 0) & (piece["attributes"] & layout.CONTROL_MASK == 0)
    count = int(piece["count"][is_read].sum())
    hashes = scratch.take("hashes", count, np.uint64, columns=2)
    offsets = scratch.take("offsets", count, np.int64)
    of_rows = None
    bounds = (chunk.raw, plain, piece, 0, len(piece), upper_offset)
    if context.has_versions:
        of_rows = scratch.take("versions", count, np.int64)
        written, error, position = versions.index_versions(
            *bounds,
            *context.secret,
            context.spec.order is Order.HEADER,
            context.version_header,
            hashes,
            offsets,
            of_rows,
            keyless,
        )
    else:
        written, error, position = scan.index_records(
            *bounds, *context.secret, hashes, offsets, keyless
        )
    if error != arrays.OK:
        raise damage(chunk, int(error), int(position))
    return KeyRows(hashes, offsets, of_rows).part(0, written)


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
    piece: Table,
    context: IndexContext,
    upper_offset: int,
    keyless: Int64s,
    rows: KeyRows,
) -> KeyRows:
    """Add the rows of magic 0 and 1 messages, one record at a time, and sort by offset again."""
    keys: list[bytes] = []
    places: list[int] = []
    of_keys: list[int] = []
    for row in piece[piece["magic"] < layout.MAGIC_V2]:
        batch = legacy_batch(chunk, row)
        for record in batch.records(context.spec.max_decompressed_bytes):
            if record.offset >= upper_offset:
                continue
            if record.key is None:
                keyless[0] += 1
            else:
                keys.append(record.key)
                places.append(record.offset)
                of_keys.append(legacy_version(record, context.spec.order))
    offsets = np.concatenate([rows.offsets, np.array(places, np.int64)])
    hashes = np.concatenate([rows.hashes, hash_keys(keys, context.secret)])
    order = np.argsort(offsets)
    of_rows = None
    if rows.versions is not None:
        of_rows = np.concatenate([rows.versions, np.array(of_keys, np.int64)])[order]
    return KeyRows(hashes[order], offsets[order], of_rows)


def legacy_version(record: Record, order: Order) -> int:
    """The version of a record of magic 0 or 1, which has no headers; 0 if they have none."""
    if order is Order.HEADER:
        return versions.LOWEST
    return record.timestamp if order is Order.TIMESTAMP else 0


def header_name(spec: CleanSpec) -> Bytes:
    """The name of the header that holds versions, as kernels take it: uint8[]."""
    return np.frombuffer(bytearray(spec.version_header.encode()), np.uint8)


def hash_keys(keys: list[bytes], secret: tuple[np.uint64, np.uint64]) -> Hashes:
    """The hashes of `keys`, as uint64[n, 2]."""
    lengths = np.array([len(key) for key in keys], np.int64)
    joined = np.frombuffer(bytearray(b"".join(keys) + bytes(1)), np.uint8)
    hashes = np.empty((len(keys), 2), np.uint64)
    scan.hash_many(joined, lengths, *secret, hashes)
    return cast("Hashes", hashes)
