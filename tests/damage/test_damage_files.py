"""Files exchanged, misplaced, doubled or missing; notes and intents damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from random import Random

import pytest

from tests.damage.images import PARTITION, SHAPES, Image, image_of, open_image, truth_of
from tests.damage.judging import NOTICED, SAME, judge
from tests.damage.test_damage_sweep import mutants_of, put_file, sweep
from tests.log.stores import POINTS, A, rewrite
from tests.sim.disk import SimDisk
from tests.sim.nodes import PowerCut

KINDS = ("log", "index", "timeindex", "txnindex", "snapshot")
IMAGES = [(shape, is_clean) for shape in SHAPES[:6] for is_clean in (True, False)]
IDS = [f"{shape.name}-{'closed' if is_clean else 'crashed'}" for shape, is_clean in IMAGES]


def bases_of(image: Image) -> list[str]:
    return sorted(p[:-4] for p, _ in image.files() if p.startswith(PARTITION) and p[-4:] == ".log")


def judged(image: Image, cases: Iterator[tuple[str, SimDisk]]) -> Counter[str]:
    verdicts: Counter[str] = Counter()
    wrong = []
    for what, disk in cases:
        try:
            verdicts[judge(image, disk, Random(what))] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            wrong.append(f"{what}: {type(error).__name__}: {error}")
    assert not wrong, f"{image.name}: {len(wrong)} wrong:\n" + "\n".join(wrong)
    return verdicts


def exchanged(image: Image) -> Iterator[tuple[str, SimDisk]]:
    """Two segments' files change places, of one kind or all: contents in place, or by renaming."""
    for one, other in combinations(bases_of(image), 2):
        for kinds in (*((kind,) for kind in KINDS), KINDS):
            for renames in (False, True):
                disk = image.disk.fork()
                for kind in kinds:
                    _exchange(disk, f"{one}.{kind}", f"{other}.{kind}", renames=renames)
                how = "renamed" if renames else "overwritten"
                yield f"{one[-2:]} and {other[-2:]} {how} {'+'.join(kinds)}", disk


def _exchange(disk: SimDisk, one: str, other: str, *, renames: bool) -> None:
    if not (disk.exists(one) and disk.exists(other)):
        return
    if renames:
        for old, new in ((one, one + "x"), (other, one), (one + "x", other)):
            disk.rename(old, new)
    else:
        first, second = disk.content(one), disk.content(other)
        put_file(disk, one, second)
        put_file(disk, other, first)


def doubled(image: Image) -> Iterator[tuple[str, SimDisk]]:
    """A part of a log stands there twice: its end, or one in the middle that moves the rest."""
    rng = Random(image.name)
    for base in bases_of(image):
        content = image.disk.content(f"{base}.log")
        for size in (1, 30, 61, len(content) // 2, len(content)):
            disk = image.disk.fork()
            put_file(disk, f"{base}.log", content + content[-size:])
            yield f"{base[-2:]}: the last {size} bytes twice", disk
        for _ in range(12):
            start, end = sorted(rng.sample(range(len(content)), 2))
            disk = image.disk.fork()
            put_file(disk, f"{base}.log", content[:end] + content[start:end] + content[end:])
            yield f"{base[-2:]}: {start} to {end} twice", disk
            disk = image.disk.fork()
            put_file(disk, f"{base}.log", content[:start] + bytes(end - start) + content[end:])
            yield f"{base[-2:]}: zeros from {start} to {end}", disk
            disk = image.disk.fork()
            garbage = rng.randbytes(end - start)
            put_file(disk, f"{base}.log", content[:start] + garbage + content[end:])
            yield f"{base[-2:]}: garbage from {start} to {end}", disk


def missing(image: Image) -> Iterator[tuple[str, SimDisk]]:
    """A file that can be made anew is gone."""
    for path, _ in image.files():
        if path.startswith(PARTITION) and path.rpartition(".")[2] in (*KINDS[1:], "digest"):
            disk = image.disk.fork()
            disk.unlink(path)
            yield f"without {path}", disk


@pytest.mark.sweep
@pytest.mark.requirement("RCV-4", "RCV-7")
@pytest.mark.parametrize(("shape", "is_clean"), IMAGES, ids=IDS)
@pytest.mark.parametrize("how", [exchanged, doubled, missing])
def test_other_files_are_noticed_or_harmless(
    how: Callable[[Image], Iterator[tuple[str, SimDisk]]],
    shape,  # type: ignore[no-untyped-def]
    is_clean: bool,
    count_cases: Callable[[str, int], None],
) -> None:
    image = image_of(shape, is_clean=is_clean)
    verdicts = judged(image, how(image))
    count_cases(f"directories with {how.__name__} files", sum(verdicts.values()))
    assert verdicts.total() >= 8
    if how is missing and is_clean:
        assert set(verdicts) == {SAME}, "all of it is made anew"


@pytest.mark.requirement("RCV-7")
def test_the_log_of_another_partition_is_noticed_by_its_digest() -> None:
    """In the place of a sealed segment, written over it: its batches are sound and of the same
    offsets. (A file that was moved there has another id, as one that Kafka cleaned has.)"""
    image, other = (image_of(SHAPES[number], is_clean=True) for number in (0, 1))
    base = bases_of(image)[0]
    disk = image.disk.fork()
    put_file(disk, f"{base}.log", other.disk.content(f"{base}.log")[:600])
    assert judge(image, disk, Random(0)) == NOTICED


@lru_cache
def quarantined_image() -> Image:
    """A damaged log whose recovery points are unknown, after its quarantine was noted."""
    image = image_of(SHAPES[0], is_clean=False)
    disk = image.disk.fork()
    path = f"{bases_of(image)[-2]}.log"
    content = bytearray(disk.content(path))
    content[80] ^= 1
    rewrite(disk, path, bytes(content))
    rewrite(disk, f"/data/{POINTS}", b"?")
    open_image(disk, image.settings).close()
    return replace(image, name="quarantined", disk=disk.fork().sync_all())


@pytest.mark.sweep
@pytest.mark.requirement("RCV-7")
def test_a_damaged_note_of_a_quarantine_is_a_note(count_cases: Callable[[str, int], None]) -> None:
    image = quarantined_image()
    path = f"{PARTITION}/.stratalog/quarantine"
    mutants = list(mutants_of([(path, image.disk.content(path))]))
    assert len(mutants) > 500
    mutants = Random(0).sample(mutants, 300)
    assert set(sweep(image, mutants)) == {NOTICED}
    count_cases("damaged notes of a quarantine", len(mutants))


@lru_cache
def swapping_image() -> Image:
    """A truncation was cut off when its intent had just been written."""
    image = image_of(SHAPES[0], is_clean=False)
    disk = image.disk.fork()
    store = open_image(disk, image.settings)

    def stop_at_first_swap(call: object) -> None:
        if "rename" in str(call) and ".swap" in str(call):
            raise PowerCut("here")

    disk.hook = stop_at_first_swap
    with pytest.raises(PowerCut):
        store.truncate(A, image.truth.end - 3)
    disk = disk.fork().sync_all()
    assert disk.exists(f"{PARTITION}/.stratalog/swap-intent")
    log = open_image(disk.fork(), image.settings).get(A)
    assert log.log_end_offset < image.truth.end
    return replace(image, name="swapping", disk=disk, truth=truth_of(log))


@pytest.mark.sweep
@pytest.mark.requirement("RCV-5", "RCV-7")
def test_a_damaged_intent_is_noticed(count_cases: Callable[[str, int], None]) -> None:
    image = swapping_image()
    assert judge(image, image.disk.fork(), Random(0)) == SAME
    path = f"{PARTITION}/.stratalog/swap-intent"
    mutants = list(mutants_of([(path, image.disk.content(path))]))
    mutants = Random(0).sample(mutants, 400)
    assert set(sweep(image, mutants)) == {NOTICED}
    count_cases("damaged intents of a swap", len(mutants))
