"""Every benchmark runs, on tiny logs, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.record.kernel.compile import JIT

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

TABLES = {
    "clean_bench.py": ["Speed on two threads", "Where the time goes"],
    "spark_bench.py": ["Spark takes"],
    "spark_skew_bench.py": ["worst: "],
    "spark_scale_bench.py": ["Spark, 2 executors: ", "Spark, 2 cores: "],
    "spark_read_bench.py": ["The log takes", "view=latest is"],
    "spark_write_bench.py": ["The log takes"],
    "spark_latest_bench.py": ["The shuffle is faster"],
    "ledger_bench.py": ["Into a ledger", "upon the last one"],
    "memory_bench.py": ["Bound: memory_bytes + buffers"],
    "kernels_bench.py": ["Steps on one thread", "Codecs on one thread"],
    "recovery_bench.py": ["Opening 20 partitions", "Recovering 2 MiB"],
    "idle_bench.py": ["Jobs, processor time of one call", "Idle, 50 partitions"],
    "cleaning_beside_bench.py": ["Beside the cleaner, logs of 2 MiB"],
    "api_bench.py": ["Values of 100 bytes: ", "Beginnings (aim"],
    "append_bench.py": ["Appending on one thread, page cache", "Steps without flush"],
}
SESSIONS = {"spark_scale_bench.py", "spark_skew_bench.py", "ledger_bench.py"}
"""Several sessions or many runs each: half a minute and more, which not every day has."""


def test_every_benchmark_is_run_here() -> None:
    assert {path.name for path in BENCHMARKS.glob("*_bench.py")} == set(TABLES)


# A plain Python kernel takes minutes for what is tiny here, and nobody wants to know how many.
@pytest.mark.skipif(not JIT, reason="a benchmark of kernels that are not compiled")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=(
                *(
                    [pytest.mark.xdist_group("spark")]
                    if "spark" in name or name in SESSIONS
                    else []
                ),
                *([pytest.mark.slow] if name in SESSIONS else []),
            ),
        )
        for name in TABLES
    ],
)
def test_it_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), "--quick", "--mib", "2", "--runs", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "STRATALOG_BENCH_DIR": str(tmp_path)},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("machine: ") for line in lines)
    for table in TABLES[name]:
        assert any(line.startswith(table) for line in lines), done.stdout
    assert list(tmp_path.iterdir()) == []
