"""The cleaner's view of directories that nobody has open, and what is noted down in them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin import state
from stratalog.admin.cleaning import StatusReport, history, status
from stratalog.admin.report import Mode
from stratalog.admin.steering import pause, resume, retry
from stratalog.base.clock import FixedClock, StoppedClock, SystemClock
from stratalog.base.errors import LogChangedError, LogLockedError, UsageError
from stratalog.clean.history import append_history
from stratalog.clean.note import Failure, Note, read_note, write_note
from stratalog.clean.select import Obstacle, Reason
from stratalog.config.settings import resolve
from stratalog.log.checkpoint import write_checkpoint
from stratalog.log.quarantine import QuarantineNote, write_quarantine
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, copy_of, records, run, tree, write_log
from tests.log.test_locking import held_by_another_process
from tests.oracle import golden_rounds

pytestmark = pytest.mark.usefixtures("hasty_disk")


def look(
    *targets: Path,
    now_ms: int = NOW_MS,
    given: Mapping[str, str] | None = None,
    finds_expiry: bool = True,
) -> StatusReport:
    settings = resolve(given or {}, {"cleanup.policy": ("compact",)})
    return status(
        [str(target) for target in targets],
        lambda _: settings,
        DISK,
        FixedClock(now_ms),
        finds_expiry=finds_expiry,
    )


def sentences(report: StatusReport) -> dict[str, str]:
    return {
        item.partition: item.found.sentence if item.found else f"error: {item.error}"
        for item in report.explanations()
    }


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Two sealed segments and an active one."""
    return write_log(
        tmp_path / "orders-0", [[records("aab")], [records("b", None)], [records("c")]]
    )


@pytest.mark.requirement("CLN-10")
def test_sections_and_the_sentence(partition: Path) -> None:
    before = tree(partition.parent)
    (item,) = look(partition).found
    sizes = [path.stat().st_size for path in sorted(partition.glob("*.log"))]
    assert (item.sections.cleanable, item.sections.active) == (sum(sizes[:2]), sizes[2])
    assert sentences(look(partition)) == {
        "orders-0": "orders-0 is to be cleaned (number 1 of 1 in the queue): its dirty ratio of "
        f"1.000 ({sum(sizes[:2])} of {sum(sizes[:2])} bytes) is above "
        "min.cleanable.dirty.ratio=0.5."
    }
    lag = {"min.compaction.lag.ms": str(HOUR_MS)}
    assert sentences(look(partition, given=lag)) == {
        "orders-0": "orders-0 is not cleaned: nothing is cleanable from offset 0 on: it is younger "
        "than min.compaction.lag.ms."
    }
    assert look(partition, given=lag).found[0].sections.uncleanable == sum(sizes[:2])
    forced = {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "60000"}
    (queued,) = look(partition, given=forced, now_ms=NOW_MS + HOUR_MS).queue()
    assert queued.reason is Reason.FORCED
    deleted = sentences(look(partition, given={"cleanup.policy": "delete"}))
    assert "does not contain compact" in deleted["orders-0"]
    assert tree(partition.parent) == before


@pytest.mark.requirement("CLN-9", "CMP-9")
def test_a_run_is_remembered_and_what_expires_is_a_reason_to_clean(partition: Path) -> None:
    retention = {"delete.retention.ms": str(HOUR_MS)}
    run([partition], Mode.IN_PLACE, keep_active=True, given=retention)
    (item,) = look(partition).found
    assert item.last is not None
    assert (item.last.trigger, item.last.result, item.last.engine) == (
        "command",
        "cleaned",
        "local",
    )
    assert (item.last.first_dirty, item.last.end_offset, item.last.drops.superseded) == (0, 4, 2)
    assert (item.checkpoint, item.facts.next_expiry_ms) == (4, NOW_MS + HOUR_MS)
    assert read_note(DISK, str(partition)) == Note(4, NOW_MS + HOUR_MS)
    assert "its next tombstone expires in 1 h" in sentences(look(partition))["orders-0"]
    (dry,) = run([partition], Mode.DRY_RUN, keep_active=True).partitions
    assert dry.skipped is not None
    later_ms = NOW_MS + HOUR_MS
    (queued,) = look(partition, now_ms=later_ms).queue()
    assert queued.reason is Reason.EXPIRED_TOMBSTONES
    (again,) = run([partition], Mode.IN_PLACE, keep_active=True, now_ms=later_ms).partitions
    assert again.counts.dropped.tombstone_expired == 1
    assert read_note(DISK, str(partition)) == Note(4, None)
    assert look(partition, now_ms=later_ms + HOUR_MS).queue() == []
    kept = history([str(partition)], DISK).partitions[0].found
    assert kept is not None
    assert [entry.started_ms for entry in kept] == [NOW_MS, later_ms]
    (newest,) = history([str(partition)], DISK, 1).partitions
    assert newest.found == kept[1:]


@pytest.mark.requirement("CMP-9")
def test_without_a_note_the_headers_say_what_expires(partition: Path) -> None:
    run([partition], Mode.IN_PLACE, keep_active=True)
    (partition / ".stratalog" / "cleaner-note").unlink()
    (item,) = look(partition).found
    assert item.facts.next_expiry_ms == NOW_MS + 24 * HOUR_MS
    (unknown,) = look(partition, finds_expiry=False).found
    found = unknown.as_json()
    assert (found["next_expiry_is_known"], found["next_expiry_ms"]) == (False, None)
    older = look(partition, given={"tombstone.horizon": "segment"}).found[0]
    assert older.facts.next_expiry_ms is None


@pytest.mark.requirement("CLN-10", "CLN-4")
def test_pauses_outlive_the_process_and_keep_compact_away(partition: Path) -> None:
    target = [str(partition)]
    write_note(DISK, target[0], Note(3, 77))
    (first,), (second,) = pause(target, DISK), pause(target, DISK)
    assert (first.changed, second.changed, second.paused) == (True, False, True)
    assert read_note(DISK, target[0]) == Note(3, 77, paused=True)
    explained = look(partition).explanations()[0].found
    assert explained is not None
    assert explained.obstacle is Obstacle.PAUSED
    before = tree(partition.parent)
    with pytest.raises(
        UsageError, match="orders-0: cleaning is paused; `stratalog compaction resume`"
    ):
        run([partition], Mode.IN_PLACE)
    assert tree(partition.parent) == before
    assert run([partition], Mode.DRY_RUN).totals.dropped.superseded == 2
    (ended,) = resume(target, DISK)
    assert (ended.changed, ended.paused) == (True, False)
    assert not resume(target, DISK)[0].changed
    assert read_note(DISK, target[0]) == Note(3, 77)


@pytest.mark.requirement("CLN-7", "CLN-10")
def test_a_failure_is_explained_and_can_be_tried_again(partition: Path) -> None:
    failure = Failure("CRC-32C does not match", 3, NOW_MS - 5, NOW_MS + HOUR_MS)
    write_note(DISK, str(partition), Note(failure=failure))
    report = look(partition)
    assert sentences(report)["orders-0"] == (
        "orders-0 is not cleaned: cleaning it has failed (CRC-32C does not match); it is tried "
        "again in 1 h."
    )
    found = report.cleaner_json()
    assert found["uncleanable"][0]["failure"]["tries"] == 3
    assert found["totals"]["uncleanable_bytes"] == report.sections.total
    assert retry([str(partition)], DISK)[0].changed
    assert not retry([str(partition)], DISK)[0].changed
    assert read_note(DISK, str(partition)) == Note()
    assert len(look(partition).queue()) == 1
    # A round that comes to its end settles the failure, too.
    write_note(DISK, str(partition), Note(failure=failure))
    run([partition], Mode.IN_PLACE)
    assert read_note(DISK, str(partition)).failure is None


@pytest.mark.requirement("CLN-10", "RCV-7")
def test_a_log_in_quarantine_says_so(partition: Path) -> None:
    note = QuarantineNote("00000000000000000000.log", 61, 0, "CRC-32C does not match", NOW_MS)
    write_quarantine(DISK, str(partition), note)
    report = look(partition)
    assert report.found[0].is_failing
    assert "quarantined: 00000000000000000000.log: position 61" in sentences(report)["orders-0"]
    assert report.queue() == []


@pytest.mark.requirement("CLN-10")
def test_one_bad_partition_does_not_hide_the_others(partition: Path) -> None:
    bad = write_log(partition.parent / "orders-1", [[records("a")], [records("b")]])
    (bad / f"{1:020d}.log").unlink()
    (bad / f"{1:020d}.log").mkdir()
    report = look(partition.parent)
    assert not report.is_ok
    assert [item.error is None for item in report.partitions] == [True, False]
    found = report.as_json()
    assert json.loads(json.dumps(found)) == found
    assert found["partitions"][1]["error"]


@pytest.mark.requirement("CLN-10")
def test_kafkas_own_topics_count_as_compacted(tmp_path: Path) -> None:
    path = write_log(tmp_path / "__consumer_offsets-3", [[records("aab")], [records("b")]])
    assert len(look(path, given={"cleanup.policy": "delete"}).queue()) == 1


@pytest.mark.requirement("CLN-10", "CLN-9")
def test_a_live_directory_can_be_looked_at_and_not_be_changed(partition: Path) -> None:
    log_dir = partition.parent
    with held_by_another_process(log_dir):
        before = tree(log_dir)
        assert look(log_dir).is_ok
        assert history([str(log_dir)], DISK).is_ok
        for change in (pause, resume, retry):
            with pytest.raises(LogLockedError, match="in use by a running process"):
                change([str(log_dir)], DISK)
        assert tree(log_dir) == before


@pytest.mark.requirement("CLN-9")
def test_a_history_that_is_damaged_says_what_is_left(partition: Path) -> None:
    run([partition], Mode.IN_PLACE)
    path = partition / ".stratalog" / "cleaner-history"
    path.write_bytes(b"\xff\x00\n" + path.read_bytes() + b'{"started_ms": 1')
    (item,) = history([str(partition)], DISK).partitions
    assert item.found is not None
    assert [entry.trigger for entry in item.found] == ["command"]
    append_history(DISK, str(partition), item.found[0])
    assert len(history([str(partition)], DISK).partitions[0].found or ()) == 2


@pytest.mark.requirement("CLN-2", "CLN-10", "CMP-3")
@pytest.mark.parametrize("kafka", golden_rounds()[::4], ids=lambda kafka: kafka.name)
def test_what_kafka_cleaned_is_explained_as_to_be_cleaned(kafka, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    copy = copy_of(kafka.before_dir, tmp_path / "copy")
    given = {
        name: text
        for name, text in kafka.settings.items()
        if name in ("min.compaction.lag.ms", "min.cleanable.dirty.ratio")
    }
    (item,) = look(copy, now_ms=kafka.now_ms, given=given).found
    assert (item.facts.first_dirty, item.facts.first_uncleanable) == (
        kafka.first_dirty,
        kafka.first_uncleanable,
    )
    assert item.sections.total == sum(path.stat().st_size for path in copy.rglob("*.log"))
    if kafka.cleaned:
        assert len(look(copy, now_ms=kafka.now_ms, given=given).queue()) == 1


@pytest.mark.requirement("CMP-3", "CLN-10")
def test_a_checkpoint_past_the_end_counts_as_none(partition: Path) -> None:
    path = str(partition.parent / "cleaner-offset-checkpoint")
    write_checkpoint(DISK, path, {TopicPartition("orders", 0): 99})
    (item,) = look(partition).found
    assert (item.checkpoint, item.facts.first_dirty, item.sections.clean) == (99, 0, 0)


def test_a_swap_of_a_live_owner_is_waited_for(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a report stands still; the time that another process takes does not."""
    waited: list[float] = []
    opened = state._open_to_read

    def swapping(*arguments: Any) -> Any:
        if len(waited) < 3:
            raise LogChangedError("segments are being replaced; try again")
        return opened(*arguments)

    monkeypatch.setattr(state, "_open_to_read", swapping)
    monkeypatch.setattr(time, "sleep", waited.append)
    for clock in (SystemClock(), StoppedClock(NOW_MS)):
        waited.clear()
        report = status([str(partition)], lambda _topic: resolve({}), DISK, clock)
        assert report.is_ok
        assert len(waited) == 3
        assert min(waited) > 0
