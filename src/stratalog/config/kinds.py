"""The types of settings: how text becomes a value, and the rules that a value must keep.

The words of an error are those of Kafka's `ConfigException`, so that what people know and search
for stays the same:

    Invalid value 100 for configuration segment.bytes: Value must be at least 1048576

Invariants
- I1  `parse` returns a value of its kind or raises `UsageError`; it never guesses.
- I2  Rules are pure: they answer the reason for a refusal, or None.

Source: Kafka's ConfigDef (types, Range, ValidString, ValidList).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from stratalog.base.errors import UsageError

Value = int | float | bool | str | tuple[str, ...]
Rule = Callable[[Value], str | None]
"""Answers why a value is refused, or None."""

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


def invalid(name: str, text: object, reason: str) -> UsageError:
    """The error for a value that cannot be, in Kafka's words."""
    return UsageError(f"Invalid value {text} for configuration {name}: {reason}")


def parse(name: str, text: str, kind: Kind) -> Value:
    """The value that `text` stands for. Raises `UsageError`."""
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


def anything(_: Value) -> str | None:
    """No rule."""
    return None


def not_empty(value: Value) -> str | None:
    """Lists and texts that say something."""
    return None if value else "Value must not be empty"


def at_least(lowest: int) -> Rule:
    """Numbers from `lowest` on."""

    def rule(value: Value) -> str | None:
        assert isinstance(value, int | float), value
        return f"Value must be at least {lowest}" if value < lowest else None

    return rule


def between(lowest: float, highest: float) -> Rule:
    """Numbers from `lowest` to `highest`, both included."""

    def rule(value: Value) -> str | None:
        assert isinstance(value, int | float), value
        if value < lowest:
            return f"Value must be at least {lowest:g}"
        return f"Value must be no more than {highest:g}" if value > highest else None

    return rule


def one_of(*words: str) -> Rule:
    """A word of `words`; of a list, every word."""

    def rule(value: Value) -> str | None:
        chosen = value if isinstance(value, tuple) else (value,)
        if all(word in words for word in chosen):
            return None
        return f"String must be one of: {', '.join(words)}"

    return rule
