"""`import`: files become logs, through the public append API."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.admin.desk import BareDesk
from stratalog.admin.directories import PartitionPlace, find_partitions
from stratalog.admin.floors import log_settings
from stratalog.admin.importing import ImportOptions, ImportReport, import_file
from stratalog.admin.partitioner import partition_of_key
from stratalog.admin.rows import RowRules
from stratalog.admin.state import open_to_read
from stratalog.admin.verify import verify_partition
from stratalog.base.clock import FixedClock
from stratalog.base.errors import (
    InvalidRecordError,
    LogOfflineError,
    RecordTooLargeError,
    UsageError,
)
from stratalog.config.settings import Settings, resolve
from stratalog.log.deletion import remove_tree
from stratalog.record.codec import Codec
from stratalog.record.values import Record
from tests.admin.helpers import DISK, NOW_MS, tree

OPTIONS = ImportOptions("t", RowRules(("id",), "v"))


def _import(
    path: Path, log_dir: Path, options: ImportOptions = OPTIONS, **given: str
) -> ImportReport:
    words = {name.replace("_", "."): text for name, text in given.items()}
    clock = FixedClock(NOW_MS)
    return import_file(str(path), str(log_dir), options, words, DISK, clock, lambda _: None)


def _records(place: PartitionPlace) -> list[Record]:
    settings: Settings = resolve({})
    with open_to_read(place, log_settings(settings), DISK, FixedClock(NOW_MS)) as log:
        return list(log.read_records(0))


def _csv(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,v,at", *lines, ""]))
    return path


def test_rows_become_records_in_their_partitions_in_order(tmp_path: Path) -> None:
    lines = [f"key-{n % 50},value-{n},{NOW_MS - 1000 + n}" for n in range(500)]
    options = replace(
        OPTIONS,
        rules=RowRules(("id",), "v", "at", "v = value-499"),
        partitions=3,
        codec=Codec.LZ4,
        batch_records=7,
    )
    report = _import(_csv(tmp_path, *lines), tmp_path / "log", options)
    places = find_partitions([str(tmp_path / "log")], DISK)
    assert [place.name for place in places] == ["t-0", "t-1", "t-2"]
    found = {place.topic_partition.partition: _records(place) for place in places}
    for number, records in found.items():
        rows = [n for n in range(500) if partition_of_key(b"key-%d" % (n % 50), 3) == number]
        assert [record.key for record in records] == [b"key-%d" % (n % 50) for n in rows]
        assert [record.value for record in records] == [
            None if n == 499 else b"value-%d" % n for n in rows
        ]
        assert [record.timestamp for record in records] == [NOW_MS - 1000 + n for n in rows]
    assert (report.rows, report.tombstones, report.keyless) == (500, 1, 0)
    assert [item.records for item in report.partitions] == [len(found[n]) for n in range(3)]
    assert sum(item.log_bytes for item in report.partitions) == sum(
        path.stat().st_size for path in (tmp_path / "log").rglob("*.log")
    )


def test_codec_and_clock_come_from_settings_where_nothing_else_says_so(tmp_path: Path) -> None:
    _import(_csv(tmp_path, "a,1,0"), tmp_path / "log", compression_type="zstd")
    (path,) = (tmp_path / "log").rglob("*.log")
    assert path.read_bytes()[22] & 7 == Codec.ZSTD
    (place,) = find_partitions([str(tmp_path / "log")], DISK)
    assert [record.timestamp for record in _records(place)] == [NOW_MS]


def test_segments_are_as_large_as_settings_say(tmp_path: Path) -> None:
    path = _csv(tmp_path, *(f"key-{n},{'x' * 100},0" for n in range(100)))
    report = _import(path, tmp_path / "log", internal_segment_bytes="4096")
    assert report.partitions[0].segments > 2
    assert all(p.stat().st_size <= 4096 for p in (tmp_path / "log").rglob("*.log"))


@pytest.mark.requirement("CMP-10")
def test_records_without_a_key_go_round_where_the_topic_takes_them(tmp_path: Path) -> None:
    path = _csv(tmp_path, "a,1,0", ",2,0", ",3,0", ",4,0")
    options = replace(OPTIONS, partitions=2)
    with pytest.raises(UsageError, match="line 3: no key, which a compacted topic needs"):
        _import(path, tmp_path / "log", options)
    report = _import(path, tmp_path / "log", options, cleanup_policy="delete")
    assert (report.rows, report.keyless) == (4, 3)
    places = find_partitions([str(tmp_path / "log")], DISK)
    keyless = [[r.value for r in _records(place) if r.key is None] for place in places]
    assert keyless == [[b"2", b"4"], [b"3"]]


@pytest.mark.parametrize(
    ("lines", "rules", "given", "kind", "reason"),
    [
        (["a,1,0", "b"], RowRules(("id",)), {}, UsageError, "line 3: 1 cells"),
        (["a,1,0", "b,2,x"], RowRules(("id",), timestamp="at"), {}, UsageError, "line 3: 'x' is"),
        (
            ["a,1,0", f"b,2,{NOW_MS + 7_200_000}"],
            RowRules(("id",), timestamp="at"),
            {},
            InvalidRecordError,
            "one of the lines 2 to 3: timestamp",
        ),
        (
            ["a,1,0", f"b,{'x' * 500},0"],
            RowRules(("id",), "v"),
            {"max_message_bytes": "300"},
            RecordTooLargeError,
            "line 3: ",
        ),
    ],
)
def test_a_bad_row_leaves_no_topic(
    tmp_path: Path,
    lines: list[str],
    rules: RowRules,
    given: dict[str, str],
    kind: type[UsageError],
    reason: str,
) -> None:
    path = _csv(tmp_path, *lines)
    with pytest.raises(kind) as refused:
        _import(path, tmp_path / "log", replace(OPTIONS, rules=rules), **given)
    assert str(refused.value).startswith(f"{path}: {reason}")
    assert topics_in(tmp_path / "log") == []


def topics_in(log_dir: Path) -> list[str]:
    """Partitions, and what is left of some. The directory itself and its checkpoints may stay."""
    return [path.name for path in log_dir.iterdir() if path.is_dir()]


def test_a_topic_that_is_there_is_added_to_only_if_asked(tmp_path: Path) -> None:
    path, log_dir = _csv(tmp_path, "a,1,0", "b,2,0"), tmp_path / "log"
    _import(path, log_dir)
    before = tree(log_dir)
    with pytest.raises(UsageError, match="is there already"):
        _import(path, log_dir)
    with pytest.raises(UsageError, match="has 1 partitions here, not 2"):
        _import(path, log_dir, replace(OPTIONS, append=True, partitions=2))
    assert tree(log_dir) == before
    report = _import(path, log_dir, replace(OPTIONS, append=True))
    (found,) = report.partitions
    assert (found.records, found.log_end_offset) == (2, 4)
    (place,) = find_partitions([str(log_dir)], DISK)
    assert [record.key for record in _records(place)] == [b"a", b"b", b"a", b"b"]
    # What was there before stays when the addition fails.
    bad = _csv(tmp_path, "a,1,0", "b")
    with pytest.raises(UsageError, match="line 3"):
        _import(bad, log_dir, replace(OPTIONS, append=True))
    assert len(_records(place)) >= 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (replace(OPTIONS, topic="a/b"), "is no topic name"),
        (replace(OPTIONS, topic=".."), "is no topic name"),
        (replace(OPTIONS, topic="x" * 250), "is no topic name"),
        (replace(OPTIONS, partitions=0), "is no number of partitions"),
        (replace(OPTIONS, batch_records=0), "at least one record"),
        (replace(OPTIONS, rules=RowRules(())), "at least one column"),
    ],
)
def test_impossible_options_are_refused(
    tmp_path: Path, options: ImportOptions, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        _import(_csv(tmp_path, "a,1,0"), tmp_path / "log", options)
    assert not (tmp_path / "log").exists()


@pytest.mark.requirement("RCV-2", "RCV-3")
def test_a_directory_is_left_closed_in_order(tmp_path: Path) -> None:
    _import(_csv(tmp_path, "a,1,0", "b,2,0"), tmp_path / "log")
    log_dir = tmp_path / "log"
    assert (log_dir / ".kafka_cleanshutdown").exists()
    assert (log_dir / "recovery-point-offset-checkpoint").read_text().startswith("0\n1\nt 0 2")


@pytest.mark.requirement("RCV-1")
def test_a_directory_that_was_not_closed_in_order_is_recovered_first(tmp_path: Path) -> None:
    path, log_dir = _csv(tmp_path, "a,1,0", "b,2,0"), tmp_path / "log"
    _import(path, log_dir)
    (log_dir / ".kafka_cleanshutdown").unlink()
    log = log_dir / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + b"\0" * 99)
    report = _import(path, log_dir, replace(OPTIONS, append=True))
    assert report.partitions[0].log_end_offset == 4
    (place,) = find_partitions([str(log_dir)], DISK)
    assert verify_partition(place, DISK, lambda _: None).problems == ()


@pytest.mark.requirement("RCV-7")
def test_nothing_is_added_to_a_damaged_log(tmp_path: Path) -> None:
    path, log_dir = _csv(tmp_path, "a,1,0", "b,2,0"), tmp_path / "log"
    _import(path, log_dir)
    log = log_dir / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(LogOfflineError, match=r"t-0: quarantined: .*log repair .*settles it"):
        _import(path, log_dir, replace(OPTIONS, append=True))


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("fails", [UsageError, KeyboardInterrupt])
def test_a_failed_import_of_a_new_topic_leaves_nothing(
    tmp_path: Path, existed: bool, fails: type[BaseException]
) -> None:
    path, log_dir = _csv(tmp_path, "a,1,0"), tmp_path / "log"
    if existed:
        log_dir.mkdir()

    def stop(_rows: int) -> None:
        raise fails("enough")

    with pytest.raises(fails):
        options = replace(OPTIONS, partitions=3)
        import_file(str(path), str(log_dir), options, {}, DISK, FixedClock(NOW_MS), stop)
    assert topics_in(log_dir) == []
    # Beside another topic, that one and its directory stay in order.
    _import(path, log_dir, replace(OPTIONS, topic="other"))
    before = tree(log_dir)
    with pytest.raises(fails):
        import_file(str(path), str(log_dir), OPTIONS, {}, DISK, FixedClock(NOW_MS), stop)
    assert tree(log_dir) == before


def test_the_topic_is_made_as_topic_create_makes_it(tmp_path: Path) -> None:
    path, log_dir = _csv(tmp_path, "a,1,0", "a,2,0"), tmp_path / "log"
    _import(path, log_dir)
    # Of a broker's setting nothing stays: it is what this import went by.
    given = {"cleanup_policy": "delete", "retention_ms": "-1", "log_flush_interval_messages": "1"}
    report = _import(path, log_dir, replace(OPTIONS, topic="kept"), **given)
    assert (report.created, report.configs) == (
        True,
        {"cleanup.policy": "delete", "retention.ms": "-1"},
    )
    desk = BareDesk([str(log_dir)], DISK, FixedClock(NOW_MS))
    policies = [(it["name"], it["cleanup_policy"]) for it in desk.list_topics()["topics"]]
    assert policies == [("kept", ["delete"]), ("t", ["compact"])]
    assert desk.describe_topic("kept")["configs"] == report.configs
    assert desk.compact("t")["ok"]
    (place,) = find_partitions([str(log_dir / "t-0")], DISK)
    assert [record.value for record in _records(place)] == [b"2"]
    again = _import(path, log_dir, replace(OPTIONS, topic="kept", append=True), retention_ms="5")
    assert (again.created, again.configs) == (False, {})
    assert desk.describe_topic("kept")["configs"] == report.configs


def test_what_topic_create_refuses_is_refused(tmp_path: Path) -> None:
    path, log_dir = _csv(tmp_path, "a,1,0"), tmp_path / "log"
    _import(path, log_dir, replace(OPTIONS, topic="my.t"))
    with pytest.raises(UsageError, match=r"'my_t' collides with existing topic: my\.t"):
        _import(path, log_dir, replace(OPTIONS, topic="my_t"))
    # Its partitions are lost: rows must not begin anew at offset 0 as if they had never been.
    remove_tree(DISK, str(log_dir / "my.t-0"))
    for append in (False, True):
        with pytest.raises(UsageError, match=r"is there already|has 0 partitions here, not 1"):
            _import(path, log_dir, replace(OPTIONS, topic="my.t", append=append))
