from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import (
    CorruptionError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from stratalog.record import layout
from stratalog.record.batch import batches
from stratalog.record.builder import NewRecord, assign_offsets, build_batch, encode_record
from stratalog.record.checksum import crc32c
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType, build_marker
from stratalog.record.kernel.compile import JIT, PLAIN_MICROSECONDS
from stratalog.record.legacy import build_message
from stratalog.record.validate import ProducedBatch, ProduceRules, validate
from tests.record.strategies import CODECS, NEW_RECORDS

NOW_MS = 1_700_000_000_000
RULES = ProduceRules()
RECORDS = [
    NewRecord(b"a", b"1", NOW_MS - 5),
    NewRecord(b"b", None, NOW_MS + 9),
    NewRecord(b"c", b"3", NOW_MS + 9),
]


def patched(data: bytes, offset: int, code: str, value: int) -> bytes:
    """`data` with one field changed and its checksum made right."""
    batch = bytearray(data)
    struct.pack_into(code, batch, offset, value)
    struct.pack_into(">I", batch, layout.CRC, crc32c(batch[layout.ATTRIBUTES :]))
    return bytes(batch)


@given(st.lists(NEW_RECORDS, min_size=1, max_size=6), CODECS)
def test_sound_batches_pass(records: list[NewRecord], codec: Codec) -> None:
    rules = ProduceRules(max_after_ms=layout.INT64_MAX)
    data = build_batch(records, codec=codec)
    (checked,) = validate(data, rules, NOW_MS)
    (batch,) = batches(data)
    assert checked.header == batch.header
    assert checked.max_timestamp == batch.header.max_timestamp
    timestamps = [record.timestamp for record in batch.records()]
    expected = timestamps.index(max(timestamps)) if max(timestamps) >= 0 else -1
    assert checked.max_timestamp_offset_delta == expected


@pytest.mark.skipif(not JIT, reason="kernels that are not compiled are not asked")
@given(st.lists(NEW_RECORDS, min_size=1, max_size=6), CODECS, st.booleans())
def test_sound_batches_are_not_walked_in_python(
    records: list[NewRecord], codec: Codec, is_log_append_time: bool
) -> None:
    rules = ProduceRules(max_after_ms=layout.INT64_MAX, is_log_append_time=is_log_append_time)
    data = build_batch(records, codec=codec)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("stratalog.record.validate.check_each_record")
        by_kernel = validate(data + data, rules, NOW_MS)
        patch.undo()
        patch.setattr("stratalog.record.validate.runs_plain", lambda _microseconds: True)
        assert by_kernel == validate(data + data, rules, NOW_MS)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_what_is_counted_is_what_a_batch_unfolds_to(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few records in a few bytes may hold a million headers: minutes of plain Python."""
    counted: list[int] = []

    def runs_plain(cost: int) -> bool:
        counted.append(cost)
        return not JIT

    monkeypatch.setattr("stratalog.record.validate.runs_plain", runs_plain)
    headers = ((b"", b""),) * 100_000
    data = build_batch([NewRecord(b"k", b"v", 5, headers)] * 10, codec=codec)
    validate(data, ProduceRules(max_message_bytes=1 << 30), 5)
    assert [cost > PLAIN_MICROSECONDS for cost in counted] == [True]
    counted.clear()
    validate(build_batch([NewRecord(b"k", b"v", 5)] * 10, codec=codec), ProduceRules(), 5)
    assert [cost < PLAIN_MICROSECONDS // 1000 for cost in counted] == [True]


def test_several_batches() -> None:
    first, second = build_batch(RECORDS, codec=Codec.ZSTD), build_batch(RECORDS[:1])
    found = validate(first + second, RULES, NOW_MS)
    assert [(batch.position, batch.max_timestamp) for batch in found] == [
        (0, NOW_MS + 9),
        (len(first), NOW_MS - 5),
    ]
    assert found[0].max_timestamp_offset_delta == 1
    assert validate(b"", RULES, NOW_MS) == []


@pytest.mark.requirement("LOG-9")
def test_size() -> None:
    data = build_batch(RECORDS)
    assert validate(data, ProduceRules(max_message_bytes=len(data)), NOW_MS)
    with pytest.raises(RecordTooLargeError, match=f"{len(data)} bytes"):
        validate(data, ProduceRules(max_message_bytes=len(data) - 1), NOW_MS)


@pytest.mark.requirement("CMP-10")
def test_keys() -> None:
    data = build_batch([*RECORDS, NewRecord(None, b"v", NOW_MS)])
    assert validate(data, RULES, NOW_MS)
    with pytest.raises(InvalidRecordError, match="key"):
        validate(data, ProduceRules(requires_key=True), NOW_MS)
    assert validate(build_batch(RECORDS), ProduceRules(requires_key=True), NOW_MS)


@pytest.mark.parametrize(
    ("timestamp", "before_ms", "after_ms", "passes"),
    [
        (NOW_MS - 10, 10, 10, True),
        (NOW_MS - 11, 10, 10, False),
        (NOW_MS + 10, 10, 10, True),
        (NOW_MS + 11, 10, 10, False),
        (None, 10, 10, True),
        (0, layout.INT64_MAX, 10, True),
        (-5, layout.INT64_MAX, 10, True),
    ],
)
def test_timestamps(timestamp: int | None, before_ms: int, after_ms: int, passes: bool) -> None:
    data = build_batch([NewRecord(b"k", b"v", timestamp)])
    rules = ProduceRules(max_before_ms=before_ms, max_after_ms=after_ms)
    if passes:
        assert validate(data, rules, NOW_MS)
    else:
        with pytest.raises(InvalidTimestampError, match="too far from now"):
            validate(data, rules, NOW_MS)
    append_time = ProduceRules(max_before_ms=before_ms, max_after_ms=1, is_log_append_time=True)
    (checked,) = validate(data, append_time, NOW_MS)
    assert (checked.max_timestamp, checked.max_timestamp_offset_delta) == (NOW_MS, 0)


def test_a_timestamp_that_is_no_int64() -> None:
    record = encode_record(0, layout.INT64_MAX, b"k", b"v")
    data = patched(
        build_batch([NewRecord(b"k", b"v", 5)])[: layout.HEADER_BYTES] + record,
        layout.LENGTH,
        ">i",
        layout.HEADER_BYTES + len(record) - 12,
    )
    rules = ProduceRules(max_after_ms=2 * layout.INT64_MAX, is_log_append_time=True)
    with pytest.raises(InvalidTimestampError, match="no int64"):
        validate(data, rules, NOW_MS)


DATA = build_batch(RECORDS)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (build_batch(RECORDS, base_offset=1), "starts at offset 0"),
        (build_batch([]), "0 records"),
        (build_batch(RECORDS, last_offset_delta=3), "3 records, last offset delta 3"),
        (patched(DATA, layout.RECORDS_COUNT, ">i", 2), "2 records, last offset delta 2"),
        (build_batch(RECORDS, control=True), "control"),
        (
            build_marker(ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp=NOW_MS),
            "control",
        ),
        (build_batch(RECORDS, delete_horizon_ms=5), "horizon"),
        (build_batch(RECORDS, producer_id=1, producer_epoch=0), "sequence number -1"),
        (build_batch(RECORDS, transactional=True), "producer id"),
        (build_batch(RECORDS, log_append_time_ms=NOW_MS), "LogAppendTime"),
        (build_message(1, 0, b"k", b"v"), "magic 1"),
        (build_message(0, 0, b"k", b"v"), "magic 0"),
    ],
)
def test_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        validate(data, RULES, NOW_MS)


def test_offset_deltas_must_be_consecutive() -> None:
    body = encode_record(0, 0, b"a", b"") + encode_record(2, 0, b"b", b"")
    template = build_batch(RECORDS, offset_deltas=[0, 1, 2])[: layout.HEADER_BYTES]
    data = patched(template + body, layout.LENGTH, ">i", layout.HEADER_BYTES + len(body) - 12)
    data = patched(data, layout.RECORDS_COUNT, ">i", 3)
    with pytest.raises(InvalidRecordError, match="offset delta 2"):
        validate(data, RULES, NOW_MS)


def test_idempotent_and_transactional_batches_pass() -> None:
    arguments: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    assert validate(build_batch(RECORDS, **arguments), RULES, NOW_MS)
    assert validate(build_batch(RECORDS, transactional=True, **arguments), RULES, NOW_MS)
    append_time = build_batch(RECORDS, log_append_time_ms=5)
    assert validate(append_time, ProduceRules(is_log_append_time=True), NOW_MS)


@pytest.mark.requirement("LOG-13")
def test_damage() -> None:
    second = bytearray(DATA)
    second[-1] ^= 1
    with pytest.raises(CorruptionError, match="checksum") as caught:
        validate(DATA + second, RULES, NOW_MS)
    assert caught.value.position == len(DATA)
    with pytest.raises(CorruptionError, match="ends inside a batch") as caught:
        validate(DATA + DATA[:-1], RULES, NOW_MS)
    assert caught.value.position == len(DATA)
    with pytest.raises(CorruptionError, match="ends inside a batch"):
        validate(DATA[:3], RULES, NOW_MS)
    extra = patched(DATA + b"\0", layout.LENGTH, ">i", len(DATA) + 1 - 12)
    with pytest.raises(CorruptionError, match="follow the last record"):
        validate(extra, RULES, NOW_MS)
    bomb = build_batch([NewRecord(b"k", bytes(100_000), NOW_MS)], codec=Codec.ZSTD)
    with pytest.raises(CorruptionError):
        validate(bomb, ProduceRules(max_decompressed_bytes=50_000), NOW_MS)


def test_a_wrong_max_timestamp_is_reported_and_can_be_repaired() -> None:
    wrong = bytearray(build_batch(RECORDS, max_timestamp=1))
    (checked,) = validate(wrong, RULES, NOW_MS)
    assert checked == ProducedBatch(0, checked.header, NOW_MS + 9, 1)
    assert checked.header.max_timestamp == 1
    assign_offsets(wrong, 0, 0, max_timestamp=checked.max_timestamp)
    assert wrong == DATA
