"""A segment's files against its digest: what no other check can see.

A missing digest is no problem, and a stale one (of a file that somebody replaced) is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stratalog.admin.index_checks import BatchTable
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.segment.digest import index_sums, load_digest
from stratalog.segment.guard import damaged_blocks
from stratalog.segment.log_file import LogFile
from stratalog.segment.names import INDEX_KINDS, FileKind
from stratalog.segment.segment import segment_path


def check_digest(
    filesystem: FileSystem, directory: str, base_offset: int, rows: BatchTable
) -> Iterator[tuple[FileKind, CorruptionError]]:
    """The problems that only the digest shows, by file; `rows`: where the log is known to be
    damaged already. The place of a problem in the log becomes doubtful, too.
    """
    digest = load_digest(filesystem, directory, base_offset)
    if digest is None:
        return
    log = LogFile.open(filesystem, segment_path(directory, base_offset, FileKind.LOG))
    try:
        size_bytes = log.size_bytes()
        blocks = damaged_blocks(log, digest)
    finally:
        log.close()
    starts, ends = np.array(blocks, np.int64).reshape(len(blocks), 2).T
    for (start, end), is_news in zip(blocks, rows.certain(starts, ends).tolist(), strict=True):
        if not is_news:
            continue
        rows.doubt(start, end)
        if start == size_bytes:
            reason = f"the log ends here; it was {end} bytes long"
        else:
            reason = f"a batch header from here to {end} is not the one that was written"
        yield FileKind.LOG, CorruptionError(reason, position=start)
    if blocks or digest.head.covered_bytes != size_bytes:
        return
    found = index_sums(filesystem, directory, base_offset)
    for kind, known, now in zip(INDEX_KINDS, digest.head.index_sums, found, strict=True):
        if known != now and max(known.size_bytes, now.size_bytes) > 0:
            yield kind, CorruptionError("not what was written; it is made anew when it is read")
