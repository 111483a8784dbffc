"""Opening a partition's directory: which files count, where the log ends, who its producers are.

This is the opening of a directory that was left in order. What a crash in the middle of a swap
leaves is refused by name (`UsageError`), for recovery to resolve first.

    sort_out     names -> which segments, what is garbage, what stands in the way      pure
    load_log     opens the segments, finds the end (`tail`), restores the producers

Invariants
- I1  With `writable` false nothing is written, renamed or removed.
- I2  The producers' state is that of Kafka: newest usable snapshot, expired producers dropped, the
      rest replayed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.base.filesystem import FileSystem, write_file_atomically
from stratalog.log import snapshots
from stratalog.log.producer_state import ProducerState
from stratalog.log.replay import aborted_of, replay
from stratalog.log.settings import LogSettings
from stratalog.log.tail import Tail, load_tail
from stratalog.segment import txn_index
from stratalog.segment.names import STATE_DIRECTORY, SWAP_INTENT, FileKind, FileState, parse
from stratalog.segment.segment import load_aborted, open_segment, segment_path
from stratalog.segment.segments import Segments, segments_of
from stratalog.segment.txn_index import AbortedTxn

_GARBAGE = (FileState.PART, FileState.TEMPORARY, FileState.DELETED)
_KEEP_ALL_MS = 1 << 62
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Contents:
    """A directory's segment files, sorted out. `garbage` may be removed; `unfinished` names what
    an interrupted swap left."""

    bases: tuple[int, ...]
    snapshots: tuple[int, ...]
    garbage: tuple[str, ...]
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedLog:
    """What `load_log` found. `tail.segment` is the last of `segments`."""

    segments: Segments
    tail: Tail
    log_start_offset: int
    producers: ProducerState
    newest_snapshot: int | None


def sort_out(names: Iterable[str]) -> Contents:
    """What the files of a directory mean. Names of others are left alone."""
    parsed = [(name, found) for name in names if (found := parse(name)) is not None]
    final = [(name, found) for name, found in parsed if found.state is FileState.FINAL]
    bases = {found.base_offset for _, found in final if found.kind is FileKind.LOG}
    orphans = [
        name
        for name, found in final
        if found.kind is not FileKind.SNAPSHOT and found.base_offset not in bases
    ]
    garbage = [name for name, found in parsed if found.state in _GARBAGE]
    unfinished = [
        name
        for name, found in parsed
        if found.state is not FileState.FINAL and found.state not in _GARBAGE
    ]
    kept = {found.base_offset for _, found in final if found.kind is FileKind.SNAPSHOT}
    return Contents(
        tuple(sorted(bases)),
        tuple(sorted(kept)),
        tuple(garbage) if unfinished else (*garbage, *orphans),
        tuple(unfinished),
    )


def refuse_unfinished(filesystem: FileSystem, directory: str, contents: Contents) -> None:
    """Raises `UsageError`, naming the file, if a swap was interrupted in this directory."""
    intent = os.path.join(directory, STATE_DIRECTORY, SWAP_INTENT)
    left = [os.path.join(directory, name) for name in contents.unfinished]
    if filesystem.exists(intent):
        left.insert(0, intent)
    if left:
        raise UsageError(
            f"{left[0]}: left by an interrupted cleaning; a Kafka that opens the log resolves it"
        )


def load_log(
    filesystem: FileSystem,
    directory: str,
    settings: LogSettings,
    *,
    now_ms: int,
    log_start_offset: int | None,
    writable: bool,
    repair_tail: bool,
) -> LoadedLog:
    """The log in a directory.

    Raises `UsageError` if there is no segment, or after an interrupted swap; `CorruptionError`
    naming file and position.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _load(
                filesystem,
                directory,
                settings,
                now_ms=now_ms,
                log_start_offset=log_start_offset,
                writable=writable,
                repair_tail=repair_tail,
            )
        except FileNotFoundError:
            # Its owner removed a segment between our listing and our opening it: list again.
            if writable or not filesystem.exists(directory):
                break
    if not filesystem.exists(directory):
        raise UsageError(f"{directory}: there is no log")
    raise StorageIOError(f"{directory}: files vanish while it is being opened")


def _load(
    filesystem: FileSystem,
    directory: str,
    settings: LogSettings,
    *,
    now_ms: int,
    log_start_offset: int | None,
    writable: bool,
    repair_tail: bool,
) -> LoadedLog:
    contents = sort_out(filesystem.list_directory(directory))
    if not contents.bases:
        raise UsageError(f"{directory}: there is no log")
    refuse_unfinished(filesystem, directory, contents)
    if writable:
        for name in contents.garbage:
            filesystem.unlink(os.path.join(directory, name))
    damaged: list[int] = []
    aborted = [
        _aborted_or_damaged(filesystem, directory, base_offset, damaged)
        for base_offset in contents.bases
    ]
    sealed = [
        open_segment(
            filesystem,
            directory,
            base_offset,
            interval_bytes=settings.index_interval_bytes,
            repair=writable,
            aborted=entries,
        )
        for base_offset, entries in zip(contents.bases[:-1], aborted, strict=False)
    ]
    tail = load_tail(
        filesystem,
        directory,
        contents.bases[-1],
        interval_bytes=settings.index_interval_bytes,
        aborted=aborted[-1],
        writable=writable,
        repair_tail=repair_tail,
    )
    segments = segments_of([*sealed, tail.segment])
    for base_offset in damaged:
        segments = _with_txn_index(
            filesystem, directory, segments, base_offset, contents.snapshots, writable
        )
    tail = replace(tail, segment=segments.active)
    start = max(log_start_offset or 0, segments.bases[0])
    if start > tail.next_offset:
        raise CorruptionError(
            f"the log starts at {start} and ends at {tail.next_offset}", file=directory
        )
    stray = snapshots.stray_snapshots(contents.snapshots, segments.bases, start, tail.next_offset)
    usable = set(contents.snapshots) - stray
    producers, newest, unreadable = snapshots.load_newest(
        filesystem, directory, usable, now_ms, settings.producer_expiration_ms
    )
    if writable:
        for offset in sorted({*stray, *unreadable}):
            filesystem.unlink(snapshots.snapshot_path(directory, offset))
    replay(producers, segments, start if newest is None else newest, tail.next_offset)
    return LoadedLog(segments, tail, start, producers, newest)


def _aborted_or_damaged(
    filesystem: FileSystem, directory: str, base_offset: int, damaged: list[int]
) -> tuple[AbortedTxn, ...]:
    try:
        return load_aborted(filesystem, directory, base_offset)
    except CorruptionError:
        damaged.append(base_offset)
        return ()


def _with_txn_index(
    filesystem: FileSystem,
    directory: str,
    segments: Segments,
    base_offset: int,
    snapshot_offsets: tuple[int, ...],
    writable: bool,
) -> Segments:
    """With the segment's transaction index made anew from the log (RCV-4)."""
    segment = segments.get(base_offset)
    assert segment is not None
    below = [offset for offset in snapshot_offsets if offset <= base_offset]
    state, start, _ = snapshots.load_newest(filesystem, directory, below, 0, _KEEP_ALL_MS)
    replay(state, segments, segments.bases[0] if start is None else start, base_offset)
    entries = aborted_of(state, segment)
    path = segment_path(directory, base_offset, FileKind.TXN_INDEX)
    if writable and entries:
        write_file_atomically(filesystem, path, txn_index.encode(entries))
    elif writable:
        filesystem.unlink(path)
    rest = [other for other in segments if other is not segment]
    return segments_of([*rest, replace(segment, aborted=entries)])
