"""The cleaner as a service, step after step, against a model that is a list and a dict.

`machine_steps` has the steps and what holds after each; this says how many are taken. Random lists
of actions with a fixed seed are the bulk, as they take 2 to 3 ms a step; hypothesis, which takes
its time, drives the same machine through a part. Every day 20,000 steps and more, a million with
STRATALOG_SWEEP=1. A list that fails is made short before it is shown: put it into `FOUND`.

What the machine is worth, `test_the_model_notices` shows: it breaks the product and looks whether
anybody objects.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stratalog.clean import memory, note, plan
from stratalog.clean import round as rounds
from stratalog.clean.job import CleanSpec
from stratalog.clean.manager import CleanerManager
from stratalog.clean.note import Note
from stratalog.log.log_store import LogStore
from stratalog.log.partition_log import PartitionLog
from stratalog.record.kernel.compile import JIT
from tests.clean.machine import CHOICES, JUMPS, Wrong
from tests.clean.machine_random import fails, random_action, shortest
from tests.clean.machine_steps import Action, Machine

Count = Callable[[str, int], None]
IS_SWEEP = os.environ.get("STRATALOG_SWEEP") == "1"
STEPS = 250
MACHINES = 4000 if IS_SWEEP else 80 if JIT else 8
SHARES = 8
EXAMPLES, EXAMPLE_STEPS = (200, 50) if IS_SWEEP else (20, 40)
BIG = 1 << 30

pytestmark = pytest.mark.requirement(
    *("CMP-1", "CMP-2", "CMP-3", "CMP-8", "CMP-9", "CMP-13", "CMP-14", "CMP-15", "CMP-17"),
    *("CMP-18", "CLN-2", "CLN-3", "CLN-4", "CLN-6", "CLN-7", "CLN-11"),
    *("RET-2", "RET-4", "RET-5", "RET-6", "RET-9", "RET-10"),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Rounds that fail on purpose are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def shape(seed: int) -> dict[str, Any]:
    """Every fourth machine has two partitions; every fifth a map of five keys."""
    return {"partitions": 1 + (seed % 4 == 3), "max_keys": 5 if seed % 5 == 4 else None}


def run(seed: int, steps: int = STEPS) -> Machine:
    """A random life. What fails is said with a short list of actions that does it, too."""
    random = Random(seed)
    settings = shape(seed)
    machine = Machine(**settings)
    try:
        for _ in range(steps):
            machine.do(random_action(random, settings["partitions"]))
    except Exception as error:
        short = shortest(machine.trail, 300, **settings)
        lines = "".join(f"    {action},\n" for action in short)
        raise Wrong(
            f"seed {seed}, {settings}: {error}\n{fails(short, **settings)}\n{lines}"
        ) from error
    return machine


@pytest.mark.sweep
@pytest.mark.parametrize("share", range(SHARES))
def test_random_lives_of_a_store_with_a_cleaner(share: int, count_cases: Count) -> None:
    machines = [run(seed) for seed in range(share, MACHINES, SHARES)]
    assert sum(machine.rounds for machine in machines) > 4 * len(machines)
    count_cases("steps of the cleaner's state machine", STEPS * len(machines))
    count_cases("rounds in them", sum(machine.rounds for machine in machines))
    count_cases("cuts of the power in them", sum(machine.cuts for machine in machines))


PARTITIONS = st.integers(0, 1)
SEEDS = st.integers(0, BIG)
PRODUCERS = st.integers(0, 5)


class CleanerLife(RuleBasedStateMachine):
    """The same machine, driven by hypothesis."""

    machine: Machine

    @initialize(partitions=st.integers(1, 2), max_keys=st.sampled_from([None, 5]))
    def begin(self, partitions: int, max_keys: int | None) -> None:
        self.machine = Machine(partitions, max_keys)

    def do(self, *action: Any) -> None:
        self.machine.do(action)

    @rule(name=st.sampled_from(["append", "fill"]), where=PARTITIONS, seed=SEEDS)
    def append(self, name: str, where: int, seed: int) -> None:
        self.do(name, where, seed)

    @rule(where=PARTITIONS, producer=PRODUCERS, seed=SEEDS, bumps=st.booleans())
    def produce(self, where: int, producer: int, seed: int, bumps: bool) -> None:
        self.do("produce", where, producer, seed, bumps)

    @rule(where=PARTITIONS, producer=st.integers(3, 5), aborts=st.integers(0, 1))
    def end(self, where: int, producer: int, aborts: int) -> None:
        self.do("end", where, producer, aborts)

    @rule(where=PARTITIONS, producer=PRODUCERS)
    def repeat(self, where: int, producer: int) -> None:
        self.do("repeat", where, producer)

    @rule(
        name=st.sampled_from(["roll", "pause", "resume", "pause_midway", "retry"]), where=PARTITIONS
    )
    def steer(self, name: str, where: int) -> None:
        self.do(name, where)

    @rule(name=st.sampled_from(["clean", "clean_all", "retention", "due", "reopen"]))
    def work(self, name: str) -> None:
        self.do(name)

    @rule(name=st.sampled_from(["ask", "fail"]), where=PARTITIONS, choice=st.integers(0, 1))
    def ask(self, name: str, where: int, choice: int) -> None:
        self.do(name, where, choice)

    @rule(where=PARTITIONS, key=st.integers(0, 8))
    def forget(self, where: int, key: int) -> None:
        self.do("forget", where, key)

    @rule(where=PARTITIONS, percent=st.integers(0, 100))
    def delete_records(self, where: int, percent: int) -> None:
        self.do("delete_records", where, percent)

    @rule(number=st.integers(0, len(JUMPS) - 1))
    def jump(self, number: int) -> None:
        self.do("jump", number)

    @rule(where=PARTITIONS, name=st.sampled_from(sorted(CHOICES)), choice=st.integers(0, 4))
    def configure(self, where: int, name: str, choice: int) -> None:
        self.do("config", where, name, choice)

    @rule(
        inner=st.sampled_from(
            [None, ("clean",), ("ask", 0, 1), ("retention",), ("reopen",), ("pause", 0), ("due",)]
        ),
        calls=st.integers(0, 60),
        seed=SEEDS,
    )
    def cut(self, inner: Action | None, calls: int, seed: int) -> None:
        self.do("cut", inner, calls, seed)

    @precondition(lambda self: self.machine.rounds == 0)
    @rule(seed=SEEDS)
    def clean_something(self, seed: int) -> None:
        self.do("fill", 0, seed)
        self.do("clean")


def test_hypothesis_finds_no_way_round(count_cases: Count) -> None:
    taken = 0

    class Counted(CleanerLife):
        def do(self, *action: Any) -> None:
            nonlocal taken
            taken += 1
            super().do(*action)

    Counted.TestCase.settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=EXAMPLE_STEPS,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    Counted.TestCase().runTest()
    assert taken > EXAMPLES * EXAMPLE_STEPS // 2
    count_cases("steps of the cleaner's state machine", taken)


FOUND: dict[str, list[Action]] = {
    "an expiry is forgotten by a request that finds nothing to do": [
        ("append", 0, 1007668780),
        ("roll", 0),
        ("clean",),
        ("ask", 0, 1),
        ("jump", 6),
        ("clean_all",),
    ],
    "a marker that is not flushed decides what a round takes for good": [
        ("append", 0, 238677521),
        ("produce", 0, 5, 1038058962, True),
        ("produce", 0, 5, 114387586, False),
        ("produce", 0, 0, 777970755, False),
        ("append", 0, 315879542),
        ("produce", 0, 4, 468717600, True),
        ("end", 0, 4, 0),
        ("end", 0, 5, 0),
        ("clean",),
        ("cut", None, 9, 665069953),
    ],
    "an aborted transaction whose first batch is gone": [
        ("produce", 0, 3, 466206510, False),
        ("produce", 0, 5, 467976454, True),
        ("roll", 0),
        ("produce", 0, 4, 287208045, False),
        ("produce", 0, 3, 655377719, False),
        ("end", 0, 5, 0),
        ("ask", 0, 0),
        ("end", 0, 3, 1),
        ("clean",),
        ("cut", ("pause", 0), 28, 904267619),
    ],
    "a snapshot below the first segment, of two partitions": [
        ("fill", 1, 55704287),
        ("config", 1, "policy", 2),
        ("config", 1, "retention_bytes", 2),
        ("produce", 1, 5, 295492481, False),
        ("produce", 1, 4, 137662509, False),
        ("fill", 0, 569317758),
        ("roll", 1),
        ("end", 1, 4, 0),
        ("jump", 5),
        ("cut", None, 2, 937470231),
        ("jump", 7),
        ("append", 1, 958038432),
        ("produce", 1, 0, 991849529, True),
        ("produce", 1, 1, 902152563, False),
        ("end", 1, 5, 1),
        ("append", 1, 358591222),
        ("append", 1, 871064532),
        ("produce", 1, 3, 144920610, False),
        ("end", 1, 3, 1),
        ("fill", 1, 670735738),
        ("fill", 1, 754973185),
        ("due",),
        ("cut", ("ask", 0, 0), 16, 636010159),
    ],
    "a round by segment says that nothing expires, of batches that have deadlines": [
        ("fill", 0, 640011302),
        ("ask", 0, 0),
        ("jump", 6),
        ("config", 0, "by_segment", 1),
        ("clean",),
        ("config", 0, "by_segment", 0),
        ("clean_all",),
    ],
    "an older snapshot opens a transaction whose marker is gone": [
        ("produce", 0, 2, 484174511, False),
        ("produce", 0, 5, 845363096, False),
        ("produce", 0, 3, 750826509, False),
        ("produce", 0, 0, 663485018, False),
        ("append", 0, 959047271),
        ("produce", 0, 1, 513834365, False),
        ("produce", 0, 1, 674366404, False),
        ("fill", 0, 499784829),
        ("cut", ("reopen",), 5, 722999223),
        ("end", 0, 5, 0),
        ("roll", 0),
        ("produce", 0, 5, 8888304, True),
        ("end", 0, 3, 0),
        ("jump", 9),
        ("due",),
        ("clean",),
        ("jump", 5),
        ("ask", 0, 1),
        ("jump", 7),
        ("clean_all",),
        ("fill", 0, 953871107),
        ("fill", 0, 604151959),
        ("cut", ("delete_records", 0, 30), 9, 179774907),
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_mended(name: str) -> None:
    two = {"partitions": 2, "max_keys": 5}
    error = fails(FOUND[name], **(two if "two partitions" in name else {}))
    assert error is None, error


# -- is the machine worth anything? ----------------------------------------------------------------


def _early_horizon(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CleanSpec, "new_horizon_ms", property(lambda spec: spec.now_ms))


def _no_expiry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Note, "expiry", lambda _note, _checkpoint, by_segment: None)


def _checkpoint_too_far(patch: pytest.MonkeyPatch) -> None:
    plain = LogStore.set_cleaner_point
    patch.setattr(
        LogStore,
        "set_cleaner_point",
        lambda store, key, offset: plain(
            store, key, min(offset + 3, store.get(key).log_end_offset)
        ),
    )


def _no_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "flush", lambda log: log.recovery_point)


def _no_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "active_producers", lambda _log: {})


def _no_lag(patch: pytest.MonkeyPatch) -> None:
    plain = plan.range_of
    patch.setattr(
        rounds,
        "range_of",
        lambda state, *, min_compaction_lag_ms, now_ms: plain(
            state, min_compaction_lag_ms=0, now_ms=now_ms
        ),
    )


def _open_transactions_are_cleaned(patch: pytest.MonkeyPatch) -> None:
    plain = rounds.state_of
    patch.setattr(
        rounds,
        "state_of",
        lambda *args: replace(found := plain(*args), last_stable_offset=found.log_end_offset),
    )


def _pause_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    plain = note.write_note
    patch.setattr(
        memory, "write_note", lambda fs, path, made: plain(fs, path, replace(made, paused=False))
    )


def _retention_a_day_early(patch: pytest.MonkeyPatch) -> None:
    plain = LogStore._decide
    patch.setattr(
        LogStore,
        "_decide",
        lambda store, log, now_ms: plain(store, log, now_ms + 86_400_000),
    )


def _rounds_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CleanerManager, "cleaned", lambda *_: None)


BREAKAGES = [
    _early_horizon,
    _no_expiry,
    _checkpoint_too_far,
    _no_flush,
    _no_producers,
    _no_lag,
    _open_transactions_are_cleaned,
    _pause_is_forgotten,
    _retention_a_day_early,
    _rounds_never_end,
]


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda made: made.__name__.strip("_"))
def test_the_model_notices(
    breakage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some steps at most until a product that is broken in one place is found out."""
    breakage(monkeypatch)
    retains = [("config", 0, "policy", 1), ("config", 0, "retention_ms", 2)]
    assert any(map(fails, FOUND.values())) or any(
        _objects(seed, retains if seed % 2 else []) for seed in range(40)
    )


def _objects(seed: int, first: list[Action]) -> bool:
    random = Random(seed)
    settings = shape(seed)
    actions = [random_action(random, settings["partitions"]) for _ in range(STEPS)]
    return fails([*first, *actions], **settings) is not None
