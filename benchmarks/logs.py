"""Logs to measure on: partition directories like the ones a real Kafka was measured with.

A log holds `record_bytes` of uncompressed records with 16-byte random keys, of which a share is
distinct, drawn uniformly; batches of 16 KiB before compression, segments of 128 MiB, both indexes,
an empty active segment. The values are made of labels that repeat and of random bytes, half and
half, which lz4 shrinks about 1.6 times and zstd about 2.2 times; `value_ratios` measures that.

How it works: every batch has the same layout, so one template batch is copied into the rows of a
matrix, and numpy puts keys, random bytes, offsets and timestamps into their columns. Blocks of
batches are made on several threads, each from its own random numbers, and written in order.

Invariants
- L1  Equal shapes give equal bytes, whatever the number of threads (compressed ones: with equal
      versions of the codec libraries).
- L2  The records do not depend on the codec: all codecs have the same keys at the same offsets.
- L3  The files are fsynced and in the page cache when `generate` returns.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from log_files import FIRST_TIMESTAMP_MS, Block, LogWriter

from stratalog.clean.job import CleaningJob, CleanSpec, SourceSegment
from stratalog.record import layout
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.checksum import crc32c
from stratalog.record.codec import Codec, compress
from stratalog.record.varint import size_of_varint
from stratalog.segment.names import FileKind
from stratalog.segment.segment import segment_path

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

KEY_BYTES = 16
NOW_MS = 1_800_000_000_000
DEFAULT_MEMORY_BYTES = CleanSpec(now_ms=NOW_MS).memory_bytes

_FIELD_BYTES = 64
_RANDOM_BYTES = {100: 50, 1024: 495}
"""Calibrated: with these the values alone, a batch's worth at a time, shrink 1.6 and 2.2 times."""
_RANDOM_MASK = 0x7F
"""Seven random bits a byte: something for zstd's entropy coding, nothing for lz4."""
_LABELS = (b"customer", b"country", b"status", b"amount", b"channel", b"currency", b"updated")
_BLOCK_BATCHES = 512


@dataclass(frozen=True, slots=True)
class LogShape:
    """What a log is like. `distinct`: keys to draw from, as a share of the records; `hot`: which
    share of the records has one and the same key."""

    value_bytes: int = 100
    codec: Codec = Codec.NONE
    record_bytes: int = 1 << 30
    distinct: float = 0.1
    batch_bytes: int = 16 << 10
    segment_bytes: int = 128 << 20
    seed: int = 1
    hot: float = 0.0


@dataclass(frozen=True, slots=True)
class BenchLog:
    """A log that `generate` wrote. `keys`: how many distinct ones it really holds."""

    directory: str
    shape: LogShape
    segments: tuple[SourceSegment, ...]
    records: int
    record_bytes: int
    keys: int

    @property
    def log_bytes(self) -> int:
        """The `.log` files."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def ratio(self) -> float:
        """How many times the whole log, keys and headers included, is smaller than its records."""
        return self.record_bytes / self.log_bytes

    @property
    def log_paths(self) -> list[str]:
        """The `.log` files, in order, without the empty active one."""
        return [
            segment_path(self.directory, segment.base_offset, FileKind.LOG)
            for segment in self.segments
        ]

    def linked(self, directory: str) -> BenchLog:
        """The same log in another directory, by hard links: cleaning changes no file in place."""
        os.makedirs(directory)
        for name in os.listdir(self.directory):
            source = os.path.join(self.directory, name)
            if os.path.isfile(source):
                os.link(source, os.path.join(directory, name))
        return replace(self, directory=directory)

    def job(self, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> CleaningJob:
        """A round over all of it, nothing of which was cleaned before."""
        spec = CleanSpec(
            now_ms=NOW_MS,
            segment_bytes=self.shape.segment_bytes,
            memory_bytes=memory_bytes,
            hash_secret=(1, 2),
        )
        return CleaningJob("bench-0", self.directory, spec, self.segments, 0, self.records)


def generate(directory: str, shape: LogShape, threads: int | None = None) -> BenchLog:
    """Write a log into the new directory `directory`."""
    os.makedirs(directory)
    template = _Template(shape)
    batches = max(1, round(shape.record_bytes / template.payload_bytes))
    records = batches * template.records
    key_count = max(1, round(records * shape.distinct))
    rng = np.random.Generator(np.random.SFC64([shape.seed, 0]))
    # Void scalars of 16 bytes: one gather moves whole keys.
    keys = np.frombuffer(rng.bytes(key_count * KEY_BYTES), f"V{KEY_BYTES}")
    is_used = np.zeros(key_count, np.bool_)

    def make(first_batch: int) -> Block:
        count = min(_BLOCK_BATCHES, batches - first_batch)
        return _make_block(template, shape, keys, is_used, first_batch, count)

    writer = LogWriter(directory, shape.segment_bytes, template.records)
    for block in _in_order(make, range(0, batches, _BLOCK_BATCHES), threads or os.cpu_count() or 1):
        writer.write(block)
    segments = writer.finish(records)
    used = int(np.count_nonzero(is_used))
    record_bytes = batches * template.payload_bytes
    return BenchLog(directory, shape, segments, records, record_bytes, used)


def value_ratios(value_bytes: int, batch_bytes: int = 16 << 10) -> tuple[float, float]:
    """How many times lz4 and zstd shrink the values alone, joined as many as a batch holds."""
    text, runs = _value_template(value_bytes)
    count = max(1, batch_bytes // value_bytes)
    rng = np.random.Generator(np.random.SFC64([1, 1]))
    packed = {Codec.LZ4: 0, Codec.ZSTD: 0}
    rounds = 64
    for _ in range(rounds):
        values = np.tile(np.frombuffer(text, np.uint8), (count, 1))
        for start, size in runs:
            values[:, start : start + size] = _random(rng, count * size).reshape(count, size)
        for codec in packed:
            packed[codec] += len(compress(codec, values.tobytes()))
    whole = rounds * count * value_bytes
    return whole / packed[Codec.LZ4], whole / packed[Codec.ZSTD]


# ---------------------------------------------------------------- batches


@dataclass(frozen=True, slots=True)
class _Run:
    """Records of one size: numbers [first, end) of the batch, the first at `position`; where key
    and value begin in each."""

    first: int
    end: int
    position: int
    size: int
    key_at: int
    value_at: int


class _Template:
    """A whole batch of offset 0, and where the parts of its records lie."""

    def __init__(self, shape: LogShape):
        text, self.fields = _value_template(shape.value_bytes)
        self.runs: list[_Run] = []
        position = layout.HEADER_BYTES
        number = 0
        while number == 0 or position + _record_size(number, len(text))[0] <= shape.batch_bytes:
            size, key_at, value_at = _record_size(number, len(text))
            last = self.runs[-1] if self.runs else None
            if last is not None and last.size == size and last.key_at == key_at:
                self.runs[-1] = replace(last, end=number + 1)
            else:
                self.runs.append(_Run(number, number + 1, position, size, key_at, value_at))
            position += size
            number += 1
        key = bytes(KEY_BYTES)
        records = [NewRecord(key, text, FIRST_TIMESTAMP_MS + i) for i in range(number)]
        batch = build_batch(records)
        assert len(batch) == position, (len(batch), position)
        self.batch = np.frombuffer(batch, np.uint8)
        self.records = number
        self.payload_bytes = position - layout.HEADER_BYTES
        self.random_bytes = sum(size for _, size in self.fields)


def _record_size(number: int, value_bytes: int) -> tuple[int, int, int]:
    """(size, where the key begins, where the value begins) of a batch's record `number`, whose
    timestamp and offset deltas are both its number."""
    key_after = 1 + 2 * size_of_varint(number) + size_of_varint(KEY_BYTES)
    value_after = key_after + KEY_BYTES + size_of_varint(value_bytes)
    length = value_after + value_bytes + 1
    prefix = size_of_varint(length)
    return prefix + length, prefix + key_after, prefix + value_after


def _value_template(value_bytes: int) -> tuple[bytes, list[tuple[int, int]]]:
    """A value's bytes, and (position, size) of its random parts."""
    fields = max(1, round(value_bytes / _FIELD_BYTES))
    random_bytes = _RANDOM_BYTES.get(value_bytes, value_bytes // 2)
    text = bytearray()
    runs = []
    for number in range(fields):
        start, end = (value_bytes * n // fields for n in (number, number + 1))
        random = random_bytes * (number + 1) // fields - random_bytes * number // fields
        label = b'","%s_%d":"' % (_LABELS[number % len(_LABELS)], number)
        text += label.ljust(end - start, b".")[: end - start - random]
        runs.append((len(text), random))
        text += bytes(random)
    return bytes(text), runs


def _random(rng: np.random.Generator, count: int) -> Bytes:
    return np.frombuffer(rng.bytes(count), np.uint8) & np.uint8(_RANDOM_MASK)


def _make_block(
    template: _Template,
    shape: LogShape,
    keys: npt.NDArray[np.void],
    is_used: npt.NDArray[np.bool_],
    first_batch: int,
    count: int,
) -> Block:
    rng = np.random.Generator(np.random.SFC64([shape.seed, 1 + first_batch]))
    rows = np.empty((count, len(template.batch)), np.uint8)
    rows[:] = template.batch
    drawn = rng.integers(0, len(keys), (count, template.records))
    if shape.hot:
        drawn[rng.random(drawn.shape) < shape.hot] = 0
    is_used[drawn] = True  # threads only ever set it
    key_bytes = keys[drawn].view(np.uint8).reshape(count, template.records, KEY_BYTES)
    random = _random(rng, count * template.records * template.random_bytes)
    random = random.reshape(count, template.records, template.random_bytes)
    for run in template.runs:
        stretch = rows[:, run.position : run.position + (run.end - run.first) * run.size]
        records = stretch.reshape(count, run.end - run.first, run.size)
        assert np.may_share_memory(records, rows)
        records[:, :, run.key_at : run.key_at + KEY_BYTES] = key_bytes[:, run.first : run.end]
        taken = 0
        for start, size in template.fields:
            at = run.value_at + start
            records[:, :, at : at + size] = random[:, run.first : run.end, taken : taken + size]
            taken += size
    base_offsets = (np.arange(count) + first_batch) * template.records
    timestamps = base_offsets + FIRST_TIMESTAMP_MS
    _put_int64(rows, layout.BASE_OFFSET, base_offsets)
    _put_int64(rows, layout.BASE_TIMESTAMP, timestamps)
    _put_int64(rows, layout.MAX_TIMESTAMP, timestamps + template.records - 1)
    if shape.codec is not Codec.NONE:
        packed = [_packed(row, shape.codec) for row in rows]
        sizes = np.array([len(batch) for batch in packed], np.int64)
        return Block(memoryview(b"".join(packed)), sizes, first_batch)
    checksums = np.array([crc32c(row[layout.ATTRIBUTES :]) for row in rows], ">u4")
    rows[:, layout.CRC : layout.ATTRIBUTES] = checksums.view(np.uint8).reshape(count, 4)
    sizes = np.full(count, rows.shape[1], np.int64)
    return Block(memoryview(rows.reshape(-1)), sizes, first_batch)


def _put_int64(rows: Bytes, position: int, values: Int64s) -> None:
    rows[:, position : position + 8] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


def _packed(row: Bytes, codec: Codec) -> bytes:
    """The batch with its records compressed, checksum and all."""
    payload = compress(codec, row[layout.HEADER_BYTES :])
    head = bytearray(row[: layout.HEADER_BYTES])
    length = layout.HEADER_BYTES - layout.LOG_OVERHEAD + len(payload)
    struct.pack_into(">i", head, layout.LENGTH, length)
    struct.pack_into(">h", head, layout.ATTRIBUTES, int(codec))
    covered = bytes(head[layout.ATTRIBUTES :]) + payload
    struct.pack_into(">I", head, layout.CRC, crc32c(covered))
    return bytes(head[: layout.ATTRIBUTES]) + covered


def _in_order(make: Callable[[int], Block], firsts: range, threads: int) -> Iterator[Block]:
    """The blocks in order, made on `threads` threads, a few ahead."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Block]] = deque()
        for first in firsts:
            waiting.append(pool.submit(make, first))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
