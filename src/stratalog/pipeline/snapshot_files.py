"""A snapshot's Parquet files as workers write them: new rows, and what stays of an older file.

    write_part     a whole partition, read and written in one go
    write_units    rows with the number of their unit -> a file for each unit, one row that tells
    survivors      pieces that were rewritten since -> the records that they still hold

A unit is one bucket of one partition's keys. Without an older file it holds the rows as they come.
With one, a row of it stays unless its key came again (a tombstone is a row, too, and only deletes),
its offset lies below the log start, or it lies in a segment that was rewritten and is no longer
there: so cleaned and deleted records go without a look at their values.

Invariants
- U1  Files have names of their own attempt; only the driver gives them their final ones.
- U2  A file that is told of is on the disk (fsync), as far as its machine knows.
- U3  Memory: the new keys of one unit, and a row group.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.base.errors import CorruptionError, LogChangedError
from stratalog.base.filesystem import translated_errors
from stratalog.clean.chunk import Int64s, Scratch
from stratalog.pipeline.batches import ArrowForm
from stratalog.pipeline.latest import read_latest
from stratalog.pipeline.latest_frame_tasks import LatestJob
from stratalog.pipeline.locating import Wanted
from stratalog.pipeline.planning import LatestPart, Piece
from stratalog.pipeline.reading import PieceReader, ReadContext, chunk_batches, open_planned
from stratalog.pipeline.sink_columns import column_bytes
from stratalog.record.kernel import scan
from stratalog.record.kernel.warmup import ensure_warm

_LOGGER = logging.getLogger(__name__)
REPORT = "unit int, name string, rows bigint, size_bytes bigint, least_offset bigint, kept boolean"
"""What `write_units` tells of each file; `kept`: the older file is as good as a new one."""

REPORT_NAMES = tuple(field.split()[0] for field in REPORT.split(", "))

PART = ".part"
_PRINT_KEY = np.uint64(0x5354524154414C4F)
_MIXED = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose multiples look random."""

_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Survivors:
    """Offsets [first_offset, end_offset) of a partition were rewritten; the records that are still
    there lie in the files `paths`, by offset: int64 pairs of offset and fingerprint, which tells a
    record from another one at its offset, where a log was begun anew."""

    first_offset: int
    end_offset: int
    paths: tuple[str, ...]

    def drops(self, name: str, offsets: Int64s, prints: Int64s) -> npt.NDArray[np.bool_]:
        """Which of some records are in the range and no longer there.

        Raises `LogChangedError` if another record lies at the offset of one: nothing can be built
        upon what was read of partition `name` then.
        """
        gone: npt.NDArray[np.bool_] = (offsets >= self.first_offset) & (offsets < self.end_offset)
        for path in self.paths:
            with translated_errors(path):
                if os.path.getsize(path) == 0:
                    continue
                left = np.memmap(path, np.int64, "r").reshape(-1, 2)
            places = np.minimum(np.searchsorted(left[:, 0], offsets), len(left) - 1)
            is_there = left[places, 0] == offsets
            if (gone & is_there & (left[places, 1] != prints)).any():
                raise LogChangedError(f"{name}: was begun anew: take a whole snapshot")
            gone &= ~is_there
        return gone


@dataclass(frozen=True, slots=True)
class Unit:
    """What is to become of a bucket of partition `name`. `older`: path of the file that is there,
    of a snapshot up to `older_end`; `log_start`: no record below it counts any more."""

    number: int
    name: str
    older: str | None = None
    older_end: int = 0
    log_start: int = 0
    survivors: tuple[Survivors, ...] = ()


# ---------------------------------------------------------------- what a rewritten piece holds


def survivors(piece: Piece, job: LatestJob, directory: str) -> str:
    """Write down offsets and fingerprints of a piece's committed records; the path of the file.

    Raises `LogChangedError` if the piece was replaced, `CorruptionError`.
    """
    segment = open_planned(piece)
    if segment is None:
        name = str(piece.place.topic_partition)
        raise LogChangedError(f"{name}: was cleaned while it was being read: ask again")
    schema = pa.schema(
        [
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
        ]
    )
    wanted = Wanted(piece.first_offset, piece.end_offset)
    context = ReadContext.of(piece, ArrowForm(schema), job.rules, wanted)
    reader, scratch = PieceReader(segment, piece), Scratch()
    path = os.path.join(directory, f"survivors-{uuid.uuid4().hex}{PART}")
    with translated_errors(path), open(path, "wb") as file:
        while (chunk := reader.take(scratch)) is not None:
            for batch in chunk_batches(chunk, context, scratch):
                pairs = np.empty((batch.num_rows, 2), np.int64)
                pairs[:, 0] = batch.column(0).to_numpy()
                pairs[:, 1] = fingerprints(batch)
                file.write(pairs.tobytes())
    return path


def fingerprints(rows: pa.RecordBatch) -> Int64s:
    """Of each row, 64 bits of its timestamp, key and value, not of headers: int64[n]."""
    timestamps = rows.column("timestamp").cast(pa.int64()).to_numpy()
    prints: npt.NDArray[np.uint64] = timestamps.astype(np.uint64) * _MIXED
    for number, name in enumerate(("key", "value")):
        content, ends, has_value = column_bytes(rows.column(name), rows.num_rows)
        hashes = np.zeros((rows.num_rows, 2), np.uint64)
        lengths = np.diff(ends).astype(np.int64)
        scan.hash_many(content[ends[0] :], lengths, _PRINT_KEY, _PRINT_KEY, hashes)
        prints ^= np.where(has_value, hashes[:, number], ~_MIXED)
    return prints.astype(np.int64)


# ---------------------------------------------------------------- files


def write_units(
    batches: Iterable[pa.RecordBatch],
    units: Mapping[int, Unit],
    schema: pa.Schema,
    directory: str,
) -> Iterator[pa.RecordBatch]:
    """Write the units whose rows are in `batches`, whose last column is the number of their unit.

    A row without a key only says that its unit is to be looked after. Answers rows of `REPORT`.
    """
    writers: dict[int, UnitWriter] = {}
    try:
        for batch in batches:
            numbers = batch.column(batch.num_columns - 1)
            rows = batch.select(schema.names)
            for number in pc.unique(numbers).to_pylist():
                if number not in writers:
                    writers[number] = UnitWriter(units[number], schema, directory)
                is_its = pc.equal(numbers, number)
                writers[number].add(rows.filter(pc.and_(is_its, pc.is_valid(rows.column("key")))))
        reports = [writer.finish() for writer in writers.values()]
    except BaseException:
        for writer in writers.values():
            writer.discard()
        raise
    yield from _reported(reports)


def write_part(
    part: LatestPart, unit: Unit, job: LatestJob, schema: pa.Schema, directory: str
) -> tuple[Any, ...]:
    """Write a partition's newest records, which are one unit; what `REPORT` tells."""
    ensure_warm(_LOGGER.info)
    writer = UnitWriter(unit, schema, directory)
    try:
        if part.pieces:
            for batch in read_latest(part, ArrowForm(job.schema), job.rules, job.latest, Scratch()):
                writer.add(batch)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def _reported(reports: Sequence[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    kinds = [pa.int32(), pa.string(), *[pa.int64()] * 3, pa.bool_()]
    columns = zip(*reports, strict=True) if reports else [()] * len(kinds)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, list(REPORT_NAMES))


class UnitWriter:
    """The file of one unit while it comes into being; one task's own."""

    def __init__(self, unit: Unit, schema: pa.Schema, directory: str):
        self._unit = unit
        self._schema = schema
        self._path = os.path.join(directory, f"unit-{unit.number}-{uuid.uuid4().hex}{PART}")
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._keys: list[pa.Array] = []
        self._rows = 0
        self._least: int | None = None
        self._is_new = False

    def add(self, rows: pa.RecordBatch) -> None:
        """New rows; those without a value delete their key."""
        if rows.num_rows == 0:
            return
        self._is_new = True
        if self._unit.older is not None:
            self._keys.append(rows.column("key"))
        self._write(pa.Table.from_batches([rows]).filter(pc.is_valid(rows.column("value"))))

    def finish(self) -> tuple[Any, ...]:
        """Take over what stays of the older file, close; what `REPORT` tells."""
        number = self._unit.number
        if self._unit.older is not None and not self._merge(self._unit.older):
            self.discard()
            return (number, "", 0, 0, 0, True)
        self._flush()
        if self._writer is None:
            return (number, "", 0, 0, 0, False)
        with translated_errors(self._path):
            self._writer.close()
            self._writer = None
            with open(self._path, "rb") as file:
                os.fsync(file.fileno())
                size_bytes = os.fstat(file.fileno()).st_size
        name = os.path.basename(self._path)
        return (number, name, self._rows, size_bytes, self._least or 0, False)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._waiting = []
        if self._writer is not None:
            with suppress(OSError, ValueError):
                self._writer.close()
            self._writer = None
        with suppress(OSError):
            os.unlink(self._path)

    def _merge(self, older: str) -> bool:
        """False if the older file is as good: no row came or went."""
        keys = pa.chunked_array(self._keys, pa.binary()) if self._keys else None
        has_changed = self._is_new
        try:
            with translated_errors(older):
                file = pq.ParquetFile(older)
        except pa.ArrowInvalid as error:
            raise CorruptionError(f"no Parquet file ({_line(error)})", file=older) from error
        with file:
            for group in range(file.num_row_groups):
                try:
                    table = file.read_row_group(group)
                except (OSError, pa.ArrowInvalid) as error:
                    raise CorruptionError(_line(error), file=older) from error
                stays = self._stays(table, keys)
                left = table.filter(stays)
                has_changed = has_changed or left.num_rows < table.num_rows
                self._write(left)
        return has_changed

    def _stays(self, table: pa.Table, keys: pa.ChunkedArray | None) -> pa.Array:
        unit = self._unit
        offsets = table.column("offset").to_numpy()
        stays = (offsets >= unit.log_start) & (offsets < unit.older_end)
        if unit.survivors:
            prints = np.concatenate([fingerprints(batch) for batch in table.to_batches()])
        for rewritten in unit.survivors:
            stays &= ~rewritten.drops(unit.name, offsets, prints)
        if keys is None:
            return pa.array(stays)
        came_again = pc.is_in(table.column("key"), value_set=keys)
        return pc.and_not(pa.array(stays), came_again.combine_chunks())

    def _write(self, table: pa.Table) -> None:
        if table.num_rows == 0:
            return
        table = table.cast(self._schema)
        least = pc.min(table.column("offset")).as_py()
        self._least = least if self._least is None else min(self._least, least)
        self._rows += table.num_rows
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        self._waiting_rows += table.num_rows
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        with translated_errors(self._path):
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path, self._schema, compression="zstd")
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=_GROUP_ROWS)
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
