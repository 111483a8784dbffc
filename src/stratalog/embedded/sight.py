"""What a read sees of a partition at one moment: its views, where they end, the ledger pinned.

    look        a partition, a view, as of when -> Sight
    readings    Sight -> records in a form

A sight answers the same whatever is appended, cleaned, compacted or deleted meanwhile: its files
are open, and the ledger in it stays until it is closed (LDG-6). Two sights that follow one another
lose and repeat nothing: the second one reads from where the first one ended, and what a ledger of
its own holds from there on is the latest of its key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeVar

from stratalog.admin.service import Service
from stratalog.base.errors import (
    CorruptionError,
    LogChangedError,
    OffsetOutOfRangeError,
    UsageError,
)
from stratalog.clean.chunk import Scratch
from stratalog.clean.ledger_plan import order_name
from stratalog.ledger.following import check_follows
from stratalog.ledger.ledgers import Ledgers, Pin
from stratalog.ledger.manifest import in_order, is_outdated
from stratalog.ledger.mending import advising
from stratalog.log.view import LogView
from stratalog.pipeline.as_of import AsOf, Moment, check_raw, choose
from stratalog.pipeline.latest import LatestRules, read_newest
from stratalog.pipeline.locating import Form
from stratalog.pipeline.parts import Parts
from stratalog.pipeline.places import Place
from stratalog.pipeline.planning import Range
from stratalog.pipeline.reading import ReadRules, read_parts
from stratalog.segment.names import TopicPartition

T = TypeVar("T")
_LOG = logging.getLogger("stratalog.embedded")
LATEST_BYTES = 64 << 20
"""Of the map of keys of `view="latest"`; more keys than fit take more walks."""
_ATTEMPTS = 20


class View(Enum):
    """See `Topic.read`."""

    RAW = "raw"
    COMPACTED = "compacted"
    LATEST = "latest"


@dataclass(slots=True, eq=False)
class Sight:
    """`end_offset`: where reading ends as of then; None: at the end of what is seen."""

    topic_partition: TopicPartition
    place: Place
    parts: Parts
    end_offset: int | None
    pin: Pin | None = None

    def close(self) -> None:
        """Let go of the ledger. Closing twice is fine."""
        pin, self.pin = self.pin, None
        if pin is not None:
            pin.release()

    def end(self, *, is_committed: bool) -> int:
        """Where this read ends."""
        end = self.parts.last_stable_offset if is_committed else self.parts.log_end_offset
        return end if self.end_offset is None else min(end, self.end_offset)

    def check(self, offset: int) -> int:
        """An offset to begin at. Raises `OffsetOutOfRangeError`; what was compacted away is fine,
        and stands for what comes next."""
        low, high = self.parts.log_start_offset, self.parts.log_end_offset
        if not low <= offset <= high:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: offset {offset} lies outside [{low}, {high}]"
            )
        return offset


def look(
    service: Service, ledgers: Ledgers, key: TopicPartition, view: View, as_of: AsOf | None
) -> Sight:
    """See a partition now, or as it was. Close the answer.

    Raises `UnknownPartitionError`, `LogOfflineError` (it could not be opened), `UsageError` where
    nothing answers `as_of`, `CorruptionError`.
    """
    with advising(service.store.get(key).path):
        for _ in range(_ATTEMPTS):
            found = _look(service, ledgers, key, view, as_of)
            if found is not None:
                return found
    raise LogChangedError(f"{key}: its ledgers go on being replaced")


def _look(
    service: Service, ledgers: Ledgers, key: TopicPartition, view: View, as_of: AsOf | None
) -> Sight | None:
    """None: the ledger was replaced meanwhile, and the log may have lost what only a newer one
    holds."""
    log = service.store.get(key)
    place = Place(service.store.log_dir_of(key), key)
    if view is View.RAW and as_of is None:
        return Sight(key, place, Parts.of_raw(log.view), None)
    if log.quarantine is not None:
        # It seems to end at the damage, and would be answered as if all behind it never was.
        raise CorruptionError(
            f"{key} is quarantined: {log.quarantine}; "
            f"`stratalog log repair {log.path}` shows and settles it"
        )
    cleaning = service.cleaning(key)
    order = order_name(cleaning.order, cleaning.version_header)
    pin = ledgers.pin(key)
    try:
        # Before the raw view: what retention takes by then, this ledger or a newer one has.
        raw, end = log.view, None
        current = pin.generation
        if as_of is not None:
            moment = _moment(service, ledgers, raw, as_of, pin, order)
            if moment is None:
                return None
            end = moment.end_offset
            if view is View.RAW:
                check_raw(raw, moment, as_of, str(key))
            if moment.generation != current:
                pin.release()
                number = None if moment.generation is None else moment.generation.number
                pin = Pin(key) if number is None else ledgers.pin(key, number)
        elif current is not None and raw.log_start_offset > current.horizon:
            newest = ledgers.manifest(key).current
            if newest is not None and newest.number != current.number:
                return None
        elif current is not None and is_outdated(current, order, raw.log_start_offset):
            pin.release()
            pin = Pin(key)  # another order of versions: the raw log has it all
        if view is View.RAW:
            return Sight(key, place, Parts.of_raw(raw), end)
        if as_of is None:
            check_follows(pin.generation, raw, place.path)
        parts = Parts.up_to(pin.view, raw, end)
        made = pin.generation
        is_chosen = as_of is not None and as_of.ledger is not None
        if made is not None and made.order != order and not is_chosen:
            _say_other_order(place.path, made.number, made.order, order)
        sight = Sight(key, place, parts, end, pin)
        pin = Pin(key)
        return sight
    finally:
        pin.release()


@lru_cache(maxsize=1024)
def _say_other_order(path: str, number: int, made_by: str, order: str) -> None:
    """Once for each ledger."""
    _LOG.warning(
        "%s: its ledger %d was made by compaction.strategy=%s, and the log has lost what it holds: "
        "that is answered as it was chosen then, not by %s",
        path,
        number,
        made_by,
        order,
    )


def _moment(
    service: Service, ledgers: Ledgers, raw: LogView, as_of: AsOf, pin: Pin, order: str
) -> Moment | None:
    key = pin.topic_partition
    manifest = ledgers.manifest(key)
    if manifest.current != pin.generation:
        return None
    if as_of.ledger is None:
        manifest = in_order(manifest, order, raw.log_start_offset)
    return choose(
        manifest,
        raw,
        as_of,
        name=str(key),
        cleaner_point=service.store.cleaner_point(key),
        is_older=lambda ms: pin.view is None or pin.view.offset_for_timestamp(ms) is None,
    )


def _advised(path: str, records: Iterator[T]) -> Iterator[T]:
    with advising(path):
        yield from records


def records_in(
    sight: Sight,
    form: Form[T],
    *,
    latest: LatestRules | None,
    is_committed: bool,
    start: int | None = None,
) -> Iterator[T]:
    """The records of a sight from `start` on; of each key the newest, and no deleted one, by the
    rules `latest` (LDG-7). Raises `CorruptionError`, on the way."""
    begin = sight.parts.log_start_offset if start is None else start
    end = sight.end(is_committed=is_committed or latest is not None)
    if latest is None:
        rules = ReadRules(True, is_committed, includes_control=False, keeps_tombstones=True)
        bounds = (begin, max(begin, end))
        found = read_parts(sight.place, sight.parts, bounds, form, rules, Scratch())
        return _advised(sight.place.path, found)
    if begin > sight.parts.log_start_offset:
        raise UsageError("view=latest is that of the whole log: leave out start")
    rules = ReadRules(True, True, includes_control=False, keeps_tombstones=False)
    span = Range(begin, max(begin, end), follows=False)
    found = read_newest(sight.place, sight.parts, span, form, rules, latest, Scratch())
    return _advised(sight.place.path, found)
