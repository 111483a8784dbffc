"""How the last run of a partition's ledger ended: `<partition>/.stratalog/ledgers/status`.

Written when a run begins and when it ends, durably, so that a run that a crash ended is told as
what it is: failed, "interrupted". Whether it had switched the manifest before, its number says.

Source: LDG-4.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from stratalog.base.errors import CorruptionError, StorageIOError, TooManyFilesError
from stratalog.base.filesystem import (
    FileSystem,
    make_durable_directory,
    read_file,
    write_file_atomically,
)
from stratalog.ledger.manifest import Manifest, ledgers_path
from stratalog.record.checksum import crc32c

STATUS_FILE = "status"
INTERRUPTED = "interrupted: the process ended before the run did"
_MAX_BYTES = 1 << 16
_MAX_CAUSE = 1000
_LOG = logging.getLogger("stratalog.ledger")


class RunState(Enum):
    """What came of the last run."""

    NEVER = "never run"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The last run. `number`: the generation that it makes or made; times in ms since 1970.
    `cause`: why it failed.
    """

    state: RunState = RunState.NEVER
    number: int = 0
    trigger: str = ""
    engine: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    horizon: int = 0
    cause: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}

    def ended(self, now_ms: int, cause: str = "") -> RunStatus:
        """The run is over: it failed if there is a cause."""
        state = RunState.FAILED if cause else RunState.SUCCEEDED
        return replace(self, state=state, ended_ms=now_ms, cause=cause[:_MAX_CAUSE])

    def after_restart(self, manifest: Manifest) -> RunStatus:
        """What it is once the process that wrote it is gone."""
        if self.state is not RunState.RUNNING:
            return self
        made = manifest.find(self.number)
        if made is not None:
            return replace(self.ended(made.created_ms), horizon=made.horizon, engine=made.engine)
        return self.ended(self.started_ms, INTERRUPTED)


def read_status(filesystem: FileSystem, partition_dir: str) -> RunStatus:
    """The status as it was written; one that is damaged says nothing. Raises `StorageIOError`."""
    path = os.path.join(ledgers_path(partition_dir), STATUS_FILE)
    try:
        return decode(read_file(filesystem, path, _MAX_BYTES))
    except FileNotFoundError:
        return RunStatus()
    except TooManyFilesError:
        raise  # it need not be there at all
    except StorageIOError:
        if filesystem.stat(path).size_bytes <= _MAX_BYTES:
            raise
        return RunStatus()  # of that size it is none of ours
    except CorruptionError as error:
        _LOG.warning("%s: %s; it is passed over", path, error.reason)
        return RunStatus()


def write_status(filesystem: FileSystem, partition_dir: str, status: RunStatus) -> None:
    """Replace the status, durably. Raises `StorageIOError`."""
    directory = ledgers_path(partition_dir)
    make_durable_directory(filesystem, directory)
    write_file_atomically(filesystem, os.path.join(directory, STATUS_FILE), encode(status))


def encode(status: RunStatus) -> bytes:
    line = json.dumps(status.as_json()).encode() + b"\n"
    return line + b"%08x\n" % crc32c(line)


def decode(content: bytes) -> RunStatus:
    """Raises `CorruptionError`."""
    line, _, rest = content.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line + b"\n"):
        raise CorruptionError("the ledger's status does not match its checksum")
    try:
        fields = json.loads(line)
        texts = {name: fields[name] for name in ("trigger", "engine", "cause")}
        numbers = {name: fields[name] for name in ("number", "started_ms", "ended_ms", "horizon")}
        state = RunState(fields["state"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(f"the ledger's status is unreadable: {error}") from error
    is_sound = all(isinstance(text, str) for text in texts.values()) and all(
        type(number) is int and number >= 0 for number in numbers.values()
    )
    if not is_sound:
        raise CorruptionError("the ledger's status holds impossible values")
    return RunStatus(state, **texts, **numbers)
