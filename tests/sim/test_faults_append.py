"""A disk error at every call of append, flush and roll: no false acknowledgement; on it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogOfflineError, StorageIOError
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from tests.sim.cuts import Limits, crash_images
from tests.sim.disk import SimDisk
from tests.sim.faults import every_fault

NOW = 1_700_000_000_000
PATH = "/data/t-0"
SETTINGS = LogSettings(index_interval_bytes=64)
STEPS = ("append", "append", "flush", "append", "roll", "append", "flush", "append", "append")
FULL = ("ENOSPC", "EDQUOT", "SHORT_WRITE", "EMFILE")


def opened(disk: SimDisk, flushed: int = 0) -> PartitionLog:
    return PartitionLog.open(
        PATH, SETTINGS, disk, FixedClock(NOW), create=True, unclean=Unclean(flushed)
    )


@dataclass
class Client:
    """Appends one record at a time and remembers what it was told."""

    log: PartitionLog
    sent: int = 0
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    flushed: int = 0
    failed: int = 0

    def do(self, step: str) -> None:
        try:
            match step:
                case "append":
                    value, self.sent = b"%d" % self.sent, self.sent + 1
                    result = self.log.append_records([NewRecord(None, value, NOW)])
                    self.kept.append((result.first_offset, value))
                case "flush":
                    self.flushed = self.log.flush()
                case "roll":
                    self.log.roll()
        except (StorageIOError, LogOfflineError):
            self.failed += 1


def stored(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    batches = log.read_batches(log.log_start_offset)
    return [(record.offset, record.value) for batch in batches for record in batch.records()]


@pytest.mark.sweep
@pytest.mark.requirement("LOG-7", "RCV-1")
def test_an_error_at_any_call_of_a_writing_log(count_cases: Callable[[str, int], None]) -> None:
    runs = failed = went_on = 0
    for attach in every_fault():
        disk = SimDisk()
        disk.make_directory("/data")
        client = Client(opened(disk.sync_all()))
        faults = attach(disk)
        for step in STEPS:
            client.do(step)
        faults.heal()
        # What was acknowledged is there, in order, and what was refused is not.
        assert stored(client.log) == client.kept, faults
        before = len(client.kept)
        client.do("append")
        client.do("flush")
        was_full = faults.error in FULL and all(c.kind != "fsync" for c in faults.struck)
        if was_full or not faults.struck:
            assert len(client.kept) == client.flushed == before + 1, faults
        went_on += len(client.kept) > before
        for image in crash_images(disk, Random(1), Limits(max_images=30)):
            log = opened(image, client.flushed)
            found = stored(log)
            assert log.quarantine is None, faults
            assert found[: client.flushed] == client.kept[: client.flushed], faults
            log.close()
        runs += 1
        failed += client.failed > 0
    assert failed > 100
    assert went_on > 100
    count_cases("writing logs with a fault", runs)


@pytest.mark.requirement("LOG-7")
def test_a_sync_that_failed_is_not_retried_as_if_nothing_had_happened() -> None:
    """The disk forgets what it could not write: a second fsync that succeeds proves nothing."""
    refused = 0
    for attach in every_fault(["EIO"], kinds=("fsync",), lasting=(False,)):
        disk = SimDisk()
        disk.make_directory("/data")
        client = Client(opened(disk.sync_all()))
        faults = attach(disk)
        client.do("append")
        client.do("flush")
        if not faults.struck:
            break
        client.do("flush")
        client.do("append")
        for image in crash_images(disk, Random(1)):
            found = stored(opened(image, client.flushed))
            assert found[: client.flushed] == client.kept[: client.flushed], faults
        if faults.struck[0].path.endswith(".log"):
            with pytest.raises(LogOfflineError):
                client.log.append_records([NewRecord(None, b"", NOW)])
            refused += 1
    assert refused > 0
