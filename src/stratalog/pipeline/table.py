"""`LogTable`: the upkeep of logs from a Spark program, shaped like Delta's and Iceberg's (SPK-8).

    table = LogTable.forPath(spark, "/var/kafka-logs")
    table.dry_run()                                                   what cleaning would remove
    table.optimize().where("topic = 'orders'").executeCompaction()
    table.vacuum(retention_hours=168, dry_run=False)
    table.history(), table.detail()

Every call is done when it returns, and answers a DataFrame whose rows are there already, one for
each partition (`job_columns`). Partitions are found anew by each call.

Indexing, rewriting, planning retention and counting are Spark jobs, and every worker must see the
directories; putting results in place and deleting is this process's, which holds the directories'
locks for it: a directory that a live process owns is refused (`LogLockedError`). Logs in object
storage are compacted into another place (`remote`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stratalog.admin.directories import PartitionPlace
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.pipeline import job_columns, job_rows, job_work
from stratalog.pipeline.job_progress import StageBars
from stratalog.pipeline.job_target import Target, chosen, location, target
from stratalog.pipeline.job_work import CompactionWishes, Each, Piece
from stratalog.pipeline.object_store import SCHEME, ObjectStore
from stratalog.pipeline.options import Choice
from stratalog.spark.describing import described, description, watched
from stratalog.spark.failures import one_line_failures

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class LogTable:
    """Logs in directories; use `forPath`. A value: `where` answers another one."""

    _spark: SparkSession
    _target: Target
    _predicates: tuple[str, ...] = ()
    _progress: bool = True

    @classmethod
    def forPath(  # noqa: N802  Delta's name
        cls,
        spark: SparkSession,
        path: str | os.PathLike[str] | Sequence[str],
        *,
        config: Mapping[str, Any] | None = None,
        topic_config: str | None = None,
        now_ms: int | None = None,
        progress: bool = True,
        store: ObjectStore | None = None,
    ) -> LogTable:
        """The logs in `path`: a log directory, a partition's, or several.

        `config`: Kafka's properties for all topics, over those of the file `topic_config`, with
        sections `[topic NAME]` and `[prefix START]`. `now_ms`: the time to go by, so that a run can
        be repeated. `progress`: bars on a terminal's stderr.

        A path may be `s3://bucket/path`, which `store` reaches, or the environment's words for AWS;
        such logs are compacted into another place, and nothing else. Raises `UsageError`.
        """
        from pyspark.errors import PySparkException

        try:
            _ = spark.sparkContext
        except PySparkException:
            raise UsageError("jobs need a SparkContext, which Spark Connect has none of") from None
        found = target(path, config, topic_config, now_ms, store)
        found.book(())  # what cannot be is refused here
        found.places()
        return cls(spark, found, (), progress)

    for_path = forPath

    def where(self, predicate: str) -> LogTable:
        """Only the partitions for which `predicate` holds: SQL over `topic` and `partition`.

        Several are joined by AND. Raises `UsageError` for what Spark does not take.
        """
        chosen_by(self._spark, [], predicate)
        return replace(self, _predicates=(*self._predicates, predicate))

    def optimize(self) -> OptimizeBuilder:
        """A compaction to be: `.where(...)`, then `.executeCompaction()` or `.dry_run()`."""
        return OptimizeBuilder(self)

    def dry_run(
        self,
        *,
        top: int = 0,
        max_concurrent: int | None = None,
        partial_progress: bool = False,
    ) -> DataFrame:
        """What a compaction would remove, and why, by segment (CLN-10), with nothing changed.

        `top`: how many of the keys that lose most to name, for which this process reads the logs
        again. See `OptimizeBuilder.executeCompaction` for the rest, and for what is raised.
        """
        wishes = CompactionWishes(
            True, max_concurrent=max_concurrent, partial_progress=partial_progress, top=top
        )
        return self._compact(wishes)

    def vacuum(self, retention_hours: float | None = None, dry_run: bool = True) -> DataFrame:
        """Delete the segments that retention lets go (RET-*), or only say which, unless `dry_run`
        is False.

        By retention.ms, retention.bytes and the log start, or with `retention_hours` in place of
        retention.ms. A topic of which nobody says a cleanup.policy has Kafka's default, `delete`;
        but one that has been compacted is left alone until somebody does.

        Raises `UsageError`, among them `LogLockedError`; `StorageIOError`.
        """
        with self._bars() as bars:
            each = self._each("plan", bars)
            rows = job_work.run_vacuum(
                self._target, self._local_places(), retention_hours, each, bars, is_dry=dry_run
            )
        return job_rows.frame(self._spark, job_columns.VACUUM, rows)

    def history(self, limit: int | None = None) -> DataFrame:
        """The rounds of cleaning that were run, the newest first; `limit`: of each partition.

        As far as they are kept (`cleaner.history.size`). Works beside a live owner.
        """
        rows = job_work.read_history(self._local_places(), limit)
        return job_rows.frame(self._spark, job_columns.HISTORY, rows)

    def detail(self, counts: bool = False) -> DataFrame:
        """What the partitions are like: sizes, what is dirty, policy, why (not) cleaned.

        `counts`: records, keys, tombstones and the like, too, for which a Spark job looks at every
        record. Works beside a live owner.
        """
        with self._bars() as bars:
            each = self._each("count", bars)
            rows = job_work.read_detail(self._target, self._local_places(), each, counts=counts)
        return job_rows.frame(self._spark, job_columns.DETAIL, rows)

    # ------------------------------------------------------------ how it is done

    def _compact(self, wishes: CompactionWishes) -> DataFrame:
        from stratalog.spark.engine import SparkEngine

        out = None if wishes.out is None else location(wishes.out)
        if out is not None and (out.startswith(SCHEME) or self._target.is_remote):
            return self._compact_to(out, wishes)
        self._target.check_local()

        def start() -> Engine:
            title = "dry run" if wishes.is_dry else "compact"
            return SparkEngine(self._spark, LocalFileSystem(), title=title)

        with self._bars() as bars:
            report = job_work.run_compaction(
                self._target, self._places(), wishes, "spark", start, bars
            )
        rows = job_rows.compaction_rows(report, is_dry=wishes.is_dry)
        return job_rows.frame(self._spark, job_columns.COMPACTION, rows)

    def _compact_to(self, out: str, wishes: CompactionWishes) -> DataFrame:
        """By `remote`: a task for each partition, and a manifest at the end."""
        from stratalog.pipeline import remote

        if wishes.is_dry or wishes.partial_progress or wishes.max_concurrent is not None:
            raise UsageError(f"{out}: object storage is compacted as a whole, and not as a dry run")
        keys = tuple(place.topic_partition for place in self._places())
        report = remote.compact_to(
            self._spark,
            self._target.directories,
            out,
            book=self._target.book(("compact",)),
            store=self._target.store,
            choice=Choice(partitions=keys),
            keep_active=wishes.keep_active,
            clock=self._target.clock,
        )
        rows = job_rows.compaction_rows(report, is_dry=False)
        return job_rows.frame(self._spark, job_columns.COMPACTION, rows)

    def _local_places(self) -> list[PartitionPlace]:
        self._target.check_local()
        return self._places()

    def _places(self) -> list[PartitionPlace]:
        places = self._target.places()
        for predicate in self._predicates:
            places = chosen_by(self._spark, places, predicate)
        return places

    def _bars(self) -> StageBars:
        return StageBars(shows=self._progress)

    def _each(self, phase: str, on_progress: OnProgress) -> Each:
        return lambda work, step, pieces: _on_spark(
            self._spark, work, step, pieces, phase, on_progress
        )


@dataclass(frozen=True, slots=True)
class OptimizeBuilder:
    """What is to be compacted; nothing is done before `executeCompaction` or `dry_run`."""

    _table: LogTable

    def where(self, predicate: str) -> OptimizeBuilder:
        """As `LogTable.where`."""
        return OptimizeBuilder(self._table.where(predicate))

    def executeCompaction(  # noqa: N802  Delta's name
        self,
        *,
        out: str | None = None,
        keep_active: bool = False,
        max_concurrent: int | None = None,
        partial_progress: bool = False,
    ) -> DataFrame:
        """Keep the last record of each key, as `stratalog compact --in-place`, on Spark.

        A topic of which nobody says a cleanup.policy is taken for a compacted one; others are left
        alone, which their rows say. The bytes are those of every other engine (SPK-2).

        `out`: a fresh directory for the result, with the table's own left alone, or
        `s3://bucket/path`, where a manifest names the newest result; so it does in a directory
        where the copy of topics in ledger mode goes on from run to run. `keep_active`:
        leave active segments as they are instead of closing them first. `max_concurrent`:
        partitions in work at once, the biggest first; None: all in one job. `partial_progress`:
        each of these batches is put in place when it is through, and what goes wrong with a
        partition is told in its row (`failed`, `error`) while the others go on; without it, the
        first failure is raised and nothing is put in place.

        Raises `UsageError` (among them `LogLockedError`, and for a paused partition, which
        `partial_progress` passes over); `CorruptionError`, `StorageIOError`.
        """
        return self._table._compact(
            CompactionWishes(False, out, keep_active, max_concurrent, partial_progress)
        )

    execute_compaction = executeCompaction

    def dry_run(
        self,
        *,
        top: int = 0,
        max_concurrent: int | None = None,
        partial_progress: bool = False,
    ) -> DataFrame:
        """As `LogTable.dry_run`."""
        return self._table.dry_run(
            top=top, max_concurrent=max_concurrent, partial_progress=partial_progress
        )


def chosen_by(
    spark: SparkSession, places: Sequence[PartitionPlace], predicate: str
) -> list[PartitionPlace]:
    """The places for which a predicate over `topic` and `partition` holds, as Spark sees it.

    Raises `UsageError` if it is no such predicate, or if there are places and it takes none.
    """
    import pyarrow as pa
    from pyspark.errors import PySparkException

    if not isinstance(predicate, str):
        raise UsageError(f"where takes a predicate in SQL, not {type(predicate).__name__}")
    keys = [place.topic_partition for place in places]
    columns = {
        "topic": pa.array([key.topic for key in keys], pa.string()),
        "partition": pa.array([key.partition for key in keys], pa.int32()),
    }
    text = description("where", [place.name for place in places])
    try:
        with _quiet_refusals(), described(spark.sparkContext, text):
            rows = spark.createDataFrame(pa.table(columns)).where(predicate).collect()
    except PySparkException as error:
        reason = " ".join(str(error).split()).split(" SQLSTATE")[0]
        raise UsageError(f"where({predicate!r}): {reason}") from None
    if not places:
        return []
    taken = {(row["topic"], row["partition"]) for row in rows}
    return chosen(
        places,
        lambda place: (place.topic_partition.topic, place.topic_partition.partition) in taken,
        f"where({predicate!r})",
    )


@contextmanager
def _quiet_refusals() -> Iterator[None]:
    """What Spark refuses is told in one line, by us: its page of JSON on stderr is left out."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _on_spark(
    spark: SparkSession,
    work: str,
    step: Callable[[Any], Any],
    pieces: Sequence[Piece],
    phase: str,
    on_progress: OnProgress,
) -> list[Any]:
    """`step` of every piece by a Spark job, the biggest first, a few tasks for each core."""
    from stratalog.spark.cutting import bins

    if not pieces:
        return []
    context = spark.sparkContext
    sizes = [piece.size_bytes for piece in pieces]
    total_bytes = sum(sizes)
    shares = [share for share in bins(sizes, 4 * context.defaultParallelism) if share]
    work_of = [[(number, pieces[number]) for number in share] for share in shares]

    def run(tasks: Any) -> Any:
        return [(number, step(piece)) for share in tasks for number, piece in share]

    def tell(share: float) -> None:
        on_progress(Progress(phase, int(share * total_bytes), total_bytes))

    names = [piece.place.name for piece in pieces]
    text = description(work, names, total_bytes or None)
    with one_line_failures(), watched(context, text, tell):
        rows = context.parallelize(work_of, len(work_of)).setName(f"{phase} of partitions")
        found = dict(rows.mapPartitions(run).collect())
    return [found[number] for number in range(len(pieces))]
