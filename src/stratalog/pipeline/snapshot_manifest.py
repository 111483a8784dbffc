"""What a snapshot says of itself: a small JSON that the next, incremental one goes by.

Whoever only reads the rows needs none of it. It names the source, each partition's end offset and
files, and the segments as they were: by those the next snapshot sees which of them were replaced
since, in which a tombstone may have come and gone unseen (`snapshot_plan`).

Invariants
- F1  What was written is read back as it was; anything else is `CorruptionError`, one line, that
      names the file and what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.segment.names import MAX_OFFSET, MAX_PARTITION, TopicPartition

FORMAT = "stratalog-snapshot"
VERSION = 1
NAME = "_manifest.json"
"""Readers of Parquet pass over names that begin with `_`."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentMark:
    """A segment as far as it lies below a snapshot's end: offsets [base_offset, next_offset), whose
    batches take `size_bytes`, the last of them with the checksum `tail_crc`, in the file of
    `file_id`. One that was cleaned since is another file or has fewer bytes."""

    base_offset: int
    next_offset: int
    file_id: int
    size_bytes: int
    tail_crc: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with the rows of one bucket of a partition's keys."""

    name: str
    bucket: int
    rows: int
    size_bytes: int
    least_offset: int


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition: its newest records of [start_offset, end_offset), in `buckets` by their key's
    hash; a bucket without rows has no file. `topic_id`: Kafka's, "" where the log has none."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    buckets: int
    files: tuple[DataFile, ...]
    segments: tuple[SegmentMark, ...]
    topic_id: str = ""

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One snapshot. `as_of`: what was asked for, None: the log end; `order` as in
    `compaction.strategy`; `created_ms` since 1970."""

    generation: int
    source: tuple[str, ...]
    as_of: str | None
    created_ms: int
    columns: tuple[str, ...]
    order: str
    version_header: str
    partitions: tuple[PartitionSnapshot, ...]

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions)

    def encode(self) -> bytes:
        """As it is written."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def decode(content: bytes | str, path: str) -> Manifest:
    """What `encode` wrote. Raises `CorruptionError`; `UsageError` for one of a later version."""
    try:
        found = json.loads(content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise CorruptionError("this is no snapshot's manifest", file=path)
        version = _typed(found, "version", int)
        if version != VERSION:
            raise UsageError(f"{path}: version {version}; this release reads {VERSION}")
        return Manifest(
            _least(found, "generation", 1),
            tuple(_listed(found, "source", _text)),
            None if found["as_of"] is None else _text(found["as_of"]),
            _least(found, "created_ms", 0),
            tuple(_listed(found, "columns", _text)),
            _typed(found, "order", str),
            _typed(found, "version_header", str),
            tuple(_listed(found, "partitions", _partition)),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise CorruptionError(f"damaged manifest of a snapshot ({reason})", file=path) from error


def _partition(found: Any) -> PartitionSnapshot:
    return PartitionSnapshot(
        _typed(found, "topic", str),
        _least(found, "partition", 0, MAX_PARTITION),
        _least(found, "start_offset", 0),
        _least(found, "end_offset", 0),
        _least(found, "buckets", 1),
        tuple(_listed(found, "files", _file)),
        tuple(_listed(found, "segments", _mark)),
        _text(found.get("topic_id", "")),
    )


def _file(found: Any) -> DataFile:
    name = _typed(found, "name", str)
    if not name.startswith("part-") or "/" in name:
        raise ValueError(f"no file of a snapshot is named {name!r}")
    return DataFile(
        name,
        _least(found, "bucket", 0),
        _least(found, "rows", 0),
        _least(found, "size_bytes", 0),
        _least(found, "least_offset", 0),
    )


def _mark(found: Any) -> SegmentMark:
    names = ("base_offset", "next_offset", "file_id", "size_bytes", "tail_crc")
    return SegmentMark(*(_typed(found, name, int) for name in names))


def _typed(found: Any, name: str, kind: type[T]) -> T:
    value = found[name]
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}")
    return value


def _least(found: Any, name: str, least: int, most: int = MAX_OFFSET) -> int:
    value = _typed(found, name, int)
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}")
    return value


def _text(found: Any) -> str:
    if type(found) is not str:
        raise ValueError(f"{found!r} is no text")
    return found


def _listed(found: Any, name: str, read: Callable[[Any], T]) -> list[T]:
    return [read(item) for item in _typed(found, name, list)]
