"""A request for a compaction does not wait for it, whoever does it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stratalog.admin.desk import OwnDesk
from stratalog.base.errors import StorageIOError
from stratalog.web import documents_compaction
from stratalog.web.app import create_app
from stratalog.web.guard import Limits
from tests.web.calling import API, Caller

STARTS = f"{API}/topics/stocks/compaction"


class Slow:
    """A desk whose compactions take until they are let go."""

    def __init__(self, desk: OwnDesk):
        self._desk = desk
        self.go = threading.Event()
        self.begun: list[tuple[str, int | None]] = []
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    def compact(self, topic: str, partition: int | None = None) -> Any:
        self.begun.append((topic, partition))
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return self._desk.compact(topic, partition)


def rest(slow: Any, patience_seconds: float) -> Caller:
    limits = Limits(requests=2)
    return Caller(create_app(slow, instance="x", limits=limits, patience_seconds=patience_seconds))


@pytest.mark.requirement("LDG-2")
def test_a_second_request_is_answered_with_the_status(desk: OwnDesk) -> None:
    slow = Slow(desk)
    call = rest(slow, 0.01)
    try:
        for target, word in [
            (STARTS, "started"),
            (STARTS, "running"),
            (f"{STARTS}?partition=0", "started"),
            (STARTS, "running"),
        ]:
            answer = call("POST", target)
            assert answer.status == 202
            documents_compaction.Compaction.model_validate_json(answer.body, strict=True)
            assert {row["request"] for row in answer.json["partitions"]} == {word}
        assert call("GET", f"{API}/topics").status == 200, "its place is free"
        assert slow.begun == [("stocks", None), ("stocks", 0)]
    finally:
        slow.go.set()


def test_what_is_quick_is_answered_as_it_is(desk: OwnDesk) -> None:
    slow = Slow(desk)
    slow.go.set()
    call = rest(slow, 60)
    answer = call("POST", STARTS)
    assert [row["request"] for row in answer.json["partitions"]] == ["done", "done"]
    assert call("POST", f"{API}/topics/nope/compaction").status == 404
    slow.error = StorageIOError("no disk")
    assert call("POST", STARTS).code == "storage_io"
    slow.error = TimeoutError("of its own")  # not our patience
    with pytest.raises(TimeoutError):
        call("POST", STARTS)
    slow.error = None
    assert call("POST", STARTS).status == 202
