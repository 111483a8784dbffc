"""The values that cross between the steps of a clean. All are frozen and can be pickled.

A `CleaningJob` says everything that an engine needs, so that any worker can do any part of it:
the same job gives the same bytes on every engine (SPK-2). The secret of the key hash travels in
the `CleanSpec` (CMP-6).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum

from stratalog.base.limits import (
    CHUNK_BYTES,
    MAX_BATCH_BYTES,
    MAX_DECOMPRESSED_BATCH_BYTES,
)
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import FileKind
from stratalog.segment.segment import segment_path
from stratalog.segment.txn_index import AbortedTxn

SLOT_BYTES = 24
"""A key in an offset map: 16 bytes of hash and 8 of offset (CMP-5)."""


class Order(Enum):
    """Which of a key's records is the newest (CMP-17); records of equal version go by offset."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADER = "header"


def new_secret() -> tuple[int, int]:
    """A fresh key for the key hash: two random 64-bit words."""
    return secrets.randbits(64), secrets.randbits(64)


@dataclass(frozen=True, slots=True)
class CleanSpec:
    """How to clean: settings, clock and limits of one round. Times in ms, sizes in bytes.

    `max_keys` ends the round when that many keys are mapped (CMP-5); None: any number of keys,
    worked through hash range by hash range where `memory_bytes` do not hold them (CMP-7). It holds
    by `Order.OFFSET` only (`round_end.key_limit`).
    `version_header` is the name of the header whose integer orders records by `Order.HEADER`.
    `by_segment`: tombstones and markers go by their segment's time instead of their batch's
    deadline, the older rule of CMP-8.
    """

    now_ms: int
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_keys: int | None = None
    memory_bytes: int = 128 << 20
    retain_keyless: bool = False
    order: Order = Order.OFFSET
    version_header: str = ""
    by_segment: bool = False
    hash_secret: tuple[int, int] = field(default_factory=new_secret)
    chunk_bytes: int = CHUNK_BYTES
    max_batch_bytes: int = MAX_BATCH_BYTES
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BATCH_BYTES

    @property
    def new_horizon_ms(self) -> int:
        """The deadline that a tombstone gets in this round; -1 if it lies beyond all time.

        As in Kafka, a tombstone then gets none and stays: a wrapped sum would drop it at once.
        """
        horizon_ms = self.now_ms + self.delete_retention_ms
        return horizon_ms if horizon_ms <= INT64_MAX else -1


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A segment as it is before the clean. `next_offset`: the base offset of the one after it.

    `path`: its `.log` file, where that is not the one of its base offset in the job's directory;
    its indexes lie beside it. `start`: where its first byte lies there, the begin of a batch;
    `size_bytes` counts from there on. `may_stay`: if nothing changes in it, nothing is written; who
    makes a ledger wants a copy of what still is a part of the raw log.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    modified_ms: int
    path: str = ""
    start: int = 0
    may_stay: bool = True

    @property
    def end(self) -> int:
        """The position behind its last byte."""
        return self.start + self.size_bytes

    def file_path(self, directory: str, kind: FileKind = FileKind.LOG) -> str:
        """One of its files, in a job that works in `directory`."""
        if not self.path:
            return segment_path(directory, self.base_offset, kind)
        return self.path.removesuffix(FileKind.LOG.value) + kind.value


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer whose last batch must stay (CMP-13). `last_data_offset` -1: it has no data."""

    producer_id: int
    epoch: int
    last_data_offset: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One round over one partition: what lies there and what is to be done with it.

    `segments` are those below `first_uncleanable`, in order; `aborted` comes from the .txnindex
    files of the whole log, except ranges that end below the log start, as in Kafka. `forgotten`:
    offsets of tombstones that have done their work and go at once (CLN-11). `later`: by an order of
    versions, the segments that hold records at or beyond `first_uncleanable`, as far as they were
    written when the round was planned: a tombstone stays as long as a record there has only it to
    lose to (CMP-18). They are read and never changed. `cleaned_below`: what an earlier round has
    cleaned, for `CleanSpec.by_segment`; by the order of offsets that is all below `first_dirty`.
    """

    name: str
    directory: str
    spec: CleanSpec
    segments: tuple[SourceSegment, ...]
    first_dirty: int
    first_uncleanable: int
    aborted: tuple[AbortedTxn, ...] = ()
    producers: tuple[ActiveProducer, ...] = ()
    legacy_horizon_ms: int = 0
    forgotten: tuple[int, ...] = ()
    later: tuple[SourceSegment, ...] = ()
    cleaned_below: int | None = None

    @property
    def ages_below(self) -> int:
        """Where tombstones and markers begin to age by `CleanSpec.by_segment`."""
        return self.first_dirty if self.cleaned_below is None else self.cleaned_below

    @property
    def dirty_segments(self) -> tuple[SourceSegment, ...]:
        """Those that hold offsets at or above first dirty: their keys are mapped."""
        return tuple(s for s in self.segments if s.next_offset > self.first_dirty)

    @property
    def clean_segments(self) -> tuple[SourceSegment, ...]:
        """Those that hold offsets below first dirty: their records are looked up in the map."""
        return tuple(s for s in self.segments if s.base_offset < self.first_dirty)


@dataclass(frozen=True, slots=True)
class Drops:
    """What is dropped, by reason: records, or bytes of records."""

    superseded: int = 0
    tombstone_expired: int = 0
    aborted: int = 0
    no_key: int = 0
    control_expired: int = 0

    def __add__(self, other: Drops) -> Drops:
        return Drops(
            self.superseded + other.superseded,
            self.tombstone_expired + other.tombstone_expired,
            self.aborted + other.aborted,
            self.no_key + other.no_key,
            self.control_expired + other.control_expired,
        )

    @property
    def total(self) -> int:
        return (
            self.superseded
            + self.tombstone_expired
            + self.aborted
            + self.no_key
            + self.control_expired
        )


@dataclass(frozen=True, slots=True)
class Volume:
    """What went in and what came out: records (control records too) and bytes of .log files.

    `markers_after` are the control records among `records_after`. `drops` are records.
    `dropped_bytes` are theirs, without the header of the batch around them: before compression,
    each with the length in front of it; but where all records of a batch go for one reason, what is
    stored of them (old formats: messages, with their headers). What a clean saves on disk is
    `bytes_before - bytes_after`: the headers of batches go too, and what stays of a batch is packed
    anew.
    """

    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    drops: Drops = Drops()
    dropped_bytes: Drops = Drops()
    markers_after: int = 0

    def __add__(self, other: Volume) -> Volume:
        return Volume(
            self.records_before + other.records_before,
            self.records_after + other.records_after,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.drops + other.drops,
            self.dropped_bytes + other.dropped_bytes,
            self.markers_after + other.markers_after,
        )


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """One group's outcome.

    `sources` are base offsets, the first names the output; `modified_ms` is the output's time.
    `parts` maps a file kind's extension to the name of the `.part` file that holds it; empty if
    nothing was written: in a dry run, or because a single segment stays as it is (`unchanged`).
    `by_source`: the volume of each of `sources`; `next_expiry_ms`: the earliest deadline among
    the tombstones and markers that stay, None if none of them has one (CMP-9).
    """

    sources: tuple[int, ...]
    modified_ms: int
    volume: Volume
    unchanged: bool
    parts: tuple[tuple[str, str], ...] = ()
    by_source: tuple[Volume, ...] = ()
    next_expiry_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CleanedPartition:
    """A round's outcome: `end_offset` becomes the checkpoint once the groups are swapped."""

    job: CleaningJob
    end_offset: int
    keys: int
    groups: tuple[CleanedGroup, ...]

    @property
    def volume(self) -> Volume:
        return sum((group.volume for group in self.groups), Volume())

    @property
    def next_expiry_ms(self) -> int | None:
        """When the first tombstone or marker below `end_offset` may go; None: none will (CMP-9)."""
        times_ms = [g.next_expiry_ms for g in self.groups if g.next_expiry_ms is not None]
        return min(times_ms, default=None)
