"""What is known of the topics of a store: one plain file, so that it survives restarts.

    data/stratalog-topics       at the root of the first log directory

A line of JSON and a line of its CRC-32C. Kafka and every loader pass over plain files there. It
says of each topic how many partitions it has and what is set at it, what is set at prefixes of
topic names, and what was changed of the broker at run time. A directory without the file is as good
as any: topics are then what their partitions' directories say.

What takes several steps is begun and ended in the file, so that the next open knows what to do:

    create      entry `creating`, durably     partitions are made        entry `ready`
    add         entry `adding`, durably       the new ones are made      entry `ready`
    delete      entry `deleting`, durably     partitions are deleted     no entry
    alter       one replacement

A crash in between is finished by the next open (`finishing`), forwards: the first line of each is
the decision. An entry that is `ready` and misses a partition has lost it, which is told and never
mended with an empty one.

Invariants
- I1  After a crash the file holds the old content or the new, never a mixture.
- I2  A damaged file raises `CorruptionError`; it is never read as "nothing is known". No file, or
      one of zero bytes, which nobody here writes, is told apart: the latter is damage.
- I3  `decode(encode(registry)) == registry`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from stratalog.base.errors import CorruptionError, StratalogError, UsageError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.config.book import SettingsBook, Words
from stratalog.record.checksum import crc32c
from stratalog.segment.names import MAX_PARTITION, is_topic_name

REGISTRY_FILE = "stratalog-topics"
_VERSION = 1
TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""As Kafka writes a UUID, in 22 letters."""
_REMEDY = "put it aside to go by what the partitions say, without settings"
_MAX_BYTES = 64 << 20
"""A hundred thousand topics with a dozen settings each take 50 MB."""


class Stage(Enum):
    """How far a topic's entry has come."""

    READY = "ready"
    CREATING = "creating"
    ADDING = "adding"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Entry:
    """A topic. `partitions` None: nobody said how many, they are those that are there. `made`: it
    was created here, so that what is not set is the default; `before`: of ADDING, the count that
    there was. `topic_id` tells a topic from another of its name, before it or after it; "": it was
    not created here, or by an earlier version."""

    partitions: int | None = None
    configs: Words = field(default_factory=dict)
    stage: Stage = Stage.READY
    made: bool = False
    before: int = 0
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Registry:
    """All that is known; changes answer another one."""

    topics: Mapping[str, Entry] = field(default_factory=dict)
    prefixes: Mapping[str, Words] = field(default_factory=dict)
    broker: Words = field(default_factory=dict)

    def with_topic(self, name: str, entry: Entry) -> Registry:
        return replace(self, topics={**self.topics, name: entry})

    def without_topic(self, name: str) -> Registry:
        return replace(self, topics={key: it for key, it in self.topics.items() if key != name})

    def begun(self) -> list[str]:
        """The topics of which something was begun and has not ended."""
        return sorted(key for key, it in self.topics.items() if it.stage is not Stage.READY)

    def book(self, base: SettingsBook) -> SettingsBook:
        """`base` with all that is set here, over what it says itself. Raises
        `InvalidConfigError`."""
        said = {name: entry.configs for name, entry in self.topics.items() if entry.configs}
        made = frozenset(name for name, entry in self.topics.items() if entry.made)
        return replace(
            base,
            topics=_merged(base.topics, said),
            namespaces=_merged(base.namespaces, self.prefixes),
            dynamic_broker={**base.dynamic_broker, **self.broker},
            made=base.made | made,
            _known={},
        )

    def encode(self) -> bytes:
        content = {
            "version": _VERSION,
            "topics": {name: _entry_fields(it) for name, it in sorted(self.topics.items())},
            "prefixes": {name: dict(words) for name, words in sorted(self.prefixes.items())},
            "broker": dict(self.broker),
        }
        line = json.dumps(content).encode() + b"\n"
        return line + b"%08x\n" % crc32c(line)


def _merged(below: Mapping[str, Words], above: Mapping[str, Words]) -> dict[str, Words]:
    both = {**below}
    for name, words in above.items():
        both[name] = {**below.get(name, {}), **words}
    return both


def _entry_fields(entry: Entry) -> dict[str, Any]:
    return {
        "partitions": entry.partitions,
        "configs": dict(entry.configs),
        "stage": entry.stage.value,
        "made": entry.made,
        "before": entry.before,
        "topic_id": entry.topic_id,
    }


def decode(content: bytes) -> Registry:
    """A file's registry. Raises `CorruptionError`."""
    line, separator, rest = content.partition(b"\n")
    if not separator or rest != b"%08x\n" % crc32c(line + b"\n"):
        raise CorruptionError("the text does not match its checksum")
    try:
        fields = json.loads(line)
        if fields["version"] != _VERSION:
            raise CorruptionError(f"version {fields['version']!r}, expected {_VERSION}")
        topics = {_topic(name): _entry(found) for name, found in fields["topics"].items()}
        prefixes = {_text(name): _words(words) for name, words in fields["prefixes"].items()}
        return Registry(topics, prefixes, _words(fields["broker"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(f"no registry: {type(error).__name__} {error}") from None


def _topic(name: str) -> str:
    if not is_topic_name(name):
        raise ValueError(f"{name!r} is no topic name")
    return name


def _entry(found: dict[str, Any]) -> Entry:
    count, made, before = found["partitions"], found["made"], found["before"]
    if count is not None and not (type(count) is int and 0 < count <= MAX_PARTITION + 1):
        raise ValueError(f"{count!r} partitions")
    topic_id = _text(found.get("topic_id", ""))  # earlier versions gave none
    is_id = topic_id == "" or TOPIC_ID.fullmatch(topic_id) is not None
    if type(before) is not int or before < 0 or type(made) is not bool or not is_id:
        raise ValueError("impossible entry")
    return Entry(count, _words(found["configs"]), Stage(found["stage"]), made, before, topic_id)


def _words(found: dict[str, Any]) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in found.items()}


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise ValueError(f"{found!r} is no text")
    return found


# ---------------------------------------------------------------- the file


def read_registry(log_dirs: Iterable[str], filesystem: FileSystem) -> tuple[str | None, Registry]:
    """The registry of these log directories, and the directory it lies in (None: there is none).

    Raises `CorruptionError`, naming the file; `UsageError` if two of them have one;
    `StorageIOError`.
    """
    found: list[tuple[str, Registry]] = []
    for log_dir in log_dirs:
        path = os.path.join(log_dir, REGISTRY_FILE)
        try:
            found.append((log_dir, decode(read_file(filesystem, path, _MAX_BYTES))))
        except FileNotFoundError:
            continue
        except CorruptionError as error:
            raise CorruptionError(f"{error.reason}; {_REMEDY}", file=path) from None
    if len(found) > 1:
        raise UsageError(
            f"{found[0][0]} and {found[1][0]} both have a {REGISTRY_FILE}: two stores' directories"
        )
    return found[0] if found else (None, Registry())


def write_registry(log_dir: str, registry: Registry, filesystem: FileSystem) -> None:
    """Make it the one that counts, durably. Raises `StorageIOError`; then either may count."""
    try:
        write_file_atomically(filesystem, os.path.join(log_dir, REGISTRY_FILE), registry.encode())
    except FileNotFoundError as error:
        raise StratalogError(f"{error.filename}: is gone") from error
