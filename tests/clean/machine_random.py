"""Random actions for the state machine, and a failing list of them made short."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from tests.clean.machine import CHOICES, JUMPS
from tests.clean.machine_steps import Action, Machine

BIG = 1 << 30


def random_action(random: Random, partitions: int) -> Action:
    """Any action, appends the most often."""
    name = random.choices(list(_MAKERS), [weight for weight, _ in _MAKERS.values()])[0]
    return (name, *_MAKERS[name][1](random, partitions))


Maker = Callable[[Random, int], tuple[object, ...]]


def _where(random: Random, partitions: int) -> tuple[object, ...]:
    return (random.randrange(partitions),)


def _config(random: Random, partitions: int) -> tuple[object, ...]:
    # Orders are changed seldom: what the model knows of a log is less afterwards.
    names = [name for name in CHOICES if name != "order" or random.random() < 0.2]
    name = random.choice(names)
    return (random.randrange(partitions), name, random.randrange(len(CHOICES[name])))


def _cut(random: Random, partitions: int) -> tuple[object, ...]:
    inner: Action | None = None
    if random.random() < 0.8:
        name = random.choice(
            ["clean", "clean", "ask", "retention", "due", "delete_records", "reopen", "pause"]
        )
        inner = (name, *_MAKERS[name][1](random, partitions))
    return (
        inner,
        random.choice([random.randrange(12), random.randrange(60)]),
        random.randrange(BIG),
    )


_MAKERS: dict[str, tuple[float, Maker]] = {
    "append": (18, lambda r, n: (r.randrange(n), r.randrange(BIG))),
    "fill": (6, lambda r, n: (r.randrange(n), r.randrange(BIG))),
    "produce": (
        18,
        lambda r, n: (r.randrange(n), r.randrange(6), r.randrange(BIG), r.random() < 0.1),
    ),
    "end": (10, lambda r, n: (r.randrange(n), r.randrange(3, 6), r.randrange(2))),
    "repeat": (4, lambda r, n: (r.randrange(n), r.randrange(6))),
    "roll": (6, _where),
    "clean": (7, lambda _r, _n: ()),
    "clean_all": (2, lambda _r, _n: ()),
    "ask": (3, lambda r, n: (r.randrange(n), r.randrange(2))),
    "forget": (1, lambda r, n: (r.randrange(n), r.randrange(9))),
    "fail": (0.5, lambda r, n: (r.randrange(n), r.randrange(2))),
    "retry": (0.5, _where),
    "pause": (0.5, _where),
    "pause_midway": (0.5, _where),
    "resume": (2, _where),
    "retention": (3, lambda _r, _n: ()),
    "due": (3, lambda _r, _n: ()),
    "delete_records": (2, lambda r, n: (r.randrange(n), r.choice([0, 10, 30, 60, 100]))),
    "jump": (8, lambda r, _n: (r.randrange(len(JUMPS)),)),
    "config": (4, _config),
    "reopen": (1.5, lambda _r, _n: ()),
    "cut": (1.5, _cut),
}


def fails(actions: Sequence[Action], **settings: int | None) -> Exception | None:
    """What a list of actions ends with."""
    machine = Machine(**settings)  # type: ignore[arg-type]
    try:
        for action in actions:
            machine.do(action)
    except Exception as error:  # noqa: BLE001  (any of them is a finding)
        return error
    return None


def shortest(actions: Sequence[Action], most: int = 2000, **settings: int | None) -> list[Action]:
    """A part of a failing list that still fails in the same way, from which nothing can go."""
    left = list(actions)
    kind = _kind(fails(left, **settings))
    size = max(len(left) // 2, 1)
    while size >= 1 and most > 0:
        place = len(left) - size
        was_shortened = False
        while place >= 0 and most > 0:
            trial = left[:place] + left[place + size :]
            most -= 1
            if trial and _kind(fails(trial, **settings)) == kind:
                left, was_shortened = trial, True
            place -= size
        if not was_shortened or size > 1:
            size //= 2
    return left


def _kind(error: Exception | None) -> str:
    """What went wrong, without the figures: the words outside of brackets."""
    text = re.sub(r"[\[{(].*", "", str(error))
    return type(error).__name__ + re.sub(r"[^a-z ]", "", text)
