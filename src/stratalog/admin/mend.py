"""The steps that put one partition in order: leftovers, damage, what is derived, the quarantine.

Each step tells what it did in a line. On an `OverlayFileSystem` the same steps change nothing: that
is how `log repair` shows what it would do.

Invariants
- I1  Checkpoints come down before a log loses its end: what is appended later must not be taken for
      flushed or cleaned (the rule of `LogStore.truncate`).
- I2  The note of the quarantine goes last, after everything else is in order, so a repair that is
      cut off anywhere is begun again.
- I3  Doing it twice finds nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stratalog.admin.damage import Damage, Scanned, ScannedSegment, cut_of, end_of
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.lost import Lost
from stratalog.admin.oddities import odd_files, put_aside, read_offsets
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.ledger.following import goes_on
from stratalog.ledger.manifest import Generation, note_lost, read_manifest
from stratalog.log import snapshots, swap
from stratalog.log.checkpoint import write_checkpoint
from stratalog.log.leftovers import resolve, sort_out
from stratalog.log.mending import Mending, write_mended
from stratalog.log.opening import create_segment
from stratalog.log.recovery import recover
from stratalog.log.swap import Replacement, SegmentParts
from stratalog.segment.digest import remove_digest
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    STATE_DIRECTORY,
    SWAP_INTENT,
    FileKind,
    FileState,
    TopicPartition,
    file_name,
    parse,
)
from stratalog.segment.segment import load_aborted, segment_path
from stratalog.segment.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done, or would be. `what`: a word for programs; `text`: for people."""

    what: str
    text: str


@dataclass(slots=True)
class Mender:
    """One partition being put in order. `steps` in the order in which they were taken."""

    place: PartitionPlace
    filesystem: FileSystem
    interval_bytes: int
    now_ms: int
    steps: list[Step] = field(default_factory=list)

    @property
    def directory(self) -> str:
        return self.place.path

    def note(self, what: str, text: str) -> None:
        self.steps.append(Step(what, text))

    def note_change(self, found: Sequence[str], what: str, text: str) -> None:
        if found:
            self.note(what, text)


def clear_oddities(work: Mender) -> None:
    """Put aside what cannot be a file of a partition, but stands in the place of one."""
    for path, reason in list(odd_files(work.directory, work.filesystem)):
        name = put_aside(work.filesystem, path)
        work.note("odd", f"{os.path.basename(path)} is {reason}, and becomes {name}")


# -- leftovers -----------------------------------------------------------------------------------


def resolve_leftovers(work: Mender) -> None:
    """Finish or undo what swaps left, remove garbage.

    Raises `CorruptionError` if what an unfinished swap left is itself damaged.
    """
    done = resolve(work.filesystem, work.directory)
    if done.finished is not None:
        new = ", ".join(str(segment.base_offset) for segment in done.finished.new)
        old = ", ".join(map(str, done.finished.old_bases))
        instead = f" for {old}" if old else ""
        work.note("swap", f"an unfinished swap is finished: segment {new}{instead}")
    work.note_change(
        done.undone, "swap", f"a swap that had not come far enough is undone: {_names(done.undone)}"
    )
    work.note_change(
        done.removed, "garbage", f"left-over files are removed: {_names(done.removed)}"
    )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def force_leftovers(work: Mender) -> None:
    """After `resolve_leftovers` has met damage: go by what lies there under its final name.

    An unreadable intent is put aside; of a damaged swap of Kafka's the old files stay where they
    are still there, else the new ones take their names, damaged as they are.
    """
    disk, directory = work.filesystem, work.directory
    intent = os.path.join(directory, STATE_DIRECTORY, SWAP_INTENT)
    if disk.exists(intent):
        try:
            swap.decode_intent(_content(disk, intent))
        except CorruptionError as error:
            put_aside(disk, intent)
            work.note("swap", f"the record of a swap is put aside: {error.reason}")
            return
    for name in disk.list_directory(directory):
        parsed = parse(name)
        if parsed is None or parsed.state is not FileState.SWAP:
            continue
        path = os.path.join(directory, name)
        final = segment_path(directory, parsed.base_offset, parsed.kind)
        log = segment_path(directory, parsed.base_offset, FileKind.LOG)
        if disk.exists(log) or disk.exists(final):
            put_aside(disk, path)
            work.note("swap", f"{name} is damaged or part of it, and put aside")
        else:
            disk.rename(path, final)
            work.note("swap", f"{name} takes its place: what it was to replace is gone")
    disk.fsync_directory(directory)


def _content(filesystem: FileSystem, path: str) -> bytes:
    file = filesystem.open(path, "read")
    try:
        buffer = bytearray(file.size_bytes())
        return bytes(buffer[: file.pread_into(buffer, 0)])
    finally:
        file.close()


# -- damage --------------------------------------------------------------------------------------


def cut(work: Mender, scanned: Scanned, damage: Damage, *, is_torn: bool = False) -> None:
    """End the log before its first damage, in one swap. `is_torn`: a crash explains it."""
    first = scanned.damaged[0]
    disk = work.filesystem
    log = LogFile.open(disk, first.path)
    try:
        mending = cut_of(first, log)
        _lower(work, mending.next_offset)
        _drop_snapshots_above(work, mending.next_offset)
        parts = _write(work, first, log, mending)
    finally:
        log.close()
    slot = scanned.segments.index(first)
    old = tuple(segment.base_offset for segment in scanned.segments[slot:])
    swap.swap(disk, work.directory, Replacement(old, (parts,)))
    swap.remove_deleted(disk, work.directory)
    loss = damage.cut
    if is_torn:
        work.note(
            "torn",
            f"the torn end, {loss.size_bytes:,} bytes that were not flushed, is cut off at offset "
            f"{loss.log_end_offset}",
        )
        return
    work.note(
        "cut",
        f"the log ends at offset {loss.log_end_offset}: {loss.size_bytes:,} bytes are given up, at "
        f"most {loss.offsets:,} records, "
        f"with whole batches ({loss.batches:,}) and later segments ({loss.segments:,})",
    )


def skip(work: Mender, scanned: Scanned, damage: Damage) -> None:
    """Leave out what is not whole, one swap a segment."""
    disk = work.filesystem
    _note_skipped(work, scanned)
    _lower(work, scanned.next_offset)
    _drop_snapshots_above(work, scanned.next_offset)
    for segment in scanned.damaged:
        if segment.mending is None:
            remove_digest(disk, work.directory, segment.base_offset)
            disk.fsync_directory(os.path.join(work.directory, STATE_DIRECTORY))
            continue
        log = LogFile.open(disk, segment.path)
        try:
            parts = _write(work, segment, log, segment.mending)
        finally:
            log.close()
        swap.swap(disk, work.directory, Replacement((segment.base_offset,), (parts,)))
        swap.remove_deleted(disk, work.directory)
    doubts = sum(segment.mending is None for segment in scanned.damaged)
    loss = damage.skip
    work.note(
        "skip", f"{loss.size_bytes:,} damaged bytes are left out, at most {loss.offsets:,} records"
    )
    if doubts:
        work.note(
            "skip", f"taken as they are, for their checksums are right: segments ({doubts:,})"
        )


def _write(work: Mender, segment: ScannedSegment, log: LogFile, mending: Mending) -> SegmentParts:
    return write_mended(
        work.filesystem,
        work.directory,
        log,
        mending,
        interval_bytes=work.interval_bytes,
        aborted=_aborted(work, segment.base_offset),
        modified_ms=work.filesystem.stat(segment.path).modified_ms,
    )


def _aborted(work: Mender, base_offset: int) -> tuple[AbortedTxn, ...]:
    try:
        return load_aborted(work.filesystem, work.directory, base_offset)
    except CorruptionError:
        return ()  # made anew from the log afterwards


def _drop_snapshots_above(work: Mender, end_offset: int) -> None:
    offsets = sort_out(work.filesystem.list_directory(work.directory)).snapshots
    stale = [offset for offset in offsets if offset > end_offset]
    for offset in stale:
        work.filesystem.unlink(snapshots.snapshot_path(work.directory, offset))
    if stale:
        work.filesystem.fsync_directory(work.directory)


def _lower(work: Mender, end_offset: int) -> None:
    """Bring the checkpoints down to a log's new end (I1)."""
    for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, CLEANER_OFFSET_CHECKPOINT):
        path = os.path.join(work.place.log_dir, name)
        try:
            entries = read_offsets(work.filesystem, path)
        except CorruptionError:
            continue  # it is told of, and settled, with the directory's files
        if entries.get(work.place.topic_partition, 0) > end_offset:
            write_checkpoint(
                work.filesystem, path, {**entries, work.place.topic_partition: end_offset}
            )


def forget_log_start(work: Mender) -> None:
    """Take a partition out of the log starts: it begins with its first segment."""
    path = os.path.join(work.place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    entries: Mapping[TopicPartition, int] = read_offsets(work.filesystem, path)
    kept = {key: at for key, at in entries.items() if key != work.place.topic_partition}
    write_checkpoint(work.filesystem, path, kept)
    work.note("start", "the log begins with its first segment")


def accept(work: Mender, lost: Sequence[Lost], scanned: Scanned) -> None:
    """Go on without what is gone: the checkpoints come to speak of what is there."""
    first_base, end_offset = scanned.segments[0].base_offset, scanned.next_offset
    _note_skipped(work, scanned)
    for one in lost:
        if one.what == "segment":
            work.note("lost", f"{one.text}, which is accepted")
        elif one.what == "end":
            _lower(work, end_offset)
            work.note("lost", f"{one.text}; the checkpoints come down to {end_offset}")
        elif one.what == "start":
            path = os.path.join(work.place.log_dir, LOG_START_OFFSET_CHECKPOINT)
            entries = read_offsets(work.filesystem, path)
            write_checkpoint(
                work.filesystem, path, {**entries, work.place.topic_partition: first_base}
            )
            work.note("lost", f"{one.text}; it starts at {first_base} now")


# -- ledgers -------------------------------------------------------------------------------------


def follow_ledger(work: Mender, current: Generation | None) -> None:
    """Let a log that is in order go on behind its ledger, where it ends below it."""
    if current is None:
        return
    end = end_of(work.filesystem, work.directory)
    if end < current.horizon:
        note_lost(work.filesystem, work.directory, end, current.horizon)
        create_segment(
            work.filesystem, work.directory, current.horizon, work.interval_bytes, work.now_ms
        )
        work.note("ledger", goes_on(current, end))


def _note_skipped(work: Mender, scanned: Scanned) -> None:
    """Before what is damaged is left out: of that the ledger is no copy from now on."""
    current = read_manifest(work.filesystem, work.directory).current
    gaps = [gap for segment in scanned.damaged if segment.mending for gap in segment.gaps]
    missing = [(a.end_after_skip, b.base_offset) for a, b in pairwise(scanned.segments)]
    gone = [(gap.first_offset, gap.next_offset) for gap in gaps]
    gone += [(a, b) for a, b in missing if a < b]
    if current is None or not gone:
        return
    start = max(min(a for a, _ in gone), current.start_offset)
    ends = [current.horizon if b is None else b for _, b in gone]
    end = min(max(ends), current.horizon)
    if start < end:
        note_lost(work.filesystem, work.directory, start, end)
        work.note(
            "ledger",
            f"of offsets {start} to {end - 1}, some are only in ledger {current.number} now",
        )


# -- what is derived -----------------------------------------------------------------------------


def make_anew(work: Mender, log_start_offset: int, on_scanned: Callable[[int], None]) -> None:
    """Make indexes, transaction indexes and snapshots of a log without damage anew where they
    differ, remove what speaks of other files."""
    disk, directory = work.filesystem, work.directory
    done = recover(
        disk,
        directory,
        recovery_point=None,
        log_start_offset=log_start_offset,
        interval_bytes=work.interval_bytes,
        now_ms=work.now_ms,
        on_scanned=on_scanned,
    )
    rewritten = [os.path.basename(path) for path in done.rewritten]
    work.note_change(rewritten, "rewritten", f"made anew from the log: {_names(rewritten)}")
    contents = sort_out(disk.list_directory(directory))
    for offset in contents.snapshots:
        try:
            snapshots.read_snapshot(disk, directory, offset)
        except CorruptionError as error:
            disk.unlink(snapshots.snapshot_path(directory, offset))
            name = file_name(offset, FileKind.SNAPSHOT)
            work.note("snapshot", f"{name} is removed: {error.reason}")


def remove_stale_digests(work: Mender, bases: Sequence[int]) -> None:
    """Forget the digests of segments, and those of segments that are not there."""
    disk = work.filesystem
    state_directory = os.path.join(work.directory, STATE_DIRECTORY)
    if not disk.exists(state_directory):
        return
    there = sort_out(disk.list_directory(work.directory)).bases
    names = [name for name in disk.list_directory(state_directory) if name.endswith(".digest")]
    orphans = [
        int(stem)
        for name in names
        if (stem := name.removesuffix(".digest")).isdigit() and int(stem) not in there
    ]
    gone = [base for base in (*bases, *orphans) if remove_digest(disk, work.directory, base)]
    if gone:
        disk.fsync_directory(state_directory)
        work.note("digest", f"digests that speak of other files are removed: {len(gone):,}")
