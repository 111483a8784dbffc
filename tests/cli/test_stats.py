"""`stratalog stats --html`: the page on disk or on stdout, and what is refused in one line."""

from __future__ import annotations

import json
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.admin.helpers import NOW_MS, records, tree, write_log
from tests.cli.helpers import Shell, stratalog
from tests.log.test_locking import held_by_another_process

NOW = ("--now", NOW_MS)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions, one of them empty."""
    write_log(tmp_path / "data" / "orders-0", [[records("aab" * 100)], [records("ab")]])
    write_log(tmp_path / "data" / "orders-1", [[]])
    return tmp_path / "data"


@pytest.mark.requirement("CLN-10")
@pytest.mark.parametrize("command", [("stats",), ("log", "stats")])
def test_the_page_goes_to_a_file(
    log_dir: Path, tmp_path: Path, shell: Shell, command: tuple[str, ...]
) -> None:
    before, page = tree(log_dir), tmp_path / "page.html"
    done = shell(*command, "--html", page, log_dir, *NOW)
    assert (done.code, done.err) == (0, "")
    headline, written = done.out.splitlines()
    assert headline.startswith("Cleaning now would save ")
    assert written.startswith(f"{page}: 2 partitions, ")
    first, _, rest = page.read_text().partition("\n")
    assert first == "<!DOCTYPE html>"
    ET.fromstring(rest)
    assert tree(log_dir) == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["data", "page.html"]
    inode = page.stat().st_ino
    assert shell(*command, "--html", page, log_dir, *NOW).code == 0
    assert page.stat().st_ino != inode  # written aside, then renamed


def test_the_page_goes_to_stdout(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    shell("stats", "--html", tmp_path / "page.html", log_dir, *NOW)
    done = shell("stats", "--html", "-", log_dir, *NOW)
    assert (done.code, done.out) == (0, (tmp_path / "page.html").read_text())
    # Whatever the locale says, it is the same bytes.
    with held_by_another_process(log_dir):
        piped = stratalog("stats", "--html", "-", log_dir, *NOW, PYTHONIOENCODING="ascii")
    assert (piped.returncode, piped.stdout) == (0, done.out)


def test_figures_in_json(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    page = tmp_path / "page.html"
    found = shell("stats", "--html", page, log_dir, *NOW, "--format", "json").json
    assert (found["ok"], found["html"], found["size_bytes"]) == (
        True,
        str(page),
        page.stat().st_size,
    )
    assert [item["partition"] for item in found["partitions"]] == ["orders-0", "orders-1"]
    first, second = found["partitions"]
    assert (first["keys"], first["duplicates"], second["duplicates"]) == (2, 300, 0)
    dry = shell("compact", "--dry-run", log_dir, *NOW, "--engine", "local", "--format", "json")
    totals = dry.json["totals"]
    assert found["saved_bytes"] == totals["bytes_before"] - totals["bytes_after"] > 0
    assert first["dry_run"]["top_keys"][0]["key"] == "a"


def test_settings_are_obeyed(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    page = tmp_path / "page.html"
    lag = "min.compaction.lag.ms=1000"
    done = shell("stats", "--html", page, log_dir, *NOW, "--config", lag)
    assert done.out.startswith("Cleaning now would save nothing of ")
    assert "has records younger than min.compaction.lag.ms = 1000" in page.read_text()
    (tmp_path / "book").write_text("[topic orders]\ncleanup.policy=delete\n")
    done = shell("stats", "--html", page, log_dir, *NOW, "--topic-config", tmp_path / "book")
    assert done.out.startswith("Cleaning now would save nothing of ")
    assert "its cleanup.policy does not contain compact" in page.read_text()
    assert '<h2 id="keys">' not in page.read_text()


def test_damage_is_told_and_the_page_is_written(
    log_dir: Path, tmp_path: Path, shell: Shell
) -> None:
    path = log_dir / "orders-0" / f"{0:020d}.log"
    data, times = bytearray(path.read_bytes()), path.stat()
    data[90] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = shell("stats", "--html", tmp_path / "page.html", log_dir, *NOW)
    reason = f"{path}: position 0: CRC-32C does not match"
    assert (done.code, done.err) == (1, f"orders-0: error: {reason}\n")
    assert reason in (tmp_path / "page.html").read_text()
    done = shell("stats", "--html", tmp_path / "page.html", log_dir, *NOW, "--format", "json")
    assert done.code == 1
    assert [item["error"] for item in done.json["errors"]] == [reason]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--html", "DIR/page.html"], 1, "lies in the log directory"),
        (["--html", "DIR/orders-0/page.html"], 1, "lies in the log directory"),
        (["--html", "DIR"], 1, "is a directory"),
        (["--html", "LINK"], 1, "is a link; links are not followed"),
        (["--html", "/dev/null"], 1, "is no regular file"),
        (["--html", "DIR/../none/page.html"], 1, "there is no directory"),
        (["--html", ""], 2, "--html names no file"),
        (["--html", "-", "--format", "json"], 2, "both want stdout"),
        (["--top", "3"], 2, "--top goes with --html"),
        (["--threads", "3"], 2, "--threads goes with --html"),
        (["--html", "DIR/../page.html", "--top", "-1"], 2, "--top"),
        (["--html", "DIR/../page.html", "--config", "x=1"], 2, "Unknown configuration"),
    ],
)
def test_refusals(
    log_dir: Path, tmp_path: Path, shell: Shell, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path)
    names = {"DIR": str(log_dir), "LINK": str(tmp_path / "link")}
    given = []
    for argument in arguments:
        for name, path in names.items():
            argument = argument.replace(name, path)
        given.append(argument)
    done = shell("stats", *given, log_dir, *NOW)
    assert done.code == code
    if "json" in given:
        assert message in json.loads(done.out)["error"]["message"]
    else:
        assert done.out == ""
        assert message in done.err
        assert "Traceback" not in done.err
    assert tree(tmp_path) == before


def test_a_missing_library_is_told_by_its_extra(
    log_dir: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    for name in ("render", "content", "words"):
        monkeypatch.delitem(sys.modules, f"stratalog.admin.page.{name}", raising=False)
    done = shell("stats", "--html", tmp_path / "page.html", log_dir)
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1
    assert "pip install 'stratalog[report]'" in done.err
    assert not (tmp_path / "page.html").exists()
    assert shell("stats", log_dir).code == 0  # the counts need no library


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_damaged_partition_keeps_no_other_from_being_counted(
    log_dir: Path, shell: Shell, output: str
) -> None:
    write_log(log_dir / "orders-2", [[records("cc")]])
    (file,) = (log_dir / "orders-2").glob("*.log")
    content = file.read_bytes()
    file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    done = shell("stats", log_dir, "--format", output, *NOW)
    assert done.code == 1
    if output == "json":
        first, _, damaged = done.json["partitions"]
        assert (done.json["ok"], first["records"], first["error"]) == (False, 302, None)
        assert damaged["partition"] == "orders-2"
        assert damaged["error"]["type"] == "CorruptionError"
        assert damaged["error"]["file"] == str(file)
        assert shell("stats", log_dir / "orders-0", "--format", "json", *NOW).json["ok"]
    else:
        heads, _, first, _, damaged = done.out.splitlines()
        assert heads.split()[-2:] == ["error", "message"]
        assert first.split()[:1] == ["orders-0"]
        assert damaged.split()[0] == "orders-2"
        assert f"CorruptionError  {file}" in damaged
    alone = shell("stats", log_dir / "orders-2", *NOW)
    assert (alone.code, alone.out) == (1, "")
    assert alone.err.startswith(f"error: {file}: ")
