"""`stratalog settings`, and the files that commands take settings from."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from stratalog.cli.options import book_of
from stratalog.config.table import TABLE
from tests.cli.helpers import Shell


@pytest.mark.requirement("CFG-1")
def test_all_settings_are_listed(shell: Shell) -> None:
    listed = shell("settings")
    assert listed.code == 0
    rows = shell("settings", "--format", "json").json["settings"]
    assert [row["name"] for row in rows] == [row.name for row in TABLE]
    for row in rows:
        assert f"\n  {row['name']} " in listed.out


@pytest.mark.requirement("CFG-1")
def test_one_is_explained_under_any_of_its_names(shell: Shell) -> None:
    for name in ("retention.ms", "log.retention.ms", "log.retention.hours"):
        told = shell("settings", name).out
        assert told.startswith("retention.ms\nAge at which a segment is deleted")
        assert "log.retention.minutes (in minutes), log.retention.hours (in hours)" in told
    found = shell("settings", "compaction.strategy", "--format", "json").json["settings"]
    assert [(row["rule"], row["ours"]) for row in found] == [
        ("one of offset, timestamp, header", True)
    ]
    unknown = shell("settings", "retention.m")
    assert unknown.code == 2
    assert "did you mean retention.ms" in unknown.err
    assert "stratalog settings" in shell("compact", "--help").out


@pytest.mark.requirement("CFG-1")
def test_levels_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker, topics = tmp_path / "server.properties", tmp_path / "topics"
    broker.write_text("log.roll.hours=1\nnum.io.threads=8\nretention.ms=3\n")
    topics.write_text("[prefix a]\nsegment.ms=2\npreallocate=true\n[topic ab]\nsegment.ms=3\n")
    book = book_of((), None, str(broker), str(topics))
    assert [book.of(topic).integer("segment.ms") for topic in ("x", "a", "ab")] == [3_600_000, 2, 3]
    assert capsys.readouterr().err.splitlines() == [
        (
            f"note: of {broker} these have no effect here: num.io.threads, retention.ms "
            "(log.retention.ms)"
        ),
        "note: of prefix a these have no effect here: preallocate",
    ]
    book = book_of(("log.roll.ms=9",), None, str(broker), str(topics))
    assert [book.of(topic).integer("segment.ms") for topic in ("x", "a", "ab")] == [9, 9, 9]
    book = book_of((), {"cleanup.policy": ("compact",)})
    assert book.of("x").is_compacted


@pytest.mark.requirement("CFG-1")
@pytest.mark.parametrize(
    ("config", "broker", "topics", "hint", "message"),
    [
        ("segment.ms=x", "", "", "--config", "Not a number"),
        ("segment.ms=1", "log.roll.ms=0", "", "--config-file", "server.properties: Invalid value"),
        ("segment.ms=1", "a=\\u1", "", "--config-file", "server.properties: line 1: Malformed"),
        ("segment.ms=1", "", "[topic a]\nb=1", "--topic-config", "topics: line 2: Unknown topic"),
        (
            "segment.ms=1",
            "log.cleaner.min.compaction.lag.ms=9",
            "[topic a]\nmax.compaction.lag.ms=8",
            "--topic-config",
            "topics: topic a: conflict topic config setting",
        ),
        (
            "min.compaction.lag.ms=9",
            "",
            "[topic a]\nmax.compaction.lag.ms=8",
            "--config",
            "topic a: conflict topic config setting",
        ),
    ],
)
def test_an_error_names_the_option_that_it_comes_from(
    config: str, broker: str, topics: str, hint: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "server.properties").write_text(broker)
    (tmp_path / "topics").write_text(topics)
    paths = (str(tmp_path / "server.properties"), str(tmp_path / "topics"))
    with pytest.raises(click.BadParameter) as refused:
        book_of((config,), None, *paths)
    assert refused.value.param_hint == hint
    assert message in refused.value.message
