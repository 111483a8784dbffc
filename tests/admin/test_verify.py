"""`log verify`: whole logs have no problems, and each kind of damage is one, named and placed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.admin.directories import find_partitions
from stratalog.admin.verify import PartitionCheck, Problem
from stratalog.admin.verifying import VerifyReport, verify
from stratalog.base.clock import FixedClock
from stratalog.config.settings import resolve
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment import digest as digests
from stratalog.segment.log_file import LogFile
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
    shutil.rmtree(partition / ".stratalog", ignore_errors=True)  # without a digest
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


# ---------------------------------------------------------------- one damage, one problem


def test_problems_are_counted_in_words() -> None:
    one = Problem("x", None, "wrong")
    verdicts = [
        PartitionCheck("p-0", "p-0", 1, 1, 1, 1, (one,) * count).verdict for count in (0, 1, 2)
    ]
    assert verdicts == ["sound", "1 problem", "2 problems"]


def test_a_damaged_batch_is_one_problem_whatever_points_to_it(partition: Path) -> None:
    path = _first(partition, LOG)
    original, starts = path.read_bytes(), _batch_starts(path)
    assert len(_first(partition, INDEX).read_bytes()) == 8
    for number, start in enumerate(starts[:-1]):
        for at, content, reason in (
            (100, b"\xff\xff", "CRC-32C does not match"),
            (8, b"\x7f", "batch length out of bounds"),
            (16, b"\x03", "unknown magic"),
            (0, b"\x01", None),
        ):
            _put(path, start + at, content)
            (found,) = _problems(partition)
            assert found.file == str(path), found
            assert reason is None or (found.position, found.reason) == (start, reason), number
            path.write_bytes(original)


def test_an_offset_that_is_too_large_is_one_problem(tmp_path: Path) -> None:
    """The batch behind it seems out of order, and its own index entry to mislead."""
    batches = [records([f"key-{n}" for n in range(30)], "v" * 40, NOW_MS + m) for m in range(8)]
    partition = write_log(tmp_path / "orders-0", [batches, []])
    path = _first(partition, LOG)
    starts, entries = _batch_starts(path), _first(partition, INDEX).read_bytes()
    assert starts.index(int.from_bytes(entries[4:8], "big")) == 3
    _put(path, starts[3] + 7, bytes([180]))  # for 90
    assert _problems(partition) == [Problem(str(path), starts[4], "offsets do not increase")]


def test_an_index_that_is_wrong_beside_the_damage_is_a_problem_of_its_own(partition: Path) -> None:
    path, index, times = (_first(partition, suffix) for suffix in (LOG, INDEX, TIMES))
    starts = _batch_starts(path)
    _put(path, starts[1] + 100, b"\xff\xff")
    _put(index, len(index.read_bytes()) - 1, b"\x01")
    _put(times, 7, b"\x00")  # earlier than what is there
    found = _problems(partition)
    assert {(p.file, p.reason.split(" ")[0]) for p in found} == {
        (str(path), "CRC-32C"),
        (str(index), "no"),
        (str(times), "timestamp"),
    }


def test_a_damaged_marker_is_one_problem(tmp_path: Path) -> None:
    before = next(kafka.before for kafka in rounds() if sorted(kafka.before.glob("*.txnindex")))
    partition = copy_of(before, tmp_path / before.name)
    index = _first(partition, ABORTED)
    marker = int.from_bytes(index.read_bytes()[18:26], "big")
    path = index.with_suffix(LOG)
    data = path.read_bytes()
    (start,) = (
        at
        for at in _batch_starts(path)[:-1]
        if int.from_bytes(data[at : at + 8], "big") == marker and data[at + 22] & 0x20
    )
    _put(path, start + 70, b"\xff")
    assert _problems(partition) == [Problem(str(path), start, "CRC-32C does not match")]


# ---------------------------------------------------------------- digests


def _digest(partition: Path) -> None:
    for path in partition.glob("*.log"):
        base = int(path.stem)
        log = LogFile.open(DISK, str(path))
        made = digests.build_digest(DISK, str(partition), base, log, log.size_bytes())
        digests.store_digest(DISK, str(partition), base, made)


@pytest.mark.requirement("RCV-7")
def test_with_a_digest_every_flip_in_a_log_is_found_and_is_one_problem(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    partition = write_log(tmp_path / "orders-0", [[records("aab"), records("c")], []])
    _digest(partition)
    path = _first(partition, LOG)
    original = path.read_bytes()
    for position in range(len(original)):
        _put(path, position, bytes([original[position] ^ (1 << position % 8)]))
        found = _problems(partition)
        assert [problem.file for problem in found] == [str(path)], (position, found)
        path.write_bytes(original)
    assert _problems(partition) == []
    count_cases("flips verified with a digest", len(original))


@pytest.mark.requirement("RCV-7")
def test_what_only_the_digest_knows_is_named_and_placed(tmp_path: Path) -> None:
    batches = [records(["a", "b"], "v" * 20_000, NOW_MS + n) for n in range(6)]
    partition = write_log(tmp_path / "orders-0", [batches, []])
    _digest(partition)
    assert _problems(partition) == []
    path, index = _first(partition, LOG), _first(partition, INDEX)
    original, starts = path.read_bytes(), _batch_starts(path)
    _put(path, starts[3] + 15, b"\x09")
    assert _problems(partition) == [
        Problem(
            str(path),
            starts[2],
            f"a batch header from here to {starts[4]} is not the one that was written",
        )
    ]
    path.write_bytes(original[: starts[4]])
    assert _problems(partition) == [
        Problem(str(path), starts[4], f"the log ends here; it was {len(original)} bytes long")
    ]
    path.write_bytes(original)
    good_index = index.read_bytes()
    _put(index, 3, bytes([index.read_bytes()[3] + 1]))  # an entry that still misleads nobody
    (found,) = _problems(partition)
    assert (found.file, found.position) == (str(index), None)
    _put(index, 7, b"\x01")
    (found,) = _problems(partition)
    assert "no batch starts at position" in found.reason
    _put(index, 0, good_index)
    # None of that without the digest, or with one of another file.
    stored = _first(partition / ".stratalog", ".digest")
    stored.write_bytes(stored.read_bytes()[:-1])
    assert _problems(partition) == []
    _digest(partition)
    _put(path, starts[3] + 15, b"\x09")
    assert len(_problems(partition)) == 1
    shutil.copy(path, partition / "copy")
    (partition / "copy").rename(path)
    assert _problems(partition) == []


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
