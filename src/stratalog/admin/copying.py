"""A log directory -> a fresh one that holds some of its partitions and can be opened as it is.

Copied: the partitions' files with their times (the times of `.log` files take part in cleaning),
the checkpoint files with the entries of those partitions, the marker of a clean shutdown and the
directory's identity. The copy is made of bytes, not of links, since indexes change in place.

Invariants
- I1  The sources are only read.
- I2  `remove_copy` removes nothing but what a copy made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence

from stratalog.admin.directories import PartitionPlace
from stratalog.base.errors import StorageIOError, UsageError
from stratalog.base.filesystem import File, FileSystem
from stratalog.log.checkpoint import read_checkpoint, write_checkpoint
from stratalog.segment.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    STATE_DIRECTORY,
    FileState,
    parse,
)

_COPY_BYTES = 4 << 20
_CHECKPOINTS = (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
_IDENTITY_FILE = "meta.properties"
_GARBAGE = (FileState.PART, FileState.TEMPORARY, FileState.DELETED)

OnCopied = Callable[[int], None]
"""Receives the bytes copied since the last call."""


def check_fresh(target: str, places: Sequence[PartitionPlace], filesystem: FileSystem) -> None:
    """Raise `UsageError` unless `target` can receive a copy of `places`."""
    if filesystem.exists(target):
        try:
            names = filesystem.list_directory(target)
        except StorageIOError:
            raise UsageError(f"{target}: is there and is no directory") from None
        if names:
            raise UsageError(f"{target}: is not empty; --out wants a new directory")
    seen: dict[str, PartitionPlace] = {}
    for place in places:
        other = seen.setdefault(place.name, place)
        if other is not place:
            raise UsageError(f"{other.path} and {place.path} cannot go into one directory")
        source = os.path.realpath(place.log_dir)
        if os.path.commonpath([source, os.path.realpath(target)]) == source:
            raise UsageError(f"{target}: lies inside {place.log_dir}, which must not change")


def copied_bytes(places: Sequence[PartitionPlace], filesystem: FileSystem) -> int:
    """How many bytes a copy of the partitions takes, without the small files."""
    return sum(
        filesystem.stat(path).size_bytes
        for place in places
        for path in _files_of(place.path, filesystem)
    )


def copy_partitions(
    places: Sequence[PartitionPlace], target: str, filesystem: FileSystem, on_copied: OnCopied
) -> list[PartitionPlace]:
    """Copy `places` into `target`; where they are there. Raises `StorageIOError`."""
    filesystem.make_directory(target)
    copies = [PartitionPlace(target, place.topic_partition) for place in places]
    for place, copy in zip(places, copies, strict=True):
        filesystem.make_directory(copy.path)
        for path in _files_of(place.path, filesystem):
            goal = os.path.join(copy.path, os.path.relpath(path, place.path))
            filesystem.make_directory(os.path.dirname(goal))
            copy_file(path, goal, filesystem, on_copied)
    log_dirs = sorted({place.log_dir for place in places})
    for name in _CHECKPOINTS:
        _copy_checkpoint(name, log_dirs, copies, target, filesystem)
    shutdowns = [os.path.join(log_dir, CLEAN_SHUTDOWN_FILE) for log_dir in log_dirs]
    if all(map(filesystem.exists, shutdowns)):
        copy_file(shutdowns[0], os.path.join(target, CLEAN_SHUTDOWN_FILE), filesystem)
    identity = os.path.join(log_dirs[0], _IDENTITY_FILE)
    if len(log_dirs) == 1 and filesystem.exists(identity):
        copy_file(identity, os.path.join(target, _IDENTITY_FILE), filesystem)
    return copies


def copy_file(
    source: str, target: str, filesystem: FileSystem, on_copied: OnCopied = lambda _: None
) -> None:
    """Copy one file with its time, to the millisecond."""
    found = filesystem.stat(source)
    reader = filesystem.open(source, "read")
    try:
        writer = filesystem.open(target, "create")
        try:
            _copy_bytes(reader, writer, on_copied)
        finally:
            writer.close()
    finally:
        reader.close()
    filesystem.set_modified(target, found.modified_ms)


def _copy_bytes(reader: File, writer: File, on_copied: OnCopied) -> None:
    buffer = memoryview(bytearray(_COPY_BYTES))
    position = 0
    while (count := reader.pread_into(buffer, position)) > 0:
        writer.pwrite(buffer[:count], position)
        position += count
        on_copied(count)


def _files_of(directory: str, filesystem: FileSystem) -> list[str]:
    """The files of a partition that mean anything, those of our own state included."""
    state = os.path.join(directory, STATE_DIRECTORY)
    names = [
        name
        for name in filesystem.list_directory(directory)
        if (parsed := parse(name)) is None or parsed.state not in _GARBAGE
    ]
    paths = [path for name in names if not os.path.isdir(path := os.path.join(directory, name))]
    if filesystem.exists(state):
        paths += [os.path.join(state, name) for name in filesystem.list_directory(state)]
    return paths


def _copy_checkpoint(
    name: str,
    log_dirs: Sequence[str],
    copies: Sequence[PartitionPlace],
    target: str,
    filesystem: FileSystem,
) -> None:
    chosen = {copy.topic_partition for copy in copies}
    paths = [path for log_dir in log_dirs if filesystem.exists(path := os.path.join(log_dir, name))]
    entries = [read_checkpoint(filesystem, path) for path in paths]
    if len(paths) == 1 and set(entries[0]) <= chosen:
        copy_file(paths[0], os.path.join(target, name), filesystem)
    elif paths:
        kept = {key: at for found in entries for key, at in found.items() if key in chosen}
        write_checkpoint(filesystem, os.path.join(target, name), kept)


def fsync_copy(places: Sequence[PartitionPlace], target: str, filesystem: FileSystem) -> None:
    """Make everything in `target` durable, before anybody is told that it is there."""
    for directory in (*(place.path for place in places), target):
        for name in filesystem.list_directory(directory):
            path = os.path.join(directory, name)
            if not os.path.isdir(path):
                file = filesystem.open(path, "read")
                try:
                    file.fsync()
                finally:
                    file.close()
        filesystem.fsync_directory(directory)
    filesystem.fsync_directory(os.path.dirname(os.path.abspath(target)))


def remove_copy(target: str, *, was_there: bool) -> None:
    """Remove what a failed copy left in `target`, and the directory itself unless `was_there`."""
    if not was_there:
        shutil.rmtree(target, ignore_errors=True)
        return
    for entry in list(os.scandir(target)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)
