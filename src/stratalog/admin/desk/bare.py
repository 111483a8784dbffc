"""The desk of directories that nobody has open: each call does what it needs and lets go.

    looking     from files, without a lock: nothing is changed or recovered
    changing    the directories are opened (locked, recovered), changed, and closed in order
    steering    pauses and retries are notes: under the lock, without opening a log

Nobody runs afterwards who would do the rest, so files of what is deleted are unlinked at once, and
a compaction is done when it is answered.

Invariants
- I1  A dry run opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stratalog import __version__
from stratalog.admin.deleting import delete_records
from stratalog.admin.desk import changing, compacting, describing
from stratalog.admin.desk.leaving import check_confirmed
from stratalog.admin.desk.looking import FileLooker, as_ours, check_data_directory
from stratalog.admin.desk.own import OwnDesk, in_force, open_desk
from stratalog.admin.desk.protocol import Document, EntityType, error_document
from stratalog.admin.desk.registry import Entry, Registry, Stage, read_registry
from stratalog.admin.desk.settings import describe_configs
from stratalog.admin.floors import log_settings
from stratalog.admin.retention import SettingsOf
from stratalog.admin.topics import Topics
from stratalog.base.clock import Clock
from stratalog.base.errors import StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.base.open_files import raise_open_files_limit
from stratalog.clean.engine import OnProgress
from stratalog.clean.note import Note, read_note, write_note
from stratalog.config.book import SettingsBook
from stratalog.log.locking import locked
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition

_AT_ONCE = {"file.delete.delay.ms": "0"}


class BareDesk:
    """See `Desk`. `book`: a broker's file and what a command gives. `on_opened` is called when logs
    are open, nothing is changed yet, and what follows is short."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        filesystem: FileSystem,
        clock: Clock,
        *,
        book: SettingsBook | None = None,
        on_progress: OnProgress = lambda _: None,
        on_opened: Callable[[], None] = lambda: None,
    ):
        self._paths = [os.path.abspath(path) for path in dict.fromkeys(log_dirs)]
        self._told = list(dict.fromkeys(log_dirs))
        self._book = book or SettingsBook()
        self._filesystem = filesystem
        self._clock = clock
        self._on_progress = on_progress
        self._on_opened = on_opened

    @property
    def place(self) -> str:
        return f"opened {', '.join(self._told)}"

    def _looker(self) -> FileLooker:
        """What lies there now. Raises `UsageError`, `CorruptionError` for a damaged registry."""
        for path in self._paths:
            check_data_directory(path, self._filesystem)
        _, registry = read_registry(self._paths, self._filesystem)
        book = in_force(registry, self._book)
        return FileLooker(self._paths, book, registry, self._filesystem, self._clock)

    def _looker_of_new(self) -> FileLooker:
        """The same for directories of which none need be there."""
        if any(self._filesystem.exists(path) for path in self._paths):
            return self._looker()
        book = in_force(Registry(), self._book)
        return FileLooker((), book, Registry(), self._filesystem, self._clock)

    @contextmanager
    def _own(self, *, is_short: bool = True) -> Iterator[OwnDesk]:
        raise_open_files_limit()  # all logs are open at once
        with open_desk(
            self._paths,
            self._filesystem,
            self._clock,
            book=self._book,
            overrides=_AT_ONCE,
            on_progress=self._on_progress,
        ) as desk:
            if is_short:
                self._on_opened()
            yield desk

    # -- topics -----------------------------------------------------------------------------------

    def list_topics(self) -> Document:
        looker = self._looker()
        document = describing.list_topics(looker)
        begun = [
            f"topic {name} is {looker.registry.topics[name].stage.value}: unless somebody is at it "
            "now, it was cut short, and the next command that changes a topic here ends it"
            for name in looker.registry.begun()
        ]
        return {**document, "warnings": begun} if begun else document

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        if_not_exists: bool = False,
        dry_run: bool = False,
    ) -> Document:
        words = changing.checked_words(configs)
        looker = self._looker_of_new()
        if name in looker.registry.begun() and not dry_run:
            return self._ended(looker.registry.topics[name], name, partitions, words, if_not_exists)
        # What is refused costs no recovery, and makes no directory.
        plan = changing.plan_create(looker, name, partitions, words, if_not_exists)
        if dry_run:
            return plan
        with self._own() as desk:
            return desk.create_topic(name, partitions, words, if_not_exists=if_not_exists)

    def _ended(
        self,
        begun: Entry,
        name: str,
        partitions: int,
        words: Mapping[str, str],
        if_not_exists: bool,
    ) -> Document:
        """Create a topic of which something was begun: to open the directory has ended that. Who
        asks for what was begun has it then."""
        is_same = begun.stage is Stage.CREATING and begun.partitions == partitions
        is_same = is_same and dict(begun.configs) == dict(words)
        with self._own() as desk:
            made = desk.create_topic(
                name, partitions, words, if_not_exists=if_not_exists or is_same
            )
            if not is_same or made["created"]:
                return made
            told = "it had been begun before, and was cut short: it is ended now"
            return {**made, "created": True, "warnings": [*made["warnings"], told]}

    def describe_topic(self, name: str) -> Document:
        return describing.describe_topic(self._looker(), name)

    def describe_storage(self, name: str, partitions: Sequence[int] | None = None) -> Document:
        return describing.describe_storage(self._looker(), name, partitions)

    def delete_topic(
        self, name: str, *, if_exists: bool = False, dry_run: bool = False
    ) -> Document:
        looker = self._looker()
        plan = {**changing.plan_delete(looker, name, if_exists), "delay_ms": None}
        if dry_run:
            return plan
        begun = looker.registry.topics.get(name)
        is_begun = begun is not None and begun.stage is Stage.DELETING
        with self._own() as desk:  # which ends a deletion that was begun before
            done = desk.delete_topic(name, if_exists=if_exists or is_begun)
            return {**(plan if is_begun else done), "delay_ms": None, "applied": True}

    def add_partitions(self, name: str, count: int, *, dry_run: bool = False) -> Document:
        plan = changing.plan_add(self._looker(), name, count)
        if dry_run:
            return plan
        with self._own() as desk:
            return desk.add_partitions(name, count)

    # -- settings ---------------------------------------------------------------------------------

    def describe_configs(
        self,
        entity_type: EntityType,
        name: str | None = None,
        *,
        all: bool = False,  # noqa: A002
    ) -> Document:
        changing.check_prefix(entity_type, name)
        return describe_configs(self._looker(), entity_type, name, all)

    def alter_configs(
        self,
        entity_type: EntityType,
        name: str | None,
        set: Mapping[str, str] | None = None,  # noqa: A002
        delete: Sequence[str] = (),
        *,
        dry_run: bool = False,
        confirm: bool = False,
    ) -> Document:
        words = changing.checked_words(set)
        base = in_force(Registry(), self._book)
        plan, _, _ = changing.plan_alter(self._looker(), base, entity_type, name, words, delete)
        if dry_run:
            return plan
        check_confirmed(plan["given_up"], confirm)
        with self._own() as desk:
            return desk.alter_configs(entity_type, name, words, delete, confirm=confirm)

    # -- records and directories ------------------------------------------------------------------

    def delete_records(
        self, offsets: Sequence[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Document:
        looker = self._looker()
        with locked(self._paths, self._filesystem, exclusive=False):
            planned = changing.plan_records(looker, changing.wanted_offsets(offsets))
            warnings = changing.still_shown(planned, self._filesystem)
        if dry_run or any(item.error is not None for item in planned):
            return changing.records_document(planned, warnings, applied=False)
        done = delete_records(
            planned,
            told_by_book(looker.book),
            self._filesystem,
            self._clock,
            self._on_progress,
            self._on_opened,
        )
        return changing.records_document(done, warnings, applied=True)

    def describe_log_dirs(self, topics: Sequence[str] | None = None) -> Document:
        return describing.describe_log_dirs(self._looker(), topics)

    # -- compaction -------------------------------------------------------------------------------

    def compact(self, topic: str, partition: int | None = None) -> Document:
        describing.places_of(self._looker(), topic, partition)
        with self._own(is_short=False) as desk:
            return desk.compact(topic, partition)

    def cancel(self, topic: str, partition: int | None = None) -> Document:
        """Nobody runs here: if another process does, its lock is told."""
        return self._steered(topic, partition, lambda note: note)

    def compaction_status(self, topic: str | None = None, partition: int | None = None) -> Document:
        looker = self._looker()
        places = describing.places_of(looker, topic, partition)
        return compacting.compaction_status(looker, places)

    def explain(self, topic: str | None = None, partition: int | None = None) -> Document:
        looker = self._looker()
        return compacting.explanations(looker, describing.places_of(looker, topic, partition))

    def history(
        self, topic: str | None = None, partition: int | None = None, limit: int | None = None
    ) -> Document:
        looker = self._looker()
        places = describing.places_of(looker, topic, partition)
        return compacting.histories(looker, places, limit)

    def pause(self, topic: str, partition: int | None = None) -> Document:
        return self._steered(topic, partition, lambda note: replace(note, paused=True))

    def resume(self, topic: str, partition: int | None = None) -> Document:
        return self._steered(topic, partition, lambda note: replace(note, paused=False))

    def retry(self, topic: str | None = None, partition: int | None = None) -> Document:
        return self._steered(topic, partition, lambda note: replace(note, failure=None))

    def _steered(
        self, topic: str | None, partition: int | None, change: Callable[[Note], Note]
    ) -> Document:
        places, disk = describing.places_of(self._looker(), topic, partition), self._filesystem
        rows = []
        with locked(self._paths, disk, exclusive=True):
            for place in places:
                row: Document = {**compacting.named(place), "changed": False}
                row |= {"paused": None, "failing": None, "error": None}
                try:
                    before = read_note(disk, place.path)
                    note = change(before)
                    if note != before:
                        write_note(disk, place.path, note)
                    row["changed"] = note != before
                    row |= {"paused": note.paused, "failing": note.failure is not None}
                except (StratalogError, FileNotFoundError) as error:
                    row["error"] = error_document(as_ours(error))
                rows.append(row)
        return {"ok": all(row["error"] is None for row in rows), "partitions": rows}

    def cleaner_status(self) -> Document:
        looker = self._looker()
        threads = looker.book.of_broker().integer("log.cleaner.threads")
        return compacting.cleaner_status(looker, running=False, threads=threads)

    def server_info(self) -> Document:
        looker = self._looker()
        threads = looker.book.of_broker().integer("log.cleaner.threads")
        return {
            "ok": True,
            "kind": "directory",
            "version": __version__,
            "process_id": os.getpid(),
            "log_dirs": list(self._paths),
            "topics": len(describing.topic_names(looker)),
            "partitions": len(looker.places()),
            "offline": {},
            "cleaner": {"running": False, "threads": threads},
        }


def told_by_book(book: SettingsBook) -> SettingsOf:
    """What each log is told by a command that ends soon: nobody waits to unlink a file."""
    topics = Topics(book)

    def settings_of(key: TopicPartition) -> LogSettings:
        return replace(log_settings(topics.settings(key.topic)), file_delete_delay_ms=0)

    return settings_of
