"""Which segments become one (CMP-11)."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.clean.group import group_segments
from stratalog.clean.job import SourceSegment
from tests.naive import plan
from tests.naive.files import Segment
from tests.naive.plan import Inputs, Range

SPAN = (1 << 31) - 1


def sources(
    sizes: list[int],
    bases: list[int] | None = None,
    indexes: list[int] | None = None,
    time_indexes: list[int] | None = None,
) -> list[SourceSegment]:
    """Segments of these sizes, 100 offsets each unless `bases` says otherwise."""
    count = len(sizes)
    bases = bases or [100 * n for n in range(count)]
    return [
        SourceSegment(base, following, size, index, time_index, 0)
        for base, following, size, index, time_index in zip(
            bases,
            [*bases[1:], bases[-1] + 100],
            sizes,
            indexes or [0] * count,
            time_indexes or [0] * count,
            strict=True,
        )
    ]


def grouped(segments: list[SourceSegment], limit: int = 10, index_limit: int = 100) -> list:
    groups = group_segments(
        segments,
        segment_bytes=limit,
        segment_index_bytes=index_limit,
        first_uncleanable=segments[-1].next_offset if segments else 0,
    )
    assert [segment for group in groups for segment in group] == segments
    return groups


def sizes_of(groups: list) -> list[list[int]]:
    return [[segment.size_bytes for segment in group] for group in groups]


@pytest.mark.requirement("CMP-11", "EX-3")
def test_segments_group_as_long_as_they_fit() -> None:
    found = grouped(sources([4, 4, 3, 7, 3, 10]))
    assert sizes_of(found) == [[4, 4], [3, 7], [3], [10]]
    assert [group[0].base_offset for group in found] == [0, 200, 400, 500]


@pytest.mark.requirement("CMP-11", "EX-3")
def test_eleven_segments_whose_first_four_fit() -> None:
    segments = sources([2, 2, 3, 3, 8, 8, 8, 8, 8, 8, 8])
    assert grouped(segments)[0] == tuple(segments[:4])


@pytest.mark.requirement("CMP-11")
def test_a_segment_over_the_limit_is_a_group_of_its_own() -> None:
    assert sizes_of(grouped(sources([3, 50, 3, 3]))) == [[3], [50], [3, 3]]
    assert grouped([]) == []


@pytest.mark.requirement("CMP-11")
def test_either_index_bounds_a_group() -> None:
    by_offset = grouped(sources([1] * 4, indexes=[40, 60, 1, 99]))
    by_time = grouped(sources([1] * 4, time_indexes=[40, 60, 1, 99]))
    assert sizes_of(by_offset) == sizes_of(by_time) == [[1, 1], [1, 1]]


@pytest.mark.requirement("CMP-11")
def test_offsets_of_a_group_fit_its_indexes() -> None:
    """The last offset of a group is that before the next segment's base."""
    fits = sources([1, 1, 1], [0, 10, SPAN + 1])[:2]
    assert sizes_of(grouped(fits)) == [[1, 1]]
    too_far = sources([1, 1, 1], [0, 10, SPAN + 2])[:2]
    assert sizes_of(grouped(too_far)) == [[1], [1]]
    # For the last segment it is that before the first offset that cannot be cleaned.
    assert sizes_of(grouped(sources([1, 1], [0, SPAN - 99]))) == [[1, 1]]
    assert sizes_of(grouped(sources([1, 1], [0, SPAN - 98]))) == [[1], [1]]


@pytest.mark.requirement("CMP-11")
def test_an_empty_segment_joins_across_any_gap() -> None:
    """KAFKA-12889: else a quiet log keeps an empty segment for every 2^31 offsets."""
    far = sources([1, 0, 0, 1], [0, 10, SPAN + 50, 3 * SPAN])
    assert sizes_of(grouped(far)) == [[1, 0, 0], [1]]


@pytest.mark.requirement("CMP-11")
def test_any_groups_are_those_of_the_naive_twin() -> None:
    random = Random(2)
    for _ in range(2000):
        count = random.randrange(1, 9)
        bases = [0]
        for _ in range(count - 1):
            bases.append(bases[-1] + random.choice([1, 10, SPAN // 2, SPAN, SPAN + 1]))
        segments = sources(
            [random.randrange(8) for _ in bases],
            bases,
            [8 * random.randrange(6) for _ in bases],
            [12 * random.randrange(4) for _ in bases],
        )
        end = bases[-1] + random.choice([1, 100, SPAN])
        expected = plan.group_segments(
            [
                Segment(
                    s.base_offset,
                    bytes(s.size_bytes),
                    0,
                    s.offset_index_bytes,
                    ((0, 0),) * (s.time_index_bytes // 12),
                    (),
                )
                for s in segments
            ],
            Range(0, end, end, 0, 0, None),
            end,
            Inputs({"segment.bytes": "10", "segment.index.bytes": "40"}, 0, 0, 0, 0),
        )
        found = group_segments(
            segments, segment_bytes=10, segment_index_bytes=40, first_uncleanable=end
        )
        assert [[s.base_offset for s in g] for g in found] == [
            [s.base for s in g] for g in expected
        ]
