"""What a compaction did or would do, as values that any face can show.

`as_json` of anything here is made of dicts, lists, numbers, strings and None, with the field names
as keys: they are part of the command line's contract.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from stratalog.clean.job import Drops


class Mode(Enum):
    """Where a compaction's result goes."""

    DRY_RUN = "dry-run"
    IN_PLACE = "in-place"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Counts:
    """Before and after; bytes are of `.log` files, records include transaction markers."""

    segments_before: int = 0
    segments_after: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    keys: int = 0
    dropped: Drops = field(default_factory=Drops)

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
        )


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition. The counts are of the segments that the round took in.

    `log_bytes_*` and `log_segments_*` are of the whole log; `rolled`: the active segment was (or
    would be) closed first; `map_is_full`: the round ended before `first_uncleanable`, so another
    one finds more to clean; `skipped`: why nothing was cleaned, in one sentence.
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

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        counts = fields.pop("counts")
        return {**fields, **_flat(counts)}


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """A whole run. `seconds` covers cleaning and putting in place, not the start of an engine."""

    mode: Mode
    out: str | None
    now_ms: int
    seconds: float
    partitions: tuple[PartitionReport, ...]

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
            "now_ms": self.now_ms,
            "partitions": [partition.as_json() for partition in self.partitions],
            "totals": {
                **_flat(asdict(self.totals)),
                "seconds": round(self.seconds, 3),
                "megabytes_per_second": round(self.megabytes_per_second, 1),
            },
        }


def _flat(counts: dict[str, Any]) -> dict[str, Any]:
    return {**counts, "dropped": {**counts["dropped"], "total": sum(counts["dropped"].values())}}
