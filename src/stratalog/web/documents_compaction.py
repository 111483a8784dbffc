"""The documents of compaction and of the cleaner; see `documents`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stratalog.web.shapes import ItemError, Mode, Ok, Shape


class Sections(Shape):
    clean: int
    cleanable: int
    uncleanable: int
    active: int
    total: int


class Failure(Shape):
    cause: str
    tries: int
    failed_ms: int
    retry_at_ms: int


class Ledger(Shape):
    number: int
    horizon: int
    start_offset: int
    records: int
    keys: Annotated[int | None, Field(description="That it holds; null: not known.")]
    size_bytes: int
    created_ms: int


class Round(Shape):
    started_ms: int
    duration_ms: int
    trigger: str
    result: str
    engine: str
    thread: str
    cause: str
    first_dirty: int
    end_offset: int
    dirty_ratio: float
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    keys: int
    map_utilization: float
    index_ms: int
    rewrite_ms: int
    throttled_ms: int
    drops: dict[str, int]
    mode: str
    generation: Annotated[int, Field(description="Of the ledger that it made; 0: none.")]
    bytes_saved: int


class CompactionItem(Shape):
    topic: str
    partition: int
    directory: str | None
    mode: Mode | None
    state: Literal["never", "waiting", "running", "succeeded", "failed", "aborted"] | None
    phase: str | None
    done_bytes: int | None
    total_bytes: int | None
    eta_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    trigger: str | None
    cause: str | None
    is_compacted: bool | None
    checkpoint: int | None
    first_dirty: int | None
    first_uncleanable: int | None
    bytes: Sections | None
    dirty_ratio: float | None
    min_dirty_ratio: float | None
    next_expiry_ms: int | None
    paused: bool | None
    failure: Failure | None
    quarantine: Annotated[str | None, Field(description="Why it takes no writes.")]
    backlog_bytes: int | None
    threshold_bytes: int | None
    ledger: Ledger | None
    last_run: Round | None
    error: ItemError | None


class CompactionStatus(Shape):
    ok: Ok
    now_ms: int
    partitions: list[CompactionItem]


class StartedItem(CompactionItem):
    request: Literal["started", "running", "done"] | None


class Compaction(Shape):
    ok: Ok
    now_ms: int
    partitions: list[StartedItem]


class Segment(Shape):
    base_offset: int
    end_offset: int
    size_bytes: int
    index_bytes: int
    modified_ms: int
    section: Literal["clean", "cleanable", "uncleanable", "active"]


class StorageItem(CompactionItem):
    log_start_offset: int | None
    log_end_offset: int | None
    last_stable_offset: int | None
    size_bytes: int | None
    index_bytes: int | None
    segments: list[Segment]


class Storage(Shape):
    ok: Ok
    now_ms: int
    topic: str
    size_bytes: int
    partitions: list[StorageItem]


class ChangeItem(Shape):
    topic: str
    partition: int
    changed: bool | None
    paused: bool | None
    failing: bool | None
    error: ItemError | None


class Changes(Shape):
    ok: Ok
    partitions: list[ChangeItem]


class ExplanationItem(Shape):
    topic: str
    partition: int
    sentence: str | None
    reason: str | None
    obstacle: str | None
    place: int | None
    values: Annotated[dict[str, Any] | None, Field(description="What decides.")]
    error: ItemError | None


class Explanations(Shape):
    ok: Ok
    now_ms: int
    partitions: list[ExplanationItem]


class HistoryItem(Shape):
    topic: str
    partition: int
    history: Annotated[list[Round], Field(description="The oldest first.")]
    error: ItemError | None


class Histories(Shape):
    ok: Ok
    partitions: list[HistoryItem]


class Activity(Shape):
    thread: str
    topic: str
    partition: int
    trigger: str
    started_ms: int
    phase: str | None
    done_bytes: int | None
    total_bytes: int | None
    eta_ms: int | None


class Waiting(Shape):
    topic: str
    partition: int
    reason: str | None
    place: int | None
    dirty_ratio: float | None
    sentence: str | None


class Uncleanable(Shape):
    topic: str
    partition: int
    failure: Failure | None
    quarantine: Annotated[str | None, Field(description="Why it takes no writes.")]


class TopicPartition(Shape):
    topic: str
    partition: int


class PartitionError(Shape):
    topic: str
    partition: int
    error: ItemError


class CleanerTotals(Shape):
    partitions: int
    uncleanable_partitions: int
    uncleanable_bytes: int
    max_dirty_ratio: float
    bytes: Sections


class Cleaner(Shape):
    ok: Ok
    now_ms: int
    running: bool
    threads: int
    activities: list[Activity]
    queue: list[Waiting]
    uncleanable: list[Uncleanable]
    paused: list[TopicPartition]
    errors: list[PartitionError]
    totals: CleanerTotals
