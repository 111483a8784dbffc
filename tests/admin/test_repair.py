"""`log repair`: what damage of every kind leaves, and that nothing else is lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratalog.admin.directories import find_partitions
from stratalog.admin.repair import CUT, SKIP, PartitionRepair, RepairOptions, RepairReport, repair
from stratalog.admin.verify import verify_partition
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import LocalFile, LocalFileSystem, OpenMode
from stratalog.log.log_store import LogStore
from stratalog.log.settings import LogSettings
from stratalog.record.batch import batches
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec
from stratalog.segment.names import TopicPartition
from tests.admin.helpers import DISK, NOW_MS, tree

ORDERS = TopicPartition("orders", 0)
SETTINGS = LogSettings(segment_bytes=2400, retention_ms=-1)


@dataclass(frozen=True)
class Stored:
    """A batch as it was written: where, its offsets, its bytes."""

    file: str
    position: int
    base_offset: int
    last_offset: int
    data: bytes


def open_store(log_dir: Path) -> LogStore:
    return LogStore.open([str(log_dir)], lambda _: SETTINGS, DISK, FixedClock(NOW_MS))


def write(log_dir: Path, seed: int) -> Path:
    """A closed log of about six segments; some batches are packed, some equally long."""
    rng = random.Random(seed)
    with open_store(log_dir) as store:
        log = store.create(ORDERS)
        for _ in range(60):
            size = rng.choice([40, 40, 40, rng.randrange(10, 400)])
            made = [
                NewRecord(b"k%d" % rng.randrange(9), rng.randbytes(size), NOW_MS)
                for _ in range(rng.randrange(1, 4))
            ]
            log.append_records(made, codec=rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4]))
    return log_dir / "orders-0"


def stored(partition: Path) -> list[Stored]:
    """All batches of a sound log."""
    return [
        Stored(
            path.name,
            batch.position,
            batch.header.base_offset,
            batch.header.last_offset,
            bytes(batch.data),
        )
        for path in sorted(partition.glob("*.log"))
        for batch in batches(path.read_bytes())
    ]


def mend(log_dir: Path, choice: str | None, *, applies: bool = True) -> PartitionRepair:
    return run(log_dir, choice, applies=applies).partitions[0]


def run(log_dir: Path, choice: str | None = None, *, applies: bool = True) -> RepairReport:
    options = RepairOptions(applies, choice)
    return repair([str(log_dir)], options, DISK, FixedClock(NOW_MS), lambda _: None)


def problems(log_dir: Path) -> list[str]:
    (place,) = find_partitions([str(log_dir)], DISK)
    return [
        f"{problem.file}: {problem.position}: {problem.reason}"
        for problem in verify_partition(place, DISK, lambda _: None).problems
    ]


def damage(partition: Path, rng: random.Random) -> tuple[str, int, int]:
    """Hit one segment somehow: (file, first byte, end) of what was hit."""
    path = rng.choice(sorted(partition.glob("*.log")))
    before = path.read_bytes()
    data = bytearray(before)
    at = rng.randrange(len(data))
    kind = rng.randrange(6)
    if kind == 0:  # one bit, anywhere
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:  # one bit of a header's fields that no checksum covers
        starts = [0]
        with suppress(CorruptionError):  # it may be damaged already
            starts = [batch.position for batch in batches(bytes(data))]
        at = rng.choice(starts) + rng.choice([*range(12), 16])
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 2:  # a run of nonsense
        end = min(at + rng.randrange(2, 600), len(data))
        data[at:end] = rng.randbytes(end - at)
    elif kind == 3:  # a run of zeros
        end = min(at + rng.randrange(2, 600), len(data))
        data[at:end] = bytes(end - at)
    elif kind == 4:  # bytes are missing
        end = min(at + rng.randrange(1, 300), len(data))
        del data[at:end]
    else:  # the end is missing
        del data[at:]
    path.write_bytes(data)
    # Some of what was overwritten may be the same afterwards.
    start = alike(before, bytes(data))
    return path.name, start, len(before) - alike(before[start:][::-1], bytes(data[start:][::-1]))


def alike(one: bytes, other: bytes) -> int:
    """How many first bytes are the same."""
    pairs = zip(one, other, strict=False)
    different = (place for place, (a, b) in enumerate(pairs) if a != b)
    return next(different, min(len(one), len(other)))


def readable(log_dir: Path) -> list[tuple[int, int, bytes]]:
    """What the store's log gives, which must take appends."""
    with open_store(log_dir) as store:
        log = store.get(ORDERS)
        assert log.quarantine is None
        assert log.is_writable
        return [
            (batch.header.base_offset, batch.header.last_offset, bytes(batch.data))
            for batch in log.read_batches(log.log_start_offset)
        ]


@pytest.mark.requirement("RCV-7")
@pytest.mark.usefixtures("hasty_disk")
@pytest.mark.parametrize("choice", [SKIP, CUT])
@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 1060), marks=pytest.mark.slow)], ids=["60", "1000"]
)
def test_every_kind_of_damage(
    tmp_path: Path, choice: str, seeds: range, count_cases: Callable[[str, int], None]
) -> None:
    for seed in seeds:
        log_dir = tmp_path / "data"
        partition = write(log_dir, seed % 10)
        whole = stored(partition)
        rng = random.Random(seed)
        hits = [damage(partition, rng) for _ in range(rng.choice([1, 1, 1, 2]))]
        before = tree(log_dir)
        shown = mend(log_dir, choice, applies=False)
        assert tree(log_dir) == before, seed
        refused = mend(log_dir, None)
        if refused.undecided is not None:
            assert tree(log_dir) == before, seed
        done = mend(log_dir, choice)
        assert done.is_ok, (seed, done)
        if refused.undecided is not None:
            assert (shown.steps, shown.damage) == (done.steps, done.damage), seed
        assert problems(log_dir) == [], (seed, hits)
        again = mend(log_dir, None)
        assert (again.steps, again.damage, again.undecided) == ((), None, None), seed
        kept = readable(log_dir)
        if len(hits) == 1:
            judge(whole, hits[0], kept, choice, seed)
        shutil.rmtree(log_dir)
    count_cases(f"damaged logs mended by {choice}", len(seeds))


def judge(
    whole: list[Stored],
    hit: tuple[str, int, int],
    kept: list[tuple[int, int, bytes]],
    choice: str,
    seed: int,
) -> None:
    file, start, end = hit
    was_hit = [
        batch.file == file and batch.position < end and batch.position + len(batch.data) > start
        for batch in whole
    ]
    sound = [
        (b.base_offset, b.last_offset, b.data)
        for b, bad in zip(whole, was_hit, strict=True)
        if not bad
    ]
    if choice == SKIP:
        assert [batch for batch in sound if batch not in kept] == [], (seed, hit)
        extra = [batch for batch in kept if batch not in sound]
        assert len(extra) <= 1, (seed, hit)  # only a field outside the checksum was hit
    else:
        first = was_hit.index(True) if any(was_hit) else len(whole)
        prefix = [(b.base_offset, b.last_offset, b.data) for b in whole[:first]]
        # What only a digest shows is known to lie in a block of batches.
        is_block = any(
            bad and start < batch.position + 17 for batch, bad in zip(whole, was_hit, strict=True)
        )
        assert kept == (prefix[: len(kept)] if is_block else prefix), (seed, hit)


# ---------------------------------------------------------------- what is derived, checkpoints


@pytest.mark.requirement("RCV-4")
@pytest.mark.usefixtures("hasty_disk")
def test_files_beside_the_log_are_made_anew(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    sound = write(tmp_path / "sound", 1).parent
    expected = readable(copy(sound, tmp_path / "read"))
    cases = 40
    for seed in range(cases):
        rng = random.Random(seed)
        log_dir = copy(sound, tmp_path / "data")
        paths = [p for p in (log_dir / "orders-0").iterdir() if p.suffix in SMALL_FILES]
        for path in rng.sample(sorted(paths), rng.choice([1, 1, 3])):
            data = bytearray(path.read_bytes())
            kind = rng.randrange(4)
            if kind == 0 and path.suffix != ".snapshot":
                path.unlink()
                continue
            if kind == 1:
                data += rng.randbytes(rng.randrange(1, 40))
            elif kind == 2:
                data = data[: rng.randrange(len(data) + 1)]
            elif data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        done = mend(log_dir, None)
        assert done.is_ok, (seed, done)
        assert done.damage is None, seed
        assert problems(log_dir) == [], seed
        assert mend(log_dir, None).steps == (), seed
        assert readable(log_dir) == expected, seed
        shutil.rmtree(log_dir)
    count_cases("damaged index and snapshot files", cases)


SMALL_FILES = (".index", ".timeindex", ".snapshot")


def copy(source: Path, target: Path) -> Path:
    """A copy with the same file ids as far as digests care: each digest speaks of a file."""
    shutil.copytree(source, target)
    return target


@pytest.mark.requirement("RCV-3")
@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("log-start-offset-checkpoint", "starts with its first segment"),
        ("replication-offset-checkpoint", "written anew"),
        ("cleaner-offset-checkpoint", "cleaning begins at the start"),
        ("recovery-point-offset-checkpoint", "scanned when they are opened"),
        ("orders-0/leader-epoch-checkpoint", "noted from now on"),
    ],
)
def test_a_damaged_checkpoint_is_moved_aside(
    tmp_path: Path, name: str, meaning: str, applies: bool
) -> None:
    log_dir = write(tmp_path / "data", 1).parent
    (log_dir / name).write_text("0\n7\nnonsense\n")
    before = tree(log_dir)
    report = run(log_dir, applies=applies)
    texts = [step.text for item in report.directories for step in item.steps]
    texts += [step.text for step in report.partitions[0].steps]
    (text,) = texts
    assert "is unreadable" in text
    assert meaning in text
    if applies:
        assert not (log_dir / name).exists()
        assert (log_dir / f"{name}.damaged").read_text() == "0\n7\nnonsense\n"
        assert not run(log_dir).has_steps
        assert len(readable(log_dir)) == 60
    else:
        assert tree(log_dir) == before


@pytest.mark.requirement("RCV-7")
def test_recovery_points_stay_until_every_log_is_settled(tmp_path: Path) -> None:
    partition = write(tmp_path / "data", 1)
    log_dir = partition.parent
    (log_dir / POINTS).write_text("nonsense\n")
    flip(partition, 0, 100)
    found = run(log_dir)
    assert found.partitions[0].undecided is not None
    assert "it stays" in found.directories[0].steps[0].text
    assert (log_dir / POINTS).exists()
    assert run(log_dir, SKIP).is_ok
    assert not (log_dir / POINTS).exists()
    assert len(readable(log_dir)) == 59


POINTS = "recovery-point-offset-checkpoint"


def flip(partition: Path, number: int, at: int) -> Path:
    path = sorted(partition.glob("*.log"))[number]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


# ---------------------------------------------------------------- crashes, quarantine, swaps


@pytest.mark.requirement("RCV-1")
def test_a_torn_end_is_cut_without_a_question(tmp_path: Path) -> None:
    partition = write(tmp_path / "data", 2)
    log_dir = partition.parent
    last = sorted(partition.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes() + b"\0\0torn")
    # Closed in order, so no crash did it.
    assert mend(log_dir, None).undecided is not None
    (log_dir / ".kafka_cleanshutdown").unlink()
    shown = mend(log_dir, None, applies=False)
    done = mend(log_dir, None)
    assert shown == done
    assert done.steps[0].what == "torn"
    assert (done.damage, done.undecided, problems(log_dir)) == (None, None, [])
    assert mend(log_dir, None).steps == ()
    assert len(readable(log_dir)) == 60


@pytest.mark.requirement("RCV-7")
def test_damage_below_the_recovery_point_is_no_torn_end(tmp_path: Path) -> None:
    partition = write(tmp_path / "data", 2)
    log_dir = partition.parent
    (log_dir / ".kafka_cleanshutdown").unlink()
    flip(partition, 0, 100)
    assert mend(log_dir, None).undecided is not None
    # Nobody knows how far it was flushed: nothing whole may be given up without a question.
    (log_dir / POINTS).write_text("0\n0\n")
    assert mend(log_dir, None).undecided is not None
    assert mend(log_dir, SKIP).is_ok


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("choice", [CUT, SKIP])
def test_a_quarantine_is_lifted_when_the_damage_is_settled(tmp_path: Path, choice: str) -> None:
    partition = write(tmp_path / "data", 3)
    log_dir = partition.parent
    (log_dir / ".kafka_cleanshutdown").unlink()
    flip(partition, -1, 100)
    with open_store(log_dir) as store:
        assert store.get(ORDERS).quarantine is not None
    note = partition / ".stratalog" / "quarantine"
    found = mend(log_dir, None)
    assert found.quarantine is not None
    assert found.undecided is not None
    assert note.exists()
    done = mend(log_dir, choice)
    assert done.steps[-1].what == "quarantine"
    assert not note.exists()
    with open_store(log_dir) as store:
        log = store.get(ORDERS)
        end = log.log_end_offset
        assert log.append_records([NewRecord(b"k", b"v", NOW_MS)]).first_offset == end


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize("choice", [CUT, SKIP])
def test_an_unreadable_intent_wants_a_choice(tmp_path: Path, choice: str) -> None:
    partition = write(tmp_path / "data", 4)
    log_dir = partition.parent
    first = sorted(partition.glob("*.log"))[0]
    (partition / f"{first.name}.cleaned").write_bytes(b"never mind")
    intent = partition / ".stratalog" / "swap-intent"
    intent.write_text("{}")
    before = tree(log_dir)
    assert "swap intent" in str(mend(log_dir, None).undecided)
    assert tree(log_dir) == before
    assert mend(log_dir, choice).is_ok
    assert intent.with_name("swap-intent.damaged").exists()
    assert len(readable(log_dir)) == 60


@pytest.mark.requirement("RCV-5")
def test_kafkas_unfinished_swap_is_finished_or_wants_a_choice(tmp_path: Path) -> None:
    partition = write(tmp_path / "data", 4)
    log_dir = partition.parent
    first = sorted(partition.glob("*.log"))[0]
    data = first.read_bytes()
    swap_file = partition / f"{first.name}.swap"
    swap_file.write_bytes(data)
    assert mend(log_dir, None).steps[0].what == "swap"
    assert not swap_file.exists()
    swap_file.write_bytes(data[:-1])
    assert "an unfinished swap" in str(mend(log_dir, None).undecided)
    assert mend(log_dir, SKIP).is_ok
    assert (partition / f"{swap_file.name}.damaged").exists()
    assert len(readable(log_dir)) == 60


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize(("choice", "batches_left"), [(CUT, 0), (SKIP, 60)])
def test_a_log_that_starts_behind_its_end(tmp_path: Path, choice: str, batches_left: int) -> None:
    log_dir = write(tmp_path / "data", 5).parent
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\norders 0 9999\n")
    before = tree(log_dir)
    assert "starts at 9999" in str(mend(log_dir, None).undecided)
    assert tree(log_dir) == before
    assert mend(log_dir, choice).is_ok
    assert mend(log_dir, None).steps == ()
    assert len(readable(log_dir)) == batches_left


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("choice", [CUT, SKIP])
def test_what_only_the_digest_shows(tmp_path: Path, choice: str) -> None:
    partition = write(tmp_path / "data", 6)
    log_dir = partition.parent
    flip(partition, 1, 15)  # a leader epoch: no checksum covers it
    found = mend(log_dir, None)
    assert found.damage is not None
    assert "not the one that was written" in found.damage.places[0][1].reason
    first_of_it = found.damage.places[0][1].first_offset
    assert mend(log_dir, choice).is_ok
    assert problems(log_dir) == []
    assert mend(log_dir, None).steps == ()
    kept = readable(log_dir)
    assert len(kept) == 60 if choice == SKIP else kept[-1][1] + 1 == first_of_it


class Interrupting(LocalFileSystem):
    """The disk, with a Ctrl-C at the nth change."""

    left = 0

    def _count(self) -> None:
        type(self).left -= 1
        if type(self).left == 0:
            raise KeyboardInterrupt

    def rename(self, old_path: str, new_path: str) -> None:
        self._count()
        super().rename(old_path, new_path)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def fsync_directory(self, path: str) -> None:
        self._count()
        super().fsync_directory(path)

    def open(self, path: str, mode: OpenMode) -> LocalFile:
        if mode != "read":
            self._count()
        return super().open(path, mode)


@pytest.mark.requirement("RCV-6", "RCV-7")
@pytest.mark.usefixtures("hasty_disk")
@pytest.mark.parametrize("choice", [CUT, SKIP])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_repair_that_is_cut_off_anywhere_is_begun_again(
    tmp_path: Path, choice: str, step: int, count_cases: Callable[[str, int], None]
) -> None:
    def damaged(log_dir: Path) -> Path:
        partition = write(log_dir, 7)
        (log_dir / ".kafka_cleanshutdown").unlink()
        flip(partition, 1, 100)
        flip(partition, 3, 200)
        flip(partition, -1, 100)
        open_store(log_dir).close()
        return log_dir

    log_dir = damaged(tmp_path / "data")
    assert mend(log_dir, choice).is_ok
    expected = readable(log_dir)
    options = RepairOptions(True, choice)
    for number in range(1, 500, step):
        shutil.rmtree(log_dir)
        damaged(log_dir)
        Interrupting.left = number
        try:
            repair([str(log_dir)], options, Interrupting(), FixedClock(NOW_MS), lambda _: None)
        except KeyboardInterrupt:
            again = mend(log_dir, choice)
            assert again.is_ok, (number, again)
            assert problems(log_dir) == [], number
            assert readable(log_dir) == expected, number
        else:
            break
    assert number > 30
    count_cases("repairs cut off", number // step)


# ---------------------------------------------------------------- what Kafka wrote


def golden_states(golden_dir: Path) -> list[Path]:
    return sorted(
        path for path in golden_dir.glob("*/*") if path.is_dir() and any(path.glob("*/*.log*"))
    )


@pytest.mark.requirement("RCV-5", "RCV-7")
@pytest.mark.usefixtures("hasty_disk")
def test_kafkas_directories_are_sound_or_hold_what_a_crash_left(
    tmp_path: Path, golden_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    unfinished = {"crash-states", "deleted-pending"}
    states = golden_states(golden_dir)
    for state in states:
        log_dir = copy(state, tmp_path / "data")
        before = tree(log_dir)
        shown = run(log_dir, applies=False)
        assert tree(log_dir) == before
        assert shown.is_ok
        assert not shown.has_steps or state.parent.name in unfinished, state
        done = run(log_dir)
        assert [item.steps for item in done.partitions] == [item.steps for item in shown.partitions]
        assert not run(log_dir).has_steps
        for place in find_partitions([str(log_dir)], DISK):
            assert verify_partition(place, DISK, lambda _: None).problems == (), state
        left = [p for p in log_dir.rglob("*") if p.suffix in (".swap", ".cleaned", ".deleted")]
        assert left == []
        shutil.rmtree(log_dir)
    assert len(states) > 50
    count_cases("directories of Kafka looked at by repair", len(states))


@pytest.mark.requirement("RCV-7")
@pytest.mark.usefixtures("hasty_disk")
def test_transactions_survive_what_is_left_out(
    tmp_path: Path, golden_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    cases = 0
    for state in golden_states(golden_dir):
        if not any(path.stat().st_size for path in state.glob("*/*.txnindex")):
            continue
        for seed in range(4):
            log_dir = copy(state, tmp_path / "data")
            (partition,) = [path for path in log_dir.iterdir() if path.is_dir()]
            rng = random.Random(seed)
            path = rng.choice([p for p in partition.glob("*.log") if p.stat().st_size])
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            done = mend(log_dir, SKIP)
            assert done.is_ok, (state, seed, done)
            assert problems(log_dir) == [], (state, seed)
            assert mend(log_dir, None).steps == (), (state, seed)
            shutil.rmtree(log_dir)
            cases += 1
    assert cases > 10
    count_cases("damaged logs with transactions mended", cases)
