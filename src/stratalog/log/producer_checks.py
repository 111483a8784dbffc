"""Whether producers may append what they send: sequences, epochs, transactions. Pure.

Kafka's rules (`ProducerAppendInfo`): an idempotent producer's batches follow one another without a
gap; one of its last five batches, sent again, is answered with where it went; an older epoch is
fenced off; a new epoch begins at sequence 0. A producer that is not known here, because it is new
or was forgotten, may begin anywhere.

Invariants
- I1  The state is never changed: several batches are tried on a small copy, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import (
    InvalidRecordError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from stratalog.log.producer_state import (
    MAX_SEQUENCE,
    NO_EPOCH,
    ProducerBatch,
    ProducerEntry,
    ProducerState,
    RecentBatch,
    aborted_entry,
    apply,
)
from stratalog.segment.txn_index import AbortedTxn


def admit(state: ProducerState, batches: Sequence[ProducerBatch]) -> RecentBatch | None:
    """Check batches that are about to be appended; the earlier one if one is a repetition.

    Raises `ProducerFencedError` for an older epoch or a marker of an older coordinator,
    `OutOfOrderSequenceError` for a gap in the sequence, `InvalidRecordError` for data outside the
    transaction that the producer has open.
    """
    if not batches:
        return None
    # One batch alone needs no copy: nothing is tried behind it.
    trial = state if len(batches) == 1 else _trial(state, batches)
    for number, batch in enumerate(batches, start=1):
        earlier = _find_duplicate(trial, batch)
        if earlier is not None:
            return earlier
        _check(trial, batch)
        if number < len(batches):
            apply(trial, batch)
    return None


def aborted_by(state: ProducerState, batches: Sequence[ProducerBatch]) -> tuple[AbortedTxn, ...]:
    """The `.txnindex` entries that these batches, about to be appended, bring."""
    if not any(batch.marker is not None and batch.marker.is_abort for batch in batches):
        return ()
    trial = _trial(state, batches)
    entries: list[AbortedTxn] = []
    for batch in batches:
        completed = apply(trial, batch)
        if completed is not None and completed.is_abort:
            entries.append(aborted_entry(trial, completed))
    return tuple(entries)


def _trial(state: ProducerState, batches: Sequence[ProducerBatch]) -> ProducerState:
    """As much of the state as these batches can touch."""
    ids = {batch.producer_id for batch in batches}
    entries = {i: entry for i in ids if (entry := state.entries.get(i)) is not None}
    return ProducerState(entries, dict(state.open_transactions))


def _find_duplicate(state: ProducerState, batch: ProducerBatch) -> RecentBatch | None:
    """The one of the producer's last five batches that `batch` repeats, if any."""
    entry = state.entries.get(batch.producer_id)
    if entry is None or entry.epoch != batch.epoch or batch.is_control:
        return None
    for recent in entry.recent:
        if (recent.first_sequence, recent.last_sequence) == (
            batch.base_sequence,
            batch.last_sequence,
        ):
            return recent
    return None


def _check(state: ProducerState, batch: ProducerBatch) -> None:
    entry = state.entries.get(batch.producer_id) or ProducerEntry(batch.producer_id)
    who = f"producer {batch.producer_id}"
    if batch.epoch < entry.epoch:
        raise ProducerFencedError(f"{who}: epoch {batch.epoch} is older than {entry.epoch}")
    if batch.is_control:
        marker = batch.marker
        if marker is not None and marker.coordinator_epoch < entry.coordinator_epoch:
            raise ProducerFencedError(
                f"{who}: coordinator epoch {marker.coordinator_epoch} is older than"
                f" {entry.coordinator_epoch}"
            )
        return
    if entry.epoch != NO_EPOCH:
        # A producer that is not known here (new, or forgotten) may begin with any sequence.
        expected = 0 if batch.epoch != entry.epoch else _next_sequence(entry.last_sequence)
        if batch.base_sequence != expected:
            raise OutOfOrderSequenceError(
                f"{who}: sequence {batch.base_sequence}, expected {expected}"
            )
    if entry.current_txn_first_offset is not None and not batch.is_transactional:
        raise InvalidRecordError(f"{who}: data outside of its open transaction")


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == MAX_SEQUENCE else sequence + 1
