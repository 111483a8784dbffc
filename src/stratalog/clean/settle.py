"""Transactions over a whole clean: which markers may go, which aborted ranges stay indexed. Pure.

A marker may go only after the data of its transaction is gone (CMP-14). Kafka walks the log in
order and remembers, for each producer, whether it has met data since the last marker. Here each
chunk reports the same for itself, in any order and on any worker; `settle` folds the reports in
file order and so knows what was open when each chunk began.

    COMMIT may go  <=>  no batch of a committed transaction of its producer since its last COMMIT
    ABORT may go   <=>  no batch of an aborted transaction of its producer since its last ABORT

An empty control batch (header only) is no marker any more and may always go. Other control types
never go. Source: Kafka's CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.clean.chunk import Int64s, Table
from stratalog.record import layout
from stratalog.record.control import ControlType
from stratalog.segment.txn_index import AbortedTxn

_FLAGS = layout.TRANSACTIONAL_MASK | layout.CONTROL_MASK


@dataclass(frozen=True, slots=True)
class Marker:
    """A COMMIT or ABORT. `has_data`: whether its transaction's data was met; None: not decided by
    the chunk that holds it, because the producer's last marker lies before it."""

    offset: int
    producer_id: int
    is_commit: bool
    has_data: bool | None


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """One chunk's transactions. `open_after` maps (producer id, committed?) to whether data without
    a marker is open at the chunk's end, for those that the chunk has met."""

    markers: tuple[Marker, ...] = ()
    open_after: tuple[tuple[tuple[int, bool], bool], ...] = ()


NO_TRANSACTIONS = TransactionReport()


def report_transactions(table: Table) -> TransactionReport:
    """What the batches of one chunk say; `is_aborted` and `control_type` are filled in `table`."""
    is_v2 = table["magic"] == layout.MAGIC_V2
    chosen = np.flatnonzero(is_v2 & (table["attributes"] & _FLAGS != 0))
    if len(chosen) == 0:
        return NO_TRANSACTIONS
    markers: list[Marker] = []
    is_open: dict[tuple[int, bool], bool] = {}
    fields = ("last_offset", "producer_id", "attributes", "control_type", "is_aborted")
    columns: list[list[int]] = [table[field][chosen].tolist() for field in fields]
    for offset, producer_id, attributes, control_type, is_aborted in zip(*columns, strict=True):
        if not attributes & layout.CONTROL_MASK:
            is_open[producer_id, not is_aborted] = True
        elif control_type in (ControlType.COMMIT, ControlType.ABORT):
            which = (producer_id, control_type == ControlType.COMMIT)
            markers.append(Marker(offset, *which, is_open.get(which)))
            is_open[which] = False
    return TransactionReport(tuple(markers), tuple(is_open.items()))


@dataclass(frozen=True, slots=True, eq=False)
class SettledMarkers:
    """offsets int64[n], sorted, and discardable uint8[n]; `retained_aborted`: ranges whose marker
    has data left, in marker order: the entries of the new .txnindex files."""

    offsets: Int64s
    discardable: npt.NDArray[np.uint8]
    retained_aborted: tuple[AbortedTxn, ...]

    def retained_between(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """The retained ranges whose marker lies in [start, end)."""
        return [a for a in self.retained_aborted if start_offset <= a.last_offset < end_offset]


def settle(reports: Iterable[TransactionReport], aborted: Sequence[AbortedTxn]) -> SettledMarkers:
    """Fold the chunks' reports, given in file order."""
    is_open: dict[tuple[int, bool], bool] = {}
    offsets: list[int] = []
    discardable: list[bool] = []
    retained: list[AbortedTxn] = []
    by_marker = {(txn.producer_id, txn.last_offset): txn for txn in aborted}
    for report in reports:
        for marker in report.markers:
            has_data = marker.has_data
            if has_data is None:
                has_data = is_open.get((marker.producer_id, marker.is_commit), False)
            offsets.append(marker.offset)
            discardable.append(not has_data)
            range_of_marker = by_marker.get((marker.producer_id, marker.offset))
            if has_data and not marker.is_commit and range_of_marker is not None:
                retained.append(range_of_marker)
        is_open.update(report.open_after)
    return SettledMarkers(
        np.array(offsets, np.int64), np.array(discardable, np.uint8), tuple(retained)
    )


def aborted_columns(aborted: Sequence[AbortedTxn]) -> tuple[Int64s, Int64s, Int64s]:
    """(producer ids, first offsets, last offsets), int64, sorted as `mark_aborted` wants them."""
    ordered = sorted(aborted, key=lambda txn: (txn.producer_id, txn.first_offset))

    def column(values: Iterable[Any]) -> Int64s:
        return np.array(list(values), np.int64)

    return (
        column(txn.producer_id for txn in ordered),
        column(txn.first_offset for txn in ordered),
        column(txn.last_offset for txn in ordered),
    )
