"""Whether a key is gone: every file that holds records is looked into, whatever it is called."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratalog.admin.absent import AbsentReport, Stage, find_key
from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.base.errors import UsageError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.engine import Progress
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, records, run, tree, write_log
from tests.naive import codecs
from tests.naive.records import Record, build_legacy

pytestmark = pytest.mark.usefixtures("hasty_disk")
BASE = f"{0:020d}"


def _quiet(_: Progress) -> None:
    """Nobody watches."""


def search(target: Path, key: bytes, wanted: Stage = Stage.VALUE_ABSENT) -> AbsentReport:
    return find_key([str(target)], key, wanted, DISK, _quiet)


@pytest.mark.requirement("CLN-11")
def test_the_stages_of_a_key(tmp_path: Path) -> None:
    partition = write_log(
        tmp_path / "orders-0", [[records("ab")], [records("a", None)], [records("c")]]
    )
    report = search(partition, b"a")
    (found,) = report.partitions
    assert (found.stage, found.values, found.tombstones) == (Stage.VALUE_PRESENT, 1, 1)
    assert not report.is_ok
    assert [(item.offset, item.has_value, item.expires_ms) for item in found.found] == [
        (0, True, None),
        (2, False, None),
    ]
    run([partition], Mode.IN_PLACE, given={"delete.retention.ms": str(HOUR_MS)})
    before = tree(tmp_path)
    report = search(partition, b"a")
    assert report.is_ok
    (found,) = report.partitions
    assert found.stage is Stage.VALUE_ABSENT
    assert found.found[0].expires_ms == NOW_MS + HOUR_MS
    assert not search(partition, b"a", Stage.KEY_ABSENT).is_ok
    assert tree(tmp_path) == before
    run([partition], Mode.IN_PLACE, now_ms=NOW_MS + HOUR_MS)
    (found,) = search(partition, b"a", Stage.KEY_ABSENT).partitions
    assert (found.stage, found.found) == (Stage.KEY_ABSENT, ())
    assert search(partition, b"a", Stage.KEY_ABSENT).is_ok
    assert search(partition, b"b").partitions[0].stage is Stage.VALUE_PRESENT
    assert search(partition, b"never there", Stage.KEY_ABSENT).is_ok


@pytest.mark.requirement("CLN-11")
@pytest.mark.parametrize(
    "name",
    [
        f"{BASE}.log.deleted",
        f"{BASE}.log.cleaned",
        f"{BASE}.log.clean",
        f"{BASE}.log.swap",
        f"{BASE}.log.tmp",
        f"{BASE}.log.local-0.part",
        f"{BASE}.log.damaged",
        f"{BASE}.log.damaged-2",
    ],
)
def test_files_that_only_wait_are_searched_too(tmp_path: Path, name: str) -> None:
    other = write_log(tmp_path / "other-0", [[records("ab")]])
    partition = write_log(tmp_path / "orders-0", [[records("b")]])
    shutil.copy(other / f"{BASE}.log", partition / name)
    (found,) = search(partition, b"a").partitions
    assert found.stage is Stage.VALUE_PRESENT
    assert [Path(item.file).name for item in found.found] == [name]
    assert found.files == 2


@pytest.mark.requirement("CLN-11")
@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_searched(tmp_path: Path, codec: Codec) -> None:
    partition = write_log(
        tmp_path / "orders-0", [[records("xyz" * 50), records("ab")]], codec=codec
    )
    (found,) = search(partition, b"y").partitions
    assert (found.values, len(found.found)) == (50, 50)
    assert [item.offset for item in found.found] == list(range(1, 150, 3))
    assert {item.position for item in found.found} == {0}
    (found,) = search(partition, b"a").partitions
    assert [item.offset for item in found.found] == [150]
    assert found.found[0].position > 0


@pytest.mark.requirement("CLN-11", "LOG-4")
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP, codecs.LZ4])
def test_old_formats_are_searched(tmp_path: Path, magic: int, codec: int) -> None:
    partition = write_log(tmp_path / "orders-0", [[]])
    kept = [Record(place, NOW_MS, key, b"v") for place, key in enumerate([b"a", b"b", b"c"])]
    if codec == codecs.NONE:
        data = b"".join(build_legacy([one], magic=magic, codec=0) for one in kept)
    else:
        data = build_legacy(kept, magic=magic, codec=codec)
    (partition / f"{BASE}.log").write_bytes(data)
    (found,) = search(partition, b"b").partitions
    assert [(item.offset, item.has_value) for item in found.found] == [(1, True)]
    assert found.records == 3


@pytest.mark.requirement("CLN-11", "CMP-14")
def test_aborted_data_counts_and_markers_do_not(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with PartitionLog.open(str(path), LogSettings(), DISK, FixedClock(NOW_MS), create=True) as log:
        gone = build_batch(
            [NewRecord(b"a", b"secret", NOW_MS)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append(gone)
        log.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0)
    (found,) = search(path, b"a").partitions
    assert [item.offset for item in found.found] == [0]
    # The key of an abort marker is 00 00 00 00; nobody has written such a record.
    assert search(path, bytes(4), Stage.KEY_ABSENT).is_ok


@pytest.mark.requirement("CLN-11")
@pytest.mark.parametrize("size", [40, 61, 75])
def test_what_cannot_be_read_is_not_said_to_be_gone(tmp_path: Path, size: int) -> None:
    partition = write_log(tmp_path / "orders-0", [[records("b")]])
    data = (partition / f"{BASE}.log").read_bytes()
    torn = partition / f"{BASE}.log.local-0.part"
    torn.write_bytes((data + data)[: len(data) + size - 1])
    report = search(partition, b"a")
    (found,) = report.partitions
    assert not report.is_ok
    assert found.stage is Stage.UNKNOWN
    assert [Path(problem.file).name for problem in found.problems] == [torn.name]
    torn.unlink()
    damaged = bytearray(data)
    damaged[-1] ^= 1
    (partition / f"{BASE}.log").write_bytes(damaged)
    (found,) = search(partition, b"a").partitions
    assert (found.stage, found.problems[0].position) == (Stage.UNKNOWN, 0)


@pytest.mark.requirement("CLN-11")
def test_a_file_that_is_renamed_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner renames a file between the listing and the opening of it."""
    partition = write_log(tmp_path / "orders-0", [[records("a")], [records("b")]])
    old, new = partition / f"{BASE}.log", partition / f"{BASE}.log.deleted"
    listed: list[str] = []
    list_directory = LocalFileSystem.list_directory

    def list_and_rename(self: LocalFileSystem, path: str) -> list[str]:
        names = list_directory(self, path)
        listed.append(path)
        if len(listed) == 2:  # the first listing only finds the partition
            old.rename(new)
        return names

    monkeypatch.setattr(LocalFileSystem, "list_directory", list_and_rename)
    (found,) = search(partition, b"a").partitions
    assert [Path(item.file).name for item in found.found] == [new.name]


def test_a_target_without_partitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        search(tmp_path / "none", b"a")
