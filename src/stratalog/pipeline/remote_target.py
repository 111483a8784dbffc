"""Where generations are written to: a directory, or a prefix of a bucket.

What is there already is copied by the store itself, not by way of this machine.

Invariants
- T1  `write` replaces a small file as a whole; a file that `upload` or `copy` writes is new.
- T2  What was written is durable when the call returns: a store says so by its answer, a disk
      after fsync.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stratalog.admin.location import Pair, copy_durably
from stratalog.base.errors import StorageIOError
from stratalog.base.filesystem import (
    FileSystem,
    LocalFileSystem,
    make_durable_directory,
    write_file_atomically,
)
from stratalog.base.limits import CHUNK_BYTES
from stratalog.pipeline.object_store import (
    SCHEME,
    ObjectStore,
    filesystem_of,
    is_uri,
    object_path,
    translated,
)

_COPIES = 8
"""Copies that a store is asked for at once; it answers each when it is done."""


@dataclass(frozen=True, slots=True)
class Location:
    """`root` is absolute, or begins with `s3://`; then `store` reaches it."""

    root: str
    store: ObjectStore

    @classmethod
    def of(cls, path: str, store: ObjectStore) -> Location:
        """Raises `UsageError` for a path that cannot be."""
        return cls(object_path(path) if is_uri(path) else os.path.abspath(path), store)

    @property
    def is_remote(self) -> bool:
        return self.root.startswith(SCHEME)

    def filesystem(self) -> FileSystem:
        """What reads it, as it is now."""
        return filesystem_of(self.root, self.store)

    def names(self) -> list[str]:
        """What is there; nothing if the location is not. Raises `StorageIOError`."""
        try:
            return self.filesystem().list_directory(self.root)
        except FileNotFoundError:
            return []

    def upload(self, files: Iterable[str], directory: str, below: str) -> None:
        """Copy local files, which lie below `directory`, to their places below `below` here.

        Raises `StorageIOError`.
        """
        local = LocalFileSystem()
        pairs = [
            (source, os.path.join(self.root, below, os.path.relpath(source, directory)))
            for source in files
        ]
        if not self.is_remote:
            copy_durably(local, pairs)
            return
        for source, target in pairs:
            self._put(source, target, local)

    def copy(self, pairs: Sequence[Pair]) -> None:
        """Copy files that are there to new paths here (T2). Raises `FileNotFoundError`,
        `StorageIOError`."""
        if not self.is_remote:
            copy_durably(LocalFileSystem(), pairs)
            return
        with ThreadPoolExecutor(_COPIES) as pool:
            list(pool.map(self._copy, pairs))

    def _copy(self, pair: Pair) -> None:
        source, target = pair
        with translated(source):
            self.store.client().copy_file(source.removeprefix(SCHEME), target.removeprefix(SCHEME))

    def _put(self, source: str, target: str, local: FileSystem) -> None:
        reader = local.open(source, "read")
        buffer = memoryview(bytearray(CHUNK_BYTES))
        position = 0
        try:
            with translated(target):
                key = target.removeprefix(SCHEME)
                stream = self.store.client().open_output_stream(key)
                while (count := reader.pread_into(buffer, position)) > 0:
                    stream.write(buffer[:count])
                    position += count
                stream.close()
        finally:
            reader.close()

    def write(self, name: str, content: bytes) -> None:
        """A small file, replaced as a whole (T1). Raises `StorageIOError`."""
        path = os.path.join(self.root, name)
        if not self.is_remote:
            local = LocalFileSystem()
            make_durable_directory(local, os.path.dirname(path))
            write_file_atomically(local, path, content)
            return
        with translated(path):
            stream = self.store.client().open_output_stream(path.removeprefix(SCHEME))
            stream.write(content)
            stream.close()

    def remove(self, name: str) -> None:
        """A directory and all in it; one that is not there is fine. Raises `StorageIOError`."""
        path = os.path.join(self.root, name)
        if not self.is_remote:
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                return
            except OSError as error:
                raise StorageIOError(f"{path}: {error.strerror or error}") from error
            return
        try:
            with translated(path):
                self.store.client().delete_dir(path.removeprefix(SCHEME))
        except FileNotFoundError:
            return
