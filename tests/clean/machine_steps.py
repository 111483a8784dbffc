"""The steps of the cleaner's state machine, and what must hold after each of them.

    machine = Machine(); machine.do(("append", 0, 3)); machine.do(("clean",)); ...

An action is a name and what it takes, mostly integers that only choose: which partition, keys,
settings, how many calls of the disk still come before the power is cut. Every action can be done
in every state (it may do nothing), so a list of actions can be made shorter and played again.

After every action it is judged (`machine_judge`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

from stratalog.base.errors import PolicyViolationError, UsageError
from stratalog.clean.job import Order
from stratalog.clean.manager import Request
from stratalog.log.log_store import LOG_END
from stratalog.record.builder import NewRecord
from stratalog.record.codec import Codec
from stratalog.segment.names import FileState, parse
from tests.clean.machine import (
    CHOICES,
    EXPIRATION_MS,
    JUMPS,
    KEYS,
    Injected,
    Wrong,
)
from tests.clean.machine_appends import Appends
from tests.clean.machine_judge import Allowed
from tests.clean.machine_rules import FORGOTTEN, left_undone, retained_start
from tests.sim.cuts import Limits, crash_states
from tests.sim.nodes import PowerCut

Action = tuple[Any, ...]
FEW = Limits(exhaustive_operations=5, sampled_subsets=8, mixtures=8, torn_points=2, max_images=200)
MOST_ROUNDS = 8
"""A cleaner without a limit of keys is at rest after so many rounds of one partition."""


class Machine(Appends):
    """See the module. `rounds`, `cuts`: how many there were."""

    def __init__(self, partitions: int = 1, max_keys: int | None = None):
        super().__init__(partitions, max_keys)
        self.max_keys = max_keys
        self.rounds = 0
        self.cuts = 0
        self.trail: list[Action] = []

    def do(self, action: Action) -> None:
        """One step. Raises `Wrong` if something must not be as it is after it."""
        self.trail.append(action)
        self.allowed = Allowed()
        rules = {key: self.rules(key) for key in self.keys}
        getattr(self, f"_{action[0]}")(*action[1:])
        self.judge(rules)

    # -- records go -------------------------------------------------------------------------------

    def _roll(self, number: int) -> None:
        self.log(self._key(number)).roll()

    def _may_clean(self) -> None:
        for key in self.keys:
            if "compact" in self.configs[key].policy and key not in self.paused:
                self.allowed.cleans[key] = self.rules(key)
        self.allowed.retains = True

    def _clean(self) -> bool:
        self._may_clean()
        was_busy = self.cleaner.run_once("machine")
        self.rounds += was_busy
        return was_busy

    def _clean_all(self) -> None:
        """Until there is nothing to do, which must come (and is asked twice: the first time may be
        spent on looking up an expiry)."""
        rounds = idle = 0
        while idle < 2:
            self.allowed = Allowed()
            rules = {key: self.rules(key) for key in self.keys}
            was_busy = self._clean()
            self.judge(rules)
            idle = 0 if was_busy else idle + 1
            rounds += was_busy
            most = MOST_ROUNDS if self.max_keys is None else 60
            self.require(rounds <= most * len(self.keys), f"the cleaner loops: {rounds} rounds")
        now_ms = self.clock.now_ms()
        for key in self.keys:
            failure = self.manager.note_of(key).failure
            is_free = failure is None or failure.retry_at_ms <= now_ms
            config = self.configs[key]
            if key in self.paused or "compact" not in config.policy or not is_free:
                continue
            undone = list(
                left_undone(
                    self.models[key],
                    self.seen[key],
                    self.rules(key),
                    config.ratio,
                    config.max_lag_ms,
                )
            )
            self.require(not undone, f"{key}: {undone}")

    def _ask(self, number: int, ignores_lag: int, forgotten: tuple[int, ...] = ()) -> None:
        key = self._key(number)
        trigger = "forget" if forgotten else "asked"
        request = Request(key, trigger, True, bool(ignores_lag), forgotten)
        if "compact" not in self.configs[key].policy or key in self.paused:
            try:
                self.manager.ask(request)
            except UsageError:
                return
            raise Wrong("a request was taken that cannot be done")
        self.require(self.manager.ask(request) is request, "an older request was answered")
        meddles = self.meddling is not None
        self._may_clean()
        self.allowed.rolls.add(key)
        if ignores_lag:
            self.allowed.cleans[key] = replace(self.rules(key), min_lag_ms=0)
        self.rounds += self.cleaner.run_once("machine")
        self.require(request.done.is_set(), "a request was not done")
        entry = request.entry
        if entry is None:
            raise Wrong("a request has no entry")
        if not meddles:
            self.require(entry.result in ("cleaned", "nothing"), f"{entry}: {request.error}")

    def _forget(self, number: int, key_number: int) -> None:
        """A tombstone that goes at once (CLN-11)."""
        key = self._key(number)
        config = self.configs[key]
        if "compact" not in config.policy or config.order is not Order.OFFSET or key in self.paused:
            return
        model = self.models[key]
        if model.open or self.max_keys is not None:
            return  # who forgets asks again until all is cleaned
        offset = model.end
        made = [NewRecord(KEYS[key_number % len(KEYS)], None, self.clock.now_ms())]
        self._send(key, made, Codec.NONE)
        model.horizons[offset] = FORGOTTEN
        self.seen[key] = self.look(key)
        self._ask(number, 1, (offset,))
        left = [r for _, _, r in self.look(key).records.values() if r.key == made[0].key]
        self.require(not left, f"forgotten, and still there: {left}")

    def _fail(self, number: int, kind: int) -> None:
        """A round that comes to nothing (CLN-7)."""
        key = self._key(number)

        has_failed: list[bool] = []

        def fail() -> None:
            has_failed.append(True)
            self.failing.add(key)
            raise Injected("injected") if kind % 2 else RuntimeError("injected")

        self._without_effect(number, fail)
        if has_failed:
            failure = self.manager.note_of(key).failure
            self.require(failure is not None and failure.cause.startswith("injected"), f"{failure}")
            self.require(key not in self.manager.queue(), "it is to be cleaned again at once")

    def _without_effect(self, number: int, meddling: Callable[[], None]) -> None:
        key = self._key(number)
        if "compact" not in self.configs[key].policy or key in self.paused:
            return
        self.log(key).roll()
        self.seen[key] = self.look(key)
        has_begun: list[bool] = []

        def begin() -> None:
            has_begun.append(True)
            meddling()

        self.meddling = begin
        self._ask(number, 0)
        self.meddling = None
        if has_begun:
            self.allowed.cleans.clear()

    def _retry(self, number: int) -> None:
        key = self._key(number)
        failure = self.manager.note_of(key).failure
        self.require(self.manager.retry(key) == (failure is not None), "retry")
        self.require(self.manager.note_of(key).failure is None, "it still waits")
        self.failing.discard(key)

    def _pause(self, number: int) -> None:
        key = self._key(number)
        self.require(self.manager.pause(key) == (key not in self.paused), "pause")
        self.paused.add(key)

    def _resume(self, number: int) -> None:
        key = self._key(number)
        self.require(self.manager.resume(key) == (key in self.paused), "resume")
        self.paused.discard(key)

    def _pause_midway(self, number: int) -> None:
        """Somebody pauses the partition while it is cleaned: the round ends as aborted (CLN-4)."""
        key = self._key(number)
        waiting: list[threading.Thread] = []

        def pause() -> None:
            thread = threading.Thread(target=self.manager.pause, args=(key,))
            waiting.append(thread)
            thread.start()
            while not self.manager.must_stop(key):
                time.sleep(0)

        self._without_effect(number, pause)
        for thread in waiting:
            thread.join()
            self.paused.add(key)

    def _retention(self) -> None:
        self.allowed.retains = True
        for key in self.keys:
            self.allowed.starts[key] = retained_start(self.seen[key], self.rules(key))
        self.store.run_retention()
        if not self.disk.allowed:
            for key, start in self.allowed.starts.items():
                found = self.log(key).log_start_offset
                self.require(found == start, f"{key}: retention to {found}, not to {start}")

    def _due(self) -> None:
        self.allowed.retains = True
        self.store.run_due()

    def _delete_records(self, number: int, percent: int) -> None:
        key = self._key(number)
        log = self.log(key)
        start, end = log.log_start_offset, log.log_end_offset
        offset = start + (end - start) * percent // 100
        if "delete" not in self.configs[key].policy:
            try:
                self.store.delete_records(key, offset)
            except PolicyViolationError:
                return
            raise Wrong("records of a compacted topic were deleted")
        self.allowed.starts[key] = offset
        self.store.delete_records(key, LOG_END if percent >= 100 else offset)
        self.require(log.log_start_offset == offset, "records were not deleted")

    # -- the world changes ------------------------------------------------------------------------

    def _jump(self, number: int) -> None:
        self.clock.time_ms += JUMPS[number % len(JUMPS)]

    def _config(self, number: int, name: str, choice: int) -> None:
        key = self._key(number)
        chosen = CHOICES[name][choice % len(CHOICES[name])]
        changes = {name: chosen}
        if name == "retention_bytes" and chosen >= 0:
            changes["retention_ms"] = -1  # one of them at a time says who has taken what
        if name == "retention_ms" and chosen >= 0:
            changes["retention_bytes"] = -1
        if chosen in (Order.TIMESTAMP, Order.HEADER):
            self.has_mixed_orders.add(key)
        self.configs[key] = replace(self.configs[key], **changes)
        self.log(key).configure(self.configs[key].of_log())

    def _reopen(self) -> None:
        self.cleaner.close()
        self.store.close()
        self.open()
        self._opened()

    def _opened(self) -> None:
        self.require(not self.store.failed, f"{self.store.failed}")
        for key in self.keys:
            log = self.log(key)
            self.require(log.quarantine is None, f"{key}: {log.quarantine}")
            self.models[key].opened_at(self.clock.now_ms(), EXPIRATION_MS)
            for name in self.disk.list_directory(log.path):
                found = parse(name)
                is_left = found is not None and found.state is not FileState.FINAL
                self.require(not is_left, f"{key}: {name} is left")
        for key in self.keys:
            is_paused = self.manager.note_of(key).paused
            if self.allowed.is_cut:
                {True: self.paused.add, False: self.paused.discard}[is_paused](key)
            self.require(is_paused == (key in self.paused), "a pause was forgotten")

    def _cut(self, inner: Action | None, calls: int, seed: int) -> None:
        """The power is cut, so many changes of the disk after `inner` has begun; or now."""
        self.disk.allowed = self.disk.operations + calls
        if inner is not None:
            with suppress(PowerCut):
                getattr(self, f"_{inner[0]}")(*inner[1:])
        self.allowed.is_cut = True
        self.meddling = None
        self.cuts += 1
        states = islice(crash_states(self.disk.fork(), Random(seed), FEW), 1 + seed % 50)
        self.disk = deque(states, maxlen=1).pop().disk()
        self.open()
        for key in self.keys:
            model = self.models[key]
            there = {
                batch.header.base_offset
                for segment in self.log(key).segments
                for batch in segment.headers()
            }
            # What lies below the log start may be there or not, and its producers known or not.
            model.start = self.log(key).log_start_offset
            model.keep(
                sent.first
                for sent in model.batches
                if sent.first < model.flushed or sent.last < model.start or sent.first in there
            )
            model.flushed = model.end  # what the cut has left is on the disk
        self._opened()
