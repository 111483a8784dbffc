"""The history of rounds: what was written comes back, whatever lies between, and it stays small."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.history import HISTORY_FILE, Entry, append_history, read_history
from stratalog.clean.job import Drops
from stratalog.segment.names import STATE_DIRECTORY

FS = LocalFileSystem()
NUMBERS = st.integers(0, 1 << 62)
ENTRIES = st.builds(
    Entry,
    *(NUMBERS, NUMBERS, st.text(max_size=9), st.text(max_size=9)),
    cause=st.text(max_size=1000),
    dirty_ratio=st.floats(0, 1),
    keys=NUMBERS,
    drops=st.builds(Drops, NUMBERS, NUMBERS),
)


def entry_of(number: int) -> Entry:
    return Entry(number, 2 * number, "ratio", "cleaned", drops=Drops(superseded=number))


def numbers(directory: Path, limit: int = 256) -> list[int]:
    return [entry.started_ms for entry in read_history(FS, str(directory), limit)]


def file_of(directory: Path) -> Path:
    path = directory / STATE_DIRECTORY / HISTORY_FILE
    path.parent.mkdir(exist_ok=True)
    return path


@pytest.mark.requirement("CLN-9")
@given(st.lists(ENTRIES, max_size=4))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_entries_come_back(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> None:
    directory = tmp_path_factory.mktemp("history")
    for entry in entries:
        append_history(FS, str(directory), entry)
    assert read_history(FS, str(directory)) == entries
    assert all(entry.as_json()["bytes_saved"] == entry.bytes_saved for entry in entries)


@pytest.mark.requirement("CLN-9")
def test_the_newest_are_kept_and_the_file_is_bounded(tmp_path: Path) -> None:
    kept = 5
    for number in range(40):
        long = replace(entry_of(number), cause="\U0001f4a3" * 5000)
        append_history(FS, str(tmp_path), long, kept)
        lines = file_of(tmp_path).read_bytes().splitlines()
        assert min(kept, number + 1) <= len(lines) <= 2 * kept
        assert max(map(len, lines)) < 16 << 10
        found = numbers(tmp_path)
        assert found == list(range(number - len(found) + 1, number + 1))
        assert numbers(tmp_path, 3) == found[-3:]
    assert numbers(tmp_path, 0) == []
    assert [path.name for path in file_of(tmp_path).parent.iterdir()] == [HISTORY_FILE]


def test_a_torn_last_line_goes_and_no_other(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    for number in range(3):
        append_history(FS, str(tmp_path), entry_of(number))
    sound = path.read_bytes()
    last = len(sound.splitlines(keepends=True)[-1])
    for lost in range(1, last + 1):
        path.write_bytes(sound[:-lost])
        assert numbers(tmp_path) == [0, 1]
        append_history(FS, str(tmp_path), entry_of(7))
        assert numbers(tmp_path) == [0, 1, 7], lost
        assert path.read_bytes().startswith(sound[:-last])
    for tail in (b"\0" * 500, b"\r", b"\x85", b"{" * 9):
        path.write_bytes(sound + tail)
        append_history(FS, str(tmp_path), entry_of(7))
        assert numbers(tmp_path) == [0, 1, 2, 7], tail


LINE = json.dumps({**entry_of(1).as_json()})  # with bytes_saved, which is no field
HOSTILE = [
    b"",
    b"\r",
    b"a\rb",
    b"\x0b\x0c\x1c\x85",
    b"null",
    b"[]",
    b"[" * 100_000,
    b"9" * 10_000,
    b'"drops"',
    b"\xff\xfe\x00",
    b'{"drops": {}}',
    b'{"drops": 1, "started_ms": 1}',
    b'{"drops": {"keys": 1}, "started_ms": 1, "duration_ms": 1, "trigger": "", "result": ""}',
    b'{"drops": {}, "started_ms": "1", "duration_ms": 1, "trigger": "", "result": ""}',
    b'{"drops": {}, "started_ms": 1, "duration_ms": 1, "trigger": 5, "result": ""}',
    b'{"drops": {}, "started_ms": [1], "duration_ms": 1, "trigger": "", "result": ""}',
    b'{"drops": {}, "started_ms": true, "duration_ms": 1, "trigger": "", "result": ""}',
    LINE.encode(),
]


def test_lines_that_are_no_entries_are_passed_over(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    random = Random(5)
    noise = [random.randbytes(random.randrange(60)).replace(b"\n", b"") for _ in range(200)]
    for line in [*HOSTILE, *noise]:
        path.unlink(missing_ok=True)
        append_history(FS, str(tmp_path), entry_of(0))
        with path.open("ab") as file:
            file.write(line + b"\n")
        append_history(FS, str(tmp_path), entry_of(1))
        append_history(FS, str(tmp_path), entry_of(2))
        assert numbers(tmp_path) == [0, 1, 2], line[:80]


def test_a_file_out_of_all_bounds_is_begun_anew(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    path.touch()
    os.truncate(path, (64 << 20) + 1)  # a hole: it takes no room
    assert numbers(tmp_path) == []
    append_history(FS, str(tmp_path), entry_of(1))
    assert numbers(tmp_path) == [1]
    assert path.stat().st_size < 4096


@pytest.mark.requirement("CLN-11")
def test_an_entry_has_no_place_for_keys_or_values() -> None:
    """But for the cause, which the errors of cleaning fill: with files and positions."""
    texts = {field.name for field in fields(Entry) if field.type in ("str", str)}
    assert texts == {"trigger", "result", "engine", "thread", "cause", "mode"}
