"""What frees space works where there is none (RET-4, RET-8): a disk too full for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import StorageFullError
from stratalog.log.log_store import LogStore
from tests.log.helpers import NOW
from tests.log.stores import A, B, keys, open_store, put
from tests.sim.cuts import Limits, crash_images
from tests.sim.disk import SimDisk
from tests.sim.faults import Faults
from tests.sim.nodes import Call

HOUR_MS = 3_600_000
LETTERS = "abcdef"
FEW = Limits(exhaustive_operations=3, sampled_subsets=6, mixtures=1, torn_points=1, max_images=12)


def filled(disk: SimDisk, clock: FixedClock) -> LogStore:
    """Two logs of one record a segment, and from now on nothing can be created or written."""
    store = open_store(disk, clock=clock, retention_ms=HOUR_MS, file_delete_delay_ms=HOUR_MS)
    for key in (A, B):
        log = store.create(key)
        for number, letter in enumerate(LETTERS):
            put(log, letter, timestamp=NOW + number)
            log.roll()
        put(log, "young", timestamp=NOW + HOUR_MS // 2)
        log.flush()
    store.checkpoint_points()
    disk.hook = Faults("ENOSPC", 0, ("create", "write"), lasting=True)
    clock.sleep_ms(HOUR_MS + 3)
    return store


@pytest.mark.requirement("RET-2", "RET-8", "RET-9")
def test_retention_frees_space_on_a_full_disk_at_once() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = filled(disk, clock)
    before = len(disk.list_directory("/data/orders-0"))
    store.run_retention()
    for key in (A, B):
        assert keys(store.get(key)) == ["d", "e", "f", "young"]
        assert store.get(key).log_start_offset == 3
        names = disk.list_directory(f"/data/{key}")
        assert not any(name.endswith(".deleted") for name in names)
    assert len(disk.list_directory("/data/orders-0")) < before
    assert store.offline_dirs == {}
    with pytest.raises(StorageFullError):
        put(store.get(A), "no room yet")
    disk.hook = None
    put(store.get(A), "room")
    store.close()
    with open_store(disk, clock=clock) as again:
        assert keys(again.get(A)) == ["d", "e", "f", "young", "room"]
        assert again.get(A).quarantine is None


@pytest.mark.requirement("RET-7")
def test_the_active_segment_stays_where_none_can_follow_it() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = filled(disk, clock)
    clock.sleep_ms(3 * HOUR_MS)
    store.run_retention()
    assert keys(store.get(A)) == ["young"]
    disk.hook = None
    store.run_retention()
    assert keys(store.get(A)) == []
    assert store.get(A).log_end_offset == len(LETTERS) + 1


@pytest.mark.requirement("RCV-1", "RET-9")
def test_a_cut_while_a_full_disk_is_relieved_leaves_no_hole(
    count_cases: Callable[[str, int], None],
) -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = filled(disk, clock)
    full = disk.hook
    assert full is not None
    images: list[SimDisk] = []

    def watch(call: Call) -> None:
        if call.changes:
            images.append(disk.fork())
        full(call)

    disk.hook = watch
    store.run_retention()
    states = 0
    for at_call in (*images, disk):
        at_call.hook = None
        for image in crash_images(at_call, Random(1), FEW):
            states += 1
            with open_store(image, clock=clock) as again:
                found = keys(again.get(A))
                assert again.get(A).quarantine is None
                assert found == [*LETTERS, "young"][-len(found) :]
                assert len(found) >= 4
    assert states > 50
    count_cases("crash states of a full disk that is relieved", states)
