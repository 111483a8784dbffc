"""The digest of a sealed segment: what its files were, for the parts that no checksum covers.

Bytes 0 to 16 of a batch (base offset, length, leader epoch, magic) lie outside its CRC, and the
index files have no checksum at all. `<partition>/.stratalog/<base>.digest` remembers them:

    digest  := head table
    head    := "SLDG" version:uint32 head-crc:uint32 table-crc:uint32 file-id:uint64
               covered-bytes:uint64 content-crc:uint32 blocks:uint32 file-sum{3}
    file-sum:= size:int64 crc:uint32         of .index, .timeindex, .txnindex; size -1: no file
    table   := (block-bytes:uint32 block-crc:uint32){blocks}

A block is a run of whole batches that ends with the first batch that ends 64 KiB or more behind the
block's start (the last one may be shorter). `block-crc` covers the first 61 bytes of each batch,
all of a smaller one: everything that lookups decide by. `content-crc` covers the batches' CRC
fields. A digest may cover the beginning of a log only: Kafka may have appended to it since.

A digest is written in place and never synced, because a torn or missing one is just built again.
It speaks for the file with its file id only: a file with another id was put there by somebody else.

Invariants
- I1  Blocks are a fold: `DigestState` gives the same ones however the batches are cut into calls.
- I2  Whatever bytes a digest file holds, it is either what was written, or no digest: both halves
      carry a CRC, and sizes are held against the bytes that are there before anything is allocated.
- I3  Nothing here decides that a log is damaged: `guard` does.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import numpy.typing as npt

from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.record.checksum import crc32c
from stratalog.record.kernel.arrays import DAMAGE, OK
from stratalog.record.kernel.digest import (
    BLOCK_BYTES,
    CONTENT_CRC,
    COVERED_BYTES,
    HEAD_BYTES,
    LAST_OFFSET,
    OPEN_BYTES,
    OPEN_CRC,
    fold,
)
from stratalog.record.layout import CRC, LEGACY_CRC, MAGIC, MAGIC_V2
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import (
    INDEX_KINDS,
    STATE_DIRECTORY,
    FileKind,
    FileState,
    digest_name,
    file_name,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

Int64s = npt.NDArray[np.int64]

MAX_DIGEST_BYTES = 1 << 20
"""8 bytes for 64 KiB of log: room for 8 GiB, where Kafka's positions end at 2 GiB."""
_MAGIC = b"SLDG"
_VERSION = 1
_HEAD = struct.Struct(">4sIIIQQII" + "qI" * len(INDEX_KINDS))
_SIGNED_FROM = 12
"""The head's CRC covers the head from here, behind itself."""
_ENTRY = np.dtype([("size", ">u4"), ("sum", ">u4")])
_SCAN_BYTES = 1 << 20
_FEW = 32
"""Up to so many batches are folded one by one, without waking the kernel."""


@dataclass(frozen=True, slots=True)
class FileSum:
    """An index file's size in bytes (-1: there is none) and the CRC-32C of its content."""

    size_bytes: int = -1
    crc: int = 0

    @classmethod
    def of(cls, content: Buffer) -> FileSum:
        return cls(memoryview(content).nbytes, crc32c(content))


NO_FILE = FileSum()


@dataclass(frozen=True, slots=True)
class DigestHead:
    """What a digest says of the files as a whole. `file_id` is the `.log` file's; `index_sums` in
    the order of `INDEX_KINDS`, as they were when the log was `covered_bytes` long."""

    file_id: int
    covered_bytes: int
    content_crc: int
    blocks: int
    table_crc: int
    index_sums: tuple[FileSum, ...]

    def index_sum(self, kind: FileKind) -> FileSum:
        return self.index_sums[INDEX_KINDS.index(kind)]


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """`sizes` and `sums`: bytes and CRC of each block."""

    head: DigestHead
    sizes: Int64s
    sums: Int64s


class DigestState:
    """The fold over a log's batches. Belongs to its one writer; `covered_bytes` so far."""

    def __init__(self, base_offset: int = 0):
        self.covered_bytes = 0
        self._fold = np.array([0, 0, 0, base_offset - 1], np.int64)
        self._sizes = array("q")
        self._sums = array("q")

    @classmethod
    def resumed(cls, digest: Digest, last_offset: int) -> DigestState:
        """The state that made a digest; `last_offset` is that of the last batch it covers."""
        state = cls(last_offset + 1)
        whole = len(digest.sizes)
        if whole > 0 and digest.sizes[-1] < BLOCK_BYTES:
            whole -= 1
            state._fold[OPEN_BYTES] = digest.sizes[-1]
            state._fold[OPEN_CRC] = digest.sums[-1]
        state._fold[CONTENT_CRC] = digest.head.content_crc
        state._sizes = array("q", digest.sizes[:whole].tolist())
        state._sums = array("q", digest.sums[:whole].tolist())
        state.covered_bytes = digest.head.covered_bytes
        return state

    def extend(self, data: Buffer, sizes: Sequence[int]) -> None:
        """Fold in whole batches that lie end to end in `data`; `sizes`: bytes of each.

        They must be sound batches: raises `CorruptionError` for some that are not, and the state is
        of no use then.
        """
        if len(sizes) > _FEW:
            raw = np.frombuffer(memoryview(data), np.uint8)
            if not raw.flags.writeable:
                raw = raw.copy()  # the kernel is compiled for one type of array
            if self.extend_scan(raw, len(raw)) != len(raw):
                raise CorruptionError("a part of a batch")
            return
        view = memoryview(data).cast("B")
        open_bytes, open_crc, content_crc, _ = self._fold.tolist()
        position = 0
        for size in sizes:
            head = bytes(view[position : position + min(size, COVERED_BYTES)])
            crc_at = CRC if head[MAGIC] == MAGIC_V2 else LEGACY_CRC
            open_crc = google_crc32c.extend(open_crc, head)
            content_crc = google_crc32c.extend(content_crc, head[crc_at : crc_at + 4])
            open_bytes += size
            position += size
            if open_bytes >= BLOCK_BYTES:
                self._sizes.append(open_bytes)
                self._sums.append(open_crc)
                open_bytes = open_crc = 0
        # The last offset stays behind: whoever appends has checked the order.
        self._fold[:LAST_OFFSET] = open_bytes, open_crc, content_crc
        self.covered_bytes += position

    def extend_scan(self, raw: npt.NDArray[np.uint8], left_bytes: int) -> int:
        """Fold in the batches that start in `raw`; the bytes up to the start of the next one.

        The last may reach past `raw`: the log goes on for `left_bytes` from the start of `raw`.
        Raises `CorruptionError` (position: from the start of `raw`) for what is no batch.
        """
        count = len(raw) // BLOCK_BYTES + 1
        sizes, sums = np.empty(count, np.int64), np.empty(count, np.int64)
        done = 0
        while done < len(raw):
            blocks, step, error = fold(
                raw[done:], len(raw) - done, left_bytes - done, self._fold, sizes, sums
            )
            self._sizes.extend(sizes[:blocks].tolist())
            self._sums.extend(sums[:blocks].tolist())
            done += int(step)
            self.covered_bytes += int(step)
            if error != OK:
                raise CorruptionError(DAMAGE[int(error)], position=done)
            if blocks < count:
                break
        return done

    def finish(self, file_id: int, index_sums: tuple[FileSum, ...]) -> Digest:
        """The digest of what was folded in so far; the fold may go on afterwards."""
        open_bytes, open_crc, content_crc, _ = self._fold.tolist()
        tail = [(open_bytes, open_crc)] if open_bytes else []
        sizes = np.array([*self._sizes, *(size for size, _ in tail)], np.int64)
        sums = np.array([*self._sums, *(crc for _, crc in tail)], np.int64)
        table_crc = crc32c(_table(sizes, sums))
        head = DigestHead(
            file_id, self.covered_bytes, content_crc, len(sizes), table_crc, index_sums
        )
        return Digest(head, sizes, sums)


def _table(sizes: Int64s, sums: Int64s) -> bytes:
    table = np.empty(len(sizes), _ENTRY)
    table["size"], table["sum"] = sizes, sums
    return table.tobytes()


# ---------------------------------------------------------------- bytes


def encode(digest: Digest) -> bytes:
    """The content of a digest file."""
    head = digest.head
    sums = [field for found in head.index_sums for field in (found.size_bytes, found.crc)]
    fields = (head.table_crc, head.file_id, head.covered_bytes, head.content_crc, head.blocks)
    packed = _HEAD.pack(_MAGIC, _VERSION, 0, *fields, *sums)
    signed = packed[_SIGNED_FROM:]
    return (
        packed[: _SIGNED_FROM - 4]
        + crc32c(signed).to_bytes(4, "big")
        + signed
        + _table(digest.sizes, digest.sums)
    )


def decode_head(data: Buffer) -> DigestHead:
    """The head alone, from at least its bytes. Raises `CorruptionError`."""
    view = memoryview(data).cast("B")
    if len(view) < _HEAD.size:
        raise CorruptionError(f"{len(view)} bytes are no digest")
    magic, version, head_crc, *fields = _HEAD.unpack_from(view)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptionError("no digest of a known version")
    if crc32c(bytes(view[_SIGNED_FROM : _HEAD.size])) != head_crc:
        raise CorruptionError("the digest does not match its checksum")
    table_crc, file_id, covered, content_crc, blocks, *sums = fields
    index_sums = tuple(map(FileSum, sums[::2], sums[1::2]))
    if any(found.size_bytes < -1 for found in index_sums):
        raise CorruptionError("a file of negative size")
    return DigestHead(file_id, covered, content_crc, blocks, table_crc, index_sums)


def decode(data: Buffer) -> Digest:
    """Parse a whole digest file. Raises `CorruptionError` for what `encode` cannot give."""
    head = decode_head(data)
    rest = memoryview(data).cast("B")[_HEAD.size :]
    if len(rest) != head.blocks * _ENTRY.itemsize:
        raise CorruptionError(f"{len(rest)} bytes do not hold {head.blocks} blocks")
    if crc32c(bytes(rest)) != head.table_crc:
        raise CorruptionError("the digest's table does not match its checksum")
    table = np.frombuffer(rest, _ENTRY)
    sizes, sums = table["size"].astype(np.int64), table["sum"].astype(np.int64)
    if (sizes == 0).any() or (sizes[:-1] < BLOCK_BYTES).any():
        raise CorruptionError("a block is too small")
    if int(sizes.sum()) != head.covered_bytes:
        raise CorruptionError("the blocks do not add up to what the digest covers")
    return Digest(head, sizes, sums)


# ---------------------------------------------------------------- files


def digest_path(directory: str, base_offset: int) -> str:
    """The path of a segment's digest; `directory` is the partition's."""
    return os.path.join(directory, STATE_DIRECTORY, digest_name(base_offset))


def load_head(filesystem: FileSystem, directory: str, base_offset: int) -> DigestHead | None:
    """The head of a segment's digest, whatever file it speaks of; None without a readable one."""
    try:
        file = filesystem.open(digest_path(directory, base_offset), "read")
    except (FileNotFoundError, StorageIOError):
        return None
    try:
        buffer = bytearray(_HEAD.size)
        return decode_head(memoryview(buffer)[: file.pread_into(buffer, 0)])
    except (CorruptionError, StorageIOError):
        return None
    finally:
        file.close()


def load_digest(
    filesystem: FileSystem, directory: str, base_offset: int, file_id: int | None = None
) -> Digest | None:
    """The digest of a segment; None if it is missing, unreadable, or of another file.

    `file_id`: of the `.log` file, if it is known. Raises nothing: a digest may always be absent.
    """
    try:
        data = read_file(filesystem, digest_path(directory, base_offset), MAX_DIGEST_BYTES)
        digest = decode(data)
        if file_id is None:
            path = os.path.join(directory, file_name(base_offset, FileKind.LOG))
            file_id = filesystem.stat(path).file_id
    except (FileNotFoundError, StorageIOError, CorruptionError):
        return None
    return digest if digest.head.file_id == file_id else None


def store_digest(filesystem: FileSystem, directory: str, base_offset: int, digest: Digest) -> None:
    """Write a segment's digest, in place and unsynced. Raises `StorageIOError`.

    A log too large for a digest keeps none.
    """
    content = encode(digest)
    if len(content) > MAX_DIGEST_BYTES:
        return
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    if not filesystem.exists(state_directory):
        filesystem.make_directory(state_directory)
    file = filesystem.open(digest_path(directory, base_offset), "create")
    try:
        file.pwrite(content, 0)
    finally:
        file.close()


def remove_digest(filesystem: FileSystem, directory: str, base_offset: int) -> bool:
    """Forget a segment's digest; whether there was one. Whoever truncates, replaces or deletes a
    segment does this first, so that no later file of the same id is held against it."""
    try:
        filesystem.unlink(digest_path(directory, base_offset))
    except FileNotFoundError:
        return False
    return True


def index_sums(
    filesystem: FileSystem, directory: str, base_offset: int, limit_bytes: int = 1 << 30
) -> tuple[FileSum, ...]:
    """What the three index files hold now. Raises `StorageIOError`."""
    found = []
    for kind in INDEX_KINDS:
        try:
            path = os.path.join(directory, file_name(base_offset, kind, FileState.FINAL))
            found.append(FileSum.of(read_file(filesystem, path, limit_bytes)))
        except FileNotFoundError:
            found.append(NO_FILE)
    return tuple(found)


def build_state(log: LogFile, base_offset: int, size_bytes: int) -> DigestState:
    """The fold over the first `size_bytes` of a log, by a scan of its headers.

    Raises `CorruptionError`, naming file and position, if they are not whole batches in order.
    """
    state = DigestState(base_offset)
    position = 0
    window_bytes = _SCAN_BYTES
    while position < size_bytes:
        data = log.read(position, min(window_bytes, size_bytes - position))
        try:
            step = state.extend_scan(np.frombuffer(data, np.uint8), size_bytes - position)
        except CorruptionError as error:
            raise error.located(log.path, position) from None
        if step == 0:
            raise CorruptionError("a part of a batch", file=log.path, position=position)
        # Batches larger than the window: go from header to header.
        window_bytes = HEAD_BYTES if step > 2 * len(data) else _SCAN_BYTES
        position += step
    return state


def build_digest(
    filesystem: FileSystem, directory: str, base_offset: int, log: LogFile, size_bytes: int
) -> Digest:
    """The digest of a segment as its files are now, by a scan of the log's first `size_bytes`.

    `log` must be the file that lies there under its final name, and the index files complete.
    Raises `CorruptionError` if the log does not hold together, `StorageIOError`.
    """
    state = build_state(log, base_offset, size_bytes)
    return finish_digest(filesystem, directory, base_offset, state)


def finish_digest(
    filesystem: FileSystem, directory: str, base_offset: int, state: DigestState
) -> Digest:
    """The digest of a segment whose batches were folded in as they were appended."""
    path = os.path.join(directory, file_name(base_offset, FileKind.LOG))
    file_id = filesystem.stat(path).file_id
    return state.finish(file_id, index_sums(filesystem, directory, base_offset))


def refresh_index_sums(filesystem: FileSystem, directory: str, base_offset: int) -> None:
    """After index files were made anew: let the digest, if there is one, speak of those."""
    digest = load_digest(filesystem, directory, base_offset)
    if digest is not None:
        sums = index_sums(filesystem, directory, base_offset)
        digest = Digest(replace(digest.head, index_sums=sums), digest.sizes, digest.sums)
        store_digest(filesystem, directory, base_offset, digest)


def missing_digests(
    filesystem: FileSystem, directory: str, sealed_bases: Iterable[int]
) -> list[int]:
    """Those of a log's sealed segments that have no digest of all of their present `.log`."""
    missing = []
    for base_offset in sealed_bases:
        path = os.path.join(directory, file_name(base_offset, FileKind.LOG))
        try:
            stat = filesystem.stat(path)
        except FileNotFoundError:
            continue
        head = load_head(filesystem, directory, base_offset)
        known = head is not None and head.file_id == stat.file_id
        # A longer digest than the log is no missing one: it tells of damage.
        if head is None or not known or head.covered_bytes < stat.size_bytes:
            missing.append(base_offset)
    return missing
