"""An open file of the simulated disk: positions and sizes in bytes, errors as `LocalFile`'s."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from stratalog.base.errors import StorageIOError
from tests.sim.nodes import (
    MAX_FILE_BYTES,
    DirectoryNode,
    FileNode,
    Node,
    PartialWrite,
    os_error,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tests.sim.disk import SimDisk


class SimFile:
    """An open file; it follows its inode, whatever becomes of the name."""

    def __init__(self, disk: SimDisk, path: str, number: int, *, is_writable: bool):
        self._disk = disk
        self._path = path
        self._number = number
        self._is_writable = is_writable
        self._is_open = True

    @property
    def path(self) -> str:
        return self._path

    def _node(self) -> Node:
        if not self._is_open:
            raise os_error(errno.EBADF, self._path)
        return self._disk.nodes[self._number]

    def _file_node(self, code: int) -> FileNode:
        node = self._node()
        if isinstance(node, DirectoryNode):
            raise os_error(code, self._path)
        return node

    def pread_into(self, buffer: Buffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        with self._disk._mutex:
            self._disk.before("read", self._path, False, position, len(view))
            if len(view) == 0:
                return 0
            node = self._file_node(errno.EISDIR)
            if position < 0:
                raise os_error(errno.EINVAL, self._path)
            found = node.content[position : position + len(view)]
        view[: len(found)] = found
        return len(found)

    def pwrite(self, data: Buffer, position: int) -> None:
        view = memoryview(data).cast("B")
        with self._disk._mutex:
            try:
                self._disk.before("write", self._path, True, position, len(view))
            except PartialWrite as partial:
                self._write(view[: partial.size_bytes], position)
                raise partial.error from None
            self._write(view, position)

    def _write(self, view: memoryview, position: int) -> None:
        if len(view) == 0:
            return
        node = self._file_node(errno.EBADF)
        if not self._is_writable:
            raise os_error(errno.EBADF, self._path)
        if position < 0:
            raise os_error(errno.EINVAL, self._path)
        end = position + len(view)
        if end > MAX_FILE_BYTES:
            raise os_error(errno.EFBIG, self._path)
        old = node.content
        if position > len(old):
            old += bytes(position - len(old))
        content = b"".join((old[:position], view, old[end:]))
        self._disk.set_content(self._number, content, position)

    def size_bytes(self) -> int:
        with self._disk._mutex:
            self._disk.before("size", self._path, False)
            node = self._node()
            return len(node.content) if isinstance(node, FileNode) else 4096

    def file_id(self) -> int:
        return self._number

    def truncate(self, size_bytes: int) -> None:
        with self._disk._mutex:
            self._disk.before("truncate", self._path, True, size_bytes)
            node = self._file_node(errno.EINVAL)
            if not self._is_writable or size_bytes < 0:
                raise os_error(errno.EINVAL, self._path)
            if size_bytes > MAX_FILE_BYTES:
                raise os_error(errno.EFBIG, self._path)
            old = node.content
            if size_bytes == len(old):
                return
            content = old[:size_bytes] + bytes(max(0, size_bytes - len(old)))
            self._disk.set_content(self._number, content, min(size_bytes, len(old)))

    def fsync(self) -> None:
        with self._disk._mutex:
            try:
                self._disk.before("fsync", self._path, True)
            except StorageIOError:
                self._lose()
                raise
            self._node()
            self._disk.make_durable(self._number)

    def _lose(self) -> None:
        """What was not durable when an fsync failed never will be (I4)."""
        node = self._disk.nodes[self._number]
        if isinstance(node, FileNode) and node.lost_from is None and node.is_dirty:
            self._disk.nodes[self._number] = node._replace(lost_from=node.intact)

    def close(self) -> None:
        self._is_open = False
