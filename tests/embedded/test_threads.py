"""Readers beside writers, compactions and retention, in threads: nothing is missed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from tests.embedded.driving import LEDGER

KEYS = 40
ROUNDS = 60


@pytest.mark.requirement("LDG-3", "LDG-6", "LDG-7")
def test_readers_beside_everything_else(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """All keys are always there; values only grow, for a view and for a consumer."""
    with stratalog.open(tmp_path) as store:
        settings = {**LEDGER, "compaction.ledgers.retained": 1, "retention.bytes": 0}
        topic = store.create_topic("t", config=settings)
        topic.append_many([(f"k{key}", "0") for key in range(KEYS)])
        topic.compact()
        failures: list[BaseException] = []
        reads = [0]
        done = threading.Event()

        def watched(work: Callable[[], None]) -> threading.Thread:
            def run() -> None:
                try:
                    while not done.is_set():
                        work()
                except BaseException as error:  # noqa: BLE001  (told by the test)
                    failures.append(error)
                    done.set()

            return threading.Thread(target=run)

        def read_latest() -> None:
            found = {record.key: int(record.value or 0) for record in topic.read("latest")}
            assert len(found) == KEYS, len(found)
            reads[0] += 1

        def read_compacted() -> None:
            found = {record.key: int(record.value or 0) for record in topic.read("compacted")}
            assert len(found) == KEYS, len(found)
            reads[0] += 1

        def relieve() -> None:
            store.desk.service.store.run_retention()
            store.desk.service.store.unlink_due()
            done.wait(0.002)

        threads = [watched(work) for work in (read_latest, read_compacted, relieve)]
        consumer = store.consumer("t", auto_offset_reset="earliest", read_compacted=True)
        seen: dict[bytes | None, int] = {}

        def follow() -> None:
            for record in consumer.poll(7):
                value = int(record.value or 0)
                assert value > seen.get(record.key, -1), record
                seen[record.key] = value

        for thread in threads:
            thread.start()
        for number in range(1, ROUNDS):
            topic.append_many([(f"k{key}", str(number)) for key in range(number % 3, KEYS, 3)])
            if number % 4 == 0:
                topic.compact(wait=number % 8 == 0)
            follow()
            if done.is_set():
                break
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        while consumer.position("t", 0) < topic.describe()["partitions"][0]["log_end_offset"]:
            follow()
        assert seen == {r.key: int(r.value or 0) for r in topic.read("latest")}
        assert reads[0] > 0
        consumer.close()
        count_cases("readings beside writers and compactions", reads[0])
