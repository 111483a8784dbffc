"""The lock of a log directory is Kafka's: a POSIX lock on `.lock`, held by a live process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog.admin.report import Mode
from stratalog.base.errors import LogLockedError, StorageIOError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.locking import locked
from tests.admin.helpers import records, run, tree, write_log

_HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "a+")
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_process(log_dir: Path) -> Iterator[None]:
    """What a running broker does."""
    arguments = [sys.executable, "-c", _HOLD, str(log_dir / ".lock")]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate()


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_directory_of_a_live_process_is_refused_until_it_ends(
    tmp_path: Path, exclusive: bool
) -> None:
    with (
        held_by_another_process(tmp_path),
        pytest.raises(LogLockedError, match=str(tmp_path)),
        locked([tmp_path.as_posix()], LocalFileSystem(), exclusive=exclusive),
    ):
        raise AssertionError
    with locked([tmp_path.as_posix()], LocalFileSystem(), exclusive=exclusive):
        pass
    assert (tmp_path / ".lock").exists()


def test_whoever_changes_a_directory_keeps_others_out(tmp_path: Path) -> None:
    probe = "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'a+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    arguments = [sys.executable, "-c", probe, str(tmp_path / ".lock")]
    with locked([str(tmp_path), str(tmp_path / ".")], LocalFileSystem(), exclusive=True):
        assert subprocess.run(arguments, capture_output=True, check=False).returncode != 0
    assert subprocess.run(arguments, capture_output=True, check=False).returncode == 0


def test_whoever_only_reads_makes_no_lock_file(tmp_path: Path) -> None:
    with locked([str(tmp_path)], LocalFileSystem(), exclusive=False):
        assert list(tmp_path.iterdir()) == []
    with (
        pytest.raises(StorageIOError),
        locked([str(tmp_path / "none")], LocalFileSystem(), exclusive=True),
    ):
        raise AssertionError


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("target", [".", "orders-0"])
def test_compact_refuses_a_locked_directory(tmp_path: Path, mode: Mode, target: str) -> None:
    log_dir = tmp_path / "data"
    write_log(log_dir / "orders-0", [[records("aab")]])
    before = tree(tmp_path)
    with held_by_another_process(log_dir), pytest.raises(LogLockedError):
        run([log_dir / target], mode, out=tmp_path / "out" if mode is Mode.OUT else None)
    assert tree(tmp_path) == before
