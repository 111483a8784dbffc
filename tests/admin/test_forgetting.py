"""`forget` by an order of versions: what is ahead of the clock, what comes meanwhile (CLN-11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.forgetting import forget
from stratalog.admin.service import open_service
from stratalog.base.clock import FixedClock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.config.book import SettingsBook
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, contents, put

DISK = LocalFileSystem()
TIMES = TopicPartition("times", 0)
BY_TIME = {
    "cleanup.policy": "compact",
    "compaction.strategy": "timestamp",
    "delete.retention.ms": "1000",
}


def book_of(**more: str) -> SettingsBook:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return SettingsBook(topics={"times": {**BY_TIME, **named}})


@pytest.mark.requirement("CLN-11", "CMP-17")
def test_a_record_ahead_of_the_logs_own_clock_cannot_be_forgotten_yet(tmp_path: Path) -> None:
    """The tombstone would get the log's time, whatever it says, and lose: nothing is written."""
    clock = FixedClock(NOW)
    append_time = book_of(message_timestamp_type="LogAppendTime")
    with open_service([str(tmp_path)], book_of(), DISK, clock) as service:
        put(service.store.create(TIMES), ("alice", "secret"), ("bob", "1"), timestamp=NOW + 500)
    with open_service([str(tmp_path)], append_time, DISK, clock) as service:
        log = service.store.get(TIMES)
        with pytest.raises(UsageError, match="time in the future"):
            forget(service, TIMES, b"alice", DISK, clock)
        assert contents(log) == [(0, "alice", "secret"), (1, "bob", "1")]
        assert log.log_end_offset == 2
        assert not forget(service, TIMES, b"nobody", DISK, clock).was_there
        clock.sleep_ms(500)
        receipt = forget(service, TIMES, b"alice", DISK, clock)
        assert receipt.tombstone_offset == 2
        assert contents(log) == [(1, "bob", "1"), (2, "alice", None)], "of the same time, but later"


@pytest.mark.requirement("CLN-11", "CMP-17")
def test_with_the_producers_times_the_tombstone_takes_the_records(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with open_service([str(tmp_path)], book_of(), DISK, clock) as service:
        log = service.store.create(TIMES)
        put(log, ("alice", "secret"), ("bob", "1"), timestamp=NOW + 500)
        forget(service, TIMES, b"alice", DISK, clock)
        assert contents(log) == [(1, "bob", "1"), (2, "alice", None)]


@pytest.mark.requirement("CLN-11", "CMP-18")
@pytest.mark.parametrize("version", ["older", "newer"])
def test_what_comes_meanwhile_may_keep_the_tombstone_and_the_receipt_says_so(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer writes between the roll and the plan. An older value is hidden by nothing but the
    tombstone, which stays though nobody wanted it; a newer one stands by itself."""
    from stratalog.clean import round as rounds

    clock = FixedClock(NOW)
    state_of = rounds.state_of
    with open_service([str(tmp_path)], book_of(), DISK, clock) as service:
        log = service.store.create(TIMES)
        put(log, ("alice", "secret"), ("bob", "1"))
        meanwhile = NOW - 5 if version == "older" else NOW + 5

        def late(name: str, path: str, view: Any, *more: Any) -> Any:
            if log.log_end_offset == 3:
                assert view.segments.active.base_offset == 3, "it was rolled before"
                log.append_records([NewRecord(b"alice", b"meanwhile", meanwhile)])
            return state_of(name, path, log.view, *more)

        monkeypatch.setattr(rounds, "state_of", late)
        receipt = forget(service, TIMES, b"alice", DISK, clock, keeps_tombstone=False)
        if version == "newer":
            assert (receipt.tombstone_offset, receipt.keys_gone_ms) == (-1, NOW)
            assert contents(log) == [(1, "bob", "1"), (3, "alice", "meanwhile")]
            return
        assert (receipt.tombstone_offset, receipt.keys_gone_ms) == (2, NOW + 1000)
        assert contents(log) == [(1, "bob", "1"), (2, "alice", None), (3, "alice", "meanwhile")]
        again = forget(service, TIMES, b"alice", DISK, clock, keeps_tombstone=False)
        assert (again.tombstone_offset, again.keys_gone_ms) == (-1, NOW)
        assert contents(log) == [(1, "bob", "1")]
