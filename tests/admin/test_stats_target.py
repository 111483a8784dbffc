"""Where the page of `stats --html` may go: a regular file, outside the logs, as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from stratalog.admin.directories import find_partitions
from stratalog.admin.page.target import check_target, write_page
from stratalog.base.errors import StorageFullError, UsageError
from tests.admin.helpers import DISK, write_log


def _refused(path: str, log_dir: Path) -> str:
    with pytest.raises(UsageError) as caught:
        check_target(path, find_partitions([str(log_dir)], DISK))
    return str(caught.value)


def _others(tmp_path: Path) -> Iterable[tuple[Path, str]]:
    yield tmp_path, "is a directory"
    (tmp_path / "link.html").symlink_to(tmp_path / "elsewhere.html")
    yield tmp_path / "link.html", "is a link"
    os.mkfifo(tmp_path / "pipe")
    yield tmp_path / "pipe", "is no regular file"
    yield tmp_path / "none" / "page.html", "there is no directory"
    (tmp_path / "file").write_text("x")
    yield tmp_path / "file" / "page.html", "there is no directory"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions, one level below where the page may go."""
    for name in ("packed-0", "empty-0"):
        write_log(tmp_path / "logs" / name, [[]])
    return tmp_path / "logs"


def test_nothing_but_a_regular_file_is_replaced(log_dir: Path, tmp_path: Path) -> None:
    for path, reason in _others(tmp_path):
        before = path.lstat().st_mode if os.path.lexists(path) else None
        assert reason in _refused(str(path), log_dir)
        assert (path.lstat().st_mode if os.path.lexists(path) else None) == before
    with pytest.raises(UsageError, match="is a link"):
        write_page(str(tmp_path / "link.html"), "page")
    assert not (tmp_path / "elsewhere.html").exists()


def test_no_page_among_the_logs(log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(log_dir)
    for parent in (log_dir, log_dir / "packed-0", tmp_path / "way", tmp_path / "way" / "empty-0"):
        assert "lies in the log directory" in _refused(str(parent / "page.html"), log_dir)
    assert "lies in the log directory" in _refused(str(log_dir / "page.html"), log_dir / "packed-0")
    check_target(str(log_dir.parent / "page.html"), find_partitions([str(log_dir)], DISK))


def test_the_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    assert write_page(str(path), "one ä") == 6
    assert path.read_text() == "one ä"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError, match="No space left"):
        write_page(str(path), "two")
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "one ä"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
