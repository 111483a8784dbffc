"""A topic that has a ledger gets another mode or order of versions: nothing is lost unsaid."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import pytest

from stratalog.admin.desk import BareDesk, OwnDesk, open_desk
from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.base.errors import ConfirmationNeededError, CorruptionError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.job import Order
from stratalog.clean.select import Reason, choose, explain
from stratalog.config.book import SettingsBook
from stratalog.ledger.manifest import manifest_path, read_manifest
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import records, run, write_log
from tests.clean.services import NOW, put
from tests.cli.helpers import Shell
from tests.ledger.running import living
from tests.sim.disk import SimDisk

DISK = LocalFileSystem()
A0 = TopicPartition("a", 0)
LEDGER = {"compaction.mode": "ledger", "cleanup.policy": "delete"}


def with_lost_records(desk: OwnDesk) -> None:
    """A topic `a` whose ledger alone has offsets 0 to 2."""
    desk.create_topic("a", 1, LEDGER)
    log = desk.service.store.get(A0)
    put(log, ("k0", "v0"), ("k1", "v1"), ("k2", "v2"), ("k0", "v3"))
    desk.service.compact(A0)
    log.roll()
    put(log, ("k0", "v4"))
    desk.service.store.delete_records(A0, 3)


INPLACE = {"compaction.mode": "inplace", "cleanup.policy": "compact"}
GIVEN_UP = {"topic": "a", "partition": 0, "ledger": 1, "start_offset": 0, "end_offset": 3}
SAID = "a-0: offsets 0 to 2 are only in its ledger"


def desk_at(path: Path, **how: Any) -> AbstractContextManager[OwnDesk]:
    return open_desk([str(path)], DISK, FixedClock(NOW), **how)


@pytest.mark.requirement("LDG-1")
def test_what_only_a_ledger_has_is_given_up_by_who_says_so(tmp_path: Path) -> None:
    with desk_at(tmp_path) as desk:
        with_lost_records(desk)
        made = desk.service.ledgers.manifest(A0)
        shown = desk.alter_configs("topic", "a", INPLACE, dry_run=True)
        assert shown["given_up"] == [GIVEN_UP]
        assert shown["warnings"] == [f"{SAID}, which goes with this change"]
        with pytest.raises(ConfirmationNeededError, match=f"^{SAID}: confirm that they"):
            desk.alter_configs("topic", "a", INPLACE)
        assert desk.describe_topic("a")["compaction_mode"] == "ledger"
        assert desk.service.ledgers.manifest(A0) == made
        done = desk.alter_configs("topic", "a", INPLACE, confirm=True)
        assert done["given_up"] == [GIVEN_UP]
        assert desk.service.ledgers.manifest(A0).current is None
        desk.service.compact(A0)


@pytest.mark.requirement("LDG-1", "CFG-2")
@pytest.mark.parametrize("level", ["topic", "prefix", "broker"])
def test_it_is_the_same_at_every_level_and_for_an_override_that_goes(
    tmp_path: Path, level: Literal["topic", "prefix", "broker"]
) -> None:
    name = "log.cleaner.compaction.mode" if level == "broker" else "compaction.mode"
    entity = None if level == "broker" else "a"
    with desk_at(tmp_path) as desk:
        with_lost_records(desk)
        if level != "topic":
            desk.alter_configs(level, entity, {name: "ledger"})
            desk.alter_configs("topic", "a", delete=["compaction.mode"])
        for change in ({"set": {name: "inplace"}}, {"delete": [name]}):
            with pytest.raises(ConfirmationNeededError, match=SAID):
                desk.alter_configs(level, entity, **change)  # type: ignore[arg-type]
        desk.alter_configs(level, entity, delete=[name], confirm=True)
        assert desk.service.ledgers.manifest(A0).current is None


@pytest.mark.requirement("LDG-1")
def test_a_directory_that_nobody_has_open_asks_as_well(tmp_path: Path) -> None:
    with desk_at(tmp_path) as desk:
        with_lost_records(desk)
    bare = BareDesk([str(tmp_path)], DISK, FixedClock(NOW))
    with pytest.raises(ConfirmationNeededError, match=SAID):
        bare.alter_configs("topic", "a", INPLACE)
    assert bare.alter_configs("topic", "a", INPLACE, confirm=True)["applied"]
    assert read_manifest(DISK, str(tmp_path / "a-0")).current is None


@pytest.mark.requirement("LDG-1")
def test_a_ledger_of_a_whole_log_goes_with_the_mode(tmp_path: Path) -> None:
    with desk_at(tmp_path) as desk:
        desk.create_topic("a", 1, LEDGER)
        put(desk.service.store.get(A0), ("k0", "v0"), ("k0", "v1"))
        desk.service.compact(A0)
        done = desk.alter_configs("topic", "a", INPLACE)
        assert (done["warnings"], done["given_up"]) == ([], [])
        assert desk.service.ledgers.manifest(A0).current is None


@pytest.mark.requirement("LDG-1")
def test_ledgers_of_other_topics_stay(tmp_path: Path) -> None:
    """One that is left by another topic, for what somebody says of this one or of all."""
    ledger = SettingsBook(broker={"log.cleaner.compaction.mode": "ledger"})
    with desk_at(tmp_path, book=ledger) as desk:
        with_lost_records(desk)
        desk.alter_configs("topic", "a", delete=["compaction.mode"])
        desk.create_topic("b", 1, LEDGER)
    with desk_at(tmp_path) as desk:
        desk.alter_configs("topic", "b", {"compaction.mode": "inplace"})
        desk.alter_configs("broker", None, {"log.cleaner.compaction.mode": "inplace"})
        assert desk.service.ledgers.manifest(A0).current is not None


@pytest.mark.requirement("LDG-1")
def test_a_damaged_manifest_goes_only_if_that_is_said(tmp_path: Path) -> None:
    with desk_at(tmp_path) as desk:
        with_lost_records(desk)
    Path(manifest_path(str(tmp_path / "a-0"))).write_bytes(b"nonsense")
    with desk_at(tmp_path) as desk:
        with pytest.raises(ConfirmationNeededError, match="which is damaged, may alone have"):
            desk.alter_configs("topic", "a", INPLACE)
        desk.alter_configs("topic", "a", INPLACE, confirm=True)
        assert desk.service.ledgers.manifest(A0).current is None


@pytest.mark.requirement("LDG-1")
def test_ledgers_without_their_manifest_go_only_if_that_is_said(tmp_path: Path) -> None:
    with desk_at(tmp_path) as desk:
        with_lost_records(desk)
        put(desk.service.store.get(A0), ("k1", "v5"))
        desk.service.compact(A0)
    Path(manifest_path(str(tmp_path / "a-0"))).unlink()
    with desk_at(tmp_path) as desk:
        with pytest.raises(ConfirmationNeededError, match="which is damaged, may alone have"):
            desk.alter_configs("topic", "a", INPLACE)
        desk.alter_configs("topic", "a", INPLACE, confirm=True)
        assert desk.service.ledgers.manifest(A0).current is None


@pytest.mark.requirement("LDG-1")
def test_a_servers_file_that_says_another_mode_drops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The ledger stays, retention goes no further than it does, cleaning in place waits."""
    ledger = SettingsBook(broker={"log.cleaner.compaction.mode": "ledger"})
    with desk_at(tmp_path, book=ledger) as desk:
        with_lost_records(desk)
        desk.alter_configs("topic", "a", {"cleanup.policy": "compact,delete"}, ["compaction.mode"])
        made = desk.service.ledgers.manifest(A0)
        log = desk.service.store.get(A0)
        log.roll()
        put(log, ("k9", "v9"))
        desk.alter_configs("topic", "a", {"retention.bytes": "0"})
    with desk_at(tmp_path) as desk:
        assert not desk.service.cleaning(A0).uses_ledger
        desk.service.store.run_retention()
        assert desk.service.store.get(A0).log_start_offset == 4, "the ledger's end"
        with pytest.raises(UsageError, match="are only in its ledger") as refused:
            desk.service.compact(A0)
        told = "`stratalog config alter a --add-config compaction.mode=inplace`"
        assert told in str(refused.value)
        assert told in caplog.text
        assert "only in its ledger" in desk.service.explain(A0).sentence
        assert desk.service.ledgers.manifest(A0) == made
        with desk.service.ledgers.compacted(A0) as view:
            assert [record.offset for record in view.read_records(0)] == [1, 2, 3, 4, 5]
        with pytest.raises(ConfirmationNeededError, match="offsets 0 to 3 are only in"):
            desk.alter_configs("topic", "a", {"compaction.mode": "inplace"})
        desk.alter_configs("topic", "a", {"compaction.mode": "inplace"}, confirm=True)
        desk.service.store.run_retention()
        assert desk.service.store.get(A0).log_start_offset == 6
    with desk_at(tmp_path, book=ledger) as desk:
        assert desk.service.ledgers.manifest(A0).current is None


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    with desk_at(tmp_path / "data") as desk:
        with_lost_records(desk)
    return tmp_path / "data"


@pytest.mark.requirement("LDG-1")
def test_a_compaction_in_place_asks_first(
    lost: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(capsys)
    given = ("--in-place", "--engine", "local", "--config", "compaction.mode=inplace")
    given = (str(lost), *given, "--config", "cleanup.policy=compact")
    before = read_manifest(DISK, str(lost / "a-0"))
    told = shell("compact", *given)
    assert told.code == 2
    assert f"warning: {lost / 'a-0'}: offsets 0 to 2 are only in its ledger, which" in told.err
    assert "There is nobody to ask: --no-confirm does it without a question." in told.err
    with monkeypatch.context() as answers:
        answers.setattr("sys.stdin.isatty", lambda: True)
        answers.setattr("click.confirm", lambda *_, **__: False)
        told = shell("compact", *given)
        assert (told.code, "not confirmed" in told.err) == (1, True)
    assert read_manifest(DISK, str(lost / "a-0")) == before
    assert shell("compact", *given, "--no-confirm").code == 0
    assert read_manifest(DISK, str(lost / "a-0")).current is None


@pytest.mark.requirement("LDG-1")
def test_a_program_that_compacts_in_place_says_so(lost: Path) -> None:
    inplace = {"compaction.mode": "inplace"}
    with pytest.raises(ConfirmationNeededError, match="offsets 0 to 2 are only in its ledger"):
        run([lost], Mode.IN_PLACE, given=inplace)
    assert read_manifest(DISK, str(lost / "a-0")).current is not None
    run([lost], Mode.IN_PLACE, given=inplace, gives_up_ledgers=True)
    assert read_manifest(DISK, str(lost / "a-0")).current is None


@pytest.mark.requirement("LDG-1")
def test_a_compaction_in_place_does_not_drop_what_it_cannot_read(lost: Path) -> None:
    path = Path(manifest_path(str(lost / "a-0")))
    path.write_bytes(b"nonsense")
    with pytest.raises(CorruptionError, match=f"remove {path.parent} while no process has"):
        run([lost], Mode.IN_PLACE, given={"compaction.mode": "inplace"})
    assert path.read_bytes() == b"nonsense"


@pytest.mark.requirement("LDG-1")
def test_without_anything_to_clean_the_ledger_goes_all_the_same(tmp_path: Path) -> None:
    path = write_log(tmp_path / "data" / "a-0", [[records("abc")]], policy=("delete",))
    run([path], Mode.IN_PLACE, given=INPLACE)
    run([path], Mode.IN_PLACE, given={"compaction.mode": "ledger"})
    assert read_manifest(DISK, str(path)).current is not None
    report = run([path], Mode.IN_PLACE, given=INPLACE)
    assert report.partitions[0].skipped is not None
    assert read_manifest(DISK, str(path)).current is None


@pytest.mark.requirement("LDG-2", "CMP-17")
def test_a_ledger_of_another_order_is_due(tmp_path: Path) -> None:
    with living(SimDisk()) as life:
        put(life.log, ("k", "new"), timestamp=NOW - 10)
        put(life.log, ("k", "old"), timestamp=NOW - 500)
        life.ask()
        assert [record.value for record in life.ledger()] == [b"old"]
        assert life.run_all() == 0
        life.configure(order=Order.TIMESTAMP)
        facts = life.manager.facts_of(life.key)
        choice = choose([facts], NOW)
        assert choice is not None
        assert choice.reason is Reason.BACKLOG
        assert "made by compaction.strategy=offset, which is" in explain(facts, NOW).sentence
        assert life.run_all() == 1
        assert [record.value for record in life.ledger()] == [b"new"]


@pytest.mark.requirement("CMP-17")
def test_a_change_of_order_warns_where_the_log_is_not_whole(tmp_path: Path) -> None:
    with open_desk([str(tmp_path)], DISK, FixedClock(NOW)) as desk:
        with_lost_records(desk)
        [warning] = desk.alter_configs("topic", "a", {"compaction.strategy": "timestamp"})[
            "warnings"
        ]
        assert "made by compaction.strategy=offset: what it holds stays" in warning
        assert not desk.service.manager.facts_of(A0).has_backlog
