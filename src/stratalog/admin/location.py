"""A place that a compaction writes generations to, and what becomes of it in a run (LDG-1, SPK-9).

    check_target ─► sweep ─► (a new directory is filled) ─► switch ─► old generations go

Which generation counts says `location_manifest`. A partition of a topic in ledger mode lies in a
generation as a log that anybody can open:

    <root>/<generation>/<partition>/   its segments, an empty active one at the horizon, a producer
                                       snapshot there (all transactions below have ended)

Invariants
- C1  The manifest is written last, after every partition's files are durable; whatever fails before
      leaves the location as it was, and its leftovers to the next run.
- C2  Nothing is removed but generations that no manifest names, or that the new one lets go.
- C3  A generation shares no file with another one: who opens it as a log may write to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stratalog.admin.copying import copy_file
from stratalog.admin.location_manifest import (
    MANIFEST,
    Manifest,
    PartitionEntry,
    is_generation,
    number_of,
    read_manifest,
)
from stratalog.base.errors import CorruptionError, StorageIOError, UsageError
from stratalog.base.filesystem import (
    FileSystem,
    make_durable_directory,
    read_file,
    write_file_atomically,
)
from stratalog.ledger.manifest import Generation, LedgerSegment
from stratalog.log.checkpoint import render
from stratalog.log.deletion import remove_tree
from stratalog.log.producer_state import encode_snapshot
from stratalog.segment.names import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK_FILE,
    LOG_START_OFFSET_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_KINDS,
    FileKind,
    TopicPartition,
    file_name,
    parse_partition_directory,
)
from stratalog.segment.segment import segment_path

_SMALL_BYTES = 1 << 20

Pair = tuple[str, str]
"""The path of a file and the one that it is copied to."""


class Target(Protocol):
    """Where generations are written to. Names are below `root`; whatever returns is durable."""

    @property
    def root(self) -> str: ...

    def filesystem(self) -> FileSystem:
        """What reads it, as it is now."""
        ...

    def names(self) -> list[str]: ...

    def write(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None: ...

    def copy(self, pairs: Sequence[Pair]) -> None:
        """Copy files that are there to new paths, with their times where those are kept."""
        ...


@dataclass(frozen=True, slots=True)
class DirectoryTarget:
    """A directory on a disk. Raises `StorageIOError`."""

    root: str
    disk: FileSystem

    def filesystem(self) -> FileSystem:
        return self.disk

    def names(self) -> list[str]:
        """What is there; nothing if the directory is not."""
        try:
            return self.disk.list_directory(self.root)
        except FileNotFoundError:
            return []

    def write(self, name: str, content: bytes) -> None:
        """A small file, replaced as a whole."""
        path = os.path.join(self.root, name)
        make_durable_directory(self.disk, os.path.dirname(path))
        write_file_atomically(self.disk, path, content)

    def remove(self, name: str) -> None:
        """A directory and all in it; one that is not there is fine."""
        remove_tree(self.disk, os.path.join(self.root, name))

    def copy(self, pairs: Sequence[Pair]) -> None:
        """See `Target`."""
        copy_durably(self.disk, pairs)


def copy_durably(disk: FileSystem, pairs: Sequence[Pair], origin: FileSystem | None = None) -> None:
    """Copy files with their times; they and their names are on the disk then. `origin`: the file
    system of the sources, if that is another one. Raises `FileNotFoundError`, `StorageIOError`."""
    parents = {os.path.dirname(target) for _, target in pairs}
    for parent in parents:
        make_durable_directory(disk, parent)
    for source, target in pairs:
        copy_file(source, target, disk, origin=origin)
        file = disk.open(target, "read")
        try:
            file.fsync()
        finally:
            file.close()
    for parent in parents:
        disk.fsync_directory(parent)


# ---------------------------------------------------------------- a run's frame


def check_target(target: Target) -> Manifest | None:
    """The manifest that is there. Raises `UsageError` for a location with other things in it,
    `CorruptionError`: for one that is damaged, or that is not there though it has been (C2)."""
    try:
        names = target.names()
    except StorageIOError as error:
        raise UsageError(str(error)) from error
    ours = (MANIFEST, LOCK_FILE)
    other = [
        name
        for name in names
        if not (name in ours or name.startswith(f"{MANIFEST}.") or is_generation(name))
    ]
    if other:
        raise UsageError(f"{target.root}: holds {other[0]!r}: --out wants a place of its own")
    manifest = read_manifest(target.filesystem(), target.root) if MANIFEST in names else None
    if manifest is None:
        _check_never_was(target.root, names)
    return manifest


def _check_never_was(root: str, names: Sequence[str]) -> None:
    """Without a manifest all generations are leftovers: of the first run, or of whoever lost it."""
    later = [name for name in names if is_generation(name) and number_of(name) > 1]
    if later or MANIFEST in names:
        reason = "is gone, and with it which generation counts"
        if later:
            reason += f" ({', '.join(sorted(later)[-3:])})"
        reason += "; bring it back, or give --out another place"
        raise CorruptionError(reason, file=os.path.join(root, MANIFEST))


def sweep(target: Target, before: Manifest | None) -> None:
    """Remove what runs left that did not come to their end. Raises `StorageIOError`."""
    named = {before.directory, *before.kept} if before else set()
    for name in target.names():
        if is_generation(name) and name not in named:
            target.remove(name)


def kept_of(before: Manifest | None, older: int) -> tuple[str, ...]:
    """The generations that stay beside a new one: the last `older` (C2)."""
    return (before.directory, *before.kept)[:older] if before else ()


def switch(target: Target, before: Manifest | None, manifest: Manifest) -> None:
    """Let a generation count whose files are there. Raises `UsageError` if another one came
    meanwhile, `StorageIOError`."""
    if read_manifest(target.filesystem(), target.root) != before:
        raise UsageError(f"{target.root}: another run has written a generation meanwhile")
    target.write(MANIFEST, manifest.encode())


def remove_old(target: Target, before: Manifest | None, kept: Iterable[str]) -> None:
    """Remove the generations that a new manifest does not name. Raises `StorageIOError`."""
    old = {before.directory, *before.kept} if before else set()
    for name in sorted(old - set(kept)):
        target.remove(name)


# ---------------------------------------------------------------- what a generation holds


def segment_files(
    filesystem: FileSystem, directory: str, part: LedgerSegment, goal: str
) -> list[Pair]:
    """A segment's files in `directory`, and where they go in `goal`."""
    paths = [segment_path(directory, part.base_offset, kind) for kind in SEGMENT_KINDS]
    # Whoever lacks a `.log` is to stumble over it; the others need not be there.
    return [
        (path, os.path.join(goal, os.path.basename(path)))
        for path in paths
        if path.endswith(FileKind.LOG.value) or filesystem.exists(path)
    ]


def frame_files(ledger: Generation, metadata: bytes | None) -> dict[str, bytes]:
    """The small files, by name, that make a log of a ledger's segments: its end, at the horizon,
    and what its topic is (`metadata`: the source's `partition.metadata`)."""
    end = ledger.horizon
    kinds = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    # Where a segment without bytes begins at the horizon, it is the same one.
    files = {file_name(end, kind): b"" for kind in kinds}
    if end > first_offset(ledger):
        files[file_name(end, FileKind.SNAPSHOT)] = encode_snapshot({})
    if metadata is not None:
        files[PARTITION_METADATA] = metadata
    return files


def first_offset(ledger: Generation) -> int:
    """Where the log of a ledger's segments begins."""
    return max(ledger.start_offset, ledger.segments[0].base_offset)


def metadata_of(filesystem: FileSystem, partition_path: str) -> bytes | None:
    """The content of `partition.metadata`, if there is one. Raises `StorageIOError`."""
    try:
        return read_file(filesystem, os.path.join(partition_path, PARTITION_METADATA), _SMALL_BYTES)
    except FileNotFoundError:
        return None


def missing_file(filesystem: FileSystem, directory: str, ledger: Generation) -> str | None:
    """The first segment's file that is not there as the manifest has it, as far as a listing tells.
    Raises `StorageIOError`."""
    for part in ledger.segments:
        path = segment_path(directory, part.base_offset, FileKind.LOG)
        try:
            if filesystem.stat(path).size_bytes != part.size_bytes:
                return path
        except FileNotFoundError:
            return path
    return None


def carry_over(target: Target, before: Manifest, entry: PartitionEntry, directory: str) -> None:
    """Let a partition's ledger be in a new generation as it is in the one before.

    Raises `CorruptionError` if it is not all there, `StorageIOError`.
    """
    assert entry.ledger is not None
    filesystem = target.filesystem()
    old = os.path.join(target.root, before.directory, entry.partition)
    missing = missing_file(filesystem, old, entry.ledger)
    if missing is not None:
        reason = "is not what the manifest says; name the partition's log, too, to make it anew"
        raise CorruptionError(reason, file=missing)
    new = os.path.join(target.root, directory, entry.partition)
    pairs = [
        pair for part in entry.ledger.segments for pair in segment_files(filesystem, old, part, new)
    ]
    target.copy(pairs)
    for name, content in frame_files(entry.ledger, metadata_of(filesystem, old)).items():
        target.write(os.path.join(directory, entry.partition, name), content)


Checkpoints = dict[str, dict[TopicPartition, int]]
"""Name of a checkpoint file -> its entries."""


def add_checkpoints(files: Checkpoints, entry: PartitionEntry) -> None:
    """A ledger's entries: all of it is clean, and on the disk."""
    key = parse_partition_directory(entry.partition)
    assert key is not None
    assert entry.ledger is not None
    files.setdefault(LOG_START_OFFSET_CHECKPOINT, {})[key] = first_offset(entry.ledger)
    for name in (
        CLEANER_OFFSET_CHECKPOINT,
        RECOVERY_POINT_CHECKPOINT,
        HIGH_WATERMARK_CHECKPOINT,
    ):
        files.setdefault(name, {})[key] = entry.ledger.horizon


def write_checkpoints(target: Target, directory: str, files: Checkpoints) -> None:
    """Raises `StorageIOError`."""
    for name, offsets in files.items():
        target.write(os.path.join(directory, name), render(offsets))
