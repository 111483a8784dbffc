"""Whoever uses a log store, and writes down what has been promised: the scenarios' one driver.

    Client(disk, journal, settings).run((("create", "a"), ("append", "a", 3), ("flush", "a"), ...))

Steps, by name of the topic (partition 0 of it):

    open                         close                       stop: leave it as it is, no close
    create T                     delete T
    append T n [epoch]           n records in a batch        produce T p n   of producer p
    write T p n                  in p's transaction          commit T p      abort T p
    replicate T gap [epoch]      a record that has its offset, so far past the log end
    flush T                      roll T
    delete_records T offset      truncate T offset           retention
    swap T first last n          the sealed segments in these places become n (tests.sim.swapping)
    checkpoint                   recovery points and starts  wait ms         the clock, nothing else
    due ms                       so much later: run_due
    digest T                     tear T n                    garble T offset     (tests.sim.wrecks)

What the product says is durable (`recovery_point`) is taken for a promise after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from unittest.mock import patch
from uuid import UUID

from stratalog.base.clock import FixedClock
from stratalog.log.log_store import LOG_END, LogStore
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.log.swap import swap
from stratalog.record.builder import NewRecord, assign_offsets, build_batch
from stratalog.record.control import ControlType, build_marker
from stratalog.segment.names import TopicPartition
from tests.sim import swapping, wrecks
from tests.sim.disk import SimDisk
from tests.sim.explore import Journal
from tests.sim.logs import (
    DIR,
    NOW,
    STORE,
    LogState,
    Sent,
    Stored,
    fold,
)

Step = tuple[str | int, ...]
EPOCH = 3


@dataclass
class Client:
    disk: SimDisk
    journal: Journal
    settings: LogSettings
    value_bytes: int = 40
    clock: FixedClock = field(default_factory=lambda: FixedClock(NOW))
    state: dict[TopicPartition, LogState] = field(default_factory=dict)
    store: LogStore | None = None
    count: int = 0
    deleted: int = 0
    may_fail: bool = False

    def run(self, steps: Iterable[Step]) -> None:
        if self.store is None and not self.journal.promised:
            self.promise()
        for step in steps:
            self.do(step)

    def do(self, step: Step) -> None:
        """One step. Raises what the product raises; then the promise is that of before."""
        name, *arguments = step
        action: Callable[..., None] = getattr(self, f"do_{name}")
        if self.store is None and name != "open":
            self.do_open()
        if arguments and isinstance(arguments[0], str):
            arguments[0] = TopicPartition(arguments[0], 0)
        action(*arguments)
        self.promise()

    # -- what is promised ------------------------------------------------------------------------

    def stored(self, state: dict[TopicPartition, LogState] | None = None) -> Stored:
        return tuple(sorted((self.state if state is None else state).items()))

    def begin(self, key: TopicPartition, state: LogState | None) -> None:
        """From now on `key` may be found in this state (None: not at all)."""
        coming = {**self.state, key: state}
        self.journal.begin(self.stored({k: made for k, made in coming.items() if made is not None}))

    def promise(self) -> None:
        if self.store is not None:
            for key, state in self.state.items():
                if key in self.store.failed:
                    continue
                flushed = max(state.flushed, self.store.get(key).recovery_point)
                self.state[key] = state._replace(flushed=flushed)
        self.journal.promise(self.stored())

    def log(self, key: TopicPartition) -> PartitionLog:
        assert self.store is not None
        return self.store.get(key)

    # -- steps -----------------------------------------------------------------------------------

    def do_open(self) -> None:
        opened = {key: state._replace(is_closed=False) for key, state in self.state.items()}
        if opened != self.state:
            self.journal.begin(self.stored(opened))
            self.state = opened
        self.store = LogStore.open([DIR], lambda _: self.settings, self.disk, self.clock, STORE)

    def do_close(self) -> None:
        assert self.store is not None
        store, self.store = self.store, None
        healthy = [
            key
            for key in self.state
            if key not in store.failed and store.get(key).is_writable and not store.offline_dirs
        ]
        store.close()
        for key in healthy:
            self._flushed(key)
            is_closed = len(healthy) == len(self.state)
            self.state[key] = self.state[key]._replace(is_closed=is_closed)

    def do_stop(self) -> None:
        self.store = None
        self.disk.forget_locks()

    def do_create(self, key: TopicPartition) -> None:
        assert self.store is not None
        self.begin(key, LogState())
        self.store.create(key)
        self.state[key] = LogState()

    def do_delete(self, key: TopicPartition) -> None:
        assert self.store is not None
        self.begin(key, None)
        self.deleted += 1
        # Names by chance would make each run another one.
        with patch("stratalog.log.going.uuid.uuid4", lambda: UUID(int=self.deleted)):
            self.store.delete(key)
        del self.state[key]

    def do_append(self, key: TopicPartition, n: int, epoch: int = 0) -> None:
        self._send(key, "data", n, epoch=epoch)

    def do_produce(self, key: TopicPartition, producer_id: int, n: int) -> None:
        self._send(key, "data", n, producer_id)

    def do_write(self, key: TopicPartition, producer_id: int, n: int) -> None:
        self._send(key, "txn", n, producer_id)

    def _send(
        self, key: TopicPartition, kind: str, n: int, producer_id: int = -1, epoch: int = 0
    ) -> None:
        state = self.state[key]
        self.count += 1
        fill = Random(self.count).randbytes(self.value_bytes)
        records = [
            NewRecord(b"k%d" % ((self.count + i) % 7), fill, self.clock.now_ms() + state.end + i)
            for i in range(n)
        ]
        sequence = -1
        if producer_id >= 0:
            last = fold(state.sent).last.get(producer_id)
            sequence = 0 if last is None else last.sequence + last.last - last.first + 1
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=EPOCH if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=kind == "txn",
        )
        sent = Sent(0, n - 1, batch, kind, producer_id, sequence)
        self._append(key, sent, lambda log: log.append(batch, epoch), epoch)

    def do_commit(self, key: TopicPartition, producer_id: int) -> None:
        self._mark(key, ControlType.COMMIT, producer_id)

    def do_abort(self, key: TopicPartition, producer_id: int) -> None:
        self._mark(key, ControlType.ABORT, producer_id)

    def _mark(self, key: TopicPartition, kind: ControlType, producer_id: int) -> None:
        marker = build_marker(
            kind, producer_id=producer_id, producer_epoch=EPOCH, timestamp=self.clock.now_ms()
        )
        append = partial(
            PartitionLog.append_marker, kind=kind, producer_id=producer_id, producer_epoch=EPOCH
        )
        self._append(key, Sent(0, 0, marker, kind.name.lower(), producer_id), append)

    def _append(
        self,
        key: TopicPartition,
        sent: Sent,
        append: Callable[[PartitionLog], object],
        epoch: int = 0,
    ) -> None:
        """`sent` as it would be at offset 0."""
        state = self.state[key]
        first, last = state.end, state.end + sent.last
        placed = bytearray(sent.data)
        assign_offsets(placed, first, epoch)
        sent = sent._replace(first=first, last=last, data=bytes(placed))
        coming = state._replace(sent=(*state.sent, sent), end=last + 1)
        self.begin(key, coming)
        append(self.log(key))
        assert coming.end - self.log(key).recovery_point < self.settings.flush_messages  # LOG-7
        self.state[key] = coming

    def do_replicate(self, key: TopicPartition, gap: int, epoch: int = 0) -> None:
        """A record with an offset of its own, `gap` past the log end."""
        first = self.state[key].end + gap
        batch = build_batch(
            [NewRecord(b"replicated", None, self.clock.now_ms() + first)],
            base_offset=first,
            leader_epoch=epoch,
        )
        sent = Sent(first, first, batch)
        coming = self.state[key]._replace(sent=(*self.state[key].sent, sent), end=first + 1)
        self.begin(key, coming)
        self.log(key).append_as_follower(batch)
        self.state[key] = coming

    def do_flush(self, key: TopicPartition) -> None:
        assert self.log(key).flush() == self.state[key].end
        self._flushed(key)

    def _flushed(self, key: TopicPartition) -> None:
        self.state[key] = self.state[key]._replace(flushed=self.state[key].end)

    def do_roll(self, key: TopicPartition) -> None:
        self.log(key).roll()

    def do_checkpoint(self) -> None:
        assert self.store is not None
        self.store.checkpoint_points()
        self.store.checkpoint_starts()

    def do_delete_records(self, key: TopicPartition, offset: int) -> None:
        assert self.store is not None
        state = self.state[key]
        start = state.end if offset == LOG_END else max(offset, state.start)
        self.begin(key, state._replace(start=start))
        assert self.store.delete_records(key, offset) == start
        self.state[key] = state._replace(start=start)

    def do_truncate(self, key: TopicPartition, offset: int) -> None:
        assert self.store is not None
        state = self.state[key]
        if offset < state.end:
            kept = tuple(batch for batch in state.sent if batch.last < offset)
            coming_end = max(state.start, kept[-1].last + 1 if kept else 0)
            flushed = min(state.flushed, coming_end)
            self.begin(key, LogState(kept, flushed, state.start, coming_end))
            end = self.store.truncate(key, offset)
            assert end == coming_end, (end, coming_end)
            state = LogState(kept, flushed, state.start, end)
        else:
            assert self.store.truncate(key, offset) == state.end
        self.state[key] = state

    def do_swap(self, key: TopicPartition, first: int, last: int, count: int) -> None:
        state, log = self.state[key], self.log(key)
        group = swapping.group_of(log.segments.bases, state.sent, first, last, count)
        made = swapping.write_parts(self.disk, log, group, self.settings.index_interval_bytes)
        coming = state._replace(sent=swapping.swapped(state.sent, group))
        assert len(made.new) == count
        assert coming != state
        self.begin(key, coming)
        swap(
            self.disk,
            log.path,
            made,
            lambda: log.replace_segments(group.old, swapping.swap_files(self.disk, log, group)),
        )
        self.state[key] = coming

    def do_digest(self, key: TopicPartition) -> None:
        wrecks.store_digest(self.disk, self.log(key))

    def do_tear(self, key: TopicPartition, count: int) -> None:
        path, self.store = self.log(key).path, None
        self.state[key] = wrecks.tear(self.disk, path, self.state[key], count)

    def do_garble(self, key: TopicPartition, offset: int) -> None:
        path, self.store = self.log(key).path, None
        self.state[key] = wrecks.garble(self.disk, path, self.state[key], offset)

    def do_retention(self) -> None:
        assert self.store is not None
        assert self.store.plan_retention() or self.may_fail, "nothing to delete"
        coming = self._planned()
        self.journal.begin(self.stored(coming))
        self.store.run_retention()
        self._note_starts(coming)

    def _note_starts(self, coming: dict[TopicPartition, LogState]) -> None:
        """A run of many logs raises nothing if one fails."""
        assert self.store is not None
        for key, state in coming.items():
            if key in self.store.failed:
                continue
            start = self.log(key).log_start_offset
            assert start == state.start or (self.may_fail and start == self.state[key].start)
            self.state[key] = self.state[key]._replace(start=start)

    def _planned(self) -> dict[TopicPartition, LogState]:
        assert self.store is not None
        coming = dict(self.state)
        for key, made in self.store.plan_retention().items():
            start = max(coming[key].start, made.new_log_start_offset)
            coming[key] = coming[key]._replace(start=start)
        return coming

    def do_wait(self, ms: int) -> None:
        self.clock.time_ms += ms

    def do_due(self, ms: int) -> None:
        """So much later (ms). Retention may be due, or not."""
        assert self.store is not None
        self.clock.time_ms += ms
        coming = self._planned()
        self.journal.begin(self.stored(coming))
        self.store.run_due()
        for key, state in coming.items():
            if key in self.store.failed:
                continue
            start = self.log(key).log_start_offset
            assert start in (self.state[key].start, state.start)  # it may be due, or not
            self.state[key] = state._replace(start=start)
            if self.settings.flush_ms <= ms:
                self._flushed(key)
