"""`compact --engine spark` as a process of its own: Spark starts, cleans, stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.clean.history import HISTORY_FILE
from tests.admin.helpers import NOW_MS, records, tree, write_log
from tests.cli.helpers import stratalog

pytest.importorskip("pyspark")


@pytest.mark.slow
@pytest.mark.requirement("SPK-1", "SPK-2")
@pytest.mark.xdist_group("spark")
def test_spark_makes_what_threads_make(tmp_path: Path) -> None:
    for number in range(3):
        keys = [f"key-{n % 17}" for n in range(200)]
        write_log(tmp_path / "data" / f"orders-{number}", [[records(keys)], [records(keys[:9])]])
    before = tree(tmp_path / "data")
    common = ("compact", tmp_path / "data", "--now", NOW_MS, "--format", "json")
    # Without --engine, Spark it is: the extra is installed here.
    spark = stratalog(*common, "--out", tmp_path / "spark", "--threads", 2)
    assert spark.returncode == 0, spark.stderr
    local = stratalog(*common, "--out", tmp_path / "local", "--engine", "local")
    found, expected = json.loads(spark.stdout), json.loads(local.stdout)
    assert (found["engine"], found["master"]) == ("spark", "local[2]")
    for name in ("segments_after", "records_after", "bytes_after", "keys", "dropped"):
        assert found["totals"][name] == expected["totals"][name]
    logs = [
        {name: what for name, what in tree(tmp_path / out).items() if HISTORY_FILE not in name}
        for out in ("spark", "local")
    ]
    assert logs[0] == logs[1]
    assert tree(tmp_path / "data") == before
