"""A store and its cleaner in one process: what runs by itself, and what can be asked of it.

    open_service ─► store, manager, cleaner threads ─► close
    compact · pause · resume · retry · explain · history · change (settings)

Commands use it for one question and without threads; whatever owns logs for long has it run. What
is asked for is done by the cleaner's threads where they run, else by the caller's own.

Invariants
- I1  A change of settings is whole or not there, and aborts a round of a topic that it takes
      `compact` from (CFG-2).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from stratalog.admin.floors import cleaner_settings, store_settings
from stratalog.admin.round_engines import RoundEngines
from stratalog.admin.store import open_store
from stratalog.admin.topics import Topics
from stratalog.base.clock import Clock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.base.open_files import raise_open_files_limit
from stratalog.clean.cleaner import Activity, Cleaner
from stratalog.clean.engine import OnProgress
from stratalog.clean.history import Entry, read_history
from stratalog.clean.ledger_ends import note_ended
from stratalog.clean.manager import CleanerManager, Request
from stratalog.clean.select import Explanation
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.config.book import SettingsBook
from stratalog.config.settings import Settings
from stratalog.log.log_store import LogStore
from stratalog.segment.names import TopicPartition

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What the cleaner does now. `quarantined` and `paused` are partitions that it passes over."""

    is_running: bool
    threads: int
    activities: tuple[Activity, ...]
    queue: tuple[TopicPartition, ...]
    quarantined: tuple[Explanation, ...]
    paused: tuple[TopicPartition, ...]


class Service:
    """Use `open_service`. The parts may be used as they are; `store` is where the logs are."""

    def __init__(
        self,
        store: LogStore,
        topics: Topics,
        filesystem: FileSystem,
        clock: Clock,
    ):
        self.store = store
        self._topics = topics
        self._filesystem = filesystem
        self._clock = clock
        settings = self.cleaner_settings
        self._engines = RoundEngines(lambda: self.cleaner_settings)
        self.manager = CleanerManager(store, topics.cleaning, filesystem, clock, settings)
        self.cleaner = Cleaner(
            store, self.manager, topics.cleaning, filesystem, clock, settings, self._engines
        )
        store.attach(self.manager)
        self.ledgers = self.manager.ledgers
        self.ledgers.sweep(partial(note_ended, filesystem, kept=settings.history_size))
        self._is_closed = False

    @property
    def cleaner_settings(self) -> CleanerSettings:
        """The broker's settings for the cleaner, as they are now."""
        return cleaner_settings(self._topics.book.of_broker())

    @property
    def book(self) -> SettingsBook:
        """All settings in force."""
        return self._topics.book

    def settings(self, topic: str) -> Settings:
        """A topic's settings in force, each with its sources."""
        return self._topics.settings(topic)

    def cleaning(self, topic_partition: TopicPartition) -> TopicCleaning:
        """What the cleaner goes by in a partition."""
        return self._topics.cleaning(topic_partition)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the service is closed")

    def start(self) -> None:
        """Let the store's upkeep and the cleaner run by themselves."""
        self._check_open()
        self.store.start()
        self.cleaner.start()

    def close(self) -> None:
        """Stop cleaning; the store is closed by who opened it. Who waits for a round is told."""
        self._is_closed = True
        self.cleaner.close()
        self._engines.close()

    # -- settings ---------------------------------------------------------------------------------

    def change(self, book: SettingsBook) -> None:
        """Go by another book: logs from their next call on, the cleaner from its next round on.

        Make it by `book.with_topic` and the like, which refuse what cannot be. A topic that is not
        to be compacted any more has its round aborted (CLN-4).
        """
        self._check_open()
        before = {key: self._topics.cleaning(key) for key, _ in self.store.logs()}
        self._topics.change(book)
        for key, log in self.store.logs():
            log.configure(self._topics.log_settings(key))
            was, now = before.get(key), self._topics.cleaning(key)
            if was is not None and (
                (was.is_cleaned and not now.is_cleaned) or was.uses_ledger != now.uses_ledger
            ):
                self.manager.abort(key)
        self.manager.configure(self.cleaner_settings)
        self.cleaner.configure(self.cleaner_settings)

    def drop_ledger(self, topic_partition: TopicPartition) -> bool:
        """There is to be no ledger of a partition, whatever only it has; whether there was one. A
        run that works on it is aborted first. Raises as `Ledgers.drop`."""
        self._check_open()
        with self.manager.exclusively(topic_partition):
            return self.ledgers.drop(topic_partition)

    # -- cleaning on demand -----------------------------------------------------------------------

    def compact(
        self,
        topic_partition: TopicPartition,
        *,
        rolls: bool = True,
        on_progress: OnProgress = lambda _: None,
    ) -> list[Entry]:
        """Clean a partition now, whatever its dirty ratio (CLN-9); the rounds that it took.

        `rolls`: the active segment is closed first and takes part. The minimum lag holds, and open
        transactions do. In ledger mode it is one run, the one that goes on if there is one (LDG-2).
        Raises `UsageError` (not compacted, paused, unknown), `RoundAbortedError`,
        and what made a round fail.
        """
        self.store.get(topic_partition)
        return self.clean_through(
            topic_partition, lambda: Request(topic_partition, rolls=rolls), on_progress
        )

    def cancel(self, topic_partition: TopicPartition) -> bool:
        """Stop the round that works on a partition; whether there was one (CLN-9)."""
        return self.manager.abort(topic_partition)

    def clean_through(
        self,
        key: TopicPartition,
        request_of: Callable[[], Request],
        on_progress: OnProgress,
        upto: int | None = None,
    ) -> list[Entry]:
        """Round after round, as a full map ends each (CMP-5), up to `upto`, else the log's end.

        Raises as `compact`.
        """
        entries: list[Entry] = []
        end = self.store.get(key).log_end_offset if upto is None else upto
        while True:
            self._check_open()
            mine = request_of()
            request = self.manager.ask(mine)
            self._wait(request, on_progress, is_ours=request is mine)
            if request.error is not None:
                raise request.error
            assert request.entry is not None
            before = entries[-1].end_offset if entries else -1
            entries.append(request.entry)
            if request.entry.end_offset >= end or request.entry.end_offset == before:
                return entries
            if request.entry.result != "cleaned" or request.entry.mode == "ledger":
                return entries

    def _wait(self, request: Request, on_progress: OnProgress, *, is_ours: bool) -> None:
        try:
            while not request.done.is_set():
                if self._is_closed:
                    self.manager.withdraw(request)  # one that has begun is aborted, and told
                    request.done.wait(_POLL_SECONDS)
                elif self.cleaner.is_running:
                    self.cleaner.wake()
                    request.done.wait(_POLL_SECONDS)
                    self._tell(request, on_progress)
                elif not self.cleaner.run_once("caller", on_progress):
                    time.sleep(_POLL_SECONDS)  # somebody keeps it from being cleaned
        except BaseException:
            # Whoever asked has gone: what has not begun is not wanted any more.
            if is_ours and not self.manager.withdraw(request) and self.cleaner.is_running:
                self.manager.abort(request.topic_partition)
            raise

    def _tell(self, request: Request, on_progress: OnProgress) -> None:
        for activity in self.cleaner.activities():
            is_ours = activity.topic_partition == request.topic_partition
            if is_ours and activity.progress is not None:
                on_progress(activity.progress)

    # -- steering ---------------------------------------------------------------------------------

    def pause(self, topic_partition: TopicPartition) -> bool:
        """Keep a partition from being cleaned until `resume`, also after a restart; whether it was
        not paused before. Its retention goes on."""
        self._check_open()
        return self.manager.pause(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> bool:
        """End a pause; whether there was one."""
        self._check_open()
        resumed = self.manager.resume(topic_partition)
        self.cleaner.wake()
        return resumed

    def retry(self, topic_partition: TopicPartition) -> bool:
        """Do not wait for a failed partition's back-off; whether it had failed (CLN-7)."""
        self._check_open()
        retried = self.manager.retry(topic_partition)
        self.cleaner.wake()
        return retried

    def explain(self, topic_partition: TopicPartition) -> Explanation:
        """Why a partition is or is not cleaned, in one sentence and with the values (CLN-10)."""
        return self.manager.explain(topic_partition)

    def history(self, topic_partition: TopicPartition, limit: int | None = None) -> list[Entry]:
        """The last rounds of a partition, oldest first (CLN-9)."""
        kept = self.cleaner_settings.history_size if limit is None else limit
        path = self.store.get(topic_partition).path
        return read_history(self._filesystem, path, kept)

    def status(self) -> ServiceStatus:
        """What the cleaner does, what waits, what it passes over."""
        failing, paused = [], []
        for facts in self.manager.facts():
            note = self.manager.note_of(facts.topic_partition)
            if note.failure is not None:
                failing.append(self.manager.explain(facts.topic_partition))
            if note.paused:
                paused.append(facts.topic_partition)
        return ServiceStatus(
            self.cleaner.is_running,
            self.cleaner_settings.threads,
            tuple(self.cleaner.activities()),
            tuple(self.manager.queue()),
            tuple(failing),
            tuple(paused),
        )


@contextmanager
def open_service(
    log_dirs: Sequence[str],
    book: SettingsBook,
    filesystem: FileSystem,
    clock: Clock,
    *,
    starts: bool = False,
    on_progress: OnProgress = lambda _: None,
) -> Iterator[Service]:
    """The logs in `log_dirs` and their cleaner; with `starts` both run by themselves, and the
    process may have as many files open as its hard limit allows.

    Kafka's own topics, such as `__consumer_offsets`, are compacted whatever the default (CLN-12).

    Raises as `open_store`.
    """
    if starts:
        raise_open_files_limit()
    topics = Topics(book)
    with open_store(
        log_dirs,
        topics.log_settings,
        filesystem,
        clock,
        on_progress,
        store_settings(book.of_broker()),
    ) as store:
        service = Service(store, topics, filesystem, clock)
        try:
            if starts:
                service.start()
            yield service
        finally:
            service.close()
