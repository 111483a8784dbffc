"""The compacted view: ledger below its horizon, raw log from there on, nothing lost between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.ledger.ledgers import Ledgers
from stratalog.ledger.view import CompactedView
from stratalog.log.log_store import LogStore
from stratalog.record.control import ControlType
from tests.ledger.making import make
from tests.log.helpers import NOW, sent
from tests.log.stores import A, open_store, put
from tests.sim.disk import SimDisk

pytestmark = pytest.mark.requirement("LDG-3")
P = "/data/orders-0"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
def store(disk: SimDisk) -> Iterator[LogStore]:
    with open_store(disk, segment_bytes=700) as opened:
        log = opened.create(A)
        put(log, *(f"k{number}" for number in range(40)))
        log.flush()
        yield opened


def offsets(view: CompactedView, at: int, end: int | None = None) -> list[int]:
    return [record.offset for record in view.read_records(at, end_offset=end)]


@pytest.fixture
def view(store: LogStore, disk: SimDisk) -> CompactedView:
    ledgers = Ledgers(store, disk)
    make(ledgers, disk, A, P, 20)
    with ledgers.compacted(A) as found:
        return found


def test_ledger_then_log(view: CompactedView) -> None:
    assert (view.start_offset, view.horizon, view.log_end_offset) == (0, 20, 40)
    assert view.has_ledger
    assert offsets(view, 0) == [0, 19, *range(20, 40)]
    assert [batch.header.base_offset for batch in view.read_batches(19)] == [*range(19, 40)]


def test_a_seek_into_what_was_removed_goes_to_the_next(view: CompactedView) -> None:
    assert offsets(view, 5) == [19, *range(20, 40)]
    assert next(view.read(5).batches()).header.base_offset == 19
    assert next(view.read(20).batches()).header.base_offset == 20
    assert len(view.read(40).data) == 0


def test_ends(view: CompactedView) -> None:
    assert offsets(view, 0, 19) == [0]
    assert offsets(view, 0, 20) == [0, 19]
    assert offsets(view, 0, 21) == [0, 19, 20]
    assert offsets(view, 30, 32) == [30, 31]
    assert offsets(view, 40) == []
    for offset in (-1, 41):
        with pytest.raises(OffsetOutOfRangeError):
            view.read_records(offset)
        with pytest.raises(OffsetOutOfRangeError):
            view.read_batches(offset)
        with pytest.raises(OffsetOutOfRangeError):
            view.read(offset)


def test_times(view: CompactedView) -> None:
    first = view.offset_for_timestamp(NOW)
    assert first is not None
    assert first.offset == 0
    assert view.offset_for_timestamp(NOW + 1) is None


def test_the_raw_log_may_lose_what_the_ledger_serves(store: LogStore, disk: SimDisk) -> None:
    ledgers = Ledgers(store, disk)
    make(ledgers, disk, A, P, 20)
    store.delete_records(A, 20)
    with ledgers.compacted(A) as view:
        assert view.raw.log_start_offset == 20
        assert offsets(view, 0) == [0, 19, *range(20, 40)]
    store.delete_records(A, 21)
    with ledgers.compacted(A) as view:
        assert not view.has_ledger, "offset 20 is nowhere any more"
        assert offsets(view, 21) == [*range(21, 40)]
        assert view.start_offset == 21


def test_a_ledger_past_the_end_of_the_log_is_none(store: LogStore, disk: SimDisk) -> None:
    ledgers = Ledgers(store, disk)
    make(ledgers, disk, A, P, 20)
    with ledgers.pin(A) as pin:
        store.truncate(A, 10)
        view = CompactedView(pin.view, store.get(A).view)
        assert not view.has_ledger
        assert offsets(view, 0) == [*range(10)]


def test_transactions_past_the_horizon(store: LogStore, disk: SimDisk) -> None:
    ledgers = Ledgers(store, disk)
    log = store.get(A)
    log.append(sent(7, 0, transactional=True))
    log.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0)
    log.append(sent(7, 2, transactional=True))
    make(ledgers, disk, A, P, 20)
    with ledgers.compacted(A) as view:
        assert view.last_stable_offset == 43
        [aborted] = view.aborted_between(0, 43)
        assert (aborted.first_offset, aborted.last_offset) == (40, 42)
        assert view.aborted_between(0, 20) == []
        assert len(view.parts) == 2
