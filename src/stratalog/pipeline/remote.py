"""Compact logs from anywhere into another location, a bucket for instance (SPK-9).

    compact_to   find -> a task for each partition, the biggest first -> checkpoints -> manifest
                 -> generations that nobody needs any more are removed

The source is only read. The result is a generation of the location (`admin.location`): readers that
open the location see the one before until the manifest is written, and the new one after. Of topics
in ledger mode a generation is made from the one before and what is new; from directories into a
directory that is done as by the command, all partitions in one job of Spark's (`location_run`).

Invariants
- C1  A directory is locked. In a bucket, where nothing is, one run at a time: of two, the second to
      end is refused if it notices, and a run takes away what a run beside it has written but not
      named. Whoever plans runs sees to that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.compaction_ledger import uses_ledger
from stratalog.admin.copying import IDENTITY_FILE
from stratalog.admin.location import (
    Checkpoints,
    add_checkpoints,
    carry_over,
    check_target,
    kept_of,
    remove_old,
    sweep,
    switch,
    write_checkpoints,
)
from stratalog.admin.location_manifest import (
    Manifest,
    PartitionEntry,
    new_directory,
    read_manifest,
)
from stratalog.admin.location_run import CLEAN_SHUTDOWN, claimed, older_generations
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import StratalogError, UsageError
from stratalog.base.filesystem import LocalFileSystem, read_file
from stratalog.clean.engine import OnProgress, Progress
from stratalog.config.book import SettingsBook
from stratalog.log.locking import locked
from stratalog.pipeline.object_store import FROM_ENVIRONMENT, SCHEME, ObjectStore, filesystem_of
from stratalog.pipeline.options import Choice
from stratalog.pipeline.places import Place, find_places
from stratalog.pipeline.remote_target import Location
from stratalog.pipeline.remote_task import PartitionDone, PartitionTask, compact_partitions
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE
from stratalog.spark.describing import description, watched
from stratalog.spark.failures import one_line_failures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_BYTES = 1 << 20

COMPACTED = {"cleanup.policy": ("compact",)}
"""What a topic's policy is unless somebody says otherwise, as for the command."""


def compact_to(
    spark: SparkSession,
    sources: Sequence[str],
    target: str,
    *,
    book: SettingsBook | None = None,
    store: ObjectStore = FROM_ENVIRONMENT,
    choice: Choice | None = None,
    keep_active: bool = False,
    kept_generations: int | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress = lambda _: None,
) -> CompactionReport:
    """Compact the partitions in `sources` into a new generation of `target`.

    Both may be directories, which every worker must see, or `s3://bucket/path`, which `store`
    reaches. `book`: settings, by Kafka's names; `kept_generations`: how many older ones stay, for
    readers that are at it (None: one, or as many as `compaction.ledgers.retained` says). Raises
    `UsageError`, `CorruptionError` (nothing has changed then), `StorageIOError`.
    """
    book = book or SettingsBook(defaults=COMPACTED)
    if kept_generations is not None and kept_generations < 0:
        raise UsageError(f"kept_generations is {kept_generations}; it must be at least 0")
    clock = clock or SystemClock()
    target_location = Location.of(target, store)
    places = find_places(sources, choice or Choice(), store)
    settings = {place: book.of(place.topic_partition.topic) for place in places}
    is_local = not target_location.is_remote and not any(map(_is_remote, places))
    if is_local and any(map(uses_ledger, settings.values())):
        options = CompactionOptions(
            *(Mode.OUT, book.of_broker(), target_location.root, keep_active),
            engine="spark",
            engine_checks_digests=True,
            settings_of=book.of,
            kept_generations=kept_generations,
        )
        return _compact_locally(spark, places, options, clock, on_progress)
    _check_apart(places, target_location, check_target(target_location))
    local_dirs = {place.log_dir for place in places if not _is_remote(place)}
    disk, root = LocalFileSystem(), target_location.root
    claim = nullcontext() if target_location.is_remote else claimed(root, disk)
    with locked(sorted(local_dirs), disk, exclusive=False), claim:
        before = check_target(target_location)
        number = 1 if before is None else before.generation + 1
        run = _Run(target_location, before, number, new_directory(number), book, keep_active, clock)
        sweep(target_location, before)
        older = older_generations(list(settings.values()), kept_generations)
        return _compact(spark, places, run, older, on_progress)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run: what it is told, and the generation that it writes."""

    location: Location
    before: Manifest | None
    number: int
    directory: str
    book: SettingsBook
    keep_active: bool
    clock: Clock


def _compact(
    spark: SparkSession,
    places: Sequence[Place],
    run: _Run,
    older: int,
    on_progress: OnProgress,
) -> CompactionReport:
    now_ms, root = run.clock.now_ms(), run.location.root
    started = time.perf_counter()
    try:
        done = _run_tasks(spark, places, run, now_ms, on_progress)
        reports = tuple(item.report for item in done if item.report is not None)
        if all(item.entry is None for item in done):
            seconds = time.perf_counter() - started
            return CompactionReport(Mode.OUT, root, now_ms, seconds, reports)
        entries = [item.entry for item in done if item.entry is not None]
        entries = sorted([*entries, *_carried(run, entries)], key=lambda entry: entry.partition)
        _write_frame(run, places, done, entries)
        kept = kept_of(run.before, older)
        manifest = Manifest(run.number, run.directory, kept, now_ms, tuple(entries))
        switch(run.location, run.before, manifest)
    except BaseException:
        with suppress(StratalogError):
            _undo(run)
        raise
    remove_old(run.location, run.before, kept)
    seconds = time.perf_counter() - started
    return CompactionReport(Mode.OUT, root, now_ms, seconds, reports, run.directory)


def _undo(run: _Run) -> None:
    """Remove what was written, unless it counts after all."""
    manifest = read_manifest(run.location.filesystem(), run.location.root)
    if manifest is None or manifest.directory != run.directory:
        run.location.remove(run.directory)


def _compact_locally(
    spark: SparkSession,
    places: Sequence[Place],
    options: CompactionOptions,
    clock: Clock,
    on_progress: OnProgress,
) -> CompactionReport:
    from stratalog.spark.engine import SparkEngine

    disk = LocalFileSystem()
    paths = [place.path for place in places]
    return compact(paths, options, lambda: SparkEngine(spark, disk), disk, clock, on_progress)


def _is_remote(place: Place) -> bool:
    return place.log_dir.startswith(SCHEME)


def _check_apart(places: Sequence[Place], location: Location, before: Manifest | None) -> None:
    """Refuse to write into what is read; a generation of the target itself may be compacted."""
    current = None if before is None else os.path.join(location.root, before.directory)
    for place in places:
        if place.log_dir != current and _lies_in(location.root, place.log_dir):
            raise UsageError(f"{location.root}: lies inside {place.log_dir}, which must not change")


def _lies_in(path: str, parent: str) -> bool:
    if path.startswith(SCHEME) != parent.startswith(SCHEME):
        return False
    if not path.startswith(SCHEME):
        path, parent = os.path.realpath(path), os.path.realpath(parent)
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def _run_tasks(
    spark: SparkSession,
    places: Sequence[Place],
    run: _Run,
    now_ms: int,
    on_progress: OnProgress,
) -> list[PartitionDone]:
    """What became of each place, in their order. Raises the first error that a task answered."""
    context = spark.sparkContext
    location, before = run.location, run.before
    sizes = {place: _size_bytes(place) for place in places}
    # Fewer partitions than cores on this machine: they share the cores.
    is_local = (context.master or "").startswith("local[")
    threads = max(1, context.defaultParallelism // len(places)) if is_local else 1
    tasks = [
        PartitionTask(
            *(place, location, run.directory, run.book, run.keep_active, now_ms, threads),
            number=run.number,
            before=None if before is None else before.entry(place.name),
            before_directory="" if before is None else before.directory,
        )
        for place in sorted(places, key=lambda place: -sizes[place])
    ]
    total_bytes = sum(sizes.values())
    work = f"compact into {location.root}:"
    text = description(work, [task.place.name for task in tasks], total_bytes)

    def on_share(share: float) -> None:
        on_progress(Progress("rewrite", int(share * total_bytes), total_bytes))

    with one_line_failures(), watched(context, text, on_share):
        found = context.parallelize(tasks, len(tasks)).mapPartitions(compact_partitions).collect()
    for done in found:
        if done.error is not None:
            raise done.error
    by_place = {task.place: done for task, done in zip(tasks, found, strict=True)}
    return [by_place[place] for place in places]


def _size_bytes(place: Place) -> int:
    filesystem = filesystem_of(place.log_dir, place.store)
    try:
        names = filesystem.list_directory(place.path)
        logs = [os.path.join(place.path, name) for name in names if name.endswith(".log")]
        return sum(filesystem.stat(path).size_bytes for path in logs)
    except FileNotFoundError:
        return 0  # replaced just now; whoever copies it says so


def _carried(run: _Run, made: Sequence[PartitionEntry]) -> list[PartitionEntry]:
    """The ledgers that stay as they are: nothing is new of them, or nobody named them."""
    if run.before is None:
        return []
    names = {entry.partition for entry in made}
    found = [
        entry
        for entry in run.before.partitions
        if entry.ledger is not None and entry.partition not in names
    ]
    for entry in found:
        carry_over(run.location, run.before, entry, run.directory)
    return found


def _write_frame(
    run: _Run,
    places: Sequence[Place],
    done: Sequence[PartitionDone],
    entries: Sequence[PartitionEntry],
) -> None:
    """What makes a log directory of the partitions."""
    files: Checkpoints = {}
    for place, item in zip(places, done, strict=True):
        for name, offset in item.checkpoints:
            files.setdefault(name, {})[place.topic_partition] = offset
    for entry in entries:
        if entry.ledger is not None:
            add_checkpoints(files, entry)
    write_checkpoints(run.location, run.directory, files)
    are_ledgers = all(entry.ledger is not None for entry in entries)
    log_dirs = {place.log_dir: place for place in places}
    for name in (CLEAN_SHUTDOWN_FILE, IDENTITY_FILE):
        contents = [_content(place, name) for place in log_dirs.values()]
        content = contents[0]
        if name == CLEAN_SHUTDOWN_FILE and are_ledgers:
            contents, content = [CLEAN_SHUTDOWN], CLEAN_SHUTDOWN
        # Closed in order if all were; of several log directories, none is this one.
        if None not in contents and (name == CLEAN_SHUTDOWN_FILE or len(contents) == 1):
            run.location.write(os.path.join(run.directory, name), content or b"")


def _content(place: Place, name: str) -> bytes | None:
    try:
        return read_file(place.filesystem(), os.path.join(place.log_dir, name), _SMALL_BYTES)
    except FileNotFoundError:
        return None
