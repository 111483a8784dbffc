"""Commands on a directory go by what is known of its topics: nobody has to say a policy again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.admin.desk import BareDesk, open_desk
from stratalog.base.clock import FixedClock
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, records, tree
from tests.cli.helpers import Shell
from tests.cli.test_start import _probe

pytestmark = pytest.mark.usefixtures("hasty_disk")
NOW = ("--now", NOW_MS + 1000 * HOUR_MS)
LOCAL = ("--engine", "local")
AS_JSON = ("--format", "json")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """`state` is compacted, `events` deletes what is old, which all of it is."""
    path = tmp_path / "data"
    with open_desk([str(path)], DISK, FixedClock(NOW_MS)) as desk:
        desk.create_topic("state", 1, {"cleanup.policy": "compact"})
        desk.create_topic("events", 1)
        for topic in ("state", "events"):
            log = desk.service.store.get(TopicPartition(topic, 0))
            log.append_records(records("aab"))
            log.roll()
            log.append_records(records("ab"))
    return path


@pytest.mark.requirement("CFG-2")
def test_retention_spares_what_is_compacted(data: Path, shell: Shell) -> None:
    done = shell("retention", data, "--dry-run", *NOW, *AS_JSON).json
    found = {item["partition"]: item for item in done["partitions"]}
    assert found["state-0"]["cleanup_policy"] == ["compact"]
    assert found["state-0"]["deletions"] == []
    assert found["events-0"]["deleted_segments"] > 0
    before = {name: it for name, it in tree(data).items() if name.startswith("state")}
    assert shell("retention", data, "--apply", *NOW).code == 0
    after = {name: it for name, it in tree(data).items() if name.startswith("state")}
    logs = {name: it for name, it in before.items() if name.endswith(".log")}
    assert {name: after[name] for name in logs} == logs


@pytest.mark.requirement("CFG-2")
def test_compact_leaves_out_what_was_made_without_compact(data: Path, shell: Shell) -> None:
    done = shell("compact", data, "--dry-run", *LOCAL, *NOW, *AS_JSON).json
    dropped = {
        item["partition"]: item["records_before"] - item["records_after"]
        for item in done["partitions"]
        if item["skipped"] is None
    }
    assert dropped == {"state-0": 3}
    # The command line still has the last word.
    forced = shell(
        *("compact", data, "--dry-run", *LOCAL, *NOW, *AS_JSON),
        *("--config", "cleanup.policy=compact"),
    ).json
    assert sum(item["skipped"] is None for item in forced["partitions"]) == 2


@pytest.mark.requirement("CFG-2")
def test_the_cleaner_obeys_them(data: Path, shell: Shell) -> None:
    done = shell("cleaner", "run", data, "--once", *NOW, *AS_JSON).json
    assert [item["partition"] for item in done["rounds"]] == ["state-0"]
    assert {item["partition"] for item in done["deleted"]} == {"events-0"}
    told = shell("compaction", "explain", data, *NOW).out
    assert "events-0 is not cleaned: its cleanup.policy does not contain compact." in told


@pytest.mark.requirement("CFG-2")
def test_records_of_a_compacted_topic_stay(data: Path, shell: Shell) -> None:
    options = ("-o", "end", "--no-confirm")
    done = shell("records", "delete", data / "state-0", *options)
    assert done.code == 1
    assert "its cleanup.policy is compact" in done.err
    assert shell("records", "delete", data / "events-0", *options).code == 0


# ---------------------------------------------------------------- Ctrl-C

_INTERRUPTED = """
import os, signal, sys
from stratalog.clean import meter
from stratalog.cli import main
from stratalog.log.log_store import LogStore

where, count = sys.argv.pop(1), 0

def interrupted(kind, name):
    call = getattr(kind, name)
    def with_signal(self, *arguments, **named):
        global count
        count += 1
        if count == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return call(self, *arguments, **named)
    setattr(kind, name, with_signal)

interrupted(*{
    "create": (LogStore, "create"),
    "delete": (LogStore, "_delete"),
    "open": (LogStore, "_open_entry"),
    "clean": (meter.Meter, "add"),
}[where])
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.requirement("ADM-1")
@pytest.mark.parametrize(
    ("where", "command", "topics", "output"),
    [
        ("create", "topic create new --partitions 3", {("events", 1), ("new", 3)}, "text"),
        ("create", "topic alter events --partitions 4", {("events", 4)}, "json"),
        ("delete", "topic delete events --no-confirm", set(), "text"),
        ("open", "topic create new", {("events", 1)}, "text"),
        ("clean", "compaction run state", {("events", 1)}, "json"),
    ],
)
def test_ctrl_c_leaves_a_directory_that_opens(
    data: Path, where: str, command: str, topics: set[tuple[str, int]], output: str
) -> None:
    """What is short is done as a whole before the command ends; what is long is given up."""
    if where == "delete":
        BareDesk([str(data)], DISK, FixedClock(NOW_MS)).add_partitions("events", 3)
    source = str(Path(__file__).resolve().parents[2] / "src")
    options = ["--data", str(data), "--format", output]
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, where, *command.split(), *options],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": source, "PATH": ""},
    )
    assert done.returncode == 130, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    if where in ("create", "delete"):  # it is done, and told
        assert done.stderr == "interrupted, after it was done\n"
        assert done.stdout
    else:
        assert "interrupted" in (done.stdout if output == "json" else done.stderr)
    with open_desk([str(data)], DISK, FixedClock(NOW_MS)) as desk:
        found = desk.list_topics()
        assert found["ok"]
        told = {(row["name"], row["partitions"]) for row in found["topics"]}
        assert told == {*topics, ("state", 1)}
        assert desk.service.store.get(TopicPartition("state", 0)).log_end_offset == 5


@pytest.mark.requirement("ADM-1")
def test_help_says_nothing_heavy() -> None:
    assert _probe("topic", "--help") == "HEAVY [] 0"
