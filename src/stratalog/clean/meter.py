"""How far the local engine is, added up by its threads over jobs and phases, for a watcher."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from stratalog.clean.engine import OnProgress, Progress
from stratalog.clean.job import CleaningJob


@dataclass(slots=True)
class Meter:
    """Adds up the bytes done in a phase, over all jobs; `lock` guards `done_bytes`."""

    total_bytes: int
    on_progress: OnProgress
    finished_bytes: int = 0
    job_bytes: int = 0
    phase: str = "index"
    done_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take_on(self, job: CleaningJob) -> None:
        """Go on with `job`: what was to be done before it is done."""
        self.finished_bytes += self.job_bytes
        self.job_bytes = size_bytes_of(job)

    def start(self, phase: str) -> None:
        """Begin a phase of the job, or begin it again."""
        self.phase, self.done_bytes = phase, 0
        self._report()

    def add(self, size_bytes: int) -> None:
        """So much more of the phase is done; any thread. Raises what the watcher raises."""
        with self.lock:
            self.done_bytes += size_bytes
            self._report()

    def _report(self) -> None:
        # A job that is worked through hash range by hash range is read more than once.
        done_bytes = self.finished_bytes + min(self.done_bytes, self.job_bytes)
        self.on_progress(Progress(self.phase, done_bytes, self.total_bytes))


def size_bytes_of(job: CleaningJob) -> int:
    """Bytes of the .log files that the job cleans."""
    return sum(segment.size_bytes for segment in job.segments)
