"""The worked examples of REQUIREMENTS.md that concern cleaning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from stratalog.base.clock import FixedClock
from stratalog.clean.job import SLOT_BYTES
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.settings import resolve
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from tests.clean.driving import (
    FS,
    NOW_MS,
    Case,
    batch_of,
    clean_case,
    place,
    range_and_job,
    run,
    surviving,
    write_case,
)
from tests.log.recording import RecordingFileSystem
from tests.naive import files

MIB = 1 << 20


def engine() -> LocalEngine:
    return LocalEngine(FS, threads=1)


@pytest.mark.requirement("EX-2", "CMP-5")
def test_ex_2_keys_and_slots_of_the_default_buffer() -> None:
    """128 MiB, 24 bytes an entry, load factor 0.9."""
    assert 128 * MIB // SLOT_BYTES == 5_592_405
    assert 8192 * MIB // SLOT_BYTES == 357_913_941
    given = resolve({"log.cleaner.dedupe.buffer.size": str(128 * MIB)})
    assert given.max_keys == 5_033_164
    assert round(5_033_164 * 1024 / (1 << 30), 1) == 4.8  # GiB of 1 KiB records
    assert resolve({}).max_keys is None  # + no limit unless one is given
    by_two = resolve({"log.cleaner.dedupe.buffer.size": str(128 * MIB), "log.cleaner.threads": "2"})
    assert by_two.max_keys == int(5_592_405 // 2 * 0.9)


@pytest.mark.requirement("EX-7", "CMP-1")
def test_ex_7_the_last_of_each_key_stays(tmp_path: Path) -> None:
    """K1 at offsets 0, 2, 3 and K2 at 1, 5, 9: 3 and 9 stay."""
    batches = [
        batch_of(0, (b"K1", b"a"), (b"K2", b"b"), (b"K1", b"c"), (b"K1", b"d")),
        batch_of(5, (b"K2", b"e")),
        batch_of(9, (b"K2", b"f")),
    ]
    case = write_case(tmp_path / "log", {0: batches, 10: []})
    clean_case(engine(), case)
    assert surviving(case.partition) == {3: (b"K1", b"d"), 9: (b"K2", b"f")}


@pytest.mark.requirement("EX-7", "CMP-4")
def test_ex_7_the_map_of_the_dirty_part_decides_in_the_clean_part(tmp_path: Path) -> None:
    """Map {K1: 100, K2: 110}: K1 at 15, 80, 99 go."""
    clean_part = [batch_of(offset, (b"K1", b"old")) for offset in (15, 80, 99)]
    dirty_part = [batch_of(100, (b"K1", b"new")), batch_of(110, (b"K2", b"new"))]
    segments = {0: [batch_of(0, (b"K0", b"alone")), *clean_part], 100: dirty_part, 111: []}
    case = write_case(tmp_path / "log", segments)
    (tmp_path / "log" / "cleaner-offset-checkpoint").write_text("0\n1\ntopic 0 100\n")
    cleaned = clean_case(engine(), case)
    assert cleaned is not None
    assert cleaned.keys == 2
    assert cleaned.volume.drops.superseded == 3
    assert list(surviving(case.partition)) == [0, 100, 110]


def read_from(case: Case, offset: int) -> list[int]:
    """Offsets that a reader at `offset` gets."""
    settings, clock = LogSettings(), FixedClock(NOW_MS)
    with PartitionLog.open(str(case.partition), settings, FS, clock, read_only=True) as log:
        return [record.offset for record in log.read_records(offset)]


class ThreeHeads:
    """The log of EX-5 and EX-6: heads 0 to 12, 13 to 19 and 20 to 27, a round after each roll.

    Keys h, j, k, l are deleted at 8, 10, 11 and 12: `delete.retention.ms` passes between the
    rounds. 18 and 19 have no key and go for that; their batch's header stays, as the range's last.
    """

    KEYS = ("ahcjkdblhejkl", "bbaaa", "xxxxxxxx")
    DELETIONS: ClassVar = {8: b"h", 10: b"j", 11: b"k", 12: b"l"}

    def __init__(self, log_dir: Path) -> None:
        first, second, third = (
            [(bytes([key]), b"%d" % place) for place, key in enumerate(head.encode())]
            for head in self.KEYS
        )
        for offset, key in self.DELETIONS.items():
            first[offset] = (key, None)
        self.heads = {
            0: [batch_of(0, *first)],
            13: [batch_of(13, *second), batch_of(18, (None, b"x"), (None, b"y"))],
            20: [batch_of(20, *third)],
        }
        settings = {"delete.retention.ms": "1000"}
        self.case = write_case(log_dir, {0: self.heads[0], 13: self.heads[13]}, settings)

    def first_round(self) -> None:
        cleaned = clean_case(engine(), self.case)
        assert cleaned is not None
        assert cleaned.end_offset == 13

    def second_round(self) -> None:
        data = b"".join(self.heads[20])
        partition = self.case.partition
        files.write_segment(partition, 20, data, [], interval_bytes=4096, mtime_ms=NOW_MS)
        later = replace(self.case, inputs=replace(self.case.inputs, now_ms=NOW_MS + 1000))
        cleaned = clean_case(engine(), later)
        assert cleaned is not None
        assert cleaned.end_offset == 20


@pytest.mark.requirement("EX-5", "CMP-1", "LOG-2")
def test_ex_5_the_cleaner_point_moves_on(tmp_path: Path) -> None:
    """Cleaner point 0 -> 13 -> 20, third head 20 to 28."""
    log = ThreeHeads(tmp_path / "log")
    assert list(surviving(log.case.partition)) == list(range(20))
    log.first_round()
    left = list(surviving(log.case.partition))
    assert left == [0, 2, 5, 6, 8, 9, 10, 11, 12, *range(13, 20)]
    log.second_round()
    left = list(surviving(log.case.partition))
    assert left == [2, 5, 9, 14, 17, *range(20, 28)]
    for offset in (15, 16, 17):
        assert read_from(log.case, offset)[0] == 17


@pytest.mark.requirement("EX-6", "CMP-20", "LOG-2", "LOG-10")
def test_ex_6_a_reader_misses_nothing_but_what_was_superseded(tmp_path: Path) -> None:
    """A reader at 3; the log is cleaned from 0 to 12 and 4 is gone: it gets 5 next."""
    log = ThreeHeads(tmp_path / "log")
    seen = read_from(log.case, 0)
    assert seen[:4] == [0, 1, 2, 3]  # the slow reader comes to here, the fast one to 13
    fast = [offset for offset in seen if offset < 13]
    log.first_round()
    slow = [0, 1, 2, 3, *read_from(log.case, 4)]
    assert slow[4] == 5
    fast += [offset for offset in read_from(log.case, 13) if offset < 20]
    log.second_round()
    # A reader at 13 after round 1, or 20 after round 2, has missed nothing.
    assert fast + read_from(log.case, 20) == list(range(28))
    assert read_from(log.case, 4)[0] == 5


@pytest.mark.requirement("EX-8", "CMP-12")
def test_ex_8_names_of_the_files_on_their_way(tmp_path: Path) -> None:
    """Segments 0000, 0100, 0200 in one group."""
    segments = {base: [batch_of(base, (b"k", b"v"), (b"m", b"w"))] for base in (0, 100, 200)}
    case = write_case(tmp_path / "log", {**segments, 202: []})
    _, job = range_and_job(case)
    assert job is not None
    (cleaned,) = run(engine(), [job])
    (group,) = cleaned.groups
    assert group.sources == (0, 100, 200)
    recording = RecordingFileSystem()
    place(case, cleaned, recording)
    zero = "0" * 20
    for kind in ("log", "index", "timeindex"):
        names = [new for _, new in recording.renames() if new.startswith(f"{zero}.{kind}")]
        assert names == [
            f"{zero}.{kind}.cleaned",
            f"{zero}.{kind}.swap",
            f"{zero}.{kind}.deleted",
            f"{zero}.{kind}",
        ]
        for base in ("100".zfill(20), "200".zfill(20)):
            names = [new for _, new in recording.renames() if new.startswith(f"{base}.{kind}")]
            assert names == [f"{base}.{kind}.deleted"]
    assert sorted(path.name for path in case.partition.glob("*.log")) == [
        f"{zero}.log",
        "202".zfill(20) + ".log",
    ]
    assert list(surviving(case.partition)) == [200, 201]
