"""What a log store does by the clock, and what it does when a disk fails. No test sleeps."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogOfflineError, StorageFullError, StorageIOError
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.record.control import ControlType
from tests.log.helpers import NOW, sent
from tests.log.stores import (
    POINTS,
    STARTS,
    A,
    B,
    C,
    D,
    after_cut,
    changes,
    entries,
    failing,
    keys,
    open_store,
    put,
    there,
)
from tests.sim.disk import SimDisk

HOUR_MS = 3_600_000

# -- by the clock ----------------------------------------------------------------------------------


@pytest.mark.requirement("LOG-6")
def test_an_idle_segment_is_rolled_by_the_clock() -> None:
    clock = FixedClock(NOW)
    store = open_store(SimDisk(), clock=clock, segment_ms=HOUR_MS, retention_ms=-1)
    put(store.create(A), "a")
    store.create(B)  # empty: nothing to roll
    clock.time_ms += HOUR_MS
    store.run_due()
    assert store.get(A).segments.bases == (0,)
    clock.time_ms += 60_001
    store.run_due()
    assert store.get(A).segments.bases == (0, 1)
    assert store.get(B).segments.bases == (0,)
    clock.time_ms += 10 * HOUR_MS
    store.run_due()
    assert store.get(A).segments.bases == (0, 1), "the new one is empty"


@pytest.mark.requirement("LOG-7")
def test_flush_ms_bounds_what_a_cut_can_lose() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_store(disk, clock=clock, flush_ms=1_000)
    put(store.create(A), "a")
    assert store.run_due() <= 1_000
    assert store.get(A).recovery_point == 0
    clock.time_ms += 400
    put(store.get(A), "b")
    assert store.run_due() == 600, "it wakes up when the oldest is that old"
    clock.time_ms += 600
    store.run_due()
    assert store.get(A).recovery_point == 2
    with open_store(after_cut(disk)) as again:
        assert keys(again.get(A)) == ["a", "b"]
    start = disk.operations
    clock.time_ms += 1_000
    store.run_due()
    assert changes(disk, start) == [], "nothing new, nothing to flush"


@pytest.mark.requirement("LOG-7")
def test_flush_ms_does_not_wait_for_a_clock_that_was_set_back() -> None:
    clock = FixedClock(NOW)
    store = open_store(SimDisk(), clock=clock, flush_ms=1_000)
    put(store.create(A), "a")
    clock.time_ms -= HOUR_MS
    for _ in range(2):
        clock.time_ms += 1_000
        store.run_due()
    assert store.get(A).recovery_point == 1


@pytest.mark.requirement("LOG-7", "RCV-3")
def test_checkpoints_are_written_when_they_are_due() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    settings = StoreSettings(
        point_checkpoint_ms=5_000, start_checkpoint_ms=7_000, roll_check_ms=1 << 40
    )
    store = open_store(disk, clock=clock, store=settings, segment_bytes=200, retention_ms=-1)
    put(store.create(A), *"abcdef")
    store.get(A).advance_log_start(2)
    assert store.run_due() == 5_000
    assert not disk.exists(f"/data/{POINTS}")
    clock.time_ms += 5_000
    assert store.run_due() == 2_000
    # What was rolled is flushed, as Kafka does behind a roll; the rest waits for its flush.
    base = store.get(A).segments.active.base_offset
    assert 0 < base < 6
    assert entries(disk.content(f"/data/{POINTS}")) == f"0\n1\norders 0 {base}\n"
    assert not disk.exists(f"/data/{STARTS}")
    clock.time_ms += 2_000
    assert store.run_due() == 3_000
    assert entries(disk.content(f"/data/{STARTS}")) == "0\n1\norders 0 2\n"
    start = disk.operations
    clock.time_ms += 7_000
    store.run_due()
    assert not [call for call in changes(disk, start) if STARTS in call], "nothing new"


@pytest.mark.requirement("LOG-7", "RCV-1")
def test_what_was_rolled_is_durable_before_the_checkpoint_says_so() -> None:
    """Its transaction index, too: nothing below the recovery point is made anew after a crash."""
    disk = SimDisk()
    store = open_store(disk)
    log = store.create(A)
    for sequence in range(3):
        log.append(sent(7, 2 * sequence, transactional=True))
        log.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0)
        log.roll()
    put(log, "a")
    store.checkpoint_points()
    assert entries(disk.content(f"/data/{POINTS}")) == "0\n1\norders 0 9\n"
    with open_store(after_cut(disk)) as again:
        recovery = again.get(A).recovery
        assert recovery is not None
        assert recovery.first_base == 9
        assert again.get(A).view.aborted_between(0, 9) == log.view.aborted_between(0, 9)
        assert len(log.view.aborted_between(0, 9)) == 3
        assert len(list(again.get(A).read_records(0))) == 6


@pytest.mark.requirement("RET-8")
def test_files_are_unlinked_after_their_delay() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_store(disk, clock=clock, segment_bytes=200, file_delete_delay_ms=3_000)
    put(store.create(A), *"abcdefghij")
    view = store.get(A).view
    store.delete_records(A, 7)
    store.run_retention()
    assert store.get(A).segments.bases[0] > 0
    deleted = [path for path in there(disk) if path.endswith(".deleted")]
    assert deleted
    assert store.run_due() == 3_000
    clock.time_ms += 2_999
    store.run_due()
    assert [path for path in there(disk) if path.endswith(".deleted")] == deleted
    clock.time_ms += 1
    store.run_due()
    assert [path for path in there(disk) if path.endswith(".deleted")] == []
    assert [record.offset for record in view.read_records(0)] == list(range(10)), "still read"
    clock.time_ms += 1
    with open_store(disk.fork(), segment_bytes=200) as again:
        assert keys(again.get(A)) == ["h", "i", "j"]


@pytest.mark.requirement("RET-2", "RET-6", "RET-9")
def test_retention_writes_one_checkpoint_a_directory_before_any_file_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_store(
        disk, ("/one", "/two"), clock, segment_bytes=200, retention_ms=HOUR_MS, segment_ms=1 << 50
    )
    for key in (A, B, C, D):
        put(store.create(key), *"abcdef", timestamp=NOW - 2 * HOUR_MS)
        put(store.get(key), "young")
    assert store.plan_retention().keys() == {A, B, C, D}
    assert store.get(A).log_start_offset == 0, "a plan changes nothing"
    disk.sync_all()
    start = disk.operations
    clock.time_ms += 300_000
    with caplog.at_level(logging.INFO, "stratalog.log"):
        store.run_due()
    assert all("young" in keys(store.get(key)) for key in (A, B, C, D))
    assert all(store.get(key).log_start_offset >= 4 for key in (A, B, C, D))
    done = changes(disk, start)
    for path in ("/one", "/two"):
        written = [n for n, call in enumerate(done) if call == f"create {path}/{STARTS}.tmp"]
        assert len(written) == 1
        synced = done.index(f"fsync_directory {path}", written[0])
        gone = [n for n, c in enumerate(done) if c.startswith(f"rename {path}/orders")]
        assert min(gone) > synced
    reasons = [record.message for record in caplog.records if "goes by time" in record.message]
    assert Counter(line.split(":")[0] for line in reasons).keys() == {str(k) for k in (A, B, C, D)}
    with open_store(after_cut(disk), ("/one", "/two")) as again:
        assert again.get(A).log_start_offset == store.get(A).log_start_offset


@pytest.mark.requirement("RET-7")
def test_if_all_is_expired_a_new_segment_is_rolled_first() -> None:
    clock = FixedClock(NOW)
    store = open_store(SimDisk(), clock=clock, retention_ms=HOUR_MS, segment_ms=1 << 50)
    put(store.create(A), "a", "b")
    clock.time_ms += HOUR_MS
    store.run_retention()
    assert store.get(A).segments.bases == (0,), "exactly at the limit it stays"
    clock.time_ms += 1
    store.run_retention()
    assert store.get(A).segments.bases == (2,)
    assert store.get(A).log_start_offset == 2
    clock.time_ms += 100 * HOUR_MS
    assert store.run_retention() == {}, "an empty active segment neither rolls nor goes"
    put(store.get(A), "c", timestamp=clock.time_ms)
    assert keys(store.get(A)) == ["c"]


@pytest.mark.requirement("RET-10")
@pytest.mark.parametrize(
    ("policy", "kept"), [(("delete",), []), (("compact",), ["a"]), (("compact", "delete"), [])]
)
def test_with_compact_alone_nothing_is_too_old(policy: tuple[str, ...], kept: list[str]) -> None:
    clock = FixedClock(NOW)
    store = open_store(SimDisk(), clock=clock, retention_ms=HOUR_MS, cleanup_policy=policy)
    put(store.create(A), "a")
    clock.time_ms += 2 * HOUR_MS
    store.run_retention()
    assert keys(store.get(A)) == kept


@pytest.mark.requirement("LOG-14")
def test_policies_of_ones_own_are_asked() -> None:
    asked = []

    def none_go(view, _settings, now_ms):  # type: ignore[no-untyped-def]
        asked.append((len(view.segments), now_ms))
        return ()

    store = open_store(SimDisk(), store=StoreSettings(policies=lambda _: [none_go]))
    put(store.create(A), "a", timestamp=0)
    assert store.run_retention() == {}
    assert asked == [(1, NOW)]


# -- disks fail ------------------------------------------------------------------------------------


def two_disks(disk: SimDisk, **settings: object) -> LogStore:
    """A in /one, B in /two, one record each."""
    store = open_store(disk, ("/one", "/two"), **settings)  # type: ignore[arg-type]
    for key in (A, B):
        put(store.create(key), "a")
    return store


def break_one(disk: SimDisk, *kinds: str) -> None:
    disk.hook = failing(
        lambda call: call.path.startswith("/one") and (call.kind in kinds or not kinds),
        StorageIOError("input/output error"),
    )


@pytest.mark.requirement("CLN-7", "LOG-7")
@pytest.mark.parametrize(
    ("kinds", "act"),
    [
        (("write",), lambda store: put(store.get(A), "x")),
        (("fsync",), lambda store: store.get(A).flush()),
        (("create",), lambda store: store.get(A).roll()),
        (("write",), lambda store: store.delete_records(A, 1)),
        (("rename",), lambda store: store.delete(A)),
        (("create",), lambda store: store.truncate(A, 0)),
        (("fsync_directory",), lambda store: store.delete_records(A, 1)),
    ],
    ids=["append", "flush", "roll", "delete_records", "delete", "truncate", "directory fsync"],
)
def test_an_error_of_one_disk_takes_one_directory_offline(kinds, act) -> None:  # type: ignore[no-untyped-def]
    disk = SimDisk()
    store = two_disks(disk)
    break_one(disk, *kinds)
    with pytest.raises(StorageIOError, match="input/output error"):
        act(store)
    assert list(store.offline_dirs) == ["/one"]
    assert not store.get(A).is_writable or not store.get(A).is_open
    with pytest.raises((LogOfflineError, StorageIOError)):
        store.delete_records(A, 1)
    put(store.get(B), "b")
    store.create(C)
    assert store.log_dir_of(C) == "/two"
    store.flush()
    store.run_due()
    assert store.get(B).recovery_point == 2
    disk.hook = None
    store.close()
    with open_store(disk, ("/one", "/two")) as again:
        assert again.offline_dirs == {}
        assert again.get(B).recovery is None
        if A in again.partitions():
            assert again.get(A).recovery is not None
            put(again.get(A), "again")


@pytest.mark.requirement("CLN-7")
def test_background_jobs_go_on_without_the_broken_disk() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = two_disks(disk, clock=clock, segment_ms=HOUR_MS, retention_ms=4 * HOUR_MS)
    break_one(disk)
    clock.time_ms += 2 * HOUR_MS
    store.run_due()
    assert list(store.offline_dirs) == ["/one"]
    assert store.get(B).segments.bases == (0, 1)
    clock.time_ms += 4 * HOUR_MS
    store.run_due()
    clock.time_ms += HOUR_MS
    store.run_due()
    assert store.get(B).log_start_offset == 1
    assert entries(disk.content(f"/two/{POINTS}")) == "0\n1\norders 1 1\n"


@pytest.mark.requirement("CLN-7")
def test_when_all_disks_are_broken_it_says_so() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put(store.create(A), "a")
    disk.hook = failing(lambda call: call.changes, StorageIOError("gone"))
    with pytest.raises(StorageIOError):
        put(store.get(A), "b")
    with pytest.raises(LogOfflineError, match="all log directories"):
        store.create(B)
    assert keys(store.get(A)) == ["a"], "what is there is read"
    assert store.run_due() >= 0


@pytest.mark.requirement("CLN-7")
def test_a_disk_that_is_broken_at_the_start_is_left_out() -> None:
    disk = SimDisk()
    two_disks(disk).close()
    break_one(disk, "list")
    with open_store(disk, ("/one", "/two")) as store:
        assert list(store.failed_dirs) == ["/one"]
        assert store.partitions() == [B]
        put(store.get(B), "b")
    disk.hook = None
    with open_store(disk, ("/one", "/two")) as store:
        assert store.get(A).recovery is None, "nothing of it was touched"


@pytest.mark.requirement("LOG-7")
@pytest.mark.parametrize("kind", ["write", "create"])
def test_a_full_disk_is_an_error_and_no_more(kind: str) -> None:
    disk = SimDisk()
    store = open_store(disk, segment_bytes=200)
    log = store.create(A)
    put(log, "a")
    disk.hook = failing(lambda call: call.kind == kind, StorageFullError("no space left"))
    for _ in range(3):
        with pytest.raises(StorageFullError):
            put(log, *"bcd")
    held = keys(log)
    assert store.offline_dirs == {}
    disk.hook = None
    put(log, *"efgh")
    assert keys(log) == [*held, *"efgh"]
    log.flush()
    store.checkpoint_points()
    with open_store(after_cut(disk), segment_bytes=200) as again:
        assert keys(again.get(A)) == [*held, *"efgh"]
    store.close()
    with open_store(disk, segment_bytes=200) as again:
        assert again.get(A).recovery is None
        assert keys(again.get(A)) == [*held, *"efgh"]
