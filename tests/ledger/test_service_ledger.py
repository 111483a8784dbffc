"""The service and ledgers: settings at all levels, on demand, there and back, keys forgotten."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

import pytest

from stratalog.admin.absent import PartitionSearch, Stage, find_key
from stratalog.admin.forgetting import forget
from stratalog.admin.service import Service, open_service
from stratalog.base.clock import FixedClock
from stratalog.base.errors import RoundAbortedError, UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Progress
from stratalog.cli import main
from stratalog.config.book import SettingsBook
from stratalog.ledger.status import RunState
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, contents, put

pytestmark = pytest.mark.requirement("LDG-1", "LDG-2", "LDG-4")
DISK = LocalFileSystem()
LEDGER = {"compaction.mode": "ledger", "cleanup.policy": "delete"}
STOCKS = TopicPartition("stocks.nyse", 0)


def fill(service: Service, key: TopicPartition, count: int = 30) -> None:
    log = service.store.get(key)
    for number in range(count):
        put(log, (f"k{number % 4}", f"v{number}"))


def test_the_more_specific_threshold_wins(tmp_path: Path) -> None:
    """Topic before namespace before broker."""
    book = SettingsBook(
        broker={"log.cleaner.compaction.threshold": "1", "log.cleaner.compaction.mode": "ledger"},
    )
    book = book.with_namespace("stocks.", {"compaction.threshold": "1000000"})
    book = book.with_topic("stocks.lse", {"compaction.threshold": "2"})
    book = book.with_topic("stocks.off", {"compaction.threshold": "0"})
    with open_service([str(tmp_path)], book, DISK, FixedClock(NOW)) as service:
        topics = ["other", "stocks.nyse", "stocks.lse", "stocks.off"]
        keys = [TopicPartition(topic, 0) for topic in topics]
        for key in keys:
            service.store.create(key)
            fill(service, key, 5)
        while service.cleaner.run_once():
            pass
        states = [service.ledgers.status(key).state for key in keys]
        made, never = RunState.SUCCEEDED, RunState.NEVER
        assert states == [made, never, made, never]


def test_on_demand_and_after_a_restart(tmp_path: Path) -> None:
    book = SettingsBook().with_topic(STOCKS.topic, LEDGER)
    with open_service([str(tmp_path)], book, DISK, FixedClock(NOW)) as service:
        service.store.create(STOCKS)
        fill(service, STOCKS)
        [entry] = service.compact(STOCKS)
        assert (entry.result, entry.generation, entry.trigger) == ("cleaned", 1, "asked")
        [entry] = service.compact(STOCKS)
        assert entry.result == "nothing"
    with open_service([str(tmp_path)], book, DISK, FixedClock(NOW)) as service:
        assert service.ledgers.status(STOCKS).state is RunState.SUCCEEDED
        with service.ledgers.compacted(STOCKS) as view:
            assert [record.offset for record in view.read_records(0)] == [26, 27, 28, 29]
        assert [entry.generation for entry in service.history(STOCKS)] == [1, 0]


def test_a_second_request_is_answered_with_the_run_that_goes_on(tmp_path: Path) -> None:
    book = SettingsBook(broker={"log.cleaner.backoff.ms": "10"}).with_topic(STOCKS.topic, LEDGER)
    with open_service([str(tmp_path)], book, DISK, FixedClock(NOW)) as service:
        service.store.create(STOCKS)
        fill(service, STOCKS)
        second: list[object] = []
        began, goes_on = threading.Event(), threading.Event()

        def hold(_: Progress) -> None:
            began.set()
            assert goes_on.wait(60)

        def ask_again() -> None:
            assert began.wait(60)
            from stratalog.clean.manager import Request

            request = service.manager.ask(Request(STOCKS))
            goes_on.set()
            assert request.done.wait(60)
            second.append(request.entry)

        other = threading.Thread(target=ask_again)
        other.start()
        [entry] = service.compact(STOCKS, on_progress=hold)
        other.join()
        assert second == [entry]
        assert len(service.history(STOCKS)) == 1


def test_a_change_of_mode_aborts_the_run(tmp_path: Path) -> None:
    book = SettingsBook().with_topic(STOCKS.topic, LEDGER)
    with open_service([str(tmp_path)], book, DISK, FixedClock(NOW)) as service:
        service.store.create(STOCKS)
        fill(service, STOCKS)
        changed = threading.Event()

        def change() -> None:
            compacted = {"compaction.mode": "inplace", "cleanup.policy": "compact"}
            service.change(book.with_topic(STOCKS.topic, compacted))
            changed.set()

        threads: list[threading.Thread] = []

        def during(_: Progress) -> None:
            if not threads:
                threads.append(threading.Thread(target=change))
                threads[0].start()
                while not service.manager.must_stop(STOCKS):
                    threading.Event().wait(0.001)

        with pytest.raises(RoundAbortedError):
            service.compact(STOCKS, on_progress=during)
        threads[0].join()
        assert changed.is_set()
        assert service.ledgers.manifest(STOCKS).current is None
        assert service.ledgers.status(STOCKS).state is RunState.FAILED
        service.compact(STOCKS)
        assert [offset for offset, _, _ in contents(service.store.get(STOCKS))] == [26, 27, 28, 29]


def test_a_key_is_not_forgotten_where_a_ledger_holds_it(tmp_path: Path) -> None:
    book = SettingsBook().with_topic(STOCKS.topic, LEDGER)
    clock = FixedClock(NOW)
    with open_service([str(tmp_path)], book, DISK, clock) as service:
        service.store.create(STOCKS)
        fill(service, STOCKS)
        service.compact(STOCKS)
        with pytest.raises(UsageError, match="has a ledger, in which the key would stay; while no"):
            forget(service, STOCKS, b"k1", DISK, clock)
        compacted = {"compaction.mode": "inplace", "cleanup.policy": "compact"}
        service.change(book.with_topic(STOCKS.topic, compacted))
        with pytest.raises(UsageError, match="has a ledger") as refused:
            forget(service, STOCKS, b"k1", DISK, clock)
    command = str(refused.value).split("`")[1]
    words = shlex.split(command)
    assert words[:2] == ["stratalog", "compact"]
    assert main([*words[1:], "--engine", "local"]) == 0
    with open_service(
        [str(tmp_path)], book.with_topic(STOCKS.topic, compacted), DISK, clock
    ) as service:
        assert service.ledgers.manifest(STOCKS).current is None
        assert forget(service, STOCKS, b"k1", DISK, clock).was_there


def test_a_key_is_not_forgotten_in_ledger_mode_without_a_ledger(tmp_path: Path) -> None:
    book = SettingsBook().with_topic(STOCKS.topic, LEDGER)
    with open_service([str(tmp_path)], book, DISK, FixedClock(NOW)) as service:
        service.store.create(STOCKS)
        fill(service, STOCKS)
        with pytest.raises(UsageError, match="forget it with compaction"):
            forget(service, STOCKS, b"k1", DISK, FixedClock(NOW))


@pytest.mark.requirement("CLN-11")
def test_a_key_is_looked_for_in_ledgers_too(tmp_path: Path) -> None:
    """Also where the raw log has lost it, and in what a run or a reader has left."""

    def search(key: bytes) -> PartitionSearch:
        [found] = find_key([str(tmp_path)], key, Stage.KEY_ABSENT, DISK, lambda _: None).partitions
        return found

    book = SettingsBook().with_topic(STOCKS.topic, LEDGER)
    with open_service([str(tmp_path)], book, DISK, FixedClock(NOW)) as service:
        log = service.store.create(STOCKS)
        fill(service, STOCKS)
        service.compact(STOCKS)
        log.roll()
        put(log, ("other", "1"))
        service.store.delete_records(STOCKS, 30)
        service.store.run_retention([STOCKS])
        service.store.unlink_deleted(STOCKS)
        path = log.path
    ledgers = Path(path, ".stratalog", "ledgers")
    found = search(b"k1")
    assert (found.stage, found.values, found.files) == (Stage.VALUE_PRESENT, 1, 2)
    assert found.found[0].file.startswith(str(ledgers / "00000001"))
    assert search(b"never").stage is Stage.KEY_ABSENT
    orphan = ledgers / "00000007" / "00000000000000000000.log.local-0.part"
    orphan.parent.mkdir()
    orphan.write_bytes(next((ledgers / "00000001").glob("*.log")).read_bytes())
    assert search(b"k1").values == 2
    data = bytearray(orphan.read_bytes())
    data[30] ^= 1
    orphan.write_bytes(data)
    found = search(b"never")
    assert found.stage is Stage.UNKNOWN, "what cannot be read may hold it"
    assert found.problems[0].file == str(orphan)
