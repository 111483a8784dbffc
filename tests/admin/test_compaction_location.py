"""`compact --out` of topics in ledger mode: generations at another location, each upon the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import build_batch
from stratalog.record.control import ControlType
from stratalog.segment.names import CLEANER_OFFSET_CHECKPOINT
from tests.admin.helpers import NOW_MS, records, run, tree, write_log
from tests.admin.locations import (
    DISK,
    LEDGER,
    append,
    beside,
    current,
    held,
    make,
    manifest_of,
    run_mixed,
    segments,
)
from tests.cli.helpers import Shell

pytestmark = pytest.mark.requirement("LDG-1")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    batches = [[records("abcab"), records("abd")], [records("ca"), records("b")]]
    return write_log(tmp_path / "data" / "orders-0", batches, policy=("delete",))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def test_a_location_holds_a_log_that_anybody_can_open(log: Path, out: Path) -> None:
    before = tree(log)
    report = make(log, out=out)
    assert tree(log) == before
    manifest = manifest_of(out)
    assert (manifest.generation, manifest.kept) == (1, ())
    assert report.generation == manifest.directory
    [item] = report.partitions
    assert item.ledger is not None
    assert (item.ledger["number"], item.ledger["horizon"]) == (1, 11)
    copy = current(out) / "orders-0"
    assert [(offset, key) for offset, key, _ in held(copy)] == [
        (7, b"d"),
        (8, b"c"),
        (9, b"a"),
        (10, b"b"),
    ]
    with PartitionLog.open(str(copy), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        assert opened.log_end_offset == 11
    checkpoint = (current(out) / CLEANER_OFFSET_CHECKPOINT).read_text()
    assert checkpoint.split("\n")[2].split() == ["orders", "0", "11"]


def test_runs_go_on_as_a_ledger_beside_the_log_does(log: Path, out: Path) -> None:
    """The same bytes, run after run; what is read is the copy and what is new."""
    last = 0
    for turn, keys in enumerate(["", "ax", "yx", "dddd"]):
        if keys:
            append(log, keys, rolls=turn % 2 == 0)
        report = make(log, out=out, now_ms=NOW_MS + turn * 500)
        make(log, out=None, now_ms=NOW_MS + turn * 500)
        assert segments(current(out) / "orders-0") == beside(log)
        [item] = report.partitions
        assert item.ledger is not None
        assert item.ledger["horizon"] == item.log_end_offset
        assert manifest_of(out).generation == turn + 1
        assert item.first_dirty == last
        last = item.log_end_offset


def test_the_raw_log_is_read_from_the_horizon_on(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "ax", rolls=True)
    first, last_copied, _ = sorted(log.glob("*.log"))
    first.write_bytes(b"\0" * first.stat().st_size)  # nobody is to look
    assert last_copied.stem == f"{8:020d}"  # whose last batch tells that it is the same log
    report = make(log, out=out)
    assert report.partitions[0].counts.records_before == 6
    assert [key for _, key, _ in held(current(out) / "orders-0")] == [b"d", b"c", b"b", b"a", b"x"]


def test_nothing_new_is_no_generation(log: Path, out: Path) -> None:
    make(log, out=out)
    before = tree(out)
    report = make(log, out=out)
    assert tree(out) == before
    assert report.generation is None
    [item] = report.partitions
    assert item.skipped == "its ledger reaches offset 11: nothing is new"
    assert item.ledger is not None
    assert item.ledger["number"] == 1


# ---------------------------------------------------------------- several partitions


def test_partitions_that_nobody_names_stay_as_they_are(log: Path, out: Path) -> None:
    other = write_log(log.parent / "orders-1", [[records("ab")]], policy=("delete",))
    make(log, other, out=out)
    append(log, "q")
    expected = segments(current(out) / "orders-1")
    report = make(log, out=out)
    assert [item.partition for item in report.partitions] == ["orders-0"]
    assert segments(current(out) / "orders-1") == expected
    assert [entry.partition for entry in manifest_of(out).partitions] == ["orders-0", "orders-1"]
    append(other, "c")
    report = make(log, other, out=out)
    assert [item.skipped is None for item in report.partitions] == [False, True]
    assert [offset for offset, _, _ in held(current(out) / "orders-1")] == [0, 1, 2]
    assert len(held(current(out) / "orders-0")) == 5


def test_an_empty_partition_has_an_empty_copy(log: Path, out: Path) -> None:
    empty = write_log(log.parent / "orders-1", [[]], policy=("delete",))
    make(log, empty, out=out)
    assert held(current(out) / "orders-1") == []
    append(empty, "aa")
    make(log, empty, out=out)
    assert [offset for offset, _, _ in held(current(out) / "orders-1")] == [1]


def test_generations_are_kept_as_ledgers_are(log: Path, out: Path) -> None:
    def names() -> set[str]:
        return {path.name for path in out.glob("generation-*")}

    make(log, out=out)
    append(log, "q")
    make(log, out=out)
    assert len(names()) == 2
    append(log, "q")
    make(log, out=out)
    assert names() == {manifest_of(out).directory, *manifest_of(out).kept}
    assert len(names()) == 2
    append(log, "q")
    make(log, out=out, compaction_ledgers_retained="4")
    assert len(names()) == 3
    append(log, "q")
    make(log, out=out, compaction_ledgers_retained="1")
    assert names() == {manifest_of(out).directory}


def test_no_generation_shares_a_file_with_another(log: Path, out: Path) -> None:
    """Somebody opens one as a log and appends; the next run does not care."""
    make(log, out=out)
    append(log, "x")
    expected = held(current(out) / "orders-0")
    first = current(out)
    append(first / "orders-0", "www")
    make(log, out=out)
    files = [path.stat().st_ino for path in out.rglob("*.log")]
    assert len(files) == len(set(files))
    found = held(current(out) / "orders-0")
    assert [key for _, key, _ in found] == [key for _, key, _ in expected] + [b"x"]


def test_topics_of_both_modes_go_into_one_location(log: Path, out: Path, tmp_path: Path) -> None:
    plain = write_log(log.parent / "users-0", [[records("aab")], [records("a")]])
    book = {"orders": {**LEDGER}, "users": {"cleanup.policy": "compact"}}
    alone = tmp_path / "alone"
    run([plain], Mode.OUT, out=alone)
    for _ in range(2):
        run_mixed(log.parent, out, book)
        assert segments(current(out) / "users-0") == segments(alone / "users-0")
        assert len(held(current(out) / "orders-0")) == 4
    text = (current(out) / CLEANER_OFFSET_CHECKPOINT).read_text()
    assert "orders 0 11" in text
    assert "users 0 " in text


def test_a_transaction_that_ends_behind_the_horizon_is_whole(log: Path, out: Path) -> None:
    """Its marker is not in the copy, and nobody waits for it there."""
    with PartitionLog.open(str(log), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        for producer in (1, 2):
            named = {"producer_id": producer, "producer_epoch": 0}
            opened.append(build_batch(records("e"), **named, base_sequence=0, transactional=True))
        opened.append_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0)
        assert opened.last_stable_offset == 12
    make(log, out=out)
    copy = current(out) / "orders-0"
    assert [offset for offset, _, _ in held(copy)] == [7, 8, 9, 10, 11]
    with PartitionLog.open(str(log), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        opened.append_marker(ControlType.ABORT, producer_id=2, producer_epoch=0)
    make(log, out=out)
    assert [offset for offset, _, _ in held(current(out) / "orders-0")] == [7, 8, 9, 10, 11]


def test_another_order_of_versions_makes_the_copy_anew(log: Path, out: Path) -> None:
    make(log, out=out)
    append(log, "q")
    report = make(log, out=out, compaction_strategy="timestamp")
    assert report.partitions[0].first_dirty == 0
    ledger = manifest_of(out).partitions[0].ledger
    assert ledger is not None
    assert ledger.order == "timestamp"


def test_what_the_commands_say_of_a_location(
    log: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(capsys)
    words = [f"--config={name}={value}" for name, value in LEDGER.items()]
    command = ["compact", log.parent, "--out", out, "--engine", "local", *words]
    made = shell(*command)
    assert made.code == 0, made.err
    found = current(out)
    summary = made.out.splitlines()[-1]
    assert summary.startswith("Compacted into 1 ledger of ")
    assert f" B, {found}. " in summary
    again = shell(*command)
    assert again.out.splitlines()[-1] == f"{out}: nothing is new; its generation stays."
    append(log, "q")
    told = shell(*command, "--format", "json").json
    assert told["generation"] == current(out).name
    assert told["partitions"][0]["ledger"]["number"] == 2
    dumped = shell("log", "dump", out)
    assert str(current(out) / "orders-0") in dumped.out
    asked = shell("stats", out)
    assert asked.code == 1
    assert f"name the one that counts: {current(out)}" in asked.err
