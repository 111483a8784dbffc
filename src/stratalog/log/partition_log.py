"""One partition's log: the only object that writes its directory (LOG-1, LOG-2, LOG-5, LOG-8).

    append ─► validate ─► producer checks ─► roll? ─► offsets ─► files ─► state ─► new view

One lock orders the writers; readers take the current `view`, an immutable value, and never wait.
Appends are in the page cache when they return and on the disk after `flush`; with `flush.messages`
they are on the disk when they return, and those that wait at the same time share one fsync (LOG-7).

Invariants
- I1  Offsets are given out once, in order, without gaps (a replica keeps those it is sent), and
      never change.
- I2  A view is published after everything in it is written, in one assignment.
- I3  An append that raises changed nothing: checks come before writes, state after them.
- I4  What is below `recovery_point` has been flushed.
- I5  After a failed fsync nothing more is written (`durability`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageFullError,
    StorageIOError,
    StratalogError,
    TooManyFilesError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.open_files import check_open_files
from stratalog.log.deletion import deleted_paths, rename_to_deleted
from stratalog.log.leader_epochs import assigned, cut_at_start
from stratalog.log.open_log import OpenLog
from stratalog.log.opening import Unclean, open_log, read_log
from stratalog.log.prepare import (
    Prepared,
    check_produced,
    check_replicated,
    place_marker,
    place_produced,
)
from stratalog.log.producer_checks import aborted_by, admit
from stratalog.log.producer_state import (
    apply,
)
from stratalog.log.retention import Deletion
from stratalog.log.settings import LogSettings
from stratalog.log.swap import Replacement, has_intent, swap
from stratalog.log.truncation import plan_truncation, write_truncated
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType, build_marker
from stratalog.segment.names import FileState
from stratalog.segment.segment import Segment, open_segment

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


class PartitionLog(OpenLog):
    """An open log. Use `PartitionLog.open`; close it, or use it in a `with`."""

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
        may_be_torn: bool = False,
        unclean: Unclean | None = None,
        flushed_to: int = 0,
        on_disk_error: Callable[[StorageIOError], None] = lambda _: None,
    ) -> PartitionLog:
        """Open the log in the directory `path`.

        `create` makes one that is not there, starting at `log_start_offset`. `unclean`: it was not
        closed in order, and is recovered (RCV-1). Damage that no crash explains, or a log that was
        closed in order and ends below `flushed_to`, is read only and says why (`quarantine`,
        RCV-7).

        `read_only` changes no file; it is also for a directory that a live process writes. With
        `may_be_torn` it ends before a torn last part of the active segment, which is an error
        otherwise.

        `on_disk_error` is told of errors of the disk, but not of a full one; it must not wait.

        Raises `UsageError` if there is no log; `LogChangedError` for a reader while segments are
        being replaced; `CorruptionError`, naming file and position; `StorageIOError`.
        """
        now_ms = clock.now_ms()
        if read_only:
            opened = read_log(
                filesystem,
                path,
                settings,
                now_ms=now_ms,
                log_start_offset=log_start_offset,
                may_be_torn=may_be_torn,
            )
        else:
            opened = open_log(
                filesystem,
                path,
                settings,
                now_ms=now_ms,
                log_start_offset=log_start_offset,
                create=create,
                unclean=unclean,
                flushed_to=flushed_to,
            )
        return cls(path, settings, filesystem, clock, opened, on_disk_error)

    # -- append -----------------------------------------------------------------------------------

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
                with self._durable.errors_told():
                    result = self._write_locked(made, now_ms)
            else:
                result = AppendResult(
                    earlier.first_offset,
                    earlier.last_offset,
                    earlier.timestamp,
                    earlier.timestamp if self.settings.is_log_append_time else -1,
                    is_duplicate=True,
                )
        return self._acknowledged(result)

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
        batch = build_batch(records, codec=codec, level=level, default_timestamp=now_ms)
        return self.append(batch, leader_epoch)

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
            with self._durable.errors_told():
                result = self._write_locked(made, now_ms)
        return self._acknowledged(result)

    def append_as_follower(self, data: Buffer) -> AppendResult:
        """Append batches of any magic that have their offsets, as a replica or a restore does.

        Raises `CorruptionError` for damaged bytes or offsets below the log end.
        """
        with self._lock:
            self._writer_locked()
            made = check_replicated(data, self.log_end_offset)
            with self._durable.errors_told():
                result = self._write_locked(made, self._clock.now_ms())
        return self._acknowledged(result)

    def _acknowledged(self, result: AppendResult) -> AppendResult:
        """What is appended may be told to the producer once it is as durable as the topic asks.

        Who waits for the lock while another flushes finds its own records flushed, too.
        """
        end = result.last_offset + 1
        if end - self.recovery_point >= self.settings.flush_messages:
            with self._durable.lock:
                if end - self.recovery_point >= self.settings.flush_messages:
                    self.flush()
        return result

    def _write_locked(self, made: Prepared, now_ms: int) -> AppendResult:
        if made.size_bytes > self.settings.segment_bytes:
            raise RecordTooLargeError(
                f"{made.size_bytes} bytes do not fit a segment of {self.settings.segment_bytes}"
            )
        self._maybe_roll_locked(made, now_ms)
        self._note_epoch_locked(made.leader_epoch, made.first_offset)
        active = self._writer_locked()
        aborted = aborted_by(self._producers, made.changes)
        active.append(made.data, made.rows, aborted, now_ms)
        for change in made.changes:
            apply(self._producers, change)
        segments = self.segments.with_active(active.value())
        self._view = self._view_of(segments, self.log_start_offset, made.last_offset + 1)
        self.on_change()
        return AppendResult(
            made.first_offset,
            made.last_offset,
            made.max_timestamp,
            now_ms if self.settings.is_log_append_time else -1,
        )

    def _note_epoch_locked(self, leader_epoch: int, first_offset: int) -> None:
        self._set_epochs_locked(assigned(self._epochs, leader_epoch, first_offset))

    # -- what goes --------------------------------------------------------------------------------

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

    def swap_in(self, replacement: Replacement) -> list[str]:
        """Put cleaned segments in the place of sealed ones (CMP-12); the paths to unlink later.

        Durable when it returns; appends and reads go on meanwhile. Nobody else may change sealed
        segments at the same time. Raises `StorageFullError` and `TooManyFilesError`, after which
        the log is as it was and goes on; `StorageIOError`, after which it takes no writes until it
        is opened again, as after any error once the swap is decided.
        """
        self.check_writable()
        bases = [segment.base_offset for segment in replacement.new]
        a_part = os.path.join(self.path, next(iter(replacement.new[0].parts.values())))
        with self._durable.errors_told():
            is_begun = False

            def publish() -> None:
                nonlocal is_begun
                is_begun = True
                self._publish_swapped(replacement.old_bases, bases, FileState.SWAP)

            try:
                # Once it is decided, each new segment is opened under two names, and a file is read
                # or synced beside them.
                check_open_files(self._filesystem, a_part, 2 * len(bases) + 2)
                swap(self._filesystem, self.path, replacement, publish)
                # With their final names they load their indexes when they are needed. What was
                # published first is open, and loaded, and would do.
                with suppress(TooManyFilesError):
                    self._publish_swapped(bases, bases, FileState.FINAL)
            except BaseException as error:
                is_disk = isinstance(error, (StorageIOError, FileNotFoundError))
                is_disk = is_disk and not isinstance(error, StorageFullError)
                # Also what is none of the disk's: another swap would write over the intent.
                if is_disk or is_begun or has_intent(self._filesystem, self.path):
                    self.take_offline(f"a swap failed: {error}")
                raise
        return deleted_paths(self._filesystem, self.path, replacement.old_bases)

    def _publish_swapped(
        self, removed: Collection[int], bases: Collection[int], state: FileState
    ) -> None:
        added = [
            open_segment(
                self._filesystem,
                self.path,
                base,
                interval_bytes=self.settings.index_interval_bytes,
                state=state,
            )
            for base in bases
        ]
        self.replace_segments(removed, added)

    def configure(self, settings: LogSettings) -> None:
        """Go by other settings from the next call on (CFG-2)."""
        self.settings = settings
        self.on_change()

    def advance_log_start(self, offset: int) -> None:
        """Move the log start offset up; making that durable first is the caller's business (RET-6).

        Raises `OffsetOutOfRangeError` past the log end.
        """
        with self._lock, self._durable.errors_told():
            self._writer_locked()
            self._advance_locked(offset)

    def _advance_locked(self, offset: int) -> None:
        if offset > self.log_end_offset:
            raise OffsetOutOfRangeError(f"{offset} lies past the end {self.log_end_offset}")
        start = max(offset, self.log_start_offset)
        with suppress(StorageFullError):  # what begins below the start is cut off at each opening
            self._set_epochs_locked(cut_at_start(self._epochs, start))
        self._view = self._view_of(self.segments, start, self.log_end_offset)

    def delete_segments(
        self, deletions: Sequence[Deletion], *, is_start_durable: bool = True
    ) -> list[str]:
        """Remove the oldest segments from the log and rename their files to `.deleted` (RET-8).

        The log start is at or past their end, durably, and they leave the log before their names
        go. Without that, their names go first, durably, and the log starts where it says by what
        is left: for one segment at a time. Answers the paths to unlink later; none if the segments
        are no longer those that `deletions` speaks of.
        """
        with self._lock:
            self._writer_locked()
            sealed = self.segments.sealed
            named = [(gone.base_offset, gone.size_bytes) for gone in deletions]
            if named != [(s.base_offset, s.size_bytes) for s in sealed[: len(named)]]:
                return []
            bases = [base for base, _ in named]
            start = self.segments.bases[len(bases)]
            if not is_start_durable:
                assert len(bases) == 1, bases
                sealed[0].indexes.retire()
                paths = rename_to_deleted(self._filesystem, self.path, bases)
                self._filesystem.fsync_directory(self.path)
            self._advance_locked(start)
            self.replace_segments(bases)
        if is_start_durable:
            paths = rename_to_deleted(self._filesystem, self.path, bases)
        return paths

    def end_if_truncated_to(self, offset: int) -> int:
        """Where the log would end after `truncate_to(offset)`: batches are not cut."""
        view = self.view
        if not view.log_start_offset <= offset < view.log_end_offset:
            return view.log_end_offset
        return plan_truncation(view.segments, offset, view.log_start_offset).end_offset

    def truncate_to(self, offset: int) -> int:
        """Take the log end back to `offset`, or to the start of the batch that holds it; the end.

        Durable when it returns. Raises `OffsetOutOfRangeError` below the log start,
        `StorageIOError`.
        """
        with self._durable.lock, self._lock, self._durable.errors_told():
            active = self._writer_locked()
            if offset >= self.log_end_offset:
                return self.log_end_offset
            if offset < self.log_start_offset:
                raise OffsetOutOfRangeError(f"{offset} lies below {self.log_start_offset}")
            plan = plan_truncation(self.segments, offset, self.log_start_offset)
            source = self.segments.get(plan.source_base)
            assert source is not None
            interval_bytes = self.settings.index_interval_bytes
            # Snapshots of more are about to go, whatever comes of the rest.
            self._last_snapshot = min(self._last_snapshot, plan.end_offset)
            is_begun = False
            try:
                made = write_truncated(self._filesystem, self.path, plan, source, interval_bytes)
                for segment in self.segments.from_offset(plan.source_base):
                    segment.indexes.retire()
                # As many as opening the log takes for each of its segments, and some more.
                check_open_files(self._filesystem, active.log.path, len(self.segments) + 6)
                is_begun = True
                active.indexes.close()
                swap(self._filesystem, self.path, made)
                self._reload_locked(plan.end_offset)
            except StratalogError as error:
                if is_begun or not isinstance(error, TooManyFilesError):
                    self.take_offline(f"a truncation failed: {error}")
                raise
            return self.log_end_offset

    def _reload_locked(self, end_offset: int) -> None:
        start = self.log_start_offset
        opened = open_log(
            self._filesystem,
            self.path,
            self.settings,
            now_ms=self._clock.now_ms(),
            log_start_offset=start,
            create=False,
            unclean=None,
        )
        loaded, self._active, self.quarantine = opened.loaded, opened.active, opened.quarantine
        self._producers, self._epochs = loaded.producers, opened.epochs
        self._last_snapshot = min(self._last_snapshot, end_offset)
        self._durable.cut(end_offset)
        self._flushed_bytes = 0
        self._view = self._view_of(loaded.segments, start, loaded.tail.next_offset)

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
