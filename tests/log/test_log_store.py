"""The log store: directories, locks, markers, checkpoints, schedules. No test sleeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    CorruptionError,
    LogLockedError,
    LogOfflineError,
    StorageFullError,
    StorageIOError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.log_store import OpenProgress
from stratalog.segment.names import TopicPartition
from tests.log.helpers import NOW
from tests.log.stores import (
    ENDS,
    MARKER,
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
    rewrite,
    there,
)
from tests.sim.disk import SimDisk

# -- directories, locks, markers -------------------------------------------------------------------


@pytest.mark.requirement("LOG-1")
def test_partitions_go_to_the_emptiest_directory_and_are_found_again() -> None:
    disk = SimDisk()
    with open_store(disk, ("/one", "/two")) as store:
        for key in (A, B, C, D):
            put(store.create(key), str(key))
        places = [store.log_dir_of(key) for key in (A, B, C, D)]
    assert places == ["/one", "/two", "/one", "/two"]

    with open_store(disk, ("/two", "/one")) as store:
        assert store.partitions() == [A, B, C, D]
        assert [keys(store.get(key)) for key in (A, B, C, D)] == [[str(k)] for k in (A, B, C, D)]
        assert [store.log_dir_of(key) for key in (A, B, C, D)] == places


def test_what_is_no_partition_is_left_alone() -> None:
    disk = SimDisk()
    for name in ("__cluster_metadata-0", "lost+found", "orders", "orders-x", "a-1.2-stray"):
        disk.make_directory(f"/data/{name}")
    disk.open("/data/notes-7", "create").close()
    with open_store(disk) as store:
        assert store.partitions() == []
        with pytest.raises(UnknownPartitionError):
            store.get(A)
        with pytest.raises(UsageError, match="no topic and partition"):
            store.create(TopicPartition("a/b", 0))
    assert disk.is_directory("/data/lost+found")
    assert disk.exists("/data/notes-7")


def test_a_partition_in_two_directories_is_refused() -> None:
    disk = SimDisk()
    for path in ("/one", "/two"):
        with open_store(disk, (path,)) as store:
            store.create(A)
    with pytest.raises(UsageError, match="lies in /one and in /two"):
        open_store(disk, ("/one", "/two"))
    open_store(disk, ("/one",)).close()  # no lock is left behind


def test_the_same_process_cannot_open_a_directory_twice(tmp_path: Path) -> None:
    filesystem = LocalFileSystem()
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    with open_store(filesystem, paths[1:]), pytest.raises(LogLockedError, match="two"):
        open_store(filesystem, paths)
    with open_store(filesystem, paths), pytest.raises(LogLockedError):
        open_store(filesystem, paths[:1])
    open_store(filesystem, paths).close()


_HOLD = """
import sys
from stratalog.base.filesystem import LocalFileSystem
release = LocalFileSystem().lock(sys.argv[1] + "/.lock", exclusive=True)
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_cannot_open_it_either(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LogLockedError, match="running process"):
            open_store(LocalFileSystem(), [str(tmp_path)])
        other.communicate("")
    open_store(LocalFileSystem(), [str(tmp_path)]).close()


@pytest.mark.requirement("RCV-2")
def test_the_lock_of_one_directory_costs_the_others_nothing() -> None:
    disk = SimDisk()
    with open_store(disk, ("/one", "/two")) as store:
        put(store.create(A), "a")
    with open_store(disk, ("/two",)), pytest.raises(LogLockedError):
        open_store(disk, ("/one", "/two"))
    assert disk.exists(f"/one/{MARKER}"), "nothing was opened, so it still was closed in order"


@pytest.mark.requirement("RCV-2")
def test_clean_shutdown_file() -> None:
    """Kafka's LogManagerTest/LogLoaderTest.testCleanShutdownFile."""
    disk = SimDisk()
    with open_store(disk) as store:
        put(store.create(A), "a", "b")
        assert not disk.exists(f"/data/{MARKER}")
    assert disk.exists(f"/data/{MARKER}")

    store = open_store(disk)
    assert not disk.exists(f"/data/{MARKER}"), "it is removed before the logs are loaded"
    assert store.get(A).recovery is None, "nothing was scanned"
    copy = disk.fork()  # as a crash of the process leaves it
    store.close()

    with open_store(copy) as store:
        recovery = store.get(A).recovery
        assert recovery is not None
        assert recovery.scanned_segments == 1
        assert keys(store.get(A)) == ["a", "b"]


@pytest.mark.requirement("RCV-2")
def test_log_recovery_is_called_upon_broker_crash() -> None:
    """Kafka's LogLoaderTest.testLogRecoveryIsCalledUponBrokerCrash: with the marker no log is
    scanned, without it each is, and the marker of a stop after an error means nothing."""
    disk = SimDisk()
    with open_store(disk) as store:
        for key in (A, B):
            put(store.create(key), "a")
    for is_clean in (True, False, True):
        if not is_clean:
            disk.unlink(f"/data/{MARKER}")
        with open_store(disk) as store:
            recovered = [store.get(key).recovery is not None for key in (A, B)]
            assert recovered == [not is_clean] * 2


@pytest.mark.requirement("RCV-2")
def test_the_marker_goes_durably_before_anything_and_comes_back_last() -> None:
    disk = SimDisk()
    with open_store(disk, ("/one", "/two")) as store:
        put(store.create(A), "a")
        put(store.create(B), "b")
    disk.sync_all()
    start = disk.operations
    store = open_store(disk, ("/one", "/two"))
    put(store.get(A), "more")
    for path in ("/one", "/two"):
        gone = changes(disk, start).index(f"unlink {path}/{MARKER}")
        touched = [n for n, call in enumerate(changes(disk, start)) if f"{path}/orders" in call]
        assert all(n > gone for n in touched)
        assert not after_cut(disk).exists(f"{path}/{MARKER}")
    store.close()
    for path in ("/one", "/two"):
        mine = [call for call in changes(disk, start) if call.split()[1].startswith(path)]
        assert mine[-3:] == [
            f"create {path}/{MARKER}",
            f"write {path}/{MARKER}",
            f"fsync_directory {path}",
        ]


@pytest.mark.requirement("RCV-2", "CLN-7")
@pytest.mark.parametrize("kind", ["write", "fsync", "create"])
def test_a_directory_in_which_closing_fails_gets_no_marker(kind: str) -> None:
    disk = SimDisk()
    store = open_store(disk, ("/one", "/two"))
    put(store.create(A), "a")
    put(store.create(B), "b")
    disk.hook = failing(
        lambda call: call.kind == kind and "/one/orders-0" in call.path, StorageIOError("no")
    )
    with pytest.raises(StorageIOError, match="no"):
        store.close()
    store.close()
    disk.hook = None
    assert not disk.exists(f"/one/{MARKER}")
    assert disk.exists(f"/two/{MARKER}")
    with open_store(disk, ("/one", "/two")) as store:
        assert keys(store.get(A)) == ["a"]
        assert store.get(A).recovery is not None
        assert store.get(B).recovery is None


@pytest.mark.requirement("RCV-2", "LOG-7")
def test_a_log_that_could_not_be_flushed_for_want_of_space_was_not_closed_in_order() -> None:
    """Its directory goes on, but what the log holds is known only after a scan."""
    disk = SimDisk()
    store = open_store(disk)
    log = store.create(A)
    put(log, "a")
    disk.hook = failing(lambda call: call.kind == "fsync", StorageFullError("full"))
    with pytest.raises(StorageFullError):
        log.flush()
    disk.hook = None
    store.close()
    assert not disk.exists(f"/data/{MARKER}")


@pytest.mark.requirement("RCV-2")
def test_a_log_that_could_not_be_opened_was_not_closed_in_order() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put(store.create(A), "a")
    put(store.create(B), "b")
    crashed = disk.fork()
    crashed.hook = failing(
        lambda call: call.kind == "open" and call.path.endswith("orders-0/" + "0" * 20 + ".log"),
        StorageIOError("too many open files"),
    )
    with open_store(crashed) as store:
        assert list(store.failed) == [A]
        with pytest.raises(LogOfflineError, match="too many open files"):
            store.get(A)
        assert keys(store.get(B)) == ["b"]
    crashed.hook = None
    with open_store(crashed) as store:
        assert store.get(A).recovery is not None, "it never was scanned"


def test_a_log_that_its_caller_closed_does_not_keep_the_store_open() -> None:
    disk = SimDisk()
    store = open_store(disk, ("/one", "/two"))
    with store.create(A) as log:
        put(log, "a")
    put(store.create(B), "b")
    store.checkpoint_starts()
    store.checkpoint_points()
    store.run_retention()
    store.close()
    with open_store(disk, ("/one", "/two")) as store:
        assert [keys(store.get(key)) for key in (A, B)] == [["a"], ["b"]]


@pytest.mark.requirement("LOG-7")
def test_new_directories_survive_a_cut() -> None:
    disk = SimDisk()
    disk.make_directory("/mnt")
    disk.sync_all()
    store = open_store(disk, ("/mnt/kafka/logs/one",), flush_messages=1)
    put(store.create(A), "a")
    with open_store(after_cut(disk), ("/mnt/kafka/logs/one",)) as again:
        assert again.partitions() == [A]
        assert keys(again.get(A)) == ["a"]


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.requirement("RCV-3")
def test_checkpoints_are_those_of_kafka() -> None:
    disk = SimDisk()
    clock = FixedClock(NOW)
    with open_store(disk, clock=clock) as store:
        put(store.create(A), *"abcdefghij")
        put(store.create(TopicPartition("a.b_c", 12)), "x")
        store.delete_records(A, 4)
        assert entries(disk.content(f"/data/{STARTS}")) == "0\n1\norders 0 4\n"
        store.flush()
        put(store.get(A), "k")
        store.checkpoint_points()
        assert entries(disk.content(f"/data/{POINTS}")) == "0\n2\na.b_c 12 1\norders 0 10\n"
        assert entries(disk.content(f"/data/{ENDS}")) == "0\n2\na.b_c 12 1\norders 0 11\n"
    assert entries(disk.content(f"/data/{POINTS}")) == "0\n2\na.b_c 12 1\norders 0 11\n"
    assert entries(disk.content(f"/data/{STARTS}")) == "0\n2\na.b_c 12 0\norders 0 4\n"


@pytest.mark.requirement("RCV-1", "RCV-3")
def test_an_unclean_reopen_scans_from_the_recovery_point() -> None:
    disk = SimDisk()
    store = open_store(disk, segment_bytes=200)
    put(store.create(A), *"abcdefghij")
    assert len(store.get(A).segments) >= 4
    store.flush()
    store.checkpoint_points()
    put(store.get(A), "k", "l")
    bases = store.get(A).segments.bases
    with open_store(disk.fork(), segment_bytes=200) as again:
        recovery = again.get(A).recovery
        assert recovery is not None
        assert recovery.first_base == max(base for base in bases if base <= 10)
        assert keys(again.get(A)) == list("abcdefghijkl")
    with open_store(after_cut(disk), segment_bytes=200) as again:
        assert keys(again.get(A))[:10] == list("abcdefghij")


@pytest.mark.requirement("RCV-1")
def test_logs_are_recovered_side_by_side_with_progress() -> None:
    disk = SimDisk()
    store = open_store(disk, ("/one", "/two"))
    logs = [store.create(TopicPartition("t", number)) for number in range(12)]
    for log in logs:
        put(log, *"abc")
    size_bytes = sum(log.segments.size_bytes for log in logs)
    seen: list[OpenProgress] = []
    with open_store(disk.fork(), ("/one", "/two"), on_progress=seen.append) as again:
        assert len(again.partitions()) == 12
    assert seen[-1] == OpenProgress(12, 12, size_bytes)
    assert [progress.opened for progress in seen] == sorted(one.opened for one in seen)
    assert {progress.partitions for progress in seen} == {12}


@pytest.mark.requirement("RCV-3", "RET-6")
@pytest.mark.parametrize("damage", [b"0\n1\norders 0 x\n", b"\0" * 40, b"0\n2\norders 0 4\n"])
def test_damaged_log_starts_take_their_directory_out_and_no_other(damage: bytes) -> None:
    """Taken for empty, they would bring deleted records back."""
    disk = SimDisk()
    with open_store(disk, ("/one", "/two")) as store:
        put(store.create(A), *"abcdef")
        put(store.create(B), "b")
        store.delete_records(A, 4)
    path = f"/one/{STARTS}"
    before = disk.content(path)
    rewrite(disk, path, damage)
    with open_store(disk, ("/one", "/two")) as store:
        assert isinstance(store.failed_dirs["/one"], CorruptionError)
        assert list(store.offline_dirs) == ["/one"]
        assert store.partitions() == [B]
        put(store.get(B), "more")
        put(store.create(C), "c")
        assert store.log_dir_of(C) == "/two"
    assert disk.content(path) == damage, "evidence stays"
    with pytest.raises(CorruptionError):
        open_store(disk, ("/one",))
    rewrite(disk, path, before)
    with open_store(disk, ("/one", "/two")) as store:
        assert store.failed_dirs == {}
        assert keys(store.get(A)) == ["e", "f"]


@pytest.mark.requirement("RCV-3", "RCV-7")
def test_damaged_recovery_points_make_every_log_be_scanned_and_nothing_be_cut() -> None:
    disk = SimDisk()
    store = open_store(disk, segment_bytes=200, flush_messages=1)
    put(store.create(A), *"abcdefghij")
    put(store.create(B), "b")
    store.checkpoint_points()
    crashed = disk.fork()
    rewrite(crashed, f"/data/{POINTS}", b"0\n1\n")
    with open_store(crashed, segment_bytes=200) as again:
        recovery = again.get(A).recovery
        assert recovery is not None
        assert recovery.scanned_segments == len(again.get(A).segments)
        assert keys(again.get(A)) == list("abcdefghij")

    torn = disk.fork()
    rewrite(torn, f"/data/{POINTS}", b"0\n1\n")
    last = [path for path in there(torn, "/data/orders-0") if path.endswith(".log")][-1]
    rewrite(torn, last, torn.content(last)[:-1])
    with open_store(torn, segment_bytes=200) as again:
        assert again.get(A).quarantine is not None
        assert keys(again.get(A)) == list("abcdefghi")
        assert again.get(B).quarantine is None
        with pytest.raises(LogOfflineError, match="quarantined"):
            put(again.get(A), "x")
    assert len(torn.content(last)) == len(disk.content(last)) - 1, "nothing was cut"


@pytest.mark.requirement("RET-6", "RCV-7")
def test_a_quarantined_log_does_not_lower_its_start() -> None:
    """It ends before its damage, which may lie below its start; the start stays as it was."""
    disk = SimDisk()
    store = open_store(disk)
    put(store.create(A), *"abcdefghij")
    store.delete_records(A, 6)
    store.flush()
    store.checkpoint_points()
    crashed = disk.fork()
    path = f"/data/orders-0/{0:020d}.log"
    content = bytearray(crashed.content(path))
    content[len(content) // 10 * 2 + 70] ^= 1  # in the third batch
    rewrite(crashed, path, bytes(content))
    with open_store(crashed) as again:
        assert again.get(A).quarantine is not None
        again.checkpoint_starts()
        assert entries(crashed.content(f"/data/{STARTS}")) == "0\n1\norders 0 6\n"
    assert entries(crashed.content(f"/data/{STARTS}")) == "0\n1\norders 0 6\n"


@pytest.mark.parametrize("leave", ["close", "abandon"])
def test_a_store_that_let_go_touches_nothing_any_more(leave: str) -> None:
    """The directory may belong to another process by then."""
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_store(disk, clock=clock, file_delete_delay_ms=1, retention_ms=1, segment_ms=1)
    put(store.create(A), "a")
    put(store.create(B), "b")
    store.delete(B)
    getattr(store, leave)()
    before = disk.operations
    clock.sleep_ms(3_600_000)
    for _ in range(3):
        store.run_due()
        store.flush()
        store.run_retention()
        store.checkpoint_points()
        store.checkpoint_starts()
    assert disk.operations == before
    with pytest.raises(UsageError, match="closed"):
        store.delete_records(A, 1)
