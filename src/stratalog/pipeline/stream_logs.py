"""The logs of a stream: which there are by now, and where each one ends.

Spark asks many times a second while nothing happens. A partition whose files have not changed since
is not opened again: their names, and size and time of the last one, say so.

Invariants
- L1  If the stream wants that (S4), an offset is told only once what is below it is on the disk:
      the reader syncs the log's last segment, and those that were rolled since it last did.
- L2  No file is changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stratalog.base.errors import LogChangedError, StorageIOError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.view import LogView
from stratalog.pipeline import planning
from stratalog.pipeline.options import Choice
from stratalog.pipeline.places import Place, find_places, opened_view
from stratalog.pipeline.stream_offsets import LogEnds, Offsets
from stratalog.pipeline.stream_options import StreamOptions
from stratalog.record.layout import MAGIC_V2
from stratalog.segment.names import LOG_START_OFFSET_CHECKPOINT, TopicPartition
from stratalog.segment.segment import Segment

_ATTEMPTS = 20
_NO_DIRTY_PAGES = (errno.EROFS, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""What an fsync answers on a file system that keeps nothing back."""

Stamp = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """A log as it was when its files had this stamp; all was synced below `synced_base`."""

    stamp: Stamp
    ends: LogEnds
    synced_base: int


class StreamLogs:
    """One thread's own. `passed_over`: the partitions that are there, but not chosen."""

    def __init__(self, options: StreamOptions):
        self._options = options
        self._known: dict[TopicPartition, _Known] = {}
        self.passed_over: frozenset[TopicPartition] = frozenset()

    def starts(
        self, said: Callable[[Sequence[str]], None]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Where the options want each partition to begin, and where it ends by now. `said` is told
        of what was lost. Raises `UsageError` if a partition that the options name is missing."""
        source = self._options.source
        if source.choice.pattern is None:
            places = find_places(source.paths, source.choice, source.store)
        else:
            places = list(self._places().values())  # there may be topics of that name later
        planning.check_bounds(source, places)
        found = {}
        for place in places:
            with self.opened(place) as view:
                bounds, loss = planning.resolve(source, place, view)
                said([] if loss is None else [loss])
                last = ends_of(view, source.is_committed).last
                found[place.topic_partition] = (bounds.start, last)
        return found

    def look(self) -> dict[TopicPartition, LogEnds]:
        """The chosen partitions that there are now. Raises `CorruptionError`, `StorageIOError`."""
        found = {}
        for key, place in self._places().items():
            try:
                found[key] = self._ends(place)
            except UsageError:
                # It was there a moment ago.
                if place.filesystem().exists(place.path):
                    raise
        self._known = {key: known for key, known in self._known.items() if key in found}
        return found

    def places_of(self, keys: Mapping[TopicPartition, int]) -> dict[TopicPartition, Place | None]:
        """Where partitions lie, chosen or not; None for one that is gone."""
        there = {place.topic_partition: place for place in self._all()} if keys else {}
        return {key: there.get(key) for key in keys}

    def without_gaps(self, begin: Offsets, until: Offsets) -> Offsets:
        """`begin`, moved up to the first batch that there is: what cleaning took away does not
        count for a limit."""
        found = dict(begin)
        for key, place in self._places().items():
            if begin.get(key, 0) < until.get(key, 0):
                with self.opened(place) as view:
                    found[key] = _first_batch(view, begin[key], until[key])
        return found

    @contextmanager
    def opened(self, place: Place) -> Iterator[LogView]:
        """The log as it is now."""
        pardons = not self._options.source.fail_on_data_loss
        with opened_view(place, pardons_damage=pardons) as view:
            yield view

    def _all(self) -> list[Place]:
        source = self._options.source
        return find_places(source.paths, Choice(), source.store)

    def _places(self) -> dict[TopicPartition, Place]:
        choice = self._options.source.choice
        there = {place.topic_partition: place for place in self._all()}
        chosen = {key: place for key, place in there.items() if choice.takes(key)}
        self.passed_over = frozenset(there) - frozenset(chosen)
        return chosen

    def _ends(self, place: Place) -> LogEnds:
        key = place.topic_partition
        known = self._known.get(key)
        stamp = _stamp(place)
        if known is not None and stamp is not None and known.stamp == stamp:
            return known.ends
        for _ in range(_ATTEMPTS):
            with self.opened(place) as view:
                ends = ends_of(view, self._options.source.is_committed)
                active = view.segments.active
                if self._options.flushes:
                    _flush(place, _unsynced(view, known))
                # An owner whose disk is full takes back what it could write of an append.
                if active.log.size_bytes() >= active.size_bytes:
                    if stamp is not None:
                        self._known[key] = _Known(stamp, ends, active.base_offset)
                    return ends
        raise LogChangedError(f"{place.path}: its end is cut off again and again; try again")


def ends_of(view: LogView, is_committed: bool) -> LogEnds:
    """Where a log begins and ends, for readers of committed data or all."""
    start = view.log_start_offset
    last = view.last_stable_offset if is_committed else view.log_end_offset
    return LogEnds(start, view.log_end_offset, max(start, last))


def _stamp(place: Place) -> Stamp | None:
    """The same as long as nobody has changed the log; None if somebody is just doing it."""
    filesystem = place.filesystem()
    try:
        names = filesystem.list_directory(place.path)
        last = max((name for name in names if name.endswith(".log")), default=None)
        if last is None:
            return None
        starts = os.path.join(place.log_dir, LOG_START_OFFSET_CHECKPOINT)
        moved = filesystem.stat(starts) if filesystem.exists(starts) else None
        return place.path, *names, filesystem.stat(os.path.join(place.path, last)), moved
    except FileNotFoundError:
        return None


def _unsynced(view: LogView, known: _Known | None) -> list[Segment]:
    if known is not None and view.segments.get(known.synced_base) is not None:
        return [one for one in view.segments if one.base_offset >= known.synced_base]
    # Earlier ones were synced when they were rolled, for which Kafka takes its time.
    return list(view.segments)[-2:]


def _flush(place: Place, segments: Sequence[Segment]) -> None:
    filesystem = place.filesystem()
    if not isinstance(filesystem, LocalFileSystem):
        return  # an object is there for good, or not there
    try:
        for segment in segments:
            segment.log.fsync()
        filesystem.fsync_directory(place.path)
    except StorageIOError as error:
        cause = error.__cause__
        if not (isinstance(cause, OSError) and cause.errno in _NO_DIRTY_PAGES):
            raise


def _first_batch(view: LogView, offset: int, end: int) -> int:
    """Where records begin that are at or past `offset`, at most `end`."""
    for segment in view.segments.from_offset(offset):
        if segment.base_offset >= end:
            break
        placed = segment.find(offset)
        if placed is not None:
            # A compressed message of magic 0 or 1 is known by its last offset.
            is_new = placed.header.magic >= MAGIC_V2
            return min(end, max(offset, placed.header.base_offset)) if is_new else offset
    return end
