"""One partition's log: the only object that writes its directory (LOG-1, LOG-2, LOG-5, LOG-8).

    append ─► validate ─► producer checks ─► roll? ─► offsets ─► files ─► state ─► new view

One lock orders the writers; readers take the current `view`, an immutable value, and never wait.
Appends are in the page cache when they return and on the disk after `flush`.

Invariants
- I1  Offsets are given out once, in order, without gaps (a replica keeps those it is sent), and
      never change.
- I2  A view is published after everything in it is written, in one assignment.
- I3  An append that raises changed nothing: checks come before writes, state after them.
- I4  What is below `recovery_point` has been flushed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StratalogError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.log import snapshots
from stratalog.log.active import ActiveSegment
from stratalog.log.leader_epochs import (
    EpochStart,
    assigned,
    cut_at_end,
    cut_at_start,
    read_leader_epochs,
    write_leader_epochs,
)
from stratalog.log.loading import LoadedLog, load_log, refuse_unfinished, sort_out
from stratalog.log.prepare import (
    Prepared,
    check_produced,
    check_replicated,
    place_marker,
    place_produced,
)
from stratalog.log.producer_checks import aborted_by, admit
from stratalog.log.producer_state import (
    ProducerState,
    active_producers,
    apply,
    last_stable_offset,
)
from stratalog.log.roll import Incoming, jitter_ms, roll_reason
from stratalog.log.settings import LogSettings
from stratalog.log.unflushed import Unflushed
from stratalog.log.view import LogReads, LogView
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType, build_marker
from stratalog.segment.names import LEADER_EPOCH_CHECKPOINT
from stratalog.segment.segment import Segment
from stratalog.segment.segments import Segments

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where an append went. `log_append_time_ms` is -1 unless the log sets the timestamps.

    `is_duplicate`: the batch had been appended before, this is where; nothing was written.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int = -1
    is_duplicate: bool = False


class PartitionLog(LogReads):
    """An open log. `_lock` guards everything; `_flush_lock` is taken before it."""

    def __init__(
        self,
        path: str,
        settings: LogSettings,
        filesystem: FileSystem,
        clock: Clock,
        loaded: LoadedLog,
        epochs: tuple[EpochStart, ...],
        *,
        active: ActiveSegment | None,
    ):
        """Use `PartitionLog.open`. Without `active` the log is read only."""
        self.path = path
        self.settings = settings
        self._filesystem = filesystem
        self._clock = clock
        self._producers = loaded.producers
        self._epochs = epochs
        self._active = active
        self._last_snapshot = -1 if loaded.newest_snapshot is None else loaded.newest_snapshot
        self._unflushed = Unflushed(path, recovery_point=loaded.tail.next_offset)
        self._lock = threading.RLock()
        self._flush_lock = threading.RLock()
        segments = loaded.segments
        if active is not None:
            segments = segments.with_active(active.value())
        start, end = loaded.log_start_offset, loaded.tail.next_offset
        self._view: LogView | None = self._view_of(segments, start, end)

    @classmethod
    def open(
        cls,
        path: str,
        settings: LogSettings,
        filesystem: FileSystem,
        clock: Clock,
        *,
        log_start_offset: int | None = None,
        create: bool = False,
        read_only: bool = False,
        repair_tail: bool = False,
    ) -> PartitionLog:
        """Open the log in the directory `path`.

        `create` makes one that is not there, starting at `log_start_offset`. `repair_tail` ends the
        log before a torn or damaged last part of the active segment, which is an error otherwise.
        `read_only` changes no file; it is also for a directory that a live process writes. Raises
        `UsageError` if there is no log, or an interrupted swap; `CorruptionError`, naming file and
        position; `StorageIOError`.
        """
        now_ms = clock.now_ms()
        writable = not read_only
        if create and writable:
            filesystem.make_directory(path)
            contents = sort_out(filesystem.list_directory(path))
            refuse_unfinished(filesystem, path, contents)
            if not contents.bases:
                ActiveSegment.create(
                    filesystem,
                    path,
                    log_start_offset or 0,
                    interval_bytes=settings.index_interval_bytes,
                    now_ms=now_ms,
                ).indexes.close()
        loaded = load_log(
            filesystem,
            path,
            settings,
            now_ms=now_ms,
            log_start_offset=log_start_offset,
            writable=writable,
            repair_tail=repair_tail,
        )
        epochs_path = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
        stored = read_leader_epochs(filesystem, epochs_path)
        epochs = cut_at_end(cut_at_start(stored, loaded.log_start_offset), loaded.tail.next_offset)
        active = None
        if writable:
            active = ActiveSegment.resume(filesystem, path, loaded.tail, now_ms)
            if epochs != stored:
                write_leader_epochs(filesystem, epochs_path, epochs)
        return cls(path, settings, filesystem, clock, loaded, epochs, active=active)

    # -- what is there ---------------------------------------------------------------------------

    @property
    def view(self) -> LogView:
        """The log as it is now; keep it to go on seeing that. Raises `UsageError` once closed."""
        view = self._view
        if view is None:
            raise UsageError(f"{self.path}: the log is closed")
        return view

    @property
    def recovery_point(self) -> int:
        """What is below has been flushed since the log was opened."""
        return self._unflushed.recovery_point

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

    # -- append ----------------------------------------------------------------------------------

    def append(self, data: Buffer, leader_epoch: int = 0) -> AppendResult:
        """Append what a producer sent: whole batches of magic 2, which get the next offsets.

        Raises `CorruptionError` for damaged bytes, `InvalidRecordError`, `RecordTooLargeError`,
        `OutOfOrderSequenceError`, `ProducerFencedError`, `StorageIOError`; nothing is written then.
        """
        now_ms = self._clock.now_ms()
        checked = check_produced(data, self.settings, now_ms)
        with self._lock:
            self._writer_locked()
            made = place_produced(checked, self.settings, now_ms, self.log_end_offset, leader_epoch)
            earlier = admit(self._producers, made.changes)
            if earlier is None:
                return self._write_locked(made, now_ms)
            return AppendResult(
                earlier.first_offset,
                earlier.last_offset,
                earlier.timestamp,
                earlier.timestamp if self.settings.is_log_append_time else -1,
                is_duplicate=True,
            )

    def append_records(
        self,
        records: Sequence[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        leader_epoch: int = 0,
    ) -> AppendResult:
        """Append records as one batch; those without a timestamp get the clock's. As `append`."""
        now_ms = self._clock.now_ms()
        stamped = [
            replace(record, timestamp=now_ms) if record.timestamp is None else record
            for record in records
        ]
        return self.append(build_batch(stamped, codec=codec, level=level), leader_epoch)

    def append_marker(
        self,
        kind: ControlType,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = 0,
        leader_epoch: int = 0,
    ) -> AppendResult:
        """End a producer's transaction with a COMMIT or ABORT marker (CMP-14).

        Raises `ProducerFencedError` for an older epoch of the producer or the coordinator.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            self._writer_locked()
            marker = build_marker(
                kind,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp=now_ms,
                coordinator_epoch=coordinator_epoch,
            )
            made = place_marker(marker, self.settings, now_ms, self.log_end_offset, leader_epoch)
            admit(self._producers, made.changes)
            return self._write_locked(made, now_ms)

    def append_as_follower(self, data: Buffer) -> AppendResult:
        """Append batches of any magic that have their offsets, as a replica or a restore does.

        Raises `CorruptionError` for damaged bytes or offsets below the log end.
        """
        with self._lock:
            self._writer_locked()
            made = check_replicated(data, self.log_end_offset)
            return self._write_locked(made, self._clock.now_ms())

    def _writer_locked(self) -> ActiveSegment:
        if self._active is not None:
            return self._active
        state = "closed" if self._view is None else "open for reading only"
        raise UsageError(f"{self.path}: the log is {state}")

    def _write_locked(self, made: Prepared, now_ms: int) -> AppendResult:
        if made.size_bytes > self.settings.segment_bytes:
            raise RecordTooLargeError(
                f"{made.size_bytes} bytes do not fit a segment of {self.settings.segment_bytes}"
            )
        self._maybe_roll_locked(made, now_ms)
        self._note_epoch_locked(made.leader_epoch, made.first_offset)
        active = self._writer_locked()
        aborted = aborted_by(self._producers, made.changes)
        if aborted and not active.aborted:
            self._unflushed.note_name()
        active.append(made.data, made.rows, aborted, now_ms)
        for change in made.changes:
            apply(self._producers, change)
        segments = self.segments.with_active(active.value())
        self._view = self._view_of(segments, self.log_start_offset, made.last_offset + 1)
        return AppendResult(
            made.first_offset,
            made.last_offset,
            made.max_timestamp,
            now_ms if self.settings.is_log_append_time else -1,
        )

    def _note_epoch_locked(self, leader_epoch: int, first_offset: int) -> None:
        self._set_epochs_locked(assigned(self._epochs, leader_epoch, first_offset))

    def _set_epochs_locked(self, epochs: tuple[EpochStart, ...]) -> None:
        if epochs != self._epochs:
            path = os.path.join(self.path, LEADER_EPOCH_CHECKPOINT)
            write_leader_epochs(self._filesystem, path, epochs)
            self._epochs = epochs

    def _view_of(self, segments: Segments, start: int, end: int) -> LogView:
        stable = max(start, last_stable_offset(self._producers, end))
        return LogView(segments, start, end, stable)

    # -- roll, flush, close ----------------------------------------------------------------------

    def roll(self) -> int:
        """Close the active segment and begin a new one at the log end; its base offset.

        An active segment that is empty stays as it is. Raises `StorageIOError`.
        """
        with self._lock:
            self._roll_locked(self.log_end_offset)
            return self.segments.active.base_offset

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
        new = ActiveSegment.create(
            self._filesystem,
            self.path,
            base_offset,
            interval_bytes=self.settings.index_interval_bytes,
            now_ms=self._clock.now_ms(),
        )
        try:
            sealed = old.seal()
        except StratalogError:
            new.remove()
            raise
        self._unflushed.note_roll(old.base_offset)
        self._active = new
        segments = self.segments.with_active(sealed).appended(new.value())
        self._view = self._view_of(segments, self.log_start_offset, self.log_end_offset)
        self._write_snapshot_locked(base_offset)

    def _write_snapshot_locked(self, offset: int) -> None:
        if offset > self._last_snapshot:
            snapshots.write_snapshot(self._filesystem, self.path, offset, self._producers.entries)
            self._last_snapshot = offset
            self._unflushed.note_snapshot(offset)

    def flush(self) -> int:
        """Make everything durable that was appended before the call; the new recovery point.

        Appends go on meanwhile. Raises `StorageIOError`; then nothing is promised.
        """
        with self._flush_lock:
            with self._lock:
                base_offset = self._writer_locked().base_offset
                work = self._unflushed.begin(base_offset, self.log_end_offset)
            self._unflushed.sync(self._filesystem, work)
            with self._lock:
                self._unflushed.end(work)
                return self._unflushed.recovery_point

    def replace_segments(self, removed: Collection[int], added: Iterable[Segment] = ()) -> None:
        """Publish the log without the sealed segments at the base offsets `removed`, with `added`.

        Call it before the files of the removed ones are renamed or replaced: it loads what their
        readers may still need of them.
        """
        with self._lock:
            active = self._writer_locked()
            assert active.base_offset not in removed, active.base_offset
            for segment in self.segments:
                if segment.base_offset in removed:
                    segment.indexes.retire()
            segments = self.segments.replaced(removed, added)
            self._view = self._view_of(segments, self.log_start_offset, self.log_end_offset)

    def advance_log_start(self, offset: int) -> None:
        """Move the log start offset up; making that durable is the caller's business (RET-6).

        Raises `OffsetOutOfRangeError` past the log end.
        """
        with self._lock:
            self._writer_locked()
            if offset > self.log_end_offset:
                raise OffsetOutOfRangeError(f"{offset} lies past the end {self.log_end_offset}")
            start = max(offset, self.log_start_offset)
            self._set_epochs_locked(cut_at_start(self._epochs, start))
            self._view = self._view_of(self.segments, start, self.log_end_offset)

    def close(self) -> None:
        """Write the closing time entry and the producer snapshot, flush, let go of the files.

        Views that were taken stay readable. Closing twice is fine. Raises `StorageIOError`.
        """
        with self._flush_lock, self._lock:
            if self._view is None:
                return
            if self._active is not None:
                self._active.indexes.finish()
                self._write_snapshot_locked(self.log_end_offset)
                self.flush()
                self._active.indexes.close()
            self._active = None
            self._view = None

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
