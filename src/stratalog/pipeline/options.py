"""The options of the source, read once into a frozen value; what cannot be is refused in one line.

They are those of Spark's Kafka source that mean something for a directory, with their rules, and
ours. Spark hands them over as text, names in lower case. Names that begin with `kafka.` belong to a
client that there is none of, and are passed over, but for `kafka.isolation.level`.

Sources: Spark's KafkaSourceProvider and ConsumerStrategy; REQUIREMENTS SPK-4, CMP-17.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from stratalog.base.errors import UsageError
from stratalog.clean.job import Order
from stratalog.clean.ledger_plan import order_name
from stratalog.pipeline.as_of import AsOf, read_as_of
from stratalog.pipeline.given_options import GivenOptions, shortened
from stratalog.pipeline.object_store import FROM_ENVIRONMENT, ObjectStore, object_path
from stratalog.pipeline.schema import (
    HEADERS_COLUMN,
    METADATA_COLUMNS,
    PLAIN_COLUMNS,
    column_named,
)
from stratalog.pipeline.uris import scheme_of, without_file
from stratalog.segment.names import MAX_OFFSET, MAX_PARTITION, TopicPartition

DEFAULT_PARTITION_BYTES = 128 << 20
"""What a task reads at most, about, as Spark has it for files. A task of a Python source takes a
tenth to a fifth of a second to begin and end (40 that do nothing, 2 cores): be it worth that."""
DEFAULT_DEDUPE_BYTES = 256 << 20

_EARLIEST, _LATEST = -2, -1


class View(Enum):
    """RAW: every record; COMPACTED: a ledger below its horizon, the raw log from there on; LATEST:
    for each key the newest one of committed data."""

    RAW = "raw"
    COMPACTED = "compacted"
    LATEST = "latest"


class BoundKind(Enum):
    """How a bound is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins, or ends before. `values`: an offset (-2 earliest, -1 latest) or a
    timestamp (ms) for each partition; `timestamp`: one for all. `option` names it in errors."""

    option: str
    kind: BoundKind
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """Which partitions are read: all, unless one of the three is set."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] | None = None

    def takes(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition is chosen."""
        if self.topics is not None:
            return topic_partition.topic in self.topics
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic_partition.topic) is not None
        return self.partitions is None or topic_partition in self.partitions


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a read of logs was asked for. Sizes in bytes."""

    paths: tuple[str, ...]
    choice: Choice
    starting: Bound
    ending: Bound
    latest_if_no_time: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records: int | None
    columns: tuple[str, ...]
    view: View
    is_committed: bool
    keeps_tombstones: bool
    includes_control: bool
    partition_bytes: int
    dedupe_bytes: int
    order: Order
    version_header: str
    as_of: AsOf | None = None
    store: ObjectStore = FROM_ENVIRONMENT

    @property
    def with_ledger(self) -> bool:
        """Whether a ledger is asked."""
        return self.view is not View.RAW

    @property
    def ledger_order(self) -> str | None:
        """By which order of versions a ledger has to be made to answer, where the raw log has all
        that it was made from; None: any is taken, as a reader of the compacted view names none."""
        is_latest = self.view is View.LATEST
        return order_name(self.order, self.version_header) if is_latest else None


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a batch read. Raises `UsageError`."""
    options = GivenOptions(given)
    return source_options(options, _starting(options), _ending(options))


def source_options(options: GivenOptions, starting: Bound, ending: Bound) -> SourceOptions:
    """What batches and streams have in common, with their bounds. Raises `UsageError`."""
    view = options.one_of("view", View, View.RAW)
    is_latest = view is View.LATEST
    is_committed = _isolation(options, is_latest)
    tombstones = options.word("tombstones", ("keep", "drop"), "drop" if is_latest else "keep")
    order = options.one_of("compaction.strategy", Order, Order.OFFSET)
    version_header = options.text("compaction.strategy.header") or ""
    if (order is Order.HEADER) != bool(version_header):
        raise UsageError("compaction.strategy=header and compaction.strategy.header go together")
    if order is not Order.OFFSET and not is_latest:
        raise UsageError("compaction.strategy says which record is the latest: use view=latest")
    includes_control = options.flag("includeControl", False)
    if includes_control and is_latest:
        raise UsageError("view=latest holds no control records: leave out includeControl")
    return SourceOptions(
        paths=_paths(options),
        choice=_choice(options),
        starting=starting,
        ending=ending,
        latest_if_no_time=options.word(
            "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"
        )
        == "latest",
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        min_partitions=options.positive("minPartitions"),
        max_records=options.positive("maxRecordsPerPartition"),
        columns=_columns(options),
        view=view,
        is_committed=is_committed,
        keeps_tombstones=tombstones == "keep",
        includes_control=includes_control,
        partition_bytes=options.positive("maxPartitionBytes") or DEFAULT_PARTITION_BYTES,
        dedupe_bytes=options.positive("dedupeBufferBytes") or DEFAULT_DEDUPE_BYTES,
        order=order,
        version_header=version_header,
        as_of=_as_of(options, ending),
        store=_store(options),
    )


def _as_of(options: GivenOptions, ending: Bound) -> AsOf | None:
    text = options.text("asOf")
    if text is None:
        return None
    if ending.kind is not BoundKind.LATEST:
        raise UsageError(f"asOf says where reading ends: leave out {ending.option}")
    return read_as_of(text)


def _store(options: GivenOptions) -> ObjectStore:
    """Where objects are, by the names that Iceberg has for it."""
    return ObjectStore(
        endpoint=options.text("s3.endpoint"),
        region=options.text("s3.region"),
        access_key_id=options.text("s3.access-key-id"),
        secret_access_key=options.text("s3.secret-access-key"),
        session_token=options.text("s3.session-token"),
        is_anonymous=options.flag("s3.anonymous", False),
    )


def _paths(options: GivenOptions) -> tuple[str, ...]:
    path = options.text("path")
    several = options.json("paths") if options.text("paths") is not None else []
    if not isinstance(several, list) or not all(isinstance(item, str) for item in several):
        raise UsageError("paths must be a JSON list of directories")
    found = [*([] if path is None else [path]), *several]
    if not found or not all(found):
        raise UsageError("no directory is given: use load(DIR) or option path")
    return tuple(_local(item) for item in found)


def _local(path: str) -> str:
    return without_file(path) if scheme_of(path) in (None, "file") else object_path(path)


def _choice(options: GivenOptions) -> Choice:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if options.text(name) is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} cannot both be given")
    if not given:
        return Choice()
    text = options.text(given[0]) or ""
    if given == ["assign"]:
        return Choice(partitions=_assigned(options.json("assign")))
    if not text.strip():
        raise UsageError(f"{given[0]} is empty")
    if given == ["subscribe"]:
        return Choice(topics=tuple(word.strip() for word in text.split(",") if word.strip()))
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"subscribePattern is no regular expression: {error}") from None
    return Choice(pattern=text)


def _assigned(content: Any) -> tuple[TopicPartition, ...]:
    example = 'assign must look like {"topic":[0,1]}'
    if not isinstance(content, dict) or not content:
        raise UsageError(example)
    found = []
    for topic, numbers in content.items():
        if not isinstance(numbers, list) or not all(map(_is_partition, numbers)):
            raise UsageError(example)
        found += [TopicPartition(topic, number) for number in numbers]
    return tuple(found)


def _is_partition(number: Any) -> bool:
    return type(number) is int and 0 <= number <= MAX_PARTITION


def _starting(options: GivenOptions) -> Bound:
    bound = bound_of(options, "starting")
    if bound.kind is BoundKind.LATEST or _LATEST in _offsets(bound):
        raise UsageError("startingOffsets: a batch read cannot begin at latest (-1)")
    return bound


def _ending(options: GivenOptions) -> Bound:
    bound = bound_of(options, "ending")
    if bound.kind is BoundKind.EARLIEST or _EARLIEST in _offsets(bound):
        raise UsageError("endingOffsets: a batch read cannot end at earliest (-2)")
    return bound


def _offsets(bound: Bound) -> list[int]:
    return list(bound.values.values()) if bound.kind is BoundKind.OFFSETS else []


def bound_of(options: GivenOptions, which: str, default: BoundKind | None = None) -> Bound:
    """The three ways to give a bound, the first of which wins, as in Spark's Kafka source.

    Without any it is `default`, else that of a batch. Raises `UsageError`.
    """
    timestamp = options.integer(f"{which}Timestamp")
    if timestamp is not None:
        if timestamp < 0:
            raise UsageError(f"{which}Timestamp is {timestamp}; it must be milliseconds since 1970")
        return Bound(f"{which}Timestamp", BoundKind.TIMESTAMP, timestamp=timestamp)
    name = f"{which}OffsetsByTimestamp"
    if options.text(name) is not None:
        return Bound(name, BoundKind.TIMESTAMPS, _by_partition(options, name, 0))
    name = f"{which}Offsets"
    if default is None:
        default = BoundKind.EARLIEST if which == "starting" else BoundKind.LATEST
    word = (options.text(name) or default.value).strip().lower()
    if word in (BoundKind.EARLIEST.value, BoundKind.LATEST.value):
        return Bound(name, BoundKind(word))
    return Bound(name, BoundKind.OFFSETS, _by_partition(options, name, _EARLIEST))


def _by_partition(options: GivenOptions, name: str, least: int) -> dict[TopicPartition, int]:
    """JSON like {"topic":{"0":23,"1":-1}}."""
    content = options.json(name)
    example = f'{name} must look like {{"topic":{{"0":23,"1":45}}}}'
    if not isinstance(content, dict) or not content:
        raise UsageError(example)
    found: dict[TopicPartition, int] = {}
    for topic, of_topic in content.items():
        if not isinstance(of_topic, dict):
            raise UsageError(example)
        for partition, value in of_topic.items():
            is_number = re.fullmatch("0|[1-9][0-9]{0,9}", partition, re.ASCII) is not None
            if not is_number or int(partition) > MAX_PARTITION:
                raise UsageError(f"{name}: {partition!r} is no number of a partition")
            if type(value) is not int or not least <= value <= MAX_OFFSET:
                raise UsageError(f"{name}: {topic}-{partition} is {shortened(value)}")
            found[TopicPartition(topic, int(partition))] = value
    return found


def _columns(options: GivenOptions) -> tuple[str, ...]:
    headers = options.flag("includeHeaders", False)
    metadata = options.flag("includeMetadata", False)
    text = options.text("columns")
    if text is None:
        return (
            *PLAIN_COLUMNS,
            *([HEADERS_COLUMN] if headers else []),
            *(METADATA_COLUMNS if metadata else []),
        )
    names = [column_named(word.strip()) for word in text.split(",") if word.strip()]
    if not names:
        raise UsageError("columns is empty")
    if len(set(names)) < len(names):
        raise UsageError(f"columns names a column twice: {text}")
    return tuple(names)


def _isolation(options: GivenOptions, is_latest: bool) -> bool:
    """Whether only committed data is read; what cleaning preserves is the state of that."""
    words = ("read_uncommitted", "read_committed")
    if is_latest:
        if options.word("isolation", words, "read_committed") != "read_committed":
            raise UsageError("view=latest is that of committed data: leave out isolation")
        return True
    of_client = options.word("kafka.isolation.level", words, "read_uncommitted")
    return options.word("isolation", words, of_client) == "read_committed"
