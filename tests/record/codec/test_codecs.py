"""What holds for every codec alike."""

from __future__ import annotations

import contextlib
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError, UsageError
from stratalog.record.codec import LEVELS, Codec, compress, decompress

PACKING = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b"%d bottles of beer on the wall, " % i for i in range(6000))

CONTENTS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(max_size=20), st.integers(0, 9000)),
)


def by_name(codec: Codec) -> str:
    return codec.name.lower()


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("codec", list(Codec), ids=by_name)
@given(content=CONTENTS, kind=st.sampled_from([bytes, bytearray, memoryview, "array"]))
def test_round_trip_of_any_buffer(codec: Codec, content: bytes, kind: Any) -> None:
    def wrapped(data: bytes) -> Any:
        return np.frombuffer(data, np.uint8) if kind == "array" else kind(data)

    packed = compress(codec, wrapped(content))
    assert type(packed) is bytes
    unpacked = decompress(codec, wrapped(packed), len(content))
    assert type(unpacked) is bytes
    assert unpacked == content


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("codec", list(Codec), ids=by_name)
@pytest.mark.parametrize("size", [1, 40, 32768, 32769, 65536, 65537, 131072, 200001])
def test_the_limit_is_exact(codec: Codec, size: int) -> None:
    for content in (TEXT[:size], bytes(size), np.random.default_rng(size).bytes(size)):
        packed = compress(codec, content)
        assert decompress(codec, packed, size) == content
        with pytest.raises(CorruptionError):
            decompress(codec, packed, size - 1)
        with pytest.raises(CorruptionError):
            decompress(codec, packed, 0)


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("codec", PACKING, ids=by_name)
@pytest.mark.parametrize("size", [16 << 20, 64 << 20])
def test_bombs_cost_no_memory(codec: Codec, size: int) -> None:
    """A payload that unfolds to much more than allowed is refused within twice what is allowed."""
    limit_bytes = 1 << 20
    bomb = compress(codec, bytes(size))
    assert len(bomb) < size // 15
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            decompress(codec, bomb, limit_bytes)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * limit_bytes + (1 << 20)


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("codec", PACKING, ids=by_name)
def test_a_huge_limit_costs_no_memory(codec: Codec) -> None:
    packed = compress(codec, TEXT[:1000])
    tracemalloc.start()
    try:
        assert decompress(codec, packed, 1 << 40) == TEXT[:1000]
        with pytest.raises(CorruptionError):
            decompress(codec, packed[:-1], 1 << 40)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("codec", PACKING, ids=by_name)
@pytest.mark.parametrize("content", [b"", TEXT[:700], bytes(5000)], ids=["empty", "text", "zeros"])
def test_every_truncation_is_noticed(codec: Codec, content: bytes) -> None:
    packed = compress(codec, content)
    for size in range(len(packed)):
        if codec is Codec.SNAPPY and size == 16:
            continue  # the framing has no end mark: a header alone is an empty stream
        with pytest.raises(CorruptionError):
            decompress(codec, packed[:size], 1 << 20)


@pytest.mark.requirement("LOG-13")
@pytest.mark.parametrize("codec", PACKING, ids=by_name)
def test_bit_flips_are_noticed_or_bounded(codec: Codec) -> None:
    packed = compress(codec, TEXT[:500])
    for position in range(len(packed)):
        for bit in range(8):
            damaged = bytearray(packed)
            damaged[position] ^= 1 << bit
            try:
                assert len(decompress(codec, damaged, 4096)) <= 4096
            except CorruptionError:
                continue


@settings(max_examples=400)
@given(st.sampled_from(PACKING), st.binary(max_size=80), st.integers(0, 20), st.booleans())
def test_noise_raises_nothing_else(codec: Codec, noise: bytes, keep: int, is_old: bool) -> None:
    data = compress(codec, b"seed")[:keep] + noise
    with contextlib.suppress(CorruptionError):
        assert len(decompress(codec, data, 5000, magic=0 if is_old else 2)) <= 5000


@pytest.mark.parametrize("codec", LEVELS, ids=by_name)
def test_levels(codec: Codec) -> None:
    lowest, highest, default = LEVELS[codec]
    assert compress(codec, TEXT, default) == compress(codec, TEXT)
    sizes = {}
    for level in (max(lowest, -5), 1, highest):
        packed = compress(codec, TEXT, level)
        assert decompress(codec, packed, len(TEXT)) == TEXT
        sizes[level] = len(packed)
    assert sizes[highest] < sizes[1]
    for level in (lowest - 3, highest + 1):
        with pytest.raises(UsageError, match="level"):
            compress(codec, TEXT, level)


def test_gzip_takes_minus_one_as_its_default() -> None:
    assert compress(Codec.GZIP, TEXT, -1) == compress(Codec.GZIP, TEXT)


@pytest.mark.parametrize("codec", PACKING, ids=by_name)
def test_threads_do_not_share_contexts(codec: Codec) -> None:
    contents = [TEXT[i * 50 :][:20000] for i in range(4)]
    packed = [compress(codec, content) for content in contents]
    failures: list[int] = []

    def work(i: int) -> None:
        for _ in range(60):
            if compress(codec, contents[i]) != packed[i]:
                failures.append(i)
            if decompress(codec, packed[i], 20000) != contents[i]:
                failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("attributes", [5, 6, 7, 0xFF])
def test_unknown_codec_numbers(attributes: int) -> None:
    with pytest.raises(CorruptionError, match="unknown compression codec"):
        Codec.of_attributes(attributes)


def test_known_codec_numbers() -> None:
    names = [Codec.of_attributes(number | 0x78).name for number in range(5)]
    assert names == ["NONE", "GZIP", "SNAPPY", "LZ4", "ZSTD"]
