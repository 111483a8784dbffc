"""The page's drawings: parts of a bar, in percent of its width and height. Pure.

Percentages let the page stretch a bar to any screen without stretching its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.admin.page.figures import Section, SegmentFigures
from stratalog.admin.page.words import percent, size

_SLOTS = 48
"""Columns of one drawing of a log."""
SECTIONS = {
    Section.CLEAN: "clean: below the cleaner checkpoint",
    Section.CLEANABLE: "dirty: the next round may take it in",
    Section.HELD_BACK: "held back by a lag or an open transaction",
    Section.ACTIVE: "active segment",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar, in percent of it. `kind` is its class in the style sheet; `top` and `height`
    are for drawings whose parts do not reach from top to bottom."""

    kind: str
    start: float
    width: float
    title: str
    top: float = 0
    height: float = 100


@dataclass(frozen=True, slots=True)
class Bar:
    """`summary` says in words what it shows."""

    parts: tuple[Part, ...]
    summary: str


def split(whole: int, saved: int) -> Bar:
    """What stays and what goes of `whole` bytes."""
    going = max(0, min(saved, whole))
    parts = stacked(
        [
            ("kept", whole - going, f"stays: {size(whole - going)}"),
            ("going", going, f"would go: {size(going)}"),
        ],
        whole,
    )
    return Bar(parts, f"{size(going)} of {size(whole)} would go ({percent(going, whole)})")


def stacked(pieces: Sequence[tuple[str, int, str]], whole: int) -> tuple[Part, ...]:
    """(kind, amount, title) side by side; `whole` is the amount of the full width."""
    found, start = [], 0
    for kind, amount, title in pieces:
        if amount > 0:
            found.append(Part(kind, _share(start, whole), _share(amount, whole), title))
        start += amount
    return tuple(found)


def _share(part: float, whole: float) -> float:
    return round(100 * part / whole, 3) if whole > 0 else 0.0


def alone(amount: int, most: int, kind: str, summary: str) -> Bar:
    """A single value against the largest one."""
    return Bar(stacked([(kind, amount, summary)], most), summary)


def drawing(segments: Sequence[SegmentFigures], name: str) -> Bar:
    """Segments side by side, each as wide as it is large, filled as high as it stays."""
    whole = sum(segment.bytes_before for segment in segments)
    parts: list[Part] = []
    start = 0
    for group in _slots(segments, whole):
        before = sum(segment.bytes_before for segment in group)
        going = max(0, before - sum(segment.bytes_after for segment in group))
        what = f"segment {group[0].base_offset}"
        if len(group) > 1:
            what = f"segments {group[0].base_offset} to {group[-1].base_offset}"
        title = f"{what}: {size(going)} of {size(before)} would go ({percent(going, before)})"
        height = _share(going, before)
        x, width = _share(start, whole), _share(before, whole)
        if going > 0:
            parts.append(Part("going", x, width, title, 0, height))
        if height < 100:
            parts.append(Part("kept", x, width, title, height, round(100 - height, 3)))
        start += before
    return Bar(tuple(parts), f"{name}: what stays and what would go, from the oldest segment on")


def _slots(segments: Sequence[SegmentFigures], whole: int) -> list[list[SegmentFigures]]:
    """Neighbours together, so that no column is too thin to see; empty segments are left out."""
    slots: list[list[SegmentFigures]] = []
    room = 0
    for segment in segments:
        if segment.bytes_before == 0:
            continue
        if room <= 0 or not slots:
            slots.append([])
            room = whole // _SLOTS
        slots[-1].append(segment)
        room -= segment.bytes_before
    return slots


def by_section(segments: Sequence[SegmentFigures]) -> dict[Section, int]:
    """Bytes of each section."""
    found = dict.fromkeys(Section, 0)
    for segment in segments:
        found[segment.section] += segment.bytes_before
    return found


def sections(segments: Sequence[SegmentFigures], name: str) -> Bar:
    """How far the cleaner has come, from the log's start on."""
    found = by_section(segments)
    whole = sum(found.values())
    pieces = [
        (section.value, found[section], f"{SECTIONS[section]}: {size(found[section])}")
        for section in Section
    ]
    words = ", ".join(f"{section.value} {percent(found[section], whole)}" for section in Section)
    return Bar(stacked(pieces, whole), f"{name}: {words}")
