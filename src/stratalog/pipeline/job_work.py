"""What jobs do, whoever asks: `LogTable` on a driver, or a table function in its worker (SPK-8).

Both say how something is done with each of many partitions: the one by a Spark job, the other in a
loop (`Each`). What changes a directory is done here, in the process that holds its lock.

Invariants
- W1  A partition that has been compacted is not deleted from by age unless somebody gives its
      cleanup.policy: its old records may be the newest of their keys.
- W2  What is wrong with one partition is told in its row, by everything but a compaction that is
      all or nothing.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stratalog.admin.cleaning import history, status
from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.policies import COMPACTED_TOPICS
from stratalog.admin.report import CompactionReport, Mode
from stratalog.admin.retention import PartitionRetention, plan_retention, run_retention
from stratalog.base.clock import StoppedClock
from stratalog.base.errors import StratalogError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Engine, OnProgress
from stratalog.config.book import SettingsBook
from stratalog.config.settings import Settings
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.locking import locked
from stratalog.pipeline import job_rows
from stratalog.pipeline.job_rows import Row
from stratalog.pipeline.job_target import Target
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    FileKind,
    FileState,
    TopicPartition,
    parse,
)

_LOGGER = logging.getLogger(__name__)
_HOUR_MS = 3_600_000

Each = Callable[[str, Callable[[Any], Any], Sequence[Any]], list[Any]]
"""(what it is called, what is done with a piece, the pieces) -> what came of each, in order."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A partition as a task is told of it. `size_bytes`: how much work it is, as far as known."""

    place: PartitionPlace
    settings: Settings
    now_ms: int
    size_bytes: int = 0


def in_a_loop(_work: str, step: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """The `Each` of one process."""
    return [step(piece) for piece in pieces]


# ---------------------------------------------------------------- compaction


@dataclass(frozen=True, slots=True)
class CompactionWishes:
    """How somebody wants a compaction; see `CompactionOptions`. Raises `UsageError`."""

    is_dry: bool
    out: str | None = None
    keep_active: bool = False
    max_concurrent: int | None = None
    partial_progress: bool = False
    top: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.top, bool) or self.top < 0:
            raise UsageError(f"top is {self.top!r}; it must be a number of keys, at least 0")

    @property
    def mode(self) -> Mode:
        if self.is_dry:
            if self.out is not None:
                raise UsageError("a dry run writes nothing: leave out the directory to write to")
            return Mode.DRY_RUN
        return Mode.IN_PLACE if self.out is None else Mode.OUT


def run_compaction(
    target: Target,
    places: Iterable[PartitionPlace],
    wishes: CompactionWishes,
    engine: str,
    start_engine: Callable[[], Engine],
    on_progress: OnProgress,
) -> CompactionReport:
    """Compact; as in `stratalog compact` a topic of which nobody says a policy is a compacted one.

    Raises as `admin.compaction.compact`.
    """
    book = _noted(target.book(("compact",)))
    options = CompactionOptions(
        wishes.mode,
        book.of_broker(),
        wishes.out,
        wishes.keep_active,
        wishes.top,
        engine,
        engine_checks_digests=engine == "spark",
        settings_of=book.of,
        max_concurrent=wishes.max_concurrent,
        partial_progress=wishes.partial_progress,
    )
    paths = [place.path for place in places]
    return compact(paths, options, start_engine, LocalFileSystem(), target.clock, on_progress)


def _noted(book: SettingsBook) -> SettingsBook:
    """The book, after saying what in it is without effect."""
    for note in book.notes():
        _LOGGER.warning(note)
    return book


# ---------------------------------------------------------------- retention


def run_vacuum(
    target: Target,
    places: Sequence[PartitionPlace],
    retention_hours: float | None,
    each: Each,
    on_progress: OnProgress,
    *,
    is_dry: bool,
) -> list[Row]:
    """Delete the segments that retention lets go, or say which.

    All partitions are looked at by `each`; only those of which something goes are opened to delete
    it. Raises `UsageError` (among them `LogLockedError`), `StorageIOError`.
    """
    now_ms = target.clock.now_ms()
    words = {} if retention_hours is None else {"retention.ms": retention_ms_of(retention_hours)}
    book = _noted(target.book(("delete",), words))
    rows: dict[str, Row] = {}
    pieces = []
    compacted = _compacted_by_directory(places)
    for place in places:
        settings = book.of(place.topic_partition.topic)
        reason = _why_left_alone(place, settings, compacted[place.log_dir])
        if reason is not None:
            rows[place.path] = job_rows.skipped_vacuum_row(place, reason)
        else:
            pieces.append(Piece(place, settings, now_ms))
    disk = LocalFileSystem()
    with locked((piece.place.log_dir for piece in pieces), disk, exclusive=False):
        planned = each("vacuum: plan", plan_piece, pieces)
    going: dict[int, list[Piece]] = {}
    for piece, found in zip(pieces, planned, strict=True):
        rows[piece.place.path] = job_rows.vacuum_row(found, is_dry=True)
        if found.error is None and found.decision is not None and found.decision.deletions:
            going.setdefault(id(piece.settings), []).append(piece)
    if not is_dry:
        for group in going.values():
            paths = [piece.place.path for piece in group]
            clock = StoppedClock(now_ms)
            report = run_retention(paths, group[0].settings, disk, clock, on_progress)
            for item in report.partitions:
                rows[item.directory] = job_rows.vacuum_row(item, is_dry=False)
    return [rows[place.path] for place in places]


def retention_ms_of(hours: Any) -> str:
    """Hours as `retention.ms`. Raises `UsageError`."""
    try:
        value = float(hours)
    except (TypeError, ValueError):
        value = math.nan
    if isinstance(hours, bool) or not math.isfinite(value) or value < 0:
        raise UsageError(f"retention_hours is {hours!r}; it must be a number of hours, at least 0")
    return str(round(value * _HOUR_MS))


def _compacted_by_directory(places: Iterable[PartitionPlace]) -> dict[str, set[TopicPartition]]:
    """Which partitions have been compacted, as their log directories' cleaner checkpoints say."""
    disk = LocalFileSystem()
    return {
        log_dir: set(read_checkpoint(disk, os.path.join(log_dir, CLEANER_OFFSET_CHECKPOINT)))
        for log_dir in {place.log_dir for place in places}
    }


def _why_left_alone(
    place: PartitionPlace, settings: Settings, compacted: set[TopicPartition]
) -> str | None:
    key = place.topic_partition
    if settings.is_given("cleanup.policy") or key not in compacted or key.topic in COMPACTED_TOPICS:
        return None
    return (
        "it has been compacted, and nobody gives its cleanup.policy: with config "
        "cleanup.policy=compact,delete it is deleted from by age, too"
    )


def plan_piece(piece: Piece) -> PartitionRetention:
    """What retention lets go of a partition; run in a task. Nothing is changed."""
    place, clock = piece.place, StoppedClock(piece.now_ms)
    try:
        report = plan_retention([place.path], piece.settings, LocalFileSystem(), clock)
    except StratalogError as error:
        policy = piece.settings.words("cleanup.policy")
        return PartitionRetention(place.name, place.path, policy, error=str(error))
    return report.partitions[0]


# ---------------------------------------------------------------- history and detail


def read_history(places: Iterable[PartitionPlace], limit: int | None) -> list[Row]:
    """The newest rounds, `limit` of each partition."""
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise UsageError(f"limit is {limit!r}; it must be at least 1")
    paths = [place.path for place in places]
    return job_rows.history_rows(history(paths, LocalFileSystem(), limit))


def read_detail(
    target: Target, places: Sequence[PartitionPlace], each: Each, *, counts: bool
) -> list[Row]:
    """What the partitions are like; with `counts` every record is looked at, by `each`.

    A topic of which nobody says a policy is taken for a compacted one, as by `compaction explain`.
    """
    book = _noted(target.book(("compact",)))
    disk, clock = LocalFileSystem(), StoppedClock(target.clock.now_ms())
    paths = [place.path for place in places]
    report = status(paths, book.of, disk, clock)
    counted: dict[str, Any] = {}
    if counts:
        sizes = {
            item.directory: item.found.sections.total for item in report.partitions if item.found
        }
        pieces = [
            Piece(place, book.of(place.topic_partition.topic), clock.now_ms(), sizes[place.path])
            for place in places
            if place.path in sizes
        ]
        found = each("detail: count", count_piece, pieces)
        counted = {piece.place.path: one for piece, one in zip(pieces, found, strict=True)}
    policies = {
        place.path: book.of(place.topic_partition.topic).words("cleanup.policy") for place in places
    }
    segments = {place.path: _segments_in(place, disk) for place in places}
    return job_rows.detail_rows(report, policies, segments, counted)


def _segments_in(place: PartitionPlace, disk: LocalFileSystem) -> int:
    found = map(parse, disk.list_directory(place.path))
    return sum(
        name is not None and name.kind is FileKind.LOG and name.state is FileState.FINAL
        for name in found
    )


def count_piece(piece: Piece) -> Any:
    """The partition's `PartitionStats`, or why there are none; run in a task."""
    from stratalog.admin.stats import partition_stats
    from stratalog.record.kernel.warmup import ensure_warm

    ensure_warm(_LOGGER.info)
    clock = StoppedClock(piece.now_ms)
    try:
        return partition_stats(
            piece.place, piece.settings, LocalFileSystem(), clock, lambda _progress: None
        )
    except StratalogError as error:
        return str(error)
