from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.log.roll import (
    ActiveFacts,
    Incoming,
    RollReason,
    jitter_ms,
    roll_reason,
)
from stratalog.log.settings import LogSettings

SETTINGS = LogSettings(segment_bytes=1000, segment_index_bytes=96, segment_ms=500)
ACTIVE = ActiveFacts(100, 400, 3, 3, 10_000, 77)
INCOMING = Incoming(200, 150, 10_000)
INT_MAX = 2**31 - 1


@pytest.mark.requirement("LOG-5")
@pytest.mark.parametrize(
    ("active", "incoming", "reason"),
    [
        ({}, {}, None),
        ({"size_bytes": 800}, {}, None),
        ({"size_bytes": 801}, {}, RollReason.SIZE),
        ({"size_bytes": 0}, {"size_bytes": 1000}, None),
        ({"offset_entries": 11}, {}, None),
        ({"offset_entries": 12}, {}, RollReason.INDEX_FULL),
        ({"time_entries": 6}, {}, None),
        ({"time_entries": 7}, {}, RollReason.INDEX_FULL),
        ({}, {"last_offset": 100 + INT_MAX}, None),
        ({}, {"last_offset": 101 + INT_MAX}, RollReason.OFFSET_RANGE),
        ({}, {"max_timestamp": 10_500}, None),
        ({}, {"max_timestamp": 10_501}, RollReason.AGE),
        ({"size_bytes": 0}, {"max_timestamp": 10_501}, None),
        ({"first_timestamp": -1, "created_ms": 1_499_500}, {}, None),
        ({"first_timestamp": -1, "created_ms": 1_499_499}, {}, RollReason.AGE),
    ],
)
def test_reasons(
    active: dict[str, int], incoming: dict[str, int], reason: RollReason | None
) -> None:
    now_ms = 1_500_000
    found = roll_reason(replace(ACTIVE, **active), replace(INCOMING, **incoming), now_ms, SETTINGS)
    assert found is reason


@pytest.mark.requirement("LOG-5")
def test_a_compacted_topic_rolls_by_the_smaller_of_age_and_lag() -> None:
    late = replace(INCOMING, max_timestamp=10_400)
    lag = replace(SETTINGS, max_compaction_lag_ms=300)
    assert roll_reason(ACTIVE, late, 0, lag) is None
    compacted = replace(lag, cleanup_policy=("compact", "delete"))
    assert roll_reason(ACTIVE, late, 0, compacted) is RollReason.AGE
    assert roll_reason(ACTIVE, replace(late, max_timestamp=10_300), 0, compacted) is None
    assert replace(compacted, max_compaction_lag_ms=0).roll_after_ms == 500


@pytest.mark.requirement("LOG-5")
def test_jitter_makes_a_segment_roll_earlier() -> None:
    incoming = replace(INCOMING, max_timestamp=10_450)
    assert roll_reason(ACTIVE, incoming, 0, SETTINGS, jitter_ms=49) is None
    assert roll_reason(ACTIVE, incoming, 0, SETTINGS, jitter_ms=51) is RollReason.AGE


def test_jitter_is_spread_below_its_bound() -> None:
    settings = LogSettings(segment_jitter_ms=1000)
    found = [jitter_ms(f"topic-{i}", 0, settings) for i in range(500)]
    assert min(found) >= 0
    assert max(found) < 1000
    assert len(set(found)) > 300
    assert jitter_ms("topic-1", 0, LogSettings()) == 0
    assert jitter_ms("topic-1", 0, LogSettings(segment_jitter_ms=1000, segment_ms=7)) < 7
