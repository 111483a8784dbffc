"""Whether a log still is the one whose copy lies at a location: its batch at the horizon.

A log that was cut (`log repair --damage cut`) and has grown past the copy's horizon again looks
like one that went on: what was appended below the horizon would never reach the copy. So the copy's
entry keeps the checksum of the last batch that the log had below the horizon. In ledger mode a raw
log is never rewritten, so another batch there, or none, is another log's.

Nothing is told by a log that begins behind the horizon by now, nor by one that was cleaned in place
beyond it, which makes batches anew.
"""

from __future__ import annotations

import os
from itertools import takewhile

from stratalog.admin.directories import PartitionPlace
from stratalog.admin.location_manifest import PartitionEntry
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import FileSystem
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.view import LogView
from stratalog.segment.names import CLEANER_OFFSET_CHECKPOINT


def tail_crc(view: LogView, horizon: int) -> int | None:
    """The checksum of the batch that holds the offset below `horizon`; None: there is no such.

    Raises `CorruptionError`.
    """
    if not view.log_start_offset < horizon <= view.log_end_offset:
        return None
    below = list(takewhile(lambda one: one.base_offset < horizon, view.segments))
    placed = below[-1].find(horizon - 1) if below else None
    if placed is None or placed.header.base_offset >= horizon:
        return None
    return placed.header.crc


def cleaned_below(filesystem: FileSystem, place: PartitionPlace) -> int:
    """The cleaner checkpoint of a log that nobody has opened; 0 without one. Raises
    `StorageIOError`, `CorruptionError`."""
    path = os.path.join(place.log_dir, CLEANER_OFFSET_CHECKPOINT)
    return read_checkpoint(filesystem, path).get(place.topic_partition, 0)


def check_tail(
    path: str, root: str, before: PartitionEntry | None, view: LogView, clean_end: int
) -> None:
    """Of the log at `path`, cleaned in place up to `clean_end`: raise `UsageError` if it is not the
    one whose copy is at `root`; `CorruptionError`. `view`: from the copy's last offset on."""
    if before is None or before.tail_crc is None or before.end_offset <= clean_end:
        return
    if view.log_start_offset >= before.end_offset:
        return
    if tail_crc(view, before.end_offset) != before.tail_crc:
        raise UsageError(
            f"{path}: below offset {before.end_offset}, where its copy at {root} ends, the log has "
            "other records by now: it was cut and has grown again, or is another log; give --out "
            "another place"
        )
