"""The stages of a job on the terminal of whoever runs a Spark program: one bar a stage.

Shown on stderr if that is a terminal. Unlike the command line's bar (`cli.progress`), which looks
the same, it leaves signals alone: those belong to the program.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from stratalog.clean.engine import Progress

STAGES = {
    "copy": "copying",
    "index": "indexing keys",
    "rewrite": "rewriting",
    "swap": "putting in place",
    "plan": "looking",
    "count": "counting",
    "recover": "opening",
    "write": "writing",
    "verify": "checking",
    "compare": "comparing",
    "scan": "scanning",
}
"""What people read for a `Progress.phase`."""


class StageBars:
    """Receives progress, from any thread; `_lock` guards the bars.

    A stage's bar is there from its first report to the end of the `with` block, so that one sees
    what is done, what is under way, and, of batches, how far all of them are.
    """

    def __init__(self, *, shows: bool, console: Console | None = None):
        self._shows = shows and (console is not None or sys.stderr.isatty())
        self._console = console
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._bars: RichProgress | None = None
        self._stages: dict[str, TaskID] = {}

    def __enter__(self) -> StageBars:
        if self._shows:
            self._bars = self._stack.enter_context(rich_bars(self._console))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._bars = None

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._bars is None:
                return
            stage = self._stages.get(progress.phase)
            if stage is None:
                name = STAGES.get(progress.phase, progress.phase)
                stage = self._stages[progress.phase] = self._bars.add_task(name, total=None)
            total_bytes = progress.total_bytes or None
            self._bars.update(stage, completed=progress.done_bytes, total=total_bytes)


def rich_bars(console: Console | None = None) -> RichProgress:
    """Bars that count bytes, on stderr unless `console` is given; gone when they are closed."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    # rich knows NO_COLOR and terminals that cannot move their cursor.
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        transient=True,
    )
