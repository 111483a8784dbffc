"""The history's entry of a run that ended with its process: written by the next one, once (CLN-9).

A round writes its entry when it ends, so of one that a crash ended there is none; the status of its
ledger says "running" (`ledger.status`), which the next start settles, and tells here. Rounds in
place leave no such word: what a crash leaves of them is undone or finished without a trace of when
they began.

Invariants
- I1  The entry is there, durably, before the status is settled, and is not written again after a
      crash between the two.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.base.filesystem import FileSystem
from stratalog.clean.history import KEPT, Entry, append_history, read_history
from stratalog.ledger.manifest import Generation
from stratalog.ledger.status import RunStatus


def note_ended(
    filesystem: FileSystem,
    partition_dir: str,
    status: RunStatus,
    made: Generation | None,
    kept: int = KEPT,
) -> None:
    """Add the entry of a run, unless it is the last one there. `status`: as it was settled; `made`:
    the generation, if it came to count. Raises `StorageIOError`."""
    entry = ended_entry(status, made)
    if entry not in read_history(filesystem, partition_dir, 1):
        append_history(filesystem, partition_dir, entry, kept, syncs=True)


def ended_entry(status: RunStatus, made: Generation | None) -> Entry:
    """What is known of such a run."""
    entry = Entry(
        status.started_ms,
        max(status.ended_ms - status.started_ms, 0),
        status.trigger,
        "failed",
        engine=status.engine or "local",
        cause=status.cause,
        end_offset=status.horizon,
        mode="ledger",
    )
    if made is None:
        return entry
    return replace(
        entry,
        result="cleaned",
        duration_ms=made.duration_ms,
        segments_after=len(made.segments),
        bytes_after=made.size_bytes,
        records_after=made.records,
        generation=made.number,
    )
