"""`retention` and `records delete`, as operations on directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.admin.deleting import (
    PlannedDeletion,
    Selection,
    UpTo,
    choose,
    delete_records,
    parse_offsets,
    parse_up_to,
    plan_deletion,
)
from stratalog.admin.directories import find_partitions
from stratalog.admin.policies import COMPACTED_TOPICS
from stratalog.admin.retention import RetentionReport, plan_retention, run_retention
from stratalog.admin.verify import verify_partition
from stratalog.base.clock import FixedClock
from stratalog.base.errors import OffsetOutOfRangeError, PolicyViolationError, UsageError
from stratalog.config.settings import resolve
from stratalog.log.log_store import LOG_END
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, records, tree, write_log

DAY_MS = 24 * HOUR_MS
KEYS = [TopicPartition("orders", number) for number in range(2)]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two logs: segments at 0, 2, 4, 6, a day apart, the newest now."""
    for number in range(2):
        days = [[records("ab", at_ms=NOW_MS - age * DAY_MS)] for age in (3, 2, 1, 0)]
        write_log(tmp_path / "data" / f"orders-{number}", days, policy=("delete",))
    return tmp_path / "data"


def plan(log_dir: Path, **given: object) -> RetentionReport:
    settings = resolve({name.replace("_", "."): str(text) for name, text in given.items()})
    return plan_retention([str(log_dir)], settings, DISK, FixedClock(NOW_MS))


def apply(*targets: Path, **given: object) -> RetentionReport:
    settings = resolve({name.replace("_", "."): str(text) for name, text in given.items()})
    paths = [str(target) for target in targets]
    return run_retention(paths, settings, DISK, FixedClock(NOW_MS), lambda _: None)


def bases(partition: Path) -> list[int]:
    return [int(path.stem) for path in sorted(partition.glob("*.log"))]


def problems(log_dir: Path) -> list[object]:
    return [
        problem
        for place in find_partitions([str(log_dir)], DISK)
        for problem in verify_partition(place, DISK, lambda _: None).problems
    ]


@pytest.mark.requirement("RET-2", "RET-8", "RET-9")
def test_a_dry_run_says_what_applying_does(log_dir: Path) -> None:
    before = tree(log_dir)
    shown = plan(log_dir, retention_ms=DAY_MS)
    assert tree(log_dir) == before
    assert not (log_dir / ".lock").exists()
    done = apply(log_dir, retention_ms=DAY_MS)
    assert shown.partitions == done.partitions
    for number in range(2):
        assert bases(log_dir / f"orders-{number}") == [4, 6]
        assert not list((log_dir / f"orders-{number}").glob("*.deleted"))
    found = done.as_json()
    assert found["totals"]["deleted_segments"] == 4
    reasons = [gone["reason"] for item in found["partitions"] for gone in item["deletions"]]
    assert reasons == ["time"] * 4
    assert (log_dir / ".kafka_cleanshutdown").exists()
    assert problems(log_dir) == []
    again = apply(log_dir, retention_ms=DAY_MS).as_json()
    assert again["totals"] == {"deleted_segments": 0, "deleted_bytes": 0}


@pytest.mark.requirement("RET-9")
def test_only_the_named_partitions_lose_anything(log_dir: Path) -> None:
    apply(log_dir / "orders-1", retention_ms=DAY_MS)
    assert bases(log_dir / "orders-0") == [0, 2, 4, 6]
    assert bases(log_dir / "orders-1") == [4, 6]


@pytest.mark.requirement("RET-7")
def test_everything_may_be_too_old(log_dir: Path) -> None:
    report = plan(log_dir, retention_bytes=0)
    assert all(item.decision is not None and item.decision.rolls for item in report.partitions)
    assert apply(log_dir, retention_bytes=0).partitions == report.partitions
    assert bases(log_dir / "orders-0") == [8]


@pytest.mark.requirement("RET-10")
@pytest.mark.parametrize("topic", COMPACTED_TOPICS)
def test_kafkas_own_topics_keep_what_they_have(tmp_path: Path, topic: str) -> None:
    old = [[records("ab", at_ms=NOW_MS - 900 * DAY_MS)] for _ in range(3)]
    write_log(tmp_path / f"{topic}-0", old)
    assert plan(tmp_path).partitions[0].decision is None
    assert apply(tmp_path).partitions[0].decision is None
    assert bases(tmp_path / f"{topic}-0") == [0, 2, 4]


@pytest.mark.requirement("RCV-7")
def test_a_quarantined_log_is_told_and_the_others_go_on(log_dir: Path) -> None:
    apply(log_dir / "orders-0", retention_ms=9 * DAY_MS)  # opens and closes it in order
    path = sorted((log_dir / "orders-0").glob("*.log"))[-1]
    path.write_bytes(path.read_bytes()[:-1])
    report = apply(log_dir, retention_ms=DAY_MS)
    assert not report.is_ok
    first, second = report.partitions
    assert "quarantined" in str(first.error)
    assert "log repair" in str(first.error)
    assert second.error is None
    assert bases(log_dir / "orders-1") == [4, 6]


# ---------------------------------------------------------------- records delete


def planned(
    log_dir: Path, wanted: dict[TopicPartition, UpTo], **given: str
) -> list[PlannedDeletion]:
    settings = resolve({name.replace("_", "."): text for name, text in given.items()})
    return plan_deletion(str(log_dir), wanted, settings, DISK, FixedClock(NOW_MS))


def delete(log_dir: Path, items: list[PlannedDeletion]) -> list[PlannedDeletion]:
    return delete_records(items, resolve({}), DISK, FixedClock(NOW_MS), lambda _: None)


@pytest.mark.requirement("RET-5", "RET-6")
def test_records_below_an_offset_go(log_dir: Path) -> None:
    before = tree(log_dir)
    items = planned(log_dir, {KEYS[0]: UpTo(5), KEYS[1]: UpTo(LOG_END)})
    assert tree(log_dir) == before
    assert [(item.offset, item.records, item.segments) for item in items] == [(5, 5, 2), (8, 8, 3)]
    # The batch that holds offset 5 stays: nothing of its segment is hidden as a whole batch.
    assert items[0].hidden_bytes == items[0].freed_bytes
    assert items[1].hidden_bytes > items[1].freed_bytes
    assert delete(log_dir, items) == items
    assert bases(log_dir / "orders-0") == [4, 6]
    assert bases(log_dir / "orders-1") == [6]
    again = planned(log_dir, {KEYS[0]: UpTo(3), KEYS[1]: UpTo(LOG_END)})
    assert [(item.log_start_offset, item.records, item.hidden_bytes) for item in again] == [
        (5, 0, 0),
        (8, 0, 0),
    ]
    assert problems(log_dir) == []


@pytest.mark.requirement("RET-6")
@pytest.mark.parametrize(("age_days", "offset"), [(4, 0), (2, 2), (1.5, 4), (-1, 8)])
def test_up_to_a_time(log_dir: Path, age_days: float, offset: int) -> None:
    up_to = UpTo(None, NOW_MS - int(age_days * DAY_MS))
    (item,) = planned(log_dir, {KEYS[0]: up_to})
    assert item.offset == offset


@pytest.mark.requirement("RET-6")
def test_a_plan_with_an_error_is_not_carried_out(log_dir: Path) -> None:
    items = planned(log_dir, {KEYS[0]: UpTo(2), KEYS[1]: UpTo(9)})
    assert isinstance(items[1].error, OffsetOutOfRangeError)
    before = tree(log_dir)
    with pytest.raises(OffsetOutOfRangeError, match="orders-1: 9 lies past the log end, 8"):
        delete(log_dir, items)
    assert tree(log_dir) == before
    (item,) = planned(log_dir, {KEYS[0]: UpTo(2)}, cleanup_policy="compact")
    assert isinstance(item.error, PolicyViolationError)


def test_which_partitions_are_meant(log_dir: Path) -> None:
    up_to = UpTo(3)

    def chosen(target: Path, selection: Selection) -> list[TopicPartition]:
        return list(choose(str(target), selection, up_to, DISK))

    assert chosen(log_dir, Selection()) == KEYS
    assert chosen(log_dir / "orders-1", Selection()) == [KEYS[1]]
    assert chosen(log_dir, Selection("orders", (1,))) == [KEYS[1]]
    with pytest.raises(UsageError, match="holds no partition orders-7"):
        chosen(log_dir, Selection("orders", (1, 7)))
    with pytest.raises(UsageError, match="no partition of topic x"):
        chosen(log_dir, Selection("x"))
    write_log(log_dir / "other-0", [[records("a")]])
    with pytest.raises(UsageError, match="several topics; --topic says which: orders, other"):
        chosen(log_dir, Selection())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", UpTo(0)),
        ("end", UpTo(-1)),
        ("-1", UpTo(-1)),
        ("@17", UpTo(None, 17)),
        (" 5 ", UpTo(5)),
    ],
)
def test_offsets_in_words(text: str, expected: UpTo) -> None:
    assert parse_up_to(text) == expected


@pytest.mark.parametrize("text", ["", "-2", "@", "@-1", "5.0", "1e3", "9" * 30, "٣", "begin"])
def test_what_is_no_offset(text: str) -> None:
    with pytest.raises(UsageError, match="is none of"):
        parse_up_to(text)


def test_kafkas_file_of_offsets() -> None:
    content = b'{"partitions":[{"topic":"a","partition":1,"offset":-1}],"version":1}'
    assert parse_offsets(content) == {TopicPartition("a", 1): UpTo(-1)}
    for wrong, reason in [
        (b"", "not of the form"),
        (b"[]", "not of the form"),
        (b'{"partitions":[{"topic":"a"}]}', "not of the form"),
        (b'{"partitions":[]}', "names no partition"),
        (content.replace(b"-1", b"-2"), "no number from -1 on"),
        (content.replace(b"-1", b"true"), "no number from -1 on"),
        (content.replace(b'"a"', b'"a/b"'), "no topic name"),
        (content.replace(b":1}", b":2}"), "version 2"),
        (content.replace(b"[{", b'[{"topic":"a","partition":1,"offset":3},{'), "twice"),
    ]:
        with pytest.raises(UsageError, match=reason):
            parse_offsets(wrong)
