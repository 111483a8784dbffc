"""docs/SETTINGS.md is what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.config.docs import default_of, fields, markdown
from stratalog.config.table import TABLE, setting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "SETTINGS.md"


@pytest.mark.requirement("CFG-1")
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run tools/settings_docs.py"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "604800000 (7 d)"),
        ("log.retention.check.interval.ms", "300000 (5 min)"),
        ("log.cleaner.backoff.ms", "15000 (15 s)"),
        ("segment.bytes", "1073741824 (1 GiB)"),
        ("log.cleaner.io.buffer.size", "524288 (512 KiB)"),
        ("max.message.bytes", "1048588"),
        ("retention.bytes", "-1"),
        ("flush.messages", "9223372036854775807 (no bound)"),
        ("log.cleaner.io.max.bytes.per.second", "inf (no bound)"),
        ("cleanup.policy", "delete"),
        ("preallocate", "false"),
        ("cleaner.spark.master", "empty"),
        ("log.dirs", "not set"),
    ],
)
def test_defaults_say_what_they_mean(name: str, text: str) -> None:
    assert default_of(setting(name)) == text


def test_every_row_can_be_told() -> None:
    text = markdown()
    for row in TABLE:
        assert f"### {row.name}\n" in text
        assert fields(row)["levels"][-1] == "broker"
    assert fields(setting("retention.ms"))["synonyms"][0] == "log.retention.ms"
    assert fields(setting("log.dirs"))["default"] is None
