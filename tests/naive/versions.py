"""Which of a key's records is the newest, where that is not the last one: by time, or by a header.

The settings are `compaction.strategy` (offset, timestamp, header) and `compaction.strategy.header`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.naive.files import Segment
from tests.naive.plan import Inputs, Range, overlapping
from tests.naive.records import Record
from tests.naive.transactions import Transactions, collect_aborted

LOWEST = -(2**63)
Settings = Mapping[str, str]


def strategy_of(settings: Settings) -> str:
    return settings.get("compaction.strategy", "offset")


def version_of(record: Record, settings: Settings) -> int:
    match strategy_of(settings):
        case "timestamp":
            return record.timestamp
        case "header":
            wanted = settings["compaction.strategy.header"].encode()
            values = [value for name, value in record.headers if name == wanted]
            return integer_of(values[-1]) if values else LOWEST
    return 0


def integer_of(value: bytes | None) -> int:
    if not value:
        return LOWEST
    if re.fullmatch(rb"-?[0-9]+", value):
        number = int(value)
        return number if LOWEST <= number <= -LOWEST - 1 else LOWEST
    return int.from_bytes(value, "big", signed=True) if len(value) <= 8 else LOWEST


@dataclass(frozen=True)
class VersionMap:
    """`best` is each key's highest (version, offset) among the records that readers can see;
    `later` each key's lowest version among all records at or beyond the round's end."""

    best: Mapping[bytes, tuple[int, int]]
    latest_offset: int
    settings: Settings
    later: Mapping[bytes, int]
    log_start_offset: int
    full: bool = False

    @property
    def offsets(self) -> dict[bytes, int]:
        return {key: offset for key, (_, offset) in self.best.items()}

    def supersedes(self, record: Record) -> bool:
        mine = version_of(record, self.settings), record.offset
        return record.key in self.best and mine < self.best[record.key]

    def outranks_later(self, record: Record) -> bool:
        """Whether a record past the round's end, perhaps of a transaction whose end nobody knows,
        would be the latest of the key if this one were not there."""
        if record.offset < self.log_start_offset:
            return False
        mine = version_of(record, self.settings)
        return record.key in self.later and self.later[record.key] < mine


def build_version_map(segments: Sequence[Segment], bounds: Range, inputs: Inputs) -> VersionMap:
    """The whole log is looked at, from its start to the round's end, however many keys it has."""
    start, end = inputs.log_start_offset, bounds.first_uncleanable
    transactions = Transactions()
    transactions.add(collect_aborted(segments, 0, end, inputs.log_start_offset))
    best: dict[bytes, tuple[int, int]] = {}
    for segment in overlapping(segments, 0, end):
        for batch in segment.batches:
            if batch.control:
                transactions.read_control(batch)
            elif not transactions.read_data(batch):
                for record in batch.records():
                    if record.key is not None and start <= record.offset < end:
                        mine = version_of(record, inputs.settings), record.offset
                        best[record.key] = max(mine, best.get(record.key, mine))
    later: dict[bytes, int] = {}
    for segment in segments:
        for record in (r for b in segment.batches if not b.control for r in b.records()):
            if record.key is not None and record.offset >= end:
                version = version_of(record, inputs.settings)
                later[record.key] = min(version, later.get(record.key, version))
    return VersionMap(best, end - 1, inputs.settings, later, start)
