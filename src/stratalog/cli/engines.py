"""Which engine runs, and getting it ready."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from stratalog.base.errors import MissingExtraError
from stratalog.cli.output import print_note

if TYPE_CHECKING:
    from stratalog.base.filesystem import FileSystem
    from stratalog.clean.engine import Engine

LOCAL, SPARK = "local", "spark"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """`name` is `local` or `spark`; `master` is Spark's, None for threads of this process, or for
    what spark-submit says."""

    name: str
    master: str | None
    threads: int | None

    def __str__(self) -> str:
        if self.name == SPARK:
            return f"spark ({self.master or 'as submitted'})"
        return "local" if self.threads is None else f"local ({self.threads} threads)"


def choose(engine: str | None, master: str | None, threads: int | None) -> EngineChoice:
    """The engine that was asked for, else Spark where it is installed, else threads.

    Under spark-submit, Spark's master is that command's. Raises `click.UsageError` for options that
    do not go together.
    """
    if engine is None:
        is_installed = find_spec("pyspark") is not None
        engine = SPARK if master is not None or is_installed else LOCAL
    if engine == LOCAL:
        if master is not None:
            raise click.UsageError("--master is for --engine spark")
        return EngineChoice(LOCAL, None, threads)
    if master is not None and threads is not None:
        raise click.UsageError("--threads goes with Spark on this machine, not with --master")
    from stratalog.spark.session import is_submitted

    if master is None and threads is None and is_submitted():
        return EngineChoice(SPARK, None, None)
    return EngineChoice(SPARK, master or f"local[{threads or '*'}]", None)


def warm_kernels() -> bool:
    """Compile the kernels where this machine has not yet, and say so; whether anything was."""
    from stratalog.record.kernel import warmup

    return warmup.ensure_warm(print_note)


@contextmanager
def starter(choice: EngineChoice, filesystem: FileSystem) -> Iterator[Callable[[], Engine]]:
    """What starts the engine when it is called; a Spark session that it began ends here, too."""
    with ExitStack() as stack:

        def start() -> Engine:
            warm_kernels()
            if choice.name == LOCAL:
                from stratalog.clean.local_engine import LocalEngine

                return LocalEngine(filesystem, threads=choice.threads)
            from stratalog.spark.engine import SparkEngine

            try:
                session = stack.enter_context(session_of(choice))
            except MissingExtraError as error:
                raise MissingExtraError(f"{error}; or go without Spark: --engine local") from error
            return SparkEngine(session, filesystem)

        yield start


def hush_py4j() -> None:
    """Py4J logs pages of frames before it raises, or when Ctrl-C comes: what it raises is told.

    Some of it goes to the root logger, some to its own, whose records no filter of the root's sees.
    """
    logging.getLogger().addFilter(_is_not_of_py4j)
    own = logging.getLogger("py4j")
    own.addHandler(logging.NullHandler())
    own.propagate = False


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


@contextmanager
def session_of(choice: EngineChoice) -> Iterator[Any]:
    """The Spark session of a choice of Spark; one that was begun here ends here, too."""
    from stratalog.spark.session import is_running, spark_session

    was_running = is_running()
    hush_py4j()
    session = spark_session(choice.master)
    try:
        yield session
    finally:
        if not was_running:
            session.stop()
