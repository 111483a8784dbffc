"""How much memory does a clean take, and does that grow with the log?

What      The local engine with two threads, each clean in a process of its own: 1 GiB and 4 GiB of
          uncompressed records with 100-byte values and 10 % distinct keys within the default
          dedupe buffer (128 MiB); and 1 GiB whose keys are mostly distinct within a buffer so
          small that it takes many hash ranges, one pass over the log each.
Against   The stated bound: `memory_bytes`, which the map and the offsets of live keys share, and
          the threads' buffers, whose size does not depend on the log's. The offsets, 8 bytes a
          live key, grow with the log; past their share of `memory_bytes` they lie in a mapped
          file, which the system can write out and drop at any time.
How often Once. "peak" is anonymous memory (`RssAnon`), sampled every 2 ms, less what the process
          had before the clean; "mapped" the growth of mapped files (`RssFile`), code included;
          "process" the peak of everything resident (`VmHWM`), Python and kernels too. Linux only.

    python benchmarks/memory_bench.py [--quick] [--save] [--mib N]
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from cleaning import check, warm_kernels
from disk import TimedFileSystem
from harness import MIB, Options, Report, parse_options, progress, scratch_directory
from logs import DEFAULT_MEMORY_BYTES, BenchLog, LogShape, generate

from stratalog.clean.engine import Progress
from stratalog.clean.local_engine import LocalEngine

_THREADS = 2
_SAMPLE_SECONDS = 0.002
_OFFSET_BYTES = 8
_FULL_MIB = 1024
_CHILD = "--child"


@dataclass(frozen=True, slots=True)
class Case:
    """What is cleaned within which buffer. `small_buffer`: an eighth of the default, and in
    proportion less for smaller logs."""

    times: int = 1
    distinct: float = 0.1
    small_buffer: bool = False

    def memory_bytes(self, options: Options) -> int:
        if not self.small_buffer:
            return DEFAULT_MEMORY_BYTES
        return DEFAULT_MEMORY_BYTES // 8 * options.mib // _FULL_MIB


CASES = (Case(), Case(times=4), Case(distinct=1.0, small_buffer=True))


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the child process saw, in bytes; `passes`: how often it read the whole log."""

    buffers: int
    index: int
    rewrite: int
    mapped: int
    process: int
    passes: float


class Sampler:
    """Looks at this process's memory every few milliseconds while its `with` block runs."""

    def __init__(self) -> None:
        self.phase = "index"
        self.anonymous: defaultdict[str, int] = defaultdict(int)
        self.mapped = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def on_progress(self, done: Progress) -> None:
        """Note which phase the clean is in."""
        self.phase = done.phase

    def _run(self) -> None:
        while True:
            phase, status = self.phase, memory_status()
            self.anonymous[phase] = max(self.anonymous[phase], status["RssAnon"])
            self.mapped = max(self.mapped, status["RssFile"])
            if self._stop.wait(_SAMPLE_SECONDS):
                return


def memory_status() -> dict[str, int]:
    """What the system says of this process's memory, in bytes."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        fields = [line.split() for line in lines if line.startswith(("Rss", "VmHWM"))]
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def clean_here(log: BenchLog, memory_bytes: int) -> Peaks:
    """Clean the log in this process, and watch."""
    warm_kernels()
    disk = TimedFileSystem()
    engine = LocalEngine(disk, threads=_THREADS)
    job = log.job(memory_bytes=memory_bytes)
    gc.collect()
    before = memory_status()
    with Sampler() as sampler:
        (outcome,) = engine.clean([job], writes=True, on_progress=sampler.on_progress)
    check(outcome, log)
    return Peaks(
        engine.scratch_bytes,
        sampler.anonymous["index"] - before["RssAnon"],
        sampler.anonymous["rewrite"] - before["RssAnon"],
        sampler.mapped - before["RssFile"],
        memory_status()["VmHWM"],
        disk.read_bytes / log.log_bytes,
    )


def measure(case: Case, options: Options, scratch: str) -> tuple[BenchLog, Peaks]:
    """Generate the case's log, clean it in a new process."""
    progress(f"{case.times * options.mib} MiB: generating")
    shape = LogShape(
        record_bytes=case.times * options.log_bytes,
        distinct=case.distinct,
        segment_bytes=options.segment_bytes,
    )
    log = generate(os.path.join(scratch, "log"), shape)
    progress(f"{case.times * options.mib} MiB: cleaning")
    facts = Path(scratch, "facts")
    facts.write_bytes(pickle.dumps((log, case.memory_bytes(options))))
    child = subprocess.run(
        [sys.executable, __file__, _CHILD, str(facts)], stdout=subprocess.PIPE, check=True
    )
    shutil.rmtree(log.directory)
    return log, Peaks(**json.loads(child.stdout))


def main() -> None:
    options = parse_options(__doc__, mib=_FULL_MIB)
    report = Report("Memory of a clean with the local engine, in MiB", options)
    warm_kernels()
    with scratch_directory() as scratch:
        measured = [(case, *measure(case, options, scratch)) for case in CASES]
    rows = []
    for case, log, peaks in measured:
        memory_bytes = case.memory_bytes(options)
        bound = memory_bytes + peaks.buffers
        peak = max(peaks.index, peaks.rewrite)
        rows.append(
            (
                f"{case.times * options.mib} MiB, {log.keys:,} keys",
                f"{peaks.passes:.1f}",
                *(
                    f"{size / MIB:.1f}"
                    for size in (
                        memory_bytes,
                        log.keys * _OFFSET_BYTES,
                        peaks.buffers,
                        bound,
                        peaks.index,
                        peaks.rewrite,
                        peaks.mapped,
                        peaks.process,
                    )
                ),
                f"{100 * peak / bound:.0f} %",
            )
        )
    report.table(
        "Bound: memory_bytes + buffers. Peaks: anonymous memory less that before the clean.",
        (
            "log",
            "passes",
            "memory_bytes",
            "live offsets",
            "buffers",
            "bound",
            "peak, index",
            "rewrite",
            "mapped",
            "process",
            "of bound",
        ),
        rows,
    )
    (_, small, small_peaks), (_, large, large_peaks), _ = measured
    report.line()
    report.line(
        f"From {small.record_bytes / MIB:.0f} to {large.record_bytes / MIB:.0f} MiB the live "
        f"offsets grow by {(large.keys - small.keys) * _OFFSET_BYTES / MIB:.1f}, the peak while "
        f"rewriting by {(large_peaks.rewrite - small_peaks.rewrite) / MIB:.1f}, while indexing "
        f"(the map fills towards its bound) by {(large_peaks.index - small_peaks.index) / MIB:.1f}."
    )
    report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        found = clean_here(*pickle.loads(Path(sys.argv[2]).read_bytes()))
        print(json.dumps(asdict(found)))
    else:
        main()
