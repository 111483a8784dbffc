"""A log that ends below its ledger's horizon, as damage was cut off: nothing of the ledger goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

import pytest

import stratalog
from stratalog.admin.desk import open_desk
from stratalog.admin.repair import CUT, RepairOptions, repair
from stratalog.admin.service import open_service
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.config.book import SettingsBook
from stratalog.ledger.manifest import held_alone, manifest_path, read_manifest, with_lost
from stratalog.log.open_log import OpenLog
from stratalog.pipeline.places import Place, opened_parts
from stratalog.segment.names import (
    CLEAN_SHUTDOWN_FILE,
    RECOVERY_POINT_CHECKPOINT,
    FileKind,
    TopicPartition,
    parse,
)
from stratalog.segment.segment import segment_path
from tests.admin.helpers import tree
from tests.clean.services import NOW, put
from tests.cli.helpers import Outcome, Shell
from tests.ledger.running import LOG, TOPIC, latest, living
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal, explore
from tests.sim.sweeps import budget

pytestmark = [
    pytest.mark.requirement("LDG-1", "RCV-7"),
    pytest.mark.usefixtures("hasty_disk"),
]
DISK = LocalFileSystem()
A0 = TopicPartition("a", 0)
LEDGER = {"compaction.mode": "ledger", "cleanup.policy": "delete", "segment.bytes": "1048576"}
HELD = [(1, b"k1"), (2, b"k2"), (4, b"k4"), (5, b"k0"), (7, b"k7"), (8, b"k3"), (9, b"k5")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A topic whose ledger has offsets 0 to 9, its raw log 3 to 9, in segments of which the one at
    7 is damaged."""
    path = tmp_path / "data"
    with open_desk([str(path)], DISK, FixedClock(NOW)) as desk:
        desk.create_topic("a", 1, LEDGER)
        log = desk.service.store.get(A0)
        for keys in (["k0", "k1", "k2"], ["k3", "k4", "k0", "k5"], ["k7", "k3", "k5"]):
            log.roll()
            put(log, *((key, "v") for key in keys))
        desk.service.compact(A0)
        desk.service.store.delete_records(A0, 3)
        desk.service.store.run_retention()
    damaged = path / "a-0" / f"{7:020d}.log"
    content = bytearray(damaged.read_bytes())
    content[70] ^= 1
    damaged.write_bytes(content)
    return path


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    return Shell(capsys)


def compacted(path: Path) -> list[tuple[int, bytes | None]]:
    with (
        open_desk([str(path)], DISK, FixedClock(NOW)) as desk,
        desk.service.ledgers.compacted(A0) as view,
    ):
        return [(record.offset, record.key) for record in view.read_records(view.start_offset)]


SAID = (
    "the log ends at offset 7 and its ledger 1 (offsets 0 to 9) reaches past that: the log goes "
    "on at offset 10, so that the ledger stays; offsets 7 to 9 are only in it"
)


def test_a_repair_that_cuts_keeps_what_only_the_ledger_has(
    data: Path, shell: Callable[..., Outcome]
) -> None:
    before = read_manifest(DISK, str(data / "a-0"))
    files = tree(data)
    for applies in ((), ("--apply",)):
        options = ("--damage", "cut", "--format", "json", *applies)
        told = json.loads(shell("log", "repair", str(data), *options).out)
        [item] = told["partitions"]
        assert {"what": "ledger", "text": SAID} in item["steps"]
        assert item["ledger"] == {"number": 1, "start_offset": 0, "horizon": 10}
        assert (tree(data) == files) == (not applies)
    assert shell("log", "verify", str(data)).code == 0
    again = json.loads(shell("log", "repair", str(data), "--format", "json").out)
    assert again["partitions"][0]["steps"] == []
    assert read_manifest(DISK, str(data / "a-0")) == with_lost(before, 7, 10)
    assert compacted(data) == HELD
    with open_desk([str(data)], DISK, FixedClock(NOW)) as desk:
        log = desk.service.store.get(A0)
        assert (log.log_start_offset, log.log_end_offset) == (3, 10)
        put(log, ("k1", "new"))
        desk.service.compact(A0)
        assert desk.service.ledgers.manifest(A0).current is not None
    assert compacted(data) == [*HELD[1:], (10, b"k1")]


def test_the_text_says_it(data: Path, shell: Callable[..., Outcome]) -> None:
    assert f"  {SAID}" in shell("log", "repair", str(data), "--damage", "cut").out.splitlines()
    told = shell("log", "repair", str(data)).out
    goes_on = "the log ends at 7 and goes on at 10 (offsets 7 to 9 are only in ledger 1); loses"
    assert f"--damage cut: {goes_on}" in told


def fresh(path: Path, damaged_at: int) -> None:
    """A ledger of offsets 0 to 9, of which the raw log has lost nothing but to the damage."""
    with open_desk([str(path)], DISK, FixedClock(NOW)) as desk:
        desk.create_topic("a", 1, LEDGER)
        log = desk.service.store.get(A0)
        for keys in (["k0", "k1", "k2"], ["k3", "k4", "k5", "k6"], ["k7", "k8", "k9"]):
            log.roll()
            put(log, *((key, "v") for key in keys))
        desk.service.compact(A0)
    damaged = path / "a-0" / f"{damaged_at:020d}.log"
    content = bytearray(damaged.read_bytes())
    content[70] ^= 1
    damaged.write_bytes(content)


@pytest.mark.parametrize(
    ("choice", "damaged_at", "alone"),
    [("cut", 7, (7, 10)), ("cut", 3, (3, 10)), ("skip", 3, (3, 7))],
)
def test_what_damage_took_from_the_raw_log_is_only_in_the_ledger(
    tmp_path: Path,
    shell: Callable[..., Outcome],
    choice: str,
    damaged_at: int,
    alone: tuple[int, int],
) -> None:
    data = tmp_path / "data"
    fresh(data, damaged_at)
    shell("log", "repair", str(data), "--damage", choice, "--apply")
    held = [(number, f"k{number}".encode()) for number in range(10)]
    assert held_alone(read_manifest(DISK, str(data / "a-0")).current, 0) == alone
    # Another order makes no ledger anew of a raw log that lacks some of it.
    told = shell(
        "config", "alter", "a", "--add-config", "compaction.strategy=timestamp", "--data", str(data)
    )
    assert f"offsets {alone[0]} to {alone[1] - 1} are only in its ledger" in told.err
    assert shell("compaction", "run", "a", "--wait", "--data", str(data)).code == 0
    assert compacted(data) == held
    # Nor does it go without a word, by either way.
    files = tree(data)
    mode = ("--config", "compaction.mode=inplace", "--config", "cleanup.policy=compact")
    told = shell("compact", str(data), "--in-place", "--engine", "local", *mode)
    assert told.code != 0
    assert "are only in its ledger" in told.err
    told = shell(
        "config", "alter", "a", "--add-config", "compaction.mode=inplace", "--data", str(data)
    )
    assert told.code == 2
    assert "nobody to ask" in told.err
    assert compacted(data) == held
    assert {name for name in files if "ledgers" in name} <= set(tree(data))


def test_a_ledger_that_is_built_upon_keeps_the_note(
    tmp_path: Path, shell: Callable[..., Outcome]
) -> None:
    data = tmp_path / "data"
    fresh(data, 3)
    shell("log", "repair", str(data), "--damage", "skip", "--apply")
    with open_desk([str(data)], DISK, FixedClock(NOW)) as desk:
        put(desk.service.store.get(A0), ("k0", "new"))
        desk.service.compact(A0)
        current = desk.service.ledgers.manifest(A0).current
    assert current is not None
    assert (current.number, held_alone(current, 0), held_alone(current, 8)) == (2, (3, 7), (0, 8))
    shell(
        "config",
        "alter",
        "a",
        "--add-config",
        "compaction.mode=inplace",
        "--no-confirm",
        "--data",
        str(data),
    )
    assert read_manifest(DISK, str(data / "a-0")).current is None


def test_with_a_damaged_manifest_nothing_is_cut(data: Path, shell: Callable[..., Outcome]) -> None:
    Path(manifest_path(str(data / "a-0"))).write_bytes(b"nonsense")
    logs = {path.name: path.read_bytes() for path in (data / "a-0").glob("*.log")}
    told = shell("log", "repair", str(data), "--damage", "cut", "--apply")
    assert told.code == 1
    assert "does not match its checksum; if the raw log still has all" in told.out
    assert {path.name: path.read_bytes() for path in (data / "a-0").glob("*.log")} == logs


def cut_by_hand(data: Path) -> None:
    """As a recovery that takes damage for a torn end: the log ends at 7."""
    for file in (data / "a-0").glob(f"{7:020d}.*"):
        file.unlink()
    for file in (data / "a-0").glob(f"{10:020d}.*"):
        file.unlink()
    (data / "recovery-point-offset-checkpoint").unlink()
    (data / ".kafka_cleanshutdown").unlink()


def test_any_open_lets_the_log_go_on_behind_the_ledger(data: Path) -> None:
    cut_by_hand(data)
    assert compacted(data) == HELD
    with open_desk([str(data)], DISK, FixedClock(NOW)) as desk:
        assert desk.service.store.get(A0).log_end_offset == 10


def test_where_it_cannot_go_on_nothing_is_appended(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_by_hand(data)

    def fails(*_: object) -> bool:
        raise StorageIOError("no space left")

    monkeypatch.setattr(OpenLog, "skip_to", fails)
    with open_desk([str(data)], DISK, FixedClock(NOW)) as desk:
        log = desk.service.store.get(A0)
        assert log.offline == "it cannot go on behind its ledger: no space left"
    monkeypatch.undo()
    assert compacted(data) == HELD


def test_who_only_looks_is_told(data: Path, shell: Callable[..., Outcome]) -> None:
    """A directory that nobody opens to write: its compacted view is not answered without the
    ledger, and no ledger is made over it."""
    cut_by_hand(data)
    before = read_manifest(DISK, str(data / "a-0"))
    mode = ("--config", "compaction.mode=ledger", "--config", "cleanup.policy=delete")
    told = shell("compact", str(data / "a-0"), "--in-place", "--engine", "local", *mode)
    assert told.code == 1
    assert "below the horizon of its ledger 1, 10: `stratalog log repair` lets it go on" in told.err
    assert read_manifest(DISK, str(data / "a-0")) == before
    place = Place(str(data), A0)
    with (
        pytest.raises(CorruptionError, match="below the horizon of its ledger 1"),
        opened_parts(place, with_ledger=True),
    ):
        pass
    assert shell("log", "repair", str(data), "--apply").code == 0
    assert compacted(data) == HELD


SMALL = replace(TOPIC, segment_bytes=600, ledgers_retained=1)
LOGS = replace(LOG, segment_bytes=300)


def made() -> tuple[SimDisk, str, int]:
    """A store that was closed in order, whose ledger alone has what was deleted; where its log
    lies, and a segment in it that is not the last."""
    disk = SimDisk()
    with living(disk, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW)) as life:
        for number in range(12):
            put(life.log, (f"k{number % 5}", f"v{number}"), (f"only{number}", "x"))
        life.ask()
        life.store.delete_records(life.key, 6)
        life.store.run_retention()
        life.store.unlink_due()
        return disk, life.log.path, life.log.segments.bases[-2]


def laid() -> SimDisk:
    """Of that the log's end is gone, and what says how far it was flushed."""
    disk, path, last = made()
    for name in disk.list_directory(path):
        found = parse(name)
        if found is not None and found.base_offset >= last:
            disk.unlink(f"{path}/{name}")
    for name in disk.list_directory("/data"):
        if name in (RECOVERY_POINT_CHECKPOINT, CLEAN_SHUTDOWN_FILE):
            disk.unlink(f"/data/{name}")
    return disk.sync_all()


def go_on(disk: SimDisk, journal: Journal) -> None:
    with living(disk, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW + 5)) as life:
        put(life.log, ("k0", "behind it"))
        life.log.flush()
        journal.promise("appended")
        life.ask()


def test_it_goes_on_whatever_is_cut(count_cases: Callable[[str, int], None]) -> None:
    start = laid()
    with living(start.fork(), topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW)) as life:
        held = latest(life.compacted())
        before = life.current
        assert before is not None
        assert life.log.log_end_offset == before.horizon == 24
        assert len(held) == 17

    def judge(image: SimDisk, promise: Hashable, _: Hashable) -> None:
        with living(image, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW + 9)) as life:
            found = latest(life.compacted())
            appended = found.pop(b"k0") if promise else None
            wanted = {key: value for key, value in held.items() if key != b"k0" or not promise}
            if not promise and found[b"k0"] != held[b"k0"]:
                found[b"k0"] = held[b"k0"]  # on the disk, and nobody was told
            assert found == wanted
            assert appended in (None, (24, b"behind it"))
            assert life.log.log_end_offset in ((25,) if promise else (24, 25))

    states = budget(150)
    stats = explore(
        go_on, judge, seed=3, max_states=states, start=start, name="a log goes on behind its ledger"
    ).count(count_cases)
    assert stats.operations > 20


def test_a_repair_that_cuts_stands_every_cut(count_cases: Callable[[str, int], None]) -> None:
    start, path, last = made()
    with living(start.fork(), topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW)) as life:
        held = latest(life.compacted())
    file = start.open(segment_path(path, last, FileKind.LOG), "update")
    file.pwrite(b"damage", 70)
    file.close()

    def cut(disk: SimDisk) -> None:
        options = RepairOptions(applies=True, choice=CUT)
        report = repair(["/data"], options, disk, FixedClock(NOW), lambda _: None)
        assert report.is_ok, report

    def judge(image: SimDisk, promise: Hashable, _: Hashable) -> None:
        if not promise:
            cut(image)
        with living(image, topic=SMALL, log_settings=LOGS, clock=FixedClock(NOW + 9)) as life:
            assert latest(life.compacted()) == held
            assert life.log.log_end_offset == 24
            assert life.log.is_writable

    def scenario(disk: SimDisk, journal: Journal) -> None:
        cut(disk)
        journal.promise("repaired")

    states = budget(150)
    stats = explore(
        scenario, judge, seed=4, max_states=states, start=start.sync_all(), name="a cut"
    ).count(count_cases)
    assert stats.operations > 20


@pytest.mark.parametrize("choice", ["cut", "skip"])
def test_a_log_that_loses_all_since_its_start_is_whole_after_one_repair(
    tmp_path: Path, shell: Callable[..., Outcome], choice: str
) -> None:
    """The damage lies below the log start, which is the ledger's end."""
    data = tmp_path / "data"
    fresh(data, 0)
    with open_desk([str(data)], DISK, FixedClock(NOW)) as desk:
        desk.service.store.delete_records(A0, 10)
    told = json.loads(
        shell("log", "repair", str(data), "--damage", choice, "--apply", "--format", "json").out
    )
    assert [item["left"] for item in told["partitions"]] == [[]]
    assert told["ok"] is True
    assert compacted(data) == [(number, f"k{number}".encode()) for number in range(10)]


def test_what_the_raw_log_lacks_is_not_answered_as_of_then(
    tmp_path: Path, shell: Callable[..., Outcome]
) -> None:
    """Between two ledgers, where only records that are gone would answer."""
    data = tmp_path / "data"
    fresh(data, 3)
    shell("log", "repair", str(data), "--damage", "skip", "--apply")
    with stratalog.open(str(data), background=False) as store:
        topic = store.topic("a")
        topic.append("k10", "v")
        for offset in (4, 9):
            with pytest.raises(UsageError, match="has lost records of offsets 3 to 6 to damage"):
                topic.read("latest", as_of=offset)
        for offset in (3, 10, 11):
            found = {record.key for record in topic.read("latest", as_of=offset)}
            assert found == {f"k{number}".encode() for number in range(offset)}
        assert [record.key for record in topic.read("latest", as_of=f"@{NOW}")] == []


def test_a_server_file_that_leaves_the_mode_waits_for_a_word(
    tmp_path: Path, shell: Callable[..., Outcome]
) -> None:
    """Nobody was asked: cleaning in place fails rather than drop what only the ledger has."""
    data = tmp_path / "data"
    fresh(data, 3)
    shell("log", "repair", str(data), "--damage", "skip", "--apply")
    told = {"cleanup.policy": "compact", "compaction.mode": "inplace"}
    (data / "stratalog-topics").unlink()
    book = SettingsBook(topics={"a": told})
    with open_service([str(data)], book, DISK, FixedClock(NOW)) as service:
        with pytest.raises(UsageError, match="offsets 3 to 6 are only in its ledger"):
            service.compact(A0)
        assert service.ledgers.manifest(A0).current is not None
