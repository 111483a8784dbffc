"""Ctrl-C while Spark's Java starts: one line, and nobody is left who would complain later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.admin.helpers import records, write_log

# The interrupt comes when Java has just been begun, wherever the machine is by then.
_INTERRUPTED = """
import signal, sys
from pyspark import java_gateway
from stratalog.cli import main

sleep = java_gateway.time.sleep
begun = []

class Begun(java_gateway.Popen):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        with open(sys.argv[1], "w") as file:
            print(self.pid, file=file)
        begun.append(self)

def sleep_and_interrupt(seconds):
    if begun:
        signal.raise_signal(signal.SIGINT)
    sleep(seconds)

java_gateway.Popen = Begun
java_gateway.time.sleep = sleep_and_interrupt
sys.exit(main(sys.argv[2:]))
"""


def test_an_interrupted_start_leaves_no_java(tmp_path: Path) -> None:
    write_log(tmp_path / "data" / "orders-0", [[records("aab")], [records("b")]])
    source = str(Path(__file__).resolve().parents[2] / "src")
    number = tmp_path / "pid"
    command = ["compact", str(tmp_path / "data"), "--dry-run", "--engine", "spark"]
    # The pipe of stderr is at its end when the last process that has it is gone, Java among them.
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(number), *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.split() == ["engine:", "spark", "(local[*])", "error:", "interrupted"]
    assert not Path("/proc", number.read_text().strip()).exists()
