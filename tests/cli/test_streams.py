"""What becomes of a command whose output nobody takes: as with other Unix tools."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.cli import main
from tests.admin.helpers import records, write_log
from tests.cli.helpers import Shell

SOURCE = str(Path(__file__).resolve().parents[2] / "src")


def sh(script: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """A script of the shell, in which $S is `stratalog` and $1 the first of the arguments."""
    return subprocess.run(
        ["/bin/sh", "-c", script, "sh", *map(str, arguments)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCE, "S": f"{sys.executable} -m stratalog"},
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_log(tmp_path / "data" / "orders-0", [[records("ab" * 20)] * 50])
    return tmp_path / "data"


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_reader_that_has_seen_enough(data: Path, output: str) -> None:
    # The pipe's end that would be read is closed before the command begins.
    program = (
        "import os, subprocess, sys; read, write = os.pipe(); os.close(read); "
        "done = subprocess.run(sys.argv[1:], stdout=write, stderr=subprocess.PIPE); "
        "print(done.returncode, done.stderr)"
    )
    dump = ["-m", "stratalog", "log", "dump", str(data), "--format", output]
    done = subprocess.run(
        [sys.executable, "-c", program, sys.executable, *dump],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.stdout == "141 b''\n", done.stderr


def test_a_stdout_that_is_closed_is_an_error(data: Path) -> None:
    for command in ("topic list --data $1", "topic list --data $1 --format json", "log dump $1"):
        done = sh(f"$S {command} >&-", data)
        assert (done.returncode, done.stdout) == (1, b""), command
        assert done.stderr == b"error: Bad file descriptor\n", command
    # What has nothing to say has nothing to fail at.
    assert sh("$S topic list --data $1 --exclude-internal >&-", data.parent).returncode == 0


def test_no_file_gets_the_number_of_a_stream_that_is_closed(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*.log")}
    done = sh("$S compact $1 --in-place --engine local 0<&- >&- 2>&-", data)
    assert done.returncode in (0, 1)
    assert (done.stdout, done.stderr) == (b"", b"")
    verified = sh("$S log verify $1", data)
    assert verified.returncode == 0, verified.stdout
    assert before.keys() <= {*data.rglob("*.log")}


def test_usage_errors_do_not_go_to_stdout(data: Path) -> None:
    done = sh("$S topic lis --data $1 2>&-", data)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_full_disk_under_stdout_is_an_error(data: Path) -> None:
    done = sh("$S topic list --data $1 >/dev/full", data)
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


def test_names_that_are_no_text_make_json_all_the_same(data: Path) -> None:
    for output in ("json", "text"):
        done = sh(f"$S topic describe $(printf 'a\\377\\033[2J') --data $1 --format {output}", data)
        assert done.returncode == 1
        assert b"\033" not in done.stdout + done.stderr
        assert b"is no topic name" in done.stdout + done.stderr
    assert json.loads(
        sh("$S topic describe $(printf 'a\\377') --data $1 --format json", data).stdout
    )


def test_what_is_given_by_the_megabyte_is_not_given_back(data: Path, shell: Shell) -> None:
    for output in ("json", "text"):
        for command in (
            ("topic", "create", "a b" * 100_000),
            ("config", "alter", "orders", "--add-config", f"retention.ms={'x' * 100_000}"),
            ("config", "alter", "orders", "--add-config", "y" * 100_000),
        ):
            done = shell(*command, "--data", data, "--format", output)
            assert done.code in (1, 2)
            assert len(done.out) + len(done.err) < 5000


def test_a_program_may_take_stdout_as_text(data: Path) -> None:
    """What stands for stdout then has no encoding."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["topic", "list", "--data", str(data), "--format", "json"]) == 0
    assert json.loads(out.getvalue())["ok"]


def test_a_time_out_that_is_no_number(data: Path, shell: Shell) -> None:
    done = shell("server", "stop", data, "--timeout", "nan", "--format", "json")
    assert done.code == 2
    assert (
        done.json["error"]["message"] == "Invalid value for --timeout: it is no number of seconds"
    )
