"""Snapshots as files: what lies there, what a crash leaves, what is refused. No session is needed.

`test_snapshot_random.py` holds what the rows are; `test_snapshot_spark.py` real readers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    CorruptionError,
    LogChangedError,
    LogLockedError,
    MissingExtraError,
    StorageIOError,
    StratalogError,
    UsageError,
)
from stratalog.pipeline import snapshot_delta, snapshot_files
from stratalog.pipeline.options import BoundKind, Choice
from stratalog.pipeline.places import find_places
from stratalog.pipeline.snapshot import check_request, snapshot
from stratalog.pipeline.snapshot_manifest import (
    DataFile,
    Manifest,
    PartitionSnapshot,
    SegmentMark,
    decode,
)
from stratalog.pipeline.snapshot_output import ParquetOutput
from stratalog.pipeline.snapshot_plan import as_of_bound
from stratalog.record.builder import NewRecord
from tests.admin.helpers import NOW_MS, records, run, tree, write_log
from tests.log.helpers import open_log
from tests.pipeline.test_snapshot_random import here, rows_of

__all__ = ["here"]

pytestmark = [pytest.mark.requirement("SPK-7")]
Count = Callable[[str, int], None]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """orders-0 (30 records, keys 0 to 9), orders-1 and users-0 (10 each); times NOW_MS + place."""
    root = tmp_path / "logs"
    for name, count in (("orders-0", 30), ("orders-1", 10), ("users-0", 10)):
        with open_log(root / name) as log:
            for first in range(0, count, 5):
                log.append_records(
                    [
                        NewRecord(b"k%d" % (n % 10), b"v%d" % n, NOW_MS + n)
                        for n in range(first, first + 5)
                    ]
                )
    return root


def append(partition: Path, *pairs: tuple[bytes, bytes | None]) -> None:
    with open_log(partition) as log:
        log.append_records([NewRecord(key, value, NOW_MS + 1000) for key, value in pairs])


def values(directory: Path, name: str = "orders-0") -> dict[bytes, bytes]:
    return {row["key"]: row["value"] for row in rows_of(directory).get(name, [])}


def take(here: Any, logs: Path, out: Path, **options: Any) -> Any:
    return snapshot(here, logs, out, clock=FixedClock(NOW_MS), **options)


def values_of_a_whole_one(here: Any, logs: Path, tmp_path: Path) -> dict[bytes, bytes]:
    take(here, logs, tmp_path / "whole")
    return values(tmp_path / "whole" / "current")


# ---------------------------------------------------------------- what lies there


def test_files_of_a_snapshot_and_of_one_that_is_built_upon_it(
    here: Any, logs: Path, tmp_path: Path
) -> None:
    before, out = tree(logs), tmp_path / "out"
    first = take(here, logs, out)
    assert tree(logs) == before, "a log was changed"
    assert (first.path, first.rows, first.generation) == (str(out / "current"), 30, 1)
    assert values(out / "current") == {b"k%d" % n: b"v%d" % (20 + n) for n in range(10)}
    table = pq.read_table(out / "current")
    assert table.schema.equals(
        pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", "UTC")),
                ("timestampType", pa.int32()),
            ]
        )
    )
    assert table.to_pylist()[0]["timestamp"].timestamp() * 1000 == NOW_MS + 20

    append(logs / "orders-1", (b"k1", None), (b"new", b"1"))
    second = take(here, logs, out, incremental=True)
    told = {
        item.name: (item.kind, item.files_written, item.read_bytes) for item in second.partitions
    }
    assert told["orders-0"] == told["users-0"] == ("unchanged", 0, 0)
    kind, written, read_bytes = told["orders-1"]
    log_bytes = (logs / "orders-1" / f"{0:020}.log").stat().st_size
    assert (kind, written) == ("incremental", 1)
    assert 0 < read_bytes < log_bytes / 2, "more was read than what is new"
    expected = {b"k%d" % n: b"v%d" % n for n in range(10) if n != 1} | {b"new": b"1"}
    assert values(out / "current", "orders-1") == expected

    # The one before can still be read; what did not change is the same file.
    data = out / ".data"
    assert sorted(os.listdir(data)) == ["000001", "000002"]
    assert values(data / "000001", "orders-1") == {b"k%d" % n: b"v%d" % n for n in range(10)}
    kept = "part-000001-00000-orders-0.parquet"
    assert os.path.samefile(data / "000001" / kept, data / "000002" / kept)
    take(here, logs, out, incremental=True)
    assert sorted(os.listdir(data)) == ["000002", "000003"]
    assert sorted(os.listdir(out)) == [".data", ".lock", "current"]
    take(here, logs, out)
    assert values(out / "current", "orders-1") == expected
    names = [path.name for path in (out / "current").glob("*.parquet")]
    assert all(name.startswith("part-000004-") for name in names), "a whole one took over files"


def test_what_is_there_decides_what_can_be_built_upon(
    here: Any, logs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = take(here, logs, out, incremental=True)
    assert report.note == "there is no snapshot to build upon"

    def reasons(**options: Any) -> dict[str, str | None]:
        told = take(here, logs, out, incremental=True, **options).partitions
        assert all((item.kind == "whole") == (item.reason is not None) for item in told)
        return {item.name: item.reason for item in told}

    write_log(logs / "orders-2", [[records("ab")]])
    shutil.rmtree(logs / "users-0")
    assert reasons() == {"orders-0": None, "orders-1": None, "orders-2": "it is new"}
    assert "users-0" not in rows_of(out / "current")
    assert set(reasons(includeHeaders=True).values()) == {"the columns are others"}
    by_time = reasons(**{"compaction.strategy": "timestamp"}, includeHeaders=True)
    assert set(by_time.values()) == {"the order of versions is another"}
    again = reasons(**{"compaction.strategy": "timestamp"}, includeHeaders=True)
    assert set(again.values()) == {"by an order of versions an older record may win"}
    assert set(reasons().values()) == {"the columns are others"}
    back = reasons(as_of='{"orders":{"0":12,"1":-1,"2":-1}}')
    assert back == {
        "orders-0": "the last snapshot goes further, to 30",
        "orders-1": None,
        "orders-2": None,
    }
    assert values(out / "current") == {b"k%d" % (n % 10): b"v%d" % n for n in range(2, 12)}
    assert set(reasons().values()) == {None}
    assert len(values(out / "current")) == 10


def test_a_log_that_was_deleted_from_or_begun_anew(here: Any, logs: Path, tmp_path: Path) -> None:
    """Retention took all that the last snapshot had: its keys go, as from a whole one."""
    out = tmp_path / "out"
    take(here, logs, out)
    append(logs / "orders-0", (b"late", b"1"))
    checkpoint = logs / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 30\n")
    report = take(here, logs, out, incremental=True)
    assert {item.kind for item in report.partitions} == {"incremental", "unchanged"}
    assert values(out / "current") == {b"late": b"1"}
    shutil.rmtree(logs / "orders-0")
    checkpoint.write_text("0\n0\n")
    write_log(logs / "orders-0", [[records("xyz")]])
    report = take(here, logs, out, incremental=True)
    assert report.partitions[0].reason == "the last snapshot goes further, to 31"
    assert set(values(out / "current")) == {b"x", b"y", b"z"}
    # Begun anew, and longer than it was: what lies at an offset is another record, of another time
    # or of the same.
    for at_ms, keys in ((NOW_MS + 7, "abcdefgh"), (NOW_MS + 7, "abXdYfghi")):
        shutil.rmtree(logs / "orders-0")
        write_log(logs / "orders-0", [[records(keys, at_ms=at_ms)]])
        report = take(here, logs, out, incremental=True)
        assert report.partitions[0].reason == "it may be another log"
        assert values(out / "current") == values_of_a_whole_one(here, logs, tmp_path)
        shutil.rmtree(tmp_path / "whole", ignore_errors=True)


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("", "", ["whole"]),
        ("version: 0\ntopic_id: a\n", "version: 0\ntopic_id: a\n", ["incremental", "unchanged"]),
        ("version: 0\ntopic_id: a\n", "version: 0\ntopic_id: b\n", ["whole"]),
        ("", "version: 0\ntopic_id: b\n", ["whole"]),
        ("junk", "topic_id", ["whole"]),
    ],
)
def test_a_log_that_was_cleaned_through_and_through_is_known_by_its_topic_id(
    here: Any, logs: Path, tmp_path: Path, before: str, after: str, kinds: list[str]
) -> None:
    partition, out = logs / "orders-0", tmp_path / "out"
    (partition / "partition.metadata").write_text(before)
    take(here, logs, out)
    append(partition, (b"k1", b"new"))
    given = {"min.cleanable.dirty.ratio": "0"}
    run([partition], Mode.IN_PLACE, given=given, now_ms=NOW_MS + 9)
    (partition / "partition.metadata").write_text(after)
    report = take(here, logs, out, incremental=True)
    assert report.partitions[0].kind in kinds
    assert values(out / "current") == values_of_a_whole_one(here, logs, tmp_path)


# ---------------------------------------------------------------- as of


@pytest.mark.parametrize(
    ("as_of", "expected"),
    [
        (None, (BoundKind.LATEST, {}, 0)),
        (12, (BoundKind.OFFSETS, {"orders-0": 12, "orders-1": 12, "users-0": 12}, 0)),
        ("12", (BoundKind.OFFSETS, {"orders-0": 12, "orders-1": 12, "users-0": 12}, 0)),
        ('{"orders":{"0":3}}', (BoundKind.OFFSETS, {"orders-0": 3}, 0)),
        ({"orders": {"0": 3}}, (BoundKind.OFFSETS, {"orders-0": 3}, 0)),
        ("@1700000000123", (BoundKind.TIMESTAMP, {}, NOW_MS + 123)),
        ("2023-11-14T22:13:20Z", (BoundKind.TIMESTAMP, {}, NOW_MS)),
        ("2023-11-14 22:13:20.123", (BoundKind.TIMESTAMP, {}, NOW_MS + 123)),
        ("2023-11-14T23:13:20+01:00", (BoundKind.TIMESTAMP, {}, NOW_MS)),
        (datetime.fromtimestamp(NOW_MS / 1000, UTC), (BoundKind.TIMESTAMP, {}, NOW_MS)),
        (datetime(2023, 11, 14, 22, 13, 20), (BoundKind.TIMESTAMP, {}, NOW_MS)),
        (
            datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))),
            (BoundKind.TIMESTAMP, {}, NOW_MS),
        ),
    ],
)
def test_ways_to_say_as_of(logs: Path, as_of: Any, expected: tuple[Any, ...]) -> None:
    bound = as_of_bound(as_of, find_places([str(logs)], Choice()))
    values = {str(key): value for key, value in bound.values.items()}
    assert (bound.kind, values, bound.timestamp) == expected


def test_rows_as_of_an_offset_and_a_time(here: Any, logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    take(here, logs, out, as_of=7)
    assert values(out / "current") == {b"k%d" % n: b"v%d" % n for n in range(7)}
    assert len(values(out / "current", "users-0")) == 7
    # The first record of that time or later and all after it are left out, as Kafka's consumers
    # find it; a time that no record has reached is the log end.
    report = take(here, logs, out, as_of=f"@{NOW_MS + 25}", incremental=True)
    assert [(item.kind, item.end_offset) for item in report.partitions] == [
        *(("incremental", 25), ("incremental", 10), ("incremental", 10))
    ]
    assert values(out / "current")[b"k4"] == b"v24"
    assert values(out / "current")[b"k5"] == b"v15"
    manifest = json.loads((out / "current" / "_manifest.json").read_text())
    assert manifest["as_of"] == f"@{NOW_MS + 25}"
    assert [part["end_offset"] for part in manifest["partitions"]] == [25, 10, 10]


# ---------------------------------------------------------------- refusals

EMPTY = "give a directory that is empty or not there"
WORDS = "-1 stands for latest"
WAYS = (
    """an offset, @MS (since 1970), a time like 2026-01-31T12:00:00Z, or {{"topic":{{"0":23}}}}"""
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "nothing"}, "{tmp}/nothing: no such directory"),
        ({"out": "logs"}, "{tmp}/logs: lies in {tmp}/logs, which is read; give another directory"),
        (
            {"out": "logs/orders-0/out"},
            "{tmp}/logs/orders-0/out: lies in {tmp}/logs, which is read; give another directory",
        ),
        ({"out": "file"}, "{tmp}/file: is no directory"),
        (
            {"out": "other"},
            "{tmp}/other: holds 'mine' and is no snapshot; " + EMPTY,
        ),
        (
            {"as_of": 31},
            (
                "as-of 31: orders-0 ends at 30; by partition that is --as-of "
                '\'{{"orders":{{"0":30,"1":31}},"users":{{"0":31}}}}\' (-1: its end)'
            ),
        ),
        ({"as_of": -1}, "as-of: -1 is no offset"),
        (
            {"as_of": "soon"},
            "as-of is 'soon'; it must be " + WAYS,
        ),
        (
            {"as_of": '{"orders":{"0":3}}'},
            "as-of must name every partition that is read: orders-1, users-0 is missing; " + WORDS,
        ),
        ({"to": "csv"}, "to is 'csv'; it must be parquet or delta"),
        ({"view": "raw"}, "a snapshot has no option view"),
        ({"endingoffsets": "latest"}, "a snapshot has no option endingOffsets"),
        ({"shuffleBytes": "-1"}, "shuffleBytes is '-1'; it must be a whole number"),
        (
            {"subscribe": "nobody"},
            "subscribe: there is no topic nobody; there are orders-0, orders-1, users-0",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    logs: Path, tmp_path: Path, given: Mapping[str, Any], message: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("")
    before = tree(tmp_path)
    options = dict(given)
    path, out = tmp_path / options.pop("path", "logs"), tmp_path / options.pop("out", "out")
    with pytest.raises(UsageError) as caught:
        check_request(path, out, **options)
    assert str(caught.value) == message.format(tmp=tmp_path)
    assert tree(tmp_path) == before


def test_as_of_before_the_log_start(logs: Path, tmp_path: Path) -> None:
    (logs / "log-start-offset-checkpoint").write_text("0\n1\norders 0 8\n")
    with pytest.raises(UsageError, match=r"^as-of 7: orders-0 begins at 8; by partition "):
        check_request(logs, tmp_path / "out", as_of=7)


def test_a_snapshot_of_another_source_and_a_damaged_one(
    here: Any, logs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    take(here, logs, out)
    with pytest.raises(UsageError) as caught:
        check_request(logs / "orders-0", out)
    assert str(caught.value) == (
        f"{out}/current: is a snapshot of {logs}, not of {logs}/orders-0; give another directory"
    )
    manifest = out / "current" / "_manifest.json"
    whole = manifest.read_bytes()
    for damage in (b"", whole[:-20], whole.replace(b'"rows": 10', b'"rows": -1', 1), b"[]"):
        manifest.write_bytes(damage)
        with pytest.raises(CorruptionError) as damaged:
            take(here, logs, out, incremental=True)
        assert str(damaged.value).startswith(f"{manifest}: ")
        assert str(damaged.value).endswith(": a whole snapshot (not incremental) mends it")
        assert "\n" not in str(damaged.value)
        assert len(values(out / "current")) == 10, "the snapshot there was touched"
    manifest.write_bytes(whole.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(UsageError, match="version 2; this release reads 1"):
        take(here, logs, out, incremental=True)
    manifest.write_bytes(whole)
    file = out / "current" / "part-000001-00000-orders-0.parquet"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(CorruptionError, match="the manifest says"):
        take(here, logs, out, incremental=True)
    file.unlink()
    with pytest.raises(CorruptionError, match="the snapshot's file is missing"):
        take(here, logs, out, incremental=True)
    assert take(here, logs, out).rows == 30, "a whole one mends it"


def test_a_snapshot_without_rows_has_its_columns(here: Any, logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = take(here, logs, out, as_of=0)
    assert (report.rows, values(out / "current")) == (0, {})
    table = pq.read_table(out / "current")
    take(here, logs, out, incremental=True)
    full = pq.read_table(out / "current")
    assert (full.num_rows, full.schema) == (30, table.schema)
    assert not (out / "current" / "part-none.parquet").exists()


def test_a_snapshot_is_a_directory_on_a_disk(here: Any, logs: Path, tmp_path: Path) -> None:
    for uri in ("s3://bucket/out", "hdfs://a/b", "S3:x"):
        with pytest.raises(UsageError, match="no snapshot can be written to"):
            take(here, logs, uri)
    take(here, logs, f"file://{tmp_path}/out")
    assert len(values(tmp_path / "out" / "current")) == 10


def test_one_writer_at_a_time(here: Any, logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ParquetOutput(str(out), pa.schema([])).opened(), pytest.raises(LogLockedError):
        take(here, logs, out)
    assert take(here, logs, out).rows == 30


def test_a_manifest_is_read_back(count_cases: Count) -> None:
    partition = PartitionSnapshot(
        *("orders", 3, 5, 99, 4),
        (DataFile("part-1", 2, 3, 4, 5),),
        (SegmentMark(0, 50, 1 << 60, 1234, 99),),
    )
    manifest = Manifest(7, ("/a",), "@1", NOW_MS, ("key",), "offset", "", (partition,))
    assert decode(manifest.encode(), "here") == manifest
    whole = json.loads(manifest.encode())
    changes = 0
    for name in whole:
        for value in (None, -1, [], "x", {}, [1]):
            if name == "as_of" and value in (None, "x"):
                continue
            if (name, value) in (("source", []), ("columns", []), ("partitions", [])):
                continue
            if name in ("order", "version_header") and value == "x":
                continue
            with pytest.raises((CorruptionError, UsageError)):
                decode(json.dumps({**whole, name: value}), "here")
            changes += 1
    assert changes > 40
    escaping = {**whole["partitions"][0], "files": [{**whole["partitions"][0]["files"][0]}]}
    escaping["files"][0]["name"] = "part-/../../etc"
    with pytest.raises(CorruptionError):
        decode(json.dumps({**whole, "partitions": [escaping]}), "here")
    count_cases("damaged manifests refused", changes)


# ---------------------------------------------------------------- crashes


@pytest.mark.requirement("SPK-3")
@pytest.mark.parametrize("ending", ["Ctrl-C", "disk", "kill"])
def test_whatever_ends_it_a_whole_snapshot_is_there(
    here: Any,
    logs: Path,
    tmp_path: Path,
    count_cases: Count,
    ending: str,
) -> None:
    """Every call that changes the disk is the last once: before it is done, and right after. Who is
    killed tidies up nothing."""
    kind = OSError if ending == "disk" else KeyboardInterrupt
    first, out = tmp_path / "first", tmp_path / "out"
    take(here, logs, first)
    old = rows_of(first / "current")
    append(logs / "orders-0", (b"k1", None), (b"new", b"1"))
    reference = tmp_path / "reference"
    take(here, logs, reference)
    new = rows_of(reference / "current")
    assert old != new
    names = ("rename", "symlink", "link", "unlink", "fsync", "mkdir")
    calls: list[int] = []

    def ending_at(number: int, is_done: bool) -> pytest.MonkeyPatch:
        patch = pytest.MonkeyPatch()
        calls.clear()
        for name in names:
            original = getattr(os, name)

            def failing(*arguments: Any, original: Any = original, **named: Any) -> Any:
                calls.append(1)
                if len(calls) != number:
                    return original(*arguments, **named)
                if is_done:
                    original(*arguments, **named)
                raise kind("the end")

            patch.setattr(os, name, failing)
        return patch

    number = shown_new = ended = 0
    while number == 0 or len(calls) >= number:
        number += 1
        for is_done in (False, True):
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(first, out, symlinks=True)
            patch = ending_at(number, is_done)
            if ending == "kill":
                patch.setattr(ParquetOutput, "abandon", lambda *_: None)
                patch.setattr(snapshot_files.UnitWriter, "discard", lambda _: None)
            try:
                take(here, logs, out, incremental=True)
            except (kind, StratalogError):
                ended += 1
            finally:
                patch.undo()
            found = rows_of(out / "current")
            assert found in (old, new), (number, is_done)
            shown_new += found == new
            was_called = len(calls)
            report = take(here, logs, out, incremental=True)
            assert rows_of(out / "current") == new
            assert report.rows == sum(map(len, new.values()))
            assert len(os.listdir(out / ".data")) == 2
            left = [path for path in (out / "current").iterdir() if path.suffix == ".part"]
            assert left == []
            assert was_called == len(calls)
    assert ended > 20
    assert shown_new > 2, "no end came after the snapshot was shown"
    count_cases("ends of a snapshot", ended)


def test_a_log_that_is_cleaned_meanwhile_is_read_again(
    here: Any, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    original, tried = snapshot_files.write_part, []

    def changing(part: Any, *arguments: Any) -> Any:
        name = str(part.place.topic_partition)
        tried.append(name)
        if name == "orders-0" and tried.count(name) < wanted:
            raise LogChangedError(f"{name}: was cleaned while it was being read: ask again")
        return original(part, *arguments)

    monkeypatch.setattr(snapshot_files, "write_part", changing)
    for wanted in (1, 2, 4):
        tried.clear()
        assert take(here, logs, out).rows == 30
        assert tried.count("orders-0") == wanted
        assert [name for name in os.listdir(out / "current") if "part-" not in name] == [
            "_manifest.json"
        ], "a file of an attempt was left"
    wanted = 5
    tried.clear()
    with pytest.raises(LogChangedError):
        take(here, logs, out)
    assert len(values(out / "current")) == 10


# ---------------------------------------------------------------- delta


def test_delta_that_is_not_installed(
    here: Any, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stratalog\[delta\]'$"):
        take(here, logs, tmp_path / "out", to="delta")
    assert not (tmp_path / "out").exists()


def test_delta_tables_that_no_snapshot_has_made(
    here: Any, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = pytest.importorskip("deltalake")
    other = tmp_path / "other"
    lake.write_deltalake(str(other), pa.table({"x": [1]}))
    with pytest.raises(UsageError, match=r"is a Delta table that no snapshot has made$"):
        take(here, logs, other, to="delta")
    out = tmp_path / "out"
    take(here, logs, out, to="delta")
    append(logs / "orders-0", (b"k1", None), (b"new", b"1"))
    with monkeypatch.context() as patch:
        patch.setattr(snapshot_delta.DeltaOutput, "_removed", _ends)
        with pytest.raises(StorageIOError):
            take(here, logs, out, to="delta", incremental=True)
    table = lake.DeltaTable(str(out))
    assert table.version() == 0, "a commit was made"
    report = take(here, logs, out, to="delta", incremental=True)
    assert [item.kind for item in report.partitions] == ["incremental", "unchanged", "unchanged"]
    # Somebody's own commit: nothing is built upon what he made of the files.
    lake.DeltaTable(str(out)).optimize.compact()
    report = take(here, logs, out, to="delta", incremental=True)
    assert report.note == "there is no snapshot to build upon"
    assert {item.kind for item in report.partitions} == {"whole"}


def test_a_delta_table_gets_other_columns(here: Any, logs: Path, tmp_path: Path) -> None:
    lake = pytest.importorskip("deltalake")
    out = tmp_path / "out"
    take(here, logs, out, to="delta")
    for headers in (True, False):
        report = take(here, logs, out, to="delta", incremental=True, includeHeaders=headers)
        assert {item.reason for item in report.partitions} == {"the columns are others"}
        table = lake.DeltaTable(str(out)).to_pyarrow_table()
        assert (table.num_rows, "headers" in table.schema.names) == (30, headers)
        append(logs / "orders-0", (b"k1", b"next"))
        report = take(here, logs, out, to="delta", incremental=True, includeHeaders=headers)
        assert report.partitions[0].kind == "incremental"
        assert lake.DeltaTable(str(out)).to_pyarrow_table().num_rows == 30


def _ends(*_: Any) -> Any:
    raise StorageIOError("the end")


# ---------------------------------------------------------------- what tells records apart


def rows(*records: tuple[int, int, bytes | None, bytes | None]) -> pa.RecordBatch:
    """(offset, ms, key, value) each."""
    offsets, times, keys, contents = zip(*records, strict=True)
    stamps = pa.array([ms * 1000 for ms in times], pa.timestamp("us", "UTC"))
    texts = (pa.array(column, pa.binary()) for column in (keys, contents))
    columns = [pa.array(offsets), stamps, *texts]
    return pa.record_batch(columns, ["offset", "timestamp", "key", "value"])


def test_a_fingerprint_is_of_time_key_and_value_and_not_of_where_they_lie() -> None:
    plain = [(7, b"k", b"v"), (8, b"k", b"v"), (7, b"kv", b""), (7, b"k", None), (7, None, b"v")]
    batch = rows(*((n, *fields) for n, fields in enumerate(plain)))
    prints = snapshot_files.fingerprints(batch)
    assert len(set(prints.tolist())) == len(plain)
    assert snapshot_files.fingerprints(batch.slice(2)).tolist() == prints[2:].tolist()


def test_another_record_at_the_offset_of_one_is_another_log(tmp_path: Path) -> None:
    batch = rows((3, 1, b"a", b"1"), (5, 1, b"b", b"2"), (9, 1, b"c", b"3"))
    prints = snapshot_files.fingerprints(batch)
    left = tmp_path / "left"
    np.array([[3, prints[0]]], np.int64).tofile(left)
    found = snapshot_files.Survivors(2, 8, (str(left),))
    offsets = batch.column("offset").to_numpy()
    assert found.drops("t-0", offsets, prints).tolist() == [False, True, False]
    np.array([[3, prints[0] + 1]], np.int64).tofile(left)
    with pytest.raises(LogChangedError, match="t-0: was begun anew"):
        found.drops("t-0", offsets, prints)
