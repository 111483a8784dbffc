"""What a job of a Spark program goes by, where topics have settings of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog.pipeline.job_target import target


@pytest.mark.requirement("SPK-8")
def test_topics_that_were_created_there_have_their_own_settings(tmp_path: Path) -> None:
    own = {"cleanup.policy": "delete", "compaction.mode": "ledger", "delete.retention.ms": 7}
    with stratalog.open(str(tmp_path / "data"), background=False) as store:
        store.create_topic("orders", config=own).append("a", "1")
    for path in (tmp_path / "data", tmp_path / "data" / "orders-0"):
        book = target(str(path), {"delete.retention.ms": 9}).book(("compact",))
        assert book.of("orders").words("cleanup.policy") == ("delete",)
        assert book.of("orders").text("compaction.mode") == "ledger"
        assert book.of("orders").integer("delete.retention.ms") == 9
        assert book.of("others").words("cleanup.policy") == ("compact",)
