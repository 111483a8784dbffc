"""`log verify`: whole logs have no problems, and each kind of damage is one, named and placed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.admin.directories import find_partitions
from stratalog.admin.verify import Problem
from stratalog.admin.verifying import VerifyReport, verify
from stratalog.base.clock import FixedClock
from stratalog.config.settings import resolve
from stratalog.record.builder import NewRecord, build_batch
from tests.admin.helpers import DISK, NOW_MS, copy_of, records, run, tree, write_log
from tests.oracle import fold, rounds

LOG, INDEX, TIMES, ABORTED = (f".{kind}" for kind in ("log", "index", "timeindex", "txnindex"))


def _verify(*targets: Path, against: Path | None = None) -> VerifyReport:
    return verify(
        [str(target) for target in targets],
        None if against is None else str(against),
        resolve({}),
        DISK,
        FixedClock(NOW_MS),
        lambda _: None,
    )


@pytest.mark.requirement("CMP-18", "LOG-1")
def test_what_kafka_wrote_is_sound_and_means_the_same_after_its_cleaner(
    count_cases: Callable[[str, int], None],
) -> None:
    for kafka in rounds()[::3]:
        report = _verify(kafka.before, against=kafka.after)
        assert report.all_problems == [], kafka.name
        assert _verify(kafka.after).is_ok, kafka.name
        (found,) = report.comparisons
        assert found.different == 0
        assert found.keys == found.other_keys == len(fold(kafka.before)), kafka.name
        assert report.is_ok
        count_cases("directories of Kafka verified", 2)


# ---------------------------------------------------------------- damage


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Three segments; batches of many sizes, so that there are index entries."""
    batches = [records([f"key-{n}" for n in range(30)], "v" * 40, NOW_MS + m) for m in range(8)]
    return write_log(tmp_path / "orders-0", [batches[:4], batches[4:], []])


def _first(partition: Path, suffix: str) -> Path:
    return sorted(partition.glob(f"*{suffix}"))[0]


def _put(path: Path, position: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[position : position + len(content)] = content
    path.write_bytes(data)


def _problems(partition: Path) -> list[Problem]:
    before = tree(partition.parent)
    found = _verify(partition).all_problems
    assert tree(partition.parent) == before
    return found


def _batch_starts(path: Path) -> list[int]:
    data, starts = path.read_bytes(), [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 12 + int.from_bytes(data[starts[-1] + 8 : starts[-1] + 12]))
    return starts


@pytest.mark.requirement("CMP-16")
def test_every_damaged_batch_is_listed_and_the_others_are_counted(partition: Path) -> None:
    path = _first(partition, LOG)
    starts = _batch_starts(path)
    assert len(starts) == 5
    _put(path, starts[1] + 100, b"\xff\xff")
    _put(path, starts[3] + 100, b"\xff\xff")
    report = _verify(partition)
    assert [problem for problem in report.all_problems if problem.file == str(path)] == [
        Problem(str(path), starts[n], "CRC-32C does not match") for n in (1, 3)
    ]
    (check,) = report.partitions
    assert (check.batches, check.records) == (6, 180)


@pytest.mark.requirement("CMP-16")
def test_records_that_do_not_hold_together_are_listed_despite_a_right_checksum(
    tmp_path: Path,
) -> None:
    partition = write_log(tmp_path / "orders-0", [[records("ab")]])
    path = _first(partition, LOG)
    good = build_batch([NewRecord(b"a", b"1", NOW_MS, ((b"h", b"x"),))], base_offset=0)
    bad = bytearray(build_batch([NewRecord(b"a", b"1", NOW_MS, ((b"h", b"x"),))], base_offset=1))
    bad[-2] = 40  # the length of the header's value
    bad[17:21] = _crc(bad)
    path.write_bytes(good + bad)
    found = _problems(partition)
    assert Problem(str(path), len(good), "record length out of bounds") in found


def _crc(batch: bytearray) -> bytes:
    from stratalog.record.checksum import crc32c

    return crc32c(bytes(batch[21:])).to_bytes(4, "big")


@pytest.mark.requirement("CMP-16", "RCV-1")
def test_every_flip_in_a_log_that_anything_reveals_is_found(tmp_path: Path) -> None:
    partition = write_log(tmp_path / "orders-0", [[records("aab"), records("c")], []])
    path = _first(partition, LOG)
    original = path.read_bytes()
    unseen = {start + at for start in _batch_starts(path) for at in range(12, 16)}
    for position in range(len(original)):
        _put(path, position, bytes([original[position] ^ (1 << position % 8)]))
        assert bool(_verify(partition).all_problems) == (position not in unseen), position
        path.write_bytes(original)


@pytest.mark.parametrize(
    ("damage", "suffix", "reason"),
    [
        (lambda p: _first(p, LOG).write_bytes(_first(p, LOG).read_bytes()[:-1]), LOG, "cut off"),
        (lambda p: _put(_first(p, LOG), 8, b"\xff\xff\xff\xff"), LOG, "length out of bounds"),
        (lambda p: _first(p, INDEX).unlink(), INDEX, "missing; it is made anew"),
        (lambda p: _put(_first(p, INDEX), 7, b"\x01"), INDEX, "no batch starts at position"),
        (lambda p: _put(_first(p, INDEX), 3, b"\x00"), INDEX, "lies past offset"),
        (lambda p: _first(p, INDEX).write_bytes(b"\x01" * 9), INDEX, "no multiple of 8"),
        (lambda p: _put(_first(p, TIMES), 7, b"\x7f"), TIMES, "the log has"),
        (lambda p: _first(p, TIMES).write_bytes(b""), TIMES, "ends at timestamp -1"),
        (lambda p: _first(p, TIMES).write_bytes(b"\xff" * 12), TIMES, "negative"),
        (lambda p: (p / f"{0:020d}.txnindex").write_bytes(b"\x00" * 34), ABORTED, "no abort of"),
        (lambda p: (p / f"{0:020d}.txnindex").write_bytes(b"\x00" * 33), ABORTED, "no multiple"),
        (lambda p: _put(_first(p, ".snapshot"), 0, b"\x09"), ".snapshot", "version"),
        (lambda p: (p / "leader-epoch-checkpoint").write_text("1\n"), "checkpoint", "shorter"),
        (lambda p: (p / f"{0:020d}.log.swap").touch(), ".swap", "interrupted cleaning"),
        (
            lambda p: (p.parent / "cleaner-offset-checkpoint").write_text("0\n1\n"),
            "cleaner-offset-checkpoint",
            "0 entries",
        ),
    ],
)
def test_damage_is_found_in_its_file(
    partition: Path, damage: Callable[[Path], object], suffix: str, reason: str
) -> None:
    assert _problems(partition) == []
    damage(partition)
    found = _problems(partition)
    assert any(p.file.endswith(suffix) and reason in p.reason for p in found), found


def test_a_batch_of_the_next_segment_is_found(partition: Path) -> None:
    first, second = sorted(partition.glob("*.log"))[:2]
    shutil.copy(second, first)
    assert any(
        "does not follow" in p.reason or "next segment" in p.reason for p in _problems(partition)
    )


def test_an_aborted_transaction_that_the_index_does_not_know_is_found(
    tmp_path: Path, golden_dir: Path
) -> None:
    before = next(kafka.before for kafka in rounds() if sorted(kafka.before.glob("*.txnindex")))
    partition = copy_of(before, tmp_path / before.name)
    path = _first(partition, ABORTED)
    path.write_bytes(path.read_bytes()[34:])
    found = _problems(partition)
    assert [p.file for p in found] == [str(path)]
    assert "the abort of producer" in found[0].reason


# ---------------------------------------------------------------- comparing


@pytest.mark.requirement("CMP-18")
def test_a_cleaned_copy_means_the_same(tmp_path: Path) -> None:
    for number in range(3):
        keys = [f"key-{n % 7}" for n in range(50)]
        write_log(tmp_path / "a" / f"orders-{number}", [[records(keys)], [records(keys, None)]])
    from stratalog.admin.report import Mode

    run([tmp_path / "a"], Mode.OUT, out=tmp_path / "b")
    report = _verify(tmp_path / "a", against=tmp_path / "b")
    assert report.is_ok
    assert [found.keys for found in report.comparisons] == [0, 0, 0]


@pytest.mark.requirement("CMP-18")
def test_what_differs_is_named(tmp_path: Path) -> None:
    def log(name: str, *pairs: tuple[str, str | None]) -> Path:
        batch = [NewRecord(k.encode(), v and v.encode(), NOW_MS) for k, v in pairs]
        return write_log(tmp_path / name / "orders-0", [[batch]])

    one = log("one", ("same", "1"), ("gone", "1"), ("other", "1"), ("dead", "1"), ("dead", None))
    two = log("two", ("same", "0"), ("same", "1"), ("other", "2"), ("new", "1"), ("never", None))
    report = _verify(one, against=two)
    assert not report.is_ok
    (found,) = report.comparisons
    assert (found.keys, found.other_keys, found.different) == (3, 3, 3)
    assert {(d.key, d.offset, d.other_offset) for d in found.differences} == {
        ("gone", 1, None),
        ("other", 2, 2),
        ("new", None, 3),
    }
    assert _verify(two, against=two).is_ok


def test_partitions_that_only_one_directory_has_are_named(tmp_path: Path) -> None:
    for name in ("a/x-0", "a/x-1", "b/x-1", "b/x-2"):
        write_log(tmp_path / name, [[records("ab")]])
    report = _verify(tmp_path / "a", against=tmp_path / "b")
    assert report.missing == ("x-0", "x-2")
    assert not report.is_ok
    assert [found.partition for found in report.comparisons] == ["x-1"]
    # Two single partitions are compared whatever their names are.
    assert _verify(tmp_path / "a" / "x-0", against=tmp_path / "b" / "x-2").is_ok


def test_damage_in_the_other_directory_is_a_problem_not_a_difference(tmp_path: Path) -> None:
    one = write_log(tmp_path / "a" / "x-0", [[records("ab")]])
    two = copy_of(one.parent, tmp_path / "b") / "x-0"
    _put(_first(two, LOG), 80, b"\xff")
    report = _verify(one, against=two)
    assert [p.file for p in report.all_problems] == [str(_first(two, LOG))]
    assert report.comparisons == ()
    assert _verify(two, against=one).comparisons == ()


@pytest.mark.requirement("CMP-7")
def test_more_keys_than_fit_are_compared_range_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.admin.fold._MAP_BYTES", 24 * 512)
    keys = [f"key-{n}" for n in range(3000)]
    one = write_log(tmp_path / "a" / "x-0", [[records(keys), records(keys[:500], "new")]])
    two = write_log(tmp_path / "b" / "x-0", [[records(keys), records(keys[:501], "new")]])
    assert _verify(one, against=one).comparisons[0].keys == 3000
    (found,) = _verify(one, against=two).comparisons
    assert (found.keys, found.other_keys, found.different) == (3000, 3000, 1)
    assert found.differences[0].key == "key-500"
    assert [place.name for place in find_partitions([str(one)], DISK)] == ["x-0"]
