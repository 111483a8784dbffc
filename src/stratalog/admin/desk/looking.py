"""What descriptions are made of: the partitions of a store, each looked at when it is asked for.

    ServiceLooker   logs that this process has open
    FileLooker      directories that are not opened: nothing is changed, no lock is asked for, so
                    that it works beside a live process, whose files are then a moment old

Invariants
- I1  Looking writes nothing. What is wrong with one partition is that one's error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from stratalog.admin import cleaning
from stratalog.admin.cleaning import LookedAt, look_at
from stratalog.admin.desk.registry import Registry, Stage
from stratalog.admin.directories import METADATA_TOPIC, PartitionPlace, has_segments
from stratalog.admin.floors import log_settings
from stratalog.admin.service import Service
from stratalog.admin.state import open_to_read
from stratalog.admin.topics import Topics
from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogOfflineError,
    StorageIOError,
    StratalogError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.clean.cleaner import Activity
from stratalog.clean.history import KEPT, Entry, read_history
from stratalog.clean.note import UNKNOWN
from stratalog.clean.select import Explanation, explain, rank
from stratalog.config.book import SettingsBook
from stratalog.config.settings import Settings
from stratalog.log.quarantine import read_quarantine
from stratalog.log.view import LogView
from stratalog.segment.names import (
    INDEX_KINDS,
    FileKind,
    FileState,
    TopicPartition,
    parse,
    parse_partition_directory,
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a partition takes no writes. `state`: `quarantined` or `offline`."""

    state: str
    error: StratalogError


class Looker(Protocol):
    """See the module. A partition that is gone meanwhile raises `UnknownPartitionError`."""

    @property
    def filesystem(self) -> FileSystem: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def book(self) -> SettingsBook:
        """The settings in force."""
        ...

    def now_ms(self) -> int: ...

    def settings(self, topic: str) -> Settings:
        """A topic's, Kafka's own topics' too."""
        ...

    def log_dirs(self) -> dict[str, StratalogError | None]:
        """path -> why it is offline."""
        ...

    def places(self) -> list[PartitionPlace]:
        """All partitions, sorted."""
        ...

    def is_going(self, place: PartitionPlace) -> bool:
        """Whether a partition is being deleted, or is gone: nothing is wrong with it then."""
        ...

    def trouble(self, place: PartitionPlace) -> Trouble | None: ...

    def opened(self, place: PartitionPlace) -> AbstractContextManager[LogView]:
        """The log. Raises `StratalogError`, `FileNotFoundError`."""
        ...

    def size_bytes(self, place: PartitionPlace) -> int:
        """Of its `.log` files. Raises as `opened`."""
        ...

    def look(self, place: PartitionPlace) -> LookedAt:
        """As the cleaner sees it. Raises as `opened`."""
        ...

    def history(self, place: PartitionPlace, limit: int | None) -> list[Entry]:
        """The newest rounds, oldest first. Raises as `opened`."""
        ...

    def activities(self) -> Sequence[Activity]:
        """What is worked on now."""
        ...

    def waiting(self) -> Sequence[TopicPartition]:
        """What somebody has asked for, and nobody has begun."""
        ...

    def explanations(
        self, places: Sequence[PartitionPlace]
    ) -> list[tuple[PartitionPlace, Explanation | StratalogError]]: ...


# ---------------------------------------------------------------- a service


@dataclass(slots=True)
class ServiceLooker:
    """`registry` is replaced by whoever changes it. Make it before others use the service: a log
    fails to open then or never."""

    service: Service
    registry: Registry
    filesystem: FileSystem
    clock: Clock
    _failed: dict[TopicPartition, StratalogError] = field(init=False)

    def __post_init__(self) -> None:
        self._failed = dict(self.service.store.failed)

    @property
    def book(self) -> SettingsBook:
        return self.service.book

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def settings(self, topic: str) -> Settings:
        return self.service.settings(topic)

    def log_dirs(self) -> dict[str, StratalogError | None]:
        store = self.service.store
        offline = store.offline_dirs
        paths = dict.fromkeys([*store.log_dirs, *offline])
        return {
            path: LogOfflineError(f"offline: {offline[path]}") if path in offline else None
            for path in paths
        }

    def places(self) -> list[PartitionPlace]:
        store, found = self.service.store, []
        for key in store.partitions():
            try:
                found.append(PartitionPlace(store.log_dir_of(key), key))
            except UnknownPartitionError:
                continue  # deleted meanwhile
        return found

    def is_going(self, place: PartitionPlace) -> bool:
        key = place.topic_partition
        entry = self.registry.topics.get(key.topic)
        if entry is not None and entry.stage in (Stage.CREATING, Stage.DELETING):
            return True
        try:
            return self.service.store.log_dir_of(key) != place.log_dir
        except UnknownPartitionError:
            return True

    def trouble(self, place: PartitionPlace) -> Trouble | None:
        key = place.topic_partition
        try:
            log = self.service.store.get(key)
        except LogOfflineError as error:
            return Trouble("offline", self._failed.get(key, error))
        if log.quarantine is not None:
            return Trouble("quarantined", LogOfflineError(f"quarantined: {log.quarantine}"))
        if log.offline is not None:
            return Trouble("offline", LogOfflineError(f"offline: {log.offline}"))
        return None

    @contextmanager
    def opened(self, place: PartitionPlace) -> Iterator[LogView]:
        yield self.service.store.get(place.topic_partition).view

    def size_bytes(self, place: PartitionPlace) -> int:
        return self.service.store.get(place.topic_partition).segments.size_bytes

    def look(self, place: PartitionPlace) -> LookedAt:
        service, key = self.service, place.topic_partition
        log = service.store.get(key)
        last, topic = read_history(self.filesystem, log.path, limit=1), service.cleaning(key)
        return look_at(
            place,
            log.view,
            service.store.cleaner_point(key),
            topic,
            service.manager.note_of(key),
            now_ms=self.now_ms(),
            state=service.manager.state_of(key),
            quarantine=None if log.quarantine is None else str(log.quarantine),
            last=last[-1] if last else None,
            ledger=service.ledgers.manifest(key).current if topic.uses_ledger else None,
            retention_waits=topic.uses_ledger and service.manager.copies.waits(key),
        )

    def history(self, place: PartitionPlace, limit: int | None) -> list[Entry]:
        return self.service.history(place.topic_partition, limit)

    def activities(self) -> Sequence[Activity]:
        return self.service.cleaner.activities()

    def waiting(self) -> Sequence[TopicPartition]:
        return self.service.manager.asked()

    def explanations(
        self, places: Sequence[PartitionPlace]
    ) -> list[tuple[PartitionPlace, Explanation | StratalogError]]:
        manager, now_ms = self.service.manager, self.now_ms()
        if len(places) == 1:
            queue = None
        else:
            queue = rank(manager.facts(), now_ms)  # once for all
        found: list[tuple[PartitionPlace, Explanation | StratalogError]] = []
        for place in places:
            key = place.topic_partition
            try:
                if queue is None or not self.service.store.get(key).is_writable:
                    found.append((place, self.service.explain(key)))
                else:
                    found.append((place, explain(manager.facts_of(key), now_ms, queue)))
            except StratalogError as error:
                found.append((place, error))
        return found


# ---------------------------------------------------------------- directories


@dataclass(slots=True)
class FileLooker:
    """`book` is that of the registry. It is of one moment: what was looked at is not looked at
    again."""

    paths: Sequence[str]
    book: SettingsBook
    registry: Registry
    filesystem: FileSystem
    clock: Clock
    _topics: Topics = field(init=False)
    _seen: dict[TopicPartition, LookedAt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._topics = Topics(self.book)

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def settings(self, topic: str) -> Settings:
        return self._topics.settings(topic)

    def log_dirs(self) -> dict[str, StratalogError | None]:
        found: dict[str, StratalogError | None] = {}
        for path in self.paths:
            try:
                self.filesystem.list_directory(path)
                found[path] = None
            except StorageIOError as error:
                found[path] = error
            except FileNotFoundError:
                found[path] = StorageIOError(f"{path}: no such directory")
        return found

    def places(self) -> list[PartitionPlace]:
        found: dict[TopicPartition, PartitionPlace] = {}
        for path, error in self.log_dirs().items():
            if error is not None:
                raise error
            for name in self.filesystem.list_directory(path):
                key = parse_partition_directory(name)
                if key is None or key.topic == METADATA_TOPIC:
                    continue
                if not self.filesystem.is_directory(os.path.join(path, name)):
                    continue
                if key in found:
                    raise UsageError(f"{key} lies in {found[key].log_dir} and in {path}")
                found[key] = PartitionPlace(path, key)
        return [found[key] for key in sorted(found)]

    def is_going(self, place: PartitionPlace) -> bool:
        try:
            return not self.filesystem.exists(place.path)
        except StratalogError:
            return False

    def trouble(self, place: PartitionPlace) -> Trouble | None:
        found = read_quarantine(self.filesystem, place.path)
        if found is None:
            return None
        return Trouble("quarantined", LogOfflineError(f"quarantined: {found}"))

    @contextmanager
    def opened(self, place: PartitionPlace) -> Iterator[LogView]:
        told = log_settings(self.settings(place.topic_partition.topic))
        with open_to_read(place, told, self.filesystem, self.clock, may_be_torn=True) as log:
            yield log.view

    def size_bytes(self, place: PartitionPlace) -> int:
        return sum(_sizes(self.filesystem, place.path, (FileKind.LOG,)).values())

    def look(self, place: PartitionPlace) -> LookedAt:
        return self._look(place, finds_expiry=False)

    def _look(self, place: PartitionPlace, *, finds_expiry: bool) -> LookedAt:
        key = place.topic_partition
        seen = self._seen.get(key)
        if seen is None or (finds_expiry and seen.facts.next_expiry_ms == UNKNOWN):
            settings = self.settings(key.topic)
            seen = cleaning.look(
                place, settings, self.filesystem, self.clock, finds_expiry=finds_expiry
            )
            self._seen[key] = seen
        return seen

    def history(self, place: PartitionPlace, limit: int | None) -> list[Entry]:
        return read_history(self.filesystem, place.path, KEPT if limit is None else limit)

    def activities(self) -> Sequence[Activity]:
        return ()

    def waiting(self) -> Sequence[TopicPartition]:
        return ()

    def explanations(
        self, places: Sequence[PartitionPlace]
    ) -> list[tuple[PartitionPlace, Explanation | StratalogError]]:
        now_ms = self.now_ms()
        seen: dict[TopicPartition, LookedAt | StratalogError] = {}
        wanted = set(places)
        for place in self.places():
            try:
                seen[place.topic_partition] = self._look(place, finds_expiry=place in wanted)
            except (StratalogError, FileNotFoundError) as error:
                seen[place.topic_partition] = as_ours(error)
        queue = rank([item.facts for item in seen.values() if isinstance(item, LookedAt)], now_ms)
        return [
            (place, explain(item.facts, now_ms, queue) if isinstance(item, LookedAt) else item)
            for place in places
            if (item := seen.get(place.topic_partition)) is not None
        ]


def settled(
    looker: Looker, place: PartitionPlace, look: Callable[[Looker, PartitionPlace], Row]
) -> Row | None:
    """What `look` tells of a partition; None of one that goes meanwhile, whose log is closed then.
    One that was made anew at its place is looked at again: what is really wrong stays so."""
    row = look(looker, place)
    if row["error"] is None:
        return row
    return None if looker.is_going(place) else look(looker, place)


def index_bytes(filesystem: FileSystem, path: str) -> dict[int, int]:
    """Base offset -> the size of a segment's index files."""
    return _sizes(filesystem, path, INDEX_KINDS)


def _sizes(filesystem: FileSystem, path: str, kinds: Sequence[FileKind]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for name in filesystem.list_directory(path):
        parsed = parse(name)
        if parsed is None or parsed.kind not in kinds or parsed.state is not FileState.FINAL:
            continue
        with suppress(FileNotFoundError):  # replaced meanwhile
            size_bytes = filesystem.stat(os.path.join(path, name)).size_bytes
            sizes[parsed.base_offset] = sizes.get(parsed.base_offset, 0) + size_bytes
    return sizes


def as_ours(error: StratalogError | FileNotFoundError) -> StratalogError:
    """A file that is gone: somebody has changed the directory meanwhile."""
    return error if isinstance(error, StratalogError) else StorageIOError(f"{error.filename}: gone")


def check_data_directory(path: str, filesystem: FileSystem) -> None:
    """Refuse what is one partition and no directory of logs. Raises `UsageError`."""
    try:
        names = filesystem.list_directory(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such directory") from None
    if has_segments(names):
        raise UsageError(f"{path} is one partition: name the directory that holds it")
