"""`log verify` and `log repair`: what is gone as a whole, things that are no files, the marker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.admin.repair import CUT, SKIP, PartitionRepair, RepairOptions, RepairReport, repair
from stratalog.admin.verifying import verify
from stratalog.base.clock import FixedClock
from stratalog.config.settings import resolve
from stratalog.log.checkpoint import read_checkpoint, write_checkpoint
from stratalog.log.log_store import LogStore
from stratalog.log.settings import LogSettings
from stratalog.log.swap import NewSegment, SwapIntent
from stratalog.record.builder import NewRecord
from stratalog.segment.names import FileKind, TopicPartition
from tests.admin.helpers import DISK, NOW_MS, tree

pytestmark = pytest.mark.usefixtures("hasty_disk")

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("other", 0)
SETTINGS = LogSettings(segment_bytes=2400, retention_ms=-1)
POINTS = "recovery-point-offset-checkpoint"
STARTS = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
WATERMARKS = "replication-offset-checkpoint"
MARKER = ".kafka_cleanshutdown"
BATCHES = 60


def open_store(log_dir: Path) -> LogStore:
    return LogStore.open([str(log_dir)], lambda _: SETTINGS, DISK, FixedClock(NOW_MS))


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two partitions of 60 records in about eight segments, closed in order."""
    with open_store(tmp_path / "data") as store:
        for key in (ORDERS, OTHER):
            log = store.create(key)
            for number in range(BATCHES):
                log.append_records([NewRecord(b"k%d" % number, b"v" * 200, NOW_MS)])
    return tmp_path / "data"


def run(log_dir: Path, choice: str | None = None, *, applies: bool = True) -> RepairReport:
    options = RepairOptions(applies, choice)
    return repair([str(log_dir)], options, DISK, FixedClock(NOW_MS), lambda _: None)


def orders(report: RepairReport) -> PartitionRepair:
    return next(item for item in report.partitions if item.partition == "orders-0")


def reasons(log_dir: Path) -> list[str]:
    """What `verify` reports; nothing of it may concern the other partition."""
    before = tree(log_dir)
    report = verify([str(log_dir)], None, resolve({}), DISK, FixedClock(NOW_MS), lambda _: None)
    assert tree(log_dir) == before
    assert "other-0" not in str(report.all_problems)
    other = next(check for check in report.partitions if check.partition == "other-0")
    assert (other.records, other.problems) == (BATCHES, ())
    assert report.is_ok == (not report.all_problems)
    return [problem.reason for problem in report.all_problems]


def bases(partition: Path) -> list[int]:
    return sorted(int(path.stem) for path in partition.glob("*.log"))


def files(partition: Path, base: int) -> list[Path]:
    return sorted(partition.rglob(f"{base:020d}.*"))


def entry(log_dir: Path, name: str) -> int | None:
    return read_checkpoint(DISK, str(log_dir / name)).get(ORDERS)


def put(log_dir: Path, name: str, offset: int) -> None:
    path = str(log_dir / name)
    write_checkpoint(DISK, path, {**read_checkpoint(DISK, path), ORDERS: offset})


def offsets(log_dir: Path) -> list[int]:
    """What a store reads, whose logs must take appends."""
    with open_store(log_dir) as store:
        log = store.get(ORDERS)
        assert log.quarantine is None
        assert log.is_writable
        found = [batch.header.base_offset for batch in log.read_batches(log.log_start_offset)]
        assert store.get(OTHER).is_writable
    return found


def settle(log_dir: Path, choice: str, words: str) -> PartitionRepair:
    """Ask, show, do, and do again: what the first doing answered."""
    before = tree(log_dir)
    asked = run(log_dir)
    assert words in str(orders(asked).undecided), asked
    assert "--damage" in str(orders(asked).undecided)
    assert not asked.is_ok
    assert tree(log_dir) == before
    assert not run(log_dir, applies=False).is_ok
    shown = run(log_dir, choice, applies=False)
    assert tree(log_dir) == before
    done = run(log_dir, choice)
    assert done.is_ok, done
    assert orders(shown) == orders(done)
    assert reasons(log_dir) == []
    again = run(log_dir)
    assert (again.has_steps, again.is_ok) == (False, True), again
    return orders(done)


# ---------------------------------------------------------------- the end is gone


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("choice", [CUT, SKIP])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("was_opened", [True, False])
@pytest.mark.parametrize("kind", ["emptied", "removed", "claimed"])
def test_a_log_that_ends_below_its_recovery_point(
    log_dir: Path, choice: str, is_clean: bool, was_opened: bool, kind: str
) -> None:
    partition = log_dir / "orders-0"
    last = bases(partition)[-1]
    end, point = last, BATCHES
    put(log_dir, CLEANER, BATCHES)
    if kind == "emptied":
        for path in files(partition, last):
            if path.suffix in (".log", ".digest"):
                path.unlink()
        (partition / f"{last:020d}.log").touch()
    elif kind == "removed":
        for path in files(partition, last):
            path.unlink()
    else:
        end, point = BATCHES, 999
        put(log_dir, POINTS, 999)
    if not is_clean:
        (log_dir / MARKER).unlink()
    if was_opened:
        with open_store(log_dir) as store:
            assert store.get(ORDERS).quarantine is not None
    words = f"the log ends at {end} and was flushed up to {point}: {point - end} offsets are lost"
    assert words in reasons(log_dir)
    done = settle(log_dir, choice, words)
    assert words in done.as_json()["lost"]
    assert entry(log_dir, POINTS) == entry(log_dir, CLEANER) == entry(log_dir, WATERMARKS) == end
    assert offsets(log_dir) == list(range(end))


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("choice", [CUT, SKIP])
@pytest.mark.parametrize("number", [-1, 3])
def test_an_emptied_log_that_its_digest_knows(log_dir: Path, choice: str, number: int) -> None:
    partition = log_dir / "orders-0"
    first, following = (*bases(partition), BATCHES)[number - (number < 0) :][:2]
    os.truncate(partition / f"{first:020d}.log", 0)
    asked = orders(run(log_dir))
    assert asked.damage is not None
    assert asked.damage.cut.log_end_offset == first
    if number == -1:
        assert f"{following - first} offsets are lost" in str(asked.undecided)
    else:
        assert asked.damage.skip.offsets == following - first
    settle(log_dir, choice, "--damage")
    kept = list(range(first)) + ([] if choice == CUT else list(range(following, BATCHES)))
    assert offsets(log_dir) == kept


@pytest.mark.requirement("RCV-7")
def test_a_crash_that_lost_what_was_not_flushed_is_no_loss(log_dir: Path) -> None:
    partition = log_dir / "orders-0"
    last = bases(partition)[-1]
    (log_dir / MARKER).unlink()
    put(log_dir, POINTS, last)
    put(log_dir, WATERMARKS, last)
    for path in files(partition, last):
        if path.suffix in (".log", ".snapshot", ".digest"):
            path.unlink()
    # The new segment's index is on the disk, its log is not.
    assert reasons(log_dir) == []
    assert run(log_dir).is_ok
    assert offsets(log_dir) == list(range(last))


# ---------------------------------------------------------------- a segment is gone


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("choice", [CUT, SKIP])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("left", [".index", ".timeindex", ".digest"])
def test_a_segment_without_its_log(log_dir: Path, choice: str, is_clean: bool, left: str) -> None:
    partition = log_dir / "orders-0"
    missing, following = bases(partition)[2:4]
    for path in files(partition, missing):
        if path.suffix != left:
            path.unlink()
    (kept,) = files(partition, missing)
    if not is_clean:
        (log_dir / MARKER).unlink()
    (found,) = reasons(log_dir)
    assert f"the .log of the segment at {missing} is missing" in found
    assert f"offsets {missing} to {following - 1} are lost" in found
    assert ("if Kafka has not cleaned" in found) == (left == ".digest")
    settle(log_dir, choice, found)
    assert not kept.exists()
    assert offsets(log_dir) == [*range(missing), *range(following, BATCHES)]


@pytest.mark.requirement("RCV-5")
def test_left_over_files_that_are_explained_are_no_loss(
    log_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    partition = log_dir / "orders-0"
    first, second = bases(partition)[:2]
    inside = first + 1  # of a segment whose records another one took over
    names = [
        f"{inside:020d}.index",
        f".stratalog/{inside:020d}.digest",
        f"{BATCHES:020d}.timeindex",
        f"{second + 1:020d}.snapshot",
    ]
    for name in names:
        (partition / name).write_bytes(b"")
        if not name.endswith(".snapshot"):
            assert reasons(log_dir) == [], name
            assert run(log_dir).is_ok, name
        (partition / name).unlink(missing_ok=True)
    # Retention was cut off: the start is past the segment, and only its index is left.
    shutil.copy(partition / f"{first:020d}.index", partition / "x")
    for path in files(partition, first):
        path.unlink()
    (partition / "x").rename(partition / f"{first:020d}.index")
    put(log_dir, STARTS, second)
    assert reasons(log_dir) == []
    assert run(log_dir).is_ok
    # A deletion was cut off between the log and its index.
    third = bases(partition)[1]
    (partition / f"{third:020d}.log").rename(partition / f"{third:020d}.log.deleted")
    found = [text for text in reasons(log_dir) if "missing" in text]
    assert found == []
    count_cases("left-over files that are explained", len(names) + 2)


@pytest.mark.requirement("RCV-5")
def test_a_swap_that_was_cut_off_explains_files_without_a_log(log_dir: Path) -> None:
    partition = log_dir / "orders-0"
    first, missing = bases(partition)[1:3]
    intent = SwapIntent((missing,), (NewSegment(first, (FileKind.LOG,)),))
    (partition / ".stratalog" / "swap-intent").write_bytes(intent.encode())
    (partition / f"{missing:020d}.log").unlink()
    assert not any("missing" in text for text in reasons(log_dir))
    done = orders(run(log_dir))
    assert (done.undecided, done.lost) == (None, ()), done


# ---------------------------------------------------------------- the front is gone


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("choice", [CUT, SKIP])
@pytest.mark.parametrize("was_opened", [True, False])
def test_a_log_whose_first_segment_is_gone(log_dir: Path, choice: str, was_opened: bool) -> None:
    partition = log_dir / "orders-0"
    first, second = bases(partition)[:2]
    for path in files(partition, first):
        path.unlink()
    if was_opened:
        open_store(log_dir).close()
    words = f"the log starts at 0, and its first segment at {second}: {second} offsets are lost"
    assert reasons(log_dir) == [words]
    settle(log_dir, choice, words)
    assert entry(log_dir, STARTS) == second
    assert offsets(log_dir) == list(range(second, BATCHES))


@pytest.mark.requirement("RCV-7")
def test_kafkas_log_start_may_lag_behind_a_crash(log_dir: Path) -> None:
    partition = log_dir / "orders-0"
    (log_dir / MARKER).unlink()
    (log_dir / STARTS).write_text("0\n1\norders 0 2\n")
    for path in files(partition, 0):
        path.unlink()
    assert reasons(log_dir) == []
    assert run(log_dir).is_ok


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("choice", [CUT, SKIP])
def test_a_log_that_starts_past_its_end(log_dir: Path, choice: str) -> None:
    put(log_dir, STARTS, 9999)
    assert reasons(log_dir) == [f"the log starts at 9999 and ends at {BATCHES}"]
    settle(log_dir, choice, "starts at 9999")
    assert offsets(log_dir) == ([] if choice == CUT else list(range(BATCHES)))


# ---------------------------------------------------------------- what is no file at all


@pytest.mark.requirement("RCV-3")
@pytest.mark.parametrize("how", ["directory", "large"])
@pytest.mark.parametrize("name", [POINTS, STARTS, CLEANER, WATERMARKS, "leader"])
def test_what_is_no_checkpoint_is_put_aside(log_dir: Path, name: str, how: str) -> None:
    name = "orders-0/leader-epoch-checkpoint" if name == "leader" else name
    (log_dir / f"{name}.damaged").mkdir()  # of an earlier time
    (log_dir / name).unlink(missing_ok=True)
    if how == "directory":
        (log_dir / name / "deep").mkdir(parents=True)
    else:
        with open(log_dir / name, "wb") as file:
            os.truncate(file.fileno(), (64 << 20) + 1)
    aside(log_dir, name, f"{name}.damaged-2")


@pytest.mark.requirement("RCV-3", "RCV-4")
@pytest.mark.parametrize(
    "name",
    [
        f"{POINTS}.tmp",
        f"{STARTS}.tmp",
        "orders-0/leader-epoch-checkpoint.tmp",
        "orders-0/00000000000000000000.index",
        "orders-0/00000000000000000000.timeindex",
        "orders-0/00000000000000000000.txnindex",
        "orders-0/00000000000000000000.index.tmp",
        "orders-0/00000000000000000000.log.deleted",
        "orders-0/00000000000000000007.snapshot",
        "orders-0/.stratalog/00000000000000000000.digest",
        "orders-0/.stratalog/quarantine",
    ],
)
def test_a_directory_in_the_place_of_a_file_is_put_aside(log_dir: Path, name: str) -> None:
    (log_dir / name).unlink(missing_ok=True)
    (log_dir / name / "deep").mkdir(parents=True)
    aside(log_dir, name, f"{name}.damaged")


@pytest.mark.requirement("RCV-4")
def test_a_file_in_the_place_of_our_directory_is_put_aside(log_dir: Path) -> None:
    shutil.rmtree(log_dir / "orders-0" / ".stratalog")
    (log_dir / "orders-0" / ".stratalog").write_text("x")
    aside(log_dir, "orders-0/.stratalog", "orders-0/.stratalog.damaged")


def aside(log_dir: Path, name: str, new_name: str) -> None:
    found = reasons(log_dir)
    assert len(found) == 1, found
    assert "in the place of a" in found[0] or "expected at most" in found[0]
    shown = run(log_dir, applies=False)
    assert (shown.is_ok, shown.has_steps) == (True, True), shown
    done = run(log_dir)
    assert done.is_ok, done
    assert shown.partitions == done.partitions
    assert (log_dir / new_name).exists()
    assert not (log_dir / name).is_dir() or name.endswith(".stratalog")
    assert reasons(log_dir) == []
    assert not run(log_dir).has_steps
    assert offsets(log_dir) == list(range(BATCHES))


# ---------------------------------------------------------------- other partitions, the marker


@pytest.mark.requirement("CMP-16")
def test_a_partition_that_cannot_be_read_is_one_problem(log_dir: Path) -> None:
    path = log_dir / "orders-0" / "00000000000000000000.log"
    path.unlink()
    path.mkdir()
    (found,) = reasons(log_dir)
    assert "cannot be read" in found
    assert str(path) in found
    done = run(log_dir, SKIP)
    assert str(path) in str(orders(done).error)
    assert path.is_dir()


@pytest.mark.requirement("RCV-2")
def test_a_repaired_directory_counts_as_closed_in_order(log_dir: Path) -> None:
    (log_dir / MARKER).unlink()
    last = sorted((log_dir / "orders-0").glob("*.log"))[-1]
    last.write_bytes(last.read_bytes() + b"\0\0torn")
    shown = run(log_dir, applies=False)
    assert not (log_dir / MARKER).exists()
    done = run(log_dir)
    assert shown == RepairReport(False, done.directories, done.partitions)
    assert [step.what for step in done.directories[0].steps] == ["closed"]
    assert (log_dir / MARKER).exists()
    again = run(log_dir)
    assert again.directories[0].closed_in_order
    assert not again.has_steps


@pytest.mark.requirement("RCV-2")
def test_the_marker_waits_for_all_logs(log_dir: Path) -> None:
    (log_dir / MARKER).unlink()
    done = repair(
        [str(log_dir / "other-0")],
        RepairOptions(True),
        DISK,
        FixedClock(NOW_MS),
        lambda _: None,
    )
    assert "until all its logs are settled" in done.directories[0].steps[0].text
    assert not done.has_steps
    assert not (log_dir / MARKER).exists()
    # One that only a store finds fault with: there is a recovery point, and no log at all.
    put_aside = log_dir / "gone-0"
    put_aside.mkdir()
    path = str(log_dir / POINTS)
    points = read_checkpoint(DISK, path)
    write_checkpoint(DISK, path, {**points, TopicPartition("gone", 0): 5})
    done = run(log_dir)
    assert "still counts as not closed in order: gone-0" in done.directories[0].steps[0].text
    assert not (log_dir / MARKER).exists()


@pytest.mark.requirement("RCV-2")
def test_a_directory_of_kafka_is_not_marked(log_dir: Path) -> None:
    (log_dir / MARKER).unlink()
    for name in (POINTS, STARTS):
        (log_dir / name).write_text((log_dir / name).read_text().rstrip() + "\n")
    before = tree(log_dir)
    done = run(log_dir)
    assert "Kafka wrote it" in done.directories[0].steps[0].text
    assert not done.has_steps
    assert tree(log_dir) == before
