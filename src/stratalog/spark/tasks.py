"""What Spark's Python workers do: index segments, merge keys, rewrite groups.

Everything here is plain functions over picklable values; a worker imports this module from the
installed package. Keys cross between workers as a few large binary blocks, never one by one:

    index_task    pieces -> (bucket, block)          blocks of key rows, and one report a piece
    merge_bucket  one bucket's blocks -> (task, block)    the live, dead and held offsets of each
    rewrite_task  one task's blocks -> CleanedGroup       `.part` files, named by job and attempt
                                    -> Stretch            or, of a group that is cut, a part of it
    join_task     a group's stretches -> CleanedGroup

Invariants
- T1  A bucket holds all rows of its share of the hashes of the jobs that it serves: merging needs
      nothing else.
- T2  Damage is answered, not raised: Spark would try a damaged file again, three times.
- T3  A task may run twice: its blocks are the same, and its files have another name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyspark import TaskContext

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.chunk import Int64s, Scratch
from stratalog.clean.decide import DecideContext
from stratalog.clean.index import ChunkReport, IndexContext, index_chunk
from stratalog.clean.job import CleanedGroup, CleaningJob, Order, SourceSegment
from stratalog.clean.offset_map import KeyRows, OffsetMap
from stratalog.clean.rewrite import GroupRewriter
from stratalog.clean.settle import SettledMarkers
from stratalog.segment.names import MAX_OFFSET
from stratalog.spark import sending
from stratalog.spark.cutting import Piece, check_digest
from stratalog.spark.joining import Stretch, join_stretches, rewrite_stretch
from stratalog.spark.sending import Block, BlockKind, KeySender, mirrored


@dataclass(frozen=True, slots=True)
class IndexTask:
    """A run of one job's pieces. `upper_offset`: the round's end, where a limit set one; `buckets`:
    those that the job's keys go to (`cutting.buckets_of`)."""

    job: int
    pieces: tuple[Piece, ...]
    upper_offset: int
    buckets: range
    first_offsets: bool = False
    """Whether the rows are wanted with each key's first offset in place of its last (CMP-5)."""
    is_later: bool = False
    """Whether the pieces are the job's `later`: rows from the round's end on, and only those."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What a piece's indexing says besides keys, or the damage that was found."""

    job: int
    chunks: tuple[ChunkReport, ...] = ()
    damage: CorruptionError | None = None


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """One group of one job, or `pieces` of it, which is the whole group where it is not cut."""

    job: int
    group: tuple[SourceSegment, ...]
    pieces: tuple[Piece, ...]
    end_offset: int
    markers: SettledMarkers
    keyless: frozenset[int]

    @property
    def size_bytes(self) -> int:
        """Bytes of log files that it goes through."""
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether nobody else works on the group."""
        first, last = self.pieces[0], self.pieces[-1]
        return (first.first_offset, last.next_offset) == (
            self.group[0].base_offset,
            self.group[-1].next_offset,
        )


Report = tuple[int, "Block | SegmentReport"]


# ---------------------------------------------------------------- index


def index_task(task: IndexTask, job: CleaningJob, reports: int) -> Iterator[Report]:
    """The blocks of a task by bucket, and its reports, which go to the bucket `reports`."""
    has_versions = job.spec.order is not Order.OFFSET
    sender = KeySender(task.job, task.buckets, has_versions, first_offsets=task.first_offsets)
    scratch = Scratch()
    context = IndexContext.of_later(job) if task.is_later else IndexContext.of(job)
    for piece in task.pieces:
        try:
            chunks: list[ChunkReport] = []
            yield from _index_piece(task, job, context, piece, scratch, sender, chunks)
        except CorruptionError as error:
            yield reports, SegmentReport(task.job, damage=error)
            return
        if not task.is_later:  # what is not cleaned has no say in what becomes of transactions
            yield reports, SegmentReport(task.job, tuple(chunks))
    yield from sender.send_all()


def _index_piece(
    task: IndexTask,
    job: CleaningJob,
    context: IndexContext,
    piece: Piece,
    scratch: Scratch,
    sender: KeySender,
    chunks: list[ChunkReport],
) -> Iterator[Report]:
    check_digest(piece, job, LocalFileSystem())
    reader = piece.reader(LocalFileSystem(), job)
    try:
        while (chunk := reader.take(scratch)) is not None:
            pending: list[Report] = []

            def visit(rows: KeyRows, pending: list[Report] = pending) -> None:
                if task.is_later:
                    pending += sender.later(rows.part(rows.from_offset(job.first_uncleanable)))
                    return
                split = rows.from_offset(job.first_dirty)
                if split > 0 and not task.first_offsets:
                    pending += sender.probes(rows.part(0, split))
                pending += sender.keys(rows.part(split), scratch)

            report = index_chunk(
                chunk,
                context,
                piece.segment.base_offset,
                crc_from=-1,
                upper_offset=task.upper_offset,
                scratch=scratch,
                visit=visit,
            )
            chunks.append(report)
            yield from pending
    finally:
        reader.close()


# ---------------------------------------------------------------- merge


def merge_bucket(
    blocks: Iterable[Block], owners: Mapping[int, Sequence[tuple[int, int]]]
) -> Iterator[Block]:
    """Merge one bucket: the live, dead and held offsets for each rewrite task.

    `owners` lists each job's tasks in file order: (number of the task, its end offset).
    """
    scratch = Scratch()
    maps, asked = _merged(blocks, scratch)
    for job, offset_map in maps.items():
        dead, held = [], []
        for block in asked.get(job, []):
            if block.kind is BlockKind.PROBES:
                dead.append(offset_map.superseded(block.rows(), scratch))
            else:
                held.append(offset_map.held(block.rows(), scratch))
        found = {
            BlockKind.LIVE: offset_map.offsets(),
            BlockKind.DEAD: _joined(dead),
            BlockKind.HELD: np.unique(_joined(held)),
        }
        ends = [end for _, end in owners[job]]
        for kind, offsets in found.items():
            first = 0
            for (number, _), last in zip(
                owners[job], np.searchsorted(offsets, ends).tolist(), strict=True
            ):
                for at in range(first, last, 3 * sending.ROWS_PER_BLOCK):
                    part = offsets[at : min(at + 3 * sending.ROWS_PER_BLOCK, last)]
                    yield Block(kind, number, b"", part.tobytes())
                first = last


def _joined(parts: Sequence[Int64s]) -> Int64s:
    """All offsets of the parts, sorted."""
    return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))


def count_keys(blocks: Iterable[Block], visit: Callable[[int, Int64s], None]) -> None:
    """Give `visit` each job's merged first offsets of one bucket, sorted."""
    maps, _ = _merged(blocks, Scratch(), mirrored)
    for job, offset_map in maps.items():
        visit(job, np.sort(MAX_OFFSET - 1 - offset_map.offsets()))


def _merged(
    blocks: Iterable[Block],
    scratch: Scratch,
    values_of: Callable[[KeyRows], KeyRows] = lambda rows: rows,
) -> tuple[dict[int, OffsetMap], dict[int, list[Block]]]:
    """One map a job of all KEYS rows, and the PROBES and LATER to ask it. Jobs without keys have no
    map: nothing there is superseded."""
    maps: dict[int, OffsetMap] = {}
    asked: dict[int, list[Block]] = {}
    for block in blocks:
        if block.kind is not BlockKind.KEYS:
            asked.setdefault(block.owner, []).append(block)
            continue
        rows = values_of(block.rows())
        if block.owner not in maps:
            # A bucket is sized by the driver; a skewed one grows rather than fails.
            maps[block.owner] = OffsetMap(
                memory_bytes=1 << 40, has_versions=rows.versions is not None
            )
        maps[block.owner].add(rows, scratch)
    return maps, asked


# ---------------------------------------------------------------- rewrite


def rewrite_task(
    task: RewriteTask, job: CleaningJob, blocks: Iterable[Block], *, tag: str, writes: bool
) -> tuple[CleanedGroup | Stretch | None, int, CorruptionError | None]:
    """(the group's outcome or the stretch's, live keys in it, damage)."""
    kinds = (BlockKind.LIVE, BlockKind.DEAD, BlockKind.HELD)
    offsets: dict[BlockKind, list[bytes]] = {kind: [] for kind in kinds}
    for block in blocks:
        offsets[block.kind].append(block.offsets)
    live, dead, held = (
        np.sort(np.frombuffer(bytearray(b"".join(offsets[kind])), np.int64)) for kind in kinds
    )
    context = DecideContext.of(job, task.end_offset, live, dead, task.markers, task.keyless, held)
    rewrite = _rewrite_group if task.is_whole else _rewrite_stretch
    try:
        return rewrite(task, context, tag, writes), len(live), None
    except CorruptionError as error:
        return None, 0, error


def _rewrite_group(
    task: RewriteTask, context: DecideContext, tag: str, writes: bool
) -> CleanedGroup:
    rewriter = GroupRewriter(
        LocalFileSystem(), context, task.group, tag=tag, attempt=_attempt(), writes=writes
    )
    scratch = Scratch()
    try:
        while rewriter.work(scratch) > 0:
            pass
        return rewriter.finish()
    finally:
        rewriter.close()


def _rewrite_stretch(task: RewriteTask, context: DecideContext, tag: str, writes: bool) -> Stretch:
    return rewrite_stretch(
        LocalFileSystem(),
        context,
        task.group,
        task.pieces,
        # A joined group's files have the name of its first stretch's, but for this.
        tag=f"{tag}-stretch",
        attempt=_attempt(),
        writes=writes,
    )


def join_task(
    task: RewriteTask,
    job: CleaningJob,
    stretches: Sequence[Stretch],
    *,
    tag: str,
    writes: bool,
) -> tuple[CleanedGroup | None, CorruptionError | None]:
    """Put a group together: (its outcome, damage). `task`: any of the group's; `stretches`: all of
    them, in file order."""
    none = np.empty(0, np.int64)
    context = DecideContext.of(job, task.end_offset, none, none, task.markers, task.keyless)
    try:
        group = join_stretches(
            LocalFileSystem(),
            context,
            task.group,
            stretches,
            tag=tag,
            attempt=_attempt(),
            writes=writes,
        )
    except CorruptionError as error:
        return None, error
    return group, None


def _attempt() -> int:
    task_context = TaskContext.get()
    return int(task_context.taskAttemptId()) if task_context is not None else 0
