"""What the desk's commands take besides: Kafka's words, prompts, and saying who does it."""

from __future__ import annotations

import io
import os
from pathlib import Path
from random import Random

import click
import pytest

from stratalog.admin.desk import BareDesk, open_desk
from stratalog.base.clock import FixedClock
from stratalog.cli.config import parse_added
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import DISK, NOW_MS, records, tree
from tests.cli.helpers import Shell

pytestmark = [pytest.mark.usefixtures("hasty_disk"), pytest.mark.requirement("ADM-1", "CFG-2")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with open_desk([str(path)], DISK, FixedClock(NOW_MS)) as desk:
        desk.create_topic("orders", 2, {"cleanup.policy": "compact,delete"})
        log = desk.service.store.get(TopicPartition("orders", 0))
        log.append_records(records("abc"))
    return path


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


# ---------------------------------------------------------------- Kafka's words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a=[1,2],b=[3]", {"a": "1,2", "b": "3"}),
        ("a=[1,2]", {"a": "1,2"}),
        (" a = 1 , b = x=y ", {"a": "1", "b": "x=y"}),
        ("a=", {"a": ""}),
    ],
)
def test_settings_to_add_are_read_as_kafka_configs_does(text: str, words: dict[str, str]) -> None:
    assert parse_added(text) == words


@pytest.mark.parametrize("text", ["", "a", "a=1,", "a=1,b", "=1", "a=[1,2],b"])
def test_what_is_no_list_of_settings_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_added(text)


def test_any_text_is_read_or_refused() -> None:
    random = Random(1)
    for _ in range(2000):
        text = "".join(random.choices("ab=[], ", k=random.randrange(12)))
        try:
            parse_added(text)
        except click.BadParameter:
            continue


def test_commands_of_kafka_work_as_they_are(data: Path, shell: Shell) -> None:
    where = ("--data", data)
    assert shell("topic", "create", "--topic", "new", "--partitions", "2", *where).code == 0
    assert shell("topic", "describe", "--topic", "new", *where).out.startswith("topic       new\n")
    entity = ("--entity-type", "topics", "--entity-name", "new")
    added = ("--alter", "--add-config", "cleanup.policy=[compact,delete],retention.ms=5")
    assert shell("config", "alter", *entity, *added, *where).code == 0
    told = shell("config", "describe", "--describe", *entity, *where).out
    assert "retention.ms=5 synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5" in told
    broker = ("--entity-type", "brokers", "--entity-default")
    changed = ("--add-config", "log.retention.ms=7")
    assert shell("config", "alter", *broker, *changed, *where).code == 0
    file = data.parent / "added.properties"
    file.write_text("retention.ms=9\n# a comment\nsegment.ms = 60000\n")
    assert shell("config", "alter", *entity, "--add-config-file", file, *where).code == 0
    found = shell("config", "describe", *entity, *where, "--format", "json").json
    assert {it["name"]: it["value"] for it in found["configs"]} == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "9",
        "segment.ms": "60000",
    }
    assert shell("topic", "delete", "--topic", "new", "--no-confirm", *where).code == 0
    assert shell("topic", "create", "x", "--topic", "y", *where).code == 2


# ---------------------------------------------------------------- prompts

DESTRUCTIVE = [
    (("topic", "delete", "orders"), "Delete topic orders?"),
    (("records", "delete", "orders", "-o", "2", "-p", "0"), "Delete these records?"),
]


@pytest.mark.parametrize(("command", "question"), DESTRUCTIVE)
@pytest.mark.parametrize("output", ["text", "json"])
def test_what_destroys_shows_its_plan_and_asks(
    command: tuple[str, ...],
    question: str,
    output: str,
    data: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = tree(data)
    for typed in ("n\n", "\n", ""):
        monkeypatch.setattr("sys.stdin", Terminal(typed))
        done = shell(*command, "--data", data, "--format", output)
        assert done.code == (1 if typed else 130)  # the end of input is Ctrl-D
        assert question in done.err
        assert "partition" in done.err, "the plan"
        assert tree(data) == before
        if output == "json":
            assert set(done.json) == {"error"}
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    done = shell(*command, "--data", data, "--format", output)
    assert done.code == 0
    assert question in done.err
    assert tree(data) != before
    if output == "json":
        assert done.json["applied"]


# ---------------------------------------------------------------- who does it


def test_it_is_said_who_does_it(data: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = shell("topic", "list", "--data", data)
    assert quiet.err == "", "nobody watches"
    told = shell("topic", "list", "--data", data, "-v")
    assert (told.out, told.err) == (quiet.out, f"opened {data}\n")
    monkeypatch.setenv("STRATALOG_DATA", str(data))
    assert shell("topic", "list", "-v").err == f"opened {data}\n"
    assert shell("compaction", "status", "orders").out.count("orders") == 2
    assert "orders-0" in shell("compaction", "status", data).out, "a directory all the same"


def test_a_brokers_file_counts_where_no_server_runs(data: Path, shell: Shell) -> None:
    file = data.parent / "server.properties"
    file.write_text("log.retention.hours=2\n")
    options = ("--data", data, "--config-file", file, "--format", "json")
    found = shell("config", "describe", "orders", "--all", *options).json["configs"]
    [retention] = [it for it in found if it["name"] == "retention.ms"]
    assert (retention["value"], retention["source"]) == ("7200000", "STATIC_BROKER_CONFIG")


def test_several_log_directories(tmp_path: Path, shell: Shell) -> None:
    where = ("--data", tmp_path / "a", "--data", tmp_path / "b")
    assert shell("topic", "create", "t", "--partitions", "4", *where).code == 0
    found = shell("log-dirs", "describe", *where, "--format", "json").json
    assert [len(row["partitions"]) for row in found["log_dirs"]] == [2, 2]
    lines = shell("log-dirs", "describe", *where, "--format", "tsv").out.splitlines()
    assert len(lines) == 4


def test_a_ledgers_status_survives_restarts(data: Path, shell: Shell) -> None:
    where = ("--data", data)
    assert shell("config", "alter", "orders", "--add-config", "compaction.mode=ledger", *where)
    assert shell("compaction", "run", "orders", "-p", "0", "-w", *where).code == 0
    status = shell("compaction", "status", "orders", "-p", "0", *where, "--format", "json").json
    [row] = status["partitions"]
    assert (row["mode"], row["state"], row["backlog_bytes"]) == ("ledger", "succeeded", 0)
    assert (row["ledger"]["number"], row["ledger"]["horizon"]) == (1, 3)
    assert row["started_ms"] <= row["ended_ms"]
    assert row["bytes"]["cleanable"] == 0
    assert row["bytes"]["clean"] + row["bytes"]["active"] == row["bytes"]["total"]
    [other] = BareDesk([str(data)], DISK, FixedClock(NOW_MS)).compaction_status("orders", 1)[
        "partitions"
    ]
    assert (other["state"], other["ledger"]) == ("never", None)


@pytest.mark.requirement("ADM-1", "LDG-1")
@pytest.mark.parametrize("by", ["topic", "directory"])
def test_what_a_ledger_still_shows_is_told_when_records_are_deleted(
    data: Path, shell: Shell, by: str
) -> None:
    where = ("--data", data) if by == "topic" else ()
    target = "orders" if by == "topic" else data / "orders-0"
    what = ("records", "delete", target, "-p", "0", *where)
    policy = "cleanup.policy=[compact,delete],retention.ms=-1"
    words = ("--add-config", f"compaction.mode=ledger,{policy}", "--data", data)
    assert shell("config", "alter", "orders", *words).code == 0
    assert "warning" not in shell(*what, "-o", "1", "--dry-run").err
    assert shell("compaction", "run", "orders", "-p", "0", "-w", "--data", data).code == 0
    found = shell(*what, "-o", "1", "--dry-run")
    assert (found.code, found.err.count("warning: orders keeps ledgers")) == (0, 1), found
    as_json = shell(*what, "-o", "1", "--dry-run", "--format", "json")
    assert len(as_json.json["warnings"]) == 1
    done = shell(*what, "-o", "1", "--no-confirm")
    assert (done.code, done.err.count("warning: orders keeps ledgers")) == (0, 1), done


def test_an_empty_name_is_not_the_current_directory(
    data: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--data "$UNSET"`."""
    monkeypatch.chdir(data)
    for where in (("--data", ""), ("--data", data, "--data", "")):
        found = shell("topic", "list", *where)
        assert (found.code, found.out) == (2, "")
        assert "names no directory" in found.err
    started = shell("server", "start", "", "--port", "0")
    assert (started.code, "is no directory" in started.err) == (2, True)
    monkeypatch.setenv("STRATALOG_DATA", os.pathsep)
    found = shell("topic", "delete", "orders", "--no-confirm")
    assert (found.code, "Say where" in found.err) == (2, True)
    monkeypatch.setenv("STRATALOG_DATA", os.pathsep + str(data))
    assert "orders" in shell("topic", "list").out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--add-config", "retention.ms=5,retention.ms=6"), 2, "given twice: retention.ms"),
        (("--add-config", "segment.ms=5", "--add-config", "segment.ms=6"), 2, "given twice"),
        (("--add-config", "retention.ms=5", "--delete-config", "retention.ms"), 1, "at once"),
    ],
)
def test_a_setting_has_one_value(
    data: Path, shell: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    found = shell("config", "alter", "orders", *words, "--data", data)
    assert found.code == code
    assert said in found.err
