"""Each fsync left out, each pair of steps exchanged: some scenario notices, or it is listed here.

A site is a kind of step, whichever segment or partition it is about. Every day each site is tried
until a scenario catches it; a sweep tries every single step.
"""

from __future__ import annotations

from tests.sim.mutants import mutations
from tests.sim.scenarios import DELETING, DURABILITY, PLACES, SWAPS
from tests.sim.sweeps import IS_SWEEP

SCENARIOS = (*DURABILITY, *DELETING, *PLACES, *SWAPS)
EVERY_DAY = (
    *("every append is on the disk", "every third record is on the disk", "flushed by the clock"),
    *("transactions over a roll", "opened after a close", "aborted below the recovery point"),
    *("retention by time takes everything", "truncated between flushed batches"),
    *("truncated inside a segment", "one of two is deleted and made again"),
    *("deleted after a close, made again after the next", "3 segments become 2"),
)
Site = tuple[str, ...]

NEEDLESS: dict[Site, str] = {
    ("drop", "fsync .kafka_cleanshutdown"): "that it is there says everything",
    ("drop", "fsync replication-offset-checkpoint.tmp"): "for Kafka; nobody here reads it",
    ("drop", "fsync .index.truncate-.part"): "an index that is not whole is made anew",
    ("drop", "fsync .timeindex.truncate-.part"): "below a sector it is whole or made anew",
    ("drop", "fsync .index.test-.part"): "as above",
    ("drop", "fsync .timeindex.test-.part"): "as above",
    ("drop", "fsync_directory b-"): "of leader epochs: the next flush syncs the names again",
}
"""Left out without harm, and why."""


def tried(kind: str, max_states: int) -> tuple[dict[Site, str], int]:
    """The sites that nothing catches, with a mutation of each, and how many mutants there were."""
    caught: set[Site] = set()
    alive: dict[Site, str] = {}
    mutants = 0
    for scenario in SCENARIOS:
        if not IS_SWEEP and scenario.name not in EVERY_DAY:
            continue
        start = scenario.start()
        for mutation in mutations(scenario.run, start, [kind]):
            site = mutation.site
            if not IS_SWEEP and (site in caught or site in NEEDLESS or site in HARMLESS):
                continue
            mutants += 1
            if caught_by(scenario, mutation, max_states):
                caught.add(site)
            else:
                alive.setdefault(site, f"{scenario.name}: {mutation}")
    return {site: where for site, where in alive.items() if site not in caught}, mutants
