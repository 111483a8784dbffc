"""What a store does by the clock: flush, roll, checkpoints, retention, digests, unlinking.

    run_due ─► the jobs whose time has come (`schedule`) ─► how long until the next

Invariants
- I1  No job waits: `run_due` does what is due at the clock's time. `start` runs it in a thread.
- I2  A log start is durable before the segments below it lose their names, so a crash that keeps
      only some of the renames leaves no hole that could be read.
- I3  A job that fails for one log or directory goes on with the others.
- I4  What runs every few seconds costs nothing for a log that nobody writes to: a log says that it
      has changed (`on_change`), after its new view is published, so that none is missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogOfflineError,
    StorageFullError,
    StorageIOError,
    StratalogError,
    TooManyFilesError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.log.deletion import remove_tree, unlink_if_there
from stratalog.log.holdings import Holdings, StoreSettings, each
from stratalog.log.log_dir import LogDir
from stratalog.log.partition_log import PartitionLog
from stratalog.log.retention import RetentionDecision, decide, view_of
from stratalog.log.retention_stats import RetentionStats
from stratalog.log.schedule import schedule_of
from stratalog.log.settings import LogSettings
from stratalog.log.swap import remove_deleted
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.log")
_LARGE_BYTES = 64 << 20
"""A disk of 330 MB/s takes 0.2 s for it."""


class Upkeep(Holdings):
    """Base of `LogStore`; use that."""

    def __init__(
        self,
        settings_of: Callable[[TopicPartition], LogSettings],
        filesystem: FileSystem,
        clock: Clock,
        settings: StoreSettings,
    ):
        super().__init__(settings_of, filesystem, clock, settings)
        self.retained = RetentionStats()
        self._doomed: list[tuple[int, LogDir, str]] = []
        # Most of thousands of logs are idle: those that are not are known without asking all.
        self._changed: set[TopicPartition] = set()
        self._flushes: dict[TopicPartition, tuple[int, int]] = {}
        self._digested: dict[TopicPartition, tuple[int, ...]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._jobs: dict[str, Callable[[], object]] = {
            "roll": self.roll_idle,
            "points": self.checkpoint_points,
            "starts": self.checkpoint_starts,
            "retention": self.run_retention,
            "digests": self.build_digests,
        }
        intervals_ms = {
            "roll": settings.roll_check_ms,
            "points": settings.point_checkpoint_ms,
            "starts": settings.start_checkpoint_ms,
            "retention": settings.retention_check_ms,
            "digests": settings.digest_ms,
        }
        self._schedule = schedule_of(intervals_ms, clock.now_ms())

    def run_due(self) -> int:
        """Do what is due at the clock's time; how many ms until something is due again.

        A job that fails is logged and tried again at its next time.
        """
        now_ms = self._clock.now_ms()
        names = self._schedule.due(now_ms)
        self._schedule = self._schedule.ran(names, now_ms)
        for job in (*(self._jobs[name] for name in names), self.flush_due, self.unlink_due):
            try:
                job()
            except (StratalogError, FileNotFoundError) as error:
                _LOG.error("%s: %s", job.__name__, error)
        return self._wait_ms()

    def _wait_ms(self) -> int:
        now_ms = self._clock.now_ms()
        flushes = [due_ms - now_ms for due_ms, _ in list(self._flushes.values())]
        unlinks = [due_ms - now_ms for due_ms, _, _ in self._doomed]
        return max(0, min([self._schedule.wait_ms(now_ms), *flushes, *unlinks]))

    def start(self) -> None:
        """Run `run_due` in a thread of its own until the store is closed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-store", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(min(self.run_due(), 1000) / 1000):
            pass

    # -- jobs -------------------------------------------------------------------------------------

    def flush_due(self) -> None:
        """Flush the logs whose oldest unflushed record may be `flush.ms` old (LOG-7).

        And those with much to flush: a roll makes its appender wait for what is left. Only logs
        that have changed since, or wait for their time, are looked at (I4).
        """
        now_ms = self._clock.now_ms()
        changed = list(self._changed)
        self._changed.difference_update(changed)  # what changes from here on is there again
        for key in changed:
            self._flush_if_due(key, now_ms)
        for key, (due_ms, flush_ms) in list(self._flushes.items()):
            if _is_due(due_ms, flush_ms, now_ms):
                self._flush_if_due(key, now_ms)

    def _flush_if_due(self, key: TopicPartition, now_ms: int) -> None:
        """Flush a log now, or note when to."""
        self._flushes.pop(key, None)
        entry = self._entries.get(key)
        log = None if entry is None or entry.log_dir.offline is not None else entry.log
        if log is None or not log.is_writable or self._is_closed:
            return
        if log.recovery_point >= log.log_end_offset:
            return
        flush_ms = log.settings.flush_ms
        due_ms = log.last_flush_ms + flush_ms
        if _is_due(due_ms, flush_ms, now_ms) or log.unflushed_bytes >= _LARGE_BYTES:
            each(log.flush)  # if that fails the log takes no more writes
        elif flush_ms < INT64_MAX:
            self._flushes[key] = (due_ms, flush_ms)

    def flush(self) -> None:
        """Flush every log. An error takes its directory offline and is logged."""
        for _, log in self.writable_logs():
            each(log.flush)

    def roll_idle(self) -> None:
        """Roll active segments that are older than `segment.ms` by the clock (LOG-6)."""
        for _, log in self.writable_logs():
            each(log.roll_if_idle)

    def build_digests(self) -> None:
        """Give each log's next sealed segment without a digest one: a little at a time."""
        known, self._digested = self._digested, {}
        for key, log in self.writable_logs():
            try:
                bases = log.view.segments.bases
            except UsageError:
                continue  # closed meanwhile
            # A set of segments that all have been looked at; each set has a tuple of its own.
            if known.get(key) is bases:
                self._digested[key] = bases
            else:
                each(partial(self._build_digest, key, log, bases))

    def _build_digest(self, key: TopicPartition, log: PartitionLog, bases: tuple[int, ...]) -> None:
        with self._work.if_free(key) as is_free:
            if is_free and not log.build_digest():
                self._digested[key] = bases

    def checkpoint_points(self) -> None:
        """Note how far each log is on the disk: what lies below is not scanned after a crash."""
        with self._lock:
            for log_dir in self._online_dirs():
                each(partial(self._write_points_locked, log_dir))

    def checkpoint_starts(self) -> None:
        """Note where each log starts. What was deleted on demand is noted already (RET-6)."""
        with self._lock:
            for log_dir in self._online_dirs():
                starts = {
                    key: entry.log.log_start_offset
                    for key, entry in self._entries.items()
                    if entry.log_dir is log_dir and entry.log is not None and entry.log.is_writable
                }
                changed = {k: at for k, at in starts.items() if log_dir.starts.get(k, 0) != at}
                if changed:
                    each(partial(self._set_start_locked, log_dir, changed))

    def unlink_later(self, topic_partition: TopicPartition, paths: Collection[str]) -> None:
        """Unlink files of a partition when its `file.delete.delay.ms` is over (CMP-12)."""
        entry = self._entry(topic_partition)
        delay_ms = self._settings_of(topic_partition).file_delete_delay_ms
        due_ms = self._clock.now_ms() + delay_ms
        with self._lock:
            self._doomed += [(due_ms, entry.log_dir, path) for path in paths]

    def unlink_deleted(self, topic_partition: TopicPartition) -> int:
        """Unlink a partition's `.deleted` files now, whatever their delay; how many (CLN-11).

        Durable when it returns. Raises `UnknownPartitionError`, `StorageIOError`.
        """
        log_dir = self._writable(self._entry(topic_partition).log_dir)
        path = log_dir.partition_path(topic_partition)
        with self._lock, self._guarded(log_dir):
            names = remove_deleted(self._filesystem, path)
            self._filesystem.fsync_directory(path)
            return len(names)

    def unlink_due(self) -> None:
        """Unlink the files whose `file.delete.delay.ms` is over (RET-8)."""
        now_ms = self._clock.now_ms()
        if self._is_closed:
            return
        with self._lock:
            due = [doomed for doomed in self._doomed if doomed[0] <= now_ms]
            self._doomed = [doomed for doomed in self._doomed if doomed[0] > now_ms]
        for _, log_dir, path in due:
            if log_dir.offline is None:
                each(partial(self._unlink, log_dir, path))

    def _unlink(self, log_dir: LogDir, path: str) -> None:
        with self._guarded(log_dir):
            if self._filesystem.is_directory(path):
                remove_tree(self._filesystem, path)
            else:
                unlink_if_there(self._filesystem, path)

    # -- retention --------------------------------------------------------------------------------

    def plan_retention(
        self, only: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, RetentionDecision]:
        """What `run_retention` would do now, for each log of which something goes (a dry run)."""
        now_ms = self._clock.now_ms()
        logs = () if only is not None and not only else self.writable_logs()
        decisions = {
            key: self._decide(key, log, now_ms) for key, log in logs if only is None or key in only
        }
        return {
            key: made
            for key, made in decisions.items()
            if made.deletions or made.problems or made.held_from is not None
        }

    def _decide(self, key: TopicPartition, log: PartitionLog, now_ms: int) -> RetentionDecision:
        choose = self._settings.policies
        policies = None if choose is None else choose(log.settings)
        held_from = self._copies.held_from(key, log.settings)
        return decide(view_of(log.view), log.settings, now_ms, policies, held_from)

    def run_retention(
        self, only: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, RetentionDecision]:
        """Delete what the policies say (RET-*); what was decided, for logs that lose something.

        One durable write of the log starts a directory, then the renames (I2). An error of a disk
        takes its directory offline; the others go on.
        """
        with ExitStack() as stack, self._lock:
            decided = {
                key: made
                for key, made in self.plan_retention(only).items()
                # What a cleaner works on waits for the next time.
                if stack.enter_context(self._work.if_free(key))
            }
            for log_dir in self._log_dirs:
                mine = {
                    key: made
                    for key, made in decided.items()
                    if self._entries[key].log_dir is log_dir and log_dir.offline is None
                }
                try:
                    self._retain_locked(log_dir, mine)
                except TooManyFilesError as error:
                    _LOG.error("retention in %s waits: %s", log_dir.path, error)
                except StorageFullError:
                    each(partial(self._relieve_locked, log_dir, mine))
                except (StorageIOError, LogOfflineError) as error:
                    _LOG.error("retention in %s: %s", log_dir.path, error)
            return decided

    def _relieve_locked(
        self, log_dir: LogDir, decided: dict[TopicPartition, RetentionDecision]
    ) -> None:
        """Retention on a full disk, where not even a log start can be written.

        One segment after another goes, oldest first, durably and at once: so a crash finds no hole,
        and the log starts where its first segment does. An active segment needs one to follow it
        and stays.
        """
        for key, made in decided.items():
            log = self.get(key)
            for deletion in made.deletions:
                if deletion.base_offset == log.segments.active.base_offset:
                    break
                with self._guarded(log_dir):
                    paths = log.delete_segments([deletion], is_start_durable=False)
                    for path in paths:
                        unlink_if_there(self._filesystem, path)
                if not paths:
                    break
                self.retained.add([deletion])
                _LOG.warning("%s: the disk is full: %s", key, deletion.line)
        self.checkpoint_starts()

    def _retain_locked(
        self, log_dir: LogDir, decided: dict[TopicPartition, RetentionDecision]
    ) -> None:
        going: dict[TopicPartition, RetentionDecision] = {}
        for key, made in decided.items():
            for problem in made.problems:
                _LOG.error("%s: retention ends before damage: %s", key, problem)
            if made.held_from is not None:
                self._copies.retention_waits(key)
            end = made.deletions[-1].end_offset if made.deletions else 0
            # With the active segment: only if nothing was appended to it meanwhile (RET-7).
            if made.deletions and (not made.rolls or self.get(key).roll_if_end(end)):
                going[key] = made
        starts = {
            key: made.new_log_start_offset
            for key, made in going.items()
            if made.new_log_start_offset > log_dir.starts.get(key, 0)
        }
        if starts:
            self._set_start_locked(log_dir, starts)
        for key, made in going.items():
            log = self.get(key)
            log.advance_log_start(made.new_log_start_offset)
            due_ms = self._clock.now_ms() + log.settings.file_delete_delay_ms
            with self._guarded(log_dir):
                paths = log.delete_segments(made.deletions)
            self._doomed += [(due_ms, log_dir, path) for path in paths]
            if paths:
                self.retained.add(made.deletions)
            for deletion in made.deletions if paths else ():
                _LOG.info("%s: %s", key, deletion.line)


def _is_due(due_ms: int, flush_ms: int, now_ms: int) -> bool:
    """Whether a flush is due. A clock that was set back tells no age: then it is."""
    return due_ms <= now_ms or due_ms - now_ms > flush_ms
