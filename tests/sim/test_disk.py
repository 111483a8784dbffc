"""The simulated disk gives the local disk's answers and errors: a random comparison.

Both get the same short seeded sequences of calls, files kept open over unlinks and renames among
them; after each call the answers are compared, after each sequence everything that is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import LogLockedError, StorageIOError
from stratalog.base.filesystem import File, FileSystem, LocalFileSystem
from tests.sim.disk import SimDisk
from tests.sim.nodes import PowerCut

LOCAL = LocalFileSystem()
SEQUENCES, LENGTH = 3_500, 36
PATHS = ("a", "b", "c", "d", "e", "d/a", "d/b", "d/e", "e/a", "d/e/a", "d/e/b", "a/x", "d/n/m")
SIBLINGS = (("a", "b", "c", "d", "e"), ("d/a", "d/b", "d/e"), ("d/e/a", "d/e/b"), ("e/a", "e/b"))
MAX_OPEN = 5


class Side:
    """One of the two disks with its open files and locks."""

    def __init__(self, filesystem: FileSystem, root: str):
        self.filesystem = filesystem
        self.root = root
        self.files: list[File] = []
        self.releases: list[Callable[[], None]] = []

    def at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def answer(self, call: Callable[[Side], object]) -> object:
        """What a call answers, or which error it raises."""
        try:
            return call(self)
        except (OSError, StorageIOError, LogLockedError) as error:
            return type(error)

    def open(self, path: str, mode: str) -> None:
        file = self.filesystem.open(self.at(path), mode)
        if len(self.files) < MAX_OPEN:
            self.files.append(file)
        else:
            file.close()

    def read(self, slot: int, size_bytes: int, position: int) -> bytes:
        buffer = bytearray(size_bytes)
        count = self.files[slot].pread_into(buffer, position)
        return bytes(buffer[:count])

    def size_bytes(self, slot: int) -> object:
        size_bytes = self.files[slot].size_bytes()
        self.files[slot].pread_into(bytearray(1), 0)  # raises for an open directory,
        return size_bytes  # whose size every file system decides for itself

    def size_of(self, path: str) -> object:
        size_bytes = self.filesystem.stat(self.at(path)).size_bytes
        return None if self.filesystem.is_directory(self.at(path)) else size_bytes

    def modify(self, path: str, modified_ms: int) -> int:
        self.filesystem.set_modified(self.at(path), modified_ms)
        return self.filesystem.stat(self.at(path)).modified_ms

    def same_file(self, path: str, old: str, new: str) -> tuple[bool, bool]:
        """A file's identity stays with a rename."""
        before = self.filesystem.stat(self.at(old)).file_id
        self.filesystem.rename(self.at(old), self.at(new))
        after = self.filesystem.stat(self.at(new)).file_id
        there = self.filesystem.exists(self.at(path))
        return before == after, there and self.filesystem.stat(self.at(path)).file_id == after

    def lock(self, path: str, exclusive: bool) -> None:
        self.releases.append(self.filesystem.lock(self.at(path), exclusive=exclusive))

    def let_go(self) -> None:
        for file in self.files:
            file.close()
        for release in self.releases:
            release()
            release()

    def tree(self, path: str = "") -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        for name in self.filesystem.list_directory(self.at(path)):
            below = f"{path}/{name}" if path else name
            if self.filesystem.is_directory(self.at(below)):
                found[below] = None
                found.update(self.tree(below))
                continue
            file = self.filesystem.open(self.at(below), "read")
            buffer = bytearray(file.size_bytes() + 1)
            found[below] = bytes(buffer[: file.pread_into(buffer, 0)])
            file.close()
        return found


def random_call(rng: Random, slots: int) -> Callable[[Side], object]:
    """Any call of the two Protocols, right or wrong."""
    path, n = rng.choice(PATHS), rng.randrange(22)
    if n >= 9 and slots:
        return random_file_call(rng, slots, n)
    match n:
        case 0:
            return lambda side: side.filesystem.make_directory(side.at(path))
        case 1:
            return lambda side: side.filesystem.unlink(side.at(path))
        case 2:
            return lambda side: side.filesystem.remove_directory(side.at(path))
        case 3 | 4:
            siblings = rng.choice(SIBLINGS)
            old, new = rng.choice(siblings), rng.choice(siblings)
            return lambda side: side.same_file(path, old, new)
        case 5:
            return lambda side: (
                side.filesystem.exists(side.at(path)),
                side.filesystem.is_directory(side.at(path)),
                side.size_of(path),
            )
        case 6:
            modified_ms = rng.randrange(1 << 40)
            return lambda side: side.modify(path, modified_ms)
        case 7:
            return lambda side: side.filesystem.list_directory(side.at(path))
        case 8 if rng.random() < 0.5:
            return lambda side: side.filesystem.fsync_directory(side.at(path))
        case 8:
            exclusive = rng.random() < 0.5
            lockable = rng.choice(("a", "b", "d/a", "a/x"))
            return lambda side: side.lock(lockable, exclusive)
        case _:
            mode = rng.choice(("read", "update", "create", "create"))
            return lambda side: side.open(path, mode)


def random_file_call(rng: Random, slots: int, n: int) -> Callable[[Side], object]:
    slot, position = rng.randrange(slots), rng.choice((0, 1, 7, 30, 600, -1))
    match n:
        case 9 | 10 | 11 | 12:
            path, mode = rng.choice(PATHS), rng.choice(("read", "update", "create"))
            return lambda side: side.open(path, mode)
        case 13 | 14 | 15:
            data = rng.randbytes(rng.choice((0, 1, 20, 700)))
            return lambda side: side.files[slot].pwrite(data, position)
        case 16 | 17:
            size_bytes = rng.choice((0, 1, 9, 2000))
            # A position of -1 means "where the file stands" to Linux; nobody reads there.
            return lambda side: side.read(slot, size_bytes, max(position, 0))
        case 18:
            return lambda side: side.files[slot].truncate(position)
        case 19:
            return lambda side: side.size_bytes(slot)
        case 20:
            return lambda side: side.files[slot].fsync()
        case _:
            return lambda side: side.files[slot].close()


@pytest.mark.sweep
def test_it_answers_as_the_local_disk_does(
    tmp_path: Path, count_cases: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing waits for the disk, but a closed file is still one.
    monkeypatch.setattr(os, "fsync", os.fstat)
    errors = 0
    for seed in range(SEQUENCES):
        rng = Random(seed)
        root = tmp_path / "disk"
        root.mkdir()
        disk = SimDisk()
        disk.make_directory("/disk")
        sides = Side(LOCAL, str(root)), Side(disk, "/disk")
        for step in range(LENGTH):
            call = random_call(rng, len(sides[0].files))
            answers = [side.answer(call) for side in sides]
            assert answers[0] == answers[1], (seed, step, disk.trace[-3:])
            assert len(sides[0].files) == len(sides[1].files), (seed, step)
            errors += isinstance(answers[0], type)
        assert sides[0].tree() == sides[1].tree(), seed
        for side in sides:
            side.let_go()
        shutil.rmtree(root)
    # Neither all right nor all wrong.
    assert 0.2 < errors / (SEQUENCES * LENGTH) < 0.7
    count_cases("calls compared between the simulated and the local disk", SEQUENCES * LENGTH)


def disk_with(path: str, content: bytes) -> SimDisk:
    disk = SimDisk()
    disk.make_directory(os.path.dirname(path))
    disk.open(path, "create").pwrite(content, 0)
    return disk


def test_an_open_file_outlives_its_name() -> None:
    disk = disk_with("/d/a", b"first")
    reader = disk.open("/d/a", "read")
    disk.unlink("/d/a")
    disk.open("/d/a", "create").pwrite(b"second", 0)
    buffer = bytearray(9)
    assert reader.pread_into(buffer, 0) == 5
    assert buffer[:5] == b"first"
    assert disk.content("/d/a") == b"second"


def test_a_fork_goes_its_own_way() -> None:
    disk = disk_with("/d/a", b"first")
    release = disk.lock("/d/.lock", exclusive=True)
    twin = disk.fork()
    twin.open("/d/a", "update").pwrite(b"F", 0)
    twin.unlink("/d/.lock")
    twin.lock("/d/.lock", exclusive=True)
    assert (disk.content("/d/a"), twin.content("/d/a")) == (b"first", b"First")
    assert disk.exists("/d/.lock")
    release()


def test_times_are_the_clocks() -> None:
    clock = FixedClock(5_000)
    disk = SimDisk(clock)
    file = disk.open("/a", "create")
    clock.sleep_ms(10)
    file.pwrite(b"x", 0)
    assert disk.stat("/a").modified_ms == 5_010
    disk.set_modified("/a", 77)
    assert disk.fork().stat("/a").modified_ms == 77


def test_changes_are_counted_and_reads_are_not() -> None:
    disk = SimDisk()
    heard: list[tuple[str, bool]] = []
    disk.hook = lambda call: heard.append((call.kind, call.changes))
    disk.make_directory("/d/e")
    file = disk.open("/d/e/a", "create")
    file.pwrite(b"xyz", 4)
    file.size_bytes()
    file.fsync()
    disk.list_directory("/d")
    disk.make_directory("/d/e")
    assert [str(call) for call in disk.trace] == [
        "make_directory /d",
        "make_directory /d/e",
        "create /d/e/a",
        "write /d/e/a 4 3",
        "fsync /d/e/a",
    ]
    assert disk.operations == 5
    assert [kind for kind, changes in heard if not changes] == ["size", "list", "make_directory"]


def test_the_power_is_cut_before_an_operation_and_stays_off() -> None:
    disk = SimDisk()
    disk.allowed = 2
    file = disk.open("/a", "create")
    file.pwrite(b"one", 0)
    assert disk.exists("/a")
    with pytest.raises(PowerCut):
        file.pwrite(b"two", 3)
    with pytest.raises(PowerCut):
        disk.exists("/a")
    file.close()
    assert disk.fork().content("/a") == b"one"
