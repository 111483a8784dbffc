"""The driver of a stream is killed with -9, its JVM and workers with it, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stratalog.record.builder import NewRecord
from stratalog.record.kernel.compile import JIT
from tests.log.helpers import NOW, open_log
from tests.sim.sweeps import IS_SWEEP

pytestmark = [
    pytest.mark.requirement("SPK-5"),
    pytest.mark.slow,
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
    pytest.mark.xdist_group("spark"),
]
Count = Callable[[str, int], None]
APP = Path(__file__).with_name("stream_app.py")
KILLS = 4 if IS_SWEEP else 1


def append(path: Path, first: int, count: int) -> None:
    with open_log(path) as log:
        for number in range(first, first + count, 5):
            log.append_records(
                [NewRecord(b"k", b"v%d" % at, NOW) for at in range(number, number + 5)]
            )


def started(root: Path, how: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(APP.parent.parent.parent)}
    with (root / "app.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(APP), str(root), how],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def written(root: Path) -> int:
    return len(list((root / "out").iterdir()))


def test_each_record_once_though_the_driver_is_killed(tmp_path: Path, count_cases: Count) -> None:
    (tmp_path / "out").mkdir()
    random = Random(5)
    counts = {"a-0": 0, "a-1": 0}

    def more(name: str, count: int) -> None:
        append(tmp_path / "logs" / name, counts.setdefault(name, 0), count)
        counts[name] += count

    more("a-0", 400)
    more("a-1", 100)
    for kill in range(KILLS):
        app = started(tmp_path, "on")
        try:
            before = written(tmp_path)
            while written(tmp_path) < before + 3:
                assert app.poll() is None, (tmp_path / "app.log").read_text()[-3000:]
                time.sleep(0.02)
            time.sleep(random.random())
        finally:
            os.killpg(app.pid, signal.SIGKILL)
            app.wait()
        more("a-0", 100)
        more(f"a-{2 + kill}", 50)
    app = started(tmp_path, "now")
    try:
        assert app.wait(1800) == 0, (tmp_path / "app.log").read_text()[-3000:]
    finally:
        if app.poll() is None:
            os.killpg(app.pid, signal.SIGKILL)
            app.wait()
    seen = Counter(
        (row[0], row[1], row[2], row[3])
        for path in (tmp_path / "out").iterdir()
        for row in json.loads(path.read_text())
    )
    expected = {
        ("a", int(name[2:]), offset, f"v{offset}")
        for name, count in counts.items()
        for offset in range(count)
    }
    assert set(seen) == expected
    assert max(seen.values()) == 1
    count_cases("drivers of streams killed with -9", KILLS)
    count_cases("records of streams whose driver was killed", len(expected))
