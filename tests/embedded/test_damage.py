"""What cannot be answered is an error, not a part of the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog.base.errors import CorruptionError

CONFIG = {"cleanup.policy": "delete", "compaction.mode": "ledger", "internal.segment.bytes": 200}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t", config=CONFIG)
        for turn in range(2):
            for number in range(20):
                topic.append(f"k{number}", f"{turn}")
            topic.compact()
    return tmp_path / "data"


@pytest.mark.requirement("LDG-7", "RCV-7")
def test_a_quarantined_log_is_no_shorter_log(data: Path) -> None:
    last = [path for path in sorted((data / "t-0").glob("*.log")) if path.stat().st_size][-1]
    content = bytearray(last.read_bytes())
    content[70] ^= 1
    last.write_bytes(content)
    (data / ".kafka_cleanshutdown").unlink()
    with stratalog.open(data, background=False) as store:
        topic = store.topic("t")
        for view in ("latest", "compacted"):
            with pytest.raises(CorruptionError, match=r"t-0 is quarantined: .* `stratalog log rep"):
                list(topic.read(view))


@pytest.mark.requirement("LDG-1")
def test_ledgers_whose_manifest_is_gone_stay_where_they_are(data: Path) -> None:
    ledgers = data / "t-0" / ".stratalog" / "ledgers"
    there = {path.name for path in ledgers.iterdir() if path.is_dir()}
    assert there == {"00000001", "00000002"}
    (ledgers / "manifest").unlink()
    with stratalog.open(data, background=False) as store:
        topic = store.topic("t")
        for what in (lambda: list(topic.read("latest")), topic.compact):
            with pytest.raises(CorruptionError, match="the ledgers' manifest is gone"):
                what()
        assert len(list(topic.read())) == 40
    assert {path.name for path in ledgers.iterdir() if path.is_dir()} == there
