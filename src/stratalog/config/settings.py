"""Checked values of every setting, each with where it comes from.

A `Settings` is made of levels (`levels.py`), one laid over the other: `unset` is the bottom,
`over` adds a more specific level. `resolve({name: text})` is the short way for what somebody wrote
at one place, under any names: the topic's own wins, then the broker's synonyms in their order, then
the default of the command that asks, then the table's. Broken rules and unknown names are refused
in one line, the latter with the names that look alike.

Invariants
- I1  A `Settings` holds a valid value for every row of the table, and where it comes from.
- I2  A level costs what it says, not what the table has: ten thousand topics share one table.

What is valid alone may be refused together (`together.py`); `resolve` and the book look at that.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratalog.base.errors import InvalidConfigError
from stratalog.config.kinds import INT_MAX, Value
from stratalog.config.levels import Given, Origin, Source, check, default_origin, names_at
from stratalog.config.table import TABLE, setting, unknown
from stratalog.config.together import check_together

__all__ = ["DEFAULT", "Settings", "over", "parse_pairs", "resolve", "setting", "unknown", "unset"]

DEFAULT = "default"
_SLOT_BYTES = 24
"""A key in the dedupe buffer: 16 bytes of hash and 8 of offset (CMP-5)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of every setting. `sources`: the name it was given by, or `DEFAULT`.

    `levels`: what was given, the most specific first; `defaults`: those of a command.
    """

    values: Mapping[str, Value | None]
    sources: Mapping[str, str]
    without_effect: tuple[str, ...] = ()
    levels: tuple[Given, ...] = ()
    defaults: Mapping[str, Value] = field(default_factory=dict)

    def is_given(self, name: str) -> bool:
        """Whether somebody set it, by this name or a synonym."""
        return self.sources[name] != DEFAULT

    def integer(self, name: str) -> int:
        """A setting of kind INT or LONG that has a value."""
        value = self.values[name]
        assert isinstance(value, int), (name, value)
        return value

    def number(self, name: str) -> float:
        """A setting of kind DOUBLE."""
        value = self.values[name]
        assert isinstance(value, float), (name, value)
        return value

    def text(self, name: str) -> str:
        """A setting of kind STRING."""
        value = self.values[name]
        assert isinstance(value, str), (name, value)
        return value

    def flag(self, name: str) -> bool:
        """A setting of kind BOOLEAN."""
        value = self.values[name]
        assert isinstance(value, bool), (name, value)
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """A setting of kind LIST."""
        value = self.values[name]
        assert isinstance(value, tuple), (name, value)
        return value

    def origins(self, name: str) -> tuple[Origin, ...]:
        """All that was said of a setting, what counts first, the default last.

        These are the synonyms of Kafka's DescribeConfigs (CFG-1). Raises `InvalidConfigError` for a
        name that is no row's.
        """
        row = setting(name)
        found = [
            Origin(given.source, synonym.name, given.words[synonym.name].strip(), given.place)
            for given in self.levels
            for synonym in names_at(row, given.source)
            if synonym.name in given.words
        ]
        default = self.defaults.get(name, row.default)
        return tuple(found) if default is None else (*found, default_origin(row, default))

    def origin(self, name: str) -> Origin:
        """Where a setting's value comes from."""
        return next(iter(self.origins(name)), Origin(Source.DEFAULT, name, ""))

    @property
    def segment_bytes(self) -> int:
        """`segment.bytes`, or `internal.segment.bytes` if that is set."""
        internal = self.values["internal.segment.bytes"]
        return internal if isinstance(internal, int) else self.integer("segment.bytes")

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.words("cleanup.policy")

    @property
    def max_keys(self) -> int | None:
        """Keys that a round may map (CMP-5); None unless the dedupe buffer's size is given."""
        if not self.is_given("log.cleaner.dedupe.buffer.size"):
            return None
        threads = self.integer("log.cleaner.threads")
        # Kafka ignores what one thread cannot address.
        buffer_bytes = min(self.integer("log.cleaner.dedupe.buffer.size") // threads, INT_MAX)
        return int((buffer_bytes // _SLOT_BYTES) * self.number("log.cleaner.io.buffer.load.factor"))


def unset(defaults: Mapping[str, Value] | None = None) -> Settings:
    """The defaults: those of a command where they differ from the table's."""
    values = {row.name: row.default for row in TABLE} | dict(defaults or {})
    sources = {row.name: DEFAULT for row in TABLE}
    return Settings(ChainMap({}, values), ChainMap({}, sources), defaults=defaults or {})


def over(settings: Settings, given: Given) -> Settings:
    """`settings` with a more specific level on top.

    Raises `InvalidConfigError` for what it says wrong.
    """
    checked = check(given)
    return Settings(
        _laid(settings.values, checked.values),
        _laid(settings.sources, checked.names),
        (*settings.without_effect, *checked.without_effect),
        (given, *settings.levels),
        settings.defaults,
    )


def _laid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    assert isinstance(below, ChainMap), below
    changed, table = below.maps
    return ChainMap({**changed, **above}, table)


def resolve(given: Mapping[str, str], defaults: Mapping[str, Value] | None = None) -> Settings:
    """Check what was given at one place, under any names, and fill in the rest.

    `defaults` are those of a command where they differ from the table's.

    Raises `InvalidConfigError`.
    """
    settings = over(unset(defaults), Given(Source.COMMAND_LINE, given))
    check_together(settings)
    return settings


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` strings as a mapping.

    Raises `InvalidConfigError` for another form or a name twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidConfigError(f"{pair!r} is not of the form NAME=VALUE")
        if name in found:
            raise InvalidConfigError(f"{name} is given twice")
        found[name] = text
    return found
