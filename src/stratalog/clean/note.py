"""What the cleaner remembers of a partition from one process to the next.

`<partition>/.stratalog/cleaner-note` is a line of JSON and a line of its CRC-32C, replaced
atomically. It says until when nothing expires, whether somebody has paused the partition, and
whether cleaning it has failed.

The expiry saves a scan (CMP-9). It belongs to the cleaner checkpoint that it was written for: a
round writes the note after the swap and before the checkpoint, so that a crash in between leaves
the old expiry, which asks for one round too many and never for one too few.

Invariants
- I1  An expiry whose checkpoint is not the log's is not known: `expiry` answers UNKNOWN. A round by
      `tombstone.horizon=segment` leaves a note without a checkpoint: it has looked at no deadline,
      and whoever goes by batches again has to.
- I2  A note that cannot be read says nothing: no pause, no failure, an unknown expiry.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from typing import Final

from stratalog.base.errors import CorruptionError, StorageIOError, TooManyFilesError
from stratalog.base.filesystem import (
    FileSystem,
    make_durable_directory,
    read_file,
    write_file_atomically,
)
from stratalog.record.checksum import crc32c
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import STATE_DIRECTORY

NOTE_FILE = "cleaner-note"
_VERSION = 1
_MAX_BYTES = 1 << 16
_MAX_CAUSE = 1000
UNKNOWN: Final = -1
"""An expiry that has to be looked for in the log."""

_LOG = logging.getLogger("stratalog.clean")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why cleaning failed, how often in a row, when last, and when it is tried again (ms)."""

    cause: str
    tries: int
    failed_ms: int
    retry_at_ms: int

    def __post_init__(self) -> None:
        if self.tries < 1 or not 0 <= self.retry_at_ms <= INT64_MAX:
            raise ValueError("impossible failure")


@dataclass(frozen=True, slots=True)
class Note:
    """`checkpoint`: the cleaner checkpoint that `next_expiry_ms` goes with (None: nothing is known
    of it); `next_expiry_ms` None: nothing expires."""

    checkpoint: int | None = None
    next_expiry_ms: int | None = None
    paused: bool = False
    failure: Failure | None = None

    def expiry(self, checkpoint: int | None, *, by_segment: bool) -> int | None:
        """When the first tombstone or marker below `checkpoint` may go; UNKNOWN, or None: none.

        `by_segment`: the topic's `tombstone.horizon` is `segment`.
        """
        if checkpoint is None or by_segment:
            return None  # what was never cleaned has no deadlines; by segment, batches have none
        return self.next_expiry_ms if checkpoint == self.checkpoint else UNKNOWN

    def after_round(self, end_offset: int, next_expiry_ms: int | None) -> Note:
        """The note once all below `end_offset` is cleaned; `next_expiry_ms` may be UNKNOWN."""
        if next_expiry_ms == UNKNOWN:
            return replace(self, checkpoint=None, next_expiry_ms=None, failure=None)
        return replace(self, checkpoint=end_offset, next_expiry_ms=next_expiry_ms, failure=None)

    def waits(self, now_ms: int) -> bool:
        """Whether the back-off after a failure is not over yet (CLN-7)."""
        return self.failure is not None and now_ms < self.failure.retry_at_ms


def read_note(filesystem: FileSystem, directory: str) -> Note:
    """The note of the partition in `directory`; without one, or with one that is damaged, an empty
    one. Raises `StorageIOError`."""
    path = os.path.join(directory, STATE_DIRECTORY, NOTE_FILE)
    try:
        return decode(read_file(filesystem, path, _MAX_BYTES))
    except FileNotFoundError:
        return Note()
    except TooManyFilesError:
        raise  # it need not be there at all
    except StorageIOError:
        if filesystem.stat(path).size_bytes <= _MAX_BYTES:
            raise
        return Note()  # of that size it is none of ours
    except CorruptionError as error:
        _LOG.warning("%s: %s; it is passed over", path, error.reason)
        return Note()


def write_note(filesystem: FileSystem, directory: str, note: Note) -> None:
    """Replace the note, durably. Raises `StorageIOError`."""
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    make_durable_directory(filesystem, state_directory)
    write_file_atomically(filesystem, os.path.join(state_directory, NOTE_FILE), encode(note))


def encode(note: Note) -> bytes:
    fields = {"version": _VERSION, **asdict(note)}
    if note.failure is not None:
        fields["failure"]["cause"] = note.failure.cause[:_MAX_CAUSE]
    line = json.dumps(fields).encode() + b"\n"
    return line + b"%08x\n" % crc32c(line)


def decode(content: bytes) -> Note:
    """Raises `CorruptionError`."""
    line, _, rest = content.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line + b"\n"):
        raise CorruptionError("cleaner note does not match its checksum")
    try:
        fields = json.loads(line)
        if fields["version"] != _VERSION:
            raise CorruptionError(f"cleaner note of version {fields['version']}")
        failure = fields["failure"]
        return Note(
            _integer(fields["checkpoint"]),
            _integer(fields["next_expiry_ms"]),
            bool(fields["paused"]),
            None
            if failure is None
            else Failure(
                str(failure["cause"]),
                int(failure["tries"]),
                int(failure["failed_ms"]),
                int(failure["retry_at_ms"]),
            ),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptionError(f"cleaner note is unreadable: {error}") from error


def _integer(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError(f"{value!r} is no offset or time")
    return value
