"""A log store is cut at every call: what was promised is there, what was removed stays away.

The scenarios are in tests/sim/scenarios.py, what is asked of each image in tests/sim/logs.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.explore import Depth2, ExploreStats, explore, replay
from tests.sim.scenario import Scenario
from tests.sim.scenarios import DELETING, DURABILITY, PLACES, SWAPS, random_scenario
from tests.sim.sweeps import budget
from tests.sim.unclean import UNCLEAN

CountCases = Callable[[str, int], None]


def explored(scenario: Scenario, max_states: int, seed: int = 1) -> ExploreStats:
    stats = explore(
        scenario.run,
        scenario.judge,
        seed=seed,
        max_states=max_states,
        start=scenario.start(),
        depth2=Depth2(scenario.recover, share=0.02, max_states=max_states // 5),
        name=scenario.name,
    )
    assert stats.complete or stats.states == max_states
    return stats


def names(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-2", "RCV-3", "LOG-7", "CMP-14")
@pytest.mark.parametrize("scenario", DURABILITY, ids=names)
def test_what_was_acknowledged_survives(scenario: Scenario, count_cases: CountCases) -> None:
    stats = explored(scenario, budget(2_500)).count(count_cases)
    assert stats.states > 700
    assert stats.recoveries > 8
    assert stats.depth2_states > 50


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-3", "RCV-4", "LOG-7")
@pytest.mark.parametrize("scenario", UNCLEAN, ids=names)
def test_what_was_left_is_put_in_order(scenario: Scenario, count_cases: CountCases) -> None:
    stats = explored(scenario, budget(600)).count(count_cases)
    assert stats.states > 100


@pytest.mark.sweep
@pytest.mark.requirement("RET-6", "RET-7", "RET-8", "RCV-3")
@pytest.mark.parametrize("scenario", DELETING, ids=names)
def test_what_was_deleted_stays_away(scenario: Scenario, count_cases: CountCases) -> None:
    stats = explored(scenario, budget(2_500)).count(count_cases)
    assert stats.states > 400
    assert stats.recoveries > 2


@pytest.mark.sweep
@pytest.mark.requirement("RET-8", "RCV-3")
@pytest.mark.parametrize("scenario", PLACES, ids=names)
def test_no_partition_inherits_from_one_of_its_name(
    scenario: Scenario, count_cases: CountCases
) -> None:
    stats = explored(scenario, budget(2_500)).count(count_cases)
    assert stats.states > 700
    assert stats.recoveries > 8


@pytest.mark.sweep
@pytest.mark.requirement("CMP-12", "RCV-5", "RCV-6")
@pytest.mark.parametrize("scenario", SWAPS, ids=names)
def test_a_group_is_old_or_new(scenario: Scenario, count_cases: CountCases) -> None:
    stats = explored(scenario, budget(1_200)).count(count_cases)
    assert stats.states > 700
    assert stats.recoveries > 5


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RET-6", "LOG-7", "CMP-14")
@pytest.mark.parametrize("first_seed", range(0, 96, 12))
def test_whatever_is_done(first_seed: int, count_cases: CountCases) -> None:
    states = 0
    for seed in range(first_seed, first_seed + 12):
        states += explored(random_scenario(seed), budget(400), seed).count(count_cases).states
    assert states > 3_000


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RET-6", "LOG-7", "CMP-14")
@pytest.mark.parametrize("first_seed", range(1_000, 1_500, 25))
def test_whatever_is_done_at_length(first_seed: int, count_cases: CountCases) -> None:
    for seed in range(first_seed, first_seed + 25):
        explored(random_scenario(seed), budget(200), seed).count(count_cases)


@pytest.mark.requirement("RCV-4")
def test_a_transaction_whose_data_is_deleted_leaves_no_entry() -> None:
    """Found by a sweep: records were deleted up to the end, behind an aborted transaction that had
    begun in a segment that is gone. The first recovery knew of it by a snapshot that lies below the
    log's start, and is removed; the second did not, and wrote another transaction index."""
    scenario = random_scenario(50)
    disk = replay(scenario.run, scenario.judge, 70, 49, seed=50, start=scenario.start())
    tree = disk.tree()
    assert tree["/data/a-0/00000000000000000008.snapshot"], "the scenario is another one by now"
    assert tree["/data/a-0/00000000000000000008.txnindex"] == b""
    scenario.recover(disk)
    again = disk.fork()
    scenario.recover(again)
    assert again.tree() == disk.tree()


@pytest.mark.requirement("RCV-1", "RCV-7")
def test_a_batch_that_lost_its_first_bytes_is_a_torn_end() -> None:
    """Found by a sweep: an unsynced batch begins eleven bytes before a sector that was written, so
    it is whole but for its offset, which no checksum covers."""
    scenario = random_scenario(1029)
    disk = replay(scenario.run, scenario.judge, 74, 35, seed=1029, start=scenario.start())
    data = disk.tree()["/data/a-0/00000000000000000012.log"]
    assert data is not None
    assert len(data) == 2259, "the scenario is another one by now"
    assert data[2037:2048] == bytes(11)
    assert data[2048:2059] != bytes(11)
