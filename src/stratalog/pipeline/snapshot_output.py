"""Where a snapshot of Parquet files lies, so that whoever reads sees one whole snapshot.

    OUT/current -> .data/000007        the snapshot: read OUT/current
    OUT/.data/000007/part-*.parquet    its rows; without any, a file with the columns alone
    OUT/.data/000007/_manifest.json    what it is (`snapshot_manifest`)
    OUT/.lock                          one writer at a time

The rows are written aside, then `current` is made to point at them by one rename. What a reader of
Parquet finds under `OUT/current` are plain files; Spark, pyarrow and duckdb pass over names that
begin with `.` or `_`. The generation before is kept until the next snapshot, because somebody may
be reading it; a file that did not change is the same one in both (a hard link).

Invariants
- G1  A crash at any moment leaves `current` as it was, or pointing at a whole new generation whose
      files are all on the disk.
- G2  Nothing in a directory that is no snapshot's is touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import LocalFileSystem, read_file, translated_errors
from stratalog.pipeline import snapshot_manifest
from stratalog.pipeline.snapshot_manifest import DataFile, Manifest

CURRENT = "current"
NO_ROWS = "part-none.parquet"
_LOCK = ".lock"
_ASIDE = ".current.tmp"
_DATA = ".data"
_GENERATION = re.compile(r"[0-9]{6,18}")
_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ParquetOutput:
    """A directory for snapshots, of rows with the columns of `schema`."""

    path: str
    schema: pa.Schema

    @property
    def shown(self) -> str:
        """What to read."""
        return os.path.join(self.path, CURRENT)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the directory and hold it. Raises `UsageError` if something else lies there,
        `LogLockedError` if another holds it."""
        disk = LocalFileSystem()
        self.check()
        disk.make_directory(self.path)
        release = disk.lock(os.path.join(self.path, _LOCK), exclusive=True)
        try:
            yield
        finally:
            release()

    def check(self) -> None:
        """Raise `UsageError` if something else lies there."""
        with translated_errors(self.path):
            if not os.path.lexists(self.path):
                return
            if not os.path.isdir(self.path):
                raise UsageError(f"{self.path}: is no directory")
            names = set(os.listdir(self.path))
        other = sorted(names - {CURRENT, _LOCK, _ASIDE, _DATA})
        if other or (CURRENT in names and not os.path.islink(self.shown)):
            raise UsageError(
                f"{self.path}: holds {other[0] if other else CURRENT!r} and is no snapshot; "
                "give a directory that is empty or not there"
            )

    def manifest(self) -> Manifest | None:
        """What the snapshot there says of itself; None if there is none. Raises `CorruptionError`,
        also if a file that it names is missing or has another size; `UsageError`."""
        if not os.path.lexists(self.shown):
            return None
        path = os.path.join(self.shown, snapshot_manifest.NAME)
        try:
            content = read_file(LocalFileSystem(), path, _MANIFEST_BYTES)
        except FileNotFoundError:
            raise CorruptionError("the snapshot has no manifest", file=path) from None
        found = snapshot_manifest.decode(content, path)
        for file in (file for partition in found.partitions for file in partition.files):
            name = self.file(file)
            try:
                size_bytes = LocalFileSystem().stat(name).size_bytes
            except FileNotFoundError:
                raise CorruptionError("the snapshot's file is missing", file=name) from None
            if size_bytes != file.size_bytes:
                raise CorruptionError(
                    f"{size_bytes} bytes, the manifest says {file.size_bytes}", file=name
                )
        return found

    def file(self, file: DataFile) -> str:
        """The path of a file of the current snapshot, whatever becomes current."""
        return os.path.join(os.path.realpath(self.shown), file.name)

    def begin(self, older: Manifest | None) -> tuple[int, str]:
        """The number of a new generation, and its empty directory."""
        data, disk = self._data, LocalFileSystem()
        disk.make_directory(data)
        with translated_errors(data):
            self._remove_strays()
            last = max(map(_number, os.listdir(data)), default=0)
            number = max(last, older.generation if older is not None else 0) + 1
            directory = os.path.join(data, f"{number:06d}")
            os.mkdir(directory)
        return number, directory

    def commit(self, manifest: Manifest, directory: str, kept: Sequence[DataFile]) -> None:
        """Put the new generation in the place of the current one; `kept`: files of that one which
        belong to it, too. All others of it must be there."""
        disk = LocalFileSystem()
        try:
            with translated_errors(directory):
                self._complete(manifest, directory, kept)
            aside = os.path.join(self.path, _ASIDE)
            with translated_errors(aside):
                with suppress(FileNotFoundError):
                    os.unlink(aside)
                os.symlink(os.path.join(_DATA, os.path.basename(directory)), aside)
            # What `current` is to point at is on the disk before it does.
            disk.fsync_directory(self._data)
            disk.fsync_directory(self.path)
        except BaseException:
            self.abandon(directory, manifest.generation)
            raise
        before = self._current_number()
        with translated_errors(self.shown):
            os.rename(aside, self.shown)
        disk.fsync_directory(self.path)
        with translated_errors(self._data):
            self._remove_strays(also=before)

    def _complete(self, manifest: Manifest, directory: str, kept: Sequence[DataFile]) -> None:
        """All that belongs to a generation and nothing else, on the disk."""
        disk = LocalFileSystem()
        for file in kept:
            _link(self.file(file), os.path.join(directory, file.name))
        named = {file.name for part in manifest.partitions for file in part.files}
        for name in set(os.listdir(directory)) - named:
            os.unlink(os.path.join(directory, name))
        if not named:
            self._write_columns(os.path.join(directory, NO_ROWS))
        written = disk.open(os.path.join(directory, snapshot_manifest.NAME), "create")
        try:
            written.pwrite(manifest.encode(), 0)
            written.fsync()
        finally:
            written.close()
        disk.fsync_directory(directory)

    def _write_columns(self, path: str) -> None:
        """A file without rows: readers learn the columns from a file."""
        pq.write_table(self.schema.empty_table(), path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    def abandon(self, directory: str, _generation: int) -> None:
        """Leave nothing of a generation that did not come to be."""
        shutil.rmtree(directory, ignore_errors=True)

    @property
    def _data(self) -> str:
        return os.path.join(self.path, _DATA)

    def _remove_strays(self, also: int | None = None) -> None:
        """Remove generations that nobody was ever shown, and those before `also`, the last."""
        current = self._current_number()
        for name in os.listdir(self._data):
            number = _number(name)
            was_shown = current is not None and number < current
            if number in (0, current, also) or (was_shown and also is None):
                continue
            shutil.rmtree(os.path.join(self._data, name), ignore_errors=True)

    def _current_number(self) -> int | None:
        try:
            return _number(os.path.basename(os.readlink(self.shown)))
        except OSError:
            return None


def _number(name: str) -> int:
    """Of a generation; 0 for other names."""
    return int(name) if _GENERATION.fullmatch(name) is not None else 0


def _link(path: str, target: str) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # a disk without hard links
        shutil.copyfile(path, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())
