"""Looking for damage in a partition's `.log` files, and what each way to settle it would lose.

Every segment is scanned to its end. Where the scan stops, what is whole behind is looked for
(`log.mending`). What no checksum covers is held against the segment's digest, if it has one.

    cut     the log ends before its first damage: later batches, whole or not, are given up
    skip    only what is not whole is left out

Invariants
- I1  Nothing is changed on disk.
- I2  A torn end, as a crash leaves it, is told from damage: the directory was not closed in order,
      and what is damaged was not flushed, or nothing whole lies behind it (RCV-1, RCV-7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from stratalog.base.filesystem import FileSystem
from stratalog.log.leftovers import sort_out
from stratalog.log.mending import LAST, POSITION, Gap, Mending, plan_mending
from stratalog.log.scanning import LogScan
from stratalog.segment.digest import load_digest, load_head
from stratalog.segment.guard import damaged_blocks
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import MAX_OFFSET, FileKind
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.segment import segment_path

_BY_DIGEST = "a batch header in these bytes is not the one that was written"
_TOO_SHORT = "the log ends here, between two batches; it was longer"


@dataclass(frozen=True, slots=True, eq=False)
class ScannedSegment:
    """What a scan found. `reason`: why it stopped; `mending`: what is whole, None if nothing is
    damaged; `doubts`: what only the digest shows (its batches' checksums are right). `batches`: how
    many are whole; `claimed_offset`: as `LogScan` has it; `is_sealed`: a digest of ours shows that
    it was complete, and so on the disk, before the next segment was made."""

    path: str
    base_offset: int
    size_bytes: int
    next_offset: int
    batches: int
    reason: str | None = None
    mending: Mending | None = None
    doubts: tuple[Gap, ...] = ()
    claimed_offset: int | None = None
    is_sealed: bool = False

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return self.doubts if self.mending is None else self.mending.gaps

    @property
    def end_after_skip(self) -> int:
        return self.next_offset if self.mending is None else self.mending.next_offset


@dataclass(frozen=True, slots=True)
class Loss:
    """What settling the damage in one way gives up. `offsets` (at most so many records) and
    `size_bytes` of `.log` files; `batches` of them are whole; `segments` go as a whole."""

    log_end_offset: int
    offsets: int
    size_bytes: int
    batches: int
    segments: int

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage of one partition. `places`: (file, gap), first to last."""

    places: tuple[tuple[str, Gap], ...]
    cut: Loss
    skip: Loss

    def as_json(self) -> dict[str, Any]:
        return {
            "places": [
                {
                    "file": file,
                    "position": gap.position,
                    "size_bytes": gap.size_bytes,
                    "first_offset": gap.first_offset,
                    "next_offset": gap.next_offset,
                    "reason": gap.reason,
                }
                for file, gap in self.places
            ],
            "cut": self.cut.as_json(),
            "skip": self.skip.as_json(),
        }


@dataclass(slots=True)
class Scanned:
    """A partition's segments, scanned. `size_bytes`: of all `.log` files."""

    segments: list[ScannedSegment] = field(default_factory=list)

    @property
    def damaged(self) -> list[ScannedSegment]:
        return [segment for segment in self.segments if segment.gaps]

    @property
    def next_offset(self) -> int:
        """After the last whole batch."""
        return self.segments[-1].end_after_skip

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


def scan_partition(
    filesystem: FileSystem,
    directory: str,
    *,
    trusted_below: int,
    on_scanned: Callable[[int], None],
) -> Scanned:
    """Scan all segments. Digests count for those that end at or below `trusted_below` only: of
    others they may be older than what a crash left. Raises `StorageIOError`."""
    bases = sort_out(filesystem.list_directory(directory)).bases
    found = Scanned()
    for base_offset, following in zip(bases, (*bases[1:], MAX_OFFSET), strict=True):
        log = LogFile.open(filesystem, segment_path(directory, base_offset, FileKind.LOG))
        try:
            made = _scan(log, base_offset, following, on_scanned)
            if made.reason is None and made.next_offset <= trusted_below:
                doubts = _doubts(filesystem, directory, log, made, following)
                made = replace(made, doubts=doubts)
            made = replace(made, is_sealed=_is_sealed(filesystem, directory, made))
            found.segments.append(made)
        finally:
            log.close()
    return found


def end_of(filesystem: FileSystem, directory: str) -> int:
    """Where a log in order ends: after the last batch of its last segment, or where an empty one
    begins. Raises `StorageIOError`."""
    base_offset = sort_out(filesystem.list_directory(directory)).bases[-1]
    log = LogFile.open(filesystem, segment_path(directory, base_offset, FileKind.LOG))
    try:
        return _scan(log, base_offset, MAX_OFFSET, lambda _: None).next_offset
    finally:
        log.close()


def _scan(
    log: LogFile, base_offset: int, limit_offset: int, on_scanned: Callable[[int], None]
) -> ScannedSegment:
    size_bytes = log.size_bytes()
    highest = base_offset + MAX_RELATIVE_OFFSET + 1
    scan = LogScan(log, base_offset, size_bytes, min(limit_offset, highest))
    count = 0
    for batches in scan:
        count += len(batches.table)
        on_scanned(int(batches.table["size_bytes"].sum()))
    if scan.damage is None:
        return ScannedSegment(log.path, base_offset, size_bytes, scan.next_offset, count)
    reason = scan.damage.reason
    on_scanned(size_bytes - scan.end)
    mending = plan_mending(log, base_offset, size_bytes, limit_offset, reason)
    count = len(mending.kept)
    return ScannedSegment(
        log.path,
        base_offset,
        size_bytes,
        scan.next_offset,
        count,
        reason,
        mending,
        claimed_offset=scan.claimed_offset,
    )


def _is_sealed(filesystem: FileSystem, directory: str, scanned: ScannedSegment) -> bool:
    head = load_head(filesystem, directory, scanned.base_offset)
    if head is None or head.file_id != filesystem.stat(scanned.path).file_id:
        return False
    return head.covered_bytes >= scanned.size_bytes


def _doubts(
    filesystem: FileSystem, directory: str, log: LogFile, scanned: ScannedSegment, following: int
) -> tuple[Gap, ...]:
    digest = load_digest(filesystem, directory, scanned.base_offset)
    if digest is None:
        return ()
    return tuple(
        Gap(
            start,
            min(end, scanned.size_bytes),
            _offset_at(log, start, scanned),
            _offset_at(log, end, scanned) if end < scanned.size_bytes else scanned.next_offset,
            _BY_DIGEST,
        )
        if start < scanned.size_bytes
        else Gap(
            start,
            scanned.size_bytes,
            scanned.next_offset,
            None if following == MAX_OFFSET else following,
            _TOO_SHORT,
        )
        for start, end in damaged_blocks(log, digest)
    )


def _offset_at(log: LogFile, position: int, scanned: ScannedSegment) -> int:
    placed = next(log.headers(position, scanned.size_bytes), None)
    return scanned.next_offset if placed is None else placed.header.base_offset


def is_torn_end(scanned: Scanned, recovery_point: int | None) -> bool:
    """Whether the damage of a log that was not closed in order is what a crash leaves (I2).

    `recovery_point`: None if its checkpoint does not know the partition.
    """
    first = scanned.damaged[0]
    if first.reason is None:
        return False
    if recovery_point is not None:
        sealed = (
            following.base_offset
            for segment, following in pairwise(scanned.segments)
            if segment.is_sealed
        )
        proven = max(recovery_point, *sealed, 0)
        claimed = first.claimed_offset
        return first.next_offset >= proven and (claimed is None or claimed >= proven)
    assert first.mending is not None
    is_last = first is scanned.segments[-1]
    return is_last and first.mending.next_offset <= first.next_offset


def damage_of(scanned: Scanned) -> Damage:
    """What is damaged, and what settling it would give up. Pure."""
    places = tuple((segment.path, gap) for segment in scanned.damaged for gap in segment.gaps)
    return Damage(places, _loss_of_cut(scanned), _loss_of_skip(scanned))


def cut_of(segment: ScannedSegment, log: LogFile) -> Mending:
    """What stays of the first damaged segment if the log ends there."""
    if segment.mending is not None:
        return segment.mending.before_damage()
    whole = plan_mending(log, segment.base_offset, segment.size_bytes, MAX_OFFSET)
    return Mending(whole.base_offset, whole.size_bytes, whole.kept, segment.doubts).before_damage()


def _loss_of_cut(scanned: Scanned) -> Loss:
    first = scanned.damaged[0]
    later = scanned.segments[scanned.segments.index(first) + 1 :]
    gap = first.gaps[0]
    kept = first.mending.before_damage().kept if first.mending is not None else None
    end = gap.first_offset if kept is None else _end_of(kept, first.base_offset)
    batches = sum(segment.batches for segment in later)
    if first.mending is not None:
        batches += int((first.mending.kept[:, POSITION] > gap.position).sum())
    return Loss(
        end,
        max(scanned.next_offset, _highest(scanned)) - end,
        first.size_bytes - gap.position + sum(segment.size_bytes for segment in later),
        batches,
        len(later),
    )


def _end_of(kept: Any, base_offset: int) -> int:
    return int(kept[-1, LAST]) + 1 if len(kept) else base_offset


def _highest(scanned: Scanned) -> int:
    """The largest offset that is known to have been given out, plus one."""
    return max(
        (gap.next_offset or gap.first_offset for s in scanned.damaged for gap in s.gaps), default=0
    )


def _loss_of_skip(scanned: Scanned) -> Loss:
    gaps = [
        gap
        for s in scanned.damaged
        for gap in s.gaps
        if s.mending is not None or gap.reason == _TOO_SHORT
    ]
    # Of a gap at the log's end nobody knows how many there were.
    offsets = sum((gap.next_offset or gap.first_offset) - gap.first_offset for gap in gaps)
    return Loss(scanned.next_offset, offsets, sum(gap.size_bytes for gap in gaps), 0, 0)
