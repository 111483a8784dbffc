"""`log dump`: rows of every kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.admin.dump import DumpOptions, dump, text_of
from stratalog.base.errors import CorruptionError, UsageError
from tests.admin.helpers import DISK, copy_of


def _rows(path: Path, **options: object) -> list[dict[str, object]]:
    return list(dump(str(path), DumpOptions(**options), DISK))  # type: ignore[arg-type]


def _kafkas(state: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(f"{state}.dump.jsonl").read_text().splitlines()]


SAME_NAMES = ("base_offset", "last_offset", "count", "position", "magic", "codec", "leader_epoch")
OTHER_NAMES = {
    "size_bytes": "size",
    "crc": "crc",
    "crc_ok": "valid",
    "timestamp_type": "ts_type",
    "max_timestamp": "max_ts",
    "producer_id": "producer_id",
    "base_sequence": "base_seq",
    "last_sequence": "last_seq",
    "is_transactional": "txn",
    "is_control": "control",
    "delete_horizon_ms": "delete_horizon_ms",
}


@pytest.fixture
def before(golden_dir: Path) -> Path:
    return golden_dir / "transactions-none" / "0-before"


@pytest.mark.parametrize("fixture", ["transactions-none/0-before", "headers-large/after"])
def test_batches_and_records_are_those_of_kafkas_own_dump(golden_dir: Path, fixture: str) -> None:
    state = golden_dir / fixture
    rows = _rows(state / "golden-0", records=True)
    assert json.loads(json.dumps(rows)) == rows
    batches = [row for row in rows if row["type"] == "batch"]
    theirs: list[dict[str, object]] = [
        row["batch"]  # type: ignore[misc]
        for row in _kafkas(state)
        if "batch" in row
    ]
    names = {name: name for name in SAME_NAMES} | OTHER_NAMES
    assert [{other: row[name] for name, other in names.items()} for row in batches] == [
        {other: row[other] for other in names.values()} for row in theirs
    ]
    records = {row["offset"]: row for row in rows if row["type"] == "record"}
    kafkas = {row["offset"]: row for row in _kafkas(state) if "value_size" in row}
    assert records.keys() == kafkas.keys()
    for offset, row in kafkas.items():
        found = records[offset]
        assert found["timestamp"] == row["ts"]
        if "control" in row:
            assert str(found["control"]) in str(row["control"]).lower()
        else:
            assert found["key"] == row["key"]
            size = -1 if found["value"] is None else len(str(found["value"]))
            assert size == row["value_size"]


def test_every_kind_of_file(before: Path) -> None:
    partition = before / "golden-0"
    kinds = {}
    for path in sorted(partition.iterdir()):
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
            head, *rows = _rows(path)
            assert head["size_bytes"] == path.stat().st_size
            kinds.update({(path.suffix, row["type"]): row for row in rows})
    assert {kind for _, kind in kinds} >= {"batch", "timeindex", "txnindex", "producer"}
    assert set(kinds[".txnindex", "txnindex"]) == {
        "type",
        "producer_id",
        "first_offset",
        "last_offset",
        "last_stable_offset",
    }


def test_from_an_offset_and_no_more_than_asked(before: Path) -> None:
    path = before / "golden-0" / f"{0:020d}.log"
    everything = [row for row in _rows(path) if row["type"] == "batch"]
    middle = everything[3]
    _, *found = _rows(path, start_offset=middle["last_offset"], limit=2)
    assert found == everything[3:5]
    assert _rows(path, limit=0)[1:] == []


def test_damage_comes_after_all_that_is_before_it(before: Path, tmp_path: Path) -> None:
    partition = copy_of(before / "golden-0", tmp_path / "golden-0")
    path = partition / f"{0:020d}.log"
    data = path.read_bytes()
    _, *original = _rows(path)
    path.write_bytes(data[:-1])
    rows = dump(str(path), DumpOptions(), DISK)
    found: list[dict[str, object]] = []
    with pytest.raises(CorruptionError, match="are no whole batch") as damage:
        found.extend(rows)
    assert damage.value.file == str(path)
    assert found[1:] == original[:-1]
    flipped = bytearray(data)
    flipped[70] ^= 1
    path.write_bytes(flipped)
    assert _rows(path)[1]["crc_ok"] is False


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "nothing.log"])
def test_other_files_are_refused(before: Path, name: str) -> None:
    with pytest.raises(UsageError, match="neither a directory nor a segment's file"):
        _rows(before / "golden-0" / name)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, None),
        (b"", ""),
        ("Köln".encode(), "Köln"),
        (b"\xff\x00", "hex:ff00"),
        (b"a\nb", "hex:610a62"),
    ],
)
def test_bytes_for_people(content: bytes | None, text: str | None) -> None:
    assert text_of(content) == text
