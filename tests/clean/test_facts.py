"""What the cleaner sees of a log: its range, bounds, deadlines and expiry; what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.facts import facts_of, measure, sections_of
from stratalog.clean.note import UNKNOWN, Failure, Note
from stratalog.clean.plan import PartitionState, SegmentState, range_of
from stratalog.clean.select import Bound, Obstacle, Reason, explain
from stratalog.clean.settings import TopicCleaning
from stratalog.clean.states import paused
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.log.view import LogView
from stratalog.record.builder import NewRecord
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition

pytestmark = pytest.mark.usefixtures("hasty_disk")
NOW_MS = 1_700_000_000_000
NAME = TopicPartition("orders", 3)
COMPACTED = TopicCleaning(is_compacted=True, deletes=False)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Three sealed segments of two records each, then an active one; one second apart."""
    made = PartitionLog.open(
        str(tmp_path / "orders-3"),
        LogSettings(cleanup_policy=("compact",)),
        LocalFileSystem(),
        FixedClock(NOW_MS),
        create=True,
    )
    for second in range(4):
        at_ms = NOW_MS + second * 1000
        made.append_records([NewRecord(b"k", b"v", at_ms), NewRecord(b"l", b"v", at_ms + 1)])
        if second < 3:
            made.roll()
    return made


@pytest.mark.requirement("CLN-2", "CMP-3")
def test_the_range_and_its_bound_are_those_of_the_policy(log: PartitionLog) -> None:
    view = log.view
    sealed_bytes = sum(segment.size_bytes for segment in view.segments.sealed)
    everything = facts_of(NAME, view, None, COMPACTED, now_ms=NOW_MS + 10_000)
    assert (everything.clean_bytes, everything.dirty_bytes) == (0, sealed_bytes)
    assert (everything.first_dirty, everything.first_uncleanable) == (0, 6)
    assert everything.bound is Bound.ACTIVE_SEGMENT
    lagging = replace(COMPACTED, min_lag_ms=9_000)
    held = facts_of(NAME, view, 2, lagging, now_ms=NOW_MS + 10_500)
    assert (held.first_dirty, held.first_uncleanable, held.bound) == (2, 4, Bound.MIN_LAG)
    assert held.clean_bytes == view.segments[0].size_bytes


@pytest.mark.requirement("CLN-2")
def test_the_deadline_counts_from_the_first_uncleaned_segment(log: PartitionLog) -> None:
    soon = replace(COMPACTED, max_lag_ms=5_000)
    facts = facts_of(NAME, log.view, 2, soon, now_ms=NOW_MS + 6_000)
    # The largest timestamp of its first batch, as in Kafka.
    assert facts.first_uncleaned_timestamp_ms == NOW_MS + 1001
    assert facts.deadline_ms == NOW_MS + 6_001
    assert facts_of(NAME, log.view, 2, COMPACTED, now_ms=NOW_MS).deadline_ms is None
    cleaned = facts_of(NAME, log.view, 6, soon, now_ms=NOW_MS + 60_000)
    assert (cleaned.deadline_ms, cleaned.first_uncleaned_timestamp_ms) == (None, None)


@pytest.mark.requirement("CMP-9", "CLN-7")
def test_the_note_says_what_expires_and_what_failed(log: PartitionLog) -> None:
    note = Note(6, NOW_MS + 50, failure=Failure("disk is on fire", 2, NOW_MS - 5, NOW_MS + 70))
    facts = facts_of(NAME, log.view, 6, COMPACTED, now_ms=NOW_MS, note=note, state=paused(1))
    assert facts.next_expiry_ms == NOW_MS + 50
    assert (facts.quarantined_until_ms, facts.quarantine_cause) == (NOW_MS + 70, "disk is on fire")
    assert explain(facts, NOW_MS).obstacle is Obstacle.PAUSED
    assert explain(replace(facts, state=facts.state.__class__()), NOW_MS).obstacle is (
        Obstacle.QUARANTINED
    )
    # A note of another checkpoint knows nothing: a round is due, unless somebody has looked.
    stale = facts_of(NAME, log.view, 4, COMPACTED, now_ms=NOW_MS, note=Note(6, NOW_MS + 50))
    assert stale.next_expiry_ms == UNKNOWN
    assert explain(replace(stale, min_dirty_ratio=1.0), NOW_MS).reason is Reason.EXPIRED_TOMBSTONES
    looked = facts_of(NAME, log.view, 4, COMPACTED, now_ms=NOW_MS, expiry_ms=None)
    assert looked.next_expiry_ms is None


@pytest.mark.requirement("CLN-10")
def test_the_sections_add_up_to_the_log(log: PartitionLog) -> None:
    sizes = [segment.size_bytes for segment in log.segments]
    lagging = replace(COMPACTED, min_lag_ms=9_000)
    for checkpoint, expected in (
        (None, (0, sizes[0] + sizes[1], sizes[2], sizes[3])),
        (2, (sizes[0], sizes[1], sizes[2], sizes[3])),
        (3, (sizes[0], sizes[1], sizes[2], sizes[3])),
        (4, (sizes[0] + sizes[1], 0, sizes[2], sizes[3])),
        (6, (sizes[0] + sizes[1] + sizes[2], 0, 0, sizes[3])),
        (7, (sizes[0] + sizes[1] + sizes[2], 0, 0, sizes[3])),
    ):
        found = sections_of(
            log.view, measure(log.view, checkpoint, lagging, NOW_MS + 10_500).cleanable
        )
        assert (found.clean, found.cleanable, found.uncleanable, found.active) == expected
        assert found.total == log.segments.size_bytes


@pytest.mark.sweep
@pytest.mark.requirement("CLN-2", "CMP-3")
def test_what_is_remembered_is_what_would_be_found(
    log: PartitionLog, count_cases: Callable[[str, int], None]
) -> None:
    """Random steps of log, clock, checkpoint and settings: I1, and the range of the plan."""
    random = Random(11)
    now_ms, checkpoint, topic, known = NOW_MS, None, COMPACTED, None
    reused = 0
    for step in range(600):
        match random.randrange(8):
            case 0:
                at_ms = now_ms - random.randrange(3000)
                log.append_records([NewRecord(b"k", b"v", at_ms)])
            case 1:
                log.roll()
            case 2:
                now_ms += random.choice((-5000, 1, 400, 2500))
            case 3:
                checkpoint = random.choice((None, random.randrange(log.log_end_offset + 2)))
            case 4:
                topic = replace(
                    topic,
                    min_lag_ms=random.choice((0, 0, 1000, 4000)),
                    max_lag_ms=random.choice((INT64_MAX, 9000)),
                )
            case _:
                now_ms += random.randrange(50)
        fresh = measure(log.view, checkpoint, topic, now_ms)
        found = measure(log.view, checkpoint, topic, now_ms, known)
        reused += found is known
        assert found.cleanable == fresh.cleanable == _planned(log.view, checkpoint, topic, now_ms)
        assert found.bound is fresh.bound, step
        assert found.first_uncleaned_timestamp_ms == fresh.first_uncleaned_timestamp_ms, step
        known = found
    assert 150 < reused < 500
    count_cases("remembered measures", 600)


def _planned(view: LogView, checkpoint: int | None, topic: TopicCleaning, now_ms: int) -> object:
    states = tuple(
        SegmentState(s.base_offset, s.size_bytes, 0, 0, s.modified_ms, s.largest_timestamp_ms())
        for s in view.segments
    )
    state = PartitionState(
        "orders-3",
        "",
        states,
        view.log_start_offset,
        view.log_end_offset,
        view.last_stable_offset,
        checkpoint,
    )
    return range_of(state, min_compaction_lag_ms=topic.min_lag_ms, now_ms=now_ms)


def test_nothing_is_read_that_is_not_asked_for(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 logs are asked for this in every loop of the cleaner."""
    from stratalog.segment.segment import Segment

    asked: list[int] = []
    monkeypatch.setattr(Segment, "max_timestamp", lambda self: asked.append(1) or (1, 1))
    monkeypatch.setattr(Segment, "headers", lambda self: asked.append(2) or iter(()))
    facts_of(NAME, log.view, None, COMPACTED, now_ms=NOW_MS)
    assert not asked
    facts_of(NAME, log.view, 4, replace(COMPACTED, min_lag_ms=1), now_ms=NOW_MS)
    assert asked == [1]
    facts_of(NAME, log.view, 4, replace(COMPACTED, max_lag_ms=1), now_ms=NOW_MS)
    assert asked == [1, 2]
