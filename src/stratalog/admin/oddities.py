"""What cannot be a file of ours: a directory in its place, a size that no such file has.

Nothing reads such a thing, and nothing is lost by renaming it: what stood there is made anew, or is
missed and told of.

Invariants
- I1  What is put aside never takes the place of something that was put aside before.
- I2  A `.log` is left alone, whatever it is: it cannot be made anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stratalog.admin.overlay import OverlayFileSystem
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import File, FileSystem, OpenMode
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.ledger.manifest import LEDGERS_DIRECTORY
from stratalog.log.checkpoint import read_checkpoint
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    STATE_DIRECTORY,
    FileKind,
    FileState,
    TopicPartition,
    parse,
)

DAMAGED_SUFFIX = ".damaged"
CHECKPOINTS = (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
_ASIDE = ".tmp"


class Preview(OverlayFileSystem):
    """An overlay in which a thing that was put aside has nothing below it any more, and a directory
    may be made in its place."""

    def open(self, path: str, mode: OpenMode) -> File:
        parent = os.path.dirname(os.path.abspath(path))
        if parent in self._nodes and not self._directories.get(parent, False):
            raise FileNotFoundError(2, "No such file", path)
        return super().open(path, mode)

    def exists(self, path: str) -> bool:
        return self._directories.get(os.path.abspath(path), False) or super().exists(path)


def put_aside(filesystem: FileSystem, path: str) -> str:
    """Rename a damaged file, or a directory, durably, so that nobody takes it for what it was; its
    new name (I1). Raises `StorageIOError`."""
    new_path, number = path + DAMAGED_SUFFIX, 1
    while filesystem.exists(new_path):
        number += 1
        new_path = f"{path}{DAMAGED_SUFFIX}-{number}"
    filesystem.rename(path, new_path)
    filesystem.fsync_directory(os.path.dirname(path))
    return os.path.basename(new_path)


def read_offsets(filesystem: FileSystem, path: str) -> dict[TopicPartition, int]:
    """As `read_checkpoint`, for which a thing that is no checkpoint at all is a damaged one, too.

    Raises `CorruptionError`, `StorageIOError`.
    """
    reason = oddity_of(filesystem, path)
    if reason is not None:
        raise CorruptionError(reason, file=path)
    return read_checkpoint(filesystem, path)


def oddity_of(filesystem: FileSystem, path: str) -> str | None:
    """Why what is at the path of a checkpoint is none; None if it may be, or is not there."""
    if filesystem.is_directory(path):
        return "a directory in the place of a file"
    if not filesystem.exists(path):
        return None
    size_bytes = filesystem.stat(path).size_bytes
    if size_bytes > MAX_CHECKPOINT_BYTES:
        return f"{size_bytes:,} bytes, expected at most {MAX_CHECKPOINT_BYTES:,}"
    return None


def odd_checkpoints(log_dir: str, filesystem: FileSystem) -> Iterator[tuple[str, str]]:
    """(path, reason) of a log directory's checkpoints, and of what is to become one."""
    for name in CHECKPOINTS:
        for path in (os.path.join(log_dir, name), os.path.join(log_dir, name + _ASIDE)):
            reason = oddity_of(filesystem, path)
            # A large `.tmp` is written over; a directory is in the way.
            if reason is not None and (path.endswith(name) or filesystem.is_directory(path)):
                yield path, reason


def odd_files(directory: str, filesystem: FileSystem) -> Iterator[tuple[str, str]]:
    """(path, reason) of a partition's files; `.log` files are left out (I2)."""
    epochs = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    if (reason := oddity_of(filesystem, epochs)) is not None:
        yield epochs, reason
    if filesystem.is_directory(epochs + _ASIDE):
        yield epochs + _ASIDE, "a directory in the place of a file"
    for name in filesystem.list_directory(directory):
        found = parse(name)
        is_log = (
            found is not None
            and found.kind is FileKind.LOG
            and found.state in (FileState.FINAL, FileState.SWAP)
        )
        path = os.path.join(directory, name)
        if found is not None and not is_log and filesystem.is_directory(path):
            yield path, "a directory in the place of a file"
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    if not filesystem.is_directory(state_directory):
        if filesystem.exists(state_directory):
            yield state_directory, "a file in the place of a directory"
        return
    for name in filesystem.list_directory(state_directory):
        path = os.path.join(state_directory, name)
        is_expected = DAMAGED_SUFFIX in name or name == LEDGERS_DIRECTORY
        if not is_expected and filesystem.is_directory(path):
            yield path, "a directory in the place of a file"
