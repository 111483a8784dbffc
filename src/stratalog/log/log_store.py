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
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogOfflineError,
    OffsetOutOfRangeError,
    PartitionExistsError,
    PolicyViolationError,
    StratalogError,
    TooManyFilesError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.log import log_dir as dirs
from stratalog.log.holdings import Entry, StoreSettings, known
from stratalog.log.log_dir import LogDir, lock_log_dir, open_log_dir
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.log.upkeep import Upkeep
from stratalog.segment.names import TopicPartition, parse_partition_directory

__all__ = ["LOG_END", "LogStore", "OpenProgress", "StoreSettings"]

_LOG = logging.getLogger("stratalog.log")
LOG_END = -1
"""As an offset to delete up to: the log end, as Kafka's admin calls have it."""


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


class LogStore(Upkeep):
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
                self._note_failed_dir(path, known(error))
        for path, release in self._releases.items():
            try:
                opened = open_log_dir(path, release, self._filesystem)
            except (StratalogError, FileNotFoundError) as error:
                self._note_failed_dir(path, known(error))
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
        if not self._log_dirs:
            raise next(iter(self.failed_dirs.values()), UsageError("no log directory"))

    def _note_failed_dir(self, path: str, error: StratalogError) -> None:
        _LOG.error("log directory %s is offline: %s", path, error)
        self.failed_dirs[path] = error

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
                    dirs.write_starts(log_dir, self._filesystem)
                    dirs.write_points(log_dir, self._ends_locked(log_dir), self._filesystem)
                    dirs.write_cleaned(log_dir, self._filesystem)
                    self._unwritten.discard(log_dir.path)
                log = self._open_log(topic_partition, log_dir, None, create=True)
            self._entries[topic_partition] = Entry(log_dir, log)
            return log

    def _emptiest_locked(self) -> LogDir:
        counts = {id(log_dir): 0 for log_dir in self._log_dirs if log_dir.offline is None}
        for entry in self._entries.values():
            if id(entry.log_dir) in counts:
                counts[id(entry.log_dir)] += 1
        if not counts:
            raise LogOfflineError("all log directories are offline")
        fewest = min(counts.values())
        return next(one for one in self._log_dirs if counts.get(id(one)) == fewest)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete a partition: its name is gone, durably, when this returns, its files later.

        Readers that hold a view go on reading. Raises `UnknownPartitionError`, `StorageIOError`.
        """
        with self._work.exclusively(topic_partition):
            self._delete(topic_partition)
        self._work.forget(topic_partition)

    def _delete(self, topic_partition: TopicPartition) -> None:
        with self._lock:
            self._check_open_locked()
            entry = self._entry(topic_partition)
            log_dir = self._writable(entry.log_dir)
            if entry.log is not None:
                entry.log.take_offline("the partition is deleted")
                if entry.log.is_open:
                    for segment in entry.log.segments:
                        segment.indexes.retire()
                entry.log.close()
            doomed = os.path.join(
                log_dir.path, dirs.deleted_name(topic_partition, uuid.uuid4().hex)
            )
            with self._guarded(log_dir):
                path = log_dir.partition_path(topic_partition)
                self._filesystem.rename(path, doomed)
                try:
                    self._filesystem.fsync_directory(log_dir.path)
                except TooManyFilesError:
                    self._filesystem.rename(doomed, path)  # to be deleted again
                    raise
                del self._entries[topic_partition]
                delay_ms = self._settings_of(topic_partition).file_delete_delay_ms
                self._doomed.append((self._clock.now_ms() + delay_ms, log_dir, doomed))
                _LOG.info("%s is deleted", topic_partition)
                # One of the same name must not begin where this one ended (dirs, I3).
                self._forget_locked(log_dir, topic_partition)

    def _forget_locked(self, log_dir: LogDir, topic_partition: TopicPartition) -> None:
        # In memory first: what cannot be written now is written before another one is made.
        self._unwritten.add(log_dir.path)
        start = log_dir.starts.pop(topic_partition, None)
        if log_dir.points is not None:
            log_dir.points.pop(topic_partition, None)
        cleaned = log_dir.cleaned.pop(topic_partition, None)
        if start is not None:
            dirs.write_starts(log_dir, self._filesystem)
        dirs.write_points(log_dir, self._ends_locked(log_dir), self._filesystem)
        if cleaned is not None:
            dirs.write_cleaned(log_dir, self._filesystem)
        self._unwritten.discard(log_dir.path)

    # -- records go -------------------------------------------------------------------------------

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> int:
        """Delete the records below `offset` (`LOG_END`: all); the new log start offset (RET-6).

        Durable when it returns; the segments go with the next retention run. Raises
        `PolicyViolationError` on a topic that is only compacted, `OffsetOutOfRangeError` past the
        log end, `UnknownPartitionError`, `LogOfflineError`, `StorageIOError`.
        """
        with self._lock:
            self._check_open_locked()
            log = self.get(topic_partition)
            log_dir = self._writable(self._entry(topic_partition).log_dir)
            policy = log.settings.cleanup_policy
            # Without any policy nothing goes by itself, and Kafka lets it go on demand (4.2).
            if policy and "delete" not in policy:
                raise PolicyViolationError(
                    f"{topic_partition}: records are deleted where cleanup.policy has delete"
                )
            log.check_writable()
            end = log.log_end_offset
            wanted = end if offset == LOG_END else offset
            if not 0 <= wanted <= end:
                raise OffsetOutOfRangeError(f"{topic_partition}: {offset} lies outside [0, {end}]")
            if wanted > log.log_start_offset:
                self._set_start_locked(log_dir, {topic_partition: wanted})
                log.advance_log_start(wanted)
            return log.log_start_offset

    def truncate(self, topic_partition: TopicPartition, offset: int) -> int:
        """Take a log's end back to `offset` (`PartitionLog.truncate_to`); the new end.

        Durable when it returns. The checkpoints come down first: records that are appended later
        are not to be taken for flushed or cleaned ones.
        """
        with self._work.exclusively(topic_partition), self._lock:
            self._check_open_locked()
            log = self.get(topic_partition)
            log_dir = self._writable(self._entry(topic_partition).log_dir)
            log.check_writable()
            end = log.end_if_truncated_to(offset)
            self._copies.cut_back(topic_partition, end)
            with self._guarded(log_dir):
                if log_dir.points is not None and log_dir.points.get(topic_partition, 0) > end:
                    log_dir.points[topic_partition] = end
                    dirs.write_points(log_dir, self._ends_locked(log_dir), self._filesystem)
                self._lower_cleaned_locked(log_dir, topic_partition, end)
                return log.truncate_to(offset)

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

    def _check_open_locked(self) -> None:
        if self._is_closed:
            raise UsageError("the log store is closed")

    def __enter__(self) -> LogStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
