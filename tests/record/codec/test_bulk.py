"""Bulk calls against the registry: same bytes, same refusals, nothing outside the bounds."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.record.codec import Codec, bulk, compress, decompress, native
from stratalog.record.kernel import frames

TEXT = b"".join(b"%d bottles of beer on the wall, " % i for i in range(20_000))
NOISE = np.random.default_rng(7).bytes(200_000)
LIMIT_BYTES = 1 << 20
PACKING = [codec for codec in Codec if codec is not Codec.NONE]
SIZES = (0, 1, 13, 100, 1000, 16_384, 65_535, 65_536, 65_537, 131_072, 200_000)
CONTENTS = [source[:size] for size in SIZES for source in (TEXT, bytes(size), NOISE)]
GUARD = 0xA5

needs_functions = pytest.mark.skipif(
    not (native.find_lz4().decompress_safe and native.find_zstd().decompress_dctx),
    reason="the libraries' functions cannot be reached here",
)
both_ways = pytest.mark.parametrize("is_native", [True, False], ids=["native", "fallback"])

contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(max_size=20), st.integers(0, 9000)),
    st.builds(
        lambda at, size: TEXT[at : at + size], st.integers(0, 90_000), st.integers(0, 90_000)
    ),
    st.builds(lambda at, size: NOISE[at : at + size], st.integers(0, 999), st.integers(0, 70_000)),
)


@contextmanager
def codecs_are(is_native: bool) -> Iterator[None]:
    before = os.environ.get("STRATALOG_NATIVE_CODECS")
    os.environ["STRATALOG_NATIVE_CODECS"] = "1" if is_native else "0"
    try:
        yield
    finally:
        del os.environ["STRATALOG_NATIVE_CODECS"]
        if before is not None:
            os.environ["STRATALOG_NATIVE_CODECS"] = before


def columns(rows: Sequence[bytes], gap: int = 3) -> tuple[Any, Any, Any]:
    """The rows in one buffer, `gap` bytes apart, and where they start and end."""
    joined = np.frombuffer(bytearray(b"".join(row + b"\xff" * gap for row in rows)), np.uint8)
    ends = np.cumsum([len(row) + gap for row in rows], dtype=np.int64) - gap
    return joined, ends - np.array([len(row) for row in rows], np.int64), ends


def unpack_all(
    codec_of: Sequence[int], rows: Sequence[bytes], room: int, limit_bytes: int = LIMIT_BYTES
) -> list[bytes | None]:
    """All rows as a caller of `decompress_many` gets them; None for a damaged one."""
    raw, starts, ends = columns(rows)
    codecs = np.array(codec_of, np.int64)
    guarded = np.full(room + 64, GUARD, np.uint8)
    found: list[bytes | None] = []
    while (done := len(found)) < len(rows):
        try:
            plain, plain_ends = bulk.decompress_many(
                codecs[done:], raw, starts[done:], ends[done:], guarded[:room], limit_bytes
            )
        except CorruptionError:
            found.append(None)
            continue
        assert len(plain_ends) >= 1
        assert plain_ends[-1] <= len(plain)
        assert len(plain) == room or len(plain_ends) == 1 or plain_ends[0] > room
        bounds = [0, *plain_ends.tolist()]
        found += [plain[a:b].tobytes() for a, b in pairwise(bounds)]
    assert (guarded[room:] == GUARD).all()
    return found


def registry_answer(codec: int, row: bytes, limit_bytes: int = LIMIT_BYTES) -> bytes | None:
    try:
        return decompress(Codec.of_attributes(codec), row, limit_bytes)
    except CorruptionError:
        return None


def pack_all(codec_of: Sequence[int], rows: Sequence[bytes]) -> list[bytes]:
    plain, starts, ends = columns(rows)
    room = bulk.packed_bound_bytes(starts, ends)
    guarded = np.full(room + 64, GUARD, np.uint8)
    codecs = np.array(codec_of, np.int64)
    bounds = [0, *bulk.compress_many(codecs, plain, starts, ends, guarded[:room]).tolist()]
    assert (guarded[room:] == GUARD).all()
    return [guarded[a:b].tobytes() for a, b in pairwise(bounds)]


@pytest.mark.requirement("LOG-13")
@both_ways
@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_bulk_is_the_registry_many_times(codec: Codec, is_native: bool) -> None:
    expected = [compress(codec, content) for content in CONTENTS]
    with codecs_are(is_native):
        assert pack_all([codec] * len(CONTENTS), CONTENTS) == expected
        for room in (8 << 20, 300_000, 70_000, 1):
            assert unpack_all([codec] * len(CONTENTS), expected, room) == CONTENTS


@pytest.mark.requirement("LOG-13")
@both_ways
@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(list(Codec)), contents), min_size=1, max_size=12),
    room=st.integers(1, 200_000),
)
def test_codecs_side_by_side(rows: list[tuple[Codec, bytes]], room: int, is_native: bool) -> None:
    codec_of, plain = [int(codec) for codec, _ in rows], [content for _, content in rows]
    with codecs_are(is_native):
        packed = pack_all(codec_of, plain)
        assert packed == [compress(codec, content) for codec, content in rows]
        assert unpack_all(codec_of, packed, room) == plain


@st.composite
def damaged(draw: st.DrawFn) -> tuple[int, bytes]:
    """A codec number and a payload of it, of any writer's kind, usually damaged a little."""
    codec = draw(st.sampled_from([*PACKING, Codec.LZ4, Codec.ZSTD, Codec.ZSTD]))
    data = bytearray(any_frame(codec, draw(contents), draw(st.integers(0, 7))))
    for _ in range(draw(st.integers(0, 3))):
        # Most of what can be decided wrongly is decided in the first bytes.
        at = draw(st.one_of(st.integers(0, 24), st.integers(0, len(data))))
        kind = draw(st.sampled_from(["flip", "set", "cut", "drop", "insert", "append"]))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and at < len(data):
            data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + draw(st.integers(1, 4))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=4))
        else:
            data += data[: draw(st.integers(0, len(data)))]
    return int(codec), bytes(data)


def any_frame(codec: Codec, content: bytes, options: int) -> bytes:
    """One of the frames that other writers make; options 0 are Kafka's own."""
    if codec is Codec.LZ4 and options:
        frame: bytes = lz4.frame.compress(
            content,
            block_linked=False,
            block_size=4 + options % 3,
            content_checksum=bool(options & 2),
            store_size=bool(options & 4),
        )
        return frame
    if codec is Codec.ZSTD and options:
        parameters = zstandard.ZstdCompressionParameters(
            window_log=10 + options,
            write_content_size=bool(options & 1),
            write_checksum=bool(options & 2),
        )
        return zstandard.ZstdCompressor(compression_params=parameters).compress(content)
    return compress(codec, content)


@pytest.mark.requirement("LOG-13", "CMP-16")
@both_ways
@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(damaged(), min_size=1, max_size=5),
    room=st.sampled_from([100, 20_000, 70_000, 1 << 20]),
    limit_bytes=st.sampled_from([0, 1, 50, 5000, 65_536, 66_000, LIMIT_BYTES]),
)
def test_damage_is_judged_alike(
    rows: list[tuple[int, bytes]], room: int, limit_bytes: int, is_native: bool
) -> None:
    expected = [registry_answer(codec, data, limit_bytes) for codec, data in rows]
    with codecs_are(is_native):
        found = unpack_all(
            [codec for codec, _ in rows], [data for _, data in rows], room, limit_bytes
        )
    assert found == expected


@pytest.mark.requirement("LOG-13")
@both_ways
@pytest.mark.parametrize("codec", PACKING, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("size", [1, 40, 65_536, 65_537, 200_001])
def test_the_limit_is_exact(codec: Codec, size: int, is_native: bool) -> None:
    small = b"in front"
    with codecs_are(is_native):
        for content in (TEXT[:size], bytes(size), NOISE[:1] * size):
            rows = [compress(codec, small[: min(size, 8)]), compress(codec, content)]
            assert unpack_all([codec] * 2, rows, 1 << 20, size)[1] == content
            if size > len(small):
                assert unpack_all([codec] * 2, rows, 1 << 20, size - 1) == [small, None]


@both_ways
def test_damage_ends_an_answer_and_is_raised_by_the_next(is_native: bool) -> None:
    good, bad = compress(Codec.LZ4, TEXT[:900]), compress(Codec.LZ4, TEXT[:900])[:-1]
    raw, starts, ends = columns([good, good, bad, good])
    codecs, plain = np.full(4, int(Codec.LZ4)), np.empty(1 << 16, np.uint8)
    with codecs_are(is_native):
        _, plain_ends = bulk.decompress_many(codecs, raw, starts, ends, plain, 1 << 20)
        assert plain_ends.tolist() == [900, 1800]
        with pytest.raises(CorruptionError, match="truncated"):
            bulk.decompress_many(codecs[2:], raw, starts[2:], ends[2:], plain, 1 << 20)


@both_ways
@pytest.mark.parametrize("number", [5, 6, 7])
def test_unknown_codec_numbers(number: int, is_native: bool) -> None:
    with codecs_are(is_native), pytest.raises(CorruptionError, match="unknown compression codec"):
        raw, starts, ends = columns([b"x"])
        plain = np.empty(10, np.uint8)
        bulk.decompress_many(np.array([number]), raw, starts, ends, plain, 10)


def in_kernel(codec: Codec, data: bytes, room: int = 1 << 20) -> tuple[int, int, int]:
    """What the kernel by itself answers for one payload, as plain Python, too (K1)."""
    raw, starts, ends = columns([data])
    found: tuple[int, int, int] = frames.unpack_rows(
        np.array([int(codec)]),
        raw,
        starts,
        ends,
        np.empty(room, np.uint8),
        0,
        0,
        LIMIT_BYTES,
        native.find_lz4().decompress_safe,
        native.find_zstd().decompress_dctx,
        native.zstd_decompressor(),
        np.empty(1, np.int64),
    )
    return found


@needs_functions
@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD], ids=["lz4", "zstd"])
@pytest.mark.parametrize("size", SIZES)
def test_the_usual_frames_never_leave_the_kernel(codec: Codec, size: int) -> None:
    """Otherwise every other test here could pass by the fallback alone."""
    if codec is Codec.ZSTD and size > 1 << 17:
        several_blocks = compress(codec, TEXT[:size])
        assert in_kernel(codec, several_blocks) == (0, 0, frames.NOT_HERE)
        return
    for content in (TEXT[:size], NOISE[:size]):
        data = compress(codec, content)
        assert in_kernel(codec, data) == (1, size, frames.DONE)
        if size:
            assert in_kernel(codec, data, size - 1) == (0, 0, frames.NO_ROOM)
        packed = np.empty(size + size // 5 + 128, np.uint8)
        plain, starts, ends = columns([content])
        stopped = frames.pack_rows(
            np.array([int(codec)]),
            plain,
            starts,
            ends,
            packed,
            0,
            0,
            native.find_lz4().compress_default,
            native.find_zstd().compress2,
            native.zstd_compressor(),
            np.empty(1, np.int64),
        )
        assert stopped == (1, len(data), frames.DONE)
        assert packed[: len(data)].tobytes() == data


@needs_functions
@pytest.mark.parametrize("options", range(1, 8))
def test_frames_of_other_zstd_writers_stay_in_the_kernel_within_their_window(options: int) -> None:
    within, past = TEXT[: 1 << (10 + options)], TEXT[: (2 << (10 + options)) + 1]
    assert in_kernel(Codec.ZSTD, any_frame(Codec.ZSTD, within, options))[2] == frames.DONE
    frame = any_frame(Codec.ZSTD, past, options & ~1 or 2)
    assert in_kernel(Codec.ZSTD, frame)[2] == frames.NOT_HERE
    assert unpack_all([int(Codec.ZSTD)], [frame], 1 << 20) == [past]


@both_ways
@pytest.mark.parametrize(
    "frame",
    [
        "28b52ffd 00 40 540000 1000000100ffff39c002 1bec0000",
        "28b52ffd 00 40 540000 1000000100ffff39c002 53e50000",
    ],
)
def test_a_zstd_block_longer_than_allowed(frame: str, is_native: bool) -> None:
    """Found by random damage: the library's one-shot decoder takes such blocks, streams do not."""
    with codecs_are(is_native):
        assert unpack_all([int(Codec.ZSTD)], [bytes.fromhex(frame)], 1 << 20) == [None]


@needs_functions
@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD], ids=["lz4", "zstd"])
def test_a_kernel_keeps_to_the_columns_it_is_given(codec: Codec) -> None:
    data = compress(codec, TEXT[:500])
    raw = np.frombuffer(bytearray(data), np.uint8)
    for start, end in ((-1, len(data)), (0, len(data) + 1), (5, 4)):
        stopped = frames.unpack_rows(
            np.array([int(codec)]),
            raw,
            np.array([start]),
            np.array([end]),
            np.empty(1000, np.uint8),
            0,
            0,
            LIMIT_BYTES,
            native.find_lz4().decompress_safe,
            native.find_zstd().decompress_dctx,
            native.zstd_decompressor(),
            np.empty(1, np.int64),
        )
        assert stopped == (0, 0, frames.NOT_HERE)


@both_ways
def test_threads_side_by_side(is_native: bool) -> None:
    rows = [TEXT[at : at + 9000] for at in range(0, 90_000, 3000)]
    codec_of = [int(Codec.LZ4), int(Codec.ZSTD)] * (len(rows) // 2)
    failures: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            packed = pack_all(codec_of, rows)
            if unpack_all(codec_of, packed, 50_000 + number) != rows:
                failures.append(number)

    with codecs_are(is_native):
        expected = pack_all(codec_of, rows)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pack_all(codec_of, rows) == expected
    assert failures == []


@needs_functions
def test_contexts_are_a_threads_own_and_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    library = native.find_zstd().library
    assert library is not None
    for name in ("ZSTD_freeDCtx", "ZSTD_freeCCtx"):
        monkeypatch.setattr(library, name, freed.append)
    made: list[int] = []
    kept: list[weakref.ref[Any]] = []

    def work() -> None:
        for _ in range(2):
            made.extend((native.zstd_decompressor(), native.zstd_compressor()))
        kept.append(weakref.ref(native._contexts.decompressor))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    gc.collect()
    assert made[0:2] == made[2:4]
    assert made[4:6] == made[6:8]
    assert sorted(freed) == sorted([*made[0:2], *made[4:6]])
    assert 0 not in freed
    assert [reference() for reference in kept] == [None, None]
    monkeypatch.undo()
    for address in made[0:2], made[4:6]:
        library.ZSTD_freeDCtx(address[0])
        library.ZSTD_freeCCtx(address[1])


@pytest.mark.parametrize("trouble", ["missing", "hidden", "other version"])
def test_without_functions_the_registry_does_it_all(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        LZ4_versionNumber = ZSTD_versionNumber = staticmethod(lambda: 10_000)

    def load(module: str) -> Any:
        if trouble == "missing":
            raise OSError(module)
        return Library() if trouble == "other version" else ctypes.CDLL(None)

    rows = [TEXT[:70_000], b"", NOISE[:500]]
    expected = {codec: [compress(codec, row) for row in rows] for codec in PACKING}
    native.find_lz4.cache_clear()
    native.find_zstd.cache_clear()
    monkeypatch.setattr(native, "_load", load)
    try:
        assert native.find_lz4() == native.Lz4Functions(0, 0)
        assert native.find_zstd() == native.ZstdFunctions(0, 0, None)
        assert (native.zstd_decompressor(), native.zstd_compressor()) == (0, 0)
        for codec, packed in expected.items():
            assert pack_all([codec] * 3, rows) == packed
            assert unpack_all([codec] * 3, packed, 80_000) == rows
    finally:
        native.find_lz4.cache_clear()
        native.find_zstd.cache_clear()
