"""Starting up: help is light and quick, and the package runs as a module."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratalog import __version__
from tests.cli.helpers import Shell, stratalog

_PROBE = """
import sys
sys.argv = ["stratalog", *{arguments!r}]
from stratalog.cli import main
code = main()
heavy = [name for name in ("numba", "numpy", "pyspark", "rich", "cramjam") if name in sys.modules]
print("HEAVY", heavy, code)
"""


def _probe(*arguments: str) -> str:
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(arguments=list(arguments))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["compact", "--help"],
        ["log", "verify", "--help"],
        ["import", "-h"],
        ["warmup", "--help"],
        ["topic", "create", "--help"],
        ["config", "alter", "--help"],
        ["compaction", "run", "--help"],
        ["records", "delete", "--help"],
    ],
)
def test_help_loads_neither_kernels_nor_spark(arguments: list[str]) -> None:
    assert _probe(*arguments) == "HEAVY [] 0"


def test_wrong_usage_is_told_without_loading_them_either(tmp_path: Path) -> None:
    assert _probe("compact", str(tmp_path)) == "HEAVY [] 2"
    assert _probe("topic", "delete", "orders", "--data", str(tmp_path)) == "HEAVY [] 2"
    assert _probe("config", "describe", "--data", str(tmp_path)) == "HEAVY [] 2"


def test_a_server_is_asked_without_loading_them() -> None:
    assert _probe("topic", "list", "--server", "http://127.0.0.1:1") == "HEAVY [] 1"


def test_help_is_quick() -> None:
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        stratalog("--help")
        seconds.append(time.perf_counter() - started)
    # 0.15 s on an idle core here; the bound leaves room for a busy machine.
    assert min(seconds) < 1


def test_version_and_help(shell: Shell) -> None:
    assert shell("--version").out == f"stratalog {__version__}\n"
    assert "compact" in shell("--help").out
    assert shell().code == 2
    done = stratalog("--version")
    assert (done.returncode, done.stdout) == (0, f"stratalog {__version__}\n")
