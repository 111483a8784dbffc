"""Spark's micro-batch engine, played in this process: a query with its checkpoint and its sink.

As in Spark: the end of a batch is written into the checkpoint before the batch is planned, a batch
that was not noted as done is done again with the offsets of the checkpoint, and offsets travel as
text. Values are pickled on their way to tasks. The sink takes a batch number once.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable

from stratalog.pipeline.source import StratalogDataSource
from tests.log.helpers import open_log, records

Row = dict[str, Any]
Json = dict[str, Any]
T = TypeVar("T")


class Killed(Exception):  # noqa: N818  (an event, not an error)
    """The driver died here."""


@dataclass
class Query:
    """A streaming query. `offsets`: the checkpoint's, the end of each batch; `committed`: how many
    batches are noted as done; `sink`: the rows of each. `between` is called wherever something may
    happen meanwhile, with the name of the place; what it raises ends the run there. `planned` and
    `check` are called when a batch has its tasks, and when they are read."""

    path: Path | str
    options: dict[str, str] = field(default_factory=dict)
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    sink: dict[int, list[Row]] = field(default_factory=dict)
    between: Callable[[str], None] = lambda _: None
    planned: Callable[[Json, Json], None] = lambda *_: None
    check: Callable[[int, Json, Json, list[Row]], None] = lambda *_: None
    under_way: tuple[Json, Json | None] | None = None

    def run(
        self, *, available_now: bool = False, once: bool = False, max_batches: int = 1000
    ) -> DataSourceStreamReader:
        """One run, up to the first trigger without anything new, or `max_batches`."""
        source = StratalogDataSource(
            CaseInsensitiveDict({"path": str(self.path), **self.options}),
        )
        schema = source.schema()
        reader: DataSourceStreamReader = source.streamReader(schema)
        worker = pickle.loads(pickle.dumps(reader))
        if available_now:
            reader.prepareForTriggerAvailableNow()
        done = 0
        if len(self.offsets) > self.committed:
            start = json.loads(self._start(reader))
            self._batch(reader, worker, start, json.loads(self.offsets[-1]))
            done += 1
        while done < max_batches:
            last = self.offsets[-1] if self.offsets else None
            start = json.loads(last or json.dumps(reader.initialOffset()))
            self.under_way = start, None
            self.between("before latestOffset")
            limit = ReadAllAvailable() if once else reader.getDefaultReadLimit()
            end = json.dumps(reader.latestOffset(start, limit))
            reader.reportLatestOffset()
            if end == last:
                break
            self.between("before the checkpoint")
            self.offsets.append(end)
            self.between("after the checkpoint")
            self._batch(reader, worker, start, json.loads(end))
            done += 1
            if once:
                break
        reader.stop()
        return reader

    def _start(self, reader: DataSourceStreamReader) -> str:
        if len(self.offsets) > 1:
            return self.offsets[-2]
        return json.dumps(reader.initialOffset())

    def _batch(
        self, reader: DataSourceStreamReader, worker: DataSourceStreamReader, start: Json, end: Json
    ) -> None:
        number = len(self.offsets) - 1
        self.under_way = start, end
        tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
        self.planned(start, end)
        rows: list[Row] = []
        for task in tasks:
            self.between("before a task")
            for batch in worker.read(task):
                rows += plain(batch)
        self.check(number, start, end, rows)
        self.between("before the sink")
        self.sink.setdefault(number, rows)
        self.between("before the commit")
        self.committed = number + 1
        reader.commit(end)

    def rows(self) -> list[Row]:
        return [row for number in sorted(self.sink) for row in self.sink[number]]

    def batches(self) -> list[list[int]]:
        """The offsets of each batch, sorted."""
        return [sorted(row["offset"] for row in self.sink[number]) for number in sorted(self.sink)]


def plain(batch: pa.RecordBatch) -> list[Row]:
    """Rows with timestamps in microseconds."""
    if "timestamp" in batch.schema.names:
        place = batch.schema.names.index("timestamp")
        batch = batch.set_column(place, "timestamp", batch.column(place).cast(pa.int64()))
    found: list[Row] = batch.to_pylist()
    return found


def patiently(call: Callable[[], T], attempts: int = 6) -> T:
    """Spark waits ten seconds for a stream's Python process, and no setting makes it longer: on a
    machine that is busy enough, that is not for a test to fail by."""
    while True:
        try:
            return call()
        except StreamingQueryException as error:
            attempts -= 1
            if "failed to connect back" not in str(error) or attempts == 0:
                raise


def stands(query: Query) -> Json:
    """Where a query stands, by its checkpoint."""
    found: Json = json.loads(query.offsets[-1])
    return found


def fill(path: Path, *counts: int) -> None:
    """Append batches of so many records."""
    with open_log(path) as log:
        for count in counts:
            log.append_records(records(count))
