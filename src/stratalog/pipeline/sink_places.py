"""The partitions of the directory that a sink writes to, as its tasks have to know them."""

from __future__ import annotations

import os

from stratalog.base.errors import StorageIOError, UsageError
from stratalog.base.filesystem import FileSystem, make_durable_directory
from stratalog.log.log_dir import METADATA_TOPIC
from stratalog.pipeline.sink_options import SinkOptions
from stratalog.pipeline.sink_rows import TopicPlan
from stratalog.segment.names import FileKind, parse, parse_partition_directory


def plan_topics(options: SinkOptions, filesystem: FileSystem) -> TopicPlan:
    """The topics of the directory; one that is not there is made.

    Raises `UsageError` for what is no log directory, `StorageIOError`.
    """
    path = options.log_dir
    if filesystem.exists(path) and not filesystem.is_directory(path):
        raise UsageError(f"{path}: not a directory")
    make_durable_directory(filesystem, path)
    names = filesystem.list_directory(path)
    if any((parsed := parse(name)) is not None and parsed.kind is FileKind.LOG for name in names):
        raise UsageError(f"{path}: is a partition; give the log directory that it lies in")
    found: dict[str, set[int]] = {}
    for name in names:
        key = parse_partition_directory(name)
        if (
            key is not None
            and key.topic != METADATA_TOPIC
            and _is_directory(path, name, filesystem)
        ):
            found.setdefault(key.topic, set()).add(key.partition)
    counts = {topic: max(numbers) + 1 for topic, numbers in found.items()}
    return TopicPlan(
        counts=counts,
        holes=frozenset(topic for topic, numbers in found.items() if len(numbers) < counts[topic]),
        partitions=options.partitions,
        creates_topics=options.creates_topics,
        topic=options.topic,
        codec=options.codec,
        book=options.book,
    )


def _is_directory(path: str, name: str, filesystem: FileSystem) -> bool:
    try:
        return filesystem.is_directory(os.path.join(path, name))
    except StorageIOError:
        return False
