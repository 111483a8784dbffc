"""What a task of the source does, in Spark's Python worker: bytes of segments -> records in a form.

    read_pieces    view=raw: chunk after chunk of each piece, in the order of the log
    PieceReader    a piece's bytes as chunks: whole batches, held against the segment's digest

A task was planned earlier, on the driver, and the log may have gone on since: its owner cleans,
rolls, deletes. A piece whose file is no longer there by its identity is planned anew from the log
as it is now: what was cleaned meanwhile is gone, and what retention deleted is lost, which is an
error unless `failOnDataLoss` is false. A file that was opened is read to its end, whatever becomes
of its name (LOG-12).

Invariants
- R1  Records come in the order of their offsets within a piece, each once.
- R2  Damage raises `CorruptionError` with file and position. With `failOnDataLoss` false a damaged
      batch is passed over with a warning; if nothing tells where it ends, so is the piece's rest.
- R3  No file is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from stratalog.base.errors import CorruptionError, LogChangedError, OffsetOutOfRangeError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import (
    Chunk,
    Int64s,
    Scratch,
    Table,
    pieces,
    scan_chunk,
    whole_batches,
)
from stratalog.clean.index import legacy_batch
from stratalog.clean.job import CleanSpec
from stratalog.clean.settle import aborted_columns
from stratalog.pipeline.locating import Bools, Form, Source, Wanted, located_records
from stratalog.pipeline.parts import Parts
from stratalog.pipeline.places import Place, opened_view
from stratalog.pipeline.planning import Piece, pieces_in, pieces_of
from stratalog.record import layout
from stratalog.record.kernel import arrays, scan
from stratalog.segment.segment import Segment, open_segment

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
SPEC = CleanSpec(now_ms=0, hash_secret=(0, 0))
"""Of a round of cleaning only the sizes of chunks and batches mean something for a reader."""


@dataclass(frozen=True, slots=True)
class ReadRules:
    """What a read wants of every record, from the options."""

    fail_on_data_loss: bool
    is_committed: bool
    includes_control: bool
    keeps_tombstones: bool


class PieceReader:
    """The chunks of one piece. `position` is where the next one begins; one thread's own."""

    def __init__(self, segment: Segment, piece: Piece):
        self.position = piece.start_position
        self._segment = segment
        self._piece = piece
        self._ordinal = 0
        self._previous = piece.base_offset - 1
        self._guard = segment.guard
        self._is_guard_wrong = False

    @property
    def base_offset(self) -> int:
        """Of the segment."""
        return self._piece.base_offset

    def take(self, scratch: Scratch) -> Chunk | None:
        """The next chunk, in `scratch`'s buffer "raw"; None at the end. Raises `CorruptionError`,
        which leaves `position` where it is."""
        left = self._piece.end_position - self.position
        if left <= 0:
            return None
        log = self._segment.log
        raw, rows, size, last_offset = whole_batches(
            log.read_into, log.path, self.position, left, SPEC, scratch
        )
        if self._guard is not None:
            try:
                self._guard.check_data(self.position, raw[:size])
            except CorruptionError:
                self._is_guard_wrong = True
                raise
        chunk = Chunk(
            log.path,
            self._ordinal,
            self.position,
            size,
            rows,
            self._previous,
            raw,
            self._piece.next_base,
        )
        self._ordinal += 1
        self.position += size
        self._previous = last_offset
        return chunk

    def skip_damage(self, error: CorruptionError, chunk: Chunk | None) -> bool:
        """Go on behind the batch that `error` is about, if it says where it ends; else False."""
        if self._is_guard_wrong:
            # A header is wrong somewhere, perhaps where no checksum covers it: read on without.
            self._guard, self._is_guard_wrong = None, False
            return True
        if error.position is None:
            return False
        head = self._segment.log.read(error.position, layout.MIN_STEP_BYTES)
        if len(head) < layout.MIN_STEP_BYTES:
            return False
        length = int.from_bytes(head[layout.LENGTH : layout.LENGTH + 4], "big", signed=True)
        past = error.position + layout.LOG_OVERHEAD + length
        if not error.position < past <= self._piece.end_position:
            return False
        self.position = past
        if chunk is not None:
            self._previous = chunk.previous_last_offset
        return True


def read_pieces(
    task: Iterable[Piece], form: Form[T], rules: ReadRules, scratch: Scratch
) -> Iterator[T]:
    """The records of a task's pieces. Raises `CorruptionError`, `OffsetOutOfRangeError` (data that
    was lost since the task was planned), `LogChangedError`, `StorageIOError`."""
    filesystems: dict[Place, FileSystem] = {}
    for piece in task:
        if piece.place not in filesystems:
            filesystems = {piece.place: piece.place.filesystem()}
        segment = open_planned(piece, filesystems[piece.place])
        if segment is not None:
            yield from read_piece(segment, piece, form, rules, scratch)
        else:
            yield from _read_anew(piece, form, rules, scratch)


def read_parts(
    place: Place,
    parts: Parts,
    bounds: tuple[int, int],
    form: Form[T],
    rules: ReadRules,
    scratch: Scratch,
) -> Iterator[T]:
    """The records at offsets [start, end) of views that are open, in their order.

    Raises `CorruptionError`.
    """
    for segment, piece in pieces_in(place, parts, *bounds, is_committed=rules.is_committed):
        yield from read_piece(segment, piece, form, rules, scratch)


def open_planned(piece: Piece, filesystem: FileSystem | None = None) -> Segment | None:
    """The segment that a piece was made for; None if it is gone or another one by now.

    `filesystem` is that of its place, if whoever asks has it already.
    """
    filesystem = filesystem or piece.place.filesystem()
    try:
        segment = open_segment(filesystem, piece.directory, piece.base_offset, aborted=())
    except FileNotFoundError:
        return None
    return segment if segment.log.file_id() == piece.file_id else None


def _read_anew(piece: Piece, form: Form[T], rules: ReadRules, scratch: Scratch) -> Iterator[T]:
    if piece.is_of_ledger:
        # The one in use by now may lack what came again after the query's end.
        raise LogChangedError(
            f"{piece.place.topic_partition}: its ledger was removed since the query began: ask "
            "again, or keep more of them with compaction.ledgers.retained"
        )
    with opened_view(piece.place, pardons_damage=not rules.fail_on_data_loss) as view:
        if view.log_start_offset > piece.first_offset:
            lost = (
                f"{piece.place.topic_partition}: offsets {piece.first_offset} to "
                f"{min(view.log_start_offset, piece.end_offset)} were deleted since the query began"
            )
            if rules.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{lost}; failOnDataLoss=false reads what is there")
            _LOGGER.warning(lost)
        start = max(piece.first_offset, view.log_start_offset)
        for found in pieces_of(piece.place, view, start, piece.end_offset):
            segment = view.segments.get(found.base_offset)
            assert segment is not None
            # Which transactions were aborted was settled when the task was planned.
            found = replace(found, aborted=piece.aborted)
            yield from read_piece(segment, found, form, rules, scratch)


def read_piece(
    segment: Segment, piece: Piece, form: Form[T], rules: ReadRules, scratch: Scratch
) -> Iterator[T]:
    """The records of a piece of an open segment. Raises `CorruptionError`."""
    reader = PieceReader(segment, piece)
    wanted = Wanted(piece.first_offset, piece.end_offset, without_nulls=not rules.keeps_tombstones)
    context = ReadContext.of(piece, form, rules, wanted)
    while True:
        chunk = None
        try:
            chunk = reader.take(scratch)
            if chunk is None:
                return
            yield from chunk_batches(chunk, context, scratch)
        except CorruptionError as error:
            if rules.fail_on_data_loss:
                raise
            _LOGGER.warning("passed over: %s", error)
            if not reader.skip_damage(error, chunk):
                return


@dataclass(frozen=True, slots=True, eq=False)
class ReadContext(Generic[T]):
    """What reading a piece's chunks needs. `aborted`: its aborted transactions as columns;
    `crc_from`: offsets below it have been checked before."""

    source: Source
    form: Form[T]
    rules: ReadRules
    wanted: Wanted
    aborted: tuple[Int64s, Int64s, Int64s]
    crc_from: int

    @classmethod
    def of(
        cls, piece: Piece, form: Form[T], rules: ReadRules, wanted: Wanted, crc_from: int = -1
    ) -> ReadContext[T]:
        key = piece.place.topic_partition
        source = Source(key.topic, key.partition, piece.base_offset)
        return cls(source, form, rules, wanted, aborted_columns(piece.aborted), crc_from)


def chunk_batches(chunk: Chunk, context: ReadContext[T], scratch: Scratch) -> Iterator[T]:
    """The wanted records of one chunk.

    Raises `CorruptionError` for the first damage, after the records that come before it.
    """
    form, source, wanted = context.form, context.source, context.wanted
    table, error = scanned(chunk, context.crc_from, scratch)
    if context.rules.is_committed:
        scan.mark_aborted(table, len(table), *context.aborted)
    is_read = _read_rows(table, context.rules, wanted)
    for first, end, plain in pieces(chunk, table, is_read, SPEC, scratch):
        for rows, is_legacy in _runs(table, first, end):
            if not is_legacy:
                for located in located_records(
                    source, chunk, plain, table, is_read, rows, wanted, form.most_rows, scratch
                ):
                    yield form.of_located(located)
                continue
            for row in range(*rows):
                batch = legacy_batch(chunk, table[row])
                of_batch = batch.records(SPEC.max_decompressed_bytes)
                records = [record for record in of_batch if wanted.takes(record)]
                if records:
                    yield form.of_legacy(source, batch.header, records)
    if error is not None:
        raise error


def scanned(chunk: Chunk, crc_from: int, scratch: Scratch) -> tuple[Table, CorruptionError | None]:
    """The chunk's batches up to the first damage, and the damage."""
    found: CorruptionError | None = None
    while True:
        try:
            return scan_chunk(chunk, SPEC, crc_from, scratch), found
        except CorruptionError as error:
            found = error
        # Before it there may be another that the scan did not come to speak of.
        sound_bytes = 0 if found.position is None else found.position - chunk.position
        if sound_bytes <= 0:
            return np.zeros(0, arrays.BATCH), found
        rows, size, _, _ = scan.whole_batches(chunk.raw, sound_bytes, SPEC.max_batch_bytes)
        chunk = replace(chunk, rows=int(rows), size_bytes=int(size))


def _read_rows(table: Table, rules: ReadRules, wanted: Wanted) -> Bools:
    """The batches that may hold wanted records; those of magic 0 and 1 are looked into anyway."""
    is_v2 = table["magic"] == layout.MAGIC_V2
    is_read: Bools = is_v2 & (table["last_offset"] >= wanted.start) & (table["count"] > 0)
    is_read &= table["base_offset"] < wanted.end
    if not rules.includes_control:
        is_read &= table["attributes"] & layout.CONTROL_MASK == 0
    if rules.is_committed:
        is_read &= table["is_aborted"] == 0
    if wanted.chosen is not None:
        low = np.searchsorted(wanted.chosen, table["base_offset"], "left")
        high = np.searchsorted(wanted.chosen, table["last_offset"], "right")
        is_read &= high > low
    return is_read


def _runs(table: Table, first: int, end: int) -> Iterator[tuple[tuple[int, int], bool]]:
    """Rows [first, end) cut where messages of magic 0 and 1 begin and end; whether it is those."""
    is_legacy = table["magic"][first:end] < layout.MAGIC_V2
    if not is_legacy.any():
        yield (first, end), False
        return
    bounds = [0, *(np.flatnonzero(np.diff(is_legacy)) + 1).tolist(), end - first]
    for low, high in pairwise(bounds):
        yield (first + low, first + high), bool(is_legacy[low])
