"""A disk error at every call of a log store: no false acknowledgement, no hang, and on it goes.

After a full disk has room again, the same process goes on writing. After any other error the
directory is offline, and a new start finds everything that was acknowledged as durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from stratalog.base.errors import StratalogError
from stratalog.log.settings import LogSettings
from stratalog.segment.names import TopicPartition
from tests.sim.client import Step
from tests.sim.cuts import plain_states
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal
from tests.sim.faults import MEETS, Faults
from tests.sim.logs import LogState, Stored, check_partitions
from tests.sim.scenario import Scenario
from tests.sim.sweeps import IS_SWEEP

STRIDE = 3
KEY_B = TopicPartition("b", 0)
FULL = ("ENOSPC", "EDQUOT", "SHORT_WRITE", "EMFILE")
SETTINGS = LogSettings(index_interval_bytes=64, segment_bytes=900, retention_bytes=700)
BEFORE: tuple[Step, ...] = (
    *(("create", "a"), ("append", "a", 2), ("write", "a", 5, 1), ("flush", "a"), ("roll", "a")),
    *(("append", "a", 2), ("checkpoint",), ("close",)),
)
STEPS: tuple[Step, ...] = (
    *(("open",), ("create", "b"), ("append", "a", 2), ("append", "b", 1), ("abort", "a", 5)),
    *(("roll", "a"), ("produce", "a", 4, 3), ("flush", "a"), ("append", "a", 2)),
    *(("delete_records", "a", 2), ("retention",), ("checkpoint",), ("append", "b", 2)),
    *(("flush", "b"), ("truncate", "b", 1), ("append", "b", 1), ("flush", "b"), ("due", 300_000)),
    *(("delete", "b"), ("append", "a", 1), ("close",)),
)
SCENARIO = Scenario("a store with faults", STEPS, SETTINGS, BEFORE, value_bytes=60)


class LastBegun(Journal):
    """Remembers what was begun last, done or not."""

    last: Stored | None = None

    def begin(self, value: object) -> None:
        super().begin(value)  # type: ignore[arg-type]
        self.last = value  # type: ignore[assignment]


class Tolerant:
    """A client that goes on after an error, and knows what may have come of what failed."""

    def __init__(self, disk: SimDisk):
        self.journal = LastBegun()
        self.client = SCENARIO.client(disk, self.journal)
        self.client.may_fail = True
        self.uncertain: dict[TopicPartition, set[LogState | None]] = {}
        self.errors = 0

    def do(self, step: Step) -> None:
        """Whatever is raised is one of our errors; what was promised before still holds."""
        client, before = self.client, dict(self.client.state)
        self.journal.last = None
        try:
            client.do(step)
        except StratalogError:
            self.errors += 1
            client.state = before
            self._doubt(before)
            for key in list(client.state):
                # A deletion that has failed behind the renaming.
                if client.store is not None and key not in client.store.partitions():
                    self.uncertain.setdefault(key, set()).add(client.state.pop(key))
            client.promise()
            return
        # What many logs are run through raises nothing.
        self._doubt(client.state)
        if len(step) > 1:
            self._done(TopicPartition(str(step[1]), 0))

    def _done(self, key: TopicPartition) -> None:
        """Later steps end the doubts, but for a log start that may be durable already."""
        now, doubts = self.client.state.get(key), self.uncertain.pop(key, set())
        starts = {doubt.start for doubt in doubts if doubt is not None}
        if now is not None and max(starts, default=0) > now.start:
            self.uncertain[key] = {now._replace(start=start) for start in starts}

    def settle(self, key: TopicPartition) -> None:
        """After a new start the log says what has become of what was in doubt."""
        log = self.client.log(key)
        for state in self.uncertain.pop(key, set()):
            if state is not None and (log.log_start_offset, log.log_end_offset) == (
                state.start,
                state.end,
            ):
                self.client.state[key] = state

    def _doubt(self, before: dict[TopicPartition, LogState]) -> None:
        coming = dict(self.journal.last or self.client.stored(before))
        for key in {*before, *coming}:
            if coming.get(key) != before.get(key):
                self.uncertain.setdefault(key, set()).add(coming.get(key))

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            topics = {key.topic for key in self.client.state}
            is_on_one = len(step) > 1 and isinstance(step[1], str)
            if is_on_one and step[0] != "create" and step[1] not in topics:
                continue  # it could not be made
            if self.client.store is not None or step[0] == "open":
                self.do(step)

    def allowed(self) -> dict[TopicPartition, set[LogState | None]]:
        state = self.client.state
        keys = {*state, *self.uncertain}
        return {key: {state.get(key), *self.uncertain.get(key, ())} for key in keys}


def faults_to_try(lasting: bool, stride: int) -> Iterator[Faults]:
    """Every `stride`-th call with every error."""
    for error in MEETS:
        nth = len(error) % stride
        while True:
            faults = Faults(error, nth, None, lasting)
            yield faults
            if not faults.struck:
                break
            nth += stride


def goes_on(tolerant: Tolerant, faults: Faults) -> None:
    """There is room again: the same process, and the same store, take and keep records."""
    client = tolerant.client
    if client.store is None:
        client.do(("open",))
        assert client.store is not None
        for key in client.store.partitions():
            client.state.setdefault(key, LogState())  # its creation had come far enough
            tolerant.settle(key)
    if KEY_B not in client.state:
        client.do(("create", "b"))
    for key in list(client.state):
        assert client.log(key).offline is None, f"{faults}: {client.log(key).offline}"
        client.do(("append", key.topic, 1))
        client.do(("flush", key.topic))
        tolerant.uncertain.pop(key, None)


@pytest.mark.sweep
@pytest.mark.requirement("LOG-7", "RCV-3", "RCV-1")
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for good"])
def test_an_error_at_any_call_of_a_store(
    lasting: bool, count_cases: Callable[[str, int], None]
) -> None:
    ends: Counter[str] = Counter()
    start = SCENARIO.start()
    for faults in faults_to_try(lasting, 1 if IS_SWEEP else STRIDE):
        disk = start.fork()
        tolerant = Tolerant(disk)
        disk.hook = faults
        tolerant.run(STEPS)
        faults.heal()
        struck = {call.kind for call in faults.struck}
        ends["errors"] += tolerant.errors > 0
        if faults.error in FULL and "fsync" not in struck:
            goes_on(tolerant, faults)
            ends["went on"] += 1
        disk.hook = None
        try:
            # The process dies; then the power goes, too.
            check_partitions(SETTINGS, disk.fork(), tolerant.allowed())
            for state in islice(plain_states(disk), 6):
                check_partitions(SETTINGS, state.disk(), tolerant.allowed())
                ends["images"] += 1
        except (AssertionError, StratalogError) as error:
            raise AssertionError(f"{faults}: {error}") from error
        ends["runs"] += 1
    assert ends["errors"] > 20
    assert ends["went on"] > 10
    count_cases("stores with a fault", ends["runs"])
    count_cases("crash states after a fault", ends["images"])
