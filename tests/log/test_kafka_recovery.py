"""What Kafka's loader makes of a crash, and what ours does: the golden directories, then Kafka's
own cases (LogLoaderTest, LogCleanerTest), each named in its test's docstring.

Crashes during a split are in `test_leftovers.py`. Not here: what belongs to a directory of many
logs (the clean-shutdown file, which logs are recovered at all, metrics of progress), and what tests
inner calls of Kafka by mocks.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.clock import FixedClock
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery_plan import StartOver
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType, build_marker
from stratalog.segment.names import FileKind, file_name
from tests.log.helpers import FS, NOW, contents, kafka_files, records, sent
from tests.log.helpers import open_as_if_rolled_by_kafka as open_log
from tests.naive.records import Record, build_legacy

pytestmark = pytest.mark.usefixtures("hasty_disk")

COMPACTED = LogSettings(cleanup_policy=("compact",), segment_bytes=65536)


def reopened(directory: Path, point: int | None = 0, **changes: Any) -> PartitionLog:
    """As after a crash."""
    return open_log(directory, unclean=Unclean(point), create=False, **changes)


def offsets_of(log: PartitionLog) -> list[int]:
    return [record.offset for record in log.read_records(log.log_start_offset)]


def log_path(directory: Path, base: int = 0) -> Path:
    return directory / file_name(base, FileKind.LOG)


# -- golden --------------------------------------------------------------------------------------


def open_copy(state: Path, copy: Path, unclean: Unclean | None) -> PartitionLog:
    shutil.copytree(state / "golden-0", copy)
    return PartitionLog.open(str(copy), COMPACTED, FS, FixedClock(NOW), unclean=unclean)


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize("point", [0, 130, 250, None], ids=lambda point: f"point-{point}")
@pytest.mark.parametrize(
    "state",
    [
        "2a-cleaned-left",
        "3a-swap-all-old-present",
        "4a-swap-old-renamed-deleted",
        "5a-log-renamed-index-still-swap",
    ],
)
def test_crash_states_become_what_kafkas_loader_made_of_them(
    golden_dir: Path, tmp_path: Path, state: str, point: int | None
) -> None:
    """All files but those of the producers' state, byte by byte."""
    recovered = state.replace("a-", "b-", 1) + "-recovered"
    expected = contents(golden_dir / "crash-states" / recovered / "golden-0")
    log = open_copy(golden_dir / "crash-states" / state, tmp_path / "golden-0", Unclean(point))
    assert log.quarantine is None
    logs = {name: len(data) for name, data in expected.items() if name.endswith(".log")}
    assert {
        file_name(segment.base_offset, FileKind.LOG): segment.size_bytes for segment in log.segments
    } == logs
    assert (log.log_start_offset, log.log_end_offset) == (0, 250)
    log.close()
    found = kafka_files(tmp_path / "golden-0")
    assert found == expected


@pytest.mark.requirement("RCV-5", "RET-8")
@pytest.mark.parametrize("unclean", [None, Unclean(0), Unclean(900)])
def test_what_waited_for_deletion_goes_as_with_kafka(
    golden_dir: Path, tmp_path: Path, unclean: Unclean | None
) -> None:
    fixture = golden_dir / "deleted-pending"
    log = open_copy(fixture / "after-not-yet-deleted", tmp_path / "golden-0", unclean)
    assert [(s.base_offset, s.size_bytes) for s in log.segments] == [
        (0, 537),
        (520, 13154),
        (900, 0),
    ]
    log.close()
    found = kafka_files(tmp_path / "golden-0")
    expected = contents(fixture / "after-reopen" / "golden-0")
    if unclean is not None:
        # Recovery makes the cleaned segments' indexes anew, and denser than Kafka's cleaner.
        found = {name: data for name, data in found.items() if "index" not in name}
        expected = {name: data for name, data in expected.items() if "index" not in name}
    assert found == expected


KINDS = ("log", "index", "timeindex")
OLD, NEW = (0, 50, 100), 0
"""The first group of the golden cleaning: three segments become one."""


def crash_state(golden_dir: Path, directory: Path, number: int) -> bool:
    """LogCleanerTest's states 1 to 6; whether the new content is to win."""
    shutil.copytree(golden_dir / "crash-states" / "0-before" / "golden-0", directory)
    cleaned = golden_dir / "crash-states" / "1-after-complete-clean" / "golden-0"
    suffixes = {
        1: dict.fromkeys(KINDS, ".cleaned"),
        2: {"log": ".swap", "index": ".swap", "timeindex": ".cleaned"},
        3: dict.fromkeys(KINDS, ".swap"),
        4: dict.fromkeys(KINDS, ".swap"),
        5: {"log": "", "index": ".swap", "timeindex": ".swap"},
        6: dict.fromkeys(KINDS, ""),
    }[number]
    if number >= 4:
        for base in OLD:
            for kind in KINDS:
                path = directory / f"{base:020d}.{kind}"
                path.rename(f"{path}.deleted")
    for kind, suffix in suffixes.items():
        shutil.copy2(cleaned / f"{NEW:020d}.{kind}", directory / f"{NEW:020d}.{kind}{suffix}")
    return number >= 3


@pytest.mark.requirement("RCV-5")
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("unclean", [None, Unclean(0)], ids=["clean", "unclean"])
def test_recovery_after_crash(
    golden_dir: Path, tmp_path: Path, number: int, unclean: Unclean | None
) -> None:
    """LogCleanerTest.testRecoveryAfterCrash: (1) `.cleaned`, no swap; (2) some `.swap`; (3) all
    `.swap`, the old intact; (4) the old `.deleted`; (5) some swaps final; (6) all of them, the old
    still waiting to be deleted."""
    states = golden_dir / "crash-states"
    before = open_copy(states / "0-before", tmp_path / "before", None)
    after = open_copy(states / "3b-swap-all-old-present-recovered", tmp_path / "after", None)
    is_new = crash_state(golden_dir, tmp_path / "golden-0", number)
    log = PartitionLog.open(
        str(tmp_path / "golden-0"), COMPACTED, FS, FixedClock(NOW), unclean=unclean
    )
    expected = after if is_new else before
    assert list(log.read_records(0)) == list(expected.read_records(0))
    assert [s.base_offset for s in log.segments] == [s.base_offset for s in expected.segments]
    assert (log.log_start_offset, log.log_end_offset) == (0, 250)
    assert log.quarantine is None
    suffixes = {path.suffix for path in (tmp_path / "golden-0").iterdir()}
    assert suffixes.isdisjoint({".cleaned", ".swap", ".deleted"})


@pytest.mark.requirement("RCV-5", "RET-8")
def test_open_deletes_obsolete_files(tmp_path: Path) -> None:
    """LogLoaderTest.testOpenDeletesObsoleteFiles"""
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for _ in range(12):
        log.append_records(records(1, size=60))
    gone = [segment.base_offset for segment in log.segments.sealed]
    for base in gone:
        for path in (tmp_path / "t-0").glob(f"{base:020d}.*"):
            path.rename(f"{path}.deleted")
    log = reopened(tmp_path / "t-0", 12)
    assert len(log.segments) == 1
    assert not list((tmp_path / "t-0").glob("*.deleted"))


# -- LogLoaderTest: indexes ----------------------------------------------------------------------


def indexed(directory: Path, count: int = 200) -> PartitionLog:
    log = open_log(directory, segment_bytes=4000, index_interval_bytes=1)
    for i in range(count):
        log.append_records(records(1, timestamp=NOW + 10 * i))
    assert len(log.segments) > 3
    return log


@pytest.mark.requirement("RCV-1")
def test_log_recovers_to_correct_offset(tmp_path: Path) -> None:
    """LogLoaderTest.testLogRecoversToCorrectOffset"""
    log = indexed(tmp_path / "t-0")
    log.close()
    settings = {"segment_bytes": 4000, "index_interval_bytes": 1}
    entries = [len(offsets) for offsets, _ in (s.indexes.entries() for s in log_segments(log))]
    for point in (200, 0, 101):
        log = reopened(tmp_path / "t-0", point, **settings)
        assert log.log_end_offset == 200
        assert log.recovery_point == point
        found = [len(segment.indexes.entries()[0]) for segment in log.segments]
        assert found == entries
        log.close()


def log_segments(log: PartitionLog) -> list[Any]:
    reader = open_log(Path(log.path), read_only=True, segment_bytes=4000, index_interval_bytes=1)
    return list(reader.segments)


@pytest.mark.requirement("RCV-4")
@pytest.mark.parametrize("damage", ["missing", "corrupt", "bogus tail"])
@pytest.mark.parametrize("unclean", [None, Unclean(0), Unclean(200)])
def test_index_rebuild(tmp_path: Path, damage: str, unclean: Unclean | None) -> None:
    """LogLoaderTest.testIndexRebuild, testCorruptIndexRebuild: offsets and timestamps lead to the
    same records as before."""
    indexed(tmp_path / "t-0").close()
    good = contents(tmp_path / "t-0")
    for path in (tmp_path / "t-0").glob("*index"):
        if damage == "missing":
            path.unlink()
        else:
            kept = path.read_bytes() if damage == "bogus tail" else b""
            path.write_bytes(kept + b"  ")
    log = open_log(tmp_path / "t-0", segment_bytes=4000, index_interval_bytes=1, unclean=unclean)
    assert log.log_end_offset == 200
    for offset in range(200):
        assert next(iter(log.read_batches(offset))).header.base_offset == offset
        found = log.offset_for_timestamp(NOW + 10 * offset)
        assert found is not None
        assert found.offset == offset
    log.close()
    after = contents(tmp_path / "t-0")
    assert {n: d for n, d in after.items() if "index" in n} == {
        n: d for n, d in good.items() if "index" in n
    }


@pytest.mark.requirement("RCV-4")
def test_rebuild_time_index_for_old_messages(tmp_path: Path) -> None:
    """LogLoaderTest.testRebuildTimeIndexForOldMessages: messages of format 0 have no time."""
    log = open_log(tmp_path / "t-0", segment_bytes=500, index_interval_bytes=1)
    for offset in range(20):
        log.append_as_follower(build_legacy([Record(offset, -1, b"k", b"v" * 40)], magic=0))
    log.close()
    for path in (tmp_path / "t-0").glob("*.timeindex"):
        path.unlink()
    log = reopened(tmp_path / "t-0", 0, segment_bytes=500, index_interval_bytes=1)
    assert offsets_of(log) == list(range(20))
    log.close()
    paths = list((tmp_path / "t-0").glob("*.timeindex"))
    assert len(paths) > 1
    assert all(path.stat().st_size == 0 for path in paths)


@pytest.mark.requirement("RCV-4")
@pytest.mark.parametrize("unclean", [None, Unclean(0)])
def test_bogus_index_segments_are_removed(tmp_path: Path, unclean: Unclean | None) -> None:
    """LogLoaderTest.testBogusIndexSegmentsAreRemoved"""
    log = open_log(tmp_path / "t-0", segment_bytes=300, index_interval_bytes=1)
    log.append_records(records(1))
    log.close()
    bogus = [
        tmp_path / "t-0" / file_name(base, kind)
        for base in (7, 99)
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
    ]
    for path in bogus:
        path.write_bytes(b"\x01" * 10)
    log = open_log(tmp_path / "t-0", unclean=unclean, segment_bytes=300, index_interval_bytes=1)
    assert not any(path.exists() for path in bogus)
    for _ in range(10):
        log.append_records(records(1))
    assert len(log.segments) > 2
    assert offsets_of(log) == list(range(11))


# -- LogLoaderTest: the end of the log -----------------------------------------------------------


@pytest.mark.requirement("RET-6")
def test_reopen_then_truncate(tmp_path: Path) -> None:
    """LogLoaderTest.testReopenThenTruncate"""
    log = open_log(tmp_path / "t-0", segment_bytes=500)
    for _ in range(100):
        log.append_records(records(1))
    log.close()
    log = reopened(tmp_path / "t-0", segment_bytes=500)
    log.truncate_to(3)
    assert len(log.segments) == 1
    assert log.log_end_offset == 3
    assert log.append_records(records(1)).first_offset == 3
    assert offsets_of(log) == [0, 1, 2, 3]


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-4")
@pytest.mark.parametrize("seed", range(10))
def test_corrupt_log(tmp_path: Path, seed: int) -> None:
    """LogLoaderTest.testCorruptLog: nonsense behind the log and its indexes, of random length; then
    the last batch damaged, too. Kafka tries ten tails."""
    random = Random(seed)
    for _ in range(4):
        directory = tmp_path / "t-0"
        shutil.rmtree(directory, ignore_errors=True)
        settings = {"segment_bytes": 1000, "index_interval_bytes": 1}
        log = open_log(directory, **settings)
        count = 50 + random.randrange(50)
        for _ in range(count):
            log.append_records(records(1))
        before = list(log.read_records(0))
        point = random.choice([0, count // 2, log.segments.active.base_offset])
        active = log.segments.active.base_offset
        for kind in (FileKind.OFFSET_INDEX, FileKind.LOG):
            path = directory / file_name(active, kind)
            path.write_bytes(path.read_bytes() + random.randbytes(random.randrange(1, 1024)))
        log = reopened(directory, point, **settings)
        assert log.log_end_offset == count
        assert list(log.read_records(0)) == before
        log.close()
        if log_path(directory, active).stat().st_size:
            data = bytearray(log_path(directory, active).read_bytes())
            data[-3] ^= 0xFF
            log_path(directory, active).write_bytes(data)
            log = reopened(directory, active, **settings)
            assert log.log_end_offset == count - 1
            assert list(log.read_records(0)) == before[:-1]


@pytest.mark.requirement("RCV-1", "LOG-4")
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("compressed", [False, True])
def test_over_compacted_log_recovery(tmp_path: Path, magic: int, compressed: bool) -> None:
    """LogLoaderTest.testOverCompactedLogRecovery, ...MultiRecord, ...MultiRecordV1: offsets more
    than 2^31 apart come to lie in different segments, and do so again after a crash."""
    far = (1 << 31) + 2
    steps = (0, far, far + 3, far + 6)
    directory = tmp_path / "t-0"
    if magic == 2:
        log = open_log(directory, cleanup_policy=("compact",))
        for first in steps:
            batch = [NewRecord(b"k%d" % o, b"v", NOW) for o in (first, first + 1)]
            codec = Codec.GZIP if compressed else Codec.NONE
            log.append_as_follower(build_batch(batch, base_offset=first, codec=codec))
        assert len(log.segments) == 2
        log.close()
    else:
        directory.mkdir()
        for first in steps:
            old = [Record(o, NOW if magic else -1, b"k%d" % o, b"v") for o in (first, first + 1)]
            with log_path(directory, far if first else 0).open("ab") as file:
                file.write(build_legacy(old, magic=magic, codec=int(compressed)))
    for point in (0, far + 1):
        log = reopened(tmp_path / "t-0", point, cleanup_policy=("compact",))
        assert log.quarantine is None
        assert [segment.base_offset for segment in log.segments] == [0, far]
        assert offsets_of(log) == [o for first in steps for o in (first, first + 1)]
        log.close()


@pytest.mark.requirement("RCV-1")
def test_recover_with_empty_active_segment(tmp_path: Path) -> None:
    """LogLoaderTest.testRecoverWithEmptyActiveSegment: the active segment's indexes are gone."""
    log = indexed(tmp_path / "t-0")
    log.roll()
    bases = [segment.base_offset for segment in log.segments]
    assert log.segments.active.size_bytes == 0
    log.close()
    for path in (tmp_path / "t-0").glob(f"{bases[-1]:020d}.*index"):
        path.unlink()
    for point in (bases[-1], bases[-2], 0):
        log = reopened(tmp_path / "t-0", point, segment_bytes=4000, index_interval_bytes=1)
        assert [segment.base_offset for segment in log.segments] == bases
        assert log.log_end_offset == 200
        assert log.recovery is not None
        assert log.recovery.actions == ()
        log.close()
    log = reopened(tmp_path / "t-0", bases[-1], segment_bytes=4000, index_interval_bytes=1)
    assert log.append_records(records(1)).first_offset == 200


@pytest.mark.requirement("RCV-1", "RET-6")
def test_log_end_less_than_start_after_reopen(tmp_path: Path) -> None:
    """LogLoaderTest.testLogEndLessThanStartAfterReopen: the later segments are gone."""
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for _ in range(5):
        log.append_records(records(1))
        log.roll()
    start = 4
    log.close()
    for path in (tmp_path / "t-0").iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) > 1:
            path.unlink()
    log = reopened(tmp_path / "t-0", 0, log_start_offset=start)
    assert log.recovery is not None
    assert StartOver(start) in log.recovery.actions
    assert (log.log_start_offset, log.log_end_offset) == (start, start)
    assert [segment.base_offset for segment in log.segments] == [start]
    assert log.append_records(records(1)).first_offset == start
    log.close()
    log = open_log(tmp_path / "t-0", create=False, log_start_offset=start)
    assert offsets_of(log) == [start]


# -- LogLoaderTest: producers --------------------------------------------------------------------


def produced(directory: Path) -> PartitionLog:
    """Producers over several segments; snapshots at their bases."""
    log = open_log(directory, segment_bytes=700)
    for sequence in range(0, 60, 2):
        log.append(sent(1 + sequence % 3, sequence // 6 * 2))
    assert len(log.segments) > 4
    return log


def snapshots_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.snapshot")}


@pytest.mark.requirement("RCV-1")
@pytest.mark.parametrize("lost", ["all", "from the recovery point", "one", "none"])
def test_producer_snapshots_recovery_after_unclean_shutdown(tmp_path: Path, lost: str) -> None:
    """LogLoaderTest.testProducerSnapshotsRecoveryAfterUncleanShutdownV1, ...CurrentMessageFormat:
    after recovery there is a snapshot at each base that was scanned, and the state is whole."""
    log = produced(tmp_path / "t-0")
    bases = [segment.base_offset for segment in log.segments]
    producers = log.active_producers()
    log.flush()
    good = snapshots_of(tmp_path / "t-0")
    assert sorted(good) == [file_name(base, FileKind.SNAPSHOT) for base in bases[1:]]
    point = bases[2] + 1
    for name in good:
        base = int(name[:20])
        if (
            lost == "all"
            or (lost == "one" and base == bases[3])
            or (lost.startswith("from") and base >= point)
        ):
            (tmp_path / "t-0" / name).unlink()
    log = reopened(tmp_path / "t-0", point, segment_bytes=700)
    assert log.active_producers() == producers
    found = snapshots_of(tmp_path / "t-0")
    for base in bases[2:]:
        name = file_name(base, FileKind.SNAPSHOT)
        assert found[name] == good[name]
    assert log.append(sent(1, 20)).first_offset == 60


@pytest.mark.requirement("RCV-1")
def test_corrupted_log_recovery_keeps_the_snapshots_of_what_stays(tmp_path: Path) -> None:
    """LogLoaderTest.testCorruptedLogRecoveryDoesNotDeleteProducerStateSnapshotsPostRecovery: what
    is written again after the recovery is not deleted as a relic of before."""
    log = produced(tmp_path / "t-0")
    bases = [segment.base_offset for segment in log.segments]
    log.flush()
    good = snapshots_of(tmp_path / "t-0")
    path = log_path(tmp_path / "t-0", bases[2])
    data = bytearray(path.read_bytes())
    data[-5] ^= 0xFF
    path.write_bytes(data)
    log = reopened(tmp_path / "t-0", bases[1], segment_bytes=700)
    assert log.log_end_offset < bases[3]
    kept = {
        file_name(base, FileKind.SNAPSHOT): good[file_name(base, FileKind.SNAPSHOT)]
        for base in bases[1:3]
    }
    assert snapshots_of(tmp_path / "t-0") == kept
    first = log.log_end_offset // 2 * 2
    for sequence in range(first, 60, 2):
        log.append(sent(1 + sequence % 3, sequence // 6 * 2))
    log.flush()
    assert snapshots_of(tmp_path / "t-0") == good
    log.close()
    log = open_log(tmp_path / "t-0", segment_bytes=700)
    assert good.items() <= snapshots_of(tmp_path / "t-0").items()


@pytest.mark.requirement("RCV-1", "CMP-14")
def test_recover_after_non_monotonic_coordinator_epoch_write(tmp_path: Path) -> None:
    """LogLoaderTest.testRecoverAfterNonMonotonicCoordinatorEpochWrite: old brokers wrote markers
    whose coordinator epoch goes back; that must not keep a log from opening."""
    log = open_log(tmp_path / "t-0")
    log.append(sent(1, 0, transactional=True))
    log.append_marker(ControlType.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=5)
    log.append(sent(1, 2, transactional=True))
    marker = build_marker(
        ControlType.ABORT, producer_id=1, producer_epoch=0, timestamp=NOW, coordinator_epoch=4
    )
    log.append_as_follower((5).to_bytes(8, "big") + marker[8:])
    log.close()
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    log = reopened(tmp_path / "t-0")
    assert log.quarantine is None
    assert (log.log_end_offset, log.last_stable_offset) == (6, 6)
    assert log.active_producers() == {1: (0, 4)}
    assert [entry.first_offset for entry in log.view.aborted_between(0, 9)] == [0, 3]


def transactions(directory: Path) -> PartitionLog:
    """Interleaved transactions of four producers over several segments, half of them aborted."""
    random = Random(5)
    log = open_log(directory, segment_bytes=1000)
    sequences = dict.fromkeys(range(4), 0)
    open_now: set[int] = set()
    for _ in range(120):
        producer = random.randrange(4)
        if producer in open_now and random.random() < 0.4:
            kind = random.choice([ControlType.ABORT, ControlType.COMMIT])
            log.append_marker(kind, producer_id=producer, producer_epoch=0)
            open_now.remove(producer)
        else:
            log.append(sent(producer, sequences[producer], transactional=True))
            sequences[producer] += 2
            open_now.add(producer)
    assert len(log.segments) > 5
    return log


@pytest.mark.requirement("RCV-1", "RCV-4")
def test_full_transaction_index_recovery(tmp_path: Path) -> None:
    """LogLoaderTest.testFullTransactionIndexRecovery: all offset and transaction indexes gone."""
    log = transactions(tmp_path / "t-0")
    aborted = log.view.aborted_between(0, 1 << 40)
    stable = log.last_stable_offset
    log.close()
    assert len(aborted) > 10
    for path in (tmp_path / "t-0").glob("*index"):
        path.unlink()
    log = reopened(tmp_path / "t-0", 0, segment_bytes=1000)
    assert log.view.aborted_between(0, 1 << 40) == aborted
    assert log.last_stable_offset == stable


@pytest.mark.requirement("RCV-1", "RCV-4")
@pytest.mark.parametrize("with_snapshots", [True, False])
def test_recover_only_last_segment(tmp_path: Path, with_snapshots: bool) -> None:
    """LogLoaderTest.testRecoverOnlyLastSegment, testRecoverLastSegmentWithNoSnapshots: its offset
    and transaction indexes are gone, and perhaps every snapshot."""
    log = transactions(tmp_path / "t-0")
    aborted = log.view.aborted_between(0, 1 << 40)
    producers, stable, end = log.active_producers(), log.last_stable_offset, log.log_end_offset
    last = log.segments.active.base_offset
    log.close()
    good = {path.name: path.read_bytes() for path in (tmp_path / "t-0").glob("0*")}
    for path in (tmp_path / "t-0").glob("*index"):
        if int(path.name[:20]) == last:
            path.unlink()
    if not with_snapshots:
        for path in (tmp_path / "t-0").glob("*.snapshot"):
            path.unlink()
    log = reopened(tmp_path / "t-0", end, segment_bytes=1000)
    assert log.recovery is not None
    assert log.recovery.scanned_segments == 1
    rewritten = {os.path.basename(path)[:20] for path in log.recovery.rewritten}
    assert rewritten == {f"{last:020d}"}
    assert log.view.aborted_between(0, 1 << 40) == aborted
    assert (log.active_producers(), log.last_stable_offset) == (producers, stable)
    log.close()
    found = {path.name: path.read_bytes() for path in (tmp_path / "t-0").glob("*.*index")}
    # A transaction index without an entry may be there or not.
    assert {name: good.get(name, b"") for name in found} == found


@pytest.mark.requirement("RCV-1", "RET-6")
@pytest.mark.parametrize("unclean", [None, Unclean(0)])
def test_load_producers_after_delete_records_mid_segment(
    tmp_path: Path, unclean: Unclean | None
) -> None:
    """LogLoaderTest.testLoadProducersAfterDeleteRecordsMidSegment: a producer whose records are
    below the log start, in a segment that stays, is still known."""
    log = open_log(tmp_path / "t-0")
    log.append(sent(1, 0))
    log.append(sent(2, 0))
    log.advance_log_start(2)
    assert len(log.active_producers()) == 2
    log.close()
    log = open_log(tmp_path / "t-0", unclean=unclean, log_start_offset=2)
    assert log.active_producers() == {1: (0, 1), 2: (0, 3)}


@pytest.mark.requirement("RCV-1")
@pytest.mark.parametrize("unclean", [None, Unclean(0)])
def test_stray_producer_snapshots(tmp_path: Path, unclean: Unclean | None) -> None:
    """LogLoaderTest.testLoadingLogKeepsLargestStrayProducerStateSnapshot,
    testLoadingLogDeletesProducerStateSnapshotsPastLogEndOffset, testLoadingLogCleansOldSnapshots:
    of those at no segment's base the last one stays; those past the log's end go."""
    log = open_log(tmp_path / "t-0", segment_bytes=10_000)
    for sequence in range(0, 10, 2):
        log.append(sent(1, sequence))
    log.roll()
    for sequence in range(10, 20, 2):
        log.append(sent(1, sequence))
    log.close()
    (end,) = (path for path in (tmp_path / "t-0").glob("*.snapshot") if int(path.name[:20]) == 20)
    base = (tmp_path / "t-0" / file_name(10, FileKind.SNAPSHOT)).read_bytes()
    for offset in (2, 5, 14, 21, 42):
        (tmp_path / "t-0" / file_name(offset, FileKind.SNAPSHOT)).write_bytes(base)
    log = open_log(tmp_path / "t-0", unclean=unclean, segment_bytes=10_000)
    left = sorted(int(name[:20]) for name in snapshots_of(tmp_path / "t-0"))
    assert left == [10, 20]
    assert log.active_producers() == {1: (0, 19)}
    assert end.exists()


@pytest.mark.requirement("RCV-1")
def test_an_empty_producer_state_costs_no_scan_of_snapshots(tmp_path: Path) -> None:
    """LogLoaderTest.testSkipLoadingIfEmptyProducerStateBeforeTruncation, as far as it can be seen:
    a log without producers opens, is cut, and has none."""
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for _ in range(6):
        log.append_records(records(2))
    log.truncate_to(5)
    assert log.active_producers() == {}
    assert log.log_end_offset == 4
    log.close()
    assert reopened(tmp_path / "t-0", 4, segment_bytes=300).active_producers() == {}
