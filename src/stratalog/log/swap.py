"""Putting cleaned segments in the place of the segments they were made from (CMP-12, RCV-5, RCV-6).

Kafka tells from file names alone how far a swap has come, which fails when directory operations
reach the disk in another order. Here an intent record says it: which segments go, which come, of
which files they consist. Steps, and what a crash after each leaves (DESIGN.md, "The swap"):

 1  the attempt's `.part` files become N.*.cleaned;       old content: `.cleaned` without an intent
    directory fsync                                       is removed by the next open
 2  the intent is written aside, fsynced, renamed;        new content, from the rename on: the next
    its directory fsync                                   open does steps 3 and 4 again
 3  .cleaned -> .swap; the new segments are published;    new content: the intent says what each
    old digests are unlinked; old files -> .deleted;      file is (a plain file of base N is an old
    .swap -> final names; snapshots of bases that         one exactly while its .swap exists, or
    vanished are unlinked                                 when the new segment has no such file)
 4  directory fsync; the intent is removed, fsync         new content, nothing left to do
 5  `.deleted` files are unlinked                         new content; a `.deleted` file is nothing

Groups are swapped one after another, lowest base first. `operations_of_redo` makes steps 3 and 4
from the intent and what lies in the directory, so the first run, every recovery, and the recovery
of a swap that Kafka left (`leftovers`) are one path, and doing it twice is harmless.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import (
    FileSystem,
    make_durable_directory,
    read_file,
    write_file_atomically,
)
from stratalog.record.checksum import crc32c
from stratalog.segment.digest import remove_digest
from stratalog.segment.names import (
    MAX_OFFSET,
    SEGMENT_KINDS,
    STATE_DIRECTORY,
    SWAP_INTENT,
    FileKind,
    FileState,
    file_name,
    parse,
)

_VERSION = 2
_MAX_INTENT_BYTES = 64 << 20
"""A group of a million segments takes 20 MB; larger is not ours."""


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """A new segment as an engine left it: file kind -> name of a `.part` file in the directory."""

    base_offset: int
    parts: Mapping[FileKind, str]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One group: the segments at `old_bases` (ascending) become those of `new` (ascending)."""

    old_bases: tuple[int, ...]
    new: tuple[SegmentParts, ...]


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that comes: its base offset and the kinds of its files."""

    base_offset: int
    kinds: tuple[FileKind, ...]


@dataclass(frozen=True, slots=True)
class SwapIntent:
    """What `.stratalog/swap-intent` says: the bases that go, the segments that come."""

    old_bases: tuple[int, ...]
    new: tuple[NewSegment, ...]

    def encode(self) -> bytes:
        """One line of JSON, one of its CRC-32C: a changed digit would be another group."""
        content = {
            "version": _VERSION,
            "old": list(self.old_bases),
            "new": [
                {"base": segment.base_offset, "files": [kind.value for kind in segment.kinds]}
                for segment in self.new
            ],
        }
        line = json.dumps(content).encode() + b"\n"
        return line + b"%08x\n" % crc32c(line)

    @property
    def vanishing(self) -> tuple[int, ...]:
        """The old bases at which no new segment begins."""
        coming = {segment.base_offset for segment in self.new}
        return tuple(base for base in self.old_bases if base not in coming)


@dataclass(frozen=True, slots=True)
class Rename:
    """Inside the partition's directory."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Unlink:
    """Inside the partition's directory."""

    name: str


@dataclass(frozen=True, slots=True)
class RemoveDigest:
    """An old segment's digest: the file that it speaks of is about to go."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Readers see the new segments from here on."""


@dataclass(frozen=True, slots=True)
class FsyncDirectory:
    """The partition's directory, or the one below it for our own state."""

    is_state: bool = False


@dataclass(frozen=True, slots=True)
class RemoveIntent:
    """The swap is over."""


Operation = Rename | Unlink | RemoveDigest | Publish | FsyncDirectory | RemoveIntent


def decode_intent(content: bytes) -> SwapIntent:
    """Parse an intent record, which was written in one piece. Raises `CorruptionError`."""
    line, _, rest = content.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line + b"\n"):
        raise CorruptionError("swap intent does not match its checksum")
    try:
        fields = json.loads(line)
        if fields["version"] != _VERSION:
            raise CorruptionError(f"swap intent of version {fields['version']}")
        old = tuple(fields["old"])
        new = tuple(
            NewSegment(segment["base"], tuple(map(FileKind, segment["files"])))
            for segment in fields["new"]
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(f"swap intent is unreadable: {error}") from error
    for bases in (old, tuple(segment.base_offset for segment in new)):
        _check_bases(bases)
    if not new:
        raise CorruptionError("swap intent names no new segment")
    for segment in new:
        if not segment.kinds or not set(segment.kinds) <= set(SEGMENT_KINDS):
            raise CorruptionError("swap intent names impossible files")
    return SwapIntent(old, new)


def _check_bases(bases: tuple[Any, ...]) -> None:
    # A truth value is an int to Python, too.
    if any(type(base) is not int or not 0 <= base <= MAX_OFFSET for base in bases):
        raise CorruptionError("swap intent names impossible offsets")
    if list(bases) != sorted(set(bases)):
        raise CorruptionError("swap intent names segments out of order")


def operations_of_prepare(replacement: Replacement, names: Collection[str]) -> list[Operation]:
    """Step 1. `names`: what lies there; `.cleaned` files of dead attempts at the segments go."""
    strays = [
        Unlink(name)
        for name in sorted(names)
        if (parsed := parse(name)) is not None and parsed.state is FileState.CLEANED
    ]
    renames = [
        Rename(part, file_name(segment.base_offset, kind, FileState.CLEANED))
        for segment in replacement.new
        for kind, part in segment.parts.items()
    ]
    return [*strays, *renames, FsyncDirectory()]


def operations_of_redo(intent: SwapIntent, names: Collection[str]) -> list[Operation]:
    """Steps 3 and 4, from wherever they stopped. `names`: what the directory holds now."""
    there = set(names)
    to_swap: list[Operation] = []
    to_final: list[Operation] = []
    current: set[str] = set()  # plain names that belong to a new segment already
    for segment in intent.new:
        for kind in segment.kinds:
            final = file_name(segment.base_offset, kind)
            cleaned = file_name(segment.base_offset, kind, FileState.CLEANED)
            swap = file_name(segment.base_offset, kind, FileState.SWAP)
            if cleaned in there:
                to_swap.append(Rename(cleaned, swap))
            if cleaned in there or swap in there:
                to_final.append(Rename(swap, final))
            else:
                current.add(final)
    to_deleted = [
        Rename(name, file_name(base, kind, FileState.DELETED))
        for base in intent.old_bases
        for kind in SEGMENT_KINDS
        if (name := file_name(base, kind)) in there and name not in current
    ]
    unlinks = [
        Unlink(name)
        for base in intent.vanishing
        if (name := file_name(base, FileKind.SNAPSHOT)) in there
    ]
    return [
        *to_swap,
        Publish(),
        *map(RemoveDigest, intent.old_bases),
        *to_deleted,
        *to_final,
        *unlinks,
        FsyncDirectory(),
        RemoveIntent(),
        FsyncDirectory(is_state=True),
    ]


def apply(
    operations: Iterable[Operation],
    filesystem: FileSystem,
    directory: str,
    publish: Callable[[], None] = lambda: None,
) -> None:
    """Carry operations out, in order."""
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    for operation in operations:
        match operation:
            case Rename(old, new):
                filesystem.rename(os.path.join(directory, old), os.path.join(directory, new))
            case Unlink(name):
                filesystem.unlink(os.path.join(directory, name))
            case RemoveDigest(base_offset):
                remove_digest(filesystem, directory, base_offset)
            case Publish():
                publish()
            case FsyncDirectory(is_state):
                filesystem.fsync_directory(state_directory if is_state else directory)
            case RemoveIntent():
                filesystem.unlink(os.path.join(state_directory, SWAP_INTENT))


def swap(
    filesystem: FileSystem,
    directory: str,
    replacement: Replacement,
    publish: Callable[[], None] = lambda: None,
) -> None:
    """Steps 1 to 4 for one group. Only the process that owns the directory may call this."""
    bases = {*replacement.old_bases, *(segment.base_offset for segment in replacement.new)}
    strays = (
        file_name(base, kind, FileState.CLEANED) for base in sorted(bases) for kind in SEGMENT_KINDS
    )
    names = _present(filesystem, directory, strays)
    apply(operations_of_prepare(replacement, names), filesystem, directory)
    new = tuple(
        NewSegment(segment.base_offset, tuple(segment.parts)) for segment in replacement.new
    )
    carry_out(filesystem, directory, SwapIntent(replacement.old_bases, new), publish)


def carry_out(
    filesystem: FileSystem,
    directory: str,
    intent: SwapIntent,
    publish: Callable[[], None] = lambda: None,
) -> None:
    """Steps 2 to 4: the new segments' files lie there as `.cleaned` or `.swap`, durably."""
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    make_durable_directory(filesystem, state_directory)
    path = os.path.join(state_directory, SWAP_INTENT)
    write_file_atomically(filesystem, path, intent.encode())
    _redo(filesystem, directory, intent, publish)


def has_intent(filesystem: FileSystem, directory: str) -> bool:
    """Whether a swap is under way, which the next open would finish."""
    return filesystem.exists(os.path.join(directory, STATE_DIRECTORY, SWAP_INTENT))


def finish_swap(filesystem: FileSystem, directory: str) -> SwapIntent | None:
    """Steps 3 and 4 of a swap that a crash cut off; its intent, None if there was none.

    Raises `CorruptionError` for an unreadable intent.
    """
    path = os.path.join(directory, STATE_DIRECTORY, SWAP_INTENT)
    try:
        intent = decode_intent(read_file(filesystem, path, _MAX_INTENT_BYTES))
    except FileNotFoundError:
        return None
    except CorruptionError as error:
        raise error.located(path) from error
    _redo(filesystem, directory, intent, lambda: None)
    return intent


def _redo(
    filesystem: FileSystem, directory: str, intent: SwapIntent, publish: Callable[[], None]
) -> None:
    names = _present(filesystem, directory, _names_of(intent))
    apply(operations_of_redo(intent, names), filesystem, directory, publish)


def _names_of(intent: SwapIntent) -> Iterator[str]:
    """Every file that a redo may touch."""
    for segment in intent.new:
        for kind in segment.kinds:
            for state in (FileState.CLEANED, FileState.SWAP):
                yield file_name(segment.base_offset, kind, state)
    for base in intent.old_bases:
        for kind in (*SEGMENT_KINDS, FileKind.SNAPSHOT):
            yield file_name(base, kind)


def _present(filesystem: FileSystem, directory: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that are there. Asking for each, not listing the directory: thousands of
    groups may be swapped in a directory of tens of thousands of files."""
    return [name for name in names if filesystem.exists(os.path.join(directory, name))]


def remove_deleted(filesystem: FileSystem, directory: str) -> Sequence[str]:
    """Step 5: unlink every `.deleted` file; their names."""
    removed = [
        name
        for name in filesystem.list_directory(directory)
        if (parsed := parse(name)) is not None and parsed.state is FileState.DELETED
    ]
    for name in removed:
        with suppress(FileNotFoundError):  # its delay is over, and somebody else was faster
            filesystem.unlink(os.path.join(directory, name))
    return removed
