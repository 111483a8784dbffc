"""A topic of an open store: append to it, read it, compact it, ask how that went.

Three views of one topic:

    raw        every record that the log holds
    compacted  below a ledger's horizon the latest record of each key, deletions among them for
               delete.retention.ms (LDG-5); the raw log from there on. Where there is no ledger,
               the log itself, which a topic that is compacted in place needs no other view for
    latest     one record for each key that is there, none that was deleted, exactly as of the log
               end when the read began (LDG-7); of committed data

Reads go partition by partition, each in the order of its offsets, and see the moment when they were
begun: a reading keeps its files and its ledgers until it is closed or has come to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import finalize

from stratalog.admin.desk import Document, OwnDesk
from stratalog.admin.floors import append_codec
from stratalog.base.errors import MissingExtraError, UnknownPartitionError, UsageError
from stratalog.embedded import words
from stratalog.embedded.appending import appended, batches_of, partitions_of
from stratalog.embedded.records import Appended, Record, RecordForm
from stratalog.embedded.sight import LATEST_BYTES, Sight, View, look, records_in
from stratalog.ledger.ledgers import Ledgers
from stratalog.pipeline.as_of import AsOf
from stratalog.pipeline.latest import LatestRules
from stratalog.record.builder import NewRecord
from stratalog.segment.names import MAX_OFFSET, TopicPartition

if TYPE_CHECKING:
    from stratalog.pipeline.batches import RecordBatch

T = TypeVar("T")
_MOST_RUNS = 1 << 31

AsOfWord = int | str | datetime
"""`ledger:3`, an offset, `@` and ms since 1970, a time."""

READ_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""What `read_arrow` gives unless told: as the fields of `Record`."""


class IsolationLevel(Enum):
    """Which records of transactions are read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Reading(Generic[T]):
    """An iterator that can be closed, and is when it has come to its end; a context manager."""

    def __init__(self, sights: Sequence[Sight], rows: Iterator[T]):
        self._rows = rows
        # Also where nobody closes it: a ledger must not stay for that.
        self._close = finalize(self, _let_go, tuple(sights))

    def __iter__(self) -> Iterator[T]:
        # A generator takes half as long for a row as calls of `__next__`.
        try:
            for row in self._rows:  # noqa: UP028  (whoever breaks off may go on later)
                yield row
        except GeneratorExit:
            raise
        except BaseException:
            self.close()
            raise
        self.close()

    def __next__(self) -> T:
        try:
            return next(self._rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of files and ledgers; there are no more rows. Closing twice is fine."""
        self._rows = iter(())
        self._close()

    def __enter__(self) -> Reading[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _let_go(sights: Iterable[Sight]) -> None:
    for sight in sights:
        sight.close()


class Topic:
    """Use `Store.topic` or `Store.create_topic`. It is only a name: any number of them may stand
    for one topic, in any thread."""

    def __init__(self, desk: OwnDesk, ledgers: Ledgers, name: str, check: Callable[[], None]):
        self.name = name
        self._desk = desk
        self._service = desk.service
        self._ledgers = ledgers
        self._check = check
        self._next = itertools.count()
        self._count = 0

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    @property
    def partitions(self) -> range:
        """The numbers of its partitions. Raises `UnknownPartitionError` once it is deleted."""
        self._check()
        # To count them is to go through all partitions of the store, for each record appended.
        if not (self._is_there(self._count - 1) and not self._is_there(self._count)):
            self._count = self._desk.partition_count(self.name)
        return range(self._count)

    def _is_there(self, partition: int) -> bool:
        try:
            self._service.store.log_dir_of(TopicPartition(self.name, partition))
        except UnknownPartitionError:
            return False
        return True

    def key(self, partition: object) -> TopicPartition:
        """A partition of it. Raises `UnknownPartitionError`."""
        count = len(self.partitions)
        is_number = isinstance(partition, int) and not isinstance(partition, bool)
        if not (isinstance(partition, int) and is_number and 0 <= partition < count):
            raise UnknownPartitionError(
                f"{self.name} has partitions 0 to {count - 1}, not {words.short(partition)}"
            )
        return TopicPartition(self.name, partition)

    # -- append -----------------------------------------------------------------------------------

    def append(
        self,
        key: words.Data,
        value: words.Data,
        *,
        partition: int | None = None,
        timestamp: words.Time | None = None,
        headers: words.GivenHeaders = (),
    ) -> Appended:
        """Append a record; where it went. `value` None deletes the key.

        Text is UTF-8. The partition is that of Kafka's producers: by the key (murmur2), in turn
        without one. The record is in the page cache when this returns, and on the disk after
        `flush` or as `flush.messages` says. Raises `InvalidRecordError` (no key where the topic is
        compacted), `RecordTooLargeError`, `UnknownPartitionError`, `UsageError`, `LogOfflineError`,
        `StorageIOError`.
        """
        record = words.record_of(key, value, timestamp, headers)
        (where,) = self._placed([record], partition)
        return Appended(where, self._append(where, [record]))

    def append_many(
        self, records: Iterable[words.GivenRecord], *, partition: int | None = None
    ) -> list[Appended]:
        """Append (key, value[, timestamp[, headers]]) each; where they went, in their order.

        Those of a partition share batches. Raises as `append`: what was refused is not appended,
        nor what comes after it in its partition; other batches may have been.
        """
        given = words.each_of(records, "records are a list of (key, value)")
        made = [words.given_record(record) for record in given]
        answers: list[Appended] = [Appended(0, 0)] * len(made)
        for where, numbers in self._placed(made, partition).items():
            there = [made[number] for number in numbers]
            settings = self._service.store.get(self.key(where)).settings
            room = min(settings.max_message_bytes // 2, settings.segment_bytes // 2)
            for low, high in batches_of(there, room):
                first = self._append(where, there[low:high])
                for number, answer in zip(numbers[low:high], appended(where, first), strict=False):
                    answers[number] = answer
        return answers

    def _placed(self, made: list[NewRecord], partition: int | None) -> dict[int, list[int]]:
        """The numbers of the records of each partition."""
        if partition is not None:
            number = self.key(partition).partition
            return {number: list(range(len(made)))} if made else {}
        count = len(self.partitions)
        by_key = iter(partitions_of([r.key for r in made if r.key is not None], count))
        placed: dict[int, list[int]] = {}
        for number, record in enumerate(made):
            where = next(self._next) % count if record.key is None else next(by_key)
            placed.setdefault(where, []).append(number)
        return placed

    def _append(self, partition: int, records: list[NewRecord]) -> int:
        log = self._service.store.get(self.key(partition))
        codec = append_codec(self._service.settings(self.name))
        return log.append_records(records, codec=codec).first_offset

    def flush(self) -> None:
        """What was appended is on the disk when this returns. Raises `StorageIOError`."""
        for partition in self.partitions:
            self._service.store.get(self.key(partition)).flush()

    # -- read -------------------------------------------------------------------------------------

    def read(
        self,
        view: words.ViewName = "raw",
        *,
        partitions: Iterable[int] | int | None = None,
        as_of: AsOfWord | None = None,
        start: int | Mapping[int, int] | None = None,
        isolation: words.Isolation | None = None,
    ) -> Reading[Record]:
        """The records of a view, one after another; of the chosen `partitions`, or all.

        `start`: the offset to begin at, of each partition or by its number; one that was compacted
        away stands for the next. `as_of` reads what there was: at the horizon of a ledger that is
        kept (`ledger:3`), when the log ended at an offset, or before its first record of a time (a
        datetime, text like 2026-01-31T12:00:00Z, or `@` and ms). `isolation`: `read_committed`
        leaves out what transactions have not committed; the latest view always does.

        Raises `UsageError` for what cannot be, or where nothing answers `as_of` exactly;
        `UnknownPartitionError`, `OffsetOutOfRangeError`; on the way `CorruptionError`.
        """
        lists = self._read(RecordForm(), view, partitions, as_of, start, isolation)
        return Reading(lists[0], itertools.chain.from_iterable(lists[1]))

    def read_arrow(
        self,
        view: words.ViewName = "raw",
        *,
        partitions: Iterable[int] | int | None = None,
        as_of: AsOfWord | None = None,
        start: int | Mapping[int, int] | None = None,
        isolation: words.Isolation | None = None,
        columns: Sequence[str] = READ_COLUMNS,
    ) -> Reading[RecordBatch]:
        """As `read`, as record batches of `pyarrow` that kernels have filled; no row of them was
        ever Python's. `columns` are those of the Spark source, too. Raises as `read`, and
        `MissingExtraError` without pyarrow."""
        try:
            from stratalog.pipeline.arrow_schema import arrow_schema
            from stratalog.pipeline.batches import ArrowForm, joined
        except ImportError as error:
            raise MissingExtraError(
                f"pyarrow is not installed ({error}); pip install 'stratalog[arrow]'"
            ) from error
        names = words.texts_of(columns, "columns must be a list of names")
        form: ArrowForm = ArrowForm(arrow_schema(names))
        sights, batches = self._read(form, view, partitions, as_of, start, isolation)
        return Reading(sights, joined(batches))

    def _read(
        self,
        form: Any,
        view: str,
        partitions: Iterable[int] | int | None,
        as_of: AsOfWord | None,
        start: int | Mapping[int, int] | None,
        isolation: str | None,
    ) -> tuple[list[Sight], Iterator[Any]]:
        shown = words.word_of("view", view, View)
        asked = "read_uncommitted" if isolation is None else isolation
        level = words.word_of("isolation", asked, IsolationLevel)
        is_latest = shown is View.LATEST
        if is_latest and isolation == IsolationLevel.READ_UNCOMMITTED.value:
            raise UsageError("view='latest' is that of committed data: leave out isolation")
        if is_latest and start is not None:
            raise UsageError("view='latest' is that of the whole log: leave out start")
        numbers = self.partitions if partitions is None else words.partitions_of(partitions)
        keys = [self.key(partition) for partition in numbers]
        starts = self._starts(start, keys)
        moment = words.moment_of(as_of)
        sights: list[Sight] = []
        rows: list[Iterator[Any]] = []
        try:
            for key in keys:
                sight = self.look(key, shown, moment)
                sights.append(sight)
                begin = starts.get(key.partition)
                rows.append(
                    records_in(
                        sight,
                        form,
                        latest=self._latest_rules(key) if is_latest else None,
                        is_committed=level is IsolationLevel.READ_COMMITTED,
                        start=None if begin is None else sight.check(begin),
                    )
                )
        except BaseException:
            _let_go(sights)
            raise
        return sights, itertools.chain.from_iterable(rows)

    def log_at(self, key: TopicPartition) -> object:
        """What stands for the log: another one once the topic was deleted and made again. Raises
        `UnknownPartitionError`."""
        self._check()
        return self._service.store.get(key)

    def topic_id(self, key: TopicPartition) -> str:
        """What tells it from another of its name; "": nothing does."""
        return self._desk.topic_id(key)

    def ends_at(self, key: TopicPartition, *, is_committed: bool) -> int:
        """Where the log ends by now, for readers of committed data or all; for consumers."""
        view = self._service.store.get(key).view
        return view.last_stable_offset if is_committed else view.log_end_offset

    def look(self, key: TopicPartition, view: View, as_of: AsOf | None) -> Sight:
        """A partition at this moment; for consumers."""
        self._check()
        return look(self._service, self._ledgers, key, view, as_of)

    def _starts(
        self, start: int | Mapping[int, int] | None, keys: Sequence[TopicPartition]
    ) -> dict[int, int]:
        if start is None:
            return {}
        if not isinstance(start, Mapping):
            offset = words.number_of("start", start, 0, MAX_OFFSET)
            return {key.partition: offset for key in keys}
        chosen = {key.partition for key in keys}
        for partition, offset in start.items():
            if type(partition) is not int or partition not in chosen:
                raise UnknownPartitionError(
                    f"start: partition {words.short(partition)} is not read"
                )
            words.number_of("start", offset, 0, MAX_OFFSET)
        return dict(start)

    def _latest_rules(self, key: TopicPartition) -> LatestRules:
        cleaning = self._service.cleaning(key)
        return LatestRules(cleaning.order, cleaning.version_header, LATEST_BYTES)

    # -- compaction and settings ------------------------------------------------------------------

    def compact(self, *, partition: int | None = None, wait: bool = True) -> Document:
        """Compact the topic now, into its ledger or in place as `compaction.mode` says; its status
        afterwards, as `status`.

        Without `wait` it is only begun, where the cleaner runs. Whoever asks for what is running
        waits for that. Raises `UsageError` (not compacted, paused), `RoundAbortedError`, and what
        made a run fail.
        """
        keys = [self.key(number) for number in self._numbers(partition)]
        if not words.flag_of("wait", wait):
            return self._desk.compact(self.name, partition)
        for key in keys:
            self._service.compact(key)
        return self.status(partition=partition)

    def status(self, *, partition: int | None = None) -> Document:
        """How compaction stands, partition by partition; as `admin.desk.Desk.compaction_status`."""
        self._numbers(partition)
        return self._desk.compaction_status(self.name, partition)

    def history(self, *, partition: int | None = None, limit: int | None = None) -> Document:
        """The last runs, at most `limit` of a partition, oldest first; as
        `admin.desk.Desk.history`."""
        self._numbers(partition)
        if limit is not None:
            words.number_of("limit", limit, 1, _MOST_RUNS)
        return self._desk.history(self.name, partition, limit)

    def _numbers(self, partition: int | None) -> list[int]:
        return [*self.partitions] if partition is None else [self.key(partition).partition]

    @property
    def config(self) -> dict[str, str]:
        """What is set at this topic; `settings` answers all that is in force."""
        self._check()
        found: dict[str, str] = self._desk.describe_topic(self.name)["configs"]
        return found

    def settings(self) -> dict[str, str]:
        """Every setting in force, with the values of namespaces and broker."""
        self._check()
        document = self._desk.describe_configs("topic", self.name, all=True)
        return {row["name"]: row["value"] for row in document["configs"]}

    def configure(
        self,
        config: Mapping[str, object] | None = None,
        *,
        unset: Iterable[str] = (),
        confirm: bool = False,
    ) -> Document:
        """Change settings, all or none; what changed. `confirm`: what only ledgers have may go with
        them, if the topic leaves compaction.mode=ledger.

        Raises `InvalidConfigError`; without `confirm`, `ConfirmationNeededError`.
        """
        self._check()
        given = words.settings_of(config)
        names = words.texts_of(unset, "unset is a list of names")
        return self._desk.alter_configs("topic", self.name, given, tuple(names), confirm=confirm)

    def describe(self) -> Document:
        """Offsets, sizes, segments: as `admin.desk.Desk.describe_topic`."""
        self._check()
        return self._desk.describe_topic(self.name)


def all_of(reading: Reading[T]) -> list[T]:
    """All of a reading, which is closed then."""
    with closing(reading):
        return list(reading)
