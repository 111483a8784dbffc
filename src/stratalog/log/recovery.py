"""Recovery of a log that was not closed in order (RCV-1, RCV-4, RCV-7): classify, plan, apply.

    leftovers.resolve   files of swaps and deletions                 done before, by whoever opens
    scan                segments from the recovery point on, batch by batch (`scanning`)
    plan_recovery       cut, drop, start over, or quarantine (`recovery_plan`)
    apply               on disk; indexes, transaction indexes and snapshots are made anew

The scan is one pass: index entries, producers and transactions are folded while it goes on.

Invariants
- I1  Doing it twice, or being cut anywhere and doing it again, ends the same.
- I2  An error of the disk is raised and nothing is cut for it.
- I3  What is derived (indexes, `.txnindex`, snapshots) is written only where it differs, aside and
      renamed.

Sources: Kafka's LogLoader, LogSegment.recover, ProducerStateManager.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.log import snapshots
from stratalog.log.leftovers import sort_out
from stratalog.log.producer_state import ProducerState, aborted_entry, apply
from stratalog.log.quarantine import QuarantineNote, write_quarantine
from stratalog.log.recovery_plan import (
    Action,
    Cut,
    Drop,
    Quarantine,
    SegmentScan,
    StartOver,
    below_start,
    first_to_scan,
    plan_recovery,
)
from stratalog.log.replay import producer_batch, replay
from stratalog.log.scanning import LogScan, SoundBatches
from stratalog.segment import index_builder, txn_index
from stratalog.segment.digest import load_head, remove_digest
from stratalog.segment.index_builder import IndexEntries, IndexState
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import (
    MAX_OFFSET,
    SEGMENT_KINDS,
    STATE_DIRECTORY,
    FileKind,
)
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.segment import open_segment, segment_path
from stratalog.segment.segments import segments_of
from stratalog.segment.txn_index import AbortedTxn

_KEEP_ALL_MS = 1 << 62
_RECENT = 5
_TRANSACTIONAL_OR_CONTROL = 0x30

OnScanned = Callable[[int], None]
"""Receives the bytes scanned since the last call."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done. `first_base`: the first segment that was scanned, None if there was none."""

    scanned_segments: int = 0
    scanned_bytes: int = 0
    first_base: int | None = None
    actions: tuple[Action, ...] = ()
    rewritten: tuple[str, ...] = ()


@dataclass(slots=True)
class _Recovering:
    """A recovery in progress. `state`: the producers at the end of what was scanned."""

    filesystem: FileSystem
    directory: str
    interval_bytes: int
    on_scanned: OnScanned
    state: ProducerState = field(default_factory=ProducerState)
    rewritten: list[str] = field(default_factory=list)

    def path(self, base_offset: int, kind: FileKind) -> str:
        return segment_path(self.directory, base_offset, kind)


@dataclass(slots=True)
class _Rebuilt:
    """What the files beside one segment's log must hold."""

    index: IndexState
    entries: list[IndexEntries] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)


def recover(
    filesystem: FileSystem,
    directory: str,
    *,
    recovery_point: int | None,
    log_start_offset: int,
    interval_bytes: int,
    now_ms: int,
    on_scanned: OnScanned = lambda _: None,
) -> Recovery:
    """Recover the log in a directory whose leftovers are resolved; only its owner may call this.

    Without a recovery point everything is scanned, and any damage is one for quarantine.
    Raises `StorageIOError`; `CorruptionError` if a snapshot's segment cannot be replayed.
    """
    work = _Recovering(filesystem, directory, interval_bytes, on_scanned)
    bases = sort_out(filesystem.list_directory(directory)).bases
    gone = below_start(bases, log_start_offset)
    _drop(work, gone)
    bases = bases[len(gone) :]
    if not bases:
        return Recovery()
    if recovery_point is not None:
        recovery_point = max(recovery_point, _sealed_up_to(work, bases))
    slot = 0 if recovery_point is None else first_to_scan(bases, recovery_point)
    work.state = _producers_at(work, bases, slot, log_start_offset)
    scans, rebuilt = _scan_all(work, bases, slot)
    later = bases[slot + len(scans) :]
    actions = plan_recovery(scans, later, recovery_point, log_start_offset)
    for action in actions:
        _apply(work, action, now_ms)
    if not any(isinstance(action, Quarantine) for action in actions):
        _drop_snapshots_above(work, scans[-1].next_offset)
        for scan, made in zip(scans, rebuilt, strict=True):
            # A digest is not synced, and may outlive the end of the log that it speaks of.
            head = load_head(filesystem, directory, scan.base_offset)
            if head is not None and head.covered_bytes > scan.end:
                _unlink_digest(work, scan.base_offset)
            _store(work, made, is_last=scan is scans[-1])
        # What a process left in memory only may be read, and is not on the disk: a segment that is
        # no longer written to must be (`durability`).
        for scan in scans[:-1]:
            _fsync(work, scan.base_offset)
    filesystem.fsync_directory(directory)
    return Recovery(
        len(scans),
        sum(scan.end for scan in scans),
        bases[slot],
        (*map(Drop, gone), *actions),
        tuple(work.rewritten),
    )


# -- scan ----------------------------------------------------------------------------------------


def _scan_all(
    work: _Recovering, bases: tuple[int, ...], slot: int
) -> tuple[list[SegmentScan], list[_Rebuilt]]:
    """The segments from `slot` on, up to the first damaged one."""
    scans: list[SegmentScan] = []
    rebuilt: list[_Rebuilt] = []
    for number in range(slot, len(bases)):
        if number > 0:
            _keep_snapshot(work, bases[number])
        limit = bases[number + 1] if number + 1 < len(bases) else MAX_OFFSET
        scan, made = _scan_segment(work, bases[number], limit)
        scans.append(scan)
        rebuilt.append(made)
        if scan.damage is not None:
            break
    return scans, rebuilt


def _scan_segment(
    work: _Recovering, base_offset: int, limit_offset: int
) -> tuple[SegmentScan, _Rebuilt]:
    log = LogFile.open(work.filesystem, work.path(base_offset, FileKind.LOG))
    try:
        size_bytes = log.size_bytes()
        limit_offset = min(limit_offset, base_offset + MAX_RELATIVE_OFFSET + 1)
        scan = LogScan(log, base_offset, size_bytes, limit_offset)
        made = _Rebuilt(IndexState(base_offset, work.interval_bytes))
        for found in scan:
            made.index, entries = index_builder.extend(made.index, *found.columns())
            made.entries.append(entries)
            _fold_producers(work.state, found, made.aborted)
            work.on_scanned(int(found.table["size_bytes"].sum()))
        reason = None if scan.damage is None else scan.damage.reason
        return (
            SegmentScan(
                base_offset, size_bytes, scan.end, scan.next_offset, reason, scan.claimed_offset
            ),
            made,
        )
    finally:
        log.close()


def _fold_producers(state: ProducerState, found: SoundBatches, aborted: list[AbortedTxn]) -> None:
    for row in _rows_that_count(found):
        batch = found.batch(row)
        try:
            change = producer_batch(batch.header, batch)
        except CorruptionError:
            continue  # a marker that is none, though its checksum is right: no crash made it
        if change is None:
            continue
        completed = apply(state, change)
        if completed is not None and completed.is_abort:
            aborted.append(aborted_entry(state, completed))


def _rows_that_count(found: SoundBatches) -> list[int]:
    """The rows that a fold of producers cannot do without.

    Of idempotent producers' batches the first and the last five: a chunk of thousands would take
    longer to fold than to check.
    """
    rows = np.flatnonzero(found.table["producer_id"] >= 0)
    if len(rows) == 0:
        return []
    producers = found.table["producer_id"][rows]
    order = np.argsort(producers, kind="stable")
    ordered = producers[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sizes = np.diff(np.concatenate((starts, [len(ordered)])))
    place = np.arange(len(ordered)) - np.repeat(starts, sizes)
    from_end = np.repeat(sizes, sizes) - 1 - place
    keep = np.zeros(len(rows), np.bool_)
    keep[order] = (place == 0) | (from_end < _RECENT)
    keep |= (found.table["attributes"][rows] & _TRANSACTIONAL_OR_CONTROL) != 0
    kept: list[int] = rows[keep].tolist()
    return kept


def _sealed_up_to(work: _Recovering, bases: tuple[int, ...]) -> int:
    """Where the last segment begins that a digest of ours shows to be complete.

    It was synced before the segment behind it was made (`durability`), however old the recovery
    point may be: no crash explains damage to it. What Kafka rolled has no digest and may be torn.
    """
    for base_offset, following in reversed(list(pairwise(bases))):
        head = load_head(work.filesystem, work.directory, base_offset)
        log = work.filesystem.stat(work.path(base_offset, FileKind.LOG))
        is_ours = head is not None and head.file_id == log.file_id
        if head is not None and is_ours and head.covered_bytes >= log.size_bytes:
            return following
    return 0


def _producers_at(
    work: _Recovering, bases: tuple[int, ...], slot: int, log_start_offset: int
) -> ProducerState:
    """The state at the base of the first segment to scan: of the newest snapshot there or below,
    and what follows it."""
    base_offset = bases[slot]
    start_offset = max(log_start_offset, bases[0])
    offsets = sort_out(work.filesystem.list_directory(work.directory)).snapshots
    state, start, _ = snapshots.load_newest(
        work.filesystem,
        work.directory,
        # One at the log's start or below speaks of what was deleted: markers between may be gone
        # with it. Loading removes it, so another recovery would not have it (RCV-3).
        [offset for offset in offsets if start_offset < offset <= base_offset],
        0,
        _KEEP_ALL_MS,
    )
    start = bases[0] if start is None else start
    if start < base_offset or state.open_transactions:
        # Where open transactions began is looked at, too: cleaning may have ended their traces.
        first = bases[0] if state.open_transactions else start
        between = [
            open_segment(
                work.filesystem,
                work.directory,
                base,
                interval_bytes=work.interval_bytes,
                aborted=(),
            )
            for base, following in pairwise(bases[: slot + 1])
            if following > first
        ]
        replay(state, segments_of(between), start, base_offset)
    return state


def _keep_snapshot(work: _Recovering, base_offset: int) -> None:
    """See to it that there is a sound snapshot at a scanned base, as a roll leaves it."""
    try:
        snapshots.read_snapshot(work.filesystem, work.directory, base_offset)
    except (FileNotFoundError, CorruptionError):
        snapshots.write_snapshot(work.filesystem, work.directory, base_offset, work.state.entries)
        work.rewritten.append(snapshots.snapshot_path(work.directory, base_offset))


# -- apply ---------------------------------------------------------------------------------------


def _apply(work: _Recovering, action: Action, now_ms: int) -> None:
    match action:
        case Drop(base_offset):
            _drop(work, (base_offset,))
        case Cut():
            _cut(work, action)
        case StartOver(offset):
            _start_over(work, offset)
        case Quarantine(base_offset, position, offset, reason):
            path = work.path(base_offset, FileKind.LOG)
            note = QuarantineNote(os.path.basename(path), position, offset, reason, now_ms)
            write_quarantine(work.filesystem, work.directory, note)


def _drop(work: _Recovering, bases: tuple[int, ...]) -> None:
    """Durable before a cut is (`_cut`), and at the end: as long as there is damage, or the log's
    start is above them, the next recovery drops what is back."""
    for base_offset in bases:
        for kind in (*SEGMENT_KINDS, FileKind.SNAPSHOT):
            _unlink(work, work.path(base_offset, kind))
        _unlink_digest(work, base_offset)


def _cut(work: _Recovering, cut: Cut) -> None:
    """End the log inside a segment. What speaks of more than is left goes first, and durably."""
    _drop_snapshots_above(work, cut.next_offset)
    _unlink_digest(work, cut.base_offset)
    work.filesystem.fsync_directory(work.directory)
    file = work.filesystem.open(work.path(cut.base_offset, FileKind.LOG), "update")
    try:
        file.truncate(cut.end)
        file.fsync()
    finally:
        file.close()


def _drop_snapshots_above(work: _Recovering, end_offset: int) -> None:
    """A snapshot from beyond the end would one day be taken for one of what is appended next."""
    for offset in sort_out(work.filesystem.list_directory(work.directory)).snapshots:
        if offset > end_offset:
            _unlink(work, snapshots.snapshot_path(work.directory, offset))


def _start_over(work: _Recovering, offset: int) -> None:
    bases = sort_out(work.filesystem.list_directory(work.directory)).bases
    if offset not in bases:
        work.filesystem.open(work.path(offset, FileKind.LOG), "create").close()
        work.filesystem.fsync_directory(work.directory)
    _drop(work, tuple(base for base in bases if base != offset))


def _store(work: _Recovering, made: _Rebuilt, *, is_last: bool) -> None:
    base_offset = made.index.base_offset
    if not work.filesystem.exists(work.path(base_offset, FileKind.LOG)):
        return  # the log starts over elsewhere
    parts = [entries.encode(base_offset) for entries in made.entries]
    offsets = b"".join(part for part, _ in parts)
    times = b"".join(part for _, part in parts)
    _, closing = index_builder.finish(made.index)
    closed = times + closing.encode(base_offset)[1]
    changed = _replace(work, base_offset, FileKind.OFFSET_INDEX, (offsets,))
    # The last segment may have been closed or not; a closing entry more does no harm.
    accepted = (closed, times) if is_last else (closed,)
    changed |= _replace(work, base_offset, FileKind.TIME_INDEX, accepted)
    changed |= _replace(work, base_offset, FileKind.TXN_INDEX, (txn_index.encode(made.aborted),))
    if changed:
        _unlink_digest(work, base_offset)


def _fsync(work: _Recovering, base_offset: int) -> None:
    for kind in (FileKind.LOG, FileKind.TIME_INDEX, FileKind.TXN_INDEX):
        try:
            file = work.filesystem.open(work.path(base_offset, kind), "update")
        except FileNotFoundError:
            continue
        try:
            file.fsync()
        finally:
            file.close()


def _replace(
    work: _Recovering, base_offset: int, kind: FileKind, accepted: tuple[bytes, ...]
) -> bool:
    """Write the first of `accepted` unless the file holds one of them; whether it was written."""
    path = work.path(base_offset, kind)
    try:
        found: bytes | None = read_file(work.filesystem, path, max(map(len, accepted)))
    except FileNotFoundError:
        # No transaction index is an empty one.
        found = b"" if kind is FileKind.TXN_INDEX else None
    except StorageIOError:
        found = None  # longer than it should be
    if found in accepted:
        return False
    write_file_atomically(work.filesystem, path, accepted[0])
    work.rewritten.append(path)
    return True


def _unlink(work: _Recovering, path: str) -> None:
    if work.filesystem.exists(path):
        work.filesystem.unlink(path)


def _unlink_digest(work: _Recovering, base_offset: int) -> None:
    """Durably: the log may grow to its old size again, and would be held against the old digest."""
    if remove_digest(work.filesystem, work.directory, base_offset):
        work.filesystem.fsync_directory(os.path.join(work.directory, STATE_DIRECTORY))
