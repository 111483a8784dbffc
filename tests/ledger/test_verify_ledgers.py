"""`log verify` looks into ledgers, and says what mends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.admin.directories import PartitionPlace
from stratalog.admin.service import open_service
from stratalog.admin.verify import Problem, verify_partition
from stratalog.base.clock import FixedClock
from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.config.book import SettingsBook
from stratalog.segment.names import TopicPartition
from tests.clean.services import NOW, contents, put
from tests.embedded.driving import end, transaction

pytestmark = pytest.mark.requirement("LDG-1")
DISK = LocalFileSystem()
A0 = TopicPartition("a", 0)
BOOK = SettingsBook().with_topic(
    "a", {"compaction.mode": "ledger", "cleanup.policy": "delete", "internal.segment.bytes": "600"}
)


def problems(tmp_path: Path) -> tuple[Problem, ...]:
    return verify_partition(PartitionPlace(str(tmp_path), A0), DISK, lambda _: None).problems


def write(tmp_path: Path, *, loses: bool = False) -> Path:
    """Two generations, one of which refers to segments of the other; where they lie."""
    with open_service([str(tmp_path)], BOOK, DISK, FixedClock(NOW)) as service:
        log = service.store.create(A0)
        for number in range(20):
            put(log, (f"k{number}", "v" * 50))
        for number in range(4):
            transaction(log, 5, 2 * number, [("txn", str(number)), (f"t{number}", "")])
            end(log, 5, commits=number % 2 == 0)
        service.compact(A0)
        put(log, ("k19", "new"))
        service.compact(A0)
        if loses:
            service.store.delete_records(A0, 5)
        assert [one.number for one in service.ledgers.manifest(A0).generations] == [1, 2]
        assert contents(log)
    return tmp_path / "a-0" / ".stratalog" / "ledgers"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_sound_ledgers_have_no_problems(tmp_path: Path) -> None:
    write(tmp_path)
    assert problems(tmp_path) == ()


@pytest.mark.parametrize("position", [7, 30, 70])
def test_a_flipped_bit_is_told_once_with_what_mends_it(tmp_path: Path, position: int) -> None:
    """In the base offset, which no checksum covers, a checksummed field, a record."""
    ledgers = write(tmp_path)
    damaged = min((ledgers / "00000001").glob("*.log"))
    flip(damaged, position)
    [problem] = problems(tmp_path)
    assert problem.file == str(damaged)
    assert f"; the raw log still has all of it: remove {ledgers} while no" in problem.reason


def test_the_raw_log_may_have_lost_it(tmp_path: Path) -> None:
    ledgers = write(tmp_path, loses=True)
    flip(min((ledgers / "00000001").glob("*.log")), 70)
    [problem] = problems(tmp_path)
    assert "holds of offsets 0 to 4 is nowhere else: bring" in problem.reason


def test_the_manifest_and_the_files_that_it_names(tmp_path: Path) -> None:
    ledgers = write(tmp_path)
    segments = sorted((ledgers / "00000001").glob("*.log"))
    segments[0].unlink()
    segments[1].write_bytes(segments[1].read_bytes() + b"\0")
    found = problems(tmp_path)
    assert found[0].reason.startswith("there is no such file; ")
    assert found[0].file == str(segments[0])
    assert "bytes, the manifest says" in found[1].reason
    assert {item.file for item in found} == {str(path) for path in segments[:2]}
    flip(ledgers / "manifest", 20)
    [problem] = problems(tmp_path)
    assert problem.file == str(ledgers / "manifest")
    assert "does not match its checksum; the raw log still has all of it" in problem.reason


def test_a_manifest_that_is_gone_is_damage_and_nothing_is_removed(tmp_path: Path) -> None:
    ledgers = write(tmp_path)
    (ledgers / "manifest").unlink()
    files = sorted(ledgers.rglob("*.log"))
    [problem] = problems(tmp_path)
    assert problem.reason.startswith(
        "the ledgers' manifest is gone, and ledgers are there; the raw"
    )
    with open_service([str(tmp_path)], BOOK, DISK, FixedClock(NOW)) as service:
        with pytest.raises(CorruptionError, match="manifest is gone"):
            service.ledgers.pin(A0)
        with pytest.raises(CorruptionError, match="manifest is gone"):
            service.compact(A0)
    assert sorted(ledgers.rglob("*.log")) == files
