"""The cleaner's view of directories: state, explanations, queue, history.

The same facts and the same functions as in the service that owns a directory (`clean/facts.py`,
`clean/select.py`), made from files alone. Looking changes nothing and asks for no lock, so that it
works beside a live process, too, whose files are then a moment old.

Invariants
- I1  Looking writes nothing; what is wrong with one partition is told with it, and others go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.floors import choice_settings, log_settings
from stratalog.admin.policies import COMPACTED_TOPICS
from stratalog.admin.state import open_to_read
from stratalog.base.clock import Clock, StoppedClock
from stratalog.base.errors import StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.facts import Sections, facts_of, ledger_facts_of, measure, sections_of
from stratalog.clean.history import KEPT, Entry, read_history
from stratalog.clean.note import UNKNOWN, Note, read_note
from stratalog.clean.select import Explanation, LogFacts, explain, rank
from stratalog.clean.settings import TopicCleaning
from stratalog.clean.states import NONE, State, paused
from stratalog.config.settings import Settings
from stratalog.ledger.manifest import Generation, read_manifest
from stratalog.log.checkpoint import checkpoint_entry
from stratalog.log.quarantine import read_quarantine
from stratalog.log.view import LogView
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import CLEANER_OFFSET_CHECKPOINT

Found = TypeVar("Found")
SettingsOf = Callable[[str], Settings]
"""topic -> its settings."""


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A partition as the cleaner would see it. `checkpoint`: the cleaner's, None without one;
    `quarantine`: why the log takes no writes; `last`: the newest entry of its history."""

    place: PartitionPlace
    log_start_offset: int
    log_end_offset: int
    checkpoint: int | None
    facts: LogFacts
    sections: Sections
    note: Note
    quarantine: str | None
    last: Entry | None

    @property
    def is_failing(self) -> bool:
        return self.note.failure is not None or self.quarantine is not None

    def as_json(self) -> dict[str, Any]:
        facts, note = self.facts, self.note
        knows_expiry = facts.next_expiry_ms != UNKNOWN
        return {
            "log_start_offset": self.log_start_offset,
            "log_end_offset": self.log_end_offset,
            "checkpoint": self.checkpoint,
            "first_dirty": facts.first_dirty,
            "first_uncleanable": facts.first_uncleanable,
            "bytes": {**asdict(self.sections), "total": self.sections.total},
            "dirty_ratio": facts.dirty_ratio,
            "min_dirty_ratio": facts.min_dirty_ratio,
            "is_compacted": facts.is_compacted,
            "next_expiry_is_known": knows_expiry,
            "next_expiry_ms": facts.next_expiry_ms if knows_expiry else None,
            "paused": note.paused,
            "failure": None if note.failure is None else asdict(note.failure),
            "quarantine": self.quarantine,
            "last_run": None if self.last is None else self.last.as_json(),
        }


@dataclass(frozen=True, slots=True)
class PartitionItem(Generic[Found]):
    """What was found of a partition, or why nothing was: one of the two is None."""

    partition: str
    directory: str
    found: Found | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StatusReport:
    """What lies in the partitions, at `now_ms`."""

    now_ms: int
    partitions: tuple[PartitionItem[LookedAt], ...]

    @property
    def is_ok(self) -> bool:
        """Every partition could be read."""
        return all(item.error is None for item in self.partitions)

    @property
    def found(self) -> list[LookedAt]:
        return [item.found for item in self.partitions if item.found is not None]

    def queue(self) -> list[Explanation]:
        """What would be cleaned, in that order, each with its reason."""
        queue = rank([item.facts for item in self.found], self.now_ms)
        return [explain(choice.facts, self.now_ms, queue) for choice in queue]

    def explanations(self) -> list[PartitionItem[Explanation]]:
        """Why each partition is or is not to be cleaned."""
        queue = rank([item.facts for item in self.found], self.now_ms)
        return [
            PartitionItem(
                item.partition,
                item.directory,
                None if item.found is None else explain(item.found.facts, self.now_ms, queue),
                item.error,
            )
            for item in self.partitions
        ]

    def as_json(self) -> dict[str, Any]:
        partitions = [
            {
                "partition": item.partition,
                "directory": item.directory,
                **({} if item.found is None else item.found.as_json()),
                "error": item.error,
            }
            for item in self.partitions
        ]
        return {"ok": self.is_ok, "now_ms": self.now_ms, "partitions": partitions}

    def explained_json(self) -> dict[str, Any]:
        partitions = [
            {
                **({} if item.found is None else item.found.as_json()),
                "partition": item.partition,
                "directory": item.directory,
                "error": item.error,
            }
            for item in self.explanations()
        ]
        return {"ok": self.is_ok, "now_ms": self.now_ms, "partitions": partitions}

    def cleaner_json(self) -> dict[str, Any]:
        """The cleaner's side of it: the queue, who keeps it from working, sums."""
        failing = [item for item in self.found if item.is_failing]
        return {
            "ok": self.is_ok,
            "now_ms": self.now_ms,
            "queue": [
                {"partition": str(item.facts.topic_partition), **_reason_json(item)}
                for item in self.queue()
            ],
            "uncleanable": [
                {
                    "partition": item.place.name,
                    "directory": item.place.path,
                    "failure": None if item.note.failure is None else asdict(item.note.failure),
                    "quarantine": item.quarantine,
                }
                for item in failing
            ],
            "paused": [item.place.name for item in self.found if item.note.paused],
            "errors": [
                {"partition": item.partition, "directory": item.directory, "error": item.error}
                for item in self.partitions
                if item.error is not None
            ],
            "totals": {
                "partitions": len(self.partitions),
                "uncleanable_partitions": len(failing),
                "uncleanable_bytes": sum(item.sections.total for item in failing),
                "max_dirty_ratio": max(
                    (item.facts.dirty_ratio for item in self.found), default=0.0
                ),
                "bytes": {**asdict(self.sections), "total": self.sections.total},
            },
        }

    @property
    def sections(self) -> Sections:
        """The sums over all partitions."""
        parts = [item.sections for item in self.found]
        return Sections(
            sum(part.clean for part in parts),
            sum(part.cleanable for part in parts),
            sum(part.uncleanable for part in parts),
            sum(part.active for part in parts),
        )


def _reason_json(explanation: Explanation) -> dict[str, Any]:
    return {
        "reason": None if explanation.reason is None else explanation.reason.value,
        "place": explanation.place,
        "dirty_ratio": explanation.facts.dirty_ratio,
        "sentence": explanation.sentence,
    }


def status(
    targets: Sequence[str],
    settings_of: SettingsOf,
    filesystem: FileSystem,
    clock: Clock,
    *,
    finds_expiry: bool = False,
) -> StatusReport:
    """Look at the partitions in `targets`. `finds_expiry`: where no note says when something
    expires, batch headers are read for it. Raises `UsageError`."""
    clock = StoppedClock(clock.now_ms())
    found = tuple(
        _item(place, settings_of(place.topic_partition.topic), filesystem, clock, finds_expiry)
        for place in find_partitions(targets, filesystem)
    )
    return StatusReport(clock.now_ms(), found)


def _item(
    place: PartitionPlace,
    settings: Settings,
    filesystem: FileSystem,
    clock: Clock,
    finds_expiry: bool,
) -> PartitionItem[LookedAt]:
    try:
        found = look(place, settings, filesystem, clock, finds_expiry=finds_expiry)
    except (StratalogError, FileNotFoundError) as error:
        return PartitionItem(place.name, place.path, None, str(error))
    return PartitionItem(place.name, place.path, found)


def look(
    place: PartitionPlace,
    settings: Settings,
    filesystem: FileSystem,
    clock: Clock,
    *,
    finds_expiry: bool = False,
) -> LookedAt:
    """One partition, from its files. Raises `StratalogError`, `FileNotFoundError`."""
    now_ms = clock.now_ms()
    topic = choice_settings(settings)
    if place.topic_partition.topic in COMPACTED_TOPICS:
        topic = replace(topic, is_compacted=True)
    checkpoints = os.path.join(place.log_dir, CLEANER_OFFSET_CHECKPOINT)
    checkpoint = checkpoint_entry(filesystem, checkpoints, place.topic_partition)
    note = read_note(filesystem, place.path)
    quarantine = read_quarantine(filesystem, place.path)
    # The end of a log that somebody writes, or that a crash has torn, is no matter of ours.
    with open_to_read(place, log_settings(settings), filesystem, clock, may_be_torn=True) as log:
        view = log.view
        expiry_ms: int | None = UNKNOWN
        if finds_expiry and note.expiry(checkpoint, by_segment=topic.by_segment) == UNKNOWN:
            end = measure(view, checkpoint, topic, now_ms).cleanable.first_uncleanable
            expiry_ms = _expiry_in(place, view, end, filesystem)
        entries = read_history(filesystem, place.path, limit=1)
        ledger = read_manifest(filesystem, place.path).current if topic.uses_ledger else None
        return look_at(
            place,
            view,
            checkpoint,
            topic,
            note,
            now_ms=now_ms,
            state=paused(1) if note.paused else NONE,
            expiry_ms=expiry_ms,
            quarantine=None if quarantine is None else str(quarantine),
            last=entries[-1] if entries else None,
            ledger=ledger,
        )


def look_at(
    place: PartitionPlace,
    view: LogView,
    checkpoint: int | None,
    topic: TopicCleaning,
    note: Note,
    *,
    now_ms: int,
    state: State,
    expiry_ms: int | None = UNKNOWN,
    quarantine: str | None = None,
    last: Entry | None = None,
    ledger: Generation | None = None,
    retention_waits: bool = False,
) -> LookedAt:
    """What a view of a log comes to, whoever has it open. `ledger`: the one in use. Raises
    `CorruptionError` where a log with lags is damaged."""
    # What a ledger has taken is what is clean there.
    point = checkpoint if not topic.uses_ledger else None if ledger is None else ledger.horizon
    measured = measure(view, point, topic, now_ms)
    key = place.topic_partition
    if topic.uses_ledger:
        facts = ledger_facts_of(
            key, view, ledger, topic, state=state, note=note, retention_waits=retention_waits
        )
    else:
        facts = facts_of(
            key,
            view,
            checkpoint,
            topic,
            now_ms=now_ms,
            state=state,
            note=note,
            measured=measured,
            expiry_ms=expiry_ms,
        )
    if quarantine is not None:
        cause = f"the log is quarantined: {quarantine}"
        facts = replace(facts, quarantined_until_ms=INT64_MAX, quarantine_cause=cause)
    return LookedAt(
        place,
        view.log_start_offset,
        view.log_end_offset,
        checkpoint,
        facts,
        sections_of(view, measured.cleanable),
        note,
        quarantine,
        last,
    )


def _expiry_in(
    place: PartitionPlace, view: LogView, end_offset: int, filesystem: FileSystem
) -> int | None:
    from stratalog.clean.expiry import next_expiry_of  # with a kernel

    segments = [item for item in view.segments.sealed if item.base_offset < end_offset]
    return next_expiry_of(filesystem, place.path, segments)


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """The newest rounds of each partition, oldest first."""

    partitions: tuple[PartitionItem[tuple[Entry, ...]], ...]

    @property
    def is_ok(self) -> bool:
        """Every history could be read."""
        return all(item.error is None for item in self.partitions)

    def as_json(self) -> dict[str, Any]:
        partitions = [
            {
                "partition": item.partition,
                "directory": item.directory,
                "history": [entry.as_json() for entry in item.found or ()],
                "error": item.error,
            }
            for item in self.partitions
        ]
        return {"ok": self.is_ok, "partitions": partitions}


def history(
    targets: Sequence[str], filesystem: FileSystem, limit: int | None = None
) -> HistoryReport:
    """At most `limit` rounds of each partition (None: all that are kept). Raises `UsageError`."""
    return HistoryReport(
        tuple(
            _history_of(place, filesystem, KEPT if limit is None else limit)
            for place in find_partitions(targets, filesystem)
        )
    )


def _history_of(
    place: PartitionPlace, filesystem: FileSystem, limit: int
) -> PartitionItem[tuple[Entry, ...]]:
    try:
        found = tuple(read_history(filesystem, place.path, limit))
    except StratalogError as error:
        return PartitionItem(place.name, place.path, None, str(error))
    return PartitionItem(place.name, place.path, found)
