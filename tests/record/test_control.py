from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.errors import CorruptionError
from stratalog.record.batch import Record, batches
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.control import (
    ControlType,
    EndMarker,
    build_marker,
    marker_of,
    parse_key,
    parse_marker,
)


@pytest.mark.requirement("LOG-3")
def test_kafkas_markers_built_again_are_the_same_bytes(golden_dir: Path) -> None:
    kinds = set()
    for path in sorted(golden_dir.glob("transactions-none/*/golden-0/*.log")):
        for batch in batches(path.read_bytes()):
            header = batch.header
            marker = marker_of(batch)
            assert (marker is None) == (not header.is_control or header.records_count == 0)
            if marker is None or header.delete_horizon_ms is not None:
                continue
            kinds.add(marker.type)
            data = build_marker(
                marker.type,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                timestamp=header.max_timestamp,
                base_offset=header.base_offset,
                coordinator_epoch=marker.coordinator_epoch,
                leader_epoch=header.leader_epoch,
            )
            assert data == bytes(batch.data)
            assert len(data) == 78
    assert kinds == {ControlType.ABORT, ControlType.COMMIT}


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("0000 0000", ControlType.ABORT),
        ("0000 0001", ControlType.COMMIT),
        ("0001 0001 ff", ControlType.COMMIT),
        ("0000 0002", ControlType.LEADER_CHANGE),
        ("0000 0006", ControlType.KRAFT_VOTERS),
        ("0000 0063", ControlType.UNKNOWN),
        ("0000 ffff", ControlType.UNKNOWN),
    ],
)
def test_keys(key: str, kind: ControlType) -> None:
    assert parse_key(bytes.fromhex(key)) is kind


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_bad_keys(key: bytes | None) -> None:
    with pytest.raises(CorruptionError, match="control record"):
        parse_key(key)


def test_markers() -> None:
    abort = bytes.fromhex("00000000")
    record = Record(0, 0, abort, bytes.fromhex("0001 00000007 aabb"))
    assert parse_marker(record) == EndMarker(ControlType.ABORT, 7)
    assert parse_marker(Record(0, 0, bytes.fromhex("00000002"), None)) is None
    for value in (None, b"\0\0\0\0\0", b"\xff\xff\0\0\0\0"):
        with pytest.raises(CorruptionError, match="marker"):
            parse_marker(Record(0, 0, abort, value))


def test_data_and_emptied_batches_are_no_markers() -> None:
    (data,) = batches(build_batch([NewRecord(b"\0\0\0\1", b"\0\0\0\0\0\0", 1)]))
    (emptied,) = batches(build_batch([], control=True, transactional=True))
    assert marker_of(data) is None
    assert marker_of(emptied) is None
