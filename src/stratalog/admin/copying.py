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
CHECKPOINTS = (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
IDENTITY_FILE = "meta.properties"
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
        for path in files_of(place.path, filesystem)
    )


def copy_partitions(
    places: Sequence[PartitionPlace],
    target: str,
    filesystem: FileSystem,
    on_copied: OnCopied,
    origin: FileSystem | None = None,
) -> list[PartitionPlace]:
    """Copy `places` into `target`; where they are there. `origin`: the file system of `places`, if
    that is another one. Raises `StorageIOError`."""
    origin = origin or filesystem
    filesystem.make_directory(target)
    copies = [PartitionPlace(target, place.topic_partition) for place in places]
    for place, copy in zip(places, copies, strict=True):
        filesystem.make_directory(copy.path)
        for path in files_of(place.path, origin):
            goal = os.path.join(copy.path, os.path.relpath(path, place.path))
            filesystem.make_directory(os.path.dirname(goal))
            copy_file(path, goal, filesystem, on_copied, origin)
    log_dirs = sorted({place.log_dir for place in places})
    for name in CHECKPOINTS:
        _copy_checkpoint(name, log_dirs, copies, target, filesystem, origin)
    shutdowns = [os.path.join(log_dir, CLEAN_SHUTDOWN_FILE) for log_dir in log_dirs]
    if all(map(origin.exists, shutdowns)):
        goal = os.path.join(target, CLEAN_SHUTDOWN_FILE)
        copy_file(shutdowns[0], goal, filesystem, origin=origin)
    identity = os.path.join(log_dirs[0], IDENTITY_FILE)
    if len(log_dirs) == 1 and origin.exists(identity):
        copy_file(identity, os.path.join(target, IDENTITY_FILE), filesystem, origin=origin)
    return copies


def copy_file(
    source: str,
    target: str,
    filesystem: FileSystem,
    on_copied: OnCopied = lambda _: None,
    origin: FileSystem | None = None,
) -> None:
    """Copy one file with its time, to the millisecond; of `origin`, if that is another one."""
    origin = origin or filesystem
    found = origin.stat(source)
    reader = origin.open(source, "read")
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


def files_of(directory: str, filesystem: FileSystem) -> list[str]:
    """The files of a partition that mean anything, those of our own state included."""
    state = os.path.join(directory, STATE_DIRECTORY)
    names = [
        name
        for name in filesystem.list_directory(directory)
        if (parsed := parse(name)) is None or parsed.state not in _GARBAGE
    ]
    paths = [os.path.join(directory, name) for name in names]
    if filesystem.exists(state):
        paths += [os.path.join(state, name) for name in filesystem.list_directory(state)]
    return [path for path in paths if not filesystem.is_directory(path)]


def _copy_checkpoint(
    name: str,
    log_dirs: Sequence[str],
    copies: Sequence[PartitionPlace],
    target: str,
    filesystem: FileSystem,
    origin: FileSystem,
) -> None:
    chosen = {copy.topic_partition for copy in copies}
    paths = [path for log_dir in log_dirs if origin.exists(path := os.path.join(log_dir, name))]
    entries = [read_checkpoint(origin, path) for path in paths]
    if len(paths) == 1 and set(entries[0]) <= chosen:
        copy_file(paths[0], os.path.join(target, name), filesystem, origin=origin)
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
