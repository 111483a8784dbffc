"""Sizes, times and columns for people."""

from __future__ import annotations

import pytest

from stratalog.cli.tables import facts, moment, size, table


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (20 << 10, "20.0 KiB"),
        (999 << 10, "999 KiB"),
        (1 << 30, "1.00 GiB"),
        (1 << 62, "4096 PiB"),
    ],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (None, "-"),
        (-1, "-"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_356_998_400_250, "2013-01-01T00:00:00.250Z"),
        ((1 << 63) - 1, "9223372036854775807 ms"),
    ],
)
def test_times(timestamp_ms: int | None, text: str) -> None:
    assert moment(timestamp_ms) == text


def test_columns_are_aligned_and_the_sum_is_set_off() -> None:
    assert table(["name", "n"], [["a", "1"], ["longer", "23"], ["total", "24"]], last=True) == (
        "name     n\n------  --\na        1\nlonger  23\n------  --\ntotal   24"
    )
    assert facts([("a", "1"), ("bc", "2")]) == "a   1\nbc  2"
