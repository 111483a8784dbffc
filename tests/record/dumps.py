"""Reads the oracle's `*.dump.jsonl`: what Kafka's own reading classes say of every batch.

Both archives' dialects become the same two values, so that one comparison serves both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratalog.record.batch import Batch, Record
from stratalog.record.checksum import crc32c
from stratalog.record.control import marker_of


@dataclass
class DumpedBatch:
    """A batch as the oracle saw it, under the names of the golden dialect."""

    fields: dict[str, Any]
    records: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class DumpedSegment:
    file: str
    batches: list[DumpedBatch] = field(default_factory=list)


_CORPUS_NAMES = {
    "base_timestamp_raw": "base_ts_raw",
    "max_timestamp": "max_ts",
    "base_sequence": "base_seq",
    "last_sequence": "last_seq",
    "transactional": "txn",
    "timestamp_type": "ts_type",
    "records_count": "count",
    "crc_ok": "valid",
    "attributes": "attributes_raw",
}


def read_dump(path: Path) -> Iterator[DumpedSegment]:
    """The segments of one dump, each with its batches and their records."""
    segment: DumpedSegment | None = None
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        kind = entry.get("type") or next(iter(entry))
        if kind == "segment":
            if segment is not None:
                yield segment
            segment = DumpedSegment(entry.get("file") or entry["segment"])
        elif kind == "batch":
            fields = entry.get("batch") or {_CORPUS_NAMES.get(k, k): v for k, v in entry.items()}
            assert segment is not None
            segment.batches.append(DumpedBatch(fields))
        elif kind == "offset":
            assert segment is not None
            segment.batches[-1].records.append(entry)
    if segment is not None:
        yield segment


def assert_same(batch: Batch, dumped: DumpedBatch) -> None:
    """Every field and record of `batch` is what the oracle's dump says."""
    header = batch.header
    records = list(batch.records())
    seen = {
        "base_offset": batch.first_offset(),
        "last_offset": header.last_offset,
        "position": batch.position,
        "size": header.size_bytes,
        "magic": header.magic,
        "codec": header.codec.name.lower(),
        "leader_epoch": header.leader_epoch,
        "crc": header.crc,
        "valid": batch.crc_ok(),
        "max_ts": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_seq": header.base_sequence,
        "last_seq": header.last_sequence,
        "txn": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "ts_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
    }
    if header.magic == 2:
        seen |= {
            "count": header.records_count,
            "base_ts_raw": header.base_timestamp,
            "attributes_raw": header.attributes,
        }
    if header.magic == 0:
        seen["ts_type"] = "NoTimestampType"
    assert {name: dumped.fields[name] for name in seen} == seen
    assert len(records) == len(dumped.records)
    marker = marker_of(batch)
    for record, expected in zip(records, dumped.records, strict=True):
        assert_same_record(record, expected)
        assert expected.get("control") == (marker.type.name if marker else None)


def assert_same_record(record: Record, expected: dict[str, Any]) -> None:
    assert record.offset == expected["offset"]
    assert record.timestamp == expected["ts"]
    value = record.value
    assert (-1 if value is None else len(value)) == expected.get(
        "value_size", expected.get("vsize")
    )
    if value is not None:
        assert crc32c(value) == expected.get("value_crc32c", expected.get("vcrc32c"))
    if "vsize" in expected:  # the corpus dialect: keys and header values are hex
        is_hex = True
    else:
        is_hex = False
        assert record.sequence == expected["seq"]
    assert record.key == _bytes(expected["key"], is_hex=is_hex)
    headers = tuple((k.encode(), _bytes(v, is_hex=is_hex)) for k, v in expected.get("headers", ()))
    assert record.headers == headers


def _bytes(text: str | None, *, is_hex: bool) -> bytes | None:
    if text is None:
        return None
    if text.startswith("hex:"):
        return bytes.fromhex(text.removeprefix("hex:"))
    return bytes.fromhex(text) if is_hex else text.encode()
