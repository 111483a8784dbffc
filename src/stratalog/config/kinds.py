"""The types of settings: how text becomes a value, and the rules that a value must keep.

The words of an error are those of Kafka's `ConfigException`, so that what people know and search
for stays the same:

    Invalid value 100 for configuration segment.bytes: Value must be at least 1048576

Invariants
- I1  `parse` returns a value of its kind or raises `InvalidConfigError`; it never guesses.
- I2  Rules are pure: they answer the reason for a refusal, or None.
- I3  `parse(written(value))` is `value`.

Source: Kafka's ConfigDef (types, Range, ValidString, ValidList).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from stratalog.base.errors import InvalidConfigError

Value = int | float | bool | str | tuple[str, ...]
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


class Kind(Enum):
    """Kafka's names of the types; the value is how an error calls it."""

    BOOLEAN = "BOOLEAN"
    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    LIST = "LIST"


def invalid(name: str, text: object, reason: str) -> InvalidConfigError:
    """The error for a value that cannot be, in Kafka's words."""
    return InvalidConfigError(f"Invalid value {text} for configuration {name}: {reason}")


def parse(name: str, text: str, kind: Kind) -> Value:
    """The value that `text` stands for. Raises `InvalidConfigError`."""
    text = text.strip()
    match kind:
        case Kind.STRING:
            return text
        case Kind.LIST:
            return tuple(dict.fromkeys(word for word in map(str.strip, text.split(",")) if word))
        case Kind.BOOLEAN:
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            raise invalid(name, text, "Expected value to be either true or false")
        case Kind.DOUBLE:
            return _double(name, text)
        case Kind.INT | Kind.LONG:
            return _whole(name, text, kind)


def written(value: Value | None) -> str:
    """A value as Kafka's tools write it, which `parse` reads back; nothing for None."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def _double(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise invalid(name, text, "Not a number of type DOUBLE")
    return value


def _whole(name: str, text: str, kind: Kind) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    largest = INT_MAX if kind is Kind.INT else LONG_MAX
    # int() alone would take underscores and other scripts' digits, and any length.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise invalid(name, text, f"Not a number of type {kind.value}")
    value = int(text)
    if not -largest - 1 <= value <= largest:
        raise invalid(name, text, f"Not a number of type {kind.value}")
    return value


@dataclass(frozen=True, slots=True)
class Rule:
    """Which values are taken. `text` says it to people; `check` answers why one is refused."""

    text: str
    check: Callable[[Value], str | None]

    def __call__(self, value: Value) -> str | None:
        return self.check(value)


ANYTHING = Rule("", lambda _: None)
"""No rule."""

NOT_EMPTY = Rule("not empty", lambda value: None if value else "Value must not be empty")
"""Lists and texts that say something."""


def at_least(lowest: int) -> Rule:
    """Numbers from `lowest` on."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int | float), value
        return f"Value must be at least {lowest}" if value < lowest else None

    return Rule(f"at least {lowest}", check)


def between(lowest: float, highest: float) -> Rule:
    """Numbers from `lowest` to `highest`, both included."""

    def check(value: Value) -> str | None:
        assert isinstance(value, int | float), value
        if value < lowest:
            return f"Value must be at least {lowest:.15g}"
        return f"Value must be no more than {highest:.15g}" if value > highest else None

    return Rule(f"{lowest:.15g} to {highest:.15g}", check)


def one_of(*words: str) -> Rule:
    """A word of `words`; of a list, every word."""

    def check(value: Value) -> str | None:
        chosen = value if isinstance(value, tuple) else (value,)
        if all(word in words for word in chosen):
            return None
        return f"String must be one of: {', '.join(words)}"

    return Rule(f"one of {', '.join(words)}", check)


def either(first: Rule, number: int) -> Rule:
    """What `first` takes, and `number` besides."""

    def check(value: Value) -> str | None:
        return None if value == number else first(value)

    return Rule(f"{number}, or {first.text}", check)
