"""The engine on Spark: the same steps as the local engine, as one job with two shuffles.

    index tasks ──shuffle by hash bucket──► merge ──shuffle by group──► rewrite tasks ──► driver
        └────reports (one bucket of their own)────► driver: settle

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

import heapq
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.chunk import Scratch
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.group import group_segments
from stratalog.clean.index import ChunkReport
from stratalog.clean.job import CleanedGroup, CleanedPartition, CleaningJob
from stratalog.clean.round_end import find_round_end, key_limit
from stratalog.clean.settle import SettledMarkers, settle
from stratalog.segment.names import MAX_OFFSET
from stratalog.spark import tasks
from stratalog.spark.tasks import Block, IndexTask, RewriteTask, SegmentReport

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast
    from pyspark.sql import SparkSession

_RUN_BYTES = 2 << 30
"""Most bytes of segments a task indexes: the more, the fewer keys are sent twice."""

_BUCKET_BYTES = 256 << 20
"""Bytes of log whose keys one bucket holds: at 100-byte records about 64 MB of map."""

_PIECE_BYTES = 1 << 20
"""What a segment or group costs besides its bytes, in bytes of work."""

_POLL_SECONDS = 0.2


class SparkEngine:
    """Cleans jobs on the session's cluster. Every worker must see the jobs' directories."""

    def __init__(self, spark: SparkSession, filesystem: FileSystem | None = None):
        """`filesystem` is the driver's own, for looking up where a limited round ends."""
        self._context = spark.sparkContext
        self._filesystem = filesystem or LocalFileSystem()

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        """See `Engine.clean`."""
        if not jobs:
            return []
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
        buckets = self._buckets(jobs)
        ends = self._round_ends(jobs, shared, buckets, on_progress)
        index_tasks = self._index_tasks(jobs, ends) + _later_tasks(jobs)
        blocks = self._indexed(index_tasks, shared, buckets)
        with self._described("index", jobs, on_progress):
            reports = self._read_reports(blocks, buckets)
        markers, keyless = _settle_all(jobs, reports)
        rewrites = [
            RewriteTask(number, tuple(group), ends[number], markers[number], keyless[number])
            for number, job in enumerate(jobs)
            for group in _groups(job, ends[number])
        ]
        with self._described("rewrite", jobs, on_progress):
            results = self._rewritten(blocks, rewrites, jobs, shared, writes)
        cleaned: list[list[CleanedGroup]] = [[] for _ in jobs]
        keys = [0] * len(jobs)
        for task, (group, live_keys, damage) in zip(rewrites, results, strict=True):
            if damage is not None:
                raise damage
            assert group is not None
            cleaned[task.job].append(group)
            keys[task.job] += live_keys
        return [
            CleanedPartition(job, ends[number], keys[number], tuple(cleaned[number]))
            for number, job in enumerate(jobs)
        ]

    # ------------------------------------------------------------ the parts of the job

    def _buckets(self, jobs: Sequence[CleaningJob]) -> int:
        total_bytes = sum(segment.size_bytes for job in jobs for segment in job.segments)
        return max(self._context.defaultParallelism, -(-total_bytes // _BUCKET_BYTES))

    def _index_tasks(self, jobs: Sequence[CleaningJob], ends: Sequence[int]) -> list[IndexTask]:
        """Runs of segments of one job each, for a lone job about as many as there are cores."""
        total_bytes = sum(segment.size_bytes for job in jobs for segment in job.segments)
        run_bytes = min(_RUN_BYTES, max(1, -(-total_bytes // self._context.defaultParallelism)))
        index_tasks: list[IndexTask] = []
        for number, job in enumerate(jobs):
            run: list[Any] = []
            size_bytes = 0
            for segment in job.segments:
                if segment.base_offset >= ends[number]:
                    break
                if run and size_bytes + segment.size_bytes > run_bytes * 1.1:
                    index_tasks.append(IndexTask(number, tuple(run), ends[number]))
                    run, size_bytes = [], 0
                run.append(segment)
                size_bytes += segment.size_bytes
            if run:
                index_tasks.append(IndexTask(number, tuple(run), ends[number]))
        return index_tasks

    def _indexed(
        self,
        index_tasks: Sequence[IndexTask],
        shared: Broadcast[tuple[CleaningJob, ...]],
        buckets: int,
    ) -> RDD[Any]:
        """The first shuffle: (bucket, block), with one bucket more for the reports."""

        def run(bins: Iterable[list[IndexTask]]) -> Iterator[Any]:
            for task in (task for tasks_of_bin in bins for task in tasks_of_bin):
                yield from tasks.index_task(task, shared.value[task.job], buckets)

        sizes = [sum(s.size_bytes for s in task.segments) for task in index_tasks]
        bins = [[index_tasks[n] for n in chosen] for chosen in self._bins(sizes)]
        rows = self._context.parallelize(bins, len(bins))
        return rows.mapPartitions(run).partitionBy(buckets + 1, _same)

    def _bins(self, sizes: Sequence[int]) -> list[list[int]]:
        """Numbers of pieces of work, put together so that small ones share a Spark task."""
        total_bytes = sum(sizes)
        wanted = max(4 * self._context.defaultParallelism, total_bytes // _BUCKET_BYTES)
        bins: list[list[int]] = [[] for _ in range(max(1, min(len(sizes), wanted)))]
        # Biggest first, each to the emptiest bin; a piece costs something even if it is empty.
        heap = [(0, number) for number in range(len(bins))]
        for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
            filled, chosen = heapq.heappop(heap)
            bins[chosen].append(number)
            heapq.heappush(heap, (filled + sizes[number] + _PIECE_BYTES, chosen))
        return bins

    def _read_reports(self, blocks: RDD[Any], buckets: int) -> list[SegmentReport]:
        return [
            report
            for _, report in self._context.runJob(blocks, _rows, [buckets])
            if isinstance(report, SegmentReport)
        ]

    def _rewritten(
        self,
        blocks: RDD[Any],
        rewrites: Sequence[RewriteTask],
        jobs: Sequence[CleaningJob],
        shared: Broadcast[tuple[CleaningJob, ...]],
        writes: bool,
    ) -> list[Any]:
        bins = self._bins([sum(s.size_bytes for s in task.group) for task in rewrites])
        bin_of = {number: place for place, chosen in enumerate(bins) for number in chosen}
        groups: dict[int, list[tuple[int, int]]] = {number: [] for number in range(len(jobs))}
        for number, task in enumerate(rewrites):
            groups[task.job].append((number, task.group[-1].next_offset))
        tag = f"spark{secrets.token_hex(6)}"
        plan = self._context.broadcast((list(rewrites), bins, bin_of, groups))

        def merge(rows: Iterable[Any]) -> Iterator[Any]:
            _, _, bin_of, groups = plan.value
            for block in tasks.merge_bucket(_blocks(rows), groups):
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
            grouped = merged.partitionBy(len(bins), _same)
            results = dict(grouped.mapPartitionsWithIndex(rewrite).collect())
            return [results[number] for number in range(len(rewrites))]
        finally:
            plan.destroy()

    # ------------------------------------------------------------ rounds with a limit of keys

    def _round_ends(
        self,
        jobs: Sequence[CleaningJob],
        shared: Broadcast[tuple[CleaningJob, ...]],
        buckets: int,
        on_progress: OnProgress,
    ) -> list[int]:
        """Where each job's round ends: at its bound, or where its limit of keys was reached."""
        ends = [job.first_uncleanable for job in jobs]
        limited = [number for number, job in enumerate(jobs) if key_limit(job.spec) is not None]
        if not limited:
            return ends
        index_tasks = [
            IndexTask(number, (segment,), jobs[number].first_uncleanable, first_offsets=True)
            for number in limited
            for segment in jobs[number].dirty_segments
        ]
        blocks = self._indexed(index_tasks, shared, buckets)
        with self._described("index", jobs, on_progress):
            _settle_all(jobs, self._read_reports(blocks, buckets))
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
        total_bytes = sum(segment.size_bytes for job in jobs for segment in job.segments)
        names = ", ".join(job.name for job in jobs[:3]) + (" ..." if len(jobs) > 3 else "")
        group = f"stratalog-{secrets.token_hex(4)}"
        stop = threading.Event()
        raised: list[BaseException] = []

        def poll() -> None:
            while not stop.wait(_POLL_SECONDS):
                if not raised:
                    done_bytes = int(self._done(group) * total_bytes)
                    try:
                        on_progress(Progress(phase, done_bytes, total_bytes))
                    except BaseException as error:  # noqa: BLE001  raised again in the caller
                        raised.append(error)
                if raised:
                    # Again and again: an action that has not reached Spark yet is not cancelled.
                    self._context.cancelJobGroup(group)

        on_progress(Progress(phase, 0, total_bytes))
        self._context.setJobGroup(group, f"stratalog {phase}: {names}", interruptOnCancel=True)
        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self._context.cancelJobGroup(group)
            if raised:
                raise raised[0] from None
            raise
        finally:
            stop.set()
            thread.join()
            self._context.setLocalProperty("spark.jobGroup.id", "")
        if raised:
            raise raised[0]
        on_progress(Progress(phase, total_bytes, total_bytes))

    def _done(self, group: str) -> float:
        tracker = self._context.statusTracker()
        done = total = 0
        for job_id in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done += stage.numCompletedTasks
                    total += stage.numTasks
        return done / total if total else 0.0


def _later_tasks(jobs: Sequence[CleaningJob]) -> list[IndexTask]:
    """A task for each segment beyond a round's end, where the order of versions asks for them."""
    return [
        IndexTask(number, (segment,), MAX_OFFSET, is_later=True)
        for number, job in enumerate(jobs)
        for segment in job.later
    ]


def _same(key: int) -> int:
    return key


def _blocks(rows: Iterable[Any]) -> Iterator[Block]:
    """The blocks of a bucket. Reports are taken too: a task that leaves rows costs its worker."""
    return (block for _, block in rows if isinstance(block, Block))


def _rows(rows: Iterable[Any]) -> Iterable[Any]:
    return rows


def _groups(job: CleaningJob, end_offset: int) -> list[tuple[Any, ...]]:
    return group_segments(
        [segment for segment in job.segments if segment.base_offset < end_offset],
        segment_bytes=job.spec.segment_bytes,
        segment_index_bytes=job.spec.segment_index_bytes,
        first_uncleanable=job.first_uncleanable,
    )


def _settle_all(
    jobs: Sequence[CleaningJob], reports: Iterable[SegmentReport]
) -> tuple[list[SettledMarkers], list[frozenset[int]]]:
    """Each job's settled markers and keyless segments. Raises the first damage by file name."""
    chunks: list[list[ChunkReport]] = [[] for _ in jobs]
    damages = []
    for report in reports:
        chunks[report.job].extend(report.chunks)
        if report.damage is not None:
            damages.append(report.damage)
    if damages:
        raise min(damages, key=lambda damage: (damage.file or "", damage.position or 0))
    markers = []
    keyless = []
    for number, job in enumerate(jobs):
        ordered = sorted(chunks[number], key=lambda chunk: chunk.place)
        markers.append(settle((chunk.transactions for chunk in ordered), job.aborted))
        keyless.append(frozenset(chunk.segment for chunk in ordered if chunk.has_keyless))
    return markers, keyless
