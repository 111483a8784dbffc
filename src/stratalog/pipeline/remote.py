"""Compact logs from anywhere into another location, a bucket for instance (SPK-9).

    compact_to   find -> a task for each partition, the biggest first -> checkpoints -> manifest
                 -> generations that nobody needs any more are removed

The source is only read. The result is a generation of the location (`remote_manifest`): readers
that open the location see the one before until the manifest is written, and the new one after.

Invariants
- C1  The manifest is written last, after every partition's files are durable; whatever fails before
      leaves the location as it was, and its leftovers to the next run.
- C2  Nothing is removed but generations that no manifest names, or that the new one lets go.
- C3  One run at a time: of two, the second to end is refused if it notices, and a run takes away
      what a run beside it has written but not named. Whoever plans runs sees to that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.admin.copying import IDENTITY_FILE
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import StorageIOError, UsageError
from stratalog.base.filesystem import LocalFileSystem, read_file
from stratalog.clean.engine import OnProgress, Progress
from stratalog.config.book import SettingsBook
from stratalog.log.checkpoint import render
from stratalog.log.locking import locked
from stratalog.pipeline.object_store import FROM_ENVIRONMENT, SCHEME, ObjectStore, filesystem_of
from stratalog.pipeline.options import Choice
from stratalog.pipeline.places import Place, find_places
from stratalog.pipeline.remote_manifest import (
    MANIFEST,
    Manifest,
    PartitionEntry,
    is_generation,
    new_directory,
    read_manifest,
)
from stratalog.pipeline.remote_target import Location
from stratalog.pipeline.remote_task import PartitionDone, PartitionTask, compact_partitions
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE, TopicPartition
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
    kept_generations: int = 1,
    clock: Clock | None = None,
    on_progress: OnProgress = lambda _: None,
) -> CompactionReport:
    """Compact the partitions in `sources` into a new generation of `target`.

    Both may be directories, which every worker must see, or `s3://bucket/path`, which `store`
    reaches. `book`: settings, by Kafka's names; `kept_generations`: how many older ones stay, for
    readers that are at it. Raises `UsageError`, `CorruptionError` (nothing has changed then),
    `StorageIOError`.
    """
    book = book or SettingsBook(defaults=COMPACTED)
    if kept_generations < 0:
        raise UsageError(f"kept_generations is {kept_generations}; it must be at least 0")
    location = Location.of(target, store)
    before = _check_target(location)
    places = find_places(sources, choice or Choice(), store)
    _check_apart(places, location, before)
    named = {before.directory, *before.kept} if before else set()
    for name in location.names():
        if is_generation(name) and name not in named:
            location.remove(name)  # of a run that did not come to its end
    clock = clock or SystemClock()
    now_ms = clock.now_ms()
    generation = before.generation + 1 if before else 1
    directory = new_directory(generation)
    local_dirs = {place.log_dir for place in places if not place.log_dir.startswith(SCHEME)}
    started = time.perf_counter()
    try:
        with locked(sorted(local_dirs), LocalFileSystem(), exclusive=False):
            done = _run(spark, places, location, directory, book, keep_active, now_ms, on_progress)
        _write_checkpoints(location, directory, places, done)
        kept = (before.directory, *before.kept)[:kept_generations] if before else ()
        _switch(location, before, Manifest(generation, directory, kept, now_ms, _entries(done)))
    except BaseException:
        with suppress(StorageIOError):
            location.remove(directory)
        raise
    for name in sorted(named - set(kept)):
        location.remove(name)
    reports = tuple(item.report for item in done if item.report is not None)
    seconds = time.perf_counter() - started
    return CompactionReport(Mode.OUT, location.root, now_ms, seconds, reports)


def _check_target(location: Location) -> Manifest | None:
    """The manifest that is there. Raises `UsageError` for a location with other things in it."""
    try:
        names = location.names()
    except StorageIOError as error:
        raise UsageError(str(error)) from error
    other = [name for name in names if name != MANIFEST and not is_generation(name)]
    if other:
        raise UsageError(f"{location.root}: holds {other[0]!r}: --out wants a place of its own")
    return read_manifest(location.filesystem(), location.root) if MANIFEST in names else None


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


def _run(
    spark: SparkSession,
    places: Sequence[Place],
    location: Location,
    directory: str,
    book: SettingsBook,
    keep_active: bool,
    now_ms: int,
    on_progress: OnProgress,
) -> list[PartitionDone]:
    """What became of each place, in their order. Raises the first error that a task answered."""
    context = spark.sparkContext
    sizes = {place: _size_bytes(place) for place in places}
    # Fewer partitions than cores on this machine: they share the cores.
    is_local = (context.master or "").startswith("local[")
    threads = max(1, context.defaultParallelism // len(places)) if is_local else 1
    tasks = [
        PartitionTask(place, location, directory, book, keep_active, now_ms, threads)
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


def _write_checkpoints(
    location: Location, directory: str, places: Sequence[Place], done: Sequence[PartitionDone]
) -> None:
    files: dict[str, dict[TopicPartition, int]] = {}
    for place, item in zip(places, done, strict=True):
        for name, offset in item.checkpoints:
            files.setdefault(name, {})[place.topic_partition] = offset
    for name, offsets in files.items():
        location.write(os.path.join(directory, name), render(offsets))
    log_dirs = {place.log_dir: place for place in places}
    for name in (CLEAN_SHUTDOWN_FILE, IDENTITY_FILE):
        contents = [_content(place, name) for place in log_dirs.values()]
        # Closed in order if all were; of several log directories, none is this one.
        if None not in contents and (name == CLEAN_SHUTDOWN_FILE or len(contents) == 1):
            location.write(os.path.join(directory, name), contents[0] or b"")


def _content(place: Place, name: str) -> bytes | None:
    try:
        return read_file(place.filesystem(), os.path.join(place.log_dir, name), _SMALL_BYTES)
    except FileNotFoundError:
        return None


def _entries(done: Sequence[PartitionDone]) -> tuple[PartitionEntry, ...]:
    return tuple(
        PartitionEntry(
            item.report.partition,
            item.report.log_start_offset,
            item.report.log_end_offset,
            item.size_bytes,
        )
        for item in done
        if item.report is not None
    )


def _switch(location: Location, before: Manifest | None, manifest: Manifest) -> None:
    if read_manifest(location.filesystem(), location.root) != before:
        raise UsageError(f"{location.root}: another run has written a generation meanwhile")
    location.write(MANIFEST, manifest.encode())
