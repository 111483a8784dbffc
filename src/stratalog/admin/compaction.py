"""`compact`: clean partitions in place, into a fresh directory, or not at all (a dry run).

    find ─► lock ─► (copy) ─► run (`compaction_run`): plan, clean, put in place, write down
                      └ topics in ledger mode: the next generation of a location (`location_run`)

Invariants
- I1  A dry run changes nothing on disk; `out` changes nothing but the fresh directory, which is
      removed again if anything fails.
- I2  In place, nothing is changed before the engine has gone through every batch of every job: a
      damaged batch leaves all logs as they were (but for strays of earlier runs and `.lock`). With
      `partial_progress` this holds for each partition by itself.
- I3  After any failure or interrupt each log is as it was or wholly cleaned, without `.part` files.
- I4  The dirty ratio is ignored: whoever asks wants it now. The lag and open transactions are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from stratalog.admin import copying
from stratalog.admin.compaction_ledger import uses_ledger
from stratalog.admin.compaction_plan import CompactionOptions
from stratalog.admin.compaction_run import run
from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.location_ledger import check_mode
from stratalog.admin.location_run import compact_into
from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import Clock
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.engine import Engine, OnProgress, Progress
from stratalog.clean.note import read_note
from stratalog.log.locking import locked

__all__ = ["CompactionOptions", "compact"]


def compact(
    targets: Sequence[str],
    options: CompactionOptions,
    start_engine: Callable[[], Engine],
    filesystem: FileSystem,
    clock: Clock,
    on_progress: OnProgress,
) -> CompactionReport:
    """Compact the partitions in `targets`: partition directories or log directories.

    `start_engine` is called only if there is something to clean. With `partial_progress` what goes
    wrong with a partition is told in its report, and a paused one is passed over.

    Raises `UsageError` (among them `LogLockedError`), `CorruptionError` naming file, position and
    reason, `StorageIOError`.
    """
    is_ledger = uses_ledger(options.settings)
    if options.settings_of is None and not (options.settings.is_compacted or is_ledger):
        raise UsageError("cleanup.policy is without compact: there is nothing to compact")
    if (options.mode is Mode.OUT) != (options.out is not None):
        raise UsageError("a directory to write to goes with mode out, and with that only")
    places = find_partitions(targets, filesystem)
    if options.mode is Mode.IN_PLACE and not options.partial_progress:
        _refuse_paused(places, filesystem)
    with locked(
        (place.log_dir for place in places), filesystem, exclusive=options.mode is Mode.IN_PLACE
    ):
        if options.out is None:
            return run(places, options, start_engine, filesystem, clock, on_progress)

        def copy_plain(chosen: Sequence[PartitionPlace], target: str) -> CompactionReport:
            with _working_copy(chosen, target, filesystem, on_progress) as copies:
                return run(copies, options, start_engine, filesystem, clock, on_progress)

        if any(uses_ledger(options.of(place)) for place in places):
            return compact_into(
                places, options, start_engine, filesystem, clock, on_progress, copy_plain
            )
        for place in places:
            check_mode(filesystem, place, options.out, None)
        return copy_plain(places, os.path.abspath(options.out))


def _refuse_paused(places: Sequence[PartitionPlace], filesystem: FileSystem) -> None:
    for place in places:
        if read_note(filesystem, place.path).paused:
            raise UsageError(
                f"{place.path}: cleaning is paused; `stratalog compaction resume` ends that"
            )


@contextmanager
def _working_copy(
    places: Sequence[PartitionPlace], target: str, filesystem: FileSystem, on_progress: OnProgress
) -> Iterator[list[PartitionPlace]]:
    """A copy of `places` in `target`, durable at the end, gone if anything is raised (I1)."""
    copying.check_fresh(target, places, filesystem)
    was_there = filesystem.exists(target)
    total_bytes = copying.copied_bytes(places, filesystem)
    done_bytes = 0

    def on_copied(size_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += size_bytes
        on_progress(Progress("copy", done_bytes, total_bytes))

    try:
        copies = copying.copy_partitions(places, target, filesystem, on_copied)
        with locked([target], filesystem, exclusive=True):
            yield copies
        copying.fsync_copy(copies, target, filesystem)
    except CorruptionError as error:
        copying.remove_copy(target, was_there=was_there)
        raise _named_by_source(error, target, places) from error
    except UsageError as error:
        copying.remove_copy(target, was_there=was_there)
        message = str(error)
        for place in places:
            message = message.replace(os.path.join(target, place.name), place.path)
        raise type(error)(message) from error
    except BaseException:
        copying.remove_copy(target, was_there=was_there)
        raise


def _named_by_source(
    error: CorruptionError, target: str, places: Sequence[PartitionPlace]
) -> CorruptionError:
    """The error with the file that was copied: the copy is gone when somebody reads it."""
    for place in places:
        copy = os.path.join(target, place.name)
        if error.file is not None and error.file.startswith(copy + os.sep):
            file = place.path + error.file[len(copy) :]
            reason = error.reason.replace(copy, place.path)
            return CorruptionError(reason, file=file, position=error.position)
    return error
