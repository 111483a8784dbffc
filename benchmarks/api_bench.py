"""How fast does the Python API read a log, by its three views, and how soon does it begin?

What      One partition of uncompressed records, 16-byte keys (a tenth of them distinct), values of
          100 bytes, and of 1 KiB; compacted into a ledger, then 1 % of the records appended again.
          Read whole by `Topic.read` (records) and `Topic.read_arrow` (batches), by each view.
          MB/s are of the files that a view reads once: the raw log, or the ledger and the tail.
          Then appends of such records to four partitions, many at a time or one by one.
          Then new processes: from `import stratalog` to the first record read, by view; from start
          to end of `stratalog --help`. Their modules are bytecode already, as in what pip installs.
Against   The raw view, read by `PartitionLog.read_records`, which decodes in Python (once), and an
          interpreter that does nothing.
How often Medians of 5 runs of each (`--runs`) after one that does not count, the cases in turn.

    python benchmarks/api_bench.py [--quick] [--save] [--mib N] [--runs N]
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

from harness import MIB, Report, median, parse_options, progress, scratch_directory
from logs import LogShape, generate
from turns import by_turns

import stratalog
from stratalog.segment.names import TopicPartition

_VALUE_BYTES = (100, 1024)
_SLOW = "raw, decoded in Python"
_TAIL = 0.01
_CHUNK = 10_000
_HELP_AIM_SECONDS = 0.3

_FIRST = """
import time
start = time.perf_counter()
import stratalog
with stratalog.open({directory!r}, background=False) as store:
    next(store.topic({topic!r}).read({view!r}))
    print(time.perf_counter() - start)
"""


def drained(rows: Iterable[object]) -> int:
    """How many there are; nobody keeps them."""
    return sum(1 for _ in rows)


def batches_drained(topic: stratalog.Topic, view: str) -> int:
    """How many rows the record batches have."""
    return sum(batch.num_rows for batch in topic.read_arrow(view))  # type: ignore[arg-type]


def with_tail(topic: stratalog.Topic, records: int) -> None:
    """Append the first records again, values and all."""
    head = ((record.key, record.value) for record in topic.read())
    wanted = itertools.islice(head, int(records * _TAIL))
    while batch := list(itertools.islice(wanted, _CHUNK)):
        topic.append_many(batch)


def measured(report: Report, store: stratalog.Store, name: str, runs: int, title: str) -> None:
    """The table of one topic."""
    topic = store.topic(name)
    log = store.desk.service.store.get(TopicPartition(name, 0))
    with store.desk.service.ledgers.compacted(TopicPartition(name, 0)) as view:
        tail = view.raw.read(view.horizon)
        behind = [part for part in view.raw.segments if part.base_offset >= tail.base_offset]
        tail_bytes = sum(part.size_bytes for part in behind) - tail.position
        sizes = {"raw": view.raw.segments.size_bytes}
        sizes["compacted"] = view.parts[0].segments.size_bytes + tail_bytes
    sizes["latest"] = sizes["compacted"]
    cases: dict[str, Callable[[], object]] = {}
    for view_name in ("raw", "compacted", "latest"):
        cases[f"{view_name}, Arrow"] = lambda v=view_name: batches_drained(topic, v)
        cases[f"{view_name}, records"] = lambda v=view_name: drained(topic.read(v))
    cases[_SLOW] = lambda: drained(log.read_records(log.log_start_offset))
    counts = {case: int(str(run())) for case, run in cases.items() if case != _SLOW}
    counts[_SLOW] = counts["raw, records"]
    seconds = by_turns(cases, runs, once=[_SLOW])
    rows = [
        (
            case,
            f"{counts[case]:,}",
            f"{median(taken):.3f} ({min(taken):.3f}-{max(taken):.3f})",
            f"{sizes[case.split(',')[0]] / median(taken) / 1e6:.0f}",
            f"{counts[case] / median(taken) / 1e6:.2f}",
        )
        for case, taken in seconds.items()
    ]
    report.table(title, ("view", "records", "seconds", "MB/s", "million records/s"), rows)


def appends(report: Report, directory: str, runs: int) -> None:
    """How many records a second a topic takes."""
    pairs = [(b"key%013d" % (number % 1000), b"v" * _VALUE_BYTES[0]) for number in range(_CHUNK)]
    with stratalog.open(directory, background=False) as store:
        topic = store.create_topic("appended", partitions=4)

        def one_by_one() -> None:
            for key, value in pairs:
                topic.append(key, value)

        cases: dict[str, Callable[[], object]] = {
            "append_many": partial(topic.append_many, pairs),
            "append, one by one": one_by_one,
        }
        seconds = by_turns(cases, runs)
        rows = [
            (
                case,
                f"{median(taken):.3f} ({min(taken):.3f}-{max(taken):.3f})",
                f"{len(pairs) / median(taken) / 1e6:.3f}",
            )
            for case, taken in seconds.items()
        ]
        title = f"Appending {len(pairs):,} records to four partitions, page cache"
        report.table(title, ("how", "seconds", "million records/s"), rows)
        store.delete_topic("appended")


def run_once(command: list[str], bytecode: str) -> str:
    """What it prints; `bytecode`: the directory for that."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def beginnings(report: Report, directory: str, topic: str, runs: int) -> None:
    """How long new processes take; the first of each makes the bytecode, if there are several."""
    told: dict[str, list[float]] = {}
    bytecode = os.path.join(directory, ".bytecode")
    for number in range(0 if runs > 1 else 1, runs + 1):
        for view in ("raw", "compacted", "latest"):
            program = _FIRST.format(directory=directory, topic=topic, view=view)
            taken = float(run_once([sys.executable, "-c", program], bytecode))
            told.setdefault(f"import stratalog to the first record, {view}", []).append(taken)
        for name, command in (
            ("stratalog --help", [sys.executable, "-m", "stratalog", "--help"]),
            ("an interpreter that does nothing", [sys.executable, "-c", "pass"]),
        ):
            start = time.perf_counter()
            run_once(command, bytecode)
            told.setdefault(name, []).append(time.perf_counter() - start)
        progress(f"beginnings: run {number} of {runs}")
        if number == 0:
            told = {}
    rows = [
        (name, f"{median(taken):.3f} ({min(taken):.3f}-{max(taken):.3f})")
        for name, taken in told.items()
    ]
    report.table(f"Beginnings (aim: under {_HELP_AIM_SECONDS} s)", ("what", "seconds"), rows)


def main() -> None:
    options = parse_options(__doc__, mib=1024)
    report = Report("The Python API reads a log by its views", options)
    with scratch_directory() as scratch:
        for value_bytes in _VALUE_BYTES[:1] if options.quick else _VALUE_BYTES:
            progress(f"generating values of {value_bytes} bytes")
            name = f"values{value_bytes}"
            shape = LogShape(
                value_bytes=value_bytes,
                record_bytes=options.log_bytes,
                segment_bytes=options.segment_bytes,
            )
            log = generate(os.path.join(scratch, f"{name}-0"), shape)
            with stratalog.open(scratch, background=False) as store:
                topic = store.topic(name)
                topic.configure({"compaction.mode": "ledger", "retention.ms": -1})
                topic.compact()
                with_tail(topic, log.records)
                title = f"Values of {value_bytes} bytes: {log.records:,} records, {log.keys:,} keys"
                measured(report, store, name, options.runs, f"{title}, {log.log_bytes // MIB} MiB")
        appends(report, scratch, options.runs)
        beginnings(report, scratch, name, options.runs)
    report.finish()


if __name__ == "__main__":
    main()
