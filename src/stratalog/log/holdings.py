"""What a store holds: its directories, their logs, and what happens when a disk fails.

The state that `upkeep` and `log_store` work on, and the few things that both do to it.

Invariants
- I1  What fails inside `_guarded`, but for want of space or because too many files are open, takes
      its directory offline and no other.
- I2  A directory's checkpoints are written from what its logs say, but a log that takes no writes
      keeps the entries it had: it may not have been scanned.

`_lock` guards the directories and what is to be unlinked; logs have their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogOfflineError,
    StorageFullError,
    StorageIOError,
    StratalogError,
    UnknownPartitionError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.log import log_dir as dirs
from stratalog.log.log_dir import LogDir
from stratalog.log.partition_log import PartitionLog
from stratalog.log.retention import Policy
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.log")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Kafka's broker properties for its log manager, with its defaults; times in ms.

    `policies` are asked for each log's retention (LOG-14); None: those of its cleanup policy.
    """

    retention_check_ms: int = 300_000
    point_checkpoint_ms: int = 60_000
    start_checkpoint_ms: int = 60_000
    roll_check_ms: int = 60_000
    digest_ms: int = 10_000
    recovery_threads: int = 2
    policies: Callable[[LogSettings], Sequence[Policy]] | None = None


class Work(Protocol):
    """Whoever else works on sealed segments: a cleaner (CLN-4)."""

    def exclusively(self, topic_partition: TopicPartition) -> AbstractContextManager[None]:
        """Nobody works on the partition inside: a round that runs is aborted and waited for.

        The store calls it without its lock, which the round may need to end.
        """
        ...

    def if_free(self, topic_partition: TopicPartition) -> AbstractContextManager[bool]:
        """Whether nobody works on the partition; if so, nobody does inside. Waits for nobody."""
        ...

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition has been deleted."""
        ...

    def end(self) -> None:
        """The store is about to close: rounds that run are aborted and waited for, and nothing
        begins any more."""
        ...


class NoWork:
    """A store without a cleaner."""

    def exclusively(self, _: TopicPartition) -> AbstractContextManager[None]:
        return nullcontext()

    def if_free(self, _: TopicPartition) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def forget(self, _: TopicPartition) -> None:
        return

    def end(self) -> None:
        return


class Copies(Protocol):
    """Whoever makes copies of what logs hold, and has to before it goes: ledgers (LDG-1).

    The store calls it with its lock held: it waits for nobody who could wait for the store.
    """

    def held_from(self, topic_partition: TopicPartition, settings: LogSettings) -> int | None:
        """What of a log ends above this offset stays, whatever its age and size, as it is not
        copied yet; None: nothing has to wait."""
        ...

    def retention_waits(self, topic_partition: TopicPartition) -> None:
        """Something stays for that reason."""
        ...

    def cut_back(self, topic_partition: TopicPartition, end_offset: int) -> None:
        """The log is about to end at `end_offset`: no copy may hold what comes behind it. Durable
        when it returns; what it raises keeps the log from being cut."""
        ...


class NoCopies:
    """A store whose logs have no copies."""

    def held_from(self, _topic_partition: TopicPartition, _settings: LogSettings) -> int | None:
        return None

    def retention_waits(self, _: TopicPartition) -> None:
        return

    def cut_back(self, _topic_partition: TopicPartition, _end_offset: int) -> None:
        return


@dataclass(slots=True)
class Entry:
    """A partition of the store. `error`: why its log could not be opened."""

    log_dir: LogDir
    log: PartitionLog | None
    error: StratalogError | None = None


class Holdings:
    """Base of `LogStore`; use that."""

    def __init__(
        self,
        settings_of: Callable[[TopicPartition], LogSettings],
        filesystem: FileSystem,
        clock: Clock,
        settings: StoreSettings,
    ):
        self._settings_of = settings_of
        self._filesystem = filesystem
        self._clock = clock
        self._settings = settings
        self._lock = threading.RLock()
        self._releases: dict[str, Callable[[], None]] = {}
        self._log_dirs: list[LogDir] = []
        self._entries: dict[TopicPartition, Entry] = {}
        self._written_points: dict[str, tuple[dirs.Offsets, dirs.Offsets]] = {}
        # Directories whose checkpoints may name a partition that was deleted.
        self._unwritten: set[str] = set()
        self._is_closed = False
        self._work: Work = NoWork()
        self._copies: Copies = NoCopies()
        self.failed_dirs: dict[str, StratalogError] = {}

    def attach(self, work: Work) -> None:
        """From now on `work` is asked before sealed segments are changed."""
        self._work = work

    def attach_copies(self, copies: Copies) -> None:
        """From now on `copies` is asked before records go."""
        self._copies = copies

    # -- what is there ----------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """All partitions, those that could not be opened among them."""
        return sorted(self._entries)

    def get(self, topic_partition: TopicPartition) -> PartitionLog:
        """A partition's log. Raises `UnknownPartitionError`; `LogOfflineError` if it failed."""
        entry = self._entry(topic_partition)
        if entry.log is None:
            raise LogOfflineError(f"{topic_partition} could not be opened: {entry.error}")
        return entry.log

    def _entry(self, topic_partition: TopicPartition) -> Entry:
        entry = self._entries.get(topic_partition)
        if entry is None:
            raise UnknownPartitionError(f"there is no partition {topic_partition}")
        return entry

    @property
    def failed(self) -> dict[TopicPartition, StratalogError]:
        """The partitions whose logs could not be opened, and why."""
        entries = list(self._entries.items())  # others make and delete partitions meanwhile
        return {key: entry.error for key, entry in entries if entry.error is not None}

    @property
    def log_dirs(self) -> list[str]:
        """The directories that were opened, those whose disk failed since among them."""
        return [log_dir.path for log_dir in self._log_dirs]

    @property
    def offline_dirs(self) -> dict[str, str]:
        """The directories that take no writes, and why."""
        offline = {log_dir.path: log_dir.offline for log_dir in self._log_dirs if log_dir.offline}
        return {**{path: str(error) for path, error in self.failed_dirs.items()}, **offline}

    def log_dir_of(self, topic_partition: TopicPartition) -> str:
        """The directory in which a partition lies. Raises `UnknownPartitionError`."""
        return self._entry(topic_partition).log_dir.path

    def writable_logs(self) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """The logs that take writes now.

        No list: ten thousand pairs that live for a moment make the collector of garbage go through
        everything there is, which takes longer than what they are asked for.
        """
        for key in list(self._entries):
            entry = self._entries.get(key)
            if self._is_closed or entry is None:
                continue
            log = entry.log
            if log is not None and log.is_writable and entry.log_dir.offline is None:
                yield key, log

    def logs(self) -> list[tuple[TopicPartition, PartitionLog]]:
        """The logs that are open, also those that take no writes."""
        return [(key, e.log) for key, e in list(self._entries.items()) if e.log is not None]

    def cleaner_point(self, topic_partition: TopicPartition) -> int | None:
        """The cleaner checkpoint of a log; None: it was never cleaned (CLN-3)."""
        return self._entry(topic_partition).log_dir.cleaned.get(topic_partition)

    def _writable(self, log_dir: LogDir) -> LogDir:
        if log_dir.offline is not None:
            raise LogOfflineError(f"log directory {log_dir.path} is offline: {log_dir.offline}")
        return log_dir

    def _online_dirs(self) -> list[LogDir]:
        """None once closed: they may belong to another process by then."""
        if self._is_closed:
            return []
        return [log_dir for log_dir in self._log_dirs if log_dir.offline is None]

    def _ends_locked(self, log_dir: LogDir) -> dict[TopicPartition, int]:
        return {
            key: entry.log.log_end_offset
            for key, entry in self._entries.items()
            if entry.log_dir is log_dir and entry.log is not None and entry.log.is_open
        }

    # -- checkpoints ------------------------------------------------------------------------------

    def _set_start_locked(self, log_dir: LogDir, starts: dict[TopicPartition, int]) -> None:
        before = log_dir.starts
        log_dir.starts = {**before, **starts}
        try:
            with self._guarded(log_dir):
                dirs.write_starts(log_dir, self._filesystem)
        except StratalogError:
            log_dir.starts = before
            raise

    def set_cleaner_point(self, topic_partition: TopicPartition, offset: int) -> None:
        """Move a log's cleaner checkpoint, durably, after everything below it was swapped in.

        Raises `UnknownPartitionError`, `LogOfflineError`, `StorageIOError`.
        """
        with self._lock:
            log_dir = self._writable(self._entry(topic_partition).log_dir)
            if log_dir.cleaned.get(topic_partition) != offset:
                self._set_cleaned_locked(log_dir, {**log_dir.cleaned, topic_partition: offset})

    def _lower_cleaned_locked(
        self, log_dir: LogDir, topic_partition: TopicPartition, offset: int | None
    ) -> None:
        """The cleaner checkpoint of a log that is truncated at `offset`, or deleted (None)."""
        found = log_dir.cleaned.get(topic_partition)
        if found is None or (offset is not None and found <= offset):
            return
        rest = {key: point for key, point in log_dir.cleaned.items() if key != topic_partition}
        if offset is not None:
            rest[topic_partition] = offset
        self._set_cleaned_locked(log_dir, rest)

    def _set_cleaned_locked(self, log_dir: LogDir, cleaned: dict[TopicPartition, int]) -> None:
        before = log_dir.cleaned
        log_dir.cleaned = cleaned
        try:
            with self._guarded(log_dir):
                dirs.write_cleaned(log_dir, self._filesystem)
        except StratalogError:
            log_dir.cleaned = before
            raise

    def _write_points_locked(self, log_dir: LogDir) -> None:
        points = dict(log_dir.points or {})
        for key, entry in self._entries.items():
            # A log that takes no writes keeps the point it had: it may not have been scanned.
            if entry.log_dir is log_dir and entry.log is not None and entry.log.is_writable:
                points[key] = entry.log.recovery_point
        log_dir.points = points
        ends = self._ends_locked(log_dir)
        if self._written_points.get(log_dir.path) == (points, ends):
            return  # thousands of lines, that are there already
        with self._guarded(log_dir):
            dirs.write_points(log_dir, ends, self._filesystem)
        # Copies: the others are changed in place where a log is deleted or truncated.
        self._written_points[log_dir.path] = (dict(points), ends)

    # -- disks fail -------------------------------------------------------------------------------

    def disk_failed(self, topic_partition: TopicPartition, error: Exception) -> None:
        """Somebody else found the disk of a partition failing: its directory goes offline."""
        entry = self._entries.get(topic_partition)
        if entry is not None:
            self._on_disk_error(entry.log_dir, StorageIOError(str(error)))

    def _on_disk_error(self, log_dir: LogDir, error: StorageIOError) -> None:
        """Waits for no lock: whoever tells may hold that of its log."""
        if log_dir.offline is not None:
            return
        log_dir.offline = str(error)
        _LOG.error("log directory %s is offline: %s", log_dir.path, error)
        for entry in list(self._entries.values()):
            if entry.log_dir is log_dir and entry.log is not None:
                entry.log.take_offline(f"log directory {log_dir.path} is offline: {error}")

    @contextmanager
    def _guarded(self, log_dir: LogDir) -> Iterator[None]:
        """What fails in here, but for want of space or of open files, takes it offline."""
        try:
            yield
        except StorageFullError:
            raise
        except StorageIOError as error:
            self._on_disk_error(log_dir, error)
            raise
        except FileNotFoundError as error:
            failure = StorageIOError(f"{error.filename}: is gone")
            self._on_disk_error(log_dir, failure)
            raise failure from error


def each(call: Callable[[], object]) -> None:
    """One of many: its error is logged (it has taken its directory offline), the others go on."""
    try:
        call()
    except (StratalogError, FileNotFoundError) as error:
        _LOG.error("%s", error)


def known(error: StratalogError | FileNotFoundError) -> StratalogError:
    """A file that is gone from a locked directory: somebody removed it, or the disk fails."""
    return error if isinstance(error, StratalogError) else StorageIOError(str(error))
