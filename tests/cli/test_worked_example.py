"""EX-9: a topic with limits from the command line, then other limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers import Shell


@pytest.mark.requirement("EX-9")
def test_ex_9_a_topic_with_limits_that_are_altered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell, data = Shell(capsys), ("--data", str(tmp_path / "data"))
    limits = ("cleanup.policy=delete", "retention.ms=10000", "retention.bytes=128000")
    configs = [word for limit in limits for word in ("--config", limit)]
    assert shell("topic", "create", "new-topic1", *configs, *data).code == 0

    def settings() -> dict[str, str]:
        told = shell("config", "describe", "new-topic1", "--format", "json", *data)
        assert told.code == 0
        return {row["name"]: row["value"] for row in json.loads(told.out)["configs"]}

    given = dict(limit.split("=") for limit in limits)
    assert given.items() <= settings().items()
    changed = ("--add-config", "retention.ms=25000", "--delete-config", "retention.bytes")
    assert shell("config", "alter", "new-topic1", *changed, *data).code == 0
    after = settings()
    assert (after["retention.ms"], after["cleanup.policy"]) == ("25000", "delete")
    assert after.get("retention.bytes", "-1") == "-1"
