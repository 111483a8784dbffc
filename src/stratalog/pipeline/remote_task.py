"""What a worker does for a compaction into another location: one partition, whole.

    fetch -> a scratch directory on the worker's disk -> compact there, as `compact` does -> upload

So a partition's bytes are those that `stratalog compact --out` leaves, and the worker needs room
for the partition and what becomes of it. The driver gets a report of a few hundred bytes.

Invariants
- R1  A task may run twice, also at the same time: it writes the same objects in a generation that
      nobody reads yet.
- R2  Damage and refusals are answered, not raised: trying again would change nothing. What the
      disk or the network did is raised, and tried again by Spark.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from stratalog.admin import copying
from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.compaction_ledger import uses_ledger
from stratalog.admin.directories import PartitionPlace
from stratalog.admin.report import Mode, PartitionReport
from stratalog.base.clock import StoppedClock
from stratalog.base.errors import CorruptionError, StratalogError, UsageError
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.note import read_note, write_note
from stratalog.config.book import SettingsBook
from stratalog.ledger.manifest import read_manifest
from stratalog.log.checkpoint import read_checkpoint
from stratalog.pipeline.places import Place
from stratalog.pipeline.remote_target import Location

_SCRATCH_PREFIX = "stratalog-compact-"


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """One partition of a run, and all that its worker is told. `below`: the generation's directory
    in `target`; `threads` of the worker's machine."""

    place: Place
    target: Location
    below: str
    book: SettingsBook
    keep_active: bool
    now_ms: int
    threads: int


@dataclass(frozen=True, slots=True)
class PartitionDone:
    """What became of it: a report, or the error. `checkpoints`: the partition's entry of each file
    that has one. `size_bytes`: of its segments."""

    report: PartitionReport | None
    size_bytes: int = 0
    checkpoints: tuple[tuple[str, int], ...] = ()
    error: StratalogError | None = None


def compact_partitions(tasks: Iterable[PartitionTask]) -> Iterator[PartitionDone]:
    """What a Spark task does."""
    return map(compact_partition, tasks)


def compact_partition(task: PartitionTask) -> PartitionDone:
    """Raises `StorageIOError`."""
    from stratalog.record.kernel.warmup import ensure_warm

    ensure_warm(lambda _: None)
    scratch = tempfile.mkdtemp(prefix=_SCRATCH_PREFIX)
    try:
        return _compact_in(scratch, task)
    except (CorruptionError, UsageError) as error:
        return PartitionDone(None, error=_named_by_source(error, scratch, task.place))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _compact_in(scratch: str, task: PartitionTask) -> PartitionDone:
    local = LocalFileSystem()
    [copy] = copying.copy_partitions(
        [task.place], scratch, local, lambda _: None, task.place.filesystem()
    )
    note = read_note(local, copy.path)
    if note.paused:  # of the original, which stays as it is
        write_note(local, copy.path, replace(note, paused=False))
    report = _compacted(copy, task, local)
    _check_ledger(task.place, report)
    files = [path for path in copying.files_of(copy.path, local) if not path.endswith(".digest")]
    task.target.upload(files, scratch, task.below)
    return PartitionDone(
        replace(report, directory=task.place.path),
        sum(local.stat(path).size_bytes for path in files if path.endswith(".log")),
        tuple(_checkpoints(copy, local)),
    )


def _compacted(copy: PartitionPlace, task: PartitionTask, local: FileSystem) -> PartitionReport:
    from stratalog.clean.local_engine import LocalEngine

    book = _as_a_copy(task.book, copy.topic_partition.topic)
    options = CompactionOptions(
        Mode.IN_PLACE,
        book.of_broker(),
        keep_active=task.keep_active,
        engine="spark",
        settings_of=book.of,
    )
    done = compact(
        [copy.path],
        options,
        lambda: LocalEngine(local, threads=task.threads),
        local,
        StoppedClock(task.now_ms),
        lambda _: None,
    )
    return done.partitions[0]


def _as_a_copy(book: SettingsBook, topic: str) -> SettingsBook:
    """The settings that the copy is compacted by. Where a topic keeps both copies (LDG-1), the raw
    log is at the source, and the compacted one is what is made here."""
    if not uses_ledger(book.of(topic)):
        return book
    return book.with_overrides({"compaction.mode": "inplace", "cleanup.policy": "compact"})


def _check_ledger(place: Place, report: PartitionReport) -> None:
    """Raise `UsageError` if the source's ledger has what its raw log has lost."""
    ledger = read_manifest(place.filesystem(), place.path).current
    if ledger is not None and ledger.start_offset < report.log_start_offset:
        raise UsageError(
            f"{place.path}: its ledger holds records from {ledger.start_offset} on, its raw log, "
            f"which is read here, only from {report.log_start_offset}: take a snapshot"
        )


def _checkpoints(copy: PartitionPlace, local: FileSystem) -> list[tuple[str, int]]:
    found = []
    for name in copying.CHECKPOINTS:
        entries = read_checkpoint(local, os.path.join(copy.log_dir, name))
        if copy.topic_partition in entries:
            found.append((name, entries[copy.topic_partition]))
    return found


def _named_by_source(error: StratalogError, scratch: str, place: Place) -> StratalogError:
    """The error with the path that the user knows: the scratch directory is gone by then."""
    if isinstance(error, CorruptionError):
        file = None if error.file is None else error.file.replace(scratch, place.log_dir)
        reason = error.reason.replace(scratch, place.log_dir)
        return CorruptionError(reason, file=file, position=error.position)
    return type(error)(str(error).replace(scratch, place.log_dir))
