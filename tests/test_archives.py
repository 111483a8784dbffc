from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_archives_unpack_with_their_file_times(
    golden_dir: Path, corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    logs = sorted(corpus_dir.glob("log-*/r*-*/corpus-*/*.log"))
    assert len(list(corpus_dir.glob("log-*"))) == 40
    assert len(list(golden_dir.glob("*/HOW.txt"))) == 19
    assert {path.stat().st_mtime_ns % 1_000_000_000 for path in logs} == {0}
    assert max(path.stat().st_mtime for path in logs) < 1_750_000_000
    count_cases("unpacked .log files", len(logs))
