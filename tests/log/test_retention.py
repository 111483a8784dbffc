"""Which segments go: each rule at its edges, the worked cases, and a naive twin on random logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.log.retention import (
    SIZE,
    START_OFFSET,
    TIME,
    Deletion,
    Policy,
    RetentionDecision,
    RetentionView,
    SegmentFacts,
    by_size,
    by_start_offset,
    by_time,
    decide,
    policies_for,
    view_of,
)
from stratalog.log.settings import LogSettings
from tests.log.helpers import open_log, records
from tests.naive import retention as naive

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def never() -> int:
    raise AssertionError("this timestamp is not needed")


def view(
    bases: Sequence[int],
    end: int,
    *,
    start: int | None = None,
    sizes: Sequence[int] | None = None,
    ages: Sequence[int | None] | None = None,
) -> RetentionView:
    """`ages`: ms before NOW of each largest timestamp; None: whoever asks for it fails."""
    ends = [*bases[1:], end]
    sizes = sizes or [100] * len(bases)
    ages = ages or [None] * len(bases)
    times: list[Callable[[], int]] = [
        never if age is None else (lambda age=age: NOW - age) for age in ages
    ]
    rows = zip(bases, ends, sizes, times, strict=True)
    segments = tuple(SegmentFacts(*row) for row in rows)
    return RetentionView(segments, bases[0] if start is None else start, end)


def decided(view: RetentionView, *policies: Policy, **settings: Any) -> RetentionDecision:
    given = {"retention_ms": -1, **settings}
    return decide(view, LogSettings(**given), NOW, policies or None)


def gone(decision: RetentionDecision) -> list[tuple[int, str]]:
    return [(deletion.base_offset, deletion.reason) for deletion in decision.deletions]


# -- by start offset -----------------------------------------------------------------------------


@pytest.mark.requirement("RET-5", "EX-1")
@pytest.mark.parametrize("policy", [("delete",), ("compact",), ("compact", "delete"), ()])
def test_segments_below_the_log_start_go(policy: tuple[str, ...]) -> None:
    decision = decided(view([0, 11, 23], 30, start=25), cleanup_policy=policy)
    assert gone(decision) == [(0, START_OFFSET), (11, START_OFFSET)]
    assert not decision.rolls
    assert decision.new_log_start_offset == 25


@pytest.mark.requirement("RET-5")
@pytest.mark.parametrize(
    ("start", "bases"),
    [(0, []), (10, []), (11, [0]), (12, [0]), (22, [0]), (23, [0, 11]), (30, [0, 11])],
)
def test_a_segment_goes_when_the_next_one_begins_at_the_log_start(
    start: int, bases: list[int]
) -> None:
    decision = decided(view([0, 11, 23], 30, start=start))
    assert [deletion.base_offset for deletion in decision.deletions] == bases
    # Not even a log start at the log end takes the active segment.
    assert not decision.rolls
    assert decision.new_log_start_offset == start


# -- by size -------------------------------------------------------------------------------------


@pytest.mark.requirement("RET-4")
@pytest.mark.parametrize(
    ("limit", "bases"),
    [
        (-1, []),
        (401, []),
        (400, []),  # exactly full: nothing is over
        (301, []),  # 99 over, the first segment has 100
        (300, [0]),
        (201, [0]),
        (200, [0, 10]),
        (100, [0, 10, 20]),
        (1, [0, 10, 20]),
        (0, [0, 10, 20, 30]),
    ],
)
def test_the_log_is_cut_back_to_no_less_than_retention_bytes(limit: int, bases: list[int]) -> None:
    decision = decided(view([0, 10, 20, 30], 40), retention_bytes=limit)
    assert gone(decision) == [(base, SIZE) for base in bases]
    assert decision.rolls == (len(bases) == 4)
    assert decision.new_log_start_offset == 10 * len(bases)
    assert decision.size_bytes == 100 * len(bases)


@pytest.mark.requirement("RET-4", "RET-9")
def test_a_large_segment_keeps_small_ones_behind_it() -> None:
    sizes = [1000, 10, 10, 10]
    assert gone(decided(view([0, 1, 2, 3], 4, sizes=sizes), retention_bytes=31)) == []
    assert gone(decided(view([0, 1, 2, 3], 4, sizes=sizes), retention_bytes=30)) == [(0, SIZE)]


# -- by time -------------------------------------------------------------------------------------


@pytest.mark.requirement("RET-2")
@pytest.mark.parametrize(
    ("retention_ms", "bases"),
    [
        (-1, []),
        (5001, []),
        (5000, []),  # exactly that old: it stays
        (4999, [0]),  # one millisecond more: it goes
        (3000, [0]),
        (2999, [0, 10]),
        (1, [0, 10, 20]),
        (0, [0, 10, 20]),
    ],
)
def test_a_segment_goes_one_millisecond_after_the_limit(
    retention_ms: int, bases: list[int]
) -> None:
    ages = [5000, 3000, 2, 0]
    decision = decided(view([0, 10, 20, 30], 40, ages=ages), retention_ms=retention_ms)
    assert gone(decision) == [(base, TIME) for base in bases]


@pytest.mark.requirement("RET-2", "RET-9")
def test_a_timestamp_in_the_future_keeps_all_behind_it() -> None:
    ages = [5 * DAY_MS, -DAY_MS, None, None]
    decision = decided(view([0, 10, 20, 30], 40, ages=ages), retention_ms=DAY_MS)
    assert gone(decision) == [(0, TIME)]
    assert decision.problems == ()


@pytest.mark.requirement("RET-2")
def test_for_ever_does_not_even_ask_for_timestamps() -> None:
    assert gone(decided(view([0, 10], 20), retention_ms=-1)) == []


# -- the last segment ----------------------------------------------------------------------------


@pytest.mark.requirement("RET-7")
def test_if_every_segment_is_expired_a_new_one_is_rolled() -> None:
    ages = [9000, 8000, 7000]
    decision = decided(view([0, 10, 20], 25, ages=ages), retention_ms=6999)
    assert gone(decision) == [(0, TIME), (10, TIME), (20, TIME)]
    assert decision.rolls
    assert decision.new_log_start_offset == 25


@pytest.mark.requirement("RET-7")
def test_an_empty_active_segment_neither_rolls_nor_goes() -> None:
    behind = view([0, 20], 20, sizes=[100, 0], ages=[9000, None])
    decision = decided(behind, retention_ms=1, retention_bytes=-1)
    assert gone(decision) == [(0, TIME)]
    assert (decision.rolls, decision.new_log_start_offset) == (False, 20)
    alone = view([20], 20, sizes=[0])
    for policy in (by_start_offset, by_size, by_time):
        decision = decided(alone, policy, retention_ms=0, retention_bytes=0)
        assert (gone(decision), decision.rolls) == ([], False)
        assert decision.new_log_start_offset == 20


# -- the policies together -----------------------------------------------------------------------


@pytest.mark.requirement("RET-9")
def test_policies_run_in_their_order_each_on_what_is_left() -> None:
    assert policies_for(("delete",)) == (by_start_offset, by_size, by_time)
    ages = [9000, 9000, 9000, 100, 0]
    full = view([0, 10, 20, 30, 40], 50, start=12, ages=ages)
    decision = decided(full, retention_ms=1000, retention_bytes=300)
    assert gone(decision) == [(0, START_OFFSET), (10, SIZE), (20, TIME)]
    assert decision.new_log_start_offset == 30
    # Had size come first, it would have taken the segment at 0 and had done with it.
    other = decided(full, by_size, by_start_offset, by_time, retention_bytes=400, retention_ms=1000)
    assert gone(other) == [(0, SIZE), (10, TIME), (20, TIME)]


@pytest.mark.requirement("RET-10")
@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        (("delete",), True),
        (("compact",), False),
        (("compact", "delete"), True),
        (("delete", "compact"), True),
        ((), False),
    ],
)
def test_retention_takes_the_last_value_of_a_key_unless_only_compaction_is_asked_for(
    policy: tuple[str, ...], goes: bool
) -> None:
    """The message at offset 5, latest of its key, older than the retention."""
    old = view([5, 6], 9, ages=[2 * DAY_MS, 0])
    decision = decided(old, cleanup_policy=policy, retention_ms=DAY_MS)
    assert [deletion.base_offset for deletion in decision.deletions] == ([5] if goes else [])


@pytest.mark.requirement("RET-10")
def test_compaction_alone_looks_at_neither_size_nor_time() -> None:
    decision = decided(
        view([0, 10], 20), cleanup_policy=("compact",), retention_ms=0, retention_bytes=0
    )
    assert decision == RetentionDecision((), rolls=False, new_log_start_offset=0)


@pytest.mark.requirement("RET-9")
def test_each_deletion_says_why_with_its_figures() -> None:
    ages = [DAY_MS, DAY_MS, DAY_MS, 0]
    decision = decided(
        view([0, 10, 20, 30], 40, start=12, ages=ages),
        retention_bytes=150,
        retention_ms=HOUR_MS,
    )
    by_start, by_bytes, by_age = (deletion.line for deletion in decision.deletions)
    assert by_start == (
        "segment 0 (offsets 0 to 9, 100 bytes) goes by start_offset: "
        "it ends at 10, the log starts at 12"
    )
    assert by_bytes == (
        "segment 10 (offsets 10 to 19, 100 bytes) goes by size: "
        "the log holds 300 bytes, 150 over retention.bytes=150"
    )
    assert by_age == (
        f"segment 20 (offsets 20 to 29, 100 bytes) goes by time: its largest timestamp "
        f"{NOW - DAY_MS} is {DAY_MS} ms old, {DAY_MS - HOUR_MS} over retention.ms={HOUR_MS}"
    )
    found = decision.as_json()
    assert (found["deleted_segments"], found["deleted_bytes"]) == (3, 300)
    assert (found["rolls"], found["new_log_start_offset"]) == (False, 30)
    figures = ("limit", "excess", "largest_timestamp_ms")
    assert [[row[name] for name in figures] for row in found["deletions"]] == [
        [12, 2, None],
        [150, 150, None],
        [HOUR_MS, DAY_MS - HOUR_MS, NOW - DAY_MS],
    ]


# -- policies of others --------------------------------------------------------------------------


def named(*places: int, reason: str = "ours") -> Policy:
    """A policy that names the segments at `places` of what it is shown."""

    def policy(view: RetentionView, settings: LogSettings, now_ms: int) -> Iterator[Deletion]:
        for place in places:
            segment = view.segments[place]
            yield Deletion(
                segment.base_offset, segment.end_offset, segment.size_bytes, reason, "so be it"
            )

    return policy


@pytest.mark.requirement("LOG-14")
def test_a_policy_of_the_users_own_decides_too() -> None:
    decision = decided(view([0, 10, 20], 30), named(0), by_size, named(0), retention_bytes=100)
    assert gone(decision) == [(0, "ours"), (10, SIZE), (20, "ours")]
    assert decision.rolls
    assert decision.deletions[0].line.endswith("goes by ours: so be it")


@pytest.mark.requirement("LOG-14", "RET-9")
@pytest.mark.parametrize("places", [(1,), (0, 2), (0, 0), (2, 1, 0)])
def test_no_policy_takes_anything_but_the_oldest(places: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"names segment .* the oldest go first"):
        decided(view([0, 10, 20], 30), named(*places))


@pytest.mark.requirement("LOG-14", "RET-7")
def test_no_policy_takes_an_empty_active_segment() -> None:
    with pytest.raises(UsageError, match="segment 10, but none is left"):
        decided(view([0, 10], 10, sizes=[100, 0]), named(0, 1))


@pytest.mark.requirement("LOG-14")
def test_a_policy_must_speak_of_the_segment_as_it_is() -> None:
    def policy(view: RetentionView, settings: LogSettings, now_ms: int) -> list[Deletion]:
        return [Deletion(0, 20, 200, "two at once", "")]

    with pytest.raises(UsageError, match="policy names segment 0"):
        decided(view([0, 10, 20], 30), policy)


@pytest.mark.requirement("RET-5", "RCV-7")
def test_a_damaged_segment_stays_and_so_does_what_lies_behind_it() -> None:
    def damaged() -> int:
        raise CorruptionError("no batch", file="x.log", position=3)

    old = view([0, 10, 20, 30], 40, start=10, ages=[None, DAY_MS, DAY_MS, DAY_MS])
    segments = list(old.segments)
    segments[2] = SegmentFacts(20, 30, 100, damaged)
    decision = decided(RetentionView(tuple(segments), 10, 40), retention_ms=HOUR_MS)
    assert gone(decision) == [(0, START_OFFSET), (10, TIME)]
    assert decision.problems == ("x.log: position 3: no batch",)
    assert not decision.rolls


# -- on real segments ----------------------------------------------------------------------------


@pytest.mark.requirement("RET-2", "RET-3", "LOG-14")
def test_an_open_log_as_retention_sees_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records([*records(2, timestamp=NOW - 5 * DAY_MS), *records(1, timestamp=NOW)])
    log.roll()
    log.append_records(records(2, timestamp=NOW - 4 * DAY_MS))
    seen = view_of(log.view)
    facts = [(s.base_offset, s.end_offset, s.largest_timestamp_ms()) for s in seen.segments]
    assert facts == [(0, 3, NOW), (3, 5, NOW - 4 * DAY_MS + 1)]
    assert seen.size_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    # The young record keeps the old ones of its segment, and the older segment the newer one.
    decision = decide(seen, LogSettings(retention_ms=DAY_MS), NOW)
    assert decision.deletions == ()
    decision = decide(seen, LogSettings(retention_ms=DAY_MS), NOW + DAY_MS + 1)
    assert gone(decision) == [(0, TIME), (3, TIME)]
    assert decision.rolls
    # What was decided is of that moment: appending changes nothing in it.
    log.append_records(records(1))
    assert seen.log_end_offset == 5
    log.close()


@pytest.mark.requirement("RET-2")
def test_touching_files_changes_nothing_unless_they_have_no_timestamps(tmp_path: Path) -> None:
    for name, timestamp in (("timed-0", NOW - DAY_MS), ("timeless-0", -1)):
        log = open_log(tmp_path / name)
        for _ in range(2):
            log.append_records([row._replace(timestamp=timestamp) for row in records(2)])
            log.roll()
        log.close()
    touched_ms = NOW - HOUR_MS
    for path in tmp_path.rglob("*.log"):
        os.utime(path, ns=(touched_ms * 1_000_000, touched_ms * 1_000_000))
    ages = {}
    for name in ("timed-0", "timeless-0"):
        log = open_log(tmp_path / name, read_only=True)
        ages[name] = [NOW - s.largest_timestamp_ms() for s in view_of(log.view).candidates]
        log.close()
    assert ages == {"timed-0": [DAY_MS, DAY_MS], "timeless-0": [HOUR_MS, HOUR_MS]}


# -- random logs ---------------------------------------------------------------------------------


def random_log(random: Random) -> naive.Log:
    """A log of up to eight segments; the active one is sometimes empty, offsets have gaps."""
    first = offset = random.randrange(5)
    segments = []
    for _ in range(random.randrange(1, 9)):
        segment = naive.Segment(offset, NOW - random.randrange(-50, 300))
        for _ in range(random.randrange(1, 4)):
            offset += random.choice([0, 0, 0, 3])
            timestamp = random.choice([-1, 0, NOW - random.randrange(-20, 300)])
            segment.records.append(naive.Record(offset, timestamp, random.randrange(61, 90)))
            offset += 1
        segments.append(segment)
    if random.randrange(3) == 0:
        segments.append(naive.Segment(offset, NOW))
    start = random.randrange(first, offset + 1) if random.randrange(2) else first
    return naive.Log(segments, start, offset)


def seen_by_product(log: naive.Log) -> RetentionView:
    facts = []
    for place, segment in enumerate(log.segments):
        is_last = place + 1 == len(log.segments)
        end = log.next if is_last else log.segments[place + 1].base
        latest = max((record.timestamp for record in segment.records), default=-1)
        time_ms = latest if latest > 0 else segment.mtime
        size = sum(record.size for record in segment.records)
        facts.append(SegmentFacts(segment.base, end, size, lambda time_ms=time_ms: time_ms))
    return RetentionView(tuple(facts), log.start, log.next)


@pytest.mark.sweep
@pytest.mark.requirement("RET-2", "RET-4", "RET-5", "RET-7", "RET-9", "RET-10")
def test_any_log_is_cut_as_the_naive_twin_cuts_it(count_cases: Callable[[str, int], None]) -> None:
    random = Random(3)
    cases, rolls = 10_000, 0
    reasons = {START_OFFSET: "start", SIZE: "size", TIME: "time"}
    seen = set()
    for case in range(cases):
        log = random_log(random)
        size = sum(record.size for segment in log.segments for record in segment.records)
        settings = LogSettings(
            cleanup_policy=random.choice(
                [("delete",), ("delete",), ("compact",), ("compact", "delete"), ()]
            ),
            retention_ms=random.choice([-1, 0, random.randrange(300), random.randrange(300)]),
            retention_bytes=random.choice([-1, -1, 0, random.randrange(size + 50)]),
        )
        before = seen_by_product(log)
        decision = decide(before, settings, NOW)
        expected = naive.retain(
            log,
            set(settings.cleanup_policy),
            settings.retention_ms,
            settings.retention_bytes,
            NOW,
        )
        found = [(base, reasons[reason]) for base, reason in gone(decision)]
        assert found == expected.gone, (case, settings)
        assert decision.rolls == expected.rolled, (case, settings)
        assert decision.new_log_start_offset == log.start, (case, settings)
        # A second look, right after, finds nothing more to do.
        assert decide(seen_by_product(log), settings, NOW).deletions == ()
        rolls += decision.rolls
        seen.add(tuple(sorted({reason for _, reason in found})))
    assert rolls > cases // 20
    assert len(seen) == 8, seen
    count_cases("random logs whose retention is that of the naive twin", cases)
