"""A ledger of another order of versions answers nobody while the raw log has it all (CMP-17); one
that is damaged is told with what mends it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.embedded import Store, Topic
from stratalog.ledger.manifest import generation_path
from stratalog.pipeline.latest_frame import planned_parts
from stratalog.pipeline.options import read_options
from stratalog.pipeline.places import Place
from stratalog.pipeline.snapshot_plan import plan_with_ledger
from stratalog.segment.names import TopicPartition
from tests.embedded.driving import LEDGER, NOW, latest, log_of, opened
from tests.pipeline.test_views import Planned

pytestmark = [
    pytest.mark.requirement("CMP-17", "LDG-7"),
    pytest.mark.usefixtures("hasty_disk"),
]
BY_TIME = {"compaction.strategy": "timestamp"}


def filled(store: Store) -> Topic:
    topic = store.create_topic("t", 1, LEDGER)
    topic.append("k", "new", timestamp=NOW - 10)
    topic.append("k", "old", timestamp=NOW - 500)
    topic.compact()
    return topic


def test_views_go_by_the_order_of_now(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = filled(store)
        assert latest(topic) == {b"k": b"old"}
        topic.configure(BY_TIME)
        for as_of in (None, 2, f"@{NOW}"):
            assert latest(topic, as_of=as_of) == {b"k": b"new"}
        assert latest(topic, as_of="ledger:1") == {b"k": b"old"}, "what that one holds"
        assert [r.value for r in topic.read("compacted")] == [b"new", b"old"], "the raw log"
        for options in ({}, {"asOf": "2"}, {"asOf": f"@{NOW}"}):
            found = Planned(tmp_path, view="latest", **BY_TIME, **options).rows()
            assert [row[3] for row in found] == [b"new"], options
        topic.compact()
        assert latest(topic) == {b"k": b"new"}
        assert [r.value for r in topic.read("compacted")] == [b"new"]


def test_planning_goes_by_the_order_too(tmp_path: Path) -> None:
    """What tasks read is what they were planned for: sizes, and what several of them share."""
    with opened(tmp_path) as store:
        filled(store).append("j", "1", timestamp=NOW)
    raw = tmp_path / "t-0"
    ledger = Path(generation_path(str(raw), 1))
    both: dict[str, set[Path]] = {"offset": {ledger, raw}, "timestamp": {raw}}
    for order, directories in both.items():
        given = {"path": str(tmp_path), "view": "latest", "compaction.strategy": order}
        options = read_options(given)
        [task] = Planned(tmp_path, view="latest", **{"compaction.strategy": order}).tasks
        [part] = planned_parts(options)
        for planned in (*task.latest, part):
            assert {Path(piece.directory) for piece in planned.pieces} == directories
        has_ledger = order == "offset"
        assert part.with_ledger is has_ledger
        place = Place(str(tmp_path), TopicPartition("t", 0))
        assert (plan_with_ledger(options, place, None) is not None) is has_ledger


def test_a_log_that_is_not_whole_keeps_its_ledger_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        topic = filled(store)
        log_of(store).roll()
        topic.append("j", "1", timestamp=NOW)
        store.desk.delete_records([{"topic": "t", "partition": 0, "offset": 2}])
        topic.configure(BY_TIME)
        assert latest(topic) == {b"k": b"old", b"j": b"1"}
        assert "/t-0: its ledger 1 was made by compaction.strategy=offset" in caplog.text
        rows = Planned(tmp_path, view="latest", **BY_TIME).rows()
        assert [row[3] for row in rows] == [b"old", b"1"]


@pytest.mark.requirement("LDG-1")
@pytest.mark.parametrize("position", [7, 70, None])
def test_a_damaged_ledger_is_told_with_what_mends_it(tmp_path: Path, position: int | None) -> None:
    """A record, or the manifest."""
    with opened(tmp_path) as store:
        filled(store)
    ledgers = tmp_path / "t-0" / ".stratalog" / "ledgers"
    damaged = ledgers / "manifest" if position is None else next(ledgers.glob("*/*.log"))
    data = bytearray(damaged.read_bytes())
    data[position or 20] ^= 1
    damaged.write_bytes(data)
    words = f"if the raw log still has all that the ledger holds, remove {ledgers} while no"
    with opened(tmp_path) as store:
        for view in ("latest", "compacted"):
            with pytest.raises(CorruptionError) as found:
                list(store.topic("t").read(view))
            assert words in str(found.value)
            assert found.value.file == str(damaged)
    with pytest.raises(CorruptionError) as found:
        Planned(tmp_path, view="latest").rows()
    assert str(found.value).count(words) == 1
    shutil.rmtree(ledgers)
    with opened(tmp_path) as store:
        store.topic("t").compact()
        assert latest(store.topic("t")) == {b"k": b"old"}
