"""The note that a partition is quarantined: damage was found where no crash explains it (RCV-7).

`<partition>/.stratalog/quarantine` is one line of JSON, written atomically. As long as it is there
the log opens for reading only, whatever else a restart finds; `stratalog log repair` removes it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from stratalog.base.errors import CorruptionError, StorageIOError, TooManyFilesError
from stratalog.base.filesystem import (
    FileSystem,
    make_durable_directory,
    read_file,
    write_file_atomically,
)
from stratalog.segment.names import STATE_DIRECTORY

QUARANTINE_FILE = "quarantine"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class QuarantineNote:
    """Which file, at which byte (-1: as a whole), the first offset that is not proven, why, when
    (ms)."""

    file: str
    position: int
    offset: int
    reason: str
    found_ms: int

    def __str__(self) -> str:
        where = f"{self.file}: " + (f"position {self.position}: " if self.position >= 0 else "")
        return f"{where}{self.reason}"


def write_quarantine(filesystem: FileSystem, directory: str, note: QuarantineNote) -> None:
    """Quarantine a partition, durably. An earlier note stays: it tells of the first damage."""
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    path = os.path.join(state_directory, QUARANTINE_FILE)
    if filesystem.exists(path):
        return
    make_durable_directory(filesystem, state_directory)
    write_file_atomically(filesystem, path, json.dumps(asdict(note)).encode() + b"\n")


def read_quarantine(filesystem: FileSystem, directory: str) -> QuarantineNote | None:
    """The note, if there is one. One that cannot be read is a note all the same."""
    path = os.path.join(directory, STATE_DIRECTORY, QUARANTINE_FILE)
    try:
        fields = json.loads(read_file(filesystem, path, _MAX_BYTES))
        return QuarantineNote(
            str(fields["file"]),
            int(fields["position"]),
            int(fields["offset"]),
            str(fields["reason"]),
            int(fields["found_ms"]),
        )
    except FileNotFoundError:
        return None
    except TooManyFilesError:
        raise  # it need not be there at all
    except StorageIOError:
        if filesystem.stat(path).size_bytes <= _MAX_BYTES:
            raise
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, CorruptionError):
        pass
    return QuarantineNote(QUARANTINE_FILE, -1, -1, "the note of a quarantine is unreadable", -1)


def remove_quarantine(filesystem: FileSystem, directory: str) -> None:
    """The damage is settled. Durable."""
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    path = os.path.join(state_directory, QUARANTINE_FILE)
    if filesystem.exists(path):
        filesystem.unlink(path)
        filesystem.fsync_directory(state_directory)
