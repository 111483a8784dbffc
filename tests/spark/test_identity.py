"""The engines' bytes on many and on large logs (SPK-2, CMP-7): `corpus`, gigabytes, more keys than
the default offset map holds.

The large logs are those of the benchmarks (`benchmarks/logs.py`); each lies on disk once, its
copies are hard links, since cleaning changes no file in place.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.clean.engine import Engine, Progress
from stratalog.clean.job import CleanedPartition
from stratalog.clean.local_engine import LocalEngine
from stratalog.spark.engine import SparkEngine
from tests.clean.driving import FS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
Count = Callable[[str, int], None]
GIB = 1 << 30
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`benchmarks/logs.py`, which is a script's neighbour and no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import logs

    yield logs
    for name in ("logs", "log_files"):
        sys.modules.pop(name, None)


def digests(directory: Path, cleaned: CleanedPartition) -> dict[tuple[int, str], tuple[str, int]]:
    """SHA-256 and time of every file that was written, by base offset and kind."""
    named = [
        (group.sources[0], kind, directory / name)
        for group in cleaned.groups
        for kind, name in group.parts
    ]

    def digest(path: Path) -> tuple[str, int]:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_mtime_ns

    with ThreadPoolExecutor(2) as pool:
        found = pool.map(digest, (path for _, _, path in named))
        return {(base, kind): one for (base, kind, _), one in zip(named, found, strict=True)}


def assert_equal_bytes(
    spark: SparkSession, log: Any, scratch: Path, count_cases: Count, name: str, **changes: Any
) -> CleanedPartition:
    """Both engines clean the log; what they wrote is compared and removed again."""
    found, times = [], []
    engines: list[Engine] = [SparkEngine(spark), LocalEngine(FS, threads=2)]
    for number, engine in enumerate(engines):
        linked = log.linked(str(scratch / f"run-{number}"))
        job = linked.job()
        job = replace(job, spec=replace(job.spec, **changes))
        told: list[Progress] = []

        began = time.perf_counter()
        [cleaned] = engine.clean([job], writes=True, on_progress=told.append)
        times.append(time.perf_counter() - began)
        if number == 0:
            assert passes(told) == ["index", "rewrite"]
        written = digests(Path(linked.directory), cleaned)
        found.append((written, cleaned.end_offset, cleaned.volume, cleaned.keys))
        shutil.rmtree(linked.directory)
    assert found[0] == found[1]
    assert len(found[0][0]) >= 3
    count_cases(f"{name}: MiB of records with equal bytes", log.record_bytes >> 20)
    count_cases(f"{name}: distinct keys", cleaned.keys)
    for engine_name, seconds in zip(("Spark", "the local engine"), times, strict=True):
        count_cases(f"{name}: seconds of {engine_name}, each log once", round(seconds))
    return cleaned


def passes(told: list[Progress]) -> list[str]:
    """The phases that began: another one, or the same from its start again."""
    begun = [
        one.phase
        for before, one in pairwise(told)
        if one.phase != before.phase or one.done_bytes < before.done_bytes
    ]
    return [told[0].phase, *begun]


def room_for(size_bytes: int, scratch: Path) -> None:
    free = shutil.disk_usage(scratch).free
    if free < size_bytes:
        pytest.skip(f"needs {size_bytes >> 30} GiB of disk, {free >> 30} are free")


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.requirement("SPK-2")
def test_four_gibibytes(
    spark: SparkSession, shapes: Any, tmp_path: Path, count_cases: Count
) -> None:
    room_for(10 * GIB, tmp_path)
    try:
        log = shapes.generate(str(tmp_path / "log"), shapes.LogShape(record_bytes=4 * GIB))
        cleaned = assert_equal_bytes(spark, log, tmp_path, count_cases, "4 GiB")
        assert cleaned.keys == log.keys
        assert cleaned.volume.records_before == log.records
    finally:
        shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.requirement("SPK-2", "CMP-7")
def test_more_keys_than_the_default_offset_map_holds(
    spark: SparkSession, shapes: Any, tmp_path: Path, count_cases: Count
) -> None:
    """128 MiB of 24-byte slots at a load of 0.9 are 5,033,164 keys; the local engine, with as much
    memory, goes through this log more than once, Spark's index phase does so once."""
    room_for(8 * GIB, tmp_path)
    slots = int((128 << 20) / 24 * 0.9)
    try:
        shape = shapes.LogShape(value_bytes=100, record_bytes=2 * GIB, distinct=0.6)
        log = shapes.generate(str(tmp_path / "log"), shape)
        cleaned = assert_equal_bytes(spark, log, tmp_path, count_cases, "more than 6,000,000 keys")
        assert cleaned.keys == log.keys > 6_000_000 > slots
        assert cleaned.end_offset == log.records
    finally:
        shutil.rmtree(tmp_path)
