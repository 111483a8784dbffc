"""The desk of a service in this process.

    open_desk ─► registry read ─► service opened ─► what a crash cut is finished ─► OwnDesk

Invariants
- I1  One change at a time (`_lock`), so that registry, book and store go together: what is
      described is one state. Looking asks for no lock of the desk.
- I2  The registry is durable before a change counts, and a change counts before it is acknowledged.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stratalog import __version__
from stratalog.admin.deleting import deleted_of
from stratalog.admin.desk import changing, compacting, describing
from stratalog.admin.desk.leaving import check_confirmed
from stratalog.admin.desk.looking import ServiceLooker, as_ours, check_data_directory
from stratalog.admin.desk.protocol import Document, EntityType, error_document
from stratalog.admin.desk.registry import Registry, read_registry
from stratalog.admin.desk.settings import describe_configs
from stratalog.admin.desk.topics import TopicKeeper
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.service import Service, open_service
from stratalog.admin.topics import Topics
from stratalog.base.clock import Clock
from stratalog.base.errors import StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.base.open_files import raise_open_files_limit
from stratalog.clean.engine import OnProgress
from stratalog.clean.manager import Request
from stratalog.config.book import SettingsBook
from stratalog.log.topic_id import read_topic_id
from stratalog.segment.names import TopicPartition

_LEFT_ALONE: dict[str, Any] = {"cleanup.policy": ()}
"""Of topics that were not made here: nobody knows their policy, so nothing of them goes."""


class OwnDesk:
    """See `Desk`. Use `open_desk`. `service` may be used beside it, but for its settings, which are
    the desk's to change."""

    def __init__(
        self,
        service: Service,
        keeper: TopicKeeper,
        base: SettingsBook,
        filesystem: FileSystem,
        clock: Clock,
        *,
        overrides: Mapping[str, str] | None = None,
        on_progress: OnProgress = lambda _: None,
    ):
        self.service = service
        self._keeper = keeper
        self._base = base
        self._overrides = dict(overrides or {})
        self._on_progress = on_progress
        self._looker = ServiceLooker(service, keeper.registry, filesystem, clock)
        self._lock = threading.RLock()
        self._requests: dict[TopicPartition, Request] = {}
        keeper.on_change = self._on_change

    @property
    def place(self) -> str:
        return f"opened {', '.join(self.service.store.log_dirs)}"

    def _on_change(self, registry: Registry) -> None:
        """A registry is in force from here on."""
        before, self._looker.registry = self._looker.registry, registry
        book = changed_book_of(self.service.book, before, registry, self._base)
        self.service.change(book or in_force(registry, self._base, self._overrides))

    def topic_names(self) -> list[str]:
        """All topics."""
        return describing.topic_names(self._looker)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has. Raises `UnknownPartitionError`."""
        places = describing.places_of(self._looker, topic, None)
        there = [place.topic_partition.partition for place in places]
        return describing.partition_count(self._looker.registry.topics.get(topic), there)

    def topic_id(self, key: TopicPartition) -> str:
        """What tells the topic of a partition from others that had or will have its name; "":
        nothing does. Raises `UnknownPartitionError`, `StorageIOError`."""
        entry = self._looker.registry.topics.get(key.topic)
        if entry is not None and entry.topic_id:
            return entry.topic_id
        path = os.path.join(self.service.store.log_dir_of(key), str(key))
        return read_topic_id(self._looker.filesystem, path)

    # -- topics -----------------------------------------------------------------------------------

    def list_topics(self) -> Document:
        return describing.list_topics(self._looker)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        if_not_exists: bool = False,
        dry_run: bool = False,
    ) -> Document:
        with self._lock:
            words = changing.checked_words(configs)
            plan = changing.plan_create(self._looker, name, partitions, words, if_not_exists)
            if dry_run:
                return plan
            if plan["created"]:
                self._keeper.create(name, partitions, words)
            return {**plan, "applied": True}

    def describe_topic(self, name: str) -> Document:
        return describing.describe_topic(self._looker, name)

    def describe_storage(self, name: str, partitions: Sequence[int] | None = None) -> Document:
        return describing.describe_storage(self._looker, name, partitions)

    def delete_topic(
        self, name: str, *, if_exists: bool = False, dry_run: bool = False
    ) -> Document:
        with self._lock:
            plan = changing.plan_delete(self._looker, name, if_exists)
            if dry_run:
                return plan
            if plan["deleted"]:
                self._keeper.delete(name)
                self.service.store.unlink_due()
            return {**plan, "applied": True}

    def add_partitions(self, name: str, count: int, *, dry_run: bool = False) -> Document:
        with self._lock:
            plan = changing.plan_add(self._looker, name, count)
            if dry_run:
                return plan
            self._keeper.add(name, count)
            return {**plan, "applied": True}

    # -- settings ---------------------------------------------------------------------------------

    def describe_configs(
        self,
        entity_type: EntityType,
        name: str | None = None,
        *,
        all: bool = False,  # noqa: A002
    ) -> Document:
        changing.check_prefix(entity_type, name)
        return describe_configs(self._looker, entity_type, name, all)

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
        with self._lock:
            words = changing.checked_words(set)
            plan, registry, left = changing.plan_alter(
                self._looker, self._base, entity_type, name, words, delete
            )
            if dry_run:
                return plan
            check_confirmed(plan["given_up"], confirm)
            stopped = self._not_cleaned_any_more(registry)
            for key in stopped:
                self._withdrawn(key)  # or it would begin as soon as what runs is aborted
            if registry != self._keeper.registry:
                self._keeper.commit(registry)  # the service aborts what runs
            for one in left:
                self.service.drop_ledger(one.topic_partition)
            return {**plan, "aborted": [str(key) for key in stopped], "applied": True}

    def _not_cleaned_any_more(self, registry: Registry) -> list[TopicPartition]:
        """What is being cleaned, or waits for it, and is not to be by another registry."""
        keys = self._running() | {*self.service.manager.asked()}
        topics = Topics(registry.book(self._base))
        return [
            key
            for key in sorted(keys)
            if self.service.cleaning(key).is_cleaned and not topics.cleaning(key).is_cleaned
        ]

    # -- records and directories ------------------------------------------------------------------

    def delete_records(
        self, offsets: Sequence[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Document:
        with self._lock:
            planned = changing.plan_records(self._looker, changing.wanted_offsets(offsets))
            warnings = changing.still_shown(planned, self._looker.filesystem)
            if dry_run or any(item.error is not None for item in planned):
                return changing.records_document(planned, warnings, applied=False)
            done = deleted_of(planned, self.service.store)
            return changing.records_document(done, warnings, applied=True)

    def describe_log_dirs(self, topics: Sequence[str] | None = None) -> Document:
        return describing.describe_log_dirs(self._looker, topics)

    # -- compaction -------------------------------------------------------------------------------

    def compact(self, topic: str, partition: int | None = None) -> Document:
        places = describing.places_of(self._looker, topic, partition)
        begun = [(place, *self._ask(place)) for place in places]
        status = compacting.compaction_status(self._looker, places)
        asked = {place.topic_partition.partition: (it, error) for place, it, error in begun}
        for row in status["partitions"]:
            request, error = asked[row["partition"]]
            row["request"] = request
            if error is not None:
                row["error"] = error_document(error)
        status["ok"] = all(row["error"] is None for row in status["partitions"])
        return status

    def _ask(self, place: PartitionPlace) -> tuple[str | None, StratalogError | None]:
        key, cleaner = place.topic_partition, self.service.cleaner
        try:
            if key in self.service.manager.asked() or key in self._running():
                return "running", None
            if not cleaner.is_running:
                self.service.compact(key, on_progress=self._on_progress)
                return "done", None
            self._requests[key] = self.service.manager.ask(Request(key))
            cleaner.wake()
            return "started", None
        except (StratalogError, FileNotFoundError) as error:
            return None, as_ours(error)

    def _running(self) -> set[TopicPartition]:
        return {activity.topic_partition for activity in self.service.cleaner.activities()}

    def cancel(self, topic: str, partition: int | None = None) -> Document:
        def stop(key: TopicPartition) -> bool:
            was_waiting = self._withdrawn(key)
            was_running = key in self._running()
            return (self.service.cancel(key) and was_running) or was_waiting

        return self._steered(topic, partition, stop)

    def _withdrawn(self, key: TopicPartition) -> bool:
        """Take back what was asked for here and has not begun; whether there was something."""
        request = self._requests.pop(key, None)
        return request is not None and self.service.manager.withdraw(request)

    def compaction_status(self, topic: str | None = None, partition: int | None = None) -> Document:
        places = describing.places_of(self._looker, topic, partition)
        return compacting.compaction_status(self._looker, places)

    def explain(self, topic: str | None = None, partition: int | None = None) -> Document:
        places = describing.places_of(self._looker, topic, partition)
        return compacting.explanations(self._looker, places)

    def history(
        self, topic: str | None = None, partition: int | None = None, limit: int | None = None
    ) -> Document:
        places = describing.places_of(self._looker, topic, partition)
        return compacting.histories(self._looker, places, limit)

    def pause(self, topic: str, partition: int | None = None) -> Document:
        return self._steered(topic, partition, self.service.pause)

    def resume(self, topic: str, partition: int | None = None) -> Document:
        return self._steered(topic, partition, self.service.resume)

    def retry(self, topic: str | None = None, partition: int | None = None) -> Document:
        return self._steered(topic, partition, self.service.retry)

    def _steered(
        self, topic: str | None, partition: int | None, step: Callable[[TopicPartition], bool]
    ) -> Document:
        rows = []
        for place in describing.places_of(self._looker, topic, partition):
            row: Document = {**compacting.named(place), "changed": False}
            row |= {"paused": None, "failing": None, "error": None}
            try:
                row["changed"] = step(place.topic_partition)
                note = self.service.manager.note_of(place.topic_partition)
                row |= {"paused": note.paused, "failing": note.failure is not None}
            except (StratalogError, FileNotFoundError) as error:
                row["error"] = error_document(as_ours(error))
            rows.append(row)
        return {"ok": all(row["error"] is None for row in rows), "partitions": rows}

    def cleaner_status(self) -> Document:
        return compacting.cleaner_status(
            self._looker,
            running=self.service.cleaner.is_running,
            threads=self.service.cleaner_settings.threads,
        )

    def server_info(self) -> Document:
        store = self.service.store
        return {
            "ok": not store.offline_dirs,
            "kind": "service",
            "version": __version__,
            "process_id": os.getpid(),
            "log_dirs": store.log_dirs,
            "topics": len(self.topic_names()),
            "partitions": len(store.partitions()),
            "offline": store.offline_dirs,
            "cleaner": {
                "running": self.service.cleaner.is_running,
                "threads": self.service.cleaner_settings.threads,
            },
        }


def in_force(
    registry: Registry, base: SettingsBook, overrides: Mapping[str, str] | None = None
) -> SettingsBook:
    """What a service goes by. `base`: a broker's file, and what a command gives; of topics that
    were not made here nothing goes by itself unless somebody says so."""
    defaults = {**_LEFT_ALONE, **base.defaults}
    said = {**base.overrides, **(overrides or {})}
    return registry.book(replace(base, defaults=defaults, overrides=said, _known={}))


def changed_book_of(
    book: SettingsBook, before: Registry, after: Registry, base: SettingsBook
) -> SettingsBook | None:
    """The book after a change of topics: what is said of others is not checked again. None if more
    has changed."""
    if (before.prefixes, before.broker) != (after.prefixes, after.broker):
        return None
    for name in {**before.topics, **after.topics}:
        entry = after.topics.get(name)
        if entry is before.topics.get(name):
            continue
        words = {**base.topics.get(name, {}), **({} if entry is None else entry.configs)}
        gone = book.topics.get(name, {}).keys() - words.keys()
        book = book.with_topic(name, words, gone)
        if entry is not None and entry.made:
            book = book.with_made(name)
        elif name in book.made:
            book = book.without_made(name)
    return book


@contextmanager
def open_desk(
    log_dirs: Sequence[str],
    filesystem: FileSystem,
    clock: Clock,
    *,
    book: SettingsBook | None = None,
    starts: bool = False,
    overrides: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Iterator[OwnDesk]:
    """Own these log directories, and have a desk for them; with `starts` upkeep and cleaner run.

    `book`: a broker's file and what a command gives; `overrides`: what only the service goes by.
    Raises as `open_service`; `CorruptionError` for a damaged registry, `UsageError` for two.
    """
    paths = [os.path.abspath(path) for path in dict.fromkeys(log_dirs)]
    for path in paths:
        if filesystem.exists(path):
            check_data_directory(path, filesystem)
    base = in_force(Registry(), book or SettingsBook())
    _, registry = read_registry(paths, filesystem)
    if starts:
        raise_open_files_limit()
    force = in_force(registry, base, overrides)
    with open_service(paths, force, filesystem, clock, on_progress=on_progress) as service:
        # Another process may have changed it before this one had the lock.
        home, registry = read_registry(service.store.log_dirs, filesystem)
        keeper = TopicKeeper(service.store, filesystem, home or service.store.log_dirs[0], registry)
        desk = OwnDesk(
            service,
            keeper,
            base,
            filesystem,
            clock,
            overrides=overrides,
            on_progress=on_progress,
        )
        if in_force(registry, base, overrides) != force:
            keeper.commit(registry)
        keeper.finish()
        if starts:
            service.start()
        yield desk
