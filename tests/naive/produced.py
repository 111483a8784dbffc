"""What a log asks of the records of a produced batch, spelt out; and such a batch in another codec.

Lengths and deltas of offsets are int32 of at most five bytes, deltas of timestamps int64 of at most
ten; encodings longer than needed are fine.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.naive.records import Record, build_v2, parse_log

NO_TIMESTAMP = -1
_LARGEST = (1 << 63) - 1
_MAX_HEADERS = 1 << 20


@dataclass(frozen=True)
class Bounds:
    """How far from `now_ms` a timestamp may be, and whether keys must be there."""

    now_ms: int = 0
    before_ms: int = _LARGEST
    after_ms: int = _LARGEST
    append_time: bool = False
    requires_key: bool = False


class _RefusedError(Exception):
    pass


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise _RefusedError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, bits: int) -> int:
        zigzag = 0
        for i in range(bits // 7 + 1):
            (byte,) = self.take(1)
            zigzag += (byte % 128) * 128**i
            if byte < 128:
                if zigzag >= 2**bits:
                    raise _RefusedError
                return zigzag // 2 if zigzag % 2 == 0 else -(zigzag + 1) // 2
        raise _RefusedError

    def sized(self) -> bytes | None:
        size = self.number(32)
        return None if size == -1 else self.take(size)

    def end(self) -> None:
        if self.at != len(self.data):
            raise _RefusedError


def check(
    payload: bytes, count: int, base_timestamp: int, bounds: Bounds
) -> tuple[int, int] | None:
    """The largest timestamp and the number of its first record (-1, -1: none); None if refused."""
    try:
        timestamps = _timestamps(payload, count, base_timestamp, bounds)
    except _RefusedError:
        return None
    largest = max(timestamps)
    return (largest, timestamps.index(largest)) if largest > NO_TIMESTAMP else (NO_TIMESTAMP, -1)


def _timestamps(payload: bytes, count: int, base_timestamp: int, bounds: Bounds) -> list[int]:
    reader, found = _Reader(payload), []
    for i in range(count):
        record = _Reader(reader.take(reader.number(32)))
        record.take(1)
        timestamp = base_timestamp + record.number(64)
        if timestamp != NO_TIMESTAMP:
            if not -_LARGEST <= timestamp <= _LARGEST:
                raise _RefusedError
            if not bounds.append_time and not (
                bounds.now_ms - bounds.before_ms <= timestamp <= bounds.now_ms + bounds.after_ms
            ):
                raise _RefusedError
        found.append(timestamp)
        if record.number(32) != i:
            raise _RefusedError
        if record.sized() is None and bounds.requires_key:
            raise _RefusedError
        record.sized()
        headers = record.number(32)
        if not 0 <= headers <= _MAX_HEADERS:
            raise _RefusedError
        for _ in range(headers):
            if record.sized() is None:
                raise _RefusedError
            record.sized()
        record.end()
    reader.end()
    return found


def recompress(
    raw: bytes,
    codec: int,
    *,
    base_offset: int,
    leader_epoch: int = 0,
    append_time_ms: int | None = None,
) -> bytes:
    """A produced batch as a log of `compression.type` `codec` stores it: built from its records."""
    (batch,) = parse_log(raw)
    records = [
        Record(base_offset + i, record.timestamp, record.key, record.value, record.headers)
        for i, record in enumerate(batch.records())
    ]
    return build_v2(
        records,
        base_offset=base_offset,
        last_offset=base_offset + len(records) - 1,
        codec=codec,
        leader_epoch=leader_epoch,
        append_time_ms=append_time_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.transactional,
    )
