"""The local disk keeps its promises when the operating system does things by halves (I1)."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stratalog.base.errors import StorageFullError, StorageIOError, TooManyFilesError
from stratalog.base.filesystem import LocalFileSystem, OpenMode

FS = LocalFileSystem()
CONTENT = Random(1).randbytes(10_000)


def written(path: Path) -> bytes:
    file = FS.open(str(path), "create")
    file.pwrite(b"head", 0)
    file.pwrite(CONTENT, 4)
    file.close()
    return path.read_bytes()


def read(path: Path, position: int, size_bytes: int) -> bytes:
    file = FS.open(str(path), "read")
    buffer = bytearray(size_bytes)
    count = file.pread_into(buffer, position)
    file.close()
    assert bytes(buffer[count:]) == bytes(size_bytes - count)
    return bytes(buffer[:count])


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Reads and writes do at most 700 bytes a call; how many each of them did."""
    counts: list[int] = []
    preadv, pwrite = os.preadv, os.pwrite

    def short_preadv(descriptor: int, buffers: list[memoryview], position: int) -> int:
        (buffer,) = buffers
        counts.append(preadv(descriptor, [buffer[:700]], position))
        return counts[-1]

    def short_pwrite(descriptor: int, data: memoryview, position: int) -> int:
        counts.append(pwrite(descriptor, data[:700], position))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", short_preadv)
    monkeypatch.setattr(os, "pwrite", short_pwrite)
    return counts


def test_short_writes_are_carried_on(tmp_path: Path, short_calls: list[int]) -> None:
    assert written(tmp_path / "a") == b"head" + CONTENT
    assert short_calls == [4, *[700] * 14, 200]


def test_short_reads_are_carried_on(tmp_path: Path, short_calls: list[int]) -> None:
    path = tmp_path / "a"
    path.write_bytes(CONTENT)
    assert read(path, 100, 2_000) == CONTENT[100:2_100]
    assert short_calls == [700, 700, 600]
    # Short only at the end of the file.
    assert read(path, 9_000, 2_000) == CONTENT[9_000:]
    assert read(path, 10_000, 5) == b""


def test_signals_do_not_shorten_anything(tmp_path: Path) -> None:
    """Python itself repeats a call that a signal interrupts (PEP 475)."""
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        while len(rung) < 20:
            assert written(tmp_path / "a") == b"head" + CONTENT
            assert read(tmp_path / "a", 4, 20_000) == CONTENT
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def failing(code: str) -> Callable[..., int]:
    number = getattr(errno, code)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("EIO", StorageIOError),
        ("EINTR", StorageIOError),
        ("EMFILE", TooManyFilesError),
        ("ENFILE", TooManyFilesError),
        ("ENOSPC", StorageFullError),
        ("EDQUOT", StorageFullError),
    ],
)
@pytest.mark.parametrize("name", ["pwrite", "preadv", "fsync", "ftruncate", "fstat"])
def test_an_error_is_told_with_the_files_name(
    code: str,
    expected: type[StorageIOError],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = str(tmp_path / "a")
    file = FS.open(path, "create")
    calls: dict[str, Callable[[], object]] = {
        "pwrite": lambda: file.pwrite(b"x", 0),
        "preadv": lambda: file.pread_into(bytearray(1), 0),
        "fsync": file.fsync,
        "ftruncate": lambda: file.truncate(0),
        "fstat": file.size_bytes,
    }
    monkeypatch.setattr(os, name, failing(code))
    with pytest.raises(StorageIOError, match=f"^{path}: ") as caught:
        calls[name]()
    assert type(caught.value) is expected


def test_a_full_disk_in_the_middle_of_a_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FS.open(str(tmp_path / "a"), "create")
    pwrite = os.pwrite

    def half_then_full(descriptor: int, data: memoryview, position: int) -> int:
        if position:
            return failing("ENOSPC")()
        return pwrite(descriptor, data[: len(data) // 2], position)

    monkeypatch.setattr(os, "pwrite", half_then_full)
    with pytest.raises(StorageFullError):
        file.pwrite(b"0123456789", 0)
    assert (tmp_path / "a").read_bytes() == b"01234"


def test_a_pipe_in_the_place_of_a_file_is_an_error_and_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    modes: tuple[OpenMode, ...] = ("read", "update")
    for mode in modes:
        file = FS.open(str(path), mode)
        with pytest.raises(StorageIOError):
            file.pread_into(bytearray(1), 0)
        file.close()
