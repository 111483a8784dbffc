"""What a log knows of its producers: a fold over its batches, in order.

The state after the batches below a segment's base is that segment's `.snapshot`; the completed
transactions that aborted are the `.txnindex` entries of the segment that holds their marker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from tests.naive.files import Aborted, Producer
from tests.naive.records import ABORT, Batch


@dataclass
class ProducerStates:
    """`producers` by id, in the order of first appearance; `next_offset` after the last batch."""

    producers: dict[int, Producer] = field(default_factory=dict)
    next_offset: int = 0

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, else the log's end."""
        starts = [p.txn_first_offset for p in self.producers.values() if p.txn_first_offset >= 0]
        return min(starts, default=self.next_offset)

    @property
    def active(self) -> dict[int, tuple[int, int | None]]:
        """Producer id -> (epoch, last data offset or None)."""
        return {
            p.producer_id: (p.epoch, p.last_offset if p.last_offset >= 0 else None)
            for p in self.producers.values()
        }

    def read(self, batch: Batch) -> Aborted | None:
        """Take in the next batch; the aborted transaction that it ends, if it ends one."""
        self.next_offset = batch.last_offset + 1
        if batch.producer_id == -1:
            return None
        if batch.control:
            return self._read_marker(batch)
        old = self._of_epoch(batch)
        starts = batch.transactional and old.txn_first_offset == -1
        self.producers[batch.producer_id] = replace(
            old,
            last_sequence=batch.last_sequence,
            last_offset=batch.last_offset,
            offset_delta=batch.last_offset - batch.base_offset,
            timestamp=batch.max_timestamp,
            txn_first_offset=batch.base_offset if starts else old.txn_first_offset,
        )
        return None

    def _read_marker(self, batch: Batch) -> Aborted | None:
        records = batch.records()
        if not records:
            return None
        old = self._of_epoch(batch)
        _, coordinator_epoch = struct.unpack_from(">hi", records[0].value or b"")
        self.producers[batch.producer_id] = replace(
            old,
            timestamp=records[0].timestamp,
            coordinator_epoch=coordinator_epoch,
            txn_first_offset=-1,
        )
        if batch.control_type() != ABORT or old.txn_first_offset == -1:
            return None
        return Aborted(
            batch.producer_id,
            old.txn_first_offset,
            batch.last_offset,
            self.last_stable_offset,
        )

    def _of_epoch(self, batch: Batch) -> Producer:
        """The producer's state; a new epoch forgets its batches, not its open transaction."""
        old = self.producers.get(batch.producer_id)
        if old is None:
            return Producer(batch.producer_id, batch.producer_epoch)
        if old.epoch == batch.producer_epoch:
            return old
        return replace(
            old, epoch=batch.producer_epoch, last_sequence=-1, last_offset=-1, offset_delta=0
        )
