"""The options of a stream: those of the source that make sense in one, and its limits.

They are those of Spark's Kafka source, with its rules and defaults, and `flushBeforeRead`.

Sources: Spark's KafkaSourceProvider and KafkaMicroBatchStream; REQUIREMENTS SPK-5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.base.errors import UsageError
from stratalog.pipeline.given_options import STREAM_ONLY, GivenOptions
from stratalog.pipeline.options import (
    Bound,
    BoundKind,
    SourceOptions,
    View,
    bound_of,
    source_options,
)

_MINUTE_MS = 60_000
DEFAULT_TRIGGER_DELAY_MS = 15 * _MINUTE_MS

_NO_END = "a stream has no end (with Trigger.AvailableNow, it ends where the log ends at its start)"
_NO_LATEST = "it belongs to view=latest, which a stream does not have"
_NOT_IN_STREAMS = {
    "endingOffsets": _NO_END,
    "endingOffsetsByTimestamp": _NO_END,
    "endingTimestamp": _NO_END,
    "dedupeBufferBytes": _NO_LATEST,
    "compaction.strategy": _NO_LATEST,
    "compaction.strategy.header": _NO_LATEST,
    "asOf": _NO_END,
}
_UNITS_MS = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": _MINUTE_MS,
    "min": _MINUTE_MS,
    "h": 60 * _MINUTE_MS,
    "d": 24 * 60 * _MINUTE_MS,
}
"""Spark's `JavaUtils.timeStringAs`."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream was asked for. `max_offsets` and `min_offsets` are of one trigger; with fewer
    than `min_offsets` it waits up to `max_delay_ms`. `flushes`: see `stream`, invariant S4."""

    source: SourceOptions
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    flushes: bool


def read_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """The options of a stream. Raises `UsageError`."""
    options = GivenOptions(given)
    for name, reason in _NOT_IN_STREAMS.items():
        if options.text(name) is not None:
            raise UsageError(f"{name} is not for a stream: {reason}")
    view = options.one_of("view", View, View.RAW)
    if view is View.COMPACTED:
        raise UsageError(
            "view=compacted is not for a stream: a ledger is made anew beneath it; read it as a "
            "batch, and stream view=raw from its end on"
        )
    if view is View.LATEST:
        raise UsageError(
            "view=latest is not for a stream: what it has given is no longer the latest when the "
            "key comes again; stream view=raw and keep the record of the largest offset of each key"
        )
    most, least = options.positive("maxOffsetsPerTrigger"), options.positive("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise UsageError(f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most})")
    return StreamOptions(
        source=source_options(
            options,
            bound_of(options, "starting", BoundKind.LATEST),
            Bound("endingOffsets", BoundKind.LATEST),
        ),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=_duration_ms(options, "maxTriggerDelay"),
        flushes=options.flag("flushBeforeRead", True),
    )


def is_for_stream(given: Mapping[str, str]) -> bool:
    """Whether there is an option that only a stream takes."""
    names = {name.lower() for name in given}
    return any(name.lower() in names for name in STREAM_ONLY)


def _duration_ms(options: GivenOptions, name: str) -> int:
    text = options.text(name)
    if text is None:
        return DEFAULT_TRIGGER_DELAY_MS
    found = re.fullmatch(r"([0-9]{1,15})([a-z]*)", text.strip().lower(), re.ASCII)
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise UsageError(f"{name} is {text!r}; it must be a time like 30s, 15m or 1h")
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])
