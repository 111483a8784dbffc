"""Pauses and retries in directories that no process has open.

They are notes (`clean/note.py`), which the service obeys when it opens the log.

Invariants
- I1  A note is changed only under the lock of its log directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from stratalog.admin.directories import find_partitions
from stratalog.base.filesystem import FileSystem
from stratalog.clean.note import Note, read_note, write_note
from stratalog.log.locking import locked


@dataclass(frozen=True, slots=True)
class NoteChange:
    """A partition's note after a command; `changed`: whether it was another before."""

    partition: str
    directory: str
    changed: bool
    paused: bool
    is_failing: bool


def pause(targets: Sequence[str], filesystem: FileSystem) -> tuple[NoteChange, ...]:
    """No cleaning of these partitions, until `resume`. Raises `UsageError`, among them
    `LogLockedError`; `StorageIOError`."""
    return _change(targets, filesystem, lambda note: replace(note, paused=True))


def resume(targets: Sequence[str], filesystem: FileSystem) -> tuple[NoteChange, ...]:
    """End a `pause`. Raises as it does."""
    return _change(targets, filesystem, lambda note: replace(note, paused=False))


def retry(targets: Sequence[str], filesystem: FileSystem) -> tuple[NoteChange, ...]:
    """Let partitions be cleaned again that wait after a failure (CLN-7). Raises as `pause`."""
    return _change(targets, filesystem, lambda note: replace(note, failure=None))


def _change(
    targets: Sequence[str], filesystem: FileSystem, change: Callable[[Note], Note]
) -> tuple[NoteChange, ...]:
    places = find_partitions(targets, filesystem)
    found = []
    with locked((place.log_dir for place in places), filesystem, exclusive=True):
        for place in places:
            before = read_note(filesystem, place.path)
            note = change(before)
            if note != before:
                write_note(filesystem, place.path, note)
            found.append(
                NoteChange(
                    place.name, place.path, note != before, note.paused, note.failure is not None
                )
            )
    return tuple(found)


def changes_json(changes: Sequence[NoteChange]) -> dict[str, Any]:
    return {"ok": True, "partitions": [asdict(change) for change in changes]}
