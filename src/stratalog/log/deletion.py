"""Files and directories on their way out: renamed first, unlinked later (RET-8).

A `.deleted` file, and a partition's directory that ends in `-delete`, mean nothing any more: what
is found of them when a log directory is opened is removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from stratalog.base.filesystem import FileSystem
from stratalog.segment.digest import remove_digest
from stratalog.segment.names import SEGMENT_KINDS, FileKind, FileState
from stratalog.segment.segment import segment_path


def rename_to_deleted(filesystem: FileSystem, directory: str, bases: Iterable[int]) -> list[str]:
    """Rename all files of segments to `.deleted`; the new paths. Raises `StorageIOError`."""
    renamed: list[str] = []
    for base_offset in bases:
        remove_digest(filesystem, directory, base_offset)
        for kind in (*SEGMENT_KINDS, FileKind.SNAPSHOT):
            path = segment_path(directory, base_offset, kind)
            if filesystem.exists(path):
                deleted = segment_path(directory, base_offset, kind, FileState.DELETED)
                filesystem.rename(path, deleted)
                renamed.append(deleted)
    return renamed


def deleted_paths(filesystem: FileSystem, directory: str, bases: Iterable[int]) -> list[str]:
    """The `.deleted` files of segments that are there."""
    paths = (
        segment_path(directory, base_offset, kind, FileState.DELETED)
        for base_offset in bases
        for kind in (*SEGMENT_KINDS, FileKind.SNAPSHOT)
    )
    return [path for path in paths if filesystem.exists(path)]


def unlink_if_there(filesystem: FileSystem, path: str) -> None:
    """Unlink a file that somebody else may have unlinked."""
    if filesystem.exists(path):
        with suppress(FileNotFoundError):  # or is just unlinking
            filesystem.unlink(path)


def remove_tree(filesystem: FileSystem, path: str) -> None:
    """Remove a directory and all in it; nothing if it is not there. Raises `StorageIOError`."""
    if not filesystem.is_directory(path):
        return
    for name in filesystem.list_directory(path):
        child = os.path.join(path, name)
        if filesystem.is_directory(child):
            remove_tree(filesystem, child)
        else:
            filesystem.unlink(child)
    filesystem.remove_directory(path)
