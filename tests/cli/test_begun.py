"""What was begun and cut short is told, and ended by whoever asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.admin.desk.registry import Entry, Registry, Stage, write_registry
from tests.admin.helpers import DISK
from tests.cli.helpers import Shell

# Ctrl-C once the directory is open: what follows is short, and done as a whole.
_INTERRUPTED = """
import signal, sys
from stratalog.admin.desk.topics import TopicKeeper
from stratalog.cli import main

commit = TopicKeeper.commit

def commit_and_interrupt(*given):
    signal.raise_signal(signal.SIGINT)
    commit(*given)

TopicKeeper.commit = commit_and_interrupt
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("output", ["text", "json"])
def test_an_interrupted_create_says_what_stands(tmp_path: Path, shell: Shell, output: str) -> None:
    source = str(Path(__file__).resolve().parents[2] / "src")
    command = ["topic", "create", "orders", "--data", str(tmp_path), "--format", output]
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert (done.returncode, done.stderr) == (130, "interrupted, after it was done\n")
    if output == "json":
        assert '"created": true' in done.stdout
    else:
        assert done.stdout == "Created topic orders with 1 partition.\n"
    (row,) = shell("topic", "list", "--data", tmp_path, "--format", "json").json["topics"]
    assert (row["name"], row["state"]) == ("orders", "ready")


def begin(data: Path, **entries: Entry) -> None:
    """As a full disk leaves it that lets nothing be undone."""
    write_registry(str(data), Registry(entries), DISK)


def test_a_create_that_stayed_begun_is_told_and_ended_by_the_next(
    tmp_path: Path, shell: Shell
) -> None:
    words = {"retention.ms": "5"}
    begin(tmp_path, orders=Entry(2, words, Stage.CREATING, made=True))
    (tmp_path / "orders-0").mkdir()
    listed = shell("topic", "list", "--data", tmp_path)
    assert "warning: topic orders is creating: unless somebody is at it now" in listed.err
    same = ("--partitions", 2, "--config", "retention.ms=5")
    done = shell("topic", "create", "orders", *same, "--data", tmp_path)
    assert (done.code, done.out) == (0, "Created topic orders with 2 partitions.\n")
    assert "warning: it had been begun before, and was cut short: it is ended now" in done.err
    assert shell("topic", "list", "--data", tmp_path).err == ""
    assert shell("topic", "create", "orders", *same, "--data", tmp_path).code == 1


def test_a_create_of_something_else_is_refused_when_the_first_is_ended(
    tmp_path: Path, shell: Shell
) -> None:
    begin(tmp_path, orders=Entry(2, {}, Stage.CREATING, made=True))
    done = shell("topic", "create", "orders", "--data", tmp_path)
    assert (done.code, done.err) == (1, "error: Topic 'orders' already exists.\n")
    (row,) = shell("topic", "list", "--data", tmp_path, "--format", "json").json["topics"]
    assert (row["partitions"], row["state"]) == (2, "ready")


def test_a_name_whose_deletion_stayed_begun_is_free(tmp_path: Path, shell: Shell) -> None:
    shell("topic", "create", "orders", "--data", tmp_path)
    begin(tmp_path, orders=Entry(1, {}, Stage.DELETING, made=True))
    assert "topic orders is deleting" in shell("topic", "list", "--data", tmp_path).err
    done = shell("topic", "create", "orders", "--partitions", 3, "--data", tmp_path)
    assert (done.code, done.out) == (0, "Created topic orders with 3 partitions.\n")


def test_a_deletion_that_stayed_begun_is_ended_by_the_next(tmp_path: Path, shell: Shell) -> None:
    shell("topic", "create", "orders", "--data", tmp_path)
    begin(tmp_path, orders=Entry(1, {}, Stage.DELETING, made=True))
    done = shell("topic", "delete", "orders", "--no-confirm", "--data", tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith("Deleted topic orders")
    assert shell("topic", "list", "--data", tmp_path).out == ""
