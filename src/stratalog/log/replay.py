"""Folding stored batches into the state of the producers, and what follows from that.

Invariants
- I1  Only headers are read, and of control batches the one record: opening a log costs no more
      than stepping over what lies behind its newest snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stratalog.base.errors import CorruptionError
from stratalog.log.producer_state import (
    Marker,
    ProducerBatch,
    ProducerState,
    aborted_entry,
    apply,
)
from stratalog.record.batch import Batch
from stratalog.record.control import ControlType, parse_marker
from stratalog.record.values import BatchHeader
from stratalog.segment.segment import Segment
from stratalog.segment.segments import Segments
from stratalog.segment.txn_index import AbortedTxn


def producer_batch(header: BatchHeader, batch: Batch | None = None) -> ProducerBatch | None:
    """What the fold needs of a batch; None if it has no producer id.

    `batch` is needed for control batches. Raises `CorruptionError` for a marker that is none.
    """
    if header.producer_id < 0:
        return None
    marker = None
    if header.is_control:
        assert batch is not None
        marker = _marker(batch)
    return ProducerBatch(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
        header.base_offset,
        header.last_offset,
        header.max_timestamp,
        header.is_transactional,
        header.is_control,
        marker,
    )


def _marker(batch: Batch) -> Marker | None:
    for record in batch.records():
        end = parse_marker(record)
        if end is None:
            return None
        return Marker(end.type is ControlType.ABORT, end.coordinator_epoch, record.timestamp)
    return None


def stored_producer_batches(segment: Segment, start_offset: int) -> Iterable[ProducerBatch]:
    """The producers' batches of a segment that reach `start_offset` or above."""
    first = segment.find(start_offset)
    if first is None:
        return
    for placed in segment.headers(first.position):
        header = placed.header
        if header.producer_id < 0:
            continue
        try:
            found = producer_batch(
                header, segment.read_batch(placed) if header.is_control else None
            )
        except CorruptionError as error:
            raise CorruptionError(
                error.reason, file=segment.log.path, position=placed.position
            ) from None
        if found is not None:
            yield found


def replay(state: ProducerState, segments: Segments, start_offset: int, end_offset: int) -> None:
    """Fold the batches in [start_offset, end_offset) into `state`.

    Raises `CorruptionError`, naming file and position.
    """
    _forget_ended(state, segments, start_offset)
    for segment in segments.from_offset(start_offset):
        if segment.base_offset >= end_offset:
            return
        for batch in stored_producer_batches(segment, start_offset):
            if batch.base_offset >= end_offset:
                return
            apply(state, batch)


def _forget_ended(state: ProducerState, segments: Segments, start_offset: int) -> None:
    """Close the transactions of a snapshot at `start_offset` whose data has been cleaned away.

    Cleaning never touches an open transaction (CMP-14). So one that has no batch left before the
    snapshot, where it had one, has ended; and with its data its marker may be gone: nothing that is
    replayed would close it, and the last stable offset would stand still for ever. Batches of it
    behind the snapshot open it again where they lie, for a marker that is still there.
    """
    for first_offset, producer_id in list(state.open_transactions.items()):
        # What retention has deleted may have been open all the same.
        is_known = segments.floor(first_offset) is not None
        if is_known and not _has_data(segments, producer_id, first_offset, start_offset):
            state.put(replace(state.entries[producer_id], current_txn_first_offset=None))


def _has_data(segments: Segments, producer_id: int, first_offset: int, end_offset: int) -> bool:
    """Whether a producer has transactional data in [first, end); also if damage hides that."""
    try:
        for segment in segments.from_offset(first_offset):
            if segment.base_offset >= end_offset:
                return False
            first = segment.find(first_offset)
            for placed in () if first is None else segment.headers(first.position):
                header = placed.header
                if header.base_offset >= end_offset:
                    return False
                is_data = header.is_transactional and not header.is_control
                if is_data and header.producer_id == producer_id:
                    return True
    except CorruptionError:
        return True  # told by whoever reads it
    return False


def aborted_of(state: ProducerState, segment: Segment) -> tuple[AbortedTxn, ...]:
    """What the segment's `.txnindex` must hold. `state`, given at its base, is moved to its end."""
    entries: list[AbortedTxn] = []
    for batch in stored_producer_batches(segment, segment.base_offset):
        completed = apply(state, batch)
        if completed is not None and completed.is_abort:
            entries.append(aborted_entry(state, completed))
    return tuple(entries)
