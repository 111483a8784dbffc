"""Choosing what to clean, one question after another: from CLN-2, CMP-9, LDG-2 and EX-10 alone.

The queue is made by taking the log that goes before all others, again and again; shares are exact
fractions of whole numbers, thresholds the decimal numbers that somebody wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

FORCED, RATIO, BACKLOG, EXPIRED = "forced", "ratio", "backlog", "expired_tombstones"
_ORDER = [FORCED, RATIO, BACKLOG, EXPIRED]


@dataclass
class Log:
    """`oldest`: the earliest time in the first uncleaned segment; None or below 1: not known.
    `above`: in ledger mode, the bytes that the dirty ones have to exceed; 0: never. `waits`: then
    something waits for the next ledger."""

    topic: str
    partition: int
    clean: int
    dirty: int
    threshold: str = "0.5"
    max_lag: int | None = None
    oldest: int | None = None
    expiry: int | None = None
    compacts: bool = True
    is_free: bool = True
    quarantined_until: int | None = None
    above: int | None = None
    waits: bool = False


def reason(log: Log, now: int) -> str | None:
    """Why `log` is to be cleaned, None if it is not."""
    if not log.is_free or (log.above is None and not log.compacts):
        return None
    if log.quarantined_until is not None and log.quarantined_until > now:
        return None
    if log.clean + log.dirty == 0:
        return None
    if log.above is not None:
        if log.waits or (log.above and log.dirty > log.above):
            return BACKLOG
        if log.above == 0:
            return None
    elif log.dirty > 0:
        if log.max_lag is not None and log.oldest is not None and log.oldest >= 1:
            age = now - log.oldest
            if age > log.max_lag:
                return FORCED
        if share(log) > Fraction(log.threshold):
            return RATIO
    if log.expiry is not None and now >= log.expiry:
        return EXPIRED
    return None


def share(log: Log) -> Fraction:
    return Fraction(log.dirty, log.clean + log.dirty)


def goes_before(one: Log, other: Log, now: int) -> bool:
    """Whether `one` is to be cleaned before `other`; both are to be cleaned."""
    why, why_other = reason(one, now), reason(other, now)
    if why != why_other:
        assert why is not None
        assert why_other is not None
        return _ORDER.index(why) < _ORDER.index(why_other)
    if why == FORCED:
        assert one.oldest is not None
        assert other.oldest is not None
        assert one.max_lag is not None
        assert other.max_lag is not None
        overdue = now - one.oldest - one.max_lag
        overdue_other = now - other.oldest - other.max_lag
        if overdue != overdue_other:
            return overdue > overdue_other
    elif why == RATIO:
        if share(one) != share(other):
            return share(one) > share(other)
    elif why == EXPIRED:
        assert one.expiry is not None
        assert other.expiry is not None
        if one.expiry != other.expiry:
            return one.expiry < other.expiry
    if one.dirty != other.dirty:
        return one.dirty > other.dirty
    if one.topic != other.topic:
        return one.topic < other.topic
    return one.partition < other.partition


def queue(logs: list[Log], now: int) -> list[tuple[str, int, str]]:
    """(topic, partition, reason) of each log that is to be cleaned, the next one first."""
    waiting = [log for log in logs if reason(log, now) is not None]
    places = []
    while waiting:
        first = waiting[0]
        for log in waiting[1:]:
            if goes_before(log, first, now):
                first = log
        waiting.remove(first)
        why = reason(first, now)
        assert why is not None
        places.append((first.topic, first.partition, why))
    return places
