"""A round's outcome -> the partition's directory. Only the process that has the lock calls this.

    tidy     what earlier runs left: an unfinished swap is finished, stray files go
    place    roll the active segment if the round reached into it; swap group after group,
             lowest first; remove what was replaced; move the cleaner checkpoint

Invariants
- I1  Whatever call is cut off, the next `tidy` (or opening the log) leads to the old content of a
      group or to the new; the checkpoint moves only after the last group.
- I2  Rolling does not go through an open log: opening for writing would repair and remove files
      that the round has nothing to do with, its own `.part` files among them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from stratalog.admin.directories import PartitionPlace
from stratalog.admin.state import ReadPartition
from stratalog.base.clock import Clock
from stratalog.base.errors import StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.job import CleanedPartition
from stratalog.log import snapshots, swap
from stratalog.log.active import ActiveSegment
from stratalog.log.checkpoint import read_checkpoint, write_checkpoint
from stratalog.log.leftovers import resolve
from stratalog.log.loading import load_log
from stratalog.log.settings import LogSettings
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    FileKind,
)
from stratalog.segment.segment import segment_path


def tidy(directory: str, filesystem: FileSystem) -> bool:
    """Finish a swap that was cut off, remove attempts that never became one; whether a swap was.

    What Kafka's swaps left is resolved, too (RCV-5). Raises `CorruptionError` if that is damaged.
    """
    return resolve(filesystem, directory).finished is not None


def tidy_all(places: Iterable[PartitionPlace], filesystem: FileSystem) -> None:
    """`tidy` after a failure, in as many directories as possible: the failure is what counts."""
    for place in places:
        try:
            tidy(place.path, filesystem)
        except (StratalogError, FileNotFoundError):
            continue


def place_round(
    partition: ReadPartition,
    cleaned: CleanedPartition,
    settings: LogSettings,
    filesystem: FileSystem,
    clock: Clock,
) -> None:
    """Put the outcome of a round in place. Raises `StorageIOError`, `CorruptionError`."""
    place = partition.place
    if needs_roll(partition, cleaned):
        roll(partition, settings, filesystem, clock)
    _sync_sources(place.path, cleaned, filesystem)
    for group in cleaned.groups:
        if group.parts:
            parts = {FileKind(kind): name for kind, name in group.parts}
            new = (swap.SegmentParts(group.sources[0], parts),)
            swap.swap(filesystem, place.path, swap.Replacement(group.sources, new))
    tidy(place.path, filesystem)
    move_checkpoint(place, cleaned.end_offset, filesystem)


def _sync_sources(directory: str, cleaned: CleanedPartition, filesystem: FileSystem) -> None:
    """A swap drops a key's old value for good, so the newer one must be on the disk before: the
    process that wrote it may have died with it in memory."""
    if not any(group.parts for group in cleaned.groups):
        return
    _fsync(
        (
            segment_path(directory, segment.base_offset, kind)
            for segment in cleaned.job.segments
            for kind in (FileKind.LOG, FileKind.TXN_INDEX)
        ),
        filesystem,
    )
    filesystem.fsync_directory(directory)


def needs_roll(partition: ReadPartition, cleaned: CleanedPartition) -> bool:
    """Whether the round took the segment in that is still the active one."""
    return (
        partition.rolls_at is not None
        and cleaned.job.segments[-1].next_offset == partition.rolls_at
    )


def roll(
    partition: ReadPartition, settings: LogSettings, filesystem: FileSystem, clock: Clock
) -> None:
    """Close the active segment of a log that nobody has open, and begin an empty one, durably."""
    directory = partition.place.path
    state = partition.state
    loaded = load_log(
        filesystem,
        directory,
        settings,
        now_ms=clock.now_ms(),
        log_start_offset=state.log_start_offset,
        writable=False,
        may_be_torn=False,
    )
    end = loaded.tail.next_offset
    assert end == partition.rolls_at, (end, partition.rolls_at)
    old = ActiveSegment.resume(filesystem, directory, loaded.tail, clock.now_ms())
    old.seal()
    old.fsync()
    new = ActiveSegment.create(
        filesystem,
        directory,
        end,
        interval_bytes=settings.index_interval_bytes,
        now_ms=clock.now_ms(),
    )
    old.indexes.close()
    new.indexes.close()
    new.log.close()
    snapshots.write_snapshot(filesystem, directory, end, loaded.producers.entries)
    filesystem.fsync_directory(directory)
    # The lag of an empty segment is counted from its file's time: by the clock that we were given.
    filesystem.set_modified(segment_path(directory, end, FileKind.LOG), clock.now_ms())


def _fsync(paths: Iterable[str], filesystem: FileSystem) -> None:
    for path in paths:
        try:
            file = filesystem.open(path, "read")
        except FileNotFoundError:
            continue  # most segments have no .txnindex
        try:
            file.fsync()
        finally:
            file.close()


def move_checkpoint(place: PartitionPlace, offset: int, filesystem: FileSystem) -> None:
    """Set the partition's entry in its log directory's cleaner checkpoint, durably."""
    path = os.path.join(place.log_dir, CLEANER_OFFSET_CHECKPOINT)
    entries = read_checkpoint(filesystem, path)
    if entries.get(place.topic_partition) != offset:
        write_checkpoint(filesystem, path, {**entries, place.topic_partition: offset})
