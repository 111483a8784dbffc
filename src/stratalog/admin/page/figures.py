"""What the page tells, gathered: counts, a dry run of cleaning, the dirty part, retention's view.

Each partition is looked at in turn, by the operations that the other commands use: `admin.stats`,
`admin.compaction` (a dry run, which also names the keys that lose most), `admin.cleaning`,
`admin.retention`. They read it several times, at one moment (`pinned`), which is another one for
each partition.

Invariants
- I1  Nothing on disk is changed and no lock is asked for: a log may belong to a live process.
- I2  What is wrong with one partition is told with it, and the others go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from stratalog.admin.cleaning import LookedAt, PartitionItem, SettingsOf, StatusReport, status
from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.floors import log_settings
from stratalog.admin.page.pinned import is_unchanged, pinned, reading
from stratalog.admin.report import Counts, Mode, PartitionReport
from stratalog.admin.retention import PartitionRetention, plan_retention
from stratalog.admin.state import open_to_read
from stratalog.admin.stats import PartitionStats, partition_stats
from stratalog.base.clock import Clock, StoppedClock
from stratalog.base.errors import LogChangedError, StratalogError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.log.view import LogView

_ATTEMPTS = 5
_PASSES = 3
"""Times that a log is read: counting, the dry run, the keys that lose most. A rough measure."""


class Section(Enum):
    """Where a segment lies, as the cleaner of a live log sees it (`clean.facts.Sections`)."""

    CLEAN = "clean"
    CLEANABLE = "cleanable"
    HELD_BACK = "held-back"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class SegmentFigures:
    """A segment: bytes of its `.log` now and after cleaning; when its newest record was written,
    ms since 1970."""

    base_offset: int
    section: Section
    bytes_before: int
    bytes_after: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """All that was found of a partition. `sentence`: why its cleaner would take it, or not."""

    stats: PartitionStats
    dry_run: PartitionReport
    look: LookedAt
    sentence: str
    retention: PartitionRetention
    segments: tuple[SegmentFigures, ...]

    @property
    def name(self) -> str:
        return self.stats.partition

    @property
    def bytes_before(self) -> int:
        return self.dry_run.log_bytes_before

    @property
    def saved_bytes(self) -> int:
        """What cleaning now would save on disk; below zero where packing anew takes more."""
        return self.dry_run.log_bytes_before - self.dry_run.log_bytes_after

    @property
    def duplicates(self) -> int | None:
        """Records that are not the only one of their key, the newest of each left out; None if
        there are too many keys to tell."""
        stats = self.stats
        if stats.keys is None:
            return None
        # The ratio is keys over such records, so that this is exact up to 2^50 of them.
        return round(stats.keys / stats.live_ratio) - stats.keys if stats.live_ratio else 0

    def as_json(self) -> dict[str, Any]:
        return {
            **self.stats.as_json(),
            "duplicates": self.duplicates,
            "saved_bytes": self.saved_bytes,
            "cleaning": self.look.as_json(),
            "explanation": self.sentence,
            "dry_run": self.dry_run.as_json(),
            "retention": self.retention.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Unread:
    """A partition that could not be read, and why."""

    partition: str
    directory: str
    error: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything, at `now_ms`. `partitions`: those that lose most bytes first."""

    now_ms: int
    directories: tuple[str, ...]
    partitions: tuple[PartitionFigures, ...]
    unread: tuple[Unread, ...]

    @property
    def is_ok(self) -> bool:
        """Every partition could be read."""
        return not self.unread

    @property
    def bytes_before(self) -> int:
        return sum(item.bytes_before for item in self.partitions)

    @property
    def saved_bytes(self) -> int:
        return sum(item.saved_bytes for item in self.partitions)

    @property
    def counts(self) -> Counts:
        """The sums of the dry run."""
        return sum((item.dry_run.counts for item in self.partitions), Counts())

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.is_ok,
            "now_ms": self.now_ms,
            "bytes_before": self.bytes_before,
            "saved_bytes": self.saved_bytes,
            "partitions": [item.as_json() for item in self.partitions],
            "errors": [asdict(item) for item in self.unread],
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to gather. `settings_of`: topic -> its settings; `top`: how many of each partition's
    keys to name, those that lose most records; `start_engine`: what makes the dry runs."""

    settings_of: SettingsOf
    top: int
    start_engine: Callable[[FileSystem], Engine]


def gather(
    targets: Sequence[str],
    wanted: Wanted,
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> Figures:
    """Look at the partitions in `targets`. Raises `UsageError` if there are none."""
    now_ms = clock.now_ms()
    disk = reading(filesystem)
    places = find_partitions(targets, disk)
    sizes = [_log_bytes(place, disk) for place in places]
    found: list[PartitionFigures] = []
    unread: list[Unread] = []
    for number, place in enumerate(places):
        step = _Step(on_progress, sum(sizes[:number]), sizes[number], sum(sizes))
        try:
            found.append(_Task(place, wanted, now_ms, step).run(disk))
        except (StratalogError, FileNotFoundError) as error:
            unread.append(Unread(place.name, place.path, str(error)))
    found = _with_sentences(found, now_ms)
    found.sort(key=lambda item: (-item.saved_bytes, -item.bytes_before))
    directories = tuple(dict.fromkeys(os.path.abspath(target) for target in targets))
    return Figures(now_ms, directories, tuple(found), tuple(unread))


def _log_bytes(place: PartitionPlace, disk: FileSystem) -> int:
    """About what there is to read, for the progress."""
    total_bytes = 0
    for name in disk.list_directory(place.path):
        with suppress(FileNotFoundError):  # its owner has replaced or deleted it meanwhile
            if name.endswith(".log"):
                total_bytes += disk.stat(os.path.join(place.path, name)).size_bytes
    return total_bytes


def _with_sentences(found: Sequence[PartitionFigures], now_ms: int) -> list[PartitionFigures]:
    """With what the cleaner would say of each, which depends on all of them: they queue."""
    items = tuple(PartitionItem(item.name, item.look.place.path, item.look) for item in found)
    explained = StatusReport(now_ms, items).explanations()
    return [
        replace(item, sentence=told.found.sentence if told.found else "")
        for item, told in zip(found, explained, strict=True)
    ]


class _Step:
    """One partition's part of the progress: `_PASSES` passes over its bytes."""

    def __init__(self, tell: OnProgress, done_bytes: int, size_bytes: int, total_bytes: int):
        self._tell = tell
        self._done_bytes = done_bytes
        self._size_bytes = size_bytes
        self._total_bytes = total_bytes

    def of_pass(self, number: int) -> OnProgress:
        def on_progress(progress: Progress) -> None:
            share = min(1.0, progress.done_bytes / max(1, progress.total_bytes))
            done = self._done_bytes + round(self._size_bytes * (number + share) / _PASSES)
            self._tell(Progress("looking", done, self._total_bytes))

        return on_progress


@dataclass(frozen=True, slots=True)
class _Task:
    """One partition to look at."""

    place: PartitionPlace
    wanted: Wanted
    now_ms: int
    step: _Step

    def run(self, disk: FileSystem) -> PartitionFigures:
        """Raises what is wrong with the partition, if nobody has changed it meanwhile: the end of
        what a live owner was just writing can look like damage."""
        for _ in range(_ATTEMPTS - 1):
            with pinned(self.place, disk) as moment:
                try:
                    return self._look(moment)
                except (StratalogError, FileNotFoundError):
                    if is_unchanged(moment):
                        raise
        with pinned(self.place, disk) as moment:
            return self._look(moment)

    def _look(self, disk: FileSystem) -> PartitionFigures:
        place, clock = self.place, StoppedClock(self.now_ms)
        settings = self.wanted.settings_of(place.topic_partition.topic)
        (item,) = status([place.path], self.wanted.settings_of, disk, clock).partitions
        if item.found is None:
            raise LogChangedError(item.error or "")  # or damaged: `run` tells them apart
        counted = partition_stats(place, settings, disk, clock, self.step.of_pass(0))
        options = CompactionOptions(
            Mode.DRY_RUN, settings, top=self.wanted.top, settings_of=self.wanted.settings_of
        )
        engine = self.wanted.start_engine(disk)
        report = compact(
            [place.path], options, lambda: engine, disk, clock, self._dry_run_progress()
        )
        (dry_run,) = report.partitions
        (retention,) = plan_retention([place.path], settings, disk, clock).partitions
        with open_to_read(place, log_settings(settings), disk, clock, may_be_torn=True) as log:
            segments = _segments(log.view, item.found, dry_run)
        return PartitionFigures(counted, dry_run, item.found, "", retention, segments)

    def _dry_run_progress(self) -> OnProgress:
        rounds, keys = self.step.of_pass(1), self.step.of_pass(2)

        def on_progress(progress: Progress) -> None:
            (keys if progress.phase == "count" else rounds)(progress)

        return on_progress


def _segments(
    view: LogView, look: LookedAt, dry_run: PartitionReport
) -> tuple[SegmentFigures, ...]:
    going = {item.base_offset: item for item in dry_run.segments}
    found = []
    for slot, segment in enumerate(view.segments):
        after = going.get(segment.base_offset)
        section = Section.HELD_BACK
        if slot + 1 == len(view.segments):
            section = Section.ACTIVE
        elif view.segments.end_of(slot, view.log_end_offset) <= look.facts.first_dirty:
            section = Section.CLEAN
        elif segment.base_offset < look.facts.first_uncleanable:
            section = Section.CLEANABLE
        found.append(
            SegmentFigures(
                segment.base_offset,
                section,
                segment.size_bytes if after is None else after.bytes_before,
                segment.size_bytes if after is None else after.bytes_after,
                segment.largest_timestamp_ms(),
            )
        )
    return tuple(found)
