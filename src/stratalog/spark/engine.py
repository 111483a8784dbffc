"""The engine on Spark: the same steps as the local engine, as one job with two shuffles.

    index tasks ──shuffle by hash bucket──► merge ──shuffle by task──► rewrite tasks ──► driver
        └────reports (one bucket of their own)────► driver: settle

A segment that is much larger than a task's fair share is cut where its index says that a batch
begins, and a group that is, is rewritten by several tasks, whose results a task more puts together
(`cutting`, `joining`). An index may be wrong: damage that is found with cuts is looked for again
without.

Many partitions go through one job (SPK-1). The first shuffle is computed once: the reports are read
from its last partition, then settled here, and the second action goes on from the same shuffle
files. There is no limit of keys unless a job's spec sets one (CMP-7) and its order is by offset
(CMP-17); then a job before finds the
n-th smallest first offset of all keys, which is where the round ends (CMP-5).

Worker processes that die are retried by Spark; what a dead attempt wrote has its attempt's number
in its name and is never looked at: the outcome names the files of the attempt that was committed.

Invariants
- E1  For equal jobs the outcome and the bytes are those of the local engine (SPK-2).
- E2  Tasks write only `.part` files; only the driver's caller renames or removes (SPK-1).
- E3  Rows never cross the JVM one by one: blocks of up to about 1 MiB do.
- E4  An `on_progress` that raises ends the work: the job group is cancelled within a poll, and what
      was raised is raised here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.chunk import Scratch
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.job import CleanedGroup, CleanedPartition, CleaningJob
from stratalog.clean.round_end import find_round_end, key_limit
from stratalog.segment.names import MAX_OFFSET
from stratalog.spark import cutting, planning, tasks
from stratalog.spark.cutting import Piece
from stratalog.spark.describing import description, watched
from stratalog.spark.failures import one_line_failures
from stratalog.spark.sending import Block
from stratalog.spark.tasks import IndexTask, RewriteTask, SegmentReport

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class _Group:
    """A group while it is rewritten: one of its tasks, how many live keys it holds, and what was
    made of it: its outcome, or, of one that is cut, its stretches until they are joined."""

    task: RewriteTask
    keys: int = 0
    made: list[Any] = field(default_factory=list)


class SparkEngine:
    """Cleans jobs on the session's cluster. Every worker must see the jobs' directories."""

    def __init__(
        self, spark: SparkSession, filesystem: FileSystem | None = None, *, title: str = "compact"
    ):
        """`filesystem` is the driver's own, for looking up where a limited round ends and where a
        segment may be cut, and for removing what was written to be joined. `title`:
        what Spark's page calls the work."""
        self._title = title
        self._context = spark.sparkContext
        self._filesystem = filesystem or LocalFileSystem()

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        """See `Engine.clean`. Raises `StorageIOError` if Spark gives up, or what its tasks did."""
        if not jobs:
            return []
        with one_line_failures():
            shared = self._context.broadcast(tuple(jobs))
            try:
                return self._clean(list(jobs), shared, writes, on_progress)
            finally:
                shared.destroy()

    def _clean(
        self,
        jobs: list[CleaningJob],
        shared: Broadcast[tuple[CleaningJob, ...]],
        writes: bool,
        on_progress: OnProgress,
    ) -> list[CleanedPartition]:
        sizes = [planning.total_bytes([job]) for job in jobs]
        buckets = cutting.buckets_of(sizes, self._context.defaultParallelism)
        ends = self._round_ends(jobs, shared, buckets, on_progress)
        share = cutting.share_bytes(planning.total_bytes(jobs), self._context.defaultParallelism)
        pieces = planning.cut_pieces(jobs, ends, share, self._filesystem)
        try:
            blocks, reports = self._index(jobs, ends, pieces, shared, buckets, share, on_progress)
            markers, keyless = planning.settle_all(jobs, reports)
        except CorruptionError:
            if all(piece.is_whole for of_job in pieces for piece in of_job):
                raise
            # It may be the index that is damaged, of which cutting took a wrong place.
            pieces = planning.whole_pieces(jobs, ends)
            blocks, reports = self._index(jobs, ends, pieces, shared, buckets, share, on_progress)
            markers, keyless = planning.settle_all(jobs, reports)
        rewrites = [
            RewriteTask(number, group, stretch, ends[number], markers[number], keyless[number])
            for number, job in enumerate(jobs)
            for group, stretch in planning.stretches(job, ends[number], pieces[number], share)
        ]
        with self._described("rewrite", jobs, on_progress):
            results = self._rewritten(blocks, rewrites, jobs, shared, writes)
        cleaned: list[list[CleanedGroup]] = [[] for _ in jobs]
        keys = [0] * len(jobs)
        for one in results:
            [group] = one.made
            cleaned[one.task.job].append(group)
            keys[one.task.job] += one.keys
        return [
            CleanedPartition(job, ends[number], keys[number], tuple(cleaned[number]))
            for number, job in enumerate(jobs)
        ]

    # ------------------------------------------------------------ the parts of the job

    def _index(
        self,
        jobs: Sequence[CleaningJob],
        ends: Sequence[int],
        pieces: Sequence[Sequence[Piece]],
        shared: Broadcast[tuple[CleaningJob, ...]],
        buckets: Sequence[range],
        share: int,
        on_progress: OnProgress,
    ) -> tuple[RDD[Any], list[SegmentReport]]:
        """The first shuffle, and its reports."""
        index_tasks = [
            IndexTask(number, run, ends[number], buckets[number])
            for number, of_job in enumerate(pieces)
            for run in cutting.runs(of_job, share)
        ]
        blocks = self._indexed(
            index_tasks + planning.later_tasks(jobs, buckets), shared, cutting.past_all(buckets)
        )
        with self._described("index", jobs, on_progress):
            return blocks, self._read_reports(blocks, cutting.past_all(buckets))

    def _indexed(
        self,
        index_tasks: Sequence[IndexTask],
        shared: Broadcast[tuple[CleaningJob, ...]],
        reports: int,
    ) -> RDD[Any]:
        """The first shuffle: (bucket, block), with the last bucket for the reports."""

        def run(bins: Iterable[list[IndexTask]]) -> Iterator[Any]:
            for task in (task for tasks_of_bin in bins for task in tasks_of_bin):
                yield from tasks.index_task(task, shared.value[task.job], reports)

        sizes = [sum(piece.size_bytes for piece in task.pieces) for task in index_tasks]
        bins = [[index_tasks[n] for n in chosen] for chosen in self._bins(sizes)]
        rows = self._context.parallelize(bins, len(bins))
        blocks = rows.setName("runs of segments").mapPartitions(run).partitionBy(reports + 1, _same)
        return blocks.setName("keys by hash bucket")

    def _bins(self, sizes: Sequence[int]) -> list[list[int]]:
        """Numbers of tasks, small ones together, for a few Spark tasks a core."""
        wanted = max(4 * self._context.defaultParallelism, sum(sizes) // cutting.BUCKET_BYTES)
        return cutting.bins(sizes, wanted)

    def _read_reports(self, blocks: RDD[Any], reports: int) -> list[SegmentReport]:
        return [
            report
            for _, report in self._context.runJob(blocks, _rows, [reports])
            if isinstance(report, SegmentReport)
        ]

    def _rewritten(
        self,
        blocks: RDD[Any],
        rewrites: Sequence[RewriteTask],
        jobs: Sequence[CleaningJob],
        shared: Broadcast[tuple[CleaningJob, ...]],
        writes: bool,
    ) -> list[_Group]:
        """The groups, in order. Raises the first `CorruptionError`."""
        bins = self._bins([task.size_bytes for task in rewrites])
        bin_of = {number: place for place, chosen in enumerate(bins) for number in chosen}
        owners: dict[int, list[tuple[int, int]]] = {number: [] for number in range(len(jobs))}
        for number, task in enumerate(rewrites):
            owners[task.job].append((number, task.pieces[-1].next_offset))
        tag = f"spark{secrets.token_hex(6)}"
        plan = self._context.broadcast((list(rewrites), bins, bin_of, owners))

        def merge(rows: Iterable[Any]) -> Iterator[Any]:
            _, _, bin_of, owners = plan.value
            for block in tasks.merge_bucket(_blocks(rows), owners):
                yield bin_of[block.owner], block

        def rewrite(place: int, rows: Iterable[Any]) -> Iterator[Any]:
            rewrites, bins, _, _ = plan.value
            blocks_of: dict[int, list[Block]] = {number: [] for number in bins[place]}
            for _, block in rows:
                blocks_of[block.owner].append(block)
            for number, blocks in blocks_of.items():
                job = shared.value[rewrites[number].job]
                yield (
                    number,
                    tasks.rewrite_task(rewrites[number], job, blocks, tag=tag, writes=writes),
                )

        try:
            merged = blocks.mapPartitions(merge)
            grouped = merged.partitionBy(len(bins), _same).setName("live offsets by task")
            rewritten = grouped.mapPartitionsWithIndex(rewrite).setName("rewritten groups")
            results = dict(rewritten.collect())
        finally:
            plan.destroy()
        parts: dict[tuple[int, int], _Group] = {}
        for number, task in enumerate(rewrites):
            made, live_keys, damage = results[number]
            if damage is not None:
                raise damage
            of_group = parts.setdefault((task.job, task.group[0].base_offset), _Group(task))
            of_group.keys += live_keys
            of_group.made.append(made)
        self._join([one for one in parts.values() if not one.task.is_whole], shared, tag, writes)
        return list(parts.values())

    def _join(
        self,
        cut: Sequence[_Group],
        shared: Broadcast[tuple[CleaningJob, ...]],
        tag: str,
        writes: bool,
    ) -> None:
        """Put the groups together that several tasks have rewritten."""
        if not cut:
            return

        def join(groups: Iterable[tuple[RewriteTask, list[Any]]]) -> Iterator[Any]:
            for task, made in groups:
                job = shared.value[task.job]
                yield tasks.join_task(task, job, made, tag=tag, writes=writes)

        rows = self._context.parallelize([(one.task, one.made) for one in cut], len(cut))
        joined = rows.mapPartitions(join).setName("joined groups").collect()
        jobs = shared.value
        for one, (group, damage) in zip(cut, joined, strict=True):
            if damage is not None:
                raise damage
            for name in (name for stretch in one.made for name in stretch.files):
                self._filesystem.unlink(os.path.join(jobs[one.task.job].directory, name))
            one.made = [group]

    # ------------------------------------------------------------ rounds with a limit of keys

    def _round_ends(
        self,
        jobs: Sequence[CleaningJob],
        shared: Broadcast[tuple[CleaningJob, ...]],
        buckets: Sequence[range],
        on_progress: OnProgress,
    ) -> list[int]:
        """Where each job's round ends: at its bound, or where its limit of keys was reached."""
        ends = [job.first_uncleanable for job in jobs]
        limited = [number for number, job in enumerate(jobs) if key_limit(job.spec) is not None]
        if not limited:
            return ends
        index_tasks = [
            IndexTask(
                number,
                (cutting.whole(segment),),
                jobs[number].first_uncleanable,
                buckets[number],
                first_offsets=True,
            )
            for number in limited
            for segment in jobs[number].dirty_segments
        ]
        blocks = self._indexed(index_tasks, shared, cutting.past_all(buckets))
        with self._described("index", jobs, on_progress):
            planning.settle_all(jobs, self._read_reports(blocks, cutting.past_all(buckets)))
            counts = self._first_offsets_by_segment(blocks, jobs)
        scratch = Scratch()
        for number, last_mapped in self._last_mapped(blocks, jobs, counts).items():
            ends[number] = find_round_end(jobs[number], last_mapped, self._filesystem, scratch)
        return ends

    def _first_offsets_by_segment(
        self, blocks: RDD[Any], jobs: Sequence[CleaningJob]
    ) -> dict[int, Any]:
        """For each job, how many keys first appear in each of its dirty segments: int64[n]."""
        bases = [[s.base_offset for s in job.dirty_segments] for job in jobs]

        def count(rows: Iterable[Any]) -> Iterator[Any]:
            counted: list[tuple[int, Any]] = []

            def visit(job: int, offsets: Any) -> None:
                bounds = np.searchsorted(offsets, [*bases[job][1:], MAX_OFFSET])
                counted.append((job, np.diff(bounds, prepend=0)))

            tasks.count_keys(_blocks(rows), visit)
            yield from counted

        totals: dict[int, Any] = {}
        for job, counts in blocks.mapPartitions(count).collect():
            totals[job] = totals[job] + counts if job in totals else counts
        return totals

    def _last_mapped(
        self, blocks: RDD[Any], jobs: Sequence[CleaningJob], counts: dict[int, Any]
    ) -> dict[int, int]:
        """For each job with as many keys as its limit n, the n-th smallest of their first offsets.

        The counts tell which segment it lies in, so that only that segment's are brought here.
        """
        wanted: dict[int, tuple[int, int, int]] = {}
        for number, of_segments in counts.items():
            limit = key_limit(jobs[number].spec)
            assert limit is not None
            upto = np.cumsum(of_segments)
            if upto[-1] >= limit:
                place = int(np.searchsorted(upto, limit))
                segment = jobs[number].dirty_segments[place]
                rank = limit - int(upto[place] - of_segments[place])
                wanted[number] = (rank, segment.base_offset, segment.next_offset)
        if not wanted:
            return {}

        def choose(rows: Iterable[Any]) -> Iterator[Any]:
            chosen: list[tuple[int, bytes]] = []

            def visit(job: int, offsets: Any) -> None:
                if job in wanted:
                    first, last = np.searchsorted(offsets, wanted[job][1:])
                    chosen.append((job, offsets[first:last].tobytes()))

            tasks.count_keys(_blocks(rows), visit)
            yield from chosen

        parts: dict[int, list[bytes]] = {number: [] for number in wanted}
        for number, part in blocks.mapPartitions(choose).collect():
            parts[number].append(part)
        return {
            number: int(np.sort(np.frombuffer(b"".join(parts[number]), np.int64))[rank - 1])
            for number, (rank, _, _) in wanted.items()
        }

    # ------------------------------------------------------------ progress

    @contextmanager
    def _described(
        self, phase: str, jobs: Sequence[CleaningJob], on_progress: OnProgress
    ) -> Iterator[None]:
        """Name the action in Spark's UI and report the share of its tasks that are done."""
        total_bytes = planning.total_bytes(jobs)

        def tell(share: float) -> None:
            on_progress(Progress(phase, int(share * total_bytes), total_bytes))

        tell(0.0)
        text = description(f"{self._title}: {phase}", [job.name for job in jobs], total_bytes)
        with watched(self._context, text, tell):
            yield
        tell(1.0)


def _same(key: int) -> int:
    return key


def _blocks(rows: Iterable[Any]) -> Iterator[Block]:
    """The blocks of a bucket. Reports are taken too: a task that leaves rows costs its worker."""
    return (block for _, block in rows if isinstance(block, Block))


def _rows(rows: Iterable[Any]) -> Iterable[Any]:
    return rows
