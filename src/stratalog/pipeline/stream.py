"""`spark.readStream.format("stratalog").load(DIR)`: a log as a stream, exactly once (SPK-5).

Spark keeps one reader for a query, in a Python process beside the driver. At each trigger it asks
how far to go (`latestOffset`), writes the answer into the checkpoint, asks for the tasks of that
range (`partitions`) and notes when the batch is done. After a stop or a crash it asks for the tasks
of the last range again, with the offsets of the checkpoint.

    stream_options  what was asked for
    stream_offsets  where the stream stands, how far it goes, what was lost          pure
    stream_logs     the partitions that there are now, and where each one ends
    planning        a range of offsets -> pieces
    source_tasks    pieces -> tasks, which are read as those of a batch

Invariants
- S1  A batch is the records of [start, end) that are there when it is read: the same ones after a
      restart, but for what was cleaned meanwhile. No record is in two batches; between two nothing
      is left out but what is said to be lost.
- S2  What is lost is said before an offset past it is in the checkpoint (`failOnDataLoss`): if the
      cause can be mended, such as a directory that is away, the stream goes on afterwards as if
      nothing had been. Pardoned, it is a warning, and the stream goes on with what is there.
- S3  With `isolation=read_committed` a stream stops at the last stable offset: no transaction
      below it can change any more.
- S4  With `flushBeforeRead`, records are on the disk before an offset past them is in the
      checkpoint: no power cut takes back what a stream has read, to give its offset to another
      record. The log's owner need not have synced it: the reader does. Without, a stream sees what
      a consumer of Kafka's sees; what recovery cuts off then is told as lost if the stream is past
      the log's end, and goes unnoticed if by then as much has been appended again.
- S5  A partition that had nothing to read when the stream began has nothing in the first batch.
      Spark does not tell a Python source where the checkpoint lies, and asks for the initial
      offsets anew when the first batch is done again. So with `startingOffsets=latest` the end of
      that batch, which is in the checkpoint, is where the stream began.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import OffsetOutOfRangeError, UsageError
from stratalog.pipeline.source import read_task
from stratalog.pipeline.stream_offsets import (
    Offsets,
    advance,
    first_offset,
    from_json,
    is_too_little,
    shared_out,
    to_json,
)
from stratalog.pipeline.stream_options import StreamOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stratalog.pipeline.planning import Piece
    from stratalog.pipeline.stream_logs import StreamLogs

_LOGGER = logging.getLogger(__name__)
_REST, _LONGEST_REST_MS = 9, 1000


class RefusingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot be: whatever Spark asks for first is answered with the reason."""

    def __init__(self, refusal: UsageError):
        self._reason = str(refusal)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UsageError(self._reason)

    initialOffset = latestOffset = prepareForTriggerAvailableNow = _refuse  # noqa: N815
    partitions = read = _refuse


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides on the driver, reads in workers. Names of methods and their offsets, as JSON, are
    Spark's."""

    def __init__(self, options: StreamOptions, schema: StructType, clock: Clock | None = None):
        self._options = options
        self._schema = schema
        self._clock = clock or SystemClock()
        self._logs: StreamLogs | None = None
        self._nothing_yet: Offsets = {}
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._last_trigger_ms = 0
        self._rests_to_ms = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Where a new stream begins. Raises `UsageError`, `OffsetOutOfRangeError`."""
        starts = self._opened().starts(self._said)
        self._nothing_yet = {key: start for key, (start, end) in starts.items() if start >= end}
        return to_json({key: start for key, (start, _) in starts.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What Spark asks `latestOffset` for, unless the trigger wants everything."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The log may grow from now on, the stream ends where it ends now."""
        self._target = {key: log.last for key, log in self._opened().look().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes from `start`.

        Raises `OffsetOutOfRangeError` for what was lost, `CorruptionError`, `StorageIOError`.
        """
        logs, begin = self._opened(), from_json(start)
        began_ms = self._rested()
        found = logs.look()
        if self._target is not None:
            found = {
                key: log.up_to(self._target.get(key, 0))
                for key, log in found.items()
                if key in self._target or key in begin
            }
        step = advance(begin, found, logs.passed_over)
        self._said(step.losses)
        self._latest = dict(step.until)
        until = dict(step.until)
        for key, offset in self._nothing_yet.items():
            if begin.get(key) == offset:
                until[key] = min(until[key], offset)
        self._nothing_yet = {}
        if isinstance(limit, ReadAllAvailable):
            self._rests(began_ms if until == begin else None)
            return to_json(until)
        if self._target is None and self._waits(step.count):
            self._rests(began_ms)
            return start
        self._rests(began_ms if until == begin else None)
        most = self._options.max_offsets
        if most is not None and step.count > most:
            until = shared_out(most, logs.without_gaps(step.begin, until), until)
        return to_json(until)

    def _rested(self) -> int:
        """The time, once it is time to look again."""
        now_ms = self._clock.now_ms()
        if now_ms < self._rests_to_ms and self._target is None:
            self._clock.sleep_ms(min(self._rests_to_ms - now_ms, _LONGEST_REST_MS))
        return self._clock.now_ms()

    def _rests(self, began_ms: int | None) -> None:
        """Spark asks every few milliseconds while nothing comes. Of many partitions, that would
        take a core for itself: where it was in vain, looking takes a tenth of the time at most."""
        if began_ms is not None:
            now_ms = self._clock.now_ms()
            self._rests_to_ms = now_ms + min(_LONGEST_REST_MS, _REST * (now_ms - began_ms))

    def _waits(self, count: int) -> bool:
        options, now_ms = self._options, self._clock.now_ms()
        if is_too_little(
            count,
            options.min_offsets,
            now_ms=now_ms,
            last_ms=self._last_trigger_ms,
            delay_ms=options.max_delay_ms,
        ):
            return True
        self._last_trigger_ms = now_ms
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far there was something to read at the last look: what Spark shows as `latestOffset`
        of the source, beside `endOffset`, up to where it was read."""
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, which may be one of a run before. Raises as `latestOffset`."""
        from stratalog.pipeline import source_tasks

        source = self._options.source
        pieces = self._pieces(from_json(start), from_json(end))
        return source_tasks.tasks_of(
            pieces,
            source.partition_bytes,
            source.min_partitions,
            may_join=source.max_records is None,
        )

    def _pieces(self, start: Offsets, until: Offsets) -> list[Piece]:
        from stratalog.pipeline import planning
        from stratalog.pipeline.stream_logs import ends_of

        logs, source = self._opened(), self._options.source
        # Whoever begins past the end has begun anew (S5), or has been told of the loss.
        wanted = {key: end for key, end in sorted(until.items()) if start.get(key, -1) < end}
        total = sum(end - start.get(key, 0) for key, end in wanted.items())
        most = source.max_records
        if source.min_partitions is not None:
            share = -(-total // source.min_partitions)
            most = max(1, share if most is None else min(most, share))
        pieces: list[Piece] = []
        for key, place in logs.places_of(wanted).items():
            if place is None:
                if wanted[key] > start.get(key, 0):
                    self._said([f"{key} is gone, and what was to be read of it"])
                continue
            with logs.opened(place) as view:
                log = ends_of(view, source.is_committed)
                first, loss = first_offset(key, start.get(key), log)
                end = min(wanted[key], log.last)
                if loss is None and end < wanted[key]:
                    loss = (
                        f"{key} can be read up to offset {log.last}, the batch was to go up to "
                        f"{wanted[key]}: its end was cut off, or isolation has changed"
                    )
                self._said([] if loss is None else [loss])
                pieces += planning.pieces_of(
                    place,
                    view,
                    first,
                    max(first, end),
                    max_bytes=source.partition_bytes,
                    max_records=most,
                    is_committed=source.is_committed,
                )
        return pieces

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task. Raises as that of a batch."""
        return read_task(partition, self._options.source, self._schema)

    def _said(self, losses: Sequence[str]) -> None:
        """Raise, or warn, of what was lost."""
        if losses and self._options.source.fail_on_data_loss:
            more = f" (and {len(losses) - 1} more)" if len(losses) > 1 else ""
            raise OffsetOutOfRangeError(
                f"data was lost: {losses[0]}{more}; failOnDataLoss=false goes on with what is there"
            )
        for loss in losses:
            _LOGGER.warning("data was lost: %s", loss)

    def _opened(self) -> StreamLogs:
        from stratalog.pipeline.stream_logs import StreamLogs

        if self._logs is None:
            self._logs = StreamLogs(self._options)
        return self._logs
