"""One chunk decided and rewritten in memory: what stays of it, and why the rest goes.

decide -> keep (records that stay, timestamps rebased) -> pack (compress) -> assemble (batches).
A dry run is the same without a file at the end.

Invariants
- D1  A chunk's result depends on the chunk and the context only: any worker, any order.
- D2  A batch that loses nothing and starts no horizon is copied byte for byte (CMP-15).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from stratalog.clean.chunk import (
    NO_CRC,
    Bytes,
    Chunk,
    Int64s,
    Scratch,
    Table,
    damage,
    pieces,
    scan_chunk,
)
from stratalog.clean.index import legacy_batch
from stratalog.clean.job import CleaningJob, Drops, SourceSegment
from stratalog.clean.settle import SettledMarkers, aborted_columns
from stratalog.record import layout, legacy
from stratalog.record.batch import Batch
from stratalog.record.codec.bulk import compress_many, packed_bound_bytes
from stratalog.record.kernel import arrays, retain, rewrite, scan
from stratalog.record.values import Record


@dataclass(frozen=True, slots=True, eq=False)
class DecideContext:
    """What deciding needs, complete for any part of the job that it is used on.

    live, dead: int64[] sorted: the offsets at or above first dirty that are the last of their key,
    and those below it whose key has a later record. `keyless`: base offsets of the segments that
    hold records without a key below `end_offset`. `forgotten`: int64[] sorted, of the job: those of
    them that are tombstones below `end_offset` go now, counted as `tombstone_expired`. `held`:
    int64[] sorted, records that outrank a later one beyond the round's end: if they are tombstones,
    they stay, or that one would be its key's newest (CMP-18).
    """

    job: CleaningJob
    end_offset: int
    live: Int64s
    dead: Int64s
    markers: SettledMarkers
    keyless: frozenset[int]
    aborted: tuple[Int64s, Int64s, Int64s]
    producers: tuple[Int64s, Int64s, Int64s]
    forgotten: Int64s
    held: Int64s

    @classmethod
    def of(
        cls,
        job: CleaningJob,
        end_offset: int,
        live: Int64s,
        dead: Int64s,
        markers: SettledMarkers,
        keyless: frozenset[int],
        held: Int64s | None = None,
    ) -> DecideContext:
        """`held`: none by the order of offsets."""
        ordered = sorted(job.producers, key=lambda producer: producer.producer_id)
        columns = [(p.producer_id, p.epoch, p.last_data_offset) for p in ordered]
        ids, epochs, lasts = np.array(columns, np.int64).reshape(-1, 3).T.copy()
        aborted = aborted_columns(job.aborted)
        producers = (ids, epochs, lasts)
        forgotten = np.array(sorted(job.forgotten), np.int64)
        held = np.empty(0, np.int64) if held is None else held
        return cls(
            job, end_offset, live, dead, markers, keyless, aborted, producers, forgotten, held
        )

    def rule_for(self, segment: SourceSegment) -> int:
        """Which rule the tombstones and markers of `segment` go by (CMP-8), of `retain`'s three."""
        if not self.job.spec.by_segment:
            return retain.BY_BATCH
        return retain.SEGMENT_STAYS if self.keeps_by_time(segment) else retain.SEGMENT_GOES

    def keeps_by_time(self, segment: SourceSegment) -> bool:
        """The older rule of CMP-8: younger than the last clean segment less the retention.

        By `by_segment` the dirty part loses none even if its file's time is older; for the old
        formats alone it is Kafka's rule to the letter, which looks at the time only.
        """
        return segment.modified_ms > self.job.legacy_horizon_ms


@dataclass(frozen=True, slots=True, eq=False)
class DecidedChunk:
    """A chunk after deciding.

    `out` holds the new bytes, valid until the thread's next chunk; `written` int64[n, 4] describes
    its batches (position in `out`, size, last offset, max timestamp), `unchanged`: out equals the
    chunk. `next_expiry_ms`: as in `CleanedGroup`; `dropped_bytes`: as in `Volume`.
    """

    out: Bytes
    written: Int64s
    records_before: int
    records_after: int
    drops: Drops
    dropped_bytes: Drops
    unchanged: bool
    next_expiry_ms: int | None
    markers_after: int


def decide_chunk(
    chunk: Chunk, context: DecideContext, segment: SourceSegment, scratch: Scratch
) -> DecidedChunk:
    """Decide a chunk of `segment` and make its new bytes. Raises `CorruptionError`."""
    spec = context.job.spec
    # Every chunk of every segment that is rewritten was checked while it was indexed (CMP-16).
    table = scan_chunk(chunk, spec, NO_CRC, scratch)
    scan.mark_aborted(table, len(table), *context.aborted)
    has_keyless = segment.base_offset in context.keyless
    rule = context.rule_for(segment)
    _read_plain_control_types(chunk, table)
    retain.decide_batches(
        table,
        len(table),
        context.markers.offsets,
        context.markers.discardable,
        *context.producers,
        context.live,
        context.job.first_dirty,
        context.end_offset,
        context.job.first_uncleanable,
        spec.now_ms,
        rule,
        context.job.ages_below,
        has_keyless,
    )
    wanted = (table["discard"] == 0) & (table["superseded"] == 0)
    drops = np.zeros((2, len(arrays.REASONS)), np.int64)
    expiry = np.full(1, retain.NEVER_MS, np.int64)
    out = scratch.take("out", chunk.size_bytes + 65536)
    written = scratch.take("written", chunk.rows, np.int64, columns=4)
    size, rows, legacy_before, legacy_after = 0, 0, 0, 0
    for first_row, end_row, plain in pieces(chunk, table, wanted, spec, scratch):
        piece = table[first_row:end_row]
        kept = _retain(chunk, plain, piece, context, rule, has_keyless, drops, expiry, scratch)
        before, after, rebuilt = _decide_legacy(chunk, piece, context, segment, drops)
        legacy_before += before
        legacy_after += after
        packed = _pack(piece, kept, rebuilt, scratch)
        room = size + _upper_size(piece)
        if room > len(out):
            out = _enlarged(scratch, out, size, room)
        piece_size, piece_rows = rewrite.assemble(
            chunk.raw, packed, piece, 0, len(piece), size, out[size:], written[rows:]
        )
        size += int(piece_size)
        rows += int(piece_rows)
    is_v2 = table["magic"] == layout.MAGIC_V2
    is_marker = is_v2 & (table["attributes"] & layout.CONTROL_MASK != 0)
    return DecidedChunk(
        out[:size],
        written[:rows],
        int(table["count"][is_v2].sum()) + legacy_before,
        int(table["kept_count"][is_v2].sum()) + legacy_after,
        Drops(*drops[0].tolist()),
        Drops(*drops[1].tolist()),
        bool((table["action"] == arrays.COPY).all()),
        int(expiry[0]) if expiry[0] < retain.NEVER_MS else None,
        int(table["kept_count"][is_marker].sum()),
    )


def _read_plain_control_types(chunk: Chunk, table: Table) -> None:
    """Control types must be known before batches are decided; control batches have no codec."""
    is_control = table["attributes"] & layout.CONTROL_MASK != 0
    if (is_control & (table["attributes"] & layout.CODEC_MASK != 0)).any():
        row = int(np.flatnonzero(is_control)[0])
        raise damage(chunk, arrays.BAD_CONTROL, int(table["position"][row]))
    scan.read_control_types(chunk.raw, chunk.raw, table, 0, len(table))


def _retain(
    chunk: Chunk,
    plain: Bytes,
    piece: Table,
    context: DecideContext,
    rule: int,
    has_keyless: bool,
    drops: Int64s,
    expiry: Int64s,
    scratch: Scratch,
) -> Bytes:
    spec = context.job.spec
    # Nobody looks into the others, so their counts may be anything.
    is_read = (piece["discard"] == 0) & (piece["superseded"] == 0)
    counts = piece["count"][is_read]
    payload = int((piece["payload_end"] - piece["payload_start"]).sum())
    room = payload + retain.GROWTH_PER_RECORD * int(counts.sum())
    kept: Bytes = scratch.take("kept", room)
    largest = int(counts.max()) if len(counts) else 0
    _, error, position = retain.retain_records(
        chunk.raw,
        plain,
        piece,
        0,
        len(piece),
        context.live,
        context.dead,
        context.forgotten,
        context.held,
        context.job.first_dirty,
        context.end_offset,
        spec.now_ms,
        spec.new_horizon_ms,
        rule,
        context.job.ages_below,
        has_keyless,
        spec.retain_keyless,
        scratch.take("kept_records", largest, np.int64, columns=5),
        kept,
        drops,
        expiry,
    )
    if error != arrays.OK:
        raise damage(chunk, int(error), int(position))
    return kept


def _pack(piece: Table, kept: Bytes, rebuilt: dict[int, bytes], scratch: Scratch) -> Bytes:
    """Fill packed_start and packed_end: the kept bytes as they are, or compressed anew."""
    piece["packed_start"] = piece["kept_start"]
    piece["packed_end"] = piece["kept_end"]
    is_v2_rewrite = (piece["action"] == arrays.REWRITE) & (piece["magic"] == layout.MAGIC_V2)
    rows = np.flatnonzero(is_v2_rewrite)
    codecs = piece["attributes"][rows] & layout.CODEC_MASK
    if not codecs.any() and not rebuilt:
        return kept
    starts, ends = piece["kept_start"][rows], piece["kept_end"][rows]
    room = packed_bound_bytes(starts, ends) + sum(map(len, rebuilt.values()))
    packed: Bytes = scratch.take("packed", room)
    packed_ends = compress_many(codecs, kept, starts, ends, packed)
    piece["packed_start"][rows] = np.concatenate([[0], packed_ends])[:-1]
    piece["packed_end"][rows] = packed_ends
    at = int(packed_ends[-1]) if len(rows) else 0
    for row, content in rebuilt.items():
        packed[at : at + len(content)] = np.frombuffer(content, np.uint8)
        piece[row]["packed_start"] = at
        at += len(content)
        piece[row]["packed_end"] = at
    return packed


def _decide_legacy(
    chunk: Chunk, piece: Table, context: DecideContext, segment: SourceSegment, drops: Int64s
) -> tuple[int, int, dict[int, bytes]]:
    """Decide magic 0 and 1 messages one by one (LOG-4): (records before, after, new bytes by row).

    Their tombstones always follow the older rule (CMP-8). A wrapper cannot be kept empty. `drops`
    int64[2, 5] grows as in `retain`; the bytes are of whole messages, whose headers are their own.
    """
    rebuilt: dict[int, bytes] = {}
    before = after = 0
    keeps_tombstones = context.keeps_by_time(segment)
    for row in np.flatnonzero(piece["magic"] < layout.MAGIC_V2).tolist():
        batch = legacy_batch(chunk, piece[row])
        records = list(batch.records(context.job.spec.max_decompressed_bytes))
        reasons = [_legacy_reason(record, context, keeps_tombstones) for record in records]
        kept = [record for record, reason in zip(records, reasons, strict=True) if reason is None]
        _count_legacy_drops(batch, records, reasons, drops)
        before += len(records)
        after += len(kept)
        if not kept:
            piece[row]["action"] = arrays.DROP
        elif len(kept) == len(records):
            piece[row]["action"] = arrays.COPY
            piece[row]["max_timestamp"] = batch.header.max_timestamp
        else:
            rebuilt[row] = legacy.rebuild(batch, kept)
            piece[row]["action"] = arrays.REPLACE
            piece[row]["last_offset"] = kept[-1].offset
            piece[row]["max_timestamp"] = max(record.timestamp for record in kept)
    return before, after, rebuilt


def _count_legacy_drops(
    batch: Batch, records: list[Record], reasons: list[int | None], drops: Int64s
) -> None:
    if len(set(reasons)) == 1 and reasons[0] is not None:
        drops[:, reasons[0]] += len(records), batch.header.size_bytes
        return
    # What stands before the key's length, the two lengths, and what they are the lengths of.
    around_bytes = layout.LEGACY_KEY_LENGTH[batch.header.magic] + 8
    for record, reason in zip(records, reasons, strict=True):
        if reason is not None:
            drops[:, reason] += 1, around_bytes + len(record.key or b"") + len(record.value or b"")


def _legacy_reason(record: Record, context: DecideContext, keeps_tombstones: bool) -> int | None:
    """Why the record goes (an index of `arrays.REASONS`), or None if it stays."""
    if record.offset >= context.end_offset:
        return None
    if record.key is None:
        return None if context.job.spec.retain_keyless else arrays.NO_KEY
    if record.offset >= context.job.first_dirty:
        is_latest = _contains(context.live, record.offset)
    else:
        is_latest = not _contains(context.dead, record.offset)
    if not is_latest:
        return arrays.SUPERSEDED
    if record.value is not None:
        return None
    is_in_head = context.job.spec.by_segment and record.offset >= context.job.ages_below
    is_over = not keeps_tombstones and not is_in_head
    if not is_over and not _contains(context.forgotten, record.offset):
        return None
    return None if _contains(context.held, record.offset) else arrays.TOMBSTONE


def _contains(sorted_values: Int64s, value: int) -> bool:
    place = int(np.searchsorted(sorted_values, value))
    return place < len(sorted_values) and int(sorted_values[place]) == value


def _upper_size(piece: Table) -> int:
    """A bound of what `assemble` writes for the piece."""
    copied = int(piece["size_bytes"][piece["action"] == arrays.COPY].sum())
    rewritten = (piece["action"] == arrays.REWRITE) | (piece["action"] == arrays.REPLACE)
    packed = int((piece["packed_end"] - piece["packed_start"])[rewritten].sum())
    return copied + packed + layout.HEADER_BYTES * len(piece)


def _enlarged(scratch: Scratch, out: Bytes, size: int, room: int) -> Bytes:
    """A larger output buffer with the first `size` bytes of `out`: rare, batches can grow."""
    before = out[:size].copy()
    larger = cast("npt.NDArray[np.uint8]", scratch.take("out", 2 * room))
    larger[:size] = before
    return larger
