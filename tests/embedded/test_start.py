"""How soon the API answers: little work loads no compiler, and no answer tells which it was."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

import stratalog
from stratalog.embedded.sight import View
from stratalog.record.kernel.compile import JIT
from tests.record.kernel.test_compile import run_python

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")

FEW = """
import json, sys
import stratalog
with stratalog.open(sys.argv[1], background=False) as store:
    told = store.topic("few").append("one", "more").offset
    rows = {view: [list(map(repr, row)) for row in store.topic("few").read(view)]
            for view in ("raw", "compacted", "latest")}
heavy = ("numba", "llvmlite", "pyarrow", "pyspark", "asyncio")
print(json.dumps([[name for name in heavy if name in sys.modules], told, rows]))
"""

MANY = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import stratalog
from stratalog.record.kernel import compile
compile.PLAIN_MICROSECONDS = int(sys.argv[2])
def read(job):
    topic, view = job
    return [list(map(repr, row)) for row in topic.read(view)]
with stratalog.open(sys.argv[1], background=False) as store, ThreadPoolExecutor(4) as pool:
    jobs = [(store.topic(name), view) for name in sorted(store.topics())
            for view in ("raw", "compacted", "latest")]
    rows = list(pool.map(read, jobs))
print(json.dumps(["numba" in sys.modules, rows]))
"""


def run(directory: Path, program: str, *arguments: object) -> list[object]:
    """What a new process prints; a warning is an error there."""
    words = [str(argument) for argument in arguments]
    done = run_python(["-W", "error", "-c", program, *words], directory)
    assert (done.returncode, done.stderr) == (0, "")
    answer: list[object] = json.loads(done.stdout)
    return answer


def fill(topic: stratalog.Topic, random: Random, records: int) -> None:
    """Appends in batches of all sizes; some keys come often, some records are odd."""
    while records > 0:
        size = min(records, random.choice((1, 3, 40)))
        topic.append_many(
            [
                (
                    random.randbytes(random.randrange(1, 9))[: random.choice((1, 8))],
                    random.choice((None, b"", random.randbytes(random.randrange(200)))),
                )
                for _ in range(size)
            ]
        )
        records -= size


@pytest.mark.skipif(not JIT, reason="there is no compiler to load")
def test_a_small_store_is_read_and_written_without_the_compiler(tmp_path: Path) -> None:
    store_path = tmp_path / "data"
    with stratalog.open(store_path, background=False) as store:
        topic = store.create_topic("few", config={"compaction.mode": "ledger"})
        topic.append_many([(f"key{number % 7}", f"value{number}") for number in range(50)])
        topic.compact()
        topic.append("key1", None)
    heavy, told, rows = run(tmp_path, FEW, store_path)
    assert heavy == []
    assert told == 51
    with stratalog.open(store_path, background=False) as store:
        expected = {
            view.value: [list(map(repr, row)) for row in store.topic("few").read(view.value)]
            for view in View
        }
    assert rows == expected


@pytest.mark.skipif(not JIT, reason="there is no compiler to load")
def test_records_are_the_same_before_and_after_kernels_are_compiled(tmp_path: Path) -> None:
    store_path, random = tmp_path / "data", Random(20)
    with stratalog.open(store_path, background=False) as store:
        for codec in CODECS:
            config = {"compaction.mode": "ledger", "compression.type": codec}
            topic = store.create_topic(f"of-{codec}", config=config)
            fill(topic, random, 150)
            topic.compact()
            fill(topic, random, 30)
    compiled_at_once = run(tmp_path, MANY, store_path, 0)
    in_the_midst = run(tmp_path, MANY, store_path, 20_000)
    never = run(tmp_path, MANY, store_path, 1 << 60)
    assert [answer[0] for answer in (compiled_at_once, in_the_midst, never)] == [True, True, False]
    assert compiled_at_once[1] == in_the_midst[1] == never[1]
