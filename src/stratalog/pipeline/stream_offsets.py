"""Where a stream stands and how far its next batch goes: pure functions of offsets.

What a stream has read is JSON like that of Spark's Kafka source: `{"orders": {"0": 23, "1": 17}}`,
the offset that comes next of each partition. Spark compares it as text, so it is always sorted.

Rules, of Spark's Kafka source unless said otherwise
- A partition that the stream does not know is read from its earliest offset; one that does not
  begin at 0 has lost what was there before.
- A partition that is gone is a loss. Its offset is kept, so that it goes on there if it comes back
  (Kafka's source forgets it, and would read it again from the beginning).
- An offset below the log's start, or past its end, is a loss: retention went past it, or the end of
  the log was cut, or the topic was made anew. Pardoned, the stream goes on with what is there: from
  the log's start, or from its end.
- Missing offsets in between are normal: a log is cleaned.

Sources: KafkaMicroBatchStream and KafkaOffsetReader; REQUIREMENTS SPK-5.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stratalog.base.errors import UsageError
from stratalog.segment.names import MAX_OFFSET, MAX_PARTITION, TopicPartition

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class LogEnds:
    """A log's first and next offset, and `last`, where its readers stop: the end, or, for readers
    of committed data, the first offset of the earliest open transaction."""

    log_start: int
    log_end: int
    last: int

    def up_to(self, end: int) -> LogEnds:
        """The same log, with nothing to read at or past `end`."""
        return replace(self, last=max(self.log_start, min(self.last, end)))


@dataclass(frozen=True, slots=True)
class Advance:
    """A batch without limits: from `begin` up to `until`, of all partitions that the stream knows
    then; what was lost before it, one sentence each."""

    begin: Offsets
    until: Offsets
    losses: tuple[str, ...]

    @property
    def count(self) -> int:
        """Its offsets, whether or not there are records at all of them."""
        return sum(max(0, end - self.begin[key]) for key, end in self.until.items())


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The same for the same offsets, as text too."""
    found: dict[str, dict[str, int]] = {}
    for key in sorted(offsets):
        found.setdefault(key.topic, {})[str(key.partition)] = offsets[key]
    return found


def from_json(content: Any) -> Offsets:
    """What `to_json` made. Raises `UsageError` for what another source has left in a checkpoint."""
    found: Offsets = {}
    topics = content.items() if isinstance(content, dict) else [("", None)]
    for topic, partitions in topics:
        if not isinstance(partitions, dict) or not all(map(_is_offset, partitions.items())):
            raise UsageError(
                f"the checkpoint is not of this source: {str(content)[:80]} is not like "
                '{"topic":{"0":23}}'
            )
        found |= {TopicPartition(topic, int(name)): value for name, value in partitions.items()}
    return found


def _is_offset(item: tuple[str, Any]) -> bool:
    name, value = item
    is_number = re.fullmatch("0|[1-9][0-9]{0,9}", name, re.ASCII) is not None
    return (
        is_number
        and int(name) <= MAX_PARTITION
        and type(value) is int
        and 0 <= value <= MAX_OFFSET + 1
    )


def advance(
    start: Offsets,
    logs: Mapping[TopicPartition, LogEnds],
    passed_over: Collection[TopicPartition] = (),
) -> Advance:
    """From where a stream stands to where its logs end. `passed_over` are there, but not chosen any
    more: what they had was not lost."""
    begin: Offsets = {}
    until: Offsets = {}
    losses: list[str] = []
    for key in sorted({*start, *logs}):
        log = logs.get(key)
        if log is None:
            begin[key] = until[key] = start[key]
            if key not in passed_over:
                losses.append(f"{key} is gone; the stream has read it up to offset {start[key]}")
            continue
        first, loss = first_offset(key, start.get(key), log)
        begin[key] = first
        until[key] = log.last if loss is not None else max(first, log.last)
        if loss is not None:
            losses.append(loss)
    return Advance(begin, until, tuple(losses))


def first_offset(key: TopicPartition, start: int | None, log: LogEnds) -> tuple[int, str | None]:
    """Where to begin to read a partition that the stream has read up to `start`, or does not know;
    and what of it was lost."""
    if start is None:
        lost = None
        if log.log_start > 0:
            lost = f"{key} has come new, and begins at offset {log.log_start}, not at 0"
        return log.log_start, lost
    if start < log.log_start:
        return log.log_start, f"{key}: offsets {start} to {log.log_start} were deleted unread"
    if start > log.log_end:
        lost = (
            f"{key} ends at offset {log.log_end}, the stream has read it up to {start}: its end "
            "was cut off, or the topic was made anew"
        )
        return min(start, log.last), lost
    return start, None


def shared_out(limit: int, begin: Offsets, until: Offsets) -> Offsets:
    """`until` with `limit` offsets in all: to each partition in proportion to what it has, but at
    least one, so that little ones do not starve."""
    sizes = {key: end - begin[key] for key, end in until.items() if end > begin[key]}
    total = sum(sizes.values())
    found = dict(until)
    for key, size in sizes.items():
        found[key] = begin[key] + min(size, max(1, limit * size // total))
    return found


def is_too_little(
    count: int, least: int | None, *, now_ms: int, last_ms: int, delay_ms: int
) -> bool:
    """Whether a batch of `count` offsets should wait for more: for at most `delay_ms` since the
    last one was let through (`minOffsetsPerTrigger`, `maxTriggerDelay`)."""
    return least is not None and now_ms - last_ms < delay_ms and count < least
