"""The engine on this machine: threads that take chunks, kernels without the GIL.

    1 index    every dirty chunk's keys into the offset map, by any thread in any order;
               with an order of versions every chunk is one (CMP-17)
    2 probe    every clean chunk's keys looked up there: the records that are superseded
               with an order of versions also every later one's: the tombstones that are still held
    3 settle   transactions, from the chunks' reports
    4 rewrite  group by group, chunk by chunk

Without a limit of keys, a map that fills is given up and the work is done again hash range by hash
range, as many as it seems to take (CMP-7). With a limit, one thread maps the records in order until
the map is full, which ends the round there (CMP-5).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import NO_CRC, ChunkReader, Int64s, Scratch
from stratalog.clean.decide import DecideContext
from stratalog.clean.engine import OnProgress
from stratalog.clean.group import group_segments
from stratalog.clean.index import ChunkReport, IndexContext, index_chunk
from stratalog.clean.job import CleanedGroup, CleanedPartition, CleaningJob, SourceSegment
from stratalog.clean.meter import Meter, size_bytes_of
from stratalog.clean.offset_map import KeyRows, OffsetMap
from stratalog.clean.rewrite import GroupRewriter
from stratalog.clean.round_end import find_round_end, key_limit
from stratalog.clean.settle import settle
from stratalog.clean.spool import OffsetSpool
from stratalog.segment.names import MAX_OFFSET

_MAX_RANGE_BITS = 10


@dataclass(slots=True)
class _Indexed:
    """What indexing a job found. `end_offset` is where the round ends."""

    end_offset: int
    keys: int
    live: Int64s
    dead: Int64s
    held: Int64s
    reports: list[ChunkReport]


class LocalEngine:
    """Cleans jobs one after another, each with `threads` threads."""

    def __init__(self, filesystem: FileSystem, *, threads: int | None = None):
        self._filesystem = filesystem
        self._threads = threads or min(8, os.cpu_count() or 1)
        self._scratches = [Scratch() for _ in range(self._threads)]

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        """See `Engine.clean`."""
        meter = Meter(sum(map(size_bytes_of, jobs)), on_progress)
        return [self._clean_one(job, writes, meter) for job in jobs]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the threads' buffers."""
        return sum(scratch.size_bytes for scratch in self._scratches)

    def _clean_one(self, job: CleaningJob, writes: bool, meter: Meter) -> CleanedPartition:
        meter.take_on(job)
        meter.start("index")
        found = self._index(job, meter)
        groups = group_segments(
            [segment for segment in job.segments if segment.base_offset < found.end_offset],
            segment_bytes=job.spec.segment_bytes,
            segment_index_bytes=job.spec.segment_index_bytes,
            first_uncleanable=job.first_uncleanable,
        )
        ordered = sorted(found.reports, key=lambda report: report.place)
        context = DecideContext.of(
            job,
            found.end_offset,
            found.live,
            found.dead,
            settle((report.transactions for report in ordered), job.aborted),
            frozenset(report.segment for report in ordered if report.has_keyless),
            found.held,
        )
        meter.start("rewrite")
        cleaned = self._rewrite(context, groups, writes, meter)
        return CleanedPartition(job, found.end_offset, found.keys, tuple(cleaned))

    # ------------------------------------------------------------ indexing

    def _index(self, job: CleaningJob, meter: Meter) -> _Indexed:
        max_keys = key_limit(job.spec)
        if max_keys is not None:
            return self._index_limited(job, max_keys, meter)
        range_bits = 0
        while True:
            done_before = meter.done_bytes
            found = self._index_ranges(job, range_bits, meter)
            if found is not None:
                return found
            # The share of the dirty bytes that filled the map says how many ranges it takes.
            dirty_bytes = sum(segment.size_bytes for segment in job.dirty_segments)
            scanned = max(1, meter.done_bytes - done_before)
            needed = max(2.0, (1 << range_bits) * dirty_bytes / scanned)
            range_bits = min(_MAX_RANGE_BITS, max(range_bits + 1, int(np.ceil(np.log2(needed)))))
            meter.start("index")

    def _index_ranges(self, job: CleaningJob, range_bits: int, meter: Meter) -> _Indexed | None:
        """Index with 2^range_bits maps, one after another; None if one of them fills."""
        reports: dict[tuple[int, int], ChunkReport] = {}
        memory_bytes = job.spec.memory_bytes
        live = OffsetSpool(memory_bytes // 4, job.directory)
        dead = OffsetSpool(memory_bytes // 32, job.directory)
        held = OffsetSpool(memory_bytes // 32, job.directory)
        keys = 0
        context = IndexContext.of(job)
        for hash_range in range(1 << range_bits):
            # A key takes 26.7 bytes in the map at its fullest (35.6 with a version), and 8 more
            # among the live offsets.
            offset_map = OffsetMap(
                memory_bytes=memory_bytes * 3 // 4,
                range_bits=range_bits,
                hash_range=hash_range,
                has_versions=context.has_versions,
            )
            is_first = hash_range == 0
            found = self._fill(job, offset_map, is_first, meter)
            if found is None:
                return None
            probed = self._probe(job, offset_map, is_first, meter, dead)
            self._probe_later(job, offset_map, is_first, meter, held)
            for report in [*found, *probed]:
                reports[report.place] = report
            keys += offset_map.used
            live.append(offset_map.offsets())
        return _Indexed(
            job.first_uncleanable,
            keys,
            live.finish(),
            dead.finish(),
            held.finish(),
            list(reports.values()),
        )

    def _fill(
        self, job: CleaningJob, offset_map: OffsetMap, is_first: bool, meter: Meter
    ) -> list[ChunkReport] | None:
        """Map the dirty keys. None if the map is full."""
        context = IndexContext.of(job)
        reports: list[ChunkReport] = []
        is_full = threading.Event()

        def work(segment: SourceSegment, reader: ChunkReader, scratch: Scratch) -> bool:
            chunk = None if is_full.is_set() else reader.take(scratch)
            if chunk is None:
                return False

            def visit(rows: KeyRows) -> None:
                if not offset_map.add(rows.part(rows.from_offset(job.first_dirty)), scratch):
                    is_full.set()

            report = index_chunk(
                chunk,
                context,
                segment.base_offset,
                crc_from=-1 if is_first else NO_CRC,
                upper_offset=job.first_uncleanable,
                scratch=scratch,
                visit=visit,
            )
            reports.append(report)
            meter.add(chunk.size_bytes)
            return True

        self._each_chunk(job, job.dirty_segments, work)
        return None if is_full.is_set() else reports

    def _probe(
        self,
        job: CleaningJob,
        offset_map: OffsetMap,
        is_first: bool,
        meter: Meter,
        dead: OffsetSpool,
    ) -> list[ChunkReport]:
        """Look the clean records up; those superseded go to `dead`. The chunks' reports."""
        context = IndexContext.of(job)
        reports: list[ChunkReport] = []
        lock = threading.Lock()

        def work(segment: SourceSegment, reader: ChunkReader, scratch: Scratch) -> bool:
            chunk = reader.take(scratch)
            if chunk is None:
                return False

            def visit(rows: KeyRows) -> None:
                end = rows.from_offset(job.first_dirty)
                found = offset_map.superseded(rows.part(0, end), scratch)
                with lock:
                    dead.append(found)

            is_checked = not is_first or segment.next_offset > job.first_dirty
            report = index_chunk(
                chunk,
                context,
                segment.base_offset,
                crc_from=NO_CRC if is_checked else -1,
                upper_offset=job.first_uncleanable,
                scratch=scratch,
                visit=visit,
            )
            reports.append(report)
            if segment.next_offset <= job.first_dirty:
                meter.add(chunk.size_bytes)
            return True

        self._each_chunk(job, job.clean_segments, work)
        return reports

    def _probe_later(
        self,
        job: CleaningJob,
        offset_map: OffsetMap,
        is_first: bool,
        meter: Meter,
        held: OffsetSpool,
    ) -> None:
        """Look up what lies beyond the round's end; what it would lose to goes to `held`."""
        context = IndexContext.of_later(job)
        lock = threading.Lock()

        def work(segment: SourceSegment, reader: ChunkReader, scratch: Scratch) -> bool:
            chunk = reader.take(scratch)
            if chunk is None:
                return False

            def visit(rows: KeyRows) -> None:
                later = rows.part(rows.from_offset(job.first_uncleanable))
                found = offset_map.held(later, scratch)
                with lock:
                    held.append(found)

            index_chunk(
                chunk,
                context,
                segment.base_offset,
                crc_from=-1 if is_first else NO_CRC,
                upper_offset=MAX_OFFSET,
                scratch=scratch,
                visit=visit,
            )
            meter.add(0)  # no bytes of the job's, but whoever watches may want to stop
            return True

        self._each_chunk(job, job.later, work)

    def _index_limited(self, job: CleaningJob, max_keys: int, meter: Meter) -> _Indexed:
        """Map records in order until `max_keys` keys are there; the round ends there (CMP-5)."""
        context = IndexContext.of(job)
        scratch = self._scratches[0]
        offset_map = OffsetMap(max_keys=max_keys)
        reports: list[ChunkReport] = []
        last_mapped = -1
        is_full = False

        def visit(rows: KeyRows) -> None:
            nonlocal last_mapped, is_full
            dirty = rows.part(rows.from_offset(job.first_dirty))
            if is_full or len(dirty) == 0:
                return
            added = offset_map.add_in_order(dirty)
            if added > 0:
                last_mapped = int(dirty.offsets[added - 1])
            is_full = added < len(dirty)

        for segment in job.dirty_segments:
            if is_full:
                break
            with self._readers(job, [segment]) as [(_, reader)]:
                while (chunk := reader.take(scratch)) is not None:
                    report = index_chunk(
                        chunk,
                        context,
                        segment.base_offset,
                        crc_from=-1,
                        upper_offset=job.first_uncleanable,
                        scratch=scratch,
                        visit=visit,
                    )
                    reports.append(report)
                    meter.add(chunk.size_bytes)
        end_offset = job.first_uncleanable
        if is_full:
            end_offset = find_round_end(job, last_mapped, self._filesystem, scratch)
        dead = OffsetSpool(job.spec.memory_bytes // 32, job.directory)
        probed = self._probe(job, offset_map, True, meter, dead)
        known = {report.place for report in reports}
        reports += [report for report in probed if report.place not in known]
        live = offset_map.offsets()
        # Only by offset is there a limit, and then nothing that comes later can lose.
        held = np.empty(0, np.int64)
        return _Indexed(end_offset, offset_map.used, live, dead.finish(), held, reports)

    # ------------------------------------------------------------ rewriting

    def _rewrite(
        self,
        context: DecideContext,
        groups: Sequence[Sequence[SourceSegment]],
        writes: bool,
        meter: Meter,
    ) -> list[CleanedGroup]:
        rewriters = [
            GroupRewriter(self._filesystem, context, group, tag="local", attempt=0, writes=writes)
            for group in groups
        ]
        results: list[CleanedGroup | None] = [None] * len(groups)
        busy = [0] * len(groups)
        done = [False] * len(groups)
        lock = threading.Lock()

        def run(scratch: Scratch, stop: threading.Event) -> None:
            for place, rewriter in enumerate(rewriters):
                with lock:
                    if done[place]:
                        continue
                    busy[place] += 1
                while not stop.is_set() and (size_bytes := rewriter.work(scratch)) > 0:
                    meter.add(size_bytes)
                with lock:
                    busy[place] -= 1
                    is_last = busy[place] == 0 and not done[place] and not stop.is_set()
                    done[place] = done[place] or is_last
                if is_last:
                    results[place] = rewriter.finish()

        try:
            self._on_all_threads(run)
        finally:
            for rewriter in rewriters:
                rewriter.close()
        return [result for result in results if result is not None]

    # ------------------------------------------------------------ threads

    def _each_chunk(
        self,
        job: CleaningJob,
        segments: Sequence[SourceSegment],
        work: Callable[[SourceSegment, ChunkReader, Scratch], bool],
    ) -> None:
        """All threads take chunks of one segment, then of the next, until `work` answers False."""
        with self._readers(job, segments) as readers:

            def run(scratch: Scratch, stop: threading.Event) -> None:
                for segment, reader in readers:
                    while not stop.is_set() and work(segment, reader, scratch):
                        pass

            self._on_all_threads(run)

    def _on_all_threads(self, run: Callable[[Scratch, threading.Event], None]) -> None:
        """Run on every thread. The first error, or Ctrl-C, sets the event: all stop at a chunk."""
        stop = threading.Event()
        if self._threads == 1:
            run(self._scratches[0], stop)
            return

        def guarded(scratch: Scratch) -> None:
            try:
                run(scratch, stop)
            except BaseException:
                stop.set()
                raise

        with ThreadPoolExecutor(self._threads) as pool:
            try:
                for result in [pool.submit(guarded, scratch) for scratch in self._scratches]:
                    result.result()
            finally:
                stop.set()

    @contextmanager
    def _readers(
        self, job: CleaningJob, segments: Sequence[SourceSegment]
    ) -> Iterator[list[tuple[SourceSegment, ChunkReader]]]:
        readers = [
            (segment, ChunkReader.of(self._filesystem, job.directory, segment, job.spec))
            for segment in segments
        ]
        try:
            yield readers
        finally:
            for _, reader in readers:
                reader.close()
