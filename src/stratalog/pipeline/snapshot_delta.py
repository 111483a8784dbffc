"""A snapshot as a table of Delta Lake: the same Parquet files, committed to Delta's log.

Workers write the files, as for Parquet; one commit, through delta-rs (the extra `delta`), adds the
new ones and removes those whose rows were rewritten. The commit carries the snapshot's manifest, so
that the next one can build upon it. Readers of Delta see one version or the next; older versions
can be read until Delta's own `vacuum` removes their files.

Invariants
- D1  Nothing is added to a table whose last commit is another's: it is taken whole then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratalog.base.errors import CorruptionError, MissingExtraError, StorageIOError, UsageError
from stratalog.base.filesystem import LocalFileSystem, translated_errors
from stratalog.pipeline import snapshot_manifest
from stratalog.pipeline.snapshot_files import PART
from stratalog.pipeline.snapshot_manifest import DataFile, Manifest

if TYPE_CHECKING:
    import pyarrow as pa

PROPERTY = "stratalog.snapshot"
_LOG = "_delta_log"
_LOCK = ".stratalog.lock"


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise MissingExtraError(
            f"--to delta needs deltalake ({error}): pip install 'stratalog[delta]'"
        ) from error
    return deltalake


@dataclass(frozen=True, slots=True)
class DeltaOutput:
    """A table's directory."""

    path: str
    schema: pa.Schema

    @property
    def shown(self) -> str:
        return self.path

    @contextmanager
    def opened(self) -> Iterator[None]:
        """As `ParquetOutput.opened`. Raises `MissingExtraError`, too."""
        _deltalake()
        self.check()
        disk = LocalFileSystem()
        disk.make_directory(self.path)
        release = disk.lock(os.path.join(self.path, _LOCK), exclusive=True)
        try:
            yield
        finally:
            release()

    def check(self) -> None:
        """Raise `UsageError` if something else than a table lies there."""
        with translated_errors(self.path):
            if not os.path.lexists(self.path):
                return
            if not os.path.isdir(self.path):
                raise UsageError(f"{self.path}: is no directory")
            names = set(os.listdir(self.path)) - {_LOCK}
        if names and _LOG not in names:
            raise UsageError(
                f"{self.path}: holds {min(names)} and is no Delta table; "
                "give a directory that is empty or not there"
            )

    def manifest(self) -> Manifest | None:
        """What the last commit says; None without a table. Raises `UsageError` if the table was
        not made by snapshots, `CorruptionError`."""
        table = self._table()
        if table is None:
            return None
        commits = table.history(1)
        content = commits[0].get(PROPERTY) if commits else None
        where = os.path.join(self.path, _LOG)
        if content is None:
            made = any(PROPERTY in commit for commit in table.history())
            if made:  # somebody has optimized it: the files are others
                return None
            raise UsageError(f"{self.path}: is a Delta table that no snapshot has made")
        found = snapshot_manifest.decode(content, where)
        for file in (file for partition in found.partitions for file in partition.files):
            if not os.path.exists(self.file(file)):
                raise CorruptionError("the snapshot's file is missing", file=self.file(file))
        return found

    def file(self, file: DataFile) -> str:
        """The path of a file of the table."""
        return os.path.join(self.path, file.name)

    def begin(self, older: Manifest | None) -> tuple[int, str]:
        """The number of a new generation, and where its files are written."""
        table = self._table()
        version = -1 if table is None else int(table.version())
        generation = max(version + 2, 1 if older is None else older.generation + 1)
        self.abandon(self.path, generation)
        return generation, self.path

    def commit(self, manifest: Manifest, directory: str, kept: Sequence[DataFile]) -> None:
        """One commit: the table's rows are those of the manifest's files."""
        lake = _deltalake()
        with translated_errors(directory):
            for name in os.listdir(directory):
                if name.endswith(PART):
                    os.unlink(os.path.join(directory, name))
            LocalFileSystem().fsync_directory(directory)
        stays = {file.name for file in kept}
        added = [
            self._add(lake, file, manifest.created_ms)
            for partition in manifest.partitions
            for file in partition.files
            if file.name not in stays
        ]
        properties = lake.CommitProperties(custom_metadata={PROPERTY: manifest.encode().decode()})
        schema = lake.Schema.from_arrow(self.schema)
        table = self._table()
        try:
            if table is None:
                lake.transaction.create_table_with_add_actions(
                    self.path, schema, added, mode="error", commit_properties=properties
                )
            elif table.schema() != schema:
                # Other columns: all partitions were taken whole, and no file stays.
                assert not stays, stays
                table.create_write_transaction(
                    added, "overwrite", schema, commit_properties=properties
                )
            else:
                removed = self._removed(lake, table, stays, manifest.created_ms)
                table.create_write_transaction(
                    [*removed, *added], "append", schema, commit_properties=properties
                )
        except lake.exceptions.DeltaError as error:
            raise StorageIOError(f"{self.path}: {str(error).splitlines()[0]}") from error
        self._settle()

    def abandon(self, directory: str, generation: int) -> None:
        """Remove the files of a generation that no commit names."""
        with translated_errors(directory):
            for name in os.listdir(directory):
                if name.endswith(PART) or name.startswith(f"part-{generation:06d}-"):
                    os.unlink(os.path.join(directory, name))

    def _table(self) -> Any:
        lake = _deltalake()
        if not lake.DeltaTable.is_deltatable(self.path):
            return None
        try:
            return lake.DeltaTable(self.path)
        except lake.exceptions.DeltaError as error:
            raise CorruptionError(str(error).splitlines()[0], file=self.path) from error

    def _add(self, lake: Any, file: DataFile, created_ms: int) -> Any:
        stats = json.dumps({"numRecords": file.rows})
        return lake.transaction.AddAction(file.name, file.size_bytes, {}, created_ms, True, stats)

    def _removed(self, lake: Any, table: Any, stays: set[str], now_ms: int) -> list[Any]:
        gone = [os.path.basename(uri) for uri in table.file_uris()]
        return [
            lake.transaction.RemoveAction(path=name, deletion_timestamp=now_ms, data_change=True)
            for name in gone
            if name not in stays
        ]

    def _settle(self) -> None:
        """The commit is on the disk before it is told of."""
        log = os.path.join(self.path, _LOG)
        with translated_errors(log):
            for name in sorted(os.listdir(log))[-3:]:
                with open(os.path.join(log, name), "rb") as file:
                    os.fsync(file.fileno())
            LocalFileSystem().fsync_directory(log)
            LocalFileSystem().fsync_directory(self.path)
