"""What a copy at a location holds is not lost: what is bridged, made anew, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.admin.location_manifest import MANIFEST
from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.base.errors import UsageError
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from tests.admin.helpers import NOW_MS, records, run, write_log
from tests.admin.locations import (
    DISK,
    append,
    beside,
    current,
    cut_start,
    flip_last,
    held,
    make,
    manifest_of,
    refused,
    segments,
)

pytestmark = pytest.mark.requirement("LDG-1")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    batches = [[records("abcab"), records("abd")], [records("ca"), records("b")]]
    return write_log(tmp_path / "data" / "orders-0", batches, policy=("delete",))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "copy"


# ---------------------------------------------------------------- nothing is lost


def test_the_copy_stays_whole_when_retention_takes_the_log(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "ax", rolls=True)
    cut_start(log, 11)
    make(log, out=out)
    copy = current(out) / "orders-0"
    assert [key for _, key, _ in held(copy)] == [b"d", b"c", b"b", b"a", b"x"]
    assert manifest_of(out).partitions[0].start_offset == 0


def test_a_log_that_was_cut_and_has_grown_again_is_refused(log: Path, out: Path) -> None:
    """What was appended below the copy's horizon would never come into it."""
    make(log, out=out)
    before = manifest_of(out)
    assert before.partitions[0].end_offset == 11
    with PartitionLog.open(str(log), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        opened.truncate_to(8)
    append(log, "xyzx")
    assert held(log)[-1][0] == 11
    refused(log, out=out, match="it was cut and has grown again")
    assert manifest_of(out) == before
    make(log, out=out.with_name("another"))


def test_a_log_that_was_cleaned_in_place_past_the_copy_goes_on(log: Path, out: Path) -> None:
    """Its batches are others by then; that says nothing."""
    make(log, out=out)
    append(log, "bca", rolls=True)
    run([log], Mode.IN_PLACE, given={"cleanup.policy": "compact", "compaction.mode": "inplace"})
    make(log, out=out)
    assert [key for _, key, _ in held(current(out) / "orders-0")] == [b"d", b"b", b"c", b"a"]


def test_a_gap_between_copy_and_log_is_refused(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "ax", rolls=True)
    append(log, "by", rolls=True)
    cut_start(log, 13)
    refused(log, out=out, match="begins at offset 13, and its copy at .* ends at offset 11")


def test_a_gap_is_bridged_by_the_ledger_beside_the_log(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "ax", rolls=True)
    make(log, out=None)
    append(log, "by", rolls=True)
    cut_start(log, 13)
    make(log, out=out)
    make(log, out=None)
    assert segments(current(out) / "orders-0") == beside(log)


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_first_copy_begins_from_the_ledger_beside_the_log(
    log: Path, out: Path, goes_on: bool
) -> None:
    make(log, out=None)
    append(log, "ax", rolls=True)
    make(log, out=None)
    if goes_on:
        append(log, "c", rolls=True)
    cut_start(log, 11)
    report = make(log, out=out)
    assert report.partitions[0].log_start_offset == 11
    make(log, out=None)
    assert segments(current(out) / "orders-0") == beside(log)
    assert manifest_of(out).partitions[0].start_offset == 0
    append(log, "e")
    make(log, out=out)
    make(log, out=None)
    assert segments(current(out) / "orders-0") == beside(log)


def test_a_log_that_ends_before_its_copy_is_refused(log: Path, out: Path, tmp_path: Path) -> None:
    make(log, out=out)
    other = write_log(tmp_path / "anew" / "orders-0", [[records("abc")]], policy=("delete",))
    refused(other, out=out, match="ends at offset 3, and its copy at .* at 11: it was cut, or is")


def test_another_topic_of_the_name_is_refused(log: Path, out: Path) -> None:
    (log / "partition.metadata").write_text("version: 0\ntopic_id: 7sHZVXyuQV-bqwTqLHb_sA\n")
    make(log, out=out)
    assert (current(out) / "orders-0" / "partition.metadata").exists()
    append(log, "q")
    (log / "partition.metadata").write_text("version: 0\ntopic_id: 8sHZVXyuQV-bqwTqLHb_sA\n")
    refused(log, out=out, match="another topic of that name than the one whose copy is at")


def test_a_damaged_copy_is_made_anew_from_the_log(log: Path, out: Path) -> None:
    make(log, out=out)
    for damage in (lambda p: p.write_bytes(b"x" + p.read_bytes()[1:]), Path.unlink, flip_last):
        append(log, "z")
        damage(max((current(out) / "orders-0").glob("*.log"), key=lambda path: path.stat().st_size))
        make(log, out=out)
        keys = [key for _, key, _ in held(current(out) / "orders-0")]
        assert keys == [b"d", b"c", b"a", b"b", b"z"]


def test_a_damaged_copy_that_nothing_replaces_is_told(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "ax", rolls=True)
    cut_start(log, 11)
    flip_last(current(out) / "orders-0" / f"{0:020d}.log")
    refused(log, out=out, match="begins at offset 11 by now: .* bring the file back")


def test_a_manifest_of_an_older_version_is_read_and_begun_anew(log: Path, out: Path) -> None:
    """It has no ledgers to build upon: the log must have all of it."""
    name = "generation-000003-9f31c0de"
    (out / name / "orders-0").mkdir(parents=True)
    entry = {"partition": "orders-0", "start_offset": 4, "end_offset": 9, "size_bytes": 1}
    fields = {"generation": 3, "directory": name, "kept": [], "made_ms": 5, "partitions": [entry]}
    (out / MANIFEST).write_text(json.dumps({"format": 1, **fields}))
    assert make(log, out=out).partitions[0].first_dirty == 0
    assert manifest_of(out).generation == 4


def test_a_topic_that_leaves_ledger_mode_loses_nothing(log: Path, out: Path) -> None:
    make(log, out=out)
    with pytest.raises(UsageError, match="is not empty; --out wants a new directory"):
        run([log], Mode.OUT, out=out)


def test_times_by_which_tombstones_go_are_those_of_the_manifest(log: Path, out: Path) -> None:
    """Nothing new, but a deadline has passed: that is a generation, too."""
    with PartitionLog.open(str(log), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        opened.append_records(records("a", None))
    make(log, out=out, now_ms=NOW_MS)
    assert make(log, out=out, now_ms=NOW_MS + 999).generation is None
    report = make(log, out=out, now_ms=NOW_MS + 1000)
    assert report.generation is not None
    assert [key for _, key, _ in held(current(out) / "orders-0")] == [b"d", b"c", b"b"]
