"""Where a round ends when its map is full (CMP-5): at a batch's end, or inside one.

Kafka maps record after record. The map is full when the next mappable record comes; the round then
ends after the last record that was mapped, or after the last batch before the one that holds the
next, whichever is later; a segment that was finished counts up to the next one's base offset.

`last_mapped`, the first offset of the last key that fitted, is all one needs to know: the local
engine learns it while it maps, the Spark engine as the n-th smallest first offset of all keys.
"""

from __future__ import annotations

import numpy as np

from stratalog.base.filesystem import FileSystem
from stratalog.clean.chunk import NO_CRC, Chunk, ChunkReader, Scratch, scan_chunk
from stratalog.clean.index import IndexContext, index_chunk
from stratalog.clean.job import CleaningJob, CleanSpec, Order
from stratalog.clean.offset_map import KeyRows
from stratalog.segment.names import MAX_OFFSET


def key_limit(spec: CleanSpec) -> int | None:
    """How many keys a round may map; None: any number.

    With an order of versions every round maps the whole log (CMP-17). A round that ended sooner
    would have cleaned nothing for good, and the next one would begin at the log's start again: so
    the limit of the spec does not hold, only its memory, hash range by hash range (CMP-7).
    """
    return spec.max_keys if spec.order is Order.OFFSET else None


def find_round_end(
    job: CleaningJob, last_mapped: int, filesystem: FileSystem, scratch: Scratch
) -> int:
    """The end offset of a round whose map was filled by the record at `last_mapped`.

    `first_uncleanable` if no mappable record follows: then the map never stopped anything.
    """
    context = IndexContext.of(job)
    for segment in job.dirty_segments:
        if segment.next_offset <= last_mapped:
            continue
        reader = ChunkReader.of(filesystem, job.directory, segment, job.spec)
        try:
            before_chunk = segment.base_offset - 1
            while (chunk := reader.take(scratch)) is not None:
                following = _first_after(chunk, context, last_mapped, scratch)
                table = scan_chunk(chunk, job.spec, NO_CRC, scratch)
                if following is not None:
                    finished = table["last_offset"][table["last_offset"] < following]
                    earlier = int(finished[-1]) if len(finished) else before_chunk
                    return max(last_mapped, earlier) + 1
                before_chunk = int(table["last_offset"][-1])
        finally:
            reader.close()
    return job.first_uncleanable


def _first_after(
    chunk: Chunk, context: IndexContext, last_mapped: int, scratch: Scratch
) -> int | None:
    """The offset of the first mappable record of the chunk past `last_mapped`."""
    found: list[int] = []

    def visit(rows: KeyRows) -> None:
        place = int(np.searchsorted(rows.offsets, last_mapped, side="right"))
        if place < len(rows):
            found.append(int(rows.offsets[place]))

    index_chunk(
        chunk, context, 0, crc_from=NO_CRC, upper_offset=MAX_OFFSET, scratch=scratch, visit=visit
    )
    return min(found, default=None)
