"""Rounds of the service on Spark: `cleaner.engine`, and the size from which `auto` takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog.admin.service import open_service
from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.config.book import SettingsBook
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, contents, put

ORDERS = TopicPartition("orders", 0)
DISK = LocalFileSystem()


def _book(**broker: str) -> SettingsBook:
    words = {name.replace("_", "."): text for name, text in broker.items()}
    return SettingsBook(broker={"log.cleanup.policy": "compact", **words})


def _cleaned(path: Path, book: SettingsBook) -> tuple[str, list[tuple[int, str, str | None]]]:
    """The engine of a round over a log of three segments, and what is left."""
    with open_service([str(path)], book, DISK, FixedClock(NOW)) as service:
        log = service.store.create(ORDERS)
        for number in range(3):
            put(log, ("a", str(number)), (f"k{number}", "x"), ("gone", None))
            log.roll()
        assert service.cleaner.run_once()
        [entry] = service.history(ORDERS)
        assert entry.result == "cleaned", entry
        return entry.engine, contents(log)


@pytest.mark.requirement("CLN-1", "SPK-2")
def test_a_round_of_the_service_runs_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    master = spark.sparkContext.master
    local = _cleaned(tmp_path / "local", _book(cleaner_engine="local"))
    on_spark = _cleaned(tmp_path / "spark", _book(cleaner_engine="spark"))
    assert (local[0], on_spark[0]) == ("local", "spark")
    assert local[1] == on_spark[1] == [(1, "k0", "x"), (4, "k1", "x"), *local[1][2:]]
    small = _book(cleaner_engine="auto", cleaner_spark_master=master)
    assert _cleaned(tmp_path / "small", small)[0] == "local", "not worth a job"
    large = _book(cleaner_engine="auto", cleaner_spark_master=master, cleaner_spark_min_bytes="1")
    assert _cleaned(tmp_path / "large", large)[0] == "spark"
    unsaid = _book(cleaner_engine="auto", cleaner_spark_min_bytes="1")
    assert _cleaned(tmp_path / "unsaid", unsaid)[0] == "local", "no master is named"
    assert spark.range(3).count() == 3, "a session that was there goes on"
