"""How transactions end, told while a log is read from its first batch to its last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.naive.files import Aborted, Segment
from tests.naive.records import ABORT, COMMIT, Batch


def collect_aborted(
    segments: Sequence[Segment], start: int, end: int, log_start_offset: int
) -> list[Aborted]:
    """Aborted transactions that meet the segments of [start, end) and end above the log start:
    below it Kafka knows of none. An index entry lies in the segment of its marker, so the indexes
    of later segments are read too."""
    floor = max((s.base for s in segments if s.base <= start), default=start)
    return [
        entry
        for segment in segments
        if segment.base >= floor
        for entry in segment.aborted
        if entry.last_offset >= log_start_offset and entry.first_offset < end
    ]


class Transactions:
    """The transactions that are open at the current batch, and how they will end."""

    def __init__(self) -> None:
        self.waiting: list[Aborted] = []
        self.aborting: dict[int, Aborted] = {}
        self.seen_data: set[int] = set()
        self.committing: set[int] = set()

    def add(self, aborted: Iterable[Aborted]) -> None:
        self.waiting = sorted([*self.waiting, *aborted], key=lambda entry: entry.first_offset)

    def _advance(self, offset: int) -> None:
        while self.waiting and self.waiting[0].first_offset <= offset:
            entry = self.waiting.pop(0)
            if entry.producer_id not in self.aborting:
                self.aborting[entry.producer_id] = entry
                self.seen_data.discard(entry.producer_id)

    def read_data(self, batch: Batch) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        self._advance(batch.last_offset)
        if not batch.transactional:
            return False
        if batch.producer_id in self.aborting:
            self.seen_data.add(batch.producer_id)
            return True
        self.committing.add(batch.producer_id)
        return False

    def read_control(self, batch: Batch) -> tuple[bool, Aborted | None]:
        """Whether the marker is of no use any more; the transaction to keep in the index."""
        self._advance(batch.last_offset)
        kind = batch.control_type()
        if kind is None:
            return True, None  # emptied by an earlier round
        if kind == ABORT:
            entry = self.aborting.pop(batch.producer_id, None)
            if entry is not None and batch.producer_id in self.seen_data:
                return False, entry
            return True, None
        if kind == COMMIT:
            had_data = batch.producer_id in self.committing
            self.committing.discard(batch.producer_id)
            return not had_data, None
        return False, None
