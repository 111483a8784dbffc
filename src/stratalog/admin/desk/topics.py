"""Topics come, grow and go: steps over the registry and the store, which a crash may cut.

    create    commit CREATING ─► settings in force ─► partitions made ─► commit READY
    add       commit ADDING ─► partitions made ─► commit READY
    delete    commit DELETING ─► partitions deleted ─► commit without it
    finish    what an earlier process began: to its end, as the entry says

A step that fails without a crash (a full disk) is undone: the topic is as it was, if the disk lets
it be. What cannot be undone either stays begun, and is finished by the next open.

Invariants
- I1  A topic is acknowledged after its entry is READY and all its partitions are durable; a
      deletion after its entry is gone.
- I2  A partition is only ever made for an entry that is not READY: what a READY topic misses is
      lost, and nothing pretends that it is empty.
- I3  `commit` comes first: whatever exists of a topic that is being made or deleted, the registry
      knows of it.
- I4  What there are not enough open files for is not begun: a process that has none left could not
      even undo it.
"""

from __future__ import annotations

import base64
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stratalog.admin.desk.registry import (
    REGISTRY_FILE,
    Entry,
    Registry,
    Stage,
    write_registry,
)
from stratalog.base.errors import (
    LogOfflineError,
    StorageIOError,
    StratalogError,
    TooManyFilesError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.open_files import check_open_files
from stratalog.log.log_store import LogStore
from stratalog.segment.names import TopicPartition

FILES_OF_A_PARTITION = 3
"""That are open: of its active segment, and its two indexes."""
_SPARE_FILES = 100
"""For whoever else opens some meanwhile: clients, the cleaner, checkpoints."""
_STAYS_BEGUN = "nor can it be undone: it stays begun, and the next open of the logs ends it"
_LOG = logging.getLogger("stratalog.admin")


@dataclass(slots=True)
class TopicKeeper:
    """Changes a store's topics; whoever calls sees to it that one change runs at a time.

    `home`: the log directory of the registry. `on_change` is told of each registry that is in
    force, before partitions are made by it.
    """

    store: LogStore
    filesystem: FileSystem
    home: str
    registry: Registry
    on_change: Callable[[Registry], None] = lambda _: None

    def commit(self, registry: Registry) -> None:
        """The registry is another one, durably. Raises `StorageIOError`."""
        if registry != self.registry:
            write_registry(self.home, registry, self.filesystem)
            self.registry = registry
        self.on_change(registry)

    def numbers(self, topic: str) -> list[int]:
        """The partitions that are there."""
        return [key.partition for key in self.store.partitions() if key.topic == topic]

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Make a topic that is not there; its settings have been checked. Raises
        `StorageIOError`, `LogOfflineError`."""
        before = self.registry
        new_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        entry = Entry(partitions, dict(configs), Stage.CREATING, made=True, topic_id=new_id)
        self._check_online()
        self.commit(before.with_topic(topic, entry))
        self._make(topic, range(partitions), before)

    def add(self, topic: str, count: int) -> list[int]:
        """Have `count` partitions, which is more than there are; the new ones."""
        before, there = self.registry, len(self.numbers(topic))
        entry = before.topics.get(topic, Entry())
        first = there if entry.partitions is None else entry.partitions
        self._check_online()
        begun = replace(entry, partitions=count, stage=Stage.ADDING, before=first)
        self.commit(before.with_topic(topic, begun))
        return self._make(topic, range(first, count), before)

    def _make(self, topic: str, numbers: Iterable[int], before: Registry) -> list[int]:
        made: list[int] = []
        try:
            new = self._without(topic, numbers)
            self._check_files(len(new))
            for number in new:
                made.append(number)
                self.store.create(TopicPartition(topic, number))
            self.commit(self._ready(topic))
        except StratalogError as error:
            try:
                self._remove(topic, made)
                self.commit(before)
            except StratalogError:  # the first error is the one to tell
                if isinstance(error, StorageIOError):
                    raise type(error)(f"{error}; {_STAYS_BEGUN}") from error
            raise
        return made

    def _without(self, topic: str, numbers: Iterable[int]) -> list[int]:
        there = set(self.numbers(topic))
        return [number for number in numbers if number not in there]

    def _check_files(self, partitions: int) -> None:
        """Whether so many more can be open, before minutes are spent on them, and with what others
        need left over. Raises `TooManyFilesError`."""
        count = FILES_OF_A_PARTITION * partitions + _SPARE_FILES
        path = os.path.join(self.home, REGISTRY_FILE)
        try:
            check_open_files(self.filesystem, path, count)
        except TooManyFilesError as error:
            raise TooManyFilesError(
                f"{partitions} more partitions need some {count} more open files than this process "
                f"may have; allow more with `ulimit -n` ({error})"
            ) from error
        except FileNotFoundError as error:
            raise StorageIOError(f"{error.filename}: is gone") from error

    def _ready(self, topic: str) -> Registry:
        entry = replace(self.registry.topics[topic], stage=Stage.READY, before=0)
        return self.registry.with_topic(topic, entry)

    def delete(self, topic: str) -> None:
        """Delete a topic: durably when this returns. Raises `StorageIOError`, `LogOfflineError`;
        what was begun is ended by another call, or by the next open."""
        offline = self.store.offline_dirs
        for number in self.numbers(topic):
            path = self.store.log_dir_of(TopicPartition(topic, number))
            if path in offline:
                raise LogOfflineError(f"log directory {path} is offline: {offline[path]}")
        if self.store.failed_dirs:
            self._check_online()  # it may have partitions there, which would be back
        entry = self.registry.topics.get(topic, Entry())
        begun = replace(entry, stage=Stage.DELETING)
        self.commit(self.registry.with_topic(topic, begun))
        self._remove(topic, self.numbers(topic))
        self.commit(self.registry.without_topic(topic))

    def _remove(self, topic: str, numbers: Iterable[int]) -> None:
        there = set(self.numbers(topic))
        self.store.delete_all(TopicPartition(topic, it) for it in numbers if it in there)

    def _check_online(self) -> None:
        for path, reason in self.store.offline_dirs.items():
            raise LogOfflineError(f"log directory {path} is offline: {reason}")

    def finish(self) -> None:
        """End what an earlier process began. What cannot be ended now is logged, and stays begun:
        with a directory offline nobody knows what lies there."""
        for topic in self.registry.begun():
            entry = self.registry.topics[topic]
            try:
                self._check_online()
                if entry.stage is Stage.DELETING:
                    self._remove(topic, self.numbers(topic))
                    self.commit(self.registry.without_topic(topic))
                    continue
                new = self._without(topic, range(entry.before, entry.partitions or 0))
                self._check_files(len(new))
                for number in new:
                    self.store.create(TopicPartition(topic, number))
                self.commit(self._ready(topic))
            except StratalogError as error:
                _LOG.error("topic %s: %s cannot be ended: %s", topic, entry.stage.value, error)
