"""What a row of the table of settings is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stratalog.config.kinds import ANYTHING, Kind, Rule, Value


class Effect(Enum):
    """When a change takes effect."""

    APPEND = "with the next append"
    ROLL = "when the next segment is begun"
    CLEANING = "with the next cleaning"
    CHOICE = "when the cleaner looks for work next"
    CHECK = "with the next retention check"
    FLUSH = "with the next look for what is to be flushed"
    DELETION = "with the next file that is deleted"
    OPEN = "when the log is opened next"
    START = "with the next start"
    NONE = "never: accepted, without effect here"


class Level(Enum):
    """Where a setting can stand: a topic's at all levels, a broker's at the broker only."""

    TOPIC = "topic"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker property that stands for a topic's; its number times `factor` is the value.

    `is_forever_below_zero`: any negative number means -1, and 0 is refused (KafkaConfig's rule for
    `log.retention.ms`, `.minutes` and `.hours`, which the topic's own name does not have).
    """

    name: str
    factor: int = 1
    is_forever_below_zero: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `default` None: not set.

    `synonyms` are the broker's names of a topic's setting, or older names of a broker's, the
    stronger first. `is_dynamic` is for the broker's: it can be changed at run time. Of a topic's
    setting that always holds at the topic, and at the broker for the first synonym, as in Kafka.
    """

    name: str
    kind: Kind
    default: Value | None
    doc: str
    effect: Effect
    rule: Rule = ANYTHING
    synonyms: tuple[Synonym, ...] = ()
    level: Level = Level.TOPIC
    is_dynamic: bool = False
    is_ours: bool = False

    @property
    def is_topics(self) -> bool:
        """Whether a topic can have it, and so a namespace."""
        return self.level is Level.TOPIC

    @property
    def is_idle(self) -> bool:
        """Whether nothing here obeys it."""
        return self.effect is Effect.NONE

    @property
    def at_broker(self) -> tuple[Synonym, ...]:
        """The names that a broker may use for it, the stronger first."""
        return self.synonyms if self.is_topics else (Synonym(self.name), *self.synonyms)

    @property
    def anywhere(self) -> tuple[Synonym, ...]:
        """All its names, the stronger first."""
        own = Synonym(self.name)
        return (own, *(name for name in self.synonyms if name != own))

    @property
    def dynamic_name(self) -> str | None:
        """The broker's property for it that can be changed at run time."""
        if self.is_topics:
            return self.synonyms[0].name if self.synonyms else None
        return self.name if self.is_dynamic else None
