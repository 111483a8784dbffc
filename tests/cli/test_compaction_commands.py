"""`compaction`, `cleaner`, `compact --dry-run --top` and `log verify --absent-key`: right and wrong
input, text and JSON, exit codes, Ctrl-C."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.clean.note import Failure, Note, read_note, write_note
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, records, tree, write_log
from tests.cli.helpers import Shell
from tests.log.test_locking import held_by_another_process

pytestmark = pytest.mark.usefixtures("hasty_disk")
NOW = ("--now", NOW_MS)
LOCAL = ("--engine", "local")
AS_JSON = ("--format", "json")
LOOKING = (("compaction", "status"), ("compaction", "explain"), ("cleaner", "status"))
CHANGING = (("compaction", "pause"), ("compaction", "resume"), ("cleaner", "retry"))


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions, one of them with nothing to clean."""
    write_log(
        tmp_path / "data" / "orders-0",
        [[records("aab"), records("ab")], [records("x", None)]],
        rolls_last=True,
    )
    write_log(tmp_path / "data" / "orders-1", [[]])
    return tmp_path / "data"


# ---------------------------------------------------------------- the preview


@pytest.mark.requirement("CLN-10")
def test_a_preview_names_segments_and_keys(log_dir: Path, shell: Shell) -> None:
    before = tree(log_dir)
    done = shell("compact", log_dir, "--dry-run", *LOCAL, *NOW)
    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert any(line.startswith("orders-0/0 5 -> 2 ") for line in lines)
    assert any(line.startswith("a orders-0 2 ") for line in lines)
    assert any(line.startswith("b orders-0 1 ") for line in lines)
    found = shell("compact", log_dir, "--dry-run", "--top", "1", *LOCAL, *NOW, *AS_JSON).json
    first = found["partitions"][0]
    assert [key["key"] for key in first["top_keys"]] == ["a"]
    assert [segment["base_offset"] for segment in first["segments"]] == [0, 5]
    assert first["segments"][0]["dropped"]["superseded"] == 3
    size_bytes = found["totals"]["dropped_bytes"]["superseded"]
    assert size_bytes == sum(item["dropped_bytes"]["total"] for item in first["segments"])
    assert size_bytes == found["totals"]["dropped_bytes"]["total"] > 0
    assert any(line == f"superseded 3 {size_bytes} B" for line in lines)
    none = shell("compact", log_dir, "--dry-run", "--top", "0", *LOCAL, *NOW)
    assert "superseded  bytes" not in none.out
    assert shell("compact", log_dir, "--dry-run", "--top", "-1", *LOCAL).code == 2
    assert tree(log_dir) == before


# ---------------------------------------------------------------- status, explain, history


@pytest.mark.requirement("CLN-10", "CLN-9")
def test_what_there_is_to_see(log_dir: Path, shell: Shell) -> None:
    before = tree(log_dir)
    status = shell("compaction", "status", log_dir, *NOW, *AS_JSON)
    assert (status.code, status.err) == (0, "")
    first, second = status.json["partitions"]
    assert first["partition"] == "orders-0"
    assert first["bytes"]["cleanable"] == first["bytes"]["total"] > 0
    assert (first["checkpoint"], first["paused"], first["last_run"]) == (None, False, None)
    assert second["bytes"]["total"] == 0
    text = shell("compaction", "status", log_dir, *NOW)
    assert text.out.splitlines()[2].split()[0] == "orders-0"
    explained = shell("compaction", "explain", log_dir, *NOW)
    assert (explained.code, explained.err) == (0, "")
    one, two = explained.out.splitlines()
    assert one.startswith("orders-0 is to be cleaned (number 1 of 1 in the queue): its dirty ratio")
    assert two.startswith("orders-1 is not cleaned: nothing is cleanable from offset 0 on")
    found = shell("compaction", "explain", log_dir, *NOW, *AS_JSON).json["partitions"]
    assert [item["reason"] for item in found] == ["ratio", None]
    assert [item["obstacle"] for item in found] == [None, "nothing_cleanable"]
    assert [item["partition"] for item in found] == ["orders-0", "orders-1"]
    queue = shell("cleaner", "status", log_dir, *NOW, *AS_JSON).json
    assert [item["partition"] for item in queue["queue"]] == ["orders-0"]
    assert shell("compaction", "history", log_dir).out == "No round is on record.\n"
    assert tree(log_dir) == before


@pytest.mark.requirement("CLN-9")
def test_history_tells_of_runs(log_dir: Path, shell: Shell) -> None:
    assert shell("compact", log_dir, "--in-place", *LOCAL, *NOW).code == 0
    later = ("--now", NOW_MS + 25 * HOUR_MS)
    assert shell("compact", log_dir, "--in-place", *LOCAL, *later).code == 0
    text = shell("compaction", "history", log_dir)
    rows = [line.split() for line in text.out.splitlines()[2:]]
    assert [(row[0], row[4], row[5]) for row in rows] == [("orders-0", "command", "cleaned")] * 2
    found = shell("compaction", "history", log_dir, "--limit", "1", *AS_JSON).json
    (newest,) = found["partitions"][0]["history"]
    assert (newest["started_ms"], newest["drops"]["tombstone_expired"]) == (later[1], 1)
    assert newest["bytes_saved"] == newest["bytes_before"] - newest["bytes_after"] > 0
    assert found["partitions"][1]["history"] == []
    assert shell("compaction", "history", log_dir, "--limit", "0").code == 2


@pytest.mark.requirement("CLN-10", "CFG-1")
def test_settings_of_each_topic_decide(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "topics.ini"
    file.write_text("[topic orders]\nmin.compaction.lag.ms=60000\n")
    done = shell("compaction", "explain", log_dir / "orders-0", *NOW, "--topic-config", file)
    assert "it is younger than min.compaction.lag.ms" in done.out, done.err
    deletes = ("--config", "cleanup.policy=delete")
    done = shell("compaction", "explain", log_dir / "orders-0", *NOW, *deletes)
    assert done.out == "orders-0 is not cleaned: its cleanup.policy does not contain compact.\n"


@pytest.mark.requirement("CFG-1", "CMP-3", "CLN-9")
def test_compact_goes_by_each_topics_settings(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    write_log(log_dir / "audit-0", [[records("aa")], [records("b")]], rolls_last=True)
    write_log(log_dir / "young-0", [[records("aa")], [records("b")]], rolls_last=True)
    file = tmp_path / "topics.ini"
    file.write_text(
        "[topic audit]\ncleanup.policy=delete\n[prefix you]\nmin.compaction.lag.ms=60000\n"
    )
    before = tree(log_dir / "audit-0")
    given = ("--topic-config", file, *LOCAL, *NOW)
    done = shell("compact", log_dir, "--in-place", *given, *AS_JSON)
    assert done.code == 0, done.err
    skipped = {item["partition"]: item["skipped"] for item in done.json["partitions"]}
    assert skipped == {
        "audit-0": "its cleanup.policy does not contain compact",
        "orders-0": None,
        "orders-1": "the log is empty",
        "young-0": "the segment at 0 has records younger than min.compaction.lag.ms = 60000",
    }
    assert tree(log_dir / "audit-0") == before
    broker = tmp_path / "server.properties"
    broker.write_text("log.cleanup.policy=delete\n")
    refused = shell("compact", log_dir, "--dry-run", *LOCAL, "--config-file", broker)
    assert refused.code == 2
    assert "without compact" in refused.err


# ---------------------------------------------------------------- pause, resume, retry


@pytest.mark.requirement("CLN-4", "CLN-9")
def test_pause_and_resume(log_dir: Path, shell: Shell) -> None:
    done = shell("compaction", "pause", log_dir / "orders-0")
    assert (done.code, done.out) == (0, "orders-0: paused\n")
    assert shell("compaction", "pause", log_dir / "orders-0").out == "orders-0: paused already\n"
    assert "paused and has to be resumed" in shell("compaction", "explain", log_dir, *NOW).out
    assert "orders-0 is paused." in shell("cleaner", "status", log_dir, *NOW).out
    refused = shell("compact", log_dir, "--in-place", *LOCAL, *NOW)
    assert refused.code == 1
    assert "orders-0: cleaning is paused; `stratalog compaction resume`" in refused.err
    found = shell("compaction", "resume", log_dir, *AS_JSON).json
    assert [item["changed"] for item in found["partitions"]] == [True, False]
    assert shell("compact", log_dir, "--in-place", *LOCAL, *NOW).code == 0


@pytest.mark.requirement("CLN-7")
def test_retry(log_dir: Path, shell: Shell) -> None:
    path = str(log_dir / "orders-0")
    write_note(DISK, path, Note(failure=Failure("no room", 2, NOW_MS, NOW_MS + HOUR_MS)))
    text = shell("cleaner", "status", log_dir, *NOW).out
    assert (
        "orders-0 could not be cleaned (2 attempts, the last at 2023-11-14T22:13:20.000Z)" in text
    )
    assert "no room; next attempt: 2023-11-14T23:13:20.000Z" in text
    assert "failing" in shell("compaction", "status", log_dir, *NOW).out
    paused = shell("compaction", "pause", path)
    assert "cleaning has failed in orders-0" in paused.err
    done = shell("cleaner", "retry", log_dir)
    assert done.out == "orders-0: is to be tried again\norders-1: has not failed\n"
    assert read_note(DISK, path) == Note(paused=True)


# ---------------------------------------------------------------- wrong input


@pytest.mark.requirement("CLN-9", "CLN-10")
@pytest.mark.parametrize("command", [*LOOKING, *CHANGING, ("compaction", "history")])
def test_wrong_directories(tmp_path: Path, shell: Shell, command: tuple[str, str]) -> None:
    assert shell(*command, tmp_path / "none").code == 2
    (tmp_path / "file").write_text("")
    done = shell(*command, tmp_path / "file", *AS_JSON)
    assert done.code == 2
    assert "error" in done.json
    done = shell(*command, tmp_path)
    assert (done.code, done.out) == (1, "")
    assert done.err.count("\n") == 1, done.err
    assert shell(*command).code == 2


@pytest.mark.requirement("CLN-9", "CLN-10")
def test_a_held_directory(log_dir: Path, shell: Shell) -> None:
    with held_by_another_process(log_dir):
        for command in (*LOOKING, ("compaction", "history")):
            assert shell(*command, log_dir).code == 0
        assert shell("log", "verify", log_dir, "--absent-key", "none").code == 0
        for command in CHANGING:
            done = shell(*command, log_dir)
            assert (done.code, done.out) == (1, "")
            assert "in use by a running process" in done.err
            assert done.err.count("\n") == 1


@pytest.mark.requirement("CLN-10")
def test_a_partition_that_cannot_be_read_gives_exit_code_1(log_dir: Path, shell: Shell) -> None:
    path = log_dir / "orders-1" / f"{0:020d}.log"
    path.unlink()
    path.mkdir()
    for command in LOOKING:
        done = shell(*command, log_dir, *NOW)
        assert done.code == 1, command
        assert "orders-1: error: " in done.out
        assert "orders-0" in done.out
        assert shell(*command, log_dir, *NOW, *AS_JSON).json["ok"] is False


@pytest.mark.requirement("CLN-10", "CFG-1")
def test_wrong_settings(log_dir: Path, shell: Shell) -> None:
    for command in LOOKING:
        done = shell(*command, log_dir, "--config", "min.cleanable.dirty.ratio=2")
        assert done.code == 2
        assert "min.cleanable.dirty.ratio" in done.err


# ---------------------------------------------------------------- log verify --absent-key


@pytest.mark.requirement("CLN-11")
def test_absent_key(log_dir: Path, shell: Shell) -> None:
    verify = ("log", "verify", log_dir / "orders-0")
    present = shell(*verify, "--absent-key", "a")
    assert present.code == 1
    assert "values of the key: 3" in present.out
    assert f"{0:020d}.log: offset 0: a value" in present.out
    gone = shell(*verify, "--absent-key", "x")
    assert gone.code == 0
    assert "no value of the key is left; tombstones: 1" in gone.out
    assert "which is kept until a cleaning sets its deadline" in gone.out
    assert shell(*verify, "--absent-key", "x", "--stage", "key").code == 1
    assert shell("compact", log_dir, "--in-place", *LOCAL, *NOW).code == 0
    gone = shell(*verify, "--absent-key", "x")
    assert "which a cleaning removes from 2023-11-15T22:13:20.000Z on" in gone.out
    nowhere = shell(*verify, "--absent-key", "q", "--stage", "key", *AS_JSON)
    assert (nowhere.code, nowhere.json["ok"]) == (0, True)
    assert nowhere.json["partitions"][0]["stage"] == "key-absent"


@pytest.mark.requirement("CLN-11")
@pytest.mark.parametrize(
    ("key_format", "key"),
    [("utf8", "a"), ("hex", "61"), ("base64", base64.b64encode(b"a").decode())],
)
def test_formats_of_keys(log_dir: Path, shell: Shell, key_format: str, key: str) -> None:
    given = ("--absent-key", key, "--key-format", key_format)
    done = shell("log", "verify", log_dir / "orders-0", *given, *AS_JSON)
    assert (done.code, done.json["key"]) == (1, "a")
    assert done.json["partitions"][0]["values"] == 3


@pytest.mark.requirement("CLN-11")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--absent-key", "6", "--key-format", "hex"),
        ("--absent-key", "zz", "--key-format", "hex"),
        ("--absent-key", "???", "--key-format", "base64"),
        ("--absent-key", "a", "--key-format", "rot13"),
        ("--absent-key", "a", "--stage", "all"),
        ("--key-format", "hex"),
        ("--stage", "key"),
    ],
)
def test_wrong_keys(log_dir: Path, shell: Shell, arguments: tuple[str, ...]) -> None:
    done = shell("log", "verify", log_dir, *arguments)
    assert (done.code, done.out) == (2, "")
    against = shell("log", "verify", log_dir, "--absent-key", "a", "--against", log_dir)
    assert against.code == 2


# ---------------------------------------------------------------- Ctrl-C

_INTERRUPTED = """
import os, signal, sys
from stratalog.admin import absent, top_keys
from stratalog.cli import main

def interrupting(step):
    def run(*arguments, **named):
        os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments, **named)
    return run

top_keys._Finder._report = interrupting(top_keys._Finder._report)
absent._Search._chunk = interrupting(absent._Search._chunk)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.requirement("CLN-10", "CLN-11")
@pytest.mark.parametrize(
    "command",
    [("compact", "--dry-run", *LOCAL), ("log", "verify", "--absent-key", "a")],
    ids=["preview", "absent key"],
)
def test_ctrl_c(log_dir: Path, command: tuple[str, ...]) -> None:
    before = tree(log_dir)
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, *command, str(log_dir)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stderr
    assert tree(log_dir) == before
