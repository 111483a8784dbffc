"""Which generation of a location counts: one small file, written last.

    <target>/stratalog-manifest.json
    <target>/generation-000002-9f31c0de/orders-0/00000000000000000000.log ...

Whoever compacts into a location writes a directory of a name that never was there, then the
manifest, which is replaced as a whole (a PUT on object storage, a rename on a disk). Before that
the generation before counts, after it the new one; a crash leaves the generation before, and a
directory that the manifest does not name, which the next run removes.

Readers that open the location follow the manifest, and stay with its generation.

Of a topic in ledger mode an entry also has the `ledger`: what the next run builds upon, the times
of its segments among it, which a bucket does not keep. Format 1 knew no ledgers and no checksum.

Invariants
- M1  A generation's directory is complete before a manifest names it, and never changed after.
- M2  What a manifest says is checked before it becomes part of a path; a changed digit is noticed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from stratalog.base.errors import CorruptionError, StorageIOError
from stratalog.base.filesystem import FileSystem, read_file
from stratalog.ledger.manifest import MAX_NUMBER, Generation, generation_of
from stratalog.record.checksum import crc32c
from stratalog.segment.names import parse_partition_directory

MANIFEST = "stratalog-manifest.json"
_FORMAT = 2
_FORMATS = (1, _FORMAT)
_MAX_BYTES = 64 << 20
_GENERATION = re.compile(r"generation-(?P<number>[0-9]{6,18})-[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """What a generation holds of a partition: offsets [start, end), bytes of its segments.

    `ledger`: of a topic in ledger mode, what its segments are; all lie in the generation's
    directory. `topic_id`: that of the log which it was made from, "" if nobody knows; `tail_crc`:
    the checksum of its last batch below the end (`location_tail`).
    """

    partition: str
    start_offset: int
    end_offset: int
    size_bytes: int
    topic_id: str = ""
    ledger: Generation | None = None
    tail_crc: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """`directory` is the generation that counts; `kept` are older ones that are there still, the
    newest first; `made_ms` since the epoch."""

    generation: int
    directory: str
    kept: tuple[str, ...]
    made_ms: int
    partitions: tuple[PartitionEntry, ...] = ()

    def encode(self) -> bytes:
        """As the file holds it."""
        fields = {"format": _FORMAT, **asdict(self)}
        return json.dumps({**fields, "crc32c": _checksum(fields)}, indent=1).encode() + b"\n"

    def entry(self, partition: str) -> PartitionEntry | None:
        """What is held of a partition, if anything."""
        return next((one for one in self.partitions if one.partition == partition), None)


def new_directory(generation: int) -> str:
    """A name for a generation that nobody has used, and no leftover of a crash has."""
    return f"generation-{generation:06d}-{secrets.token_hex(4)}"


def is_generation(name: str) -> bool:
    """Whether a name is that of a generation's directory."""
    return _GENERATION.fullmatch(name) is not None


def number_of(name: str) -> int:
    """The number of the generation whose directory has the name: the first is 1."""
    return int(name.split("-")[1])


def read_manifest(filesystem: FileSystem, root: str) -> Manifest | None:
    """The manifest of a location; None if it has none. Raises `CorruptionError`,
    `StorageIOError`."""
    path = os.path.join(root, MANIFEST)
    try:
        content = read_file(filesystem, path, _MAX_BYTES)
    except FileNotFoundError:
        return None
    return decode(content, path)


def decode(content: bytes, path: str) -> Manifest:
    """The manifest in `content`; `path` is for errors. Raises `CorruptionError`."""
    try:
        value = json.loads(content)
        if value["format"] not in _FORMATS:
            reason = f"a manifest of format {value['format']!r}; this version reads {_FORMAT}"
            raise CorruptionError(reason[:200], file=path)
        if value["format"] != 1 and value.pop("crc32c") != _checksum(value):
            raise CorruptionError("does not match its checksum", file=path)
        manifest = Manifest(
            _number(value["generation"]),
            _directory(value["directory"]),
            tuple(_directory(name) for name in _list(value["kept"])),
            _number(value["made_ms"]),
            tuple(_entry(entry) for entry in _list(value["partitions"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise CorruptionError("is no manifest of a compacted log", file=path) from None
    except CorruptionError as error:
        raise error.located(path) from None
    if not manifest.directory.startswith(f"generation-{manifest.generation:06d}-"):
        raise CorruptionError("names a directory of another generation", file=path)
    if len({entry.partition for entry in manifest.partitions}) != len(manifest.partitions):
        raise CorruptionError("names a partition twice", file=path)
    if manifest.generation >= MAX_NUMBER:
        raise CorruptionError("has no number left for a generation", file=path)
    return manifest


def current_root(filesystem: FileSystem, root: str) -> str:
    """Where the partitions of a location are: in the generation that counts, or right there.

    Raises `CorruptionError`, `StorageIOError`.
    """
    try:
        if MANIFEST not in filesystem.list_directory(root):
            return root
    except (FileNotFoundError, StorageIOError):
        return root  # whoever looks for partitions there says so
    manifest = read_manifest(filesystem, root)
    return root if manifest is None else os.path.join(root, manifest.directory)


def _checksum(fields: dict[str, Any]) -> str:
    """Of the values, however they are laid out."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{crc32c(text.encode()):08x}"


def _entry(value: Any) -> PartitionEntry:
    name, topic_id = value["partition"], value.get("topic_id", "")
    if not (isinstance(name, str) and isinstance(topic_id, str)):
        raise TypeError
    start, end, size = (_number(value[of]) for of in ("start_offset", "end_offset", "size_bytes"))
    fields = value.get("ledger")
    ledger = None if fields is None else generation_of(fields)
    if ledger is not None and (
        parse_partition_directory(name) is None
        or [ledger.start_offset, ledger.horizon, ledger.size_bytes] != [start, end, size]
    ):
        raise ValueError
    crc = value.get("tail_crc")
    tail_crc = None if crc is None else _number(crc)
    return PartitionEntry(name, start, end, size, topic_id, ledger, tail_crc)


def _directory(value: Any) -> str:
    if not isinstance(value, str) or not is_generation(value):
        raise ValueError
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return value
