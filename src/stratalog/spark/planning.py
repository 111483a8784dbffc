"""What the driver decides before and between the actions of a job; only cutting reads a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stratalog.base.filesystem import FileSystem
from stratalog.clean.group import group_segments
from stratalog.clean.index import ChunkReport
from stratalog.clean.job import CleaningJob, SourceSegment
from stratalog.clean.settle import SettledMarkers, settle
from stratalog.segment.names import MAX_OFFSET
from stratalog.spark import cutting
from stratalog.spark.cutting import Piece
from stratalog.spark.tasks import IndexTask, SegmentReport


def total_bytes(jobs: Sequence[CleaningJob]) -> int:
    """Bytes of the log files that are cleaned."""
    return sum(segment.size_bytes for job in jobs for segment in job.segments)


def cut_pieces(
    jobs: Sequence[CleaningJob], ends: Sequence[int], share: int, filesystem: FileSystem
) -> list[list[Piece]]:
    """Each job's segments below its end, those cut that are much larger than `share` bytes."""
    return [
        [
            piece
            for segment in _below(job, end)
            for piece in cutting.cut(segment, job, share, filesystem)
        ]
        for job, end in zip(jobs, ends, strict=True)
    ]


def whole_pieces(jobs: Sequence[CleaningJob], ends: Sequence[int]) -> list[list[Piece]]:
    """The same without a cut."""
    return [
        [cutting.whole(segment) for segment in _below(job, end)]
        for job, end in zip(jobs, ends, strict=True)
    ]


def _below(job: CleaningJob, end_offset: int) -> list[SourceSegment]:
    return [segment for segment in job.segments if segment.base_offset < end_offset]


def later_tasks(jobs: Sequence[CleaningJob], buckets: Sequence[range]) -> list[IndexTask]:
    """A task for each segment beyond a round's end, where the order of versions asks for them."""
    return [
        IndexTask(number, (cutting.whole(segment),), MAX_OFFSET, buckets[number], is_later=True)
        for number, job in enumerate(jobs)
        for segment in job.later
    ]


def stretches(
    job: CleaningJob, end_offset: int, pieces: Sequence[Piece], share: int
) -> Iterator[tuple[tuple[SourceSegment, ...], tuple[Piece, ...]]]:
    """The job's groups, each with what one task rewrites of it, in file order."""
    groups = group_segments(
        _below(job, end_offset),
        segment_bytes=job.spec.segment_bytes,
        segment_index_bytes=job.spec.segment_index_bytes,
        first_uncleanable=job.first_uncleanable,
    )
    of_segment: dict[int, list[Piece]] = {}
    for piece in pieces:
        of_segment.setdefault(piece.segment.base_offset, []).append(piece)
    for group in groups:
        of_group = [piece for segment in group for piece in of_segment[segment.base_offset]]
        for stretch in cutting.stretches(of_group, share):
            yield group, stretch


def settle_all(
    jobs: Sequence[CleaningJob], reports: Iterable[SegmentReport]
) -> tuple[list[SettledMarkers], list[frozenset[int]]]:
    """Each job's settled markers and keyless segments. Raises the first damage by file name."""
    chunks: list[list[ChunkReport]] = [[] for _ in jobs]
    damages = []
    for report in reports:
        chunks[report.job].extend(report.chunks)
        if report.damage is not None:
            damages.append(report.damage)
    if damages:
        raise min(damages, key=lambda damage: (damage.file or "", damage.position or 0))
    markers = []
    keyless = []
    for number, job in enumerate(jobs):
        ordered = sorted(chunks[number], key=lambda chunk: chunk.place)
        markers.append(settle((chunk.transactions for chunk in ordered), job.aborted))
        keyless.append(frozenset(chunk.segment for chunk in ordered if chunk.has_keyless))
    return markers, keyless
