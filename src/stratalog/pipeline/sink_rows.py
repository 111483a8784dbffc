"""Rows of Arrow batches -> batches of records, partition by partition, into a task's staged file.

    columns (`sink_columns`) ─► a partition for each row ─► records (kernel) ─► batch ─► staged file

A row goes where its `partition` says, else where Kafka's default partitioner places its key; rows
without a key go to one partition until a batch of it is full, then to the next, as producers do it.
What Kafka would refuse is refused here, before anything is committed: nobody has seen a row then.

A row without a timestamp gets the time at which its task reads it, as a producer stamps what it is
given: a batch that is finished after a crash keeps the times it had.

Invariants
- I1  Rows of one partition keep their order.
- I2  A batch is at most `max.message.bytes` and fits a segment; only one of a single record may be
      refused for its size.
- I3  Memory: the unfinished batches of all partitions hold `HELD_BYTES` at most, about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.admin.topics import Topics
from stratalog.base.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UsageError,
)
from stratalog.config.book import SettingsBook
from stratalog.log.log_dir import METADATA_TOPIC
from stratalog.log.settings import LogSettings
from stratalog.pipeline.sink_columns import ANY_PARTITION, Rows, rows_of
from stratalog.pipeline.staging import StagedWriter
from stratalog.record import layout
from stratalog.record.checksum import crc32c
from stratalog.record.codec import Codec, compress
from stratalog.record.kernel import arrow_records as kernel
from stratalog.segment.names import TopicPartition, is_topic_name

BATCH_BYTES = 256 << 10
"""Of records in a batch, before they are compressed."""
HELD_BYTES = 64 << 20
_FIRST_BYTES = 8 << 10

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What the driver knows of the directory. `counts`: the partitions of each topic, by the
    highest number; `holes`: topics of which some partition lies elsewhere."""

    counts: Mapping[str, int]
    holes: frozenset[str]
    partitions: int
    creates_topics: bool
    topic: str | None
    codec: Codec
    book: SettingsBook


@dataclass(slots=True)
class _Open:
    """A partition's unfinished batch: `count` records in out[:at]."""

    key: TopicPartition
    settings: LogSettings
    codec: Codec
    limit: int
    out: npt.NDArray[np.uint8]
    at: int = 0
    count: int = 0
    base_timestamp: int = 0
    max_timestamp: int = layout.NO_TIMESTAMP
    finished: int = 0


@dataclass(slots=True)
class RowWriter:
    """One task's rows. Call `add` for each Arrow batch, then `finish`; both raise `UsageError`."""

    plan: TopicPlan
    staged: StagedWriter
    first_sticky: int
    counts: dict[str, int] = field(default_factory=dict)
    _topics: Topics = field(init=False)
    _open: dict[TopicPartition, _Open] = field(default_factory=dict)
    _sticky: dict[str, int] = field(default_factory=dict)
    _held_bytes: int = 0

    def __post_init__(self) -> None:
        self._topics = Topics(self.plan.book)

    def add(self, batch: pa.RecordBatch, now_ms: int) -> None:
        """Encode the rows of a batch."""
        rows = rows_of(batch, self.plan.topic, now_ms)
        for topic, of_topic in rows.by_topic():
            for partition, chosen in self._placed(rows, topic, of_topic):
                self._encode(rows, TopicPartition(topic, partition), chosen, now_ms)

    def finish(self) -> None:
        """Write the unfinished batches."""
        for one in self._open.values():
            self._finish(one)

    # -- where rows go ---------------------------------------------------------------------------

    def _count(self, topic: str) -> int:
        known = self.counts.get(topic)
        if known is not None:
            return known
        if not is_topic_name(topic) or topic == METADATA_TOPIC:
            raise UsageError(f"{topic[:300]!r} is no name for a topic")
        found = self.plan.counts.get(topic)
        if found is None:
            if not self.plan.creates_topics:
                raise UsageError(f"there is no topic {topic}, and auto.create.topics.enable=false")
            found = self.plan.partitions
        self.counts[topic] = found
        return found

    def _placed(self, rows: Rows, topic: str, chosen: Int64s) -> Iterator[tuple[int, Int64s]]:
        """The rows of each partition, in their order."""
        count = self._count(topic)
        partitions = np.full(len(chosen), ANY_PARTITION, np.int64)
        if rows.partitions is not None:
            partitions = rows.partitions[chosen]
        free = partitions == ANY_PARTITION
        wrong = partitions[~free & ((partitions < 0) | (partitions >= count))]
        if len(wrong):
            raise UsageError(
                f"topic {topic} has no partition {wrong[0]}: they are 0 to {count - 1}"
            )
        if free.any():
            if topic in self.plan.holes:
                raise UsageError(
                    f"topic {topic} has not all of its partitions here: give each row a partition"
                )
            partitions = np.where(free, rows.places_of_keys(count)[chosen], partitions)
            partitions[partitions < 0] = self._sticky_partition(topic, count)
        order = np.argsort(partitions, kind="stable")
        numbers, starts = np.unique(partitions[order], return_index=True)
        for number, part in zip(numbers, np.split(order, starts[1:]), strict=True):
            yield int(number), chosen[part]

    def _sticky_partition(self, topic: str, count: int) -> int:
        number = self._sticky.setdefault(topic, self.first_sticky % count)
        one = self._open.get(TopicPartition(topic, number))
        if one is not None and one.finished:
            one.finished = 0
            number = self._sticky[topic] = (number + 1) % count
        return number

    # -- records ---------------------------------------------------------------------------------

    def _encode(self, rows: Rows, key: TopicPartition, chosen: Int64s, now_ms: int) -> None:
        one = self._open.get(key) or self._opened(key)
        _check(one.settings, key.topic, rows, chosen, now_ms)
        place = 0
        while place < len(chosen):
            if one.count == 0:
                one.base_timestamp = int(rows.timestamps[chosen[place]])
            before = place
            place, one.count, one.at, needed = map(
                int,
                kernel.encode_records(
                    *(chosen, place, rows.timestamps, *rows.key, *rows.value, rows.header_ends),
                    *(*rows.names, *rows.contents),
                    *(one.base_timestamp, one.count, one.at, one.limit, one.out),
                ),
            )
            if place > before:
                newest = int(rows.timestamps[chosen[before:place]].max())
                one.max_timestamp = max(one.max_timestamp, newest)
            if place == len(chosen):
                break
            if one.count == 0 or one.at + needed <= one.limit:
                self._grow(one, one.at + needed)
            else:
                self._finish(one)
        if self._held_bytes > HELD_BYTES:
            self.finish()
            self._open.clear()
            self._held_bytes = 0

    def _opened(self, key: TopicPartition) -> _Open:
        settings = self._topics.log_settings(key)
        room_bytes = min(settings.max_message_bytes, settings.segment_bytes) - layout.HEADER_BYTES
        # No codec makes what cannot be compressed larger by more than a sixth (snappy's bound).
        limit = max(min(BATCH_BYTES, room_bytes * 6 // 7 - 64), 0)
        codec = self.plan.codec if settings.compression is None else settings.compression
        out = np.empty(_FIRST_BYTES, np.uint8)
        one = self._open[key] = _Open(key, settings, codec, limit, out)
        self._held_bytes += len(out)
        return one

    def _grow(self, one: _Open, size_bytes: int) -> None:
        if size_bytes > layout.INT32_MAX - layout.HEADER_BYTES:
            raise RecordTooLargeError(f"topic {one.key.topic}: a row of {size_bytes} bytes")
        larger = np.empty(max(2 * len(one.out), size_bytes), np.uint8)
        larger[: one.at] = one.out[: one.at]
        self._held_bytes += len(larger) - len(one.out)
        one.out = larger

    def _finish(self, one: _Open) -> None:
        if one.count == 0:
            return
        body = one.out[: one.at].tobytes()
        level = one.settings.compression_level if one.settings.compression is not None else None
        body = compress(one.codec, body, level)
        size_bytes = layout.HEADER_BYTES + len(body)
        most = min(one.settings.max_message_bytes, one.settings.segment_bytes)
        if size_bytes > most:
            name = "max.message.bytes" if most == one.settings.max_message_bytes else "a segment"
            raise RecordTooLargeError(
                f"topic {one.key.topic}: a row is {size_bytes} bytes as a batch, "
                f"{name} {'is' if name.startswith('max') else 'has'} {most}"
            )
        self.staged.add(one.key, _batch(one, body), one.count)
        one.finished += 1
        one.at, one.count, one.max_timestamp = 0, 0, layout.NO_TIMESTAMP


def _batch(one: _Open, body: bytes) -> bytes:
    batch = bytearray(layout.HEADER_BYTES + len(body))
    layout.HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - layout.LOG_OVERHEAD,
        0,
        layout.MAGIC_V2,
        0,
        int(one.codec),
        one.count - 1,
        one.base_timestamp,
        one.max_timestamp,
        layout.NO_PRODUCER_ID,
        layout.NO_PRODUCER_EPOCH,
        layout.NO_SEQUENCE,
        one.count,
    )
    batch[layout.HEADER_BYTES :] = body
    crc = crc32c(memoryview(batch)[layout.ATTRIBUTES :])
    batch[layout.CRC : layout.CRC + 4] = crc.to_bytes(4, "big")
    return bytes(batch)


def _check(settings: LogSettings, topic: str, rows: Rows, chosen: Int64s, now_ms: int) -> None:
    """What the log would refuse (`record.validate`), in the words of whoever has columns."""
    if settings.is_compacted and not rows.key[2][chosen].all():
        raise InvalidRecordError(f"topic {topic} is compacted: it takes no row without a key")
    times: Any = rows.timestamps[chosen]
    times = times[times != layout.NO_TIMESTAMP]
    if (times < 0).any():
        raise InvalidTimestampError(f"topic {topic}: a row's timestamp lies before 1970")
    if settings.is_log_append_time or not len(times):
        return
    oldest, newest = int(times.min()), int(times.max())
    for time, distance_ms, most_ms, name in (
        (oldest, now_ms - oldest, settings.message_timestamp_before_max_ms, "before"),
        (newest, newest - now_ms, settings.message_timestamp_after_max_ms, "after"),
    ):
        if distance_ms > most_ms:
            raise InvalidTimestampError(
                f"topic {topic}: a row's timestamp {time} lies {distance_ms} ms {name} now, "
                f"message.timestamp.{name}.max.ms is {most_ms}"
            )
