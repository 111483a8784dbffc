"""What a log has to hold, as a list of everything appended: the model of the state machine.

`LogModel.batches` are the batches in order, each with its records; producers, transactions and the
latest value of each key are folded from them. `Seen` is what a log holds at one moment, parsed from
its files by the naive parser. `foreign` says whether anything is there that was never appended, and
`missing` names what went from one moment to the next; whether it was allowed to is for
`machine_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from stratalog.record.checksum import crc32c
from tests.naive.records import COMMIT, Batch, Record
from tests.naive.versions import Settings, version_of

DATA, TXN, MARKER = "data", "txn", "marker"
NOBODY = -1


@dataclass(eq=False)
class Txn:
    """A transaction. `firsts`: the first offsets of its data batches; `marker` None: open."""

    producer_id: int
    firsts: list[int] = field(default_factory=list)
    marker: int | None = None
    is_aborted: bool = False


@dataclass(frozen=True)
class Sent:
    """A batch as it was appended. `at_ms`: the time of a marker."""

    first: int
    last: int
    kind: str
    records: tuple[Record, ...]
    producer_id: int = NOBODY
    epoch: int = -1
    sequence: int = -1
    is_abort: bool = False
    at_ms: int = 0


@dataclass(frozen=True)
class Producer:
    """`last`: its last data batch. `oldest_ms`: what the log may take for its last sign of life;
    `may_be_forgotten`: it had expired by that when the log was opened."""

    epoch: int
    last: Sent | None = None
    oldest_ms: int = 0
    may_be_forgotten: bool = False

    @property
    def next_sequence(self) -> int:
        return 0 if self.last is None else self.last.sequence + len(self.last.records)


@dataclass
class LogModel:
    """`flushed`: what is below is on the disk. `horizons`: when the tombstone or marker at an
    offset may go, as the first round over it has said; `batch_horizons`: the same by batch."""

    batches: list[Sent] = field(default_factory=list)
    start: int = 0
    flushed: int = 0
    producers: dict[int, Producer] = field(default_factory=dict)
    open: dict[int, Txn] = field(default_factory=dict)
    txn_of: dict[int, Txn] = field(default_factory=dict)
    by_first: dict[int, Sent] = field(default_factory=dict)
    forgotten: set[tuple[int, int]] = field(default_factory=set)
    horizons: dict[int, int] = field(default_factory=dict)
    batch_horizons: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        last = self.batches[-1].last if self.batches else -1
        return max(last + 1, self.start)

    def append(self, sent: Sent) -> None:
        assert sent.first == self.end, (sent.first, self.end)
        self.batches.append(sent)
        self.by_first[sent.first] = sent
        self._fold(sent)

    def _fold(self, sent: Sent) -> None:
        known = self.producers.get(sent.producer_id)
        if sent.kind == MARKER:
            txn = self.open.pop(sent.producer_id, None) or Txn(sent.producer_id)
            txn.marker, txn.is_aborted = sent.first, sent.is_abort
            self.txn_of[sent.first] = txn
            oldest_ms = sent.at_ms if known is None else min(known.oldest_ms, sent.at_ms)
            known = known or Producer(sent.epoch)
            self.producers[sent.producer_id] = replace(known, oldest_ms=oldest_ms)
        elif sent.producer_id != NOBODY:
            # The youngest of its records may be cleaned away.
            oldest_ms = min(record.timestamp for record in sent.records)
            self.producers[sent.producer_id] = Producer(sent.epoch, sent, oldest_ms)
            if sent.kind == TXN:
                txn = self.open.setdefault(sent.producer_id, Txn(sent.producer_id))
                txn.firsts.append(sent.first)
                self.txn_of[sent.first] = txn

    def keep(self, firsts: Iterable[int]) -> None:
        """A crash has left these batches and no others."""
        kept = set(firsts)
        before = self.producers
        batches = [sent for sent in self.batches if sent.first in kept]
        self.batches, self.producers, self.open, self.txn_of = [], {}, {}, {}
        self.by_first = {}
        for sent in batches:
            self.batches.append(sent)
            self.by_first[sent.first] = sent
            self._fold(sent)
        for producer_id, producer in self.producers.items():
            old = before[producer_id]
            if old.may_be_forgotten and old.last is producer.last:
                self.producers[producer_id] = replace(producer, may_be_forgotten=True)
        for horizons in (self.horizons, self.batch_horizons):
            for offset in [offset for offset in horizons if offset >= self.end]:
                del horizons[offset]

    def opened_at(self, now_ms: int, expiration_ms: int) -> None:
        """The log was opened: producers may have been forgotten."""
        for producer_id, producer in self.producers.items():
            is_old = now_ms - producer.oldest_ms >= expiration_ms
            if is_old and producer_id not in self.open:
                self.producers[producer_id] = replace(producer, may_be_forgotten=True)
                if producer.last is not None:
                    # Also if it has sent more since, and a crash takes that away again.
                    self.forgotten.add((producer_id, producer.last.first))

    def must_know(self, producer_id: int) -> bool:
        """Whether the log has to know the producer's last batch."""
        producer = self.producers.get(producer_id)
        return (
            producer is not None
            and producer.last is not None
            and not producer.may_be_forgotten
            and (producer_id, producer.last.first) not in self.forgotten
            and producer.last.first >= self.start
        )

    def stable_bounds(self) -> tuple[int, int]:
        """Between these lies the last stable offset. They are one, unless the beginning of an open
        transaction lies below the log start, where it may be forgotten."""
        strict, relaxed = [self.end], [self.end]
        for txn in self.open.values():
            strict.append(max(self.start, txn.firsts[0]))
            left = [first for first in txn.firsts if self.by_first[first].last >= self.start]
            relaxed += [max(self.start, left[0])] if left else []
        return min(strict), min(relaxed)

    def is_visible(self, sent: Sent) -> bool:
        """Whether readers of committed data get its records; of what is decided."""
        if sent.kind != TXN:
            return sent.kind == DATA
        txn = self.txn_of[sent.first]
        return txn.marker is not None and not txn.is_aborted

    def is_aborted(self, first: int) -> bool:
        txn = self.txn_of.get(first)
        return txn is not None and txn.marker is not None and txn.is_aborted

    def latest(self, stable: int, settings: Settings) -> dict[bytes, bytes]:
        """The latest value of each key, from everything that was ever appended."""
        return fold(
            (
                record
                for sent in self.batches
                if self.is_visible(sent)
                for record in sent.records
                if self.start <= record.offset < stable
            ),
            settings,
        )


@dataclass(frozen=True, eq=False)
class SeenSegment:
    """A segment's batches, and what they amount to."""

    base: int
    size_bytes: int
    modified_ms: int
    batches: tuple[Batch, ...]

    @cached_property
    def largest_ms(self) -> int:
        largest = max((batch.max_timestamp for batch in self.batches), default=-1)
        return largest if largest > 0 else self.modified_ms

    @cached_property
    def records(self) -> tuple[tuple[Batch, Record], ...]:
        """All data records, each with its batch."""
        return tuple(
            (batch, record)
            for batch in self.batches
            if not batch.control
            for record in batch.records()
        )


@dataclass(frozen=True, eq=False)
class Seen:
    """A log at one moment. `point`: the cleaner's checkpoint."""

    segments: tuple[SeenSegment, ...]
    start: int
    end: int
    stable: int
    point: int | None

    @cached_property
    def records(self) -> dict[int, tuple[SeenSegment, Batch, Record]]:
        """The data records from the log start on, by offset."""
        return {
            record.offset: (segment, batch, record)
            for segment in self.segments
            for batch, record in segment.records
            if record.offset >= self.start
        }

    @cached_property
    def markers(self) -> dict[int, tuple[SeenSegment, Batch]]:
        """The transaction markers from the log start on that still say something, by offset."""
        return {
            batch.base_offset: (segment, batch)
            for segment in self.segments
            for batch in segment.batches
            if batch.control and batch.count and batch.base_offset >= self.start
        }

    @property
    def active_base(self) -> int:
        return self.segments[-1].base

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def end_of(self, segment: SeenSegment) -> int:
        place = self.segments.index(segment) + 1
        return self.segments[place].base if place < len(self.segments) else self.end

    def firsts(self) -> set[int]:
        return {batch.base_offset for segment in self.segments for batch in segment.batches}

    def visible(self, model: LogModel, end: int) -> list[Record]:
        """What readers of committed data get below `end`."""
        return [
            record
            for offset, (_, batch, record) in self.records.items()
            if offset < end and model.is_visible(model.by_first[batch.base_offset])
        ]


def fold(records: Iterable[Record], settings: Settings) -> dict[bytes, bytes]:
    """The state that records stand for; the settings say which of a key's is the latest."""
    best: dict[bytes, tuple[int, int, bytes | None]] = {}
    for record in records:
        if record.key is not None:
            mine = version_of(record, settings), record.offset, record.value
            known = best.get(record.key)
            if known is None or mine[:2] > known[:2]:
                best[record.key] = mine
    return {key: value for key, (_, _, value) in best.items() if value is not None}


def foreign(model: LogModel, batches: Sequence[Batch]) -> str | None:
    """What is there that was never appended, or not like that; None: nothing (CMP-1, CMP-15)."""
    previous = -1
    for batch in batches:
        sent = model.by_first.get(batch.base_offset)
        where = f"batch at {batch.base_offset}"
        if sent is None:
            return f"{where} was never appended"
        if batch.base_offset <= previous:
            return f"{where} comes after offset {previous}"
        previous = batch.last_offset
        problem = _differs(sent, batch)
        if problem is not None:
            return f"{where}: {problem}"
    return None


def _differs(sent: Sent, batch: Batch) -> str | None:
    fields = (
        *(batch.last_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence),
        *(batch.transactional, batch.control),
    )
    sequence = -1 if sent.kind == MARKER else sent.sequence
    wanted = (
        *(sent.last, sent.producer_id, sent.epoch, sequence),
        *(sent.kind in (TXN, MARKER), sent.kind == MARKER),
    )
    if fields != wanted:
        return f"{fields} instead of {wanted}"
    if batch.crc != crc32c(batch.raw[21:]):
        return "fails its checksum"
    records = batch.records()
    if len(records) != batch.count:
        return f"{len(records)} records, {batch.count} counted"
    if sent.kind == MARKER:
        is_commit = [batch.control_type() == COMMIT] if records else []
        return None if is_commit in ([], [not sent.is_abort]) else "another kind of marker"
    if not set(records) <= set(sent.records):
        return f"{records} instead of {sent.records}"
    if [record.offset for record in records] != sorted({record.offset for record in records}):
        return "out of order"
    largest = max((record.timestamp for record in records), default=batch.max_timestamp)
    return None if batch.max_timestamp == largest else "largest timestamp"
