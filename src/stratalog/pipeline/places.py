"""Partitions as the source sees them: found by name, opened to read, at one moment.

They lie on this machine's disks or in an object store, by how their path begins. Where a manifest
says which generation counts, that one is taken. A log on a disk may belong to a live process that
appends to it, cleans it and deletes from it. It is opened read only, which changes no file; while
its owner replaces segments that may fail, and is tried again for a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stratalog.admin.directories import PartitionPlace, partitions_in
from stratalog.admin.location_manifest import current_root
from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import CorruptionError, LogChangedError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.base.limits import MAX_BATCH_BYTES
from stratalog.ledger.following import check_follows
from stratalog.ledger.manifest import EMPTY, Generation, in_order, read_manifest
from stratalog.ledger.mending import advising
from stratalog.ledger.view import open_generation
from stratalog.log.checkpoint import checkpoint_entry
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.log.view import LogView
from stratalog.pipeline.as_of import AsOf, check_raw, choose
from stratalog.pipeline.object_store import FROM_ENVIRONMENT, SCHEME, ObjectStore, filesystem_of
from stratalog.pipeline.options import Choice
from stratalog.pipeline.parts import Parts
from stratalog.record import layout
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    TopicPartition,
)
from stratalog.segment.segment import Segment

_ATTEMPTS = 20
_WAIT_MS = 50
"""A swap of segments takes some renames: a second is much."""


@dataclass(frozen=True, slots=True)
class Place(PartitionPlace):
    """A partition, and the store that its path belongs to if that is no local one."""

    store: ObjectStore = FROM_ENVIRONMENT

    def filesystem(self) -> FileSystem:
        """What reads it; of an object store as it is now."""
        return filesystem_of(self.log_dir, self.store)


def find_places(
    paths: Iterable[str], choice: Choice, store: ObjectStore = FROM_ENVIRONMENT
) -> list[Place]:
    """The chosen partitions in directories that are partitions or hold them, by topic and number.

    Paths of `s3://` are `store`'s. Raises `UsageError`: no such directory, no partition there, none
    that was chosen, one partition in two directories, or an assigned one that is missing;
    `CorruptionError` for a manifest.
    """
    found: dict[TopicPartition, Place] = {}
    for path in paths:
        for place in _places_in(path, store):
            other = found.setdefault(place.topic_partition, place)
            if _real_path(other.path) != _real_path(place.path):
                raise UsageError(f"{place.path}: a copy is read from {other.log_dir} already")
    _check_choice(choice, found)
    chosen = [found[key] for key in sorted(found) if choice.takes(key)]
    if not chosen:
        raise UsageError(f"no partition was chosen; there are {_some(found)}")
    return chosen


def _places_in(path: str, store: ObjectStore) -> list[Place]:
    path = path if path.startswith(SCHEME) else os.path.abspath(path)
    filesystem = filesystem_of(path, store)
    found = partitions_in(current_root(filesystem, path), filesystem)
    return [Place(place.log_dir, place.topic_partition, store) for place in found]


def _real_path(path: str) -> str:
    return path if path.startswith(SCHEME) else os.path.realpath(path)


def _check_choice(choice: Choice, found: Iterable[TopicPartition]) -> None:
    there = set(found)
    if choice.partitions is not None:
        missing = sorted(set(choice.partitions) - there)
        if missing:
            raise UsageError(f"assign: there is no {_some(missing)}; there are {_some(there)}")
    if choice.topics is not None:
        unknown = sorted(set(choice.topics) - {key.topic for key in there})
        if unknown:
            raise UsageError(
                f"subscribe: there is no topic {', '.join(unknown)}; there are {_some(there)}"
            )


def _some(partitions: Iterable[TopicPartition]) -> str:
    names = [str(key) for key in sorted(partitions)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@contextmanager
def opened_view(place: Place, *, pardons_damage: bool = False) -> Iterator[LogView]:
    """The log as it is now; its files stay open in the `with` block, whatever its owner does.

    A part of a batch at the end is not part of it: an owner may be writing it, or a crash left it.
    Raises `UsageError`, `StorageIOError`, `CorruptionError` (also, unless `pardons_damage`, for
    something else than batches at the end, where an opening for writing would cut the log), and
    `LogChangedError` if segments go on being replaced.
    """
    with _opened(place, pardons_damage) as log:
        yield log.view


@contextmanager
def opened_parts(
    place: Place,
    *,
    with_ledger: bool,
    as_of: AsOf | None = None,
    pardons_damage: bool = False,
    order: str | None = None,
) -> Iterator[tuple[Parts, int | None]]:
    """What is to be read of a partition as it is now, and where that ends as of then (None: at its
    log's end). With `with_ledger` a ledger answers below its horizon, if there is one; not one of
    another order of versions than `order`, if that is given, where the raw log has it all.

    Raises as `opened_view`; `UsageError` where nothing answers `as_of`; `LogChangedError` if
    ledgers go on being replaced.
    """
    clock = SystemClock()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with advising(place.path):
                found = _parts(place, with_ledger, as_of, pardons_damage, order)
            break
        except _LedgerReplacedError as error:
            if attempt == _ATTEMPTS:
                raise LogChangedError(f"{place.path}: its ledgers go on being replaced") from error
        clock.sleep_ms(_WAIT_MS)
    with advising(place.path):
        yield found


class _LedgerReplacedError(Exception):
    """Its owner has another ledger by now."""


def _parts(
    place: Place, with_ledger: bool, as_of: AsOf | None, pardons_damage: bool, order: str | None
) -> tuple[Parts, int | None]:
    filesystem = place.filesystem()
    wants_ledger = with_ledger or as_of is not None
    # Whatever is wrong with its ledgers, the raw log is there.
    manifest = read_manifest(filesystem, place.path) if wants_ledger else EMPTY
    ledger = manifest.current
    ledger_view = _ledger_view(filesystem, place, ledger)  # before the log: see `CompactedView`
    end: int | None = None
    with _opened(place, pardons_damage) as log:
        raw = log.view
        if order is not None and (as_of is None or as_of.ledger is None):
            kept = in_order(manifest, order, raw.log_start_offset)
            if ledger is not None and kept.current != ledger:
                ledger = kept.current if as_of is not None else None
                ledger_view = _ledger_view(filesystem, place, ledger)
            manifest_in_order = kept
        else:
            manifest_in_order = manifest
        if as_of is not None:
            points = os.path.join(place.log_dir, CLEANER_OFFSET_CHECKPOINT)
            moment = choose(
                manifest_in_order,
                raw,
                as_of,
                name=place.name,
                cleaner_point=checkpoint_entry(filesystem, points, place.topic_partition),
                is_older=_older_than(ledger_view),
            )
            end = moment.end_offset
            if not with_ledger:
                check_raw(raw, moment, as_of, place.name)
            if moment.generation != ledger:
                ledger_view = _ledger_view(filesystem, place, moment.generation)
        elif (
            ledger is not None
            and raw.log_start_offset > ledger.horizon
            and read_manifest(filesystem, place.path) != manifest
        ):
            # The log has lost what a ledger holds that came meanwhile.
            raise _LedgerReplacedError
        elif not pardons_damage:
            check_follows(ledger, raw, place.path)
    if not with_ledger:
        return Parts.of_raw(raw), end
    return Parts.up_to(ledger_view, raw, end), end


def _ledger_view(
    filesystem: FileSystem, place: Place, generation: Generation | None
) -> LogView | None:
    if generation is None:
        return None
    try:
        return open_generation(filesystem, place.path, generation)
    except FileNotFoundError as error:
        raise _LedgerReplacedError from error


def _older_than(view: LogView | None) -> Callable[[int], bool]:
    return lambda time_ms: view is None or view.offset_for_timestamp(time_ms) is None


def _opened(place: Place, pardons_damage: bool) -> PartitionLog:
    clock = SystemClock()
    end_before: tuple[int, int] | None = None
    attempt = 0
    while True:
        attempt += 1
        try:
            log = _open(place, clock)
        except LogChangedError:
            if attempt == _ATTEMPTS:
                raise
            clock.sleep_ms(_WAIT_MS)
            continue
        active = log.view.segments.active
        if pardons_damage or not _has_more(active):
            return log
        log.close()
        # Its owner has appended since the end was looked for; or nobody has, and it is no batch.
        end = active.base_offset, active.size_bytes
        if end == end_before:
            raise CorruptionError(
                "the log ends in what is no batch", file=active.log.path, position=end[1]
            )
        end_before = end


def _open(place: Place, clock: Clock) -> PartitionLog:
    filesystem = place.filesystem()
    starts = os.path.join(place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    return PartitionLog.open(
        place.path,
        LogSettings(),
        filesystem,
        clock,
        log_start_offset=checkpoint_entry(filesystem, starts, place.topic_partition),
        read_only=True,
        may_be_torn=True,
    )


def _has_more(active: Segment) -> bool:
    """Whether there is more behind the end of the log than the beginning of a batch."""
    size_bytes = active.log.size_bytes()
    head = active.log.read(active.size_bytes, layout.MIN_STEP_BYTES)
    if len(head) < layout.MIN_STEP_BYTES:
        return False
    length = int.from_bytes(head[layout.LENGTH : layout.LENGTH + 4], "big", signed=True)
    end = active.size_bytes + layout.LOG_OVERHEAD + length
    return not (0 < length <= MAX_BATCH_BYTES and end > size_bytes)
