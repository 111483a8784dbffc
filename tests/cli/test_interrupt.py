"""Ctrl-C: a short message, exit code 130, and a directory as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.base.errors import StorageIOError
from stratalog.cli.progress import ProgressBar
from tests.admin.helpers import records, tree, write_log

_INTERRUPTED = """
import os, signal, sys
from stratalog.clean import meter
from stratalog.cli import main

add = meter.Meter.add

def add_and_interrupt(meter, size_bytes):
    if meter.phase == "rewrite":
        os.kill(os.getpid(), signal.SIGINT)
    add(meter, size_bytes)

meter.Meter.add = add_and_interrupt
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("mode", [["--in-place"], ["--out", "OUT"], ["--dry-run"]])
@pytest.mark.parametrize("output", ["text", "json"])
def test_ctrl_c_while_rewriting(tmp_path: Path, mode: list[str], output: str) -> None:
    log_dir = tmp_path / "data"
    write_log(log_dir / "orders-0", [[records("aab"), records("ab")], [records("b")]])
    before = tree(tmp_path)
    given = [str(tmp_path / "out") if item == "OUT" else item for item in mode]
    source = str(Path(__file__).resolve().parents[2] / "src")
    options = [*given, "--engine", "local", "--threads", "2", "--format", output]
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, "compact", str(log_dir), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "interrupted" in (done.stdout if output == "json" else done.stderr)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (ImportError("numba._devicearray failed to import"), KeyboardInterrupt),
        (StorageIOError("no space"), StorageIOError),
    ],
)
def test_what_a_library_makes_of_ctrl_c_is_the_interrupt(
    raised: Exception, becomes: type[BaseException]
) -> None:
    with pytest.raises(becomes), ProgressBar():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # as C does whose import is cut short
            raise raised from None


def test_without_ctrl_c_an_error_of_a_library_stays_what_it_is() -> None:
    with pytest.raises(ImportError, match="gone"), ProgressBar():
        raise ImportError("gone")


_HUSHED = """
import logging
from stratalog.cli.engines import hush_py4j
hush_py4j()
logging.basicConfig()
logging.getLogger("py4j.clientserver").error("Exception while shutting down connection")
logging.getLogger("mine").error("kept")
"""


def test_what_py4j_logs_of_a_call_that_was_cut_short_is_not_shown() -> None:
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", _HUSHED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.stderr == "ERROR:mine:kept\n"
