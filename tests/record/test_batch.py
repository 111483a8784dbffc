from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.record import layout
from stratalog.record.batch import Batch, BatchHeader, batches, decode_record, parse_header
from stratalog.record.builder import NewRecord, build_batch, encode_record
from stratalog.record.codec import Codec
from stratalog.record.varint import encode_varint
from tests.record.dumps import assert_same, read_dump
from tests.record.strategies import batch_arguments

THREE = [NewRecord(b"k%d" % i, b"v%d" % i, 1000 + i, ((b"h", None),)) for i in range(3)]


def partition_of(state: Path) -> Path:
    (partition,) = [child for child in state.iterdir() if child.is_dir()]
    return partition


@pytest.mark.requirement("LOG-3", "LOG-13")
@pytest.mark.parametrize(
    "fixture",
    [
        "plain-none",
        "plain-lz4",
        "plain-snappy",
        "plain-zstd",
        "headers-large",
        "log-append-time",
        "legacy-v1",
        "transactions-none",
        "tombstones-lz4",
        "tombstones-none",
        "idempotent",
        "null-keys",
        "gaps",
    ],
)
def test_golden_batches_are_what_kafka_reads(
    golden_dir: Path, fixture: str, count_cases: Callable[[str, int], None]
) -> None:
    compared = 0
    for dump in sorted((golden_dir / fixture).glob("*.dump.jsonl")):
        partition = partition_of(dump.with_name(dump.name.removesuffix(".dump.jsonl")))
        for segment in read_dump(dump):
            data = (partition / segment.file).read_bytes()
            found = list(batches(data))
            assert sum(batch.header.size_bytes for batch in found) == len(data)
            assert len(found) == len(segment.batches)
            for batch, dumped in zip(found, segment.batches, strict=True):
                assert_same(batch, dumped)
                compared += 1
    assert compared > 0
    count_cases("golden batches decoded as Kafka does", compared)


@pytest.mark.requirement("LOG-3", "LOG-13")
def test_corpus_batches_are_what_kafka_reads(
    corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    compared = 0
    for dump in sorted(corpus_dir.glob("log-*/r*.dump.jsonl")):
        partition = partition_of(dump.with_name(dump.name.removesuffix(".dump.jsonl")))
        for segment in read_dump(dump):
            found = list(batches((partition / segment.file).read_bytes()))
            for batch, dumped in zip(found, segment.batches, strict=True):
                assert_same(batch, dumped)
                compared += 1
    assert compared > 0
    count_cases("corpus batches decoded as Kafka does", compared)


@pytest.mark.requirement("LOG-3", "LOG-13")
@given(batch_arguments())
def test_round_trip(arguments: dict[str, Any]) -> None:
    data = build_batch(**arguments)
    (batch,) = batches(data)
    header = batch.header
    assert batch.crc_ok()
    assert header.size_bytes == len(data)
    assert header.magic == 2
    assert header.codec == arguments["codec"]
    assert header.base_offset == arguments["base_offset"] == batch.first_offset()
    assert header.last_offset_delta == arguments["last_offset_delta"]
    assert header.next_offset == header.last_offset + 1
    assert header.leader_epoch == arguments["leader_epoch"]
    assert header.producer_id == arguments["producer_id"]
    assert header.producer_epoch == arguments["producer_epoch"]
    assert header.base_sequence == arguments["base_sequence"]
    assert header.is_transactional == arguments["transactional"]
    assert header.is_control == arguments["control"]
    assert header.delete_horizon_ms == arguments["delete_horizon_ms"]
    append_time_ms = arguments["log_append_time_ms"]
    assert header.is_log_append_time == (append_time_ms is not None)
    records = list(batch.records())
    assert len(records) == header.records_count
    for record, new, delta in zip(
        records, arguments["records"], arguments["offset_deltas"], strict=True
    ):
        created = -1 if new.timestamp is None else new.timestamp
        assert record.timestamp == (created if append_time_ms is None else append_time_ms)
        assert record.offset == header.base_offset + delta
        assert (record.key, record.value, record.headers) == (new.key, new.value, new.headers)
        if header.base_sequence >= 0:
            assert record.sequence == (header.base_sequence + delta) % 2**31
        else:
            assert record.sequence == -1
    if append_time_ms is None:
        assert header.max_timestamp == max(record.timestamp for record in records)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "array"])
def test_any_buffer_is_read(kind: Any) -> None:
    data = build_batch(THREE, codec=Codec.ZSTD) + build_batch(THREE, base_offset=3)
    buffer = np.frombuffer(data, np.uint8) if kind == "array" else kind(data)
    found = list(batches(buffer))
    assert [batch.position for batch in found] == [0, found[0].header.size_bytes]
    assert [r.offset for batch in found for r in batch.records()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.requirement("LOG-8")
def test_a_final_part_of_a_batch_is_left_alone() -> None:
    first = build_batch(THREE)
    data = first + build_batch(THREE, base_offset=3)
    for size in range(len(data)):
        whole = [batch.header.base_offset for batch in batches(data[:size])]
        assert whole == ([0] if size >= len(first) else [])


def test_wrapped_sequences() -> None:
    data = build_batch(THREE, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    (batch,) = batches(data)
    assert [record.sequence for record in batch.records()] == [2**31 - 2, 2**31 - 1, 0]
    assert batch.header.last_sequence == 0


def test_an_emptied_batch_has_no_records_whatever_follows_its_header() -> None:
    data = build_batch([], base_offset=7, last_offset_delta=4, max_timestamp=55)
    (batch,) = batches(data)
    assert list(batch.records()) == []
    assert (batch.header.base_timestamp, batch.header.max_timestamp) == (-1, 55)
    assert batch.header.last_offset == 11
    assert len(data) == layout.HEADER_BYTES


@pytest.mark.parametrize(
    ("offset", "code", "value", "reason"),
    [
        (layout.MAGIC, ">b", 3, "no batch has magic 3"),
        (layout.MAGIC, ">b", -1, "no batch has magic 255"),
        (layout.LENGTH, ">i", 48, "impossible batch length 48"),
        (layout.LENGTH, ">i", -5, "impossible batch length -5"),
        (layout.LENGTH, ">i", 2**31 - 1, "impossible batch length"),
        (layout.BASE_OFFSET, ">q", -1, "impossible batch offset -1"),
        (layout.BASE_OFFSET, ">q", 2**63 - 1, "impossible batch offset"),
        (layout.LAST_OFFSET_DELTA, ">i", -2, "negative count"),
        (layout.RECORDS_COUNT, ">i", -2, "negative count"),
    ],
)
def test_impossible_headers(offset: int, code: str, value: int, reason: str) -> None:
    first = build_batch(THREE)
    data = bytearray(first + build_batch(THREE, base_offset=3))
    struct.pack_into(code, data, len(first) + offset, value)
    stream = batches(data)
    assert next(stream).header.base_offset == 0
    with pytest.raises(CorruptionError, match=reason) as caught:
        next(stream)
    assert caught.value.position == len(first)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_header_needs_its_bytes(magic: int) -> None:
    with pytest.raises(CorruptionError, match="no batch header"):
        parse_header(bytes(16) + bytes([magic]))
    with pytest.raises(CorruptionError, match="no batch header"):
        parse_header(b"", 0)


def forged(payload: bytes, count: int, codec: Codec = Codec.NONE, last_delta: int = 99) -> Batch:
    """A batch with a sound header over any payload."""
    header = BatchHeader(
        base_offset=10,
        length=len(payload) + 49,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=int(codec),
        last_offset_delta=last_delta,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=count,
    )
    return Batch(header, memoryview(bytes(layout.HEADER_BYTES) + payload), 1234)


GOOD = encode_record(0, 0, b"key", b"value", ((b"h", b"x"),))


@pytest.mark.parametrize(
    ("payload", "count", "reason"),
    [
        (GOOD, 2, "truncated"),
        (GOOD, 2**31 - 1, "truncated"),
        (GOOD + b"\x00", 1, "1 bytes follow the last record"),
        (GOOD + GOOD, 2, "offset delta 0 is out of order"),
        (encode_record(100, 0, None, None), 1, "offset delta 100 is out of order"),
        (encode_record(-1, 0, None, None), 1, "offset delta -1 is out of order"),
        (encode_varint(-1) + GOOD, 1, "record of -1 bytes"),
        (encode_varint(2**31 - 1) + GOOD, 1, "record of 2147483647 bytes"),
        (encode_varint(0), 1, "truncated"),
        (encode_varint(5) + bytes(6), 1, "5 bytes has 6 bytes of fields"),
        (encode_varint(8) + bytes(8), 1, "8 bytes has 6 bytes of fields"),
        (encode_varint(7) + b"\0\0\0" + encode_varint(-2) + bytes(3), 1, "field of -2 bytes"),
        (encode_varint(7) + b"\0\0\0" + encode_varint(60) + bytes(3), 1, "field of 60 bytes"),
        (b"\x0c\0\0\0\x01\x01" + encode_varint(-1), 1, "-1 headers do not fit"),
        (b"\x0e\0\0\0\x01\x01" + encode_varint(300), 1, "300 headers do not fit"),
        (b"\x10\0\0\0\x01\x01\x02\x01\x01", 1, "header without a key"),
    ],
)
def test_hostile_payloads(payload: bytes, count: int, reason: str) -> None:
    with pytest.raises(CorruptionError, match=reason) as caught:
        list(forged(payload, count).records())
    assert caught.value.position == 1234


def test_a_timestamp_out_of_range_is_damage() -> None:
    batch = forged(encode_record(0, 2**63 - 1, None, None), 1)
    moved = Batch(
        BatchHeader(
            **{name: getattr(batch.header, name) for name in BatchHeader.__slots__}
            | {"base_timestamp": 2**62}
        ),
        batch.data,
    )
    assert next(batch.records()).timestamp == 2**63 - 1
    with pytest.raises(CorruptionError, match="timestamp"):
        next(moved.records())


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    data = bytearray(build_batch(THREE))
    data[layout.ATTRIBUTES + 1] = codec
    (batch,) = batches(data)
    with pytest.raises(CorruptionError, match=f"unknown compression codec {codec}"):
        list(batch.records())


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("codec", list(Codec))
def test_the_limit_binds(codec: Codec) -> None:
    data = build_batch([NewRecord(b"k", b"v" * 5000, 1)], codec=codec)
    (batch,) = batches(data)
    needed = len(batch.payload())
    assert len(list(batch.records(limit_bytes=needed))) == 1
    with pytest.raises(CorruptionError):
        list(batch.records(limit_bytes=needed - 1))


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 40))
def test_decode_record_raises_nothing_else(payload: bytes, position: int) -> None:
    try:
        _, end = decode_record(payload, position)
    except CorruptionError:
        return
    assert position < end <= len(payload)


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 2), st.integers(0, 220))
def test_random_bytes_raise_nothing_else(noise: bytes, magic: int, length: int) -> None:
    data = bytearray(noise)
    if len(data) > layout.MAGIC:
        data[layout.MAGIC] = magic
        struct.pack_into(">i", data, layout.LENGTH, length)
        data[0] = 0
    try:
        for batch in batches(data):
            batch.crc_ok()
            list(batch.records(limit_bytes=1 << 16))
    except CorruptionError:
        pass
