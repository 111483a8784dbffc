"""Retention waits for the ledger: what is decided, and what a command says and does of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from stratalog.admin.report import Mode
from stratalog.admin.retention import plan_retention, run_retention
from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.cli.retention import render
from stratalog.config.settings import resolve
from stratalog.ledger.copies import held_from
from stratalog.ledger.manifest import manifest_path
from stratalog.log.retention import RetentionView, SegmentFacts, by_size, decide
from stratalog.log.settings import LogSettings
from tests.admin.helpers import NOW_MS, records, run, write_log

pytestmark = pytest.mark.requirement("LDG-1", "RET-2", "RET-4")
DISK = LocalFileSystem()
LATER_MS = NOW_MS + (1 << 40)


def view(*bounds: int, start: int = 0) -> RetentionView:
    """Segments of 100 bytes between the bounds, all of them as old as can be."""
    segments = tuple(SegmentFacts(base, end, 100, lambda: 0) for base, end in pairwise(bounds))
    return RetentionView(segments, start, bounds[-1])


@pytest.mark.parametrize(
    ("held", "gone", "is_held"),
    [(None, 4, False), (0, 0, True), (9, 0, True), (10, 1, True), (25, 2, True), (40, 4, False)],
)
def test_what_ends_above_the_horizon_stays(held: int | None, gone: int, is_held: bool) -> None:
    for settings in (LogSettings(retention_ms=1), LogSettings(retention_bytes=0, retention_ms=-1)):
        made = decide(view(0, 10, 20, 30, 40), settings, 1000, held_from=held)
        assert len(made.deletions) == gone
        assert made.held_from == (held if is_held else None)
        assert made.rolls == (gone == 4)


def test_what_lies_below_the_log_start_goes_all_the_same() -> None:
    made = decide(view(0, 10, 20, 30, start=20), LogSettings(retention_ms=1), 1000, held_from=0)
    assert [deletion.base_offset for deletion in made.deletions] == [0, 10]
    assert made.held_from == 0, "its time is over, too"


def test_policies_of_others_are_held_to_it() -> None:
    settings = LogSettings(retention_bytes=0, retention_ms=-1)
    made = decide(view(0, 10, 20), settings, 1, [by_size], held_from=10)
    assert len(made.deletions) == 1


@pytest.fixture
def log(tmp_path: Path) -> Path:
    batches = [[records("abcab")], [records("ca")], [records("bd")]]
    return write_log(tmp_path / "data" / "orders-0", batches, policy=("delete",))


def test_the_commands_of_retention_wait(log: Path) -> None:
    told = resolve({"compaction.mode": "ledger", "retention.ms": "1", "cleanup.policy": "delete"})
    clock = FixedClock(LATER_MS)
    run([log], Mode.IN_PLACE, given={"compaction.mode": "ledger"})
    settings = LogSettings(has_ledger_mode=True)
    assert held_from(DISK, str(log), settings, 0) == 9
    assert held_from(DISK, str(log), LogSettings(), 9) == 9, "left, and not given up"
    assert held_from(DISK, str(log), LogSettings(), 10) is None, "it answers nobody any more"
    write_more(log)
    [planned] = plan_retention([str(log)], told, DISK, clock).partitions
    assert planned.decision is not None
    assert [deletion.base_offset for deletion in planned.decision.deletions] == [0, 5]
    assert planned.decision.held_from == planned.as_json()["held_from"] == 9
    report = plan_retention([str(log)], told, DISK, clock)
    assert "orders-0: what ends past offset 9 stays: retention goes no further" in render(report)
    [done] = run_retention([str(log)], told, DISK, clock, lambda _: None).partitions
    assert done.error is None
    assert min(path.name for path in log.glob("*.log")) == f"{7:020d}.log"


def write_more(log: Path) -> None:
    from stratalog.log.partition_log import PartitionLog

    with PartitionLog.open(str(log), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        opened.append_records(records("xy"))


def test_a_damaged_manifest_lets_nothing_go(log: Path) -> None:
    run([log], Mode.IN_PLACE, given={"compaction.mode": "ledger"})
    Path(manifest_path(str(log))).write_bytes(b"nonsense")
    for has_mode in (True, False):
        assert held_from(DISK, str(log), LogSettings(has_ledger_mode=has_mode), 0) == 0


def test_without_a_ledger_a_threshold_holds(log: Path) -> None:
    assert held_from(DISK, str(log), LogSettings(has_ledger_mode=True), 0) is None
    waiting = LogSettings(has_ledger_mode=True, ledger_threshold_bytes=1)
    assert held_from(DISK, str(log), waiting, 0) == 0
