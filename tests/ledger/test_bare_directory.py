"""`stratalog compact DIR --config compaction.mode=ledger`: a directory that no server has open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.report import CompactionReport, Mode
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.history import read_history
from stratalog.clean.local_engine import LocalEngine
from stratalog.ledger.manifest import ledgers_path, read_manifest
from stratalog.ledger.status import RunState, read_status
from stratalog.ledger.view import CompactedView, open_generation
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from tests.admin.helpers import NOW_MS, records, run, tree, write_log
from tests.cli.helpers import Outcome, Shell

pytestmark = pytest.mark.requirement("LDG-1", "LDG-2")
DISK = LocalFileSystem()
LEDGER = {"compaction.mode": "ledger", "cleanup.policy": "delete", "delete.retention.ms": "1000"}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    shell = Shell(capsys)
    return lambda *arguments: shell("compact", "--engine", "local", *arguments)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    batches = [[records("abcab"), records("abd")], [records("ca"), records("b")]]
    return write_log(tmp_path / "data" / "orders-0", batches, policy=("delete",))


def make(log: Path, *, now_ms: int = NOW_MS, mode: Mode = Mode.IN_PLACE, **given: str) -> Any:
    named = {name.replace("_", "."): value for name, value in given.items()}
    report = run([log], mode, given={**LEDGER, **named}, now_ms=now_ms)
    assert isinstance(report, CompactionReport)
    return report.partitions[0]


def compacted(log: Path) -> list[tuple[int, bytes | None]]:
    current = read_manifest(DISK, str(log)).current
    ledger = None if current is None else open_generation(DISK, str(log), current)
    with PartitionLog.open(
        str(log), LogSettings(), DISK, FixedClock(NOW_MS), read_only=True
    ) as opened:
        view = CompactedView(ledger, opened.view)
    return [(record.offset, record.key) for record in view.read_records(view.start_offset)]


def append(log: Path, keys: Sequence[str]) -> None:
    with PartitionLog.open(str(log), LogSettings(), DISK, FixedClock(NOW_MS)) as opened:
        opened.append_records(records(keys))


def raw_files(log: Path) -> dict[str, tuple[str, int]]:
    return {name: item for name, item in tree(log).items() if not name.startswith(".stratalog")}


LATEST = [(7, b"d"), (8, b"c"), (9, b"a"), (10, b"b")]


def test_what_the_commands_say_of_a_ledger(
    log: Path, command: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    config = ("--config", "compaction.mode=ledger", "--config", "cleanup.policy=delete")
    made = command(str(log), "--in-place", "--now", str(NOW_MS), *config)
    assert made.code == 0
    assert made.out.splitlines()[-1].startswith("Compacted into 1 ledger of ")
    told = Shell(capsys)("compaction", "status", str(log.parent), *config)
    assert told.out.splitlines()[-1].split()[-1] == "ledger"


def test_a_ledger_beside_a_log_that_stays_as_it_is(log: Path) -> None:
    before = raw_files(log)
    report = make(log)
    assert raw_files(log) == before
    assert compacted(log) == LATEST
    assert (report.first_dirty, report.end_offset, report.counts.records_after) == (0, 11, 4)
    assert report.log_bytes_after == report.log_bytes_before
    assert not report.rolled
    assert report.ledger["number"] == 1
    assert report.ledger["horizon"] == 11
    assert read_status(DISK, str(log)).state is RunState.SUCCEEDED
    [entry] = read_history(DISK, str(log))
    assert (entry.trigger, entry.mode, entry.generation) == ("command", "ledger", 1)


def test_the_next_run_builds_upon_it(log: Path) -> None:
    make(log)
    report = make(log)
    assert report.skipped == "its ledger reaches offset 11: nothing is new"
    append(log, "ax")
    report = make(log)
    assert (report.first_dirty, report.counts.records_before) == (11, 6)
    assert compacted(log) == [(7, b"d"), (8, b"c"), (10, b"b"), (11, b"a"), (12, b"x")]
    assert [one.number for one in read_manifest(DISK, str(log)).generations] == [1, 2]


def test_a_dry_run_changes_nothing_and_names_what_would_go(
    log: Path, command: Callable[..., Outcome]
) -> None:
    before = tree(log)
    found = make(log, mode=Mode.DRY_RUN)
    assert tree(log) == before
    assert found.ledger is None
    assert found.counts.dropped.superseded == 7
    answer = command(log, "--dry-run", "--config", "compaction.mode=ledger", "--format", "json")
    assert answer.code == 0, answer.err
    document = answer.json
    [partition] = document["partitions"]
    assert {top["key"] for top in partition["top_keys"]} == {"a", "b", "c"}
    assert tree(log) == before


def test_the_command(log: Path, command: Callable[..., Outcome]) -> None:
    answer = command(log, "--in-place", "--config", "compaction.mode=ledger", "--format", "json")
    assert answer.code == 0, answer.err
    [partition] = answer.json["partitions"]
    assert partition["ledger"]["number"] == 1
    assert compacted(log) == LATEST
    assert command(log, "--in-place", "--config", "compaction.mode=ledger").code == 0


def test_a_log_with_a_ledger_is_not_cleaned_in_place_by_accident(
    log: Path, command: Callable[..., Outcome]
) -> None:
    make(log)
    before = tree(log)
    answer = command(log, "--in-place")
    assert answer.code == 1
    assert "it has a ledger; say --config compaction.mode=ledger" in answer.err
    assert tree(log) == before
    answer = command(log, "--in-place", "--config", "compaction.mode=inplace")
    assert answer.code == 0, answer.err
    assert read_manifest(DISK, str(log)).current is None
    assert not list(Path(ledgers_path(str(log))).rglob("*.log"))
    assert [offset for offset, _ in compacted(log)] == [7, 8, 9, 10]


def test_a_copy_of_the_raw_log_does_not_leave_out_what_only_the_ledger_has(
    log: Path, tmp_path: Path
) -> None:
    make(log)
    append(log, "x")
    (log.parent / "log-start-offset-checkpoint").write_text("0\n1\norders 0 9\n")
    with pytest.raises(UsageError, match="its ledger holds records from 0 on, its raw log only"):
        run([log], Mode.OUT, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damage_leaves_the_ledger_before(log: Path) -> None:
    make(log)
    before = read_manifest(DISK, str(log))
    append(log, "ab")
    path = max(log.glob("*.log"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptionError):
        make(log)
    assert read_manifest(DISK, str(log)) == before
    assert not Path(ledgers_path(str(log)), "00000002").exists()


def test_all_or_nothing_leaves_no_ledger_of_the_others(log: Path) -> None:
    """Of two partitions the second cannot be read: the first one's run is undone, and says so."""
    other = write_log(log.parent / "orders-1", [[records("ab")]], policy=("delete",))
    path = next(other.glob("*.log"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptionError):
        run([log, other], Mode.IN_PLACE, given=LEDGER)
    for directory in (log, other):
        assert read_manifest(DISK, str(directory)).current is None
        assert not list(Path(ledgers_path(str(directory))).glob("0*"))
    assert read_status(DISK, str(log)).state is RunState.FAILED


def test_an_engine_that_is_interrupted_leaves_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "clean", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make(log)
    assert not list(Path(ledgers_path(str(log))).glob("0*"))
    status = read_status(DISK, str(log))
    assert (status.state, status.cause) == (RunState.FAILED, "interrupted")


def test_who_looks_at_a_partition_finds_nothing_odd_in_its_ledgers(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(log)
    shell = Shell(capsys)
    before = tree(log)
    assert shell("log", "verify", log.parent, "--format", "json").code == 0
    found = shell("log", "repair", log, "--apply", "--format", "json")
    assert found.code == 0, found.err
    ledgers = {name: item for name, item in before.items() if "ledgers" in name}
    assert ledgers.items() <= tree(log).items(), "the repair took the ledgers for something else"
    page = tmp_path / "page.html"
    assert shell("stats", log.parent, "--html", page).code == 0
    assert page.exists()
