"""Aligned columns, sizes, counts and times for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, last: bool = False) -> str:
    """Columns under `heads`, the first to the left, the others to the right.

    `last`: a line separates the last row, which sums up.
    """
    widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
    rule = ["-" * width for width in widths]
    lines: list[Sequence[str]] = [heads, rule, *rows]
    if last and len(rows) > 1:
        lines.insert(len(lines) - 1, rule)
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    aligned = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return "  ".join(aligned).rstrip()


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """`name  value` lines, values below one another."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)


def size(size_bytes: int) -> str:
    """A number of bytes in binary units, of three digits or more: `512 B`, `1.50 MiB`."""
    value = float(size_bytes)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{size_bytes} B"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def counted(count: int, noun: str) -> str:
    """`1 segment`, `2 segments`, `2 batches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def change(before: str, after: str) -> str:
    """`before -> after`."""
    return f"{before} -> {after}"


def moment(timestamp_ms: int | None) -> str:
    """A time in UTC; `-` for none."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        found = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
