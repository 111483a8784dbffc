"""Ledgers, step after step, against a model that is a list and a dict (`machine`).

Random lists of actions with a fixed seed are the bulk; hypothesis drives the same machine through a
part. A list that fails is made short before it is shown: put it into `FOUND`. What the machine is
worth, `test_the_machine_notices` shows: it breaks the product and looks whether anybody objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stratalog.clean.cleaner import Cleaner
from stratalog.clean.job import CleanSpec, Order
from stratalog.clean.settings import TopicCleaning
from stratalog.ledger import manifest
from stratalog.ledger.copies import LedgerCopies
from stratalog.ledger.ledgers import Ledgers
from stratalog.ledger.view import CompactedView
from stratalog.log.view import LogView
from stratalog.record.kernel.compile import JIT
from tests.ledger.machine import Action, Machine, Wrong, random_action, shortest, trouble_of
from tests.sim.sweeps import IS_SWEEP

Count = Callable[[str, int], None]
STEPS = 200
MACHINES = 2000 if IS_SWEEP else 104 if JIT else 6
SHARES = 8
EXAMPLES, EXAMPLE_STEPS = (200, 50) if IS_SWEEP else (20, 40)

pytestmark = pytest.mark.requirement("LDG-1", "LDG-2", "LDG-4", "LDG-5", "LDG-6")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Runs that fail on purpose are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def order_of(seed: int) -> Order:
    return Order.TIMESTAMP if seed % 4 == 3 else Order.OFFSET


def run(seed: int, steps: int = STEPS) -> Machine:
    """A random life. What fails is said with a short list of actions that does it, too."""
    random = Random(seed)
    machine = Machine(order_of(seed))
    try:
        for _ in range(steps):
            machine.do(random_action(random))
    except Exception as error:
        short = shortest(machine.trail, machine.order)
        lines = "".join(f"    {action},\n" for action in short)
        what = trouble_of(short, machine.order)
        raise Wrong(f"seed {seed}, {machine.order}: {error}\n{what}\n{lines}") from error
    return machine


@pytest.mark.sweep
@pytest.mark.parametrize("share", range(SHARES))
def test_random_lives_of_a_topic_with_ledgers(share: int, count_cases: Count) -> None:
    machines = [run(seed) for seed in range(share, MACHINES, SHARES)]
    assert sum(machine.runs for machine in machines) > 8 * len(machines)
    if JIT:
        assert sum(machine.deletions_seen for machine in machines) > len(machines)
    count_cases("steps of the ledgers' state machine", STEPS * len(machines))
    count_cases("ledgers made in them", sum(machine.runs for machine in machines))
    count_cases("cuts of the power in them", sum(machine.cuts for machine in machines))


class LedgerLife(RuleBasedStateMachine):
    """The same machine, driven by hypothesis."""

    machine: Machine

    @initialize(order=st.sampled_from([Order.OFFSET, Order.TIMESTAMP]))
    def begin(self, order: Order) -> None:
        self.machine = Machine(order)

    def do(self, *action: Any) -> None:
        self.machine.do(action)

    @rule(seed=st.integers(0, 1 << 30))
    def append(self, seed: int) -> None:
        self.do("append", seed)

    @rule(producer=st.integers(0, 2), seed=st.integers(0, 1 << 30))
    def produce(self, producer: int, seed: int) -> None:
        self.do("produce", producer, seed)

    @rule(producer=st.integers(0, 2), aborts=st.integers(0, 1))
    def end(self, producer: int, aborts: int) -> None:
        self.do("end", producer, aborts)

    @rule(name=st.sampled_from(["ask", "due", "retention", "reopen", "pin", "begin_read"]))
    def work(self, name: str) -> None:
        self.do(name)

    @rule(number=st.integers(0, 2), limit=st.sampled_from([1, 3, 100]))
    def read(self, number: int, limit: int) -> None:
        self.do("read", number, limit)

    @rule(name=st.sampled_from(["release", "check_pin", "jump", "retained"]), n=st.integers(0, 7))
    def number(self, name: str, n: int) -> None:
        self.do(name, n)

    @rule(name=st.sampled_from(["delete", "truncate"]), percent=st.integers(0, 99))
    def lose(self, name: str, percent: int) -> None:
        self.do(name, percent)

    @rule(
        inner=st.sampled_from(["ask", "retention", "nothing"]),
        calls=st.integers(0, 60),
        seed=st.integers(0, 1 << 30),
    )
    def cut(self, inner: str, calls: int, seed: int) -> None:
        self.do("cut", inner, calls, seed)


def test_hypothesis_finds_no_way_round(count_cases: Count) -> None:
    taken = 0

    class Counted(LedgerLife):
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
    count_cases("steps of the ledgers' state machine", taken)


FOUND: dict[str, tuple[Order, list[Action]]] = {
    "a backlog that an open transaction holds back makes run after run": (
        Order.OFFSET,
        [("produce", 2, 962007330), ("due",)],
    ),
    "data of an aborted transaction whose marker lies behind the horizon stays": (
        Order.OFFSET,
        [("produce", 2, 284872542), ("produce", 1, 1073624289), ("end", 2, 1), ("ask",)],
    ),
    "who has read what was deleted with the log's beginning goes on knowing it": (
        Order.OFFSET,
        [
            *(("append", 231432081), ("produce", 2, 195619524), ("append", 967419697)),
            *(("end", 2, 0), ("begin_read",), ("read", 1, 10), ("delete", 50), ("read", 1, 100)),
        ],
    ),
    "who has seen a deletion that is forgotten knows better than an older event": (
        Order.TIMESTAMP,
        [
            *(("append", 842666805), ("ask",), ("jump", 5), ("begin_read",), ("read", 2, 3)),
            *(("ask",), ("append", 1073333247), ("read", 2, 100)),
        ],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once(name: str) -> None:
    order, trail = FOUND[name]
    assert trouble_of(trail, order) is None


def _no_time_for_tombstones(self: Cleaner, topic: TopicCleaning, max_keys: int | None) -> CleanSpec:
    spec = _SPEC(self, topic, max_keys)
    return replace(spec, delete_retention_ms=-1_000_000)


def _gap(self: CompactedView, offset: int, end: int) -> list[LogView]:
    """The tail is read from the record behind the horizon on."""
    parts = _PARTS(self, offset, end)
    if len(parts) == 2 and parts[1].log_start_offset < parts[1].log_end_offset:
        parts[1] = replace(parts[1], log_start_offset=parts[1].log_start_offset + 1)
    return parts


_SPEC, _PARTS, _SWITCHED = Cleaner._spec, CompactedView._parts_of, manifest.switched
MUTANTS: dict[str, tuple[object, str, object]] = {
    "what a crash leaves is not swept": (Ledgers, "sweep", lambda *_: None),
    "nothing is unlinked": (Ledgers, "_collect", lambda _, __: None),
    "retention does not wait": (LedgerCopies, "held_from", lambda *_: None),
    "a truncation leaves the ledger": (LedgerCopies, "cut_back", lambda *_: None),
    "tombstones go at once": (Cleaner, "_spec", _no_time_for_tombstones),
    "all generations are kept": (manifest, "switched", lambda a, new, _: _SWITCHED(a, new, 99)),
    "the view misses the first batch behind the horizon": (CompactedView, "_parts_of", _gap),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_machine_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, broken = MUTANTS[name]
    monkeypatch.setattr(where, attribute, broken)
    for seed in range(12):
        random = Random(seed)
        machine = Machine(order_of(seed))
        try:
            for _ in range(STEPS):
                machine.do(random_action(random))
        except Exception:  # noqa: BLE001  that is what is wanted
            return
    pytest.fail("nobody noticed")
