"""Every disk that may be found after the power was cut: the model of what a cut leaves.

M0  everything survived;
M1  a prefix of the pending name operations, in order, with all data or with durable data only;
M2  any dependency-closed subset of them: two depend on each other in order if they touch a common
    name of the same directory, or if one makes the directory the other lives in. Up to
    `Limits.exhaustive_operations` all subsets, beyond that a sample with the seed.

With each subset each unsynced file is found in one of these variants (`Variant`):

    durable     as of its last fsync                    all       everything that was written
    version n   after some of the writes, in order      short     cut at the first changed byte
    zeros       the new size, zeros from there on       garbage   the new size, garbage from there
    cut s       ends at a 512-byte sector s             torn s    all up to s, zeros behind it
    hole s      zeros up to a sector s, all behind it   patched s old sectors behind s, new before

Enumeration of one disk, in this order: M0; the prefixes; every variant of every single file, the
others all as written or all durable, with all name operations and with none; random mixtures; all
subsets with all data and with durable data; every single variant with every subset. Images that
are equal are found by a fingerprint of names and contents (not of modification times) and given
once. The order depends on the disk, the seed and the limits only, so that a number says which
image it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from random import Random
from typing import NamedTuple

from tests.sim.disk import SimDisk
from tests.sim.nodes import (
    ROOT,
    DirectoryNode,
    FileNode,
    NameOperation,
    Node,
    clean_file,
)

SECTOR_BYTES = 512
DURABLE, ALL = 0, 1
_KEPT_NAMES = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of what may be found is looked at; `max_images` counts candidates, equal or not."""

    exhaustive_operations: int = 12
    sampled_subsets: int = 256
    mixtures: int = 32
    torn_points: int = 3
    max_images: int = 20_000


class Variant(NamedTuple):
    label: str
    content: bytes


@lru_cache(maxsize=1 << 15)
def _print_of(path: str, content: bytes | None) -> int:
    """A file's or (None) a directory's share of a fingerprint."""
    data = b"d" if content is None else b"f" + content
    digest = hashlib.blake2b(path.encode() + b"\0" + data, digest_size=16)
    return int.from_bytes(digest.digest(), "little")


def tree_fingerprint(disk: SimDisk) -> int:
    """Of all names and contents as programs see them; modification times are left out."""
    result = 0
    for path, content in disk.tree().items():
        result ^= _print_of(path, content)
    return result


class _Names(NamedTuple):
    """What the names are with one subset of the operations. `clean_print`: of all but the dirty."""

    entries: dict[int, Mapping[str, int]]
    clean: list[int]
    dirty: list[tuple[str, int]]
    clean_print: int


@dataclass(frozen=True, slots=True)
class CrashState:
    """One disk that may be found. `number`: its place in the enumeration of `crash_states`."""

    number: int
    fingerprint: int
    _cutter: _Cutter = field(repr=False)
    _subset: int
    _chosen: dict[int, int]
    """File node -> which variant; `DURABLE` and `ALL` exist for every file."""

    def disk(self) -> SimDisk:
        """The disk, everything durable and nothing pending; a new one with every call."""
        return self._cutter.build(self._subset, self._chosen)

    def describe(self) -> str:
        return self._cutter.describe(self._subset, self._chosen)


def crash_images(disk: SimDisk, rng: Random, limits: Limits | None = None) -> Iterator[SimDisk]:
    """The disks that may be found if the power is cut now, each once."""
    for state in crash_states(disk, rng, limits):
        yield state.disk()


def crash_states(disk: SimDisk, rng: Random, limits: Limits | None = None) -> Iterator[CrashState]:
    """As `crash_images`, but each is only built when asked for. `disk` must not change meanwhile:
    pass a fork."""
    cutter = _Cutter(disk, rng, limits or Limits())
    seen: set[int] = set()
    for number, (subset, chosen) in enumerate(cutter.candidates()):
        if number >= cutter.limits.max_images:
            return
        fingerprint = cutter.fingerprint(subset, chosen)
        if fingerprint not in seen:
            seen.add(fingerprint)
            yield CrashState(number, fingerprint, cutter, subset, dict(chosen))


def plain_states(disk: SimDisk) -> Iterator[CrashState]:
    """The few that show best what a missing barrier does: all names or none, with all data or only
    what is durable; and with one file, or one operation on names, less or more than the others."""
    cutter = _Cutter(disk, Random(0), Limits())
    whole, kept = dict.fromkeys(cutter.dirty, ALL), dict.fromkeys(cutter.dirty, DURABLE)
    everything = cutter.everything
    found = [(everything, whole), (everything, kept), (0, whole), (0, kept)]
    for number in cutter.dirty:
        found += [(everything, {**whole, number: DURABLE}), (everything, {**kept, number: ALL})]
    for i in range(len(cutter.operations)):
        lost = _close(cutter.needs, everything & ~(1 << i))
        alone = 1 << i
        for j in range(i, -1, -1):
            alone |= cutter.needs[j] if alone >> j & 1 else 0
        found += [(lost, whole), (lost, kept), (alone, whole)]
    for subset in dict.fromkeys([everything, *(lost for lost, _ in found[4:])]):
        for number in cutter.dirty:
            torn = range(2, len(cutter.variants(number)))
            found += [(subset, {**whole, number: variant}) for variant in torn]
    seen: set[int] = set()
    for place, (subset, chosen) in enumerate(found):
        fingerprint = cutter.fingerprint(subset, chosen)
        if fingerprint not in seen:
            seen.add(fingerprint)
            yield CrashState(place, fingerprint, cutter, subset, chosen)


def closed_subsets(needs: list[int]) -> list[int]:
    """All sets of operations (bit i: operation i) that hold what each needs; `needs[i]` < bit i."""
    subsets = [0]
    for i, needed in enumerate(needs):
        subsets += [subset | 1 << i for subset in subsets if not needed & ~subset]
    return subsets


def sampled_subsets(needs: list[int], count: int, rng: Random) -> list[int]:
    """Each operation alone lost, each alone kept (with what hangs on it), and a random sample."""
    everything = (1 << len(needs)) - 1
    found = {0: None, everything: None}
    for i in range(len(needs)):
        found[_close(needs, everything & ~(1 << i))] = None
        kept = 1 << i
        for j in range(i, -1, -1):
            if kept >> j & 1:
                kept |= needs[j]
        found[kept] = None
    for _ in range(count):
        chance = rng.choice((0.15, 0.5, 0.85))
        wanted = sum(1 << i for i in range(len(needs)) if rng.random() < chance)
        found[_close(needs, wanted)] = None
    return list(found)


def _close(needs: list[int], wanted: int) -> int:
    """The part of `wanted` that holds what each of it needs."""
    kept = 0
    for i, needed in enumerate(needs):
        if wanted >> i & 1 and not needed & ~kept:
            kept |= 1 << i
    return kept


class _Cutter:
    """The pending operations and unsynced files of one disk."""

    def __init__(self, disk: SimDisk, rng: Random, limits: Limits):
        self.disk = disk
        self.rng = rng
        self.limits = limits
        self.nodes = disk.nodes
        self.dirty: list[int] = []
        self.operations: list[NameOperation] = []
        self._reach()
        self.needs = self._dependencies()
        self.everything = (1 << len(self.operations)) - 1
        self._variants: dict[int, list[Variant]] = {}
        self._names: dict[int, _Names] = {}

    def _reach(self) -> None:
        """Collect what may be there after a cut, from the root down."""
        stack, seen = [ROOT], {ROOT}
        while stack:
            number = stack.pop()
            node = self.nodes[number]
            if isinstance(node, FileNode):
                if node.is_dirty:
                    self.dirty.append(number)
                continue
            self.operations += node.pending
            children = {*node.durable.values(), *(made.node for made in node.pending if made.added)}
            stack += children - seen
            seen |= children
        self.dirty.sort()
        self.operations.sort()

    def _dependencies(self) -> list[int]:
        last: dict[tuple[int, str], int] = {}
        made_by: dict[int, int] = {}
        needs: list[int] = []
        for i, operation in enumerate(self.operations):
            needed = 0
            for name in (operation.removed, operation.added):
                if name is not None:
                    before = last.get((operation.directory, name))
                    needed |= 0 if before is None else 1 << before
                    last[operation.directory, name] = i
            if operation.directory in made_by:
                needed |= 1 << made_by[operation.directory]
            if operation.kind == "mkdir":
                made_by[operation.node] = i
            needs.append(needed)
        return needs

    # -- enumeration -------------------------------------------------------------------------------

    def candidates(self) -> Iterator[tuple[int, dict[int, int]]]:
        """(subset, chosen variants); the chosen are to be copied, not kept."""
        everything = self.everything
        whole, kept = dict.fromkeys(self.dirty, ALL), dict.fromkeys(self.dirty, DURABLE)
        yield everything, whole
        for length in range(len(self.operations), -1, -1):
            yield (1 << length) - 1, whole
            yield (1 << length) - 1, kept
        single = [
            (base, number, variant)
            for base in (whole, kept)
            for number in self.dirty
            for variant in range(len(self.variants(number)))
        ]
        for subset in (everything, 0):
            for base, number, variant in single:
                yield subset, {**base, number: variant}
        if len(self.operations) <= self.limits.exhaustive_operations:
            subsets = closed_subsets(self.needs)
        else:
            subsets = sampled_subsets(self.needs, self.limits.sampled_subsets, self.rng)
        self.rng.shuffle(subsets)
        if self.dirty:
            for _ in range(self.limits.mixtures):
                mixed = {n: self.rng.randrange(len(self.variants(n))) for n in self.dirty}
                yield self.rng.choice(subsets), mixed
        for subset in subsets:
            yield subset, whole
            yield subset, kept
        for i in _scattered(len(subsets) * len(single), self.rng):
            subset = subsets[i // len(single)]
            base, number, variant = single[i % len(single)]
            if any(number == there for _, there in self.names(subset).dirty):
                yield subset, {**base, number: variant}

    def variants(self, number: int) -> list[Variant]:
        found = self._variants.get(number)
        if found is None:
            node = self.nodes[number]
            assert isinstance(node, FileNode)
            found = _variants_of(node, number, self.limits.torn_points, self.rng)
            self._variants[number] = found
        return found

    def names(self, subset: int) -> _Names:
        found = self._names.get(subset)
        if found is None:
            if len(self._names) >= _KEPT_NAMES:
                self._names.clear()
            found = self._names[subset] = self._names_with(subset)
        return found

    def _names_with(self, subset: int) -> _Names:
        changed: dict[int, dict[str, int]] = {}
        for i, operation in enumerate(self.operations):
            if subset >> i & 1:
                entries = changed.get(operation.directory)
                if entries is None:
                    node = self.nodes[operation.directory]
                    assert isinstance(node, DirectoryNode)
                    entries = changed[operation.directory] = dict(node.durable)
                operation.apply(entries)
        result = _Names({}, [], [], 0)
        fingerprint, stack = 0, [("", ROOT)]
        while stack:
            path, number = stack.pop()
            node = self.nodes[number]
            if isinstance(node, DirectoryNode):
                entries = changed.get(number, node.durable)
                result.entries[number] = entries
                stack += [(f"{path}/{name}", child) for name, child in entries.items()]
                if number != ROOT:
                    fingerprint ^= _print_of(path, None)
            elif node.is_dirty:
                result.dirty.append((path, number))
            else:
                result.clean.append(number)
                fingerprint ^= _print_of(path, node.content)
        return result._replace(clean_print=fingerprint)

    def fingerprint(self, subset: int, chosen: dict[int, int]) -> int:
        names = self.names(subset)
        result = names.clean_print
        for path, number in names.dirty:
            result ^= _print_of(path, self.variants(number)[chosen[number]].content)
        return result

    def build(self, subset: int, chosen: dict[int, int]) -> SimDisk:
        names, old = self.names(subset), self.nodes
        nodes: dict[int, Node] = {}
        for number, entries in names.entries.items():
            nodes[number] = DirectoryNode(entries, entries, (), old[number].modified_ms)
        for number in names.clean:
            nodes[number] = old[number]
        for _, number in names.dirty:
            content = self.variants(number)[chosen[number]].content
            nodes[number] = clean_file(content, old[number].modified_ms)
        return SimDisk.of(nodes, self.disk)

    def describe(self, subset: int, chosen: dict[int, int]) -> str:
        lost = [str(made) for i, made in enumerate(self.operations) if not subset >> i & 1]
        kept = [str(made) for i, made in enumerate(self.operations) if subset >> i & 1]
        lines = [f"names kept: {'; '.join(kept) or '-'}", f"names lost: {'; '.join(lost) or '-'}"]
        for path, number in sorted(self.names(subset).dirty):
            label, content = self.variants(number)[chosen[number]]
            node = self.nodes[number]
            assert isinstance(node, FileNode)
            lines.append(
                f"{path}: {label}, {len(content)} bytes"
                f" ({len(node.durable)} durable, {len(node.content)} written)"
            )
        return "\n".join(lines)


def _scattered(count: int, rng: Random) -> Iterator[int]:
    """0 to count - 1, each once, in an order that jumps about."""
    if count == 0:
        return
    step = rng.randrange(count) | 1
    while gcd(step, count) != 1:
        step += 2
    place = rng.randrange(count)
    for _ in range(count):
        yield place
        place = (place + step) % count


def _variants_of(node: FileNode, number: int, torn_points: int, rng: Random) -> list[Variant]:
    """The first two are `DURABLE` and `ALL`, the others differ from them and from one another."""
    old, new, intact = node.durable, node.content, node.intact
    found = [Variant("durable", old), Variant("all", new)]
    found += [Variant(f"version {i}", content) for i, content in enumerate(node.versions)]
    changed_bytes = len(new) - intact
    found.append(Variant("short", new[:intact]))
    found.append(Variant("zeros", new[:intact] + bytes(changed_bytes)))
    garbage = hashlib.shake_128(f"{number} {intact}".encode()).digest(changed_bytes)
    found.append(Variant("garbage", new[:intact] + garbage))
    first = intact // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES
    points = list(range(first, len(new), SECTOR_BYTES))
    if len(points) > torn_points:
        points = sorted(rng.sample(points, torn_points))
    for point in points:
        found.append(Variant(f"cut {point}", new[:point]))
        found.append(Variant(f"torn {point}", new[:point] + bytes(len(new) - point)))
        hole = new[:intact] + bytes(point - intact) + new[point:]
        found.append(Variant(f"hole {point}", hole))
        if intact < len(old):
            patched = (new[:point] + old[point:])[: len(new)].ljust(len(new), b"\0")
            found.append(Variant(f"patched {point}", patched))
    seen = {old, new}
    return found[:2] + [
        variant
        for variant in found[2:]
        if not (variant.content in seen or seen.add(variant.content))
    ]
