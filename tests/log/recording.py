"""A file system that writes down what is done to names, and can stop at any of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from stratalog.base.filesystem import FileStat, LocalFile, LocalFileSystem, OpenMode

_LOCAL = LocalFileSystem()


class PowerCutError(Exception):
    """What the recorder raises in place of the operation that must not happen any more."""


@dataclass
class RecordingFileSystem:
    """The local disk. `done` are the changes so far: what, and the last part of each path.

    After `allowed` changes the next one raises `PowerCutError`, and so do all that follow.
    """

    allowed: int | None = None
    done: list[tuple[str, ...]] = field(default_factory=list)

    def note(self, what: str, *paths: str) -> None:
        if self.allowed is not None and len(self.done) >= self.allowed:
            raise PowerCutError(f"{what} {paths}")
        self.done.append((what, *map(os.path.basename, paths)))

    def renames(self) -> list[tuple[str, str]]:
        return [(change[1], change[2]) for change in self.done if change[0] == "rename"]

    def open(self, path: str, mode: OpenMode) -> LocalFile:
        if mode != "read":
            self.note(mode, path)
        return _LOCAL.open(path, mode)

    def list_directory(self, path: str) -> list[str]:
        return _LOCAL.list_directory(path)

    def stat(self, path: str) -> FileStat:
        return _LOCAL.stat(path)

    def exists(self, path: str) -> bool:
        return _LOCAL.exists(path)

    def is_directory(self, path: str) -> bool:
        return _LOCAL.is_directory(path)

    def remove_directory(self, path: str) -> None:
        self.note("remove_directory", path)
        _LOCAL.remove_directory(path)

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        return _LOCAL.lock(path, exclusive=exclusive)

    def make_directory(self, path: str) -> None:
        self.note("make_directory", path)
        _LOCAL.make_directory(path)

    def rename(self, old_path: str, new_path: str) -> None:
        self.note("rename", old_path, new_path)
        _LOCAL.rename(old_path, new_path)

    def unlink(self, path: str) -> None:
        self.note("unlink", path)
        _LOCAL.unlink(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        self.note("set_modified", path)
        _LOCAL.set_modified(path, modified_ms)

    def fsync_directory(self, path: str) -> None:
        self.note("fsync_directory", path)
        _LOCAL.fsync_directory(path)
