"""Every bit flipped, every length cut, files exchanged: noticed or harmless, never silently wrong.

Each mutant is one directory with one file damaged, on a simulated disk; `judging` says what it may
answer. The everyday suite takes a seeded share, STRATALOG_SWEEP=1 all of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

import pytest

from stratalog.record.batch import batches as batches_of
from tests.damage.images import PARTITION, SHAPES, Image, Shape, image_of
from tests.damage.judging import SAME, judge
from tests.sim.disk import SimDisk
from tests.sim.nodes import FileNode, clean_file

SWEEP = os.environ.get("STRATALOG_SWEEP") == "1"
EVERYDAY = 1_830
"""Mutants an image; there are 22 images."""


UNPROVEN = (*range(8), *range(12, 16))
"""Bytes of a batch (its base offset, its leader epoch) that nothing speaks for after a crash, if
the batch ends above the recovery point: no checksum covers them, no digest was written. Gaps
between offsets prove nothing: a log may have been compacted once. What breaks the order is noticed,
but not all that does not."""


class Mutant(NamedTuple):
    """One file damaged: a bit flipped (`bit` >= 0), or cut to `size` bytes."""

    path: str
    content: bytes
    bit: int
    size: int

    def __str__(self) -> str:
        name = self.path.removeprefix("/data/")
        where = f"bit {self.bit % 8} of byte {self.bit // 8}"
        what = where if self.bit >= 0 else f"cut to {self.size}"
        return f"{name} ({len(self.content)} bytes): {what}"

    def damaged(self) -> bytes:
        if self.bit < 0:
            return self.content[: self.size]
        damaged = bytearray(self.content)
        damaged[self.bit // 8] ^= 1 << self.bit % 8
        return bytes(damaged)


def mutants_of(files: list[tuple[str, bytes]]) -> Iterator[Mutant]:
    for path, content in files:
        for bit in range(8 * len(content)):
            yield Mutant(path, content, bit, -1)
        for size in range(len(content)):
            yield Mutant(path, content, -1, size)


def is_provable(image: Image, mutant: Mutant) -> bool:
    """Whether anything on the disk can tell that the damage is one."""
    if image.recovery_point is None or mutant.bit < 0 or not mutant.path.endswith(".log"):
        return True
    for batch in batches_of(memoryview(mutant.content)):
        byte = mutant.bit // 8 - batch.position
        if 0 <= byte < batch.header.size_bytes:
            return byte not in UNPROVEN or batch.header.next_offset <= image.recovery_point
    return True


def put_file(disk: SimDisk, path: str, content: bytes) -> None:
    """Behind everybody's back: neither the file's id nor its time change."""
    number = disk._find(path)
    node = disk.nodes[number]
    assert isinstance(node, FileNode)
    disk.nodes[number] = clean_file(content, node.modified_ms)


def sweep(image: Image, mutants: list[Mutant]) -> Counter[str]:
    """Judge each of them; raises with all that is wrong."""
    verdicts: Counter[str] = Counter()
    wrong: list[str] = []
    for number, mutant in enumerate(mutants):
        disk = image.disk.fork()
        put_file(disk, mutant.path, mutant.damaged())
        try:
            verdicts[judge(image, disk, Random(number))] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the sweep looks for
            wrong.append(f"{mutant}: {type(error).__name__}: {error}")
    assert not wrong, f"{image.name}: {len(wrong)} of {len(mutants)}:\n" + "\n".join(wrong[:200])
    return verdicts


@pytest.mark.sweep
@pytest.mark.requirement("RCV-1", "RCV-3", "RCV-4", "RCV-7")
@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_damage_is_noticed_or_harmless(
    shape: Shape, is_clean: bool, count_cases: Callable[[str, int], None]
) -> None:
    image = image_of(shape, is_clean=is_clean)
    assert judge(image, image.disk.fork(), Random(0)) == SAME
    mutants = [one for one in mutants_of(image.files()) if is_provable(image, one)]
    assert len(mutants) > 20_000
    if not SWEEP:
        mutants = Random(image.name).sample(mutants, EVERYDAY)
    for verdict, count in sweep(image, mutants).items():
        count_cases(f"damaged files, {verdict}", count)


def test_the_partition_of_the_images_is_where_the_sweep_looks() -> None:
    image = image_of(SHAPES[0], is_clean=True)
    kinds = {path.rpartition(".")[2] for path, _ in image.files() if path.startswith(PARTITION)}
    assert {"log", "index", "timeindex", "txnindex", "snapshot", "digest"} <= kinds
