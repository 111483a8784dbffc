"""The cleaner's threads: grab a partition, clean it, put it in place, write down what came of it.

    run_once   grab ─► round ─► note, checkpoint ─► done ─► history ─► retention of that log
               nothing to grab: look up an unknown expiry; retention of what is only compacted
    start      `log.cleaner.threads` threads of `run_once`, with `log.cleaner.backoff.ms` of rest
               when there was nothing to do

Invariants
- I1  An error ends its round and nothing else: damage, a full disk, and what nobody thought of keep
      the partition from being cleaned until its back-off is over; an error of the disk takes its
      directory offline (CLN-7).
- I2  A partition that was grabbed is given back, whatever happens; an aborted round moves no
      checkpoint (CLN-4).
- I3  An idle cleaner holds no buffers: an engine lives as long as its round (CLN-8).
- I4  Old segments of compacted logs go in every loop, cleaned or not (CLN-6); the store sees to
      that where no cleaner runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptionError,
    LogOfflineError,
    RoundAbortedError,
    StratalogError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.throttle import Throttle
from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.expiry import next_expiry_of
from stratalog.clean.history import Entry, append_history
from stratalog.clean.job import CleanSpec
from stratalog.clean.ledger_round import LedgerOutcome, LedgerRun, ledger_entry, run_ledger
from stratalog.clean.manager import CleanerManager, Grabbed
from stratalog.clean.metered import Meter, MeteredFileSystem
from stratalog.clean.note import UNKNOWN
from stratalog.clean.round import (
    EngineOf,
    RoundInputs,
    RoundOutcome,
    clean_log,
    entry_of,
    local_engine_of,
    sweep,
)
from stratalog.clean.settings import CleanerSettings, TopicCleaning, spec_of
from stratalog.clean.stats import CleanerStats
from stratalog.ledger.manifest import held_alone
from stratalog.log.log_store import LogStore
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.clean")
_NOBODY_IS_TO_BLAME = (RoundAbortedError, LogOfflineError, UnknownPartitionError)


@dataclass(frozen=True, slots=True)
class Activity:
    """What a thread does now. `progress` None: it plans, or swaps."""

    thread: str
    topic_partition: TopicPartition
    trigger: str
    started_ms: int
    progress: Progress | None = None

    def eta_ms(self, now_ms: int) -> int | None:
        """How long the phase will still take at the speed so far; None: nobody knows."""
        progress = self.progress
        if progress is None or progress.done_bytes <= 0:
            return None
        left_bytes = max(progress.total_bytes - progress.done_bytes, 0)
        return int((now_ms - self.started_ms) * left_bytes / progress.done_bytes)


class Cleaner:
    """Cleans the logs of one store. `on_round` is told of each round that has ended, in the thread
    that ran it. `_lock` guards the activities, the threads and the counters."""

    def __init__(
        self,
        store: LogStore,
        manager: CleanerManager,
        topic_of: Callable[[TopicPartition], TopicCleaning],
        filesystem: FileSystem,
        clock: Clock,
        settings: CleanerSettings,
        engine_of: EngineOf = local_engine_of,
    ):
        self.stats = CleanerStats()
        self.on_round: Callable[[TopicPartition, Entry], None] = lambda _key, _entry: None
        self.throttle = Throttle(clock, settings.io_max_bytes_per_second)
        self._store = store
        self._manager = manager
        self._topic_of = topic_of
        self._filesystem = filesystem
        self._clock = clock
        self._settings = settings
        self._engine_of = engine_of
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._is_started = False
        self._activities: dict[str, Activity] = {}

    # -- threads ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Clean in threads of its own until `close`; nothing if `log.cleaner.enable` is false."""
        self._is_started = True
        if self._settings.enable and not self._threads:
            self.stats.last_loop_ms = self._clock.now_ms()
            for number in range(self._settings.threads):
                name = f"log-cleaner-{number}"
                thread = threading.Thread(target=self._run, args=(name,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Abort what runs, and wait for the threads. Closing twice is fine."""
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._is_started = False

    def configure(self, settings: CleanerSettings) -> None:
        """Go by other settings from the next round on; another number of threads begins anew."""
        restarts = self._is_started and (settings.threads, settings.enable) != (
            self._settings.threads,
            self._settings.enable,
        )
        if restarts:
            self.close()
            self._stop.clear()
        self._settings = settings
        self.throttle.rate = settings.io_max_bytes_per_second
        if restarts:
            self.start()

    @property
    def is_running(self) -> bool:
        """Whether threads clean."""
        return bool(self._threads)

    @property
    def thread_count(self) -> int:
        """Threads that were started."""
        return len(self._threads)

    @property
    def dead_threads(self) -> int:
        """Threads that should run and do not."""
        return sum(not thread.is_alive() for thread in self._threads)

    def activities(self) -> list[Activity]:
        """What is being cleaned now."""
        with self._lock:
            return list(self._activities.values())

    def wake(self) -> None:
        """End the threads' rest: there may be something to do."""
        self._wake.set()

    def _run(self, name: str) -> None:
        while not self._stop.is_set():
            try:
                was_busy = self.run_once(name)
            except Exception:  # noqa: BLE001  nothing ends the thread (I1)
                _LOG.exception("%s goes on after an error", name)
                was_busy = False
            if not was_busy:
                self._wake.wait(self._settings.backoff_ms / 1000)
                self._wake.clear()

    # -- a loop -----------------------------------------------------------------------------------

    def run_once(self, thread: str = "", on_progress: OnProgress = lambda _: None) -> bool:
        """Clean the partition that needs it most; whether there was one."""
        self.stats.last_loop_ms = self._clock.now_ms()
        grabbed = self._manager.grab()
        if grabbed is None:
            self._look_up_expiry()
            self._store.run_retention(self._below_start())
            return False
        self._round(grabbed, thread, on_progress)
        self._store.run_retention([grabbed.topic_partition])
        return True

    def _below_start(self) -> list[TopicPartition]:
        """Compacted logs with a segment below their log start: cheap to see, for thousands."""
        found = []
        for key, log in self._store.writable_logs():
            try:
                view = log.view
            except UsageError:
                continue  # closed meanwhile
            bases = view.segments.bases
            if len(bases) > 1 and bases[1] <= view.log_start_offset and log.settings.is_compacted:
                found.append(key)
        return found

    def _look_up_expiry(self) -> None:
        """Find out for one log, which another program has cleaned, when something expires."""
        for key in self._manager.unknown_expiries():
            with self._manager.if_free(key) as is_free:
                if is_free:
                    self._look_up(key)
                    self._wake.set()  # there may be more of them
                    return

    def _look_up(self, key: TopicPartition) -> None:
        try:
            log, found = self._store.get(key), None
            if not self._topic_of(key).by_segment:
                # A truncation can leave what was cleaned in the active segment.
                below = self._store.cleaner_point(key) or 0
                segments = [one for one in log.segments if one.base_offset < below]
                meter = Meter(self.throttle, lambda: self._check(key))
                disk = MeteredFileSystem(self._filesystem, meter)
                found = next_expiry_of(disk, log.path, segments)
            self._manager.expiry_found(key, found)
        except _NOBODY_IS_TO_BLAME as error:
            _LOG.warning("%s: when something expires is not known: %s", key, error)
        except Exception as error:  # noqa: BLE001  (I1)
            self._manager.blame(key, error)

    # -- a round ----------------------------------------------------------------------------------

    def _round(self, grabbed: Grabbed, thread: str, on_progress: OnProgress) -> None:
        key = grabbed.topic_partition
        started_ms, began = self._clock.now_ms(), time.perf_counter()
        activity = Activity(thread, key, grabbed.trigger, started_ms)
        entry = Entry(started_ms, 0, grabbed.trigger, "cleaned", thread=thread)
        meter = Meter(self.throttle, lambda: self._check(key))
        waited_ms = self.throttle.waited_ms
        error: BaseException | None = None
        try:
            self._report(activity)
            if self._topic_of(key).uses_ledger:
                entry = replace(entry, mode="ledger")
                entry = ledger_entry(
                    entry, self._make_ledger(grabbed, activity, meter, on_progress)
                )
            else:
                entry = self._clean_log(grabbed, activity, meter, on_progress, entry)
        except BaseException as raised:  # noqa: BLE001  (I1, I2)
            error = raised
            entry = replace(entry, result="failed", cause=_cause(raised))
            entry = replace(entry, result=self._failed(key, raised))
            self._sweep(key)
        finally:
            entry = replace(
                entry,
                duration_ms=int((time.perf_counter() - began) * 1000),
                throttled_ms=self.throttle.waited_ms - waited_ms,
            )
            try:
                self._write_down(key, entry)
            finally:
                with self._lock:
                    self._activities.pop(thread, None)
                self._manager.done(key)
                self._answer(grabbed, entry, meter, error)
        if error is not None and not isinstance(error, Exception):
            raise error  # Ctrl-C, in a caller's own thread

    def _telling(self, activity: Activity, on_progress: OnProgress) -> OnProgress:
        def tell(progress: Progress) -> None:
            self._report(activity, progress)
            on_progress(progress)

        return tell

    def _make_ledger(
        self, grabbed: Grabbed, activity: Activity, meter: Meter, on_progress: OnProgress
    ) -> LedgerOutcome:
        """A round of a topic in ledger mode: the raw log is only read."""
        key = grabbed.topic_partition
        log, topic = self._store.get(key), self._topic_of(key)

        def flush(end_offset: int) -> None:
            if log.recovery_point < end_offset:
                log.flush()

        told = LedgerRun(
            key,
            log.path,
            lambda: log.view,
            self._spec(topic, max_keys=None),
            topic.ledgers_retained,
            grabbed.trigger,
            flush,
            lambda: self._check(key),
            self._clock.now_ms,
        )
        disk = MeteredFileSystem(self._filesystem, meter)
        tell = self._telling(activity, on_progress)
        outcome = run_ledger(told, self._manager.ledgers, self._engine_of, disk, tell)
        self._manager.ledger_made(key)
        return outcome

    def _clean_log(
        self,
        grabbed: Grabbed,
        activity: Activity,
        meter: Meter,
        on_progress: OnProgress,
        entry: Entry,
    ) -> Entry:
        """A round in place. A ledger of a topic that has left that mode goes first: what it builds
        upon is about to change."""
        key = grabbed.topic_partition
        self._check_ledger(key)
        self._manager.ledgers.drop(key)
        outcome = self._clean(grabbed, activity, meter, on_progress)
        if outcome.engine not in ("", "local"):
            self._sweep(key)  # attempts elsewhere that died, or were outrun, leave files
        return entry_of(entry, outcome, self._settings)

    def _check_ledger(self, key: TopicPartition) -> None:
        """Raises `UsageError` if the ledger must not go unasked, since the log has lost what it
        holds; `CorruptionError` if nobody knows that of a log whose beginning is gone."""
        log = self._store.get(key)
        start = log.log_start_offset
        try:
            current = self._manager.ledgers.manifest(key).current
        except CorruptionError:
            if start <= 0:
                return
            raise
        alone = held_alone(current, start)
        if alone is not None:
            raise UsageError(
                f"{key}: compaction.mode is inplace by now, but offsets {alone[0]} to "
                f"{alone[1] - 1} are only in its ledger, which cleaning in place drops: set "
                "compaction.mode=ledger again to keep them, or give them up with `stratalog config "
                f"alter {key.topic} --add-config compaction.mode=inplace`"
            )

    def _spec(self, topic: TopicCleaning, max_keys: int | None) -> CleanSpec:
        return spec_of(
            topic,
            self._clock.now_ms(),
            max_keys=max_keys,
            memory_bytes=self._settings.thread_buffer_bytes,
            chunk_bytes=self._settings.chunk_bytes,
        )

    def _clean(
        self, grabbed: Grabbed, activity: Activity, meter: Meter, on_progress: OnProgress
    ) -> RoundOutcome:
        """The round itself, up to the checkpoint."""
        key, request = grabbed.topic_partition, grabbed.request
        log, topic = self._store.get(key), self._topic_of(key)
        if not topic.is_compacted:
            raise RoundAbortedError(f"{key}: its cleanup.policy has lost compact")
        if request is not None and request.rolls:
            log.roll()
        spec = self._spec(topic, self._settings.max_keys)
        checkpoint = self._store.cleaner_point(key)
        expiry_ms = self._manager.note_of(key).expiry(checkpoint, by_segment=topic.by_segment)
        is_expired = expiry_ms is not None and expiry_ms <= spec.now_ms
        outcome = clean_log(
            RoundInputs(
                str(key),
                log,
                checkpoint,
                spec,
                0 if request is not None and request.ignores_lag else topic.min_lag_ms,
                is_expired=is_expired,
                forgotten=() if request is None else request.forgotten,
            ),
            self._engine_of,
            MeteredFileSystem(self._filesystem, meter),
            lambda: self._check(key),
            self._telling(activity, on_progress),
            lambda paths: self._store.unlink_later(key, paths),
        )
        if outcome.cleaned is not None:
            # What was cleaned before stays so where a bound was moved down to below it.
            end_offset = max(outcome.cleaned.end_offset, outcome.cleanable.first_dirty)
            expiry_ms = UNKNOWN if topic.by_segment else outcome.cleaned.next_expiry_ms
            self._manager.cleaned(key, end_offset, expiry_ms)
        else:
            if outcome.cleanable.checkpoint_was_reset:
                self._store.set_cleaner_point(key, outcome.cleanable.first_dirty)
            if is_expired and outcome.cleanable.first_dirty <= outcome.cleanable.first_uncleanable:
                # There is nothing in which anything could expire: or this would be tried for ever.
                self._manager.expiry_found(key, None)
        return outcome

    def _failed(self, key: TopicPartition, error: BaseException) -> str:
        """Quarantine a partition whose round failed, unless its disk or nobody is to blame; how
        the round ended."""
        if not isinstance(error, Exception) or isinstance(error, _NOBODY_IS_TO_BLAME):
            return "aborted"
        self._manager.blame(key, error)
        return "failed"

    def _sweep(self, key: TopicPartition) -> None:
        """Remove what the round has left: if it failed, or an attempt of it on Spark did."""
        try:
            sweep(self._filesystem, self._store.get(key).path)
        except (StratalogError, FileNotFoundError) as error:
            _LOG.warning("%s: files of a round are left: %s", key, error)

    def _write_down(self, key: TopicPartition, entry: Entry) -> None:
        """Into the history, while nobody can delete or close the log."""
        try:
            path = self._store.get(key).path
            append_history(self._filesystem, path, entry, self._settings.history_size)
        except (StratalogError, FileNotFoundError) as raised:
            _LOG.warning("%s: the history takes no entry: %s", key, raised)

    def _answer(
        self, grabbed: Grabbed, entry: Entry, meter: Meter, error: BaseException | None
    ) -> None:
        """Count the round, and answer whoever asked for it, whatever happens."""
        try:
            self._tell(grabbed.topic_partition, entry, meter)
        finally:
            if grabbed.told is not None:
                grabbed.told.error, grabbed.told.entry = error, entry
                grabbed.told.done.set()

    def _tell(self, key: TopicPartition, entry: Entry, meter: Meter) -> None:
        with self._lock:
            self.stats.add(
                entry,
                read_bytes=meter.read_bytes,
                written_bytes=meter.written_bytes,
                now_ms=self._clock.now_ms(),
            )
        saved = f"{entry.bytes_before} -> {entry.bytes_after} bytes"
        _LOG.info("%s: %s (%s): %s", key, entry.result, entry.trigger, entry.cause or saved)
        self.on_round(key, entry)

    def _report(self, activity: Activity, progress: Progress | None = None) -> None:
        with self._lock:
            self._activities[activity.thread] = replace(activity, progress=progress)

    def _check(self, key: TopicPartition) -> None:
        """Raises `RoundAbortedError` if the round has to stop."""
        if self._stop.is_set():
            raise RoundAbortedError(f"{key}: the cleaner stops")
        if self._manager.must_stop(key):
            raise RoundAbortedError(f"{key}: the round was aborted")
        if not self._store.get(key).is_writable:
            raise RoundAbortedError(f"{key}: the log takes no writes")


def _cause(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return " ".join(str(error).split()) or type(error).__name__
