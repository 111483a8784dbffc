"""What a change would do, and whether it may be done: the plans that a dry run shows.

Nothing here changes anything. Refusals are Kafka's, in its words where it is its rule
(Topic.validate, ReplicationControlManager, the tools' own checks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from stratalog.admin.deleting import PlannedDeletion, UpTo, parse_up_to, planned_on
from stratalog.admin.desk.describing import (
    describe_topic,
    partition_count,
    places_of,
    topic_names,
    unknown_topic,
)
from stratalog.admin.desk.leaving import Left, given_up, left_by, said
from stratalog.admin.desk.looking import Looker, as_ours
from stratalog.admin.desk.protocol import (
    MAX_PARTITIONS,
    Document,
    EntityType,
    error_document,
    shown,
)
from stratalog.admin.desk.registry import Registry, Stage
from stratalog.admin.desk.settings import (
    changed_book,
    changed_registry,
    changes,
    check_entity,
    idle_warnings,
    order_warnings,
)
from stratalog.admin.directories import METADATA_TOPIC, PartitionPlace
from stratalog.admin.floors import log_settings
from stratalog.base.errors import (
    InvalidConfigError,
    PartitionExistsError,
    StratalogError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.config.book import SettingsBook
from stratalog.config.kinds import INT_MAX
from stratalog.ledger.manifest import read_manifest
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import MAX_TOPIC_CHARACTERS, TopicPartition, is_topic_name


def checked_words(words: Mapping[Any, Any] | None) -> dict[str, str]:
    """Settings as they were given. Raises `InvalidConfigError`."""
    found = dict(words or {})
    if not all(isinstance(name, str) and isinstance(it, str) for name, it in found.items()):
        raise InvalidConfigError("settings are texts: {'retention.ms': '5'}")
    return found


# ---------------------------------------------------------------- topics


def plan_create(
    looker: Looker, name: str, partitions: int, words: Mapping[str, str], if_not_exists: bool
) -> Document:
    """The document of `Desk.create_topic`, before it is applied."""
    _check_new_name(name)
    there = topic_names(looker)
    if name in there:
        if not if_not_exists:
            raise PartitionExistsError(f"Topic '{name}' already exists.")
        return _created(looker, name)
    same = sorted(it for it in there if _metric_name(it) == _metric_name(name))
    if same:
        raise UsageError(f"Topic '{name}' collides with existing topic: {', '.join(same)}")
    _check_count(partitions)
    looker.book.with_made(name).with_topic(name, words)  # refuses what cannot be
    warnings = idle_warnings("topic", list(words))
    if "." in name or "_" in name:
        warnings.append(
            "Due to limitations in metric names, topics with a period ('.') or underscore ('_') "
            "could collide. To avoid issues it is best to use either, but not both."
        )
    return {
        "ok": True,
        "topic": name,
        "created": True,
        "partitions": partitions,
        "configs": dict(sorted(words.items())),
        "warnings": warnings,
        "applied": False,
    }


def _created(looker: Looker, name: str) -> Document:
    found = describe_topic(looker, name)
    return {
        "ok": True,
        "topic": name,
        "created": False,
        "partitions": found["partition_count"],
        "configs": found["configs"],
        "warnings": [],
        "applied": False,
    }


def _check_new_name(name: str) -> None:
    """Kafka's Topic.validate. Raises `UsageError`."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_CHARACTERS:
        reason = (
            f"the length of '{shown(name)}' is longer than the max allowed length "
            f"{MAX_TOPIC_CHARACTERS}"
        )
    elif not is_topic_name(name):
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'"
        )
    elif name == METADATA_TOPIC:
        reason = f"'{name}' is Kafka's log of its cluster"
    if reason is not None:
        raise UsageError(f"Topic name is invalid: {' '.join(reason.split())}")


def _metric_name(name: str) -> str:
    """Kafka's Topic.unifyCollisionChars."""
    return name.replace(".", "_")


def _check_count(partitions: int) -> None:
    if type(partitions) is not int or partitions < 1:
        raise UsageError("Number of partitions must be larger than 0.")
    if partitions > MAX_PARTITIONS:
        raise UsageError(
            f"Excessively large number of partitions per request: {partitions}, at most "
            f"{MAX_PARTITIONS}"
        )


def plan_delete(looker: Looker, name: str, if_exists: bool) -> Document:
    """The document of `Desk.delete_topic`, before it is applied."""
    document: Document = {"ok": True, "topic": name, "deleted": False, "freed_bytes": 0}
    if name not in topic_names(looker):
        if not if_exists:
            raise unknown_topic(name)
        return {**document, "delay_ms": None, "partitions": [], "applied": False}
    found = describe_topic(looker, name)
    return {
        **document,
        "deleted": True,
        "freed_bytes": found["size_bytes"],
        "delay_ms": looker.settings(name).integer("file.delete.delay.ms"),
        "partitions": found["partitions"],
        "applied": False,
    }


def plan_add(looker: Looker, name: str, count: int) -> Document:
    """The document of `Desk.add_partitions`, before it is applied."""
    there = [place.topic_partition.partition for place in places_of(looker, name, None)]
    entry = looker.registry.topics.get(name)
    before = partition_count(entry, there)
    if type(count) is not int or count < 1:
        raise UsageError("Number of partitions must be larger than 0.")
    if count < before:
        raise UsageError(
            f"Topic currently has {before} partitions, which is higher than the requested {count}."
        )
    if count == before:
        raise UsageError(f"Topic already has {count} partition{'' if count == 1 else 's'}.")
    _check_count(count - before)
    if entry is not None and entry.stage is not Stage.READY:
        raise UsageError(f"Topic '{name}' is {entry.stage.value}; opening the logs again ends that")
    if there != list(range(before)):
        raise UsageError(
            f"Topic '{name}' has only some of its partitions here: "
            f"{', '.join(map(str, there[:10]))}; none can be added"
        )
    keyed = "compact" in looker.settings(name).words("cleanup.policy")
    warning = (
        "Keys that are appended from now on may go to another partition than their older records, "
        "which compaction then keeps."
    )
    return {
        "ok": True,
        "topic": name,
        "before": before,
        "partitions": count,
        "added": list(range(before, count)),
        "warnings": [warning] if keyed else [],
        "applied": False,
    }


# ---------------------------------------------------------------- settings


def plan_alter(
    looker: Looker,
    base: SettingsBook,
    entity_type: EntityType,
    name: str | None,
    words: Mapping[str, str],
    delete: Sequence[str],
) -> tuple[Document, Registry, list[Left]]:
    """The document of `Desk.alter_configs`, before it is applied, the registry after it, and whose
    ledgers go with it. `base`: the book without the registry."""
    check_entity(looker, entity_type, name)
    if not words and not delete:
        raise UsageError("nothing is to be set or deleted")
    before = looker.registry.book(base)
    after = changed_book(before, entity_type, name, words, delete)
    registry = changed_registry(looker.registry, entity_type, name, words, delete)
    names = [*words, *delete]
    left = left_by(looker, names, before, after, name if entity_type == "topic" else None)
    rows = given_up(left)
    pair = [_settings_in(book, entity_type, name) for book in (before, after)]
    document = {
        "ok": True,
        "entity_type": entity_type,
        "name": name,
        "changes": changes(entity_type, names, pair[0], pair[1]),
        "aborted": [],
        "given_up": rows,
        "warnings": [
            *idle_warnings(entity_type, list(words)),
            *order_warnings(looker, names, before, after),
            *(f"{said(row)}, which goes with this change" for row in rows),
        ],
        "applied": False,
    }
    return document, registry, left


def _settings_in(book: SettingsBook, entity_type: EntityType, name: str | None) -> Any:
    if entity_type == "broker":
        return book.of_broker()
    return book.of(str(name)) if entity_type == "topic" else book.of_prefix(str(name))


# ---------------------------------------------------------------- records


def wanted_offsets(offsets: Sequence[Mapping[str, Any]]) -> dict[TopicPartition, UpTo]:
    """What `Desk.delete_records` was given. Raises `UsageError`."""
    found: dict[TopicPartition, UpTo] = {}
    for row in offsets:
        try:
            topic, partition, offset = row["topic"], row["partition"], row["offset"]
        except (KeyError, TypeError, IndexError):
            told = f"{shown(repr(row))} has not topic, partition and offset"
            raise UsageError(told) from None
        if not (isinstance(topic, str) and is_topic_name(topic)):
            raise UsageError(f"{shown(repr(topic))} is no topic name")
        if type(partition) is not int or not 0 <= partition <= INT_MAX:
            raise UsageError(f"{topic}: {shown(repr(partition))} is no partition")
        if type(offset) is int and not -1 <= offset <= INT64_MAX:
            raise UsageError(f"{topic}: {shown(repr(offset))} is no offset")
        if type(offset) is not int and not isinstance(offset, str):
            told = f"{topic}: {shown(repr(offset))} is none of: an offset, end, @TIMESTAMP_MS"
            raise UsageError(told)
        key = TopicPartition(topic, partition)
        if key in found:
            raise UsageError(f"{key} stands there twice")
        found[key] = parse_up_to(str(offset))
    if not found:
        raise UsageError("no partition is named")
    return found


def plan_records(looker: Looker, wanted: Mapping[TopicPartition, UpTo]) -> list[PlannedDeletion]:
    """What would go of each partition, or why nothing can."""
    places = {place.topic_partition: place for place in looker.places()}
    topics = {key.topic for key in places}
    planned = []
    for key, up_to in sorted(wanted.items()):
        place = places.get(key)
        if place is None:
            place = PartitionPlace("", key)
            error = (
                UnknownPartitionError(f"Topic '{key.topic}' has no partition {key.partition}")
                if key.topic in topics
                else unknown_topic(key.topic)
            )
            planned.append(PlannedDeletion(place, error=error))
            continue
        told = log_settings(looker.settings(key.topic))
        try:
            trouble = looker.trouble(place)
            if trouble is not None:
                raise trouble.error
            with looker.opened(place) as view:
                planned.append(planned_on(place, view, up_to, told))
        except (StratalogError, FileNotFoundError) as error:
            planned.append(PlannedDeletion(place, error=as_ours(error)))
    return planned


def still_shown(planned: Sequence[PlannedDeletion], filesystem: FileSystem) -> list[str]:
    """Where what goes from the raw log stays to be seen, as a ledger holds a copy of what lies
    below its horizon; or goes with its ledger, which answers nobody once the log begins behind its
    horizon (LDG-1). A sentence a topic."""
    stays: dict[str, int] = {}
    gone: dict[str, int] = {}
    for item in planned:
        key = item.place.topic_partition
        if item.error is not None or item.offset <= item.log_start_offset:
            continue
        with suppress(StratalogError, FileNotFoundError):  # it is told where the ledger is read
            ledger = read_manifest(filesystem, item.place.path).current
            if ledger is not None and ledger.horizon >= item.log_start_offset:
                found = gone if item.offset > ledger.horizon else stays
                found[key.topic] = found.get(key.topic, 0) + 1
    lapsed = [
        f"{topic}: what is deleted reaches past its ledgers, so they answer no more, and what only "
        f"they have is deleted, too ({count} of its partitions)"
        for topic, count in sorted(gone.items())
    ]
    return lapsed + [
        f"{topic} keeps ledgers: its compacted and latest views still show what lies below the "
        f"ledger's horizon, also what is deleted here ({count} of its partitions)"
        for topic, count in sorted(stays.items())
    ]


def check_prefix(entity_type: EntityType, name: str | None) -> None:
    """Whether topics can have names that begin so: what no change takes is not described either.
    Raises `InvalidConfigError`."""
    if entity_type == "prefix" and name is not None:
        SettingsBook().with_namespace(name, {"retention.ms": "1"})


def records_document(
    planned: Sequence[PlannedDeletion], warnings: Sequence[str], *, applied: bool
) -> Document:
    """The document of `Desk.delete_records`."""
    return {
        "ok": all(item.error is None for item in planned),
        "partitions": [_planned_row(item) for item in planned],
        "totals": {
            "records": sum(item.records for item in planned),
            "hidden_bytes": sum(item.hidden_bytes for item in planned),
            "freed_bytes": sum(item.freed_bytes for item in planned),
        },
        "warnings": list(warnings),
        "applied": applied,
    }


def _planned_row(item: PlannedDeletion) -> Document:
    key = item.place.topic_partition
    return {
        **item.as_json(),
        "topic": key.topic,
        "partition": key.partition,
        "directory": item.place.path if item.place.log_dir else None,
        "error": None if item.error is None else error_document(item.error),
    }
