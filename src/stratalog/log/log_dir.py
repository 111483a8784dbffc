"""One log directory: its lock, the marker of a clean stop, its checkpoints, what lies in it.

    data/
      .lock                                held by the process that owns the directory
      .kafka_cleanshutdown                 there while nobody has it open, if it was closed in order
      recovery-point-offset-checkpoint     what is below has been flushed
      log-start-offset-checkpoint          what is below has been deleted
      cleaner-offset-checkpoint            what is below has been cleaned
      replication-offset-checkpoint        Kafka's high watermarks: here the log ends
      orders-0/  orders-1/                 partitions
      orders-2.<id>-delete/                partitions that are being deleted

Invariants
- I1  The marker is gone, durably, before any log is opened, and comes back after all are closed.
- I2  A checkpoint that cannot be read is never taken for an empty one: without the log starts the
      directory is not opened (deleted records would be back), without the recovery points every
      log is scanned whole and nothing is cut.
- I3  No entry speaks of a partition that is not there: one of the same name may be made later.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, make_durable_directory, read_file
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.log.checkpoint import is_sealed, read_checkpoint, write_checkpoint
from stratalog.log.deletion import remove_tree
from stratalog.log.locking import lock_directory
from stratalog.segment.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    MAX_NAME_BYTES,
    RECOVERY_POINT_CHECKPOINT,
    TopicPartition,
    parse_partition_directory,
)

METADATA_TOPIC = "__cluster_metadata"
"""Kafka's own log of its cluster looks like a partition and is none."""

_LOG = logging.getLogger("stratalog.log")
_DELETED_SUFFIX = "-delete"
_CLEAN_SHUTDOWN = b'{"version":0,"brokerEpoch":-1}'

Offsets = dict[TopicPartition, int]


@dataclass(slots=True)
class LogDir:
    """A log directory that is open. Belongs to its store, whose lock guards it.

    `starts`, `points` and `cleaned` are what the checkpoints say; `points` None: its file is
    damaged.
    `offline`: why nothing is written here any more. `held`: how many partitions the store has here.
    """

    path: str
    release: Callable[[], None]
    was_clean: bool
    partitions: tuple[TopicPartition, ...]
    starts: Offsets
    points: Offsets | None
    cleaned: Offsets
    offline: str | None = None
    held: int = 0

    def partition_path(self, topic_partition: TopicPartition) -> str:
        return os.path.join(self.path, str(topic_partition))


def lock_log_dir(path: str, filesystem: FileSystem) -> Callable[[], None]:
    """Lock a log directory; one that is not there is made. Raises `LogLockedError`,
    `StorageIOError`."""
    make_durable_directory(filesystem, path)
    release = lock_directory(path, filesystem, exclusive=True)
    assert release is not None
    return release


def open_log_dir(path: str, release: Callable[[], None], filesystem: FileSystem) -> LogDir:
    """Take over a directory that is locked.

    Raises `CorruptionError` for damaged log starts; `StorageIOError`.
    """
    names = filesystem.list_directory(path)
    for name in names:
        if name.endswith(_DELETED_SUFFIX) and _is_deleted(name):
            remove_tree(filesystem, os.path.join(path, name))
    found = {
        partition
        for name in names
        if (partition := parse_partition_directory(name)) is not None
        and partition.topic != METADATA_TOPIC
        and filesystem.is_directory(os.path.join(path, name))
    }
    starts = read_log_dir_checkpoint(path, LOG_START_OFFSET_CHECKPOINT, filesystem)
    points: Offsets | None
    try:
        points = read_checkpoint(filesystem, os.path.join(path, RECOVERY_POINT_CHECKPOINT))
    except CorruptionError:
        points = None
    starts = _without_strangers(path, LOG_START_OFFSET_CHECKPOINT, starts, found, filesystem)
    if points is not None:
        points = _without_strangers(path, RECOVERY_POINT_CHECKPOINT, points, found, filesystem)
    cleaned = _read_cleaned(path, found, filesystem)
    marker = os.path.join(path, CLEAN_SHUTDOWN_FILE)
    was_clean = filesystem.exists(marker)
    if was_clean:
        filesystem.unlink(marker)
    # Also without one: whoever unlinked it may not have come to the sync, and a marker that comes
    # back would speak of what is written from here on.
    filesystem.fsync_directory(path)
    return LogDir(path, release, was_clean, tuple(sorted(found)), starts, points, cleaned)


def read_log_dir_checkpoint(path: str, name: str, filesystem: FileSystem) -> Offsets:
    """One of a log directory's checkpoints. Raises `CorruptionError`, naming the file (I2)."""
    if name == LOG_START_OFFSET_CHECKPOINT:
        _refuse_emptied(path, filesystem)
    return read_checkpoint(filesystem, os.path.join(path, name))


def _refuse_emptied(path: str, filesystem: FileSystem) -> None:
    """Log starts of zero bytes are Kafka's way to have none yet. We write both checkpoints always,
    the starts first: beside recovery points of ours they are damage (I2)."""
    starts = os.path.join(path, LOG_START_OFFSET_CHECKPOINT)
    points = os.path.join(path, RECOVERY_POINT_CHECKPOINT)
    if not (filesystem.exists(starts) and filesystem.exists(points)):
        return
    is_ours = is_sealed(read_file(filesystem, points, MAX_CHECKPOINT_BYTES))
    if is_ours and filesystem.stat(starts).size_bytes == 0:
        raise CorruptionError("a log directory of ours has log starts", file=starts)


def _without_strangers(
    path: str,
    name: str,
    offsets: Offsets,
    partitions: set[TopicPartition],
    filesystem: FileSystem,
) -> Offsets:
    """Without the entries of partitions that a crash kept from being forgotten (I3); durably."""
    kept = {key: offset for key, offset in offsets.items() if key in partitions}
    if kept != offsets:
        write_checkpoint(filesystem, os.path.join(path, name), kept)
    return kept


def _read_cleaned(path: str, partitions: set[TopicPartition], filesystem: FileSystem) -> Offsets:
    """The cleaner checkpoints. Damaged ones are dropped: all is cleaned again, and nothing lost."""
    try:
        cleaned = read_checkpoint(filesystem, os.path.join(path, CLEANER_OFFSET_CHECKPOINT))
    except CorruptionError as error:
        _LOG.error("%s; every log in %s counts as never cleaned", error, path)
        return {}
    return _without_strangers(path, CLEANER_OFFSET_CHECKPOINT, cleaned, partitions, filesystem)


def _is_deleted(name: str) -> bool:
    """`orders-0.<id>-delete`, as Kafka and we name it."""
    stem, _, _ = name.removesuffix(_DELETED_SUFFIX).rpartition(".")
    return parse_partition_directory(stem) is not None


def deleted_name(topic_partition: TopicPartition, unique_id: str) -> str:
    """The directory of a partition that is being deleted; Kafka's form, which cuts a long topic."""
    rest = f"-{topic_partition.partition}.{unique_id}{_DELETED_SUFFIX}"
    return topic_partition.topic[: MAX_NAME_BYTES - len(rest)] + rest


def write_starts(log_dir: LogDir, filesystem: FileSystem) -> None:
    """Make the log starts durable. Raises `StorageIOError`."""
    path = os.path.join(log_dir.path, LOG_START_OFFSET_CHECKPOINT)
    write_checkpoint(filesystem, path, log_dir.starts)


def write_points(log_dir: LogDir, ends: Offsets, filesystem: FileSystem) -> None:
    """Make the recovery points durable; `ends` are the log ends, for Kafka.

    Raises `StorageIOError`.
    """
    points = log_dir.points or {}
    write_checkpoint(filesystem, os.path.join(log_dir.path, RECOVERY_POINT_CHECKPOINT), points)
    write_checkpoint(filesystem, os.path.join(log_dir.path, HIGH_WATERMARK_CHECKPOINT), ends)


def write_cleaned(log_dir: LogDir, filesystem: FileSystem) -> None:
    """Make the cleaner checkpoints durable (CLN-3). Raises `StorageIOError`."""
    path = os.path.join(log_dir.path, CLEANER_OFFSET_CHECKPOINT)
    write_checkpoint(filesystem, path, log_dir.cleaned)


def close_log_dir(log_dir: LogDir, filesystem: FileSystem, *, is_clean: bool) -> None:
    """Let go of a directory; `is_clean`: all its logs were closed in order and flushed.

    Raises `StorageIOError`.
    """
    try:
        if is_clean and log_dir.offline is None:
            path = os.path.join(log_dir.path, CLEAN_SHUTDOWN_FILE)
            file = filesystem.open(path, "create")
            try:
                file.pwrite(_CLEAN_SHUTDOWN, 0)
            finally:
                file.close()
            filesystem.fsync_directory(log_dir.path)  # that it is there says all
    finally:
        log_dir.release()
