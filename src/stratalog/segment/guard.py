"""What keeps readers of a sealed segment from headers that are not those that were written.

A `Guard` holds each block of a log against the segment's digest once in this process, before the
first of its batches is used. It is loaded on first use; without a digest it lets everything pass.

A block that does not match is damaged, unless the log shows that it is another one: file ids are
used again, so after somebody else (Kafka's cleaner) has replaced a file twice, a digest of ours may
seem to speak of the newest. Such a log is sound by itself, and its batches' checksums are not those
that the digest knows. Then the digest is stale and ignored. Bytes outside the checksums can change
no batch's checksum, so damage to them is never taken for another log.

Invariants
- I1  A block passes only if every header byte in it is what the digest says, or the digest is not
      of this log.
- I2  The table is published as one value and flags only ever go from 0 to 1, so checks need no
      lock; `_lock` guards loading, and the decision that a digest is stale.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.record.kernel.digest import COVERED_BYTES, HEAD_BYTES, sound_blocks
from stratalog.record.layout import CRC, LEGACY_CRC, MAGIC_V2
from stratalog.segment.digest import (
    Digest,
    DigestHead,
    FileSum,
    Int64s,
    load_digest,
    refresh_index_sums,
)
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import FileKind, file_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REASON = "the batch headers from here on are not those that were written"


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """`ends`: where each block ends; `flags`: 1 for each that was found right."""

    head: DigestHead | None
    ends: array[int]
    sizes: Int64s
    sums: Int64s
    flags: bytearray

    @property
    def covered_bytes(self) -> int:
        return self.ends[-1] if self.ends else 0


def _table_of(digest: Digest | None) -> _Table:
    if digest is None:
        return _Table(None, array("q"), np.empty(0, np.int64), np.empty(0, np.int64), bytearray())
    ends = array("q", np.cumsum(digest.sizes).tolist())
    return _Table(digest.head, ends, digest.sizes, digest.sums, bytearray(len(ends)))


class Guard:
    """Belongs to the values of one segment; `log` is the open `.log` file with `file_id`."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        base_offset: int,
        log: LogFile,
        file_id: int,
        digest: Digest | None = None,
    ):
        """`digest`: if it is known already."""
        self._filesystem = filesystem
        self._directory = directory
        self._base_offset = base_offset
        self._log = log
        self._file_id = file_id
        self._lock = threading.Lock()
        self._table = None if digest is None else _table_of(digest)
        self._is_damaged = False

    def load(self) -> None:
        """Read the digest now: the files are about to be renamed or replaced."""
        self._loaded()

    def _loaded(self) -> _Table:
        table = self._table
        if table is not None:
            return table
        with self._lock:
            if self._table is None:
                self._table = _table_of(
                    load_digest(self._filesystem, self._directory, self._base_offset, self._file_id)
                )
            return self._table

    def is_replaced(self) -> bool:
        """Whether another file has the log's name by now: then what lies beside it is the other's.

        An owner's own readers have loaded everything before that (`SegmentIndexes.retire`), those
        of other processes find out here (LOG-12).
        """
        path = os.path.join(self._directory, file_name(self._base_offset, FileKind.LOG))
        try:
            return self._filesystem.stat(path).file_id != self._file_id
        except FileNotFoundError:
            return True

    @property
    def covered_bytes(self) -> int:
        """How much of the log, from its start, is held against a digest."""
        return self._loaded().covered_bytes

    def check(self, position: int, end: int) -> None:
        """Check the blocks that touch [position, end). Raises `CorruptionError`, naming the file
        and the position of the first block that is not what was written."""
        table = self._loaded()
        end = min(end, table.covered_bytes)
        if position >= end:
            return
        first = bisect_right(table.ends, position)
        past = bisect_left(table.ends, end) + 1
        while (block := table.flags.find(0, first, past)) >= 0:
            size = int(table.sizes[block])
            data = self._log.read(table.ends[block] - size, min(size, HEAD_BYTES))
            if not self._check_blocks(table, block, block + 1, data):
                return

    def check_data(self, position: int, data: Buffer) -> None:
        """`check` of what was read from `position`, reading only what `data` does not show.

        Raises `CorruptionError`; everything before its position is right.
        """
        table = self._loaded()
        view = memoryview(data).cast("B")
        end = min(position + len(view), table.covered_bytes)
        if position >= end:
            return
        self.check(position, position + 1)
        # The blocks from `first` to before `past` lie in `data` as a whole.
        first = bisect_right(table.ends, position)
        if (table.ends[first - 1] if first else 0) < position:
            first += 1
        past = bisect_right(table.ends, end)
        if first < past and (first := table.flags.find(0, first, past)) >= 0:
            start = table.ends[first] - int(table.sizes[first])
            if not self._check_blocks(table, first, past, view[start - position :]):
                return
        self.check(end - 1, end)

    def run_end(self, position: int, window_bytes: int) -> int | None:
        """Where a read from `position` should end: the last block's end within `window_bytes`, at
        least that of the block at `position`. None behind what is covered."""
        ends = self._loaded().ends
        block = bisect_right(ends, position)
        if block == len(ends):
            return None
        return ends[max(block, bisect_right(ends, position + window_bytes) - 1)]

    def check_end(self, size_bytes: int) -> None:
        """Whether a log that ends at `size_bytes` ends too early. Raises `CorruptionError`."""
        table = self._loaded()
        if size_bytes < table.covered_bytes:
            reason = f"the log ends here; it was {table.covered_bytes} bytes long"
            self._mismatch(table, size_bytes, reason)

    def index_sum(self, kind: FileKind, log_bytes: int) -> FileSum | None:
        """What an index file of a log of `log_bytes` must be; None: not known."""
        head = self._loaded().head
        known = head is not None and head.covered_bytes == log_bytes
        return head.index_sum(kind) if head is not None and known else None

    def indexes_rebuilt(self) -> None:
        """The index files were written anew: let the digest speak of those."""
        if self._loaded().head is not None:
            refresh_index_sums(self._filesystem, self._directory, self._base_offset)

    # ------------------------------------------------------------ deciding

    def _check_blocks(self, table: _Table, first: int, past: int, data: memoryview) -> bool:
        """Whether the blocks are right; False: the digest is stale. `data` begins with the first.

        Raises `CorruptionError`.
        """
        raw = np.frombuffer(data, np.uint8)
        sound = int(sound_blocks(raw, len(raw), table.sizes[first:past], table.sums[first:past]))
        table.flags[first : first + sound] = b"\1" * sound
        if first + sound == past:
            return True
        block = first + sound
        self._mismatch(table, table.ends[block] - int(table.sizes[block]), _REASON)
        return False

    def _mismatch(self, table: _Table, position: int, reason: str) -> None:
        """Raise `CorruptionError` unless the digest is stale; then forget it."""
        with self._lock:
            if self._table is table:
                if not self._is_damaged and _is_another_log(self._log, table):
                    self._table = _table_of(None)
                else:
                    self._is_damaged = True
            if self._table is not table:
                return
        raise CorruptionError(reason, file=self._log.path, position=position)


def damaged_blocks(log: LogFile, digest: Digest) -> list[tuple[int, int]]:
    """Where (start, end) the blocks lie that are not what was written; none for a stale digest.

    What a log that is too short lacks counts as one more, from the log's end on.
    """
    table = _table_of(digest)
    found = []
    for slot, (end, size) in enumerate(zip(table.ends, table.sizes.tolist(), strict=True)):
        raw = np.frombuffer(log.read(end - size, min(size, HEAD_BYTES)), np.uint8)
        if not sound_blocks(raw, len(raw), table.sizes[slot : slot + 1], table.sums[slot:]):
            found.append((end - size, end))
    size_bytes = log.size_bytes()
    if size_bytes < table.covered_bytes:
        found = [(start, end) for start, end in found if start < size_bytes]
        found.append((size_bytes, table.covered_bytes))
    return [] if found and _is_another_log(log, table) else found


def _is_another_log(log: LogFile, table: _Table) -> bool:
    """Whether a log that does not match its digest is sound, and of other content.

    Sound: whole batches in order to its end, true to their checksums. Other content: the checksums
    are not those that the digest knows; or, if it is shorter, a whole block is another one, and so
    are all that follow it. (A log that lost its end exactly between two batches, and has a damaged
    header in the last whole block besides, would pass for another one.)
    """
    assert table.head is not None
    size_bytes, covered_bytes = log.size_bytes(), table.covered_bytes
    content_crc = block = crc = position = 0
    is_other_block, last_offset = False, -1
    try:
        for batch in log.batches(0, size_bytes):
            header = batch.header
            if header.base_offset <= last_offset or not batch.crc_ok():
                return False
            last_offset = header.last_offset
            position += header.size_bytes
            if position <= covered_bytes:
                crc_at = CRC if header.magic == MAGIC_V2 else LEGACY_CRC
                field = bytes(batch.data[crc_at : crc_at + 4])
                content_crc = google_crc32c.extend(content_crc, field)
            crc = google_crc32c.extend(crc, bytes(batch.data[:COVERED_BYTES]))
            if block < len(table.ends) and position >= table.ends[block]:
                is_same = position == table.ends[block] and crc == table.sums[block]
                if is_same and is_other_block and size_bytes < covered_bytes:
                    return False
                is_other_block |= not is_same
                block, crc = block + 1, 0
    except CorruptionError:
        return False
    if position != size_bytes:
        return False
    return is_other_block if size_bytes < covered_bytes else content_crc != table.head.content_crc
