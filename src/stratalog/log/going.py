"""What goes from a store on demand: partitions, the records below an offset, a log's end.

Checkpoints have a line for each partition of a directory. So what goes from thousands of them at
once goes in one call, which writes each checkpoint once: one after another would take the square.

Invariants: I1 of `log_store`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from stratalog.base.errors import (
    OffsetOutOfRangeError,
    PolicyViolationError,
    StratalogError,
    TooManyFilesError,
    UsageError,
)
from stratalog.log import log_dir as dirs
from stratalog.log.log_dir import LogDir
from stratalog.log.upkeep import Upkeep
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.log")
LOG_END = -1
"""As an offset to delete up to: the log end, as Kafka's admin calls have it."""


@dataclass(slots=True)
class _Forgotten:
    """The directories of partitions that are gone, and those of which a start or a cleaner
    checkpoint is."""

    log_dirs: dict[str, LogDir] = field(default_factory=dict)
    starts: set[str] = field(default_factory=set)
    cleaned: set[str] = field(default_factory=set)


class Going(Upkeep):
    """Base of `LogStore`; use that."""

    def _check_open_locked(self) -> None:
        if self._is_closed:
            raise UsageError("the log store is closed")

    # -- partitions -------------------------------------------------------------------------------

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete a partition: its name is gone, durably, when this returns, its files later.

        Readers that hold a view go on reading. Raises `UnknownPartitionError`, `StorageIOError`.
        """
        self.delete_all([topic_partition])

    def delete_all(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Delete partitions, one after another; raises as `delete`, and the rest is there then."""
        forgotten = _Forgotten()
        try:
            for key in topic_partitions:
                with self._work.exclusively(key):
                    self._delete(key, forgotten)
                self._work.forget(key)
        except BaseException:
            with suppress(StratalogError):  # the first error is the one to tell
                self._write_forgotten(forgotten)
            raise
        self._write_forgotten(forgotten)

    def _delete(self, topic_partition: TopicPartition, forgotten: _Forgotten) -> None:
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
            log_dir.held -= 1
            delay_ms = self._settings_of(topic_partition).file_delete_delay_ms
            self._doomed.append((self._clock.now_ms() + delay_ms, log_dir, doomed))
            _LOG.info("%s is deleted", topic_partition)
            # One of the same name must not begin where this one ended (dirs, I3). In memory first:
            # what cannot be written now is written before another one is made.
            path = log_dir.path
            # What an earlier deletion could not write is not known any more: all of it then.
            is_behind = path in self._unwritten and path not in forgotten.log_dirs
            forgotten.log_dirs[path] = log_dir
            self._unwritten.add(path)
            if log_dir.starts.pop(topic_partition, None) is not None or is_behind:
                forgotten.starts.add(path)
            if log_dir.points is not None:
                log_dir.points.pop(topic_partition, None)
            if log_dir.cleaned.pop(topic_partition, None) is not None or is_behind:
                forgotten.cleaned.add(path)

    def _write_forgotten(self, forgotten: _Forgotten) -> None:
        with self._lock:
            for path, log_dir in forgotten.log_dirs.items():
                if path in self._unwritten and log_dir.offline is None:
                    with self._guarded(log_dir):
                        self._write_checkpoints_locked(
                            log_dir, path in forgotten.starts, path in forgotten.cleaned
                        )

    def _write_checkpoints_locked(
        self, log_dir: LogDir, starts: bool = True, cleaned: bool = True
    ) -> None:
        if starts:
            dirs.write_starts(log_dir, self._filesystem)
        dirs.write_points(log_dir, self._ends_locked(log_dir), self._filesystem)
        if cleaned:
            dirs.write_cleaned(log_dir, self._filesystem)
        self._unwritten.discard(log_dir.path)

    # -- records ----------------------------------------------------------------------------------

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> int:
        """Delete the records below `offset` (`LOG_END`: all); the new log start offset (RET-6).

        Durable when it returns; the segments go with the next retention run. Raises
        `PolicyViolationError` on a topic that is only compacted, `OffsetOutOfRangeError` past the
        log end, `UnknownPartitionError`, `LogOfflineError`, `StorageIOError`.
        """
        error = self.delete_all_records({topic_partition: offset})[topic_partition]
        if error is not None:
            raise error
        return self.get(topic_partition).log_start_offset

    def delete_all_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, StratalogError | None]:
        """Delete the records of each partition below its offset, as `delete_records`; what that
        would raise, None where it is done."""
        answers: dict[TopicPartition, StratalogError | None] = {}
        starts: dict[str, dict[TopicPartition, int]] = {}
        with self._lock:
            self._check_open_locked()
            for key, offset in offsets.items():
                try:
                    start = self._new_start_locked(key, offset)
                    answers[key] = None
                    if start > self.get(key).log_start_offset:
                        starts.setdefault(self.log_dir_of(key), {})[key] = start
                except StratalogError as error:
                    answers[key] = error
            for log_dir in self._log_dirs:
                mine = starts.get(log_dir.path, {})
                try:
                    if mine:
                        self._set_start_locked(log_dir, mine)
                except StratalogError as error:
                    answers |= dict.fromkeys(mine, error)
                    continue
                for key, start in mine.items():
                    try:
                        self.get(key).advance_log_start(start)
                    except StratalogError as error:
                        answers[key] = error
        return answers

    def _new_start_locked(self, topic_partition: TopicPartition, offset: int) -> int:
        log = self.get(topic_partition)
        self._writable(self._entry(topic_partition).log_dir)
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
        return wanted

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
