"""What workers do for `latest_frame`: index, merge and read the newest records of large partitions.

Keys cross between workers as the engine's binary blocks (`stratalog.spark.tasks`), then offsets do;
records never cross a shuffle.

Invariants
- W1  Whatever is wrong with a piece is answered to every bucket: the driver sees it in the bucket
      of the reports before anybody reads, and a merge that is computed again meets it, too.
- W2  A piece that was replaced after it was indexed gives all of the offsets that were chosen in
      it, or is an error (`LogChangedError`): no key goes missing unseen.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.base.errors import CorruptionError, LogChangedError, OffsetOutOfRangeError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import Int64s, Scratch
from stratalog.clean.index import IndexContext, header_name, index_chunk
from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.offset_map import KeyRows
from stratalog.clean.settle import aborted_columns
from stratalog.pipeline.batches import ArrowForm, joined
from stratalog.pipeline.latest import LatestRules, read_latest
from stratalog.pipeline.locating import Wanted
from stratalog.pipeline.places import opened_view
from stratalog.pipeline.planning import Piece, pieces_of
from stratalog.pipeline.reading import (
    PieceReader,
    ReadContext,
    ReadRules,
    chunk_batches,
    open_planned,
)
from stratalog.pipeline.source_tasks import SourceTask
from stratalog.record.kernel.warmup import ensure_warm
from stratalog.segment.segment import Segment
from stratalog.spark import tasks
from stratalog.spark.sending import Block, KeySender

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LatestJob:
    """What every task of a read needs to know. `schema` is that of the rows; `secret` of the hash
    of keys: the same in all tasks; `buckets`: those of each partition's keys, `told`: the one for
    what is told besides."""

    schema: pa.Schema
    rules: ReadRules
    latest: LatestRules
    secret: tuple[int, int]
    buckets: tuple[range, ...] = ()
    told: int = 0

    def context(self, piece: Piece) -> IndexContext:
        """How a piece's keys are indexed."""
        spec = CleanSpec(
            now_ms=0,
            order=self.latest.order,
            version_header=self.latest.version_header,
            hash_secret=self.secret,
        )
        secret = np.uint64(self.secret[0]), np.uint64(self.secret[1])
        return IndexContext(spec, aborted_columns(piece.aborted), secret, header_name(spec))


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a piece: damage, or that its file was replaced (None)."""

    name: str
    damage: CorruptionError | None

    def raised(self) -> CorruptionError | LogChangedError:
        """As an error of one line."""
        if self.damage is not None:
            return self.damage
        return LogChangedError(f"{self.name}: was cleaned while it was being read: ask again")


# ---------------------------------------------------------------- index and merge


def index(part: int, pieces: Sequence[Piece], job: LatestJob) -> Iterator[tuple[int, Any]]:
    """(bucket, block) of a run of one partition's pieces; trouble goes to every bucket (W1)."""
    ensure_warm(_LOGGER.info)
    scratch = Scratch()
    has_versions = job.latest.order is not Order.OFFSET
    sender = KeySender(part, job.buckets[part], has_versions)
    filesystem = pieces[0].place.filesystem()
    for piece in pieces:
        segment = open_planned(piece, filesystem)
        trouble = None
        if segment is None:
            trouble = Trouble(str(piece.place.topic_partition), None)
        else:
            try:
                yield from _index_piece(segment, piece, job, sender, scratch)
            except CorruptionError as error:
                trouble = Trouble(str(piece.place.topic_partition), error)
        if trouble is not None:
            yield from ((bucket, trouble) for bucket in range(job.told + 1))
            return
    yield from sender.send_all()


def _index_piece(
    segment: Segment, piece: Piece, job: LatestJob, sender: Any, scratch: Scratch
) -> Iterator[tuple[int, Any]]:
    reader, context = PieceReader(segment, piece), job.context(piece)
    while (chunk := reader.take(scratch)) is not None:
        pending: list[tuple[int, Any]] = []

        def visit(rows: KeyRows, pending: list[tuple[int, Any]] = pending) -> None:
            # A batch across a cut is in two pieces, each of its records counts in one.
            pending += sender.keys(rows.part(rows.from_offset(piece.first_offset)), scratch)

        index_chunk(
            chunk,
            context,
            piece.base_offset,
            crc_from=-1,
            upper_offset=piece.end_offset,
            scratch=scratch,
            visit=visit,
        )
        yield from pending


def merge(rows: Iterable[tuple[int, Any]], owners: Any) -> Iterator[tuple[int, bytes]]:
    """(number of the reading task, offsets) of one bucket. `owners` as of `tasks.merge_bucket`."""
    for block in tasks.merge_bucket(_sound_blocks(rows), owners):
        yield block.owner, block.offsets


def _sound_blocks(rows: Iterable[tuple[int, Any]]) -> Iterator[Block]:
    for _, found in rows:
        if isinstance(found, Trouble):
            raise found.raised()
        yield found


# ---------------------------------------------------------------- read


def read_chosen(
    batches: Iterable[pa.RecordBatch], reads: Sequence[SourceTask], job: LatestJob
) -> Iterator[pa.RecordBatch]:
    """The records at the chosen offsets; `batches` have columns task and offsets (bytes)."""
    chosen: dict[int, list[bytes]] = {}
    for batch in batches:
        for number, offsets in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            chosen.setdefault(number, []).append(offsets)
    if not chosen:
        return
    ensure_warm(_LOGGER.info)
    scratch = Scratch()

    def found() -> Iterator[pa.RecordBatch]:
        for number in sorted(chosen):
            offsets = np.frombuffer(bytearray(b"".join(chosen.pop(number))), np.int64)
            offsets.sort()
            filesystem = reads[number].pieces[0].place.filesystem()
            for piece in reads[number].pieces:
                yield from _read_piece(piece, filesystem, offsets, job, scratch)

    yield from joined(found())


def _read_piece(
    piece: Piece, filesystem: FileSystem, offsets: Int64s, job: LatestJob, scratch: Scratch
) -> Iterator[pa.RecordBatch]:
    bounds = np.searchsorted(offsets, [piece.first_offset, piece.end_offset])
    chosen = offsets[slice(*bounds.tolist())]
    if len(chosen) == 0:
        return
    wanted = Wanted(piece.first_offset, piece.end_offset, chosen, not job.rules.keeps_tombstones)
    segment = open_planned(piece, filesystem)
    if segment is None:
        yield from _read_anew(piece, wanted, job, scratch)
        return
    context = ReadContext.of(piece, ArrowForm(job.schema), job.rules, wanted)
    yield from _chunks(PieceReader(segment, piece), context, scratch)


def _read_anew(
    piece: Piece, wanted: Wanted, job: LatestJob, scratch: Scratch
) -> Iterator[pa.RecordBatch]:
    """From the files that took the place of a piece's own: all that was chosen, or it is told."""
    assert wanted.chosen is not None
    name = str(piece.place.topic_partition)
    shown = job.schema
    for column in ("value", "offset"):
        if column not in shown.names:
            kind = pa.binary() if column == "value" else pa.int64()
            shown = shown.append(pa.field(column, kind))
    found = 0
    with opened_view(piece.place) as view:
        if view.log_start_offset > int(wanted.chosen[0]) and job.rules.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{name}: offsets up to {view.log_start_offset} were deleted since the query "
                "began; failOnDataLoss=false reads what is there"
            )
        start = max(piece.first_offset, view.log_start_offset)
        for part in pieces_of(piece.place, view, start, piece.end_offset):
            segment = view.segments.get(part.base_offset)
            assert segment is not None
            part = replace(part, aborted=piece.aborted)
            # Tombstones are counted, too: what was chosen is all there or it is not.
            everything = replace(wanted, start=start, without_nulls=False)
            context = ReadContext.of(part, ArrowForm(shown), job.rules, everything)
            for batch in _chunks(PieceReader(segment, part), context, scratch):
                found += batch.num_rows
                if wanted.without_nulls:
                    batch = batch.filter(pc.is_valid(batch.column("value")))
                if batch.num_rows:
                    yield batch.select(job.schema.names)
    if found < len(wanted.chosen):
        error = LogChangedError(f"{name}: was cleaned while it was being read: ask again")
        if job.rules.fail_on_data_loss:
            raise error
        _LOGGER.warning("%s", error)


def _chunks(
    reader: PieceReader, context: ReadContext[pa.RecordBatch], scratch: Scratch
) -> Iterator[pa.RecordBatch]:
    while (chunk := reader.take(scratch)) is not None:
        yield from chunk_batches(chunk, context, scratch)


def read_whole(batches: Iterable[pa.RecordBatch], job: LatestJob) -> Iterator[pa.RecordBatch]:
    """The newest records of whole partitions; `batches` have pickled tasks in their one column."""
    scratch = Scratch()

    def found() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                ensure_warm(_LOGGER.info)
                for part in pickle.loads(task).latest:
                    yield from read_latest(
                        part, ArrowForm(job.schema), job.rules, job.latest, scratch
                    )

    yield from joined(found())
