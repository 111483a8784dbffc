"""As of when a partition is read: a ledger's number, an offset, or a time.

    read_as_of   what somebody said -> AsOf                                       pure
    choose       as of then -> which generation, and where reading ends           pure

As of a point means: what the partition held when its log ended there. That is the generation with
the largest horizon at or below the point, and the raw log from there up to it. Nothing is answered
where the raw log has lost what lies between, nor where cleaning in place has gone past the point:
records that were newer then are gone. What is answered is therefore exact, or there is an error.

Source: LDG-6, issue 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from stratalog.base.errors import UsageError
from stratalog.base.limits import LATEST_MS
from stratalog.ledger.manifest import MAX_NUMBER, Generation, Manifest
from stratalog.log.view import LogView
from stratalog.segment.names import MAX_OFFSET


@dataclass(frozen=True, slots=True)
class AsOf:
    """One of the three is set. `offset` is exclusive: where the log ended; `time_ms`, too: the log
    ended before its first record of that time or a later one."""

    ledger: int | None = None
    offset: int | None = None
    time_ms: int | None = None

    def __str__(self) -> str:
        if self.ledger is not None:
            return f"ledger:{self.ledger}"
        return f"offset {self.offset}" if self.offset is not None else f"@{self.time_ms}"


@dataclass(frozen=True, slots=True)
class Moment:
    """What answers: a generation (None: the raw log alone), and offsets below `end_offset`."""

    generation: Generation | None
    end_offset: int


def read_as_of(given: AsOf | int | str | datetime) -> AsOf:
    """What was asked for. Raises `UsageError`.

    A number or text of digits is an offset, `ledger:3` a ledger, `@` and digits ms since 1970, text
    like 2026-01-31T12:00:00Z (without a zone: UTC) or a datetime a time.
    """
    if isinstance(given, AsOf):
        return given
    if isinstance(given, datetime):
        return _of_time(given, given)
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given <= MAX_OFFSET:
            raise UsageError(f"asOf: {given} is no offset")
        return AsOf(offset=given)
    text = given.strip() if isinstance(given, str) else ""
    if re.fullmatch(r"ledger:[0-9]{1,8}", text, re.ASCII) and 0 < int(text[7:]) <= MAX_NUMBER:
        return AsOf(ledger=int(text[7:]))
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) and int(text) <= MAX_OFFSET:
        return AsOf(offset=int(text))
    if re.fullmatch(r"@[0-9]{1,18}", text, re.ASCII) and int(text[1:]) <= LATEST_MS:
        return AsOf(time_ms=int(text[1:]))
    try:
        return _of_time(datetime.fromisoformat(text), given)
    except ValueError:
        raise UsageError(
            f"asOf is {given!r}; it must be ledger:NUMBER, an offset, @MS (since 1970), "
            "or a time like 2026-01-31T12:00:00Z"
        ) from None


def _of_time(time: datetime, given: object) -> AsOf:
    moment = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    timestamp = round(moment.timestamp() * 1000)
    if not 0 <= timestamp <= LATEST_MS:
        raise UsageError(f"asOf: {given} is no time that a record can have")
    return AsOf(time_ms=timestamp)


def choose(
    manifest: Manifest,
    raw: LogView,
    as_of: AsOf,
    *,
    name: str,
    cleaner_point: int | None,
    is_older: Callable[[int], bool],
) -> Moment:
    """What answers as of then, of partition `name` with these ledgers.

    `cleaner_point`: what lies below has been cleaned in place; `is_older(ms)`: whether all records
    of the ledger in use are older than that. Raises `UsageError` where nothing answers.
    """
    if as_of.ledger is not None:
        found = manifest.find(as_of.ledger)
        if found is None:
            raise UsageError(f"{name}: there is no ledger {as_of.ledger}; {_kept(manifest)}")
        return Moment(found, found.horizon)
    is_whole = _is_whole(manifest, raw)
    if as_of.offset is not None:
        end = as_of.offset
        if end > raw.log_end_offset:
            raise UsageError(
                f"{name}: as of offset {end}: the log ends at {raw.log_end_offset}; choose the "
                "partitions that the offset is meant for"
            )
    else:
        end = _offset_at(as_of, manifest, raw, name, is_whole, is_older)
    if cleaner_point is not None and end < min(cleaner_point, raw.log_end_offset):
        raise UsageError(
            f"{name}: as of {as_of}: offsets below {cleaner_point} have been cleaned since, "
            "and what they held before is gone"
        )
    generation = next((g for g in reversed(manifest.generations) if g.horizon <= end), None)
    _check_damage(manifest, as_of, end, 0 if generation is None else generation.horizon, name)
    if generation is not None and generation.horizon >= raw.log_start_offset:
        return Moment(generation, end)
    if generation is None and is_whole and end >= raw.log_start_offset:
        return Moment(None, end)
    if generation is not None and generation.horizon == end:
        return Moment(generation, end)
    raise UsageError(
        f"{name}: as of {as_of}: the raw log begins at offset {raw.log_start_offset} by now, and "
        f"no ledger ends at {end}; {_kept(manifest)}"
    )


def _check_damage(manifest: Manifest, as_of: AsOf, end: int, start: int, name: str) -> None:
    """Raises `UsageError` if the raw log is asked for [start, end), and damage took some of it."""
    now = manifest.current
    if now is not None and max(start, now.lost_from) < min(end, now.lost_below):
        raise UsageError(
            f"{name}: as of {as_of}: the raw log has lost records of offsets {now.lost_from} to "
            f"{now.lost_below - 1} to damage, and no ledger ends at {end}; {_kept(manifest)}"
        )


def check_raw(raw: LogView, moment: Moment, as_of: AsOf, name: str) -> None:
    """Refuse to answer by the raw log alone where only a ledger could. Raises `UsageError`."""
    if moment.end_offset < raw.log_start_offset:
        raise UsageError(
            f"{name}: as of {as_of}: the raw log begins at offset {raw.log_start_offset} by now; "
            "the compacted view has it"
        )


def _offset_at(
    as_of: AsOf,
    manifest: Manifest,
    raw: LogView,
    name: str,
    is_whole: bool,
    is_older: Callable[[int], bool],
) -> int:
    assert as_of.time_ms is not None
    found = raw.offset_for_timestamp(as_of.time_ms)
    end = raw.log_end_offset if found is None else found.offset
    has_lost = not is_whole or (raw.log_start_offset > 0 and not manifest.generations)
    # An older record in the raw log proves that the point lies in it; else it may lie before.
    current = manifest.current
    is_damaged = current is not None and 0 < current.lost_below <= end
    if is_damaged and not is_older(as_of.time_ms):  # what is lost may be the first of that time
        raise UsageError(
            f"{name}: as of {as_of}: the raw log has lost records to damage before that; "
            f"{_kept(manifest)}"
        )
    if end <= raw.log_start_offset and has_lost:
        ends_there = current is not None and current.horizon == raw.log_start_offset
        if not (ends_there and is_older(as_of.time_ms)):
            raise UsageError(
                f"{name}: as of {as_of}: the raw log begins later by now; {_kept(manifest)}"
            )
    return end


def _is_whole(manifest: Manifest, raw: LogView) -> bool:
    """Whether the raw log has lost nothing that a ledger was made from."""
    starts = [generation.start_offset for generation in manifest.generations]
    return raw.log_start_offset <= min(starts, default=raw.log_start_offset)


def _kept(manifest: Manifest) -> str:
    if not manifest.generations:
        return "there is no ledger"
    shown = ", ".join(f"ledger:{g.number} (ends at {g.horizon})" for g in manifest.generations[-5:])
    return f"there is {shown}"
