"""Bit flips and truncations of real batches: noticed or harmless, and never another error."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.base.errors import CorruptionError, StratalogError
from stratalog.record.batch import Record, batches
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.legacy import build_message, build_wrapper
from stratalog.record.validate import ProduceRules, validate

LIMIT_BYTES = 1 << 20
RECORDS = [NewRecord(b"key-%d" % i, b"some value " * (i + 1), 1000 + i) for i in range(4)]


def small_batches() -> Iterator[tuple[str, bytes]]:
    for codec in Codec:
        yield f"v2-{codec.name}", build_batch(RECORDS, codec=codec)
    yield "v2-emptied", build_batch([], last_offset_delta=3, max_timestamp=1)
    old = [Record(i, 1000 + i, b"key", b"some value " * 4) for i in range(3)]
    for magic in (0, 1):
        yield f"v{magic}", build_message(magic, 2, b"key", b"value", timestamp=5)
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
            yield f"v{magic}-{codec.name}", build_wrapper(magic, codec, old)


SMALL = dict(small_batches())


def read_all(data: bytes | bytearray) -> list[tuple[bool, list[Record]]]:
    return [(batch.crc_ok(), list(batch.records(LIMIT_BYTES))) for batch in batches(data)]


@pytest.mark.requirement("LOG-3", "LOG-4", "LOG-13")
@pytest.mark.parametrize("name", SMALL)
def test_every_bit_flip(name: str, count_cases: Callable[[str, int], None]) -> None:
    original = SMALL[name]
    is_legacy = original[16] < 2
    flips = 0
    for position, bit in itertools.product(range(len(original)), range(8)):
        damaged = bytearray(original)
        damaged[position] ^= 1 << bit
        flips += 1
        try:
            found = list(batches(damaged))
        except CorruptionError:
            continue
        for batch in found:
            # Offset, length and leader epoch (12 to 15, magic 2) lie outside the checksum, and the
            # length of a legacy message too; what changes the length changes what is checked.
            outside = position < 8 or (12 <= position < 16 and not is_legacy)
            assert batch.crc_ok() == outside
            try:
                list(batch.records(LIMIT_BYTES))
            except CorruptionError as error:
                assert error.position == 0
    count_cases("bit flips of a batch", flips)


@pytest.mark.parametrize("name", SMALL)
def test_every_truncation_with_a_length_to_match(name: str) -> None:
    """The length says what is there, so that the decoders inside meet the cut."""
    original = SMALL[name]
    for size in range(17, len(original)):
        cut = bytearray(original[:size])
        cut[8:12] = (size - 12).to_bytes(4, "big")
        try:
            found = list(batches(cut))
        except CorruptionError:
            continue
        assert not any(batch.crc_ok() for batch in found)
        with pytest.raises(CorruptionError):
            for batch in found:
                list(batch.records(LIMIT_BYTES))


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("v2")])
def test_validation_raises_its_own_errors_only(name: str) -> None:
    original = SMALL[name]
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 0x15
        try:
            validate(damaged, ProduceRules(), now_ms=2000)
        except StratalogError:
            continue
        # Only the leader epoch is free for the log to overwrite.
        assert 12 <= position < 16


def test_golden_segments_with_a_flip_every_few_bytes(
    golden_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    flips = 0
    for fixture in ("legacy-v1", "plain-zstd", "plain-lz4", "plain-snappy", "log-append-time"):
        path = sorted((golden_dir / fixture / "before").glob("*/*.log"))[0]
        original = path.read_bytes()[:6000]
        for position in range(0, len(original), 11):
            damaged = bytearray(original)
            damaged[position] ^= 0x40
            flips += 1
            try:
                read_all(damaged)
            except CorruptionError as error:
                assert error.position is not None
                assert error.position <= position
    count_cases("bit flips of a golden segment", flips)
