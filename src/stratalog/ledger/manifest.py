"""Which generations of a ledger count: `<partition>/.stratalog/ledgers/manifest`.

    ledgers/manifest       a line of JSON and a line of its CRC-32C, replaced atomically
    ledgers/00000007/      a generation's own files: segments with their usual names

A generation is a compacted copy of [start_offset, horizon). Its segments lie in its own directory,
or in that of an older generation from which nothing had to change: those are referenced, not
copied. A number is given out once a partition's life, so that a name means one content.

Invariants
- I1  A manifest counts wholly or not at all: reached position and generation change together.
- I2  Generations are in the order of their numbers, the last one is in use. Each has a segment.
- I3  Whatever bytes the file holds, it is what was written or a `CorruptionError`.

Source: LDG-1, LDG-6.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import (
    FileSystem,
    make_durable_directory,
    read_file,
    write_file_atomically,
)
from stratalog.record.checksum import crc32c
from stratalog.segment.names import MAX_OFFSET, STATE_DIRECTORY

LEDGERS_DIRECTORY = "ledgers"
MANIFEST_FILE = "manifest"
MAX_NUMBER = 99_999_999
_VERSION = 1
_MAX_BYTES = 64 << 20
"""A few hundred thousand segments; larger is not ours."""


@dataclass(frozen=True, slots=True)
class LedgerSegment:
    """A segment of a generation. `generation`: the one in whose directory its files lie.

    [base_offset, next_offset) is its share of the offsets; sizes in bytes, the time in ms.
    """

    generation: int
    base_offset: int
    next_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A compacted copy of the offsets [start_offset, horizon).

    `records` counts all that it holds, markers too; `distinct_keys` its keys, those of tombstones
    too (None: not known, as it keeps records without a key, or an older version made it);
    `read_bytes`, what was read to make it. `next_expiry_ms`: when the first of its tombstones or
    markers may go, None for never. `order`: the `compaction.strategy` that it was made by.
    [lost_from, lost_below): offsets of which damage has taken records from the raw log.
    """

    number: int
    start_offset: int
    horizon: int
    created_ms: int
    segments: tuple[LedgerSegment, ...] = ()
    records: int = 0
    distinct_keys: int | None = None
    size_bytes: int = 0
    engine: str = "local"
    next_expiry_ms: int | None = None
    order: str = "offset"
    read_bytes: int = 0
    duration_ms: int = 0
    lost_from: int = 0
    lost_below: int = 0

    def as_json(self) -> dict[str, Any]:
        """For people and programs: without the list of segments, with their count."""
        fields = asdict(self)
        fields["segments"] = len(self.segments)
        fields["keys"] = fields.pop("distinct_keys")
        del fields["lost_from"], fields["lost_below"]
        return fields


@dataclass(frozen=True, slots=True)
class Manifest:
    """`generations`, oldest first; `next_number`: what the next one is called."""

    generations: tuple[Generation, ...] = ()
    next_number: int = 1

    @property
    def current(self) -> Generation | None:
        """The generation in use; None: there is no ledger."""
        return self.generations[-1] if self.generations else None

    def find(self, number: int) -> Generation | None:
        """The generation of that number, if it still counts."""
        return next((one for one in self.generations if one.number == number), None)


EMPTY = Manifest()


def switched(manifest: Manifest, new: Generation, retained: int) -> Manifest:
    """With `new` in use, and of all generations the last `retained` (at least 1)."""
    assert retained >= 1, retained
    assert new.number >= manifest.next_number, (new.number, manifest.next_number)
    return Manifest((*manifest.generations, new)[-retained:], new.number + 1)


def cut_back(manifest: Manifest, end_offset: int) -> Manifest:
    """Without the generations whose horizon lies past `end_offset`: the log does not reach there
    any more, and what comes there next is another record."""
    kept = tuple(one for one in manifest.generations if one.horizon <= end_offset)
    return replace(manifest, generations=kept)


def held_alone(current: Generation | None, log_start_offset: int) -> tuple[int, int] | None:
    """The offsets [start, end) within which readers get something of the ledger in use alone, as
    the raw log, which begins at `log_start_offset`, has lost it, to retention or to damage; None:
    there are none."""
    if current is None or log_start_offset > current.horizon:
        return None
    gone = [(current.start_offset, log_start_offset), (current.lost_from, current.lost_below)]
    found = [(max(a, current.start_offset), min(b, current.horizon)) for a, b in gone]
    found = [(a, b) for a, b in found if a < b]
    return (min(a for a, _ in found), max(b for _, b in found)) if found else None


def with_lost(manifest: Manifest, start: int, end: int) -> Manifest:
    """With a note that damage has taken records of the offsets [start, end) from the raw log."""
    return replace(manifest, generations=tuple(_lose(x, start, end) for x in manifest.generations))


def _lose(one: Generation, start: int, end: int) -> Generation:
    if one.lost_below > 0:
        start, end = min(start, one.lost_from), max(end, one.lost_below)
    return replace(one, lost_from=start, lost_below=end)


def note_lost(filesystem: FileSystem, partition_dir: str, start: int, end: int) -> None:
    """Durably, before or after it is so: nobody takes the ledger for a copy then that can be made
    anew. For whoever has no `Ledgers`. Raises as `read_manifest`, `StorageIOError`."""
    before = read_manifest(filesystem, partition_dir)
    after = with_lost(before, start, end)
    if after != before:
        write_manifest(filesystem, partition_dir, after)


def is_outdated(one: Generation, order: str, log_start_offset: int) -> bool:
    """Whether it was made by another order of versions than `order` (CMP-17), and the raw log,
    which begins at `log_start_offset`, still has all that it was made from."""
    has_all = log_start_offset <= one.start_offset and held_alone(one, log_start_offset) is None
    return one.order != order and has_all


def in_order(manifest: Manifest, order: str, log_start_offset: int) -> Manifest:
    """Without the generations that are outdated for an order of versions."""
    kept = tuple(
        one for one in manifest.generations if not is_outdated(one, order, log_start_offset)
    )
    return manifest if kept == manifest.generations else replace(manifest, generations=kept)


def as_of(
    manifest: Manifest,
    *,
    number: int | None = None,
    offset: int | None = None,
    time_ms: int | None = None,
) -> Generation | None:
    """The generation that was asked for by one of the three: by its number; the newest whose
    horizon is at or below `offset`; the newest that was there at `time_ms`. None: there is none."""
    if number is not None:
        return manifest.find(number)
    found = [
        one
        for one in manifest.generations
        if (offset is None or one.horizon <= offset)
        and (time_ms is None or one.created_ms <= time_ms)
    ]
    return found[-1] if found else None


def ledgers_path(partition_dir: str) -> str:
    """Where a partition's ledgers lie."""
    return os.path.join(partition_dir, STATE_DIRECTORY, LEDGERS_DIRECTORY)


def generation_path(partition_dir: str, number: int) -> str:
    """Where the files of a generation lie."""
    assert 0 < number <= MAX_NUMBER, number
    return os.path.join(ledgers_path(partition_dir), f"{number:08d}")


def parse_generation(name: str) -> int | None:
    """The number that a directory's name says; None: it is no generation's."""
    is_number = len(name) == 8 and name.isascii() and name.isdigit()
    return int(name) if is_number and int(name) > 0 else None


def manifest_path(partition_dir: str) -> str:
    """Where the manifest lies."""
    return os.path.join(ledgers_path(partition_dir), MANIFEST_FILE)


def read_manifest(filesystem: FileSystem, partition_dir: str) -> Manifest:
    """The manifest of the partition in `partition_dir`; empty if there is none.

    Raises `CorruptionError`, naming the file, `StorageIOError`.
    """
    path = manifest_path(partition_dir)
    try:
        return decode(read_file(filesystem, path, _MAX_BYTES))
    except FileNotFoundError:
        _check_never_there(filesystem, partition_dir, path)
        return EMPTY
    except CorruptionError as error:
        raise error.located(path) from error


def _check_never_there(filesystem: FileSystem, partition_dir: str, path: str) -> None:
    """A manifest is written before the second generation is begun, and never removed: what is there
    without it has lost it. Raises `CorruptionError`."""
    try:
        found = map(parse_generation, filesystem.list_directory(ledgers_path(partition_dir)))
        newest = max((number for number in found if number is not None), default=0)
    except FileNotFoundError:
        return
    if newest > 1 and not filesystem.exists(path):  # else it has come meanwhile
        raise CorruptionError("the ledgers' manifest is gone, and ledgers are there", file=path)


def write_manifest(filesystem: FileSystem, partition_dir: str, manifest: Manifest) -> None:
    """Replace the manifest, durably. Raises `StorageIOError`: then the old one counts, or it."""
    make_durable_directory(filesystem, ledgers_path(partition_dir))
    write_file_atomically(filesystem, manifest_path(partition_dir), encode(manifest))


def encode(manifest: Manifest) -> bytes:
    """One line of JSON, one of its CRC-32C: a changed digit would be another ledger."""
    content = {"version": _VERSION, **asdict(manifest)}
    for one in content["generations"]:
        if one["lost_below"] == 0:  # which only who knows of it can read
            del one["lost_from"], one["lost_below"]
    line = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    return line + b"%08x\n" % crc32c(line)


def decode(content: bytes) -> Manifest:
    """Raises `CorruptionError`."""
    line, _, rest = content.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line + b"\n"):
        raise CorruptionError("the ledgers' manifest does not match its checksum")
    try:
        fields = json.loads(line)
        if fields.pop("version") != _VERSION:
            raise CorruptionError("the ledgers' manifest is of another version")
        generations = tuple(map(_generation, fields["generations"]))
        manifest = Manifest(generations, fields["next_number"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(f"the ledgers' manifest is unreadable: {error}") from error
    _check(manifest)
    return manifest


def generation_of(fields: Any) -> Generation:
    """A generation from its fields, as `asdict` gives them. Raises `CorruptionError`."""
    try:
        one = _generation(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"no ledger has such fields: {error}") from error
    _check_numbers(one)
    _check_segments(one)
    return one


def _generation(fields: Any) -> Generation:
    parts = tuple(LedgerSegment(**part) for part in fields["segments"])
    # Older versions wrote `keys`: those of what was new.
    told = {name: value for name, value in fields.items() if name != "keys"}
    return Generation(**{**told, "segments": parts})


def _check(manifest: Manifest) -> None:
    generations = manifest.generations
    for one in generations:
        _check_numbers(one)
        _check_segments(one)
    numbers = [one.number for one in generations]
    if numbers != sorted(set(numbers)) or not _is_int(manifest.next_number, MAX_NUMBER + 1):
        raise CorruptionError("the ledgers' manifest names generations out of order")
    if manifest.next_number <= max(numbers, default=0):
        raise CorruptionError("the ledgers' manifest would give a number out twice")


def _check_numbers(one: Generation) -> None:
    numbers = [one.start_offset, one.horizon, one.created_ms, one.records]
    numbers += [one.size_bytes, one.read_bytes, one.duration_ms, one.lost_from, one.lost_below]
    numbers += [it for it in (one.next_expiry_ms, one.distinct_keys) if it is not None]
    if not all(_is_int(number, MAX_OFFSET) for number in numbers):
        raise CorruptionError("the ledgers' manifest holds impossible numbers")
    if not (_is_int(one.number, MAX_NUMBER) and one.number > 0):
        raise CorruptionError("the ledgers' manifest names an impossible generation")
    if one.start_offset > one.horizon or one.lost_from > one.lost_below:
        raise CorruptionError("the ledgers' manifest holds impossible numbers")
    if not all(isinstance(name, str) for name in (one.engine, one.order)):
        raise CorruptionError("the ledgers' manifest holds a number for a name")


def _check_segments(one: Generation) -> None:
    if not one.segments:
        raise CorruptionError("the ledgers' manifest names a generation without a segment")
    for part in one.segments:
        numbers = [part.base_offset, part.next_offset, part.size_bytes, part.modified_ms]
        numbers += [part.offset_index_bytes, part.time_index_bytes]
        is_sound = (
            all(_is_int(number, MAX_OFFSET) for number in numbers)
            and _is_int(part.generation, one.number)
            and part.generation > 0
            and part.base_offset <= part.next_offset <= one.horizon
        )
        if not is_sound:
            raise CorruptionError("the ledgers' manifest names an impossible segment")
    if any(a.next_offset > b.base_offset for a, b in pairwise(one.segments)):
        raise CorruptionError("the ledgers' manifest names segments out of order")
    if len({part.base_offset for part in one.segments}) != len(one.segments):
        raise CorruptionError("the ledgers' manifest names segments out of order")


def _is_int(value: object, largest: int) -> bool:
    # A truth value is an int to Python, too.
    return type(value) is int and 0 <= value <= largest


def referenced(generations: Sequence[Generation]) -> dict[int, set[int]]:
    """Which files the generations need: number of a directory -> base offsets of its segments."""
    needed: dict[int, set[int]] = {}
    for one in generations:
        for part in one.segments:
            needed.setdefault(part.generation, set()).add(part.base_offset)
    return needed
