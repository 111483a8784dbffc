"""A directory of topics, opened by this process: the beginning of everything else.

    open_store ─► lock, recovery, settings, topics ─► upkeep and cleaner in threads ─► close

What has to do with administration is the desk's (`stratalog.admin.desk`), the same as the command
line's and the server's; here it is put in words that a program wants.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import CorruptionError, UnknownPartitionError, UsageError
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.config.book import SettingsBook
from stratalog.embedded import words
from stratalog.embedded.consumer import Consumer, ConsumerOptions, ResetPolicy
from stratalog.embedded.offsets import OffsetsFile, groups_in
from stratalog.embedded.topic import AsOfWord, IsolationLevel, Topic
from stratalog.segment.names import MAX_PARTITION

PathWord = str | os.PathLike[str]


def open_store(
    path: PathWord | Iterable[PathWord],
    *,
    config: Mapping[str, object] | None = None,
    background: bool = True,
    filesystem: FileSystem | None = None,
    clock: Clock | None = None,
) -> Store:
    """Open a data directory, or several that topics are spread over; those that are not there are
    made. Close the store, or use it in a `with`.

    This process owns the directories then: nobody else changes them, and what a crash left is
    recovered. `config` is a broker's (`server.properties`): what topics go by that have no setting
    of their own, and how the cleaner works. With `background` retention, flushing and cleaning run
    by themselves in threads; without, only what is called runs.

    Settings of `config` that have no effect here are told in one `UserWarning`: a name that nobody
    knows, a topic's where the broker has another, one of Kafka's that nothing here obeys.

    Raises `LogLockedError` if another process has it, `UsageError`, `InvalidConfigError`,
    `CorruptionError`, `StorageIOError`.
    """
    paths = words.paths_of(path)
    words.flag_of("background", background)
    book = SettingsBook(broker=words.settings_of(config))
    for note in book.notes("config", paths):
        warnings.warn(note, stacklevel=2)
    filesystem, clock = filesystem or LocalFileSystem(), clock or SystemClock()
    with ExitStack() as stack:
        desk = stack.enter_context(
            open_desk(paths, filesystem, clock, book=book, starts=background)
        )
        return Store(desk, filesystem, clock, stack.pop_all())


class Store:
    """Use `stratalog.open`. Its methods may be called from any thread."""

    def __init__(self, desk: OwnDesk, filesystem: FileSystem, clock: Clock, stack: ExitStack):
        self.desk = desk
        """All of administration: partitions added, records deleted, pauses, storage described."""
        self._filesystem = filesystem
        self._clock = clock
        self._stack = stack
        self._is_closed = False
        self._ledgers = desk.service.ledgers

    @property
    def paths(self) -> list[str]:
        """The directories."""
        return self.desk.service.store.log_dirs

    def __repr__(self) -> str:
        return f"<Store {', '.join(self.paths)}>"

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the store is closed")

    # -- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics."""
        self._check_open()
        return self.desk.topic_names()

    def topic(self, name: str) -> Topic:
        """A topic that is there. Raises `UnknownPartitionError`."""
        self._check_open()
        if words.name_of(name) not in self.desk.topic_names():
            raise UnknownPartitionError(
                f"there is no topic {words.short(name, 255)}{self._near(name)}"
            )
        return self._topic(name)

    def _near(self, name: str) -> str:
        import difflib

        near = difflib.get_close_matches(name, self.desk.topic_names(), 1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def _topic(self, name: str) -> Topic:
        return Topic(self.desk, self._ledgers, name, self._check_open)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> Topic:
        """Make a topic; settings are Kafka's, and ours. It survives restarts.

        With `if_not_exists` one that is there is answered as it is. Raises `PartitionExistsError`,
        `InvalidConfigError`, `UsageError`, `StorageIOError`.
        """
        self._check_open()
        given = words.settings_of(config)
        words.name_of(name)
        words.flag_of("if_not_exists", if_not_exists)
        words.number_of(
            "partitions", partitions, 0, MAX_PARTITION
        )  # what fits is the desk's to say
        self.desk.create_topic(name, partitions, given, if_not_exists=if_not_exists)
        return self._topic(name)

    def delete_topic(self, name: str, *, if_exists: bool = False) -> bool:
        """Delete a topic, its ledgers, and what groups have committed of it; whether it was there.

        Raises `UnknownPartitionError` unless `if_exists`, `StorageIOError`, and `CorruptionError`
        if what a group has committed is damaged: the topic is deleted then, and every other group
        has forgotten it.
        """
        self._check_open()
        words.name_of(name)
        words.flag_of("if_exists", if_exists)
        done = bool(self.desk.delete_topic(name, if_exists=if_exists)["deleted"])
        damaged: CorruptionError | None = None
        for group in groups_in(self._filesystem, self.paths[0]):
            try:
                self._offsets(group).forget(name)
            except CorruptionError as error:
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        return done

    # -- consumers --------------------------------------------------------------------------------

    def consumer(
        self,
        topics: str | Iterable[str] = (),
        *,
        group: str | None = None,
        auto_offset_reset: words.Reset = "latest",
        isolation_level: words.Isolation = "read_uncommitted",
        read_compacted: bool = False,
        as_of: AsOfWord | None = None,
    ) -> Consumer:
        """A consumer, subscribed to `topics`. It belongs to one thread; close it.

        `group` names where it commits to; there is no coordination: two consumers of a group both
        read everything. `auto_offset_reset` says where to begin where nothing is committed, or what
        is committed is gone. `read_compacted` reads the compacted view, `as_of` what there was
        then: see `Topic.read`. Raises `UsageError`.
        """
        self._check_open()
        options = ConsumerOptions(
            reset=words.word_of("auto_offset_reset", auto_offset_reset, ResetPolicy),
            is_committed=words.word_of("isolation_level", isolation_level, IsolationLevel)
            is IsolationLevel.READ_COMMITTED,
            read_compacted=words.flag_of("read_compacted", read_compacted),
            as_of=words.moment_of(as_of),
        )
        offsets = None if group is None else self._offsets(group)
        made = Consumer(self.topic, options, offsets, self._clock)
        what = "give the name of a topic, or a list of them"
        names = [topics] if isinstance(topics, str) else list(words.each_of(topics, what))
        if names:
            made.subscribe(names)
        return made

    def _offsets(self, group: str) -> OffsetsFile:
        return OffsetsFile(self._filesystem, self.paths[0], group)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop what runs, close the logs in order, let go of the directory. Closing twice is fine.

        Raises `StorageIOError`.
        """
        self._is_closed = True
        self._stack.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
