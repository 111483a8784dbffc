"""The cleaner of a store, a loop at a time, by a clock that stands still."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.history import read_history
from tests.clean.services import COMPACTED, NOW, ORDERS, contents, opened, put

HOUR = 3_600_000


@pytest.mark.requirement("CLN-2", "CLN-3", "CMP-2")
def test_a_dirty_log_is_cleaned_and_then_not_again(tmp_path: Path) -> None:
    with opened([str(tmp_path)]) as parts:
        log = parts.log()
        for round_number in range(3):
            put(log, ("a", f"{round_number}"), ("b", f"{round_number}"))
            log.roll()
        put(log, ("c", "active"))
        reader = log.view
        assert parts.clean_all() == 1
        assert contents(log) == [(4, "a", "2"), (5, "b", "2"), (6, "c", "active")]
        assert parts.store.cleaner_point(ORDERS) == 6
        assert [r.offset for r in reader.read_records(0)] == list(range(7)), "a view stays"
        [entry] = read_history(LocalFileSystem(), log.path)
        assert (entry.trigger, entry.result, entry.drops.superseded) == ("ratio", "cleaned", 4)
        put(log, ("a", "new"))
        log.roll()
        assert contents(log)[-1] == (7, "a", "new")
    with opened([str(tmp_path)]) as parts:
        assert contents(parts.log())[0] == (4, "a", "2")
        assert parts.store.cleaner_point(ORDERS) == 6


@pytest.mark.requirement("CMP-9", "CMP-8")
def test_a_tombstone_goes_without_new_writes(tmp_path: Path) -> None:
    topic = replace(COMPACTED, delete_retention_ms=HOUR)
    with opened([str(tmp_path)], topics={"orders": topic}) as parts:
        log = parts.log()
        put(log, ("a", "1"), ("b", "1"))
        put(log, ("a", None))
        log.roll()
        assert parts.clean_all() == 1
        assert contents(log) == [(1, "b", "1"), (2, "a", None)]
        assert parts.manager.note_of(ORDERS).next_expiry_ms == NOW + HOUR
        parts.clock.sleep_ms(HOUR - 1)
        assert parts.clean_all() == 0
        parts.clock.sleep_ms(1)
        assert parts.clean_all() == 1, "once, and not for ever"
        assert contents(log) == [(1, "b", "1")]
        assert parts.manager.note_of(ORDERS).next_expiry_ms is None
