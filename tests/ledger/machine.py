"""A store with a ledger topic, step after step, against the naive model (`tests/naive/ledger.py`).

Actions are tuples of a name and numbers. After each of them the compacted view is that of the
model, record for record, the ledger's part of it too; readers and pins are looked at when their
turn comes. A `cut` stops the power within a step; what the disk then holds is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from stratalog.base.clock import FixedClock
from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.clean.job import Order
from stratalog.clean.manager import Request
from stratalog.ledger.ledgers import Pin
from stratalog.ledger.status import RunState
from stratalog.record.builder import NewRecord, build_batch
from stratalog.record.codec import Codec
from stratalog.record.control import ControlType
from tests.clean.services import NOW
from tests.ledger.running import LOG, TOPIC, open_life
from tests.ledger.test_crash_ledger import check_files
from tests.naive.ledger import Batch, LedgerModel, Made, Rec, fold
from tests.sim.cuts import Limits, crash_states
from tests.sim.disk import SimDisk
from tests.sim.nodes import Call

Action = tuple[Any, ...]
RETENTION_MS = 500
JUMPS = (1, 100, 400, 499, 501, 2000)
KEYS = [b"key%d" % number for number in range(7)]
NAMES = (
    *("append",) * 8,
    *("produce",) * 2,
    *("end",) * 8,
    *("ask",) * 5,
    *("read",) * 5,
    *("begin_read",) * 2,
    *("pin", "release", "check_pin"),
    *("jump",) * 2,
    *("retention", "delete", "truncate", "reopen", "due", "retained"),
    *("cut",) * 2,
)


class Wrong(AssertionError):  # noqa: N818 - reads as what it is in a test report
    """The product and the model differ."""


class PowerCut(BaseException):
    """The power is gone."""


@dataclass
class Reader:
    """Somebody who follows the compacted view: where it stands, what it knows, since when."""

    position: int
    since_ms: int
    known: dict[bytes, Rec]


class Machine:
    """One life. `order`: which record of a key is the newest."""

    def __init__(self, order: Order = Order.OFFSET):
        self.order = order
        self.topic = replace(
            TOPIC, segment_bytes=500, delete_retention_ms=RETENTION_MS, order=order
        )
        self.disk = SimDisk()
        self.clock = FixedClock(NOW)
        self.model = LedgerModel()
        self.readers: list[Reader] = []
        self.pins: list[tuple[Pin, Made]] = []
        self.producers: dict[int, tuple[int, int]] = {}
        self.open: set[int] = set()
        self.last_txn_end = 0
        self.retained = 2
        self.runs = self.cuts = self.steps = self.deletions_seen = 0
        self.trail: list[Action] = []
        self._open()

    def _open(self) -> None:
        settings = replace(LOG, segment_bytes=600)
        topic = replace(self.topic, ledgers_retained=self.retained)
        self.life = open_life(self.disk, topic=topic, log_settings=settings, clock=self.clock)

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Wrong(what)

    def do(self, action: Action) -> None:
        self.trail.append(action)
        self.steps += 1
        name, *numbers = action
        getattr(self, f"_{name}")(*numbers)
        self._check()

    # -- records come -----------------------------------------------------------------------------

    def _made(self, seed: int) -> tuple[list[NewRecord], Codec]:
        random = Random(seed)
        made = []
        for _ in range(random.randint(1, 4)):
            key = random.choice(KEYS) if random.random() < 0.95 else None
            value = None if random.random() < 0.25 else b"%d" % random.randrange(1000)
            made.append(NewRecord(key, value, NOW + random.randrange(50)))
        return made, list(Codec)[seed % 5] if seed % 7 == 0 else Codec.NONE

    def _send(self, made: list[NewRecord], codec: Codec, **producer: Any) -> None:
        result = self.life.log.append(build_batch(made, codec=codec, **producer))
        is_by_time = self.order is Order.TIMESTAMP
        records = [
            Rec(
                result.first_offset + at,
                one.key,
                one.value,
                one.timestamp or 0 if is_by_time else 0,
            )
            for at, one in enumerate(made)
        ]
        is_open = producer.get("transactional", False)
        owner = producer.get("producer_id")
        self.model.append(Batch(records, owner, "open" if is_open else "visible"))

    def _append(self, seed: int) -> None:
        self._send(*self._made(seed))

    def _produce(self, producer: int, seed: int) -> None:
        made, codec = self._made(seed)
        epoch, sequence = self.producers.get(producer, (-1, 0))
        if producer not in self.open:
            # A new epoch needs no sequence that the log may have forgotten.
            epoch, sequence = epoch + 1, 0
        self._send(
            made,
            codec,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self.producers[producer] = epoch, sequence + len(made)
        self.open.add(producer)

    def _end(self, producer: int, aborts: int) -> None:
        if producer in self.open:
            kind = ControlType.ABORT if aborts else ControlType.COMMIT
            epoch, _ = self.producers[producer]
            self.life.log.append_marker(kind, producer_id=producer, producer_epoch=epoch)
            self.model.end_transaction(producer, aborts=bool(aborts))
            self.last_txn_end = self.model.end
            self.open.discard(producer)

    # -- runs -------------------------------------------------------------------------------------

    def _ask(self) -> None:
        request = self.life.manager.ask(Request(self.life.key))
        self.require(self.life.cleaner.run_once("test"), "a request was passed over")
        if request.error is not None:
            raise request.error
        assert request.entry is not None
        self._ran(request.entry.result != "nothing")

    def _ran(self, is_made: bool) -> None:
        now_ms = self.clock.now_ms()
        if self.model.is_due(now_ms):
            self.require(is_made, "a run found nothing to do")
        if is_made:
            self.runs += 1
            self.model.run(now_ms, RETENTION_MS, self.retained)
            self.require(
                self.life.ledgers.status(self.life.key).state is RunState.SUCCEEDED,
                "a run that has succeeded does not say so",
            )

    def _due(self) -> None:
        """Let the backlog decide."""
        before = self.life.current
        self.life.configure(threshold_bytes=1)
        ran = self.life.run_all()
        self.life.configure(threshold_bytes=0)
        self.require(ran <= 2, "the service makes ledgers of nothing")
        self.require(not self.model.is_due(self.clock.now_ms()) or ran > 0, "a backlog stays")
        if self.life.current is not before:
            self._ran(True)

    def _retained(self, number: int) -> None:
        self.retained = 1 + number % 3
        self.life.configure(ledgers_retained=self.retained)

    def _jump(self, number: int) -> None:
        self.clock.sleep_ms(JUMPS[number % len(JUMPS)])

    # -- records go -------------------------------------------------------------------------------

    def _retention(self) -> None:
        """Everything is too old: retention goes as far as it may. What loses the begin of an open
        transaction is a story of its own."""
        if self._loses_open():
            return
        self.life.configure_log(retention_bytes=0)
        self.life.store.run_retention()
        self.life.configure_log(retention_bytes=-1)
        self.life.store.unlink_due()
        self._started()

    def _loses_open(self) -> bool:
        current = self.model.current
        return bool(self.open) and (current is None or current.horizon < self.model.start)

    def _started(self) -> None:
        start, current = self.life.log.log_start_offset, self.model.current
        self.require(start >= self.model.start, "the log start went back")
        if current is not None and start > self.model.start:
            self.require(
                start <= max(current.horizon, self.model.start), "retention went past the horizon"
            )
        self.model.start = start

    def _delete(self, percent: int) -> None:
        offset = self.model.start + (self.model.stable - self.model.start) * percent // 100
        if offset >= self.model.start:
            self.model.start = self.life.store.delete_records(self.life.key, offset)

    def _truncate(self, percent: int) -> None:
        """Only what is no part of a transaction: whose sequences the model would have to know."""
        span = self.model.end - self.model.start
        wanted = self.model.start + span * percent // 100
        offset = max(wanted, self.last_txn_end)
        if self.model.start <= offset < self.model.end and not self.open:
            self.model.truncate(self.life.store.truncate(self.life.key, offset))
            self.readers = []

    # -- readers ----------------------------------------------------------------------------------

    def _begin_read(self) -> None:
        if len(self.readers) < 3:
            self.readers.append(Reader(self.model.compacted_start, self.clock.now_ms(), {}))

    def _read(self, number: int, limit: int) -> None:
        """Read on, as a read_committed reader that may be slow does."""
        if not self.readers:
            return
        reader = self.readers[number % len(self.readers)]
        with self.life.ledgers.compacted(self.life.key) as view:
            try:
                records = view.read_records(reader.position, end_offset=view.last_stable_offset)
            except OffsetOutOfRangeError:
                self.require(reader.position < view.start_offset, "a position is refused")
                self.readers.remove(reader)
                return
            taken = 0
            for record in records:
                if taken >= limit:
                    break
                taken += 1
                reader.position = record.offset + 1
                if record.key is not None and not _is_aborted(self.model, record.offset):
                    version = record.timestamp if self.order is Order.TIMESTAMP else 0
                    rec = Rec(record.offset, record.key, record.value, version)
                    old = reader.known.get(record.key)
                    if old is None or old.rank < rec.rank:
                        reader.known[record.key] = rec
            if taken >= limit:
                return
            reader.position = max(reader.position, view.last_stable_offset)
        # It is at the end. In time, it has learned of every deletion. What it read before may be
        # gone with the log's beginning; and by an order of versions a deletion that is forgotten
        # by now still beats, for whoever saw it, an older event that came later.
        if self.clock.now_ms() - reader.since_ms <= RETENTION_MS:
            start, by_version = self.model.compacted_start, self.order is not Order.OFFSET
            known = list(reader.known.values())
            gone = [
                one for one in known if one.offset < start or (by_version and one.value is None)
            ]
            found, wanted = fold(known), fold([*self.model.compacted(), *gone])
            self.require(found == wanted, f"a reader knows {found}, not {wanted}")
            self.deletions_seen += 1
        self.readers.remove(reader)

    def _pin(self) -> None:
        pin = self.life.ledgers.pin(self.life.key)
        if self.model.current is None:
            self.require(pin.view is None, "a ledger that is none")
        elif len(self.pins) < 4:
            self.pins.append((pin, self.model.current))
            return
        pin.release()

    def _release(self, number: int) -> None:
        if self.pins:
            self.pins.pop(number % len(self.pins))[0].release()

    def _check_pin(self, number: int) -> None:
        if self.pins:
            pin, made = self.pins[number % len(self.pins)]
            assert pin.view is not None
            found = [(r.offset, r.key, r.value) for r in pin.view.read_records(made.start)]
            self.require(
                found == [(r.offset, r.key, r.value) for r in made.records()],
                "a pinned generation has changed",
            )

    # -- ends -------------------------------------------------------------------------------------

    def _reopen(self) -> None:
        self._let_go()
        self.life.close()
        self._open()
        self._restarted()

    def _let_go(self) -> None:
        for pin, _ in self.pins:
            pin.release()
        self.pins = []

    def _restarted(self) -> None:
        check_files(self.disk, self.life.ledgers, self.life.key, self.life.log.path)

    def _cut(self, inner: str, calls: int, seed: int) -> None:
        """The power goes within a step, after so many changing calls. Appends were flushed."""
        if inner == "retention" and self._loses_open():
            return
        self.life.log.flush()
        left = calls

        def hook(call: Call) -> None:
            nonlocal left
            if call.changes:
                left -= 1
                if left < 0:
                    raise PowerCut

        before = self.model.current
        self.disk.hook = hook
        is_cut = False
        try:
            if inner == "ask":
                self.life.manager.ask(Request(self.life.key))
                self.life.cleaner.run_once("test")
            elif inner == "retention":
                self.life.configure_log(retention_bytes=0)
                self.life.store.run_retention()
        except PowerCut:
            is_cut = True
        self.disk.hook = None
        self.cuts += is_cut
        random = Random(seed)
        states = crash_states(self.disk.fork(), random, Limits(sampled_subsets=2, mixtures=1))
        self.disk = random.choice(list(islice(states, 1 + random.randrange(15)))).disk()
        self.pins = []
        self.life.store.abandon()
        self._open()
        current = self.life.current
        number = 0 if current is None else current.number
        old = 0 if before is None else before.number
        if number not in (0, old):
            self.require(inner == "ask", "a ledger that nobody asked for")
            self.runs += 1
            self.model.run(self.clock.now_ms(), RETENTION_MS, self.retained)
        elif inner == "ask" and is_cut:
            state = self.life.ledgers.status(self.life.key).state
            self.require(state is not RunState.RUNNING, "a run that is over goes on")
        self._started()
        self._restarted()

    # -- what holds after each step ---------------------------------------------------------------

    def _check(self) -> None:
        model, log = self.model, self.life.log
        self.require(
            (log.log_start_offset, log.log_end_offset) == (model.start, model.end),
            f"the log is [{log.log_start_offset}, {log.log_end_offset})",
        )
        self.require(log.last_stable_offset == model.stable, "the last stable offset")
        generations = self.life.ledgers.manifest(self.life.key).generations
        self.require(
            [(one.number, one.start_offset, one.horizon) for one in generations]
            == [(one.number, one.start, one.horizon) for one in model.made],
            f"ledgers {[one.number for one in generations]}",
        )
        with self.life.ledgers.compacted(self.life.key) as view:
            self.require(view.start_offset == model.compacted_start, "where the view starts")
            self.require(view.has_ledger == (model.usable is not None), "whether it has a ledger")
            records = view.read_records(view.start_offset, end_offset=view.last_stable_offset)
            found = [
                (r.offset, r.key, r.value)
                for r in records
                if not _is_aborted(model, r.offset) or r.offset < view.horizon
            ]
        wanted = [(r.offset, r.key, r.value) for r in model.compacted()]
        self.require(found == wanted, f"compacted: {found}, not {wanted}")


def _is_aborted(model: LedgerModel, offset: int) -> bool:
    return any(b.state == "aborted" and b.first <= offset < b.end for b in model.batches)


def random_action(random: Random) -> Action:
    """One of the actions, with random numbers."""
    name = random.choice(NAMES)
    match name:
        case "append":
            return name, random.randrange(1 << 30)
        case "produce":
            return name, random.randrange(3), random.randrange(1 << 30)
        case "end":
            return name, random.randrange(3), random.randrange(2)
        case "read":
            return name, random.randrange(3), random.choice([1, 3, 10, 100])
        case "release" | "check_pin" | "jump" | "retained":
            return name, random.randrange(8)
        case "delete":
            return name, random.choice([0, 10, 50, 90])
        case "truncate":
            return name, random.choice([50, 80, 95])
        case "cut":
            inner = random.choice(["ask", "ask", "ask", "retention", "nothing"])
            return name, inner, random.randrange(45), random.randrange(1 << 30)
    return (name,)


def trouble_of(trail: list[Action], order: Order) -> str | None:
    """What goes wrong when a list of actions is played, None if nothing does."""
    machine = Machine(order)
    try:
        for action in trail:
            machine.do(action)
    except Exception as error:  # noqa: BLE001  whatever it is
        return f"{type(error).__name__}: {error}"
    return None


def shortest(trail: list[Action], order: Order, tries: int = 150) -> list[Action]:
    """A shorter list that still goes wrong: parts are left out as long as that helps."""
    size = max(len(trail) // 2, 1)
    while tries > 0:
        for start in range(0, len(trail), size):
            tries -= 1
            shorter = trail[:start] + trail[start + size :]
            if trouble_of(shorter, order) is not None:
                trail = shorter
                break
            if tries <= 0:
                return trail
        else:
            if size == 1:
                return trail
            size = max(size // 2, 1)
    return trail
