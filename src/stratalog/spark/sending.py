"""Keys on their way to Spark's shuffle: collected, and cut into a few large blocks by hash bucket.

    KeySender   rows of chunks -> (bucket, block); one thread's own
    Block       rows of one job, or offsets for one rewrite task, as bytes

Invariants
- B1  A block holds rows of one bucket; all rows of a key of an owner go to one bucket.
- B2  What waits is bounded: one map, and `WAITING_ROWS` rows of each other kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from stratalog.clean.chunk import Int64s, Scratch
from stratalog.clean.offset_map import KeyRows, OffsetMap
from stratalog.segment.names import MAX_OFFSET

ROWS_PER_BLOCK = 40_000
"""24 bytes a row: just under 1 MiB (with versions 32 bytes). Spark's Python side holds up to ten
blocks a bucket before it hands them to the JVM, so this bounds a worker far better than the largest
block that works."""

WAITING_ROWS = 1 << 20
"""Rows that wait to fill blocks: 24 MiB, and as much again while they are cut."""

TASK_MAP_BYTES = 256 << 20
"""A task's own map, to send each key once. When it is full it is sent and begun again."""


class BlockKind(Enum):
    """What a block holds. KEYS: rows of the dirty part, one a key of the task; PROBES: rows of the
    clean part; LATER: rows from beyond the round's end; LIVE, DEAD, HELD: offsets."""

    KEYS = "keys"
    PROBES = "probes"
    LATER = "later"
    LIVE = "live"
    DEAD = "dead"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one job (KEYS, PROBES, LATER), or offsets for one rewrite task (LIVE, DEAD, HELD), by
    its number.

    `hashes`: uint64[n, 2] as bytes, empty for a task's; `offsets`: int64[n] as bytes; `versions`:
    the same, empty for a task's and where the job's order is by offset.
    """

    kind: BlockKind
    owner: int
    hashes: bytes
    offsets: bytes
    versions: bytes = b""

    def rows(self) -> KeyRows:
        """The arrays; read only views of the bytes, copied because kernels want their own type."""
        hashes = np.frombuffer(bytearray(self.hashes), np.uint64).reshape(-1, 2)
        offsets = np.frombuffer(bytearray(self.offsets), np.int64)
        versions = np.frombuffer(bytearray(self.versions), np.int64) if self.versions else None
        return KeyRows(hashes, offsets, versions)


Sent = tuple[int, Block]
"""A bucket and what goes there."""


class KeySender:
    """Collects keys in a map, other rows in lists, and cuts them into blocks of `owner` by bucket.
    One thread's own; `send_all` comes last.

    `first_offsets`: as in `IndexTask`.
    """

    def __init__(
        self, owner: int, buckets: range, has_versions: bool, *, first_offsets: bool = False
    ):
        self._owner = owner
        self._first_offsets = first_offsets
        self._buckets = buckets
        self._has_versions = has_versions
        self._map = self._empty_map()
        self._waiting: dict[BlockKind, list[KeyRows]] = {BlockKind.PROBES: [], BlockKind.LATER: []}

    def keys(self, rows: KeyRows, scratch: Scratch) -> Iterator[Sent]:
        """Map rows; blocks only when the map is full. Rows added twice do no harm."""
        values = self._mirrored(rows)
        if not self._map.add(values, scratch):
            yield from self._send_map()
            if not self._map.add(values, scratch):
                raise AssertionError("a chunk's keys do not fit a task's map")

    def probes(self, rows: KeyRows) -> Iterator[Sent]:
        """Rows of the clean part, each as it is: it has one record a key already."""
        yield from self._collected(BlockKind.PROBES, rows)

    def later(self, rows: KeyRows) -> Iterator[Sent]:
        """Rows from beyond the round's end, each as it is."""
        yield from self._collected(BlockKind.LATER, rows)

    def send_all(self) -> Iterator[Sent]:
        """All that was collected as blocks; the sender begins again."""
        yield from self._send_map()
        for kind in self._waiting:
            yield from self._send_waiting(kind)

    def _send_map(self) -> Iterator[Sent]:
        for values in self._map.entries():
            yield from self._blocks(BlockKind.KEYS, self._mirrored(values))
        self._map = self._empty_map()

    def _collected(self, kind: BlockKind, rows: KeyRows) -> Iterator[Sent]:
        """Rows wait for others of later chunks: a chunk has few for each of many buckets."""
        waiting = self._waiting[kind]
        waiting.append(_joined_rows([rows]))  # a copy: they lie in a buffer that is used again
        if sum(map(len, waiting)) >= WAITING_ROWS:
            yield from self._send_waiting(kind)

    def _send_waiting(self, kind: BlockKind) -> Iterator[Sent]:
        waiting, self._waiting[kind] = self._waiting[kind], []
        if waiting:
            yield from self._blocks(kind, _joined_rows(waiting))

    def _empty_map(self) -> OffsetMap:
        return OffsetMap(memory_bytes=TASK_MAP_BYTES, has_versions=self._has_versions)

    def _mirrored(self, rows: KeyRows) -> KeyRows:
        return mirrored(rows) if self._first_offsets else rows

    def _blocks(self, kind: BlockKind, rows: KeyRows) -> Iterator[Sent]:
        count = len(self._buckets)
        scaled = (rows.hashes[:, 0] >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)
        # numpy sorts 16-bit numbers by radix, many times as fast as longer ones.
        place_of = scaled.astype(np.uint16 if count <= 1 << 16 else np.uint32)
        order = np.argsort(place_of, kind="stable")
        bounds = np.searchsorted(place_of[order], np.arange(count + 1)).tolist()
        for place, bucket in enumerate(self._buckets):
            for start in range(bounds[place], bounds[place + 1], ROWS_PER_BLOCK):
                chosen = order[start : min(start + ROWS_PER_BLOCK, bounds[place + 1])]
                yield bucket, _block(kind, self._owner, rows, chosen)


def mirrored(rows: KeyRows) -> KeyRows:
    """With offsets counted from the other end, so that a map keeps the first offset of a key."""
    return KeyRows(rows.hashes, MAX_OFFSET - 1 - rows.offsets)


def _block(kind: BlockKind, owner: int, rows: KeyRows, chosen: Int64s) -> Block:
    versions = b"" if rows.versions is None else rows.versions[chosen].tobytes()
    return Block(
        kind, owner, rows.hashes[chosen].tobytes(), rows.offsets[chosen].tobytes(), versions
    )


def _joined_rows(parts: Sequence[KeyRows]) -> KeyRows:
    """All rows of the parts, of which there is at least one, one after the other."""
    versions = [part.versions for part in parts if part.versions is not None]
    return KeyRows(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate(versions) if versions else None,
    )
