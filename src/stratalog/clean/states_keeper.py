"""The states of all partitions, under one lock: who may work where, and who waits for whom.

This is the `Work` that a store asks before it changes sealed segments: a truncation or a deletion
aborts the round that runs there and waits for its end; retention passes over what is worked on.

Invariants
- I1  Every change is a step of the table in `states` (CLN-4); only one thread is in a partition at
      a time (CLN-5).
- I2  `_lock` is held for no call of the disk and none of the store that could wait, as the store
      calls here with its own lock held.
- I3  A pause that somebody asked for (`_paused`) keeps cleaners away, and nobody else (CLN-6).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from stratalog.clean.states import Event, Kind, State, States, Step
from stratalog.segment.names import TopicPartition


class StatesKeeper:
    """Base of `CleanerManager`; use that. `_lock` guards the states."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._states = States()
        self._paused: set[TopicPartition] = set()
        self._left: Counter[TopicPartition] = Counter()
        self._is_over = False

    def state_of(self, topic_partition: TopicPartition) -> State:
        """Who works on a partition, or keeps others from it."""
        return self._states.of(topic_partition)

    def must_stop(self, topic_partition: TopicPartition) -> bool:
        """Whether the round that works on the partition was aborted."""
        return self._states.of(topic_partition).must_stop

    def done(self, topic_partition: TopicPartition) -> None:
        """The round has ended, as cleaned, aborted or failed; who waits for that goes on."""
        self._step(topic_partition, Step.DONE_CLEANING)

    def abort(self, topic_partition: TopicPartition) -> bool:
        """Stop the round that works on a partition, and wait for that; whether there was one."""
        was_cleaned = self.state_of(topic_partition).is_worked_on
        if was_cleaned:
            with self.exclusively(topic_partition):
                pass
        return was_cleaned

    def abort_and_pause(self, topic_partition: TopicPartition) -> None:
        """Keep cleaners away, once the one that works on the partition has ended its round."""
        with self._lock:
            self._step_locked(topic_partition, Step.ABORT_AND_PAUSE)
            try:
                while self._states.of(topic_partition).is_worked_on:
                    self._lock.wait()
            except BaseException:  # Ctrl-C: nobody is there any more to undo it
                self._left[topic_partition] += 1
                self._resume_left_locked(topic_partition)
                raise

    def resume_held(self, topic_partition: TopicPartition) -> None:
        """Undo one `abort_and_pause`."""
        self._step(topic_partition, Step.RESUME)

    @contextmanager
    def exclusively(self, topic_partition: TopicPartition) -> Iterator[None]:
        """See `Work`."""
        self.abort_and_pause(topic_partition)
        try:
            yield
        finally:
            self.resume_held(topic_partition)

    @contextmanager
    def if_free(self, topic_partition: TopicPartition) -> Iterator[bool]:
        """See `Work`."""
        with self._lock:
            begin, end = self._steps_beside_locked(topic_partition)
            if begin is not None:
                self._step_locked(topic_partition, begin)
        try:
            yield begin is not None
        finally:
            if end is not None:
                self._step(topic_partition, end)

    def end(self) -> None:
        """See `Work`."""
        with self._lock:
            self._is_over = True
            for topic_partition, state in self._states.held.items():
                if state.is_worked_on:
                    self._step_locked(topic_partition, Step.ABORT_AND_PAUSE)
            while any(state.is_worked_on for state in self._states.held.values()):
                self._lock.wait()

    def start(self, topic_partition: TopicPartition) -> bool:
        """Begin a round, which ends with `done`; False: somebody else has the partition."""
        with self._lock:
            if self._is_over or not self._states.of(topic_partition).is_free:
                return False
            self._step_locked(topic_partition, Step.START_CLEANING)
            return True

    def _steps_beside_locked(
        self, topic_partition: TopicPartition
    ) -> tuple[Step | None, Step | None]:
        """How to begin and end work that is no cleaning, if it may begin."""
        state = self._states.of(topic_partition)
        if self._is_over:
            return None, None
        if state.is_free:
            return Step.START_DELETING, Step.DONE_DELETING
        is_only_asked_for = topic_partition in self._paused and state.pauses == 1
        if state.kind is Kind.PAUSED and is_only_asked_for:
            return Step.PAUSE, Step.RESUME
        return None, None

    def forget(self, topic_partition: TopicPartition) -> None:
        """See `Work`."""
        with self._lock:
            # The other pauses belong to those who wait, and who will end them themselves.
            if topic_partition in self._paused:
                self._paused.discard(topic_partition)
                self._step_locked(topic_partition, Step.RESUME)

    # -- steps ------------------------------------------------------------------------------------

    def _step(self, topic_partition: TopicPartition, step: Step) -> None:
        with self._lock:
            self._step_locked(topic_partition, step)

    def _step_locked(self, topic_partition: TopicPartition, step: Step) -> None:
        self._states = self._states.after(Event(topic_partition, step))
        if self._left:
            self._resume_left_locked(topic_partition)
        self._lock.notify_all()

    def _resume_left_locked(self, topic_partition: TopicPartition) -> None:
        """End the pauses of those who have gone, once they can be ended."""
        while self._left[topic_partition] and self._states.of(topic_partition).kind is Kind.PAUSED:
            self._left[topic_partition] -= 1
            self._states = self._states.after(Event(topic_partition, Step.RESUME))
        if not self._left[topic_partition]:
            del self._left[topic_partition]
