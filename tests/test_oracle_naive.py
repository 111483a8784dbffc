"""The naive cleaner against Apache Kafka: it must make what Kafka made, in every recorded round.

The twin is only worth something as a reference for the engines if this holds without exception.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.archives import corpus_path
from tests.naive import cleaner, files
from tests.naive.producers import ProducerStates
from tests.oracle import (
    Round,
    active_producers,
    compare_partitions,
    corpus_rounds,
    fold,
    fold_by_index,
    golden_rounds,
    index_problems,
    rounds,
)

Count = Callable[[str, int], None]


@pytest.mark.parametrize("kafka", rounds(), ids=lambda r: r.name)
def test_naive_cleaner_makes_what_kafka_made(
    kafka: Round, tmp_path: Path, count_cases: Count
) -> None:
    inputs = kafka.inputs
    result = cleaner.clean(kafka.before, inputs)
    cleaner.write_result(result, kafka.before, tmp_path / kafka.partition, inputs)

    assert compare_partitions(kafka.after, tmp_path / kafka.partition, kafka.before) == []
    assert index_problems(tmp_path / kafka.partition) == []
    assert result.cleaned == kafka.cleaned
    assert result.checkpoint == kafka.checkpoint_after
    if kafka.cleaned:
        bounds = result.range
        assert bounds.first_dirty == kafka.first_dirty
        assert bounds.first_uncleanable == kafka.first_uncleanable
        assert result.end_offset == kafka.end_offset
        counted = {
            "messages_read": result.records_read,
            "messages_written": result.records_kept,
            "invalid_messages_read": result.drops.get("no_key", 0),
            "map_entries": result.map_entries,
            "first_uncleanable_dirty_offset": bounds.first_uncleanable_dirty,
            "cleanable_bytes": bounds.cleanable_bytes,
            "total_bytes": bounds.clean_bytes + bounds.cleanable_bytes,
        }
        assert {k: v for k, v in counted.items() if k in kafka.stats} == {
            k: v for k, v in kafka.stats.items() if k in counted
        }
    count_cases("rounds of Kafka's cleaner repeated by the naive twin", 1)


@pytest.mark.parametrize("kafka", rounds(), ids=lambda r: r.name)
def test_fold_is_the_same_before_and_after(kafka: Round, count_cases: Count) -> None:
    before = fold(kafka.before)
    assert before == fold(kafka.after)
    assert before == fold_by_index(kafka.before, kafka.last_stable_offset)
    assert before == fold_by_index(kafka.after, kafka.last_stable_offset)
    count_cases("keys folded before and after", len(before))


def test_all_rounds_of_the_archives_are_there() -> None:
    assert len(golden_rounds()) == 26
    specs = [json.loads(path.read_text()) for path in corpus_path().glob("log-*/spec.json")]
    assert len(corpus_rounds()) == sum(len(spec["rounds"]) for spec in specs) > 100
    assert sum(not r.cleaned for r in corpus_rounds()) > 10
    assert len({r.name for r in rounds()}) == len(rounds())


def test_kafkas_indexes_have_no_problems_and_damaged_ones_have(tmp_path: Path) -> None:
    for kafka in rounds():
        assert index_problems(kafka.before) + index_problems(kafka.after) == [], kafka.name
    kafka = next(r for r in golden_rounds() if r.name.startswith("plain-none"))
    for suffix, position, size in ((".index", 3, 8), (".index", 7, 8), (".timeindex", 7, 12)):
        copy = tmp_path / f"{suffix}{position}"
        shutil.copytree(kafka.before, copy)
        path = copy / files.name(540, suffix)
        data = bytearray(path.read_bytes())
        data[position] ^= 0x40
        path.write_bytes(data)
        assert index_problems(copy)
        path.write_bytes(data[size:] + data[:size])
        assert index_problems(copy)


def test_newest_snapshot_names_the_active_producers() -> None:
    known = 0
    for kafka in corpus_rounds():
        found = active_producers(kafka.before, kafka.now_ms, kafka.producer_expiration_ms)
        assert found == kafka.active_producers, kafka.name
        known += len(found)
    assert known > 100


def test_producer_fold_makes_the_snapshots_and_transaction_indexes() -> None:
    snapshots = 0
    for kafka in rounds():
        if not kafka.name.endswith("/r1") and kafka.before_dir.name not in ("before", "0-before"):
            continue  # opened before: producers may have expired by then
        states = ProducerStates()
        for segment in files.read_segments(kafka.before):
            snapshot = kafka.before / files.name(segment.base, ".snapshot")
            if snapshot.exists():
                written = {p.producer_id: p for p in files.read_snapshot(snapshot)}
                assert written == states.producers, snapshot
                snapshots += len(written)
            aborted = tuple(filter(None, map(states.read, segment.batches)))
            assert aborted == segment.aborted, (kafka.name, segment.base)
        assert states.last_stable_offset == kafka.last_stable_offset
    assert snapshots > 100


def test_compare_partitions_notices_every_kind_of_difference(tmp_path: Path) -> None:
    kafka = next(r for r in golden_rounds() if r.name.startswith("transactions-none/1"))
    log = files.name(0, ".log")

    def differences(damage: Callable[[Path], object]) -> list[str]:
        shutil.copytree(kafka.after_dir, tmp_path / "copy")
        damage(tmp_path / "copy" / kafka.partition)
        found = compare_partitions(kafka.after, tmp_path / "copy" / kafka.partition)
        shutil.rmtree(tmp_path / "copy")
        return found

    def flip(path: Path, position: int) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        times = path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert differences(lambda p: None) == []
    assert differences(lambda p: (p / log).unlink())
    assert differences(lambda p: (p / log).touch())
    assert differences(lambda p: (p / f"{log}.cleaned").touch())
    assert differences(lambda p: flip(p / log, 15))
    assert differences(lambda p: flip(p / log, -1))
    assert differences(lambda p: (p / files.name(0, ".txnindex")).unlink())
    assert differences(lambda p: flip(p / files.name(0, ".txnindex"), 9))
    assert differences(lambda p: (p / files.name(30, ".snapshot")).unlink())
    assert differences(lambda p: (p / files.name(27, ".snapshot")).touch()) == []
    assert differences(lambda p: (p.parent / "cleaner-offset-checkpoint").unlink())
