"""Which disks a cut may leave, worked out by hand for small cases."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import StorageIOError
from tests.sim.cuts import Limits, closed_subsets, crash_images, crash_states, sampled_subsets
from tests.sim.disk import SimDisk
from tests.sim.nodes import Call


def scene(**files: bytes) -> SimDisk:
    """A durable disk with a directory /d and these files in it."""
    disk = SimDisk()
    disk.make_directory("/d")
    for name, content in files.items():
        disk.open(f"/d/{name}", "create").pwrite(content, 0)
    return disk.sync_all()


def names_after(disk: SimDisk) -> set[tuple[str, ...]]:
    return {tuple(image.list_directory("/d")) for image in crash_images(disk, Random(1))}


def contents_after(disk: SimDisk, path: str = "/d/a") -> set[bytes]:
    return {image.content(path) for image in crash_images(disk, Random(1))}


def test_nothing_pending_leaves_one_disk() -> None:
    disk = scene(a=b"x")
    (image,) = crash_images(disk, Random(1))
    assert image.tree() == {"/d": None, "/d/a": b"x"}


def test_independent_names_survive_in_any_combination() -> None:
    disk = scene(a=b"1", b=b"2", c=b"3")
    for name in "abc":
        disk.unlink(f"/d/{name}")
    assert len(list(crash_images(disk, Random(1)))) == 8


def test_operations_on_one_name_survive_in_order() -> None:
    disk = scene(a=b"1")
    disk.rename("/d/a", "/d/b")
    disk.rename("/d/b", "/d/c")
    disk.unlink("/d/c")
    assert names_after(disk) == {("a",), ("b",), ("c",), ()}


def test_a_rename_replaces_or_does_not() -> None:
    disk = scene(a=b"old", b=b"new")
    disk.rename("/d/b", "/d/a")
    found = sorted(image.tree().items() for image in crash_images(disk, Random(1)))
    assert [dict(items) for items in found] == [
        {"/d": None, "/d/a": b"new"},
        {"/d": None, "/d/a": b"old", "/d/b": b"new"},
    ]


def test_a_swap_of_two_names_can_lose_its_first_half() -> None:
    """The hole in Kafka's protocol: `old -> .deleted` persists, `.cleaned -> .swap` does not."""
    disk = scene(log=b"old", cleaned=b"new")
    disk.rename("/d/cleaned", "/d/swap")
    disk.rename("/d/log", "/d/deleted")
    assert ("cleaned", "deleted") in names_after(disk)
    assert len(names_after(disk)) == 4


def test_a_files_fsync_does_not_keep_its_name() -> None:
    disk = scene()
    file = disk.open("/d/a", "create")
    file.pwrite(b"data", 0)
    file.fsync()
    assert names_after(disk) == {(), ("a",)}
    disk.fsync_directory("/d")
    assert names_after(disk) == {("a",)}


def test_a_directorys_fsync_keeps_its_own_names_only() -> None:
    disk = SimDisk()
    disk.make_directory("/d/e")
    disk.open("/d/e/a", "create")
    disk.fsync_directory("/d/e")
    found = {tuple(image.tree()) for image in crash_images(disk, Random(1))}
    assert found == {(), ("/d",), ("/d", "/d/e", "/d/e/a")}


def test_what_is_in_a_directory_needs_the_directory() -> None:
    disk = SimDisk()
    disk.make_directory("/d")
    disk.open("/d/a", "create")
    found = {tuple(image.tree()) for image in crash_images(disk, Random(1))}
    assert found == {(), ("/d",), ("/d", "/d/a")}


def test_a_renamed_directory_keeps_what_is_in_it() -> None:
    disk = scene(a=b"1")
    disk.rename("/d", "/e")
    disk.unlink("/e/a")
    found = {tuple(image.tree()) for image in crash_images(disk, Random(1))}
    assert found == {("/d", "/d/a"), ("/d",), ("/e", "/e/a"), ("/e",)}


def test_an_appended_file_is_found_in_these_contents() -> None:
    disk = scene(a=b"old")
    file = disk.open("/d/a", "update")
    file.pwrite(b"12", 3)
    file.pwrite(b"34", 5)
    found = contents_after(disk)
    garbage = found - {b"old", b"old12", b"old1234", b"old\0\0\0\0"}
    (only,) = garbage
    assert only.startswith(b"old")
    assert len(only) == 7


def test_a_long_append_is_torn_at_sectors() -> None:
    disk = scene(a=b"o" * 500)
    new = b"n" * 600
    disk.open("/d/a", "update").pwrite(new, 500)
    found = contents_after(disk)
    head, whole = b"o" * 500, b"o" * 500 + new
    expected = {head, whole, head + bytes(600)}
    for point in (512, 1024):
        expected |= {
            whole[:point],
            whole[:point] + bytes(1100 - point),
            head + bytes(point - 500) + whole[point:],
        }
    assert len(found - expected) == 1  # garbage
    assert expected <= found


def test_a_file_written_anew_may_be_old_or_empty_or_mixed() -> None:
    disk = scene(a=b"o" * 1024)
    disk.open("/d/a", "create").pwrite(b"n" * 1024, 0)
    found = contents_after(disk)
    assert {b"o" * 1024, b"", b"n" * 1024, bytes(1024), b"n" * 512 + b"o" * 512} <= found
    assert disk.fork().sync_all().content("/d/a") == b"n" * 1024


def test_a_cut_off_file_is_long_or_short() -> None:
    disk = scene(a=b"0123456789")
    disk.open("/d/a", "update").truncate(4)
    assert contents_after(disk) == {b"0123456789", b"0123"}


def test_an_fsync_keeps_what_was_written_before_it() -> None:
    disk = scene(a=b"")
    file = disk.open("/d/a", "update")
    file.pwrite(b"kept", 0)
    file.fsync()
    file.pwrite(b"?", 4)
    assert all(content.startswith(b"kept") for content in contents_after(disk))
    assert b"kept" in contents_after(disk)


def test_an_unlinked_file_comes_back_with_what_an_open_file_wrote() -> None:
    disk = scene(a=b"old")
    file = disk.open("/d/a", "update")
    disk.unlink("/d/a")
    file.truncate(1)
    found = [image.tree().get("/d/a") for image in crash_images(disk, Random(1))]
    assert sorted(found, key=str) == sorted([None, b"old", b"o"], key=str)


def test_an_fsync_that_failed_is_not_made_good_by_the_next() -> None:
    disk = scene(a=b"old")
    file = disk.open("/d/a", "update")
    file.pwrite(b"new", 3)

    def fail(call: Call) -> None:
        if call.kind == "fsync":
            raise StorageIOError("on purpose")

    disk.hook = fail
    with pytest.raises(StorageIOError, match="on purpose"):
        file.fsync()
    disk.hook = None
    file.fsync()
    assert b"old" in contents_after(disk)
    file.truncate(3)
    file.pwrite(b"NEW", 3)
    file.fsync()
    assert contents_after(disk) == {b"oldNEW"}


def test_many_files_deviate_one_at_a_time_and_mixed() -> None:
    disk = scene(a=b"", b=b"")
    disk.open("/d/a", "update").pwrite(b"A", 0)
    disk.open("/d/b", "update").pwrite(b"B", 0)
    found = {
        (image.content("/d/a"), image.content("/d/b"))
        for image in crash_images(disk, Random(1), Limits(mixtures=200))
    }
    # {durable, all, zeros, garbage} of each, the mixtures complete the square.
    assert len(found) == 16
    lone = {
        (image.content("/d/a"), image.content("/d/b"))
        for image in crash_images(disk, Random(1), Limits(mixtures=0))
    }
    assert len(lone) == 12


def test_closed_subsets_hold_what_they_need() -> None:
    assert sorted(closed_subsets([0, 0, 0])) == list(range(8))
    assert sorted(closed_subsets([0, 1, 2])) == [0, 1, 3, 7]
    assert sorted(closed_subsets([0, 0, 0b11])) == [0, 1, 2, 3, 7]


def test_samples_are_closed_and_have_each_operation_lost_and_kept() -> None:
    needs = [0 if i % 3 == 0 else 1 << (i - 1) for i in range(20)]
    found = sampled_subsets(needs, 500, Random(1))
    assert len(found) == len(set(found)) > 300
    for subset in found:
        assert all(not needs[i] & ~subset for i in range(20) if subset >> i & 1)
    everything = (1 << 20) - 1
    assert {0, everything, everything & ~0b111, everything & ~0b100, 0b111 << 3} <= set(found)


def test_the_enumeration_follows_from_the_seed() -> None:
    disk = scene()
    for i in range(14):
        disk.open(f"/d/{i}", "create").pwrite(bytes([i]) * 2000, 0)
    disk = disk.fork()
    limits = Limits(max_images=2_000, sampled_subsets=100)
    first, again, other = (
        [(state.number, state.fingerprint) for state in crash_states(disk, Random(seed), limits)]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert 1_000 < len(first) <= 2_000
    assert len({fingerprint for _, fingerprint in first}) == len(first)
