"""Random batches in random segments: the log that `logs.py` writes to disk, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from tests.naive import codecs
from tests.naive.records import (
    ABORT,
    COMMIT,
    Batch,
    Headers,
    Record,
    build_legacy,
    build_marker,
    build_v2,
    parse_log,
)

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
VERSION_HEADER = b"version"
_MANY = (0, 1, 1, 1, 1, 2)
"""How many such headers a record has, each as likely."""


@dataclass(frozen=True)
class Features:
    """What may occur; each can be switched off. `legacy` batches (formats 0 and 1) are off by
    default, because Kafka itself gives up on a round whose last batch is one and loses all its
    records."""

    batches: int = 60
    keys: int = 25
    codecs: tuple[int, ...] = (codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD)
    tombstones: bool = True
    horizons: bool = True
    transactions: bool = True
    open_transactions: bool = True
    idempotent: bool = True
    gaps: bool = True
    huge_gaps: bool = True
    empty_batches: bool = True
    null_keys: bool = True
    headers: bool = True
    append_time: bool = True
    odd_timestamps: bool = True
    checkpoints: bool = True
    log_start: bool = True
    min_lag: bool = True
    small_map: bool = True
    legacy: bool = False
    versions: bool = False
    """Times out of order, and headers that hold versions in every form; off by default."""


PLAIN = Features(
    codecs=(codecs.NONE,),
    tombstones=False,
    horizons=False,
    transactions=False,
    open_transactions=False,
    idempotent=False,
    gaps=False,
    huge_gaps=False,
    empty_batches=False,
    null_keys=False,
    headers=False,
    append_time=False,
    odd_timestamps=False,
    checkpoints=False,
    log_start=False,
    min_lag=False,
    small_map=False,
)
"""Keys and values in uncompressed batches, nothing else; `dataclasses.replace` adds to it."""


@dataclass
class RandomSegment:
    base: int
    batches: list[Batch] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(batch.raw) for batch in self.batches)


@dataclass
class _Producer:
    id: int
    epoch: int
    sequence: int
    transactional: bool
    in_transaction: bool = False


class Writer:
    """Appends random batches; `segments` is the log so far."""

    def __init__(self, random: Random, features: Features) -> None:
        self.random = random
        self.features = features
        self.offset = 0
        self.start_ms = NOW_MS - random.choice([12, 24, 36, 240]) * HOUR_MS
        self.time_ms = self.start_ms
        self.leader_epoch = 0
        self.segments = [RandomSegment(0)]
        self.segment_bytes = random.choice([1_000, 3_000, 12_000])
        self.producers: list[_Producer] = []
        if features.idempotent:
            self.producers += [self._producer(100 + i, False) for i in range(random.randint(1, 3))]
        if features.transactions:
            self.producers += [self._producer(200 + i, True) for i in range(random.randint(1, 4))]

    def _producer(self, producer_id: int, transactional: bool) -> _Producer:
        sequence = self.random.choice([0, 0, 0, (1 << 31) - 7])
        return _Producer(producer_id, self.random.randint(0, 2), sequence, transactional)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def step(self) -> None:
        """One more batch, or two, perhaps in a new segment."""
        self.time_ms += self.random.choice([1, 50, 1_000, 60_000, HOUR_MS])
        if self.chance(0.03):
            self.leader_epoch += 1
        if self.features.gaps and self.chance(0.1):
            self.offset += self.random.randint(1, 9)
        if self.features.huge_gaps and self.chance(0.01):
            self.offset += 1 << 31
        producer = self.random.choice(self.producers) if self.producers else None
        if producer is None or self.chance(0.4):
            self.append_data(None)
        elif not producer.transactional:
            if not self.chance(0.1):
                self.append_data(producer)
            else:
                producer.epoch += 1
                producer.sequence = 0
        elif producer.in_transaction and self.chance(0.5):
            self.end_transaction(producer)
        elif self.chance(0.07) and not producer.in_transaction:
            self.append_marker(producer)  # of a transaction without data
        else:
            producer.in_transaction = True
            self.append_data(producer)

    def finish(self) -> None:
        """End what must not stay open; the last segment is the active one, perhaps empty."""
        for producer in self.producers:
            if producer.in_transaction and not (
                self.features.open_transactions and self.chance(0.15)
            ):
                self.end_transaction(producer)
        if self.chance(0.7):
            self.roll()

    def end_transaction(self, producer: _Producer) -> None:
        self.append_marker(producer)
        producer.in_transaction = False

    def append_marker(self, producer: _Producer) -> None:
        kind = self.random.choice([ABORT, COMMIT])
        if kind == ABORT and self.chance(0.3):
            producer.epoch += 1
            producer.sequence = 0
        raw = build_marker(
            kind,
            offset=self.offset,
            timestamp=self.time_ms,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            coordinator_epoch=self.random.randint(0, 2),
            leader_epoch=self.leader_epoch,
        )
        (marker,) = parse_log(raw)
        horizon_ms = self.horizon()
        emptied = self.features.empty_batches and not producer.in_transaction and self.chance(0.3)
        if horizon_ms is not None or emptied:
            raw = build_v2(
                [] if emptied else marker.records(),
                base_offset=self.offset,
                last_offset=self.offset,
                leader_epoch=self.leader_epoch,
                max_timestamp=self.time_ms,
                horizon_ms=None if emptied else horizon_ms,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                transactional=True,
                control=True,
            )
        self.append(raw)

    def append_data(self, producer: _Producer | None) -> None:
        random, features = self.random, self.features
        if features.legacy and producer is None and self.chance(0.5):
            self.append_legacy()
            return
        count = random.choice([1, 1, 2, 5, 12])
        offsets = [self.offset]
        for _ in range(count - 1):
            offsets.append(offsets[-1] + 1 + (features.gaps and self.chance(0.1)))
        last_offset = offsets[-1] + (random.randint(0, 2) if features.gaps else 0)
        empty = features.empty_batches and self.chance(0.08)
        append_time = features.append_time and self.chance(0.2)
        timestamps = [self.timestamp() for _ in offsets]
        if append_time:
            timestamps = [self.time_ms] * count
        elif features.odd_timestamps and self.chance(0.05):
            timestamps = [-1] * count
        records = [self.record(at, ts) for at, ts in zip(offsets, timestamps, strict=True)]
        raw = build_v2(
            [] if empty else records,
            base_offset=self.offset,
            last_offset=last_offset,
            codec=random.choice(features.codecs),
            leader_epoch=self.leader_epoch,
            append_time_ms=self.time_ms if append_time else None,
            max_timestamp=max(timestamps),
            horizon_ms=None if empty else self.horizon(),
            producer_id=-1 if producer is None else producer.id,
            producer_epoch=-1 if producer is None else producer.epoch,
            base_sequence=-1 if producer is None else producer.sequence,
            transactional=producer is not None and producer.transactional,
        )
        if producer is not None:
            producer.sequence = (producer.sequence + last_offset - self.offset + 1) % (1 << 31)
        self.append(raw)

    def append_legacy(self) -> None:
        """A few messages of format 0 or 1, or one wrapper around them."""
        magic, codec = self.random.choice([0, 1]), self.random.choice([0, 1, 3])
        records = [
            replace(
                self.record(self.offset + i, -1 if magic == 0 else self.timestamp()), headers=()
            )
            for i in range(self.random.randint(1, 6))
        ]
        for batch in parse_log(build_legacy(records, magic=magic, codec=codec)):
            self.append(batch.raw)

    def horizon(self) -> int | None:
        if not self.features.horizons or not self.chance(0.15):
            return None
        return NOW_MS + self.random.choice([-HOUR_MS, -1, 0, 1, HOUR_MS])

    def timestamp(self) -> int:
        if self.features.versions and self.chance(0.5):
            return self.start_ms + self.random.randrange(48) * HOUR_MS
        if not self.features.odd_timestamps:
            return self.time_ms
        return self.time_ms + self.random.choice([0, 0, 1, 500, -70_000])

    def record(self, offset: int, timestamp: int) -> Record:
        random, features = self.random, self.features
        # The smaller of two: some keys are written far more often than others.
        chosen = min(random.randrange(features.keys), random.randrange(features.keys))
        key: bytes | None = b"" if chosen == 0 else b"key-%d" % chosen * (1 + chosen % 3)
        if features.null_keys and self.chance(0.04):
            key = None
        value: bytes | None = random.choice([b"", b"v", random.randbytes(20), b"abcdef" * 15])
        if features.tombstones and self.chance(0.15):
            value = None
        headers: Headers = ()
        if features.headers and self.chance(0.1):
            headers = ((b"name", b"content"), ("näme".encode(), None))[: random.randint(1, 2)]
        if features.versions:
            headers += tuple((VERSION_HEADER, self.version()) for _ in range(random.choice(_MANY)))
        return Record(offset, timestamp, key, value, headers)

    def version(self) -> bytes | None:
        """A number in one of the forms that there are, or none."""
        number = self.random.choice([0, 1, -1, 7, 12_336, 2**63 - 1, -(2**63)])
        if self.chance(0.7):
            number = self.random.randint(-50, 50)
        size = max(1, (number if number >= 0 else ~number).bit_length() // 8 + 1)
        return self.random.choice(
            [
                b"%d" % number,
                b"%d" % number,
                b"%025d" % number,
                number.to_bytes(8, "big", signed=True),
                number.to_bytes(size, "big", signed=True),
                b"%d0" % 2**63,
                b"not a number",
                b"",
                None,
            ]
        )

    def append(self, raw: bytes) -> None:
        (batch,) = parse_log(raw)
        active = self.segments[-1]
        if active.batches and (
            active.size + len(raw) > self.segment_bytes
            or batch.last_offset - active.base > (1 << 31) - 1
            or self.chance(0.04)
        ):
            self.roll()
        elif batch.last_offset - active.base > (1 << 31) - 1:
            active.base = self.offset  # an empty segment, rolled before the gap
        self.segments[-1].batches.append(batch)
        self.offset = batch.last_offset + 1

    def roll(self) -> None:
        if self.segments[-1].batches:
            self.segments.append(RandomSegment(self.offset))
