"""What a measurement is held against: this machine, and how long it takes to hash 1 GiB.

The yardstick is the time of `hashlib.md5` over 1 GiB in memory on one thread. It is taken before,
between and after the measurements of one run, and its median counts, so that figures from machines
of different speed can be compared, and a machine that slows down meanwhile shows.
"""

from __future__ import annotations

import hashlib
import os
import platform
import statistics
import time
from importlib import metadata

import numpy as np

_WHOLE_BYTES = 1 << 30
_QUICK_BYTES = 16 << 20
_PACKAGES = ("numba", "llvmlite", "numpy", "lz4", "zstandard", "pyspark", "pyarrow")


class Yardstick:
    """Takes the yardstick as often as it is asked to. Quick ones hash less and are scaled up."""

    def __init__(self, *, quick: bool = False):
        self._size_bytes = _QUICK_BYTES if quick else _WHOLE_BYTES
        self._taken: list[float] = []

    def take(self) -> float:
        """Measure once more; seconds for 1 GiB."""
        # Ones, because untouched zeros would all be the same page of memory.
        content = np.ones(self._size_bytes, np.uint8)
        start = time.perf_counter()
        hashlib.md5(content, usedforsecurity=False).digest()
        seconds = (time.perf_counter() - start) * (_WHOLE_BYTES / self._size_bytes)
        self._taken.append(seconds)
        return seconds

    @property
    def seconds(self) -> float:
        """The median of what was taken so far."""
        return statistics.median(self._taken)

    def describe(self) -> str:
        """One line for the end of a report."""
        note = ", scaled up from less" if self._size_bytes < _WHOLE_BYTES else ""
        spread = f"{min(self._taken):.2f} to {max(self._taken):.2f}"
        return (
            f"yardstick: md5 of 1 GiB on one thread takes {self.seconds:.2f} s "
            f"(median of {len(self._taken)}, {spread}{note})"
        )


def machine() -> list[str]:
    """Lines that describe this machine and the versions that matter."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.release()}"
    versions = [f"Python {platform.python_version()}", f"stratalog {_stratalog_version()}"]
    versions += filter(None, map(_version, _PACKAGES))
    lines = [
        f"machine: {_processor()}, {cores} cores, {memory_gib:.0f} GiB, {system}",
        ", ".join(versions),
    ]
    load = os.getloadavg()[0]
    if load > 0.5:
        lines.append(f"note: the machine was busy when this began (load {load:.1f}): expect noise")
    return lines


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _stratalog_version() -> str:
    import stratalog

    return stratalog.__version__


def _version(package: str) -> str | None:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None
