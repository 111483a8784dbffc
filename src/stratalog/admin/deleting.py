"""`records delete`: the records below an offset go (DeleteRecords, RET-6).

    plan     what is asked for, partition by partition -> the offsets, and what goes; reads only
    carry    the log starts move, durably; whole segments below them go with their files

Kafka's brokers answer a DeleteRecords call when the log start has moved and leave the segments to
the next retention check. Here nobody checks later, so they go at once, by the start-offset rule
alone (RET-5).

Invariants
- I1  A plan with an error in it is not carried out, for no partition.
- I2  No more goes than the plan has told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.retention import SettingsOf, told_by
from stratalog.admin.state import open_to_read
from stratalog.admin.store import open_store, problem_of
from stratalog.base.clock import Clock
from stratalog.base.errors import (
    OffsetOutOfRangeError,
    PolicyViolationError,
    StratalogError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import OnProgress
from stratalog.config.settings import Settings
from stratalog.log.locking import locked
from stratalog.log.log_store import LOG_END, LogStore, StoreSettings
from stratalog.log.retention import by_start_offset
from stratalog.log.settings import LogSettings
from stratalog.log.view import LogView
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import TopicPartition, is_topic_name

_FILE_VERSION = 1


@dataclass(frozen=True, slots=True)
class UpTo:
    """Where deletion ends: at an offset (`LOG_END`: all), or at the first record that is not older
    than `timestamp_ms`. One of the two is None."""

    offset: int | None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions in a directory: of `topic` (None: there must be one only), by number (None:
    all)."""

    topic: str | None = None
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PlannedDeletion:
    """One partition. Its log begins at `offset` afterwards; `records`: at most so many go.

    `hidden_bytes` can no longer be read; `freed_bytes` are those of whole segments below the start,
    which are unlinked.
    """

    place: PartitionPlace
    log_start_offset: int = 0
    log_end_offset: int = 0
    offset: int = 0
    records: int = 0
    hidden_bytes: int = 0
    freed_bytes: int = 0
    segments: int = 0
    error: StratalogError | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.place.name,
            "directory": self.place.path,
            "log_start_offset": self.log_start_offset,
            "log_end_offset": self.log_end_offset,
            "offset": self.offset,
            "records": self.records,
            "hidden_bytes": self.hidden_bytes,
            "freed_bytes": self.freed_bytes,
            "segments": self.segments,
            "error": None if self.error is None else str(self.error),
        }


def parse_up_to(text: str) -> UpTo:
    """`N`, `end` (or -1), `@TIMESTAMP_MS`. Raises `UsageError`."""
    word = text.strip()
    if word in ("end", "-1"):
        return UpTo(LOG_END)
    digits = word.removeprefix("@")
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) <= INT64_MAX
    ):
        raise UsageError(f"{text!r} is none of: an offset, end, @TIMESTAMP_MS")
    number = int(digits)
    return UpTo(None, number) if word.startswith("@") else UpTo(number)


def parse_offsets(content: bytes) -> dict[TopicPartition, UpTo]:
    """Kafka's file: `{"partitions": [{"topic": .., "partition": .., "offset": ..}], "version": 1}`.

    Raises `UsageError`.
    """
    try:
        fields = json.loads(content)
        if fields.get("version", _FILE_VERSION) != _FILE_VERSION:
            raise UsageError(f"version {fields['version']} of the file is not known, only 1")
        rows = [(row["topic"], row["partition"], row["offset"]) for row in fields["partitions"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            'not of the form {"partitions": [{"topic": "orders", "partition": 0, "offset": 42}], '
            f'"version": 1}}: {type(error).__name__} {error}'
        ) from error
    found: dict[TopicPartition, UpTo] = {}
    for topic, partition, offset in rows:
        if not (isinstance(topic, str) and is_topic_name(topic)):
            raise UsageError(f"{topic!r} is no topic name")
        for number, least in ((partition, 0), (offset, LOG_END)):
            if type(number) is not int or not least <= number <= INT64_MAX:
                raise UsageError(f"{topic}: {number!r} is no number from {least} on")
        key = TopicPartition(topic, partition)
        if key in found:
            raise UsageError(f"{key} stands there twice")
        found[key] = UpTo(offset)
    if not found:
        raise UsageError("the file names no partition")
    return found


def choose(
    target: str, selection: Selection, up_to: UpTo, filesystem: FileSystem
) -> dict[TopicPartition, UpTo]:
    """What a command line without a file means. Raises `UsageError`."""
    there = [place.topic_partition for place in find_partitions([target], filesystem)]
    topics = sorted({key.topic for key in there})
    topic = selection.topic
    if topic is None:
        if len(topics) > 1:
            raise UsageError(
                f"{target} holds several topics; --topic says which: {', '.join(topics[:10])}"
            )
        topic = topics[0]
    mine = [key for key in there if key.topic == topic]
    if not mine:
        raise UsageError(f"{target} holds no partition of topic {topic}")
    if selection.numbers is None:
        return dict.fromkeys(mine, up_to)
    wanted = [TopicPartition(topic, number) for number in dict.fromkeys(selection.numbers)]
    for key in wanted:
        if key not in mine:
            raise UsageError(f"{target} holds no partition {key}")
    return dict.fromkeys(wanted, up_to)


def plan_deletion(
    target: str,
    wanted: dict[TopicPartition, UpTo],
    settings: Settings | SettingsOf,
    filesystem: FileSystem,
    clock: Clock,
) -> list[PlannedDeletion]:
    """What would go. `settings`: those of all topics, or what each partition's log is told. What
    is wrong with one partition is told with it. Raises `UsageError`."""
    places = {place.topic_partition: place for place in find_partitions([target], filesystem)}
    for key in wanted:
        if key not in places:
            raise UsageError(f"{target} holds no partition {key}")
    settings_of = told_by(settings)
    log_dirs = {places[key].log_dir for key in wanted}
    with locked(log_dirs, filesystem, exclusive=False):
        return [
            _planned(places[key], up_to, settings_of(key), filesystem, clock)
            for key, up_to in sorted(wanted.items())
        ]


def _planned(
    place: PartitionPlace, up_to: UpTo, told: LogSettings, filesystem: FileSystem, clock: Clock
) -> PlannedDeletion:
    try:
        _check_policy(place, told)
        with open_to_read(place, told, filesystem, clock, may_be_torn=True) as log:
            return planned_on(place, log.view, up_to, told)
    except StratalogError as error:
        return PlannedDeletion(place, error=error)


def planned_on(
    place: PartitionPlace, view: LogView, up_to: UpTo, told: LogSettings
) -> PlannedDeletion:
    """What would go of a log that somebody has open. Raises `PolicyViolationError`,
    `OffsetOutOfRangeError`, `CorruptionError`."""
    _check_policy(place, told)
    return _deletion(place, view, _offset_of(place, up_to, view))


def _check_policy(place: PartitionPlace, told: LogSettings) -> None:
    """Without any policy nothing goes by itself, and Kafka lets it go on demand (4.2)."""
    if told.cleanup_policy and "delete" not in told.cleanup_policy:
        raise PolicyViolationError(
            f"{place.name}: its cleanup.policy is {','.join(told.cleanup_policy)}; "
            "records are deleted only where it has delete"
        )


def _offset_of(place: PartitionPlace, up_to: UpTo, view: LogView) -> int:
    end = view.log_end_offset
    if up_to.timestamp_ms is not None:
        found = view.offset_for_timestamp(up_to.timestamp_ms)
        return end if found is None else found.offset
    assert up_to.offset is not None
    if up_to.offset == LOG_END:
        return end
    if up_to.offset > end:
        raise OffsetOutOfRangeError(f"{place.name}: {up_to.offset} lies past the log end, {end}")
    return up_to.offset


def _deletion(place: PartitionPlace, view: LogView, offset: int) -> PlannedDeletion:
    start, end = view.log_start_offset, view.log_end_offset
    new_start = max(offset, start)
    segments = freed_bytes = 0
    for slot, segment in enumerate(view.segments.sealed):
        if view.segments.bases[slot + 1] <= new_start:
            segments += 1
            freed_bytes += segment.size_bytes
    hidden_bytes = _bytes_below(view, new_start) - _bytes_below(view, start)
    return PlannedDeletion(
        place,
        start,
        end,
        new_start,
        new_start - start,
        hidden_bytes,
        freed_bytes,
        segments,
    )


def _bytes_below(view: LogView, offset: int) -> int:
    """Of batches that end below an offset."""
    count = 0
    for segment in view.segments:
        if segment.base_offset < offset:
            placed = segment.find(offset)
            count += segment.size_bytes if placed is None else placed.position
    return count


def _possible(item: PlannedDeletion, store: LogStore) -> PlannedDeletion:
    key = item.place.topic_partition
    try:
        problem = problem_of(store, key)
        if problem is not None:
            raise StratalogError(f"{key}: {problem}")
        # Recovery may have cut off a torn end that the plan still saw.
        return replace(item, offset=min(item.offset, store.get(key).log_end_offset))
    except StratalogError as error:
        return PlannedDeletion(item.place, error=error)


def deleted_of(planned: Sequence[PlannedDeletion], store: LogStore) -> list[PlannedDeletion]:
    """Carry out what is planned without an error, in logs that are open; the items, with the errors
    that came up."""
    errors = store.delete_all_records(
        {
            item.place.topic_partition: item.offset
            for item in planned
            if item.error is None and item.offset > item.log_start_offset
        }
    )
    return [
        item if error is None else PlannedDeletion(item.place, error=error)
        for item in planned
        for error in [item.error or errors.get(item.place.topic_partition)]
    ]


def delete_records(
    planned: Sequence[PlannedDeletion],
    settings: Settings | SettingsOf,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
    on_opened: Callable[[], None] = lambda: None,
) -> list[PlannedDeletion]:
    """Carry a plan out, durably; the same items, with the errors that came up.

    `on_opened` is called when the logs are open and nothing is deleted yet. Raises the
    first error of the plan (I1); `UsageError`, among them `LogLockedError`;
    `CorruptionError`; `StorageIOError`.
    """
    for item in planned:
        if item.error is not None:
            raise item.error
    settings_of = told_by(settings)
    by_start = StoreSettings(policies=lambda _: (by_start_offset,))
    log_dirs = [item.place.log_dir for item in planned]
    with open_store(log_dirs, settings_of, filesystem, clock, on_progress, by_start) as store:
        on_opened()
        done = deleted_of([_possible(item, store) for item in planned], store)
        store.run_retention([item.place.topic_partition for item in done if item.error is None])
        store.unlink_due()
    return done
