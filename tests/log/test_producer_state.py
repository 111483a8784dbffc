"""Producers: the snapshot's bytes, the fold against Kafka's own snapshots, what may be appended."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import (
    CorruptionError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from stratalog.log import snapshots
from stratalog.log.producer_checks import aborted_by, admit
from stratalog.log.producer_state import (
    MAX_SEQUENCE,
    Marker,
    ProducerBatch,
    ProducerEntry,
    ProducerState,
    RecentBatch,
    active_producers,
    apply,
    decode_snapshot,
    encode_snapshot,
    last_stable_offset,
    state_of,
    without_expired,
)
from stratalog.record.checksum import crc32c
from stratalog.segment.txn_index import AbortedTxn
from tests.log.helpers import FS, NOW

SNAPSHOT = "[0-9]" * 20 + ".snapshot"


def data(
    producer_id: int,
    sequence: int,
    offset: int,
    count: int = 1,
    *,
    epoch: int = 0,
    txn: bool = False,
) -> ProducerBatch:
    return ProducerBatch(
        producer_id,
        epoch,
        sequence,
        (sequence + count - 1) & MAX_SEQUENCE,
        offset,
        offset + count - 1,
        NOW + offset,
        txn,
        is_control=False,
    )


def marker(
    producer_id: int, offset: int, *, abort: bool, epoch: int = 0, coordinator_epoch: int = 0
) -> ProducerBatch:
    content = Marker(abort, coordinator_epoch, NOW + offset)
    return ProducerBatch(
        producer_id, epoch, -1, -1, offset, offset, NOW + offset, True, True, content
    )


def hollow_marker(producer_id: int, offset: int, epoch: int = 0) -> ProducerBatch:
    return ProducerBatch(producer_id, epoch, -1, -1, offset, offset, NOW, True, True, None)


def folded(*batches: ProducerBatch) -> ProducerState:
    state = ProducerState()
    for batch in batches:
        apply(state, batch)
    return state


# -- snapshots -----------------------------------------------------------------------------------


@pytest.mark.requirement("LOG-1", "LOG-3")
def test_every_snapshot_that_kafka_wrote_reads_and_writes_the_same(
    golden_dir: Path, corpus_dir: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen = 0
    for root in (golden_dir, corpus_dir):
        for path in root.rglob(SNAPSHOT):
            content = path.read_bytes()
            entries = {entry.producer_id: entry for entry in decode_snapshot(content)}
            assert encode_snapshot(entries) == content, path
            seen += 1
    assert seen > 2000
    count_cases("producer snapshots of Kafka read and written", seen)


ENTRY = ProducerEntry(5, 1, (RecentBatch(9, 40, 2, 77),), 78, 3, 38)


def test_snapshot_bytes() -> None:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 5, 1, 9, 40, 2, 78, 3, 38)
    expected = struct.pack(">hI", 1, crc32c(body)) + body
    assert encode_snapshot({5: ENTRY}) == expected
    (entry,) = decode_snapshot(expected)
    assert (entry.last_sequence, entry.last_offset, entry.offset_delta) == (9, 40, 2)
    assert (entry.timestamp, entry.coordinator_epoch, entry.current_txn_first_offset) == (78, 3, 38)
    assert len(encode_snapshot({})) == 10
    assert decode_snapshot(encode_snapshot({})) == []


GOOD = encode_snapshot({5: ENTRY})


def with_crc(content: bytes) -> bytes:
    return content[:2] + struct.pack(">I", crc32c(content[6:])) + content[6:]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        GOOD[:9],
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:20] + b"\x55" + GOOD[21:],
        with_crc(b"\x00\x02" + GOOD[2:]),
        with_crc(GOOD[:6] + struct.pack(">i", 2) + GOOD[10:]),
        with_crc(GOOD[:6] + struct.pack(">i", -1) + GOOD[10:]),
        with_crc(GOOD[:6] + struct.pack(">i", 2) + GOOD[10:] * 2),
    ],
)
def test_damaged_snapshots_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_snapshot(content)


@given(st.binary(max_size=150))
def test_no_bytes_raise_anything_but_corruption(content: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_snapshot(with_crc(b"\x00\x01" + content))
        raise CorruptionError("whole")


def test_the_newest_snapshot_that_decodes_is_used(tmp_path: Path) -> None:
    snapshots.write_snapshot(FS, str(tmp_path), 10, {5: ENTRY})
    snapshots.write_snapshot(FS, str(tmp_path), 20, {})
    (tmp_path / "00000000000000000020.snapshot").write_bytes(b"nonsense")
    state, offset, damaged = snapshots.load_newest(FS, str(tmp_path), [20, 10], 100, 10)
    assert (offset, damaged) == (10, [20])
    assert list(state.entries) == [5]
    assert state.open_transactions == {38: 5}
    assert snapshots.load_newest(FS, str(tmp_path), [20], 100, 10)[1:] == (None, [20])


def test_stray_snapshots_are_those_that_kafka_removes() -> None:
    stray = snapshots.stray_snapshots
    assert stray([0, 10, 20, 30], [0, 10, 20], 0, 30) == {0}
    assert stray([10, 15, 20, 25, 30], [0, 10, 20], 0, 30) == {15, 25}
    assert stray([5, 20], [0, 10, 20], 0, 30) == {5}
    assert stray([10, 20, 30, 99], [0, 10, 20], 0, 30) == {99}
    assert stray([10, 20, 31], [0, 10, 20], 0, 30) == {31}
    assert stray([10, 20], [0, 10, 20], 15, 30) == {10}


# -- the fold ------------------------------------------------------------------------------------


def test_an_empty_state() -> None:
    assert last_stable_offset(ProducerState(), 7) == 7
    assert active_producers(ProducerState()) == {}


@pytest.mark.requirement("CMP-13", "CMP-14")
def test_a_transaction_opens_with_its_first_batch_and_ends_with_its_marker() -> None:
    state = folded(data(1, 0, 10, 3, txn=True), data(2, 0, 13, txn=True), data(1, 3, 14, txn=True))
    assert state.open_transactions == {10: 1, 13: 2}
    assert last_stable_offset(state, 15) == 10
    completed = apply(state, marker(1, 15, abort=False))
    assert completed is not None
    assert (completed.first_offset, completed.last_offset, completed.is_abort) == (10, 15, False)
    assert last_stable_offset(state, 16) == 13
    assert active_producers(state) == {1: (0, 14), 2: (0, 13)}
    assert state.entries[1].last_sequence == 3


def test_a_marker_without_data_completes_nothing() -> None:
    state = folded()
    assert apply(state, marker(4, 9, abort=True, coordinator_epoch=6)) is None
    entry = state.entries[4]
    assert (entry.epoch, entry.coordinator_epoch, entry.timestamp) == (0, 6, NOW + 9)
    assert active_producers(state) == {4: (0, None)}


def test_an_emptied_marker_says_nothing() -> None:
    state = folded(data(1, 0, 10, txn=True), hollow_marker(1, 11), hollow_marker(9, 12))
    assert state.open_transactions == {10: 1}
    assert list(state.entries) == [1]


def test_a_bumped_epoch_empties_the_batches() -> None:
    state = folded(data(1, 0, 10), marker(1, 11, abort=True, epoch=1))
    assert active_producers(state) == {1: (1, None)}
    assert state.entries[1].last_sequence == -1
    apply(state, data(1, 0, 12, epoch=1))
    assert active_producers(state) == {1: (1, 12)}


def test_five_batches_are_remembered() -> None:
    state = folded(*(data(1, i, 10 + i) for i in range(8)))
    assert [recent.last_sequence for recent in state.entries[1].recent] == [3, 4, 5, 6, 7]


def test_expiry_is_by_the_last_timestamp_and_spares_open_transactions() -> None:
    old = ProducerEntry(1, timestamp=NOW - 100)
    younger = ProducerEntry(2, timestamp=NOW - 99)
    busy = ProducerEntry(3, timestamp=0, current_txn_first_offset=5)
    assert without_expired([old, younger, busy], NOW, 100) == [younger, busy]


def test_a_copy_is_independent() -> None:
    state = folded(data(1, 0, 10, txn=True))
    copy = state.copy()
    apply(copy, marker(1, 11, abort=True))
    assert state.open_transactions == {10: 1}
    assert state_of(state.entries.values()) == state


# -- what may be appended ------------------------------------------------------------------------


def test_sequences_follow_one_another() -> None:
    state = folded(data(1, 0, 10, 3))
    assert admit(state, [data(1, 3, 13, 2), data(1, 5, 15)]) is None
    with pytest.raises(OutOfOrderSequenceError, match="sequence 5, expected 3"):
        admit(state, [data(1, 5, 13)])
    with pytest.raises(OutOfOrderSequenceError):
        admit(state, [data(1, 3, 13, 2), data(1, 6, 15)])


def test_sequences_wrap() -> None:
    state = folded(data(1, MAX_SEQUENCE - 1, 10, 2))
    assert admit(state, [data(1, 0, 12)]) is None
    state = folded(data(1, MAX_SEQUENCE - 1, 10, 5))
    assert state.entries[1].recent[0].first_sequence == MAX_SEQUENCE - 1
    assert admit(state, [data(1, 3, 15)]) is None
    assert admit(state, [data(1, MAX_SEQUENCE - 1, 99, 5)]) is not None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert admit(ProducerState(), [data(1, 77, 10)]) is None


def test_a_new_epoch_begins_at_zero() -> None:
    state = folded(data(1, 0, 10, 3))
    assert admit(state, [data(1, 0, 13, epoch=1)]) is None
    with pytest.raises(OutOfOrderSequenceError):
        admit(state, [data(1, 3, 13, epoch=1)])
    with pytest.raises(ProducerFencedError):
        admit(folded(data(1, 0, 10, epoch=2)), [data(1, 1, 13, epoch=1)])


def test_after_a_marker_that_bumped_the_epoch_sequences_begin_at_zero() -> None:
    state = folded(data(1, 0, 10, txn=True), marker(1, 11, abort=True, epoch=1))
    assert admit(state, [data(1, 0, 12, epoch=1)]) is None
    with pytest.raises(OutOfOrderSequenceError):
        admit(state, [data(1, 1, 12, epoch=1)])


def test_each_of_the_last_five_batches_is_recognised() -> None:
    state = folded(*(data(1, 2 * i, 10 + 2 * i, 2) for i in range(7)))
    for i in range(2, 7):
        earlier = admit(state, [data(1, 2 * i, 99, 2)])
        assert earlier is not None
        assert (earlier.first_offset, earlier.last_offset) == (10 + 2 * i, 11 + 2 * i)
    with pytest.raises(OutOfOrderSequenceError):
        admit(state, [data(1, 2, 99, 2)])
    with pytest.raises(OutOfOrderSequenceError):
        admit(state, [data(1, 12, 99, 1)])


def test_data_must_belong_to_the_open_transaction() -> None:
    state = folded(data(1, 0, 10, txn=True))
    with pytest.raises(InvalidRecordError):
        admit(state, [data(1, 1, 11)])


def test_an_old_coordinator_is_fenced() -> None:
    state = folded(data(1, 0, 10, txn=True), marker(1, 11, abort=True, coordinator_epoch=5))
    assert admit(state, [marker(1, 12, abort=True, coordinator_epoch=5)]) is None
    with pytest.raises(ProducerFencedError):
        admit(state, [marker(1, 12, abort=True, coordinator_epoch=4)])


def test_admitting_changes_nothing() -> None:
    state = folded(data(1, 0, 10, txn=True))
    before = state.copy()
    admit(state, [data(1, 1, 11, txn=True), marker(1, 12, abort=True)])
    aborted_by(state, [marker(1, 12, abort=True)])
    assert state == before


@pytest.mark.requirement("LOG-1", "CMP-14")
def test_the_entry_of_an_aborted_transaction() -> None:
    """Its last stable offset is that of the log without it: the next open one or the end."""
    state = folded(data(1, 0, 10, txn=True), data(2, 0, 11, txn=True))
    assert aborted_by(state, [marker(1, 12, abort=True)]) == (AbortedTxn(1, 10, 12, 11),)
    assert aborted_by(state, [marker(2, 12, abort=True)]) == (AbortedTxn(2, 11, 12, 10),)
    assert aborted_by(state, [marker(1, 12, abort=False)]) == ()
    assert aborted_by(state, [marker(3, 12, abort=True)]) == ()
    apply(state, marker(2, 12, abort=False))
    assert aborted_by(state, [marker(1, 13, abort=True)]) == (AbortedTxn(1, 10, 13, 14),)
    whole = [data(5, 0, 20, txn=True), marker(5, 21, abort=True), marker(1, 22, abort=True)]
    assert aborted_by(state, whole) == (AbortedTxn(5, 20, 21, 10), AbortedTxn(1, 10, 22, 23))
