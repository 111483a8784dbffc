"""Random logs: the naive cleaner and the local engine make the same of them, however it is asked.

`STRATALOG_SWEEP=N` in the environment multiplies the number of logs by N.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratalog.clean.engine import Progress
from stratalog.clean.job import Drops
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    Case,
    clean_case,
    clean_naively,
    move_checkpoint,
    place,
    range_and_job,
    run,
    segment_files,
)
from tests.naive import files
from tests.naive.logs import PLAIN, Features, write_random_log
from tests.naive.records import Record
from tests.oracle import compare_partitions, fold, index_problems

SWEEP = int(os.environ.get("STRATALOG_SWEEP", "1"))
SHARE = 1 if JIT else 8
"""Kernels as plain Python take their time."""

ANY_KEYS = 1 << 40
"""A dedupe buffer, in bytes, that no log here can fill: the naive twin's way of no limit."""

Count = Callable[[str, int], None]


def seeds(count: int) -> range:
    return range(max(1, count * SWEEP // SHARE))


def random_case(seed: int, directory: Path, features: Features | None = None) -> Case:
    directory.mkdir()
    log = write_random_log(seed, directory, features)
    return Case(f"seed {seed}", log.partition, log.inputs)


def features_of(seed: int) -> Features:
    """All that there is, with the old formats in every fifth log; some logs of few features."""
    if seed % 7 == 3:
        return replace(PLAIN, tombstones=True, checkpoints=True, batches=120, keys=60)
    return Features(legacy=seed % 5 == 0)


@pytest.mark.requirement(
    *("CMP-1", "CMP-2", "CMP-3", "CMP-4", "CMP-5", "CMP-7", "CMP-8", "CMP-10", "CMP-11"),
    *("CMP-13", "CMP-14", "CMP-15", "CMP-18", "CLN-10"),
)
@pytest.mark.parametrize("limited", [True, False], ids=["limit of keys", "any number of keys"])
def test_local_engine_makes_what_the_naive_twin_makes(
    limited: bool, tmp_path: Path, count_cases: Count
) -> None:
    engines = [LocalEngine(FS, threads=threads) for threads in (1, 2)]
    cleaned_count = 0
    for seed in seeds(50):
        case = random_case(seed, tmp_path / f"{seed}", features_of(seed))
        state = fold(case.partition)
        changes = {} if limited else {"dedupe_buffer_bytes": ANY_KEYS}
        before = case.copied(tmp_path / f"{seed}-before")
        expected = clean_naively(before, tmp_path / f"{seed}-naive", **changes)
        wanted = {} if limited else {"max_keys": None}
        cleaned = clean_case(
            engines[seed % 2],
            case,
            chunk_bytes=Random(seed).choice([64, 500, 1 << 20]),
            **wanted,
        )
        made = tmp_path / f"{seed}-naive" / case.partition.name
        assert compare_partitions(made, case.partition, before.partition) == [], case.name
        assert index_problems(case.partition) == [], case.name
        assert fold(case.partition) == state, case.name
        assert expected.cleaned == (cleaned is not None), case.name
        if cleaned is not None:
            cleaned_count += 1
            assert cleaned.end_offset == expected.end_offset, case.name
            assert cleaned.keys == expected.map_entries, case.name
            _check_drops(cleaned.volume.drops, expected.drops, case.name)
            _check_drops(cleaned.volume.dropped_bytes, expected.dropped_bytes, case.name)
    assert cleaned_count > len(seeds(50)) // 2
    count_cases(
        f"random logs, naive = local engine, {'with a' if limited else 'no'} limit", cleaned_count
    )


def _check_drops(drops: Drops, expected: Mapping[str, int], name: str) -> None:
    counted = {
        "superseded": drops.superseded,
        "tombstone": drops.tombstone_expired,
        "aborted": drops.aborted,
        "control": drops.control_expired,
        "no_key": drops.no_key,
    }
    assert counted == {reason: expected.get(reason, 0) for reason in counted}, name


@pytest.mark.requirement("CMP-6", "CMP-7", "CMP-15")
def test_secrets_threads_chunks_and_memory_leave_no_trace(
    tmp_path: Path, count_cases: Count
) -> None:
    """Many keys and a map of 24 KiB: it takes several ranges of the hash, one after another."""
    many_keys = Features(batches=700, keys=4_000, small_map=False)
    several_ranges = 0
    for seed in seeds(6):
        case = random_case(seed, tmp_path / f"{seed}", many_keys)
        ways = [
            (1, {}),
            (2, {"chunk_bytes": 1 << 10}),
            (1, {"memory_bytes": 24 << 10}),
            (2, {"memory_bytes": 24 << 10, "chunk_bytes": 4 << 10}),
        ]
        made = []
        for number, (threads, changes) in enumerate(ways):
            copy = case.copied(tmp_path / f"{seed}-{number}")
            _, job = range_and_job(copy, max_keys=None, **changes)
            if job is None:
                break
            starts: list[Progress] = []

            def note(progress: Progress, starts: list[Progress] = starts) -> None:
                if progress.phase == "index" and progress.done_bytes == 0:
                    starts.append(progress)

            (cleaned,) = LocalEngine(FS, threads=threads).clean(
                [job], writes=True, on_progress=note
            )
            several_ranges += len(starts) > 1
            assert len(starts) == 1 or "memory_bytes" in changes
            assert len(starts) > 1 or "memory_bytes" not in changes or cleaned.keys <= 16 * 57
            place(copy, cleaned)
            made.append((segment_files(copy.partition), cleaned.volume, cleaned.keys))
        assert all(one == made[0] for one in made), seed
    assert several_ranges >= 2 * (len(seeds(6)) // 2)
    count_cases("cleans with a map too small for all keys at once", several_ranges)


@pytest.mark.requirement("CMP-19", "CMP-18")
def test_repeated_cleans_drop_no_data_and_come_to_rest(tmp_path: Path, count_cases: Count) -> None:
    engine = LocalEngine(FS, threads=1)
    repeated = 0
    for seed in seeds(60):
        case = random_case(seed, tmp_path / f"{seed}", features_of(seed))
        # With a retention of 0 a tombstone's time is up as soon as its horizon is set.
        settings = {**case.inputs.settings, "delete.retention.ms": "60000"}
        case = replace(case, inputs=replace(case.inputs, settings=settings))
        files_left: dict[str, tuple[bytes, int]] | None = None
        records_left: list[Record] | None = None
        state = fold(case.partition)
        first_range = None
        for rounds in range(1, 12):
            cleanable, job = range_and_job(case, max_keys=None)
            if job is None:
                break
            (cleaned,) = run(engine, [job])
            place(case, cleaned)
            # The same range again: the checkpoint stays where it was.
            move_checkpoint(case, cleanable.first_dirty)
            first_range = first_range or (job.first_dirty, job.first_uncleanable)
            assert (job.first_dirty, job.first_uncleanable) == first_range, case.name
            records = data_records(case.partition)
            assert records_left is None or records == records_left, (case.name, rounds)
            assert fold(case.partition) == state, (case.name, rounds)
            left = segment_files(case.partition)
            if left == files_left:
                assert all(group.unchanged for group in cleaned.groups), case.name
                break
            files_left, records_left = left, records
        else:
            pytest.fail(f"{case.name}: no rest after {rounds} rounds")
        repeated += files_left is not None
    assert repeated > len(seeds(60)) // 2
    count_cases("random logs cleaned until nothing changes", repeated)


def data_records(partition: Path) -> list[Record]:
    """All but transaction markers, in order."""
    return [
        record
        for segment in files.read_segments(partition)
        for batch in segment.batches
        if not batch.control
        for record in batch.records()
    ]
