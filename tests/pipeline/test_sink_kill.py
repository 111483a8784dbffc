"""A stream that is killed with -9, driver and workers, and started again: no row twice or lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from stratalog.record.kernel.compile import JIT
from tests.pipeline.source_rows import naive_rows
from tests.sim.sweeps import IS_SWEEP

pytestmark = [
    pytest.mark.requirement("SPK-6"),
    pytest.mark.slow,
    pytest.mark.sweep,
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]
APP = Path(__file__).with_name("sink_app.py")
ROOT = APP.parents[2]
FILES, ROWS = 8, 500
LIMIT_SECONDS = 600


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill everything that the program has started: Spark gives its workers groups of their own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(ProcessLookupError):
                if os.getsid(int(entry.name)) == process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
    process.wait()


def is_staged(log_dir: Path) -> bool:
    return any(log_dir.glob("*.staged"))


def is_pending(log_dir: Path) -> bool:
    try:
        return any(b'"pending": {' in path.read_bytes() for path in log_dir.glob("*.state"))
    except FileNotFoundError:
        return False


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "staged": is_staged,
    "pending": is_pending,
    "any": lambda _: False,
    "never": lambda _: False,
}


def run_until(moment: str, random: Random, source: Path, log_dir: Path, checkpoint: Path) -> bool:
    """Run the program and kill it at the moment; whether it was killed and not through before."""
    process = subprocess.Popen(
        [sys.executable, str(APP), str(source), str(log_dir), str(checkpoint)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    skips, was_there = random.randrange(6), False
    dies_at = time.monotonic() + LIMIT_SECONDS
    has_begun = moment != "any"
    try:
        while process.poll() is None:
            if not has_begun and is_staged(log_dir):
                has_begun, dies_at = True, time.monotonic() + random.uniform(0, 8)
            is_there = MOMENTS[moment](log_dir)
            # One of the first times that it comes, not always the very first.
            skips -= is_there and not was_there
            if (is_there and skips < 0) or time.monotonic() > dies_at:
                return True
            was_there = is_there
            time.sleep(0.002)
        assert process.returncode == 0
        return False
    finally:
        kill_session(process)


@pytest.mark.parametrize("seed", range(4 if IS_SWEEP else 1))
def test_killed_and_started_again(
    seed: int, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    random = Random(seed)
    source, log_dir = tmp_path / "source", tmp_path / "log"
    source.mkdir()
    for number in range(FILES):
        lines = range(number * ROWS, (number + 1) * ROWS)
        (source / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    paths = (source, log_dir, tmp_path / "checkpoint")
    kills = Counter(
        moment
        for moment in random.sample(["staged", "pending", "any"] * 2, 6)
        if run_until(moment, random, *paths)
    )
    assert not run_until("never", random, *paths)
    values = sorted(
        int(row["value"])
        for partition in log_dir.glob("numbers-*")
        for row in naive_rows(partition, start=0)
    )
    assert values == list(range(FILES * ROWS))
    assert not is_staged(log_dir)
    assert not is_pending(log_dir)
    count_cases("streams killed", kills.total())
    assert kills.total() > 1
