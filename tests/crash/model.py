"""What a killed writer was told, and what its log may hold therefore.

The writer says of each step what it is about to do (`Try`) and, as soon as that is acknowledged,
what came of it (`Done`). The model keeps what is acknowledged; the step in flight may be found
done or not, and nothing between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

PLAIN, IDEMPOTENT, IN_TXN = "plain", "idempotent", "in transaction"
COMMIT, ABORT = "commit", "abort"


class Row(NamedTuple):
    """A record. `txn`: the number of its transaction, -1: none. `sequence`: that of an idempotent
    batch, else -1."""

    key: bytes
    value: bytes | None
    txn: int = -1
    sequence: int = -1


class Found(NamedTuple):
    """What a process that opened the log found. `rows`: offset -> (key, value, producer id, base
    sequence of its batch); `markers`: offset -> COMMIT or ABORT."""

    start: int
    end: int
    rows: dict[int, tuple[bytes, bytes | None, int, int]]
    markers: dict[int, str]
    quarantine: str | None
    digest: int


class Try(NamedTuple):
    """About to happen to `log`: "append" (rows at `offset`), "marker" (of `txn`, at `offset`),
    "start" (the log start goes to `offset` or, by retention, anywhere up to it), "clean"."""

    what: str
    log: str
    offset: int = 0
    rows: tuple[Row, ...] = ()
    marker: str = ""
    txn: int = -1


class Done(NamedTuple):
    """The last `Try` was acknowledged; the offset it ended at."""

    offset: int


@dataclass
class LogModel:
    """One partition. `gone`: offsets that were found removed once. `cleaned_to`: cleaning may have
    removed what is superseded below."""

    name: str
    rows: dict[int, Row] = field(default_factory=dict)
    markers: dict[int, tuple[str, int]] = field(default_factory=dict)
    outcome: dict[int, str] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    was_cleaned: bool = False
    gone: set[int] = field(default_factory=set)

    def apply(self, step: Try, offset: int) -> None:
        match step.what:
            case "append":
                assert self.end == step.offset, (self.end, step)
                for place, row in enumerate(step.rows):
                    self.rows[step.offset + place] = row
                self.end = step.offset + len(step.rows)
            case "marker":
                assert self.end == step.offset
                self.markers[step.offset] = step.marker, step.txn
                self.outcome[step.txn] = step.marker
                self.end += 1
            case "start":
                self.start = offset
            case "clean":
                self.was_cleaned = True

    def settle(self, step: Try, found: Found) -> bool:
        """Whether the step in flight is found done; then it counts from now on."""
        match step.what:
            case "append" | "marker":
                if found.end == self.end:
                    return False
                self.apply(step, found.end)
            case "start":
                assert self.start <= found.start <= step.offset, (self.start, found.start, step)
                self.start = found.start
            case "clean":
                self.was_cleaned = True
        return True

    def check(self, found: Found) -> None:
        """Nothing acknowledged is lost, nothing removed is back, nothing else is there."""
        assert found.quarantine is None, found.quarantine
        assert (found.start, found.end) == (self.start, self.end), (
            self.name,
            found.start,
            found.end,
        )
        expected = {offset: row for offset, row in self.rows.items() if offset >= self.start}
        for offset, (key, value, _, _) in found.rows.items():
            assert offset in expected, f"{self.name}: {offset} was never written, or deleted"
            assert (key, value) == expected[offset][:2], f"{self.name}: {offset} is another record"
        missing = expected.keys() - found.rows.keys()
        back = self.gone & found.rows.keys()
        assert not back, f"{self.name}: {sorted(back)} had been removed and are back"
        if not self.was_cleaned:
            assert not missing, f"{self.name}: {sorted(missing)} are lost"
            markers = {o: kind for o, (kind, _) in self.markers.items() if o >= self.start}
            assert found.markers == markers, (found.markers, markers)
        self.gone |= missing
        assert self._fold(found.rows.keys()) == self._fold(self.rows.keys()), "the latest values"
        self._check_sequences(found)

    def _fold(self, offsets: Iterable[int]) -> dict[bytes, bytes]:
        """The latest committed value of each key, of the records at `offsets`."""
        latest: dict[bytes, bytes] = {}
        for offset in sorted(offsets):
            row = self.rows[offset]
            if offset < self.start or (row.txn >= 0 and self.outcome.get(row.txn) != COMMIT):
                continue
            if row.value is None:
                latest.pop(row.key, None)
            else:
                latest[row.key] = row.value
        return latest

    def _check_sequences(self, found: Found) -> None:
        """No batch of an idempotent producer stands there twice."""
        seen: dict[int, int] = {}
        for offset, row in self.rows.items():
            if row.sequence >= 0 and offset in found.rows:
                first = seen.setdefault(row.sequence, offset)
                assert offset - first < 3, (
                    f"{self.name}: sequence {row.sequence} at {first}, {offset}"
                )
                assert found.rows[offset][3] == row.sequence
