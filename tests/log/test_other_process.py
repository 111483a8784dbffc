"""Readers in other processes while segments are swapped: a right answer or "try again" (LOG-12)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratalog.log.swap import Replacement, SegmentParts, remove_deleted, swap
from stratalog.segment.names import FileKind, part_name
from tests.log.helpers import FS, NOW
from tests.log.reading import read_once
from tests.naive import files
from tests.naive.records import Record, build_v2

RECORDS = 41
"""In the segments to be swapped; one more follows in the active segment."""
ROOT = Path(__file__).resolve().parents[2]


def segment_data(first: int, end: int, version: bytes) -> bytes:
    """Batches of up to three records, all of one version."""
    return b"".join(
        build_v2(
            [
                Record(offset, NOW + offset, b"k%d" % offset, version)
                for offset in range(start, min(start + 3, end))
            ],
            base_offset=start,
            last_offset=min(start + 3, end) - 1,
            codec=0,
        )
        for start in range(first, end, 3)
    )


def write_parts(partition: Path, base: int, data: bytes, number: int) -> SegmentParts:
    aside = partition.parent / "aside"
    aside.mkdir(exist_ok=True)
    files.write_segment(aside, base, data, [], interval_bytes=200, mtime_ms=NOW)
    parts = {}
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
        parts[kind] = part_name(base, kind, "test", number)
        os.rename(aside / f"{base:020d}.{kind.value}", partition / parts[kind])
    return SegmentParts(base, parts)


def write_first(partition: Path) -> None:
    partition.mkdir()
    for base, end in ((0, RECORDS), (RECORDS, RECORDS + 1)):
        data = segment_data(base, end, b"0")
        files.write_segment(partition, base, data, [], interval_bytes=200, mtime_ms=NOW)


def swap_once(partition: Path, number: int, filesystem: Any = FS) -> None:
    """From one segment to two, and back."""
    cut, version = 18, b"%d" % number
    if number % 2:
        bases, ends = (0, cut), (cut, RECORDS)
        old: tuple[int, ...] = (0,)
    else:
        bases, ends = (0,), (RECORDS,)
        old = (0, cut)
    new = tuple(
        write_parts(partition, base, segment_data(base, end, version), number)
        for base, end in zip(bases, ends, strict=True)
    )
    swap(filesystem, str(partition), Replacement(old, new))
    remove_deleted(filesystem, str(partition))


@pytest.mark.requirement("LOG-12")
def test_readers_of_other_processes_see_no_half_swap(
    tmp_path: Path, hasty_disk: None, count_cases: Callable[[str, int], None]
) -> None:
    partition, stop = tmp_path / "t-0", tmp_path / "stop"
    write_first(partition)
    arguments = [str(partition), str(RECORDS + 1), str(stop)]
    readers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.log.reading", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        for number in range(1, 151):
            swap_once(partition, number)
    finally:
        stop.touch()
        answers = [reader.communicate(timeout=60) for reader in readers]
    for reader, (out, err) in zip(readers, answers, strict=True):
        assert reader.returncode == 0, err[-3000:]
        right, changed = map(int, out.split())
        assert right > 0
        count_cases("reads beside swaps that were right", right)
        count_cases("reads beside swaps that were told to try again", changed)


class Interrupted:
    """The local disk; `act` happens before the call number `place`."""

    def __init__(self, place: int, act: Callable[[], None]):
        self.calls = 0
        self._place = place
        self._act = act

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        if self.calls == self._place:
            self._act()
        return getattr(FS, name)


@pytest.mark.requirement("LOG-12")
@pytest.mark.parametrize("number", [1, 2])
def test_a_swap_between_any_two_calls_of_a_reader(
    number: int, tmp_path: Path, hasty_disk: None
) -> None:
    calls, place, right = 1, 0, 0
    while place < calls:
        place += 1
        partition = tmp_path / f"{place}-0"
        write_first(partition)
        for done in range(1, number):
            swap_once(partition, done)
        disk = Interrupted(place, partial(swap_once, partition, number))
        right += read_once(str(partition), RECORDS + 1, disk)  # type: ignore[arg-type]
        calls = disk.calls
    assert calls > 10
    assert right > calls // 2
