"""Why a log is, or is not, cleaned: every answer, word by word."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratalog.clean.select import Bound, explain, rank, span
from stratalog.clean.states import IN_PROGRESS, aborted, paused
from stratalog.record.layout import INT64_MAX
from tests.clean.test_select import HOUR, NOW, dirty, log


@pytest.mark.requirement("CLN-10")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"is_compacted": False},
            "is not cleaned: its cleanup.policy does not contain compact.",
        ),
        ({"state": IN_PROGRESS}, "is not cleaned: a cleaner thread is working on it now."),
        (
            {"state": aborted(1)},
            "is not cleaned: its round is being stopped, after which it is paused.",
        ),
        ({"state": paused(1)}, "is not cleaned: it is paused and has to be resumed."),
        ({"state": paused(3)}, "is not cleaned: it is paused and has to be resumed 3 times."),
        (
            {"quarantined_until_ms": NOW + 90_000, "quarantine_cause": "bad CRC at offset 7"},
            (
                "is not cleaned: cleaning it has failed (bad CRC at offset 7); "
                "it is tried again in 1 min 30 s."
            ),
        ),
        (
            {"quarantined_until_ms": INT64_MAX},
            "is not cleaned: cleaning it has failed; it is tried again only if asked for.",
        ),
        (
            {"dirty_bytes": 0, "first_dirty": 100},
            (
                "is not cleaned: nothing is cleanable from offset 100 on: "
                "it belongs to the active segment."
            ),
        ),
        (
            {"dirty_bytes": 0, "first_dirty": 120, "bound": Bound.OPEN_TRANSACTION},
            (
                "is not cleaned: nothing is cleanable from offset 120 on: "
                "it is held back by an open transaction."
            ),
        ),
        (
            {"dirty_bytes": 0, "first_dirty": 100, "next_expiry_ms": NOW + 2 * HOUR + 60_000},
            (
                "is not cleaned: nothing is cleanable from offset 100 on: "
                "it belongs to the active segment; its next tombstone expires in 2 h 1 min."
            ),
        ),
        (
            {"clean_bytes": 0, "dirty_bytes": 0, "first_dirty": 100, "next_expiry_ms": NOW - 1},
            (
                "is not cleaned: nothing is cleanable from offset 100 on: "
                "it belongs to the active segment."
            ),
        ),
        (
            {"clean_bytes": 500, "dirty_bytes": 500},
            (
                "is not cleaned: its dirty ratio of 0.500 (500 of 1000 bytes) is not above "
                "min.cleanable.dirty.ratio=0.5."
            ),
        ),
        (
            {"dirty_bytes": 0},
            "is not cleaned: offsets 60 to 99 hold no bytes.",
        ),
        (
            {},
            (
                "is not cleaned: its dirty ratio of 0.400 (400 of 1000 bytes) is not above "
                "min.cleanable.dirty.ratio=0.5."
            ),
        ),
        (
            {"max_lag_ms": HOUR, "first_uncleaned_timestamp_ms": NOW - HOUR + 999},
            (
                "is not cleaned: its dirty ratio of 0.400 (400 of 1000 bytes) is not above "
                "min.cleanable.dirty.ratio=0.5; max.compaction.lag.ms=3600000 forces it in 1 s."
            ),
        ),
        (
            {"max_lag_ms": HOUR, "first_uncleaned_timestamp_ms": NOW - 26 * HOUR},
            (
                "is to be cleaned: its first uncleaned segment began 1 d 2 h ago, "
                "which is over max.compaction.lag.ms=3600000."
            ),
        ),
        (
            {"clean_bytes": 100},
            (
                "is to be cleaned: its dirty ratio of 0.800 (400 of 500 bytes) is above "
                "min.cleanable.dirty.ratio=0.5."
            ),
        ),
        (
            {"clean_bytes": 24999, "dirty_bytes": 25001},
            (
                "is to be cleaned: its dirty ratio of 0.50002 (25001 of 50000 bytes) is above "
                "min.cleanable.dirty.ratio=0.5."
            ),
        ),
        (
            {"clean_bytes": 4996, "dirty_bytes": 5004, "min_dirty_ratio": 0.5003},
            (
                "is to be cleaned: its dirty ratio of 0.5004 (5004 of 10000 bytes) is above "
                "min.cleanable.dirty.ratio=0.5003."
            ),
        ),
        (
            {"next_expiry_ms": NOW - 250},
            (
                "is to be cleaned: a tombstone or transaction marker below offset 100 expired "
                "250 ms ago."
            ),
        ),
    ],
)
def test_the_answer_is_one_sentence_with_the_values_that_decide(
    changes: dict[str, Any], sentence: str
) -> None:
    assert explain(log(**changes), NOW).sentence == f"a-0 {sentence}"


@pytest.mark.requirement("CLN-10")
def test_the_answer_tells_the_place_in_the_queue() -> None:
    facts = [dirty("a"), dirty("b", clean_bytes=0), log("c")]
    queue = rank(facts, NOW)
    answers = [explain(one, NOW, queue) for one in facts]
    assert [answer.place for answer in answers] == [2, 1, None]
    assert "a-0 is to be cleaned (number 2 of 2 in the queue): " in answers[0].sentence


@pytest.mark.requirement("CLN-10")
def test_the_answer_as_json_has_every_value() -> None:
    facts = log(
        "a.b",
        3,
        max_lag_ms=HOUR,
        first_uncleaned_timestamp_ms=NOW,
        next_expiry_ms=NOW + 5,
        quarantined_until_ms=NOW - 1,
        quarantine_cause="x",
    )
    answer = json.loads(json.dumps(explain(facts, NOW).as_json()))
    assert answer == {
        "topic": "a.b",
        "partition": 3,
        "is_eligible": False,
        "reason": None,
        "obstacle": "ratio_too_low",
        "sentence": explain(facts, NOW).sentence,
        "place": None,
        "now_ms": NOW,
        "clean_bytes": 600,
        "dirty_bytes": 400,
        "dirty_ratio": 0.4,
        "min_dirty_ratio": 0.5,
        "first_dirty": 60,
        "first_uncleanable": 100,
        "bound": "active_segment",
        "mode": "inplace",
        "backlog_bytes": None,
        "threshold_bytes": 0,
        "retention_waits": False,
        "is_compacted": True,
        "max_lag_ms": HOUR,
        "first_uncleaned_timestamp_ms": NOW,
        "deadline_ms": NOW + HOUR,
        "next_expiry_ms": NOW + 5,
        "state": "none",
        "quarantined_until_ms": NOW - 1,
        "quarantine_cause": "x",
    }
    forced = explain(facts, NOW + HOUR + 1).as_json()
    assert (forced["reason"], forced["obstacle"], forced["is_eligible"]) == ("forced", None, True)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_600_000, "1 h"),
        (3_605_000, "1 h"),
        (90_061_000, "1 d 1 h"),
        (86_400_000 * 7, "7 d"),
    ],
)
def test_a_span_of_time_for_people(ms: int, text: str) -> None:
    assert span(ms) == text
