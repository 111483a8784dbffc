"""`df.write` and `df.writeStream` to a log directory, each row once (SPK-6).

    df.write.format("stratalog").mode("append").option("topic", "orders").save(DIR)
    df.writeStream.format("stratalog").option("checkpointLocation", C).start(DIR)

Spark makes the data source in a Python process of its own, asks it for a writer, and sends that to
the workers. A task writes its rows aside (`sink_rows`, `staging`); when all of a batch are through,
Spark has another process commit it, with what the tasks answered: only there is anything appended
(`sink_commit`), once for each batch of each writer. Who writes is known by

- `txnAppId`, if it is given: with `txnVersion` in a batch write, with Spark's own number of the
  batch in a stream;
- the id of a streaming query, which lies in its checkpoint: Spark tells its tasks, and they pass it
  on. A new checkpoint is a new query, whose first batch is nobody's repetition;
- a job id that is made up on the spot: such a write is not repeated by whoever runs it again.

A stream in `complete` mode appends every result, as Spark's Kafka sink does: to a compacted topic
these are upserts.

Invariants
- D1  What is refused is refused in one line; of the options, the columns and the directory before
      the first task starts. Nothing of a batch is appended of which a row is refused.
- D2  Whoever reads while a batch is appended may see a part of it, as with Kafka's own sink.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from stratalog.base.clock import SystemClock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.pipeline.sink_options import SinkOptions, read_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stratalog.pipeline.sink_commit import Batch
    from stratalog.pipeline.sink_rows import TopicPlan
    from stratalog.pipeline.staging import Staged

_LOGGER = logging.getLogger(__name__)
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's names of what it tells the tasks of a stream (StreamExecution, MicroBatchExecution)."""


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What a task answers: who writes, which batch, and its file; None: it had no rows."""

    writer: str
    version: int
    file: Staged | None


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of `df.write`. Raises `UsageError`, `StorageIOError`."""
    if overwrite:
        raise UsageError('a log is only appended to: use mode("append")')
    told = read_sink_options(options, is_stream=False)
    return BatchSink(told, _prepared(told, schema))


def stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,  # noqa: ARG001  a stream in complete mode, see the module
) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream`. Raises `UsageError`, `StorageIOError`."""
    told = read_sink_options(options, is_stream=True)
    return StreamSink(told, _prepared(told, schema))


def _prepared(options: SinkOptions, schema: StructType) -> TopicPlan:
    """All that can be refused on the driver; what the tasks have to know of the directory."""
    from stratalog.pipeline.sink_columns import check_columns
    from stratalog.pipeline.sink_commit import check_free
    from stratalog.pipeline.sink_places import plan_topics

    check_columns(schema, options.topic)
    filesystem = LocalFileSystem()
    plan = plan_topics(options, filesystem)
    check_free(options.log_dir, filesystem, SystemClock())
    return plan


class _Sink:
    """What both writers have in common; a value that is pickled from one process to the next."""

    def __init__(self, options: SinkOptions, plan: TopicPlan):
        self._options = options
        self._plan = plan

    def _stage(
        self, batches: Iterator[pa.RecordBatch], writer: str, version: int, task: int
    ) -> StagedRows:
        """Write the rows of a task aside. Raises `UsageError`, `StorageIOError`."""
        from stratalog.pipeline.sink_rows import RowWriter
        from stratalog.pipeline.staging import StagedWriter, staged_name
        from stratalog.record.kernel.warmup import ensure_warm

        ensure_warm(_LOGGER.info)
        clock = SystemClock()
        directory = self._options.log_dir
        staged = StagedWriter(LocalFileSystem(), directory, staged_name(writer, version))
        try:
            rows = RowWriter(self._plan, staged, task)
            for batch in batches:
                rows.add(batch, clock.now_ms())
            rows.finish()
            if not rows.counts:
                staged.abandon()
                return StagedRows(writer, version, None)
            return StagedRows(writer, version, staged.finish(rows.counts))
        except BaseException:
            staged.abandon()
            raise

    def _commit(self, batch: Batch, messages: Sequence[StagedRows | None]) -> None:
        from stratalog.admin.floors import store_settings
        from stratalog.admin.topics import Topics
        from stratalog.pipeline.sink_commit import Rules, commit

        files = [one.file for one in messages if one is not None and one.file is not None]
        book = self._options.book
        rules = Rules(Topics(book).log_settings, store_settings(book.of_broker()))
        commit(self._options.log_dir, batch, files, rules, LocalFileSystem(), SystemClock())

    def _abort(self, batch: Batch) -> None:
        from stratalog.pipeline.sink_commit import abort

        abort(self._options.log_dir, batch, LocalFileSystem())


class BatchSink(_Sink, DataSourceArrowWriter):
    """A batch write. The driver's process makes it; it knows who writes."""

    def __init__(self, options: SinkOptions, plan: TopicPlan):
        super().__init__(options, plan)
        self._writer = f"job {uuid.uuid4()}" if options.app is None else f"app {options.app}"
        self._version = options.version or 0

    def _batch(self) -> Batch:
        from stratalog.pipeline.sink_commit import Batch

        return Batch(self._writer, self._version, is_once=self._options.app is None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows, aside."""
        return self._stage(iterator, self._writer, self._version, _context().partitionId())

    def commit(self, messages: list[Any]) -> None:
        """Append what all tasks have staged."""
        self._commit(self._batch(), messages)

    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002  the files are found by name
        """Remove what tasks have staged."""
        self._abort(self._batch())


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """A batch of a stream; Spark makes one for each, in several processes."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows, aside."""
        context = _context()
        query, version = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if version is None or (query is None and self._options.app is None):
            raise UsageError("Spark does not tell its tasks which query and batch they are of")
        app = self._options.app
        writer = f"query {query}" if app is None else f"app {app}"
        return self._stage(iterator, writer, int(version), context.partitionId())

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Append what all tasks have staged, unless it was appended before."""
        batch = _batch_of(messages, batchId)
        if batch is not None:
            self._commit(batch, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  Spark's name
        """Remove what tasks have staged, but for what is decided."""
        batch = _batch_of(messages, batchId)
        if batch is not None:
            self._abort(batch)


def _batch_of(messages: Sequence[StagedRows | None], version: int) -> Batch | None:
    """The batch of a stream; None if no task has got as far as to say whose it is."""
    from stratalog.pipeline.sink_commit import Batch

    writers = {one.writer for one in messages if one is not None}
    assert len(writers) <= 1, writers
    return Batch(writers.pop(), version) if writers else None


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, f"process {os.getpid()} runs no task"
    return context
