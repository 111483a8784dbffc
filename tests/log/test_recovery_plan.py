"""What recovery decides, over every small case, against a plain statement of RCV-1 and RCV-7."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product

import pytest

from stratalog.log.recovery_plan import (
    Action,
    Cut,
    Drop,
    Quarantine,
    SegmentScan,
    StartOver,
    below_start,
    first_to_scan,
    plan_recovery,
)
from stratalog.segment.names import MAX_OFFSET

BASES = (0, 10, 20)
SIZE_BYTES = 100
"""Of each segment; ten bytes an offset."""


def logs() -> Iterator[tuple[tuple[SegmentScan, ...], tuple[int, ...]]]:
    """Scans of one to three segments and the bases behind them: all sound, or the last of them
    damaged somewhere, perhaps by a whole batch of another place."""
    for scanned, later in product((1, 2, 3), (0, 1, 2)):
        bases = tuple(10 * i for i in range(scanned + later))
        sound = [SegmentScan(b, SIZE_BYTES, SIZE_BYTES, b + 10) for b in bases[: scanned - 1]]
        last = bases[scanned - 1]
        for offsets, is_damaged, claimed in product(
            (0, 1, 5, 9, 10), (False, True), (None, 0, 12, 40)
        ):
            if not is_damaged and (later or claimed is not None):
                continue  # then the scan would have gone on
            end = 10 * offsets
            scan = SegmentScan(
                last,
                SIZE_BYTES + 7 if is_damaged else end,
                end,
                last + offsets,
                "a bad batch" if is_damaged else None,
                claimed,
            )
            yield (*sound, scan), bases[scanned:]


def carried_out(actions: tuple[Action, ...], sizes: dict[int, int]) -> dict[int, int]:
    """Base offset -> bytes of the log's files afterwards. Checks that each step makes sense."""
    left = dict(sizes)
    for action in actions:
        match action:
            case Drop(base_offset):
                assert base_offset == max(left), "from the end, so that no hole is left by a crash"
                del left[base_offset]
            case Cut(base_offset, end, size_bytes):
                assert base_offset == max(left), "what lies behind is gone before"
                assert left[base_offset] == size_bytes
                assert end <= size_bytes
                left[base_offset] = end
            case StartOver(offset):
                left = {offset: 0}
            case Quarantine():
                assert actions == (action,), "nothing is cut off"
    return left


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-7")
def test_every_small_case(count_cases: Callable[[str, int], None]) -> None:
    cases = quarantined = 0
    for scans, later in logs():
        last = scans[-1]
        for point, start in product((None, *range(34)), range(34)):
            actions = plan_recovery(scans, later, point, start)
            sizes = {scan.base_offset: scan.size_bytes for scan in scans}
            sizes |= dict.fromkeys(later, SIZE_BYTES)
            left = carried_out(actions, sizes)
            is_whole = last.damage is None and not later
            if point is None:
                is_explained_by_a_crash = is_whole
            else:
                # What was flushed lies below the recovery point, and all of it was found.
                is_explained_by_a_crash = last.next_offset >= point and (
                    last.claimed_offset is None or last.claimed_offset >= point
                )
            if not is_explained_by_a_crash:
                (note,) = actions
                assert isinstance(note, Quarantine)
                assert (note.base_offset, note.position) == (last.base_offset, last.end)
                assert note.offset == last.next_offset
                assert left == sizes
                quarantined += 1
            elif last.next_offset < start:
                assert left == {start: 0}
            else:
                assert left == {scan.base_offset: scan.end for scan in scans}
                assert is_whole == (actions == ())
            cases += 1
    assert 0 < quarantined < cases
    assert cases > 50_000
    count_cases("plans of recovery", cases)


@pytest.mark.requirement("RCV-1")
def test_the_first_segment_to_scan_holds_the_recovery_point() -> None:
    for point in range(40):
        slot = first_to_scan(BASES, point)
        following = BASES[slot + 1] if slot + 1 < len(BASES) else MAX_OFFSET
        assert BASES[slot] <= point < following
    assert first_to_scan((10, 20), 3) == 0


@pytest.mark.requirement("RCV-1", "RET-5")
def test_segments_below_the_start_are_those_that_nobody_reads() -> None:
    for start in range(40):
        gone = below_start(BASES, start)
        ends = dict(pairwise(BASES))
        assert gone == tuple(base for base in BASES if base in ends and ends[base] <= start)
        assert BASES[-1] not in gone
    assert below_start((0, 11, 23), 25) == (0, 11)
