"""What lies in a partition's directory, as the inputs of a plan; nothing on disk is touched.

A non-empty active segment can be treated as if it had been rolled: it then counts as closed, with
an empty active segment behind it. The roll itself happens later, and only if the plan needs it
(`placing`), so that a damaged log and a dry run leave the directory as it was.

Invariants
- I1  The planned state equals that after the roll: same sizes of log and indexes, same times.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from stratalog.admin.directories import PartitionPlace
from stratalog.base.clock import Clock
from stratalog.base.errors import LogChangedError
from stratalog.base.filesystem import FileSystem
from stratalog.clean.plan import PartitionState, SegmentState
from stratalog.clean.policy import CleanableRange
from stratalog.log.checkpoint import checkpoint_entry
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.segment.names import CLEANER_OFFSET_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT

_ATTEMPTS = 20
_PAUSE_MS = 25


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """A partition as planned. `rolls_at`: the base of the active segment that must be made first,
    if the round reaches into the one that is active now."""

    place: PartitionPlace
    state: PartitionState
    rolls_at: int | None

    @property
    def size_bytes(self) -> int:
        """All `.log` files."""
        return sum(segment.size_bytes for segment in self.state.segments)

    @property
    def segment_count(self) -> int:
        """Segments that are there now."""
        return len(self.state.segments) - (self.rolls_at is not None)


def open_to_read(
    place: PartitionPlace,
    settings: LogSettings,
    filesystem: FileSystem,
    clock: Clock,
    *,
    may_be_torn: bool = False,
) -> PartitionLog:
    """The partition's log, read only. While its owner replaces segments this waits for a moment.

    Raises as `PartitionLog.open`.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _open_to_read(place, settings, filesystem, clock, may_be_torn)
        except LogChangedError:
            if attempt + 1 == _ATTEMPTS:
                raise
            clock.sleep_ms(_PAUSE_MS)
    raise AssertionError("unreachable")


def _open_to_read(
    place: PartitionPlace,
    settings: LogSettings,
    filesystem: FileSystem,
    clock: Clock,
    may_be_torn: bool,
) -> PartitionLog:
    starts = os.path.join(place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    return PartitionLog.open(
        place.path,
        settings,
        filesystem,
        clock,
        log_start_offset=checkpoint_entry(filesystem, starts, place.topic_partition),
        read_only=True,
        may_be_torn=may_be_torn,
    )


def read_partition(
    place: PartitionPlace,
    settings: LogSettings,
    filesystem: FileSystem,
    clock: Clock,
    *,
    keep_active: bool,
    checks_digests: bool = True,
) -> ReadPartition:
    """Read what a plan needs. `checks_digests`: see `round.state_of`.

    Raises `CorruptionError`, `StorageIOError`, `UsageError`.
    """
    from stratalog.clean.round import state_of  # with the kernels, which not all of us need

    path = os.path.join(place.log_dir, CLEANER_OFFSET_CHECKPOINT)
    checkpoint = checkpoint_entry(filesystem, path, place.topic_partition)
    with open_to_read(place, settings, filesystem, clock) as log:
        view = log.view
        state = state_of(
            place.name,
            place.path,
            view,
            log.active_producers(),
            checkpoint,
            checks_digests=checks_digests,
        )
    rolls_at = None
    if state.segments[-1].size_bytes > 0 and not keep_active:
        rolls_at = view.log_end_offset
        now_ms = clock.now_ms()
        rolled = SegmentState(rolls_at, 0, 0, 0, now_ms, now_ms)
        state = replace(state, segments=(*state.segments, rolled))
    return ReadPartition(place, state, rolls_at)


def why_nothing(
    partition: ReadPartition, cleanable: CleanableRange, *, min_compaction_lag_ms: int
) -> str:
    """One sentence on why a partition has nothing to clean."""
    state = partition.state
    end = state.segments[-1].base_offset
    if partition.size_bytes == 0:
        return "the log is empty"
    if end == state.segments[0].base_offset:
        return "all of it lies in the active segment, which stays as it is"
    if cleanable.first_dirty >= state.log_end_offset:
        return f"everything up to its end, offset {state.log_end_offset}, was cleaned before"
    if cleanable.first_dirty >= end:
        return (
            f"everything up to offset {cleanable.first_dirty} was cleaned before, and the rest "
            "lies in the active segment, which stays as it is"
        )
    if state.last_stable_offset < end and cleanable.limit_offset == state.last_stable_offset:
        return (
            f"an open transaction, begun at offset {state.last_stable_offset}, holds on to "
            f"everything from the segment at {cleanable.first_uncleanable} on"
        )
    if min_compaction_lag_ms > 0 and cleanable.limit_offset < end:
        return (
            f"the segment at {cleanable.limit_offset} has records younger than "
            f"min.compaction.lag.ms = {min_compaction_lag_ms}"
        )
    return f"there are no records from offset {cleanable.first_dirty} up to {end}"
