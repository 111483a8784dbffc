"""Control records: what a transaction coordinator or a quorum writes between the data (KIP-98).

    key   := version:int16  type:int16
    value := version:int16  coordinator-epoch:int32      (of ABORT and COMMIT, the end markers)

A marker is a transactional control batch of one such record; it ends its producer's transaction.
Types that are not known are read and kept, never interpreted; a newer version may have longer
keys and values, whose first fields are these.

Sources: Kafka's ControlRecordType, EndTransactionMarker; KIP-98, KIP-630 (quorum types).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from stratalog.base.errors import CorruptionError
from stratalog.record.batch import Batch
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.values import Record

_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class ControlType(IntEnum):
    """The type in a control record's key; UNKNOWN stands for every number not listed."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class EndMarker:
    """The end of a transaction: COMMIT or ABORT, and the epoch of the coordinator that wrote it."""

    type: ControlType
    coordinator_epoch: int


def parse_key(key: bytes | None) -> ControlType:
    """The type in a control record's key. Raises `CorruptionError` for no key or a short one."""
    if key is None or len(key) < _KEY.size:
        raise CorruptionError("control record without a whole key")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptionError(f"control record key of version {version}")
    return ControlType(number) if number in _NUMBERS else ControlType.UNKNOWN


def parse_marker(record: Record) -> EndMarker | None:
    """The end marker in a control record; None if it is of another type.

    Raises `CorruptionError` for a key or value too short for its version.
    """
    kind = parse_key(record.key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise CorruptionError("end marker without a whole value")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptionError(f"end marker of version {version}")
    return EndMarker(kind, coordinator_epoch)


def marker_of(batch: Batch) -> EndMarker | None:
    """The end marker that a batch is; None for data, other control types and emptied batches."""
    if not batch.header.is_control:
        return None
    for record in batch.records():
        return parse_marker(record)
    return None


def build_marker(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """The 78-byte batch of an end marker; `timestamp` in ms."""
    record = NewRecord(
        key=_KEY.pack(0, kind), value=_MARKER_VALUE.pack(0, coordinator_epoch), timestamp=timestamp
    )
    return build_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


_NUMBERS = frozenset(kind.value for kind in ControlType if kind is not ControlType.UNKNOWN)
