"""What is still whole in a damaged `.log` file, and a new file made of that (RCV-7).

    sound_batches    every batch with a right checksum, wherever it lies
    plan_mending     of those, the most whose offsets follow one another
    write_mended     the kept ones aside, with indexes, for `swap`

Behind damage the next batch is looked for where the damaged one says that it ends. If no whole one
begins there, the length is damaged, too: then every byte is a candidate. A batch inside of a
damaged one of a believable length counts only if whole batches lead from it to exactly that end:
so a length that says two batches instead of one costs none, and a batch that somebody stored as a
record's value is no batch of this log.

Offsets lie outside of the checksum. If they do not follow one another, the longest row of batches
that do is kept, and of two that cannot both be right the one without a gap beside it.

Invariants
- I1  Nothing but whole batches with right checksums is kept, offsets growing, none at or past
      `limit_offset`.
- I2  The old file is only read; the new one takes its place in one step that no crash can tear
      (`swap`).
- I3  Memory: a window, or the largest batch, and 40 bytes a batch.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stratalog.base.filesystem import FileSystem
from stratalog.base.limits import CHUNK_BYTES, MAX_BATCH_BYTES
from stratalog.log.scanning import LogScan
from stratalog.log.swap import SegmentParts
from stratalog.record.layout import HEADER_BYTES, LOG_OVERHEAD, MAGIC
from stratalog.segment import index_builder, txn_index
from stratalog.segment.index_builder import IndexState
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import MAX_OFFSET, FileKind, part_name
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.txn_index import AbortedTxn

Int64s = npt.NDArray[np.int64]

_JOB = "mend"
_WINDOW_BYTES = 1 << 20
_SMALLEST_LENGTH = 14
"""Of a batch of magic 0, behind its length field; of magic 2 it is 49."""
POSITION, SIZE, BASE, LAST, TIMESTAMP = range(5)
"""Columns of a table of batches: bytes, bytes, offsets, ms."""


@dataclass(frozen=True, slots=True)
class Gap:
    """[position, end) of a file is left out. The offsets in it were, at most, from `first_offset`
    to before `next_offset`; None: whatever was behind the last that is known."""

    position: int
    end: int
    first_offset: int
    next_offset: int | None
    reason: str

    @property
    def size_bytes(self) -> int:
        return self.end - self.position


@dataclass(frozen=True, slots=True, eq=False)
class Mending:
    """What is whole in one segment's `size_bytes`: a row of `kept` (int64[n, 5]: position, size,
    base offset, last offset, largest timestamp) a batch. No gaps: nothing is damaged."""

    base_offset: int
    size_bytes: int
    kept: Int64s
    gaps: tuple[Gap, ...]

    @property
    def next_offset(self) -> int:
        """After the last batch that is kept."""
        return int(self.kept[-1, LAST]) + 1 if len(self.kept) else self.base_offset

    def before_damage(self) -> Mending:
        """Only what lies before the first gap; the rest is one gap."""
        first = self.gaps[0]
        kept = self.kept[: int(np.searchsorted(self.kept[:, POSITION], first.position))]
        gap = Gap(first.position, self.size_bytes, first.first_offset, None, first.reason)
        return Mending(self.base_offset, self.size_bytes, kept, (gap,))


def plan_mending(
    log: LogFile, base_offset: int, size_bytes: int, limit_offset: int, reason: str = ""
) -> Mending:
    """What of a segment's log is whole; offsets lie from `base_offset` to before `limit_offset`
    (`MAX_OFFSET`: no segment follows).

    `reason`: what the scan said of the first damage. Raises `StorageIOError`.
    """
    end_offset = None if limit_offset == MAX_OFFSET else limit_offset
    limit_offset = min(limit_offset, base_offset + MAX_RELATIVE_OFFSET + 1)
    found = sound_batches(log, base_offset, size_bytes, limit_offset)
    kept = found[follow_one_another(found)]
    gaps = _gaps(kept, base_offset, end_offset, size_bytes, reason)
    return Mending(base_offset, size_bytes, kept, gaps)


def _gaps(
    kept: Int64s, base_offset: int, end_offset: int | None, size_bytes: int, reason: str
) -> tuple[Gap, ...]:
    starts = [*kept[:, POSITION].tolist(), size_bytes]
    ends = [0, *(kept[:, POSITION] + kept[:, SIZE]).tolist()]
    firsts = [base_offset, *(kept[:, LAST] + 1).tolist()]
    following: list[int | None] = [*kept[:, BASE].tolist(), end_offset]
    slots = np.flatnonzero(np.array(starts) > np.array(ends)).tolist()
    return tuple(
        Gap(
            ends[slot],
            starts[slot],
            firsts[slot],
            following[slot],
            reason if number == 0 and reason else "no whole batch",
        )
        for number, slot in enumerate(slots)
    )


# -- batches with right checksums ----------------------------------------------------------------


def sound_batches(log: LogFile, base_offset: int, size_bytes: int, limit_offset: int) -> Int64s:
    """Every whole batch that has a right checksum and offsets of this segment, by position.

    Their offsets need not follow one another. Columns as in `Mending`. Raises `StorageIOError`.
    """
    found: list[Int64s] = []
    position = 0
    while position < size_bytes:
        scan = _scan_from(log, base_offset, position, size_bytes, limit_offset)
        for batches in scan:
            table = batches.table
            places = table["position"] + batches.position
            columns = (places, *(table[name] for name in _COLUMNS))
            found.append(np.stack(columns, axis=1))
        if scan.damage is None:
            break
        # What stopped it may only be the order: begun afresh, the batch is held against none.
        stuck = scan.end == position
        position = scan.end
        if stuck:
            position = _next_batch(log, base_offset, position, size_bytes, limit_offset)
    return np.concatenate(found) if found else np.empty((0, 5), np.int64)


_COLUMNS = ("size_bytes", "base_offset", "last_offset", "max_timestamp")


def _scan_from(
    log: LogFile, base_offset: int, position: int, end: int, limit_offset: int
) -> LogScan:
    scan = LogScan(log, base_offset, end, limit_offset)
    scan.end = position
    return scan


def _next_batch(
    log: LogFile, base_offset: int, position: int, size_bytes: int, limit_offset: int
) -> int:
    """Where the next sound batch begins behind the damaged one at `position`."""
    claimed = _claimed_end(log, position, size_bytes)
    is_believed = claimed is not None and (
        claimed == size_bytes or _begins_batch(log, base_offset, claimed, size_bytes, limit_offset)
    )
    end = claimed if claimed is not None and is_believed else size_bytes
    for candidate in _candidates(log, base_offset, position + 1, end, limit_offset):
        if not _begins_batch(log, base_offset, candidate, end, limit_offset):
            continue
        if not is_believed or _leads_to(log, base_offset, candidate, end, limit_offset):
            return candidate
    return end


def _claimed_end(log: LogFile, position: int, size_bytes: int) -> int | None:
    head = log.read(position, LOG_OVERHEAD)
    if len(head) < LOG_OVERHEAD:
        return None
    length = int.from_bytes(head[8:12], "big", signed=True)
    end = position + LOG_OVERHEAD + length
    return end if length >= _SMALLEST_LENGTH and end <= size_bytes else None


def _begins_batch(
    log: LogFile, base_offset: int, position: int, size_bytes: int, limit_offset: int
) -> bool:
    """Whether a sound batch begins here."""
    end = _claimed_end(log, position, size_bytes)
    if end is None or end - position > MAX_BATCH_BYTES:
        return False
    scan = _scan_from(log, base_offset, position, end, limit_offset)
    for _ in scan:
        pass
    return scan.end == end


def _leads_to(log: LogFile, base_offset: int, position: int, end: int, limit_offset: int) -> bool:
    """Whether sound batches lie end to end from here to exactly `end`."""
    while position < end:
        if not _begins_batch(log, base_offset, position, end, limit_offset):
            return False
        following = _claimed_end(log, position, end)
        assert following is not None
        position = following
    return True


def _candidates(
    log: LogFile, base_offset: int, start: int, end: int, limit_offset: int
) -> Iterator[int]:
    """Positions at which the fixed fields of a batch might lie: magic, length, offset."""
    for window in range(start, end, _WINDOW_BYTES):
        data = log.read(window, min(_WINDOW_BYTES + HEADER_BYTES, end - window))
        raw = np.frombuffer(data, np.uint8)
        count = min(_WINDOW_BYTES, len(raw) - MAGIC)
        if count <= 0:
            return
        # Zeros look like magic 0, but no batch is of length 0: a torn end may hold a gigabyte.
        length_bits = raw[8 : 8 + count] | raw[9 : 9 + count]
        length_bits |= raw[10 : 10 + count] | raw[11 : 11 + count]
        places = np.flatnonzero((raw[MAGIC : MAGIC + count] <= 2) & (length_bits != 0))
        lengths = _integers(raw, places, 8, 4)
        room = end - window - LOG_OVERHEAD - places
        smallest = np.where(raw[places + MAGIC] == 2, HEADER_BYTES - LOG_OVERHEAD, _SMALLEST_LENGTH)
        places = places[(lengths >= smallest) & (lengths <= room)]
        offsets = _integers(raw, places, 0, 8)
        places = places[(offsets >= base_offset) & (offsets < limit_offset)]
        yield from (places + window).tolist()


def _integers(raw: npt.NDArray[np.uint8], places: Int64s, at: int, size_bytes: int) -> Int64s:
    """Big-endian numbers, `at` bytes behind each place; those of 8 bytes may be negative."""
    numbers = np.zeros(len(places), np.int64)
    for byte in range(size_bytes):
        numbers = (numbers << 8) | raw[places + at + byte]
    return numbers


# -- offsets that follow one another -------------------------------------------------------------


def follow_one_another(batches: Int64s) -> Int64s:
    """The rows of the most batches whose offsets grow; n log n. Pure.

    Where two are as good, the one that leaves fewer gaps to those beside it.
    """
    bases, lasts = batches[:, BASE], batches[:, LAST]
    if len(batches) == 0 or bool((bases[1:] > lasts[:-1]).all()):
        return np.arange(len(batches))
    ends: list[int] = []  # of rows of 1, 2, ... batches: the lowest last offset they can have
    tips: list[int] = []
    before = np.full(len(batches), -1, np.int64)
    for slot, (base, last) in enumerate(zip(bases.tolist(), lasts.tolist(), strict=True)):
        length = bisect_left(ends, base)
        before[slot] = tips[length - 1] if length else -1
        if length == len(ends):
            ends.append(last)
            tips.append(slot)
        elif last < ends[length]:
            ends[length], tips[length] = last, slot
    chain, slot = [], tips[-1]
    while slot >= 0:
        chain.append(slot)
        slot = int(before[slot])
    return np.array(_without_gaps(chain[::-1], bases.tolist(), lasts.tolist()), np.int64)


def _without_gaps(chain: list[int], bases: list[int], lasts: list[int]) -> list[int]:
    """The chain with batches exchanged for left out ones that fit better between their
    neighbours."""

    def fits(slot: int, below: int | None, above: int | None) -> int:
        """-1: not at all; else the number of sides without a gap."""
        if below is not None and bases[slot] <= lasts[below]:
            return -1
        if above is not None and bases[above] <= lasts[slot]:
            return -1
        return (below is not None and bases[slot] == lasts[below] + 1) + (
            above is not None and bases[above] == lasts[slot] + 1
        )

    better = list(chain)
    for number, slot in enumerate(chain):
        below = better[number - 1] if number else None
        above = chain[number + 1] if number + 1 < len(chain) else None
        low = 0 if below is None else below + 1
        high = len(bases) if above is None else above
        if high - low == 1:
            continue
        better[number] = max((slot, *range(low, high)), key=lambda other: fits(other, below, above))
    return better


# -- the new file --------------------------------------------------------------------------------


def write_mended(
    filesystem: FileSystem,
    directory: str,
    log: LogFile,
    mending: Mending,
    *,
    interval_bytes: int,
    aborted: Collection[AbortedTxn],
    modified_ms: int,
) -> SegmentParts:
    """Write what is kept aside as a new segment, durably, for the swap. Raises `StorageIOError`."""
    base_offset, kept = mending.base_offset, mending.kept
    parts = {
        kind: part_name(base_offset, kind, _JOB, 0)
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    }
    path = os.path.join(directory, parts[FileKind.LOG])
    _copy(filesystem, path, log, kept)
    filesystem.set_modified(path, modified_ms)
    positions = np.cumsum(kept[:, SIZE]) - kept[:, SIZE]
    columns = [np.ascontiguousarray(kept[:, at]) for at in (SIZE, LAST, TIMESTAMP)]
    state, entries = index_builder.extend(
        IndexState(base_offset, interval_bytes), positions, *columns
    )
    _, closing = index_builder.finish(state)
    index, times = entries.encode(base_offset)
    contents = {
        FileKind.OFFSET_INDEX: index,
        FileKind.TIME_INDEX: times + closing.encode(base_offset)[1],
    }
    markers = [entry for entry in aborted if _holds(kept, entry.last_offset)]
    if markers:
        parts[FileKind.TXN_INDEX] = part_name(base_offset, FileKind.TXN_INDEX, _JOB, 0)
        contents[FileKind.TXN_INDEX] = txn_index.encode(markers)
    for kind, content in contents.items():
        file = filesystem.open(os.path.join(directory, parts[kind]), "create")
        try:
            file.pwrite(content, 0)
            file.fsync()
        finally:
            file.close()
    return SegmentParts(base_offset, parts)


def _holds(kept: Int64s, offset: int) -> bool:
    slot = int(np.searchsorted(kept[:, LAST], offset))
    return slot < len(kept) and int(kept[slot, BASE]) <= offset


def _copy(filesystem: FileSystem, path: str, log: LogFile, kept: Int64s) -> None:
    file = filesystem.open(path, "create")
    try:
        written = 0
        for start, end in _runs(kept):
            for position in range(start, end, CHUNK_BYTES):
                data = log.read(position, min(CHUNK_BYTES, end - position))
                file.pwrite(data, written)
                written += len(data)
        file.fsync()
    finally:
        file.close()


def _runs(kept: Int64s) -> Iterator[tuple[int, int]]:
    """The kept bytes, as few ranges as there are."""
    if len(kept) == 0:
        return
    starts, ends = kept[:, POSITION], kept[:, POSITION] + kept[:, SIZE]
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    for first, past in pairwise([0, *breaks.tolist(), len(kept)]):
        yield int(starts[first]), int(ends[past - 1])
