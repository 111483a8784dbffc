"""Opening a partition's directory: which files count, where the log ends, who its producers are.

This is the opening of a directory that is in order: left so, or put in order by `leftovers` and
`recovery`. Segments are opened, the end is found (`tail`), the producers are restored.

Invariants
- I1  With `writable` false nothing is written, renamed or removed.
- I2  The producers' state is that of Kafka: newest usable snapshot, expired producers dropped, the
      rest replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stratalog.base.errors import CorruptionError, LogChangedError, UsageError
from stratalog.base.filesystem import FileSystem, write_file_atomically
from stratalog.log import snapshots
from stratalog.log.leftovers import refuse_unfinished, sort_out
from stratalog.log.producer_state import ProducerState
from stratalog.log.replay import aborted_of, replay
from stratalog.log.settings import LogSettings
from stratalog.log.tail import Tail, load_tail
from stratalog.segment import txn_index
from stratalog.segment.digest import refresh_index_sums
from stratalog.segment.names import FileKind
from stratalog.segment.segment import load_aborted, open_segment, segment_path
from stratalog.segment.segments import Segments, segments_of
from stratalog.segment.txn_index import AbortedTxn

_KEEP_ALL_MS = 1 << 62
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, eq=False)
class LoadedLog:
    """What `load_log` found. `tail.segment` is the last of `segments`."""

    segments: Segments
    tail: Tail
    log_start_offset: int
    producers: ProducerState
    newest_snapshot: int | None


def load_log(
    filesystem: FileSystem,
    directory: str,
    settings: LogSettings,
    *,
    now_ms: int,
    log_start_offset: int | None,
    writable: bool,
    may_be_torn: bool,
) -> LoadedLog:
    """The log in a directory.

    Raises `UsageError` if there is no segment, `LogChangedError` while or after segments were being
    replaced, `CorruptionError` naming file and position.
    """
    for _ in range(_ATTEMPTS):
        try:
            before = [] if writable else _identity(filesystem, directory)
            loaded = _load(
                filesystem,
                directory,
                settings,
                now_ms=now_ms,
                log_start_offset=log_start_offset,
                writable=writable,
                may_be_torn=may_be_torn,
            )
            if writable:
                return loaded
            # What was opened must belong together: its owner may have replaced segments meanwhile.
            # File ids are used again, but not that of a file that is held open.
            opened = [(one.base_offset, one.log.file_id()) for one in loaded.segments]
            if _identity(filesystem, directory)[: len(opened)] == opened == before[: len(opened)]:
                return loaded
        except FileNotFoundError:
            # Its owner removed a segment between our listing and our opening it: list again.
            if writable or not filesystem.exists(directory):
                break
    if not filesystem.exists(directory):
        raise UsageError(f"{directory}: there is no log")
    raise LogChangedError(f"{directory}: files vanish while it is being opened; try again")


def _identity(filesystem: FileSystem, directory: str) -> list[tuple[int, int]]:
    """Base offset and file id of each segment. Raises `LogChangedError` while any is replaced."""
    contents = sort_out(filesystem.list_directory(directory))
    refuse_unfinished(filesystem, directory, contents)
    return [
        (base, filesystem.stat(segment_path(directory, base, FileKind.LOG)).file_id)
        for base in contents.bases
    ]


def _load(
    filesystem: FileSystem,
    directory: str,
    settings: LogSettings,
    *,
    now_ms: int,
    log_start_offset: int | None,
    writable: bool,
    may_be_torn: bool,
) -> LoadedLog:
    contents = sort_out(filesystem.list_directory(directory))
    if not contents.bases:
        raise UsageError(f"{directory}: there is no log")
    refuse_unfinished(filesystem, directory, contents)
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
        may_be_torn=may_be_torn,
    )
    segments = segments_of([*sealed, tail.segment])
    for base_offset in damaged:
        segments = _with_txn_index(
            filesystem, directory, segments, base_offset, contents.snapshots, writable
        )
    tail = replace(tail, segment=segments.active)
    start = max(log_start_offset or 0, segments.bases[0])
    if start > tail.next_offset and may_be_torn:
        start = tail.next_offset  # nothing is left to read
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
    try:
        replay(producers, segments, start if newest is None else newest, tail.next_offset)
    except CorruptionError:
        # Damage inside: what is whole stays readable (RCV-7). Its readers meet it where it is.
        if not may_be_torn:
            raise
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
    elif writable and filesystem.exists(path):
        filesystem.unlink(path)
    if writable:
        refresh_index_sums(filesystem, directory, base_offset)
    rest = [other for other in segments if other is not segment]
    return segments_of([*rest, replace(segment, aborted=entries)])
