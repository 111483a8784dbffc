"""What a compaction did or would do, as values that any face can show.

`as_json` of anything here is made of dicts, lists, numbers, strings and None, with the field names
as keys: they are part of the command line's contract.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from stratalog.admin.directories import PartitionPlace
from stratalog.clean.job import CleanedPartition, Drops


class Mode(Enum):
    """Where a compaction's result goes."""

    DRY_RUN = "dry-run"
    IN_PLACE = "in-place"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Counts:
    """Before and after; bytes are of `.log` files, records include transaction markers.

    `dropped_bytes`: what the dropped records took (`Volume`); headers of batches, and what packing
    the rest anew changes, are nobody's.
    """

    segments_before: int = 0
    segments_after: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    keys: int = 0
    dropped: Drops = field(default_factory=Drops)
    dropped_bytes: Drops = field(default_factory=Drops)

    @classmethod
    def of(cls, cleaned: CleanedPartition) -> Counts:
        volume = cleaned.volume
        return cls(
            sum(len(group.sources) for group in cleaned.groups),
            len(cleaned.groups),
            volume.records_before,
            volume.records_after,
            volume.bytes_before,
            volume.bytes_after,
            cleaned.keys,
            volume.drops,
            volume.dropped_bytes,
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.segments_before + other.segments_before,
            self.segments_after + other.segments_after,
            self.records_before + other.records_before,
            self.records_after + other.records_after,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.keys + other.keys,
            self.dropped + other.dropped,
            self.dropped_bytes + other.dropped_bytes,
        )


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What becomes of one segment's records (CLN-10). Bytes are of its `.log`; those after count
    what it gives to the segment that takes its place."""

    base_offset: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    dropped: Drops
    dropped_bytes: Drops

    @property
    def saved_bytes(self) -> int:
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True, slots=True)
class TopKey:
    """A key, as text (`dump.text_of`), and what of it would go as superseded. `bytes` are those of
    the records in their batches, decompressed."""

    key: str
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What was, or would be, written anew of a partition: the segments that went into new ones, and
    those. A segment in which nothing changes stays as it is and does not count. Bytes of `.log`."""

    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    @classmethod
    def of(cls, cleaned: CleanedPartition) -> Rewritten:
        groups = [group for group in cleaned.groups if not group.unchanged]
        return cls(
            sum(len(group.sources) for group in groups),
            len(groups),
            sum(group.volume.bytes_before for group in groups),
            sum(group.volume.bytes_after for group in groups),
        )


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition. The counts are of the segments that the round took in.

    `log_bytes_*` and `log_segments_*` are of the whole log; `rolled`: the active segment was (or
    would be) closed first; `map_is_full`: the round ended before `first_uncleanable`, so another
    one finds more to clean; `skipped`: why nothing was cleaned, in one sentence. `next_expiry_ms`:
    when the first tombstone or marker that stays may go (CMP-9), None for none. `segments`: those
    that the round took in; `top_keys`: of a dry run, if they were asked for. `error`: what went
    wrong, where others go on nevertheless; the log is then as it was or wholly cleaned. `ledger`:
    in ledger mode, where the log itself stays as it is, the generation that was made.
    """

    partition: str
    directory: str
    log_start_offset: int
    log_end_offset: int
    first_dirty: int
    first_uncleanable: int
    end_offset: int
    dirty_ratio: float
    rolled: bool
    map_is_full: bool
    log_segments_before: int
    log_segments_after: int
    log_bytes_before: int
    log_bytes_after: int
    counts: Counts
    skipped: str | None = None
    next_expiry_ms: int | None = None
    segments: tuple[SegmentReport, ...] = ()
    top_keys: tuple[TopKey, ...] = ()
    rewritten: Rewritten = Rewritten()
    error: str | None = None
    ledger: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["rewritten"]
        if self.error is None:
            del fields["error"]
        if self.ledger is None:
            del fields["ledger"]
        counts = fields.pop("counts")
        segments = [_flat(segment) for segment in fields.pop("segments")]
        top_keys = list(fields.pop("top_keys"))
        return {**fields, **_flat(counts), "segments": segments, "top_keys": top_keys}


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """A whole run. `seconds` covers cleaning and putting in place, not the start of an engine.
    `generation`: the directory at `out` that was made, where a manifest says which counts."""

    mode: Mode
    out: str | None
    now_ms: int
    seconds: float
    partitions: tuple[PartitionReport, ...]
    generation: str | None = None

    @property
    def totals(self) -> Counts:
        return sum((partition.counts for partition in self.partitions), Counts())

    @property
    def megabytes_per_second(self) -> float:
        """10^6 bytes of `.log` taken in, by second."""
        return self.totals.bytes_before / 1e6 / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode.value,
            "dry_run": self.mode is Mode.DRY_RUN,
            "out": self.out,
            **({} if self.generation is None else {"generation": self.generation}),
            "now_ms": self.now_ms,
            "partitions": [partition.as_json() for partition in self.partitions],
            "totals": {
                **_flat(asdict(self.totals)),
                "seconds": round(self.seconds, 3),
                "megabytes_per_second": round(self.megabytes_per_second, 1),
            },
        }


def failed_report(
    place: PartitionPlace, *, skipped: str | None, error: str | None
) -> PartitionReport:
    """Of a partition that nobody could, or was to, look into."""
    return PartitionReport(
        partition=place.name,
        directory=place.path,
        log_start_offset=0,
        log_end_offset=0,
        first_dirty=0,
        first_uncleanable=0,
        end_offset=0,
        dirty_ratio=0.0,
        rolled=False,
        map_is_full=False,
        log_segments_before=0,
        log_segments_after=0,
        log_bytes_before=0,
        log_bytes_after=0,
        counts=Counts(),
        skipped=skipped,
        error=error,
    )


def segment_reports(cleaned: CleanedPartition) -> tuple[SegmentReport, ...]:
    """The outcome of a round, segment by segment."""
    return tuple(
        SegmentReport(
            base_offset,
            volume.records_before,
            volume.records_after,
            volume.bytes_before,
            volume.bytes_after,
            volume.drops,
            volume.dropped_bytes,
        )
        for group in cleaned.groups
        for base_offset, volume in zip(group.sources, group.by_source, strict=True)
    )


def _flat(counts: dict[str, Any]) -> dict[str, Any]:
    sums = {name: counts[name] for name in ("dropped", "dropped_bytes")}
    return {
        **counts,
        **{name: {**found, "total": sum(found.values())} for name, found in sums.items()},
    }
