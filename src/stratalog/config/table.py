"""THE table of settings: everything that this program obeys or accepts, under Kafka's names.

A row says the topic's property, the broker's synonyms in Kafka's order of precedence (the first
that is given wins; one may count in other units), type, default, rule, what it does, when a change
takes effect, at which levels it can stand, and whether it can be changed at run time. A setting
that only brokers have bears their name, and its synonyms are older names. Those marked `is_ours` do
not exist in Kafka. The rows lie in three rooms: `rows_log`, `rows_cleaning`, `rows_accepted`.

Invariants
- I1  Every name stands in one row, except `log.flush.scheduler.interval.ms`, a setting of its own
      and the last word on another.
- I2  A default keeps its rule.
"""

from __future__ import annotations

from difflib import get_close_matches

from stratalog.base.errors import InvalidConfigError
from stratalog.config.row import Effect, Setting
from stratalog.config.rows_accepted import ACCEPTED
from stratalog.config.rows_cleaning import CLEANER, CLEANING
from stratalog.config.rows_log import DIRECTORIES, FLUSHING, RECORDS, RETENTION, SEGMENTS

SECTIONS: dict[str, tuple[Setting, ...]] = {
    "Segments": SEGMENTS,
    "Records": RECORDS,
    "Cleaning": CLEANING,
    "The cleaner": CLEANER,
    "Retention": RETENTION,
    "Flushing": FLUSHING,
    "Directories": DIRECTORIES,
    "Accepted without effect": ACCEPTED,
}
"""The table in the order in which it is shown."""

TABLE: tuple[Setting, ...] = tuple(row for rows in SECTIONS.values() for row in rows)

BY_NAME = {row.name: row for row in TABLE}

WITHOUT_EFFECT = frozenset(row.name for row in TABLE if row.effect is Effect.NONE)
"""Kafka's properties that nothing here obeys: accepted, and reported as such."""

TOPIC_NAMES = frozenset(row.name for row in TABLE if row.is_topics)
"""What a topic and a namespace can be given."""

BROKER_NAMES = frozenset(name.name for row in TABLE for name in row.at_broker)
"""What a broker can be given."""

DYNAMIC_BROKER_NAMES = frozenset(row.dynamic_name for row in TABLE if row.dynamic_name is not None)
"""What of it can be changed at run time."""

ALL_NAMES = TOPIC_NAMES | BROKER_NAMES

assert all(row.default is None or row.rule(row.default) is None for row in TABLE), (
    "a default breaks its own rule"
)
assert len(BY_NAME) == len(TABLE)


def setting(name: str) -> Setting:
    """The row of a topic's or broker's own name. Raises `InvalidConfigError` if there is none."""
    if name not in BY_NAME:
        raise InvalidConfigError(unknown(name))
    return BY_NAME[name]


def rows_of(name: str) -> tuple[Setting, ...]:
    """The rows that a name stands for, its own row first.

    Raises `InvalidConfigError` if there is none.
    """
    rows = [row for row in TABLE if any(word.name == name for word in row.anywhere)]
    if not rows:
        raise InvalidConfigError(unknown(name))
    return tuple(sorted(rows, key=lambda row: row.name != name))


def unknown(name: str) -> str:
    """What to say of a name that nobody knows: it, and what it may have been meant to be."""
    near = get_close_matches(name, sorted(ALL_NAMES), n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"Unknown configuration {name}{hint}"
