"""One cause, one line: also where a log directory cannot be opened at all."""

from __future__ import annotations

from pathlib import Path

from tests.cli.helpers import stratalog


def test_a_directory_that_takes_no_writes(tmp_path: Path) -> None:
    lock = tmp_path / "data" / ".lock"
    lock.mkdir(parents=True)  # as on a disk that is read only: it cannot be opened for writing
    for command in (
        ("topic", "create", "orders", "--data", lock.parent),
        (
            "config",
            "alter",
            "--broker",
            "--add-config",
            "log.retention.ms=5",
            "--data",
            lock.parent,
        ),
        ("server", "start", lock.parent, "--port", "0"),
    ):
        done = stratalog(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"error: {lock}: Is a directory\n"


def test_one_of_two_directories_that_fail(tmp_path: Path) -> None:
    locks = [tmp_path / name / ".lock" for name in ("one", "two")]
    for lock in locks:
        lock.mkdir(parents=True)
    named = [word for lock in locks for word in ("--data", lock.parent)]
    done = stratalog("topic", "create", "orders", *named)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"log directory {locks[1].parent} is offline: {locks[1]}: Is a directory",
        f"error: {locks[0]}: Is a directory",
    ]
