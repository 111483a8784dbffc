"""The keys that a round would drop the most superseded records of: exact, within a bound of memory.

The engine says how many records go; here the same records are looked for again, with the rules of
its indexing (`clean/index.py`), and counted by key:

    map      the keys of the dirty part -> their newest records       as the engine's map
    count    all records below the round's end that have a newer one there -> sums by key hash
    choose   the largest sums; the text of these keys alone is read

Keys whose hashes do not fit are worked through hash range by hash range (CMP-7).

Invariants
- I1  The sums of all keys add up to the engine's number of superseded records.
- I2  Which keys are answered, in which order, depends on the log alone: not on hashes or threads.
- I3  Both maps together take at most `_MAP_BYTES` and half of that again while one grows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.admin.dump import text_of
from stratalog.admin.report import TopKey
from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import NO_CRC, Chunk, ChunkReader, Int64s, Scratch, pieces, scan_chunk
from stratalog.clean.chunk import damage as damage_of
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.index import IndexContext, index_chunk, legacy_batch
from stratalog.clean.job import CleanedPartition, CleaningJob, SourceSegment
from stratalog.clean.offset_map import Hashes, KeyRows, OffsetMap
from stratalog.record import layout
from stratalog.record.kernel import arrays, key_counts
from stratalog.segment.names import parse
from stratalog.segment.segment import open_segment

_MAP_BYTES = 512 << 20
_COUNT_WORDS = 5
_FIRST_SLOTS = 1 << 10
_FULL_AT = 0.8
_MAX_RANGE_BITS = 12
_LEGACY_OVERHEAD_BYTES = (26, 34)
"""What a message of magic 0 or 1 takes beside its key and value."""


@dataclass(slots=True)
class _Counts:
    """Key hash -> sums (`record/kernel/key_counts.py`). `lock` guards the rest."""

    most_slots: int
    slots: Hashes = field(init=False)
    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        first = max(8, min(_FIRST_SLOTS, self.most_slots))
        self.slots = np.zeros((first, _COUNT_WORDS), np.uint64)

    def add(self, hashes: Hashes, offsets: Int64s, sizes: Int64s) -> bool:
        """False if the map is full."""
        with self.lock:
            row = 0
            while True:
                limit = int(len(self.slots) * _FULL_AT)
                self.used, row = key_counts.count_keys(
                    self.slots, self.used, limit, hashes, offsets, sizes, row
                )
                if row == len(offsets):
                    return True
                if 2 * len(self.slots) > self.most_slots:
                    return False
                larger = np.zeros((2 * len(self.slots), _COUNT_WORDS), np.uint64)
                key_counts.rehash(self.slots, larger)
                self.slots = larger

    def largest(self, top: int) -> Hashes:
        """The `top` largest rows: by records, then bytes, then the smallest offset first."""
        rows = self.slots[self.slots[:, 2] > 0]
        if len(rows) > top:
            least = np.partition(rows[:, 2], len(rows) - top)[len(rows) - top]
            rows = rows[rows[:, 2] >= least]
        return _ordered(rows)[:top]


def _ordered(rows: Hashes) -> Hashes:
    most = np.uint64(1 << 63)
    return rows[np.lexsort((rows[:, 4], most - rows[:, 3], most - rows[:, 2]))]


def top_keys(
    cleaned: CleanedPartition,
    top: int,
    filesystem: FileSystem,
    on_progress: OnProgress,
    *,
    map_bytes: int = _MAP_BYTES,
) -> tuple[TopKey, ...]:
    """The `top` keys of which `cleaned` drops, or would drop, the most superseded records.

    The job's segments must be as they were: ask before they are replaced. Two passes over them for
    each hash range. Raises `CorruptionError`, `StorageIOError`.
    """
    if top == 0 or cleaned.volume.drops.superseded == 0:
        return ()
    finder = _Finder(cleaned, filesystem, on_progress, map_bytes)
    range_bits = 0
    while (found := finder.largest(top, range_bits)) is None:
        range_bits += 1
        assert range_bits <= _MAX_RANGE_BITS
    return tuple(
        TopKey(_key_at(cleaned.job, int(offset), filesystem), int(records), int(size_bytes))
        for _, _, records, size_bytes, offset in found.tolist()
    )


class _Finder:
    """One search. Its threads share the maps, which have locks."""

    def __init__(
        self,
        cleaned: CleanedPartition,
        filesystem: FileSystem,
        on_progress: OnProgress,
        map_bytes: int,
    ):
        self._job = cleaned.job
        self._end_offset = cleaned.end_offset
        self._filesystem = filesystem
        self._on_progress = on_progress
        self._map_bytes = map_bytes
        self._context = IndexContext.of(cleaned.job)
        self._scratches = [Scratch() for _ in range(min(8, os.cpu_count() or 1))]
        # What lies past the round's end is read by nobody.
        self._dirty = _below(self._job.dirty_segments, self._end_offset)
        self._all = _below(self._job.segments, self._end_offset)
        self._total_bytes = sum(segment.size_bytes for segment in (*self._dirty, *self._all))
        self._done_bytes = 0
        self._lock = threading.Lock()

    def largest(self, top: int, range_bits: int) -> Hashes | None:
        """The largest rows of all hash ranges; None if a range does not fit."""
        self._done_bytes = 0
        found = np.empty((0, _COUNT_WORDS), np.uint64)
        for hash_range in range(1 << range_bits):
            offset_map = OffsetMap(
                memory_bytes=self._map_bytes // 2,
                range_bits=range_bits,
                hash_range=hash_range,
                has_versions=self._context.has_versions,
            )
            counts = _Counts(self._map_bytes // 2 // (8 * _COUNT_WORDS))
            work = partial(self._map, keys=offset_map)
            count = partial(self._count, keys=offset_map, counts=counts)
            is_done = self._each_chunk(self._dirty, range_bits, work) and self._each_chunk(
                self._all, range_bits, count
            )
            if not is_done:
                return None
            found = _ordered(np.concatenate([found, counts.largest(top)]))[:top]
        return found

    def _map(self, segment: SourceSegment, chunk: Chunk, scratch: Scratch, keys: OffsetMap) -> bool:
        fits = True

        def visit(rows: KeyRows) -> None:
            nonlocal fits
            fits = fits and keys.add(rows.part(rows.from_offset(self._job.first_dirty)), scratch)

        self._index(segment, chunk, scratch, visit)
        return fits

    def _count(
        self,
        segment: SourceSegment,
        chunk: Chunk,
        scratch: Scratch,
        keys: OffsetMap,
        counts: _Counts,
    ) -> bool:
        hashes: list[Hashes] = [np.empty((0, 2), np.uint64)]
        offsets: list[Int64s] = [np.empty(0, np.int64)]

        def visit(rows: KeyRows) -> None:
            going = np.sort(keys.superseded(rows, scratch))
            if len(going):
                hashes.append(rows.hashes[np.searchsorted(rows.offsets, going)])
                offsets.append(going)

        self._index(segment, chunk, scratch, visit)
        going = np.concatenate(offsets)
        if len(going) == 0:
            return True
        sizes = self._sizes(chunk, going, scratch)
        return counts.add(np.concatenate(hashes), going, sizes)

    def _index(
        self,
        segment: SourceSegment,
        chunk: Chunk,
        scratch: Scratch,
        visit: Callable[[KeyRows], None],
    ) -> None:
        index_chunk(
            chunk,
            self._context,
            segment.base_offset,
            crc_from=NO_CRC,  # the engine has checked them
            upper_offset=self._end_offset,
            scratch=scratch,
            visit=visit,
        )

    def _sizes(self, chunk: Chunk, offsets: Int64s, scratch: Scratch) -> Int64s:
        """The sizes of the records at `offsets`, which are sorted and in this chunk."""
        spec = self._job.spec
        sizes = np.zeros(len(offsets), np.int64)
        table = scan_chunk(chunk, spec, NO_CRC, scratch)
        firsts = np.searchsorted(offsets, table["base_offset"])
        wanted: npt.NDArray[np.bool_] = (
            np.searchsorted(offsets, table["last_offset"], side="right") > firsts
        )
        is_legacy = table["magic"] < layout.MAGIC_V2
        for first_row, end_row, plain in pieces(chunk, table, wanted, spec, scratch):
            error, position = key_counts.record_sizes(
                chunk.raw, plain, table, first_row, end_row, offsets, sizes
            )
            if error != arrays.OK:
                raise damage_of(chunk, int(error), int(position))
        for row in np.flatnonzero(is_legacy).tolist():
            self._legacy_sizes(chunk, table[row], offsets, sizes)
        return sizes

    def _legacy_sizes(self, chunk: Chunk, row: Any, offsets: Int64s, sizes: Int64s) -> None:
        batch = legacy_batch(chunk, row)
        for record in batch.records(self._job.spec.max_decompressed_bytes):
            place = int(np.searchsorted(offsets, record.offset))
            if place < len(offsets) and offsets[place] == record.offset:
                overhead_bytes = _LEGACY_OVERHEAD_BYTES[batch.header.magic]
                sizes[place] = len(record.key or b"") + len(record.value or b"") + overhead_bytes

    def _each_chunk(
        self,
        segments: Sequence[SourceSegment],
        range_bits: int,
        work: Callable[[SourceSegment, Chunk, Scratch], bool],
    ) -> bool:
        """All threads take chunks, until `work` answers False; whether it never did."""
        stop = threading.Event()
        readers = [
            (
                segment,
                ChunkReader.of(self._filesystem, self._job.directory, segment, self._job.spec),
            )
            for segment in segments
        ]

        def run(scratch: Scratch) -> bool:
            try:
                for segment, reader in readers:
                    while not stop.is_set() and (chunk := reader.take(scratch)) is not None:
                        if not work(segment, chunk, scratch):
                            stop.set()
                            return False
                        self._report(chunk.size_bytes >> range_bits)
                return True
            except BaseException:
                stop.set()
                raise

        try:
            with ThreadPoolExecutor(len(self._scratches)) as pool:
                try:
                    results = [pool.submit(run, scratch) for scratch in self._scratches]
                    answers = [result.result() for result in results]
                    return all(answers)
                finally:
                    stop.set()
        finally:
            for _, reader in readers:
                reader.close()

    def _report(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            done_bytes = min(self._done_bytes, self._total_bytes)
            self._on_progress(Progress("count", done_bytes, self._total_bytes))


def _below(segments: Sequence[SourceSegment], end_offset: int) -> list[SourceSegment]:
    return [segment for segment in segments if segment.base_offset < end_offset]


def _key_at(job: CleaningJob, offset: int, filesystem: FileSystem) -> str:
    """The text of the key of the record at `offset`, which is there."""
    source = next(item for item in job.segments if item.base_offset <= offset < item.next_offset)
    directory, name = os.path.split(source.file_path(job.directory))
    parsed = parse(name)  # a part of a segment is named by its own first offset
    assert parsed is not None, name
    segment = open_segment(
        filesystem, directory, parsed.base_offset, interval_bytes=job.spec.index_interval_bytes
    )
    placed = segment.find(offset)
    assert placed is not None, offset
    records = segment.records_of(segment.read_batch(placed))
    record = next(record for record in records if record.offset == offset)
    text = text_of(record.key)
    assert text is not None, offset
    return text
