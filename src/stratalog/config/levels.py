"""Levels of settings: who gave what, under which names, and what it comes to.

From the most specific: the command line, a topic, a namespace (a prefix of topic names, the longer
one before the shorter), a broker at run time, a broker's file, the default. Whatever a more
specific level says wins, whichever of a setting's names it uses; within a level the names win in
the table's order.

    level         names that count                    another name
    command line  all                                 refused, with the names that look alike
    topic         the topic's own                     refused
    namespace     the topic's own                     refused
    broker        the broker's                        without effect, as CFG-1 wants it

Invariants
- I1  `check` looks at every word of a level, also at those that another overrules.

Source: CFG-1; Kafka's ConfigHelper (order and names of sources), LogConfig.validateNames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from stratalog.base.errors import InvalidConfigError
from stratalog.config.kinds import INT_MAX, LONG_MAX, Kind, Value, invalid, parse, written
from stratalog.config.row import Setting, Synonym
from stratalog.config.table import ALL_NAMES, BROKER_NAMES, TABLE, TOPIC_NAMES, unknown


class Source(Enum):
    """A level; the value is Kafka's name of it, or one like them where Kafka has none."""

    COMMAND_LINE = "COMMAND_LINE_CONFIG"
    TOPIC = "DYNAMIC_TOPIC_CONFIG"
    NAMESPACE = "DYNAMIC_NAMESPACE_CONFIG"
    DYNAMIC_BROKER = "DYNAMIC_BROKER_CONFIG"
    BROKER = "STATIC_BROKER_CONFIG"
    DEFAULT = "DEFAULT_CONFIG"

    @property
    def is_topics(self) -> bool:
        """Whether topics' own names are what counts here."""
        return self in (Source.TOPIC, Source.NAMESPACE)


_ALLOWED = {
    Source.COMMAND_LINE: ALL_NAMES,
    Source.TOPIC: TOPIC_NAMES,
    Source.NAMESPACE: TOPIC_NAMES,
    Source.DYNAMIC_BROKER: BROKER_NAMES,
    Source.BROKER: BROKER_NAMES,
}


@dataclass(frozen=True, slots=True)
class Given:
    """What a level says: name -> text. `place`: the topic or the prefix that it is said of."""

    source: Source
    words: Mapping[str, str]
    place: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """A value as it was written, and where: one of the synonyms of Kafka's DescribeConfigs."""

    source: Source
    name: str
    text: str
    place: str = ""

    def __str__(self) -> str:
        """`DYNAMIC_TOPIC_CONFIG:retention.ms=5`; a namespace says its prefix too."""
        place = f"({self.place})" if self.source is Source.NAMESPACE else ""
        return f"{self.source.value}{place}:{self.name}={self.text}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a level comes to. `values` and `names`: by row, the value and the name it came by."""

    values: Mapping[str, Value]
    names: Mapping[str, str]
    without_effect: tuple[str, ...] = ()


def names_at(row: Setting, source: Source) -> tuple[Synonym, ...]:
    """The names that count for a row at a level, the stronger first."""
    if source is Source.COMMAND_LINE:
        return row.anywhere
    if source.is_topics:
        return (Synonym(row.name),) if row.is_topics else ()
    return row.at_broker


def _uses(source: Source) -> Mapping[str, list[tuple[Setting, int, Synonym]]]:
    uses: dict[str, list[tuple[Setting, int, Synonym]]] = defaultdict(list)
    for row in TABLE:
        for rank, synonym in enumerate(names_at(row, source)):
            uses[synonym.name].append((row, rank, synonym))
    return MappingProxyType(dict(uses))


_USES = {source: _uses(source) for source in _ALLOWED}
"""For each level: a name -> the rows that it counts for, and how strong it is there."""


def check(given: Given) -> Checked:
    """A level's values. Raises `InvalidConfigError` for a name or a value that cannot be."""
    values: dict[str, Value] = {}
    names: dict[str, str] = {}
    ranks: dict[str, int] = {}
    idle: list[str] = []
    uses = _USES[given.source]
    for name, text in given.words.items():
        if name not in _ALLOWED[given.source]:
            if given.source not in (Source.BROKER, Source.DYNAMIC_BROKER):
                raise InvalidConfigError(refused_name(name, given.source))
            idle.append(name)
            continue
        for row, rank, synonym in uses[name]:
            value = _checked(row, synonym, text)
            if rank <= ranks.get(row.name, rank):
                values[row.name], names[row.name], ranks[row.name] = value, name, rank
        if all(row.is_idle for row, _, _ in uses[name]):
            idle.append(name)
    return Checked(values, names, tuple(idle))


def refused_name(name: str, source: Source) -> str:
    """Why a level does not take a name: in Kafka's words for topics, and with a hint."""
    if not source.is_topics:
        return unknown(name)
    message = f"Unknown topic config name: {name}"
    own = [row for row in TABLE if row.is_topics and name in (word.name for word in row.synonyms)]
    if own:
        return f"{message}; it is the broker's name of {own[0].name}"
    if name in BROKER_NAMES:
        return f"{message}; only a broker has it"
    return message + unknown(name).removeprefix(f"Unknown configuration {name}")


def idle_hint(name: str) -> str:
    """A name that has no effect at the broker, and the one that has, if any."""
    if name in BROKER_NAMES or name not in TOPIC_NAMES:
        return name
    row = next(row for row in TABLE if row.name == name)
    return f"{name} ({row.synonyms[0].name if row.synonyms else 'only at a topic'})"


def default_origin(row: Setting, value: Value) -> Origin:
    """The default, by the name that it has in Kafka: the weakest one, in that one's unit."""
    last = row.synonyms[-1] if row.is_topics and row.synonyms else Synonym(row.name)
    in_unit = value // last.factor if isinstance(value, int) and last.factor != 1 else value
    return Origin(Source.DEFAULT, last.name, written(in_unit))


def _checked(row: Setting, synonym: Synonym, text: str) -> Value:
    value = parse(synonym.name, text, row.kind)
    if synonym.factor != 1:
        assert isinstance(value, int), synonym
        value *= synonym.factor
    if synonym.is_forever_below_zero:
        assert isinstance(value, int), synonym
        if value == 0:
            raise invalid(synonym.name, text.strip(), "Value must be -1 (unlimited) or at least 1")
        value = max(value, -1)
    largest = INT_MAX if row.kind is Kind.INT else LONG_MAX
    if isinstance(value, int) and value > largest:
        raise invalid(synonym.name, text.strip(), f"Not a number of type {row.kind.value}")
    reason = row.rule(value)
    if reason is not None:
        raise invalid(synonym.name, text.strip(), reason)
    return value
