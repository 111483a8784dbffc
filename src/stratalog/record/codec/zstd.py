"""zstd (codec 4), by the zstandard package, which works without the interpreter lock.

Kafka's writer streams: its frames declare no content size and carry no checksum, and so do ours.
For reading, the frames are walked block by block (three bytes of header each), which bounds what
they can unfold to and finds their ends; the library does not say when bytes are left over after a
frame without content size. The buffer is a guess that is enough for usual data, else the bound.

Invariants
- I1  A frame's declared content size is never believed by more than what its blocks can hold.
- I2  Every byte of the payload belongs to a frame that ends inside it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import zstandard

from stratalog.base.errors import CorruptionError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIN_LEVEL: Final = -131072
MAX_LEVEL: Final = 22
DEFAULT_LEVEL: Final = 3

_FIRST_GUESS_FACTOR: Final = 8
_FIRST_GUESS_MIN_BYTES: Final = 1 << 10
_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_MAX_BLOCK_BYTES: Final = 128 << 10
_RLE, _COMPRESSED = 1, 2
_SKIPPABLE: Final = -1


class _Contexts(threading.local):
    """A thread's own contexts; making one takes longer than decompressing a batch with it."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}


_contexts = _Contexts()


def compress(data: Buffer, level: int | None) -> bytes:
    """One frame without content size and checksum, as Kafka's writer makes them."""
    level = DEFAULT_LEVEL if level is None else level
    compressor = _contexts.compressors.get(level)
    if compressor is None:
        compressor = zstandard.ZstdCompressor(
            level=level, write_content_size=False, write_checksum=False
        )
        _contexts.compressors[level] = compressor
    return compressor.compress(memoryview(data))


def decompress(data: Buffer, limit_bytes: int) -> bytes:
    """The content of all frames. Raises `CorruptionError`."""
    view = memoryview(data).cast("B")
    if len(view) == 0:
        raise CorruptionError("zstd data is truncated")
    parts: list[bytes] = []
    total_bytes = 0
    position = 0
    while position < len(view):
        end, bound_bytes, least_bytes = _measure_frame(view, position)
        if bound_bytes != _SKIPPABLE:
            room_bytes = limit_bytes - total_bytes
            if least_bytes > room_bytes:
                raise CorruptionError(f"zstd data unfolds to more than {limit_bytes} bytes")
            part = _decompress_frame(view[position:end], bound_bytes, room_bytes)
            total_bytes += len(part)
            parts.append(part)
        position = end
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_frame(frame: memoryview, bound_bytes: int, room_bytes: int) -> bytes:
    # 0 would mean "no bound" to the library; 1 is right for frames of empty blocks.
    most_bytes = max(1, min(bound_bytes, room_bytes))
    guess_bytes = _FIRST_GUESS_FACTOR * len(frame) + _FIRST_GUESS_MIN_BYTES
    decompressor = _contexts.decompressor
    try:
        # -1: not declared. The library allocates a declared size whatever the maximum says.
        declared_bytes = zstandard.frame_content_size(frame)
        if declared_bytes > bound_bytes:
            raise CorruptionError(f"zstd frame says {declared_bytes} bytes, holds fewer")
        if declared_bytes > room_bytes:
            raise CorruptionError(f"zstd frame of {declared_bytes} bytes, limit {room_bytes}")
        if declared_bytes < 0 and guess_bytes < most_bytes:
            try:
                return decompressor.decompress(frame, max_output_size=guess_bytes)
            except zstandard.ZstdError:
                pass  # too small a guess, or damage: the second attempt tells
        return decompressor.decompress(frame, max_output_size=most_bytes)
    except zstandard.ZstdError as error:
        reason = "is damaged" if bound_bytes <= room_bytes else "is damaged or exceeds its limit"
        raise CorruptionError(f"zstd data {reason}: {error}") from error


def _measure_frame(view: memoryview, start: int) -> tuple[int, int, int]:
    """Where the frame at `start` ends, and the most and the least bytes it can unfold to.

    The most is `_SKIPPABLE` for a frame that is no data.
    """

    def number(position: int, size_bytes: int) -> int:
        if position + size_bytes > len(view):
            raise CorruptionError("zstd data is truncated")
        return int.from_bytes(view[position : position + size_bytes], "little")

    magic = number(start, 4)
    if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
        end = start + 8 + number(start + 4, 4)
        if end > len(view):
            raise CorruptionError("zstd data is truncated")
        return end, _SKIPPABLE, 0
    if magic != _MAGIC:
        raise CorruptionError(f"zstd data is damaged: frame magic {magic:#010x}")
    descriptor = number(start + 4, 1)
    is_single_segment = descriptor >> 5 & 1
    position = start + 5 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    position += (is_single_segment, 2, 4, 8)[descriptor >> 6]
    bound_bytes = least_bytes = 0
    is_last = 0
    while not is_last:
        block = number(position, 3)
        is_last, kind, size_bytes = block & 1, block >> 1 & 3, block >> 3
        if kind > _COMPRESSED or size_bytes > _MAX_BLOCK_BYTES:
            raise CorruptionError("zstd data is damaged: impossible block")
        bound_bytes += _MAX_BLOCK_BYTES if kind == _COMPRESSED else size_bytes
        least_bytes += 0 if kind == _COMPRESSED else size_bytes
        position += 3 + (1 if kind == _RLE else size_bytes)
    end = position + 4 * (descriptor >> 2 & 1)
    if end > len(view):
        raise CorruptionError("zstd data is truncated")
    return end, bound_bytes, least_bytes
