"""Options, tables and results of the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import harness
import pytest
from harness import Options, Report


def options(**changes: bool) -> Options:
    return Options(**{"quick": True, "save": False, "mib": 8, "runs": 3, **changes})


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x_bench.py"])
    full = harness.parse_options("", mib=1024)
    assert (full.quick, full.log_bytes, full.runs, full.is_full_size) == (False, 1 << 30, 5, True)
    assert full.segment_bytes == 128 << 20
    monkeypatch.setattr(sys, "argv", ["x_bench.py", "--quick", "--only", "b"])
    quick = harness.parse_options("", mib=1024, cases=("a", "b"))
    assert (quick.mib, quick.runs, quick.only, quick.is_full_size) == (8, 3, "b", False)
    monkeypatch.setattr(sys, "argv", ["x_bench.py", "--mib", "64", "--runs", "7"])
    chosen = harness.parse_options("", mib=1024)
    assert (chosen.mib, chosen.runs, chosen.is_full_size) == (64, 7, False)
    assert chosen.segment_bytes == 16 << 20, "a smaller log still has several segments"


def test_a_table_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("title", options())
    capsys.readouterr()
    report.table("what", ("case", "s"), [("a", "1.5"), ("longer", "10.25")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "",
        "what",
        "  case        s",
        "  ------  -----",
        "  a         1.5",
        "  longer  10.25",
    ]


@pytest.mark.parametrize("save", [True, False])
def test_results_are_appended_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: bool
) -> None:
    monkeypatch.setattr(harness, "_RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["benchmarks/x_bench.py"])
    for number in (1, 2):
        report = Report("title", options(save=save))
        report.line(f"figure {number}")
        report.finish()
    path = tmp_path / "results" / "x_bench.txt"
    assert path.exists() == save
    if save:
        text = path.read_text()
        assert text.count("title") == 2
        assert text.index("figure 1") < text.index("figure 2")


def test_scratch_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATALOG_BENCH_DIR", str(tmp_path / "here"))
    with pytest.raises(SystemExit), harness.scratch_directory() as scratch:
        assert Path(scratch).parent == tmp_path / "here"
        Path(scratch, "file").write_text("x")
        raise SystemExit(1)
    assert list((tmp_path / "here").iterdir()) == []
