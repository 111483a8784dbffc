"""The sink as a producer: what a log knows of the batches that it was given (KIP-98).

A batch is appended with a producer id of its writer and an epoch of its own, its records numbered
from 0 in each partition. A log takes them in this order only, remembers where a producer is, also
over a crash, and fences off older epochs.

It forgets a producer whose last timestamp is a day old (`producer.id.expiration.ms`) when it is
opened, and one of which no record is left. Then the log's batches say the same, as long as neither
cleaning nor retention has been where the batch would be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import count

from stratalog.base.errors import UsageError
from stratalog.log.log_store import LogStore
from stratalog.log.partition_log import PartitionLog
from stratalog.pipeline.sink_state import MAX_EPOCH, NOTHING, SinkState
from stratalog.record import layout
from stratalog.record.checksum import crc32c
from stratalog.segment.names import TopicPartition


class CannotTellError(UsageError):
    """A log does not say any more how much of a decided batch it holds, or held."""


def producer_of(
    state: SinkState | None, writer: str, version: int, logs: Sequence[PartitionLog]
) -> tuple[int, int]:
    """A producer id and an epoch that none of these logs knows."""
    known = [log.producers().entries for log in logs]
    if state is not None and NOTHING < state.epoch < MAX_EPOCH:
        entries = [producers.get(state.producer_id) for producers in known]
        if all(entry is None or entry.epoch <= state.epoch for entry in entries):
            return state.producer_id, state.epoch + 1
    for number in count():
        # Far above the ids that a broker gives out, which begin at 0.
        text = f"{writer}\n{version}\n{number}"
        digest = hashlib.sha256(text.encode()).digest()
        producer_id = int.from_bytes(digest[:8], "big") >> 2 | 1 << 61
        if not any(producer_id in producers for producers in known):
            return producer_id, 0
    raise AssertionError  # count() does not end


def appended(store: LogStore, key: TopicPartition, state: SinkState, start: int) -> int:
    """How many records of the pending batch a log holds, or held: they come in order.

    Raises `CannotTellError`; `UsageError` if a later batch is there.
    """
    log = store.get(key)
    entry = log.producers().entries.get(state.producer_id)
    if entry is not None:
        if entry.epoch == state.epoch:
            return entry.last_sequence + 1
        if entry.epoch < state.epoch:
            return 0
        raise UsageError(f"{key} holds a later batch of {state.writer}")
    # Never appended, or forgotten since.
    cleaned = store.cleaner_point(key) or 0
    first = max(start, log.log_start_offset)
    found, found_offset = 0, -1
    if first < log.log_end_offset:
        for batch in log.read_batches(first):
            header = batch.header
            if (header.producer_id, header.producer_epoch) == (state.producer_id, state.epoch):
                found, found_offset = header.last_sequence + 1, header.last_offset
    is_whole = cleaned <= start and log.log_start_offset <= start
    if is_whole or found_offset >= cleaned:
        return found
    raise CannotTellError(f"{key}: records from offset {start} on were cleaned or deleted since")


def sign(batch: bytearray, producer_id: int, epoch: int, sequence: int) -> None:
    """Make it a batch of a producer, in its own bytes."""
    header = list(layout.HEADER.unpack_from(batch))
    header[-4:-1] = producer_id, epoch, sequence
    layout.HEADER.pack_into(batch, 0, *header)
    crc = crc32c(memoryview(batch)[layout.ATTRIBUTES :])
    batch[layout.CRC : layout.CRC + 4] = crc.to_bytes(4, "big")
