"""The demo: a year of flights becomes two compacted topics, Spark cleans them, nothing is lost.

    departures   key: carrier, flight number and origin; value: the departure. A cancelled flight is
                 a tombstone: the latest value of a flight that was last cancelled is "none".
    planes       key: tail number; value: where the plane was last seen. A compacted topic refuses
                 records without a key, and 2,512 events have no tail number.

Everything after the writing is done by the `stratalog` command, printed as one would type it.
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
from collections.abc import Iterator
from pathlib import Path

import flights_data
from flights_data import Row

from stratalog.admin.importing import partition_of_key
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
SETTINGS = LogSettings(cleanup_policy=("compact",), segment_bytes=2 << 20, segment_ms=400 * 86_400_000)
NEW_YEAR_MS = 1_388_534_400_000
"""2014-01-01 00:00 UTC: the hour at which the demo cleans, so that every run does the same."""
DAY_MS = 86_400_000


def departures(rows: Iterator[Row]) -> Iterator[NewRecord]:
    """A departure for each flight that left, a tombstone for each that was cancelled."""
    for row in rows:
        key = f"{row['carrier']}{row['flight']} {row['origin']}".encode()
        value = None if flights_data.is_cancelled(row) else json.dumps(row).encode()
        yield NewRecord(key, value, timestamp=flights_data.scheduled_ms(row))


def planes(rows: Iterator[Row]) -> Iterator[NewRecord]:
    """Where each plane was last seen; without a tail number, a record without a key."""
    for row in rows:
        key = None if row["tailnum"] is None else row["tailnum"].encode()
        seen = {"from": row["origin"], "to": row["dest"], "flight": row["flight"]}
        yield NewRecord(key, json.dumps(seen).encode(), timestamp=flights_data.scheduled_ms(row))


def write_topic(topic: str, records: Iterator[NewRecord]) -> None:
    """Append `records` to a new topic, batch by batch, as a producer would."""
    started = time.monotonic()
    logs = [
        PartitionLog.open(
            str(LOG / f"{topic}-{number}"), SETTINGS, LocalFileSystem(), SystemClock(), create=True
        )
        for number in range(PARTITIONS)
    ]
    batches: list[list[NewRecord]] = [[] for _ in logs]
    written = refused = 0
    for record in records:
        number = 0 if record.key is None else partition_of_key(record.key, PARTITIONS)
        if record.key is None:
            try:
                logs[number].append_records([record])
            except InvalidRecordError:
                refused += 1
            continue
        batches[number].append(record)
        if len(batches[number]) == BATCH_RECORDS:
            logs[number].append_records(batches[number], codec=Codec.LZ4)
            written += BATCH_RECORDS
            batches[number] = []
    for log, batch in zip(logs, batches, strict=True):
        if batch:
            log.append_records(batch, codec=Codec.LZ4)
            written += len(batch)
        log.close()
    note = f", {refused:,} without a key were refused" if refused else ""
    seconds = time.monotonic() - started
    print(f"  {topic}: {written:,} records in {PARTITIONS} partitions, {seconds:.1f} s{note}")


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
    print("==> writing 336,776 flights of 2013 as two compacted topics, through the append API")
    write_topic("departures", departures(flights_data.flights()))
    write_topic("planes", planes(flights_data.flights()))

    print("\n==> what would cleaning do? (nothing is written)")
    now = ("--now", str(NEW_YEAR_MS))
    stratalog("compact", str(LOG), "--dry-run", "--engine", "local", *now)

    print("\n==> clean all eight partitions in one Spark job, into a new directory")
    stratalog("compact", str(LOG), "--out", str(CLEANED), "--engine", "spark", *now)

    print("\n==> is the latest value of every key the same before and after?")
    stratalog("log", "verify", str(CLEANED), "--against", str(LOG))

    print("\n==> a day later the tombstones of cancelled flights have been seen by everybody")
    later = ("--now", str(NEW_YEAR_MS + DAY_MS + 1))
    stratalog("compact", str(CLEANED), "--in-place", "--engine", "local", *later)
    stratalog("log", "verify", str(CLEANED), "--against", str(LOG))

    print(f"\nDone in {time.monotonic() - started:.0f} s. What there is now:")
    print(f"  {LOG}      the topics as they were written, untouched")
    print(f"  {CLEANED}  the same, cleaned; a Kafka would open either")
    print("\nTry next (after `. .venv/bin/activate`):")
    print(f"  stratalog log stats {CLEANED}/planes-0")
    print(f"  stratalog log dump {CLEANED}/planes-0 | head")
    print(f"  stratalog compact {LOG} --dry-run --format json")


if __name__ == "__main__":
    try:
        main()
    except StratalogError as error:
        sys.exit(f"demo: {error}")
