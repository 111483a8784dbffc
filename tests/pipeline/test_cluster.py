"""A real standalone cluster: the package goes there as a wheel, logs lie where all see them.

The workers' interpreter would find this source tree; that they ran what was sent is asserted.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pyspark
import pytest

from stratalog.base.errors import UsageError
from stratalog.cli import engines
from stratalog.cli import main as stratalog
from stratalog.spark import session
from stratalog.spark.java import find_java, prepare_java_home
from tests.log.helpers import NOW, contents, open_log, records
from tests.pipeline.source_rows import naive_latest
from tests.pipeline.standalone import LOOPBACK, SHORT_LIVED, standalone_cluster

pytestmark = pytest.mark.requirement("SPK-9", "SPK-1")
ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).with_name("cluster_app.py")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def make_logs(directory: Path) -> None:
    """Four partitions with several segments, most of whose records are superseded."""
    for number in range(4):
        with open_log(directory / f"orders-{number}", segment_bytes=10_000) as log:
            for turn in range(40):
                log.append_records(records(30 + number, timestamp=NOW + turn))


def cleaned_files(directory: Path) -> dict[str, bytes]:
    """The files of all logs and checkpoints, without our own notes on who cleaned them when."""
    return {
        name: content
        for name, content in contents(directory).items()
        if ".stratalog" not in name and not name.endswith(".lock")
    }


def build_wheel(directory: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(directory)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return next(directory.glob("*.whl"))


def driver_environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        **LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": prepare_java_home(find_java()),
        **more,
    }


def test_a_cluster_compacts_in_place_and_reads_with_the_wheel_that_was_submitted(
    tmp_path: Path,
) -> None:
    logs, local, before = tmp_path / "logs", tmp_path / "local", tmp_path / "before"
    make_logs(logs)
    shutil.copytree(logs, local)
    shutil.copytree(logs, before)
    wheel = build_wheel(tmp_path / "dist")
    archive = tmp_path / "stratalog.zip"  # Spark unpacks archives by the end of their names
    shutil.copy(wheel, archive)
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "driver")
    answer = tmp_path / "answer.json"
    with standalone_cluster(tmp_path, workers=2) as cluster:
        done = subprocess.run(
            [
                *(str(SUBMIT), "--master", cluster.master),
                *("--archives", f"{archive}#stratalog"),
                *("--conf", "spark.executorEnv.PYTHONPATH=stratalog"),
                *("--conf", f"spark.executor.extraJavaOptions={SHORT_LIVED}"),
                *("--driver-java-options", SHORT_LIVED),
                *(str(APP), str(logs), str(answer)),
            ],
            env=driver_environment(PYTHONPATH=str(tmp_path / "driver")),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(answer.read_text())
    assert found["code"] == 0
    assert found["master"] == cluster.master
    # Each worker ran the package from its own directory of this application.
    workers = {Path(package).relative_to(tmp_path).parts[0] for package in found["packages"]}
    assert workers == {"work-0", "work-1"}
    assert stratalog(["compact", str(local), "--in-place", "--engine", "local"]) == 0
    assert cleaned_files(logs) == cleaned_files(local)
    assert cleaned_files(logs) != cleaned_files(before)
    rows = [
        [row["topic"], row["partition"], row["offset"], row["key"].hex(), row["value"].hex()]
        for partition in sorted(before.glob("orders-*"))
        for row in naive_latest(partition, committed_to=1 << 62)
    ]
    assert len(rows) == 30 + 31 + 32 + 33
    assert found["rows"] == sorted(rows)


@pytest.mark.slow
def test_the_command_line_compacts_on_a_cluster(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    make_logs(logs)
    with standalone_cluster(tmp_path, workers=2) as cluster:
        command = [sys.executable, "-m", "stratalog", "compact", str(logs), "--format", "json"]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "out"), "--master", cluster.master],
            env=driver_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["master"] == cluster.master
    local = ["compact", str(logs), "--out", str(tmp_path / "local"), "--engine=local"]
    assert stratalog(local) == 0
    assert cleaned_files(tmp_path / "out") == cleaned_files(tmp_path / "local")


def test_a_master_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_logs(tmp_path / "logs")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        session._check_reachable(f"spark://127.0.0.1:1,127.0.0.1:{port}")  # one of two is enough
    command = ["compact", str(tmp_path / "logs"), "--in-place", "--master"]
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", *command, f"spark://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if not line.startswith("engine: ")]
    assert len(errors) == 1
    assert "no master of a cluster answers" in errors[0]
    for wrong in ("spark://nowhere", "spark://h:port", "spark://h:99999"):
        with pytest.raises(UsageError, match="a master is spark://HOST:PORT"):
            session._check_reachable(wrong)


def test_under_spark_submit_its_master_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert engines.choose(None, None, None).master is None
    assert engines.choose("spark", "spark://h:1", None).master == "spark://h:1"
    assert engines.choose("spark", None, 2).master == "local[2]"
    assert engines.choose("local", None, 2).name == engines.LOCAL
    with pytest.raises(click.UsageError):
        engines.choose("local", "spark://h:1", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    assert engines.choose(None, None, None).master == "local[*]"


def test_a_package_in_an_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    """--py-files leaves a wheel packed, and kernels cannot be compiled from there."""
    archive = tmp_path / "stratalog.zip"
    with zipfile.ZipFile(archive, "w") as content:
        for path in sorted((ROOT / "src").rglob("*.py")):
            content.write(path, path.relative_to(ROOT / "src"))
    logs = tmp_path / "logs"
    make_logs(logs)
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", "compact", str(logs), "--in-place", "--engine=local"],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "imported from an archive" in done.stderr
    assert "Traceback" not in done.stderr
