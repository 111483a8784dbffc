"""A topic that has a ledger gets another mode or order of versions: nothing is lost unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.base.clock import FixedClock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.job import Order
from stratalog.clean.select import Reason, choose, explain
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, put
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


@pytest.mark.requirement("LDG-1")
def test_a_ledger_that_holds_what_the_log_has_lost_is_not_dropped_unsaid(tmp_path: Path) -> None:
    with open_desk([str(tmp_path)], DISK, FixedClock(NOW)) as desk:
        with_lost_records(desk)
        changed = {"compaction.mode": "inplace", "cleanup.policy": "compact"}
        for is_dry in (True, False):
            done = desk.alter_configs("topic", "a", changed, dry_run=is_dry)
            [warning] = done["warnings"]
            assert warning.startswith("a-0: offsets 0 to 2 are only in its ledger: a cleaning")
        made = desk.service.ledgers.manifest(A0)
        with pytest.raises(UsageError, match="offsets 0 to 2 are only in its ledger") as refused:
            desk.service.compact(A0)
        assert f"stratalog compact {tmp_path}/a-0 --in-place" in str(refused.value)
        assert desk.service.ledgers.manifest(A0) == made
        assert "only in its ledger" in desk.service.explain(A0).sentence
        desk.alter_configs("topic", "a", LEDGER)
        desk.service.compact(A0)
        with desk.service.ledgers.compacted(A0) as view:
            assert [record.offset for record in view.read_records(0)] == [1, 2, 4]


@pytest.mark.requirement("LDG-1")
def test_a_ledger_of_a_whole_log_goes_with_the_first_round_in_place(tmp_path: Path) -> None:
    with open_desk([str(tmp_path)], DISK, FixedClock(NOW)) as desk:
        desk.create_topic("a", 1, LEDGER)
        put(desk.service.store.get(A0), ("k0", "v0"), ("k0", "v1"))
        desk.service.compact(A0)
        changed = {"compaction.mode": "inplace", "cleanup.policy": "compact"}
        assert desk.alter_configs("topic", "a", changed)["warnings"] == []
        desk.service.compact(A0)
        assert desk.service.ledgers.manifest(A0).current is None


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
