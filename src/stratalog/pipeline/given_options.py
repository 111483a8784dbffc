"""The options of the source and of streams as Spark hands them over: text, names in lower case.

`GivenOptions` refuses names that there are not and gives what is asked for by kind; what the values
mean together is the business of `options` and `stream_options`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from stratalog.base.errors import UsageError

OPTIONS = (
    *("path", "paths", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions"),
    *("maxRecordsPerPartition", "includeHeaders", "includeMetadata", "includeControl"),
    *(
        "view",
        "asOf",
        "isolation",
        "columns",
        "tombstones",
        "maxPartitionBytes",
        "dedupeBufferBytes",
    ),
    *("compaction.strategy", "compaction.strategy.header"),
    *("s3.endpoint", "s3.region", "s3.access-key-id", "s3.secret-access-key"),
    *("s3.session-token", "s3.anonymous"),
)
"""Every option of the batch source, as people write it."""
STREAM_ONLY = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    "flushBeforeRead",
)
"""What only a stream takes (`stream_options`). A batch ignores it, as Spark's Kafka source does."""

E = TypeVar("E", bound=Enum)


class GivenOptions:
    """Typed access to the text that Spark gives; errors name the option as people write it."""

    def __init__(self, given: Mapping[str, str]):
        """Raises `UsageError` for an option that there is not."""
        self._given = {name.lower(): value for name, value in given.items()}
        self._refuse_unknown()

    def _refuse_unknown(self) -> None:
        known = {name.lower(): name for name in (*OPTIONS, *STREAM_ONLY)}
        for name in sorted(self._given):
            if name in known or name.startswith("kafka."):
                continue
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {_listed()}"
            raise UsageError(f"unknown option {name!r}: {hint}")

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def word(self, name: str, words: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in words:
            raise UsageError(f"{name} is {value!r}; it must be {' or '.join(words)}")
        return value.strip().lower()

    def one_of(self, name: str, kind: type[E], default: E) -> E:
        words = tuple(str(member.value) for member in kind)
        return kind(self.word(name, words, str(default.value)))

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false"), str(default).lower()) == "true"

    def positive(self, name: str) -> int | None:
        value = self.integer(name)
        if value is not None and value <= 0:
            raise UsageError(f"{name} is {value}; it must be greater than 0")
        return value

    def integer(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if re.fullmatch(r"\s*-?[0-9]{1,19}\s*", value, re.ASCII) is None:
            raise UsageError(f"{name} is {value!r}; it must be a whole number")
        return int(value)

    def json(self, name: str) -> Any:
        value = self.text(name)
        try:
            return json.loads(value or "")
        except (ValueError, RecursionError):
            words = "neither earliest nor latest nor JSON" if name in _WORDS else "no JSON"
            raise UsageError(f"{name} is {words}: {shortened(value)}") from None


_WORDS = ("startingOffsets", "endingOffsets")
"""What may be a word as well as JSON."""


def _listed() -> str:
    return ", ".join(name for name in OPTIONS if name not in ("path", "paths"))


def shortened(value: object) -> str:
    """A value for an error's line, 80 characters at most."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
