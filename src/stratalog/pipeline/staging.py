"""What a task of the sink has written and nobody has committed yet: batches aside, in a plain file.

    staged  := frame{n} trailer
    frame   := number int32, batch      which of the trailer's partitions; a whole batch of magic 2,
                                        offsets from 0, without a producer
    trailer := JSON, its length uint32, MAGIC                                         big-endian
    JSON    := {"partitions": [[topic, partition, records]...], "counts": {topic: partitions}}

Staged files lie in the root of the log directory, beside the partitions, where Kafka suffers plain
files and every loader passes them over:

    stratalog-sink-<writer>-<version>-<attempt>.staged

`writer` is a hash of who writes (a query, a job), `version` the number of the batch, `attempt` is
another one each time. `counts` says how many partitions the task took each topic to have: keys lie
elsewhere among another number.

Invariants
- I1  A file whose `Staged` somebody has is on the disk, whole, under its name.
- I2  Of each partition the file holds its rows in the order in which the task had them.
- I3  A file that is not, byte for byte, what was written is noticed before any of it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import google_crc32c

from stratalog.base.errors import CorruptionError, StorageIOError, StratalogError
from stratalog.base.filesystem import File, FileSystem
from stratalog.record.layout import HEADER_BYTES
from stratalog.record.values import BatchHeader, parse_header
from stratalog.segment.names import TopicPartition, is_topic_name

MAGIC = b"STAGED01"
PREFIX = "stratalog-sink-"
SUFFIX = ".staged"
MAX_VERSION = (1 << 63) - 1

_NUMBER = struct.Struct(">i")
_TAIL = struct.Struct(">I8s")
_READ_BYTES = 4 << 20
_MAX_TRAILER_BYTES = 64 << 20
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{16}})-(0|[1-9][0-9]{{0,18}})-[0-9a-f]{{32}}\{SUFFIX}")


@dataclass(frozen=True, slots=True)
class Staged:
    """A finished file: its name in the log directory, size and CRC-32C, and how many records."""

    name: str
    size_bytes: int
    crc: int
    records: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a staged file says it holds: records by partition, and the topics' partition counts."""

    records: Mapping[TopicPartition, int]
    counts: Mapping[str, int]
    end: int


def writer_key(writer: str) -> str:
    """The part of a file's name that stands for who writes."""
    return hashlib.sha256(writer.encode()).hexdigest()[:16]


def staged_name(writer: str, version: int) -> str:
    """A name that nothing else has."""
    return f"{PREFIX}{writer_key(writer)}-{version}-{uuid.uuid4().hex}{SUFFIX}"


def parse_staged(name: str) -> tuple[str, int] | None:
    """Whose file it is, by `writer_key`, and of which version; None: no staged file."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def remove_staged(
    filesystem: FileSystem, log_dir: str, is_wanted: Callable[[str, str, int], bool]
) -> list[str]:
    """Remove the staged files that nobody wants, asked by name, key and version; the names gone.

    A file that is gone already is fine: somebody else sweeps, too. Raises `StorageIOError`.
    """
    gone = []
    for name in filesystem.list_directory(log_dir):
        parsed = parse_staged(name)
        if parsed is not None and not is_wanted(name, *parsed):
            with suppress(FileNotFoundError):
                filesystem.unlink(os.path.join(log_dir, name))
                gone.append(name)
    return gone


class StagedWriter:
    """Writes one file; use `finish` or `abandon`. Raises `StorageIOError`."""

    def __init__(self, filesystem: FileSystem, log_dir: str, name: str):
        self._filesystem = filesystem
        self._log_dir = log_dir
        self._name = name
        self._numbers: dict[TopicPartition, int] = {}
        self._records: list[int] = []
        self._size_bytes = 0
        self._crc = 0
        self._file = filesystem.open(os.path.join(log_dir, name), "create")

    def add(self, key: TopicPartition, batch: bytes, records: int) -> None:
        """Add a batch of a partition, behind those that were added before."""
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self._records):
            self._records.append(0)
        self._records[number] += records
        self._put(_NUMBER.pack(number) + batch)

    def _put(self, data: bytes) -> None:
        self._file.pwrite(data, self._size_bytes)
        self._size_bytes += len(data)
        self._crc = google_crc32c.extend(self._crc, data)

    def finish(self, counts: Mapping[str, int]) -> Staged:
        """Complete the file, durably (I1)."""
        rows = [[*key, self._records[number]] for key, number in self._numbers.items()]
        text = json.dumps({"partitions": rows, "counts": dict(counts)}).encode()
        self._put(text + _TAIL.pack(len(text), MAGIC))
        try:
            self._file.fsync()
        finally:
            self._file.close()
        self._filesystem.fsync_directory(self._log_dir)
        return Staged(self._name, self._size_bytes, self._crc, sum(self._records))

    def abandon(self) -> None:
        """Give up: the file goes, if the disk lets it."""
        self._file.close()
        with suppress(StratalogError, FileNotFoundError):
            self._filesystem.unlink(os.path.join(self._log_dir, self._name))


def check_staged(filesystem: FileSystem, log_dir: str, staged: Staged) -> Content:
    """Read a file once, to know that it is what was written (I3), and what it holds.

    Raises `CorruptionError` if it is another or gone, `StorageIOError`.
    """
    file = _opened(filesystem, log_dir, staged)
    path = file.path
    try:
        if file.size_bytes() != staged.size_bytes:
            reason = f"{file.size_bytes()} bytes, {staged.size_bytes} were staged"
            raise CorruptionError(reason, file=path)
        crc, position = 0, 0
        while position < staged.size_bytes:
            data = _read(file, position, min(_READ_BYTES, staged.size_bytes - position))
            crc = google_crc32c.extend(crc, bytes(data))
            position += len(data)
        if crc != staged.crc:
            raise CorruptionError("a staged file is not what was written", file=path)
        return _content(file, staged)
    finally:
        file.close()


def frames(
    filesystem: FileSystem, log_dir: str, staged: Staged, content: Content
) -> Iterator[tuple[TopicPartition, BatchHeader, bytearray]]:
    """The batches in their order, each with its partition and in bytes of its own.

    Raises `CorruptionError`, `StorageIOError`.
    """
    keys = list(content.records)
    file = _opened(filesystem, log_dir, staged)
    path = file.path
    try:
        position = 0
        while position < content.end:
            head = _read(file, position, min(_NUMBER.size + HEADER_BYTES, content.end - position))
            try:
                (number,) = _NUMBER.unpack_from(head)
                header = parse_header(memoryview(head)[_NUMBER.size :])
                key = keys[number]
            except (CorruptionError, struct.error, IndexError):
                raise CorruptionError("no batch here", file=path, position=position) from None
            position += _NUMBER.size
            yield key, header, _read(file, position, header.size_bytes)
            position += header.size_bytes
    finally:
        file.close()


def _opened(filesystem: FileSystem, log_dir: str, staged: Staged) -> File:
    path = os.path.join(log_dir, staged.name)
    try:
        return filesystem.open(path, "read")
    except FileNotFoundError:
        raise CorruptionError("a staged file is gone", file=path) from None


def _content(file: File, staged: Staged) -> Content:
    damaged = CorruptionError("no end of a staged file", file=file.path)
    if staged.size_bytes < _TAIL.size:
        raise damaged
    length, magic = _TAIL.unpack(_read(file, staged.size_bytes - _TAIL.size, _TAIL.size))
    end = staged.size_bytes - _TAIL.size - length
    if magic != MAGIC or end < 0 or length > _MAX_TRAILER_BYTES:
        raise damaged
    try:
        said = json.loads(bytes(_read(file, end, length)))
        rows = [
            (TopicPartition(str(t), int(p)), int(records)) for t, p, records in said["partitions"]
        ]
        counts = {str(topic): int(count) for topic, count in said["counts"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise damaged from None
    if len(dict(rows)) != len(rows) or not all(is_topic_name(key.topic) for key, _ in rows):
        raise damaged
    return Content(dict(rows), counts, end)


def _read(file: File, position: int, size_bytes: int) -> bytearray:
    buffer = bytearray(size_bytes)
    if file.pread_into(buffer, position) != size_bytes:
        raise StorageIOError(f"{file.path}: ends before {position + size_bytes}")
    return buffer


def records_of(contents: Iterable[Content]) -> dict[TopicPartition, int]:
    """Records by partition, of several files."""
    total: dict[TopicPartition, int] = {}
    for content in contents:
        for key, records in content.records.items():
            total[key] = total.get(key, 0) + records
    return total
