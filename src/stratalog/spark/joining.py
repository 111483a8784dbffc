"""A group that several tasks rewrite: each makes a stretch of it, one puts them together.

    rewrite_stretch   pieces -> decided chunks -> a `.part` file of batches, another of their table
    join_stretches    those, in order -> the files of the new segment, as one task would write them

Batches carry absolute offsets, so what was rewritten side by side simply follows one another, and
the indexes are a fold over the table of batches (`segment/index_builder.py`): what is written does
not depend on where a group was cut.

Invariants
- J1  A stretch that comes out as it went in writes no batches: if all of a single segment do, the
      segment stays (CMP-19), else they are copied from it.
- J2  Joining changes no stretch's files, so it may be done twice; who asked for it removes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import File, FileSystem
from stratalog.clean.chunk import Int64s, Scratch
from stratalog.clean.decide import DecideContext, decide_chunk
from stratalog.clean.job import CleanedGroup, SourceSegment, Volume
from stratalog.clean.rewrite import GroupOutput, copy_bytes, earlier, may_stay
from stratalog.segment.names import FileKind, part_name
from stratalog.spark.cutting import Piece

_COLUMNS = 4
_ROW_BYTES = 8 * _COLUMNS
_TABLE_ROWS = 32 << 10
"""Rows of a table that are read at a time: 1 MiB."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What came of one. `volumes`: (base offset of the source, what it gave); `size_bytes` of the
    new batches; `log`, `table`: names of `.part` files, "" where there is none: the log's if
    nothing was changed, both in a dry run."""

    pieces: tuple[Piece, ...]
    volumes: tuple[tuple[int, Volume], ...]
    next_expiry_ms: int | None
    size_bytes: int
    unchanged: bool
    log: str = ""
    table: str = ""

    @property
    def files(self) -> list[str]:
        """The names of its files."""
        return [name for name in (self.log, self.table) if name]


class _Writer:
    """The two files of a stretch."""

    def __init__(self, filesystem: FileSystem, directory: str, names: tuple[str, str]):
        self._filesystem = filesystem
        self._directory = directory
        self.names = names
        self.log: File | None = None
        self._table = filesystem.open(os.path.join(directory, names[1]), "create")
        self._table_bytes = 0

    def create_log(self) -> File:
        self.log = self._filesystem.open(os.path.join(self._directory, self.names[0]), "create")
        return self.log

    def add(self, written: Int64s) -> None:
        if len(written) == 0:
            return
        rows = np.ascontiguousarray(written, np.int64)
        self._table.pwrite(rows.view(np.uint8), self._table_bytes)
        self._table_bytes += rows.nbytes

    def close(self) -> None:
        self._table.close()
        if self.log is not None:
            self.log.close()


def rewrite_stretch(
    filesystem: FileSystem,
    context: DecideContext,
    group: Sequence[SourceSegment],
    pieces: Sequence[Piece],
    *,
    tag: str,
    attempt: int,
    writes: bool,
) -> Stretch:
    """Decide the chunks of `pieces` and write what stays. Raises `CorruptionError`."""
    unchanged = may_stay(context, group)
    writer = None
    if writes:
        first_offset = pieces[0].first_offset
        kinds = (FileKind.LOG, FileKind.OFFSET_INDEX)
        log, table = (part_name(first_offset, kind, tag, attempt) for kind in kinds)
        writer = _Writer(filesystem, context.job.directory, (log, table))
    try:
        return _rewrite(filesystem, context, pieces, writer, unchanged)
    finally:
        if writer is not None:
            writer.close()


def _rewrite(
    filesystem: FileSystem,
    context: DecideContext,
    pieces: Sequence[Piece],
    writer: _Writer | None,
    unchanged: bool,
) -> Stretch:
    scratch = Scratch()
    volumes: list[tuple[int, Volume]] = []
    expiry_ms: int | None = None
    size_bytes = 0
    for piece in pieces:
        volume = Volume(bytes_before=piece.size_bytes)
        reader = piece.reader(filesystem, context.job)
        try:
            while (chunk := reader.take(scratch)) is not None:
                decided = decide_chunk(chunk, context, piece.segment, scratch)
                volume += Volume(
                    decided.records_before,
                    decided.records_after,
                    bytes_after=len(decided.out),
                    drops=decided.drops,
                    dropped_bytes=decided.dropped_bytes,
                    markers_after=decided.markers_after,
                )
                expiry_ms = earlier(expiry_ms, decided.next_expiry_ms)
                was_unchanged, unchanged = unchanged, unchanged and decided.unchanged
                if writer is not None:
                    writer.add(decided.written + np.array([size_bytes, 0, 0, 0]))
                    if not unchanged and writer.log is None:
                        log = writer.create_log()
                        if was_unchanged:
                            start = pieces[0].start
                            end = start + size_bytes
                            copy_bytes(filesystem, chunk.path, start, end, log.pwrite, 0)
                    if writer.log is not None and len(decided.out) > 0:
                        writer.log.pwrite(decided.out, size_bytes)
                size_bytes += len(decided.out)
        finally:
            reader.close()
        volumes.append((piece.segment.base_offset, volume))
    log_name, table_name = ("", "") if writer is None else writer.names
    return Stretch(
        tuple(pieces),
        tuple(volumes),
        expiry_ms,
        size_bytes,
        unchanged,
        log_name if writer is not None and writer.log is not None else "",
        table_name,
    )


def join_stretches(
    filesystem: FileSystem,
    context: DecideContext,
    group: Sequence[SourceSegment],
    stretches: Sequence[Stretch],
    *,
    tag: str,
    attempt: int,
    writes: bool,
) -> CleanedGroup:
    """The group's outcome; `stretches` in file order. With `writes` its files are on the disk.

    `context` need not hold what became of keys. Raises `CorruptionError` if a file is not as it was
    left.
    """
    unchanged = all(stretch.unchanged for stretch in stretches)
    volumes = {segment.base_offset: Volume() for segment in group}
    expiry_ms: int | None = None
    for stretch in stretches:
        expiry_ms = earlier(expiry_ms, stretch.next_expiry_ms)
        for base_offset, volume in stretch.volumes:
            volumes[base_offset] += volume
    parts: tuple[tuple[str, str], ...] = ()
    if writes and not unchanged:
        output = GroupOutput(filesystem, context, group, tag, attempt)
        try:
            output.create()
            position = 0
            for stretch in stretches:
                _append(filesystem, context.job.directory, output, stretch, position)
                position += stretch.size_bytes
            parts = output.finish()
        finally:
            output.close()
    return CleanedGroup(
        tuple(segment.base_offset for segment in group),
        group[-1].modified_ms,
        sum(volumes.values(), Volume()),
        unchanged,
        parts,
        tuple(volumes.values()),
        expiry_ms,
    )


def _append(
    filesystem: FileSystem, directory: str, output: GroupOutput, stretch: Stretch, position: int
) -> None:
    if stretch.log:
        path, start = os.path.join(directory, stretch.log), 0
    else:  # nothing was changed
        piece = stretch.pieces[0]
        path = piece.segment.file_path(directory)
        start = piece.start
    end = start + stretch.size_bytes
    copy_bytes(filesystem, path, start, end, output.pwrite, position)
    table = filesystem.open(os.path.join(directory, stretch.table), "read")
    try:
        at, size_bytes = 0, table.size_bytes()
        while at < size_bytes:
            rows = np.empty((min(_TABLE_ROWS, (size_bytes - at) // _ROW_BYTES), _COLUMNS), np.int64)
            if rows.size == 0 or table.pread_into(rows.view(np.uint8), at) < rows.nbytes:
                raise CorruptionError("file ends early", file=table.path, position=at)
            output.fold(rows, position)
            at += rows.nbytes
    finally:
        table.close()
