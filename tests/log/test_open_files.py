"""A process that may open no more files: told, nothing offline, nothing lost, and on it goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.requirement("LOG-7", "CLN-7")
def test_a_process_at_its_limit_of_open_files_loses_no_log(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.log.out_of_files", str(tmp_path / "logs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    errors = json.loads(done.stdout)
    for step in ("append", "roll", "create", "clean", "open"):
        assert errors.get(step, 0) > 0, errors
