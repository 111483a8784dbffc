"""How large the disk below a path is, and what is left of it. For people and metrics only: nothing
is decided by it, so it is no part of `FileSystem`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stratalog.base.filesystem import translated_errors


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes. `usable_bytes`: what a user who is not root can still write."""

    total_bytes: int
    usable_bytes: int


def disk_space(path: str) -> DiskSpace:
    """Of the file system that `path` lies on. Raises `StorageIOError`, `FileNotFoundError`."""
    with translated_errors(path):
        found = os.statvfs(path)
    return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
