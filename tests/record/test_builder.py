from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError, RecordTooLargeError, UsageError
from stratalog.record import builder, layout
from stratalog.record.batch import Batch, batches
from stratalog.record.builder import (
    NewRecord,
    assign_offsets,
    build_batch,
    encode_record,
    with_codec,
)
from stratalog.record.codec import Codec
from tests.record.strategies import batch_arguments

RECORDS = [NewRecord(b"a", b"1", 100), NewRecord(b"b", None, 90), NewRecord(None, b"", 110)]


def built_again(batch: Batch) -> bytes:
    """The batch from its own fields. LogAppendTime hides the records' timestamps: not for those."""
    header = batch.header
    assert not header.is_log_append_time
    records = list(batch.records())
    return build_batch(
        [NewRecord(r.key, r.value, r.timestamp, r.headers) for r in records],
        base_offset=header.base_offset,
        codec=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        leader_epoch=header.leader_epoch,
        delete_horizon_ms=header.delete_horizon_ms,
        offset_deltas=[record.offset - header.base_offset for record in records],
        last_offset_delta=header.last_offset_delta,
        max_timestamp=None if records else header.max_timestamp,
    )


@pytest.mark.requirement("LOG-3")
def test_kafkas_batches_built_again_are_the_same_bytes(
    golden_dir: Path, corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    same = 0
    paths = [*golden_dir.glob("*/*/golden-0/*.log"), *corpus_dir.glob("log-*/r*-after/*/*.log")]
    for path in sorted(paths):
        for batch in batches(path.read_bytes()):
            header = batch.header
            if header.magic == 2 and header.codec is Codec.NONE and not header.is_log_append_time:
                assert built_again(batch) == bytes(batch.data)
                same += 1
    assert same > 1000
    count_cases("uncompressed batches built again to the byte", same)


@given(batch_arguments())
def test_what_is_built_decodes_and_builds_the_same(arguments: dict[str, Any]) -> None:
    data = build_batch(**arguments | {"log_append_time_ms": None})
    (batch,) = batches(data)
    assert built_again(batch) == data


def test_defaults() -> None:
    (batch,) = batches(build_batch(RECORDS))
    header = batch.header
    assert (header.base_offset, header.last_offset_delta, header.records_count) == (0, 2, 3)
    assert (header.base_timestamp, header.max_timestamp) == (100, 110)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.attributes, header.leader_epoch) == (0, 0)
    assert [record.timestamp for record in batch.records()] == [100, 90, 110]


def test_records_without_a_timestamp() -> None:
    (batch,) = batches(build_batch([NewRecord(b"a", b"1"), NewRecord(b"b", b"2", 7)]))
    assert (batch.header.base_timestamp, batch.header.max_timestamp) == (-1, 7)
    assert [record.timestamp for record in batch.records()] == [-1, 7]


def test_an_emptied_batch_loses_codec_and_horizon_and_keeps_the_rest() -> None:
    data = build_batch(
        [],
        base_offset=5,
        codec=Codec.ZSTD,
        delete_horizon_ms=99,
        transactional=True,
        control=True,
        producer_id=4,
        producer_epoch=2,
        base_sequence=8,
        last_offset_delta=3,
        max_timestamp=44,
    )
    (batch,) = batches(data)
    assert batch.header.attributes == layout.TRANSACTIONAL_MASK | layout.CONTROL_MASK
    assert batch.header.base_timestamp == -1
    assert batch.header.last_sequence == 11


@pytest.mark.parametrize(
    "arguments",
    [
        {"offset_deltas": [0, 1]},
        {"offset_deltas": [0, 1, 1]},
        {"offset_deltas": [-1, 0, 1]},
        {"last_offset_delta": 1},
        {"last_offset_delta": 2**31},
    ],
)
def test_deltas_that_make_no_batch(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        build_batch(RECORDS, **arguments)


def test_a_batch_that_nobody_could_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build_batch(RECORDS)
    monkeypatch.setattr(builder, "MAX_BATCH_BYTES", len(data))
    assert build_batch(RECORDS) == data
    monkeypatch.setattr(builder, "MAX_BATCH_BYTES", len(data) - 1)
    with pytest.raises(RecordTooLargeError):
        build_batch(RECORDS)


def test_a_record_by_hand() -> None:
    record = encode_record(1, -2, b"k", None, ((b"h", b""),))
    assert record.hex(" ") == "14 00 03 02 02 6b 01 02 02 68 00"


@pytest.mark.requirement("LOG-2", "LOG-3")
@given(st.integers(0, 2**62), st.integers(-1, 2**31 - 1), st.sampled_from(list(Codec)))
def test_assigning_offsets_leaves_the_checksum_alone(
    base_offset: int, leader_epoch: int, codec: Codec
) -> None:
    produced = build_batch(RECORDS, codec=codec, leader_epoch=-1)
    patched = bytearray(produced)
    assign_offsets(patched, base_offset, leader_epoch)
    (batch,) = batches(patched)
    assert batch.crc_ok()
    assert patched[16:] == produced[16:]
    assert patched[8:12] == produced[8:12]
    assert (batch.header.base_offset, batch.header.leader_epoch) == (base_offset, leader_epoch)
    assert [record.offset - base_offset for record in batch.records()] == [0, 1, 2]


@pytest.mark.requirement("LOG-3")
def test_assigning_the_append_time() -> None:
    buffer = bytearray(b"x" * 5 + build_batch(RECORDS, codec=Codec.LZ4))
    assign_offsets(memoryview(buffer)[5:], 40, 3, log_append_time_ms=777)
    (batch,) = batches(memoryview(buffer)[5:])
    assert batch.crc_ok()
    assert batch.header.is_log_append_time
    assert batch.header.base_timestamp == 100
    assert [(record.offset, record.timestamp) for record in batch.records()] == [
        (40, 777),
        (41, 777),
        (42, 777),
    ]


def test_correcting_the_max_timestamp() -> None:
    wrong = bytearray(build_batch(RECORDS, max_timestamp=5))
    right = bytearray(build_batch(RECORDS))
    before = bytes(right)
    assign_offsets(right, 0, 0, max_timestamp=110)
    assert right == before
    assign_offsets(wrong, 0, 0, max_timestamp=110)
    assert wrong == before
    assert struct.unpack_from(">q", wrong, layout.MAX_TIMESTAMP) == (110,)


@pytest.mark.requirement("LOG-13")
@given(batch_arguments(), st.sampled_from(list(Codec)))
def test_another_codec_is_what_would_have_been_built(
    arguments: dict[str, Any], codec: Codec
) -> None:
    (batch,) = batches(build_batch(**arguments))
    assert with_codec(batch, codec) == build_batch(**arguments | {"codec": codec})


def test_another_codec_and_a_time() -> None:
    (batch,) = batches(build_batch(RECORDS, max_timestamp=5))
    assert with_codec(batch, Codec.LZ4, max_timestamp=110) == build_batch(RECORDS, codec=Codec.LZ4)
    assert with_codec(batch, Codec.GZIP, level=9, log_append_time_ms=777) == build_batch(
        RECORDS, codec=Codec.GZIP, level=9, log_append_time_ms=777
    )


def test_what_cannot_have_another_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    (emptied,) = batches(build_batch([], max_timestamp=5))
    assert with_codec(emptied, Codec.ZSTD) == bytes(emptied.data)
    (batch,) = batches(build_batch(RECORDS, codec=Codec.ZSTD))
    with pytest.raises(CorruptionError):
        with_codec(batch, Codec.NONE, limit_bytes=10)
    monkeypatch.setattr(builder, "MAX_BATCH_BYTES", 80)
    with pytest.raises(RecordTooLargeError):
        with_codec(batch, Codec.NONE)
