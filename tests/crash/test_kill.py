"""kill -9 on a process that writes, deletes and cleans: nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SWEEP = os.environ.get("STRATALOG_SWEEP") == "1"
KILLS = 10_000 if SWEEP else 320


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-5", "LOG-7", "RET-6", "CMP-12")
def test_kills_lose_nothing(tmp_path: Path, count_cases: Callable[[str, int], None]) -> None:
    """A kill leaves the page cache: what is written need not be on a disk, nor the directory."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.writer", str(tmp_path / "logs"), str(KILLS), "kill"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    assert counts["kills"] == KILLS
    # The writers came far enough to be worth killing, and died in the middle of steps.
    for step in ("append", "marker", "start", "clean"):
        assert counts[f"acknowledged: {step}"] > KILLS // 10, step
    assert counts["steps in flight found done"] > KILLS // 20
    assert counts["steps in flight undone"] > KILLS // 20
    for name, count in counts.items():
        count_cases(f"kill -9: {name}", count)
