"""An engine that stops at a chunk until it is told to go on, and counts who is where."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.clean.job import CleanedPartition, CleaningJob
from stratalog.clean.local_engine import LocalEngine

PATIENCE_SECONDS = 60
"""Nothing waits so long unless it hangs."""


class Gate:
    """`engine_of` for a cleaner. Closed at first; `chunks` that were begun while it was open."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.go = threading.Event()
        self.chunks = 0
        self.worst: Counter[str] = Counter()
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    def engine_of(self, job: CleaningJob, filesystem: FileSystem) -> tuple[str, Engine]:
        return "gated", _Gated(self, filesystem)

    def enter(self, name: str) -> None:
        with self._lock:
            self._inside[name] += 1
            self.worst[name] = max(self.worst[name], self._inside[name])

    def leave(self, name: str) -> None:
        with self._lock:
            self._inside[name] -= 1


class _Gated:
    def __init__(self, gate: Gate, filesystem: FileSystem):
        self._gate = gate
        self._filesystem = filesystem

    def clean(
        self, jobs: Sequence[CleaningJob], *, writes: bool, on_progress: OnProgress
    ) -> list[CleanedPartition]:
        name = jobs[0].name
        self._gate.enter(name)
        try:
            on_progress(Progress("index", 0, 1))
            self._gate.arrived.set()
            assert self._gate.go.wait(PATIENCE_SECONDS)
            on_progress(Progress("index", 1, 1))
            self._gate.chunks += 1
            engine = LocalEngine(self._filesystem, threads=1)
            return engine.clean(jobs, writes=writes, on_progress=on_progress)
        finally:
            self._gate.leave(name)


class Threads:
    """Runs calls in threads of their own; whoever leaves the block waits for all of them."""

    def __init__(self, count: int = 8):
        self._pool = ThreadPoolExecutor(count)

    def run(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._pool.submit(call, *arguments)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Raises if it does not come true."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.001)
