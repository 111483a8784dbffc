"""The progress bar on a terminal's stderr, and stopping at Ctrl-C.

Python runs signal handlers in the main thread only, while chunks are worked on in others: those
learn at their next report of progress that it is over. That is why a bar exists even where none is
shown.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from stratalog.base.errors import StratalogError
from stratalog.cli.output import is_terminal
from stratalog.pipeline.job_progress import STAGES, rich_bars

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from stratalog.clean.engine import Progress

INTERRUPTED_LATE = threading.Event()
"""Somebody interrupted a command when it was not to be cut short any more, and it is done."""


def _is_made_of_interrupt(error: BaseException | None) -> bool:
    """Of an error after Ctrl-C: whether it is nobody's answer. Libraries in C that are cut short
    while they are imported raise an `ImportError` of their own."""
    return isinstance(error, Exception) and not isinstance(error, (StratalogError, OSError))


class ProgressBar:
    """Receives progress; `stop` ends the work at the next report, in whatever thread.

    Stateful: `_lock` guards the bar's task. Spark reports from a thread that works on nothing, so
    there `raises` is False and the interrupt reaches the main thread alone.
    """

    def __init__(self, *, raises: bool = True):
        self._raises = raises
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._phase = ""
        self._before: Any = None
        self._holds = False

    def __enter__(self) -> ProgressBar:
        if is_terminal():
            self._bar = self._stack.enter_context(rich_bars())
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._stack.close()
        if self._holds and self._stopped.is_set() and kind is None:
            INTERRUPTED_LATE.set()
        if self._stopped.is_set() and _is_made_of_interrupt(error):
            raise KeyboardInterrupt from error

    def hold(self) -> None:
        """From now on Ctrl-C takes effect at the end: what follows is short, and done as a whole;
        what came of it is told.

        Raises `KeyboardInterrupt` if it was pressed before.
        """
        self._holds = True
        if self._stopped.is_set():
            raise KeyboardInterrupt

    def __call__(self, progress: Progress) -> None:
        if self._stopped.is_set() and self._raises and not self._holds:
            raise KeyboardInterrupt
        if self._bar is None:
            return
        with self._lock:
            if self._task is None or progress.phase != self._phase:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._phase = progress.phase
                name = STAGES.get(progress.phase, progress.phase)
                self._task = self._bar.add_task(name, total=None)
            self._bar.update(
                self._task, completed=progress.done_bytes, total=progress.total_bytes or None
            )

    def count_rows(self, rows: int) -> None:
        """Show how many rows were read; how many there are, nobody knows before the end."""
        if self._stopped.is_set():
            raise KeyboardInterrupt
        if self._bar is not None:
            with self._lock:
                if self._task is None:
                    self._task = self._bar.add_task("", total=None)
                self._bar.update(self._task, description=f"{rows:,} rows")

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._stopped.set()
        if not self._holds:
            raise KeyboardInterrupt
