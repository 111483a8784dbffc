"""What the tests of ledgers share: generations made by hand on a simulated disk."""

from __future__ import annotations

from stratalog.base.filesystem import FileSystem
from stratalog.ledger.ledgers import Ledgers
from stratalog.ledger.manifest import Generation, LedgerSegment, generation_path
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment.names import FileKind, TopicPartition
from stratalog.segment.segment import segment_path
from tests.log.helpers import NOW

Contents = dict[int, str]
"""Offset -> key."""


def write_segment(
    filesystem: FileSystem, partition_dir: str, number: int, base: int, next_offset: int, *at: int
) -> LedgerSegment:
    """A segment with a record of key `k<offset>` at each offset of `at`."""
    directory = generation_path(partition_dir, number)
    content = b"".join(
        build_batch([NewRecord(b"k%d" % offset, b"g%d" % number, NOW)], base_offset=offset)
        for offset in at
    )
    file = filesystem.open(segment_path(directory, base, FileKind.LOG), "create")
    file.pwrite(content, 0)
    file.fsync()
    file.close()
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        filesystem.open(segment_path(directory, base, kind), "create").close()
    filesystem.fsync_directory(directory)
    return LedgerSegment(number, base, next_offset, len(content), 0, 0, NOW)


def make(
    ledgers: Ledgers,
    filesystem: FileSystem,
    key: TopicPartition,
    partition_dir: str,
    horizon: int,
    *,
    retained: int = 2,
    kept: tuple[LedgerSegment, ...] = (),
    start: int = 0,
) -> Generation:
    """A run by hand: `kept` segments of older generations, and a new one from there on."""
    number, _ = ledgers.begin(key)
    base = kept[-1].next_offset if kept else start
    new = write_segment(filesystem, partition_dir, number, base, horizon, base, horizon - 1)
    generation = Generation(
        number, start, horizon, NOW + number, (*kept, new), size_bytes=new.size_bytes
    )
    ledgers.switch(key, generation, retained)
    return generation
