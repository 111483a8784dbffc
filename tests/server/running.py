"""A server as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stratalog.server.client import RemoteDesk

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
PATIENCE_SECONDS = 120.0
"""No test waits so long where things are right, however slow the machine is."""


@dataclass
class Running:
    """A process that has said where it listens."""

    process: subprocess.Popen[str]
    url: str
    errors: Path

    @property
    def desk(self) -> RemoteDesk:
        return RemoteDesk(self.url)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    def said(self) -> str:
        """What it told on stderr."""
        return self.errors.read_text(encoding="utf-8")


@contextmanager
def running(directory: Path, *options: object, port: int = 0) -> Iterator[Running]:
    """`stratalog server start DIRECTORY`, which is killed in the end if it is still there."""
    errors = directory.parent / f"{directory.name}.err"
    command = [sys.executable, "-m", "stratalog", "server", "start", str(directory)]
    command += ["--json", "--port", str(port), *map(str, options)]
    with open(errors, "w", encoding="utf-8") as told:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, errors.read_text(encoding="utf-8")
        found = json.loads(line)
        assert found["process_id"] == process.pid
        yield Running(process, found["url"], errors)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
