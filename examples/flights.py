"""The demo: a year of flights becomes two compacted topics, Spark cleans them, nothing is lost.

    departures   key: carrier, flight number and origin; value: the departure. A cancelled flight is
                 a tombstone: the latest value of a flight that was last cancelled is "none".
    planes       key: tail number; value: where the plane was last seen. A compacted topic refuses
                 records without a key, and 2,512 events have no tail number.

Eleven months are written and cleaned; then December arrives, and the log is cleaned again: most of
it is clean already, and the tombstones of the first round have been seen by everybody.
Everything but the writing is done by the `stratalog` command, printed as one would type it.
Run it with `make demo`; it writes only into `demo-data`, which it makes anew.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import flights_data
from flights_data import Row

from stratalog.admin.partitioner import partition_of_key
from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidRecordError, StratalogError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec

DATA = Path("demo-data")
LOG, CLEANED = DATA / "log", DATA / "cleaned"
PARTITIONS = 4
BATCH_RECORDS = 200
SETTINGS = LogSettings(
    cleanup_policy=("compact",), segment_bytes=2 << 20, segment_ms=400 * 86_400_000
)
FIRST_OF_DECEMBER = ("--now", "1385856000000")
NEW_YEAR = ("--now", "1388534400000")
"""2013-12-01 and 2014-01-01, 00:00 UTC: the hours of cleaning, so that every run does the same."""


def departure(row: Row) -> NewRecord:
    """The departure of a flight, or a tombstone if it was cancelled."""
    key = f"{row['carrier']}{row['flight']} {row['origin']}".encode()
    value = None if flights_data.is_cancelled(row) else json.dumps(row).encode()
    return NewRecord(key, value, timestamp=flights_data.scheduled_ms(row))


def plane(row: Row) -> NewRecord:
    """Where a plane was last seen; without a tail number, a record without a key."""
    key = None if row["tailnum"] is None else row["tailnum"].encode()
    seen = {"from": row["origin"], "to": row["dest"], "flight": row["flight"]}
    return NewRecord(key, json.dumps(seen).encode(), timestamp=flights_data.scheduled_ms(row))


TOPICS: dict[str, Callable[[Row], NewRecord]] = {"departures": departure, "planes": plane}


def write(directory: Path, is_december: bool) -> None:
    """Append the flights of December, or of the months before, to both topics in `directory`."""
    for topic, record_of in TOPICS.items():
        started = time.monotonic()
        rows = (row for row in flights_data.flights() if (row["month"] == "12") == is_december)
        written, refused = append(directory, topic, map(record_of, rows))
        note = f", {refused:,} without a key were refused" if refused else ""
        seconds = time.monotonic() - started
        print(f"  {directory}/{topic}-*: {written:,} records in {seconds:.1f} s{note}", flush=True)


def append(directory: Path, topic: str, records: Iterable[NewRecord]) -> tuple[int, int]:
    """Append records batch by batch, as a producer would; how many were written and refused."""
    logs = [
        PartitionLog.open(
            str(directory / f"{topic}-{number}"),
            SETTINGS,
            LocalFileSystem(),
            SystemClock(),
            create=True,
        )
        for number in range(PARTITIONS)
    ]
    batches: list[list[NewRecord]] = [[] for _ in logs]
    written = refused = 0

    def send(number: int) -> int:
        batch, batches[number] = batches[number], []
        if batch:
            logs[number].append_records(batch, codec=Codec.LZ4)
        return len(batch)

    for record in records:
        if record.key is None:
            try:
                logs[0].append_records([record])
            except InvalidRecordError:
                refused += 1
            continue
        number = partition_of_key(record.key, PARTITIONS)
        batches[number].append(record)
        if len(batches[number]) == BATCH_RECORDS:
            written += send(number)
    written += sum(send(number) for number in range(PARTITIONS))
    for log in logs:
        log.close()
    return written, refused


def stratalog(*arguments: str) -> None:
    """Run the command line, printed first. Ends the demo if it fails."""
    print(f"\n$ stratalog {shlex.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "stratalog", *arguments], check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def main() -> None:
    started = time.monotonic()
    os.chdir(Path(__file__).resolve().parent.parent)
    shutil.rmtree(DATA, ignore_errors=True)
    LOG.mkdir(parents=True)
    print("==> January to November as two compacted topics of four partitions, by the append API")
    write(LOG, is_december=False)

    print("\n==> what would cleaning do? (nothing is written)")
    stratalog("compact", str(LOG), "--dry-run", "--engine", "local", *FIRST_OF_DECEMBER)

    print("\n==> clean all eight partitions in one Spark job, into a new directory")
    stratalog("compact", str(LOG), "--out", str(CLEANED), "--engine", "spark", *FIRST_OF_DECEMBER)

    print("\n==> is the latest value of every key the same before and after?")
    stratalog("log", "verify", str(CLEANED), "--against", str(LOG))

    print("\n==> December arrives, in the cleaned log and in the one that never was")
    write(CLEANED, is_december=True)
    write(LOG, is_december=True)

    print(
        "\n==> clean again, in place: old tombstones go, what was clean is read but hardly written"
    )
    stratalog("compact", str(CLEANED), "--in-place", "--engine", "local", *NEW_YEAR)
    stratalog("log", "verify", str(CLEANED), "--against", str(LOG))

    print(f"\nDone in {time.monotonic() - started:.0f} s. What there is now:")
    print(f"  {LOG}      the topics as they were written, never cleaned")
    print(f"  {CLEANED}  the same, cleaned twice; a Kafka would open either")
    print("\nTry next (after `. .venv/bin/activate`):")
    print(f"  stratalog log stats {CLEANED}/planes-0")
    print(f"  stratalog log dump {CLEANED}/planes-0 | head")
    print(f"  stratalog compact {LOG} --dry-run --format json")


if __name__ == "__main__":
    try:
        main()
    except StratalogError as error:
        sys.exit(f"demo: {error}")
