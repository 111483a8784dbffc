"""Rows of CSV and JSON lines, and the records that they become."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from stratalog.admin.rows import Row, RowRules, parse_condition, read_rows, record_maker
from stratalog.base.errors import UsageError
from stratalog.record.builder import NewRecord


def _file(tmp_path: Path, name: str, content: str) -> str:
    path = tmp_path / name
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


CSV = 'id,city\n1,"Köln, Rhein"\n2,\n\n3,"two\nlines"\n'
JSONL = '{"id": 1, "city": "Köln, Rhein"}\n\n{"id": 2, "city": null}\n'


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_csv(tmp_path: Path, name: str) -> None:
    assert list(read_rows(_file(tmp_path, name, "\ufeff" + CSV))) == [
        Row(2, {"id": "1", "city": "Köln, Rhein"}),
        Row(3, {"id": "2", "city": None}),
        Row(6, {"id": "3", "city": "two\nlines"}),
    ]


def test_null_text(tmp_path: Path) -> None:
    rows = list(read_rows(_file(tmp_path, "t.csv", "a,b\nNA,\nx,NA\n"), "NA"))
    assert [row.cells for row in rows] == [{"a": None, "b": None}, {"a": "x", "b": None}]


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "t.jsonl.gz"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    assert list(read_rows(_file(tmp_path, name, JSONL))) == [
        Row(1, {"id": 1, "city": "Köln, Rhein"}),
        Row(3, {"id": 2, "city": None}),
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", "", "no header line"),
        ("t.csv", "a,a\n", "line 1: a column name stands there twice"),
        ("t.csv", "a,b\n1,2\n3\n", "line 3: 1 cells, the header has 2"),
        ("t.csv", 'a\n"x', "line 2: unexpected end of data"),
        ("t.csv", 'a\n"x"y\n', "line 2: "),
        ("t.jsonl", '{"a": 1}\n{"a": \n', "line 2: Expecting value"),
        ("t.jsonl", '{"a": 1}\n[1]\n', "line 2: not a JSON object"),
        ("t.jsonl", "[" * 100_000, "line 1: "),
        ("t.txt", "a\n", "not a .csv or .jsonl file"),
    ],
)
def test_what_is_no_row_is_told_with_its_line(
    tmp_path: Path, name: str, content: str, reason: str
) -> None:
    path = _file(tmp_path, name, content)
    with pytest.raises(UsageError) as refused:
        list(read_rows(path))
    assert str(refused.value).startswith(f"{path}: {reason}")


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a\n\xff\xfe\n")
    (tmp_path / "t.csv.gz").write_bytes(b"no gzip")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a\n" + b"x\n" * 9999)[:-20])
    for name, reason in [
        ("t.csv", "not UTF-8 text"),
        ("t.csv.gz", "damaged gzip file"),
        ("cut.csv.gz", "damaged gzip file"),
        ("none.csv", "No such file"),
    ]:
        with pytest.raises(UsageError, match=reason):
            list(read_rows(str(tmp_path / name)))


@pytest.mark.parametrize(
    ("condition", "column", "yes", "no"),
    [
        ("x is empty", "x", (None, ""), ("a", 0)),
        ("x is not empty", "x", ("a", 0), (None, "")),
        ("two words is empty", "two words", (None,), ("a",)),
        ("x = 1", "x", ("1", 1), ("2", None)),
        ("x=", "x", ("", None), ("a",)),
        ("x != a b", "x", ("a", None), ("a b",)),
        (" x  is  empty ", "x", (None,), ("a",)),
        ("is empty is empty", "is empty", (None,), ("a",)),
    ],
)
def test_conditions(
    condition: str, column: str, yes: tuple[object, ...], no: tuple[object, ...]
) -> None:
    found, holds = parse_condition(condition)
    assert found == column
    assert [holds(cell) for cell in (*yes, *no)] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize("condition", ["", "x", "x is", "= 5", "x < 5"])
def test_other_conditions_are_refused(condition: str) -> None:
    with pytest.raises(UsageError, match="COL is empty"):
        parse_condition(condition)


ROW = Row(7, {"id": "5", "n": 3, "city": "Köln", "gone": None, "at": "2013-01-01T00:00:00"})
NEW_YEAR_MS = 1_356_998_400_000


@pytest.mark.parametrize(
    ("rules", "record"),
    [
        (RowRules(("id",), "city"), NewRecord(b"5", "Köln".encode())),
        (RowRules(("id", "n", "gone"), "n"), NewRecord(b"5|3|", b"3")),
        (RowRules(("n", "city"), "gone", key_separator="/"), NewRecord("3/Köln".encode(), b"")),
        (RowRules(("gone",), "id"), NewRecord(None, b"5")),
        (RowRules(("id",), "city", "at"), NewRecord(b"5", "Köln".encode(), NEW_YEAR_MS)),
        (RowRules(("id",), "city", "n"), NewRecord(b"5", "Köln".encode(), 3)),
        (RowRules(("id",), "city", tombstone_when="gone is empty"), NewRecord(b"5", None)),
        (
            RowRules(("id",), "city", tombstone_when="city != Köln"),
            NewRecord(b"5", "Köln".encode()),
        ),
    ],
)
def test_records(rules: RowRules, record: NewRecord) -> None:
    assert record_maker("t.csv", rules)(ROW) == record


def test_the_whole_row_as_json_is_the_default_value() -> None:
    record = record_maker("t.csv", RowRules(("id",)))(
        Row(1, {"id": "5", "city": "Köln", "x": None})
    )
    assert record.value == '{"id":"5","city":"Köln","x":null}'.encode()


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("1356998400000", NEW_YEAR_MS),
        (NEW_YEAR_MS, NEW_YEAR_MS),
        ("-1", -1),
        ("2013-01-01", NEW_YEAR_MS),
        ("2013-01-01 00:00:00.250", NEW_YEAR_MS + 250),
        ("2013-01-01T01:00:00+01:00", NEW_YEAR_MS),
        ("2013-01-01T00:00:00Z", NEW_YEAR_MS),
    ],
)
def test_timestamps(text: object, timestamp_ms: int) -> None:
    row = Row(1, {"k": "k", "at": text})
    assert record_maker("t", RowRules(("k",), "k", "at"))(row).timestamp == timestamp_ms


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (RowRules(("no",)), "no column 'no'; there are id, n, city, gone, at"),
        (RowRules(("id",), "no"), "no column 'no'"),
        (RowRules(("id",), timestamp="city"), "'Köln' is no timestamp"),
        (RowRules(("id",), timestamp="gone"), "'' is no timestamp"),
        (RowRules(("id",), tombstone_when="no is empty"), "no column 'no'"),
        (RowRules(("id", "at"), key_separator="-"), "a key column contains '-'"),
    ],
)
def test_rows_that_make_no_record_are_told_with_their_line(rules: RowRules, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        record_maker("t.csv", rules)(ROW)
    assert str(refused.value).startswith(f"t.csv: line 7: {reason}")
