"""The small files of a partition directory, and the directory as a whole.

Formats: `.index` 8 bytes an entry (relative offset, position, int32); `.timeindex` 12 bytes
(timestamp int64, relative offset int32); `.txnindex` 34 bytes (version int16, producer id, first
offset, last offset, last stable offset, int64); `.snapshot` a header of version int16, CRC-32C of
what follows and count int32, then 46 bytes a producer. Checkpoints are text: a version, a count,
and `topic partition offset` lines.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.naive.crc32c import crc32c
from tests.naive.records import Batch, parse_log

_PRODUCER = struct.Struct(">qhiqiqiq")
_ABORTED = struct.Struct(">hqqqq")


@dataclass(frozen=True)
class Aborted:
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True)
class Producer:
    """An entry of a producer snapshot; -1 stands for nothing."""

    producer_id: int
    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp: int = -1
    coordinator_epoch: int = -1
    txn_first_offset: int = -1


@dataclass(frozen=True)
class Segment:
    """One segment as it lies on disk."""

    base: int
    data: bytes
    mtime_ms: int
    index_bytes: int
    time_index: tuple[tuple[int, int], ...]
    aborted: tuple[Aborted, ...]

    @property
    def batches(self) -> list[Batch]:
        return parse_log(self.data)

    @property
    def next_offset(self) -> int:
        batches = self.batches
        return batches[-1].last_offset + 1 if batches else self.base

    @property
    def largest_timestamp(self) -> int:
        """The time index's last timestamp; the file's time where there is none."""
        if self.time_index and self.time_index[-1][0] >= 0:
            return self.time_index[-1][0]
        return self.mtime_ms


def name(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def read_segments(partition: Path) -> list[Segment]:
    segments = []
    for path in sorted(partition.glob("*.log")):
        base = int(path.stem)
        index, times, txns = (
            path.with_suffix(suffix) for suffix in (".index", ".timeindex", ".txnindex")
        )
        segments.append(
            Segment(
                base,
                path.read_bytes(),
                path.stat().st_mtime_ns // 1_000_000,
                index.stat().st_size if index.exists() else 0,
                tuple(struct.iter_unpack(">qi", times.read_bytes())) if times.exists() else (),
                tuple(read_txn_index(txns)),
            )
        )
    return segments


def read_txn_index(path: Path) -> list[Aborted]:
    if not path.exists():
        return []
    return [Aborted(*fields[1:]) for fields in _ABORTED.iter_unpack(path.read_bytes())]


def encode_txn_index(entries: Iterable[Aborted]) -> bytes:
    return b"".join(
        _ABORTED.pack(0, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in entries
    )


def read_snapshot(path: Path) -> list[Producer]:
    data = path.read_bytes()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, crc, 10 + 46 * count) == (1, crc32c(data[6:]), len(data)), path
    return [Producer(*fields) for fields in _PRODUCER.iter_unpack(data[10:])]


def encode_snapshot(producers: Iterable[Producer]) -> bytes:
    entries = [
        _PRODUCER.pack(
            p.producer_id,
            p.epoch,
            p.last_sequence,
            p.last_offset,
            p.offset_delta,
            p.timestamp,
            p.coordinator_epoch,
            p.txn_first_offset,
        )
        for p in producers
    ]
    body = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", 1, crc32c(body)) + body


def newest_snapshot(partition: Path) -> Path | None:
    return max(partition.glob("*.snapshot"), default=None)


def read_checkpoint(path: Path) -> dict[str, int]:
    """Offsets by partition directory name. Kafka makes the file when it starts, with 0 bytes."""
    if not path.exists() or path.stat().st_size == 0:
        return {}
    version, count, *lines = path.read_text().split("\n")
    assert (version, lines[int(count) :]) == ("0", [""]), path
    fields = (line.rsplit(" ", 2) for line in lines[:-1])
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in fields}


def encode_checkpoint(offsets: Mapping[str, int]) -> str:
    lines = []
    for directory, offset in offsets.items():
        topic, partition = directory.rsplit("-", 1)
        lines.append(f"{topic} {partition} {offset}\n")
    return f"0\n{len(lines)}\n" + "".join(lines)


def build_indexes(base: int, batches: Sequence[Batch], interval_bytes: int) -> tuple[bytes, bytes]:
    """Offset and time index of a segment by Kafka's recovery rule: an entry for a batch before
    which more than `interval_bytes` lie since the last one; a last time entry at the end."""
    offsets, times = b"", b""
    position, last_position = 0, 0
    largest, largest_at, last_time = -1, -1, -1
    for batch in batches:
        if batch.max_timestamp > largest:
            largest, largest_at = batch.max_timestamp, batch.last_offset
        if position - last_position > interval_bytes:
            offsets += struct.pack(">ii", batch.last_offset - base, position)
            if largest > last_time:
                times += struct.pack(">qi", largest, largest_at - base)
                last_time = largest
            last_position = position
        position += len(batch.raw)
    if largest > last_time:
        times += struct.pack(">qi", largest, largest_at - base)
    return offsets, times


def write_segment(
    partition: Path,
    base: int,
    data: bytes,
    aborted: Iterable[Aborted],
    *,
    interval_bytes: int,
    mtime_ms: int,
) -> None:
    """All files of a segment; a transaction index only if it has entries."""
    index, times = build_indexes(base, parse_log(data), interval_bytes)
    contents = {".log": data, ".index": index, ".timeindex": times}
    txn_index = encode_txn_index(aborted)
    if txn_index:
        contents[".txnindex"] = txn_index
    for suffix, content in contents.items():
        path = partition / name(base, suffix)
        path.write_bytes(content)
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))
