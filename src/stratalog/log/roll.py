"""When the active segment is closed and a new one begun (LOG-5). Pure.

A segment is rolled before an append that would make it larger than `segment.bytes`, whose offset
would not fit its indexes, when an index is full, or when it is old. Age is measured in the records'
own time, from the first batch's timestamp to the incoming batch's; only a segment without
timestamps is measured by the clock. A segment that gets no more appends is rolled by the clock, too
(LOG-6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stratalog.log.settings import LogSettings
from stratalog.record.checksum import crc32c
from stratalog.segment import offset_index, time_index

MAX_FILE_BYTES = (1 << 31) - 1
"""Positions in the offset index have 31 bits."""


class RollReason(Enum):
    """Why a segment is rolled; the value is what is logged."""

    SIZE = "segment.bytes"
    AGE = "segment.ms"
    INDEX_FULL = "segment.index.bytes"
    OFFSET_RANGE = "relative offset past 2^31 - 1"


@dataclass(frozen=True, slots=True)
class ActiveFacts:
    """The active segment as rolling sees it. `first_timestamp`: of its first batch, -1 if none;
    `created_ms` and `first_append_ms` are the clock's (of a segment that was there when the log
    was opened: its file's time, at most)."""

    base_offset: int
    size_bytes: int
    offset_entries: int
    time_entries: int
    first_timestamp: int
    created_ms: int
    first_append_ms: int = -1


@dataclass(frozen=True, slots=True)
class Incoming:
    """What is about to be appended: size in bytes, last offset, largest timestamp (-1 none)."""

    size_bytes: int
    last_offset: int
    max_timestamp: int


def roll_reason(
    active: ActiveFacts, incoming: Incoming, now_ms: int, settings: LogSettings, jitter_ms: int = 0
) -> RollReason | None:
    """Why the active segment must be rolled before `incoming` is appended, or None."""
    if active.size_bytes > min(settings.segment_bytes, MAX_FILE_BYTES) - incoming.size_bytes:
        return RollReason.SIZE
    if active.size_bytes > 0 and _age_ms(active, incoming, now_ms) > (
        settings.roll_after_ms - jitter_ms
    ):
        return RollReason.AGE
    if (
        active.offset_entries >= offset_index.max_entries(settings.segment_index_bytes)
        or active.time_entries >= time_index.max_entries(settings.segment_index_bytes) - 1
    ):
        return RollReason.INDEX_FULL
    if incoming.last_offset - active.base_offset > offset_index.MAX_RELATIVE_OFFSET:
        return RollReason.OFFSET_RANGE
    return None


def is_idle_too_long(
    active: ActiveFacts, now_ms: int, settings: LogSettings, jitter_ms: int
) -> bool:
    """Whether a segment that nobody appends to must be rolled by the clock (LOG-6), so that it can
    be cleaned and deleted. Measured from its first append here: records may tell any time."""
    age_ms = now_ms - active.first_append_ms
    return active.size_bytes > 0 and age_ms > settings.roll_after_ms - jitter_ms


def jitter_ms(name: str, base_offset: int, settings: LogSettings) -> int:
    """How much earlier this segment rolls, below `segment.jitter.ms`, so that not all roll at once.

    A hash of the log's name and the segment's base offset: spread, and the same after a restart.
    """
    bound_ms = min(settings.segment_jitter_ms, settings.segment_ms)
    return crc32c(f"{name}/{base_offset}".encode()) % bound_ms if bound_ms > 0 else 0


def _age_ms(active: ActiveFacts, incoming: Incoming, now_ms: int) -> int:
    if active.first_timestamp >= 0:
        return incoming.max_timestamp - active.first_timestamp
    return now_ms - active.created_ms
