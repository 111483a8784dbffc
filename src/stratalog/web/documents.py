"""The documents of `admin.desk.protocol`, as schemas of the description of REST.

Nothing is made of these models: a desk makes documents, and they go out as they are. Tests hold
each document against its schema, in both directions, so the two cannot part.

Names end in their unit: `_ms` is ms since 1970 UTC or a span of ms, `_bytes` bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stratalog.web.shapes import Applied, ItemError, Mode, Ok, Shape


class ErrorContent(Shape):
    """What was refused, or went wrong, in one sentence."""

    code: Annotated[str, Field(description="A word that stays, like unknown_partition or busy.")]
    message: str
    type: Annotated[str, Field(description="The class of the error in Python.")]
    kafka_code: Annotated[int, Field(description="Kafka's number for it; -1: it has none.")]


class Error(Shape):
    """The answer of everything that does not succeed."""

    error: ErrorContent


# -- topics ---------------------------------------------------------------------------------------

TopicState = Annotated[
    Literal["ready", "creating", "adding", "deleting"],
    Field(description="Other than ready: begun and not ended."),
]


class TopicItem(Shape):
    name: str
    partitions: int
    internal: bool
    state: TopicState
    cleanup_policy: list[str]
    compaction_mode: Mode
    size_bytes: int
    overrides: Annotated[int, Field(description="How many settings it has of its own.")]
    failing: Annotated[int, Field(description="Partitions that take no writes.")]
    error: ItemError | None


class Topics(Shape):
    ok: Ok
    topics: list[TopicItem]


class CreatedTopic(Shape):
    ok: Ok
    applied: Applied
    topic: str
    created: Annotated[bool, Field(description="False: it was there.")]
    partitions: int
    configs: dict[str, str]
    warnings: list[str]


class PartitionItem(Shape):
    topic: str
    partition: int
    directory: str | None
    log_start_offset: int | None
    log_end_offset: int | None
    last_stable_offset: int | None
    cleaner_checkpoint: int | None
    segments: int | None
    size_bytes: int | None
    state: Literal["online", "quarantined", "offline", "missing"]
    error: ItemError | None


class Topic(Shape):
    ok: Ok
    topic: str
    internal: bool
    state: TopicState
    partition_count: int
    cleanup_policy: list[str]
    compaction_mode: Mode
    size_bytes: int
    configs: dict[str, str]
    partitions: list[PartitionItem]


class DeletedTopic(Shape):
    ok: Ok
    applied: Applied
    topic: str
    deleted: Annotated[bool, Field(description="False: it was not there.")]
    freed_bytes: int
    delay_ms: Annotated[int | None, Field(description="After which its files are unlinked.")]
    partitions: list[PartitionItem]


class AddedPartitions(Shape):
    ok: Ok
    applied: Applied
    topic: str
    before: int
    partitions: int
    added: list[int]
    warnings: list[str]


# -- settings -------------------------------------------------------------------------------------


class Synonym(Shape):
    source: str
    name: str
    value: str | None
    place: str | None


class ConfigItem(Shape):
    name: str
    value: str | None
    default: str | None
    type: str
    rule: str | None
    doc: str
    effect: Annotated[str, Field(description="When a change counts.")]
    source: Annotated[str, Field(description="Kafka's name of the level it comes from.")]
    place: Annotated[str | None, Field(description="The prefix, if it comes from one.")]
    is_set: Annotated[bool, Field(description="At this entity.")]
    is_dynamic: Annotated[bool, Field(description="It can be changed here while it runs.")]
    has_effect: bool
    ours: Annotated[bool, Field(description="Kafka does not have it.")]
    synonyms: Annotated[list[Synonym], Field(description="What counts stands first.")]


EntityType = Literal["topic", "prefix", "broker"]


class Configs(Shape):
    ok: Ok
    entity_type: EntityType
    name: str | None
    configs: list[ConfigItem]


class ConfigChangeItem(Shape):
    name: str
    before: str | None
    after: str | None
    source: str
    effect: str


class GivenUpItem(Shape):
    topic: str
    partition: int
    ledger: Annotated[int | None, Field(description="Its number; null: it is damaged.")]
    start_offset: int
    end_offset: Annotated[int, Field(description="Exclusive.")]


class ChangedConfigs(Shape):
    ok: Ok
    applied: Applied
    entity_type: EntityType
    name: str | None
    changes: list[ConfigChangeItem]
    aborted: Annotated[list[str], Field(description="Partitions whose clean was aborted.")]
    given_up: Annotated[
        list[GivenUpItem], Field(description="What only ledgers have that go with the change.")
    ]
    warnings: list[str]


# -- records and directories ----------------------------------------------------------------------


class DeletedRecordsItem(Shape):
    topic: str
    partition: int
    directory: str | None
    log_start_offset: int | None
    log_end_offset: int | None
    offset: Annotated[int | None, Field(description="The log start after it.")]
    records: Annotated[int | None, Field(description="That go, at most.")]
    hidden_bytes: int | None
    freed_bytes: int | None
    segments: int | None
    error: ItemError | None


class DeletedTotals(Shape):
    records: int
    hidden_bytes: int
    freed_bytes: int


class DeletedRecords(Shape):
    ok: Ok
    applied: Applied
    partitions: list[DeletedRecordsItem]
    totals: DeletedTotals
    warnings: list[str]


class LogDirPartition(Shape):
    topic: str
    partition: int
    size_bytes: int | None
    offset_lag: int
    is_future: bool
    error: ItemError | None


class LogDir(Shape):
    path: str
    error: ItemError | None
    total_bytes: int | None
    usable_bytes: int | None
    size_bytes: int
    partitions: list[LogDirPartition]


class LogDirs(Shape):
    ok: Ok
    log_dirs: list[LogDir]


# -- the server -----------------------------------------------------------------------------------


class CleanerInfo(Shape):
    running: bool
    threads: int


class ServerInfo(Shape):
    ok: Ok
    kind: str
    version: str
    process_id: int
    log_dirs: list[str]
    topics: int
    partitions: int
    offline: Annotated[dict[str, str], Field(description="Path of a directory and the reason.")]
    cleaner: CleanerInfo


class Health(Shape):
    """That it answers, and who it is."""

    ok: Ok
    instance: Annotated[str, Field(description="Another one after each start.")]
    process_id: int
