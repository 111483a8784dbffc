"""Numbers, times and foreign text in the words of the page. Pure.

Sizes are in binary units, numbers have commas, times are UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jinja2.filters import do_filesizeformat

_KEY_CHARACTERS = 80
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def size(size_bytes: int) -> str:
    """`512 Bytes`, `1.5 MiB`, `-3.0 KiB`; `0` needs no unit."""
    if size_bytes == 0:
        return "0"
    return ("-" if size_bytes < 0 else "") + do_filesizeformat(abs(size_bytes), binary=True)


def percent(part: float, whole: float) -> str:
    """`35 %`; `under 1 %` and `over 99 %` rather than a round number that is not true."""
    space = "\N{NO-BREAK SPACE}"
    share = 100 * part / whole if whole > 0 else 0.0
    if 0 < share < 1:
        return f"under 1{space}%"
    if 99 < share < 100:
        return f"over 99{space}%"
    return f"{share:.0f}{space}%"


def day(time_ms: int | None) -> str:
    """`2026-01-31`; `-` for none."""
    return moment(time_ms).partition(" ")[0]


def moment(time_ms: int | None) -> str:
    """`2026-01-31 12:00 UTC`; `-` for none."""
    if time_ms is None or time_ms < 0:
        return "-"
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d %H:%M UTC")
    except OverflowError:
        return f"{time_ms} ms"


def printable(text: str) -> str:
    """Text in which what does not print, such as a byte that is no UTF-8, is written out (I2)."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def shortened(key: str) -> str:
    """A key of bounded length, its end told by how much there is of it."""
    if len(key) <= _KEY_CHARACTERS:
        return key
    more = len(key) - _KEY_CHARACTERS
    return f"{key[:_KEY_CHARACTERS]}… and {more:,} characters more"
