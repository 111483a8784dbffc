"""Random logs: the naive cleaner and the local engine make the same of them, however it is asked.

`STRATALOG_SWEEP=N` in the environment multiplies the number of logs by N.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from stratalog.clean.engine import Progress
from stratalog.clean.job import CleanedPartition
from stratalog.clean.local_engine import LocalEngine
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import (
    FS,
    Case,
    clean_case,
    clean_naively,
    contents,
    range_and_job,
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


def ending_in_old_format(case: Case) -> bool:
    """Kafka itself loses the records of such a round's last batch (`Features`)."""
    return any(
        batch.magic < 2
        for segment in files.read_segments(case.partition)[:-1]
        for batch in segment.batches[-1:]
    )


@pytest.mark.requirement(
    *("CMP-1", "CMP-2", "CMP-3", "CMP-4", "CMP-5", "CMP-7", "CMP-8", "CMP-10", "CMP-11"),
    *("CMP-13", "CMP-14", "CMP-15", "CMP-18"),
)
@pytest.mark.parametrize("limited", [True, False], ids=["limit of keys", "any number of keys"])
def test_local_engine_makes_what_the_naive_twin_makes(
    limited: bool, tmp_path: Path, count_cases: Count
) -> None:
    engines = [LocalEngine(FS, threads=threads) for threads in (1, 2)]
    cleaned_count = 0
    for seed in seeds(150):
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
            _check_drops(cleaned, expected.drops, case.name)
    assert cleaned_count > len(seeds(150)) // 2
    count_cases(f"random logs, naive = local engine, {'with a' if limited else 'no'} limit",
                cleaned_count)


def _check_drops(cleaned: CleanedPartition, expected: object, name: str) -> None:
    drops = cleaned.volume.drops
    assert {
        "superseded": drops.superseded,
        "tombstone": drops.tombstone_expired,
        "aborted": drops.aborted,
        "control": drops.control_expired,
        "no_key": drops.no_key,
    } == {
        reason: expected.get(reason, 0)  # type: ignore[attr-defined]
        for reason in ("superseded", "tombstone", "aborted", "control", "no_key")
    }, name
