"""Jobs as SQL table functions, with named arguments (SPK-8):

    SELECT * FROM stratalog_compact(path => '/var/kafka-logs', dry_run => true)
    SELECT * FROM stratalog_vacuum(path => '/var/kafka-logs', retention_hours => 168)
    SELECT topic, timestamp, records_removed.total FROM stratalog_history(path => '/logs')
    SELECT * FROM stratalog_detail(path => '/logs') WHERE dirty_ratio > 0.5

Spark runs a table function in a Python worker, which has no session: one task does all the work, on
that worker's machine, with the local engine and its threads. So these are for directories that one
machine cleans in good time; `LogTable` spreads the same work over a cluster.

Invariants
- F1  Nothing is looked at or done while a query is planned: only its arguments are checked.
- F2  What changes something does so only if dry_run is false; all of it is done before the first
      row is given, so that a LIMIT cuts no work short.
- F3  A query that Spark runs twice (a retry, a second action) does no harm: a partition that has
      been compacted, or deleted from, has nothing more to do, and its row then says so.
- F4  Damage is answered in rows; raised, Spark would have it found three times more.

A filter on the rows chooses no partitions, Spark applies it afterwards: `topics` does, or the path
of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
)
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from stratalog.admin.directories import PartitionPlace
from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.pipeline import job_columns, job_rows, job_work
from stratalog.pipeline.job_target import Target, chosen, target
from stratalog.pipeline.job_work import CompactionWishes, in_a_loop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.clean.engine import Engine, Progress

Words = Mapping[str, str]

_KINDS: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "path": ("a STRING", (StringType,)),
    "topics": ("an ARRAY of STRING", (ArrayType,)),
    "config": ("a MAP of STRING to STRING", (MapType,)),
    "topic_config": ("a STRING", (StringType,)),
    "retention_hours": ("a number", (IntegralType, DecimalType, FractionalType)),
    "now_ms": ("a whole number", (IntegralType,)),
    "limit": ("a whole number", (IntegralType,)),
    "threads": ("a whole number", (IntegralType,)),
    "top": ("a whole number", (IntegralType,)),
}
_FLAG = ("a BOOLEAN", (BooleanType,))


class Compact:
    """`stratalog_compact`: a row a partition (`job_columns.COMPACTION`)."""

    @staticmethod
    def analyze(
        path: AnalyzeArgument,
        dry_run: AnalyzeArgument | None = None,
        topics: AnalyzeArgument | None = None,
        config: AnalyzeArgument | None = None,
        topic_config: AnalyzeArgument | None = None,
        partial_progress: AnalyzeArgument | None = None,
        keep_active: AnalyzeArgument | None = None,
        top: AnalyzeArgument | None = None,
        threads: AnalyzeArgument | None = None,
        now_ms: AnalyzeArgument | None = None,
    ) -> AnalyzeResult:
        return _analyzed(job_columns.COMPACTION, locals())

    def eval(
        self,
        path: str,
        dry_run: bool | None = None,
        topics: Sequence[str] | None = None,
        config: Words | None = None,
        topic_config: str | None = None,
        partial_progress: bool | None = None,
        keep_active: bool | None = None,
        top: int | None = None,
        threads: int | None = None,
        now_ms: int | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        found, places = _opened(path, topics, config, topic_config, now_ms)
        is_dry = dry_run is None or dry_run
        is_partial = bool(partial_progress)
        wishes = CompactionWishes(
            is_dry,
            keep_active=bool(keep_active),
            # One after the other anyway; a failure then costs nobody else's work.
            max_concurrent=1 if is_partial else None,
            partial_progress=is_partial,
            top=(top or 0) if is_dry else 0,
        )
        try:
            report = job_work.run_compaction(
                found, places, wishes, "local", lambda: _local_engine(threads), _untold
            )
            rows = job_rows.compaction_rows(report, is_dry=is_dry)
        except (CorruptionError, StorageIOError) as error:
            rows = job_rows.failed_compaction_rows(places, error)
        yield from _values(job_columns.COMPACTION, rows)


class Vacuum:
    """`stratalog_vacuum`: a row a partition (`job_columns.VACUUM`)."""

    @staticmethod
    def analyze(
        path: AnalyzeArgument,
        retention_hours: AnalyzeArgument | None = None,
        dry_run: AnalyzeArgument | None = None,
        topics: AnalyzeArgument | None = None,
        config: AnalyzeArgument | None = None,
        topic_config: AnalyzeArgument | None = None,
        now_ms: AnalyzeArgument | None = None,
    ) -> AnalyzeResult:
        return _analyzed(job_columns.VACUUM, locals())

    def eval(
        self,
        path: str,
        retention_hours: float | None = None,
        dry_run: bool | None = None,
        topics: Sequence[str] | None = None,
        config: Words | None = None,
        topic_config: str | None = None,
        now_ms: int | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        found, places = _opened(path, topics, config, topic_config, now_ms)
        is_dry = dry_run is None or dry_run
        rows = job_work.run_vacuum(
            found, places, retention_hours, in_a_loop, _untold, is_dry=is_dry
        )
        yield from _values(job_columns.VACUUM, rows)


class History:
    """`stratalog_history`: a row a round, the newest first (`job_columns.HISTORY`)."""

    @staticmethod
    def analyze(
        path: AnalyzeArgument,
        limit: AnalyzeArgument | None = None,
        topics: AnalyzeArgument | None = None,
    ) -> AnalyzeResult:
        return _analyzed(job_columns.HISTORY, locals())

    def eval(
        self, path: str, limit: int | None = None, topics: Sequence[str] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        _, places = _opened(path, topics, None, None, None)
        yield from _values(job_columns.HISTORY, job_work.read_history(places, limit))


class Detail:
    """`stratalog_detail`: a row a partition (`job_columns.DETAIL`)."""

    @staticmethod
    def analyze(
        path: AnalyzeArgument,
        counts: AnalyzeArgument | None = None,
        topics: AnalyzeArgument | None = None,
        config: AnalyzeArgument | None = None,
        topic_config: AnalyzeArgument | None = None,
        now_ms: AnalyzeArgument | None = None,
    ) -> AnalyzeResult:
        return _analyzed(job_columns.DETAIL, locals())

    def eval(
        self,
        path: str,
        counts: bool | None = None,
        topics: Sequence[str] | None = None,
        config: Words | None = None,
        topic_config: str | None = None,
        now_ms: int | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        found, places = _opened(path, topics, config, topic_config, now_ms)
        rows = job_work.read_detail(found, places, in_a_loop, counts=bool(counts))
        yield from _values(job_columns.DETAIL, rows)


FUNCTIONS = {
    "stratalog_compact": Compact,
    "stratalog_vacuum": Vacuum,
    "stratalog_history": History,
    "stratalog_detail": Detail,
}


def register_functions(spark: SparkSession) -> None:
    """Make the table functions known to a session; a second time does no harm."""
    from pyspark.sql.functions import udtf

    for name, function in FUNCTIONS.items():
        spark.udtf.register(name, udtf(function))  # type: ignore[arg-type]


# ---------------------------------------------------------------- arguments


def _analyzed(schema: StructType, arguments: Mapping[str, AnalyzeArgument | None]) -> AnalyzeResult:
    """The columns, after a look at the kinds of the arguments and at those that are constants (F1).

    Raises `UsageError`.
    """
    known: dict[str, Any] = {}
    for name, argument in arguments.items():
        if argument is None or (isinstance(argument.dataType, NullType) and name != "path"):
            continue
        told, kinds = _KINDS.get(name, _FLAG)
        if argument.isTable or not isinstance(argument.dataType, kinds):
            raise UsageError(f"{name} must be {told}, not {argument.dataType.simpleString()}")
        inner = getattr(argument.dataType, "elementType", None)
        if inner is not None and not isinstance(inner, StringType | NullType):
            raise UsageError(f"{name} must be {told}, not {argument.dataType.simpleString()}")
        if argument.isConstantExpression:
            known[name] = argument.value
    if "path" not in known and arguments.get("path") is None:
        raise UsageError("path is missing: path => 'a directory'")
    target("/", known.get("config"), now_ms=known.get("now_ms")).book(())
    if known.get("retention_hours") is not None:
        job_work.retention_ms_of(known["retention_hours"])
    return AnalyzeResult(schema)


def _opened(
    path: str,
    topics: Sequence[str] | None,
    config: Words | None,
    topic_config: str | None,
    now_ms: int | None,
) -> tuple[Target, list[PartitionPlace]]:
    found = target(path, config, topic_config, now_ms)
    found.check_local()
    places = found.places()
    if topics is not None:
        places = chosen(places, lambda place: place.topic_partition.topic in topics, "topics")
    return found, places


def _local_engine(threads: int | None) -> Engine:
    from stratalog.base.filesystem import LocalFileSystem
    from stratalog.clean.local_engine import LocalEngine
    from stratalog.record.kernel.warmup import ensure_warm

    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; it must be at least 1")
    ensure_warm(lambda _told: None)
    return LocalEngine(LocalFileSystem(), threads=threads)


def _untold(_progress: Progress) -> None:
    """A worker has nobody to tell."""


def _values(schema: StructType, rows: Sequence[job_rows.Row]) -> Iterator[tuple[Any, ...]]:
    return (job_rows.values(schema, row) for row in rows)
