"""`retention`, `records delete` and `log repair` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.cli.properties import parse_properties
from tests.admin.helpers import HOUR_MS, NOW_MS, records, tree, write_log
from tests.cli.helpers import Shell
from tests.log.test_locking import held_by_another_process

NOW = ("--now", NOW_MS)
COMPACT = ("--config", "cleanup.policy=compact")
DAY = ("--config", f"retention.ms={24 * HOUR_MS}")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two logs of three segments, a day apart."""
    for number in range(2):
        days = [[records("ab", at_ms=NOW_MS - age * 24 * HOUR_MS)] for age in (3, 2, 0)]
        write_log(tmp_path / "data" / f"orders-{number}", days, policy=("delete",))
    (tmp_path / "data" / ".kafka_cleanshutdown").touch()
    return tmp_path / "data"


def damage(log_dir: Path) -> None:
    path = sorted((log_dir / "orders-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)


@pytest.mark.requirement("RET-9")
def test_retention(log_dir: Path, shell: Shell) -> None:
    before = tree(log_dir)
    done = shell("retention", log_dir, "--dry-run", *DAY, *NOW)
    assert (done.code, done.err) == (0, "")
    assert "orders-0: segment 0 (offsets 0 to 1, " in done.out
    assert "over retention.ms=86400000" in done.out
    assert "the log starts at 4 instead of 0" in done.out
    assert "nothing was changed. --apply would delete 4 segments" in done.out
    assert tree(log_dir) == before
    found = shell("retention", log_dir, "--apply", *DAY, *NOW, "--format", "json").json
    assert (found["ok"], found["applied"], found["totals"]["deleted_segments"]) == (True, True, 4)
    assert shell("retention", log_dir, "--apply", *DAY, *NOW).out == "Nothing was deleted.\n"


@pytest.mark.requirement("CFG-1")
def test_retention_by_a_brokers_file(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "# a broker\nlog.retention.hours = 24\nnum.io.threads=8\nlisteners=PLAINTEXT://:9092\n"
    )
    given = ("retention", log_dir, "--dry-run", *NOW, "--config-file", file)
    done = shell(*given)
    assert "would delete 4 segments" in done.out
    assert done.err == f"note: of {file} these have no effect here: listeners, num.io.threads\n"
    # Whichever of its names the command line uses, it wins.
    for name in ("retention.ms=-1", "log.retention.ms=-1", "log.retention.hours=9999"):
        assert "Nothing is to be deleted" in shell(*given, "--config", name).out
    file.write_text("log.retention.hours=soon\n")
    wrong = shell(*given)
    assert wrong.code == 2
    assert "--config-file" in wrong.err


@pytest.mark.requirement("RET-6")
def test_records_delete(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    before = tree(log_dir)
    done = shell("records", "delete", log_dir, "-o", "end", "-p", "0,1", "--dry-run")
    assert done.code == 0
    assert done.out.endswith("A dry run: nothing was changed.\n")
    assert tree(log_dir) == before
    found = shell(
        "records", "delete", log_dir, "-o", 3, "-p", 1, "--no-confirm", "--format", "json"
    ).json
    assert (found["ok"], found["applied"], found["totals"]["records"]) == (True, True, 3)
    file = tmp_path / "offsets.json"
    row = {"topic": "orders", "partition": 0, "offset": -1}
    file.write_text(json.dumps({"partitions": [row], "version": 1}))
    given = ("records", "delete", log_dir, "--offset-json-file", file, "--no-confirm")
    assert "0 -> 6" in shell(*given).out
    assert "6 -> 6" in shell(*given).out
    stats = shell("log", "stats", log_dir, "--format", "json").json["partitions"]
    assert [item["log_start_offset"] for item in stats] == [6, 3]


@pytest.mark.requirement("RCV-7")
def test_repair(log_dir: Path, shell: Shell) -> None:
    assert shell("log", "repair", log_dir).code == 0
    damage(log_dir)
    before = tree(log_dir)
    for options in [(), ("--apply",)]:
        done = shell("log", "repair", log_dir, *options)
        assert done.code == 1
        assert "--damage cut or --damage skip settles it" in done.out
        assert "offsets 2 to 3: CRC-32C does not match" in done.out
        assert "--damage cut: the log ends at 2; loses at most 4 records" in done.out
        assert "(1 whole batch, 1 later segment)" in done.out
        assert tree(log_dir) == before
    shown = shell("log", "repair", log_dir, "--damage", "skip")
    assert (shown.code, tree(log_dir)) == (0, before)
    assert shown.out.endswith("Nothing was changed; --apply does it.\n")
    found = shell("log", "repair", log_dir, "--damage", "skip", "--apply", "--format", "json").json
    assert (found["ok"], found["applied"]) == (True, True)
    assert found["partitions"][0]["damage"]["skip"]["offsets"] == 2
    assert shell("log", "verify", log_dir).code == 0
    assert "orders-0: 3 segments" in shell("log", "repair", log_dir, "--apply").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["retention", "DIR"], 2, "--dry-run or --apply"),
        (["retention", "DIR", "--dry-run", "--apply"], 2, "--dry-run or --apply"),
        (["retention", "DIR", "--apply", "--config", "retention.ms=x"], 2, "retention.ms"),
        (["retention", "DIR", "--dry-run", "--config-file", "NONE"], 2, "does not exist"),
        (["retention", "EMPTY", "--apply"], 1, "no partition here"),
        (["records", "delete", "DIR", "-o", "1"], 2, "--no-confirm"),
        (["records", "delete", "DIR", "--dry-run"], 2, "Say up to where"),
        (["records", "delete", "DIR", "-o", "1x", "--dry-run"], 2, "none of"),
        (["records", "delete", "DIR", "-o", "1", "-p", "x", "--dry-run"], 2, "0,1,2"),
        (["records", "delete", "DIR", "-o", "1", "-p", "9", "--dry-run"], 1, "orders-9"),
        (["records", "delete", "DIR", "-o", "99", "-p", "0", "--dry-run"], 1, "past the log end"),
        (
            ["records", "delete", "DIR/orders-0", "-o", "1", "--no-confirm", *COMPACT],
            1,
            "only where it has delete",
        ),
        (["records", "delete", "DIR", "--offset-json-file", "BAD", "--dry-run"], 1, "not of the"),
        (["log", "repair", "EMPTY", "--apply"], 1, "no partition here"),
        (["log", "repair", "DIR", "--damage", "guess"], 2, "guess"),
    ],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_wrong_input(
    log_dir: Path,
    tmp_path: Path,
    shell: Shell,
    arguments: list[str],
    code: int,
    message: str,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115  nobody to ask
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("{}")
    names = {"EMPTY": "empty", "BAD": "bad.json", "NONE": "none", "DIR": "data"}
    names["DIR/orders-0"] = "data/orders-0"
    given = [str(tmp_path / names[a]) if a in names else a for a in arguments]
    before = tree(log_dir)
    done = shell(*given, "--format", output)
    assert done.code == code
    if output == "json":
        assert message in done.json["error"]["message"]
    else:
        assert done.out == ""
        assert message in done.err
    assert tree(log_dir) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["retention", "DIR", "--apply"],
        ["retention", "DIR", "--dry-run"],
        ["records", "delete", "DIR", "-o", "1", "--no-confirm"],
        ["log", "repair", "DIR"],
        ["log", "repair", "DIR", "--apply"],
    ],
)
def test_a_directory_in_use_is_refused(log_dir: Path, shell: Shell, arguments: list[str]) -> None:
    before = tree(log_dir)
    with held_by_another_process(log_dir):
        done = shell(*[str(log_dir) if item == "DIR" else item for item in arguments])
    assert (done.code, done.out) == (1, "")
    assert "in use by a running process" in done.err
    assert tree(log_dir) == before


# ---------------------------------------------------------------- Ctrl-C

_INTERRUPTED = """
import os, signal, sys
from stratalog.base import filesystem
from stratalog.cli import main

rename = filesystem.LocalFileSystem.rename
count = 0

def rename_and_interrupt(disk, old_path, new_path):
    global count
    rename(disk, old_path, new_path)
    count += 1
    if count == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGINT)

filesystem.LocalFileSystem.rename = rename_and_interrupt
sys.exit(main(sys.argv[2:]))
"""


def interrupted(number: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    source = str(Path(__file__).resolve().parents[2] / "src")
    return subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(number), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )


@pytest.mark.requirement("RCV-6")
@pytest.mark.parametrize("number", [1, 3, 6])
def test_ctrl_c_while_repairing(log_dir: Path, shell: Shell, number: int) -> None:
    damage(log_dir)
    given = ("log", "repair", log_dir, "--apply", "--damage", "skip")
    done = interrupted(number, *given)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert shell(*given).code == 0
    assert shell("log", "verify", log_dir).code == 0
    stats = shell("log", "stats", log_dir, "--format", "json").json["partitions"]
    assert [item["records"] for item in stats] == [4, 6]


@pytest.mark.requirement("RET-8")
def test_ctrl_c_while_deleting_ends_after_what_was_begun(log_dir: Path, shell: Shell) -> None:
    done = interrupted(3, "retention", log_dir, "--apply", *DAY, *NOW)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert (log_dir / ".kafka_cleanshutdown").exists()
    assert not list(log_dir.rglob("*.deleted"))
    assert shell("log", "verify", log_dir).code == 0
    assert shell("retention", log_dir, "--apply", *DAY, *NOW).out == "Nothing was deleted.\n"


# ---------------------------------------------------------------- server.properties


def test_javas_properties() -> None:
    text = (
        "# comment\n! too\n\na=1\n b : 2 \nc 3\nd=\ne = x\\\n    y\nf\\=g=h\n"
        "u=\\u0041\\t\na=4\nlast"
    )
    assert parse_properties(text) == {
        "a": "4",
        "b": "2 ",
        "c": "3",
        "d": "",
        "e": "xy",
        "f=g": "h",
        "u": "A\t",
        "last": "",
    }
