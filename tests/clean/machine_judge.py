"""What a step of the cleaner's state machine may have done, and what is true after any step.

A step says in `Allowed` what it may do. `Judge.judge` holds what every log held before against what
it holds now: what went must have been allowed to go (`machine_rules`); then `_check` looks at what
holds at any time, whatever the step was.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stratalog.segment.names import TopicPartition
from tests.clean.machine import Service
from tests.clean.machine_model import Seen, SeenSegment, fold
from tests.clean.machine_rules import (
    Rules,
    cleaned_too_little,
    cleaned_wrongly,
    deleted_wrongly,
    fold_changed,
    uncleanable_from,
)


@dataclass
class Allowed:
    """What a step may do. `cleans`: with which minimum lag; `starts`: log starts besides the one
    before; `rolls`: the active segment was closed first."""

    cleans: dict[TopicPartition, Rules] = field(default_factory=dict)
    retains: bool = False
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    rolls: set[TopicPartition] = field(default_factory=set)
    is_cut: bool = False


class Judge(Service):
    """See the module. `paused` and `failing` are the partitions that steps have paused, and those
    in which a round has failed; of those with `has_mixed_orders` only each step can be judged."""

    def __init__(self, partitions: int = 1, max_keys: int | None = None):
        super().__init__(partitions, max_keys)
        self.has_mixed_orders: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.failing: set[TopicPartition] = set()
        self.allowed = Allowed()

    def judge(self, rules: dict[TopicPartition, Rules]) -> None:
        for key in self.keys:
            before, after = self.seen[key], self.look(key)
            if self.allowed.is_cut:
                before = _without(before, set(self.models[key].by_first))
            problems = list(self._problems(key, before, after, rules[key]))
            self.require(not problems, f"{key}: {problems}")
            self.models[key].start = after.start
            self.seen[key] = after
            self._check(key, after)
            model = self.models[key]
            model.flushed = max(model.flushed, self.log(key).recovery_point)

    def _problems(self, key: TopicPartition, before: Seen, after: Seen, rules: Rules) -> list[str]:
        model, allowed = self.models[key], self.allowed
        if key in allowed.rolls and before.segments[-1].batches:
            empty = SeenSegment(before.end, 0, rules.now_ms, ())
            before = replace(before, segments=(*before.segments, empty))
        found: list[str] = []
        start = allowed.starts.get(key, before.start)
        if after.start not in (before.start, start):
            if allowed.retains:
                found += deleted_wrongly(model, before, after, rules, allowed.cleans.get(key))
            else:
                found.append(f"the log start went from {before.start} to {after.start}")
        cleaning = allowed.cleans.get(key)
        if cleaning is not None:
            found += cleaned_wrongly(model, before, after, cleaning)
            # With an order of versions a late older record may be all that is left of a key when
            # its tombstone's time was up; below the round's end there is none.
            is_plain = cleaning.versions["compaction.strategy"] == "offset"
            end = before.stable if is_plain else uncleanable_from(before, cleaning)
            changed = fold_changed(model, before, after, cleaning, end)
            found += [changed] if changed is not None else []
        else:
            gone = [at for at in before.records if at >= after.start and at not in after.records]
            gone += [at for at in before.markers if at >= after.start and at not in after.markers]
            found += [f"offsets {gone} went"] if gone else []
            moved = (before.point, after.point)
            is_back = allowed.is_cut and moved[0] != moved[1]
            found += [f"the checkpoint moved: {moved}"] if moved[0] != moved[1] != is_back else []
        return found

    def _check(self, key: TopicPartition, seen: Seen) -> None:
        """What is true at any time."""
        model, log = self.models[key], self.log(key)
        self.require(seen.end == model.end, f"{key} ends at {seen.end}, not at {model.end}")
        low, high = model.stable_bounds()
        self.require(low <= seen.stable <= high, f"{key}: stable {seen.stable}, {low} to {high}")
        for segment in seen.segments:
            last = segment.batches[-1].last_offset if segment.batches else -1
            self.require(last < seen.end_of(segment), f"{key}: segment {segment.base} overlaps")
        if seen.point is not None:
            self.require(seen.point <= seen.active_base, f"{key}: checkpoint {seen.point}")
        problems = list(cleaned_too_little(model, seen))
        self.require(not problems, f"{key}: below {seen.point}: {problems}")
        if key not in self.has_mixed_orders:
            latest = model.latest(seen.stable, {})
            found = fold(seen.visible(model, seen.stable), {})
            self.require(found == latest, f"{key}: {found} instead of {latest}")
        self._check_transactions(key, seen)
        producers = log.producers().entries
        for producer_id, producer in model.producers.items():
            if model.must_know(producer_id):
                entry = producers.get(producer_id)
                wanted = (producer.epoch, producer.next_sequence - 1)
                found_state = None if entry is None else (entry.epoch, entry.last_sequence)
                self.require(found_state == wanted, f"{key}: {producer_id} is at {found_state}")
        failure = self.manager.note_of(key).failure
        self.require(failure is None or key in self.failing, f"{key}: {failure}")

    def _check_transactions(self, key: TopicPartition, seen: Seen) -> None:
        """Readers of committed data get just that (CMP-14): by the index, as consumers do."""
        model = self.models[key]
        entries = self.log(key).view.aborted_between(seen.start, seen.end)
        for segment in seen.segments:
            for batch in segment.batches:
                if not batch.transactional or batch.control or batch.last_offset < seen.start:
                    continue
                txn = model.txn_of[batch.base_offset]
                is_hidden = any(
                    entry.producer_id == batch.producer_id
                    and entry.first_offset <= batch.base_offset <= entry.last_offset
                    for entry in entries
                )
                if batch.count and txn.marker is not None:
                    self.require(is_hidden == txn.is_aborted, f"{key}: {batch.base_offset}")
                if txn.marker is not None:
                    self.require(txn.marker in seen.markers, f"{key}: no marker {txn.marker}")


def _without(before: Seen, firsts: set[int]) -> Seen:
    """What was there, without the batches that a crash has taken."""
    segments = tuple(
        replace(one, batches=tuple(b for b in one.batches if b.base_offset in firsts))
        for one in before.segments
    )
    return replace(before, segments=segments)
