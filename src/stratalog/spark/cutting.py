"""How a job's bytes become tasks of about the same size, however unevenly they lie.

    cut       a segment -> pieces, runs of its batches: whole, or cut where its index says that a
              batch begins
    runs      pieces of a job -> what one index task goes through
    stretches pieces of a group -> what one rewrite task goes through; more than one where a group
              is larger than a task's fair share
    bins      tasks -> Spark tasks, small ones together
    buckets_of  partitions -> the hash buckets that serve each

Invariants
- C1  Pieces of a segment follow one another without a gap, in bytes and in offsets.
- C2  An index has no checksum: a cut may be wrong. Each piece is read up to its exact end, its
      checksums checked and its offsets held against both ends, so a wrong cut is found as damage
      in one of the pieces, and the engine does without cuts then.
"""

from __future__ import annotations

import heapq
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stratalog.base.errors import StorageIOError
from stratalog.base.filesystem import File, FileSystem
from stratalog.clean.chunk import ChunkReader
from stratalog.clean.job import CleaningJob, SourceSegment
from stratalog.record import layout
from stratalog.segment.names import FileKind, parse
from stratalog.segment.offset_index import ENTRY_BYTES
from stratalog.segment.segment import open_segment

LEAST_SHARE_BYTES = 64 << 20
"""No part of what is cut is smaller: a few tenths of a second's work, and joining costs one."""

BUCKET_BYTES = 256 << 20
"""Bytes of log whose keys one bucket holds: at 100-byte records about 64 MB of map."""

MOST_SHARE_BYTES = 2 << 30
"""Most bytes that a task indexes: the more, the fewer keys are sent twice."""

_TOLERANCE = 1.25
"""What is larger than a fair share by less than this stays whole."""

_PIECE_BYTES = 1 << 20
"""What a piece of work costs besides its bytes, in bytes of work."""

_POSITION = struct.Struct(">4xi")
_BASE_OFFSET = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole batches of a segment: bytes [start, end) of its log file, which hold the offsets
    [first_offset, next_offset)."""

    segment: SourceSegment
    start: int
    end: int
    first_offset: int
    next_offset: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its segment."""
        return (self.start, self.end) == (self.segment.start, self.segment.end)

    def reader(self, filesystem: FileSystem, job: CleaningJob) -> ChunkReader:
        """Hands out its chunks."""
        return ChunkReader(
            filesystem,
            self.segment.file_path(job.directory),
            self.first_offset,
            self.end,
            job.spec,
            next_offset=self.next_offset,
            start=self.start,
        )


def check_digest(piece: Piece, job: CleaningJob, filesystem: FileSystem) -> None:
    """Hold a piece's batch headers against its segment's digest, if there is one: most of their
    bytes lie outside of the batches' checksums. Raises `CorruptionError`."""
    directory, name = os.path.split(piece.segment.file_path(job.directory))
    parsed = parse(name)
    assert parsed is not None, name
    segment = open_segment(filesystem, directory, parsed.base_offset)
    try:
        if segment.guard is not None:
            segment.guard.check(piece.start, piece.end)
            if piece.end == piece.segment.end:
                segment.guard.check_end(segment.size_bytes)
    finally:
        segment.log.close()


def whole(segment: SourceSegment) -> Piece:
    """All of a segment."""
    return Piece(segment, segment.start, segment.end, segment.base_offset, segment.next_offset)


def share_bytes(total_bytes: int, parallelism: int) -> int:
    """What each of `parallelism` tasks takes of `total_bytes`, if all take the same."""
    return min(MOST_SHARE_BYTES, max(1, -(-total_bytes // parallelism)))


def cut(
    segment: SourceSegment, job: CleaningJob, share: int, filesystem: FileSystem
) -> list[Piece]:
    """Pieces of about `share` bytes. One, if it is not much larger or its index does not help."""
    count = _parts(segment.size_bytes, share)
    bounds = [(segment.start, segment.base_offset)]
    if count > 1:
        bounds += _inner_bounds(segment, job, count, filesystem)
    bounds.append((segment.end, segment.next_offset))
    return [
        Piece(segment, start, end, first_offset, next_offset)
        for (start, first_offset), (end, next_offset) in pairwise(bounds)
    ]


def runs(pieces: Sequence[Piece], share: int) -> Iterator[tuple[Piece, ...]]:
    """Pieces in order, as many together as make about `share` bytes."""
    run: list[Piece] = []
    size_bytes = 0
    for piece in pieces:
        if run and size_bytes + piece.size_bytes > share * 1.1:
            yield tuple(run)
            run, size_bytes = [], 0
        run.append(piece)
        size_bytes += piece.size_bytes
    if run:
        yield tuple(run)


def stretches(pieces: Sequence[Piece], share: int) -> list[tuple[Piece, ...]]:
    """A group's pieces in order, in parts of about the same size, none much above `share`."""
    total_bytes = sum(piece.size_bytes for piece in pieces)
    count = _parts(total_bytes, share)
    parts: dict[int, list[Piece]] = {}
    done_bytes = 0
    for piece in pieces:
        middle = done_bytes + piece.size_bytes // 2
        number = min(middle * count // max(total_bytes, 1), count - 1)
        parts.setdefault(number, []).append(piece)
        done_bytes += piece.size_bytes
    return [tuple(part) for part in parts.values()]


def bins(sizes: Sequence[int], wanted: int) -> list[list[int]]:
    """Numbers of pieces of work, put together so that small ones share one of `wanted` tasks."""
    found: list[list[int]] = [[] for _ in range(max(1, min(len(sizes), wanted)))]
    # Biggest first, each to the emptiest bin; a piece costs something even if it is empty.
    heap = [(0, number) for number in range(len(found))]
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        filled, chosen = heapq.heappop(heap)
        found[chosen].append(number)
        heapq.heappush(heap, (filled + sizes[number] + _PIECE_BYTES, chosen))
    return found


def buckets_of(sizes: Sequence[int], parallelism: int) -> list[range]:
    """The hash buckets that the keys of each partition go to, by the bytes of their logs: a bucket
    for `BUCKET_BYTES`, at least `parallelism` in all.

    Keys of two partitions never meet, so each has buckets of its own; small ones share one. If all
    had all of them, the blocks that are shuffled would grow with the square of the bytes in a job,
    and each would be tiny.
    """
    total = max(1, sum(sizes))
    wanted = max(parallelism, -(-total // BUCKET_BYTES))
    found, before = [], 0
    for size_bytes in sizes:
        after = before + size_bytes
        first = min(before * wanted // total, wanted - 1)
        found.append(range(first, max(first + 1, -(-after * wanted // total))))
        before = after
    return found


def past_all(buckets: Sequence[range]) -> int:
    """The bucket past all others, for what is told besides keys."""
    return max(of_one.stop for of_one in buckets)


def _parts(size_bytes: int, share: int) -> int:
    share = max(share, LEAST_SHARE_BYTES)
    return 1 if size_bytes <= share * _TOLERANCE else -(-size_bytes // share)


def _inner_bounds(
    segment: SourceSegment, job: CleaningJob, count: int, filesystem: FileSystem
) -> list[tuple[int, int]]:
    """(position, first offset) of the batches at which the segment is cut into `count`."""
    try:
        log = filesystem.open(segment.file_path(job.directory), "read")
        try:
            path = segment.file_path(job.directory, FileKind.OFFSET_INDEX)
            index = filesystem.open(path, "read")
            try:
                positions = _Positions(index, segment.offset_index_bytes // ENTRY_BYTES)
                return _bounds(segment, count, positions, log)
            finally:
                index.close()
        finally:
            log.close()
    except (FileNotFoundError, StorageIOError):
        return []  # no index, no cut; what is wrong with the log, its reader will say


def _bounds(
    segment: SourceSegment, count: int, positions: _Positions, log: File
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    last = (segment.start, segment.base_offset)
    for number in range(1, count):
        slot = bisect_left(positions, segment.start + segment.size_bytes * number // count)
        if slot >= len(positions):
            break
        position = positions[slot]
        head = bytearray(layout.MAGIC + 1)
        if log.pread_into(head, position) < len(head):
            break
        (first_offset,) = _BASE_OFFSET.unpack_from(head, layout.BASE_OFFSET)
        # A wrapper of the old formats has the offset of its last message, not of its first.
        if (
            head[layout.MAGIC] == layout.MAGIC_V2
            and last[0] < position < segment.end
            and last[1] < first_offset < segment.next_offset
        ):
            last = (position, first_offset)
            found.append(last)
    return found


class _Positions(Sequence[int]):
    """The positions in an index file, each read when it is asked for: a segment of a gigabyte has
    millions of bytes of them, of which a search looks at twenty."""

    def __init__(self, index: File, count: int):
        self._index = index
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, slot: int) -> int:  # type: ignore[override]
        entry = bytearray(ENTRY_BYTES)
        self._index.pread_into(entry, slot * ENTRY_BYTES)
        return int(_POSITION.unpack(entry)[0])
