"""What the cleaner remembers of a partition: it comes back as it was, or as nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import LocalFileSystem
from stratalog.clean.note import (
    NOTE_FILE,
    UNKNOWN,
    Failure,
    Note,
    decode,
    encode,
    read_note,
    write_note,
)
from stratalog.record.checksum import crc32c
from stratalog.record.layout import INT64_MAX
from stratalog.segment.names import STATE_DIRECTORY

FS = LocalFileSystem()
OFFSETS = st.none() | st.integers(0, INT64_MAX)
FAILURES = st.builds(
    Failure,
    st.text(max_size=1000),
    st.integers(1, 1 << 40),
    st.integers(0, INT64_MAX),
    st.integers(0, INT64_MAX),
)
NOTES = st.builds(Note, OFFSETS, OFFSETS, st.booleans(), st.none() | FAILURES)
FULL = Note(42, 1_700_000_000_000, True, Failure("a cause", 3, 1, 2))

EDGES: list[object] = [-1, 0, 1, 1 << 63, 1 << 70, 0.5, float("inf"), float("nan"), "", "7", True]
JSON = st.recursive(
    st.none() | st.sampled_from(EDGES) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(NOTES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_note_comes_back(note: Note) -> None:
    assert decode(encode(note)) == note


def test_a_note_comes_back_from_the_disk_and_has_a_bounded_size(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert read_note(FS, directory) == Note()
    long = replace(FULL, failure=Failure("\U0001f4a3\ud800" * 100_000, 1, 1, 1))
    for note in (FULL, long, Note()):
        write_note(FS, directory, note)
        cause = None if note.failure is None else note.failure.cause[:1000]
        found = read_note(FS, directory)
        assert (None if found.failure is None else found.failure.cause) == cause
        assert replace(found, failure=None) == replace(note, failure=None)
        assert (tmp_path / STATE_DIRECTORY / NOTE_FILE).stat().st_size < 16 << 10
    assert [path.name for path in (tmp_path / STATE_DIRECTORY).iterdir()] == [NOTE_FILE]


@pytest.mark.requirement("CMP-9")
def test_a_damaged_note_says_nothing(tmp_path: Path) -> None:
    """Every bit flipped, every length, bytes exchanged: no pause, no failure, unknown expiry."""
    write_note(FS, str(tmp_path), FULL)
    path = tmp_path / STATE_DIRECTORY / NOTE_FILE
    sound = path.read_bytes()
    damaged = [sound[:length] for length in range(len(sound))]
    for bit in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    random = Random(4)
    damaged += [random.randbytes(random.randrange(300)) for _ in range(100)]
    damaged += [sound + b"x", sound * 2, b"\0" * len(sound)]
    for content in damaged:
        path.write_bytes(content)
        assert read_note(FS, str(tmp_path)) == Note(), content
        with pytest.raises(CorruptionError):
            decode(content)
    path.write_bytes(b"x" * (1 << 17))
    assert read_note(FS, str(tmp_path)) == Note(), "larger than any note"
    assert Note().expiry(7, by_segment=False) == UNKNOWN, "it is looked up"


@given(
    JSON, st.sampled_from([None, "checkpoint", "next_expiry_ms", "paused", "failure", "version"])
)
@example([[[]]], None)
@example({"cause": "x", "tries": 0, "failed_ms": 0, "retry_at_ms": 0}, "failure")
@example({"cause": "x", "tries": float("inf"), "failed_ms": 0, "retry_at_ms": 0}, "failure")
@example({"cause": "x", "tries": 1, "failed_ms": 0, "retry_at_ms": -1}, "failure")
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_note_that_is_none_of_ours_says_nothing(value: object, field: str | None) -> None:
    """With the right checksum: whatever stands there, it is a note, or `CorruptionError`."""
    fields = json.loads(encode(FULL).partition(b"\n")[0])
    content = value if field is None else {**fields, field: value}
    _hold(json.dumps(content).encode())


@pytest.mark.parametrize("line", [b"", b"[" * 100_000, b"9" * 10_000, b"\xff\xfe", b"{}"])
def test_hostile_lines(line: bytes) -> None:
    _hold(line)


def _hold(line: bytes) -> None:
    try:
        note = decode(line + b"\n%08x\n" % crc32c(line + b"\n"))
    except CorruptionError:
        return
    for number in (note.checkpoint, note.next_expiry_ms):
        assert number is None or (type(number) is int and 0 <= number <= INT64_MAX)
    assert type(note.paused) is bool
    if note.failure is not None:
        assert note.failure.tries >= 1
        assert 0 <= note.failure.retry_at_ms <= INT64_MAX


@pytest.mark.requirement("CMP-9")
def test_an_expiry_belongs_to_its_checkpoint() -> None:
    note = Note(5, 100)
    assert note.expiry(5, by_segment=False) == 100
    assert Note(5, None).expiry(5, by_segment=False) is None
    for other in (4, 6):
        assert note.expiry(other, by_segment=False) == UNKNOWN
    assert note.expiry(None, by_segment=False) is None, "what was never cleaned has no deadlines"
    assert note.expiry(5, by_segment=True) is None, "by segment, batches have no deadlines"
    assert note.expiry(4, by_segment=True) is None


@pytest.mark.requirement("CMP-8", "CMP-9")
def test_a_round_that_looked_at_no_deadline_leaves_the_expiry_unknown() -> None:
    note = Note(5, 100, failure=Failure("damage", 1, 7, 9))
    assert note.after_round(8, 200) == Note(8, 200)
    assert note.after_round(8, None) == Note(8, None)
    assert note.after_round(8, UNKNOWN) == Note()
    assert note.after_round(8, UNKNOWN).expiry(8, by_segment=False) == UNKNOWN
