"""What every benchmark does besides measuring: options, scratch files, tables, results.

Options: `--quick` runs tiny sizes, to see that everything works, in seconds; `--mib` sets the size
of the logs, `--runs` how often each thing is measured; `--save` appends what is printed to
`benchmarks/results/<name>.txt`.

Scratch files lie in a directory of their own under the system's temporary directory, or under
`STRATALOG_BENCH_DIR`, which must then be on the disk to be measured; it is removed at the end, also
after Ctrl-C and a termination.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from os import environ
from pathlib import Path
from types import FrameType

from yardstick import machine

RUNS = 5
QUICK_RUNS = 3
QUICK_MIB = 8
QUICK_SEGMENT_BYTES = 1 << 20
SEGMENT_BYTES = 128 << 20
MIB = 1 << 20

_RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was told. `mib`: size of a log in MiB; `segment_bytes` goes with it.

    `is_full_size`: the sizes are those that targets are stated for.
    """

    quick: bool
    save: bool
    mib: int
    runs: int
    only: str | None = None
    is_full_size: bool = False

    @property
    def log_bytes(self) -> int:
        return self.mib * MIB

    @property
    def segment_bytes(self) -> int:
        """Smaller logs have smaller segments, or one would hold it all."""
        return QUICK_SEGMENT_BYTES if self.quick else min(SEGMENT_BYTES, self.log_bytes // 4)


def parse_options(description: str | None, *, mib: int, cases: Sequence[str] = ()) -> Options:
    """Read the command line; `mib` is the size without `--quick`, `cases` are for `--only`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it work?")
    parser.add_argument("--save", action="store_true", help="append to benchmarks/results/")
    parser.add_argument("--mib", type=int, help=f"size of the logs in MiB (default {mib})")
    parser.add_argument("--runs", type=int, help=f"measurements of each thing (default {RUNS})")
    if cases:
        parser.add_argument("--only", choices=cases, help="measure this case alone")
    given = parser.parse_args()
    size_mib = given.mib or (QUICK_MIB if given.quick else mib)
    return Options(
        given.quick,
        given.save,
        size_mib,
        given.runs or (QUICK_RUNS if given.quick else RUNS),
        given.only if cases else None,
        is_full_size=size_mib == mib,
    )


@contextmanager
def scratch_directory() -> Iterator[str]:
    """A directory that is there for the time of the `with` block."""
    # A termination becomes an exception, so that gigabytes are not left behind.
    signal.signal(signal.SIGTERM, _terminated)
    parent = environ.get("STRATALOG_BENCH_DIR")
    if parent is not None:
        Path(parent).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-", dir=parent) as directory:
        yield directory


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


class Report:
    """Prints, and remembers what it printed."""

    def __init__(self, title: str, options: Options):
        self._name = Path(sys.argv[0]).stem
        self._saves = options.save
        self._lines: list[str] = []
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        self.line(f"{title} ({now}{', quick: figures mean nothing' if options.quick else ''})")
        for line in machine():
            self.line(line)

    def line(self, text: str = "") -> None:
        """Print a line."""
        print(text, flush=True)
        self._lines.append(text)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows under their header: the first column to the left, numbers to the right."""
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        self.line()
        self.line(title)
        for row in (header, ["-" * width for width in widths], *rows):
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            self.line("  " + "  ".join(cells).rstrip())

    def finish(self) -> None:
        """Append everything to the results if that was asked for."""
        if self._saves:
            _RESULTS.mkdir(exist_ok=True)
            with open(_RESULTS / f"{self._name}.txt", "a", encoding="utf-8") as file:
                file.write("\n".join([*self._lines, "", ""]))


def progress(text: str) -> None:
    """Say what is being done, on standard error: it is no part of the results."""
    print(text, file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def seconds_and_spread(values: Sequence[float]) -> str:
    """Median and range, e.g. `1.52 (1.48-1.60)`."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
