"""CSV and JSON-lines files -> the logs of a topic, through the public append API.

    read_rows ─► record ─► partition (murmur2 of the key) ─► batch ─► PartitionLog.append_records

The topic is made by the desk, as `topic create` makes it: with settings of its own that whoever
opens the directory later goes by, cleanup.policy=compact unless told. A directory that was not
closed in order is recovered first, and the one that is left behind is closed in order.

Invariants
- I1  The file is streamed: memory holds at most one unfinished batch for each partition.
- I2  Rows of one key keep their order.
- I3  A new topic is there wholly or not at all; a log directory that was made for it stays, as
      somebody else may have taken it over meanwhile. Rows are added to a topic that exists only if
      asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.admin.floors import append_codec, log_settings
from stratalog.admin.partitioner import partition_of_key
from stratalog.admin.rows import Row, RowRules, read_rows, record_maker
from stratalog.admin.store import problem_of
from stratalog.base.clock import Clock
from stratalog.base.errors import LogOfflineError, StratalogError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.base.open_files import raise_open_files_limit
from stratalog.config.book import SettingsBook
from stratalog.config.settings import Settings
from stratalog.config.table import TOPIC_NAMES
from stratalog.log.log_store import LogStore
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec
from stratalog.segment.names import (
    MAX_PARTITION,
    TopicPartition,
    is_topic_name,
)

_BATCH_BYTES = 256 << 10
"""A batch is written when it holds this much, or `batch_records` records."""
_POLICY = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What to make of a file. `codec` None: that of compression.type; `append`: to an existing
    topic, whose number of partitions `partitions` must then be."""

    topic: str
    rules: RowRules
    partitions: int = 1
    codec: Codec | None = None
    batch_records: int = 500
    append: bool = False


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """One partition after the import; records and bytes are those that were added."""

    partition: str
    directory: str
    records: int
    log_bytes: int
    segments: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was read and written. `created`: the topic is new, and `configs` is set at it."""

    file: str
    topic: str
    created: bool
    configs: dict[str, str]
    warnings: tuple[str, ...]
    rows: int
    tombstones: int
    keyless: int
    seconds: float
    partitions: tuple[ImportedPartition, ...]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 3)}


@dataclass(slots=True)
class _Writer:
    """One partition's open log and its unfinished batch; `lines` are those of its rows."""

    log: PartitionLog
    first_offset: int
    first_bytes: int
    batch: list[NewRecord] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    batch_bytes: int = 0


def import_file(
    path: str,
    log_dir: str,
    options: ImportOptions,
    words: Mapping[str, str],
    filesystem: FileSystem,
    clock: Clock,
    on_rows: Callable[[int], None],
) -> ImportReport:
    """Import a file as the topic `options.topic` in `log_dir`; `on_rows` gets the rows so far.

    `words` are settings: of a topic that is made now those that a topic can have, which stay; the
    others, and those beside a topic that is there, are what this import goes by.

    Raises `InvalidConfigError`, `UsageError` with the line of what cannot be a record
    (`InvalidRecordError` and `RecordTooLargeError` with the lines of the batch), `LogLockedError`,
    `StorageIOError`.
    """
    _check(options)
    log_dir = os.path.abspath(log_dir)
    started = time.perf_counter()
    raise_open_files_limit()
    own = {name: text for name, text in words.items() if name in TOPIC_NAMES}
    stay = {} if options.append else own
    rest = {name: text for name, text in words.items() if name not in stay}
    book, at_once = SettingsBook(overrides=rest), {"file.delete.delay.ms": "0"}
    with open_desk([log_dir], filesystem, clock, book=book, overrides=at_once) as desk:
        # Only now nobody else can change what is there.
        is_new = _check_existing(desk, log_dir, options)
        made: dict[str, Any] = {"configs": {}, "warnings": []}
        if is_new:
            configs = {_POLICY: "compact", **own}
            made = desk.create_topic(options.topic, options.partitions, configs)
        try:
            logs = _logs(desk.service.store, options)
            settings = desk.service.settings(options.topic)
            report = _import(path, logs, options, settings, on_rows)
        except BaseException:
            if is_new:
                with suppress(StratalogError):  # whatever led here is the error to tell
                    desk.delete_topic(options.topic)
                    desk.service.store.close()  # in order, also where somebody interrupts
            raise
    rows, tombstones, keyless, partitions = report
    return ImportReport(
        path,
        options.topic,
        is_new,
        made["configs"],
        tuple(made["warnings"]),
        rows,
        tombstones,
        keyless,
        time.perf_counter() - started,
        partitions,
    )


def _check(options: ImportOptions) -> None:
    if not is_topic_name(options.topic):
        raise UsageError(
            f"{options.topic!r} is no topic name: 1 to 249 letters, digits, dots, dashes and "
            "underscores"
        )
    if not 1 <= options.partitions <= MAX_PARTITION:
        raise UsageError(f"{options.partitions} is no number of partitions")
    if options.batch_records < 1:
        raise UsageError("a batch has at least one record")
    if not options.rules.key:
        raise UsageError("a key needs at least one column")


def _check_existing(desk: OwnDesk, log_dir: str, options: ImportOptions) -> bool:
    """Whether the topic is new. Raises `UsageError` if it is there and must not or cannot be."""
    if options.topic not in desk.topic_names():
        return True
    if not options.append:
        raise UsageError(f"topic {options.topic} is there already ({log_dir}); --append adds to it")
    partitions = desk.service.store.partitions()
    found = [key.partition for key in partitions if key.topic == options.topic]
    if found != list(range(options.partitions)):
        raise UsageError(
            f"topic {options.topic} has {len(found)} partitions here, not {options.partitions}"
        )
    return False


def _logs(store: LogStore, options: ImportOptions) -> list[PartitionLog]:
    keys = [TopicPartition(options.topic, number) for number in range(options.partitions)]
    for key in keys:
        problem = problem_of(store, key)
        if problem is not None:
            raise LogOfflineError(f"{key}: {problem}")
    return [store.get(key) for key in keys]


def _import(
    path: str,
    logs: Sequence[PartitionLog],
    options: ImportOptions,
    settings: Settings,
    on_rows: Callable[[int], None],
) -> tuple[int, int, int, tuple[ImportedPartition, ...]]:
    told = log_settings(settings)
    codec = append_codec(settings) if options.codec is None else options.codec
    make = record_maker(path, options.rules)
    turns = count()
    rows = tombstones = keyless = 0
    writers = [_Writer(log, log.log_end_offset, log.segments.size_bytes) for log in logs]
    for row in read_rows(path, options.rules.null):
        record = make(row)
        if record.key is None:
            _refuse_keyless(path, row, settings)
            keyless += 1
            writer = writers[next(turns) % len(writers)]
        else:
            writer = writers[partition_of_key(record.key, len(writers))]
        rows += 1
        tombstones += record.value is None
        _add(writer, row, record, path, codec, options.batch_records, told)
        if rows % 1000 == 0:
            on_rows(rows)
    for writer in writers:
        _flush(writer, path, codec)
    on_rows(rows)
    return rows, tombstones, keyless, tuple(map(_imported, writers))


def _refuse_keyless(path: str, row: Row, settings: Settings) -> None:
    """Also where nobody knows a topic's policy: it may be a compacted one."""
    policy = settings.words(_POLICY)
    if not policy or "compact" in policy:
        raise UsageError(
            f"{path}: line {row.line}: no key, which a compacted topic needs "
            "(or: --config cleanup.policy=delete)"
        )


def _add(
    writer: _Writer,
    row: Row,
    record: NewRecord,
    path: str,
    codec: Codec,
    batch_records: int,
    told: LogSettings,
) -> None:
    size_bytes = len(record.key or b"") + len(record.value or b"") + 32
    room_bytes = min(_BATCH_BYTES, told.max_message_bytes // 2, told.segment_bytes // 2)
    if writer.batch and writer.batch_bytes + size_bytes > room_bytes:
        _flush(writer, path, codec)
    writer.batch.append(record)
    writer.lines.append(row.line)
    writer.batch_bytes += size_bytes
    if len(writer.batch) >= batch_records:
        _flush(writer, path, codec)


def _flush(writer: _Writer, path: str, codec: Codec) -> None:
    if not writer.batch:
        return
    try:
        writer.log.append_records(writer.batch, codec=codec)
    except UsageError as error:
        first, last = writer.lines[0], writer.lines[-1]
        lines = f"line {first}" if first == last else f"one of the lines {first} to {last}"
        raise type(error)(f"{path}: {lines}: {error}") from error
    writer.batch, writer.lines, writer.batch_bytes = [], [], 0


def _imported(writer: _Writer) -> ImportedPartition:
    log = writer.log
    return ImportedPartition(
        os.path.basename(log.path),
        log.path,
        log.log_end_offset - writer.first_offset,
        log.segments.size_bytes - writer.first_bytes,
        len(log.segments),
        log.log_end_offset,
    )
