"""Each fsync left out, each pair of steps exchanged: some scenario notices, it is proven to make no
difference (`trials`), or it is listed with the reason (`barriers`).

Every day each site is tried twice, and again until it is caught if it is not listed; a sweep tries
every single step of every scenario. A list that says too much fails like one that says too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.sim.barriers import (
    HARMLESS,
    MISSED_IN_A_SWEEP,
    MISSED_TWICE_CUT,
    NEEDLESS,
    SHOWN_BY,
)
from tests.sim.mutants import Mutation
from tests.sim.scenarios import DELETING, DURABILITY, PLACES, SWAPS
from tests.sim.sweeps import IS_SWEEP
from tests.sim.trials import Original, Trial
from tests.sim.unclean import UNCLEAN

SCENARIOS = (*UNCLEAN, *DURABILITY, *DELETING, *PLACES, *SWAPS)
LISTED = {"drop": NEEDLESS, "swap": HARMLESS}
STATES, STATES_AT_LAST = (200, 1_000) if IS_SWEEP else (25, 600)
TRIES = 1 << 62 if IS_SWEEP else 2


@dataclass
class Outcome:
    """Of one site. `caught`: how; `survived`: where it was not, and is not proven harmless;
    `wrong`: where it is proven harmless, and caught."""

    tried: int = 0
    caught: str | None = None
    survived: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, where: str, trial: Trial) -> None:
        self.tried += 1
        self.caught = self.caught or trial.caught
        if trial.is_equal and trial.caught is not None:
            self.wrong.append(f"{where}: {trial.caught}")
        if not trial.is_equal and trial.caught is None:
            self.survived.append(where)


@cache
def originals() -> dict[str, Original]:
    return {
        scenario.name: Original(scenario.run, scenario.judge_strictly, scenario.start())
        for scenario in SCENARIOS
    }


def all_mutations(kind: str) -> Iterator[tuple[str, Original, Mutation]]:
    for name, original in originals().items():
        for mutation in original.mutations([kind]):
            yield name, original, mutation


def tried(kind: str) -> dict[str, Outcome]:
    """What became of each site."""
    found: dict[str, Outcome] = {}
    every = list(all_mutations(kind))
    for name, original, mutation in every:
        site = mutation.site
        outcome = found.setdefault(site, Outcome())
        is_shown = SHOWN_BY.get(site) == name
        is_next = outcome.tried < TRIES and outcome.caught is None and site not in SHOWN_BY
        if IS_SWEEP or is_shown or is_next:
            states = STATES_AT_LAST if is_shown else STATES
            outcome.note(f"{name}: {mutation}", original.tried(mutation, states))
    # The scenarios in which most is done are the last ones.
    for name, original, mutation in reversed(every):
        outcome = found[mutation.site]
        others = (*MISSED_TWICE_CUT[kind], *MISSED_IN_A_SWEEP[kind])
        is_listed = mutation.site in LISTED[kind] or mutation.site in others
        is_known = is_listed or outcome.caught is not None
        if outcome.survived and not is_known:
            outcome.note(f"{name}: {mutation}", original.tried(mutation, STATES_AT_LAST))
    return found


@pytest.mark.sweep
@pytest.mark.requirement("RCV-6", "RCV-3", "LOG-7", "CMP-12")
@pytest.mark.parametrize("kind", ["drop", "swap"])
def test_every_barrier_is_missed(kind: str, count_cases: Callable[[str, int], None]) -> None:
    found, listed = tried(kind), LISTED[kind]
    assert {site: out.wrong for site, out in found.items() if out.wrong} == {}, "no proof"
    alive = {
        site: out.survived[0]
        for site, out in found.items()
        if out.survived and out.caught is None and site not in listed
        if site not in MISSED_TWICE_CUT[kind]
        if IS_SWEEP or site not in MISSED_IN_A_SWEEP[kind]
    }
    assert alive == {}, "nothing misses it, and nobody says why"
    gone = [site for site in (*listed, *MISSED_TWICE_CUT[kind]) if site not in found]
    assert gone == [], "listed, and there is no such step"
    needed = {site: found[site].caught for site in listed if found[site].caught is not None}
    assert needed == {}, "listed, and missed after all"
    proven = [site for site in listed if not found[site].survived]
    assert not IS_SWEEP or proven == [], "listed, and proven without"
    assert [site for site in SHOWN_BY if found.get(site, Outcome(caught="")).caught is None] == []
    count_cases("barrier mutants", sum(out.tried for out in found.values()))
    count_cases("barrier sites", len(found))
    count_cases(
        "barrier sites that are missed", sum(out.caught is not None for out in found.values())
    )
