"""A local disk whose process kills itself before a chosen change, as `kill -9` would."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from stratalog.base.filesystem import LocalFileSystem

if TYPE_CHECKING:
    from typing_extensions import Buffer


class KillingFileSystem:
    """After `left` changes the process is gone; of a write the first half may get done."""

    def __init__(self, left: int):
        self.left = left
        self._disk = LocalFileSystem()

    def change(self) -> None:
        """Called before each change."""
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name: str) -> Any:
        """All that changes nothing."""
        return getattr(self._disk, name)

    def open(self, path: str, mode: Any) -> _KillingFile:
        if mode == "create":
            self.change()
        return _KillingFile(self, self._disk.open(path, mode))

    def make_directory(self, path: str) -> None:
        self.change()
        self._disk.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self.change()
        self._disk.remove_directory(path)

    def rename(self, old_path: str, new_path: str) -> None:
        self.change()
        self._disk.rename(old_path, new_path)

    def unlink(self, path: str) -> None:
        self.change()
        self._disk.unlink(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        self.change()
        self._disk.set_modified(path, modified_ms)

    def fsync_directory(self, path: str) -> None:
        # A kill leaves the page cache as it is: there is nothing to wait for.
        self.change()


class _KillingFile:
    def __init__(self, owner: KillingFileSystem, file: Any):
        self._owner = owner
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwrite(self, data: Buffer, position: int) -> None:
        if self._owner.left == 1:
            view = memoryview(data).cast("B")
            self._file.pwrite(view[: len(view) // 2], position)
        self._owner.change()
        self._file.pwrite(data, position)

    def truncate(self, size_bytes: int) -> None:
        self._owner.change()
        self._file.truncate(size_bytes)

    def fsync(self) -> None:
        self._owner.change()
