"""Compaction that a request starts and does not wait for (LDG-2, ADM-1).

Where a cleaner's threads run, a desk only starts a compaction and answers. Where they do not
(`log.cleaner.enable=false`), it compacts in the thread that asks, for as long as that takes: here
that is one of a few threads, and who asks waits a moment for it, then gets the status.

Invariants
- I1  The same is not begun twice: a second request is answered with the first one's status.
- I2  `_lock` guards what is going on; nothing is asked of a desk while it is held.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError

from stratalog.admin.desk import Desk, Document
from stratalog.base.errors import StratalogError

PATIENCE_SECONDS = 2.0
_THREADS = 4
_LOG = logging.getLogger("stratalog.web")


class Background:
    """Compactions of one desk."""

    def __init__(self, desk: Desk, patience_seconds: float = PATIENCE_SECONDS):
        self._desk = desk
        self._patience_seconds = patience_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stratalog-compact")
        self._going_on: dict[tuple[str, int | None], Future[Document]] = {}
        self._lock = threading.Lock()

    def compact(self, topic: str, partition: int | None) -> Document:
        """Start it, or meet it; the status. Raises as `Desk.compact`."""
        with self._lock:
            future = self._going_on.get((topic, partition))
            is_new = future is None
            if future is None:
                future = self._threads.submit(self._desk.compact, topic, partition)
                self._going_on[topic, partition] = future
        if is_new:
            future.add_done_callback(lambda done: self._end((topic, partition), done))
            try:
                return future.result(self._patience_seconds)
            except NotYetError:
                if future.done():  # it is the desk's own error
                    raise
        status = self._desk.compaction_status(topic, partition)
        word = "started" if is_new else "running"
        rows = [{**row, "request": word} for row in status["partitions"]]
        return {**status, "partitions": rows}

    def _end(self, key: tuple[str, int | None], future: Future[Document]) -> None:
        with self._lock:
            self._going_on.pop(key, None)
        error = future.exception()
        if error is not None and not isinstance(error, StratalogError):
            _LOG.error("compaction of %s: %r", key[0], error)
