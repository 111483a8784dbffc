"""Segments with digests, for the tests of both."""

from __future__ import annotations

import os
from pathlib import Path

from stratalog.base.filesystem import LocalFileSystem
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment import digest as digests
from stratalog.segment import txn_index
from stratalog.segment.digest import Digest
from stratalog.segment.names import FileKind, file_name
from stratalog.segment.segment import Segment, open_segment
from stratalog.segment.txn_index import AbortedTxn

FS = LocalFileSystem()
BASE = 500
INTERVAL = 200
ABORTED = [AbortedTxn(7, BASE, BASE + 4, BASE + 5), AbortedTxn(9, BASE + 1, BASE + 14, BASE + 15)]


def batch(offset: int, *, size: int = 30, timestamp: int = 1000, count: int = 3) -> bytes:
    """Offsets b, b+2, ...: there are gaps, so a changed offset may go unnoticed."""
    value = os.urandom(size) if size > 1000 else b"v" * size
    records = [NewRecord(b"k", value, timestamp + i) for i in range(count)]
    return build_batch(
        records, base_offset=offset, offset_deltas=[2 * i for i in range(count)], leader_epoch=3
    )


def small_batches(count: int = 4) -> list[bytes]:
    return [batch(BASE + 10 * i, timestamp=1000 + 100 * i) for i in range(count)]


def path_of(directory: Path, kind: FileKind = FileKind.LOG) -> Path:
    return directory / file_name(BASE, kind)


def overwrite(path: Path, content: bytes, *, position: int = 0, cut: bool = False) -> None:
    """In place: the file stays the same one."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, content, position)
        if cut:
            os.ftruncate(descriptor, position + len(content))
    finally:
        os.close(descriptor)


def reopened(directory: Path, **options: bool) -> Segment:
    return open_segment(FS, str(directory), BASE, interval_bytes=INTERVAL, **options)  # type: ignore[arg-type]


def write_segment(directory: Path, log: bytes, *, aborted: bool = False) -> Digest:
    """A segment with its indexes and digest on disk."""
    directory.mkdir(exist_ok=True)
    path_of(directory).write_bytes(log)
    if aborted:
        path_of(directory, FileKind.TXN_INDEX).write_bytes(txn_index.encode(ABORTED))
    segment = reopened(directory, use_digest=False, repair=True)
    segment.indexes.retire()
    return write_digest(directory, len(log))


def write_digest(directory: Path, size_bytes: int) -> Digest:
    """The digest of the segment's first `size_bytes`."""
    log = reopened(directory, use_digest=False).log
    made = digests.build_digest(FS, str(directory), BASE, log, size_bytes)
    digests.store_digest(FS, str(directory), BASE, made)
    return made
