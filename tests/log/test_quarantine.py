"""Quarantine: it stays, whatever a restart finds, and what is whole can be read (RCV-7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.errors import CorruptionError, LogOfflineError
from stratalog.log.opening import Unclean
from stratalog.log.partition_log import PartitionLog
from stratalog.log.quarantine import (
    QuarantineNote,
    read_quarantine,
    remove_quarantine,
    write_quarantine,
)
from stratalog.record.control import ControlType
from tests.log.helpers import (
    FS,
    NOW,
    FailingFileSystem,
    contents,
    forget_digests,
    open_log,
    records,
    sent,
)

NOTE = Path(".stratalog", "quarantine")
SETTINGS = {"segment_bytes": 700, "index_interval_bytes": 100}


def written(directory: Path) -> list[int]:
    """A log of several segments with a producer, closed; the bases."""
    log = open_log(directory, segment_bytes=700, index_interval_bytes=100)
    for sequence in range(0, 20, 2):
        log.append(sent(1, sequence))
    log.append(sent(2, 0, transactional=True))
    log.append_marker(ControlType.ABORT, producer_id=2, producer_epoch=0)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 2
    log.close()
    return bases


def break_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def offsets_until_damage(log: PartitionLog, start: int) -> list[int]:
    found = []
    try:
        for batch in log.read_batches(start):
            if not batch.crc_ok():
                break
            found += [record.offset for record in batch.records()]
    except CorruptionError:
        pass
    return found


def assert_reading_only(log: PartitionLog) -> None:
    for use in (
        lambda: log.append_records(records(1)),
        lambda: log.append(sent(1, 20)),
        lambda: log.append_marker(ControlType.ABORT, producer_id=2, producer_epoch=0),
        log.roll,
        log.flush,
        log.roll_if_idle,
        lambda: log.truncate_to(1),
        lambda: log.advance_log_start(1),
        lambda: log.delete_segments([]),
    ):
        with pytest.raises(LogOfflineError, match="quarantined"):
            use()


@pytest.mark.requirement("RCV-7")
def test_damage_below_the_recovery_point_shortens_nothing(tmp_path: Path) -> None:
    bases = written(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{bases[1]:020d}.log"
    size_bytes = path.stat().st_size
    break_byte(path, size_bytes - 5)
    forget_digests(tmp_path / "t-0")
    before = contents(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", unclean=Unclean(bases[2]), **SETTINGS)
    # Below the segment of the recovery point nothing is looked at.
    assert log.quarantine is None
    log.close()
    forget_digests(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", unclean=Unclean(bases[2] - 1), **SETTINGS)
    assert log.quarantine is not None
    assert log.quarantine.file == path.name
    assert 0 < log.quarantine.position < size_bytes
    assert bases[1] < log.quarantine.offset < bases[2]
    assert "CRC" in str(log.quarantine)
    assert str(log.quarantine).startswith(f"{path.name}: position {log.quarantine.position}: ")
    assert_reading_only(log)
    # What is whole is there, before the damage and behind it.
    assert offsets_until_damage(log, 0) == list(range(log.quarantine.offset))
    assert offsets_until_damage(log, bases[2]) == list(range(bases[2], log.log_end_offset))
    assert log.log_end_offset == 23
    log.close()
    after = contents(tmp_path / "t-0")
    assert after.pop(str(NOTE))
    assert after == before


@pytest.mark.requirement("RCV-7")
def test_without_a_recovery_point_no_damage_is_a_crashs(tmp_path: Path) -> None:
    bases = written(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{bases[-1]:020d}.log"
    whole = open_log(tmp_path / "t-0", unclean=Unclean(None), **SETTINGS)
    assert whole.quarantine is None
    assert whole.recovery is not None
    assert whole.recovery.scanned_segments == len(bases)
    whole.close()
    path.write_bytes(path.read_bytes() + bytes(30))
    before = contents(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", unclean=Unclean(None), **SETTINGS)
    assert log.quarantine is not None
    assert offsets_until_damage(log, 0) == list(range(23))
    assert_reading_only(log)
    after = contents(tmp_path / "t-0")
    del after[str(NOTE)]
    assert after == before


@pytest.mark.requirement("RCV-7")
def test_a_log_that_ends_below_what_was_flushed_is_no_crashs(tmp_path: Path) -> None:
    """A file cut at the end of a batch: all that is left of it is sound."""
    bases = written(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{bases[-1]:020d}.log"
    first = next(iter(open_log(tmp_path / "t-0", read_only=True).segments.active.headers()))
    assert first.end < path.stat().st_size
    path.write_bytes(path.read_bytes()[: first.end])
    before = contents(tmp_path / "t-0")
    end = first.header.next_offset
    for point in (end + 1, 23):
        log = open_log(tmp_path / "t-0", unclean=Unclean(point), **SETTINGS)
        assert log.quarantine is not None
        assert log.quarantine.offset == end
        assert f"flushed up to {point}" in str(log.quarantine)
        assert_reading_only(log)
        after = contents(tmp_path / "t-0")
        del after[str(NOTE)]
        assert after == before
        (tmp_path / "t-0" / NOTE).unlink()
    log = open_log(tmp_path / "t-0", unclean=Unclean(end), **SETTINGS)
    assert log.quarantine is None
    assert offsets_until_damage(log, 0) == list(range(end))


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("unclean", [None, Unclean(0), Unclean(23), Unclean(None)])
def test_it_stays_over_restarts(tmp_path: Path, unclean: Unclean | None) -> None:
    """Also when the damage is gone: somebody has to look."""
    bases = written(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{bases[-1]:020d}.log"
    good = path.read_bytes()
    path.write_bytes(good + b"?" * 100)
    first = open_log(tmp_path / "t-0", **SETTINGS)
    assert first.quarantine is not None
    first.close()
    for content in (good + b"?" * 100, good + b"?" * 200, good):
        path.write_bytes(content)
        log = open_log(tmp_path / "t-0", unclean=unclean, **SETTINGS)
        assert log.quarantine == first.quarantine
        assert offsets_until_damage(log, 0) == list(range(23))
        assert_reading_only(log)
        log.close()
        assert path.read_bytes() == content
    remove_quarantine(FS, str(tmp_path / "t-0"))
    log = open_log(tmp_path / "t-0", unclean=unclean, **SETTINGS)
    assert log.quarantine is None
    assert log.append(sent(1, 20)).first_offset == 23


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"7",
        b'"file"',
        b"null",
        b"{}",
        b'{"file": "a", "position": "x", "offset": 1, "reason": "r", "found_ms": 1}',
        b'{"file": "a", "position": 1e999, "offset": 1, "reason": "r", "found_ms": 1}',
        b'{"file": "a", "position": NaN, "offset": 1, "reason": "r", "found_ms": 1}',
        b'{"file": "a", "position": null, "offset": 1, "reason": "r", "found_ms": 1}',
        b"[" * 60_000,
        b"x" * 70_000,
        b'{"position": ' + b"9" * 5000 + b"}",
    ],
    ids=range(15),
)
def test_a_note_that_cannot_be_read_is_a_note_all_the_same(tmp_path: Path, content: bytes) -> None:
    written(tmp_path / "t-0")
    (tmp_path / "t-0" / NOTE).parent.mkdir(exist_ok=True)
    (tmp_path / "t-0" / NOTE).write_bytes(content)
    for unclean in (None, Unclean(0)):
        log = open_log(tmp_path / "t-0", unclean=unclean, **SETTINGS)
        assert log.quarantine is not None
        assert "unreadable" in str(log.quarantine)
        assert_reading_only(log)
        assert offsets_until_damage(log, 0) == list(range(23))
        log.close()
    assert (tmp_path / "t-0" / NOTE).read_bytes() == content


@pytest.mark.requirement("RCV-7")
def test_a_note_comes_back_and_the_first_one_stays(tmp_path: Path) -> None:
    note = QuarantineNote("7.log", 12, 34, "a reason", NOW)
    assert read_quarantine(FS, str(tmp_path)) is None
    write_quarantine(FS, str(tmp_path), note)
    assert read_quarantine(FS, str(tmp_path)) == note
    write_quarantine(FS, str(tmp_path), QuarantineNote("8.log", -1, -1, "later", NOW + 1))
    assert read_quarantine(FS, str(tmp_path)) == note
    assert str(QuarantineNote("8.log", -1, -1, "later", NOW)) == "8.log: later"
    remove_quarantine(FS, str(tmp_path))
    remove_quarantine(FS, str(tmp_path))
    assert read_quarantine(FS, str(tmp_path)) is None


@pytest.mark.requirement("RCV-7")
def test_writing_and_removing_a_note_is_durable(tmp_path: Path) -> None:
    disk = FailingFileSystem()
    write_quarantine(disk, str(tmp_path), QuarantineNote("7.log", 12, 34, "a reason", NOW))
    state = str(tmp_path / ".stratalog")
    note = f"{state}/quarantine"
    assert disk.actions == [
        ("fsync_directory", str(tmp_path)),
        ("create", f"{note}.tmp"),
        ("pwrite", f"{note}.tmp"),
        ("fsync", f"{note}.tmp"),
        ("rename", note),
        ("fsync_directory", state),
    ]
    disk.actions.clear()
    remove_quarantine(disk, str(tmp_path))
    assert disk.actions == [("unlink", note), ("fsync_directory", state)]


@pytest.mark.requirement("RCV-7")
@pytest.mark.parametrize("unclean", [None, Unclean(23)])
def test_damage_that_the_producers_need_quarantines_too(
    tmp_path: Path, unclean: Unclean | None
) -> None:
    """Without snapshots the producers are folded from the log, which is damaged far below the
    recovery point: it opens for reading, and says so."""
    bases = written(tmp_path / "t-0")
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    path = tmp_path / "t-0" / f"{bases[1]:020d}.log"
    data = bytearray(path.read_bytes())
    data[:200] = b"\xff" * 200
    path.write_bytes(data)
    before = contents(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", unclean=unclean, **SETTINGS)
    assert log.quarantine is not None
    assert (log.quarantine.file, log.quarantine.position) == (path.name, 0)
    assert_reading_only(log)
    assert offsets_until_damage(log, 0) == list(range(bases[1]))
    assert offsets_until_damage(log, bases[2]) == list(range(bases[2], 23))
    log.close()
    after = contents(tmp_path / "t-0")
    del after[str(NOTE)]
    assert after == before


@pytest.mark.requirement("RCV-7")
def test_damage_in_front_of_everything_leaves_an_empty_log_to_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_records(records(3))
    log.close()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    break_byte(path, 30)
    for path_of_index in (tmp_path / "t-0").glob("*index"):
        path_of_index.unlink()
    log = open_log(tmp_path / "t-0", log_start_offset=2)
    assert log.quarantine is not None
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert list(log.read_records(0)) == []
    assert_reading_only(log)
