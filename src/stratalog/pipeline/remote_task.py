"""What a worker does for a compaction into another location: one partition, whole.

    fetch -> a scratch directory on the worker's disk -> compact there, as `compact` does -> upload

Of a topic in ledger mode that is the next copy of it (`remote_ledger`). So a partition's bytes are
those that `stratalog compact --out` leaves, and the worker needs room for what it fetches and what
becomes of it. The driver gets a report of a few hundred bytes.

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
from stratalog.admin.location_ledger import check_mode
from stratalog.admin.location_manifest import PartitionEntry
from stratalog.admin.report import Mode, PartitionReport
from stratalog.base.clock import StoppedClock
from stratalog.base.errors import CorruptionError, StratalogError, UsageError
from stratalog.base.filesystem import FileSystem, LocalFileSystem
from stratalog.clean.engine import Engine
from stratalog.clean.note import read_note, write_note
from stratalog.config.book import SettingsBook
from stratalog.config.settings import Settings
from stratalog.log.checkpoint import read_checkpoint
from stratalog.pipeline.places import Place
from stratalog.pipeline.remote_ledger import LedgerTask, copy_ledger
from stratalog.pipeline.remote_target import Location

_SCRATCH_PREFIX = "stratalog-compact-"


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """One partition of a run, and all that its worker is told. `below`: the generation's directory
    in `target`, and `number` the generation's; `threads` of the worker's machine. `before`: what
    `target` holds of it, in `before_directory`."""

    place: Place
    target: Location
    below: str
    book: SettingsBook
    keep_active: bool
    now_ms: int
    threads: int
    number: int = 1
    before: PartitionEntry | None = None
    before_directory: str = ""

    @property
    def settings(self) -> Settings:
        return self.book.of(self.place.topic_partition.topic)


@dataclass(frozen=True, slots=True)
class PartitionDone:
    """What became of it: a report, or the error. `entry`: what the generation holds of it, None if
    that is what the one before holds; `checkpoints`: the partition's entry of each file that has
    one, unless that follows from the entry's ledger."""

    report: PartitionReport | None
    entry: PartitionEntry | None = None
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
    from stratalog.clean.local_engine import LocalEngine

    local = LocalFileSystem()
    engine = LocalEngine(local, threads=task.threads)
    if uses_ledger(task.settings):
        done = copy_ledger(scratch, _ledger_task(task), engine)
        return PartitionDone(done.report, done.entry)
    check_mode(task.place.filesystem(), task.place, task.target.root, task.before)
    [copy] = copying.copy_partitions(
        [task.place], scratch, local, lambda _: None, task.place.filesystem()
    )
    note = read_note(local, copy.path)
    if note.paused:  # of the original, which stays as it is
        write_note(local, copy.path, replace(note, paused=False))
    report = _compacted(copy, task, local, engine)
    files = [path for path in copying.files_of(copy.path, local) if not path.endswith(".digest")]
    task.target.upload(files, scratch, task.below)
    sizes = [local.stat(path).size_bytes for path in files if path.endswith(".log")]
    entry = PartitionEntry(copy.name, report.log_start_offset, report.log_end_offset, sum(sizes))
    found = tuple(_checkpoints(copy, local))
    return PartitionDone(replace(report, directory=task.place.path), entry, found)


def _ledger_task(task: PartitionTask) -> LedgerTask:
    return LedgerTask(
        task.place,
        task.target,
        task.below,
        task.number,
        task.before,
        task.before_directory,
        task.settings,
        task.now_ms,
    )


def _compacted(
    copy: PartitionPlace, task: PartitionTask, local: FileSystem, engine: Engine
) -> PartitionReport:
    options = CompactionOptions(
        Mode.IN_PLACE,
        task.book.of_broker(),
        keep_active=task.keep_active,
        engine="spark",
        settings_of=task.book.of,
    )
    clock = StoppedClock(task.now_ms)
    done = compact([copy.path], options, lambda: engine, local, clock, lambda _: None)
    return done.partitions[0]


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
