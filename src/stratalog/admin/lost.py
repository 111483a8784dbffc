"""Whole files and whole batches that are gone: what no checksum of what is left can show (RCV-7).

    end      the log ends below its recovery point: what was flushed is not there
    start    its first segment begins above its start, or its start lies past its end
    segment  an index, or a digest, speaks of a segment whose `.log` is not there

What a crash or a cleaner explains is no loss: an index without a log at the log's end (a roll that
was cut off), below its start (retention), beside a `.log.deleted`, or inside of the segment before
it (that one took the records over). A snapshot alone proves nothing: it is written at every close.

Invariants
- I1  Only read.
- I2  A directory that Kafka or we closed in order has lost nothing, but for digests that a cleaning
      by Kafka outlived: those are hints, and say so.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from stratalog.admin.directories import PartitionPlace
from stratalog.admin.oddities import read_offsets
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.log.checkpoint import is_sealed
from stratalog.log.leftovers import sort_out
from stratalog.segment.names import (
    CLEAN_SHUTDOWN_FILE,
    INDEX_KINDS,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    STATE_DIRECTORY,
    SWAP_INTENT,
    FileKind,
    FileState,
    parse,
)
from stratalog.segment.segment import segment_path

_DIGEST = ".digest"


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that is gone. `what`: `end`, `start` or `segment`; `base_offset`: of a segment of
    which only a digest is left, else None."""

    what: str
    file: str
    text: str
    digest_base: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What a directory says of a log beside its `.log` files. `point`, `start`: None if their
    checkpoint does not say; `is_exact`: `start` is never behind (Kafka's lags until a clean stop);
    `indexes`, `digests`: base offsets of those without a log."""

    point: int | None
    start: int | None
    is_exact: bool
    indexes: tuple[int, ...]
    digests: tuple[int, ...]


def is_unfinished(filesystem: FileSystem, directory: str) -> bool:
    """Whether a swap was cut off: files of old segments may have lost their log in order."""
    if filesystem.exists(os.path.join(directory, STATE_DIRECTORY, SWAP_INTENT)):
        return True
    return bool(sort_out(filesystem.list_directory(directory)).unfinished)


def look(place: PartitionPlace, filesystem: FileSystem) -> Known:
    """What is known of a log. Call it before the segments are listed: a log in use only grows.

    Raises `StorageIOError`.
    """
    names = filesystem.list_directory(place.path)
    parsed = [found for name in names if (found := parse(name)) is not None]
    there = {found.base_offset for found in parsed if found.kind is FileKind.LOG}
    indexes = {
        found.base_offset
        for found in parsed
        if found.kind in INDEX_KINDS and found.state is FileState.FINAL
    }
    path = os.path.join(place.log_dir, LOG_START_OFFSET_CHECKPOINT)
    is_exact = filesystem.exists(os.path.join(place.log_dir, CLEAN_SHUTDOWN_FILE))
    if not is_exact and filesystem.exists(path):
        stat = filesystem.stat(path)
        is_small = stat.size_bytes <= MAX_CHECKPOINT_BYTES and not filesystem.is_directory(path)
        is_exact = is_small and is_sealed(read_file(filesystem, path, MAX_CHECKPOINT_BYTES))
    return Known(
        _offset(place, filesystem, RECOVERY_POINT_CHECKPOINT),
        _offset(place, filesystem, LOG_START_OFFSET_CHECKPOINT),
        is_exact,
        tuple(sorted(indexes - there)),
        tuple(sorted(_digests(place.path, filesystem) - there - indexes)),
    )


def _offset(place: PartitionPlace, filesystem: FileSystem, name: str) -> int | None:
    try:
        entries = read_offsets(filesystem, os.path.join(place.log_dir, name))
    except CorruptionError:
        return None  # told of with the log directory's files
    return entries.get(place.topic_partition)


def _digests(directory: str, filesystem: FileSystem) -> set[int]:
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    if not filesystem.is_directory(state_directory):
        return set()
    names = filesystem.list_directory(state_directory)
    stems = (name.removesuffix(_DIGEST) for name in names if name.endswith(_DIGEST))
    return {int(stem) for stem in stems if stem.isascii() and stem.isdigit() and len(stem) == 20}


def lost_of(
    known: Known,
    directory: str,
    segments: Sequence[tuple[int, int | None]],
    newest_start: int | None,
) -> tuple[Lost, ...]:
    """What is gone. Pure. `segments`: base offset and the offset after the last record, None if it
    is not known (the segment is damaged); `newest_start`: the log start as it is now."""
    if not segments:
        return ()
    return (
        *_lost_start(known, directory, segments, newest_start),
        *_lost_segments(known, directory, segments),
        *_lost_end(known, directory, segments),
    )


def _lost_start(
    known: Known,
    directory: str,
    segments: Sequence[tuple[int, int | None]],
    newest_start: int | None,
) -> Iterator[Lost]:
    first, end = segments[0][0], segments[-1][1]
    if known.is_exact and newest_start is not None and newest_start < first:
        text = f"the log starts at {newest_start}, and its first segment at {first}"
        yield Lost("start", directory, f"{text}: {_offsets(first - newest_start)} lost")
    if known.start is not None and end is not None and known.start > end:
        text = f"the log starts at {known.start} and ends at {end}"
        yield Lost("past", directory, text)


def _lost_segments(
    known: Known, directory: str, segments: Sequence[tuple[int, int | None]]
) -> Iterator[Lost]:
    bases = [base for base, _ in segments]
    if known.is_exact and known.start is not None:
        lowest = min(known.start, bases[0])
    else:
        lowest = bases[0]
    end = segments[-1][1]
    limit = max(bases[-1] if end is None else end, known.point or 0)
    for base, is_hint in sorted(
        [*((base, False) for base in known.indexes), *((base, True) for base in known.digests)]
    ):
        slot = bisect_left(bases, base)
        before = segments[slot - 1][1] if slot else base
        is_covered = before > base if before is not None else is_hint
        if not lowest <= base < limit or is_covered:
            continue
        path = segment_path(directory, base, FileKind.LOG)
        following = bases[slot] if slot < len(bases) else limit
        text = f"the .log of the segment at {base} is missing"
        if is_hint:
            text += (
                f", only its digest is there: if Kafka has not cleaned this log since, offsets "
                f"{base} to {following - 1} are lost"
            )
        else:
            text += f", its index is there: offsets {base} to {following - 1} are lost"
        yield Lost("segment", path, text, base if is_hint else None)


def _lost_end(
    known: Known, directory: str, segments: Sequence[tuple[int, int | None]]
) -> Iterator[Lost]:
    end = segments[-1][1]
    if known.point is not None and end is not None and end < known.point:
        text = f"the log ends at {end} and was flushed up to {known.point}"
        yield Lost("end", directory, f"{text}: {_offsets(known.point - end)} lost")


def _offsets(count: int) -> str:
    return f"{count} offset is" if count == 1 else f"{count} offsets are"


def without_digests(names: Collection[Lost]) -> list[int]:
    """The base offsets of those that only a digest speaks of."""
    return [lost.digest_base for lost in names if lost.digest_base is not None]
