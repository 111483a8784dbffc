"""What the cleaner holds: nothing while it rests, its share and no more while it works (CLN-8)."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine, OnProgress
from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.settings import CleanerSettings
from stratalog.record.builder import NewRecord
from stratalog.segment.names import TopicPartition
from tests.clean.gates import PATIENCE_SECONDS, wait_until
from tests.clean.services import COMPACTED, NOW, ORDERS, Parts, opened

KEYS = [TopicPartition("orders", number) for number in range(2)]
DEDUPE_BYTES = 1 << 20
RECORDS = 30_000
IO_BYTES = 512 << 10
SETTINGS = CleanerSettings(
    threads=2,
    dedupe_buffer_bytes=DEDUPE_BYTES,
    io_buffer_bytes=IO_BYTES,
    backoff_ms=3_600_000,
)
TOPIC = replace(COMPACTED, segment_bytes=1 << 20)
BESIDE_BYTES = 3 << 20
"""Beside the maps, for both threads: chunks of half the i/o buffer each, their tables and columns,
the bytes that come of them, and what Python itself takes."""


class SideBySide:
    """`engine_of`: no engine begins before both are there. `engines` tells which still live."""

    def __init__(self, count: int):
        self.barrier = threading.Barrier(count)
        self.engines: list[weakref.ref[LocalEngine]] = []

    def engine_of(self, job: CleaningJob, filesystem: FileSystem) -> tuple[str, Engine]:
        engine = LocalEngine(filesystem, threads=1)
        self.engines.append(weakref.ref(engine))
        return "local", _Waiting(self, engine)


class _Waiting:
    def __init__(self, side: SideBySide, engine: LocalEngine):
        self._side = side
        self._engine = engine

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        self._side.barrier.wait(PATIENCE_SECONDS)
        try:
            return self._engine.clean(jobs, writes=writes, on_progress=on_progress)
        finally:
            self._side.barrier.wait(PATIENCE_SECONDS)


def fill(parts: Parts, key: TopicPartition, records: int) -> None:
    log = parts.log(key)
    for first in range(0, records, 1000):
        log.append_records(
            [NewRecord(b"key-%08d" % n, bytes(40), NOW) for n in range(first, first + 1000)]
        )
        if first % 10_000 == 9_000:
            log.roll()
    log.roll()


@pytest.mark.requirement("CLN-8")
def test_an_idle_cleaner_holds_no_buffers(tmp_path: Path) -> None:
    side = SideBySide(1)
    with opened([str(tmp_path)], settings=SETTINGS, engine_of=side.engine_of) as parts:
        fill(parts, ORDERS, 2000)
        parts.cleaner.start()
        wait_until(lambda: parts.store.cleaner_point(ORDERS) == 2000, "it is cleaned")
        wait_until(lambda: parts.manager.state_of(ORDERS).is_free, "its round has ended")
        wait_until(lambda: not parts.cleaner.activities(), "the threads rest")

        def are_gone() -> bool:
            gc.collect()
            return all(engine() is None for engine in side.engines)

        wait_until(are_gone, "the engine goes with its round")
        assert len(side.engines) == 1
        assert parts.cleaner.is_running


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1",
    reason="what Python takes instead is not the promise",
)
@pytest.mark.requirement("CLN-8", "CMP-7")
def test_two_rounds_side_by_side_keep_to_the_memory_of_all(
    tmp_path: Path, hasty_disk: None, count_cases: Callable[[str, int], None]
) -> None:
    """More keys than the maps of both hold: they are worked through range by range."""
    side = SideBySide(2)
    topics = {"orders": TOPIC}
    with opened([str(tmp_path / "warm")], topics=topics, settings=SETTINGS) as parts:
        fill(parts, ORDERS, RECORDS)
        assert parts.clean_all() == 1
    with opened(
        [str(tmp_path / "measured")], topics=topics, settings=SETTINGS, engine_of=side.engine_of
    ) as parts:
        for key in KEYS:
            fill(parts, key, RECORDS)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            parts.cleaner.start()
            wait_until(
                lambda: all(parts.store.cleaner_point(key) == RECORDS for key in KEYS), "cleaned"
            )
            wait_until(lambda: not parts.cleaner.activities(), "the threads rest")
            gc.collect()
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(side.engines) == 2
        bound = DEDUPE_BYTES + IO_BYTES + BESIDE_BYTES
        assert DEDUPE_BYTES // 2 < peak - before < bound, f"{peak - before} of {bound} bytes"
        assert after - before < 1 << 20, f"{after - before} bytes are still held"
        count_cases("KiB at most, of two rounds side by side", (peak - before) >> 10)
