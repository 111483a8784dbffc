"""What a round of cleaning is about to do: its inputs, its range, its groups of segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.naive.files import Segment

DEFAULTS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
}
MAP_ENTRY_BYTES = 24


@dataclass(frozen=True)
class Inputs:
    """What a round needs beside the partition directory. `active_producers` maps a producer id
    to its epoch and its last data offset (None: no data since the epoch changed). `forgotten`:
    offsets of tombstones that go at once."""

    settings: Mapping[str, str]
    now_ms: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    checkpoint: int | None = None
    active_producers: Mapping[int, tuple[int, int | None]] | None = None
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    forgotten: frozenset[int] = frozenset()

    def number(self, setting: str) -> int:
        return int(self.settings.get(setting, DEFAULTS[setting]))

    @property
    def min_dirty_ratio(self) -> float:
        name = "min.cleanable.dirty.ratio"
        return float(self.settings.get(name, DEFAULTS[name]))

    @property
    def map_limit(self) -> int:
        return int(self.dedupe_buffer_bytes // MAP_ENTRY_BYTES * self.load_factor)


@dataclass(frozen=True)
class Range:
    """`checkpoint` is the one the round starts from, after a reset if it was out of the log."""

    first_dirty: int
    first_uncleanable_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    checkpoint: int | None

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def overlapping(segments: Sequence[Segment], start: int, end: int) -> list[Segment]:
    """The segments that hold offsets of [start, end); none of an empty range."""
    if start == end:
        return []
    floor = max((s.base for s in segments if s.base <= start), default=start)
    return [s for s in segments if floor <= s.base < end]


def cleanable_range(segments: Sequence[Segment], inputs: Inputs) -> Range:
    checkpoint = inputs.checkpoint
    if checkpoint is not None and not (
        inputs.log_start_offset <= checkpoint <= inputs.log_end_offset
    ):
        checkpoint = inputs.log_start_offset
    first_dirty = inputs.log_start_offset if checkpoint is None else checkpoint

    active = segments[-1].base
    candidates = [inputs.last_stable_offset, active]
    lag_ms = inputs.number("min.compaction.lag.ms")
    if lag_ms > 0:
        for segment in overlapping(segments, first_dirty, active):
            if segment.largest_timestamp > inputs.now_ms - lag_ms:
                candidates.append(segment.base)
                break
    first_uncleanable_dirty = min(candidates)
    first_uncleanable = max(s.base for s in segments if s.base <= first_uncleanable_dirty)
    # It may lie below first_dirty, if a transaction is open in the segment of the checkpoint.
    dirty = overlapping(segments, min(first_dirty, first_uncleanable), first_uncleanable)
    return Range(
        first_dirty,
        first_uncleanable_dirty,
        first_uncleanable,
        sum(len(s.data) for s in overlapping(segments, -1, first_dirty)),
        sum(len(s.data) for s in dirty),
        checkpoint,
    )


def group_segments(
    segments: Sequence[Segment], bounds: Range, end_offset: int, inputs: Inputs
) -> list[list[Segment]]:
    """Greedy, in order, by the sizes before cleaning."""
    rest = overlapping(segments, 0, end_offset)
    following = {s.base: n.base for s, n in pairwise(rest)}
    groups: list[list[Segment]] = []
    for segment in rest:
        last_offset = following.get(segment.base, bounds.first_uncleanable) - 1
        if groups:
            group = [*groups[-1], segment]
            if (
                sum(len(s.data) for s in group) <= inputs.number("segment.bytes")
                and sum(s.index_bytes for s in group) <= inputs.number("segment.index.bytes")
                and sum(12 * len(s.time_index) for s in group)
                <= inputs.number("segment.index.bytes")
                and (not segment.data or last_offset - group[0].base <= (1 << 31) - 1)
            ):
                groups[-1] = group
                continue
        groups.append([segment])
    return groups
