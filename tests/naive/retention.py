"""Retention, one segment at a time: look at the oldest, throw it away or stop, look again.

Written from RET-2 to RET-5, RET-7, RET-9 and RET-10 alone. A log is a list of segments, a segment
a list of records; every number is counted anew from the records whenever it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Record:
    offset: int
    timestamp: int
    size: int


@dataclass
class Segment:
    base: int
    mtime: int
    records: list[Record] = field(default_factory=list)


@dataclass
class Log:
    """`start`: the log start offset, `next`: the offset of the next record."""

    segments: list[Segment]
    start: int
    next: int


@dataclass
class Outcome:
    """What `retain` did: (base, rule) for each segment that went, and whether it rolled."""

    gone: list[tuple[int, str]]
    rolled: bool


def retain(log: Log, policy: set[str], keep_ms: int, keep_bytes: int, now: int) -> Outcome:
    """Change `log` as the retention task does. -1: no bound."""
    rules = ["start", "size", "time"] if "delete" in policy else ["start"]
    gone: list[tuple[int, str]] = []
    rolled = False
    for rule in rules:
        while _oldest_goes(log, rule, keep_ms, keep_bytes, now):
            if len(log.segments) == 1:
                log.segments.append(Segment(log.next, now))
                rolled = True
            gone.append((log.segments[0].base, rule))
            del log.segments[0]
            log.start = max(log.start, log.segments[0].base)
    return Outcome(gone, rolled)


def _oldest_goes(log: Log, rule: str, keep_ms: int, keep_bytes: int, now: int) -> bool:
    oldest = log.segments[0]
    is_active = len(log.segments) == 1
    if is_active and not oldest.records:
        return False
    if rule == "start":
        return not is_active and log.segments[1].base <= log.start
    if rule == "size":
        # What is left must still be all of what was to be kept.
        left = [record.size for segment in log.segments[1:] for record in segment.records]
        return keep_bytes != -1 and sum(left) >= keep_bytes
    return keep_ms != -1 and _youngest(oldest) + keep_ms < now


def _youngest(segment: Segment) -> int:
    youngest = max((record.timestamp for record in segment.records), default=-1)
    return youngest if youngest > 0 else segment.mtime
