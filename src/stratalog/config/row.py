"""What a row of the table of settings is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stratalog.config.kinds import Kind, Rule, Value, anything


class Effect(Enum):
    """When a change takes effect."""

    APPEND = "with the next append"
    ROLL = "when the next segment is begun"
    CLEANING = "with the next cleaning"
    CHECK = "with the next retention check"
    FLUSH = "with the next look for what is to be flushed"
    DELETION = "with the next file that is deleted"
    OPEN = "when the log is opened next"
    START = "with the next start"


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
    """One row of the table. `default` None: not set."""

    name: str
    kind: Kind
    default: Value | None
    doc: str
    effect: Effect
    rule: Rule = anything
    synonyms: tuple[Synonym, ...] = ()
    is_ours: bool = False
