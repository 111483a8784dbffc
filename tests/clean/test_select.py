"""What is cleaned next, and why not: every rule at its edge, the whole against a naive twin."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from stratalog.clean.policy import SegmentFacts, cleanable_range
from stratalog.clean.select import (
    Bound,
    LogFacts,
    Obstacle,
    Reason,
    bound_of,
    choose,
    explain,
    rank,
)
from stratalog.clean.states import IN_PROGRESS, NONE, State, aborted, paused
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition
from tests.naive import select as naive

NOW = 1_700_000_000_000
HOUR = 3_600_000


def log(topic: str = "a", partition: int = 0, **changes: Any) -> LogFacts:
    values = {"clean_bytes": 600, "dirty_bytes": 400, "first_dirty": 60, "first_uncleanable": 100}
    return LogFacts(TopicPartition(topic, partition), **{**values, **changes})


def dirty(topic: str = "a", partition: int = 0, **changes: Any) -> LogFacts:
    return log(topic, partition, **{"clean_bytes": 400, "dirty_bytes": 600, **changes})


def names(*facts: LogFacts, now_ms: int = NOW) -> list[str]:
    return [str(ranked.topic_partition) for ranked in rank(facts, now_ms)]


def reason_of(facts: LogFacts, now_ms: int = NOW) -> Reason | None:
    choice = choose([facts], now_ms)
    return None if choice is None else choice.reason


@pytest.mark.requirement("EX-10", "CLN-2")
@pytest.mark.parametrize(
    ("clean_bytes", "dirty_bytes", "ratio", "is_chosen"),
    [
        (500, 500, 0.5, False),
        (500, 501, 0.5, True),
        (499, 500, 0.5, True),
        (10**15, 10**15, 0.5, False),
        (10**15, 10**15 + 1, 0.5, True),
        (7, 3, 0.3, False),  # 3 / 10 is the double that 0.3 is written for
        (9, 1, 0.1, False),
        (0, 1, 0.999, True),
        (0, 1, 1.0, False),
        (10**12, 1, 0.0, True),
        (10**12, 0, 0.0, False),
        (0, 0, 0.0, False),
    ],
)
def test_the_ratio_has_to_be_above_its_bound(
    clean_bytes: int, dirty_bytes: int, ratio: float, is_chosen: bool
) -> None:
    facts = log(clean_bytes=clean_bytes, dirty_bytes=dirty_bytes, min_dirty_ratio=ratio)
    assert reason_of(facts) is (Reason.RATIO if is_chosen else None)


@pytest.mark.requirement("CLN-2")
def test_the_dirtiest_comes_first() -> None:
    facts = [dirty("b"), dirty("a", clean_bytes=300), dirty("c", clean_bytes=0), log("d")]
    assert names(*facts) == ["c-0", "a-0", "b-0"]
    choice = choose(facts, NOW)
    assert choice is not None
    assert choice.facts is facts[2]


@pytest.mark.requirement("CLN-2")
@pytest.mark.parametrize(
    ("age_ms", "max_lag_ms", "is_forced"),
    [
        (HOUR, HOUR, False),
        (HOUR + 1, HOUR, True),
        (HOUR, INT64_MAX, False),
        (HOUR, INT64_MAX - 1, False),
        (-HOUR, 1, False),  # a timestamp in the future
        (NOW, 1, False),  # timestamp 0 and -1 stand for none
        (NOW + 1, 1, False),
        (NOW - 1, 1, True),
    ],
)
def test_a_log_is_forced_after_the_maximum_lag(
    age_ms: int, max_lag_ms: int, is_forced: bool
) -> None:
    facts = log(max_lag_ms=max_lag_ms, first_uncleaned_timestamp_ms=NOW - age_ms)
    assert reason_of(facts) is (Reason.FORCED if is_forced else None)


@pytest.mark.requirement("CLN-2", "CMP-3")
def test_the_minimum_lag_holds_for_a_log_that_would_be_forced() -> None:
    late: dict[str, Any] = {"max_lag_ms": 1, "first_uncleaned_timestamp_ms": 1}
    assert reason_of(log(**late)) is Reason.FORCED
    young = log(**late, dirty_bytes=0, first_dirty=60, first_uncleanable=60, bound=Bound.MIN_LAG)
    assert reason_of(young) is None
    assert young.deadline_ms is None
    answer = explain(young, NOW)
    assert answer.obstacle is Obstacle.NOTHING_CLEANABLE
    assert "is younger than min.compaction.lag.ms" in answer.sentence


@pytest.mark.requirement("CLN-2")
def test_forced_logs_come_first_by_deadline() -> None:
    def forced(topic: str, deadline_ms: int, max_lag_ms: int, **changes: Any) -> LogFacts:
        earliest_ms = deadline_ms - max_lag_ms
        return log(
            topic, max_lag_ms=max_lag_ms, first_uncleaned_timestamp_ms=earliest_ms, **changes
        )

    facts = [
        dirty("a", clean_bytes=0),
        log("b", next_expiry_ms=0),
        forced("c", NOW - 1, 5),
        forced("d", NOW - 9, HOUR),
        forced("e", NOW - 5, 1, clean_bytes=0),
        forced("f", NOW, 1),  # not yet
    ]
    assert names(*facts) == ["d-0", "e-0", "c-0", "a-0", "b-0"]


@pytest.mark.requirement("CMP-9")
@pytest.mark.parametrize("dirty_bytes", [0, 1])
def test_an_expired_tombstone_is_a_reason_without_new_writes(dirty_bytes: int) -> None:
    def expiring(expiry_ms: int | None) -> LogFacts:
        return log(dirty_bytes=dirty_bytes, first_dirty=100, next_expiry_ms=expiry_ms)

    assert reason_of(expiring(None)) is None
    assert reason_of(expiring(NOW + 1)) is None
    assert reason_of(expiring(NOW)) is Reason.EXPIRED_TOMBSTONES
    assert names(log("a", next_expiry_ms=5), log("b", next_expiry_ms=4)) == ["b-0", "a-0"]
    assert reason_of(log(clean_bytes=0, dirty_bytes=0, next_expiry_ms=1)) is None


@pytest.mark.requirement("CLN-2", "CLN-4", "CLN-5", "CLN-7")
@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"is_compacted": False}, Obstacle.NOT_COMPACTED),
        ({"state": IN_PROGRESS}, Obstacle.IN_PROGRESS),
        ({"state": aborted(1)}, Obstacle.STOPPING),
        ({"state": paused(2)}, Obstacle.PAUSED),
        ({"quarantined_until_ms": NOW + 1}, Obstacle.QUARANTINED),
        ({"quarantined_until_ms": INT64_MAX}, Obstacle.QUARANTINED),
    ],
)
def test_what_keeps_a_log_from_being_chosen(changes: dict[str, Any], obstacle: Obstacle) -> None:
    reasons: list[dict[str, Any]] = [
        {"max_lag_ms": 1, "first_uncleaned_timestamp_ms": 1},
        {"clean_bytes": 0},
        {"backlog_bytes": 400, "threshold_bytes": 399},
        {"dirty_bytes": 0, "next_expiry_ms": 1},
    ]
    for reason, values in zip(Reason, reasons, strict=True):
        assert reason_of(log(**values)) is reason
        assert reason_of(log(**values, quarantined_until_ms=NOW)) is reason
        if "backlog_bytes" in values and obstacle is Obstacle.NOT_COMPACTED:
            assert reason_of(log(**values, **changes)) is reason, "whatever the policy"
            continue
        assert reason_of(log(**values, **changes)) is None
        assert explain(log(**values, **changes), NOW).obstacle is obstacle


@pytest.mark.requirement("CLN-2")
def test_equals_have_an_order_of_their_own() -> None:
    facts = [
        dirty("b", 0),
        dirty("a", 10),
        dirty("a", 9),
        dirty("z", clean_bytes=800, dirty_bytes=1200),
    ]
    assert names(*facts) == names(*reversed(facts)) == ["z-0", "a-9", "a-10", "b-0"]


@pytest.mark.requirement("CMP-3")
@pytest.mark.parametrize(
    ("stable", "min_lag_ms", "bound"),
    [
        (250, 0, Bound.ACTIVE_SEGMENT),
        (200, 0, Bound.ACTIVE_SEGMENT),
        (199, 0, Bound.OPEN_TRANSACTION),
        (250, 50, Bound.MIN_LAG),
        (150, 50, Bound.MIN_LAG),
        (99, 50, Bound.OPEN_TRANSACTION),
    ],
)
def test_which_bound_of_the_range_is_told(stable: int, min_lag_ms: int, bound: Bound) -> None:
    cleanable = cleanable_range(
        [SegmentFacts(0, 9, NOW - 100), SegmentFacts(100, 9, NOW - 20), SegmentFacts(200, 9, NOW)],
        log_start_offset=0,
        log_end_offset=250,
        last_stable_offset=stable,
        checkpoint=None,
        min_compaction_lag_ms=min_lag_ms,
        now_ms=NOW,
    )
    assert bound_of(cleanable, active_base_offset=200, last_stable_offset=stable) is bound


def _random_logs(random: Random) -> tuple[list[LogFacts], list[naive.Log]]:
    """The same logs for both; few different values, so that equals and edges are common."""
    facts, twins = [], []
    ids = random.sample(range(40), random.randrange(25))
    for topic, partition in sorted((f"t{number % 5}", number // 5) for number in ids):
        clean_bytes, dirty_bytes = random.choice([0, 1, 5, 7]), random.choice([0, 0, 1, 3, 5, 7])
        threshold = random.choice(["0.5", "0.5", "0.3", "0.125", "0", "1", "0.7"])
        max_lag = random.choice([None, 2, 3, 5])
        oldest = random.choice([None, -1, 0, *range(1, 12)])
        expiry = random.choice([None, None, *range(6, 14)])
        until = random.choice([None, None, None, 9, 10, 11])
        compacts = random.random() < 0.9
        backlog, waits = random.choice([None, None, dirty_bytes]), random.random() < 0.1
        above = random.choice([0, 2, 5])
        state: State = random.choice([NONE, NONE, NONE, NONE, IN_PROGRESS, aborted(1), paused(1)])
        facts.append(
            LogFacts(
                TopicPartition(topic, partition),
                clean_bytes,
                dirty_bytes,
                0,
                9,
                is_compacted=compacts,
                min_dirty_ratio=float(threshold),
                max_lag_ms=INT64_MAX if max_lag is None else max_lag,
                first_uncleaned_timestamp_ms=oldest,
                next_expiry_ms=expiry,
                state=state,
                quarantined_until_ms=until,
                backlog_bytes=backlog,
                threshold_bytes=above,
                retention_waits=waits,
            )
        )
        twins.append(
            naive.Log(
                topic,
                partition,
                clean_bytes,
                dirty_bytes,
                threshold,
                max_lag,
                oldest,
                expiry,
                compacts,
                state == NONE,
                until,
                None if backlog is None else above,
                waits,
            )
        )
    return facts, twins


@pytest.mark.requirement("CLN-2", "CMP-9", "EX-10")
def test_any_queue_is_that_of_the_naive_twin(count_cases: Callable[[str, int], None]) -> None:
    random, seen = Random(4), dict.fromkeys(Reason, 0)
    n = 2500
    for _ in range(n):
        facts, twins = _random_logs(random)
        random.shuffle(facts)
        queue = rank(facts, 10)
        found = [(*_name(ranked.topic_partition), ranked.reason.value) for ranked in queue]
        assert found == naive.queue(twins, 10)
        choice = choose(iter(facts), 10)
        assert choice == (queue[0] if queue else None)
        for one in facts:
            answer = explain(one, 10, queue)
            places = [place for place, ranked in enumerate(queue, 1) if ranked.facts is one]
            assert answer.place == (places[0] if places else None)
            assert (answer.reason is None) == (not places) == (answer.obstacle is not None)
        for ranked in queue:
            seen[ranked.reason] += 1
    assert min(seen.values()) > n // 3
    count_cases("queues of the cleaner compared with the naive twin", n)


def _name(topic_partition: TopicPartition) -> tuple[str, int]:
    return topic_partition.topic, topic_partition.partition


@pytest.mark.requirement("CLN-2")
def test_ten_thousand_logs_are_one_queue() -> None:
    random = Random(5)
    facts = [
        dirty(
            f"topic-{number % 97}",
            number,
            clean_bytes=random.randrange(10**9),
            dirty_bytes=random.randrange(10**9),
            next_expiry_ms=NOW + random.randrange(-5, 5),
            max_lag_ms=random.choice([INT64_MAX, HOUR]),
            first_uncleaned_timestamp_ms=NOW - random.randrange(2 * HOUR),
        )
        for number in range(10_000)
    ]
    queue = rank(facts, NOW)
    assert choose(facts, NOW) == queue[0]
    assert len({ranked.topic_partition for ranked in queue}) == len(queue)
    assert {ranked.topic_partition for ranked in queue} == {
        one.topic_partition for one in facts if reason_of(one) is not None
    }
    random.shuffle(facts)
    assert rank(facts, NOW) == queue
