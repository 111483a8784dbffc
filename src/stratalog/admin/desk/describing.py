"""Lists and descriptions of topics, segments and log directories, of whatever can be looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from stratalog.admin.desk.compacting import status_item
from stratalog.admin.desk.looking import Looker, as_ours, index_bytes, settled
from stratalog.admin.desk.protocol import Document, error_document, shown
from stratalog.admin.desk.registry import Entry, Registry, Stage
from stratalog.admin.directories import PartitionPlace
from stratalog.base.disk_space import disk_space
from stratalog.base.errors import (
    StorageIOError,
    StratalogError,
    UnknownPartitionError,
    UsageError,
)
from stratalog.base.filesystem import LocalFileSystem
from stratalog.config.settings import Settings
from stratalog.log.view import LogView
from stratalog.segment.names import TopicPartition, is_topic_name
from stratalog.segment.segment import Segment

INTERNAL_PREFIX = "__"
_TRIES = 10


def of_one_moment(looker: Looker) -> tuple[Registry, list[PartitionPlace]]:
    """What is known of the topics, and what is there of them, without waiting for a change that
    runs, which may take minutes.

    Partitions come and go only while the entry of their topic says so. So where the registry is
    the same before and after, what a topic that is ready misses is lost, not made just now.
    """
    for _ in range(_TRIES):
        registry = looker.registry
        places = looker.places()
        if looker.registry is registry:
            break
    return registry, places


def topic_names(looker: Looker) -> list[str]:
    """All topics, those of which only the registry knows among them."""
    registry, places = of_one_moment(looker)
    return sorted({place.topic_partition.topic for place in places} | {*_known(registry)})


def _known(registry: Registry) -> Iterator[str]:
    """Topics that have been made here. Of others settings may be known before they are there."""
    for name, entry in registry.topics.items():
        if entry.partitions is not None and entry.stage is not Stage.CREATING:
            yield name


def places_of(looker: Looker, topic: str | None, partition: int | None) -> list[PartitionPlace]:
    """The partitions that are meant. Raises `UnknownPartitionError`."""
    places = looker.places()
    if topic is None:
        if partition is not None:
            raise UsageError("a partition without a topic")
        return places
    mine = [place for place in places if place.topic_partition.topic == topic]
    if not mine and topic not in topic_names(looker):
        raise unknown_topic(topic)
    if partition is None:
        return mine
    for place in mine:
        if place.topic_partition.partition == partition:
            return [place]
    raise UnknownPartitionError(f"Topic '{topic}' has no partition {partition}")


def unknown_topic(name: str) -> StratalogError:
    """In the words of kafka-topics."""
    if not is_topic_name(name):
        return UnknownPartitionError(f"{shown(repr(name))} is no topic name")
    return UnknownPartitionError(f"Topic '{name}' does not exist as expected")


def missing_numbers(entry: Entry | None, there: Sequence[int]) -> list[int]:
    """Partitions that a topic should have and has not."""
    if entry is None or entry.partitions is None:
        return []
    return sorted(set(range(entry.partitions)) - set(there))


def partition_count(entry: Entry | None, there: Sequence[int]) -> int:
    """How many partitions a topic has: those that somebody has made beside count, too."""
    if entry is None or entry.partitions is None:
        return len(there)
    return max([entry.partitions, *(number + 1 for number in there)])


def _stage(entry: Entry | None) -> str:
    return (Stage.READY if entry is None else entry.stage).value


def _compaction_mode(settings: Settings) -> str:
    mode = settings.values.get("compaction.mode")
    return mode if isinstance(mode, str) else "inplace"


def list_topics(looker: Looker) -> Document:
    """See `Desk.list_topics`."""
    registry, places = of_one_moment(looker)
    by_topic: dict[str, list[PartitionPlace]] = {name: [] for name in _known(registry)}
    for place in places:
        by_topic.setdefault(place.topic_partition.topic, []).append(place)
    topics = [
        _topic_row(looker, name, registry.topics.get(name), by_topic[name])
        for name in sorted(by_topic)
    ]
    return {"ok": all(row["error"] is None for row in topics), "topics": topics}


def _topic_row(
    looker: Looker, name: str, entry: Entry | None, places: list[PartitionPlace]
) -> Document:
    settings = looker.settings(name)
    there = [place.topic_partition.partition for place in places]
    size_bytes, failing = 0, len(missing_numbers(entry, there))
    error: Document | None = None
    if failing and _stage(entry) == Stage.READY.value:
        error = error_document(StorageIOError(f"{failing} of its partitions are missing"))
    for place in places:
        found = settled(looker, place, _short_row)
        if found is not None:
            failing += found["failing"]
            error = error or found["error"]
            size_bytes += found["size_bytes"]
    return {
        "name": name,
        "partitions": partition_count(entry, there),
        "internal": name.startswith(INTERNAL_PREFIX),
        "state": _stage(entry),
        "cleanup_policy": list(settings.words("cleanup.policy")),
        "compaction_mode": _compaction_mode(settings),
        "size_bytes": size_bytes,
        "overrides": len(looker.book.topics.get(name, {})),
        "failing": failing,
        "error": error,
    }


def _short_row(looker: Looker, place: PartitionPlace) -> Document:
    """What a list of topics adds up of each partition."""
    row: Document = {"failing": 0, "size_bytes": 0, "error": None}
    try:
        trouble = looker.trouble(place)
        if trouble is not None:
            row |= {"failing": 1, "error": error_document(trouble.error)}
        row["size_bytes"] = looker.size_bytes(place)
    except (StratalogError, FileNotFoundError) as caught:
        row["error"] = row["error"] or error_document(as_ours(caught))
    return row


def describe_topic(looker: Looker, name: str) -> Document:
    """See `Desk.describe_topic`."""
    registry, all_places = of_one_moment(looker)
    places = [place for place in all_places if place.topic_partition.topic == name]
    if not places and name not in _known(registry):
        raise unknown_topic(name)
    entry, settings = registry.topics.get(name), looker.settings(name)
    there = [place.topic_partition.partition for place in places]
    rows = [
        settled(looker, place, _partition_row) or _missing_row(name, number, is_ready=False)
        for number, place in zip(there, places, strict=True)
    ]
    is_ready = _stage(entry) == Stage.READY.value
    rows += [_missing_row(name, number, is_ready) for number in missing_numbers(entry, there)]
    return {
        "ok": all(row["error"] is None for row in rows),
        "topic": name,
        "internal": name.startswith(INTERNAL_PREFIX),
        "state": _stage(entry),
        "partition_count": partition_count(entry, there),
        "cleanup_policy": list(settings.words("cleanup.policy")),
        "compaction_mode": _compaction_mode(settings),
        "size_bytes": sum(row["size_bytes"] or 0 for row in rows),
        "configs": dict(sorted(looker.book.topics.get(name, {}).items())),
        "partitions": sorted(rows, key=lambda row: int(row["partition"])),
    }


def _empty_row(topic: str, number: int, directory: str | None) -> Document:
    return {
        "topic": topic,
        "partition": number,
        "directory": directory,
        "log_start_offset": None,
        "log_end_offset": None,
        "last_stable_offset": None,
        "cleaner_checkpoint": None,
        "segments": None,
        "size_bytes": None,
        "state": "online",
        "error": None,
    }


def _missing_row(topic: str, number: int, is_ready: bool) -> Document:
    """It is lost; or of a topic that is not ready: not made yet, or deleted already."""
    error = StorageIOError(f"partition {number} of topic {topic} is not there")
    row = _empty_row(topic, number, None)
    return {**row, "state": "missing", "error": error_document(error) if is_ready else None}


def _partition_row(looker: Looker, place: PartitionPlace) -> Document:
    key = place.topic_partition
    row = _empty_row(key.topic, key.partition, place.path)
    try:
        trouble = looker.trouble(place)
        if trouble is not None:
            row |= {"state": trouble.state, "error": error_document(trouble.error)}
        with looker.opened(place) as view:
            row |= _offsets(view) | {
                "segments": len(view.segments),
                "size_bytes": view.segments.size_bytes,
            }
        row["cleaner_checkpoint"] = looker.look(place).checkpoint
    except (StratalogError, FileNotFoundError) as error:
        state = row["state"] if row["error"] else "offline"
        row |= {"state": state, "error": row["error"] or error_document(as_ours(error))}
    return row


def _offsets(view: LogView) -> Document:
    return {
        "log_start_offset": view.log_start_offset,
        "log_end_offset": view.log_end_offset,
        "last_stable_offset": view.last_stable_offset,
    }


def describe_storage(looker: Looker, name: str, partitions: Sequence[int] | None) -> Document:
    """See `Desk.describe_storage`."""
    if partitions is None:
        places = places_of(looker, name, None)
    else:
        places = [place for it in sorted({*partitions}) for place in places_of(looker, name, it)]
    found = [settled(looker, place, _storage_row) for place in places]
    rows = [row for row in found if row is not None]
    return {
        "ok": all(row["error"] is None for row in rows),
        "topic": name,
        "now_ms": looker.now_ms(),
        "size_bytes": sum(row["size_bytes"] or 0 for row in rows),
        "partitions": rows,
    }


def _storage_row(looker: Looker, place: PartitionPlace) -> Document:
    row = status_item(looker, place)
    row |= {"log_start_offset": None, "log_end_offset": None, "last_stable_offset": None}
    row |= {"size_bytes": None, "index_bytes": None, "segments": []}
    if row["error"] is not None:
        return row
    try:
        bounds = (row["first_dirty"], row["first_uncleanable"])
        indexes = index_bytes(looker.filesystem, place.path)
        with looker.opened(place) as view:
            segments = [
                _segment_row(view, slot, bounds, indexes) for slot in range(len(view.segments))
            ]
            row |= _offsets(view) | {
                "size_bytes": view.segments.size_bytes,
                "index_bytes": sum(segment["index_bytes"] for segment in segments),
                "segments": segments,
            }
    except (StratalogError, FileNotFoundError) as error:
        row["error"] = error_document(as_ours(error))
    return row


def _segment_row(
    view: LogView, slot: int, bounds: tuple[int, int], indexes: dict[int, int]
) -> Document:
    segment = view.segments[slot]
    end = view.segments.end_of(slot, view.log_end_offset)
    return {
        "base_offset": segment.base_offset,
        "end_offset": end,
        "size_bytes": segment.size_bytes,
        "index_bytes": indexes.get(segment.base_offset, 0),
        "modified_ms": segment.modified_ms,
        "section": _section(segment, end, segment is view.segments.active, bounds),
    }


def _section(segment: Segment, end: int, is_active: bool, bounds: tuple[int, int]) -> str:
    first_dirty, first_uncleanable = bounds
    if is_active:
        return "active"
    if end <= first_dirty:
        return "clean"
    return "cleanable" if segment.base_offset < first_uncleanable else "uncleanable"


def describe_log_dirs(looker: Looker, topics: Sequence[str] | None) -> Document:
    """See `Desk.describe_log_dirs`."""
    places = looker.places()
    if topics is not None:
        names = topic_names(looker)
        for topic in topics:
            if topic not in names:
                raise unknown_topic(topic)
        places = [place for place in places if place.topic_partition.topic in topics]
    rows: list[Document] = []
    for path, trouble in looker.log_dirs().items():
        mine = [place for place in places if place.log_dir == path]
        found = [settled(looker, place, _log_dir_partition) for place in mine]
        partitions = [row for row in found if row is not None]
        total_bytes, usable_bytes = _space(looker, path)
        rows.append(
            {
                "path": path,
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
                "size_bytes": sum(row["size_bytes"] or 0 for row in partitions),
                "partitions": partitions,
                "error": None if trouble is None else error_document(trouble),
            }
        )
    errors = [row["error"] for row in rows]
    errors += [item["error"] for row in rows for item in row["partitions"]]
    return {"ok": not any(errors), "log_dirs": rows}


def _space(looker: Looker, path: str) -> tuple[int | None, int | None]:
    """Of a real disk. Nothing is decided by it."""
    if not isinstance(looker.filesystem, LocalFileSystem):
        return None, None
    try:
        found = disk_space(os.path.realpath(path))
    except (StorageIOError, FileNotFoundError):
        return None, None
    return found.total_bytes, found.usable_bytes


def _log_dir_partition(looker: Looker, place: PartitionPlace) -> Document:
    key: TopicPartition = place.topic_partition
    size_bytes, error = None, None
    try:
        size_bytes = looker.size_bytes(place)
    except (StratalogError, FileNotFoundError) as caught:
        error = error_document(as_ours(caught))
    return {
        "topic": key.topic,
        "partition": key.partition,
        "size_bytes": size_bytes,
        "offset_lag": 0,
        "is_future": False,
        "error": error,
    }
