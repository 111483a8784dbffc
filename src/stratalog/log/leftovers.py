"""What a crash left among a partition's files, and putting it in order (RCV-5, RCV-6).

    sort_out                names -> segments, snapshots, garbage, what an unfinished swap left
    operations_of_rollback  Kafka's swap that had not come far enough: back to the old content
    intent_of_kafka_swap    Kafka's swap that had: what our own intent record would say
    resolve                 all of it, on disk; the three above are pure

A swap of ours left an intent, which says everything (`swap`). A swap of Kafka's left names only:
as long as a `.cleaned` is there, every `.swap` at or above it and it itself go; once all new files
are `.swap`, they win over everything they cover. The second case is written down as an intent of
ours first, so that a crash during this recovery finds its way, too.

Invariants
- I1  After `resolve` there are final files only, and each group of a swap is old or new.
- I2  Doing it twice, or being cut anywhere and doing it again, ends the same.
- I3  Old segments are given up only for new ones that were read and found sound.

Source: Kafka's LogLoader.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stratalog.base.errors import LogChangedError
from stratalog.base.filesystem import FileSystem
from stratalog.log import swap
from stratalog.log.scanning import LogScan
from stratalog.log.swap import FsyncDirectory, NewSegment, Operation, SwapIntent, Unlink
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import (
    SEGMENT_KINDS,
    STATE_DIRECTORY,
    SWAP_INTENT,
    FileKind,
    FileState,
    ParsedName,
    parse,
)
from stratalog.segment.segment import segment_path

_GARBAGE = (FileState.PART, FileState.TEMPORARY, FileState.DELETED, FileState.OLD_CLEAN)


@dataclass(frozen=True, slots=True)
class Contents:
    """A directory's segment files, sorted out. `garbage` may be removed; `unfinished` names what
    an interrupted swap left."""

    bases: tuple[int, ...]
    snapshots: tuple[int, ...]
    garbage: tuple[str, ...]
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What was done. `finished`: a swap of ours, or one of Kafka's that was carried on; `undone`:
    files of swaps that went back; `removed`: garbage."""

    finished: SwapIntent | None
    undone: tuple[str, ...]
    removed: tuple[str, ...]


def sort_out(names: Iterable[str]) -> Contents:
    """What the files of a directory mean. Names of others are left alone."""
    parsed = _parsed(names)
    final = {name: found for name, found in parsed.items() if found.state is FileState.FINAL}
    bases = {found.base_offset for found in final.values() if found.kind is FileKind.LOG}
    orphans = [
        name
        for name, found in final.items()
        if found.kind is not FileKind.SNAPSHOT and found.base_offset not in bases
    ]
    garbage = [name for name, found in parsed.items() if found.state in _GARBAGE]
    unfinished = [
        name for name, found in parsed.items() if found.state in (FileState.CLEANED, FileState.SWAP)
    ]
    kept = {found.base_offset for found in final.values() if found.kind is FileKind.SNAPSHOT}
    return Contents(
        tuple(sorted(bases)),
        tuple(sorted(kept)),
        # An index may be the first file of a segment whose log is still `.swap`.
        tuple(garbage) if unfinished else (*garbage, *orphans),
        tuple(unfinished),
    )


def refuse_unfinished(filesystem: FileSystem, directory: str, contents: Contents) -> None:
    """Raises `LogChangedError`, naming the file, if a swap is under way or was interrupted."""
    intent = os.path.join(directory, STATE_DIRECTORY, SWAP_INTENT)
    left = [os.path.join(directory, name) for name in contents.unfinished]
    if filesystem.exists(intent):
        left.insert(0, intent)
    if left:
        raise LogChangedError(
            f"{left[0]}: segments are being replaced; try again, or, if their owner has died, run "
            f"`stratalog log repair {directory} --apply`"
        )


def operations_of_rollback(names: Iterable[str]) -> list[Operation]:
    """Give up the swaps of Kafka whose new files are not all `.swap`.

    The `.swap` files go first, and durably: the `.cleaned` that says so must outlive them.
    """
    parsed = _parsed(names)
    cleaned = [name for name, found in parsed.items() if found.state is FileState.CLEANED]
    if not cleaned:
        return []
    smallest = min(parsed[name].base_offset for name in cleaned)
    swaps = [
        name
        for name, found in parsed.items()
        if found.state is FileState.SWAP and found.base_offset >= smallest
    ]
    barrier = [FsyncDirectory()] if swaps else []
    return [*map(Unlink, swaps), *barrier, *map(Unlink, cleaned), FsyncDirectory()]


def intent_of_kafka_swap(names: Iterable[str], end_offsets: Mapping[int, int]) -> SwapIntent | None:
    """What the `.swap` files among `names` are about to do; None without any.

    `end_offsets`: for each `.log.swap`, by base offset, the offset after its last record. Segments
    that begin at or above the lowest of them and below the highest end are old.
    """
    parsed = _parsed(names)
    kinds: dict[int, set[FileKind]] = {}
    for found in parsed.values():
        if found.state is FileState.SWAP and found.kind in SEGMENT_KINDS:
            kinds.setdefault(found.base_offset, set()).add(found.kind)
    if not kinds:
        return None
    start, end = min(end_offsets, default=0), max(end_offsets.values(), default=0)
    old = {
        found.base_offset
        for found in parsed.values()
        if found.state is FileState.FINAL
        and found.kind in SEGMENT_KINDS
        # A new segment whose log is not among the `.swap` files has it in its place already; one
        # without a record covers no offset, but takes the place of the old one of its name.
        and (
            found.base_offset in end_offsets
            or (start <= found.base_offset < end and found.base_offset not in kinds)
        )
    }
    new = tuple(
        NewSegment(base, tuple(kind for kind in SEGMENT_KINDS if kind in kinds[base]))
        for base in sorted(kinds)
    )
    return SwapIntent(tuple(sorted(old)), new)


def resolve(filesystem: FileSystem, directory: str) -> Resolved:
    """Put a partition's directory in order. Only the process that owns it may call this.

    Raises `CorruptionError` for an unreadable intent, or for a `.swap` file that is damaged: then
    nothing was given up for it; `StorageIOError`.
    """
    finished = swap.finish_swap(filesystem, directory)
    names = filesystem.list_directory(directory)
    rollback = operations_of_rollback(names)
    swap.apply(rollback, filesystem, directory)
    undone = tuple(operation.name for operation in rollback if isinstance(operation, Unlink))
    names = [name for name in names if name not in undone]
    intent = intent_of_kafka_swap(names, _ends_of_swaps(filesystem, directory, names))
    if intent is not None:
        swap.carry_out(filesystem, directory, intent)
        finished = intent
    if finished is not None:
        names = filesystem.list_directory(directory)
    garbage = sort_out(names).garbage
    for name in garbage:
        filesystem.unlink(os.path.join(directory, name))
    return Resolved(finished, undone, garbage)


def _ends_of_swaps(
    filesystem: FileSystem, directory: str, names: Collection[str]
) -> dict[int, int]:
    """The offset after the last record of each `.log.swap`. Raises `CorruptionError` (I3)."""
    ends: dict[int, int] = {}
    for found in _parsed(names).values():
        if found.state is not FileState.SWAP or found.kind is not FileKind.LOG:
            continue
        path = segment_path(directory, found.base_offset, FileKind.LOG, FileState.SWAP)
        log = LogFile.open(filesystem, path)
        try:
            scan = LogScan(log, found.base_offset, log.size_bytes())
            for _ in scan:
                pass
            if scan.damage is not None:
                raise scan.damage
            ends[found.base_offset] = scan.next_offset
        finally:
            log.close()
    return ends


def _parsed(names: Iterable[str]) -> dict[str, ParsedName]:
    return {name: found for name in names if (found := parse(name)) is not None}
