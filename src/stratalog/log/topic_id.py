"""The id of a partition's topic, as Kafka writes it down: `partition.metadata`.

    version: 0
    topic_id: 7sHZVXyuQV-bqwTqLHb_sA

Two topics of one name, one after the other, have different ids.
"""

from __future__ import annotations

import os

from stratalog.base.filesystem import FileSystem, read_file
from stratalog.segment.names import PARTITION_METADATA

_MAX_BYTES = 1 << 16


def read_topic_id(filesystem: FileSystem, partition_path: str) -> str:
    """What the file says; "" without one. Raises `StorageIOError`, `CorruptionError`."""
    try:
        content = read_file(
            filesystem, os.path.join(partition_path, PARTITION_METADATA), _MAX_BYTES
        )
    except FileNotFoundError:
        return ""
    lines = content.splitlines()
    found = [line.partition(b":")[2].strip() for line in lines if line.startswith(b"topic_id:")]
    return found[0].decode("ascii", "replace") if found else ""
