"""Putting a cleaned segment in the place of the segments it was made from (CMP-12, RCV-5, RCV-6).

Kafka tells from file names alone how far a swap has come, which fails when directory operations
reach the disk in another order. Here an intent record says it: which segments go, which comes, of
which files it consists. Steps, and what a crash after each leaves (DESIGN.md, "The swap"):

 1  the attempt's `.part` files become N.*.cleaned;       old content: `.cleaned` without an intent
    directory fsync                                       is removed by the next open
 2  the intent is written aside, fsynced, renamed;        new content, from the rename on: the next
    its directory fsync                                   open does steps 3 and 4 again
 3  .cleaned -> .swap; the new segment is published;      new content: the intent says what each
    old files -> .deleted; .swap -> final names;          file is (a plain file of base N is an old
    snapshots of bases that vanished are unlinked         one exactly while its .swap exists, or
                                                          when the new segment has no such file)
 4  directory fsync; the intent is removed, fsync         new content, nothing left to do
 5  `.deleted` files are unlinked                         new content; a `.deleted` file is nothing

Groups are swapped one after another, lowest base first. `operations_of_redo` makes steps 3 and 4
from the intent and what lies in the directory, so the first run and every recovery are one path,
and doing it twice is harmless.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem, read_file, write_file_atomically
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

_VERSION = 1
_MAX_INTENT_BYTES = 64 << 20
"""A group of a million segments takes 20 MB; larger is not ours."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One group: `old_bases` (ascending, the first is the new one's base) become one segment, whose
    files are `parts`: file kind -> name of the `.part` file in the same directory."""

    old_bases: tuple[int, ...]
    parts: Mapping[FileKind, str]

    @property
    def base_offset(self) -> int:
        return self.old_bases[0]


@dataclass(frozen=True, slots=True)
class SwapIntent:
    """What `.stratalog/swap-intent` says: the bases that go, the base that comes, its files."""

    old_bases: tuple[int, ...]
    base_offset: int
    kinds: tuple[FileKind, ...]

    def encode(self) -> bytes:
        content = {
            "version": _VERSION,
            "old": list(self.old_bases),
            "new": self.base_offset,
            "files": [kind.value for kind in self.kinds],
        }
        return json.dumps(content).encode() + b"\n"


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
class Publish:
    """Readers see the new segment from here on."""


@dataclass(frozen=True, slots=True)
class FsyncDirectory:
    """The partition's directory, or the one below it for our own state."""

    is_state: bool = False


@dataclass(frozen=True, slots=True)
class RemoveIntent:
    """The swap is over."""


Operation = Rename | Unlink | Publish | FsyncDirectory | RemoveIntent


def decode_intent(content: bytes) -> SwapIntent:
    """Parse an intent record, which was written in one piece. Raises `CorruptionError`."""
    try:
        fields = json.loads(content)
        if fields["version"] != _VERSION:
            raise CorruptionError(f"swap intent of version {fields['version']}")
        old = tuple(fields["old"])
        intent = SwapIntent(old, fields["new"], tuple(map(FileKind, fields["files"])))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptionError(f"swap intent is unreadable: {error}") from error
    # A truth value is an int to Python, too.
    if any(
        type(base) is not int or not 0 <= base <= MAX_OFFSET for base in (*old, intent.base_offset)
    ):
        raise CorruptionError("swap intent names impossible offsets")
    if not old or old[0] != intent.base_offset or list(old) != sorted(set(old)):
        raise CorruptionError("swap intent names segments out of order")
    if FileKind.LOG not in intent.kinds or not set(intent.kinds) <= set(SEGMENT_KINDS):
        raise CorruptionError("swap intent names impossible files")
    return intent


def operations_of_prepare(replacement: Replacement, names: Collection[str]) -> list[Operation]:
    """Step 1. `names`: what lies there; `.cleaned` files of dead attempts at the segments go."""
    strays = [
        Unlink(name)
        for name in sorted(names)
        if (parsed := parse(name)) is not None and parsed.state is FileState.CLEANED
    ]
    renames = [
        Rename(part, file_name(replacement.base_offset, kind, FileState.CLEANED))
        for kind, part in replacement.parts.items()
    ]
    return [*strays, *renames, FsyncDirectory()]


def operations_of_redo(intent: SwapIntent, names: Collection[str]) -> list[Operation]:
    """Steps 3 and 4, from wherever they stopped. `names`: what the directory holds now."""
    base_offset = intent.base_offset
    there = set(names)
    operations: list[Operation] = []

    def name_of(base: int, kind: FileKind, state: FileState = FileState.FINAL) -> str:
        return file_name(base, kind, state)

    swapping: set[FileKind] = set()
    for kind in intent.kinds:
        cleaned = name_of(base_offset, kind, FileState.CLEANED)
        swap = name_of(base_offset, kind, FileState.SWAP)
        if cleaned in there:
            operations.append(Rename(cleaned, swap))
        if cleaned in there or swap in there:
            swapping.add(kind)
    operations.append(Publish())
    for base in intent.old_bases:
        for kind in SEGMENT_KINDS:
            is_old = base != base_offset or kind in swapping or kind not in intent.kinds
            if is_old and name_of(base, kind) in there:
                deleted = name_of(base, kind, FileState.DELETED)
                operations.append(Rename(name_of(base, kind), deleted))
    for kind in intent.kinds:
        if kind in swapping:
            swap = name_of(base_offset, kind, FileState.SWAP)
            operations.append(Rename(swap, name_of(base_offset, kind)))
    for base in intent.old_bases[1:]:
        if name_of(base, FileKind.SNAPSHOT) in there:
            operations.append(Unlink(name_of(base, FileKind.SNAPSHOT)))
    return [*operations, FsyncDirectory(), RemoveIntent(), FsyncDirectory(is_state=True)]


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
    strays = (
        file_name(base, kind, FileState.CLEANED)
        for base in replacement.old_bases
        for kind in SEGMENT_KINDS
    )
    names = _present(filesystem, directory, strays)
    apply(operations_of_prepare(replacement, names), filesystem, directory)
    intent = SwapIntent(replacement.old_bases, replacement.base_offset, tuple(replacement.parts))
    state_directory = os.path.join(directory, STATE_DIRECTORY)
    if not filesystem.exists(state_directory):
        filesystem.make_directory(state_directory)
        filesystem.fsync_directory(directory)
    path = os.path.join(state_directory, SWAP_INTENT)
    write_file_atomically(filesystem, path, intent.encode())
    names = _present(filesystem, directory, _names_of(intent))
    apply(operations_of_redo(intent, names), filesystem, directory, publish)


def finish_swap(filesystem: FileSystem, directory: str) -> bool:
    """Steps 3 and 4 of a swap that a crash cut off; whether there was one.

    Raises `CorruptionError` for an unreadable intent.
    """
    path = os.path.join(directory, STATE_DIRECTORY, SWAP_INTENT)
    try:
        intent = decode_intent(read_file(filesystem, path, _MAX_INTENT_BYTES))
    except FileNotFoundError:
        return False
    except CorruptionError as error:
        raise error.located(path) from error
    names = _present(filesystem, directory, _names_of(intent))
    apply(operations_of_redo(intent, names), filesystem, directory)
    return True


def _names_of(intent: SwapIntent) -> Iterator[str]:
    """Every file that a redo may touch."""
    for kind in intent.kinds:
        for state in (FileState.CLEANED, FileState.SWAP):
            yield file_name(intent.base_offset, kind, state)
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
        filesystem.unlink(os.path.join(directory, name))
    return removed
