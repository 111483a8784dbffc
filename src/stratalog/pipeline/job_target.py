"""What a job is about: the places that somebody named, and the settings of their topics.

Settings are given as on the command line: `config` for all topics, over a file of topics and
prefixes (`--topic-config`). A directory itself does not know its topics' policies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratalog.admin.desk.registry import REGISTRY_FILE, read_registry
from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.base.clock import Clock, StoppedClock, SystemClock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.base.limits import LATEST_MS
from stratalog.config.book import SettingsBook
from stratalog.config.book_file import BookFile, parse_book
from stratalog.config.kinds import Value
from stratalog.config.properties import decode
from stratalog.pipeline.object_store import (
    FROM_ENVIRONMENT,
    SCHEME,
    ObjectStore,
    is_uri,
    object_path,
)
from stratalog.pipeline.options import Choice
from stratalog.pipeline.places import find_places
from stratalog.pipeline.uris import without_file

_MAX_BYTES = 16 << 20
"""As the command line has it: ten thousand topics with twenty properties each."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Target:
    """Directories, partitions or holding some, and what was said of their topics.

    `topic_config`: the file's path. `now_ms`: the time to go by; None: the clock's. `store`: how
    object storage is reached.
    """

    directories: tuple[str, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    topic_config: str | None = None
    now_ms: int | None = None
    store: ObjectStore = FROM_ENVIRONMENT

    @property
    def clock(self) -> Clock:
        return SystemClock() if self.now_ms is None else StoppedClock(self.now_ms)

    @property
    def is_remote(self) -> bool:
        """Whether some of it lies in object storage, where nothing is changed in place."""
        return any(path.startswith(SCHEME) for path in self.directories)

    def places(self) -> list[PartitionPlace]:
        """The partitions. Raises `UsageError` for a directory that holds none."""
        if self.is_remote:
            return [*find_places(self.directories, Choice(), self.store)]
        return find_partitions(self.directories, LocalFileSystem())

    def check_local(self) -> None:
        """Refuse what is only done with directories."""
        if self.is_remote:
            raise UsageError(
                f"{self.directories[0]}: logs in object storage are compacted into another place, "
                "with executeCompaction(out=...), and read; other jobs are for directories"
            )

    def book(
        self, policy: tuple[str, ...], overrides: Mapping[str, str] | None = None
    ) -> SettingsBook:
        """The settings; `policy`: what a topic has of which nobody says a cleanup.policy;
        `overrides`: what wins over everything. Topics that were created in the directories have
        their own settings below `config`, as for the commands.

        Raises `UsageError` (`InvalidConfigError` for what cannot be), `CorruptionError`.
        """
        said = BookFile() if self.topic_config is None else _book_file(self.topic_config)
        words = {**self.config, **(overrides or {})}
        defaults: dict[str, Value] = {"cleanup.policy": policy}
        book = SettingsBook(
            namespaces=said.namespaces, topics=said.topics, overrides=words, defaults=defaults
        )
        found = [os.path.abspath(path) for path in self.directories if SCHEME not in path]
        disk = LocalFileSystem()
        for home in dict.fromkeys([*found, *map(os.path.dirname, found)]):
            if disk.exists(os.path.join(home, REGISTRY_FILE)):
                book = read_registry([home], disk)[1].book(book)
        return book


def target(
    path: Any,
    config: Mapping[str, Any] | None = None,
    topic_config: str | None = None,
    now_ms: int | None = None,
    store: ObjectStore | None = None,
) -> Target:
    """A target as people write it: a path, or several, `file:` in front or not.

    Raises `UsageError`.
    """
    single = isinstance(path, str | os.PathLike)
    given = [path] if single else list(path or ())
    if not given or not all(isinstance(one, str | os.PathLike) and os.fspath(one) for one in given):
        raise UsageError(f"{path!r} is no directory's path, and no list of them")
    words = {name: _text(name, value) for name, value in (config or {}).items()}
    directories = tuple(location(os.fspath(one)) for one in given)
    if now_ms is not None and not 0 <= now_ms <= LATEST_MS:
        raise UsageError(f"now_ms is {now_ms}; it must be ms since 1970, up to {LATEST_MS}")
    return Target(directories, words, topic_config, now_ms, store or FROM_ENVIRONMENT)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    raise UsageError(f"{name} is {value!r}; a setting is a text, as in a server.properties")


def location(path: str) -> str:
    """A directory, `file:` in front or not, or `s3://bucket/path`. Raises `UsageError`."""
    path = without_file(path)
    return object_path(path) if is_uri(path) else path


def _book_file(path: str) -> BookFile:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    if len(content) > _MAX_BYTES:
        raise UsageError(f"{path}: too large for a file of topics' settings")
    try:
        return parse_book(decode(content))
    except UsageError as error:
        raise type(error)(f"{path}: {error}") from error


def chosen(
    places: Sequence[PartitionPlace], takes: Callable[[PartitionPlace], bool], by: str
) -> list[PartitionPlace]:
    """The places that `takes` takes; raises `UsageError` if there are none."""
    found = [place for place in places if takes(place)]
    if not found:
        names = ", ".join(place.name for place in places[:_SHOWN])
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        raise UsageError(f"{by} chooses no partition; there are {names}{more}")
    return found
