"""Recovery after an unclean stop: what a crash leaves becomes the log as it was, up to the damage.

The first half judges by our own logs that were never damaged, file by file; the second by what
Kafka's loader left in the golden directories. Kafka's own cases are in `test_kafka_recovery.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.base.filesystem import LocalFile, LocalFileSystem, OpenMode
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery_plan import Cut, Drop, StartOver
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.segment.names import FileKind, digest_name, file_name
from tests.log.helpers import NOW, contents, forget_digests, records, sent
from tests.log.helpers import open_as_if_rolled_by_kafka as open_log
from tests.log.helpers import open_log as open_log_as_it_is
from tests.log.recording import PowerCutError, RecordingFileSystem

pytestmark = pytest.mark.usefixtures("hasty_disk")

SETTINGS: dict[str, Any] = {"segment_bytes": 900, "index_interval_bytes": 150}


def written(directory: Path) -> PartitionLog:
    """Several segments: producers, transactions over their borders, codecs; not closed."""
    log = open_log(directory, **SETTINGS)
    for turn in range(3):
        for i in range(7):  # more than the five that a producer's state remembers
            log.append(sent(1, 14 * turn + 2 * i))
        log.append(sent(2, 2 * turn, transactional=True))
        log.append_records(records(4, timestamp=NOW + 50 * turn), codec=Codec.LZ4)
        log.append(sent(3, 0, 1, epoch=turn))
        kind = ControlType.COMMIT if turn == 1 else ControlType.ABORT
        log.append_marker(kind, producer_id=2, producer_epoch=0)
    assert len(log.segments) > 3
    return log


def comparable(directory: Path) -> dict[str, bytes]:
    """All files of Kafka's. An empty transaction index, or epochs without one, are as good as none.
    (Digests name the file that they were made of, so no two are equal.)"""
    return {
        name: data
        for name, data in contents(directory).items()
        if not name.endswith((".txnindex", ".digest")) or (data and name.endswith(".txnindex"))
        if (name, data) != ("leader-epoch-checkpoint", b"0\n0\n")
    }


def lay(directory: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)


class Reference:
    """The same log of its first batches only, closed: what recovery must arrive at."""

    def __init__(self, tmp_path: Path, source: PartitionLog):
        self.tmp_path = tmp_path
        self.placed = [
            (segment.base_offset, batch.position, bytes(batch.data), batch.header.next_offset)
            for segment in source.segments
            for batch in segment.batches()
        ]
        self.bases = [segment.base_offset for segment in source.segments]
        self.known: dict[int, dict[str, bytes]] = {}

    def batches_before(self, base: int, position: int) -> int:
        """How many batches end at or before a byte of a segment."""
        return sum((b, at + len(data)) <= (base, position) for b, at, data, _ in self.placed)

    def bytes_of(self, base: int, count: int) -> int:
        """How much of a segment the first `count` batches of the log fill."""
        return sum(len(data) for b, _, data, _ in self.placed[:count] if b == base)

    def files(self, count: int, last_base: int) -> dict[str, bytes]:
        """Of the first `count` batches, when the log's last segment is that at `last_base`."""
        key = 1000 * count + last_base
        if key not in self.known:
            directory = self.tmp_path / f"reference-{key}"
            # One segment takes all; it is rolled where the source was.
            log = open_log(directory, index_interval_bytes=SETTINGS["index_interval_bytes"])
            for base, _, data, _ in self.placed[:count]:
                if base > log.segments.active.base_offset:
                    assert log.roll() == base
                log.append_as_follower(data)
            if last_base > log.segments.active.base_offset:
                assert log.roll() == last_base
            log.close()
            self.known[key] = comparable(directory)
        return self.known[key]


# -- against a log that was never damaged --------------------------------------------------------


@pytest.mark.requirement("RCV-1", "RCV-4")
@pytest.mark.parametrize("what", ["nothing", "indexes", "snapshots", "all", "nonsense"])
@pytest.mark.parametrize("point", [0, 1])
def test_what_is_derived_is_made_again_byte_by_byte(tmp_path: Path, what: str, point: int) -> None:
    source = written(tmp_path / "t-0")
    bases = [segment.base_offset for segment in source.segments]
    source.close()
    good = comparable(tmp_path / "t-0")
    patterns = {
        "nothing": (),
        "indexes": ("*index",),
        "snapshots": ("*.snapshot",),
        "all": ("*index", "*.snapshot"),
        "nonsense": ("*index", "*.snapshot"),
    }[what]
    for pattern in patterns:
        for path in (tmp_path / "t-0").glob(pattern):
            if int(path.name[:20]) < bases[point]:
                continue
            if what == "nonsense":
                path.write_bytes(path.read_bytes()[:-3] + b"\x01\x02\x03\x04")
            else:
                path.unlink()
    log = open_log(tmp_path / "t-0", unclean=Unclean(bases[point]), **SETTINGS)
    assert log.quarantine is None
    assert log.recovery is not None
    assert log.recovery.actions == ()
    assert log.recovery.scanned_segments == len(bases) - point
    assert log.recovery.first_base == bases[point]
    assert (log.recovery.rewritten == ()) == (not patterns)
    log.close()
    assert comparable(tmp_path / "t-0") == good


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-4")
def test_cut_at_any_byte_it_is_the_log_up_to_there(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """A file ends early, or goes on in nonsense; all segments behind go (Kafka's rule)."""
    random, cases = Random(7), 0
    source = written(tmp_path / "t-0")
    reference = Reference(tmp_path, source)
    good = comparable(tmp_path / "t-0")  # as it lies there while it is written
    ends = {segment.base_offset: segment.size_bytes for segment in source.segments}
    for base, size_bytes in ends.items():
        for position in [*range(0, size_bytes, 41), size_bytes - 1]:
            directory = tmp_path / "cut"
            lay(directory, good)
            path = directory / file_name(base, FileKind.LOG)
            data = good[path.name]
            tail = random.choice([b"", bytes(size_bytes - position), random.randbytes(90)])
            content = data[:position] + tail
            if content == data:
                continue  # zeros were what was there
            path.write_bytes(content)
            pairs = enumerate(zip(content, data, strict=False))
            same = next((at for at, (a, b) in pairs if a != b), min(len(content), size_bytes))
            count = reference.batches_before(base, same)
            if len(content) == reference.bytes_of(base, count) and base < max(ends):
                # Between two batches, with more behind it: as compaction leaves a segment.
                log = open_log(directory, unclean=Unclean(0), **SETTINGS)
                assert log.quarantine is None
                assert [b for b, *_ in Reference(tmp_path, log).placed] == [
                    b for b, at, _, _ in reference.placed if b != base or at < len(content)
                ]
                log.close()
                continue
            end = reference.placed[count - 1][3] if count else 0
            log = open_log(directory, unclean=Unclean(0), **SETTINGS)
            assert log.quarantine is None
            assert log.log_end_offset == end
            assert log.recovery_point == 0
            bases = [segment.base_offset for segment in log.segments]
            assert bases == [b for b in ends if b <= base]
            assert log.flush() == end
            log.close()
            assert comparable(directory) == reference.files(count, base), (base, position)
            cases += 1
    assert cases > 60
    count_cases("logs cut at a byte and recovered to equal files", cases)


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-7")
def test_every_recovery_point_with_damage_in_every_batch(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    source = written(tmp_path / "t-0")
    reference = Reference(tmp_path, source)
    source.close()
    good = comparable(tmp_path / "t-0")
    cases = cut = quarantined = unseen = 0
    starts = [next_offset for *_, next_offset in reference.placed]
    for base, position, data, _ in reference.placed[::3]:
        for point in [0, *starts[::2]]:
            directory = tmp_path / "damaged"
            lay(directory, good)
            path = directory / file_name(base, FileKind.LOG)
            content = bytearray(good[path.name])
            content[position + len(data) - 1] ^= 4
            path.write_bytes(content)
            log = open_log(directory, unclean=Unclean(point), **SETTINGS)
            first_scanned = max(b for b in reference.bases if b <= point)
            count = reference.batches_before(base, position)
            proven = reference.placed[count - 1][3] if count else 0
            if base < first_scanned:
                assert log.quarantine is None, "Kafka, too, looks at nothing below"
                assert log.recovery is not None
                assert log.recovery.actions == ()
                unseen += 1
            elif proven < point:
                assert log.quarantine is not None
                assert (log.quarantine.position, log.quarantine.offset) == (position, proven)
                log.close()
                left = contents(directory)
                del left[os.path.join(".stratalog", "quarantine")]
                assert left == {**good, path.name: bytes(content)}
                quarantined += 1
            else:
                assert log.quarantine is None
                assert log.log_end_offset == proven
                log.close()
                assert comparable(directory) == reference.files(count, base)
                cut += 1
            cases += 1
    assert min(cut, quarantined, unseen) > 5
    count_cases("pairs of a recovery point and a damaged batch", cases)


@pytest.mark.requirement("RCV-1")
def test_only_what_may_be_torn_is_read(tmp_path: Path) -> None:
    source = written(tmp_path / "t-0")
    bases = [segment.base_offset for segment in source.segments]
    sizes = [segment.size_bytes for segment in source.segments]
    end = source.log_end_offset
    source.close()
    for point in range(end + 1):
        scanned: list[int] = []
        log = open_log(tmp_path / "t-0", unclean=Unclean(point, scanned.append), **SETTINGS)
        slot = max(i for i, base in enumerate(bases) if base <= point)
        assert log.recovery is not None
        assert log.recovery.first_base == bases[slot]
        assert log.recovery.scanned_bytes == sum(scanned) == sum(sizes[slot:])
        assert log.recovery_point == point
        log.close()


@pytest.mark.requirement("RCV-1", "RCV-6")
def test_a_recovery_that_is_cut_ends_the_same(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    """At every change that it makes, three states: a cut in the middle, a start beyond the end, a
    start in the middle; and recovering twice is recovering once."""
    source = written(tmp_path / "t-0")
    bases = [segment.base_offset for segment in source.segments]
    end = source.log_end_offset
    good = comparable(tmp_path / "t-0")
    cuts = 0
    for damaged_base, start in ((bases[1], 0), (bases[1], end), (bases[2], bases[1] + 1)):
        outcome: dict[str, bytes] | None = None
        for allowed in (10_000, *range(10_000)):
            directory = tmp_path / "cut"
            lay(directory, good)
            path = directory / file_name(damaged_base, FileKind.LOG)
            path.write_bytes(good[path.name][:-20] + b"\xee" * 30)
            was_cut = False
            try:
                open_log(
                    directory,
                    filesystem=RecordingFileSystem(allowed),
                    unclean=Unclean(0),
                    log_start_offset=start,
                    **SETTINGS,
                )
            except PowerCutError:
                was_cut = True
                cuts += 1
            for _ in range(2):
                log = open_log(directory, unclean=Unclean(0), log_start_offset=start, **SETTINGS)
                assert log.quarantine is None
            found = comparable(directory)
            outcome = outcome or found
            assert found == outcome, allowed
            if not was_cut and allowed < 10_000:
                break
    assert cuts > 50
    count_cases("recoveries cut between two changes", cuts)


@pytest.mark.requirement("RCV-1")
def test_an_error_of_the_disk_is_no_damage(tmp_path: Path) -> None:
    source = written(tmp_path / "t-0")
    source.close()
    forget_digests(tmp_path / "t-0")
    before = contents(tmp_path / "t-0")

    class BrokenFile(LocalFile):
        def pread_into(self, buffer: Any, position: int) -> int:
            raise StorageIOError(f"{self.path}: a sector is unreadable")

    class BrokenDisk(LocalFileSystem):
        def open(self, path: str, mode: OpenMode) -> LocalFile:
            file = super().open(path, mode)
            if not path.endswith(f"{0:020d}.log"):
                return file
            broken = BrokenFile(path, os.dup(file._descriptor))
            file.close()
            return broken

    with pytest.raises(StorageIOError, match="unreadable"):
        open_log(tmp_path / "t-0", filesystem=BrokenDisk(), unclean=Unclean(0), **SETTINGS)
    assert contents(tmp_path / "t-0") == before


@pytest.mark.requirement("RCV-1")
def test_a_snapshot_from_beyond_the_end_does_not_come_back(tmp_path: Path) -> None:
    """The log lost its end at the border of a batch, so nothing is damaged; a snapshot of what was
    lost is there. It is gone, durably, before anything is appended."""
    log = open_log(tmp_path / "t-0")
    for sequence in range(0, 12, 2):
        log.append(sent(1, sequence))
    size_bytes = log.segments.active.size_bytes
    log.close()
    (snapshot,) = (tmp_path / "t-0").glob("*.snapshot")
    assert snapshot.name == file_name(12, FileKind.SNAPSHOT)
    os.truncate(tmp_path / "t-0" / file_name(0, FileKind.LOG), size_bytes // 6 * 2)
    disk = RecordingFileSystem()
    log = open_log(tmp_path / "t-0", filesystem=disk, unclean=Unclean(0))
    assert log.log_end_offset == 4
    assert log.active_producers() == {1: (0, 3)}
    gone = disk.done.index(("unlink", snapshot.name))
    assert ("fsync_directory", "t-0") in disk.done[gone:]
    for sequence in range(0, 12, 2):
        log.append(sent(9, sequence))
    log.flush()
    again = open_log(tmp_path / "t-0", unclean=Unclean(log.recovery_point))
    assert again.active_producers() == {1: (0, 3), 9: (0, 15)}


@pytest.mark.requirement("RCV-1")
def test_the_digest_of_what_is_cut_goes_first_and_durably(tmp_path: Path) -> None:
    """The segment may grow to the same size again, with other bytes in the same file."""
    source = written(tmp_path / "t-0")
    base = source.segments.bases[1]
    source.close()
    forget_digests(tmp_path / "t-0")
    digest = tmp_path / "t-0" / ".stratalog" / digest_name(base)
    digest.write_bytes(b"a digest")
    path = tmp_path / "t-0" / file_name(base, FileKind.LOG)
    os.truncate(path, path.stat().st_size - 1)
    disk = RecordingFileSystem()
    open_log_as_it_is(tmp_path / "t-0", filesystem=disk, unclean=Unclean(0), **SETTINGS)
    assert not digest.exists()
    gone = disk.done.index(("unlink", digest.name))
    synced = disk.done.index(("fsync_directory", ".stratalog"), gone)
    assert synced < disk.done.index(("update", path.name), gone)


@pytest.mark.requirement("RCV-7", "LOG-7")
@pytest.mark.parametrize("cut_bytes", [0, 1, 40])
def test_a_segment_that_was_rolled_here_is_no_crashs_to_tear(
    tmp_path: Path, cut_bytes: int
) -> None:
    """It was synced before the next one was made, however old the recovery point is."""
    source = written(tmp_path / "t-0")
    bases, end = source.segments.bases, source.log_end_offset
    source.close()
    path = tmp_path / "t-0" / file_name(bases[1], FileKind.LOG)
    os.truncate(path, path.stat().st_size - cut_bytes)
    log = open_log_as_it_is(tmp_path / "t-0", unclean=Unclean(0), **SETTINGS)
    assert log.recovery is not None
    assert log.recovery.first_base == bases[-1]
    assert log.log_end_offset == end
    if cut_bytes:
        with pytest.raises(CorruptionError):
            list(log.read_batches(bases[1]))
    else:
        assert sum(1 for _ in log.read_records(0)) > 0


@pytest.mark.requirement("RCV-1", "RET-6")
def test_a_log_that_ends_below_its_start_starts_over(tmp_path: Path) -> None:
    source = written(tmp_path / "t-0")
    start = source.log_end_offset + 5
    source.close()
    (tmp_path / "t-0" / file_name(start + 3, FileKind.SNAPSHOT)).write_bytes(b"from another life")
    log = open_log(tmp_path / "t-0", unclean=Unclean(0), log_start_offset=start, **SETTINGS)
    assert log.quarantine is None
    assert log.recovery is not None
    assert log.recovery.actions[-1] == StartOver(start)
    assert (log.log_start_offset, log.log_end_offset) == (start, start)
    assert log.active_producers() == {}
    files = {path.name for path in (tmp_path / "t-0").iterdir() if path.name[0] == "0"}
    assert {name[:20] for name in files} == {f"{start:020d}"}
    assert log.append(sent(1, 0)).first_offset == start


@pytest.mark.requirement("RCV-1", "RET-5")
def test_segments_below_the_start_are_not_brought_back(tmp_path: Path) -> None:
    """Their deletion had begun, or was undone by the crash."""
    source = written(tmp_path / "t-0")
    bases = [segment.base_offset for segment in source.segments]
    source.close()
    start = bases[2] + 1
    log = open_log(tmp_path / "t-0", unclean=Unclean(start), log_start_offset=start, **SETTINGS)
    assert log.recovery is not None
    assert log.recovery.actions == (Drop(bases[0]), Drop(bases[1]))
    assert log.log_start_offset == start
    assert [segment.base_offset for segment in log.segments] == bases[2:]


@pytest.mark.requirement("RCV-1")
def test_what_was_found_in_memory_only_is_flushed_again(tmp_path: Path) -> None:
    """A process that died leaves in the page cache what a power cut may still take."""
    source = written(tmp_path / "t-0")
    bases = [segment.base_offset for segment in source.segments]
    synced: list[str] = []

    class SyncedFile(LocalFile):
        def fsync(self) -> None:
            synced.append(os.path.basename(self.path))
            super().fsync()

    class SyncingDisk(LocalFileSystem):
        def open(self, path: str, mode: OpenMode) -> LocalFile:
            file = super().open(path, mode)
            made = SyncedFile(path, os.dup(file._descriptor))
            file.close()
            return made

    log = open_log(
        tmp_path / "t-0", filesystem=SyncingDisk(), unclean=Unclean(bases[1]), **SETTINGS
    )
    assert log.recovery_point == bases[1]
    assert log.flush() == log.log_end_offset
    assert {f"{base:020d}.log" for base in bases[1:]} <= {*synced}
    assert f"{bases[0]:020d}.log" not in synced


@pytest.mark.requirement("RCV-1")
def test_the_report_says_what_was_done(tmp_path: Path) -> None:
    source = written(tmp_path / "t-0")
    bases = [segment.base_offset for segment in source.segments]
    source.close()
    path = tmp_path / "t-0" / file_name(bases[1], FileKind.LOG)
    size_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"?")
    log = open_log(tmp_path / "t-0", unclean=Unclean(0), **SETTINGS)
    assert log.recovery is not None
    *drops, cut = log.recovery.actions
    assert drops == [Drop(base) for base in reversed(bases[2:])]
    assert isinstance(cut, Cut)
    assert (cut.base_offset, cut.end, cut.size_bytes) == (bases[1], size_bytes, size_bytes + 1)
    assert cut.next_offset == bases[2]
    assert log.recovery.scanned_segments == 2


@pytest.mark.requirement("RCV-1")
def test_a_log_that_is_not_there_is_not_recovered(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no log"):
        open_log(tmp_path / "t-0", FixedClock(NOW), create=False, unclean=Unclean(0))
    log = open_log(tmp_path / "t-0", unclean=Unclean(0), log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)
