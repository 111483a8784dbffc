"""Writers that are killed: `python -m tests.crash.writer DIRECTORY KILLS SEED`.

One warm process forks a writer, which appends, rolls, deletes and cleans until it is killed, then
a reader, which recovers the directory and says what it found; the next writer recovers it again.
The last line printed is a JSON object of counts; anything wrong ends it with a traceback.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from stratalog.admin.compaction import CompactionOptions, compact
from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.clean.local_engine import LocalEngine
from stratalog.config.settings import resolve
from stratalog.log.log_store import LogStore
from stratalog.log.partition_log import PartitionLog
from stratalog.log.settings import LogSettings
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from stratalog.segment.names import TopicPartition
from tests.crash.killing import KillingFileSystem
from tests.crash.model import (
    ABORT,
    COMMIT,
    IDEMPOTENT,
    IN_TXN,
    PLAIN,
    Done,
    Found,
    LogModel,
    Row,
    Try,
)

NOW = 1_700_000_000_000
NEVER = 1 << 60
LOGS = {"deleted-0": "delete", "compacted-0": "compact"}
IDEMPOTENT_ID, TXN_ID = 11, 12
LIVES = 30
"""Rounds until a directory is given up for a new one."""

Tell = Callable[[Any], None]


def key_of(name: str) -> TopicPartition:
    topic, partition = name.rsplit("-", 1)
    return TopicPartition(topic, int(partition))


def settings_of(key: TopicPartition) -> LogSettings:
    return LogSettings(
        cleanup_policy=(LOGS[str(key)],),
        segment_bytes=2_000,
        index_interval_bytes=200,
        flush_messages=1,
        retention_bytes=12_000,
        file_delete_delay_ms=0,
    )


def open_store(path: str, filesystem: KillingFileSystem) -> LogStore:
    return LogStore.open([path], settings_of, filesystem, FixedClock(NOW))  # type: ignore[arg-type]


def look(log: PartitionLog) -> Found:
    """Everything in a log, checksums checked."""
    rows: dict[int, tuple[bytes, bytes | None, int, int]] = {}
    markers, digest = {}, 0
    for batch in log.read_batches(log.log_start_offset):
        assert batch.crc_ok()
        digest = zlib.crc32(batch.data, digest)
        header = batch.header
        for record in batch.records():
            if record.offset < log.log_start_offset:
                continue
            if header.is_control:
                markers[record.offset] = COMMIT if record.key[-1] == 1 else ABORT  # type: ignore[index]
            else:
                about = header.producer_id, header.base_sequence
                rows[record.offset] = (record.key or b"", record.value, *about)
    why = None if log.quarantine is None else str(log.quarantine)
    return Found(log.log_start_offset, log.log_end_offset, rows, markers, why, digest)


class Writer:
    """Runs in the process that is to be killed. `retry`: an idempotent batch that was not
    acknowledged, by log; `sequences`: the next ones; `epoch` of this round's transactions."""

    def __init__(self, path: str, state: RoundState, filesystem: KillingFileSystem, tell: Tell):
        self.path, self.state, self.filesystem, self.tell = path, state, filesystem, tell
        self.rng = Random(state.seed)
        self.store = open_store(path, filesystem)
        self.open_txn: dict[str, int] = {}
        self.txn_sequence = dict.fromkeys(LOGS, 0)
        self.next_txn = state.number * 1_000

    def log(self, name: str) -> PartitionLog:
        return self.store.get(key_of(name))

    def run(self) -> None:
        for name in LOGS:
            if key_of(name) not in self.store.partitions():
                self.store.create(key_of(name))
        self.tell({name: look(self.log(name)) for name in LOGS})
        for name in LOGS:
            self.tell(Try("marker", name, self.log(name).log_end_offset, (), ABORT, -1))
            self.mark(name, ABORT)  # of whatever the last writer left open
            if name in self.state.retry:
                self.idempotent(name, self.state.retry[name])
        steps = (self.append,) * 12 + (self.transact,) * 6 + (self.delete, self.retain, self.clean)
        for _ in range(self.rng.randint(20, 120)):
            self.rng.choice(steps)(self.rng.choice(tuple(LOGS)))
        if self.rng.random() < 0.5:
            self.store.close()

    def rows(self, kind: str, txn: int = -1, sequence: int = -1) -> tuple[Row, ...]:
        def row() -> Row:
            key = b"key-%d" % self.rng.randrange(25)
            value = None if self.rng.random() < 0.1 else self.rng.randbytes(self.rng.randint(1, 90))
            return Row(key, value, txn, sequence)

        return tuple(row() for _ in range(1 if kind == IDEMPOTENT else self.rng.randint(1, 4)))

    def send(self, name: str, rows: tuple[Row, ...], **fields: Any) -> None:
        log = self.log(name)
        records = [NewRecord(row.key, row.value, NOW) for row in rows]
        codec = self.rng.choice((Codec.NONE, Codec.LZ4))
        self.tell(Try("append", name, log.log_end_offset, rows))
        result = log.append(build_batch(records, codec=codec, **fields))
        self.tell(Done(result.last_offset + 1))

    def append(self, name: str) -> None:
        if self.rng.random() < 0.5:
            self.send(name, self.rows(PLAIN))
        else:
            sequence = self.state.sequences[name]
            self.idempotent(name, self.rows(IDEMPOTENT, sequence=sequence))
        if self.rng.random() < 0.05:
            self.log(name).roll()

    def idempotent(self, name: str, rows: tuple[Row, ...]) -> None:
        sequence = rows[0].sequence
        self.send(name, rows, producer_id=IDEMPOTENT_ID, producer_epoch=0, base_sequence=sequence)
        self.state.sequences[name] = sequence + 1

    def transact(self, name: str) -> None:
        if name not in self.open_txn:
            self.next_txn += 1
            self.open_txn[name] = self.next_txn
        rows = self.rows(IN_TXN, self.open_txn[name])
        sequence = self.txn_sequence[name]
        self.txn_sequence[name] += len(rows)
        self.send(
            name,
            rows,
            producer_id=TXN_ID,
            producer_epoch=self.state.number,
            base_sequence=sequence,
            transactional=True,
        )
        if self.rng.random() < 0.6:
            marker = self.rng.choice((COMMIT, COMMIT, ABORT))
            txn = self.open_txn.pop(name)
            offset = self.log(name).log_end_offset
            self.tell(Try("marker", name, offset, (), marker, txn))
            self.mark(name, marker)

    def mark(self, name: str, marker: str) -> None:
        kind = ControlType.COMMIT if marker == COMMIT else ControlType.ABORT
        number = self.state.number
        result = self.log(name).append_marker(kind, producer_id=TXN_ID, producer_epoch=number)
        self.tell(Done(result.last_offset + 1))

    def delete(self, _: str) -> None:
        log = self.log("deleted-0")
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        self.tell(Try("start", "deleted-0", offset))
        self.tell(Done(self.store.delete_records(key_of("deleted-0"), offset)))

    def retain(self, _: str) -> None:
        self.tell(Try("start", "deleted-0", self.log("deleted-0").log_end_offset))
        self.store.run_retention()
        self.tell(Done(self.log("deleted-0").log_start_offset))
        self.store.unlink_due()
        self.store.checkpoint_points()

    def clean(self, _: str) -> None:
        self.tell(Try("clean", "compacted-0"))
        self.store.close()
        settings = resolve({}, {"cleanup.policy": ("compact",)})
        engine = LocalEngine(self.filesystem, threads=1)  # type: ignore[arg-type]
        compact(
            [os.path.join(self.path, "compacted-0")],
            CompactionOptions(Mode.IN_PLACE, settings),
            lambda: engine,
            self.filesystem,  # type: ignore[arg-type]
            FixedClock(NOW),
            lambda _progress: None,
        )
        self.tell(Done(0))
        self.store = open_store(self.path, self.filesystem)


class RoundState:
    """What a writer is given: see `Writer`."""

    def __init__(self) -> None:
        self.number = 0
        self.seed = ""
        self.sequences = dict.fromkeys(LOGS, 0)
        self.retry: dict[str, tuple[Row, ...]] = {}


def forked(
    work: Callable[[Tell], None], after: Callable[[int], None] = lambda _: None
) -> tuple[list[Any], bool]:
    """Run `work` in a forked process; what it told before it ended, and whether it was killed.

    Raises `AssertionError` with its traceback if it raised something.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            work(lambda message: _send(writing, message))
            status = 0
        except BaseException as error:  # noqa: BLE001 - the parent tells of it
            import traceback

            _send(writing, f"{error!r}\n{traceback.format_exc()}")
        finally:
            os._exit(status)
    os.close(writing)
    after(child)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    messages = list(_received(content))
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise AssertionError(f"the process failed: {messages[-1] if messages else status}")
    return messages, os.WIFSIGNALED(status)


def _send(descriptor: int, message: Any) -> None:
    data = pickle.dumps(message)
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(descriptor, data) :]


def _received(content: bytes) -> Any:
    while len(content) >= 4:
        size = 4 + int.from_bytes(content[:4], "big")
        if len(content) < size:
            return  # it was killed while it told
        yield pickle.loads(content[4:size])
        content = content[size:]


class Trial:
    """One directory and its model, over many kills."""

    def __init__(self, path: str, seed: str):
        self.path, self.seed = path, seed
        self.state = RoundState()
        self.models = {name: LogModel(name) for name in LOGS}
        self.counts: Counter[str] = Counter()

    def round(self, number: int) -> None:
        rng = Random(f"{self.seed}/{number}")
        self.state.number += 1
        self.state.seed = f"{self.seed}/{number}/writer"
        by_time = rng.random() < 0.2
        left = NEVER if by_time else rng.randint(1, rng.choice((40, 400, 600)))
        messages, was_killed = forked(
            lambda tell: Writer(self.path, self.state, KillingFileSystem(left), tell).run(),
            (lambda child: _kill_later(child, rng.random() * 0.06)) if by_time else lambda _: None,
        )
        pending = self.follow(messages)
        (found,), _ = forked(self.read)
        for name, model in self.models.items():
            if pending is not None and pending.log == name:
                done = model.settle(pending, found[name])
                self.counts["steps in flight found done" if done else "steps in flight undone"] += 1
                self.note_retry(pending, done=done)
            model.check(found[name])
        self.found = found
        self.counts["kills" if was_killed else "writers that came to their end"] += 1

    def follow(self, messages: list[Any]) -> Try | None:
        """Apply what was acknowledged; the step in flight."""
        pending: Try | None = None
        for message in messages:
            match message:
                case dict():
                    # Recovering twice ends as recovering once.
                    if hasattr(self, "found"):
                        assert message == self.found, "the second recovery found something else"
                case Try():
                    pending = message
                case Done(offset):
                    assert pending is not None
                    self.counts[f"acknowledged: {pending.what}"] += 1
                    self.models[pending.log].apply(pending, offset)
                    self.note_retry(pending, done=True)
                    pending = None
        return pending

    def note_retry(self, step: Try, *, done: bool) -> None:
        """Sequence numbers as the producer counts them: what is in flight is sent again."""
        if step.what == "append" and step.rows[0].sequence >= 0:
            self.state.retry.pop(step.log, None)
            self.state.sequences[step.log] = step.rows[0].sequence + done
            if not done:
                self.state.retry[step.log] = step.rows

    def read(self, tell: Tell) -> None:
        """Recover, say what there is, and die without closing anything."""
        store = open_store(self.path, KillingFileSystem(NEVER))
        assert store.failed == {}, store.failed
        assert store.failed_dirs == {}, store.failed_dirs
        for name in LOGS:
            if key_of(name) not in store.partitions():
                store.create(key_of(name))
        tell({name: look(store.get(key_of(name))) for name in LOGS})


def _kill_later(child: int, wait_s: float) -> None:
    time.sleep(wait_s)
    os.kill(child, signal.SIGKILL)


def warm_up(path: str) -> None:
    """Load and compile all that a writer uses, once, for every fork."""
    writer = Writer(path, RoundState(), KillingFileSystem(NEVER), lambda _: None)
    writer.run()
    writer.store.close()
    writer.store = open_store(path, KillingFileSystem(NEVER))
    writer.clean("")
    writer.store.close()
    shutil.rmtree(path)


def main(path: str, kills: int, seed: str) -> None:
    warm_up(os.path.join(path, "warm"))
    counts: Counter[str] = Counter()
    trial = Trial(os.path.join(path, "0"), f"{seed}/0")
    number = 0
    while counts["kills"] + trial.counts["kills"] < kills:
        number += 1
        if number % LIVES == 0:
            counts += trial.counts
            shutil.rmtree(trial.path)
            trial = Trial(os.path.join(path, str(number)), f"{seed}/{number}")
        try:
            trial.round(number)
        except BaseException as error:
            error.add_note(f"seed {trial.seed}, kill {number}; the directory: {trial.path}")
            raise
    counts += trial.counts
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
