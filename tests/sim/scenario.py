"""A scenario of a log store: how the disk came to be, what is done to it, and who judges the rest.

Its steps are those of `tests.sim.client`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from stratalog.log.settings import LogSettings
from tests.sim import wrecks
from tests.sim.client import Client, Step
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal
from tests.sim.logs import DIR, check_store, recover_store


def empty_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIR)
    return disk.sync_all()


@dataclass(frozen=True)
class Scenario:
    """`before` is done, and made durable, before the power may go; then `left`, by a process that
    syncs nothing (`wrecks.Unsynced`) and is killed: nothing is promised before it is opened again,
    unless the system has written it since (`is_written`). `settings` of every topic."""

    name: str
    steps: tuple[Step, ...]
    settings: LogSettings
    before: tuple[Step, ...] = ()
    value_bytes: int = 40
    left: tuple[Step, ...] = field(default=(), kw_only=True)
    is_written: bool = field(default=False, kw_only=True)

    def laid(self) -> tuple[SimDisk, Client]:
        """The disk that the steps begin with; a client that knows what is there."""
        disk, client = self.laid_unsynced()
        disk.sync_all()
        if self.left:
            flushed = {key: state.flushed for key, state in client.state.items()}
            client.disk, client.store = wrecks.Unsynced(disk), None  # type: ignore[assignment]
            for step in self.left:
                client.do(step)
                for key, state in client.state.items():
                    client.state[key] = state._replace(flushed=flushed[key])
            disk = disk.fork().sync_all() if self.is_written else disk.fork()
        return disk, client

    def laid_unsynced(self) -> tuple[SimDisk, Client]:
        """The same, but what was not flushed is not durable."""
        disk = empty_disk()
        client = Client(disk, Journal(), self.settings, self.value_bytes)
        client.run(self.before)
        return disk.fork(), client

    def start(self) -> SimDisk:
        return _laid(self)[0].fork()

    def run(self, disk: SimDisk, journal: Journal) -> None:
        client = self.client(disk, journal)
        for step in (*([] if self.is_open_first() else [("open",)]), *self.steps):
            client.do(step)

    def client(self, disk: SimDisk, journal: Journal) -> Client:
        """One that goes on where `before` ended."""
        known = _laid(self)[1]
        client = Client(disk, journal, self.settings, self.value_bytes)
        client.state, client.count = dict(known.state), known.count
        client.clock.time_ms = known.clock.time_ms
        if self.is_written or not self.left:
            client.promise()
        return client

    def is_open_first(self) -> bool:
        return bool(self.steps) and self.steps[0][0] == "open"

    def judge(self, image: SimDisk, promise: object, in_flight: object) -> None:
        if promise is None and self.left and not self.is_written:
            return
        check_store(self.settings, image, promise, in_flight)  # type: ignore[arg-type]

    def judge_strictly(self, image: SimDisk, promise: object, in_flight: object) -> None:
        """Of a cut alone; after a second one, in its recovery, not all of this holds."""
        if promise is None and self.left and not self.is_written:
            return
        check_store(self.settings, image, promise, in_flight, strict=True)  # type: ignore[arg-type]

    def recover(self, disk: SimDisk) -> None:
        recover_store(self.settings, disk)


@lru_cache(maxsize=256)
def _laid(scenario: Scenario) -> tuple[SimDisk, Client]:
    return scenario.laid()
