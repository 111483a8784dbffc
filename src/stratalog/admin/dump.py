"""Batches and records of files, as values for people to look at.

A row is a dict of plain values with a `type`: `file`, then what that file holds: `batch`, `record`,
`index`, `timeindex`, `txnindex` or `producer`. Bytes are shown as text where they are printable
UTF-8, else as hexadecimal digits after `hex:`.

Invariants
- I1  Rows come as they are read: a file of any size takes the memory of one batch.
- I2  A batch with a wrong checksum is shown as such; what cannot be a batch raises, after all rows
      before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from stratalog.admin.directories import find_partitions
from stratalog.admin.location_manifest import current_root
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.log import snapshots
from stratalog.record.batch import Batch
from stratalog.record.control import parse_key
from stratalog.record.values import Record
from stratalog.segment import offset_index, time_index, txn_index
from stratalog.segment.index_files import MAX_INDEX_BYTES
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind, FileState, ParsedName, parse

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """`records`: also the records of each batch; `start_offset`: from the batch that reaches it;
    `limit`: at most so many batches (None: all)."""

    records: bool = False
    start_offset: int = 0
    limit: int | None = None


def text_of(content: bytes | None) -> str | None:
    """Bytes for people: printable UTF-8 as it is, anything else in hexadecimal."""
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"hex:{content.hex()}"
    return text if text.isprintable() else f"hex:{content.hex()}"


def dump(path: str, options: DumpOptions, filesystem: FileSystem) -> Iterator[Row]:
    """The rows of a segment file, or of the `.log` files of a partition or log directory; of a
    location those of the generation that counts.

    Raises `UsageError` for anything else, `CorruptionError` for damage.
    """
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        parsed = parse(os.path.basename(path))
        if parsed is None or not filesystem.exists(path):
            raise UsageError(f"{path}: neither a directory nor a segment's file")
        return _rows_of(path, parsed, options, filesystem)
    paths = [
        (os.path.join(place.path, name), parsed)
        for place in find_partitions([current_root(filesystem, path)], filesystem)
        for name in filesystem.list_directory(place.path)
        if (parsed := parse(name)) is not None
        and (parsed.kind, parsed.state) == (FileKind.LOG, FileState.FINAL)
    ]
    return (row for path, parsed in paths for row in _rows_of(path, parsed, options, filesystem))


def _rows_of(
    path: str, parsed: ParsedName, options: DumpOptions, filesystem: FileSystem
) -> Iterator[Row]:
    size_bytes = filesystem.stat(path).size_bytes
    yield {"type": "file", "file": path, "size_bytes": size_bytes}
    try:
        match parsed.kind:
            case FileKind.LOG:
                yield from _batches(path, options, filesystem)
            case FileKind.SNAPSHOT:
                directory = os.path.dirname(path)
                for entry in snapshots.read_snapshot(filesystem, directory, parsed.base_offset):
                    yield {"type": "producer", **asdict(entry)}
            case _:
                content = read_file(filesystem, path, MAX_INDEX_BYTES)
                yield from _index_rows(content, parsed)
    except CorruptionError as error:
        raise error.located(path) from None


def _index_rows(content: bytes, parsed: ParsedName) -> Iterator[Row]:
    base = parsed.base_offset
    if parsed.kind is FileKind.OFFSET_INDEX:
        offsets = offset_index.decode(content, base)
        for offset, at in zip(offsets.offsets.tolist(), offsets.positions.tolist(), strict=True):
            yield {"type": "index", "offset": offset, "position": at}
    elif parsed.kind is FileKind.TIME_INDEX:
        times = time_index.decode(content, base)
        for timestamp, offset in zip(
            times.timestamps.tolist(), times.offsets.tolist(), strict=True
        ):
            yield {"type": "timeindex", "timestamp": timestamp, "offset": offset}
    else:
        for entry in txn_index.decode(content, base):
            yield {"type": "txnindex", **asdict(entry)}


def _batches(path: str, options: DumpOptions, filesystem: FileSystem) -> Iterator[Row]:
    log = LogFile.open(filesystem, path)
    size_bytes, end, shown = log.size_bytes(), 0, 0
    for batch in log.batches(0, size_bytes):
        end = batch.position + batch.header.size_bytes
        if batch.header.last_offset < options.start_offset:
            continue
        if options.limit is not None and shown >= options.limit:
            return
        shown += 1
        yield _batch_row(batch)
        if options.records:
            for record in batch.records():
                yield _record_row(batch, record)
    if end < size_bytes:
        raise CorruptionError(f"{size_bytes - end} bytes are no whole batch", position=end)


def _batch_row(batch: Batch) -> Row:
    header = batch.header
    return {
        "type": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "leader_epoch": header.leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "position": batch.position,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "size_bytes": header.size_bytes,
        "magic": header.magic,
        "codec": header.codec.name.lower(),
        "crc": header.crc,
        "crc_ok": batch.crc_ok(),
    }


def _record_row(batch: Batch, record: Record) -> Row:
    row: Row = {
        "type": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[text_of(key), text_of(value)] for key, value in record.headers],
        "sequence": record.sequence,
    }
    if batch.header.is_control:
        row["control"] = parse_key(record.key).name.lower()
    return row
