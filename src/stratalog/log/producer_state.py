"""What a log knows of its producers (sequences, epochs, open transactions), and `.snapshot` files.

The state is a fold over the log's batches. A snapshot at offset N holds the state of everything
below N, so that opening a log replays only what follows the newest snapshot. Rules are Kafka's
(`ProducerStateManager`, `ProducerAppendInfo`):

- a data batch adds itself to its producer's last five batches; another epoch empties them first;
- a transactional data batch opens a transaction unless one is open; a marker closes it;
- a marker moves epoch, coordinator epoch and timestamp, not the sequence; a marker whose record
  was cleaned away says nothing;
- the last stable offset is the first offset of the earliest open transaction, else the log end;
- a producer without an open transaction is forgotten once its last timestamp is
  `producer.id.expiration.ms` old; this is looked at when a snapshot is loaded.

    snapshot := version int16 = 1, crc uint32, count int32, entry{count}              big-endian
    entry    := producer id int64, epoch int16, last sequence int32, last offset int64,
                offset delta int32, timestamp int64, coordinator epoch int32,
                first offset of the open transaction int64 (-1 none)
    crc      := CRC-32C of everything after it

Invariants
- I1  `decode_snapshot(encode_snapshot(x)) == x` as far as the last batch of each producer goes.
- I2  `open_transactions` holds exactly the entries that have an open transaction.
- I3  The fold checks nothing: what lies in the log was accepted once (`producer_checks`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.record.checksum import crc32c
from stratalog.segment.txn_index import AbortedTxn

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = (1 << 31) - 1
RECENT_BATCHES = 5
"""How many batches of a producer are remembered: a client has at most five requests in flight."""

SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_END = 6
_ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_first_offset", ">i8"),
    ]
)


@dataclass(frozen=True, slots=True)
class RecentBatch:
    """A data batch of a producer. `offset_delta`: last offset minus first offset."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequences wrap from 2^31 - 1 to 0."""
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One producer. `recent`: its last data batches of the current epoch, oldest first, <= 5."""

    producer_id: int
    epoch: int = NO_EPOCH
    recent: tuple[RecentBatch, ...] = ()
    timestamp: int = -1
    coordinator_epoch: int = -1
    current_txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record of the current epoch; -1 if there is none."""
        return self.recent[-1].last_sequence if self.recent else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last data record of the current epoch; -1 if there is none."""
        return self.recent[-1].last_offset if self.recent else -1

    @property
    def offset_delta(self) -> int:
        return self.recent[-1].offset_delta if self.recent else 0


@dataclass(frozen=True, slots=True)
class Marker:
    """What the record of a transaction marker says."""

    is_abort: bool
    coordinator_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """What the fold needs of a batch that has a producer id.

    `marker` is the content of a transaction marker; None for data and for a control batch that
    was emptied by cleaning (or is no transaction marker).
    """

    producer_id: int
    epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    is_transactional: bool
    is_control: bool
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class CompletedTxn:
    """A transaction that a marker ended. `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_abort: bool


@dataclass(slots=True)
class ProducerState:
    """The producers of a log, in order of appearance. Its owner's lock guards it.

    `open_transactions`: producer id by the first offset of its open transaction.
    """

    entries: dict[int, ProducerEntry] = field(default_factory=dict)
    open_transactions: dict[int, int] = field(default_factory=dict)

    def copy(self) -> ProducerState:
        """An independent copy (the entries themselves are immutable)."""
        return ProducerState(dict(self.entries), dict(self.open_transactions))

    def put(self, entry: ProducerEntry) -> None:
        """Set a producer's entry."""
        old = self.entries.get(entry.producer_id)
        if old is not None and old.current_txn_first_offset is not None:
            self.open_transactions.pop(old.current_txn_first_offset, None)
        if entry.current_txn_first_offset is not None:
            self.open_transactions[entry.current_txn_first_offset] = entry.producer_id
        self.entries[entry.producer_id] = entry


def state_of(entries: Iterable[ProducerEntry]) -> ProducerState:
    """A state that holds these entries."""
    state = ProducerState()
    for entry in entries:
        state.put(entry)
    return state


def apply(state: ProducerState, batch: ProducerBatch) -> CompletedTxn | None:
    """Fold a batch of the log in; answers the transaction that it ends, if any.

    The end of a transaction without data is no completed transaction.
    """
    entry = state.entries.get(batch.producer_id) or ProducerEntry(batch.producer_id)
    if not batch.is_control:
        state.put(_after_data(entry, batch))
        return None
    if batch.marker is None:
        return None
    first_offset = entry.current_txn_first_offset
    state.put(
        ProducerEntry(
            entry.producer_id,
            batch.epoch,
            entry.recent if batch.epoch == entry.epoch else (),
            batch.marker.timestamp,
            batch.marker.coordinator_epoch,
        )
    )
    if first_offset is None:
        return None
    return CompletedTxn(batch.producer_id, first_offset, batch.base_offset, batch.marker.is_abort)


def _after_data(entry: ProducerEntry, batch: ProducerBatch) -> ProducerEntry:
    recent = entry.recent if batch.epoch == entry.epoch else ()
    added = RecentBatch(
        batch.last_sequence,
        batch.last_offset,
        batch.last_offset - batch.base_offset,
        batch.max_timestamp,
    )
    open_since = entry.current_txn_first_offset
    if open_since is None and batch.is_transactional:
        open_since = batch.base_offset
    return replace(
        entry,
        epoch=batch.epoch,
        recent=(*recent[1 - RECENT_BATCHES :], added),
        timestamp=batch.max_timestamp,
        current_txn_first_offset=open_since,
    )


def last_stable_offset(state: ProducerState, log_end_offset: int) -> int:
    """Where a read_committed reader must stop: the earliest open transaction, else the log end."""
    return min(state.open_transactions, default=log_end_offset)


def aborted_entry(state: ProducerState, completed: CompletedTxn) -> AbortedTxn:
    """The `.txnindex` entry of an aborted transaction, given the state after its marker (LOG-1)."""
    stable = last_stable_offset(state, completed.last_offset + 1)
    return AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)


def active_producers(state: ProducerState) -> dict[int, tuple[int, int | None]]:
    """Per producer id its epoch and last data offset (None: no data in that epoch), for CMP-13."""
    return {
        producer_id: (entry.epoch, entry.last_offset if entry.recent else None)
        for producer_id, entry in state.entries.items()
    }


def without_expired(
    entries: Iterable[ProducerEntry], now_ms: int, expiration_ms: int
) -> list[ProducerEntry]:
    """Those with an open transaction or a last timestamp less than `expiration_ms` ago."""
    return [
        entry
        for entry in entries
        if entry.current_txn_first_offset is not None or now_ms - entry.timestamp < expiration_ms
    ]


def encode_snapshot(entries: Mapping[int, ProducerEntry]) -> bytes:
    """The bytes of a `.snapshot` file, producers in the mapping's order."""
    rows = [
        (
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp,
            entry.coordinator_epoch,
            -1 if entry.current_txn_first_offset is None else entry.current_txn_first_offset,
        )
        for entry in entries.values()
    ]
    body = struct.pack(">i", len(rows)) + np.array(rows, _ENTRY).tobytes()
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """The producers of a `.snapshot` file, in its order.

    Raises `CorruptionError` for a checksum, length or version that does not fit.
    """
    if len(data) < _HEAD.size:
        raise CorruptionError(f"{len(data)} bytes are shorter than a producer snapshot's header")
    version, crc, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptionError(f"version {version} of a producer snapshot is not known", position=0)
    if crc32c(data[_CRC_END:]) != crc:
        raise CorruptionError("checksum of the producer snapshot does not match", position=2)
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.itemsize:
        raise CorruptionError(f"{len(data)} bytes do not hold {count} producers", position=_CRC_END)
    rows = np.frombuffer(data, _ENTRY, offset=_HEAD.size).tolist()
    entries = [_entry(*row) for row in rows]
    if len({entry.producer_id for entry in entries}) != len(entries):
        raise CorruptionError("a producer stands twice in the snapshot")
    return entries


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerEntry:
    recent = RecentBatch(last_sequence, last_offset, offset_delta, timestamp)
    return ProducerEntry(
        producer_id,
        epoch,
        (recent,) if last_offset >= 0 else (),
        timestamp,
        coordinator_epoch,
        txn_first_offset if txn_first_offset >= 0 else None,
    )
