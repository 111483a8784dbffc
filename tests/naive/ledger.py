"""A log and its ledgers, record by record: lists and dicts, written from LDG-1, LDG-5 and CMP-17.

Nothing of the product is used. A ledger is what a run leaves: of what was visible below its horizon
the newest record of each key, and of tombstones those that are younger than their time, counted
from the run that saw them first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rec:
    """`version`: what is compared before the offset; the same for all by the order of offsets."""

    offset: int
    key: bytes | None
    value: bytes | None
    version: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        return self.version, self.offset


@dataclass
class Batch:
    """Consecutive records of one append. `state`: visible, aborted, open (its transaction)."""

    records: list[Rec]
    producer: int | None = None
    state: str = "visible"

    @property
    def first(self) -> int:
        return self.records[0].offset

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1


@dataclass(frozen=True)
class Made:
    """A generation. `entries`: by key its record, and for tombstones when they may go."""

    number: int
    start: int
    horizon: int
    entries: dict[bytes, tuple[Rec, int | None]]

    def records(self) -> list[Rec]:
        return sorted((rec for rec, _ in self.entries.values()), key=lambda rec: rec.offset)


@dataclass
class LedgerModel:
    """`start`, `end`: the raw log's. Offsets that no batch holds are transaction markers."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    made: list[Made] = field(default_factory=list)
    next_number: int = 1
    held: set[int] = field(default_factory=set)
    """Tombstones that were found too old and could not go: that alone makes no other run due."""

    # -- the raw log ------------------------------------------------------------------------------

    @property
    def stable(self) -> int:
        """Where the earliest open transaction begins, else the end."""
        return min((b.first for b in self.batches if b.state == "open"), default=self.end)

    def visible(self, first: int, end: int) -> list[Rec]:
        return [
            rec
            for batch in self.batches
            if batch.state == "visible"
            for rec in batch.records
            if max(first, self.start) <= rec.offset < end
        ]

    def append(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.end = batch.end

    def end_transaction(self, producer: int, *, aborts: bool) -> None:
        for batch in self.batches:
            if batch.producer == producer and batch.state == "open":
                batch.state = "aborted" if aborts else "visible"
        self.end += 1

    def truncate(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.end <= end]
        self.end = end
        self.made = [one for one in self.made if one.horizon <= end]

    # -- ledgers ----------------------------------------------------------------------------------

    @property
    def current(self) -> Made | None:
        return self.made[-1] if self.made else None

    @property
    def usable(self) -> Made | None:
        """The one in use, if the log follows on it."""
        current = self.current
        is_there = current is not None and self.start <= current.horizon <= self.end
        return current if is_there else None

    def is_due(self, now_ms: int) -> bool:
        """Whether a run that is asked for has something to do."""
        before = self.usable
        if before is None:
            return self.stable > self.start
        if self.stable > before.horizon:
            return True
        return any(
            due is not None and due <= now_ms and rec.offset not in self.held
            for rec, due in before.entries.values()
            if not self._is_held(rec, before.horizon)
        )

    def run(self, now_ms: int, retention_ms: int, retained: int) -> Made:
        before = self.usable
        first = self.start if before is None else before.horizon
        end = max(self.stable, first)
        entries = {} if before is None else dict(before.entries)
        for rec in self.visible(first, end):
            if rec.key is None:
                continue
            old = entries.get(rec.key)
            if old is None or old[0].rank < rec.rank:
                entries[rec.key] = (rec, None)
        for key, (rec, due) in list(entries.items()):
            if rec.value is not None:
                continue
            if due is None:
                entries[key] = (rec, now_ms + retention_ms)
            elif due <= now_ms and not self._is_held(rec, end):
                del entries[key]
            elif due <= now_ms:
                self.held.add(rec.offset)
        made = Made(self.next_number, first if before is None else before.start, end, entries)
        self.next_number += 1
        self.made = [*self.made, made][-retained:]
        return made

    def _is_held(self, tombstone: Rec, end: int) -> bool:
        """Whether a record that comes later would be the newest without it."""
        return any(
            rec.key == tombstone.key and rec.version < tombstone.version
            for batch in self.batches
            for rec in batch.records
            if rec.offset >= end
        )

    # -- what readers see -------------------------------------------------------------------------

    @property
    def compacted_start(self) -> int:
        return self.start if self.usable is None else self.usable.start

    def compacted(self) -> list[Rec]:
        """The compacted view up to the last stable offset."""
        before = self.usable
        if before is None:
            return self.visible(self.start, self.stable)
        return [*before.records(), *self.visible(before.horizon, self.stable)]

    def latest(self) -> dict[bytes, bytes]:
        """One value a key, none deleted."""
        return fold(self.compacted())


def fold(records: Iterable[Rec]) -> dict[bytes, bytes]:
    """Each key's newest value, without those that are deleted."""
    newest: dict[bytes, Rec] = {}
    for rec in records:
        if rec.key is not None and (rec.key not in newest or newest[rec.key].rank < rec.rank):
            newest[rec.key] = rec
    return {key: rec.value for key, rec in newest.items() if rec.value is not None}
