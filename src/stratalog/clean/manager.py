"""Who cleans which partition: what is asked for, and what its log says.

    facts ─► `select.choose` ─► grab: the partition is in progress ─► cleaned | failed ─► done

The states (`states_keeper`) and what is remembered of each partition (`memory`) lie below.

Invariants
- I1  `_lock` guards everything here.
- I2  What was found out of a log is found out again only if something has changed that counts.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import is_

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptionError,
    RoundAbortedError,
    StratalogError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.clean.facts import Measured, facts_of, ledger_facts_of, measure
from stratalog.clean.history import ASKED, Entry
from stratalog.clean.memory import CleanerMemory
from stratalog.clean.note import UNKNOWN, Note
from stratalog.clean.select import Explanation, LogFacts, choose, explain, rank
from stratalog.clean.settings import CleanerSettings, TopicCleaning
from stratalog.clean.states import State
from stratalog.ledger.copies import LedgerCopies
from stratalog.ledger.ledgers import Ledgers
from stratalog.log.log_store import LogStore
from stratalog.log.partition_log import PartitionLog
from stratalog.log.view import LogView
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition

_LOG = logging.getLogger("stratalog.clean")
_ATTEMPTS = 100


@dataclass(slots=True, eq=False)
class Request:
    """A cleaning that somebody asked for; `done` is set when it has ended, well or not.

    `rolls`: the active segment is closed first; `ignores_lag`: also what is younger than
    `min.compaction.lag.ms`; `forgotten`: offsets of tombstones that go at once (CLN-11). `entry`:
    what came of it, `error`: why nothing did.
    """

    topic_partition: TopicPartition
    trigger: str = ASKED
    rolls: bool = True
    ignores_lag: bool = False
    forgotten: tuple[int, ...] = ()
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class Grabbed:
    """A partition that the caller has to clean, and give back with `done`. `request`: by whom it
    was asked for; None: it was chosen."""

    topic_partition: TopicPartition
    trigger: str
    dirty_ratio: float
    is_expired: bool
    request: Request | None = None
    told: Request | None = None
    """Who is told what came of it: `request`, or whoever asks while it goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class _KnownLedger:
    """The facts of a log in ledger mode, and what they were made of; `view` is weak."""

    view: weakref.ref[LogView]
    made_of: tuple[object, ...]
    facts: LogFacts


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What was last found out of a log, and from what. `view` is weak: see `LogView`."""

    view: weakref.ref[LogView]
    checkpoint: int | None
    measured: Measured
    topic: TopicCleaning
    note: Note
    state: State
    facts: LogFacts

    def holds(self, view: LogView, checkpoint: int | None, now_ms: int) -> bool:
        """Whether it would be the same again for the same topic, note and state. A log that nobody
        writes to has the same view, so that thousands of them are passed over quickly."""
        measured = self.measured
        return (
            self.view() is view
            and self.checkpoint == checkpoint
            and measured.since_ms <= now_ms < measured.until_ms
        )


class CleanerManager(CleanerMemory):
    """The cleaner of one store, but for its threads (`cleaner`); attach it (`LogStore.attach`)."""

    def __init__(
        self,
        store: LogStore,
        topic_of: Callable[[TopicPartition], TopicCleaning],
        filesystem: FileSystem,
        clock: Clock,
        settings: CleanerSettings,
    ):
        """`topic_of` is asked often: it should answer the same object while nothing changes."""
        super().__init__(store, filesystem, clock, settings)
        self._topic_of = topic_of
        self._known: dict[TopicPartition, _Known] = {}
        self._asked: dict[TopicPartition, Request] = {}
        self._unknown: dict[TopicPartition, None] = {}
        self._running: dict[TopicPartition, Request] = {}
        self._known_ledgers: dict[TopicPartition, _KnownLedger] = {}
        self.ledgers = Ledgers(store, filesystem)
        self.copies = LedgerCopies(self.ledgers)
        store.attach_copies(self.copies)

    # -- what is known ----------------------------------------------------------------------------

    def facts(self) -> list[LogFacts]:
        """All logs that are cleaned and take writes, as `select` sees them now."""
        now_ms = self._clock.now_ms()
        found = []
        for key, log in self._store.writable_logs():
            topic = self._topic_of(key)
            if topic.is_cleaned:
                facts = self._facts_of(key, log, topic, now_ms)
                if facts is not None:
                    found.append(facts)
        return found

    def facts_of(self, topic_partition: TopicPartition) -> LogFacts:
        """One log, whatever its policy. Raises `UnknownPartitionError`, `StratalogError`."""
        log = self._store.get(topic_partition)
        topic = self._topic_of(topic_partition)
        facts = self._facts_of(topic_partition, log, topic, self._clock.now_ms())
        if facts is None:
            raise UsageError(f"{topic_partition} cannot be looked at now")
        return facts

    def _facts_of(
        self, key: TopicPartition, log: PartitionLog, topic: TopicCleaning, now_ms: int
    ) -> LogFacts | None:
        if topic.uses_ledger:
            return self._ledger_facts_of(key, log, topic, now_ms)
        known = self._known.get(key)
        try:
            view = log.view
            note = self._notes.get(key) or self.note_of(key)
            checkpoint = self._store.cleaner_point(key)
            state = self._states.of(key)
        except StratalogError:
            return None  # it was closed or deleted meanwhile, or its disk fails
        if (
            known is not None
            and known.note is note
            and known.topic is topic
            and (known.state is state or known.state == state)
            and known.holds(view, checkpoint, now_ms)
        ):
            return known.facts
        try:
            measured = measure(
                view, checkpoint, topic, now_ms, None if known is None else known.measured
            )
        except Exception as error:  # noqa: BLE001  one log must not keep the others from being seen
            if log.is_writable and not note.waits(now_ms):
                self.blame(key, error)
            return None
        facts = facts_of(
            key,
            view,
            checkpoint,
            topic,
            now_ms=now_ms,
            state=state,
            note=note,
            measured=measured,
            expiry_ms=None,  # who cleans looks it up first (`unknown_expiries`)
        )
        if facts.first_uncleanable < facts.first_dirty:
            # What was cleaned cannot all be gone through again before the bound moves up.
            facts = replace(facts, next_expiry_ms=None)
        if note.failure is not None:
            # The round may have come far enough to leave less than the ratio that began it.
            facts = replace(facts, min_dirty_ratio=0.0)
        self._known[key] = _Known(
            weakref.ref(view), checkpoint, measured, topic, note, state, facts
        )
        if topic.is_compacted and note.expiry(checkpoint, by_segment=topic.by_segment) == UNKNOWN:
            self._unknown[key] = None
        else:
            self._unknown.pop(key, None)
        return facts

    def _ledger_facts_of(
        self, key: TopicPartition, log: PartitionLog, topic: TopicCleaning, now_ms: int
    ) -> LogFacts | None:
        self._unknown.pop(key, None)
        try:
            view = log.view
            note = self._notes.get(key) or self.note_of(key)
            current = self.ledgers.manifest(key).current
            state = self._states.of(key)
        except CorruptionError as error:
            if log.is_writable and not self.note_of(key).waits(now_ms):
                self.blame(key, error)
            return None
        except StratalogError:
            return None  # it was closed or deleted meanwhile, or its disk fails
        waits = self.copies.waits(key)
        made_of = (current, topic, note, state, waits)
        known = self._known_ledgers.get(key)
        if known is not None and known.view() is view and all(map(is_, known.made_of, made_of)):
            return known.facts
        facts = ledger_facts_of(
            key, view, current, topic, state=state, note=note, retention_waits=waits
        )
        self._known_ledgers[key] = _KnownLedger(weakref.ref(view), made_of, facts)
        return facts

    def explain(self, topic_partition: TopicPartition) -> Explanation:
        """Why a partition is or is not cleaned, with its place in the queue (CLN-10)."""
        facts = self.facts_of(topic_partition)
        log = self._store.get(topic_partition)
        if not log.is_writable:
            cause = log.offline or f"the log is quarantined: {log.quarantine}"
            facts = replace(facts, quarantined_until_ms=INT64_MAX, quarantine_cause=cause)
        now_ms = self._clock.now_ms()
        return explain(facts, now_ms, rank(self.facts(), now_ms))

    def queue(self) -> list[TopicPartition]:
        """What is cleaned next, in order: what was asked for, then what is eligible."""
        asked = list(self._asked)
        ranked = rank(self.facts(), self._clock.now_ms())
        chosen = [choice.topic_partition for choice in ranked]
        return [*asked, *(key for key in chosen if key not in asked)]

    def asked(self) -> list[TopicPartition]:
        """Whose cleaning somebody has asked for, and has not begun."""
        return list(self._asked)

    def unknown_expiries(self) -> list[TopicPartition]:
        """Compacted logs of which it has to be looked up when something expires (CMP-9)."""
        now_ms = self._clock.now_ms()
        writable = {key for key, _ in self._store.writable_logs()} if self._unknown else set()
        notes = [(key, self._notes.get(key)) for key in list(self._unknown) if key in writable]
        return [key for key, note in notes if note is not None and not note.waits(now_ms)]

    # -- rounds -----------------------------------------------------------------------------------

    def ask(self, request: Request) -> Request:
        """Put a request in the queue; one that waits for the same is answered in its place, and so
        is, in ledger mode, a run that goes on (LDG-2).

        Raises `UnknownPartitionError`, `UsageError` if the topic is not compacted or is paused.
        """
        key = request.topic_partition
        self._store.get(key)
        topic = self._topic_of(key)
        if not topic.is_cleaned:
            raise UsageError(f"{key}: cleanup.policy is without compact: nothing is cleaned there")
        if self.note_of(key).paused:
            raise UsageError(f"{key}: cleaning is paused; `stratalog compaction resume` ends that")
        with self._lock:
            running = self._running.get(key)
            if topic.uses_ledger and running is not None:
                return running
            waiting = self._asked.get(key)
            if waiting is not None:
                if waiting.trigger != request.trigger or request.forgotten:
                    raise UsageError(f"{key}: a cleaning of another kind waits to be done")
                return waiting
            self._asked[key] = request
            return request

    def withdraw(self, request: Request) -> bool:
        """Take a request back that has not begun; whether it had not."""
        with self._lock:
            if self._asked.get(request.topic_partition) is not request:
                return False
            del self._asked[request.topic_partition]
        # Whoever waits for the same request is told, too.
        request.error = RoundAbortedError(f"{request.topic_partition}: nobody wants it any more")
        request.done.set()
        return True

    def grab(self) -> Grabbed | None:
        """The next partition to clean, which is in progress from here on; None: there is none."""
        for _ in range(_ATTEMPTS):
            with self._lock:
                for key, request in self._asked.items():
                    if self.start(key):
                        del self._asked[key]
                        self._running[key] = request
                        return Grabbed(key, request.trigger, 0.0, False, request, request)
            now_ms = self._clock.now_ms()
            choice = choose(self.facts(), now_ms)
            if choice is None:
                return None
            if not self.start(choice.topic_partition):
                continue  # another thread was faster
            facts = choice.facts
            expiry_ms = facts.next_expiry_ms
            is_expired = expiry_ms is not None and expiry_ms <= now_ms
            key, trigger = facts.topic_partition, choice.reason.value
            told = Request(key, trigger, rolls=False)
            with self._lock:
                self._running[key] = told
            return Grabbed(key, trigger, facts.dirty_ratio, is_expired, told=told)
        return None

    def done(self, topic_partition: TopicPartition) -> None:
        """The round has ended; nobody joins it any more."""
        with self._lock:
            self._running.pop(topic_partition, None)
            super().done(topic_partition)

    def ledger_made(self, topic_partition: TopicPartition) -> None:
        """A run has ended well: nothing has failed, and retention need not wait for it. Raises
        `StorageIOError`."""
        self.copies.has_run(topic_partition)
        self._change_note(topic_partition, lambda note: replace(note, failure=None))

    def forget(self, topic_partition: TopicPartition) -> None:
        """See `Work`."""
        super().forget(topic_partition)
        with self._lock:
            self._known.pop(topic_partition, None)
            self._known_ledgers.pop(topic_partition, None)
            self._unknown.pop(topic_partition, None)
            request = self._asked.pop(topic_partition, None)
        self.ledgers.forget(topic_partition)
        self.copies.has_run(topic_partition)
        if request is not None:
            request.error = UnknownPartitionError(f"{topic_partition} has been deleted")
            request.done.set()
