"""`spark.read.format("stratalog").load(DIR)`: a log directory as a table, without a broker (SPK-4).

Spark makes the source in a Python process of its own, asks it for a schema, then for the tasks of a
reader, and sends each task to a worker, which yields Arrow record batches:

    options    what was asked for             schema    its columns
    places     the partitions on disk         planning  their bytes, cut into tasks
    reading    bytes -> batches (raw)         latest    bytes -> batches (latest value per key)

This module is imported at the start of every session that looks for sources, so it imports little.

Invariants
- D1  No file of a log is changed, whoever else has it open.
- D2  What is refused is refused before the first task starts, in one line (`UsageError`); damage
      is met by the task that reads it, and names file and position (`CorruptionError`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)

from stratalog.base.errors import UsageError
from stratalog.pipeline import filters
from stratalog.pipeline.filters import push
from stratalog.pipeline.given_options import STREAM_ONLY
from stratalog.pipeline.options import SourceOptions, View, read_options
from stratalog.pipeline.schema import check_schema, schema_of
from stratalog.pipeline.stream_options import is_for_stream, read_stream_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_LOGGER = logging.getLogger(__name__)


class StratalogDataSource(DataSource):
    """The format `stratalog`. See `given_options.OPTIONS` for what it can be told."""

    @classmethod
    def name(cls) -> str:
        return "stratalog"

    def schema(self) -> StructType:
        """The columns that the options ask for, of a batch or a stream. Raises `UsageError`."""
        try:
            columns = read_options(self.options).columns
        except UsageError as refusal:
            # Nobody says yet which of them it will be.
            try:
                columns = read_stream_options(self.options).source.columns
            except UsageError as other:
                raise (other if is_for_stream(self.options) else refusal) from None
        return schema_of(columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of `schema`, ours or a user's choice of our columns. Raises `UsageError`."""
        check_schema(schema)
        kind = FilteringReader if filters.is_asked() else StratalogReader
        if is_for_stream(self.options):
            given = {name.lower() for name in self.options}
            ignored = [name for name in STREAM_ONLY if name.lower() in given]
            _LOGGER.warning("ignored, as this is no stream: %s", ", ".join(ignored))
        return kind(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """A stream of `schema`, ours or a user's choice of our columns."""
        from stratalog.pipeline.stream import RefusingStreamReader, StratalogStreamReader

        try:
            check_schema(schema)
            return StratalogStreamReader(read_stream_options(self.options), schema)
        except UsageError as refusal:
            # Raised here, it would be shown below an error of PySpark's own.
            return RefusingStreamReader(refusal)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write of rows of `schema`; the sink reads its options. Raises `UsageError`."""
        from stratalog.pipeline import sink

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802  Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """A streaming write of rows of `schema`. Raises `UsageError`."""
        from stratalog.pipeline import sink

        return sink.stream_writer(self.options, schema, overwrite)


class StratalogReader(DataSourceReader):
    """Plans on the driver, reads in workers; a value that is pickled in between."""

    def __init__(self, options: SourceOptions, schema: StructType):
        self._options = options
        self._schema = schema
        self._pushed = filters.Pushed()

    def partitions(self) -> list[InputPartition]:
        """The tasks, biggest first. Raises `UsageError`, `CorruptionError`, `StorageIOError`."""
        from stratalog.pipeline import places, planning, source_tasks

        options = self._options
        found = places.find_places(options.paths, options.choice, options.store)
        planning.check_bounds(options, found)
        pushed = self._pushed
        found = [place for place in found if pushed.takes(place.topic_partition)]
        pieces: list[planning.Piece] = []
        parts: list[planning.LatestPart] = []
        pardons = not options.fail_on_data_loss and options.view is View.RAW
        for place in found:
            with places.opened_parts(
                place,
                with_ledger=options.with_ledger,
                as_of=options.as_of,
                pardons_damage=pardons,
                order=options.ledger_order,
            ) as (view, end):
                bounds, loss = planning.resolve(options, place, view)
                if end is not None:
                    bounds = replace(bounds.within(0, end), follows=False)
                if loss is not None:
                    _LOGGER.warning(loss)
                bounds = bounds.within(pushed.low, pushed.high)
                planned = planning.plan_place(options, place, view, bounds, pushed.least_ms)
                if options.view is View.LATEST:
                    parts.append(
                        planning.LatestPart(place, bounds, tuple(planned), True, options.as_of)
                    )
                else:
                    pieces += planned
        if options.view is View.LATEST:
            return [*source_tasks.latest_tasks(parts, options.min_partitions)]
        return [
            *source_tasks.tasks_of(
                pieces,
                options.partition_bytes,
                options.min_partitions,
                may_join=options.max_records is None,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task. Raises `CorruptionError`, `OffsetOutOfRangeError`."""
        return read_task(partition, self._options, self._schema)


class FilteringReader(StratalogReader):
    """A reader where Spark pushes filters down; elsewhere it refuses one that takes them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Take filters over; what is returned is left to Spark."""
        self._pushed, rest = push(filters, by_offset=self._options.view is not View.LATEST)
        return rest


def read_task(
    partition: InputPartition, options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """What a worker does: the record batches of one task, of a batch or of a stream.

    Raises `CorruptionError`, `OffsetOutOfRangeError`.
    """
    from stratalog.pipeline.source_tasks import SourceTask

    # Spark asks for one partition more than none.
    return _batches(partition, options, schema) if isinstance(partition, SourceTask) else iter(())


def _batches(task: Any, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    from stratalog.clean.chunk import Scratch
    from stratalog.pipeline.batches import ArrowForm, joined
    from stratalog.pipeline.latest import LatestRules, read_latest
    from stratalog.pipeline.reading import ReadRules, read_pieces
    from stratalog.record.kernel.warmup import ensure_warm

    ensure_warm(_LOGGER.info)
    scratch = Scratch()
    form = ArrowForm(to_arrow_schema(schema, timezone="UTC"))
    rules = ReadRules(
        options.fail_on_data_loss,
        options.is_committed,
        options.includes_control,
        options.keeps_tombstones,
    )
    latest = LatestRules(options.order, options.version_header, options.dedupe_bytes)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from read_pieces(task.pieces, form, rules, scratch)
        for part in task.latest:
            yield from read_latest(part, form, rules, latest, scratch)

    return joined(batches())
