"""What the cleaner remembers of each partition: its note, in memory and on disk.

    cleaned, expiry_found     when the next tombstone expires (CMP-9)
    failed, blame, retry      why cleaning failed, and when it is tried again (CLN-7)
    pause, resume             what somebody has asked for, also after a restart (CLN-4)

Invariants
- I1  A note is written before it counts; one lock a partition orders its writers, and whoever has
      the partition exclusively holds it: its directory may be about to go.
- I2  What cannot be written down (a full disk) still counts as long as the process lives.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptionError,
    StorageFullError,
    StorageIOError,
    StratalogError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.clean.note import Failure, Note, read_note, write_note
from stratalog.clean.settings import CleanerSettings
from stratalog.clean.states import Step
from stratalog.clean.states_keeper import StatesKeeper
from stratalog.ledger.manifest import LEDGERS_DIRECTORY
from stratalog.log.log_store import LogStore
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.clean")


class CleanerMemory(StatesKeeper):
    """Base of `CleanerManager`; use that."""

    def __init__(
        self, store: LogStore, filesystem: FileSystem, clock: Clock, settings: CleanerSettings
    ):
        super().__init__()
        self._store = store
        self._filesystem = filesystem
        self._clock = clock
        self._settings = settings
        self._note_locks: dict[TopicPartition, AbstractContextManager[bool]] = {}
        self._pause_lock = threading.Lock()
        self._notes: dict[TopicPartition, Note] = {}

    def configure(self, settings: CleanerSettings) -> None:
        """Go by other back-offs from now on."""
        self._settings = settings

    def note_of(self, topic_partition: TopicPartition) -> Note:
        """What is remembered of a partition. Raises `UnknownPartitionError`, `StorageIOError`."""
        note = self._notes.get(topic_partition)
        if note is None:
            log = self._store.get(topic_partition)
            found = read_note(self._filesystem, log.path)
            with self._lock:
                note = self._notes.get(topic_partition)
                if note is None:
                    if self._store.get(topic_partition) is not log:
                        return found  # it was deleted meanwhile, and another one made
                    note = self._notes[topic_partition] = found
                    if note.paused:
                        # Legal in every state: retention may have been here first.
                        self._step_locked(topic_partition, Step.ABORT_AND_PAUSE)
                        self._paused.add(topic_partition)
        return note

    def _note_lock(self, topic_partition: TopicPartition) -> AbstractContextManager[bool]:
        return self._note_locks.setdefault(topic_partition, threading.RLock())

    def _change_note(self, topic_partition: TopicPartition, change: Callable[[Note], Note]) -> Note:
        """Change the note, durably. Raises `StorageIOError`; then it is as it was."""
        with self._note_lock(topic_partition):
            before = self.note_of(topic_partition)
            note = change(before)
            if note != before:
                write_note(self._filesystem, self._store.get(topic_partition).path, note)
                with self._lock:
                    self._notes[topic_partition] = note
            return note

    def cleaned(
        self, topic_partition: TopicPartition, end_offset: int, next_expiry_ms: int | None
    ) -> None:
        """Everything below `end_offset` is cleaned and in place: the note, then the checkpoint.

        `next_expiry_ms` may be UNKNOWN. Raises `StorageIOError`, `LogOfflineError`.
        """
        self._change_note(
            topic_partition,
            lambda note: note.after_round(end_offset, next_expiry_ms),
        )
        self._store.set_cleaner_point(topic_partition, end_offset)

    def expiry_found(self, topic_partition: TopicPartition, next_expiry_ms: int | None) -> None:
        """When something expires was looked up in the log. Raises `StorageIOError`."""
        checkpoint = self._store.cleaner_point(topic_partition)
        self._change_note(
            topic_partition,
            lambda note: replace(note, checkpoint=checkpoint, next_expiry_ms=next_expiry_ms),
        )

    def failed(self, topic_partition: TopicPartition, error: BaseException) -> Failure:
        """Cleaning failed: the partition is tried again after its back-off (CLN-7)."""
        cause = " ".join(str(error).split()) or type(error).__name__
        # What a ledger alone holds nobody can mend; one that the log still has is made anew.
        is_in_ledger = isinstance(error, CorruptionError) and f"{LEDGERS_DIRECTORY}/" in str(error)
        if isinstance(error, CorruptionError) and not is_in_ledger:
            cause += "; `stratalog log repair` shows what can be done"
        now_ms = self._clock.now_ms()
        failures: list[Failure] = []

        def change(note: Note) -> Note:
            tries = 1 if note.failure is None else note.failure.tries + 1
            wait_ms = self._settings.retry_after_ms(tries)
            failures.append(Failure(cause, tries, now_ms, now_ms + wait_ms))
            return replace(note, failure=failures[-1])

        try:
            self._change_note(topic_partition, change)
        except (StratalogError, FileNotFoundError) as second:
            # What cannot be written down is remembered as long as the process lives.
            _LOG.error("%s: its failure cannot be noted: %s", topic_partition, second)
            if not failures:
                failures.append(Failure(cause, 1, now_ms, now_ms))
            with self._lock:
                if topic_partition in self._notes:
                    self._notes[topic_partition] = replace(
                        self._notes[topic_partition], failure=failures[-1]
                    )
        return failures[-1]

    def blame(self, topic_partition: TopicPartition, error: Exception) -> None:
        """An error of the disk takes its directory offline, any other is the partition's own."""
        is_disk = isinstance(error, StorageIOError) and not isinstance(error, StorageFullError)
        if is_disk or isinstance(error, FileNotFoundError):
            self._store.disk_failed(topic_partition, error)
            return
        self.failed(topic_partition, error)
        if not isinstance(error, StratalogError):
            _LOG.error("%s: cleaning failed", topic_partition, exc_info=error)

    def retry(self, topic_partition: TopicPartition) -> bool:
        """Let a partition be cleaned again that waits after a failure; whether it did.

        Raises `UnknownPartitionError`, `StorageIOError`.
        """
        failure = self.note_of(topic_partition).failure
        if failure is None:
            return False
        self._change_note(topic_partition, lambda note: replace(note, failure=None))
        return True

    @contextmanager
    def exclusively(self, topic_partition: TopicPartition) -> Iterator[None]:
        """See `Work`. No note is written, either: its directory may be about to go."""
        with super().exclusively(topic_partition), self._note_lock(topic_partition):
            yield

    # -- pauses -----------------------------------------------------------------------------------

    def pause(self, topic_partition: TopicPartition) -> bool:
        """Stop cleaning a partition until `resume`, also after a restart; whether it was not paused
        before. A round that runs is aborted and waited for. Raises as `note_of`."""
        with self._pause_lock:
            if self.note_of(topic_partition).paused:
                return False
            self.abort_and_pause(topic_partition)
            try:
                self._change_note(topic_partition, lambda note: replace(note, paused=True))
            except BaseException:
                self.resume_held(topic_partition)
                raise
            with self._lock:
                if topic_partition in self._notes:
                    self._paused.add(topic_partition)
                else:  # it has been deleted meanwhile
                    self.resume_held(topic_partition)
            return True

    def resume(self, topic_partition: TopicPartition) -> bool:
        """End a `pause`; whether there was one. Raises as `note_of`."""
        with self._pause_lock:
            if not self.note_of(topic_partition).paused:
                return False
            self._change_note(topic_partition, lambda note: replace(note, paused=False))
            with self._lock:
                if topic_partition in self._paused:  # else it has been deleted meanwhile
                    self._paused.discard(topic_partition)
                    self._step_locked(topic_partition, Step.RESUME)
            return True

    def forget(self, topic_partition: TopicPartition) -> None:
        """See `Work`."""
        super().forget(topic_partition)
        with self._lock:
            self._notes.pop(topic_partition, None)
            self._note_locks.pop(topic_partition, None)
