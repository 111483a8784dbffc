"""Making an append ready: the bytes as they will lie in the file, and what the log learns of them.

    check_produced ─► place_produced     what producers send: checked first, outside of any lock,
                                         then given its offsets, leader epoch and append time
    place_marker                         a transaction marker of the log's own
    check_replicated                     batches that have their offsets already

Invariants
- I1  Offsets follow the log end without a gap (replicated ones: may leave gaps, never go back).
- I2  The caller's bytes are copied before anything is patched in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.log.producer_state import ProducerBatch
from stratalog.log.replay import producer_batch
from stratalog.log.settings import LogSettings
from stratalog.record.batch import Batch, batches
from stratalog.record.builder import assign_offsets
from stratalog.record.validate import ProducedBatch, validate
from stratalog.record.values import BatchHeader, parse_header

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
    """Check a produced record set against the topic's rules; see `record.validate`."""
    copy = memoryview(bytearray(data))
    found = validate(copy, settings.produce_rules, now_ms)
    if not found:
        raise UsageError("nothing to append")
    return CheckedSet(copy, found)


def place_produced(
    checked: CheckedSet, settings: LogSettings, now_ms: int, offset: int, leader_epoch: int
) -> Prepared:
    """Give a checked set the offsets from `offset` on, in its own bytes."""
    append_time_ms = now_ms if settings.is_log_append_time else None
    headers: list[BatchHeader] = []
    for batch in checked.batches:
        header = replace(batch.header, base_offset=offset, max_timestamp=batch.max_timestamp)
        assign_offsets(
            checked.data[batch.position : batch.position + header.size_bytes],
            offset,
            leader_epoch,
            append_time_ms,
            max_timestamp=batch.max_timestamp,
        )
        headers.append(header)
        offset = header.next_offset
    made = [producer_batch(header) for header in headers]
    return _prepared(checked.data, headers, made, headers[0].base_offset, leader_epoch)


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
    first_offset = headers[0].base_offset if headers[0].magic >= 2 else log_end_offset
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
