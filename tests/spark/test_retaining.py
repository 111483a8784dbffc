"""What stays and why, told by Spark's workers as by the local engine: both rules of tombstones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.clean.local_engine import LocalEngine
from stratalog.record.kernel.compile import JIT
from tests.clean.driving import FS, place, range_and_job, run, segment_files, surviving
from tests.clean.test_properties import features_of, random_case
from tests.clean.test_segment_horizon import aged_case
from tests.spark.test_tasks import stand_in

pytestmark = pytest.mark.usefixtures("hasty_disk")


@pytest.mark.requirement("SPK-2", "CMP-8", "CMP-9", "CLN-10", "CLN-11")
@pytest.mark.parametrize("by_segment", [False, True], ids=["batch", "segment"])
def test_sources_expiry_and_forgotten_tombstones(
    by_segment: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count_cases: Callable[[str, int], None],
) -> None:
    engine, _ = stand_in(3, monkeypatch)
    made = []
    for seed in range(12 if JIT else 3):
        directory = tmp_path / f"{seed}"
        case = (
            aged_case(seed, directory)
            if by_segment
            else random_case(seed, directory, features_of(seed))
        )
        tombstones = [o for o, (_, value) in surviving(case.partition).items() if value is None]
        copy = case.copied(tmp_path / f"{seed}-local")
        jobs = [range_and_job(one, max_keys=None)[1] for one in (case, copy)]
        made += [
            (one, replace(job, forgotten=tuple(tombstones[::3])))
            for one, job in zip((case, copy), jobs, strict=True)
            if job is not None
        ]
    by_spark = run(engine, [job for _, job in made[::2]])
    by_local = run(LocalEngine(FS, threads=1), [job for _, job in made[1::2]])
    for (case, _), (copy, _), one, other in zip(
        made[::2], made[1::2], by_spark, by_local, strict=True
    ):
        assert [replace(g, parts=()) for g in one.groups] == [
            replace(g, parts=()) for g in other.groups
        ], case.name
        place(case, one)
        place(copy, other)
        assert segment_files(case.partition) == segment_files(copy.partition), case.name
    gone = sum(cleaned.volume.drops.tombstone_expired for cleaned in by_spark)
    waiting = sum(cleaned.next_expiry_ms is not None for cleaned in by_spark)
    assert gone > 0
    assert (waiting > 0) == (not by_segment)
    count_cases("rounds with forgotten tombstones, Spark's plan = local engine", len(by_spark))
