"""A run is cut anywhere: the ledger before is in use or the new one, whole, and no orphan stays.

The first run, one that builds upon it, and one whose switch lets an older generation go: from begin
to the last unlinking, every operation, on the simulated disk; and cuts of the recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import pytest

from stratalog.base.clock import FixedClock
from stratalog.clean.history import read_history
from stratalog.ledger.ledgers import Ledgers
from stratalog.ledger.manifest import generation_path, ledgers_path, parse_generation, referenced
from stratalog.ledger.status import INTERRUPTED, RunState
from stratalog.segment.names import SEGMENT_KINDS, TopicPartition, parse
from stratalog.segment.segment import segment_path
from tests.clean.services import NOW, ORDERS, put
from tests.ledger.running import LOG, TOPIC, Life, latest, living, open_life
from tests.sim.disk import SimDisk
from tests.sim.explore import Depth2, Journal, explore
from tests.sim.sweeps import budget

pytestmark = pytest.mark.requirement("LDG-1", "LDG-4", "LDG-6")
SMALL = replace(TOPIC, segment_bytes=600, ledgers_retained=1)
LOGS = replace(LOG, segment_bytes=700)


def fill(life: Life, first: int, count: int) -> None:
    for number in range(first, first + count):
        put(life.log, (f"k{number % 7}", f"v{number}"), (f"only{number}", "x"))
    put(life.log, (f"k{first % 7}", None))


def laid(runs: int) -> SimDisk:
    """A store with `runs` runs behind it and something new, all of it durable."""
    disk = SimDisk()
    with living(disk, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW)) as life:
        for run in range(runs):
            fill(life, 10 * run, 8)
            life.ask()
        fill(life, 100, 8)
    return disk.sync_all()


def one_run(disk: SimDisk, journal: Journal) -> None:
    with living(disk, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW + 5)) as life:
        fill(life, 200, 2)  # and nobody has flushed that
        before = life.current
        number = 0 if before is None else before.number
        journal.promise(number)
        journal.begin(number + 1)
        life.ask()
        journal.promise(number + 1)


def judge(image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
    if promise is None:
        return
    with living(image, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW + 9)) as life:
        current = life.current
        number = 0 if current is None else current.number
        assert number in (promise, in_flight), (number, promise, in_flight)
        check_files(image, life.ledgers, ORDERS, life.log.path)
        raw = list(life.log.read_records(life.log.log_start_offset))
        assert latest(life.compacted()) == latest(raw)
        status = life.ledgers.status(life.key)
        if number == in_flight:
            assert status.state in (RunState.SUCCEEDED, RunState.NEVER)
        elif in_flight is not None and status.number == in_flight:
            assert (status.state, status.cause) == (RunState.FAILED, INTERRUPTED)
            check_told_once(image, life.log.path)
        # And it goes on from there.
        life.ask()
        assert latest(life.ledger()) == latest(raw)


def check_told_once(disk: SimDisk, path: str) -> None:
    told = [entry for entry in read_history(disk, path) if entry.cause == INTERRUPTED]
    assert [(entry.result, entry.mode, entry.trigger) for entry in told] == [
        ("failed", "ledger", "asked")
    ]


def check_files(disk: SimDisk, ledgers: Ledgers, key: TopicPartition, path: str) -> None:
    """All that the manifest names is there, and nothing else."""
    manifest = ledgers.manifest(key)
    needed = referenced(manifest.generations)
    if not disk.exists(ledgers_path(path)):
        assert not needed
        return
    names = map(parse_generation, disk.list_directory(ledgers_path(path)))
    found = {number for number in names if number is not None}
    assert found == set(needed), "an orphan, or a generation that is gone"
    for number, bases in needed.items():
        directory = generation_path(path, number)
        files = {name for name in disk.list_directory(directory) if parse(name) is not None}
        at_most = {
            segment_path("", base, kind).lstrip("/") for base in bases for kind in SEGMENT_KINDS
        }
        assert files <= at_most, "files that nothing needs"
    with ledgers.pin(key) as pin:
        if pin.view is not None:
            for batch in pin.view.read_batches(pin.view.log_start_offset):
                assert batch.crc_ok()


def recover(disk: SimDisk) -> None:
    """Opening alone: what closing writes may differ, as it was opened in order or not."""
    open_life(disk, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW + 9)).store.abandon()


@pytest.mark.parametrize("runs", [0, 1, 3], ids=["the first run", "upon another", "one goes"])
def test_a_run_stands_every_cut(runs: int, count_cases: Callable[[str, int], None]) -> None:
    states = budget(250)
    stats = explore(
        one_run,
        judge,
        seed=1,
        max_states=states,
        start=laid(runs),
        depth2=Depth2(recover, share=0.02, max_states=states // 5),
        name=f"a ledger after {runs} runs",
    ).count(count_cases)
    assert stats.operations > 30
