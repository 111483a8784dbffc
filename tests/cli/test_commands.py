"""Every command with right and wrong input: exit codes, one JSON object, notes on stderr."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.admin.helpers import NOW_MS, copy_of, records, settings_of, tree, write_log
from tests.cli.helpers import Shell, stratalog
from tests.log.test_locking import held_by_another_process
from tests.oracle import Round, compare_partitions, fold, golden_rounds

NOW = ("--now", NOW_MS)
LOCAL = ("--engine", "local")
CSV = "id,v\na,1\nb,2\na,3\n"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions, one of them with nothing to clean."""
    write_log(tmp_path / "data" / "orders-0", [[records("aab"), records("ab")]], rolls_last=True)
    write_log(tmp_path / "data" / "orders-1", [[]])
    return tmp_path / "data"


def _damage(log_dir: Path) -> Path:
    path = sorted((log_dir / "orders-0").glob("*.log"))[0]
    data, times = bytearray(path.read_bytes()), path.stat()
    data[90] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path


# ---------------------------------------------------------------- compact


@pytest.mark.requirement("CMP-1", "CMP-11", "LOG-3")
@pytest.mark.parametrize(
    "kafka", [k for k in golden_rounds() if k.cleaned][::2], ids=lambda k: k.name
)
def test_compact_makes_what_kafka_made(kafka: Round, tmp_path: Path, shell: Shell) -> None:
    copy = copy_of(kafka.before_dir, tmp_path / "copy")
    config = [
        item for name, text in settings_of(kafka).items() for item in ("--config", f"{name}={text}")
    ]
    done = shell("compact", copy, "--in-place", *LOCAL, *config, "--now", kafka.now_ms)
    assert done.code == 0, done.err
    assert compare_partitions(kafka.after, copy / kafka.partition, kafka.before) == []


def test_dry_run_in_json_and_text(log_dir: Path, shell: Shell) -> None:
    before = tree(log_dir)
    done = shell("compact", log_dir, "--dry-run", *LOCAL, *NOW, "--format", "json")
    assert (done.code, done.err) == (0, "")
    found = done.json
    assert (found["engine"], found["mode"], found["dry_run"], found["now_ms"]) == (
        "local",
        "dry-run",
        True,
        NOW_MS,
    )
    first, second = found["partitions"]
    assert (first["records_before"], first["records_after"]) == (5, 2)
    assert first["dropped"]["superseded"] == first["dropped"]["total"] == 3
    assert second["skipped"] == "the log is empty"
    assert found["totals"]["bytes_before"] == first["bytes_before"]
    done = shell("compact", log_dir, "--dry-run", *LOCAL, *NOW)
    assert done.code == 0
    assert done.err == "engine: local\n"
    row = next(line for line in done.out.splitlines() if line.startswith("orders-0"))
    assert re.split(r"  +", row) == [
        "orders-0",
        "0 -> 5",
        "1 -> 1",
        "5 -> 2",
        f"{first['bytes_before']} B -> {first['bytes_after']} B",
        "3",
    ]
    assert "orders-1: nothing to clean: the log is empty" in done.out
    assert "A dry run: nothing was changed." in done.out
    assert tree(log_dir) == before
    assert not (log_dir / ".lock").exists()


def test_out_then_verify_against(log_dir: Path, tmp_path: Path, shell: Shell) -> None:
    before = tree(log_dir)
    out = tmp_path / "out"
    done = shell("compact", log_dir, "--out", out, *LOCAL, *NOW)
    assert done.code == 0
    assert f"Cleaned into {out}, saved" in done.out
    assert tree(log_dir) == before
    done = shell("log", "verify", out, "--against", log_dir)
    assert (done.code, done.err) == (0, "")
    assert "orders-0: 2 keys, all with the same latest value" in done.out
    assert shell("compact", log_dir / "orders-0", "--in-place", *LOCAL, *NOW).code == 0
    assert fold(log_dir / "orders-0") == fold(out / "orders-0")
    again = shell("compact", log_dir, "--in-place", *LOCAL, *NOW)
    assert (again.code, again.out.splitlines()[-1]) == (0, "Nothing was cleaned.")


def test_config_is_obeyed(log_dir: Path, shell: Shell) -> None:
    options = (
        "--config",
        "log.cleaner.dedupe.buffer.size=24",
        "--config",
        "log.cleaner.io.buffer.load.factor=1",
        "--config",
        "min.insync.replicas=2",
    )
    done = shell("compact", log_dir, "--in-place", *LOCAL, *NOW, *options)
    assert done.code == 0
    assert "note: min.insync.replicas has no effect here" in done.err
    assert "orders-0: the dedupe buffer was full at offset 1; run again" in done.out
    done = shell("compact", log_dir, "--in-place", *LOCAL, *NOW, "--keep-active")
    assert done.code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Say where the result goes"),
        (["--dry-run", "--in-place"], "Say where the result goes"),
        (["--in-place", "--out", "x"], "Say where the result goes"),
        (["--dry-run", "--config", "segment.byte=5"], "did you mean"),
        (["--dry-run", "--config", "segment.bytes=5"], "Value must be at least 1048576"),
        (["--dry-run", "--config", "segment.bytes"], "not of the form NAME=VALUE"),
        (["--dry-run", "--config", "cleanup.policy=delete"], "without compact"),
        (
            ["--dry-run", "--config", "compaction.strategy=header"],
            "Needs compaction.strategy.header",
        ),
        (["--dry-run", "--engine", "local", "--master", "local[2]"], "--master is for"),
        (["--dry-run", "--master", "local[2]", "--threads", "2"], "--threads goes with"),
        (["--dry-run", "--engine", "flink"], "flink"),
        (["--dry-run", "--threads", "0"], "0 is not in the range"),
        (["--dry-run", "--now", "yesterday"], "yesterday"),
        (["--dry-run", "--nonsense"], "--nonsense"),
    ],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_wrong_usage_of_compact(
    log_dir: Path, shell: Shell, options: list[str], message: str, output: str
) -> None:
    before = tree(log_dir)
    done = shell("compact", log_dir, *options, "--format", output)
    assert done.code == 2
    if output == "json":
        assert message in done.json["error"]["message"]
    else:
        assert done.out == ""
        assert message in done.err
    assert tree(log_dir) == before


# ---------------------------------------------------------------- failures of every command


@pytest.mark.parametrize(
    "arguments",
    [
        ["compact", "DIR", "--in-place", *LOCAL],
        ["compact", "DIR", "--dry-run", *LOCAL],
        ["compact", "DIR", "--out", "OUT", *LOCAL],
        ["log", "stats", "ONE"],
    ],
)
@pytest.mark.requirement("CMP-16")
def test_damage_is_named_by_file_position_and_reason(
    log_dir: Path, tmp_path: Path, shell: Shell, arguments: list[str]
) -> None:
    path = _damage(log_dir)
    before = tree(tmp_path)
    places = {"DIR": str(log_dir), "ONE": str(path.parent), "OUT": str(tmp_path / "out")}
    given = [places.get(word, word) for word in arguments]
    done = shell(*given)
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"error: {path}: position 0: CRC-32C does not match"
    assert shell(*given, "--format", "json").json == {
        "error": {
            "type": "CorruptionError",
            "message": f"{path}: position 0: CRC-32C does not match",
            "file": str(path),
            "position": 0,
            "reason": "CRC-32C does not match",
        }
    }
    assert tree(tmp_path) == before


@pytest.mark.requirement("CMP-16")
def test_verify_lists_damage_and_fails(log_dir: Path, shell: Shell) -> None:
    path = _damage(log_dir)
    done = shell("log", "verify", log_dir)
    assert done.code == 1
    assert f"  {path}: position 0: CRC-32C does not match" in done.out
    assert "orders-1: 1 segments, 0 batches, 0 records, 0 B: sound" in done.out
    found = shell("log", "verify", log_dir, "--format", "json")
    assert found.code == 1
    assert found.json["ok"] is False
    (problem,) = [
        p for c in found.json["partitions"] for p in c["problems"] if p["file"] == str(path)
    ]
    assert (problem["position"], problem["reason"]) == (0, "CRC-32C does not match")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["log", "stats", "EMPTY"], 1, "no partition here"),
        (["log", "verify", "EMPTY"], 1, "no partition here"),
        (["log", "dump", "EMPTY"], 1, "no partition here"),
        (["log", "dump", "FILE"], 1, "neither a directory nor a segment's file"),
        (["compact", "EMPTY", "--dry-run"], 1, "no partition here"),
        (["compact", "NONE", "--dry-run"], 2, "does not exist"),
        (["log", "stats", "NONE"], 2, "does not exist"),
        (["log", "dump", "NONE"], 2, "does not exist"),
        (["log", "verify", "EMPTY", "--against", "NONE"], 2, "does not exist"),
        (["log", "nonsense"], 2, "No such command"),
        (["nonsense"], 2, "No such command"),
        (["import", "NONE", "EMPTY", "--key", "id"], 2, "does not exist"),
        (["import", "FILE", "EMPTY"], 2, "--key"),
        (["import", "FILE", "EMPTY", "--key", "id"], 1, "not a .csv or .jsonl file"),
        (["import", "CSV", "EMPTY", "--key", "x"], 1, "line 2: no column 'x'; there are id, v"),
        (["import", "CSV", "EMPTY", "--key", "id", "--codec", "lzma"], 2, "lzma"),
        (["import", "CSV", "EMPTY", "--key", "id", "--topic", "a b"], 1, "no topic name"),
        (["import", "CSV", "EMPTY", "--key", "id", "--tombstone-when", "v"], 1, "COL is empty"),
        (["import", "CSV", "EMPTY", "--key", "id", "--config", "x=1"], 2, "Unknown configuration"),
    ],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_wrong_input(
    tmp_path: Path, shell: Shell, arguments: list[str], code: int, message: str, output: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "t.csv").write_text(CSV)
    names = {"EMPTY": "empty", "FILE": "file", "CSV": "t.csv", "NONE": "none"}
    given = [str(tmp_path / names[a]) if a in names else a for a in arguments]
    done = shell(*given, "--format", output)
    assert done.code == code
    if output == "json":
        assert message in done.json["error"]["message"]
    else:
        assert done.out == ""
        assert message in done.err
    assert "Traceback" not in done.err
    assert not [path.name for path in (tmp_path / "empty").iterdir() if path.is_dir()]


def test_a_locked_directory_is_refused(log_dir: Path, shell: Shell) -> None:
    with held_by_another_process(log_dir):
        done = shell("compact", log_dir / "orders-0", "--in-place", *LOCAL)
        assert (done.code, done.out) == (1, "")
        assert f"{log_dir}: in use by a running process" in done.err
        failed = shell("compact", log_dir, "--dry-run", *LOCAL, "--format", "json")
        assert failed.json["error"]["type"] == "LogLockedError"
        assert shell("log", "verify", log_dir).code == 0  # reading is nobody's harm


# ---------------------------------------------------------------- log and import


def test_stats_of_one_and_of_many(log_dir: Path, shell: Shell) -> None:
    found = shell("log", "stats", log_dir, "--format", "json").json["partitions"]
    assert [(item["partition"], item["records"], item["keys"]) for item in found] == [
        ("orders-0", 5, 2),
        ("orders-1", 0, 0),
    ]
    assert re.search(
        r"^live +40.0%$", shell("log", "stats", log_dir / "orders-0").out, re.MULTILINE
    )
    overview = shell("log", "stats", log_dir).out.splitlines()
    assert [line.split()[0] for line in overview[2:]] == ["orders-0", "orders-1"]


def test_dump_in_text_and_json(log_dir: Path, shell: Shell) -> None:
    done = shell("log", "dump", log_dir / "orders-0", "--records")
    lines = done.out.splitlines()
    assert done.code == 0
    assert sum(line.startswith("base_offset: ") for line in lines) == 2
    assert sum(line.startswith("| offset: ") for line in lines) == 5
    assert "key: a value: value-0" in lines[2]
    rows = shell("log", "dump", log_dir, "--format", "json", "--limit", 1).json["rows"]
    assert [row["type"] for row in rows] == ["file", "batch", "file", "file"]


def test_dump_of_damage_is_still_one_object(log_dir: Path, shell: Shell) -> None:
    path = sorted((log_dir / "orders-0").glob("*.log"))[0]
    path.write_bytes(path.read_bytes()[:-1])
    done = shell("log", "dump", path, "--format", "json")
    assert done.code == 1
    assert [row["type"] for row in done.json["rows"]] == ["file", "batch"]
    assert done.json["error"]["file"] == str(path)
    assert done.json["error"]["position"] == done.json["rows"][1]["size_bytes"]
    done = shell("log", "dump", path)
    assert done.code == 1
    assert "base_offset: 0" in done.out
    assert "are no whole batch" in done.err


def test_import_compact_verify(tmp_path: Path, shell: Shell) -> None:
    rows = [{"id": f"k{n % 20}", "n": n, "gone": n > 190 or None} for n in range(200)]
    (tmp_path / "flights.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log, out = tmp_path / "log", tmp_path / "out"
    given = (
        "import",
        tmp_path / "flights.jsonl",
        log,
        "--key",
        "id",
        "--value",
        "n",
        "--partitions",
        2,
        "--codec",
        "lz4",
        "--tombstone-when",
        "gone is not empty",
        *NOW,
    )
    done = shell(*given)
    assert done.code == 0, done.err
    assert "200 rows (9 tombstones)" in done.out
    assert shell(*given).code == 1
    found = shell(*given, "--append", "--format", "json").json
    assert (found["topic"], found["rows"], found["tombstones"]) == ("flights", 200, 9)
    assert shell("compact", log, "--out", out, *LOCAL, *NOW).code == 0
    done = shell("log", "verify", out, "--against", log, "--format", "json")
    assert done.json["ok"] is True
    assert sum(item["keys"] for item in done.json["comparisons"]) == 11


def test_warmup(shell: Shell) -> None:
    assert shell("warmup").code == 0
    done = shell("warmup", "--format", "json")
    assert (done.code, done.json["compiled"]) == (0, False)


# ---------------------------------------------------------------- as a process


def test_a_closed_pipe_and_no_colour_are_nothing_to_talk_about(log_dir: Path) -> None:
    import subprocess
    import sys

    source = str(Path(__file__).resolve().parents[2] / "src")
    with subprocess.Popen(
        [sys.executable, "-m", "stratalog", "log", "dump", str(log_dir), "--records"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    done = stratalog("compact", log_dir, "--dry-run", *LOCAL, NO_COLOR="1")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_a_producer_snapshot_is_for_people_to_read(golden_dir: Path, shell: Shell) -> None:
    paths = (golden_dir / "idempotent").rglob("*.snapshot")
    path = max(paths, key=lambda path: path.stat().st_size)
    line = shell("log", "dump", path).out.splitlines()[1]
    assert re.search(r"recent: \[\{last_sequence: \d+, last_offset: \d+, offset_delta: \d+,", line)
    assert not re.search(r"['()]|None|True", line)
    row = shell("log", "dump", path, "--format", "json").json["rows"][1]
    assert row["recent"][0].keys() >= {"last_sequence", "last_offset"}
