"""`view=latest`: the newest record of each key of a partition, found inside one task.

All records of a key lie in one partition, so no shuffle is needed. A task goes through its
partition twice: the first walk puts key hashes into the map that cleaning uses and is left with the
newest offset of each key; the second gives the records that lie there, and looks into no other
batch. Keys that do not fit the map's bytes (`dedupeBufferBytes`) are worked through hash range by
hash range: each doubling of the ranges adds a walk of the first kind for each, the records are
still given in one walk, in the order of the log.

What is the newest is said by the order of versions (CMP-17); control records, data of aborted or
open transactions, and records without a key do not count. So the view is the same before and after
every cleaning (CMP-18), but for a cleaning that knew more: when the log's owner has replaced files
since the query was planned, records may be gone whose successors came later. The range then goes
up to where the log ends by now, unless the query says where it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.clean.chunk import NO_CRC, Int64s, Scratch
from stratalog.clean.index import IndexContext, header_name, index_chunk
from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.ledger_plan import order_name
from stratalog.clean.offset_map import KeyRows, OffsetMap
from stratalog.clean.settle import aborted_columns
from stratalog.clean.spool import OffsetSpool
from stratalog.pipeline.locating import Form, Wanted
from stratalog.pipeline.parts import Parts
from stratalog.pipeline.places import Place, opened_parts
from stratalog.pipeline.planning import LatestPart, Piece, Range, pieces_in
from stratalog.pipeline.reading import PieceReader, ReadContext, ReadRules, chunk_batches
from stratalog.segment.names import FileKind
from stratalog.segment.segment import Segment, segment_path

_MAX_RANGE_BITS = 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LatestRules:
    """What is the newest, and the map's bound in bytes."""

    order: Order
    version_header: str
    dedupe_bytes: int


def read_latest(
    part: LatestPart, form: Form[T], rules: ReadRules, latest: LatestRules, scratch: Scratch
) -> Iterator[T]:
    """The newest records of one partition. Raises as `reading.read_pieces`; damage is always an
    error, because a key's older record would come back in place of the one that is lost."""
    name = order_name(latest.order, latest.version_header)
    opening = opened_parts(part.place, with_ledger=part.with_ledger, as_of=part.as_of, order=name)
    with opening as opened:
        parts, _ = opened
        bounds = _settled(part, parts)
        if bounds.start > part.range.start and rules.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{part.place.topic_partition}: offsets {part.range.start} to {bounds.start} were "
                "deleted since the query began; failOnDataLoss=false reads what is there"
            )
        yield from read_newest(part.place, parts, bounds, form, rules, latest, scratch)


def read_newest(
    place: Place,
    parts: Parts,
    bounds: Range,
    form: Form[T],
    rules: ReadRules,
    latest: LatestRules,
    scratch: Scratch,
) -> Iterator[T]:
    """The newest record of each key at the offsets `bounds` of views that are open: all walks go
    over the same files. Raises `CorruptionError`."""
    aborted = tuple(parts.aborted_between(bounds.start, bounds.end))
    pieces = [
        (segment, replace(piece, aborted=aborted))
        for segment, piece in pieces_in(place, parts, bounds.start, bounds.end)
    ]
    live = newest_offsets(pieces, bounds, latest, scratch)
    wanted = Wanted(bounds.start, bounds.end, live, not rules.keeps_tombstones)
    for segment, piece in pieces:
        reader = PieceReader(segment, piece)
        context = ReadContext.of(piece, form, rules, wanted, NO_CRC)
        while (chunk := reader.take(scratch)) is not None:
            yield from chunk_batches(chunk, context, scratch)


def newest_offsets(
    pieces: Sequence[tuple[Segment, Piece]],
    bounds: Range,
    latest: LatestRules,
    scratch: Scratch,
) -> Int64s:
    """The offset of each key's newest record in `bounds`, sorted."""
    spec = CleanSpec(now_ms=0, order=latest.order, version_header=latest.version_header)
    key0, key1 = spec.hash_secret
    aborted = aborted_columns(pieces[0][1].aborted if pieces else ())
    secret = np.uint64(key0), np.uint64(key1)
    context = IndexContext(spec, aborted, secret, header_name(spec))
    range_bits = 0
    while True:
        spool = OffsetSpool(latest.dedupe_bytes // 4, tempfile.gettempdir())
        for hash_range in range(1 << range_bits):
            offset_map = OffsetMap(
                memory_bytes=latest.dedupe_bytes,
                range_bits=range_bits,
                hash_range=hash_range,
                has_versions=context.has_versions,
            )
            crc_from = -1 if hash_range == 0 else NO_CRC
            if not _fill(offset_map, pieces, bounds, context, crc_from, scratch):
                break
            spool.append(offset_map.offsets())
        else:
            return spool.finish()
        spool.finish()
        range_bits += 1
        assert range_bits <= _MAX_RANGE_BITS


def _fill(
    offset_map: OffsetMap,
    pieces: Sequence[tuple[Segment, Piece]],
    bounds: Range,
    context: IndexContext,
    crc_from: int,
    scratch: Scratch,
) -> bool:
    """One walk; False if the keys do not fit."""
    has_room = True

    def visit(rows: KeyRows) -> None:
        nonlocal has_room
        has_room = has_room and offset_map.add(rows.part(rows.from_offset(bounds.start)), scratch)

    for segment, piece in pieces:
        reader = PieceReader(segment, piece)
        while has_room and (chunk := reader.take(scratch)) is not None:
            index_chunk(
                chunk,
                context,
                reader.base_offset,
                crc_from=crc_from,
                upper_offset=bounds.end,
                scratch=scratch,
                visit=visit,
            )
    return has_room


def _settled(part: LatestPart, parts: Parts) -> Range:
    """The range as planned, or up to the end of a log whose files were replaced since."""
    end = part.range.end
    ids = {segment.log.path: segment.log.file_id() for segment in parts.segments()}
    is_same = all(
        ids.get(segment_path(piece.directory, piece.base_offset, FileKind.LOG)) == piece.file_id
        for piece in part.pieces
    )
    if part.range.follows and not is_same:
        end = max(end, parts.last_stable_offset)
    start = max(part.range.start, parts.log_start_offset)
    return Range(start, max(start, min(end, parts.last_stable_offset)), part.range.follows)
