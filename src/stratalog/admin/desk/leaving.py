"""Topics that leave ledger mode: what only their ledgers have goes for nobody who does not say so.

    compaction.mode=inplace ─► left: partitions with a ledger ─► given up: what only the ledger has
                                 └ confirmed, or nothing is given up: the ledgers are dropped

A ledger whose topic has left the mode some other way (a server's file, a directory that was taken
over) stays until somebody gives it up: retention goes as far as it does and no further
(`ledger.copies`), and a cleaning in place waits (`clean.cleaner`). Saying compaction.mode=inplace
again, which changes nothing else, gives it up.

Source: LDG-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from stratalog.admin.desk.looking import Looker
from stratalog.admin.desk.protocol import Document
from stratalog.admin.topics import Topics
from stratalog.base.errors import ConfirmationNeededError, CorruptionError, StratalogError
from stratalog.config.book import SettingsBook
from stratalog.ledger.ledgers import has_ledgers
from stratalog.ledger.manifest import held_alone, read_manifest
from stratalog.segment.names import TopicPartition

_MODE = "compaction.mode"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Left:
    """A partition with a ledger that is not to have one. `alone`: the offsets [start, end) that are
    only in it, None: none; `number` of the ledger, None: its manifest is damaged."""

    topic_partition: TopicPartition
    number: int | None
    alone: tuple[int, int] | None


def left_by(
    looker: Looker,
    names: Sequence[str],
    before: SettingsBook,
    after: SettingsBook,
    topic: str | None,
) -> list[Left]:
    """Whose ledgers go with a change of these settings: of topics that leave ledger mode by it, and
    of `topic`, of which it is said, if it is not in it afterwards. None, unless the mode is among
    the settings. What cannot be looked at is left alone."""
    if not any(_MODE in name for name in names):
        return []
    old, new = Topics(before), Topics(after)
    found = []
    for place in looker.places():
        key = place.topic_partition
        is_meant = key.topic == topic or old.cleaning(key).uses_ledger
        if not is_meant or new.cleaning(key).uses_ledger:
            continue
        if not has_ledgers(looker.filesystem, place.path):
            continue
        with suppress(StratalogError, FileNotFoundError), looker.opened(place) as view:
            start = view.log_start_offset
            try:
                current = read_manifest(looker.filesystem, place.path).current
            except CorruptionError:
                found.append(Left(key, None, (0, start) if start > 0 else None))
                continue
            if current is not None:
                found.append(Left(key, current.number, held_alone(current, start)))
    return found


def given_up(left: Sequence[Left]) -> list[Document]:
    """What is only in the ledgers that go: a row a partition."""
    return [
        {
            "topic": one.topic_partition.topic,
            "partition": one.topic_partition.partition,
            "ledger": one.number,
            "start_offset": one.alone[0],
            "end_offset": one.alone[1],
        }
        for one in left
        if one.alone is not None
    ]


def check_confirmed(rows: Sequence[Document], confirm: bool) -> None:
    """Raises `ConfirmationNeededError` if something is given up and nobody has said so."""
    if not rows or confirm:
        return
    told = "; ".join(map(said, rows[:_SHOWN]))
    more = f"; and {len(rows) - _SHOWN} more partitions" if len(rows) > _SHOWN else ""
    raise ConfirmationNeededError(
        f"{told}{more}: confirm that they are given up, or keep compaction.mode=ledger"
    )


def said(row: Document) -> str:
    """A row in words."""
    held = f"offsets {row['start_offset']} to {row['end_offset'] - 1} are only in its ledger"
    if row["ledger"] is None:
        held = f"its ledger, which is damaged, may alone have offsets up to {row['end_offset'] - 1}"
    return f"{row['topic']}-{row['partition']}: {held}"
