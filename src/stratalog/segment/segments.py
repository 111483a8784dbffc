"""The segments of a log: an immutable set, sorted by base offset, searched by bisection (LOG-8).

The writer publishes a new value for every change and readers keep the one they took (LOG-12).

Invariants
- I1  Base offsets grow strictly.
- I2  The last segment is the active one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from stratalog.segment.segment import Segment


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Use `segments_of` to make one."""

    items: tuple[Segment, ...]
    bases: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    def __getitem__(self, slot: int) -> Segment:
        return self.items[slot]

    @property
    def active(self) -> Segment:
        """The last one. There always is one in an open log."""
        return self.items[-1]

    @property
    def sealed(self) -> tuple[Segment, ...]:
        """All but the active one."""
        return self.items[:-1]

    @property
    def size_bytes(self) -> int:
        """The sum of the `.log` files."""
        return sum(segment.size_bytes for segment in self.items)

    def floor(self, offset: int) -> Segment | None:
        """The last segment whose base offset is <= `offset`."""
        slot = bisect_right(self.bases, offset) - 1
        return None if slot < 0 else self.items[slot]

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segments that may hold `offset` or anything above it."""
        return self.items[max(bisect_right(self.bases, offset) - 1, 0) :]

    def get(self, base_offset: int) -> Segment | None:
        """The segment with exactly this base offset."""
        slot = bisect_left(self.bases, base_offset)
        found = slot < len(self.bases) and self.bases[slot] == base_offset
        return self.items[slot] if found else None

    def end_of(self, slot: int, log_end_offset: int) -> int:
        """Where the segment at `slot` ends: the next one's base offset, or the log end."""
        return self.bases[slot + 1] if slot + 1 < len(self.bases) else log_end_offset

    def with_active(self, active: Segment) -> Segments:
        """With the active segment published anew."""
        assert active.base_offset == self.bases[-1], (active.base_offset, self.bases[-1])
        return Segments((*self.items[:-1], active), self.bases)

    def appended(self, segment: Segment) -> Segments:
        """With a new active segment behind the others."""
        assert not self.bases or segment.base_offset > self.bases[-1]
        return Segments((*self.items, segment), (*self.bases, segment.base_offset))

    def replaced(self, removed: Collection[int], added: Iterable[Segment] = ()) -> Segments:
        """Without the segments at the base offsets `removed`, with those of `added`."""
        return segments_of([*(s for s in self.items if s.base_offset not in removed), *added])


def segments_of(segments: Iterable[Segment]) -> Segments:
    """A set of segments, in any order, no two of one base offset."""
    items = tuple(sorted(segments, key=lambda segment: segment.base_offset))
    bases = tuple(segment.base_offset for segment in items)
    assert len(set(bases)) == len(bases), bases
    return Segments(items, bases)
