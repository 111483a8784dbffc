"""Logs on an S3 server: read with the source, compacted into another location (SPK-9)."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from stratalog.admin.location_manifest import MANIFEST, decode, new_directory
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.cli import main as stratalog
from stratalog.pipeline import remote, remote_task
from stratalog.pipeline import snapshot as snapshot_module
from stratalog.pipeline.remote import compact_to
from stratalog.pipeline.remote_target import Location
from stratalog.pipeline.snapshot import snapshot
from stratalog.pipeline.source import StratalogDataSource
from stratalog.record.kernel.compile import JIT
from tests.clean.test_properties import features_of, random_case, seeds
from tests.log.helpers import NOW, contents, open_log, records
from tests.oracle import golden_rounds
from tests.pipeline.object_server import ObjectServer, object_server, stand_in_session
from tests.pipeline.source_rows import naive_latest
from tests.pipeline.test_snapshot_random import Here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requirement("SPK-9"),
    pytest.mark.usefixtures("hasty_disk"),
    pytest.mark.skipif(not JIT, reason="Spark's workers would run plain Python kernels"),
]
Count = Callable[[str, int], None]
CLOCK = FixedClock(NOW + 10**9)
ALL = {"includeHeaders": "true", "includeMetadata": "true"}


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three partitions of two topics, several segments each, most records superseded."""
    root = tmp_path / "logs"
    for number, name in enumerate(("orders-0", "orders-1", "users-0")):
        with open_log(root / name, segment_bytes=4_000) as log:
            for turn in range(20):
                log.append_records(records(20 + number, timestamp=NOW + turn))
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 25\n")
    return root


def rows(path: str, server: ObjectServer, **options: str) -> list[dict[str, Any]]:
    """What the source gives, read in this process; values pickled on their way."""
    source = StratalogDataSource(CaseInsensitiveDict({"path": path, **server.options, **options}))
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    found = [row for task in tasks for b in reader.read(task) for row in b.to_pylist()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def compacted_locally(logs: Path, out: Path) -> dict[str, bytes]:
    """The files that `stratalog compact --out` leaves."""
    command = ["compact", str(logs), "--out", str(out), "--engine", "local"]
    assert stratalog([*command, "--now", str(CLOCK.now_ms())]) == 0
    return shipped(contents(out))


def shipped(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without our notes on who cleaned when, the lock, and the seals of checkpoints."""
    return {
        name: content.rstrip() if name.endswith("-offset-checkpoint") else content
        for name, content in files.items()
        if ".stratalog/" not in name and not name.endswith(".lock")
    }


# ---------------------------------------------------------------- the source


def test_every_log_reads_as_it_does_from_a_directory(
    s3: ObjectServer, tmp_path: Path, count_cases: Count
) -> None:
    roots = {}
    for seed in seeds(4):
        root = roots[f"random-{seed}"] = tmp_path / f"random-{seed}"
        random_case(5000 + seed, root, features_of(seed))
    for number, kafka in enumerate(golden_rounds()[:6]):
        roots[f"kafka-{number}"] = kafka.before.parent
    for name, root in roots.items():
        uri = s3.put(root, "read", name)
        for options in (
            {**ALL, "includeControl": "true"},
            {"isolation": "read_committed", "maxPartitionBytes": "5000"},
            {"view": "latest", **ALL},
        ):
            assert rows(uri, s3, **options) == rows(str(root), s3, **options), (name, options)
    count_cases("logs read from an S3 server", len(roots))


def test_a_session_reads_a_bucket(s3: ObjectServer, spark: SparkSession, logs: Path) -> None:
    uri = s3.put(logs, "session")

    def load(path: str, **options: str) -> DataFrame:
        return spark.read.format("stratalog").options(**s3.options, **options).load(path)

    found = load(uri, view="latest").select("topic", "offset", "value").collect()
    expected = [
        (row["topic"], row["offset"], row["value"])
        for partition in sorted(logs.glob("*-*[0-9]"))
        for row in naive_latest(partition, committed_to=1 << 62)
    ]
    assert sorted(map(tuple, found)) == sorted(expected)
    assert load(f"{uri}/users-0/").count() == 20 * 22
    assert load(uri, subscribe="orders").count() == 20 * 20 - 25 + 20 * 21


def test_refusals_of_a_store_are_one_line(
    s3: ObjectServer, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3.put(logs, "refused")
    for path, reason in (
        ("s3://no-such-bucket/logs", "no such bucket"),
        (s3.uri("nothing", "here"), "no such directory"),
        (f"{uri}/orders-0/00000000000000000000.log", "no such directory"),
        ("gs://bucket/logs", "directories and from s3://"),
        ("s3:///logs", "no bucket is named ''"),
        (f"{uri}/../refused", "no path that an object can have"),
        (f"{uri}//orders-0", "no path that an object can have"),
    ):
        with pytest.raises(UsageError, match=reason) as caught:
            rows(path, s3)
        assert "\n" not in str(caught.value)
    for options, reason in (
        ({"s3.endpoint": "http://127.0.0.1:1"}, "the store does not answer"),
        ({"s3.secret-access-key": ""}, "s3.access-key-id and s3.secret-access-key go together"),
        ({"s3.endpoint": "http://a b"}, "s3:"),
        ({"s3.anonymous": "perhaps"}, "s3.anonymous"),
        ({"s3.endpiont": "x"}, "did you mean 's3.endpoint'"),
    ):
        with pytest.raises(UsageError, match=reason) as caught:
            rows(uri, s3, **options)
        assert "\n" not in str(caught.value)
        assert "very-secret" not in str(caught.value)


def test_what_is_not_given_comes_from_the_environment(
    s3: ObjectServer, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3.put(logs, "environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", str(s3.store.endpoint))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    source = StratalogDataSource(CaseInsensitiveDict({"path": uri}))
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    assert sum(b.num_rows for task in tasks for b in reader.read(task)) > 1000  # type: ignore[union-attr]
    assert b"secret" not in pickle.dumps((reader, tasks))


# ---------------------------------------------------------------- compaction


def test_a_compaction_writes_what_out_writes_and_a_manifest(
    s3: ObjectServer, spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    expected = compacted_locally(logs, tmp_path / "out")
    uri = s3.put(logs, "compact", "source")
    before = s3.contents("compact", "source")
    target = s3.uri("compact", "target")
    report = compact_to(spark, [uri], target, store=s3.store, clock=CLOCK)
    assert s3.contents("compact", "source") == before
    found = s3.contents("compact", "target")
    manifest = decode(found.pop(MANIFEST), MANIFEST)
    assert manifest.generation == 1
    assert manifest.kept == ()
    made = shipped({name.split("/", 1)[1]: content for name, content in found.items()})
    assert made == expected
    assert {name.split("/", 1)[0] for name in found} == {manifest.directory}
    assert [entry.partition for entry in manifest.partitions] == ["orders-0", "orders-1", "users-0"]
    sizes = {entry.partition: entry.size_bytes for entry in manifest.partitions}
    for name, size_bytes in sizes.items():
        logs_of = [c for path, c in made.items() if path.startswith(name) and path.endswith(".log")]
        assert size_bytes == sum(map(len, logs_of))
    assert report.totals.records_before > report.totals.records_after > 0
    assert report.partitions[0].directory == f"{uri}/orders-0"
    # Whoever opens the location reads its generation.
    assert rows(target, s3, view="latest") == rows(uri, s3, view="latest")
    # The location's own generation can be compacted further, and to a directory.
    compact_to(spark, [target], str(tmp_path / "ledger"), store=s3.store, clock=CLOCK)
    [generation] = (tmp_path / "ledger").glob("generation-*")
    assert {n for n in shipped(contents(generation)) if n.endswith(".log")} == {
        n for n in made if n.endswith(".log")
    }
    assert rows(str(tmp_path / "ledger"), s3, view="latest") == rows(target, s3, view="latest")


def test_generations_follow_one_another_and_old_ones_go(s3: ObjectServer, logs: Path) -> None:
    spark = stand_in_session()
    target = s3.uri("generations", "target")

    def compact_again(**options: Any) -> set[str]:
        compact_to(spark, [str(logs)], target, store=s3.store, clock=CLOCK, **options)
        found = s3.contents("generations", "target")
        manifest = decode(found.pop(MANIFEST), MANIFEST)
        names = {name.split("/", 1)[0] for name in found}
        assert names == {manifest.directory, *manifest.kept}
        return names

    [first] = compact_again()
    with open_log(logs / "orders-0") as log:
        log.append_records([*records(3, timestamp=NOW + 99)])
    second = compact_again()
    assert first in second
    assert rows(target, s3, view="latest") == rows(str(logs), s3, view="latest")
    third = compact_again()
    assert first not in third
    assert len(second & third) == 1
    assert len(compact_again(kept_generations=0)) == 1
    with pytest.raises(UsageError, match="kept_generations is -1"):
        compact_again(kept_generations=-1)


def test_what_fails_before_the_manifest_leaves_the_generation_before(
    s3: ObjectServer, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = stand_in_session()
    target = s3.uri("crash", "target")
    source = s3.put(logs, "crash", "source")
    compact_to(spark, [source], target, store=s3.store, clock=CLOCK)
    before = s3.contents("crash", "target")

    class PowerCut(BaseException):
        pass

    def cut(*_: Any) -> None:
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(Location, "remove", lambda *_: None)  # nobody is there to clean up
        patch.setattr(remote, "switch", cut)
        with pytest.raises(PowerCut):
            compact_to(spark, [source], target, store=s3.store, clock=CLOCK)
    after = s3.contents("crash", "target")
    assert after[MANIFEST] == before[MANIFEST]
    assert after.items() > before.items()  # whole, and a generation that nobody names
    assert rows(target, s3, view="latest") == rows(source, s3, view="latest")
    # A run that fails and lives takes away what it wrote, and what the run before it left.
    with monkeypatch.context() as patch:
        patch.setattr(remote, "switch", cut)
        with pytest.raises(PowerCut):
            compact_to(spark, [source], target, store=s3.store, clock=CLOCK)
    assert s3.contents("crash", "target") == before
    # Another run in between: its generation stays the one that counts.
    switch = remote.switch

    def beside(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(remote, "switch", switch)
            patch.setattr(Location, "remove", lambda *_: None)
            compact_to(spark, [source], target, store=s3.store, clock=CLOCK)
        switch(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(remote, "switch", beside)
        with pytest.raises(UsageError, match="another run has written a generation meanwhile"):
            compact_to(spark, [source], target, store=s3.store, clock=CLOCK)
    manifest = decode(s3.contents("crash", "target")[MANIFEST], MANIFEST)
    assert manifest.generation == 2
    assert rows(target, s3, view="latest") == rows(source, s3, view="latest")


def test_refusals_of_a_compaction_change_nothing(
    s3: ObjectServer, logs: Path, tmp_path: Path
) -> None:
    spark = stand_in_session()
    source = s3.put(logs, "bad", "source")
    objects = s3.contents("bad")
    used = tmp_path / "used"
    used.mkdir()
    (used / "thesis.txt").write_text("mine")
    for target, reason in (
        (source, "holds 'log-start-offset-checkpoint'"),
        (f"{source}/inside", "lies inside"),
        ("s3://no-such-bucket/target", "no such bucket"),
        (str(used), "holds 'thesis.txt'"),
    ):
        with pytest.raises(UsageError, match=reason):
            compact_to(spark, [source], target, store=s3.store, clock=CLOCK)
    # A damaged batch: file and position as the user knows them, and nothing of it remains.
    path = sorted((logs / "users-0").glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    damaged = s3.put(logs, "bad", "damaged")
    with pytest.raises(CorruptionError) as caught:
        compact_to(spark, [damaged], s3.uri("bad", "target"), store=s3.store, clock=CLOCK)
    assert caught.value.file == f"{damaged}/users-0/{path.name}"
    assert "\n" not in str(caught.value)
    left = s3.contents("bad")
    assert {n: c for n, c in left.items() if not n.startswith("damaged/")} == objects


def test_a_task_leaves_no_scratch_and_tells_no_secret(
    s3: ObjectServer, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_task.tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    [place] = remote.find_places(
        [s3.put(logs / "users-0", "task", "users-0")], remote.Choice(), s3.store
    )
    book = remote.SettingsBook(defaults=remote.COMPACTED)
    task = remote_task.PartitionTask(
        place, Location.of(s3.uri("task-out"), s3.store), "g", book, False, NOW, 1
    )
    done = remote_task.compact_partition(pickle.loads(pickle.dumps(task)))
    assert done.report is not None
    assert done.entry is not None
    assert done.entry.size_bytes < sum(
        path.stat().st_size for path in (logs / "users-0").glob("*.log")
    )
    assert list((tmp_path / "scratch").iterdir()) == []
    assert "very-secret" not in f"{task!r} {task.place.store} {done!r}"

    def full(*_: Any) -> None:
        raise StorageIOError("no space left")

    monkeypatch.setattr(Location, "upload", full)
    with pytest.raises(StorageIOError, match="no space left"):  # Spark tries it again
        remote_task.compact_partition(task)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_command_compacts_a_bucket(
    s3: ObjectServer,
    spark: SparkSession,
    logs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = s3.put(logs, "command", "source"), s3.uri("command", "target")
    # A session of this process was begun without AWS's variables.
    monkeypatch.setattr(remote, "compact_to", partial(compact_to, store=s3.store))
    assert stratalog(["compact", source, "--out", target, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["out"] == target
    assert report["totals"]["records_after"] == 20 + 21 + 22
    assert stratalog(["compact", f"{source}/users-0", "--out", target]) == 0
    assert f"Cleaned into {target}, saved" in capsys.readouterr().out
    for command, code, reason in (
        (["--in-place"], 2, "Object storage is for Spark, and wants --out."),
        (["--dry-run"], 2, "Object storage is for Spark, and wants --out."),
        (["--out", target, "--engine", "local"], 2, "Object storage is for Spark"),
        (["--out", "gs://b/x"], 1, "logs are read from directories and from s3://BUCKET/PATH"),
        (["--out", s3.uri("command")], 1, "holds 'source': --out wants a place of its own"),
    ):
        assert stratalog(["compact", source, *command]) == code
        errors = capsys.readouterr().err
        assert reason in errors
        assert "Traceback" not in errors


@pytest.mark.slow
def test_the_command_gets_its_credentials_from_the_environment(
    s3: ObjectServer, logs: Path, tmp_path: Path
) -> None:
    source, target = s3.put(logs, "alone", "source"), s3.uri("alone", "target")
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", "compact", source, "--out", target, "--threads", "2"],
        env={
            **os.environ,
            "AWS_ENDPOINT_URL": str(s3.store.endpoint),
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "very-secret",
            "AWS_REGION": "us-east-1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "very-secret" not in done.stdout + done.stderr
    found = s3.contents("alone", "target")
    assert [name for name in found if name.endswith("/users-0/00000000000000000000.log")]


# ---------------------------------------------------------------- manifests


def test_a_manifest_that_somebody_else_wrote_is_refused(tmp_path: Path, logs: Path) -> None:
    directory = new_directory(3)
    good = {
        "format": 1,
        "generation": 3,
        "directory": directory,
        "kept": [],
        "made_ms": 0,
        "partitions": [{"partition": "t-0", "start_offset": 0, "end_offset": 9, "size_bytes": 100}],
    }
    decoded = decode(json.dumps(good).encode(), "m")
    assert decode(decoded.encode(), "m") == decoded
    for change in (
        {"format": 2},
        {"directory": "../../etc"},
        {"directory": new_directory(4)},
        {"directory": f"{directory}/.."},
        {"directory": None},
        {"kept": ["/"]},
        {"kept": "generation"},
        {"generation": -1},
        {"generation": True},
        {"made_ms": 1.5},
        {"partitions": [{"partition": 1}]},
        {"partitions": [7]},
    ):
        with pytest.raises(CorruptionError) as caught:
            decode(json.dumps({**good, **change}).encode(), "m")
        assert caught.value.file == "m"
    for content in (b"", b"[]", b"null", b"\xff", b"[" * 100_000, json.dumps([good]).encode()):
        with pytest.raises(CorruptionError):
            decode(content, "m")
    (tmp_path / "location").mkdir()
    (tmp_path / "location" / MANIFEST).write_bytes(b"{}")
    with pytest.raises(CorruptionError, match="is no manifest"):
        remote.find_places([str(tmp_path / "location")], remote.Choice())


@pytest.mark.requirement("SPK-7")
def test_a_snapshot_of_logs_in_a_bucket(
    s3: ObjectServer, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, then built upon the last one, with the rows of the source's `view=latest`."""
    monkeypatch.setattr(snapshot_module, "watched", lambda *_: nullcontext())
    uri, out = s3.put(logs, "snapshot"), tmp_path / "out"
    columns = ("topic", "partition", "offset", "key", "value")

    def taken(**options: Any) -> list[dict[str, Any]]:
        snapshot(Here(), uri, out, clock=CLOCK, **s3.options, **options)
        found = pq.read_table(out / "current").select(columns).to_pylist()
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def expected() -> list[dict[str, Any]]:
        return [{name: row[name] for name in columns} for row in rows(uri, s3, view="latest")]

    assert taken() == expected() != []
    with open_log(logs / "users-0") as log:
        log.append_records(records(5, timestamp=NOW + 99))
    s3.put(logs, "snapshot")
    assert taken(incremental=True) == expected()
