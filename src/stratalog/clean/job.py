"""The values that cross between the steps of a clean. All are frozen and can be pickled.

A `CleaningJob` says everything that an engine needs, so that any worker can do any part of it:
the same job gives the same bytes on every engine (SPK-2). The secret of the key hash travels in
the `CleanSpec` (CMP-6).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from stratalog.base.limits import (
    CHUNK_BYTES,
    MAX_BATCH_BYTES,
    MAX_DECOMPRESSED_BATCH_BYTES,
)
from stratalog.record.layout import INT64_MAX
from stratalog.segment.txn_index import AbortedTxn

SLOT_BYTES = 24
"""A key in an offset map: 16 bytes of hash and 8 of offset (CMP-5)."""


def new_secret() -> tuple[int, int]:
    """A fresh key for the key hash: two random 64-bit words."""
    return secrets.randbits(64), secrets.randbits(64)


@dataclass(frozen=True, slots=True)
class CleanSpec:
    """How to clean: settings, clock and limits of one round. Times in ms, sizes in bytes.

    `max_keys` ends the round when that many keys are mapped (CMP-5); None: any number of keys,
    worked through hash range by hash range where `memory_bytes` do not hold them (CMP-7).
    """

    now_ms: int
    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_keys: int | None = None
    memory_bytes: int = 128 << 20
    retain_keyless: bool = False
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
    """A segment as it is before the clean. `next_offset`: the base offset of the one after it."""

    base_offset: int
    next_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    modified_ms: int


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
    files of the whole log, except ranges that end below the log start, as in Kafka.
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
    """Records dropped, by reason."""

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
    """What went in and what came out: records (control records too) and bytes of .log files."""

    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    drops: Drops = Drops()

    def __add__(self, other: Volume) -> Volume:
        return Volume(
            self.records_before + other.records_before,
            self.records_after + other.records_after,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.drops + other.drops,
        )


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """One group's outcome.

    `sources` are base offsets, the first names the output; `modified_ms` is the output's time.
    `parts` maps a file kind's extension to the name of the `.part` file that holds it; empty if
    nothing was written: in a dry run, or because a single segment stays as it is (`unchanged`).
    """

    sources: tuple[int, ...]
    modified_ms: int
    volume: Volume
    unchanged: bool
    parts: tuple[tuple[str, str], ...] = ()


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
