"""Which partitions a directory holds.

What somebody points at is a partition's directory (`orders-0`, with `.log` files in it) or a log
directory, which holds several. Kafka's own metadata log, `__cluster_metadata-0`, looks like a
partition and is none that anybody may clean: its content is kept by snapshots of another kind.

Invariants
- I1  A partition is found once, however often it is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from stratalog.admin.location_manifest import MANIFEST, current_root
from stratalog.base.errors import StorageIOError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.segment.names import (
    FileKind,
    FileState,
    TopicPartition,
    parse,
    parse_partition_directory,
)

METADATA_TOPIC = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition's directory `path`, in the log directory `log_dir`."""

    log_dir: str
    topic_partition: TopicPartition

    @property
    def path(self) -> str:
        return os.path.join(self.log_dir, str(self.topic_partition))

    @property
    def name(self) -> str:
        return str(self.topic_partition)


def find_partitions(targets: Iterable[str], filesystem: FileSystem) -> list[PartitionPlace]:
    """The partitions in `targets`, by log directory and name.

    Raises `UsageError` for a target without any.
    """
    found: dict[tuple[str, str], PartitionPlace] = {}
    for target in targets:
        for place in partitions_in(os.path.abspath(target), filesystem):
            found.setdefault((os.path.realpath(place.log_dir), place.name), place)
    return [found[key] for key in sorted(found, key=lambda key: (key[0], *_order(found[key])))]


def _order(place: PartitionPlace) -> tuple[str, int]:
    return place.topic_partition.topic, place.topic_partition.partition


def partitions_in(path: str, filesystem: FileSystem) -> list[PartitionPlace]:
    """The partition that `path`, which is absolute, is or those that it holds. Raises `UsageError`
    if there is none."""
    try:
        names = filesystem.list_directory(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such directory") from None
    except StorageIOError as error:
        raise UsageError(str(error)) from error
    parent, name = os.path.split(path)
    if has_segments(names):
        topic_partition = parse_partition_directory(name)
        if topic_partition is None:
            raise UsageError(f"{path}: holds segments, but is not named <topic>-<partition>")
        if topic_partition.topic == METADATA_TOPIC:
            raise UsageError(f"{path}: Kafka's metadata log, which is not a topic")
        return [PartitionPlace(parent, topic_partition)]
    found = [
        PartitionPlace(path, topic_partition)
        for child in names
        if (topic_partition := parse_partition_directory(child)) is not None
        and topic_partition.topic != METADATA_TOPIC
        and has_segments(_names_in(os.path.join(path, child), filesystem))
    ]
    if not found:
        _refuse_location(path, names, filesystem)
        raise UsageError(
            f"{path}: no partition here (a directory <topic>-<partition> with .log files)"
        )
    return found


def _refuse_location(path: str, names: Iterable[str], filesystem: FileSystem) -> None:
    """Of a location's generations one counts, and the next run replaces it: whoever wants to look
    into it, or to change it, names it."""
    if MANIFEST in names and (current := current_root(filesystem, path)) != path:
        raise UsageError(
            f"{path}: a location that `compact --out` writes generations to; name the one that "
            f"counts: {current}"
        )


def _names_in(path: str, filesystem: FileSystem) -> list[str]:
    try:
        return filesystem.list_directory(path)
    except (FileNotFoundError, StorageIOError):
        return []  # a file of that name, or gone meanwhile


def has_segments(names: Iterable[str]) -> bool:
    """Whether there is a segment among the files, of whatever state: a swap may be half done."""
    return any(
        (parsed := parse(name)) is not None
        and parsed.kind is FileKind.LOG
        and parsed.state in (FileState.FINAL, FileState.SWAP, FileState.CLEANED)
        for name in names
    )
