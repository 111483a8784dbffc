"""The faults of the other implementation that has such ledgers (Apache Pulsar), each as a test.

An orphan ledger after a crash between switch and deletion: `test_ledgers`, and every cut in
`test_crash_ledger`. A failure that nobody is told of: `test_ledger_round`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.clean.job import Order
from tests.clean.services import put
from tests.ledger.running import TOPIC, Life, latest, living
from tests.sim.disk import SimDisk

pytestmark = pytest.mark.requirement("LDG-1", "LDG-3", "LDG-5")


def test_a_late_older_event_does_not_bring_back_a_deleted_key() -> None:
    """In the order of time a tombstone is remembered as long as it is there."""
    topic = replace(TOPIC, order=Order.TIMESTAMP)
    with living(SimDisk(), topic=topic) as life:
        put(life.log, ("k", "1"), timestamp=100)
        put(life.log, ("k", None), timestamp=200)
        life.ask()
        put(life.log, ("k", "late"), timestamp=150)
        life.ask()
        assert [(r.offset, r.value) for r in life.ledger()] == [(1, None)]
        put(life.log, ("k", "new"), timestamp=201)
        life.ask()
        assert [(r.offset, r.value) for r in life.ledger()] == [(3, b"new")]


def test_a_tombstone_stays_as_long_as_something_later_has_only_it_to_lose_to() -> None:
    """Also behind the horizon, where an open transaction keeps the run from looking."""
    from tests.log.helpers import sent

    topic = replace(TOPIC, order=Order.TIMESTAMP, delete_retention_ms=10)
    with living(SimDisk(), topic=topic) as life:
        put(life.log, ("k", None), timestamp=200)
        life.ask()
        life.log.append(sent(7, 0, transactional=True, timestamp=1))
        put(life.log, ("k", "late"), timestamp=150)
        life.clock.sleep_ms(50)
        life.ask()
        assert [(r.offset, r.value) for r in life.ledger()] == [(0, None)]


def read_through(life: Life, at: int, count: int) -> tuple[list[tuple[int, bytes | None]], int]:
    """`count` records from `at` on, as a reader takes them; and where it goes on."""
    found: list[tuple[int, bytes | None]] = []
    with life.ledgers.compacted(life.key) as view:
        for record in view.read_records(at):
            if len(found) == count:
                return found, at
            found.append((record.offset, record.key))
            at = record.offset + 1
        return found, view.log_end_offset


@pytest.mark.parametrize("step", [1, 2, 3, 7, 20])
def test_readers_skip_nothing_at_a_switch(step: int) -> None:
    """Pulsar's readers have skipped compacted data when a ledger was replaced (#12429, #12464)."""
    with living(SimDisk(), topic=replace(TOPIC, ledgers_retained=1)) as life:
        known: dict[bytes, int] = {}
        at = number = 0
        for _ in range(30):
            for _ in range(4):
                put(life.log, (f"k{number % 9}", f"v{number}"))
                number += 1
            life.ask()
            found, at = read_through(life, at, step)
            for offset, key in found:
                assert key is not None
                assert offset > known.get(key, -1), "a record came twice, or in another order"
                known[key] = offset
        while at < life.log.log_end_offset:
            found, at = read_through(life, at, step)
            known.update((key or b"", offset) for offset, key in found)
        assert known == {key: offset for key, (offset, _) in latest(life.compacted()).items()}


def test_a_reader_that_goes_on_below_the_horizon_sees_every_latest_value() -> None:
    """Its position was in the raw log when it stopped, and lies in a ledger when it goes on."""
    with living(SimDisk()) as life:
        for number in range(30):
            put(life.log, (f"k{number % 3}", f"v{number}"))
        _, at = read_through(life, 0, 10)
        assert at == 10
        life.ask()
        found, _ = read_through(life, at, 100)
        assert [offset for offset, _ in found] == [27, 28, 29]


def test_a_position_in_a_gap_of_the_ledger_goes_to_the_next_record() -> None:
    """Pulsar jumps to behind the horizon from there (#13629)."""
    with living(SimDisk()) as life:
        for number in range(20):
            put(life.log, ("same" if number < 15 else f"k{number}", "v"))
        life.ask()
        put(life.log, ("after", "v"))
        assert [offset for offset, _ in read_through(life, 3, 100)[0]] == [14, *range(15, 21)]
