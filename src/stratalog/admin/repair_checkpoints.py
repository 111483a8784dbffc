"""The checkpoints of a log directory, as `log repair` puts them in order: what cannot be read is
kept aside, under another name, and is written anew when the logs are closed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stratalog.admin.mend import Step
from stratalog.admin.oddities import oddity_of, put_aside, read_offsets
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.log.checkpoint import is_sealed
from stratalog.log.log_dir import read_log_dir_checkpoint
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)

MEANINGS = {
    LOG_START_OFFSET_CHECKPOINT: "each log starts with its first segment, so records that were "
    "deleted may be back",
    RECOVERY_POINT_CHECKPOINT: "all logs are scanned when they are opened next",
    HIGH_WATERMARK_CHECKPOINT: "it is written anew when the logs are closed",
    CLEANER_OFFSET_CHECKPOINT: "cleaning begins at the start of each log",
}
"""What it means that a checkpoint is gone."""


def put_checkpoints_aside(disk: FileSystem, log_dir: str, names: Sequence[str]) -> list[Step]:
    """Put those of `names` aside that cannot be read, or that something else stands in place of."""
    steps = []
    for name in sorted(names):
        path = os.path.join(log_dir, name)
        aside = path + ".tmp"
        if disk.is_directory(aside):
            new_name = put_aside(disk, aside)
            steps.append(Step("checkpoint", f"{aside}, a directory, becomes {new_name}"))
        reason = damage_of_checkpoint(disk, log_dir, name)
        if reason is not None:
            new_name = put_aside(disk, path)
            text = f"{path} is unreadable ({reason}) and becomes {new_name}: {MEANINGS[name]}"
            steps.append(Step("checkpoint", text))
    return steps


def damage_of_checkpoint(disk: FileSystem, log_dir: str, name: str) -> str | None:
    """Why a checkpoint cannot be read; None: it can."""
    points = os.path.join(log_dir, RECOVERY_POINT_CHECKPOINT)
    try:
        read_offsets(disk, os.path.join(log_dir, name))
        if oddity_of(disk, points) is None:  # the next call may look into them
            read_log_dir_checkpoint(log_dir, name, disk)
    except CorruptionError as error:
        return error.reason
    return None


def is_ours(disk: FileSystem, log_dir: str) -> bool:
    """Whether a store of ours closed it last; a broker's high watermarks are not to be raised."""
    for name in (LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT):
        path = os.path.join(log_dir, name)
        is_there = disk.exists(path) and oddity_of(disk, path) is None
        if is_there and is_sealed(read_file(disk, path, MAX_CHECKPOINT_BYTES)):
            return True
    return False
