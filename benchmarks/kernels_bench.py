"""How fast is each step of a clean, on one thread, for records of each size?

What      Uncompressed records with 16-byte keys, 10 % of them distinct, and values of 20, 100, 1024
          and 10,240 bytes, chunk after chunk of 4 MiB:
              read      a chunk from the page cache, cut at batch bounds
              CRC       its batches' headers and CRC-32C
              hash      the headers without the CRC, then hash every key and note its offset
              insert    hashes and offsets into a map, which has 24 bytes a key and some room
              probe     the same rows looked up in the full map
              rewrite   the headers again, decide every record, write those that stay
          And the codecs, a chunk's batches of 16 KiB in one call, in bytes of records: `unpack` all
          of them, `pack` them again.
Against   Copying memory, and the md5 yardstick (1 GiB on one thread), in the same run.
How often Medians of 5 runs (`--runs`) over 256 MiB (`--mib`); kernels warm, nothing is written.

    python benchmarks/kernels_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cleaning import warm_kernels
from harness import MIB, Options, Report, median, parse_options, progress, scratch_directory
from logs import BenchLog, LogShape, generate
from yardstick import Yardstick

from stratalog.base.filesystem import LocalFileSystem
from stratalog.base.limits import CHUNK_BYTES
from stratalog.clean.chunk import NO_CRC, Chunk, ChunkReader, Scratch, scan_chunk
from stratalog.clean.decide import DecideContext, decide_chunk
from stratalog.clean.index import ChunkReport, IndexContext, index_chunk
from stratalog.clean.job import CleaningJob, SourceSegment
from stratalog.clean.offset_map import KeyRows, OffsetMap
from stratalog.clean.settle import settle
from stratalog.record.codec import Codec
from stratalog.record.codec.bulk import compress_many, decompress_many, packed_bound_bytes
from stratalog.segment.names import MAX_OFFSET

VALUE_BYTES = (20, 100, 1024, 10_240)
STEPS = ("read", "CRC", "hash", "insert", "probe", "rewrite")
_MAP_BYTES = 1 << 30


class Stopwatch:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def time(self, step: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = call(*arguments, **named)
        self.seconds[step] += time.perf_counter() - start
        return result


def each_chunk(
    job: CleaningJob,
    scratch: Scratch,
    watch: Stopwatch,
    visit: Callable[[SourceSegment, Chunk], None],
) -> None:
    """Read all chunks of the log, one after another."""
    filesystem = LocalFileSystem()
    for segment in job.segments:
        reader = ChunkReader.of(filesystem, job.directory, segment, job.spec)
        while (chunk := watch.time("read", reader.take, scratch)) is not None:
            visit(segment, chunk)


def run_steps(log: BenchLog) -> dict[str, float]:
    """One run of every step over the log; seconds by step."""
    job = log.job()
    scratch = Scratch()
    watch = Stopwatch()
    context = IndexContext.of(job)
    reports: list[ChunkReport] = []
    pieces: list[KeyRows] = []

    def ignore(rows: KeyRows) -> None:
        pass

    def keep(rows: KeyRows) -> None:
        pieces.append(KeyRows(rows.hashes.copy(), rows.offsets.copy()))

    def index(segment: SourceSegment, chunk: Chunk) -> None:
        watch.time("CRC", scan_chunk, chunk, job.spec, -1, scratch)
        hash_keys = partial(
            index_chunk,
            chunk,
            context,
            segment.base_offset,
            crc_from=NO_CRC,
            upper_offset=MAX_OFFSET,
            scratch=scratch,
        )
        reports.append(watch.time("hash", hash_keys, visit=ignore))
        hash_keys(visit=keep)

    each_chunk(job, scratch, watch, index)
    offset_map = OffsetMap(memory_bytes=_MAP_BYTES)
    for rows in pieces:
        watch.time("insert", offset_map.add, rows, scratch)
    assert offset_map.used == log.keys, (offset_map.used, log.keys)
    superseded = 0
    for rows in pieces:
        superseded += len(watch.time("probe", offset_map.superseded, rows, scratch))
    assert superseded == log.records - log.keys, superseded
    markers = settle((report.transactions for report in reports), job.aborted)
    live, dead = offset_map.offsets(), np.empty(0, np.int64)
    decide = DecideContext.of(job, log.records, live, dead, markers, frozenset())
    kept = 0

    def rewrite(segment: SourceSegment, chunk: Chunk) -> None:
        nonlocal kept
        kept += watch.time("rewrite", decide_chunk, chunk, decide, segment, scratch).records_after

    seconds = dict(watch.seconds)
    each_chunk(job, scratch, watch, rewrite)
    assert kept == log.keys, (kept, log.keys)
    return {**seconds, "rewrite": watch.seconds["rewrite"]}


def run_codec(log: BenchLog) -> dict[str, float]:
    """Unpack and pack every batch of the log; seconds by step."""
    job = log.job()
    scratch = Scratch()
    watch = Stopwatch()

    def visit(_segment: SourceSegment, chunk: Chunk) -> None:
        table = scan_chunk(chunk, job.spec, NO_CRC, scratch)
        starts, ends = table["payload_start"].copy(), table["payload_end"].copy()
        codecs = np.full(len(table), int(log.shape.codec), np.int64)
        # Room for the records of a whole chunk; zstd's shrink less than four times.
        room = scratch.take("room", 4 * CHUNK_BYTES)
        limit = job.spec.max_decompressed_bytes
        plain, plain_ends = watch.time(
            "unpack", decompress_many, codecs, chunk.raw, starts, ends, room, limit
        )
        assert len(plain_ends) == len(codecs)
        plain_starts = np.concatenate([np.zeros(1, np.int64), plain_ends[:-1]])
        packed = scratch.take("again", packed_bound_bytes(plain_starts, plain_ends))
        watch.time("pack", compress_many, codecs, plain, plain_starts, plain_ends, packed)

    each_chunk(job, scratch, watch, visit)
    return dict(watch.seconds)


def medians(
    shape: LogShape, run: Callable[[BenchLog], dict[str, float]], runs: int, scratch: str
) -> tuple[BenchLog, dict[str, float]]:
    """Generate a log, run over it; the first run does not count."""
    progress(f"{shape.value_bytes}-byte values, {shape.codec.name.lower()}")
    log = generate(os.path.join(scratch, "log"), shape)
    all_seconds = [run(log) for _ in range(runs + 1)][1:]
    shutil.rmtree(log.directory)
    return log, {step: median([s[step] for s in all_seconds]) for step in all_seconds[0]}


def copy_rate(size_bytes: int) -> float:
    """GB/s of copying memory."""
    source, target = np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        target[:] = source
        taken.append(time.perf_counter() - start)
    return size_bytes / median(taken) / 1e9


def print_steps(report: Report, options: Options, scratch: str) -> None:
    """The steps of a clean, by record size."""
    bytes_rows, record_rows = [], []
    for value_bytes in VALUE_BYTES:
        shape = LogShape(
            value_bytes, record_bytes=options.log_bytes, segment_bytes=options.segment_bytes
        )
        log, seconds = medians(shape, run_steps, options.runs, scratch)
        name = f"{value_bytes:,} bytes, {log.keys:,} keys"
        taken = [seconds[step] for step in STEPS]
        bytes_rows.append((name, *(f"{log.log_bytes / s / 1e9:.2f}" for s in taken)))
        record_rows.append((name, *(f"{log.records / s / 1e6:.2f}" for s in taken)))
    report.table("Steps on one thread, GB of log a second", ("values", *STEPS), bytes_rows)
    report.table("The same in millions of records a second", ("values", *STEPS), record_rows)


def print_codecs(report: Report, options: Options, scratch: str) -> None:
    """The codecs, by record size."""
    rows = []
    for value_bytes in (100, 1024):
        for codec in (Codec.LZ4, Codec.ZSTD):
            shape = LogShape(
                value_bytes,
                codec,
                record_bytes=options.log_bytes,
                segment_bytes=options.segment_bytes,
            )
            log, seconds = medians(shape, run_codec, options.runs, scratch)
            rates = (f"{log.record_bytes / seconds[step] / 1e9:.2f}" for step in ("unpack", "pack"))
            name = f"{codec.name.lower()}, {value_bytes:,} bytes"
            rows.append((name, f"{log.ratio:.2f} x", *rates))
    report.table(
        "Codecs on one thread, GB of records a second",
        ("codec, values", "shrinks", "unpack", "pack"),
        rows,
    )


def main() -> None:
    options = parse_options(__doc__, mib=256)
    report = Report("Steps of a clean", options)
    warm_kernels()
    yardstick = Yardstick(quick=options.quick)
    yardstick.take()
    with scratch_directory() as scratch:
        print_steps(report, options, scratch)
        yardstick.take()
        print_codecs(report, options, scratch)
    yardstick.take()
    report.line()
    report.line(f"copying memory: {copy_rate(min(options.log_bytes, 256 * MIB)):.1f} GB/s")
    report.line(yardstick.describe())
    report.finish()


if __name__ == "__main__":
    main()
