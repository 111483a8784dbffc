"""What a topic of many partitions costs: a checkpoint is parsed and written a few times, not once a
partition, or it would take the square of their number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.admin.desk import BareDesk
from stratalog.base.clock import FixedClock
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log import checkpoint

NOW = 1_700_000_000_000
MANY, FEW = 60, 12

pytestmark = pytest.mark.usefixtures("hasty_disk")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each checkpoint that is parsed or made, as it happens."""
    found: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any) -> Any:
            found.append(name)
            return call(*given)

        return counting

    for name in ("parse", "render"):
        monkeypatch.setattr(checkpoint, name, counted(name, getattr(checkpoint, name)))
    return found


def test_no_command_parses_or_writes_a_checkpoint_for_each_partition(
    tmp_path: Path, calls: list[str]
) -> None:
    desk = BareDesk([str(tmp_path)], LocalFileSystem(), FixedClock(NOW))
    to_end = [{"topic": "t", "partition": number, "offset": -1} for number in range(MANY)]
    for command in (
        lambda: desk.create_topic("t", MANY),
        desk.list_topics,
        lambda: desk.describe_topic("t"),
        lambda: desk.describe_storage("t"),
        lambda: desk.compaction_status("t"),
        lambda: desk.add_partitions("t", 2 * MANY),
        lambda: desk.delete_records(to_end),
        lambda: desk.delete_topic("t"),
    ):
        calls.clear()
        assert command()["ok"]
        assert len(calls) <= FEW, calls
    assert desk.list_topics()["topics"] == []


def test_a_checkpoint_that_has_changed_is_parsed_again(tmp_path: Path, calls: list[str]) -> None:
    disk, path = LocalFileSystem(), str(tmp_path / "checkpoint")
    key = checkpoint.TopicPartition("t", 0)
    assert checkpoint.checkpoint_entry(disk, path, key) is None
    for offset in (5, 6):
        checkpoint.write_checkpoint(disk, path, {key: offset})
        calls.clear()
        assert [checkpoint.checkpoint_entry(disk, path, key) for _ in range(3)] == [offset] * 3
        assert calls == ["parse"]
    (tmp_path / "checkpoint").write_bytes(b"nonsense")
    with pytest.raises(checkpoint.CorruptionError, match=path):
        checkpoint.checkpoint_entry(disk, path, key)
