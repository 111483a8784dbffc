"""Deciding and rewriting, batch by batch, against the naive cleaner.

The twin's dict of last offsets takes the place of indexing, so that only `decide_chunk` and the
kernels behind it are under test: one batch a chunk, and again with many batches a chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stratalog.clean.chunk import ChunkReader, Scratch
from stratalog.clean.decide import DecideContext, decide_chunk
from stratalog.clean.job import CleaningJob, SourceSegment
from stratalog.clean.settle import SettledMarkers
from stratalog.record.kernel import arrays
from tests.clean.driving import FS, Case, range_and_job
from tests.naive import cleaner, files
from tests.naive.cleaner import Cleaning, OffsetMap
from tests.naive.files import Segment
from tests.naive.logs import Features, write_random_log
from tests.naive.plan import cleanable_range, overlapping
from tests.naive.records import ABORT, COMMIT, Batch, parse_log
from tests.naive.transactions import collect_aborted
from tests.record.kernel.helpers import times


class NaiveRound:
    """The naive round over a partition, with what each batch becomes."""

    def __init__(self, case: Case) -> None:
        self.segments = files.read_segments(case.partition)
        bounds = cleanable_range(self.segments, case.inputs)
        self.map = cleaner.build_offset_map(self.segments, bounds, case.inputs)
        self.end_offset = self.map.latest_offset + 1
        self.cleaning = Cleaning(self.segments, bounds, self.map, case.inputs)
        self.sources = overlapping(self.segments, 0, self.end_offset)
        self.useless_markers: dict[int, bool] = {}
        self.outputs = [
            [(batch, self._clean(batch, segment)) for batch in segment.batches]
            for segment in self._entered()
        ]

    def _entered(self) -> Iterator[Segment]:
        for segment in self.sources:
            entries = collect_aborted(
                self.segments,
                segment.base,
                segment.next_offset,
                self.cleaning.inputs.log_start_offset,
            )
            self.cleaning.transactions.add(entries)
            yield segment

    def _clean(self, batch: Batch, segment: Segment) -> bytes:
        if batch.control and batch.control_type() in (ABORT, COMMIT):
            transactions = self.cleaning.transactions
            if batch.control_type() == COMMIT:
                useless = batch.producer_id not in transactions.committing
            else:
                transactions._advance(batch.last_offset)
                seen = batch.producer_id in transactions.seen_data
                useless = batch.producer_id not in transactions.aborting or not seen
            self.useless_markers[batch.last_offset] = useless
        return self.cleaning.clean_batch(batch, segment, [])


def context_of(naive: NaiveRound, job: CleaningJob) -> DecideContext:
    """What indexing and settling would have told, from the naive twin."""
    last: OffsetMap = naive.map
    live = np.array(sorted(last.offsets.values()), np.int64)
    dead = [
        record.offset
        for segment in naive.sources
        for batch in segment.batches
        if not batch.control
        for record in batch.records()
        if record.offset < job.first_dirty
        and record.key is not None
        and record.offset < last.offsets.get(record.key, -1)
    ]
    keyless = frozenset(
        segment.base
        for segment in naive.sources
        for batch in segment.batches
        if not batch.control and any(record.key is None for record in batch.records())
    )
    markers = sorted(naive.useless_markers.items())
    settled = SettledMarkers(
        np.array([offset for offset, _ in markers], np.int64),
        np.array([useless for _, useless in markers], np.uint8),
        (),
    )
    dead_offsets = np.array(sorted(dead), np.int64)
    return DecideContext.of(job, naive.end_offset, live, dead_offsets, settled, keyless)


def assert_same(made: bytes, expected: bytes, where: str) -> None:
    if made == expected:
        return
    (one,), (other,) = parse_log(made), parse_log(expected)
    assert one.codec, where  # only a codec's library may choose other bytes
    assert one.crc_ok(), where
    assert one.records() == other.records(), where
    assert replace(one, raw=b"", crc=0) == replace(other, raw=b"", crc=0), where


def source_of(job: CleaningJob, base: int) -> SourceSegment:
    return next(segment for segment in job.segments if segment.base_offset == base)


@pytest.mark.requirement("CMP-4", "CMP-8", "CMP-10", "CMP-13", "CMP-14", "CMP-15", "LOG-4")
@pytest.mark.parametrize("chunk_bytes", [1, 900], ids=["a batch a chunk", "some batches a chunk"])
def test_each_batch_becomes_what_the_naive_twin_makes_of_it(
    chunk_bytes: int, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(max(12, times(40))):
        (tmp_path / f"{seed}").mkdir()
        features = Features(legacy=seed % 4 == 0, batches=80)
        log = write_random_log(500 + seed, tmp_path / f"{seed}", features)
        case = Case(f"seed {seed}", log.partition, log.inputs)
        _, job = range_and_job(case, chunk_bytes=chunk_bytes)
        if job is None:
            continue
        naive = NaiveRound(case)
        context = context_of(naive, job)
        scratch = Scratch()
        before, after = 0, 0
        for segment, outputs in zip(naive.sources, naive.outputs, strict=True):
            source = source_of(job, segment.base)
            reader = ChunkReader.of(FS, job.directory, source, job.spec)
            waiting = iter(outputs)
            while (chunk := reader.take(scratch)) is not None:
                entries = [next(waiting) for _ in range(chunk.rows)]
                decided = decide_chunk(chunk, context, source, scratch)
                where = f"{case.name}: segment {segment.base}, position {chunk.position}"
                _compare(decided.out.tobytes(), [made for _, made in entries], where)
                before += decided.records_before
                after += decided.records_after
                assert decided.unchanged == all(batch.raw == made for batch, made in entries)
                _check_rows(decided.written, decided.out.tobytes())
                seen.update(_kinds(entries))
            assert next(waiting, None) is None
        assert after == naive.cleaning.records_kept
        assert before == after + sum(naive.cleaning.drops.values())
    assert {kind for kind in KINDS if seen[kind] < 2} == set()
    count_cases("batches decided as the naive twin decides them", sum(seen.values()))


KINDS = ("copied", "dropped", "rewritten", "emptied", "horizon set", "old format rewritten")


def _kinds(entries: list[tuple[Batch, bytes]]) -> Iterator[str]:
    for batch, made in entries:
        if made == batch.raw:
            yield "copied"
        elif not made:
            yield "dropped"
        elif batch.magic < 2:
            yield "old format rewritten"
        elif parse_log(made)[0].count == 0:
            yield "emptied"
        elif parse_log(made)[0].horizon_ms != batch.horizon_ms:
            yield "horizon set"
        else:
            yield "rewritten"


def _compare(made: bytes, expected: list[bytes], where: str) -> None:
    """Bytes of a chunk against those of its batches."""
    wanted = parse_log(b"".join(expected))
    found = parse_log(made)
    assert len(found) == len(wanted), where
    assert sum(len(batch.raw) for batch in found) == len(made), where
    for one, other in zip(found, wanted, strict=True):
        assert_same(one.raw, other.raw, where)


def _check_rows(written: np.ndarray, out: bytes) -> None:
    """The table that indexes are made from describes the batches that were written."""
    position = 0
    rows = []
    for batch in parse_log(out):
        newest = max((r.timestamp for r in batch.records()), default=batch.max_timestamp)
        rows.append([position, len(batch.raw), batch.last_offset, newest])
        if batch.magic == 2:
            rows[-1][3] = batch.max_timestamp
        position += len(batch.raw)
    assert written.tolist() == rows


@pytest.mark.requirement("CMP-13", "CMP-15")
def test_a_batch_that_was_emptied_before_is_copied() -> None:
    """The kernel alone: what an earlier round made of a last batch needs no more work."""
    from stratalog.record.kernel import retain

    none = np.empty(0, np.int64)
    table = np.zeros(2, arrays.BATCH)
    table["magic"], table["base_timestamp"], table["retain_empty"] = 2, -1, 1
    table["attributes"] = [0x10, 0x13]  # the second still names its codec: it is not bare yet
    drops, rows = np.zeros((2, len(arrays.REASONS)), np.int64), np.zeros((1, 5), np.int64)
    kept = np.zeros(64, np.uint8)
    retain.retain_records(
        *(kept, kept, table, 0, 2, none, none, none, none, 0, 10, 0, 0, retain.BY_BATCH, 0),
        *(False, False, rows, kept, drops, np.full(1, retain.NEVER_MS, np.int64)),
    )
    assert table["action"].tolist() == [arrays.COPY, arrays.EMPTY]
