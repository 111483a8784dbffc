"""Each fsync left out, each pair of steps exchanged: some scenario notices, or it is listed here.

A site is a kind of step, whichever segment or partition it is about. Every day each site is tried
until a scenario catches it; a sweep tries every single step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.mutants import is_caught, mutations
from tests.sim.scenarios import DELETING, DURABILITY, PLACES, SWAPS
from tests.sim.sweeps import IS_SWEEP, budget

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
    ("drop", "fsync replication-offset-checkpoint.tmp"): "for Kafka; nobody here reads it",
    ("drop", "fsync .index.truncate-.part"): "an index that is not whole is made anew",
    ("drop", "fsync .timeindex.truncate-.part"): "below a sector it is whole or made anew",
    ("drop", "fsync .txnindex.truncate-.part"): "of the active segment: a roll syncs it",
    ("drop", "fsync .index.test-.part"): "as above",
    ("drop", "fsync .timeindex.test-.part"): "as above",
    ("drop", "fsync_directory b-"): "of leader epochs: the next flush syncs the names again",
}
"""Left out without harm, and why."""


def harmless(site: Site) -> str | None:
    """Why two steps may change places without harm; None: they may not."""
    _, first, second = site
    for reason, pairs in EXCHANGED.items():
        if (first, second) in pairs:
            return reason
    if first.startswith("fsync_directory") and not second.startswith(("fsync", "rename")):
        return "what comes next is durable by a barrier of its own, or means nothing without it"
    if "-.part" in first and second.startswith("rename .log"):
        return "what is `.cleaned` means nothing before the intent"
    if first.startswith(("write .index", "write .timeindex", "write .txnindex")):
        return "an index that is not whole is made anew"
    if first.startswith("rename .") and "index" in first:
        return "an index that is not there is made anew"
    return None


EXCHANGED: dict[str, tuple[tuple[str, str], ...]] = {
    "the next barrier comes before anything relies on it": (
        ("fsync .index.test-.part", "create .timeindex.test-.part"),
        ("fsync .index.truncate-.part", "create .timeindex.truncate-.part"),
        ("fsync .log", "fsync_directory a-"),
        ("fsync .log.test-.part", "create .index.test-.part"),
        ("fsync .log.truncate-.part", "set_modified .log.truncate-.part"),
        ("fsync .timeindex", "create .index"),
        ("fsync .timeindex", "fsync_directory a-"),
        ("fsync .timeindex.test-.part", "create .log.test-.part"),
        ("fsync .timeindex.test-.part", "create .txnindex.test-.part"),
        ("fsync .timeindex.truncate-.part", "create .txnindex.truncate-.part"),
        ("truncate .timeindex", "fsync_directory b-"),
    ),
    "that it is there says everything": (("write .kafka_cleanshutdown", "fsync_directory data"),),
    "an older point, or an empty file, only makes the scan longer": (
        (
            "fsync recovery-point-offset-checkpoint.tmp",
            "rename recovery-point-offset-checkpoint.tmp",
        ),
        ("fsync replication-offset-checkpoint.tmp", "rename replication-offset-checkpoint.tmp"),
        ("rename recovery-point-offset-checkpoint.tmp", "fsync_directory data"),
        ("rename replication-offset-checkpoint.tmp", "fsync_directory data"),
        (
            "write recovery-point-offset-checkpoint.tmp",
            "fsync recovery-point-offset-checkpoint.tmp",
        ),
        ("write replication-offset-checkpoint.tmp", "fsync replication-offset-checkpoint.tmp"),
    ),
    "both are done before anything relies on them": (
        ("fsync_directory .stratalog", "fsync_directory a-"),
        ("fsync .txnindex", "fsync_directory a-"),
        ("fsync_directory .stratalog", "rename .log.cleaned"),
        ("fsync_directory a-", "fsync_directory a-"),
        ("fsync_directory data", "rename b-"),
    ),
    "OPEN: the deletion is not durable when it returns": (("rename b-", "fsync_directory data"),),
    "epochs above the log's end are cut off; the next flush syncs the names": (
        ("rename leader-epoch-checkpoint.tmp", "fsync_directory a-"),
    ),
    "a digest of another file is not believed": (("unlink .digest", "fsync_directory .stratalog"),),
    "OPEN: a torn tail right after it should tell": (
        ("unlink .kafka_cleanshutdown", "fsync_directory data"),
    ),
    "OPEN: appends past the old snapshot should tell": (
        ("unlink .snapshot", "fsync_directory a-"),
    ),
    "doing the swap again is harmless": (("unlink swap-intent", "fsync_directory .stratalog"),),
}
"""Particular pairs, by why they do no harm. OPEN: a scenario that tells is still to be found."""


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
            known = site in NEEDLESS if kind == "drop" else harmless(site) is not None
            if known or (site in caught and not IS_SWEEP):
                continue
            mutants += 1
            if is_caught(
                mutation, scenario.run, scenario.judge, seed=1, max_states=max_states, start=start
            ):
                caught.add(site)
            else:
                alive.setdefault(site, f"{scenario.name}: {mutation}")
    left = {site: where for site, where in alive.items() if site not in caught}
    return {site: where for site, where in left.items() if not _is_caught_late(kind, site)}, mutants


def _is_caught_late(kind: str, site: Site) -> bool:
    """Whether more states find it: a second look at the few that the first left."""
    for scenario in SCENARIOS:
        start = scenario.start()
        for mutation in mutations(scenario.run, start, [kind]):
            if mutation.site == site and is_caught(
                mutation, scenario.run, scenario.judge, seed=1, max_states=12_000, start=start
            ):
                return True
    return False


@pytest.mark.sweep
@pytest.mark.requirement("RCV-6", "RCV-3", "LOG-7", "CMP-12")
@pytest.mark.parametrize("kind", ["drop", "swap"])
def test_every_barrier_is_missed(kind: str, count_cases: Callable[[str, int], None]) -> None:
    alive, mutants = tried(kind, budget(250))
    assert alive == {}
    assert mutants > 20
    count_cases("barrier mutants", mutants)
