"""What a read sees of a partition: the raw log, or a ledger and the tail of the raw log behind it.

Views, one behind the other, that answer like one log; planning and reading go over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.ledger.view import CompactedView
from stratalog.log.view import LogView
from stratalog.segment.segment import Segment, TimestampOffset
from stratalog.segment.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """`views` hold neighbouring ranges of offsets; the last one's end is that of the log."""

    views: tuple[LogView, ...]

    @classmethod
    def of_raw(cls, view: LogView) -> Parts:
        """The raw log."""
        return cls((view,))

    @classmethod
    def of_compacted(cls, ledger: LogView | None, raw: LogView) -> Parts:
        """The compacted view: the raw log itself where there is no ledger."""
        return cls(CompactedView(ledger, raw).parts)

    @classmethod
    def up_to(cls, ledger: LogView | None, raw: LogView, end_offset: int | None) -> Parts:
        """The compacted view up to an offset (None: the log's end), which a ledger alone answers if
        it is its own."""
        if ledger is not None and end_offset is not None and end_offset <= ledger.log_end_offset:
            return cls((ledger,))
        return cls.of_compacted(ledger, raw)

    @property
    def is_raw(self) -> bool:
        """Whether it may be the raw log alone: there is one view."""
        return len(self.views) == 1

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be asked for."""
        return self.views[0].log_start_offset

    @property
    def horizon(self) -> int:
        """From here on records are the raw log's."""
        return self.views[-1].log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.views[-1].log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed data must stop; never below the horizon."""
        return max(self.views[-1].last_stable_offset, self.horizon)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments that are looked into."""
        return sum(view.segments.size_bytes for view in self.views)

    def ranges(self, start: int, end: int) -> Iterator[tuple[LogView, int, int]]:
        """The views that hold offsets of [start, end), each with its share."""
        for view in self.views:
            low, high = max(start, view.log_start_offset), min(end, view.log_end_offset)
            if low < high:
                yield view, low, high

    def segments(self) -> Iterator[Segment]:
        """Those of all views."""
        for view in self.views:
            yield from view.segments

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record with a timestamp of at least `timestamp` ms, if any (LOG-11)."""
        for view in self.views:
            found = view.offset_for_timestamp(timestamp)
            if found is not None and found.offset < view.log_end_offset:
                return found
        return None

    def aborted_between(self, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions that touch [start, end); none lies across a horizon."""
        return [
            found
            for view, low, high in self.ranges(start, end)
            for found in view.aborted_between(low, high)
        ]
