"""The random logs: the same from the same seed, plausible, and full of what can go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.naive import cleaner, files
from tests.naive.logs import PLAIN, Features, write_random_log
from tests.naive.plan import Inputs
from tests.naive.records import Batch
from tests.oracle import compare_partitions, fold, fold_by_index

SEEDS = range(150)


@pytest.mark.parametrize("features", [Features(), Features(legacy=True), PLAIN])
def test_the_same_seed_writes_the_same_log(tmp_path: Path, features: Features) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    one, two = (write_random_log(7, tmp_path / name, features) for name in ("one", "two"))
    three = write_random_log(8, tmp_path / "three", features)
    assert one.inputs == two.inputs
    logs = [sorted(log.partition.glob("*.log")) for log in (one, two, three)]
    written = [[(p.name, p.read_bytes(), p.stat().st_mtime_ns) for p in paths] for paths in logs]
    assert written[0] == written[1] != written[2]
    assert compare_partitions(one.partition, two.partition) == []


def test_random_logs_are_plausible_and_cover_the_features(
    tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        for name in (f"{seed}", f"{seed}-clean"):
            (tmp_path / name).mkdir()
        log = write_random_log(seed, tmp_path / f"{seed}", Features(legacy=seed % 5 == 0))
        segments = files.read_segments(log.partition)
        offsets = [(b.base_offset, b.last_offset) for s in segments for b in s.batches]
        assert all(first <= last for first, last in offsets)
        assert [o for pair in offsets for o in pair] == sorted(o for pair in offsets for o in pair)
        assert all(s.base <= b.base_offset for s in segments for b in s.batches)
        state = fold(log.partition)
        assert fold_by_index(log.partition, log.inputs.last_stable_offset) == state, seed

        result = cleaner.clean(log.partition, log.inputs)
        after = tmp_path / f"{seed}-clean" / log.partition.name
        cleaner.write_result(result, log.partition, after, log.inputs)
        assert fold(after) == state, seed
        _count(seen, log.inputs, result, [b for s in segments for b in s.batches])
    count_cases("random logs written and cleaned by the naive twin", len(SEEDS))
    assert {name for name in WANTED if seen[name] < 5} == set(), seen


WANTED = (
    *("superseded", "tombstone", "aborted", "control", "no_key", "cleaned", "nothing to clean"),
    *("map full", "bound by open transaction", "checkpoint", "checkpoint out of range"),
    *("log start", "active producer", "segments merged", "empty segment", "txnindex kept"),
    *("header only kept", "header only", "horizon set", "horizon", "magic 0", "magic 1"),
    *("codec 0", "codec 1", "codec 2", "codec 3", "codec 4", "append time", "transactional"),
    *("control batch", "sequence wraps", "no timestamp", "huge offsets", "end inside a batch"),
)


def _count(
    seen: Counter[str], inputs: Inputs, result: cleaner.Result, batches: list[Batch]
) -> None:
    bounds = result.range
    made = [batch for group in result.groups for batch in group.batches]
    old = {batch.raw for batch in batches}
    starts = {batch.base_offset for batch in batches}
    seen.update(result.drops)
    seen["cleaned" if result.cleaned else "nothing to clean"] += 1
    seen["map full"] += result.map_full
    seen["end inside a batch"] += result.map_full and result.end_offset not in starts
    seen["bound by open transaction"] += (
        bounds.first_uncleanable_dirty == inputs.last_stable_offset < inputs.log_end_offset
    )
    seen["checkpoint"] += inputs.checkpoint is not None
    seen["checkpoint out of range"] += inputs.checkpoint != bounds.checkpoint
    seen["log start"] += inputs.log_start_offset > 0
    seen["active producer"] += bool(inputs.active_producers)
    seen["segments merged"] += any(len(group.sources) > 1 for group in result.groups)
    seen["empty segment"] += any(not group.data for group in result.groups)
    seen["txnindex kept"] += any(group.aborted for group in result.groups)
    for batch in made:
        new = batch.raw not in old
        seen["header only kept"] += new and batch.count == 0
        seen["horizon set"] += new and batch.horizon_ms is not None
    for batch in batches:
        seen[f"magic {batch.magic}"] += 1
        seen[f"codec {batch.codec}"] += 1
        seen["header only"] += batch.count == 0
        seen["horizon"] += batch.horizon_ms is not None
        seen["append time"] += batch.append_time
        seen["transactional"] += batch.transactional and not batch.control
        seen["control batch"] += batch.control
        seen["sequence wraps"] += -1 < batch.last_sequence < batch.base_sequence
        seen["no timestamp"] += batch.magic == 2 and batch.max_timestamp == -1
        seen["huge offsets"] += batch.base_offset > 1 << 31


def test_features_can_be_switched_off(tmp_path: Path) -> None:
    for seed in range(20):
        (tmp_path / f"{seed}").mkdir()
        log = write_random_log(seed, tmp_path / f"{seed}", PLAIN)
        batches = [b for s in files.read_segments(log.partition) for b in s.batches]
        assert {b.attributes for b in batches} == {0}
        assert {b.producer_id for b in batches} == {-1}
        assert [b.base_offset for b in batches[1:]] == [b.last_offset + 1 for b in batches[:-1]]
        records = [record for batch in batches for record in batch.records()]
        assert all(r.key is not None and r.value is not None and not r.headers for r in records)
        assert log.inputs == replace(
            log.inputs, checkpoint=None, log_start_offset=0, dedupe_buffer_bytes=1 << 20
        )
