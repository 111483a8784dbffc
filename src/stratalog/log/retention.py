"""Which old segments go, and why: policies over an immutable view of the log (LOG-14). Pure.

A policy looks at the segments from the oldest on and yields a `Deletion` for each that goes, until
one stays. `decide` runs policies one after another, each on what the ones before it have left, and
adds up what is to be done; whoever owns the log does it. Kafka's three, in its order:

    start offset   the segment ends at or below the log start (RET-5)
    size           the log is at or above retention.bytes without it (RET-4)
    time           its largest timestamp is more than retention.ms ago (RET-2)

    |  0  |  11  |  23 ... active  |        log start 25: 0 and 11 go, 23 stays

Whoever embeds the log passes policies of their own; they are held to the same bounds.

Invariants
- I1  Only an oldest-first prefix goes, whatever a policy says (RET-9), and only whole segments
      (RET-3).
- I2  Nothing at or past the log end goes (the high watermark, as there is one replica), and an
      empty active segment neither goes nor rolls (RET-7).
- I3  A log always has an active segment: if the last one goes, a new one is rolled first (RET-7).
- I4  A timestamp is asked for only if the time rule comes to its segment: it may cost reading an
      index.

Source: RET-2 to RET-5, RET-7, RET-9, RET-10; Kafka's UnifiedLog.deletableSegments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.log.settings import LogSettings
from stratalog.log.view import LogView

START_OFFSET, SIZE, TIME = "start_offset", "size", "time"
"""Reasons of the policies here; others name their own."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment as retention sees it: [base_offset, end_offset), `size_bytes` of `.log`.

    `end_offset`: the next segment's base offset, or the log end. `largest_timestamp_ms` answers
    `Segment.largest_timestamp_ms`, so it may raise `CorruptionError`.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    largest_timestamp_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class RetentionView:
    """A log at one moment. `segments`: all of it, or what earlier policies left of it; the active
    one is the last.
    """

    segments: tuple[SegmentFacts, ...]
    log_start_offset: int
    log_end_offset: int

    def __post_init__(self) -> None:
        ends = [segment.end_offset for segment in self.segments]
        assert all(one.end_offset == next_.base_offset for one, next_ in pairwise(self.segments))
        assert not ends or ends[-1] == self.log_end_offset, (ends[-1], self.log_end_offset)

    @property
    def size_bytes(self) -> int:
        """The sum of the `.log` files; indexes do not count (RET-4)."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def candidates(self) -> tuple[SegmentFacts, ...]:
        """The segments that may go: all but an empty active one (RET-7)."""
        is_idle = bool(self.segments) and self.segments[-1].size_bytes == 0
        return self.segments[:-1] if is_idle else self.segments

    def without(self, n: int) -> RetentionView:
        """What is left when the `n` oldest segments are gone."""
        return RetentionView(self.segments[n:], self.log_start_offset, self.log_end_offset)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A segment that goes. `detail`: why, in words with figures, for people.

    `limit` is what the reason measures by and `excess` how far past it the segment is: offsets for
    the start offset, bytes for the size, ms for the time; None where a policy has no such figures.
    `largest_timestamp_ms` (ms) is known only if it was the reason.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    reason: str
    detail: str
    limit: int | None = None
    excess: int | None = None
    largest_timestamp_ms: int | None = None

    @property
    def line(self) -> str:
        """One line for the log and the command line (RET-9)."""
        return (
            f"segment {self.base_offset} (offsets {self.base_offset} to {self.end_offset - 1}, "
            f"{self.size_bytes} bytes) goes by {self.reason}: {self.detail}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "base_offset": self.base_offset,
            "end_offset": self.end_offset,
            "size_bytes": self.size_bytes,
            "reason": self.reason,
            "detail": self.detail,
            "limit": self.limit,
            "excess": self.excess,
            "largest_timestamp_ms": self.largest_timestamp_ms,
        }


Policy = Callable[[RetentionView, LogSettings, int], Iterable[Deletion]]
"""`policy(view, settings, now_ms)`: a `Deletion` for each of `view.candidates` that goes, from the
first on; it ends with the first that stays. It only looks: nothing is deleted while it runs."""


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """What is to be done. `rolls`: a new active segment must be there first (RET-7).

    It holds for the log that was looked at: whoever carries it out makes sure, under the log's
    lock, that those segments are still there as they were, the active one too.

    `problems`: damage that kept a policy from going on; what lies behind it stays. `held_from`: a
    policy names what ends above this offset, which has to be copied first (`holdings.Copies`).
    """

    deletions: tuple[Deletion, ...]
    rolls: bool
    new_log_start_offset: int
    problems: tuple[str, ...] = ()
    held_from: int | None = None

    @property
    def size_bytes(self) -> int:
        """What the deletions free."""
        return sum(deletion.size_bytes for deletion in self.deletions)

    def as_json(self) -> dict[str, Any]:
        return {
            "deletions": [deletion.as_json() for deletion in self.deletions],
            "deleted_segments": len(self.deletions),
            "deleted_bytes": self.size_bytes,
            "rolls": self.rolls,
            "new_log_start_offset": self.new_log_start_offset,
            "problems": list(self.problems),
            "held_from": self.held_from,
        }


def view_of(log: LogView) -> RetentionView:
    """An open log as retention sees it."""
    end_offset = log.log_end_offset
    segments = tuple(
        SegmentFacts(
            segment.base_offset,
            log.segments.end_of(slot, end_offset),
            segment.size_bytes,
            segment.largest_timestamp_ms,
        )
        for slot, segment in enumerate(log.segments)
    )
    return RetentionView(segments, log.log_start_offset, end_offset)


def by_start_offset(
    view: RetentionView, _settings: LogSettings, _now_ms: int
) -> Iterator[Deletion]:
    """Segments whose successor begins at or below the log start (RET-5). Never the active one."""
    start = view.log_start_offset
    for segment in view.segments[:-1]:
        if segment.end_offset > start:
            return
        yield _deletion(
            segment,
            START_OFFSET,
            f"it ends at {segment.end_offset}, the log starts at {start}",
            limit=start,
            excess=start - segment.end_offset,
        )


def by_size(view: RetentionView, settings: LogSettings, _now_ms: int) -> Iterator[Deletion]:
    """The oldest segments, as long as `retention.bytes` are left without them (RET-4)."""
    limit_bytes = settings.retention_bytes
    if limit_bytes < 0:
        return
    excess_bytes = view.size_bytes - limit_bytes
    for segment in view.candidates:
        if excess_bytes < segment.size_bytes:
            return
        yield _deletion(
            segment,
            SIZE,
            f"the log holds {limit_bytes + excess_bytes} bytes, "
            f"{excess_bytes} over retention.bytes={limit_bytes}",
            limit=limit_bytes,
            excess=excess_bytes,
        )
        excess_bytes -= segment.size_bytes


def by_time(view: RetentionView, settings: LogSettings, now_ms: int) -> Iterator[Deletion]:
    """Segments whose youngest record is more than `retention.ms` old (RET-2, RET-3).

    A timestamp in the future keeps its segment and all behind it. Raises `CorruptionError`.
    """
    limit_ms = settings.retention_ms
    if limit_ms < 0:
        return
    for segment in view.candidates:
        largest_ms = segment.largest_timestamp_ms()
        age_ms = now_ms - largest_ms
        if age_ms <= limit_ms:
            return
        yield _deletion(
            segment,
            TIME,
            f"its largest timestamp {largest_ms} is {age_ms} ms old, "
            f"{age_ms - limit_ms} over retention.ms={limit_ms}",
            limit=limit_ms,
            excess=age_ms - limit_ms,
            largest_timestamp_ms=largest_ms,
        )


def policies_for(cleanup_policy: Collection[str]) -> tuple[Policy, ...]:
    """Kafka's policies in its order (RET-9); without `delete` only the first (RET-10)."""
    return (by_start_offset, by_size, by_time) if "delete" in cleanup_policy else (by_start_offset,)


def decide(
    view: RetentionView,
    settings: LogSettings,
    now_ms: int,
    policies: Sequence[Policy] | None = None,
    held_from: int | None = None,
) -> RetentionDecision:
    """What goes at `now_ms` (ms); `policies`: those of `settings.cleanup_policy` if None.
    `held_from`: segments that end above this offset stay, unless the log start has passed them.

    Raises `UsageError` when a policy names anything but the oldest segments in their order (RET-9).
    """
    if policies is None:
        policies = policies_for(settings.cleanup_policy)
    assert view.segments, "a log always has an active segment"
    left = view
    deletions: list[Deletion] = []
    problems: list[str] = []
    is_held = False
    for policy in policies:
        chosen: list[Deletion] = []
        try:
            for deletion in policy(left, settings, now_ms):
                _check_next(policy, left, len(chosen), deletion)
                if held_from is not None and max(held_from, view.log_start_offset) < (
                    deletion.end_offset
                ):
                    is_held = True
                    break
                chosen.append(deletion)
        except CorruptionError as error:
            # What was named before it is older: it may go, the damage stays for a repair.
            problems.append(str(error))
        deletions += chosen
        left = left.without(len(chosen))
    return RetentionDecision(
        tuple(deletions),
        rolls=not left.segments,
        new_log_start_offset=max(
            view.log_start_offset, deletions[-1].end_offset if deletions else view.log_start_offset
        ),
        problems=tuple(problems),
        held_from=held_from if is_held else None,
    )


def _check_next(policy: Policy, view: RetentionView, place: int, deletion: Deletion) -> None:
    candidates = view.candidates
    name = getattr(policy, "__name__", type(policy).__name__)
    if place >= len(candidates):
        raise UsageError(
            f"retention policy {name} names segment {deletion.base_offset}, "
            f"but none is left that may go"
        )
    due = candidates[place]
    named = (deletion.base_offset, deletion.end_offset, deletion.size_bytes)
    if named != (due.base_offset, due.end_offset, due.size_bytes):
        raise UsageError(
            f"retention policy {name} names segment {deletion.base_offset} "
            f"before the older one at {due.base_offset}: the oldest go first"
        )


def _deletion(segment: SegmentFacts, reason: str, detail: str, **figures: int) -> Deletion:
    return Deletion(
        segment.base_offset, segment.end_offset, segment.size_bytes, reason, detail, **figures
    )
