"""Running the command line inside this process, or as one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stratalog.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Shell:
    """Runs commands inside this process, which is fast; the kernels are compiled already."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        self._capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return Outcome(code, out, err)


def stratalog(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m stratalog` as a process of its own."""
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "stratalog", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
