"""From what somebody wrote to checked values: `resolve({name: text}) -> Settings`.

For each setting the topic's own name wins, then the broker's synonyms in their order, then the
default of the command that asks, then the table's. Broken rules and unknown names are refused in
one line, the latter with the names that look alike.

Invariants
- I1  A `Settings` holds a valid value for every row of the table, and where it comes from.
- I2  What is valid alone may be refused together (min over max lag): that is checked here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from stratalog.base.errors import UsageError
from stratalog.config.kinds import INT_MAX, LONG_MAX, Kind, Value, invalid, parse
from stratalog.config.row import Setting, Synonym
from stratalog.config.table import TABLE, WITHOUT_EFFECT

DEFAULT = "default"
_BY_NAME = {setting.name: setting for setting in TABLE}
_SLOT_BYTES = 24
"""A key in the dedupe buffer: 16 bytes of hash and 8 of offset (CMP-5)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of every setting. `sources`: the name it was given by, or `DEFAULT`."""

    values: Mapping[str, Value | None]
    sources: Mapping[str, str]
    without_effect: tuple[str, ...] = ()

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


def resolve(given: Mapping[str, str], defaults: Mapping[str, Value] | None = None) -> Settings:
    """Check what was given and fill in the rest.

    `defaults` are those of a command where they differ from the table's. Raises `UsageError`.
    """
    for name in given:
        if name not in _KNOWN:
            raise UsageError(unknown(name))
    values: dict[str, Value | None] = {}
    sources: dict[str, str] = {}
    for setting in TABLE:
        values[setting.name] = (defaults or {}).get(setting.name, setting.default)
        sources[setting.name] = DEFAULT
        # All that is given is checked, also what a name before it overrules.
        for synonym in reversed(_names(setting)):
            if synonym.name in given:
                values[setting.name] = _checked(setting, synonym, given[synonym.name])
                sources[setting.name] = synonym.name
    settings = Settings(values, sources, tuple(name for name in given if name in WITHOUT_EFFECT))
    _check_together(settings)
    return settings


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` strings as a mapping. Raises `UsageError` for another form or a name twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"{pair!r} is not of the form NAME=VALUE")
        if name in found:
            raise UsageError(f"{name} is given twice")
        found[name] = text
    return found


def unknown(name: str) -> str:
    """What to say of a name that nobody knows: it, and what it may have been meant to be."""
    near = get_close_matches(name, sorted(_KNOWN), n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"Unknown configuration {name}{hint}"


def _names(setting: Setting) -> tuple[Synonym, ...]:
    return (Synonym(setting.name), *setting.synonyms)


_KNOWN = frozenset(name.name for setting in TABLE for name in _names(setting)) | WITHOUT_EFFECT


def _checked(setting: Setting, synonym: Synonym, text: str) -> Value:
    value = parse(synonym.name, text, setting.kind)
    if synonym.factor != 1:
        assert isinstance(value, int), synonym
        value *= synonym.factor
    if synonym.is_forever_below_zero:
        assert isinstance(value, int), synonym
        if value == 0:
            raise invalid(synonym.name, text.strip(), "Value must be -1 (unlimited) or at least 1")
        value = max(value, -1)
    largest = INT_MAX if setting.kind is Kind.INT else LONG_MAX
    if isinstance(value, int) and value > largest:
        raise invalid(synonym.name, text.strip(), f"Not a number of type {setting.kind.value}")
    reason = setting.rule(value)
    if reason is not None:
        raise invalid(synonym.name, text.strip(), reason)
    return value


def _check_together(settings: Settings) -> None:
    lowest, highest = (
        settings.integer(name) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if lowest > highest:
        raise UsageError(
            f"conflict topic config setting min.compaction.lag.ms ({lowest}) > "
            f"max.compaction.lag.ms ({highest})"
        )
    if settings.max_keys is not None and settings.max_keys < 1:
        raise invalid(
            settings.sources["log.cleaner.dedupe.buffer.size"],
            settings.integer("log.cleaner.dedupe.buffer.size"),
            "Too small for one key, at 24 bytes a key times log.cleaner.io.buffer.load.factor",
        )
    if settings.text("tombstone.horizon") == "segment":
        raise invalid(
            "tombstone.horizon",
            "segment",
            "Not available yet: only 'batch' is, the rule of Kafka since 3.1 (KIP-534)",
        )


def setting(name: str) -> Setting:
    """The row of a topic's or broker's own name. Raises `UsageError` if there is none."""
    if name not in _BY_NAME:
        raise UsageError(unknown(name))
    return _BY_NAME[name]
