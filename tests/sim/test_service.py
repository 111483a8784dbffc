"""The power is cut anywhere in the life of a store with a cleaner: nothing that counts is lost.

What has to hold is said in `tests.sim.service`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.sim.explore import Depth2, explore
from tests.sim.service import HOUR, TOPIC, Life, Step
from tests.sim.sweeps import IS_SWEEP, budget

TWO_ROLLS: tuple[Step, ...] = (
    *(("create", "a"), ("put", "a", "abc"), ("roll", "a"), ("put", "a", "aBd"), ("roll", "a")),
    *(("put", "a", "ea"), ("flush", "a")),
)
SIX: tuple[Step, ...] = (
    *(
        ("create", "a"),
        ("put", "a", "abcdef"),
        ("roll", "a"),
        ("produce", "a", "abC"),
        ("roll", "a"),
    ),
    *(("put", "a", "adg"), ("roll", "a"), ("put", "a", "hijk"), ("roll", "a")),
    *(("put", "a", "aEl"), ("roll", "a"), ("put", "a", "am")),
)

LIVES = (
    Life(
        "appends, rolls, cleans, appends, cleans",
        (
            *(("put", "a", "ab"), ("clean",), ("put", "a", "Ce"), ("flush", "a"), ("roll", "a")),
            *(("put", "a", "a"), ("clean",), ("put", "a", "b"), ("flush", "a")),
        ),
        TWO_ROLLS,
    ),
    Life(
        "several groups of one to four segments",
        (("clean",), ("put", "a", "aBc"), ("flush", "a"), ("roll", "a"), ("clean",)),
        SIX,
    ),
    Life(
        "one group for each segment",
        (("clean",), ("put", "a", "b")),
        SIX,
        replace(TOPIC, segment_bytes=1),
    ),
    Life(
        "all in one group",
        (("clean",), ("put", "a", "b")),
        SIX,
        replace(TOPIC, segment_bytes=1 << 20),
    ),
    Life(
        "tombstones expire",
        (
            *(("clean",), ("later", HOUR), ("clean",), ("put", "a", "b"), ("flush", "a")),
            *(("roll", "a"), ("clean",)),
        ),
        TWO_ROLLS,
    ),
    Life(
        "a note is found again",
        (
            ("open",),
            ("later", HOUR),
            ("clean",),
            ("close",),
            ("open",),
            ("put", "a", "A"),
            ("ask", "a"),
            ("later", HOUR),
            ("clean",),
        ),
        (*TWO_ROLLS, ("clean",)),
    ),
    Life(
        "records are deleted between rounds",
        (
            *(("clean",), ("delete_records", "a", 4), ("clean",), ("put", "a", "ab")),
            *(("roll", "a"), ("delete_records", "a", 9), ("clean",), ("due", 60_000)),
            *(("put", "a", "A"), ("flush", "a")),
        ),
        SIX,
    ),
    Life(
        "truncated into what was cleaned",
        (
            *(("clean",), ("truncate", "a", 10), ("put", "a", "Ab"), ("flush", "a"), ("clean",)),
            *(("roll", "a"), ("clean",), ("truncate", "a", 3), ("put", "a", "a"), ("flush", "a")),
        ),
        SIX,
    ),
    Life(
        "the topic is deleted and made again",
        (
            *(("clean",), ("delete", "a"), ("create", "a"), ("put", "a", "ab"), ("roll", "a")),
            *(("put", "a", "ab"), ("roll", "a"), ("clean",), ("due", 60_000)),
        ),
        TWO_ROLLS,
    ),
    Life(
        "two partitions, one paused",
        (
            *(("pause", "a"), ("clean",), ("put", "b", "a"), ("roll", "b"), ("clean",)),
            *(("resume", "a"), ("clean",), ("flush", "b")),
        ),
        (*TWO_ROLLS, ("create", "b"), ("put", "b", "abA"), ("roll", "b"), ("put", "b", "c")),
    ),
    Life(
        "closed, opened, cleaned again",
        (
            *(("clean",), ("close",), ("open",), ("produce", "a", "ab"), ("roll", "a"), ("clean",)),
            *(("close",), ("open",), ("produce", "a", "c"), ("flush", "a")),
        ),
        SIX,
    ),
    Life(
        "left without a close",
        (
            ("clean",),
            ("put", "a", "aq"),
            ("stop",),
            ("open",),
            ("roll", "a"),
            ("clean",),
            ("checkpoint",),
        ),
        SIX,
    ),
)


def random_life(seed: int) -> Life:
    """Steps of any kind on one log."""
    rng = Random(seed)
    steps: list[Step] = []
    end = 0
    kinds = (
        "put",
        "produce",
        "roll",
        "clean",
        "flush",
        "later",
        "delete_records",
        "cut",
        "ask",
    )
    for kind in rng.choices(kinds, (6, 2, 4, 4, 2, 2, 1, 1, 1), k=rng.randint(8, 16)):
        match kind:
            case "put" | "produce":
                letters = "".join(rng.choice("abcdABC") for _ in range(rng.randint(1, 4)))
                steps.append((kind, "a", letters))
                end += len(letters)
            case "later":
                steps.append((kind, rng.choice((1, HOUR - 1, HOUR))))
            case "delete_records" if end:
                steps.append((kind, "a", rng.randint(0, end // 2)))
            case "clean":
                steps.append((kind,))
            case "roll" | "flush" | "ask":
                steps.append((kind, "a"))
            case "cut":
                steps.append((kind, "a", rng.randint(1, 6)))
            case _:
                pass
    cut = len(steps) // 2
    topic = replace(TOPIC, segment_bytes=rng.choice((1, 200, 400, 1 << 20)))
    return Life(f"random life {seed}", tuple(steps[cut:]), (("create", "a"), *steps[:cut]), topic)


@pytest.mark.sweep
@pytest.mark.requirement("CMP-1", "CMP-9", "CMP-12", "CLN-3", "RCV-5", "RCV-6", "RET-6")
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_a_service_stands_every_cut(life: Life, count_cases: Callable[[str, int], None]) -> None:
    states = budget(1_560)
    explore(
        life.run,
        life.judge,
        seed=1,
        max_states=states,
        start=life.start,
        depth2=Depth2(life.recover, share=0.01, max_states=states // 20),
        name=life.name,
    ).count(count_cases)


@pytest.mark.sweep
@pytest.mark.requirement("CMP-1", "CMP-9", "CMP-12", "CLN-3")
@pytest.mark.parametrize("seed", range(120 if IS_SWEEP else 6))
def test_any_life_stands_every_cut(seed: int, count_cases: Callable[[str, int], None]) -> None:
    life = random_life(seed)
    explore(
        life.run,
        life.judge,
        seed=seed,
        max_states=400,
        start=life.start,
        depth2=Depth2(life.recover, share=0.01, max_states=20),
        name=life.name,
    ).count(count_cases)
