"""The local engine against Apache Kafka: every round of the archives, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.clean.local_engine import LocalEngine
from tests.clean.driving import (
    FS,
    Case,
    case_of,
    clean_case,
    contents,
    range_and_job,
    run,
    segment_files,
    state_of,
)
from tests.oracle import Round, compare_partitions, fold, index_problems, rounds

WAYS = {"2 threads, a batch a chunk": (2, 64), "1 thread, 4 KiB chunks": (1, 4096)}
"""Besides one thread with one chunk a file: all borders of chunks, and turns taken by threads."""


@pytest.mark.requirement(
    *("CMP-1", "CMP-2", "CMP-3", "CMP-4", "CMP-5", "CMP-8", "CMP-10", "CMP-11", "CMP-12"),
    *("CMP-13", "CMP-14", "CMP-15", "CMP-18", "LOG-2", "LOG-3", "LOG-4", "LOG-13"),
)
@pytest.mark.parametrize("kafka", rounds(), ids=lambda r: r.name)
def test_local_engine_makes_what_kafka_made(
    kafka: Round, tmp_path: Path, count_cases: Callable[[str, int], None]
) -> None:
    case = case_of(kafka, tmp_path / "plain")
    cleanable, _ = range_and_job(case)
    cleaned = clean_case(LocalEngine(FS, threads=1), case)

    assert compare_partitions(kafka.after, case.partition, kafka.before) == []
    assert (cleaned is not None) == kafka.cleaned
    if cleaned is not None:
        assert index_problems(case.partition) == []
        assert cleanable.first_dirty == kafka.first_dirty
        assert cleanable.first_uncleanable == kafka.first_uncleanable
        assert cleaned.end_offset == kafka.end_offset == kafka.checkpoint_after
        _check_counts(kafka, cleanable.clean_bytes, cleanable.cleanable_bytes, cleaned.keys)
        assert cleaned.volume.records_after == kafka.stats["messages_written"]
        assert cleaned.volume.drops.no_key == kafka.stats["invalid_messages_read"]
        assert fold(kafka.before) == fold(case.partition)
        for way, (threads, chunk_bytes) in WAYS.items():
            other = case_of(kafka, tmp_path / way)
            again = clean_case(LocalEngine(FS, threads=threads), other, chunk_bytes=chunk_bytes)
            assert segment_files(other.partition) == segment_files(case.partition), way
            assert again is not None
            assert again.end_offset == cleaned.end_offset
            assert again.volume == cleaned.volume
            assert again.keys == cleaned.keys
    count_cases("rounds of Kafka's cleaner repeated by the local engine", 1)


def _check_counts(kafka: Round, clean_bytes: int, cleanable_bytes: int, keys: int) -> None:
    known = {
        "map_entries": keys,
        "cleanable_bytes": cleanable_bytes,
        "total_bytes": clean_bytes + cleanable_bytes,
    }
    expected = {name: kafka.stats[name] for name in known if name in kafka.stats}
    assert {name: known[name] for name in expected} == expected


@pytest.mark.requirement("CMP-3", "CMP-13")
@pytest.mark.parametrize("kafka", rounds(), ids=lambda r: r.name)
def test_opening_the_log_tells_the_cleaner_what_kafka_knew(kafka: Round) -> None:
    state = state_of(Case(kafka.name, kafka.before, kafka.inputs, kafka.producer_expiration_ms))
    assert state.log_start_offset == kafka.log_start_offset
    assert state.log_end_offset == kafka.log_end_offset
    assert state.last_stable_offset == kafka.last_stable_offset
    assert state.checkpoint == kafka.checkpoint_before
    assert state.segments[-1].base_offset == kafka.active_segment_base_offset
    assert {
        producer.producer_id: (
            producer.epoch,
            None if producer.last_data_offset < 0 else producer.last_data_offset,
        )
        for producer in state.producers
    } == kafka.active_producers


def test_a_dry_run_counts_the_same_and_writes_nothing(tmp_path: Path) -> None:
    chosen = [kafka for kafka in rounds() if kafka.cleaned][::6]
    for number, kafka in enumerate(chosen):
        case = case_of(kafka, tmp_path / str(number))
        before = contents(case.partition.parent)
        _, job = range_and_job(case)
        assert job is not None
        (dry,) = run(LocalEngine(FS, threads=2), [job], writes=False)
        assert contents(case.partition.parent) == before
        (wet,) = run(LocalEngine(FS, threads=2), [job])
        assert dry.volume == wet.volume
        assert dry.end_offset == wet.end_offset
        assert [group.unchanged for group in dry.groups] == [g.unchanged for g in wet.groups]
        assert all(group.parts == () for group in dry.groups)
        assert all(bool(group.parts) != group.unchanged for group in wet.groups)
