"""Appending once what tasks have staged, whatever dies when (SPK-6).

    commit    who writes, which batch, the staged files of its tasks
      finish    what an earlier commit has decided and left, of this writer or another
      decide    all that can be refused is refused; then one durable record (`sink_state`) says:
                these files, with this producer id and epoch, behind these offsets
      append    batch after batch; the logs are flushed; the record says: done
      sweep     staged files that nobody will append

What a crash leaves, step by step:
1. Before the record: staged files and nothing else. The batch comes again, with files of its own,
   or never; the old files are swept.
2. Behind the record: the batch is decided. Partitions may be missing, logs may hold a beginning of
   it. Whoever commits next appends the rest, from the files that the record names and not from
   those of a later attempt, whose rows may be others or in another order. How much a log holds is
   told by its producers: the batch's epoch is its own, its sequences begin at 0.
3. Behind "done": the same batch is skipped; what is left of its files is swept.

A log that cannot tell any more how much it holds (`sink_producer`) is refused, not guessed at.

Everything here runs on `FileSystem` and `Clock`, without Spark.

Invariants
- I1  A record of a batch is appended once, in the order of files and rows, or never.
- I2  Nothing is appended of a batch of which anything is refused.
- I3  A file that a pending batch names is not removed before the batch is done, durably.
- I4  A directory is changed under its owner's lock only, but for staged files, which are new names.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from stratalog.admin.store import open_store, problem_of
from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptionError,
    LogLockedError,
    LogOfflineError,
    StratalogError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.log.locking import lock_directory
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.settings import LogSettings
from stratalog.pipeline import sink_state
from stratalog.pipeline.sink_producer import CannotTellError, appended, producer_of, sign
from stratalog.pipeline.sink_state import Pending, SinkState
from stratalog.pipeline.staging import (
    Content,
    Staged,
    check_staged,
    frames,
    records_of,
    remove_staged,
    writer_key,
)
from stratalog.record import layout
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.sink")
ABANDONED_MS = 7 * 86_400_000
"""Staged files of somebody who is not known here may belong to a job that runs: it may take days.
One that takes longer finds its files gone, and fails before anything is appended."""
START_WAIT_MS, COMMIT_WAIT_MS, _POLL_MS = 5_000, 60_000, 50
"""How long the directory may be another's before a job starts, and when its batch is to be
appended: other queries commit there, too."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """`writer`: a query or a job, by its id; `version`: which of its batches, they increase;
    `is_once`: nobody will ask for this writer again."""

    writer: str
    version: int = 0
    is_once: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """How a directory is opened: each log's settings, and the store's."""

    settings_of: Callable[[TopicPartition], LogSettings]
    store: StoreSettings = StoreSettings()  # noqa: RUF009  (a value)


def check_free(log_dir: str, filesystem: FileSystem, clock: Clock) -> None:
    """Refuse a directory that a live process owns. Raises `LogLockedError`, `StorageIOError`."""
    release = _patiently(
        lambda: lock_directory(log_dir, filesystem, exclusive=True), clock, START_WAIT_MS
    )
    if release is not None:
        release()


def _patiently(take: Callable[[], T], clock: Clock, wait_ms: int) -> T:
    """Another commit holds the directory for a moment; whoever holds it longer owns it."""
    gives_up_ms = clock.now_ms() + wait_ms
    while True:
        try:
            return take()
        except LogLockedError:
            if clock.now_ms() >= gives_up_ms:
                raise
            clock.sleep_ms(_POLL_MS)


def commit(
    log_dir: str,
    batch: Batch,
    files: Sequence[Staged],
    rules: Rules,
    filesystem: FileSystem,
    clock: Clock,
) -> int:
    """Append a batch unless it was appended before; how many records this call has appended.

    Raises `UsageError` (`LogLockedError` and others), `LogOfflineError` and `CorruptionError` for
    what is refused; then nothing of the batch is appended, unless the message says that it is
    decided.
    """
    state = sink_state.read_state(filesystem, log_dir, batch.writer)
    is_pending = state is not None and state.pending is not None
    if not is_pending and (not files or (state is not None and state.is_done(batch.version))):
        if files:
            _LOG.info("batch %d of %s was appended before", batch.version, batch.writer)
        _sweep_own(log_dir, batch, state, filesystem)
        return 0
    settings_of = _lenient(rules.settings_of)
    with ExitStack() as stack:
        store = _patiently(
            lambda: stack.enter_context(
                open_store([log_dir], settings_of, filesystem, clock, store_settings=rules.store)
            ),
            clock,
            COMMIT_WAIT_MS,
        )
        sink = _Sink(log_dir, store, filesystem)
        sink.finish_others(batch.writer)
        records = 0
        state = sink_state.read_state(filesystem, log_dir, batch.writer)
        if state is not None and state.pending is not None:
            state, records = sink.finish(state, None)
        if state is None or not state.is_done(batch.version):
            decided = sink.decide(state, batch, files)
            if decided is not None:
                records += sink.finish(*decided)[1]
        try:
            sink.sweep(clock.now_ms())
        except StratalogError as error:
            # The batch is done: who is told that it failed may write it again.
            _LOG.warning("%s: what lies about goes with the next write: %s", log_dir, error)
        return records


def abort(log_dir: str, batch: Batch, filesystem: FileSystem) -> None:
    """Remove the staged files of a batch that will not be committed by this attempt.

    Spark calls it after a failed commit, too: what is decided stays (I3). Raises `StorageIOError`,
    `CorruptionError`.
    """
    _sweep_own(log_dir, batch, sink_state.read_state(filesystem, log_dir, batch.writer), filesystem)


def _sweep_own(log_dir: str, batch: Batch, state: SinkState | None, filesystem: FileSystem) -> None:
    key = writer_key(batch.writer)

    def is_wanted(name: str, of_key: str, version: int) -> bool:
        if of_key != key or version > batch.version:
            return True
        return state is not None and state.claims(name)

    remove_staged(filesystem, log_dir, is_wanted)


def _lenient(
    settings_of: Callable[[TopicPartition], LogSettings],
) -> Callable[[TopicPartition], LogSettings]:
    """What tasks have checked is not held against the clock and the rules of a later hour: a
    decided batch can be finished whenever somebody comes to it."""

    def lenient(key: TopicPartition) -> LogSettings:
        return replace(
            settings_of(key),
            message_timestamp_before_max_ms=layout.INT64_MAX,
            message_timestamp_after_max_ms=layout.INT64_MAX,
            max_message_bytes=layout.INT32_MAX,
        )

    return lenient


@dataclass(slots=True)
class _Sink:
    """A directory that is ours for the time of a commit."""

    log_dir: str
    store: LogStore
    filesystem: FileSystem

    # -- decide ----------------------------------------------------------------------------------

    def decide(
        self, state: SinkState | None, batch: Batch, files: Sequence[Staged]
    ) -> tuple[SinkState, list[Content]] | None:
        """Check all that can be refused, then write down the decision; None: there are no rows."""
        files = [file for file in files if file.records]
        contents = [check_staged(self.filesystem, self.log_dir, file) for file in files]
        records = records_of(contents)
        if not records:
            return None
        counts: dict[str, int] = {}
        for content in contents:
            counts.update(content.counts)
        self._check_counts(counts)
        there = set(self.store.partitions())
        topics = {key.topic for key in there}
        creates = tuple(
            TopicPartition(topic, number)
            for topic in sorted({key.topic for key in records} - topics)
            for number in range(counts[topic])
        )
        for key, wanted in records.items():
            if key not in there and key not in creates:
                raise UsageError(f"there is no partition {key} (any more)")
            if wanted > layout.INT32_MAX:
                raise UsageError(f"{key}: {wanted} records in one batch, the most is 2147483647")
        self._check_writable(key for key in records if key in there)
        logs = [self.store.get(key) for key in records if key in there]
        producer_id, epoch = producer_of(state, batch.writer, batch.version, logs)
        starts = {key: self.store.get(key).log_end_offset if key in there else 0 for key in records}
        decided = SinkState(
            batch.writer,
            batch.is_once,
            sink_state.NOTHING if state is None else state.done,
            producer_id,
            epoch,
            Pending(batch.version, starts, creates, tuple(files)),
        )
        sink_state.write_state(self.filesystem, self.log_dir, decided)
        return decided, contents

    def _check_counts(self, counts: Mapping[str, int]) -> None:
        found: dict[str, int] = {}
        for key in self.store.partitions():
            found[key.topic] = max(found.get(key.topic, 0), key.partition + 1)
        for topic, assumed in counts.items():
            if found.get(topic, assumed) != assumed:
                raise UsageError(
                    f"topic {topic} has {found[topic]} partitions by now, its rows were placed "
                    f"among {assumed}: write them again"
                )

    def _check_writable(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            problem = problem_of(self.store, key)
            if problem is not None:
                raise LogOfflineError(f"{key}: {problem}")

    # -- append ----------------------------------------------------------------------------------

    def finish(self, state: SinkState, contents: list[Content] | None) -> tuple[SinkState, int]:
        """Append what is missing of the pending batch; the state after it, and the records."""
        pending = state.pending
        assert pending is not None
        done = replace(state, done=max(state.done, pending.version), pending=None)
        try:
            records = self._append(state, pending, contents)
            sink_state.write_state(self.filesystem, self.log_dir, done)
        except StratalogError as error:
            path = os.path.join(self.log_dir, sink_state.state_name(state.writer))
            raise _decided(error, state, pending, path) from error
        return done, records

    def _append(self, state: SinkState, pending: Pending, contents: list[Content] | None) -> int:
        if contents is None:
            contents = [check_staged(self.filesystem, self.log_dir, f) for f in pending.files]
        records = records_of(contents)
        there = set(self.store.partitions())
        for key in pending.creates:
            if key not in there:
                self.store.create(key)
        for key in records:
            if key not in there and key not in pending.creates:
                raise CannotTellError(f"partition {key} is gone")
        self._check_writable(records)
        there_already = {
            key: appended(self.store, key, state, pending.starts[key]) for key in records
        }
        sequences = dict.fromkeys(records, 0)
        for file, content in zip(pending.files, contents, strict=True):
            for key, header, batch in frames(self.filesystem, self.log_dir, file, content):
                sequence = sequences[key]
                sequences[key] += header.records_count
                if sequences[key] <= there_already[key]:
                    continue
                if sequence < there_already[key]:
                    raise CorruptionError(f"{key} ends inside a batch of {state.writer}")
                sign(batch, state.producer_id, state.epoch, sequence)
                self.store.get(key).append(batch)
        if sequences != records:
            raise CorruptionError(f"batch {pending.version}: the staged files hold other records")
        for key in records:
            self.store.get(key).flush()
        return sum(records.values()) - sum(there_already.values())

    # -- others ----------------------------------------------------------------------------------

    def states(self) -> list[SinkState]:
        """All that can be read; what cannot be is its writer's to refuse."""
        found = []
        for name in sink_state.state_files(self.filesystem.list_directory(self.log_dir)):
            path = os.path.join(self.log_dir, name)
            try:
                state = sink_state.read_state_file(self.filesystem, path)
            except CorruptionError as error:
                _LOG.warning("%s", error)
                continue
            if state is not None:
                found.append(state)
        return found

    def finish_others(self, writer: str) -> None:
        """Finish what others have decided and not come back for.

        They had the lock to decide it, which is ours now: so they have failed.
        """
        for state in self.states():
            if state.writer != writer and state.pending is not None:
                try:
                    self.finish(state, None)
                except StratalogError as error:
                    _LOG.warning("%s", error)

    def sweep(self, now_ms: int) -> None:
        """Remove the files that nobody will append, and the records of jobs that are over."""
        states = {writer_key(state.writer): state for state in self.states()}
        unreadable = self._unreadable(states)

        def is_wanted(name: str, key: str, version: int) -> bool:
            state = states.get(key)
            if key in unreadable or (state is not None and state.claims(name)):
                return True
            if state is not None and state.is_done(version):
                return False
            with suppress(FileNotFoundError):
                stat = self.filesystem.stat(os.path.join(self.log_dir, name))
                return now_ms - stat.modified_ms < ABANDONED_MS
            return True

        remove_staged(self.filesystem, self.log_dir, is_wanted)
        gone = [state for state in states.values() if state.is_once and state.pending is None]
        if gone:
            # A record that is gone before its staged files would leave them to nobody.
            self.filesystem.fsync_directory(self.log_dir)
        names = sink_state.unfinished_files(self.filesystem.list_directory(self.log_dir))
        for name in [*names, *(sink_state.state_name(state.writer) for state in gone)]:
            self.filesystem.unlink(os.path.join(self.log_dir, name))

    def _unreadable(self, states: Mapping[str, SinkState]) -> set[str]:
        names = sink_state.state_files(self.filesystem.list_directory(self.log_dir))
        known = {sink_state.state_name(state.writer) for state in states.values()}
        return {sink_state.key_of(name) for name in names if name not in known}


def _decided(
    error: StratalogError, state: SinkState, pending: Pending, path: str
) -> StratalogError:
    """The error, with what has to be known of a batch that is decided."""
    which = f"batch {pending.version} of {state.writer}"
    if isinstance(error, CannotTellError):
        text = (
            f"{error}, so that nobody can tell how much of {which} was appended; without the file "
            f"{path} it is written again, all of it"
        )
    else:
        text = (
            f"{error}; {which} is decided: the next write to this directory appends the rest, do "
            f"not write its rows again ({path})"
        )
    return type(error)(text)
