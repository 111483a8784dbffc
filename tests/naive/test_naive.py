"""The naive readers and writers against Kafka's own reading classes, and against themselves.

Each state in the archives has a dump that Kafka's classes made of it, one JSON object a line. The
two archives name the same fields differently; both are translated into the same plain tuples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.archives import corpus_path, golden_path
from tests.naive import codecs, files
from tests.naive.crc32c import crc32c
from tests.naive.records import Batch, Record, build_legacy, parse_log
from tests.naive.siphash import siphash128

Count = Callable[[str, int], None]
Row = tuple[Any, ...]

GOLDEN = [(path, False) for path in sorted(golden_path().glob("*/*.dump.jsonl"))]
CORPUS = [
    (path, True)
    for path in sorted(corpus_path().glob("*/*.dump.jsonl"))
    if path.name in ("r1-before.dump.jsonl", "r2-after.dump.jsonl")
]


@pytest.mark.parametrize(
    ("dump", "corpus"), GOLDEN + CORPUS, ids=lambda v: getattr(v, "parent", v) and _id(v)
)
def test_naive_reader_sees_what_kafka_dumped(dump: Path, corpus: bool, count_cases: Count) -> None:
    state = dump.with_name(dump.name.removesuffix(".dump.jsonl"))
    partition = next(path for path in state.iterdir() if path.is_dir())
    translate = _corpus_row if corpus else _golden_row
    wanted = [row for line in dump.read_text().splitlines() if (row := translate(json.loads(line)))]
    assert list(_rows(partition)) == wanted
    count_cases("lines of Kafka's dumps compared", len(wanted))


def _id(value: object) -> str:
    return f"{value.parent.name}/{value.name.split('.')[0]}" if isinstance(value, Path) else ""


def _rows(partition: Path) -> Iterator[Row]:
    for segment in files.read_segments(partition):
        for batch in segment.batches:
            yield _batch_row(batch)
            yield from (_record_row(record) for record in batch.records())
        if (partition / files.name(segment.base, ".txnindex")).exists():
            yield ("txnindex", *(tuple(vars(entry).values()) for entry in segment.aborted))
    for path in sorted(partition.glob("*.snapshot")):
        yield ("snapshot", *(_producer_row(**vars(p)) for p in files.read_snapshot(path)))


def _batch_row(batch: Batch) -> Row:
    shared = (
        batch.magic,
        batch.last_offset,
        codecs.NAMES[batch.codec],
        batch.leader_epoch,
        batch.crc,
        batch.crc_ok(),
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        batch.transactional,
        batch.control,
        batch.horizon_ms,
        len(batch.raw),
    )
    if batch.magic < 2:  # the dump reads the fields of format 2 where there are none
        return ("batch", *shared)
    return (
        "batch",
        *shared,
        batch.base_offset,
        batch.count,
        batch.attributes,
        batch.base_timestamp,
    )


def _record_row(record: Record) -> Row:
    value = None if record.value is None else (len(record.value), crc32c(record.value))
    return ("record", record.offset, record.key, value, record.timestamp, record.headers)


def _producer_row(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int | None,
    offset_delta: int = 0,
) -> Row:
    txn = None if txn_first_offset == -1 else txn_first_offset
    return (producer_id, epoch, last_sequence, last_offset, timestamp, coordinator_epoch, txn)


def _dumped_batch_row(line: dict[str, Any], names: dict[str, str]) -> Row:
    shared = ["magic", "last_offset", "codec", "leader_epoch", "crc", "crc_ok", "max_timestamp"]
    shared += ["producer_id", "producer_epoch", "base_sequence", "last_sequence", "transactional"]
    shared += ["control", "delete_horizon_ms", "size"]
    more = ["base_offset", "records_count", "attributes", "base_timestamp_raw"]
    wanted = shared if line["magic"] < 2 else shared + more
    return ("batch", *(line[names.get(name, name)] for name in wanted))


def _corpus_row(line: dict[str, Any]) -> Row | None:
    kind = line.get("type", "record")
    if kind == "batch":
        return _dumped_batch_row(line, {})
    if kind == "record":
        value = None if line["vsize"] < 0 else (line["vsize"], line["vcrc32c"])
        headers = tuple(
            (name.encode(), None if content is None else bytes.fromhex(content))
            for name, content in line.get("headers", [])
        )
        key = None if line["key"] is None else bytes.fromhex(line["key"])
        return ("record", line["offset"], key, value, line["ts"], headers)
    if kind == "txnindex":
        return ("txnindex", *(tuple(entry.values())[1:] for entry in line["entries"]))
    if kind == "snapshot":
        return ("snapshot", *(_producer_row(*p.values()) for p in line["producers"]))
    return None


def _golden_row(line: dict[str, Any]) -> Row | None:
    if "batch" in line:
        names = {"crc_ok": "valid", "max_timestamp": "max_ts", "base_sequence": "base_seq"}
        names |= {"last_sequence": "last_seq", "transactional": "txn", "records_count": "count"}
        names |= {"attributes": "attributes_raw", "base_timestamp_raw": "base_ts_raw"}
        return _dumped_batch_row(line["batch"], names)
    if "offset" in line:
        value = None if line["value_size"] < 0 else (line["value_size"], line["value_crc32c"])
        headers = tuple(
            (name.encode(), None if content is None else content.encode())
            for name, content in line.get("headers", [])
        )
        key = line["key"]
        if key is not None:
            key = bytes.fromhex(key[4:]) if key.startswith("hex:") else key.encode()
        return ("record", line["offset"], key, value, line["ts"], headers)
    if "txnindex" in line:
        return ("txnindex", *(tuple(entry.values())[1:] for entry in line["entries"]))
    if "snapshot" in line:
        return ("snapshot", *(_producer_row(*p.values()) for p in line["producers"]))
    return None


def test_checksums_and_hashes_have_their_published_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    key = bytes(range(16))
    assert siphash128(key, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash128(key, b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


@pytest.mark.parametrize("codec", range(1, 5), ids=codecs.NAMES[1:])
@pytest.mark.parametrize("size", [0, 1, 40_000, 200_000])
def test_codecs_restore_what_they_took(codec: int, size: int) -> None:
    for data in (os.urandom(size), b"abcd" * (size // 4)):
        for magic in (0, 2):
            packed = codecs.compress(codec, data, magic=magic)
            assert codecs.decompress(codec, packed) == data


def test_lz4_of_format_0_carries_kafkas_wrong_header_checksum() -> None:
    right, wrong = (codecs.compress(codecs.LZ4, b"data", magic=magic) for magic in (2, 0))
    assert [at for at, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b] == [6]
    assert right[6] == codecs.lz4_header_checksum(right[4:6])


def test_building_from_what_was_read_restores_the_batch(golden_dir: Path) -> None:
    """Messages without compression of the old formats; format 2 is held by the cleaner's test."""
    data = (golden_dir / "legacy-v1/before/golden-0" / files.name(0, ".log")).read_bytes()
    plain = [batch for batch in parse_log(data) if not batch.codec and batch.magic < 2]
    assert {batch.magic for batch in plain} == {0, 1}
    for batch in plain:
        assert build_legacy(batch.records(), magic=batch.magic) == batch.raw
    wrapped = [batch for batch in parse_log(data) if batch.codec]
    assert {(batch.magic, batch.codec) for batch in wrapped} == {(0, 1), (1, 1), (1, 3)}
    for batch in wrapped:
        (again,) = parse_log(build_legacy(batch.records(), magic=batch.magic, codec=batch.codec))
        assert again.records() == batch.records()
        assert again.crc_ok()
