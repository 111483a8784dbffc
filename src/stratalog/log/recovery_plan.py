"""What recovery does about a log, given what a scan of it found (RCV-1, RCV-7). Pure.

What was flushed is below the recovery point. Damage at or above it is what a crash leaves: the log
ends before it. Damage below it is no crash's doing, and nothing is cut off for it: the partition is
quarantined, which a restart does not forget and only `log repair` settles.

Invariants
- I1  Everything below the damage stays; nothing above it does.
- I2  Later segments go before the damaged one is cut: as long as the damage is there, a second
      recovery finds the same end.

Source: Kafka's LogLoader.recoverLog; the quarantine is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """What a scan of one segment found. `end`: bytes that are sound; `next_offset`: after the last
    sound batch; `damage`: why it stopped before the file's `size_bytes`, None if it did not;
    `claimed_offset`: what a batch there says that is whole, but out of place, and may be right."""

    base_offset: int
    size_bytes: int
    end: int
    next_offset: int
    damage: str | None = None
    claimed_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """A segment behind the damage goes."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The log ends in this segment, at byte `end`, before `next_offset`."""

    base_offset: int
    end: int
    size_bytes: int
    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Damage below the recovery point: `base_offset` names the segment, `position` the byte,
    `offset` the first that is not proven."""

    base_offset: int
    position: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class StartOver:
    """Nothing of the log lies at or above its start: an empty segment at `offset` is all of it."""

    offset: int


Action = Drop | Cut | Quarantine | StartOver


def first_to_scan(bases: Sequence[int], recovery_point: int) -> int:
    """The index of the segment that holds the recovery point (RCV-1)."""
    at_or_below = [slot for slot, base in enumerate(bases) if base <= recovery_point]
    return at_or_below[-1] if at_or_below else 0


def below_start(bases: Sequence[int], log_start_offset: int) -> tuple[int, ...]:
    """The segments of which nothing is left to read: the next one begins at or below the start."""
    return tuple(base for base, following in pairwise(bases) if following <= log_start_offset)


def plan_recovery(
    scans: Sequence[SegmentScan],
    later_bases: Sequence[int],
    recovery_point: int | None,
    log_start_offset: int,
) -> tuple[Action, ...]:
    """What to do, in order. `scans` end with the first damaged segment, or with the last of all;
    `later_bases` are the segments behind it.

    Without a recovery point any damage may lie below it.
    """
    last = scans[-1]
    is_proven = recovery_point is not None and last.next_offset >= recovery_point
    if recovery_point is not None and last.claimed_offset is not None:
        # Its neighbour's header may be the one that is wrong, and this batch a flushed one.
        is_proven &= last.claimed_offset >= recovery_point
    if last.damage is not None and not is_proven:
        return (Quarantine(last.base_offset, last.end, last.next_offset, last.damage),)
    if recovery_point is not None and last.next_offset < recovery_point:
        reason = f"the log ends at {last.next_offset}, and was flushed up to {recovery_point}"
        return (Quarantine(last.base_offset, last.end, last.next_offset, reason),)
    actions: list[Action] = [Drop(base) for base in reversed(later_bases)]
    if last.damage is not None:
        actions.append(
            Cut(last.base_offset, last.end, last.size_bytes, last.next_offset, last.damage)
        )
    if last.next_offset < log_start_offset:
        # Records were deleted up to an offset that a crash then took from the log's end.
        return (StartOver(log_start_offset),)
    return tuple(actions)
