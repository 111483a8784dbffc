"""The log store: partitions come and go, and so do records."""

from __future__ import annotations

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    LogOfflineError,
    OffsetOutOfRangeError,
    PartitionExistsError,
    PolicyViolationError,
    StorageFullError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.log.log_store import LOG_END
from stratalog.record.builder import NewRecord, assign_offsets, build_batch
from stratalog.segment.names import TopicPartition
from tests.log.helpers import NOW
from tests.log.stores import (
    POINTS,
    STARTS,
    A,
    B,
    after_cut,
    entries,
    failing,
    keys,
    open_store,
    put,
    rewrite,
    there,
)
from tests.sim.disk import SimDisk

# -- partitions come and go ------------------------------------------------------------------------


@pytest.mark.requirement("LOG-7")
def test_a_partition_that_was_created_is_there_after_a_cut() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.create(A)
    with pytest.raises(PartitionExistsError):
        store.create(A)
    with open_store(after_cut(disk)) as again:
        assert again.partitions() == [A]
        assert again.get(A).log_end_offset == 0


@pytest.mark.parametrize(
    "bad",
    [
        TopicPartition("x", -1),
        TopicPartition("x", 1 << 31),
        TopicPartition("..", 0),
        TopicPartition("a/b", 0),
        TopicPartition("y" * 250, 0),
        TopicPartition("y" * 249, 2_147_483_647),
    ],
)
def test_what_no_directory_can_be_named_is_refused(bad: TopicPartition) -> None:
    disk = SimDisk()
    with open_store(disk) as store:
        put(store.create(A), "a")
        with pytest.raises(UsageError, match="is no topic and partition"):
            store.create(bad)
        assert store.offline_dirs == {}
    with open_store(disk) as store:
        assert store.partitions() == [A]


@pytest.mark.parametrize("size", [1, 205, 213, 214, 249])
def test_a_topic_of_any_length_can_be_deleted(size: int) -> None:
    disk = SimDisk()
    long = TopicPartition("y" * size, 0)
    with open_store(disk) as store:
        put(store.create(long), "a")
        store.delete(long)
        (doomed,) = (name for name in disk.list_directory("/data") if name.endswith("-delete"))
        assert len(doomed) <= 255
        assert store.offline_dirs == {}
    with open_store(disk) as store:
        assert store.partitions() == []
    assert not any(name.endswith("-delete") for name in disk.list_directory("/data"))


@pytest.mark.requirement("RCV-7")
def test_segments_that_are_missing_at_the_front_are_noticed() -> None:
    disk = SimDisk()
    with open_store(disk) as store:
        log = store.create(A)
        for value in "abc":
            put(log, value)
            log.roll()
    for name in disk.list_directory("/data/orders-0"):
        if name.startswith("0" * 20):
            disk.unlink(f"/data/orders-0/{name}")
    with open_store(disk) as store:
        assert "its first segment at 1" in str(store.get(A).quarantine)
        assert keys(store.get(A)) == ["b", "c"]


def test_a_partition_that_was_deleted_is_gone_and_leaves_nothing_behind() -> None:
    disk, clock = SimDisk(), FixedClock(NOW)
    store = open_store(disk, clock=clock, file_delete_delay_ms=1_000)
    put(store.create(A), *"abcdef")
    put(store.create(B), "b")
    store.delete_records(A, 4)
    store.flush()
    store.checkpoint_points()
    view = store.get(A).view
    store.delete(A)
    with pytest.raises(UnknownPartitionError):
        store.get(A)
    assert [record.offset for record in view.read_records(4)] == [4, 5], "a reader goes on"
    for image in (disk.fork(), after_cut(disk)):
        assert "orders 0" not in image.content(f"/data/{STARTS}").decode()
        assert "orders 0" not in image.content(f"/data/{POINTS}").decode()
        with open_store(image) as again:
            assert again.partitions() == [B]
        assert [p for p in there(image) if "orders-0" in p] == []

    assert [p for p in there(disk) if "-delete/" in p], "its files wait"
    again_a = store.create(A)
    assert (again_a.log_start_offset, again_a.log_end_offset) == (0, 0)
    put(again_a, "new")
    clock.time_ms += 1_000
    store.run_due()
    assert [p for p in there(disk) if "-delete/" in p] == []
    assert keys(store.get(A)) == ["new"]
    store.close()
    with open_store(disk) as store:
        assert keys(store.get(A)) == ["new"]


@pytest.mark.requirement("RET-6")
def test_a_partition_of_the_same_name_does_not_begin_where_the_deleted_one_ended() -> None:
    """However far deleting it had come: a crash at each of its operations, then a new one."""
    disk = SimDisk()
    store = open_store(disk, flush_messages=1)
    put(store.create(A), *"abcdefghij")
    put(store.create(B), "b")
    store.delete_records(A, 8)
    store.checkpoint_points()
    disk.sync_all()
    images: list[SimDisk] = []
    disk.hook = lambda call: images.append(disk.fork()) if call.changes else None
    store.delete(A)
    disk.hook = None
    images.append(disk.fork())
    assert len(images) > 5
    gone = 0
    for image in images:
        with open_store(image) as again:
            if A in again.partitions():
                assert keys(again.get(A)) == ["i", "j"]
                continue
            gone += 1
        # Made anew, flushed, then the process dies before any checkpoint is written.
        again = open_store(image, flush_messages=1)
        put(again.create(A), "x", "y", "z")
        crashed = image.fork()
        with open_store(crashed) as last:
            assert keys(last.get(A)) == ["x", "y", "z"]
    assert gone > 3


# -- records go ------------------------------------------------------------------------------------


@pytest.mark.requirement("RET-6")
def test_deleted_records_stay_deleted_from_the_moment_that_is_acknowledged() -> None:
    disk = SimDisk()
    store = open_store(disk, flush_messages=1)
    put(store.create(A), *"abcdef")
    for offset, start in ((2, 2), (1, 2), (2, 2), (5, 5), (LOG_END, 6)):
        assert store.delete_records(A, offset) == start
        for image in (disk.fork(), after_cut(disk)):
            with open_store(image) as again:
                assert again.get(A).log_start_offset == start
                assert keys(again.get(A)) == list("abcdef")[start:]
                with pytest.raises(OffsetOutOfRangeError):
                    again.get(A).read(start - 1)
    for offset in (-2, 7):
        with pytest.raises(OffsetOutOfRangeError):
            store.delete_records(A, offset)


@pytest.mark.requirement("RET-10")
def test_a_topic_that_is_only_compacted_refuses_to_delete_records() -> None:
    store = open_store(SimDisk(), cleanup_policy=("compact",))
    put(store.create(A), "a")
    with pytest.raises(PolicyViolationError, match=r"cleanup\.policy"):
        store.delete_records(A, 1)
    both = open_store(SimDisk(), cleanup_policy=("compact", "delete"))
    put(both.create(A), "a")
    assert both.delete_records(A, 1) == 1


@pytest.mark.requirement("RET-6")
def test_what_fails_to_be_deleted_is_not_deleted() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put(store.create(A), *"abc")
    disk.hook = failing(
        lambda call: call.kind == "write" and STARTS in call.path, StorageFullError("full")
    )
    with pytest.raises(StorageFullError):
        store.delete_records(A, 2)
    disk.hook = None
    assert keys(store.get(A)) == list("abc")
    assert store.delete_records(A, 1) == 1
    store.get(A).take_offline("its disk smells")
    with pytest.raises(LogOfflineError):
        store.delete_records(A, 3)
    with open_store(disk.fork()) as again:
        assert keys(again.get(A)) == ["b", "c"]


@pytest.mark.requirement("RET-6")
def test_truncation_is_durable_and_lowers_the_checkpoints_first() -> None:
    disk = SimDisk()
    store = open_store(disk, segment_bytes=200, flush_messages=1)
    put(store.create(A), *"abcdefghij")
    store.checkpoint_points()
    assert store.truncate(A, 5) == 5
    for image in (disk.fork(), after_cut(disk)):
        with open_store(image, segment_bytes=200) as again:
            assert again.get(A).quarantine is None
            assert keys(again.get(A)) == list("abcde")
    put(store.get(A), "x")
    torn = disk.fork()
    path = [path for path in there(torn, "/data/orders-0") if path.endswith(".log")][-1]
    rewrite(torn, path, torn.content(path)[:-1])
    with open_store(torn, segment_bytes=200) as again:
        assert again.get(A).quarantine is None, "what came later was never taken for flushed"
        assert keys(again.get(A)) == list("abcde")


@pytest.mark.requirement("RET-6", "RCV-7")
def test_truncation_inside_a_batch_lowers_the_recovery_point_to_its_start() -> None:
    disk = SimDisk()
    store = open_store(disk, flush_messages=1)
    log = store.create(A)
    put(log, "a", "b")
    log.append_records([NewRecord(b"%d" % number, b"v", NOW) for number in range(6)])
    store.checkpoint_points()
    assert store.truncate(A, 5) == 2
    assert entries(disk.content(f"/data/{POINTS}")) == "0\n1\norders 0 2\n"


@pytest.mark.requirement("RET-6", "RCV-7")
def test_a_log_truncated_into_the_gap_at_its_front_goes_on_at_its_start() -> None:
    """Compaction has left nothing between the log start and the first batch."""
    disk = SimDisk()
    with open_store(disk) as store:
        log = store.create(A)
        data = bytearray(build_batch([NewRecord(b"k", b"v", NOW)]))
        assign_offsets(data, 6, 0)
        log.append_as_follower(data)
        store.delete_records(A, 3)
        assert store.truncate(A, 5) == 3
        put(log, "again")
    with open_store(disk) as store:
        log = store.get(A)
        assert log.quarantine is None
        assert [record.offset for record in log.read_records(3)] == [3]
