"""The compacted view of a log: the ledger below its horizon, the raw log from there on (LDG-3).

    ledger  [start_offset ........ horizon)
    raw log        [log start ..... horizon ........ log end)
                                    ^ read from here

Invariants
- V1  Every offset in [start_offset, log_end_offset) is answered by one of the two, so each key's
      latest value is there once more than the raw log ever needed to be.
- V2  A ledger that does not reach the raw log (the log starts behind its horizon), or reaches past
      its end, is none: something between them would be missing or was never there.
- V3  The horizon lies between two batches: none is answered by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from stratalog.base.errors import CorruptionError, OffsetOutOfRangeError
from stratalog.base.filesystem import FileSystem
from stratalog.ledger.manifest import Generation, generation_path
from stratalog.log.view import READ_BYTES, Chunk, LogView
from stratalog.record.batch import Batch
from stratalog.record.values import Record
from stratalog.segment.segment import Segment, TimestampOffset, open_segment
from stratalog.segment.segments import segments_of
from stratalog.segment.txn_index import AbortedTxn


def open_generation(
    filesystem: FileSystem, partition_dir: str, generation: Generation, directory: str = ""
) -> LogView:
    """A generation's segments as a log: it ends, and is stable, at the horizon. `directory`: where
    all its files lie, if not in the ledgers' directories.

    For whoever has no `Ledgers`, such as a reader in another process: the owner may unlink files
    until they are open. Raises `FileNotFoundError` then, `CorruptionError` for a file that is not
    what the manifest says.
    """
    opened: list[Segment] = []
    for part in generation.segments:
        lies_in = directory or generation_path(partition_dir, part.generation)
        segment = open_segment(filesystem, lies_in, part.base_offset)
        if segment.size_bytes != part.size_bytes:
            reason = f"the file has {segment.size_bytes} bytes, the manifest says {part.size_bytes}"
            raise CorruptionError(reason, file=segment.log.path)
        opened.append(segment)
    horizon = generation.horizon
    return LogView(segments_of(opened), generation.start_offset, horizon, horizon)


class CompactedView:
    """Immutable, as the two views are. The raw view is to be taken after the ledger's."""

    __slots__ = ("_ledger", "_tail", "raw")

    def __init__(self, ledger: LogView | None, raw: LogView):
        """`ledger`: the view of a pin, None without a ledger: then this is the raw log."""
        if ledger is not None and not (
            raw.log_start_offset <= ledger.log_end_offset <= raw.log_end_offset
        ):
            ledger = None
        self.raw = raw
        self._ledger = ledger
        start = raw.log_start_offset if ledger is None else ledger.log_end_offset
        self._tail = replace(raw, log_start_offset=start)

    @property
    def has_ledger(self) -> bool:
        """Whether a part of it is compacted."""
        return self._ledger is not None

    @property
    def start_offset(self) -> int:
        """The first offset that can be asked for; below the raw log's start where that has lost
        what the ledger still serves."""
        view = self._tail if self._ledger is None else self._ledger
        return view.log_start_offset

    @property
    def horizon(self) -> int:
        """From here on records are the raw log's; its start without a ledger."""
        return self._tail.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.raw.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed readers must stop; never below the horizon."""
        return max(self.raw.last_stable_offset, self.horizon)

    @property
    def parts(self) -> tuple[LogView, ...]:
        """What it is made of, in the order of offsets: the ledger, if there is one, and the tail of
        the raw log, as a view whose start is the horizon."""
        return (self._tail,) if self._ledger is None else (self._ledger, self._tail)

    def read(self, offset: int, max_bytes: int = READ_BYTES) -> Chunk:
        """See `LogView.read`; of the ledger below the horizon, else of the raw log."""
        self._check_range(offset)
        if self._ledger is not None and offset < self.horizon:
            chunk = self._ledger.read(offset, max_bytes)
            if len(chunk.data) > 0:
                return chunk
        return self._tail.read(max(offset, self.horizon), max_bytes)

    def read_batches(
        self, offset: int, max_bytes: int = READ_BYTES, end_offset: int | None = None
    ) -> Iterator[Batch]:
        """The batches from the first that reaches `offset` up to the log end (or `end_offset`).

        An offset that was compacted away stands for the next that is there. Positions are those in
        the batches' own files. Raises `OffsetOutOfRangeError` at once, `CorruptionError` on the
        way; checksums are the caller's choice.
        """
        self._check_range(offset)
        end = self._end(end_offset)
        found = [
            part.read_batches(max(offset, part.log_start_offset), max_bytes, end)
            for part in self._parts_of(offset, end)
        ]
        return chain.from_iterable(found)

    def read_records(
        self, offset: int, max_bytes: int = READ_BYTES, end_offset: int | None = None
    ) -> Iterator[Record]:
        """The data records from `offset` on; tombstones are among them, transaction markers are
        not. Data of aborted transactions is, past the horizon (`aborted_between`).

        Raises as `read_batches`; a batch that fails its checksum is damage.
        """
        self._check_range(offset)
        end = self._end(end_offset)
        found = [
            part.read_records(max(offset, part.log_start_offset), max_bytes, end)
            for part in self._parts_of(offset, end)
        ]
        return chain.from_iterable(found)

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions that touch [start_offset, end_offset). Below the horizon none of
        their data is left, so it is those that end behind it."""
        start = max(start_offset, self.horizon)
        return self._tail.aborted_between(start, end_offset) if start < end_offset else []

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record with a timestamp of at least `timestamp` ms, if any (LOG-11)."""
        for part in self.parts:
            found = part.offset_for_timestamp(timestamp)
            if found is not None:
                return found
        return None

    def _parts_of(self, offset: int, end: int) -> list[LogView]:
        """Those that hold offsets of [offset, end)."""
        return [
            part
            for part in self.parts
            if offset < part.log_end_offset and part.log_start_offset < end
        ]

    def _end(self, end_offset: int | None) -> int:
        return self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)

    def _check_range(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} lies outside [{self.start_offset}, {self.log_end_offset}]"
            )
