"""All logs of a process: several log directories, opened, recovered, kept in order by the clock.

    open ─► for each directory: lock, marker, checkpoints ─► its logs, several at a time
    run_due ─► flush · roll · recovery points · log starts · retention · unlink       by `Clock`
    close ─► logs, checkpoints, markers, locks

An error of a disk takes its directory offline: its logs take no more writes, the other directories
go on. A log whose damage no crash explains is quarantined (RCV-7) and goes on being read; one that
cannot be read at all is listed in `failed`.

Invariants
- I1  What a call acknowledges is durable before it returns: log starts (RET-6), truncations,
      creations, deletions.
- I2  A log start is durable before the segments below it lose their names, so a crash that keeps
      only some of the renames leaves no hole that could be read.
- I3  No schedule waits: `run_due` does what is due at the clock's time and answers how long until
      something is. `start` runs it in a thread.

`_lock` guards the directories and what is to be unlinked; logs have their own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogOfflineError,
    PartitionExistsError,
    StratalogError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.log import log_dir as dirs
from stratalog.log.going import LOG_END, Going
from stratalog.log.holdings import Entry, StoreSettings, known
from stratalog.log.log_dir import LogDir, lock_log_dir, open_log_dir
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition, parse_partition_directory

__all__ = ["LOG_END", "LogStore", "OpenProgress", "StoreSettings"]

_LOG = logging.getLogger("stratalog.log")


@dataclass(frozen=True, slots=True)
class OpenProgress:
    """How far opening has come; `scanned_bytes` is of recovery."""

    opened: int
    partitions: int
    scanned_bytes: int


@dataclass(slots=True)
class _Opening:
    """Progress, told from several threads."""

    on_progress: Callable[[OpenProgress], None]
    partitions: int
    opened: int = 0
    scanned_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, *, opened: int = 0, scanned_bytes: int = 0) -> None:
        with self.lock:
            self.opened += opened
            self.scanned_bytes += scanned_bytes
            progress = OpenProgress(self.opened, self.partitions, self.scanned_bytes)
            self.on_progress(progress)


class LogStore(Going):
    """Open logs of one process. Use `LogStore.open`; close it, or use it in a `with`."""

    @classmethod
    def open(
        cls,
        log_dirs: Sequence[str],
        settings_of: Callable[[TopicPartition], LogSettings],
        filesystem: FileSystem,
        clock: Clock,
        settings: StoreSettings = StoreSettings(),  # noqa: B008  (a value)
        on_progress: Callable[[OpenProgress], None] = lambda _: None,
    ) -> LogStore:
        """Open all logs in `log_dirs`; directories that are not there are made.

        A directory that cannot be opened is listed in `failed_dirs`, a log in `failed`. Raises
        `LogLockedError` if another process has one of the directories, `UsageError` if a partition
        lies in two of them, and the first error if none could be opened.
        """
        store = cls(settings_of, filesystem, clock, settings)
        with ExitStack() as stack:
            stack.callback(store.abandon)
            store._open_dirs(log_dirs)
            store._open_logs(on_progress)
            stack.pop_all()
        return store

    def _open_dirs(self, paths: Sequence[str]) -> None:
        # All locks first: what another process has must not cost the others their markers.
        for path in dict.fromkeys(map(os.path.abspath, paths)):
            try:
                self._releases[path] = lock_log_dir(path, self._filesystem)
            except UsageError:
                raise
            except (StratalogError, FileNotFoundError) as error:
                self.failed_dirs[path] = known(error)
        for path, release in self._releases.items():
            try:
                opened = open_log_dir(path, release, self._filesystem)
            except (StratalogError, FileNotFoundError) as error:
                self.failed_dirs[path] = known(error)
                release()
                continue
            self._log_dirs.append(opened)
            for topic_partition in opened.partitions:
                other = self._entries.get(topic_partition)
                if other is not None:
                    raise UsageError(
                        f"{topic_partition} lies in {other.log_dir.path} and in {path}"
                    )
                self._entries[topic_partition] = Entry(opened, None)
                opened.held += 1
        told = [*self.failed_dirs.items()]
        # What is raised need not be said before that.
        for path, reason in told if self._log_dirs else told[1:]:
            _LOG.error("log directory %s is offline: %s", path, reason)
        if not self._log_dirs:
            raise told[0][1] if told else UsageError("no log directory")

    def _open_logs(self, on_progress: Callable[[OpenProgress], None]) -> None:
        progress = _Opening(on_progress, len(self._entries))
        by_dir = {
            id(log_dir): [
                (key, entry) for key, entry in self._entries.items() if entry.log_dir is log_dir
            ]
            for log_dir in self._log_dirs
        }
        with ExitStack() as stack:
            waiting = []
            for entries in by_dir.values():
                # As in Kafka each directory has its own threads: a slow disk delays its own only.
                pool = stack.enter_context(ThreadPoolExecutor(self._settings.recovery_threads))
                waiting += [pool.submit(self._open_entry, *pair, progress) for pair in entries]
            for done in waiting:
                done.result()

    def _open_entry(self, key: TopicPartition, entry: Entry, progress: _Opening) -> None:
        try:
            # Without a segment there must never have been a record that was to stay (RCV-7).
            flushed = (entry.log_dir.points or {}).get(key, 0)
            is_new = flushed <= entry.log_dir.starts.get(key, 0)
            entry.log = self._open_log(key, entry.log_dir, progress, create=is_new)
            if entry.log.quarantine is not None:
                _LOG.error("%s is quarantined, reading only: %s", key, entry.log.quarantine)
        except (StratalogError, FileNotFoundError) as error:
            # A file that is gone between listing and opening, with the lock held: a broken disk.
            entry.error = known(error)
            _LOG.error("%s cannot be opened: %s", key, entry.error)
        progress.note(opened=1)

    def _open_log(
        self, key: TopicPartition, log_dir: LogDir, progress: _Opening | None, *, create: bool
    ) -> PartitionLog:
        unclean = None
        point = None if log_dir.points is None else log_dir.points.get(key, 0)
        if progress is not None and not log_dir.was_clean:
            unclean = Unclean(point, lambda count: progress.note(scanned_bytes=count))
        log = PartitionLog.open(
            log_dir.partition_path(key),
            self._settings_of(key),
            self._filesystem,
            self._clock,
            log_start_offset=log_dir.starts.get(key),
            create=create,
            unclean=unclean,
            flushed_to=(point or 0) if unclean is None else 0,
            on_disk_error=partial(self._on_disk_error, log_dir),
        )
        log.on_change = partial(self._changed.add, key)
        self._changed.add(key)
        return log

    # -- partitions come and go -------------------------------------------------------------------

    def create(self, topic_partition: TopicPartition) -> PartitionLog:
        """Make a partition, in the directory that holds the fewest; durable when it returns.

        Raises `PartitionExistsError`, `UsageError` for a bad name, `StorageIOError`.
        """
        if parse_partition_directory(str(topic_partition)) != topic_partition:
            raise UsageError(f"{str(topic_partition)!r} is no topic and partition")
        with self._lock:
            self._check_open_locked()
            if topic_partition in self._entries:
                raise PartitionExistsError(f"there is a partition {topic_partition} already")
            log_dir = self._emptiest_locked()
            with self._guarded(log_dir):
                if log_dir.path in self._unwritten:
                    self._write_checkpoints_locked(log_dir)
                log = self._open_log(topic_partition, log_dir, None, create=True)
            self._entries[topic_partition] = Entry(log_dir, log)
            log_dir.held += 1
            return log

    def _emptiest_locked(self) -> LogDir:
        online = [log_dir for log_dir in self._log_dirs if log_dir.offline is None]
        if not online:
            raise LogOfflineError("all log directories are offline")
        return min(online, key=lambda log_dir: log_dir.held)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the logs, write the checkpoints and the markers of a clean stop, let go of the
        locks. A directory in which something fails gets no marker. Closing twice is fine.

        Raises the first `StorageIOError`, after everything else is closed.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._work.end()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            errors: list[StratalogError] = []
            for log_dir in self._log_dirs:
                errors += self._close_dir_locked(log_dir)
        if errors:
            raise errors[0]

    def _close_dir_locked(self, log_dir: LogDir) -> list[StratalogError]:
        errors: list[StratalogError] = []
        is_clean = True
        ends = self._ends_locked(log_dir)
        points = dict(log_dir.points or {})
        for key, entry in self._entries.items():
            if entry.log_dir is not log_dir:
                continue
            if entry.log is None:
                is_clean = False  # it was not recovered
                continue
            # What a log says that takes no writes may be less than what is known of it.
            if entry.log.is_writable:
                log_dir.starts[key] = entry.log.log_start_offset
            try:
                is_clean &= entry.log.close()
                points[key] = max(points.get(key, 0), entry.log.recovery_point)
            except (StratalogError, FileNotFoundError) as error:
                errors.append(known(error))
        try:
            if log_dir.offline is None:
                log_dir.points = points
                dirs.write_starts(log_dir, self._filesystem)
                dirs.write_points(log_dir, ends, self._filesystem)
            is_clean = is_clean and not errors
            dirs.close_log_dir(log_dir, self._filesystem, is_clean=is_clean)
        except (StratalogError, FileNotFoundError) as error:
            errors.append(known(error))
            log_dir.release()
        return errors

    def abandon(self) -> None:
        """Let go of the directories as they are, as a crash would: the next open recovers them."""
        self._is_closed = True
        for release in self._releases.values():
            release()

    def __enter__(self) -> LogStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
