"""Rows of CSV and JSON-lines files, and what becomes of each: key, value, timestamp.

A row is a mapping of column names to values, with the number of its line. A file that ends in
`.gz` is unpacked on the way. Cells are taken as they are: nothing is stripped.

Invariants
- I1  Rows come one at a time: a file of any size takes the memory of one row.
- I2  Whatever is wrong with a row raises `UsageError` with the file and the line.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any

from stratalog.base.errors import UsageError
from stratalog.base.limits import LATEST_MS
from stratalog.record.builder import NewRecord

MAX_LINE_CHARACTERS = 64 << 20
"""Longer lines cannot be records: the largest batch that a log takes by default is 1 MiB."""

Cells = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands: the number of its (last) line, from 1."""

    line: int
    cells: Cells


@dataclass(frozen=True, slots=True)
class RowRules:
    """How a row becomes a record.

    `key`: columns, joined by `key_separator`; `value`: a column, None for the whole row as JSON;
    `timestamp`: a column of ms since the epoch or ISO 8601 (UTC unless it says otherwise), None for
    the log's clock; `tombstone_when`: see `parse_condition`; `null`: the text of an empty CSV cell
    besides the empty one.
    """

    key: tuple[str, ...]
    value: str | None = None
    timestamp: str | None = None
    tombstone_when: str | None = None
    null: str = ""
    key_separator: str = "|"


def read_rows(path: str, null: str = "") -> Iterator[Row]:
    """The rows of a `.csv` or `.jsonl` file, also with `.gz` behind.

    Cells that are empty, or equal `null`, are None. Raises `UsageError` with the line.
    """
    plain = path.removesuffix(".gz")
    with _open_text(path) as lines:
        try:
            if plain.endswith((".jsonl", ".ndjson")):
                yield from _json_rows(path, lines)
            elif plain.endswith(".csv"):
                yield from _csv_rows(path, lines, null)
            else:
                raise UsageError(f"{path}: not a .csv or .jsonl file")
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not UTF-8 text ({error.reason})") from None
        except (EOFError, gzip.BadGzipFile) as error:
            raise UsageError(f"{path}: damaged gzip file ({error})") from None


def _open_text(path: str) -> IO[str]:
    try:
        if path.endswith(".gz"):
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return open(path, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _csv_rows(path: str, lines: IO[str], null: str) -> Iterator[Row]:
    before = csv.field_size_limit(MAX_LINE_CHARACTERS)
    reader = csv.reader(lines, strict=True)
    try:
        names = next(reader, None)
        if not names:
            raise UsageError(f"{path}: no header line")
        if len(set(names)) != len(names):
            raise UsageError(f"{path}: line 1: a column name stands there twice")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                raise UsageError(
                    f"{path}: line {reader.line_num}: {len(cells)} cells, the header has "
                    f"{len(names)}"
                )
            yield Row(
                reader.line_num,
                {
                    name: None if cell in ("", null) else cell
                    for name, cell in zip(names, cells, strict=True)
                },
            )
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(before)


def _json_rows(path: str, lines: IO[str]) -> Iterator[Row]:
    number = 0
    while line := lines.readline(MAX_LINE_CHARACTERS):
        number += 1
        if len(line) == MAX_LINE_CHARACTERS:
            raise UsageError(f"{path}: line {number}: longer than {MAX_LINE_CHARACTERS} characters")
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: line {number}: {error}") from None
        if not isinstance(cells, dict):
            raise UsageError(f"{path}: line {number}: not a JSON object")
        yield Row(number, cells)


_EMPTINESS = re.compile(r"(?P<column>.+?)\s+is\s+(?P<negation>not\s+)?empty", re.DOTALL)
_PAIR = re.compile(r"(?P<column>.+?)\s*(?P<sign>!=|=)\s*(?P<text>.*)", re.DOTALL)


def parse_condition(condition: str) -> tuple[str, Callable[[Any], bool]]:
    """A column, and what is asked of its cell.

    `COL is empty`, `COL is not empty`, `COL = TEXT`, `COL != TEXT`. Raises `UsageError`.
    """
    found = _EMPTINESS.fullmatch(condition.strip())
    if found is not None:
        wants_empty = not found["negation"]
        return found["column"], lambda cell: (cell in (None, "")) == wants_empty
    pair = _PAIR.fullmatch(condition.strip())
    if pair is None:
        raise UsageError(
            f"{condition!r}: not 'COL is empty', 'COL is not empty', 'COL = TEXT' or 'COL != TEXT'"
        )
    wants_equal, text = pair["sign"] == "=", pair["text"]
    return pair["column"], lambda cell: (_text(cell) == text) == wants_equal


def record_maker(path: str, rules: RowRules) -> Callable[[Row], NewRecord]:
    """What makes a row's record; it raises `UsageError` with the line."""
    tombstone = None if rules.tombstone_when is None else parse_condition(rules.tombstone_when)

    def make(row: Row) -> NewRecord:
        try:
            is_tombstone = tombstone is not None and tombstone[1](_cell(row, tombstone[0]))
            return NewRecord(
                _key(row, rules),
                None if is_tombstone else _value(row, rules),
                None if rules.timestamp is None else _timestamp(_cell(row, rules.timestamp)),
            )
        except UsageError as error:
            raise UsageError(f"{path}: line {row.line}: {error}") from None

    return make


def _cell(row: Row, column: str) -> Any:
    try:
        return row.cells[column]
    except KeyError:
        raise UsageError(f"no column {column!r}; there are {', '.join(row.cells)}") from None


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else _json(cell)


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _key(row: Row, rules: RowRules) -> bytes | None:
    """None if all of its columns are empty."""
    cells = [_cell(row, column) for column in rules.key]
    if all(cell in (None, "") for cell in cells):
        return None
    texts = [_text(cell) for cell in cells]
    if len(texts) > 1 and any(rules.key_separator in text for text in texts):
        raise UsageError(
            f"a key column contains {rules.key_separator!r}: choose another --key-separator"
        )
    return rules.key_separator.join(texts).encode(errors="surrogatepass")


def _value(row: Row, rules: RowRules) -> bytes:
    text = _json(row.cells) if rules.value is None else _text(_cell(row, rules.value))
    return text.encode(errors="surrogatepass")


def _timestamp(cell: Any) -> int:
    """Milliseconds since the epoch; -1 is Kafka's word for none."""
    timestamp = _milliseconds(cell)
    if not -1 <= timestamp <= LATEST_MS:
        raise UsageError(f"{_text(cell)!r} lies before 1970 or after 9999")
    return timestamp


def _milliseconds(cell: Any) -> int:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return cell
    text = _text(cell)
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no timestamp (milliseconds, or ISO 8601)") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
