"""What cleaning promises over many rounds: to readers, and of a log's size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from stratalog.clean.local_engine import LocalEngine
from stratalog.clean.plan import plan_clean, range_of
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    NOW_MS,
    Case,
    batch_of,
    clean_case,
    place,
    run,
    spec_of,
    state_of,
    surviving,
)
from tests.naive import files
from tests.naive.plan import Inputs

Count = Callable[[str, int], None]
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
Pairs = list[tuple[bytes, "bytes | None"]]


def engine() -> LocalEngine:
    return LocalEngine(FS, threads=1)


@dataclass
class Log:
    """A log that grows a segment at a time; what was ever written is remembered here."""

    log_dir: Path
    settings: dict[str, str]
    now_ms: int = NOW_MS
    written: Pairs = field(default_factory=list)
    _there: dict[int, tuple[bytes | None, bytes | None]] | None = None

    def __post_init__(self) -> None:
        self.partition = self.log_dir / "topic-0"
        self.partition.mkdir(parents=True)
        self.settings = {"min.cleanable.dirty.ratio": "0", **self.settings}

    def append_segment(self, pairs: Pairs, batch_records: int = 4) -> None:
        base, self._there = len(self.written), None
        self.written += pairs
        data = b"".join(
            batch_of(base + at, *pairs[at : at + batch_records])
            for at in range(0, len(pairs), batch_records)
        )
        files.write_segment(
            self.partition, base, data, [], interval_bytes=4096, mtime_ms=self.now_ms
        )

    @property
    def case(self) -> Case:
        end = len(self.written)
        return Case("log", self.partition, Inputs(self.settings, self.now_ms, 0, end, end))

    def clean(self) -> int | None:
        """A round; the new cleaner point."""
        cleaned, self._there = clean_case(engine(), self.case), None
        return None if cleaned is None else cleaned.end_offset

    def read(self, offset: int, count: int) -> dict[int, tuple[bytes | None, bytes | None]]:
        """What a reader gets that asks from `offset`: at most `count` records."""
        if self._there is None:
            self._there = surviving(self.partition)
        found = [(at, pair) for at, pair in self._there.items() if at >= offset]
        return dict(found[:count])


@dataclass
class Reader:
    """Reads on from where it is; remembers what it saw, and the state that it makes of it."""

    position: int = 0
    seen: list[int] = field(default_factory=list)
    state: dict[bytes, bytes] = field(default_factory=dict)

    def read(self, log: Log, count: int) -> bool:
        """Whether it is at the head now."""
        for offset, (key, value) in log.read(self.position, count).items():
            assert key is not None
            self.seen.append(offset)
            self.position = offset + 1
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        return not log.read(self.position, 1)


def state_of_all(pairs: Pairs) -> dict[bytes, bytes]:
    last = dict(pairs)
    return {key: value for key, value in last.items() if value is not None}


def random_pairs(random: Random, count: int, keys: int, deletions: float = 0.0) -> Pairs:
    return [
        (
            b"key-%d" % random.randrange(keys),
            None if random.random() < deletions else random.randbytes(6),
        )
        for _ in range(count)
    ]


@pytest.mark.requirement("CMP-20", "CMP-1")
def test_fast_readers_see_every_record_and_slow_ones_the_latest_of_each_key(
    tmp_path: Path, count_cases: Count
) -> None:
    """A fast reader is at the new cleaner point or past it whenever a round ends."""
    missed = rounds = 0
    for seed in range(8 if JIT else 2):
        random = Random(seed)
        log = Log(tmp_path / f"{seed}", {"segment.bytes": str(random.choice([1, 3000]))})
        fast, slow = Reader(), Reader()
        for _ in range(8):
            log.append_segment(random_pairs(random, random.randint(1, 24), keys=12))
            slow.read(log, random.randint(0, 10))
            if random.random() < 0.7:
                # The round will end at most where the active segment begins.
                (*_, active) = files.read_segments(log.partition)
                while fast.position < active.base or random.random() < 0.5:
                    if fast.read(log, random.randint(1, 9)):
                        break
                end = log.clean()
                rounds += end is not None
                assert end is None or fast.position >= end
        assert fast.read(log, 1000)
        assert slow.read(log, 1000)
        assert fast.seen == list(range(len(log.written)))
        assert set(slow.seen) <= set(fast.seen)
        missed += len(fast.seen) - len(slow.seen)
        last = {key: offset for offset, (key, _) in enumerate(log.written)}
        assert set(last.values()) <= set(slow.seen)
        assert slow.state == fast.state == state_of_all(log.written)
    assert missed > 0
    assert rounds > 8 // 2
    count_cases("rounds beside a fast and a slow reader", rounds)


# ---------------------------------------------------------------- deletions


@pytest.mark.requirement("CMP-8", "CMP-20")
def test_who_reaches_the_head_within_the_retention_sees_each_tombstone(
    tmp_path: Path, count_cases: Count
) -> None:
    """Readers begin at any time, pause as they like, and end within `delete.retention.ms`: no key
    is left in what they made of the log that was deleted. Rounds run at any time meanwhile."""
    done = expired = 0
    for seed in range(10 if JIT else 2):
        random = Random(seed)
        log = Log(tmp_path / f"{seed}", {"delete.retention.ms": str(HOUR_MS)})
        readers: list[tuple[int, Reader]] = []
        for _ in range(14):
            log.now_ms += random.choice([MINUTE_MS, 10 * MINUTE_MS, 25 * MINUTE_MS])
            log.append_segment(random_pairs(random, random.randint(2, 16), keys=8, deletions=0.4))
            if random.random() < 0.7:
                before = len(surviving(log.partition))
                log.clean()
                expired += before > len(surviving(log.partition))
            readers.append((log.now_ms, Reader()))
            for reader in [*readers]:
                started_ms, state = reader
                # The last moment at which it may read on is `delete.retention.ms` after its start.
                latest = log.now_ms + 25 * MINUTE_MS > started_ms + HOUR_MS
                is_done = state.read(log, 1000 if latest else random.randint(0, 8))
                assert log.now_ms <= started_ms + HOUR_MS
                if is_done:
                    assert state.state == state_of_all(log.written), (seed, state.seen)
                    readers.remove(reader)
                    done += 1
    assert not JIT or done > 50
    assert expired > 0
    count_cases("readers that kept to delete.retention.ms", done)


@pytest.mark.requirement("CMP-8")
@pytest.mark.parametrize("late_ms", [-1, 0])
def test_a_reader_that_takes_longer_can_miss_a_tombstone(late_ms: int, tmp_path: Path) -> None:
    """The bound is exact: at the very end of the retention a round takes the tombstone away."""
    log = Log(tmp_path / "log", {"delete.retention.ms": str(HOUR_MS)})
    log.append_segment([(b"a", b"1"), (b"b", b"1"), (b"a", None)])
    log.append_segment([(b"c", b"1")])
    reader = Reader()
    reader.read(log, 1)
    assert log.clean() == 3
    log.append_segment([(b"d", b"1")])
    log.now_ms += HOUR_MS + late_ms
    assert log.clean() == 4
    assert reader.read(log, 1000)
    assert (b"a" in reader.state) == (late_ms == 0)


@pytest.mark.requirement("CMP-8")
@pytest.mark.parametrize("rule", ["batch", "segment"])
def test_the_older_rule_does_not_promise_that(rule: str, tmp_path: Path) -> None:
    """It counts from the segment's time and not from the round that took the value away (KIP-534):
    a reader in between may find the tombstone gone after a minute."""
    settings = {"delete.retention.ms": str(HOUR_MS), "tombstone.horizon": rule}
    log = Log(tmp_path / "log", {**settings, "segment.bytes": "1"})
    log.append_segment([(b"a", b"1"), (b"a", None), (b"b", b"1")])
    log.now_ms += 2 * HOUR_MS
    log.append_segment([(b"c", b"1")])
    log.append_segment([(b"d", b"1")])
    reader = Reader()
    reader.read(log, 1)
    assert log.clean() == 4
    log.now_ms += MINUTE_MS
    log.append_segment([(b"e", b"1")])
    assert log.clean() == 5
    assert reader.read(log, 1000)
    assert (b"a" in reader.state) == (rule == "segment")


# ---------------------------------------------------------------- size


def log_bytes(log: Log) -> list[int]:
    return [len(segment.data) for segment in files.read_segments(log.partition)]


@pytest.mark.requirement("CMP-21", "CLN-2")
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8])
def test_updating_the_same_keys_for_ever_keeps_the_log_bounded(
    ratio: float, tmp_path: Path, count_cases: Count
) -> None:
    """At most 1 / (1 - r) times the clean size plus the active segment, whenever the cleaner has
    had its turn: it cleans as long as the dirty ratio is above r, as the policy says."""
    random = Random(int(ratio * 10))
    keys, segment_records = 20, 16
    # The clean log at its worst: each key in a batch of its own, the range's last batch emptied.
    one = len(batch_of(0, (b"key-%d" % (keys - 1), bytes(6))))
    clean_bytes = keys * one + 61
    log = Log(tmp_path / "log", {"segment.bytes": "2000"})
    appended_bytes = rounds = 0
    largest_bytes = 0
    for _ in range(60 if JIT else 8):
        log.append_segment(random_pairs(random, segment_records, keys))
        appended_bytes += log_bytes(log)[-1]
        while True:
            state = state_of(log.case)
            cleanable = range_of(state, min_compaction_lag_ms=0, now_ms=log.now_ms)
            if cleanable.dirty_ratio <= ratio:
                break
            job = plan_clean(state, cleanable, spec_of(log.case.inputs))
            assert job is not None
            (cleaned,) = run(engine(), [job])
            place(log.case, cleaned)
            rounds += 1
        (*closed, _active) = log_bytes(log)
        assert sum(closed) <= clean_bytes / (1 - ratio)
        largest_bytes = max(largest_bytes, sum(closed))
        assert dict(surviving(log.partition).values()) == state_of_all(log.written)
    assert appended_bytes > (4 if JIT else 0) * clean_bytes
    if JIT and ratio > 0.1:
        assert rounds < 59  # it lets the dirty part grow, as r allows
        assert largest_bytes > 0.6 * clean_bytes
    count_cases(f"rounds at a dirty ratio above {ratio}", rounds)
