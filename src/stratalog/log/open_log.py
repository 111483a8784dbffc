"""An open log without its records coming and going: what it is, rolling, flushing, closing.

The state that `PartitionLog` works on. One lock orders the writers; readers take the current
`view`, an immutable value, and never wait.

Invariants
- I1  A view is published after everything in it is written, in one assignment.
- I2  Rolling leaves the old segment as it was, or durable and in front of a new one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from weakref import WeakSet

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogOfflineError,
    StorageIOError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.log import snapshots
from stratalog.log.active import ActiveSegment
from stratalog.log.durability import Durability
from stratalog.log.leader_epochs import EpochStart, write_leader_epochs
from stratalog.log.opening import OpenedLog
from stratalog.log.prepare import (
    Prepared,
)
from stratalog.log.producer_state import (
    ProducerState,
    active_producers,
    last_stable_offset,
)
from stratalog.log.roll import Incoming, is_idle_too_long, jitter_ms, roll_reason
from stratalog.log.settings import LogSettings
from stratalog.log.view import LogReads, LogView
from stratalog.segment import digest
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import LEADER_EPOCH_CHECKPOINT
from stratalog.segment.segments import Segments


def _nothing() -> None:
    return


class OpenLog(LogReads):
    """Base of `PartitionLog`; use that. `_lock` guards everything; that of `_durable` is taken
    before it. `on_change` is called after each append and change of settings: there may be
    something to flush by the clock; it must not wait."""

    def __init__(
        self,
        path: str,
        settings: LogSettings,
        filesystem: FileSystem,
        clock: Clock,
        opened: OpenedLog,
        on_disk_error: Callable[[StorageIOError], None],
    ):
        """Use `PartitionLog.open`."""
        loaded = opened.loaded
        self.path = path
        self.settings = settings
        self.resolved = opened.resolved
        self.recovery = opened.recovery
        self.quarantine = opened.quarantine
        self._filesystem = filesystem
        self._clock = clock
        self._producers = loaded.producers
        self._epochs = opened.epochs
        self._active = opened.active
        self._flushed_bytes = 0 if self._active is None else self._active.size_bytes
        self._is_in_order = True  # as far as it is closed
        self._last_snapshot = -1 if loaded.newest_snapshot is None else loaded.newest_snapshot
        self._durable = Durability(path, filesystem, clock, opened.recovery_point, on_disk_error)
        self._digested: WeakSet[LogFile] = WeakSet()
        self.on_change: Callable[[], object] = _nothing
        self._lock = threading.RLock()
        segments = loaded.segments
        if self._active is not None:
            segments = segments.with_active(self._active.value())
        start, end = loaded.log_start_offset, loaded.tail.next_offset
        self._view: LogView | None = self._view_of(segments, start, end)

    # -- what is there ----------------------------------------------------------------------------

    @property
    def view(self) -> LogView:
        """The log as it is now; keep it to go on seeing that. Raises `UsageError` once closed."""
        view = self._view
        if view is None:
            raise UsageError(f"{self.path}: the log is closed")
        return view

    @property
    def recovery_point(self) -> int:
        """What is below is on the disk (LOG-7)."""
        return self._durable.recovery_point

    @property
    def offline(self) -> str | None:
        """Why the log takes no writes any more, if its disk has failed."""
        return self._durable.offline

    @property
    def is_open(self) -> bool:
        return self._view is not None

    @property
    def is_writable(self) -> bool:
        """Whether appends are taken: open for writing, not quarantined, its disk works."""
        return self._active is not None and self._durable.offline is None

    @property
    def unflushed_bytes(self) -> int:
        """What the next roll has to wait for at most."""
        active = self._active
        return 0 if active is None else active.size_bytes - self._flushed_bytes

    @property
    def last_flush_ms(self) -> int:
        """When the log was flushed last, or opened (ms, its clock)."""
        return self._durable.last_flush_ms

    @property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        return self._epochs

    def producers(self) -> ProducerState:
        """A copy of the producers' state at the log end."""
        with self._lock:
            return self._producers.copy()

    def active_producers(self) -> dict[int, tuple[int, int | None]]:
        """Per producer id its epoch and last data offset (None: none in that epoch)."""
        with self._lock:
            return active_producers(self._producers)

    def _writer_locked(self) -> ActiveSegment:
        if self.offline is not None:
            raise LogOfflineError(
                f"{self.path}: takes no writes until it is opened again: {self.offline}"
            )
        if self._active is not None:
            return self._active
        if self.quarantine is not None:
            raise LogOfflineError(
                f"{self.path}: quarantined, reading only: {self.quarantine}; "
                "`stratalog log repair` shows and settles it"
            )
        state = "closed" if self._view is None else "open for reading only"
        raise UsageError(f"{self.path}: the log is {state}")

    def check_writable(self) -> None:
        """Raises `LogOfflineError` or `UsageError` if the log takes no writes."""
        with self._lock:
            self._writer_locked()

    def take_offline(self, reason: str) -> None:
        """From now on no writes; what is there stays readable. Waits for nobody."""
        self._durable.take_offline(reason)

    def _set_epochs_locked(self, epochs: tuple[EpochStart, ...]) -> None:
        if epochs != self._epochs:
            path = os.path.join(self.path, LEADER_EPOCH_CHECKPOINT)
            write_leader_epochs(self._filesystem, path, epochs)
            self._epochs = epochs

    def _view_of(self, segments: Segments, start: int, end: int) -> LogView:
        stable = max(start, last_stable_offset(self._producers, end))
        return LogView(segments, start, end, stable)

    # -- roll, flush, close -----------------------------------------------------------------------

    def roll(self) -> int:
        """Close the active segment and begin a new one at the log end; its base offset.

        An active segment that is empty stays as it is. Raises `StorageIOError`.
        """
        with self._lock, self._durable.errors_told():
            self._roll_locked(self.log_end_offset)
            return self.segments.active.base_offset

    def roll_if_idle(self) -> bool:
        """Roll an active segment that is older than `segment.ms` by the clock (LOG-6)."""
        with self._lock, self._durable.errors_told():
            facts = self._writer_locked().facts()
            jitter = jitter_ms(os.path.basename(self.path), facts.base_offset, self.settings)
            if not is_idle_too_long(facts, self._clock.now_ms(), self.settings, jitter):
                return False
            self._roll_locked(self.log_end_offset)
            return True

    def roll_if_end(self, offset: int) -> bool:
        """Roll unless something was appended past `offset` meanwhile; whether it was rolled."""
        with self._lock, self._durable.errors_told():
            if offset != self.log_end_offset:
                return False
            self._roll_locked(offset)
            return True

    def skip_to(self, offset: int) -> bool:
        """Go on at `offset`, in a new segment, if the log ends before it; whether it did. Durable
        when it returns. What lies between is a gap, as cleaning leaves them. Raises
        `StorageIOError`."""
        with self._lock, self._durable.errors_told():
            if offset <= self.log_end_offset:
                return False
            self._roll_locked(offset)
            self._view = self._view_of(self.segments, self.log_start_offset, offset)
            return True

    def _maybe_roll_locked(self, made: Prepared, now_ms: int) -> None:
        facts = self._writer_locked().facts()
        incoming = Incoming(made.size_bytes, made.last_offset, made.max_timestamp)
        jitter = jitter_ms(os.path.basename(self.path), facts.base_offset, self.settings)
        if roll_reason(facts, incoming, now_ms, self.settings, jitter) is not None:
            self._roll_locked(made.first_offset)

    def _roll_locked(self, base_offset: int) -> None:
        old = self._writer_locked()
        if base_offset == old.base_offset:
            return
        # In this order a failure leaves the old segment as it was, and no crash can keep the new
        # one and lose the end of the old: what survives is a beginning of what was written.
        sealed = old.seal()
        self._durable.sync_segment(old)
        new = ActiveSegment.create(
            self._filesystem,
            self.path,
            base_offset,
            interval_bytes=self.settings.index_interval_bytes,
            now_ms=self._clock.now_ms(),
        )
        old.indexes.close()
        self._active, self._flushed_bytes = new, 0
        segments = self.segments.with_active(sealed).appended(new.value())
        self._view = self._view_of(segments, self.log_start_offset, self.log_end_offset)
        # Before anything can fail: what is appended from here on counts on the new segment's name.
        self._durable.sync_names(base_offset)
        self._write_snapshot_locked(base_offset)

    def _write_snapshot_locked(self, offset: int) -> None:
        if offset > self._last_snapshot:
            snapshots.write_snapshot(self._filesystem, self.path, offset, self._producers.entries)
            self._last_snapshot = offset

    def flush(self) -> int:
        """Make everything durable that was appended before the call; the new recovery point.

        Appends go on meanwhile. Raises `StorageIOError`: then nothing is promised, and the log
        takes no more writes (I5).
        """
        with self._durable.lock:
            with self._lock:
                active, end_offset = self._writer_locked(), self.log_end_offset
                size_bytes = active.size_bytes
            self._durable.sync(active.log, end_offset)
            with self._lock:
                if self._active is active:
                    self._flushed_bytes = size_bytes
            return self.recovery_point

    def build_digest(self) -> bool:
        """Give one sealed segment its digest that has none, as Kafka and cleaning leave them.

        Whether there was one to look at; what was looked at once is not looked at again. Raises
        `CorruptionError` if the segment is damaged, `StorageIOError`.
        """
        sealed = self.segments.sealed
        for segment in sealed:
            if segment.log not in self._digested:
                self._digested.add(segment.log)
                if digest.missing_digests(self._filesystem, self.path, [segment.base_offset]):
                    made = digest.build_digest(
                        self._filesystem,
                        self.path,
                        segment.base_offset,
                        segment.log,
                        segment.size_bytes,
                    )
                    digest.store_digest(self._filesystem, self.path, segment.base_offset, made)
                return True
        return False

    def close(self) -> bool:
        """Write the closing time entry and the producer snapshot, flush, let go of the files.

        Answers whether the next open may do without a scan: not after an error of the disk, when
        all is let go of as it is. Views that were taken stay readable. Closing twice is fine.
        Raises `StorageIOError`.
        """
        with self._durable.lock, self._lock:
            active, self._active = self._active, None
            if self._view is None or active is None:
                self._view = None
                return self._is_in_order
            last_view, self._view = self._view, None
            self._is_in_order = False
            try:
                if self.offline is None and not active.broken:
                    active.indexes.finish()
                    self._close_locked(active, last_view)
                    self._is_in_order = True
            finally:
                active.indexes.close()
            return self._is_in_order

    def _close_locked(self, active: ActiveSegment, view: LogView) -> None:
        self._write_snapshot_locked(view.log_end_offset)
        active.store_digest()
        # Opened next without a scan, so more than its records has to be on the disk.
        self._durable.sync_segment(active)
        self._durable.sync_names(view.log_end_offset)
