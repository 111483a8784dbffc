"""What the tests of the log floor share: opening logs, producers' batches, a disk that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.base.clock import FixedClock
from stratalog.base.errors import StorageIOError
from stratalog.base.filesystem import File, FileStat, LocalFileSystem, OpenMode
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch

if TYPE_CHECKING:
    from typing_extensions import Buffer

FS = LocalFileSystem()
NOW = 1_700_000_000_000


def open_log(
    directory: Path, clock: FixedClock | None = None, filesystem: Any = FS, **changes: Any
) -> PartitionLog:
    """Open (or create) the log in `directory`; `changes`: settings, and arguments of `open`."""
    arguments = {
        name: changes.pop(name)
        for name in ("create", "read_only", "may_be_torn", "log_start_offset", "unclean")
        if name in changes
    }
    arguments.setdefault("create", not arguments.get("read_only"))
    return PartitionLog.open(
        str(directory), LogSettings(**changes), filesystem, clock or FixedClock(NOW), **arguments
    )


def forget_digests(directory: Path) -> None:
    """As if somebody else had rolled the segments."""
    for digest in directory.glob(".stratalog/*.digest"):
        digest.unlink()


def open_as_if_rolled_by_kafka(directory: Path, *arguments: Any, **changes: Any) -> PartitionLog:
    """`open_log`; after an unclean stop no digest says that sealed segments were synced."""
    if changes.get("unclean") is not None:
        forget_digests(directory)
    return open_log(directory, *arguments, **changes)


def records(count: int, *, size: int = 20, timestamp: int = NOW, key: str = "k") -> list[NewRecord]:
    return [NewRecord(f"{key}{i}".encode(), b"v" * size, timestamp + i) for i in range(count)]


def sent(
    producer_id: int,
    sequence: int,
    count: int = 2,
    *,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = NOW,
) -> bytes:
    """A batch as an idempotent producer sends it."""
    return build_batch(
        records(count, timestamp=timestamp),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below `directory`, by name."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def kafka_files(directory: Path) -> dict[str, bytes]:
    """The same without our own state, of which Kafka knows nothing."""
    return {
        name: data
        for name, data in contents(directory).items()
        if not name.startswith(".stratalog")
    }


class FailingFileSystem:
    """The local disk, until `fail` says no. It is asked before every change: (action, path)."""

    def __init__(self) -> None:
        self.fail: Callable[[str, str], bool] = lambda _action, _path: False
        self.actions: list[tuple[str, str]] = []

    def check(self, action: str, path: str) -> None:
        self.actions.append((action, path))
        if self.fail(action, path):
            raise StorageIOError(f"{path}: {action} failed on purpose")

    def open(self, path: str, mode: OpenMode) -> FailingFile:
        if mode == "create":
            self.check("create", path)
        return FailingFile(self, FS.open(path, mode))

    def list_directory(self, path: str) -> list[str]:
        return FS.list_directory(path)

    def stat(self, path: str) -> FileStat:
        return FS.stat(path)

    def exists(self, path: str) -> bool:
        return FS.exists(path)

    def is_directory(self, path: str) -> bool:
        return FS.is_directory(path)

    def remove_directory(self, path: str) -> None:
        self.check("remove_directory", path)
        FS.remove_directory(path)

    def lock(self, path: str, *, exclusive: bool) -> Callable[[], None]:
        return FS.lock(path, exclusive=exclusive)

    def make_directory(self, path: str) -> None:
        FS.make_directory(path)

    def rename(self, old_path: str, new_path: str) -> None:
        self.check("rename", new_path)
        FS.rename(old_path, new_path)

    def unlink(self, path: str) -> None:
        self.check("unlink", path)
        FS.unlink(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        FS.set_modified(path, modified_ms)

    def fsync_directory(self, path: str) -> None:
        self.check("fsync_directory", path)
        FS.fsync_directory(path)


class FailingFile:
    """A write that fails has written half of its bytes, as a full disk leaves it."""

    def __init__(self, filesystem: FailingFileSystem, file: File):
        self._filesystem = filesystem
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def pread_into(self, buffer: Buffer, position: int) -> int:
        return self._file.pread_into(buffer, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        try:
            self._filesystem.check("pwrite", self.path)
        except StorageIOError:
            view = memoryview(data).cast("B")
            self._file.pwrite(view[: len(view) // 2], position)
            raise
        self._file.pwrite(data, position)

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def file_id(self) -> int:
        return self._file.file_id()

    def truncate(self, size_bytes: int) -> None:
        self._filesystem.check("truncate", self.path)
        self._file.truncate(size_bytes)

    def fsync(self) -> None:
        self._filesystem.check("fsync", self.path)
        self._file.fsync()

    def close(self) -> None:
        self._file.close()
