"""The engine of each round of the service (`cleaner.engine`): threads of this process, or Spark.

A Spark session is begun when the first job wants it, and ends with the service if it began it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from stratalog.base.errors import MissingExtraError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.job import CleaningJob
from stratalog.clean.round import local_engine_of
from stratalog.clean.settings import CleanerSettings, EngineChoice

_LOCAL_MASTER = "local[*]"


class RoundEngines:
    """Call it with a job, for its engine. `_lock` guards the session; `close` ends it."""

    def __init__(self, settings: Callable[[], CleanerSettings]):
        self._settings = settings
        self._lock = threading.Lock()
        self._session: Any = None
        self._is_ours = False

    def __call__(self, job: CleaningJob, filesystem: FileSystem) -> tuple[str, Engine]:
        """See `clean.round.EngineOf`. Raises `MissingExtraError` where Spark is asked for by name
        and is not installed; `auto` does without."""
        settings = self._settings()
        if not settings.uses_spark(sum(segment.size_bytes for segment in job.segments)):
            return local_engine_of(job, filesystem)
        try:
            from stratalog.spark.engine import SparkEngine

            return "spark", SparkEngine(self._started(settings.spark_master or _LOCAL_MASTER))
        except (ImportError, MissingExtraError):
            if settings.engine is EngineChoice.SPARK:
                raise
            return local_engine_of(job, filesystem)

    def _started(self, master: str) -> Any:
        from stratalog.spark.session import is_running, spark_session

        with self._lock:
            if self._session is None:
                self._is_ours = not is_running()
                self._session = spark_session(master)
            return self._session

    def close(self) -> None:
        """Stop a session that was begun here."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None and self._is_ours:
            session.stop()
