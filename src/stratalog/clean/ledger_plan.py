"""What a run of the ledger's compactor is to do: previous generation and raw log -> `CleaningJob`.

    previous generation  [start .......... H)                  clean: one record a key already
    raw log                        [ ... H ........ E) [E ...  dirty from H on; E: log end, or where
                                                               an open transaction begins

The job is that of a round of cleaning, so every engine runs it: only where its files lie differs. A
segment of the previous generation in which nothing changes is referenced; what comes from the raw
log is always written, as the log goes its own way.

Invariants
- I1  H and E lie between two batches. What lies below has its end: of a transaction that reaches
      across E only the marker, and nobody's data, need be behind it, and the log knows it already.
- I2  With a previous generation the raw log is read from H on only (LDG-1).

Source: LDG-1; CMP-17 for the order of versions, which maps the clean part anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stratalog.clean.job import CleaningJob, CleanSpec, Order, SourceSegment
from stratalog.ledger.manifest import Generation, LedgerSegment, generation_path, is_outdated
from stratalog.log.view import LogView
from stratalog.segment import offset_index, time_index
from stratalog.segment.names import FileKind
from stratalog.segment.segment import Segment, segment_path
from stratalog.segment.txn_index import AbortedTxn


@dataclass(frozen=True, slots=True, eq=False)
class LedgerInputs:
    """A partition at the moment that its run begins.

    `previous`: the generation to build upon, with its `.txnindex` entries; None: from scratch.
    `previous_directory`: where all its files lie, if that is not beside the log. `is_expired`:
    something in the previous one may go by now.
    """

    name: str
    path: str
    view: LogView
    spec: CleanSpec
    previous: Generation | None = None
    previous_aborted: tuple[AbortedTxn, ...] = ()
    is_expired: bool = False
    previous_directory: str = ""

    @property
    def start_offset(self) -> int:
        """Where the new generation begins."""
        return self.view.log_start_offset if self.previous is None else self.previous.start_offset

    @property
    def first_dirty(self) -> int:
        """From here on the raw log is read."""
        return self.view.log_start_offset if self.previous is None else self.previous.horizon

    @property
    def end_offset(self) -> int:
        """The new horizon: what there is when the run begins, and is decided (LDG-1)."""
        return min(self.view.log_end_offset, self.view.last_stable_offset)


def usable(previous: Generation | None, view: LogView, spec: CleanSpec) -> Generation | None:
    """The generation that a run can build upon.

    None where the log does not follow on it, or where it was made by another order of versions and
    the raw log still has all of it.
    """
    if previous is None:
        return None
    if not view.log_start_offset <= previous.horizon <= view.log_end_offset:
        return None
    order = order_name(spec.order, spec.version_header)
    return None if is_outdated(previous, order, view.log_start_offset) else previous


def order_name(order: Order, version_header: str) -> str:
    """The order of versions, as a generation notes it."""
    return order.value + (f":{version_header}" if order is Order.HEADER else "")


def backlog_bytes(view: LogView, start: int, end: int) -> int:
    """Bytes of the raw log's offsets [start, end), which no ledger has taken; a segment that is cut
    counts by the share of its offsets, which costs no look into it, and by a byte at least."""
    total = 0
    for slot, segment in enumerate(view.segments):
        segment_end = view.segments.end_of(slot, view.log_end_offset)
        first, last = max(start, segment.base_offset), min(end, segment_end)
        if first < last and segment.size_bytes > 0:
            span = segment_end - segment.base_offset
            total += max(segment.size_bytes * (last - first) // span, 1)
    return total


def plan_ledger(inputs: LedgerInputs, directory: str) -> CleaningJob | None:
    """The job of a run that writes to `directory`; None: there is nothing to do.

    Reads indexes, and headers of the two segments that are cut. Raises `CorruptionError`.
    """
    first_dirty, end = inputs.first_dirty, inputs.end_offset
    if end <= first_dirty and not (inputs.is_expired and inputs.previous is not None):
        return None
    end = max(end, first_dirty)
    raw = raw_sources(inputs, first_dirty, end, cuts=inputs.previous is not None)
    kept = () if inputs.previous is None else inputs.previous.segments
    sources = (*(_source(inputs, part) for part in kept), *raw)
    # Without bytes a segment adds nothing; but a ledger has at least one.
    sources = tuple(source for source in sources if source.size_bytes > 0) or sources[:1]
    horizon_ms = kept[-1].modified_ms - inputs.spec.delete_retention_ms if kept else 0
    aborted = (
        *inputs.previous_aborted,
        *(
            entry
            for segment in inputs.view.segments
            for entry in segment.aborted
            if first_dirty <= entry.last_offset and entry.first_offset < end
        ),
    )
    job = CleaningJob(
        inputs.name,
        directory,
        replace(inputs.spec, max_keys=None),  # or the horizon could lie inside a batch
        sources,
        first_dirty,
        end,
        aborted,
        legacy_horizon_ms=horizon_ms,
    )
    if inputs.spec.order is Order.OFFSET:
        return job
    log_end = inputs.view.log_end_offset
    later = raw_sources(inputs, end, log_end, cuts=True) if end < log_end else ()
    return replace(
        job,
        first_dirty=inputs.start_offset,
        cleaned_below=first_dirty,
        later=tuple(source for source in later if source.size_bytes > 0),
    )


def raw_sources(
    inputs: LedgerInputs, start: int, end: int, *, cuts: bool
) -> tuple[SourceSegment, ...]:
    """The raw log's batches of [start, end). `cuts`: `start` lies between two batches, else the
    whole segment that holds it is taken (its records below the log start are nobody's)."""
    found = []
    view = inputs.view
    for slot, segment in enumerate(view.segments):
        segment_end = view.segments.end_of(slot, view.log_end_offset)
        if segment_end <= start or segment.base_offset >= end:
            continue
        base, position = segment.base_offset, 0
        if cuts and start > base:
            base, position = start, position_of(segment, start)
        last = segment.size_bytes if segment_end <= end else position_of(segment, end)
        offsets, times = segment.indexes.entries()
        found.append(
            SourceSegment(
                base,
                min(segment_end, end),
                last - position,
                len(offsets) * offset_index.ENTRY_BYTES,
                len(times.timestamps) * time_index.ENTRY_BYTES,
                segment.modified_ms,
                path=segment_path(inputs.path, segment.base_offset, FileKind.LOG),
                start=position,
                may_stay=False,
            )
        )
    return tuple(found)


def position_of(segment: Segment, offset: int) -> int:
    """Where the first batch at or past `offset` begins; the end if there is none."""
    placed = segment.find(offset)
    return segment.size_bytes if placed is None else placed.position


def _source(inputs: LedgerInputs, part: LedgerSegment) -> SourceSegment:
    directory = inputs.previous_directory or generation_path(inputs.path, part.generation)
    return SourceSegment(
        part.base_offset,
        part.next_offset,
        part.size_bytes,
        part.offset_index_bytes,
        part.time_index_bytes,
        part.modified_ms,
        path=segment_path(directory, part.base_offset, FileKind.LOG),
    )


def ends_of(bases: Sequence[int], horizon: int) -> list[int]:
    """Where segments that begin at `bases` end."""
    return [*bases[1:], horizon]
