"""A run at a location is cut anywhere: the generation before counts or the new one, whole, and the
next run removes what is left.

The first run, one that builds upon it, and one that lets an older generation go: from the claim of
the location to the last unlinking, every operation, on the simulated disk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.location_manifest import MANIFEST, current_root, is_generation, read_manifest
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import FixedClock
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.settings import resolve
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.segment.names import LOCK_FILE
from tests.log.helpers import NOW
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal, explore
from tests.sim.sweeps import budget

pytestmark = pytest.mark.requirement("LDG-1", "RCV-6")
LOG, OUT = "/data/orders-0", "/copy"
SETTINGS = resolve(
    {
        "compaction.mode": "ledger",
        "cleanup.policy": "delete",
        "internal.segment.bytes": "600",
        "compaction.ledgers.retained": "1",
    },
    {},
)
Latest = dict[bytes | None, bytes | None]


def opened(disk: SimDisk, path: str = LOG, *, unclean: bool = False) -> PartitionLog:
    return PartitionLog.open(
        path,
        LogSettings(segment_bytes=700),
        disk,
        FixedClock(NOW),
        create=path == LOG,
        unclean=Unclean(0) if unclean else None,
    )


def fill(disk: SimDisk, first: int, count: int) -> None:
    with opened(disk) as log:
        put(log, first, count)


def put(log: PartitionLog, first: int, count: int) -> None:
    for number in range(first, first + count):
        new = ((b"k%d" % (number % 7), b"v%d" % number), (b"only%d" % number, b"x"))
        log.append_records([NewRecord(key, value, NOW) for key, value in new])


def run(disk: SimDisk) -> CompactionReport:
    return compact(
        [LOG],
        CompactionOptions(Mode.OUT, SETTINGS, OUT),
        lambda: LocalEngine(disk, threads=1),
        disk,
        FixedClock(NOW + 5),
        lambda _: None,
    )


def laid(runs: int) -> SimDisk:
    """A log and its copy after `runs` runs, and something new, all of it durable."""
    disk = SimDisk()
    for number in range(runs):
        fill(disk, 10 * number, 8)
        run(disk)
    fill(disk, 100, 8)
    return disk.sync_all()


def number_of(disk: SimDisk) -> int:
    found = read_manifest(disk, OUT)
    return 0 if found is None else found.generation


def latest(disk: SimDisk, path: str, end: int | None = None) -> Latest:
    with opened(disk, path) as log:
        view = log.view
        found: Latest = {}
        for record in view.read_records(view.log_start_offset, end_offset=end):
            found[record.key] = record.value
        return found


def one_run(disk: SimDisk, journal: Journal) -> None:
    put(opened(disk), 200, 2)  # whose process dies then: nobody has flushed that
    number = number_of(disk)
    journal.promise(number)
    journal.begin(number + 1)
    run(disk)
    journal.promise(number + 1)


def judge(image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
    if promise is None:
        return
    opened(image, unclean=True).close()
    number = number_of(image)
    assert number in (promise, in_flight), (number, promise, in_flight)
    check(image)
    # And it goes on from there; whatever is left goes.
    fill(image, 300, 1)
    run(image)
    assert number_of(image) == number + 1
    check(image)
    manifest = read_manifest(image, OUT)
    assert manifest is not None
    names = set(image.list_directory(OUT))
    assert {name for name in names if is_generation(name)} == {manifest.directory}
    assert names <= {manifest.directory, MANIFEST, f"{MANIFEST}.tmp", LOCK_FILE}


def check(disk: SimDisk) -> None:
    """The copy that counts is whole: sound batches, the newest of each key, no file astray."""
    manifest = read_manifest(disk, OUT)
    if manifest is None:
        return
    [entry] = manifest.partitions
    copy = f"{current_root(disk, OUT)}/orders-0"
    assert not [name for name in disk.list_directory(copy) if ".part" in name]
    with opened(disk) as raw:
        assert raw.log_end_offset >= entry.end_offset, "a copy of what its log has lost"
    assert latest(disk, copy) == latest(disk, LOG, entry.end_offset)
    with opened(disk, copy) as log:
        assert log.log_end_offset == entry.end_offset
        for batch in log.view.read_batches(log.view.log_start_offset):
            assert batch.crc_ok()


@pytest.mark.parametrize("runs", [0, 1, 2], ids=["the first run", "upon another", "one goes"])
def test_a_run_stands_every_cut(runs: int, count_cases: Callable[[str, int], None]) -> None:
    stats = explore(
        one_run,
        judge,
        seed=1,
        max_states=budget(250),
        start=laid(runs),
        name=f"a location after {runs} runs",
    ).count(count_cases)
    assert stats.operations > 30
