"""The only maker and parser of names on disk: segment files, partition directories, checkpoints.

A segment file is named by its segment's base offset in 20 digits and what it holds:

    name      := base "." kind [ "." state ]            00000000000000000042.log.cleaned
               | base "." kind "." job "-" attempt ".part"
    base      := 20 digits, at most 2^63 - 1
    kind      := "log" | "index" | "timeindex" | "txnindex" | "snapshot"
    state     := "cleaned" | "swap" | "deleted" | "clean" | "tmp"

`cleaned`, `swap` and `deleted` are Kafka's steps of replacing a segment; `clean` is what very old
brokers wrote for `cleaned`; `part` is one attempt of one of our distributed tasks, `tmp` a file
that is about to replace another. The last two mean nothing after a crash.

A partition's directory is `<topic>-<partition>`.

Invariants
- I1  `parse(make(x)) == x`, and `make(parse(name)) == name` for every name that `parse` accepts.
- I2  `parse` answers None for any other name and never raises: directories hold foreign files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

MAX_OFFSET = (1 << 63) - 1
MAX_PARTITION = (1 << 31) - 1
MAX_TOPIC_CHARACTERS = 249
"""Kafka's bound: with a dash and a partition number the directory stays below 255 bytes."""

MAX_NAME_BYTES = 255
"""What file systems allow; the names here are ASCII."""

STATE_DIRECTORY = ".stratalog"
"""Our own files of a partition live here, out of Kafka's sight."""
SWAP_INTENT = "swap-intent"
PARTITION_METADATA = "partition.metadata"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"


class FileKind(Enum):
    """What a segment file holds; the value is its file name extension."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"


class FileState(Enum):
    """Where a segment file stands in a replacement; the value is its suffix."""

    FINAL = ""
    CLEANED = "cleaned"
    SWAP = "swap"
    DELETED = "deleted"
    OLD_CLEAN = "clean"
    PART = "part"
    TEMPORARY = "tmp"


INDEX_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
SEGMENT_KINDS = (FileKind.LOG, *INDEX_KINDS)
"""The files that are replaced together when a segment is cleaned, in Kafka's order of renaming."""


@dataclass(frozen=True, slots=True)
class ParsedName:
    """A segment file's name. `job` and `attempt` are set exactly when the state is PART."""

    base_offset: int
    kind: FileKind
    state: FileState = FileState.FINAL
    job: str | None = None
    attempt: int | None = None


class TopicPartition(NamedTuple):
    """A partition of a topic. Sorts by topic, then by partition.

    A tuple, as it is the key of many tables that are gone through for thousands of partitions at a
    time: a dataclass takes ten times as long to hash.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_STATES = "|".join(state.value for state in FileState if state.value not in ("", "part"))
_KINDS = "|".join(kind.value for kind in FileKind)
_JOB = r"[A-Za-z0-9_-]{1,100}"
_FILE = re.compile(
    rf"([0-9]{{20}})\.({_KINDS})(?:\.({_STATES})|\.({_JOB})-(0|[1-9][0-9]{{0,17}})\.part)?"
)
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TOPIC_CHARACTERS}}}")
_DIRECTORY = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})", re.DOTALL)


def file_name(base_offset: int, kind: FileKind, state: FileState = FileState.FINAL) -> str:
    """The name of a segment file, e.g. `00000000000000000042.log.swap`. PART has its own maker."""
    assert 0 <= base_offset <= MAX_OFFSET, base_offset
    assert state is not FileState.PART, "use part_name"
    suffix = f".{state.value}" if state.value else ""
    return f"{base_offset:020d}.{kind.value}{suffix}"


def part_name(base_offset: int, kind: FileKind, job: str, attempt: int) -> str:
    """The name of what one attempt of a distributed task writes; every loader ignores it."""
    assert re.fullmatch(_JOB, job), job
    assert attempt >= 0, attempt
    return f"{file_name(base_offset, kind)}.{job}-{attempt}.part"


def digest_name(base_offset: int) -> str:
    """The name of a sealed segment's digest, inside `STATE_DIRECTORY`."""
    assert 0 <= base_offset <= MAX_OFFSET, base_offset
    return f"{base_offset:020d}.digest"


@lru_cache(maxsize=1 << 14)
def parse(name: str) -> ParsedName | None:
    """What a file name says, or None if it is not the name of a segment file."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    base, kind, state, job, attempt = match.groups()
    if int(base) > MAX_OFFSET:
        return None
    if job is not None:
        return ParsedName(int(base), FileKind(kind), FileState.PART, job, int(attempt))
    return ParsedName(int(base), FileKind(kind), FileState(state or ""))


def is_topic_name(topic: str) -> bool:
    """Kafka's rule: 1 to 249 of letters, digits, dot, underscore and dash; not `.` or `..`."""
    return topic not in (".", "..") and _TOPIC.fullmatch(topic) is not None


def partition_directory(topic_partition: TopicPartition) -> str:
    """The name of a partition's directory, e.g. `orders-0`."""
    assert is_topic_name(topic_partition.topic), topic_partition
    assert 0 <= topic_partition.partition <= MAX_PARTITION, topic_partition
    return str(topic_partition)


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition that a directory name stands for, or None."""
    match = _DIRECTORY.fullmatch(name) if len(name) <= MAX_NAME_BYTES else None
    if match is None or not is_topic_name(match[1]) or int(match[2]) > MAX_PARTITION:
        return None
    return TopicPartition(match[1], int(match[2]))
