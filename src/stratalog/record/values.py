"""The values that the decoders yield: a record, and a batch's header fields.

`parse_header` reads the header of any magic and refuses what cannot be one.

Invariants
- I1  A parsed header's length lies between the least its magic needs and `MAX_BATCH_BYTES`; its
      offsets fit int64, its counts are not negative.
- I2  Nothing is read past the end of the buffer, whatever the bytes are.

Source: Kafka's DefaultRecordBatch, LegacyRecord, ByteBufferLogInputStream; docs/FORMAT.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.base.errors import CorruptionError
from stratalog.base.limits import MAX_BATCH_BYTES
from stratalog.record import layout
from stratalog.record.codec import Codec

if TYPE_CHECKING:
    from typing_extensions import Buffer

Header = tuple[bytes, bytes | None]
"""A record header: its key, which need not be UTF-8 here, and its value."""


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record; `timestamp` in ms (-1: none), the log's own if it is LogAppendTime."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    sequence: int = layout.NO_SEQUENCE


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header fields as stored, in their order; derived values are properties.

    For magic 0 and 1: `base_offset` is the stored offset, which of a compressed wrapper is that of
    its last message; `crc` is a CRC-32; both timestamps are the message's (-1 in magic 0);
    `last_offset_delta` is 0; `records_count` is 1, or -1 for a wrapper; the rest is "none".
    """

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.length + layout.LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The last offset of the batch's range; its record may have been cleaned away."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Raises `CorruptionError` for a number that is no codec."""
        return Codec.of_attributes(self.attributes)

    @property
    def is_log_append_time(self) -> bool:
        return self.magic > 0 and self.attributes & layout.TIMESTAMP_TYPE_MASK != 0

    @property
    def is_transactional(self) -> bool:
        return self.magic >= 2 and self.attributes & layout.TRANSACTIONAL_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.magic >= 2 and self.attributes & layout.CONTROL_MASK != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may go (KIP-534); None if not yet known."""
        if self.magic >= 2 and self.attributes & layout.DELETE_HORIZON_MASK:
            return self.base_timestamp
        return None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, past 2^31-1 from 0 again; -1: none."""
        if self.base_sequence == layout.NO_SEQUENCE:
            return layout.NO_SEQUENCE
        return layout.increment_sequence(self.base_sequence, self.last_offset_delta)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`, whose header bytes must be there in full.

    Raises `CorruptionError` (at `position`) for a magic, length, offset or count that no batch has.
    """
    view = memoryview(buffer).cast("B")[position:]
    magic = view[layout.MAGIC] if len(view) > layout.MAGIC else -1
    if magic in (0, 1):
        header = _parse_legacy_header(view, magic, position)
    elif magic == 2 and len(view) >= layout.HEADER_BYTES:
        header = BatchHeader(*layout.HEADER.unpack_from(view))
    else:
        raise CorruptionError(f"no batch header of magic {magic}", position=position)
    check_length(header.length, magic, position)
    if not 0 <= header.base_offset <= layout.INT64_MAX - layout.INT32_MAX:
        raise CorruptionError(f"impossible batch offset {header.base_offset}", position=position)
    if magic == 2 and (header.last_offset_delta < 0 or header.records_count < 0):
        raise CorruptionError("negative count of records or offsets in a batch", position=position)
    return header


def check_length(length: int, magic: int, position: int) -> None:
    """Raise `CorruptionError` (at `position`) unless a batch of `magic` can have this length."""
    if magic > 2:
        raise CorruptionError(f"no batch has magic {magic}", position=position)
    least = (
        layout.HEADER_BYTES - layout.LOG_OVERHEAD if magic == 2 else layout.LEGACY_OVERHEAD[magic]
    )
    if not least <= length <= MAX_BATCH_BYTES:
        raise CorruptionError(f"impossible batch length {length}", position=position)


_LEGACY_HEADERS = (struct.Struct(">qiIbb"), struct.Struct(">qiIbbq"))


def _parse_legacy_header(view: memoryview, magic: int, position: int) -> BatchHeader:
    if len(view) < _LEGACY_HEADERS[magic].size:
        raise CorruptionError(f"no batch header of magic {magic}", position=position)
    offset, length, crc, _, attributes, *rest = _LEGACY_HEADERS[magic].unpack_from(view)
    timestamp = rest[0] if rest else layout.NO_TIMESTAMP
    attributes &= layout.LEGACY_ATTRIBUTES_MASK
    return BatchHeader(
        base_offset=offset,
        length=length,
        leader_epoch=layout.NO_LEADER_EPOCH,
        magic=magic,
        crc=crc,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=layout.NO_PRODUCER_ID,
        producer_epoch=layout.NO_PRODUCER_EPOCH,
        base_sequence=layout.NO_SEQUENCE,
        records_count=-1 if attributes & layout.CODEC_MASK else 1,
    )
