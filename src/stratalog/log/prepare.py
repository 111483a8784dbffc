"""Making an append ready: the bytes as they will lie in the file, and what the log learns of them.

    check_produced ─► place_produced     what producers send: checked first, outside of any lock,
                                         recompressed if the topic names a codec of its own, then
                                         given its offsets, leader epoch and append time
    place_marker                         a transaction marker of the log's own
    check_replicated                     batches that have their offsets already

Invariants
- I1  Offsets follow the log end without a gap (replicated ones: may leave gaps, never go back).
- I2  The caller's bytes are copied before anything is patched in them.
- I3  A checksum is calculated once to check a batch, and once more only if the batch changes where
      its checksum looks: another codec, an append time, a repaired max timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.base.errors import CorruptionError, RecordTooLargeError, UsageError
from stratalog.log.producer_state import ProducerBatch
from stratalog.log.replay import producer_batch
from stratalog.log.settings import LogSettings
from stratalog.record.batch import Batch, batches
from stratalog.record.builder import assign_offsets, with_codec
from stratalog.record.validate import ProducedBatch, validate
from stratalog.record.values import BatchHeader, parse_header
from stratalog.segment.offset_index import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Whole batches, ready to be written at the log end.

    `rows`: (size, last offset, max timestamp) of each; `changes`: those with a producer id.
    """

    data: memoryview
    first_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int
    rows: list[tuple[int, int, int]]
    changes: list[ProducerBatch]

    @property
    def size_bytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class CheckedSet:
    """A produced record set that the topic takes; `data` is ours to patch."""

    data: memoryview
    batches: list[ProducedBatch]


def check_produced(data: Buffer, settings: LogSettings, now_ms: int) -> CheckedSet:
    """Check a produced record set against the topic's rules, and give it the topic's codec.

    Raises what `record.validate` raises, and `UsageError` for nothing at all.
    """
    copy = memoryview(bytearray(data))
    found = validate(copy, settings.produce_rules, now_ms)
    if not found:
        raise UsageError("nothing to append")
    return recompressed(CheckedSet(copy, found), settings, now_ms)


def recompressed(checked: CheckedSet, settings: LogSettings, now_ms: int) -> CheckedSet:
    """The set with every batch in the codec that the topic names (`compression.type`, LOG-13).

    Records, producer, sequence and flags stay as they are. What has that codec already is not
    touched, whatever its level; without a codec (`producer`) nothing is. Raises
    `RecordTooLargeError` for a batch that grows past `max.message.bytes` (LOG-9).

    Source: Kafka's LogValidator, and UnifiedLog.append for the second look at sizes.
    """
    codec = settings.compression
    if codec is None or all(batch.header.codec is codec for batch in checked.batches):
        return checked
    append_time_ms = now_ms if settings.is_log_append_time else None
    limit_bytes = settings.produce_rules.max_decompressed_bytes
    data = bytearray()
    made: list[ProducedBatch] = []
    for batch in checked.batches:
        content: Buffer = _bytes_of(checked, batch)
        header = batch.header
        if header.codec is not codec:
            content = with_codec(
                Batch(header, memoryview(content)),
                codec,
                level=settings.compression_level,
                limit_bytes=limit_bytes,
                log_append_time_ms=append_time_ms,
                max_timestamp=batch.max_timestamp,
            )
            header = parse_header(content)
            if header.size_bytes > settings.max_message_bytes:
                raise RecordTooLargeError(
                    f"the batch is {header.size_bytes} bytes as {codec.name.lower()}, the maximum"
                    f" is {settings.max_message_bytes}"
                )
        made.append(
            ProducedBatch(len(data), header, batch.max_timestamp, batch.max_timestamp_offset_delta)
        )
        data += content
    return CheckedSet(memoryview(data), made)


def place_produced(
    checked: CheckedSet, settings: LogSettings, now_ms: int, offset: int, leader_epoch: int
) -> Prepared:
    """Give a checked set the offsets from `offset` on, in its own bytes."""
    append_time_ms = now_ms if settings.is_log_append_time else None
    first_offset = offset
    rows: list[tuple[int, int, int]] = []
    changes: list[ProducerBatch] = []
    for batch in checked.batches:
        assign_offsets(
            _bytes_of(checked, batch),
            offset,
            leader_epoch,
            append_time_ms,
            max_timestamp=batch.max_timestamp,
        )
        last_offset = offset + batch.header.last_offset_delta
        rows.append((batch.header.size_bytes, last_offset, batch.max_timestamp))
        if batch.header.producer_id >= 0:
            changes.append(_change(batch, offset, last_offset))
        offset = last_offset + 1
    return Prepared(
        checked.data,
        first_offset,
        offset - 1,
        max(batch.max_timestamp for batch in checked.batches),
        leader_epoch,
        rows,
        changes,
    )


def _bytes_of(checked: CheckedSet, batch: ProducedBatch) -> memoryview:
    return checked.data[batch.position : batch.position + batch.header.size_bytes]


def _change(batch: ProducedBatch, first_offset: int, last_offset: int) -> ProducerBatch:
    """What the producers' state learns of a batch, which is data: producers send no markers."""
    header = batch.header
    return ProducerBatch(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
        first_offset,
        last_offset,
        batch.max_timestamp,
        header.is_transactional,
        is_control=False,
    )


def place_marker(
    marker: bytes, settings: LogSettings, now_ms: int, offset: int, leader_epoch: int
) -> Prepared:
    """Give a transaction marker the offset `offset`."""
    copy = memoryview(bytearray(marker))
    append_time_ms = now_ms if settings.is_log_append_time else None
    assign_offsets(copy, offset, leader_epoch, append_time_ms)
    header = parse_header(copy)
    return _prepared(
        copy, [header], [producer_batch(header, Batch(header, copy))], offset, leader_epoch
    )


def check_replicated(data: Buffer, log_end_offset: int) -> Prepared:
    """Batches of any magic that keep their offsets.

    Raises `CorruptionError` (position from the start of `data`) for damaged bytes, and for offsets
    that do not follow the log end or one another; `UsageError` for none at all.
    """
    copy = memoryview(bytes(data))
    found = list(batches(copy))
    end = found[-1].position + found[-1].header.size_bytes if found else 0
    if end != len(copy):
        raise CorruptionError("record set ends inside a batch", position=end)
    if not found:
        raise UsageError("nothing to append")
    previous = log_end_offset - 1
    for batch in found:
        if batch.header.base_offset <= previous:
            raise CorruptionError(
                f"offset {batch.header.base_offset} does not follow {previous}",
                position=batch.position,
            )
        if not batch.crc_ok():
            raise CorruptionError("batch fails its checksum", position=batch.position)
        previous = batch.header.last_offset
    headers = [batch.header for batch in found]
    made = [producer_batch(batch.header, batch) for batch in found]
    # A compressed message of magic 0 or 1 states its last offset: its first is not known without
    # decompressing it, but it is not below the log end.
    # A roll begins the new segment there, and the last offset has to fit it.
    first_offset = (
        headers[0].base_offset
        if headers[0].magic >= 2
        else max(log_end_offset, headers[-1].last_offset - MAX_RELATIVE_OFFSET)
    )
    leader_epoch = max(header.leader_epoch for header in headers)
    return _prepared(copy, headers, made, first_offset, leader_epoch)


def _prepared(
    data: memoryview,
    headers: list[BatchHeader],
    made: list[ProducerBatch | None],
    first_offset: int,
    leader_epoch: int,
) -> Prepared:
    return Prepared(
        data,
        first_offset,
        headers[-1].last_offset,
        max(header.max_timestamp for header in headers),
        leader_epoch,
        [(header.size_bytes, header.last_offset, header.max_timestamp) for header in headers],
        [change for change in made if change is not None],
    )
