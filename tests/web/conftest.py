"""A desk over a few logs, and REST over that desk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.admin.desk import OwnDesk, open_desk
from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.segment.names import TopicPartition
from stratalog.web.app import create_app
from stratalog.web.guard import Limits
from stratalog.web.scraping import metrics_of
from tests.clean.services import NOW, put
from tests.web.calling import Caller

LIMITS = Limits(body_bytes=4096, body_seconds=0.05, requests=2)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOW)


@pytest.fixture
def desk(tmp_path: Path, clock: FixedClock, hasty_disk: None) -> Iterator[OwnDesk]:
    """`stocks`, compacted, the first of its two partitions filled; `events`, filled; `book`,
    with ledgers. No threads."""
    with open_desk([str(tmp_path / "data")], LocalFileSystem(), clock) as found:
        found.create_topic("stocks", 2, {"cleanup.policy": "compact"})
        found.create_topic("events")
        log = found.service.store.get(TopicPartition("stocks", 0))
        put(log, ("a", "1"), ("b", "1"))
        log.roll()
        put(log, ("a", "2"))
        put(found.service.store.get(TopicPartition("events", 0)), ("x", "1"), ("y", "1"))
        found.create_topic("book", 1, {"compaction.mode": "ledger"})
        put(found.service.store.get(TopicPartition("book", 0)), ("x", "1"), ("x", "2"))
        yield found


@pytest.fixture
def call(desk: OwnDesk, clock: FixedClock) -> Caller:
    """REST over `desk`, with small limits."""
    metrics = metrics_of(desk.service, clock)
    return Caller(create_app(desk, instance="this-one", metrics=metrics, limits=LIMITS))
