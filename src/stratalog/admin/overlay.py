"""A file system over another one: reads go through, whatever is changed is only remembered.

So a dry run of something that works on files is the thing itself, and cannot say anything else than
what the real run does afterwards.

Invariants
- I1  The file system below is only read, listed and asked.
- I2  Large new content goes to an unnamed temporary file, not to memory.

Belongs to one thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from stratalog.base.filesystem import File, FileStat, FileSystem, OpenMode

if TYPE_CHECKING:
    from typing_extensions import Buffer

_IN_MEMORY_BYTES = 8 << 20
_OWN_IDS = 1 << 62
"""File ids of files that exist here only begin where no disk gives any out."""


@dataclass(slots=True)
class _Node:
    """A file as it would be. `source`: the path below that holds its bytes until it is written to;
    `size_bytes`: how many of those count."""

    file_id: int
    modified_ms: int
    size_bytes: int
    source: str | None = None
    content: IO[bytes] | None = None


@dataclass(slots=True)
class _OverlayFile:
    path: str
    node: _Node
    below: FileSystem

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        view = view[: max(self.node.size_bytes - position, 0)]
        if self.node.content is not None:
            self.node.content.seek(position)
            data = self.node.content.read(len(view))
            view[: len(data)] = data
            return len(data)
        assert self.node.source is not None
        file = self.below.open(self.node.source, "read")
        try:
            return file.pread_into(view, position)
        finally:
            file.close()

    def pwrite(self, data: Buffer, position: int) -> None:
        content = self._own_content()
        content.seek(position)
        content.write(memoryview(data).cast("B"))
        self.node.size_bytes = max(self.node.size_bytes, position + memoryview(data).nbytes)

    def _own_content(self) -> IO[bytes]:
        if self.node.content is None:
            held = bytearray(self.node.size_bytes)
            count = self.pread_into(held, 0) if held else 0
            self.node.content = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
            self.node.content.write(memoryview(held)[:count])
        return self.node.content

    def size_bytes(self) -> int:
        return self.node.size_bytes

    def file_id(self) -> int:
        return self.node.file_id

    def truncate(self, size_bytes: int) -> None:
        if self.node.content is not None or size_bytes > self.node.size_bytes:
            self._own_content().truncate(size_bytes)
        self.node.size_bytes = size_bytes

    def fsync(self) -> None:
        """Nothing of this survives anyway."""

    def close(self) -> None:
        """The node holds the content."""


@dataclass(slots=True)
class OverlayFileSystem:
    """Changes to `below` that are never made."""

    below: FileSystem
    _nodes: dict[str, _Node | None] = field(default_factory=dict)
    _directories: dict[str, bool] = field(default_factory=dict)

    def _node(self, path: str) -> _Node:
        """The file at `path`, to be changed from now on. Raises `FileNotFoundError`."""
        path = os.path.abspath(path)
        if path not in self._nodes:
            found = self.below.stat(path)
            self._nodes[path] = _Node(
                found.file_id, found.modified_ms, found.size_bytes, source=path
            )
        node = self._nodes[path]
        if node is None:
            raise FileNotFoundError(2, "No such file", path)
        return node

    def open(self, path: str, mode: OpenMode) -> File:
        key = os.path.abspath(path)
        if mode == "read" and key not in self._nodes:
            return self.below.open(path, "read")
        if mode == "create":
            content = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
            self._nodes[key] = _Node(_OWN_IDS + len(self._nodes), 0, 0, content=content)
        return _OverlayFile(path, self._node(path), self.below)

    def list_directory(self, path: str) -> list[str]:
        key = os.path.abspath(path)
        names = set() if key in self._directories else set(self.below.list_directory(path))
        for changes in (self._nodes, self._directories):
            for child, what in changes.items():
                parent, name = os.path.split(child)
                if parent == key and what:
                    names.add(name)
                elif parent == key:
                    names.discard(name)
        return sorted(names)

    def stat(self, path: str) -> FileStat:
        if os.path.abspath(path) not in self._nodes:
            return self.below.stat(path)
        node = self._node(path)
        return FileStat(node.size_bytes, node.modified_ms, node.file_id)

    def exists(self, path: str) -> bool:
        key = os.path.abspath(path)
        if key in self._nodes:
            return self._nodes[key] is not None
        return self._directories.get(key, False) or self.below.exists(path)

    def is_directory(self, path: str) -> bool:
        key = os.path.abspath(path)
        return self._directories.get(key, key not in self._nodes and self.below.is_directory(path))

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            self._directories[os.path.abspath(path)] = True

    def remove_directory(self, path: str) -> None:
        self._directories[os.path.abspath(path)] = False

    def rename(self, old_path: str, new_path: str) -> None:
        self._nodes[os.path.abspath(new_path)] = self._node(old_path)
        self._nodes[os.path.abspath(old_path)] = None

    def unlink(self, path: str) -> None:
        self._node(path)
        self._nodes[os.path.abspath(path)] = None

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._node(path).modified_ms = modified_ms

    def fsync_directory(self, path: str) -> None:
        """Nothing of this survives anyway."""

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        return self.below.lock(path, exclusive=exclusive)
