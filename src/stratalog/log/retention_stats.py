"""What retention has removed, as plain counters; the floor of metrics reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from stratalog.log.retention import Deletion


@dataclass(slots=True)
class RetentionStats:
    """Belongs to a store, whose lock guards it. By reason; the counts only grow."""

    segments: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, deletions: Iterable[Deletion]) -> None:
        """Count segments that have left their log."""
        for deletion in deletions:
            self.segments[deletion.reason] += 1
            self.size_bytes[deletion.reason] += deletion.size_bytes
