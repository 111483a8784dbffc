"""From what size on does `latest_frame` shuffle a partition rather than let one task read it?

What      One partition of uncompressed records, values of 100 bytes, 16-byte keys of which 10 % are
          distinct, of 128, 256, 512 and 1024 MiB (`--mib` is the largest), on `local[2]`: the
          newest record of each key, every column looked at.
Against   The same frame with `shuffleBytes=0` (index, shuffle, merge, shuffle, read on both cores)
          and without a shuffle (one task, one core), by turns.
How often Medians of 5 runs of each (`--runs`) after one that does not count.

    python benchmarks/spark_latest_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness import MIB, Report, median, parse_options, progress, scratch_directory
from harness import seconds_and_spread as spread
from logs import BenchLog, LogShape, generate
from turns import CORES, bench_session, by_turns

from stratalog.pipeline.latest_frame import latest_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHARES = (8, 4, 2, 1)
_NEVER = 1 << 60


def measure(spark: SparkSession, log: BenchLog, runs: int) -> dict[str, list[float]]:
    """Seconds in one task, and by the shuffle."""

    def read(shuffle_bytes: int) -> None:
        frame = latest_frame(spark, log.directory, shuffleBytes=shuffle_bytes)
        frame.selectExpr(f"bit_xor(xxhash64({', '.join(frame.columns)}))").collect()

    return by_turns({"one task": lambda: read(_NEVER), "shuffle": lambda: read(0)}, runs)


def main() -> None:
    options = parse_options(__doc__, mib=1024)
    report = Report("The newest value per key: one task, or a shuffle", options)
    rows, turns_at = [], None
    with scratch_directory() as scratch, bench_session(scratch) as spark:
        for size_mib in sorted({max(1, options.mib // share) for share in _SHARES}):
            progress(f"generating {size_mib} MiB")
            segment_bytes = min(options.segment_bytes, max(1, size_mib // 4) * MIB)
            shape = LogShape(record_bytes=size_mib * MIB, segment_bytes=segment_bytes)
            log = generate(os.path.join(scratch, f"size{size_mib}-0"), shape)
            seconds = measure(spark, log, options.runs)
            ratio = median(seconds["one task"]) / median(seconds["shuffle"])
            turns_at = turns_at or (size_mib if ratio > 1 else None)
            times = (spread(seconds[name]) for name in ("one task", "shuffle"))
            rows.append((f"{size_mib:,}", f"{log.keys:,}", *times, f"{ratio:.2f}"))
    report.table(
        f"seconds on {CORES} cores",
        ("MiB", "keys", "one task", "shuffle", "one task / shuffle"),
        rows,
    )
    report.line()
    at = f"from {turns_at:,} MiB on" if turns_at else "at none of these sizes"
    report.line(f"The shuffle is faster {at}")
    report.finish()


if __name__ == "__main__":
    main()
