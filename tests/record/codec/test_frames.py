"""What is particular to each codec: the frames Kafka writes, and the odd ones it reads."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard

from stratalog.base.errors import CorruptionError
from stratalog.record.batch import batches
from stratalog.record.codec import Codec, compress, decompress
from stratalog.record.codec.lz4 import _xxh32

CONTENT = b"".join(b"record number %d; " % (i * i) for i in range(9000))
LIMIT_BYTES = 1 << 20


def unpack(codec: Codec, data: bytes, magic: int = 2) -> bytes:
    return decompress(codec, data, LIMIT_BYTES, magic=magic)


@pytest.mark.requirement("LOG-13", "LOG-3")
def test_headers_are_those_of_kafka(
    golden_dir: Path, corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    """The bytes before the first content byte, for every compressed payload of the archives."""
    compared = 0
    paths = [*golden_dir.glob("plain-*/*/golden-0/*.log"), *corpus_dir.glob("log-*/r1-*/*/*.log")]
    for path in sorted(paths):
        for batch in batches(path.read_bytes()):
            codec = batch.header.codec
            if codec is Codec.NONE:
                continue
            written = bytes(batch.data[61:])
            ours = compress(codec, batch.payload())
            if codec is Codec.GZIP:
                assert ours[:10] == written[:10]
                assert ours[-8:] == written[-8:]
            elif codec is Codec.SNAPPY:
                assert ours[:16] == written[:16]
            elif codec is Codec.LZ4:
                assert ours[:7] == written[:7]
                assert ours[-4:] == written[-4:]
            else:
                # Magic and descriptor: no content size, checksum, dictionary. The window follows.
                assert ours[:5] == written[:5] == b"\x28\xb5\x2f\xfd\x00"
            compared += 1
    assert compared > 1000
    count_cases("frames like Kafka's", compared)


def test_gzip_members_follow_one_another() -> None:
    data = gzip.compress(CONTENT[:500]) + gzip.compress(b"") + gzip.compress(CONTENT[500:])
    assert unpack(Codec.GZIP, data) == CONTENT
    assert gzip.decompress(compress(Codec.GZIP, CONTENT)) == CONTENT
    for tail in (b"x", b"\0" * 20):
        with pytest.raises(CorruptionError):
            unpack(Codec.GZIP, data + tail)
    with pytest.raises(CorruptionError, match="unfolds to more"):
        decompress(Codec.GZIP, data, len(CONTENT) - 1)


def test_a_gzip_bomb_that_lies_about_its_size() -> None:
    bomb = bytearray(compress(Codec.GZIP, bytes(4 << 20)))
    with pytest.raises(CorruptionError, match="unfolds to more"):
        unpack(Codec.GZIP, bytes(bomb))
    bomb[-4:] = bytes(4)
    with pytest.raises(CorruptionError, match="unfolds to more"):
        unpack(Codec.GZIP, bytes(bomb))


def test_gzip_checks_its_checksum() -> None:
    data = bytearray(compress(Codec.GZIP, CONTENT))
    data[-8] ^= 1
    with pytest.raises(CorruptionError, match="damaged"):
        unpack(Codec.GZIP, bytes(data))
    with pytest.raises(CorruptionError):
        unpack(Codec.GZIP, zlib.compress(CONTENT))


def test_snappy_blocks_hold_32_kib() -> None:
    data = compress(Codec.SNAPPY, CONTENT)
    assert data[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    position, sizes = 16, []
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        block = data[position + 4 : position + 4 + size]
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(block))))
        position += 4 + size
    assert sizes == [32768] * (len(CONTENT) // 32768) + [len(CONTENT) % 32768]


def test_snappy_without_framing_and_streams_one_after_another() -> None:
    raw = bytes(cramjam.snappy.compress_raw(CONTENT))
    assert unpack(Codec.SNAPPY, raw) == CONTENT
    framed = compress(Codec.SNAPPY, CONTENT)
    assert unpack(Codec.SNAPPY, framed + framed) == CONTENT + CONTENT
    assert unpack(Codec.SNAPPY, compress(Codec.SNAPPY, b"")) == b""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("82534e41505059000000000100000001 7fffffff 00", "does not fit"),
        ("82534e41505059000000000100000001 ffffffff 00", "does not fit"),
        ("82534e41505059000000000100000001 000000", "does not fit"),
        ("82534e41505059000000000100000001 82534e4150505900 00", "header is truncated"),
        ("ffffffffff 00", "no valid length"),
        ("ffffffff0f 00", "exceeds the limit"),
        ("80801f 00", "cannot unfold"),
        ("", "no valid length"),
        ("05 10 6162", "damaged"),
        ("80", "no valid length"),
    ],
)
def test_hostile_snappy(data: str, reason: str) -> None:
    with pytest.raises(CorruptionError, match=reason):
        unpack(Codec.SNAPPY, bytes.fromhex(data))


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, len(CONTENT)])
def test_lz4_frames_are_what_the_library_reads(size: int) -> None:
    data = compress(Codec.LZ4, CONTENT[:size])
    assert lz4.frame.decompress(data) == CONTENT[:size]
    info = lz4.frame.get_frame_info(data)
    assert not info["block_linked"]
    assert not info["content_checksum"]
    assert not info["block_checksum"]
    assert info["content_size"] == 0
    assert info["block_size"] == 65536


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_frames_of_any_independent_kind(
    block_size: int, content_checksum: bool, block_checksum: bool, store_size: bool
) -> None:
    data = lz4.frame.compress(
        CONTENT,
        block_size=block_size,
        block_linked=False,
        content_checksum=content_checksum,
        block_checksum=block_checksum,
        store_size=store_size,
    )
    assert unpack(Codec.LZ4, data) == CONTENT
    assert decompress(Codec.LZ4, data, len(CONTENT)) == CONTENT
    for size in range(0, len(data), 7):
        with pytest.raises(CorruptionError):
            unpack(Codec.LZ4, data[:size])
    with pytest.raises(CorruptionError):
        decompress(Codec.LZ4, data, len(CONTENT) - 1)
    with pytest.raises(CorruptionError):
        unpack(Codec.LZ4, data + b"\0")
    damaged = bytearray(data)
    damaged[-9] ^= 4
    if content_checksum or block_checksum:
        with pytest.raises(CorruptionError):
            unpack(Codec.LZ4, bytes(damaged))


def test_lz4_stores_what_does_not_shrink() -> None:
    noise = bytes(range(256)) * 2
    data = compress(Codec.LZ4, noise[:200])
    assert data == b"\x04\x22\x4d\x18\x60\x40\x82" + b"\xc8\0\0\x80" + noise[:200] + bytes(4)
    assert unpack(Codec.LZ4, data) == noise[:200]


def test_lz4_refuses_what_kafka_refuses() -> None:
    linked = lz4.frame.compress(CONTENT, block_linked=True)
    with pytest.raises(CorruptionError, match="not supported"):
        unpack(Codec.LZ4, linked)
    good = bytearray(compress(Codec.LZ4, CONTENT))
    for position, value, reason in [
        (0, 5, "not an lz4 frame"),
        (4, 0x20, "flags"),
        (4, 0x61, "flags"),
        (4, 0x62, "flags"),
        (5, 0x30, "block descriptor"),
        (5, 0xC0, "block descriptor"),
        (5, 0x41, "block descriptor"),
        (6, 0x83, "header fails its checksum"),
    ]:
        data = bytearray(good)
        data[position] = value
        with pytest.raises(CorruptionError, match=reason):
            unpack(Codec.LZ4, bytes(data))


def test_lz4_content_size_is_held_against_the_content() -> None:
    data = bytearray(lz4.frame.compress(CONTENT, block_linked=False, store_size=True))
    data[6] ^= 1
    data[14] = _xxh32(bytes(data[4:14])) >> 8 & 0xFF
    with pytest.raises(CorruptionError, match="says otherwise"):
        unpack(Codec.LZ4, bytes(data))


@pytest.mark.requirement("LOG-4", "LOG-13")
def test_lz4_of_magic_0_has_its_own_header_checksum() -> None:
    new, old = compress(Codec.LZ4, CONTENT, magic=1), compress(Codec.LZ4, CONTENT, magic=0)
    assert new[:6] == old[:6]
    assert new[7:] == old[7:]
    assert old[6] == _xxh32(old[:6]) >> 8 & 0xFF != new[6]
    assert unpack(Codec.LZ4, old, magic=0) == unpack(Codec.LZ4, new, magic=0) == CONTENT
    with pytest.raises(CorruptionError, match="checksum"):
        unpack(Codec.LZ4, old, magic=1)
    checked = bytearray(
        lz4.frame.compress(CONTENT, block_linked=False, content_checksum=True, store_size=False)
    )
    checked[6] ^= 0xFF
    assert unpack(Codec.LZ4, bytes(checked), magic=0) == CONTENT
    with pytest.raises(CorruptionError):
        unpack(Codec.LZ4, bytes(checked))


@pytest.mark.parametrize(
    ("data", "digest"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"Hello", None)],
)
def test_xxh32(data: bytes, digest: int | None) -> None:
    if digest is not None:
        assert _xxh32(data) == digest
    # Against the library: a frame header's checksum, of 2 and of 10 bytes.
    for store_size in (False, True):
        frame = lz4.frame.compress(data, store_size=store_size)
        end = 14 if store_size and data else 6
        assert frame[end] == _xxh32(frame[4:end]) >> 8 & 0xFF


@pytest.mark.parametrize("write_content_size", [False, True])
@pytest.mark.parametrize("write_checksum", [False, True])
@pytest.mark.parametrize("content", [b"", b"x", CONTENT, bytes(400_000)])
def test_zstd_frames_of_any_kind(
    write_content_size: bool, write_checksum: bool, content: bytes
) -> None:
    frame = zstandard.ZstdCompressor(
        write_content_size=write_content_size, write_checksum=write_checksum
    ).compress(content)
    skippable = (0x184D2A53).to_bytes(4, "little") + b"\x03\0\0\0abc"
    assert decompress(Codec.ZSTD, frame, len(content)) == content
    assert unpack(Codec.ZSTD, skippable + frame + frame + skippable) == content * 2
    for tail in (b"\0", b"\x28\xb5\x2f\xfd", frame[:-1], skippable[:-1]):
        with pytest.raises(CorruptionError):
            unpack(Codec.ZSTD, frame + tail)
    if content:
        with pytest.raises(CorruptionError):
            decompress(Codec.ZSTD, frame + frame, 2 * len(content) - 1)


def test_zstd_checks_a_checksum_that_is_there() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT))
    frame[-1] ^= 1
    with pytest.raises(CorruptionError, match="damaged"):
        unpack(Codec.ZSTD, bytes(frame))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "truncated"),
        ("28b52ffd", "truncated"),
        ("28b52ffe 00 58 010000", "magic"),
        # Declares 2^40 bytes of content in one empty block.
        ("28b52ffd e0 0000000000010000 010000", "holds fewer"),
        # An RLE block of 128 KiB each three bytes: known to be too much before it is unfolded.
        ("28b52ffd 00 58 " + "020010 61" * 9 + "030010 61", "unfolds to more"),
        ("28b52ffd 00 58 070000", "impossible block"),
        ("28b52ffd 00 58 0d0010", "impossible block"),
        ("28b52ffd 00 58 ffff", "truncated"),
        ("28b52ffd 04 58 010000 0000", "truncated"),
    ],
)
def test_hostile_zstd(data: str, reason: str) -> None:
    with pytest.raises(CorruptionError, match=reason):
        unpack(Codec.ZSTD, bytes.fromhex(data))
