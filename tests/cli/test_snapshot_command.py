"""`stratalog snapshot` as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.record.kernel.compile import JIT
from tests.admin.helpers import records, write_log
from tests.cli.helpers import Shell

pq = pytest.importorskip("pyarrow.parquet")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requirement("SPK-7")]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_log(tmp_path / "logs" / "orders-0", [[records("abca")], [records("b")]])
    return tmp_path / "logs"


@pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels")
@pytest.mark.usefixtures("spark")
def test_a_snapshot_and_one_built_upon_it(
    spark: SparkSession, shell: Shell, logs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = shell("snapshot", logs, "--to", "parquet", out, "--incremental")
    assert first.code == 0, first.err
    assert "there is no snapshot to build upon: a whole snapshot was taken" in first.err
    lines = first.out.splitlines()
    assert lines[0].split() == [
        *("partition", "taken", "up", "to", "offset", "rows", "size", "log", "read"),
        *("files", "written"),
    ]
    assert lines[2 if set(lines[1]) <= set("- ") else 1].split()[:4] == [
        *("orders-0", "whole", "5", "3")
    ]
    assert lines[-1].startswith(f"{out}/current: 3 rows, ")
    assert pq.read_table(out / "current").num_rows == 3
    again = shell("snapshot", logs, out, "--incremental", "--format", "json")
    assert again.code == 0
    assert again.json["path"] == f"{out}/current"
    assert again.json["partitions"][0]["kind"] == "unchanged"
    assert again.json["partitions"][0]["end_offset"] == 5
    assert spark.range(1).count() == 1, "the session of this process was stopped"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("{logs}", ""), 2, "OUT names no directory."),
        (("{logs}/none", "{out}"), 1, "error: {logs}/none: no such directory"),
        (("{logs}", "{logs}"), 1, "error: {logs}: lies in {logs}, which is read; "),
        (("{logs}", "{out}", "--as-of", "6"), 1, "error: as-of 6: orders-0 ends at 5"),
        (("{logs}", "{out}", "--to", "csv"), 2, "'csv' is not one of 'parquet', 'delta'."),
        (("{logs}", "{out}", "--option", "x"), 2, "'x' is not NAME=VALUE"),
        (("{logs}", "{out}", "--option", "view=raw"), 1, "error: a snapshot has no option view"),
        (("{logs}", "{out}", "--master", "x", "--threads", "1"), 2, "not with --master"),
    ],
)
def test_what_is_refused_in_one_line(
    shell: Shell, logs: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    pytest.importorskip("pyspark")
    names = {"logs": str(logs), "out": str(tmp_path / "out")}
    done = shell("snapshot", *(argument.format(**names) for argument in arguments))
    assert done.code == code
    assert message.format(**names) in done.err.splitlines()[-1] + "\n"
    assert done.out == ""
    assert not (tmp_path / "out").exists()
