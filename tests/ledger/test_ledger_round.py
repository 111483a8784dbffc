"""A run makes a generation: what it holds, from where it reads, and what readers see of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stratalog.base.errors import CorruptionError, RoundAbortedError, StorageFullError
from stratalog.clean.job import Order
from stratalog.clean.manager import Request
from stratalog.clean.select import Reason
from stratalog.ledger.manifest import decode, encode, generation_path, ledgers_path
from stratalog.ledger.status import RunState
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.checksum import crc32c
from stratalog.record.control import ControlType
from tests.clean.services import NOW, put
from tests.ledger.running import LOG, TOPIC, Life, latest, living
from tests.log.helpers import sent
from tests.log.stores import failing, there
from tests.sim.disk import SimDisk

pytestmark = pytest.mark.requirement("LDG-1", "LDG-2")
P = "/data/orders-0"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def life(disk: SimDisk) -> Iterator[Life]:
    with living(disk) as opened:
        yield opened


def fill(life: Life, count: int, *, keys: int = 10, start: int = 0) -> None:
    for number in range(start, start + count):
        put(life.log, (f"k{number % keys}", f"v{number}"))


def keys_of(life: Life) -> list[tuple[int, str, str | None]]:
    return [
        (r.offset, (r.key or b"").decode(), None if r.value is None else r.value.decode())
        for r in life.compacted()
    ]


def test_from_scratch(life: Life, disk: SimDisk) -> None:
    fill(life, 50)
    before = {path: disk.tree("/")[path] for path in there(disk, P)}
    entry = life.ask()
    assert (entry.result, entry.mode, entry.generation) == ("cleaned", "ledger", 1)
    assert (entry.first_dirty, entry.end_offset, entry.keys) == (0, 50, 10)
    assert [record.offset for record in life.ledger()] == [*range(40, 50)]
    current = life.current
    assert current is not None
    assert (current.start_offset, current.horizon, current.records) == (0, 50, 10)
    raw = {path: content for path, content in before.items() if ".stratalog" not in path}
    assert raw == {path: disk.tree("/")[path] for path in raw}, "the raw log was changed"
    fill(life, 5, start=50)
    assert [record.offset for record in life.compacted()] == [*range(40, 55)]
    assert life.ledgers.status(life.key).state is RunState.SUCCEEDED


def test_the_second_run_reads_what_is_new_and_the_ledger(life: Life) -> None:
    fill(life, 400)
    life.ask()
    fill(life, 20, start=400)
    entry = life.ask()
    assert (entry.first_dirty, entry.end_offset) == (400, 420)
    assert entry.records_before == 30, "it read the raw log again"
    assert [record.offset for record in life.ledger()] == [*range(410, 420)]
    assert life.ask().result == "nothing"
    current = life.current
    assert current is not None
    assert current.number == 2


def test_a_segment_in_which_nothing_changes_is_referenced(life: Life, disk: SimDisk) -> None:
    for number in range(200):
        put(life.log, (f"only{number}", "x" * 50))
    life.ask()
    fill(life, 30)
    life.ask()
    current = life.current
    assert current is not None
    assert {part.generation for part in current.segments} == {1, 2}
    assert len(latest(life.ledger())) == 210
    assert len(life.ledger()) == 210
    # Once nothing of it is needed, its directory goes.
    life.configure(ledgers_retained=1)
    for number in range(200):
        put(life.log, (f"only{number}", "y"))
    life.ask()
    assert disk.exists(generation_path(P, 3))
    assert not disk.exists(generation_path(P, 1))


def test_the_raw_log_may_lose_what_the_ledger_serves(life: Life) -> None:
    fill(life, 300)
    life.ask()
    life.configure_log(retention_bytes=1)
    life.store.run_retention()
    assert life.log.log_start_offset > 200
    assert len(latest(life.compacted())) == 10
    fill(life, 3, start=300)
    life.ask()
    assert latest(life.compacted())[b"k0"] == (300, b"v300")
    current = life.current
    assert current is not None
    assert current.start_offset == 0


def test_retention_waits_for_the_ledger_and_makes_a_run_due(life: Life) -> None:
    fill(life, 100)
    life.ask()
    fill(life, 200, start=100)
    life.configure_log(retention_bytes=1)
    decided = life.store.run_retention()
    assert decided[life.key].held_from == 100
    assert life.log.log_start_offset <= 100
    facts = life.manager.facts_of(life.key)
    assert facts.retention_waits
    assert life.manager.explain(life.key).reason is Reason.BACKLOG
    assert "retention waits for a ledger" in life.manager.explain(life.key).sentence
    assert life.run_all() == 1
    assert life.log.log_start_offset > 250
    assert not life.manager.facts_of(life.key).retention_waits
    assert latest(life.compacted()) == {
        f"k{n % 10}".encode(): (n, f"v{n}".encode()) for n in range(290, 300)
    }


def test_without_ledger_and_threshold_retention_is_as_ever(life: Life) -> None:
    fill(life, 100)
    life.configure_log(retention_bytes=1)
    assert life.store.run_retention()[life.key].held_from is None
    assert life.log.log_start_offset > 0


def test_with_a_threshold_nothing_goes_before_the_first_ledger(life: Life) -> None:
    fill(life, 100)
    life.configure(threshold_bytes=1 << 40)
    life.configure_log(retention_bytes=1)
    life.store.run_retention()
    assert life.log.log_start_offset == 0
    assert life.run_all() == 1
    assert life.log.log_start_offset > 0


def test_the_backlog_makes_a_run_due(life: Life) -> None:
    fill(life, 100)
    assert life.run_all() == 0
    assert "compaction.threshold is 0" in life.manager.explain(life.key).sentence
    size = life.log.segments.size_bytes
    life.configure(threshold_bytes=size)
    sentence = life.manager.explain(life.key).sentence
    assert f"its backlog of {size} bytes is not above compaction.threshold={size}" in sentence
    assert life.run_all() == 0
    life.configure(threshold_bytes=size - 1)
    explained = life.manager.explain(life.key)
    assert explained.reason is Reason.BACKLOG
    assert f"is above compaction.threshold={size - 1}" in explained.sentence
    assert life.run_all() == 1
    assert "its ledger reaches the end of the log" in life.manager.explain(life.key).sentence
    [entry] = life_history(life)
    assert (entry.trigger, entry.result, entry.mode) == ("backlog", "cleaned", "ledger")


def life_history(life: Life) -> list:  # type: ignore[type-arg]
    from stratalog.clean.history import read_history

    return read_history(life.disk, life.log.path)


@pytest.mark.requirement("LDG-5")
def test_tombstones_stay_for_their_time(life: Life) -> None:
    fill(life, 20)
    put(life.log, ("k3", None))
    life.ask()
    assert (20, "k3", None) in keys_of(life)
    life.clock.sleep_ms(999)
    fill(life, 1, start=20)
    life.ask()
    assert (20, "k3", None) in keys_of(life), "a lagging reader must learn of the deletion"
    life.clock.sleep_ms(2)
    life.configure(threshold_bytes=1 << 40)
    assert life.manager.explain(life.key).reason is Reason.EXPIRED_TOMBSTONES
    assert life.run_all() == 1, "it goes without new writes"
    assert b"k3" not in latest(life.compacted())
    assert life.run_all() == 0


def test_the_range_ends_at_an_open_transaction(life: Life) -> None:
    fill(life, 20)
    life.log.append(sent(7, 0, transactional=True))
    fill(life, 5, start=20)
    assert life.ask().end_offset == 20
    assert "where an open transaction begins" in life.manager.explain(life.key).sentence
    life.log.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0)
    assert life.ask().end_offset == 28
    assert {record.value for record in life.ledger() if record.key == b"k0"} == {b"v20"}


def test_a_failure_leaves_the_ledger_before_and_is_told(
    life: Life, disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Pulsar #6432: compaction failed and nobody was told."""
    fill(life, 50)
    life.ask()
    fill(life, 50, start=50)
    full = StorageFullError("no space left")
    disk.hook = failing(lambda call: call.kind == "write" and "00000002/" in call.path, full)
    with pytest.raises(StorageFullError):
        life.ask()
    disk.hook = None
    status = life.ledgers.status(life.key)
    assert (status.state, status.cause) == (RunState.FAILED, "no space left")
    assert life_history(life)[-1].result == "failed"
    assert "no space left" in life.manager.explain(life.key).sentence
    current = life.current
    assert current is not None
    assert current.number == 1
    assert not disk.exists(generation_path(P, 2))
    assert life.ask().generation == 2


def test_damage_is_told_and_nothing_switched(life: Life, disk: SimDisk) -> None:
    fill(life, 50)
    path = f"{P}/{0:020d}.log"
    file = disk.open(path, "update")
    file.pwrite(b"\xff", 70)
    file.close()
    with pytest.raises(CorruptionError):
        life.ask()
    assert life.current is None
    assert life.ledgers.status(life.key).state is RunState.FAILED


def test_a_run_that_is_stopped_leaves_nothing(life: Life, disk: SimDisk) -> None:
    fill(life, 100)
    request = life.manager.ask(Request(life.key))

    def stop(_: object) -> None:
        raise RoundAbortedError("somebody wants it to stop")

    life.cleaner.run_once("test", stop)
    assert isinstance(request.error, RoundAbortedError)
    assert not disk.exists(generation_path(P, 1))
    assert life.ledgers.status(life.key).cause == "somebody wants it to stop"
    assert not life.manager.note_of(life.key).failure


def test_who_asks_while_a_run_goes_on_is_answered_with_it(life: Life) -> None:
    fill(life, 100)
    first = life.manager.ask(Request(life.key))
    joined: list[Request] = []

    def join(_: object) -> None:
        joined.append(life.manager.ask(Request(life.key)))

    assert life.cleaner.run_once("test", join)
    assert joined
    assert all(request is first for request in joined)
    assert first.entry is not None
    assert life.manager.asked() == []
    assert life.manager.ask(Request(life.key)) is not first


def test_a_log_truncated_below_the_horizon_loses_that_ledger(life: Life) -> None:
    fill(life, 50)
    life.ask()
    fill(life, 50, start=50)
    life.ask()
    life.store.truncate(life.key, 70)
    current = life.current
    assert current is not None
    assert current.horizon == 50
    fill(life, 10, start=1000)
    assert latest(life.compacted())[b"k0"] == (70, b"v1000")
    life.ask()
    life.store.truncate(life.key, 10)
    assert life.current is None
    fill(life, 3, start=2000)
    life.ask()
    assert [record.offset for record in life.ledger()] == [*range(3, 13)]


def test_a_deleted_partition_takes_its_ledger_along(life: Life) -> None:
    fill(life, 50)
    life.ask()
    life.store.delete(life.key)
    life.store.create(life.key)
    assert life.current is None
    assert life.ledgers.status(life.key).state is RunState.NEVER
    fill(life, 5)
    assert life.ask().generation == 1


def test_there_and_back(life: Life, disk: SimDisk) -> None:
    """To inplace: the first round drops the ledger. Back: a new one, of what is there then."""
    fill(life, 200)
    put(life.log, ("k3", None))
    life.ask()
    life.configure(uses_ledger=False)
    life.configure_log(cleanup_policy=("compact",))
    life.topic = life.topic.__class__(
        is_compacted=True, deletes=False, segment_bytes=2000, delete_retention_ms=0
    )
    assert life.current is not None, "it serves until the log is changed"
    life.log.roll()
    assert life.run_all() > 0
    assert life.current is None
    assert not [path for path in there(disk, ledgers_path(P)) if path.endswith(".log")]
    assert len(latest(life.compacted())) <= 10
    life.topic = TOPIC
    life.configure()
    fill(life, 5, start=300)
    entry = life.ask()
    assert entry.generation == 2
    found = latest(life.compacted())
    assert b"k3" not in found or found[b"k3"][0] > 200


def test_it_survives_a_restart(life: Life, disk: SimDisk) -> None:
    fill(life, 100)
    life.ask()
    life.store.close()
    with living(disk) as again:
        assert again.current is not None
        assert again.current.horizon == 100
        assert again.ask().result == "nothing"
        fill(again, 10, start=100)
        assert [record.offset for record in again.compacted()] == [*range(90, 110)]


def test_with_little_memory_it_is_the_same(disk: SimDisk) -> None:
    from stratalog.clean.settings import CleanerSettings

    settings = CleanerSettings(dedupe_buffer_bytes=4096, max_keys=5)
    with living(disk, settings=settings, log_settings=LOG) as life:
        fill(life, 700, keys=300)
        entry = life.ask()
        assert (entry.end_offset, entry.keys) == (700, 300), "a ledger reaches the end of its range"
        assert [record.offset for record in life.ledger()] == [*range(400, 700)]


def test_what_an_open_transaction_holds_back_is_no_backlog(life: Life) -> None:
    """The machine found it: run after run was made of nothing."""
    fill(life, 3)
    life.log.append(sent(7, 0, transactional=True))
    fill(life, 30, start=3)
    life.configure(threshold_bytes=1)
    assert life.run_all() == 1
    assert life.manager.facts_of(life.key).backlog_bytes == 0


def test_an_aborted_transaction_whose_marker_lies_behind_the_horizon(life: Life) -> None:
    """The machine found it: its data was taken for committed."""
    life.log.append(sent(2, 0, transactional=True))
    life.log.append(sent(1, 0, transactional=True))
    life.log.append_marker(ControlType.ABORT, producer_id=2, producer_epoch=0)
    put(life.log, ("a", "1"))
    assert life.ask().end_offset == 2
    assert life.ledger() == []
    life.log.append_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0)
    assert life.ask().end_offset == 7
    assert [record.offset for record in life.ledger()] == [2, 3, 5]


def damage_ledger(life: Life, disk: SimDisk) -> None:
    logs = (path for path in there(disk, ledgers_path(P)) if path.endswith(".log"))
    path = max(logs, key=lambda path: disk.stat(path).size_bytes)
    file = disk.open(path, "update")
    file.pwrite(b"\xff\xff", file.size_bytes() - 5)
    file.close()


def test_a_damaged_ledger_is_made_anew_where_the_log_has_all_of_it(
    life: Life, disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    fill(life, 50)
    life.ask()
    damage_ledger(life, disk)
    fill(life, 5, start=50)
    entry = life.ask()
    assert (entry.first_dirty, entry.records_before) == (0, 55)
    assert "is made anew, as it is damaged" in caplog.text
    assert [record.offset for record in life.ledger()] == [*range(45, 55)]


def test_a_damaged_ledger_stays_where_it_is_all_there_is(life: Life, disk: SimDisk) -> None:
    fill(life, 300)
    life.ask()
    life.configure_log(retention_bytes=1)
    life.store.run_retention()
    damage_ledger(life, disk)
    fill(life, 5, start=300)
    with pytest.raises(CorruptionError):
        life.ask()
    current = life.current
    assert current is not None
    assert current.number == 1
    assert "log repair" not in life.ledgers.status(life.key).cause
    assert "log repair" not in life.manager.explain(life.key).sentence


def test_another_order_of_versions_is_no_reason_to_trust_the_ledger(life: Life) -> None:
    """What the other order would keep is still in the raw log, and only there."""
    put(life.log, ("k", "old"), timestamp=200)
    put(life.log, ("k", "new"), timestamp=100)
    life.ask()
    assert [record.value for record in life.ledger()] == [b"new"]
    life.configure(order=Order.TIMESTAMP)
    put(life.log, ("x", "1"))
    entry = life.ask()
    assert entry.first_dirty == 0
    assert [record.value for record in life.ledger()] == [b"old", b"1"]


@pytest.mark.requirement("LDG-4")
def test_a_generation_tells_how_many_keys_it_holds() -> None:
    """Of an incremental run, too, in which most keys did not come again; markers are no keys."""
    with living(SimDisk()) as life:
        put(life.log, ("a", "1"), ("b", "1"), ("c", None))
        life.ask()
        for epoch, kind in enumerate((ControlType.COMMIT, ControlType.ABORT)):
            made = build_batch(
                [NewRecord(b"d", b"1", NOW), NewRecord(b"e%d" % epoch, b"1", NOW)],
                producer_id=7,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
            life.log.append(made)
            life.log.append_marker(kind, producer_id=7, producer_epoch=epoch)
        put(life.log, ("b", "2"))
        entry = life.ask()
        assert entry.keys < 5, "new ones"
        current = life.current
        assert current is not None
        held = {record.key for record in life.ledger()}
        assert held == {b"a", b"b", b"c", b"d", b"e0"}
        assert current.distinct_keys == current.as_json()["keys"] == len(held)
        assert current.records > len(held), "markers are among them"
        life.configure(retain_keyless=True)
        put(life.log, ("b", "3"))
        life.ask()
        assert life.current is not None
        assert life.current.distinct_keys is None


@pytest.mark.requirement("LDG-6")
def test_a_manifest_of_an_older_version_is_read() -> None:
    """It said of each generation how many keys were new."""
    with living(SimDisk()) as life:
        put(life.log, ("a", "1"))
        life.ask()
        manifest = life.ledgers.manifest(life.key)
    line = json.loads(encode(manifest).splitlines()[0])
    for one in line["generations"]:
        del one["distinct_keys"]
        one["keys"] = 1
    content = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    [generation] = decode(content + b"%08x\n" % crc32c(content)).generations
    assert generation.distinct_keys is None
    assert generation == replace(manifest.generations[0], distinct_keys=None)


@pytest.mark.parametrize("is_whole", [True, False], ids=["the log has it all", "it has not"])
def test_who_asks_is_told_of_damage_though_nothing_is_new(disk: SimDisk, is_whole: bool) -> None:
    with living(disk) as life:
        fill(life, 5)
        life.ask()
        if not is_whole:
            life.store.delete_records(life.key, 3)
        assert life.current is not None
        directory = generation_path(life.log.path, 1)
        file = disk.open(f"{directory}/{0:020d}.log", "update")
        file.pwrite(b"\x07", 15)  # a leader epoch, which no checksum covers
        file.close()
        assert life.run_all() == 0
        if is_whole:
            assert (life.ask().result, life.current.number) == ("cleaned", 2)
            assert life.ask().result == "nothing"
            return
        with pytest.raises(CorruptionError, match="00000001"):
            life.ask()
        assert life.current.number == 1
