"""Markers and aborted ranges, folded from reports of chunks cut anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from stratalog.clean.settle import (
    NO_TRANSACTIONS,
    SettledMarkers,
    TransactionReport,
    aborted_columns,
    report_transactions,
    settle,
)
from stratalog.record.kernel import arrays
from stratalog.segment.txn_index import AbortedTxn
from tests.naive.files import Aborted
from tests.naive.records import ABORT, COMMIT, Batch, Record, build_marker, build_v2, parse_log
from tests.naive.transactions import Transactions

Row = tuple[int, int, int, int, bool]
"""offset, producer, attributes, control type, aborted."""
DATA, MARKER = 0x10, 0x30


def reported(rows: Iterable[Row]) -> TransactionReport:
    rows = list(rows)
    table = np.zeros(len(rows), arrays.BATCH)
    table["magic"] = 2
    for row, (offset, producer, attributes, kind, aborted) in zip(table, rows, strict=True):
        row["base_offset"] = row["last_offset"] = offset
        row["producer_id"], row["attributes"] = producer, attributes
        row["control_type"], row["is_aborted"] = kind, aborted
    return report_transactions(table)


def data(offset: int, producer: int, aborted: bool = False) -> Row:
    return offset, producer, DATA, arrays.NOT_CONTROL, aborted


def marker(offset: int, producer: int, kind: int) -> Row:
    return offset, producer, MARKER, kind, False


def discardable(settled: SettledMarkers) -> dict[int, bool]:
    pairs = zip(settled.offsets.tolist(), settled.discardable.tolist(), strict=True)
    return {offset: bool(may_go) for offset, may_go in pairs}


@pytest.mark.requirement("CMP-14")
def test_a_marker_may_go_when_its_transaction_has_no_data_left() -> None:
    rows = [
        data(0, 1),
        marker(1, 1, COMMIT),  # its data is there
        marker(2, 1, COMMIT),  # nothing since the last marker
        data(3, 2, aborted=True),
        data(4, 1),
        marker(5, 2, ABORT),
        marker(6, 2, ABORT),
        marker(7, 1, COMMIT),
    ]
    aborted = [AbortedTxn(2, 3, 5, 6), AbortedTxn(2, 6, 6, 7)]
    settled = settle([reported(rows)], aborted)
    assert discardable(settled) == {1: False, 2: True, 5: False, 6: True, 7: False}
    assert settled.retained_aborted == (aborted[0],)
    assert settled.retained_between(0, 5) == []
    assert settled.retained_between(5, 6) == [aborted[0]]


@pytest.mark.requirement("CMP-14")
def test_commits_and_aborts_do_not_vouch_for_one_another() -> None:
    settled = settle([reported([data(0, 1), marker(1, 1, ABORT), marker(2, 1, COMMIT)])], [])
    assert discardable(settled) == {1: True, 2: False}


@pytest.mark.requirement("CMP-14")
def test_empty_and_unknown_control_batches_are_no_markers() -> None:
    rows = [data(0, 1), marker(1, 1, arrays.EMPTY_CONTROL), marker(2, 1, 2), marker(3, 1, COMMIT)]
    assert discardable(settle([reported(rows)], [])) == {3: False}
    assert reported([]) == NO_TRANSACTIONS
    assert reported([(0, 1, 0, arrays.NOT_CONTROL, False)]) == NO_TRANSACTIONS


def naive_log(random: Random) -> tuple[list[Batch], list[Aborted]]:
    """Batches of four producers, some without their data, and the ranges of the aborted ones."""
    batches: list[Batch] = []
    ranges: list[Aborted] = []
    first: dict[int, int] = {}
    for offset in range(random.randrange(40)):
        producer = random.randrange(4)
        if producer in first and random.random() < 0.5:
            kind = random.choice([COMMIT, ABORT])
            raw = build_marker(
                kind, offset=offset, timestamp=0, producer_id=producer, producer_epoch=0
            )
            begun = first.pop(producer)
            if kind == ABORT:
                ranges.append(Aborted(producer, begun, offset, offset + 1))
        else:
            first.setdefault(producer, offset)
            raw = build_v2(
                [Record(offset, 0, b"k", b"v")],
                base_offset=offset,
                last_offset=offset,
                producer_id=producer,
                producer_epoch=0,
                transactional=True,
            )
            if random.random() < 0.4:
                continue  # an earlier round has removed it
        batches += parse_log(raw)
    return batches, ranges


def fields_of(entry: AbortedTxn) -> tuple[int, int, int, int]:
    return entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset


@pytest.mark.requirement("CMP-14")
def test_chunks_cut_anywhere_tell_what_the_naive_walk_tells() -> None:
    random = Random(1)
    for _ in range(400):
        batches, ranges = naive_log(random)
        walk = Transactions()
        walk.add(ranges)
        rows: list[Row] = []
        expected: dict[int, bool] = {}
        kept: list[Aborted] = []
        for batch in batches:
            if batch.control:
                useless, entry = walk.read_control(batch)
                expected[batch.last_offset] = useless
                kept += [entry] if entry is not None else []
                kind = batch.control_type()
                assert kind is not None
                rows.append(marker(batch.last_offset, batch.producer_id, kind))
            else:
                rows.append(data(batch.last_offset, batch.producer_id, walk.read_data(batch)))
        cuts = sorted(random.randrange(len(rows) + 1) for _ in range(random.randrange(5)))
        bounds = [0, *cuts, len(rows)]
        reports = [reported(rows[a:b]) for a, b in pairwise(bounds)]
        settled = settle(reports, [AbortedTxn(*vars(entry).values()) for entry in ranges])
        assert discardable(settled) == expected
        retained = [Aborted(*fields_of(entry)) for entry in settled.retained_aborted]
        assert retained == kept


def test_aborted_columns_are_sorted_by_producer_and_first_offset() -> None:
    ranges = [AbortedTxn(2, 5, 9, 10), AbortedTxn(1, 7, 8, 9), AbortedTxn(1, 2, 3, 4)]
    columns = aborted_columns(ranges)
    assert [column.tolist() for column in columns] == [[1, 1, 2], [2, 7, 5], [3, 8, 9]]
    assert [column.tolist() for column in aborted_columns([])] == [[], [], []]
    assert {column.dtype for column in aborted_columns([])} == {np.dtype(np.int64)}
