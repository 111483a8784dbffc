"""What a simulated disk is made of: files and directories as values that never change.

A file and a directory each hold two states, the one that programs see and the one that an fsync
made durable, and what lies between them. `tests.sim.disk` says what that means.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from stratalog.base.errors import StorageIOError

ROOT = 1
MAX_FILE_BYTES = 1 << 30
EPOCH_MS = 1_700_000_000_000
_MAX_VERSIONS = 6


class PowerCut(BaseException):
    """The power is off: raised in place of the operation, and of every call after it."""


class PartialWrite(Exception):  # noqa: N818 - an order to the disk, not an error of it
    """Raised by a hook: write the first `size_bytes` of the data, then raise `error`."""

    def __init__(self, size_bytes: int, error: StorageIOError):
        super().__init__(size_bytes)
        self.size_bytes = size_bytes
        self.error = error


class Call(NamedTuple):
    """One call of the disk. `arguments`: new path, or position and size, or what the kind has."""

    kind: str
    path: str
    changes: bool
    arguments: tuple[object, ...]

    def __str__(self) -> str:
        return " ".join(map(str, (self.kind, self.path, *self.arguments)))


class NameOperation(NamedTuple):
    """One change of a directory's names that is not durable yet. `time` orders all of a disk."""

    time: int
    directory: int
    kind: str
    removed: str | None
    added: str | None
    node: int

    def apply(self, entries: dict[str, int]) -> None:
        if self.removed is not None:
            del entries[self.removed]
        if self.added is not None:
            entries[self.added] = self.node

    def __str__(self) -> str:
        return " ".join(name for name in (self.kind, self.removed, self.added) if name is not None)


class FileNode(NamedTuple):
    """`intact`: bytes below it are untouched since the last fsync. `versions`: contents between the
    durable one and this one (a few of them). `lost_from`: a failed fsync lost what is above."""

    content: bytes
    durable: bytes
    intact: int
    versions: tuple[bytes, ...]
    modified_ms: int
    lost_from: int | None = None

    @property
    def is_dirty(self) -> bool:
        return self.content is not self.durable or bool(self.versions)


class DirectoryNode(NamedTuple):
    entries: Mapping[str, int]
    durable: Mapping[str, int]
    pending: tuple[NameOperation, ...]
    modified_ms: int


Node = FileNode | DirectoryNode
Hook = Callable[[Call], None]


def clean_file(content: bytes, modified_ms: int) -> FileNode:
    """A file that is durable as it is."""
    return FileNode(content, content, len(content), (), modified_ms)


@lru_cache(maxsize=4096)
def parts_of(path: str) -> tuple[str, ...]:
    """The names along a path; a relative one starts at the root."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise NotImplementedError(f"{path}: the simulated disk knows no '..'")
    return parts


def os_error(code: int, path: str) -> StorageIOError:
    """The product's error for an errno that is neither ENOENT, ENOSPC nor EDQUOT."""
    return StorageIOError(f"{path}: {os.strerror(code)}")


def written(node: FileNode, content: bytes, changed_from: int, modified_ms: int) -> FileNode:
    """The file after a write: bytes below `changed_from` are as before."""
    versions = node.versions
    if node.content is not node.durable:
        versions = (*versions, node.content)
        if len(versions) > _MAX_VERSIONS:
            versions = versions[: _MAX_VERSIONS // 2] + versions[-(_MAX_VERSIONS // 2) :]
    lost_from = node.lost_from
    if lost_from is not None and len(content) <= lost_from:
        lost_from = None
    intact = min(node.intact, changed_from, len(content))
    return FileNode(content, node.durable, intact, versions, modified_ms, lost_from)


def synced(node: Node) -> Node:
    """The file or directory after an fsync that succeeded."""
    if isinstance(node, DirectoryNode):
        return node._replace(durable=node.entries, pending=()) if node.pending else node
    if node.lost_from is not None or not node.is_dirty:
        return node
    return clean_file(node.content, node.modified_ms)
