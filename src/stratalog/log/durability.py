"""How far a log is on the disk, and whether its disk still works (LOG-7).

What a crash may take is the end of the active segment: rolling makes a segment and all before it
durable, `flush` the records of the active one. Its indexes are not synced, as after a crash it is
scanned and they are made anew; nor are snapshots and digests, which carry checksums.

A failed fsync is final: the system may have given up the pages that it could not write, and would
say "done" when asked again. The log takes no more writes, and only opening it again, from the disk,
finds out what it holds.

Invariants
- I1  What is below `recovery_point` was synced, with the names of its files, before it was said.
- I2  Once offline, nothing is written or synced any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stratalog.base.clock import Clock
from stratalog.base.errors import StorageFullError, StorageIOError, TooManyFilesError
from stratalog.base.filesystem import FileSystem
from stratalog.log.active import ActiveSegment
from stratalog.segment.log_file import LogFile


class Durability:
    """Belongs to one log. `lock` orders its flushes and is taken before the log's own lock."""

    def __init__(
        self,
        directory: str,
        filesystem: FileSystem,
        clock: Clock,
        recovery_point: int,
        on_disk_error: Callable[[StorageIOError], None],
    ):
        self.lock = threading.RLock()
        self.recovery_point = recovery_point
        self.last_flush_ms = clock.now_ms()
        self.offline: str | None = None
        self._directory = directory
        self._filesystem = filesystem
        self._clock = clock
        self._on_disk_error = on_disk_error
        # Whoever had the log before may have died between making a file and syncing its name.
        self._are_names_synced = False
        self._is_a_name_owed = False

    def take_offline(self, reason: str) -> None:
        """From now on no writes. Waits for nobody."""
        if self.offline is None:
            self.offline = reason

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        """Errors of the disk in here are passed on, those of a full one are not, nor is that no
        more files may be open."""
        try:
            yield
        except StorageIOError as error:
            if not isinstance(error, StorageFullError):
                self._on_disk_error(error)
            raise
        except FileNotFoundError as error:
            failure = StorageIOError(f"{error.filename or self._directory}: is gone")
            self._on_disk_error(failure)
            raise failure from error

    @contextmanager
    def _final(self, what: str) -> Iterator[None]:
        try:
            with self.errors_told():
                yield
        except TooManyFilesError:
            raise  # no fsync was tried and failed: what could not be opened can be synced later
        except StorageIOError as error:
            self.take_offline(f"{what} failed: {error}")
            raise

    def sync(self, log: LogFile, end_offset: int) -> None:
        """The active segment's records are durable up to `end_offset`, which has been written."""
        began_ms = self._clock.now_ms()
        with self._final("a flush"):
            log.fsync()
            self._sync_names()
        self.reached(end_offset)
        self.last_flush_ms = began_ms

    def sync_segment(self, active: ActiveSegment) -> None:
        """All files of a segment that is complete are durable, but for names that may be missing
        without harm: its transaction index is the one file that was made after the last roll."""
        with self._final("a flush"):
            active.fsync()
            if active.aborted or self._is_a_name_owed:
                # A recovery that is cut itself may not find out that there was one. And a crash
                # must not keep the next segment's name and lose this one's.
                self._filesystem.fsync_directory(self._directory)
                self._is_a_name_owed = False

    def sync_names(self, end_offset: int) -> None:
        """Files were made or completed; they and everything below `end_offset` are durable."""
        self._are_names_synced = False
        self._is_a_name_owed = True
        with self._final("a flush"):
            self._sync_names()
        self.reached(end_offset)

    def _sync_names(self) -> None:
        if not self._are_names_synced:
            self._filesystem.fsync_directory(self._directory)
            self._are_names_synced = True
            self._is_a_name_owed = False

    def reached(self, end_offset: int) -> None:
        self.recovery_point = max(self.recovery_point, end_offset)

    def cut(self, end_offset: int) -> None:
        """The log was truncated, durably."""
        self.recovery_point = min(self.recovery_point, end_offset)
