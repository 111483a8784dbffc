"""Opening a partition's log for its owner: put in order, recovered, loaded, ready to append.

    leftovers.resolve   what swaps and deletions left                               every time
    recovery.recover    if the log was not closed in order                          from `unclean`
    loading.load_log    segments, end, producers
    quarantine          if there is damage that no crash explains                   reading only

Invariants
- I1  A log opens for appending only if its end is known to be sound.
- I2  A partition that was made is durable when it is first seen: its files, its name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError, TooManyFilesError, UsageError
from stratalog.base.filesystem import FileSystem, make_durable_directory
from stratalog.log.active import ActiveSegment
from stratalog.log.leader_epochs import (
    EpochStart,
    cut_at_end,
    cut_at_start,
    read_leader_epochs,
    write_leader_epochs,
)
from stratalog.log.leftovers import Resolved, resolve, sort_out
from stratalog.log.loading import LoadedLog, load_log
from stratalog.log.quarantine import QuarantineNote, read_quarantine, write_quarantine
from stratalog.log.recovery import OnScanned, Recovery, recover
from stratalog.log.settings import LogSettings
from stratalog.segment.names import LEADER_EPOCH_CHECKPOINT, FileKind
from stratalog.segment.segment import segment_path


@dataclass(frozen=True, slots=True)
class Unclean:
    """The log was not closed in order: what lies at or above `recovery_point` may be torn.

    None: unknown, because its checkpoint is damaged. Then everything is scanned, and no damage is
    taken for a crash's.
    """

    recovery_point: int | None
    on_scanned: OnScanned = lambda _: None


@dataclass(frozen=True, slots=True, eq=False)
class OpenedLog:
    """What `open_log` made. `active` is None if the log takes no appends; `recovery_point`: what
    is below is on the disk; `quarantine` says why it takes none although its owner asked."""

    loaded: LoadedLog
    epochs: tuple[EpochStart, ...]
    active: ActiveSegment | None
    recovery_point: int
    resolved: Resolved | None = None
    recovery: Recovery | None = None
    quarantine: QuarantineNote | None = None


def read_log(
    filesystem: FileSystem,
    directory: str,
    settings: LogSettings,
    *,
    now_ms: int,
    log_start_offset: int | None,
    may_be_torn: bool,
) -> OpenedLog:
    """The log for readers; no file is changed. Raises as `load_log`."""
    loaded = load_log(
        filesystem,
        directory,
        settings,
        now_ms=now_ms,
        log_start_offset=log_start_offset,
        writable=False,
        may_be_torn=may_be_torn,
    )
    epochs, _ = _epochs(filesystem, directory, loaded)
    return OpenedLog(loaded, epochs, None, loaded.tail.next_offset)


def open_log(
    filesystem: FileSystem,
    directory: str,
    settings: LogSettings,
    *,
    now_ms: int,
    log_start_offset: int | None,
    create: bool,
    unclean: Unclean | None,
    flushed_to: int = 0,
) -> OpenedLog:
    """The log for its owner. `unclean` None: it was closed in order; it ends at or past
    `flushed_to`, then, or something was lost.

    Raises `UsageError` if there is no log and `create` is not set; `CorruptionError` for damage
    that leaves nothing to read; `StorageIOError`.
    """
    if not filesystem.exists(directory):
        if not create:
            raise UsageError(f"{directory}: there is no log")
        make_durable_directory(filesystem, directory)
    resolved = resolve(filesystem, directory)
    if create and not sort_out(filesystem.list_directory(directory)).bases:
        interval_bytes = settings.index_interval_bytes
        create_segment(filesystem, directory, log_start_offset or 0, interval_bytes, now_ms)
    recovery = None
    note = read_quarantine(filesystem, directory)
    if unclean is not None and note is None and resolved is not None:
        try:
            start_offset = log_start_offset or 0
            recovery = _recover(filesystem, directory, settings, now_ms, start_offset, unclean)
        except CorruptionError as error:
            # What lies below the recovery point, and was needed for its producers.
            write_quarantine(filesystem, directory, _note(error, directory, now_ms))
        note = read_quarantine(filesystem, directory)
    if note is None:
        try:
            loaded = load_log(
                filesystem,
                directory,
                settings,
                now_ms=now_ms,
                log_start_offset=log_start_offset,
                writable=True,
                may_be_torn=False,
            )
            if unclean is None:
                _check_bounds(loaded, log_start_offset, flushed_to, directory)
            # Held against its digest, as the writer's first look at it will be.
            next(loaded.tail.segment.headers(), None)
        except CorruptionError as error:
            note = _note(error, directory, now_ms)
            write_quarantine(filesystem, directory, note)
    if note is not None:
        opened = read_log(
            filesystem,
            directory,
            settings,
            now_ms=now_ms,
            log_start_offset=log_start_offset,
            may_be_torn=True,
        )
        return OpenedLog(opened.loaded, opened.epochs, None, 0, resolved, recovery, note)
    epochs, stored = _epochs(filesystem, directory, loaded)
    if epochs != stored:
        path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        write_leader_epochs(filesystem, path, epochs)
    active = ActiveSegment.resume(filesystem, directory, loaded.tail, now_ms)
    recovery_point = loaded.tail.next_offset
    if unclean is not None:
        recovery_point = min(recovery_point, unclean.recovery_point or 0)
    return OpenedLog(loaded, epochs, active, recovery_point, resolved, recovery)


def _check_bounds(
    loaded: LoadedLog, log_start_offset: int | None, flushed_to: int, directory: str
) -> None:
    """RCV-7: a log of which whole files or whole batches are missing looks sound."""
    first = loaded.segments.bases[0]
    if log_start_offset is not None and first > log_start_offset:
        reason = f"the log starts at {log_start_offset}, and its first segment at {first}"
        raise CorruptionError(reason, file=directory)
    end = loaded.tail.next_offset
    if end < flushed_to:
        reason = f"the log ends at {end}, and was flushed up to {flushed_to}"
        raise CorruptionError(reason, file=directory)


def create_segment(
    filesystem: FileSystem, directory: str, base_offset: int, interval_bytes: int, now_ms: int
) -> None:
    """An empty segment, with which a log begins or goes on; durable when it returns. Raises
    `StorageIOError`."""
    ActiveSegment.create(
        filesystem, directory, base_offset, interval_bytes=interval_bytes, now_ms=now_ms
    ).indexes.close()
    try:
        filesystem.fsync_directory(directory)
    except TooManyFilesError:
        # Whoever tries again would find a segment, and take its name for durable.
        filesystem.unlink(segment_path(directory, base_offset, FileKind.LOG))
        raise


def _recover(
    filesystem: FileSystem,
    directory: str,
    settings: LogSettings,
    now_ms: int,
    log_start_offset: int,
    unclean: Unclean,
) -> Recovery:
    return recover(
        filesystem,
        directory,
        recovery_point=unclean.recovery_point,
        log_start_offset=log_start_offset,
        interval_bytes=settings.index_interval_bytes,
        now_ms=now_ms,
        on_scanned=unclean.on_scanned,
    )


def _note(error: CorruptionError, directory: str, now_ms: int) -> QuarantineNote:
    file = os.path.basename(error.file or directory)
    position = -1 if error.position is None else error.position
    return QuarantineNote(file, position, -1, error.reason, now_ms)


def _epochs(
    filesystem: FileSystem, directory: str, loaded: LoadedLog
) -> tuple[tuple[EpochStart, ...], tuple[EpochStart, ...]]:
    """The leader epochs that fit the log, and those that are stored."""
    stored = read_leader_epochs(filesystem, os.path.join(directory, LEADER_EPOCH_CHECKPOINT))
    end = loaded.tail.next_offset
    return cut_at_end(cut_at_start(stored, loaded.log_start_offset), end), stored
