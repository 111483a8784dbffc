"""The stock-price example: what it prints, what it leaves, and that its types are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import stock_prices

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.requirement("LDG-3", "LDG-7")
def test_from_the_first_line_to_the_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = stock_prices.run(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        "appended: 5,000 records in the log, 5,000 compacted, 6 shares",
        "compacted: 5,000 records in the log, 6 compacted, 6 shares",
        "two more: 5,002 records in the log, 8 compacted, 5 shares",
        "the board has read 8 records, deletions among them",
        "yesterday there were 6 shares",
        "last_prices.parquet: 5 rows",
    ]
    assert prices.keys() == set(stock_prices.SYMBOLS) - {"FUJI"}
    assert prices["ACME"] == 123.45
    rows = pq.read_table(tmp_path / "last_prices.parquet").to_pylist()
    assert {row["key"].decode(): float(row["value"]) for row in rows} == prices


def test_a_type_checker_finds_nothing_to_say() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "examples/stock_prices.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
