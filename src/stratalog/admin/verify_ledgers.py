"""The ledgers of a partition, checked: what of them is damaged, and what mends it (LDG-1).

The manifest, then each file that its generations name, once: there, of the size that the manifest
says, and sound as a segment of a log is, with no offset behind its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratalog.base.errors import CorruptionError
from stratalog.base.filesystem import FileSystem
from stratalog.ledger.manifest import (
    LedgerSegment,
    Manifest,
    generation_path,
    ledgers_path,
    manifest_path,
    read_manifest,
)
from stratalog.ledger.mending import advice
from stratalog.segment.names import FileKind
from stratalog.segment.segment import segment_path

_ATTEMPTS = 5
OfSegment = Callable[[str, int, int], list[CorruptionError]]
"""(directory, base offset, end offset) -> the damage of a segment. Raises `FileNotFoundError`."""


def ledger_damage(
    partition_dir: str,
    log_start_offset: int | None,
    filesystem: FileSystem,
    of_segment: OfSegment,
) -> list[CorruptionError]:
    """What is damaged; each says its file. `log_start_offset`: where the raw log begins, None if it
    has no segment. Where their owner switches ledgers meanwhile it is looked again. Raises
    `StorageIOError`."""
    if not filesystem.is_directory(ledgers_path(partition_dir)):
        return []  # something else in its place, or in the place of what is above it, is told apart
    found: list[CorruptionError] = []
    for _ in range(_ATTEMPTS):
        before = _manifest_of(filesystem, partition_dir)
        found = [*_damage(partition_dir, log_start_offset, filesystem, of_segment)]
        if not found or _manifest_of(filesystem, partition_dir) == before:
            break
    return found


def _manifest_of(filesystem: FileSystem, partition_dir: str) -> Manifest | None:
    try:
        return read_manifest(filesystem, partition_dir)
    except CorruptionError:
        return None


def _damage(
    partition_dir: str,
    log_start_offset: int | None,
    filesystem: FileSystem,
    of_segment: OfSegment,
) -> Iterator[CorruptionError]:
    try:
        manifest = read_manifest(filesystem, partition_dir)
    except CorruptionError as error:
        path = error.file or manifest_path(partition_dir)
        words = advice(partition_dir, None, log_start_offset)
        yield CorruptionError(f"{error.reason}; {words}", file=path, position=error.position)
        return
    seen: set[LedgerSegment] = set()
    for generation in reversed(manifest.generations):
        words = advice(partition_dir, generation, log_start_offset)
        for part in generation.segments:
            if part in seen:
                continue  # of a newer generation, too
            seen.add(part)
            for found in _segment_damage(partition_dir, part, filesystem, of_segment):
                reason = f"{found.reason}; {words}"
                yield CorruptionError(reason, file=found.file, position=found.position)


def _segment_damage(
    partition_dir: str, part: LedgerSegment, filesystem: FileSystem, of_segment: OfSegment
) -> Iterator[CorruptionError]:
    directory = generation_path(partition_dir, part.generation)
    path = segment_path(directory, part.base_offset, FileKind.LOG)
    try:
        size_bytes = filesystem.stat(path).size_bytes
        if size_bytes != part.size_bytes:
            reason = f"{size_bytes} bytes, the manifest says {part.size_bytes}"
            yield CorruptionError(reason, file=path)
        yield from of_segment(directory, part.base_offset, part.next_offset)
    except FileNotFoundError as error:
        yield CorruptionError("there is no such file", file=error.filename or path)
