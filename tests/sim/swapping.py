"""New segments for old ones, as a cleaner leaves them: what stays is chosen here, not by an engine.

replacement = write_parts(disk, log, bases, kept)     `.part` files, durable; then `swap.swap`
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.base.filesystem import FileSystem
from stratalog.log.partition_log import PartitionLog
from stratalog.log.swap import Replacement, SegmentParts
from stratalog.record.batch import batches
from stratalog.segment import index_builder, txn_index
from stratalog.segment.index_builder import IndexState
from stratalog.segment.index_files import columns
from stratalog.segment.names import FileKind, FileState, part_name
from stratalog.segment.segment import Segment, open_segment
from stratalog.segment.txn_index import AbortedTxn
from tests.sim.logs import NO_PRODUCER, Sent


@dataclass(frozen=True)
class Group:
    """`old`: the bases that go; `kept`: the batches of each new segment, by its base."""

    old: tuple[int, ...]
    end: int
    kept: dict[int, tuple[Sent, ...]]


def group_of(
    bases: Sequence[int], sent: Sequence[Sent], first: int, last: int, count: int
) -> Group:
    """The sealed segments from slot `first` to `last` become `count`: every second batch of nobody
    in particular goes; those of producers, and markers, stay."""
    old, end = tuple(bases[first : last + 1]), bases[last + 1]
    inside = [batch for batch in sent if old[0] <= batch.first < end]
    kept = [
        batch
        for place, batch in enumerate(inside)
        if batch.producer_id != NO_PRODUCER or place % 2 == 1
    ]
    split = kept[len(kept) // 2 :] if count > 1 else []
    front = kept[: len(kept) - len(split)]
    new = {old[0]: tuple(front)}
    if split:
        new[split[0].first] = tuple(split)
    return Group(old, end, new)


def swapped(sent: Sequence[Sent], group: Group) -> tuple[Sent, ...]:
    """All batches of a log after the swap."""
    kept = {batch for batches_ in group.kept.values() for batch in batches_}
    return tuple(
        batch for batch in sent if batch in kept or not group.old[0] <= batch.first < group.end
    )


def write_parts(
    filesystem: FileSystem, log: PartitionLog, group: Group, interval_bytes: int
) -> Replacement:
    """Write the new segments aside, durably."""
    new = []
    for base, contents in contents_of(log, group, interval_bytes).items():
        parts = {kind: part_name(base, kind, "test", 0) for kind in contents}
        for kind, content in contents.items():
            file = filesystem.open(os.path.join(log.path, parts[kind]), "create")
            file.pwrite(content, 0)
            file.fsync()
            file.close()
        new.append(SegmentParts(base, parts))
    return Replacement(group.old, tuple(new))


def contents_of(
    log: PartitionLog, group: Group, interval_bytes: int
) -> dict[int, dict[FileKind, bytes]]:
    """The files of the new segments, by base, ascending."""
    aborted = [
        entry
        for segment in log.segments
        if segment.base_offset in group.old
        for entry in segment.aborted
    ]
    found = {}
    bases = sorted(group.kept)
    for base, following in zip(bases, [*bases[1:], group.end], strict=True):
        inside = [entry for entry in aborted if base <= entry.last_offset < following]
        found[base] = _contents(base, group.kept[base], inside, interval_bytes)
    return found


def _contents(
    base: int, kept: Sequence[Sent], aborted: Sequence[AbortedTxn], interval_bytes: int
) -> dict[FileKind, bytes]:
    log = b"".join(batch.data for batch in kept)
    rows = [
        (batch.position, len(batch.data), batch.header.last_offset, batch.header.max_timestamp)
        for batch in batches(log)
    ]
    state, entries = index_builder.extend(IndexState(base, interval_bytes), *columns(rows))
    _, closing = index_builder.finish(state)
    offsets, times = entries.encode(base)
    contents = {
        FileKind.LOG: log,
        FileKind.OFFSET_INDEX: offsets,
        FileKind.TIME_INDEX: times + closing.encode(base)[1],
    }
    if aborted:
        contents[FileKind.TXN_INDEX] = txn_index.encode(aborted)
    return contents


def swap_files(filesystem: FileSystem, log: PartitionLog, group: Group) -> list[Segment]:
    """The new segments while their files are `.swap`, for readers."""
    return [
        open_segment(filesystem, log.path, base, state=FileState.SWAP)
        for base in sorted(group.kept)
    ]
