"""Kafka's checkpoint files: one offset a partition, in text, replaced atomically (RCV-3).

    0                       version
    2                       number of entries
    orders 0 1250           topic partition offset
    orders 1 17

`cleaner-offset-checkpoint`, `log-start-offset-checkpoint`, `recovery-point-offset-checkpoint` and
`replication-offset-checkpoint` of a log directory have this form.

A flipped digit would be another offset, and the format has no room for a checksum. But Kafka parts
a line's words at any run of blanks and drops what trails: so the last line that we write ends in 32
blanks, a space for a 0 and a tab for a 1 of the CRC-32C of everything else. Files that Kafka wrote
have none and are taken as they are.

Invariants
- I1  `parse(render(x)) == x`.
- I2  After a crash the file holds the old content or the new, never a mixture.
- I3  A damaged file raises `CorruptionError`; it is never read as "no entries", and of ours every
      damage to an entry is noticed. A file of zero bytes is whole: Kafka makes one before it has
      anything to write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
from stratalog.base.limits import MAX_CHECKPOINT_BYTES
from stratalog.record.checksum import crc32c
from stratalog.segment.names import (
    MAX_OFFSET,
    MAX_PARTITION,
    TopicPartition,
    is_topic_name,
    partition_directory,
)

VERSION = 0
_SEALED = re.compile(r"(.*[^ \t])([ \t]{8,})\n?", re.DOTALL)
"""A text that ends in more blanks than anybody types."""
_MOST_PARSED = 8
_PARSED: dict[str, tuple[bytes, Mapping[TopicPartition, int]]] = {}
"""Of `checkpoint_entry`: the last content of a file, and what it says."""


def read_checkpoint(filesystem: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint file; no file means no entries.

    Raises `CorruptionError`, which names the file.
    """
    try:
        content = read_file(filesystem, path, MAX_CHECKPOINT_BYTES)
    except FileNotFoundError:
        return {}
    try:
        return parse(content)
    except CorruptionError as error:
        raise error.located(path) from None


def checkpoint_entry(filesystem: FileSystem, path: str, key: TopicPartition) -> int | None:
    """The offset that a checkpoint file has for one partition. Raises `CorruptionError`.

    Whoever asks for one partition after another has the file read each time, as it may change, and
    parsed once: ten thousand lines ten thousand times would be minutes.
    """
    try:
        content = read_file(filesystem, path, MAX_CHECKPOINT_BYTES)
    except FileNotFoundError:
        return None
    known = _PARSED.get(path)
    if known is None or known[0] != content:
        try:
            known = (content, parse(content))
        except CorruptionError as error:
            raise error.located(path) from None
        if len(_PARSED) >= _MOST_PARSED:
            _PARSED.clear()
        _PARSED[path] = known
    return known[1].get(key)


def is_sealed(content: bytes) -> bool:
    """Whether a checkpoint's text carries our checksum, so that it was written here."""
    return _SEALED.fullmatch(content.decode("utf-8", "replace")) is not None


def write_checkpoint(
    filesystem: FileSystem, path: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace a checkpoint file, durably: aside, fsync, rename, directory fsync."""
    write_file_atomically(filesystem, path, render(offsets))


def parse(content: bytes) -> dict[TopicPartition, int]:
    """The entries of a checkpoint's text. Raises `CorruptionError` with the line in its reason."""
    entries: dict[TopicPartition, int] = {}
    for number, line in enumerate(text_rows(content, VERSION, 3), start=3):
        topic, partition, offset = line
        key = TopicPartition(topic, integer(partition, number, MAX_PARTITION))
        if not is_topic_name(topic):
            raise CorruptionError(f"line {number}: {topic!r} is no topic name")
        if key in entries:
            raise CorruptionError(f"line {number}: {key} stands there twice")
        entries[key] = integer(offset, number, MAX_OFFSET)
    return entries


def render(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The text of a checkpoint, sorted by topic and partition."""
    assert all(partition_directory(key) for key in offsets)  # or `parse` would refuse it
    lines = [f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items())]
    return render_rows(VERSION, lines)


def render_rows(version: int, lines: Sequence[str]) -> bytes:
    """A text of that form and version, sealed unless it is empty; `text_rows` reads it."""
    text = "\n".join([str(version), str(len(lines)), *lines])
    blanks = _blanks(text) if lines else ""
    return f"{text}{blanks}\n".encode("ascii")


def _blanks(text: str) -> str:
    return f"{crc32c(text.encode('ascii')):032b}".translate({48: " ", 49: "\t"})


def text_rows(content: bytes, version: int, columns: int) -> list[list[str]]:
    """The rows of any of Kafka's checkpoint texts: a version, a count, that many rows of words.

    Raises `CorruptionError` for another version or count, a row of other than `columns` words, or
    a checksum that does not fit.
    """
    if not content:
        return []
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise CorruptionError("not a text file") from None
    if not text.endswith("\n"):
        raise CorruptionError("the last line has no end")
    sealed = _SEALED.fullmatch(text)
    if sealed is not None and not (sealed[1].isascii() and sealed[2] == _blanks(sealed[1])):
        raise CorruptionError("the text does not match its checksum")
    lines = text.splitlines()
    if len(lines) < 2:
        raise CorruptionError("shorter than its two first lines")
    if integer(lines[0], 1, MAX_OFFSET) != version:
        raise CorruptionError(f"version {lines[0]!r}, expected {version}")
    rows = [line.split() for line in lines[2:] if line.strip()]
    if integer(lines[1], 2, MAX_OFFSET) != len(rows):
        raise CorruptionError(f"{len(rows)} entries, expected {lines[1]!r}")
    for number, row in enumerate(rows, start=3):
        if len(row) != columns:
            raise CorruptionError(f"line {number}: {len(row)} words, expected {columns}")
    return rows


def integer(word: str, line_number: int, largest: int) -> int:
    """A decimal number in 0..`largest`. Raises `CorruptionError`."""
    word = word.strip()
    # The length is checked first: int() takes quadratic time, and it accepts signs and underscores.
    if not (word.isascii() and word.isdigit() and len(word) <= 19 and int(word) <= largest):
        raise CorruptionError(f"line {line_number}: {word[:40]!r} is no number from 0 to {largest}")
    return int(word)
