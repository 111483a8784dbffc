from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.record import layout
from stratalog.record.batch import Batch, Record, batches
from stratalog.record.codec import Codec, compress, decompress
from stratalog.record.legacy import build_message, build_wrapper, rebuild

OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
MAYBE_BYTES = st.one_of(st.none(), st.binary(max_size=30))


def one(data: bytes) -> Batch:
    (batch,) = batches(data)
    return batch


def content_of(batch: Batch) -> bytes:
    """The messages inside a wrapper, as bytes: its value, decompressed."""
    start = layout.LEGACY_KEY_LENGTH[batch.header.magic] + 8  # the key is null
    return decompress(batch.header.codec, batch.data[start:], 1 << 20, magic=batch.header.magic)


@pytest.mark.requirement("LOG-4")
def test_rebuilding_gives_what_kafkas_cleaner_gave(golden_dir: Path) -> None:
    state = golden_dir / "legacy-v1"
    name = "golden-0/00000000000000000000.log"
    before = list(batches((state / "before" / name).read_bytes()))
    after = {
        batch.header.base_offset: batch
        for batch in batches((state / "after" / name).read_bytes())
        if batch.header.magic < 2
    }
    kept = {record.offset for batch in after.values() for record in batch.records()}
    rebuilt = 0
    for wrapper in before:
        if wrapper.header.magic == 2:
            continue
        retained = [record for record in wrapper.records() if record.offset in kept]
        if not retained:
            continue
        expected = after.pop(retained[-1].offset)
        if wrapper.header.codec is Codec.NONE or len(retained) == len(list(wrapper.records())):
            assert bytes(wrapper.data) == bytes(expected.data)
            continue
        made = one(rebuild(wrapper, retained))
        assert made.crc_ok()
        assert content_of(made) == content_of(expected)
        for field in ("base_offset", "magic", "attributes", "base_timestamp", "max_timestamp"):
            assert getattr(made.header, field) == getattr(expected.header, field)
        assert list(made.records()) == list(expected.records()) == retained
        rebuilt += 1
    assert not after
    assert rebuilt >= 3


@pytest.mark.requirement("LOG-4")
def test_kafkas_messages_built_again_are_the_same_bytes(golden_dir: Path) -> None:
    path = golden_dir / "legacy-v1/before/golden-0/00000000000000000000.log"
    seen = set()
    for batch in batches(path.read_bytes()):
        header = batch.header
        if header.magic == 2:
            continue
        records = list(batch.records())
        seen.add((header.magic, header.codec))
        if header.codec is Codec.NONE:
            (record,) = records
            made = build_message(
                header.magic, record.offset, record.key, record.value, timestamp=record.timestamp
            )
            assert made == bytes(batch.data)
        else:
            made = one(rebuild(batch, records)).data.tobytes()
            assert content_of(one(made)) == content_of(batch)
            assert one(made).header.base_offset == header.base_offset
            assert one(made).header.max_timestamp == header.max_timestamp
            if header.codec is Codec.LZ4:
                # The frame header shows whose checksum it is.
                start = layout.LEGACY_KEY_LENGTH[header.magic] + 8
                assert made[start : start + 7] == bytes(batch.data[start : start + 7])
    assert {(0, Codec.NONE), (0, Codec.GZIP), (1, Codec.GZIP), (1, Codec.LZ4)} <= seen


@pytest.mark.requirement("LOG-4", "LOG-13")
@given(
    st.sampled_from([0, 1]),
    st.sampled_from(OLD_CODECS),
    st.integers(0, 2**50),
    st.lists(
        st.tuples(st.integers(1, 1000), MAYBE_BYTES, MAYBE_BYTES, st.integers(0, 2**42)),
        min_size=1,
        max_size=8,
    ),
    st.one_of(st.none(), st.integers(0, 2**42)),
)
def test_wrapper_round_trip(
    magic: int,
    codec: Codec,
    offset: int,
    steps: list[tuple[int, bytes | None, bytes | None, int]],
    append_time_ms: int | None,
) -> None:
    records = []
    for step, key, value, timestamp in steps:
        offset += step
        records.append(Record(offset, timestamp if magic else -1, key, value))
    batch = one(
        build_wrapper(magic, codec, records, log_append_time_ms=append_time_ms if magic else None)
    )
    header = batch.header
    assert batch.crc_ok()
    assert (header.magic, header.codec) == (magic, codec)
    assert header.base_offset == header.last_offset == records[-1].offset
    assert batch.first_offset() == records[0].offset
    assert header.records_count == -1
    assert not header.is_transactional
    assert not header.is_control
    assert header.delete_horizon_ms is None
    if magic and append_time_ms is not None:
        assert header.is_log_append_time
        records = [Record(r.offset, append_time_ms, r.key, r.value) for r in records]
    assert list(batch.records()) == records
    assert rebuild(batch, records) == bytes(batch.data)


@given(MAYBE_BYTES, MAYBE_BYTES, st.integers(0, 2**62), st.integers(-1, 2**42))
def test_message_round_trip(
    key: bytes | None, value: bytes | None, offset: int, timestamp: int
) -> None:
    batch = one(build_message(1, offset, key, value, timestamp=timestamp))
    assert batch.crc_ok()
    assert batch.header.records_count == 1
    assert list(batch.records()) == [Record(offset, timestamp, key, value)]
    batch = one(build_message(0, offset, key, value, timestamp=timestamp))
    assert list(batch.records()) == [Record(offset, -1, key, value)]


def test_a_log_append_time_wrapper_overrules_its_messages() -> None:
    inner = [Record(5, 100, b"a", b"1"), Record(7, 200, b"b", b"2")]
    batch = one(build_wrapper(1, Codec.GZIP, inner))
    stamped = bytearray(batch.data)
    stamped[layout.LEGACY_ATTRIBUTES] |= layout.TIMESTAMP_TYPE_MASK
    struct.pack_into(">q", stamped, layout.LEGACY_TIMESTAMP, 999)
    assert [record.timestamp for record in one(bytes(stamped)).records()] == [999, 999]


def test_magic_0_knows_no_timestamp_type() -> None:
    batch = one(build_message(0, 3, b"k", b"v", attributes=layout.TIMESTAMP_TYPE_MASK))
    assert not batch.header.is_log_append_time


def wrapped(inner: bytes, *, magic: int = 1, offset: int = 10, codec: Codec = Codec.GZIP) -> Batch:
    """A sound wrapper around any bytes."""
    value = compress(codec, inner, magic=magic)
    return one(build_message(magic, offset, None, value, timestamp=1, attributes=codec))


def message(offset: int, magic: int = 1, attributes: int = 0) -> bytes:
    return build_message(magic, offset, b"k", b"v", timestamp=1, attributes=attributes)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (wrapped(b""), "holds no messages"),
        (wrapped(message(0)[:-1]), "is truncated"),
        (wrapped(message(0)[:20]), "no batch header"),
        (wrapped(message(0)[:10]), "not of its wrapper's magic"),
        (wrapped(message(0, magic=0)), "not of its wrapper's magic"),
        (wrapped(message(0, attributes=1)), "compressed again"),
        (wrapped(message(0)[:-1] + b"w"), "inner message fails its checksum"),
        (wrapped(message(1) + message(1)), "out of order"),
        (wrapped(message(2) + message(1)), "out of order"),
        (wrapped(message(0) + message(11)), "out of order"),
        (wrapped(message(11, magic=0), magic=0), "out of order"),
        (wrapped(message(5, magic=0) + message(5, magic=0), magic=0), "out of order"),
        (one(build_message(1, 0, None, None, attributes=1)), "without a value"),
    ],
)
def test_hostile_wrappers(batch: Batch, reason: str) -> None:
    assert batch.crc_ok()
    with pytest.raises(CorruptionError, match=reason) as caught:
        list(batch.records())
    assert caught.value.position == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (struct.pack(">i", -2) + struct.pack(">i", -1), "field of -2 bytes"),
        (struct.pack(">i", 2**31 - 1) + struct.pack(">i", -1), "field of 2147483647 bytes"),
        (struct.pack(">i", -1) + struct.pack(">i", 1), "field of 1 bytes"),
        (struct.pack(">i", 2) + b"ab" + b"\0\0", "truncated"),
        (struct.pack(">i", -1) + struct.pack(">i", -1) + b"\0", "fields of 34 bytes"),
    ],
)
def test_hostile_fields(fields: bytes, reason: str) -> None:
    body = struct.pack(">bbq", 1, 0, 5) + fields
    data = struct.pack(">qiI", 9, len(body) + 4, zlib.crc32(body)) + body
    if len(data) < 34:
        data = data.ljust(34, b"\0")
        data = data[:8] + struct.pack(">i", 22) + data[12:]
    with pytest.raises(CorruptionError, match=reason):
        list(one(data).records())


@pytest.mark.requirement("LOG-13")
def test_the_limit_binds() -> None:
    records = [Record(i, 1, b"k", bytes(1000)) for i in range(3)]
    batch = one(build_wrapper(1, Codec.LZ4, records))
    needed = len(content_of(batch))
    assert len(list(batch.records(limit_bytes=needed))) == 3
    with pytest.raises(CorruptionError):
        list(batch.records(limit_bytes=needed - 1))


def test_what_cannot_be_wrapped() -> None:
    record = Record(0, 1, b"k", b"v")
    with pytest.raises(UsageError):
        build_wrapper(1, Codec.GZIP, [])
    with pytest.raises(UsageError):
        build_wrapper(1, Codec.NONE, [record])
    with pytest.raises(UsageError):
        build_wrapper(1, Codec.GZIP, [Record(0, 1, b"k", b"v", ((b"h", None),))])
    with pytest.raises(UsageError, match="magic 2"):
        build_wrapper(2, Codec.GZIP, [record])
    with pytest.raises(UsageError, match="magic 2"):
        build_message(2, 0, None, None)
