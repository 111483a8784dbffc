"""What logs have to hold after a crash, and whether they do.

A scenario keeps for each partition a `LogState`: everything that was appended, batch by batch, and
how much of it has been promised. `check_store` opens what a cut left with a `LogStore`, as the
product does at its start, and holds every log against the state that was promised and the one that
was coming into being.

    sent      all batches, flushed or not: what survives is a beginning of it, byte by byte
    flushed   what is below has to be there
    start     what is below has been deleted, and stays so

Producers, open and aborted transactions are folded from the batches that survived.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import NamedTuple

from stratalog.base.clock import FixedClock
from stratalog.log.checkpoint import read_checkpoint
from stratalog.log.log_store import LogStore, StoreSettings
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.batch import batches
from stratalog.record.builder import NewRecord, build_batch
from stratalog.segment.names import CLEAN_SHUTDOWN_FILE, FileState, TopicPartition, parse
from tests.sim.disk import SimDisk

NOW = 1_700_000_000_000
DIR = "/data"
# With a second thread the order of calls would be a matter of luck.
STORE = StoreSettings(recovery_threads=1)
NO_PRODUCER = -1


class Sent(NamedTuple):
    """A batch. `kind`: "data", "txn" (data of a transaction), "commit" or "abort"."""

    first: int
    last: int
    data: bytes
    kind: str = "data"
    producer_id: int = NO_PRODUCER
    sequence: int = -1


class LogState(NamedTuple):
    """See the module. `end`: the log end offset, which may lie past the last batch. `is_closed`:
    the next open need not scan."""

    sent: tuple[Sent, ...] = ()
    flushed: int = 0
    start: int = 0
    end: int = 0
    is_closed: bool = False


Stored = tuple[tuple[TopicPartition, LogState], ...]
"""Of a whole store: only partitions that exist."""


class Aborted(NamedTuple):
    """`last` is the marker's; `data_end`: after the last record."""

    producer_id: int
    first: int
    last: int
    data_end: int = 0


class Folded(NamedTuple):
    """What follows from a log's batches. `last`: the last data batch of each producer."""

    last: dict[int, Sent]
    open_from: dict[int, int]
    aborted: list[Aborted]


def fold(sent: tuple[Sent, ...]) -> Folded:
    """The naive way to know the producers."""
    found = Folded({}, {}, [])
    for batch in sent:
        if batch.kind in ("data", "txn"):
            found.last[batch.producer_id] = batch
        if batch.kind == "txn":
            found.open_from.setdefault(batch.producer_id, batch.first)
        if batch.kind in ("commit", "abort"):
            first = found.open_from.pop(batch.producer_id, None)
            if batch.kind == "abort" and first is not None:
                data_end = found.last[batch.producer_id].last + 1
                found.aborted.append(Aborted(batch.producer_id, first, batch.last, data_end))
    found.last.pop(NO_PRODUCER, None)
    return found


@lru_cache(maxsize=256)
def _folded(sent: tuple[Sent, ...]) -> Folded:
    return fold(sent)


def opened_store(disk: SimDisk, settings: LogSettings) -> LogStore:
    return LogStore.open([DIR], lambda _: settings, disk, FixedClock(NOW), STORE)


def recover_store(settings: LogSettings, disk: SimDisk) -> None:
    """A start after a cut. After a stop in order it takes a second one to be a recovery."""
    was_clean = disk.exists(f"{DIR}/{CLEAN_SHUTDOWN_FILE}")
    opened_store(disk, settings)
    if was_clean:
        disk.forget_locks()
        opened_store(disk, settings)


def check_store(
    settings: LogSettings,
    image: SimDisk,
    promise: Hashable,
    in_flight: Hashable,
    *,
    strict: bool = False,
) -> None:
    """A judge, but for its first argument. Both values are `Stored`; None before any promise.

    `strict`: what was closed is not scanned, and every batch is looked up.
    """
    promised: dict[TopicPartition, LogState] = dict(promise or ())  # type: ignore[call-overload]
    coming = promised if in_flight is None else dict(in_flight)  # type: ignore[call-overload]
    allowed = {key: {promised.get(key), coming.get(key)} for key in {*promised, *coming}}
    check_partitions(settings, image, allowed, strict=strict)


def check_partitions(
    settings: LogSettings,
    image: SimDisk,
    allowed: dict[TopicPartition, set[LogState | None]],
    *,
    strict: bool = False,
) -> None:
    """Each partition is in one of its states; None: it is not there."""
    store = opened_store(image, settings)
    assert not store.failed, store.failed
    assert not store.offline_dirs, store.offline_dirs
    there = store.partitions()
    for key in {*allowed, *there}:
        states = allowed.get(key, {None})
        if key not in there:
            assert None in states, f"{key} is gone"
            continue
        assert states != {None}, f"{key} is back"
        log = store.get(key)
        assert log.quarantine is None, log.quarantine
        found = tuple(stored_batches(log))
        problems = [differs(log, found, state) for state in states if state is not None]
        assert None in problems, f"{key}: {problems}"
        if strict and all(state is not None and state.is_closed for state in states):
            assert log.recovery is None, f"{key} was closed, and is scanned"
        check_log(image, log, found, strict=strict)
    check_checkpoints(image, store)


def stored_batches(log: PartitionLog) -> Iterator[bytes]:
    """All batches from the log start on, by the files: `check_log` asks the indexes."""
    for segment in log.segments.from_offset(log.log_start_offset):
        for batch in segment.batches(0, 1 << 20):
            if batch.header.last_offset >= log.log_start_offset:
                assert batch.crc_ok()
                yield bytes(batch.data)


def differs(log: PartitionLog, found: tuple[bytes, ...], state: LogState) -> str | None:
    """Why a log is not as it has to be. None: it is, and its producers are, too.

    Of a compacted log more than the end may be lost of what was not flushed: offsets that are not
    there tell nothing.
    """
    start, end = log.log_start_offset, log.log_end_offset
    if start != state.start:
        return f"it starts at {start}, not at {state.start}"
    if end < max(state.flushed, start):
        return f"it ends at {end}, {state.flushed} was promised"
    ends = {0, start, state.flushed, state.end}
    for batch in state.sent:
        ends |= {batch.first, batch.last + 1}  # a replicated one may leave a gap before it
    if end not in ends:
        return f"it ends at {end}, inside a batch"
    sent = tuple(b for b in state.sent if b.last >= start and b.last < end)
    if log.settings.is_compacted:
        there = set(found)
        sent = tuple(b for b in sent if b.last < state.flushed or b.data in there)
    expected = tuple(b.data for b in sent)
    if found != expected:
        return f"batches to {end}: {_offsets(found)} instead of {_offsets(expected)}"
    return _epochs_differ(log, state, found) or _producers_differ(log, state, sent)


def _epochs_differ(log: PartitionLog, state: LogState, found: tuple[bytes, ...]) -> str | None:
    """Kafka goes by them when it takes the directory over: of what was flushed they are known."""
    for data in found:
        (batch,) = batches(data)
        header, first = batch.header, max(batch.header.base_offset, state.start)
        if header.leader_epoch < 0 or header.last_offset >= state.flushed:
            continue
        known = [entry.epoch for entry in log.leader_epochs if entry.start_offset <= first]
        if not known or known[-1] != header.leader_epoch:
            return f"{first} is of leader epoch {header.leader_epoch}, not of {known[-1:]}"
    return None


def _offsets(found: tuple[bytes, ...]) -> list[int]:
    return [batch.header.base_offset for data in found for batch in batches(data)]


def _producers_differ(log: PartitionLog, state: LogState, survived: tuple[Sent, ...]) -> str | None:
    start, end = log.log_start_offset, log.log_end_offset
    below = tuple(batch for batch in state.sent if batch.last < start)
    folded = _folded((*below, *survived))
    producers = log.producers().entries
    for producer_id, batch in folded.last.items():
        if batch.last < start:
            continue  # its records are gone: the producer may be forgotten, or not
        entry = producers.get(producer_id)
        if entry is None:
            return f"producer {producer_id} is forgotten"
        sequence = batch.sequence + batch.last - batch.first
        if (entry.last_sequence, entry.last_offset) != (sequence, batch.last):
            return f"producer {producer_id} is at {entry.last_sequence}, {entry.last_offset}"
    open_from = [first for first in folded.open_from.values() if first >= start]
    if min(open_from, default=end) < log.last_stable_offset:
        return f"a transaction is open, the last stable offset is {log.last_stable_offset}"
    if not open_from and len(folded.open_from) == 0 and log.last_stable_offset != end:
        return f"no transaction is open, the last stable offset is {log.last_stable_offset}"
    # Of a transaction that began below the log start, the beginning may be forgotten; of one that
    # has no record left, everything.
    gone = {(e.producer_id, e.last) for e in folded.aborted if e.data_end <= start}
    entries = log.view.aborted_between(start, end)
    aborted = [(e.producer_id, max(start, e.first_offset), e.last_offset) for e in entries]
    expected = [(e.producer_id, max(start, e.first), e.last) for e in folded.aborted]
    aborted = [entry for entry in aborted if (entry[0], entry[2]) not in gone]
    expected = [entry for entry in expected if (entry[0], entry[2]) not in gone]
    return None if aborted == expected else f"aborted: {aborted} instead of {expected}"


def check_log(
    image: SimDisk, log: PartitionLog, found: tuple[bytes, ...], *, strict: bool = False
) -> None:
    """It can be searched, nothing unfinished is left, and it goes on where it ends."""
    if found:
        # One that the image picks: all of them in all images would take most of the time.
        number = (image.next_node + len(found[-1]) + log.log_end_offset) % len(found)
        times = list(_times(found, log.log_start_offset))
        for data in found if strict else found[number : number + 1]:
            _check_found(log, data, times)
    for name in image.list_directory(log.path):
        parsed = parse(name)
        assert parsed is None or parsed.state is FileState.FINAL, name
    assert not image.exists(f"{log.path}/.stratalog/swap-intent")
    end = log.log_end_offset
    appended = log.append(build_batch([NewRecord(b"more", b"", NOW)]))
    assert appended.first_offset == end
    assert log.log_end_offset == end + 1


def _times(found: tuple[bytes, ...], start: int) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record."""
    for data in found:
        (batch,) = batches(data)
        if not batch.header.is_control:
            yield from ((r.offset, r.timestamp) for r in batch.records() if r.offset >= start)


def _check_found(log: PartitionLog, data: bytes, times: list[tuple[int, int]]) -> None:
    (batch,) = batches(data)
    header = batch.header
    placed = next(iter(log.read_batches(max(header.base_offset, log.log_start_offset))))
    assert placed.header.base_offset == header.base_offset, "found by its offset"
    first = None if header.is_control else next(batch.records(), None)
    if first is not None and first.offset >= log.log_start_offset:
        at = log.offset_for_timestamp(first.timestamp)
        assert at is not None, "not found by its timestamp"
        earliest = next(offset for offset, time in times if time >= first.timestamp)
        assert at.offset == earliest, "found by its timestamp"


def check_checkpoints(image: SimDisk, store: LogStore) -> None:
    """No checkpoint speaks of what is not there: records that come later would be taken for it."""
    for name in ("cleaner-offset-checkpoint", "recovery-point-offset-checkpoint"):
        for key, offset in read_checkpoint(image, os.path.join(DIR, name)).items():
            if key in store.partitions():
                assert offset < store.get(key).log_end_offset, f"{name}: {key} at {offset}"
    # Nobody here reads Kafka's own; Kafka refuses a directory with one that is not whole.
    read_checkpoint(image, os.path.join(DIR, "replication-offset-checkpoint"))
