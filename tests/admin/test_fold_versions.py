"""Comparing what two logs stand for goes by the order of versions, as cleaning does."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from stratalog.admin.columns import record_columns
from stratalog.admin.directories import find_partitions
from stratalog.admin.fold import Comparison, compare_partitions
from stratalog.admin.report import Mode
from stratalog.base.clock import FixedClock
from stratalog.clean.chunk import ChunkReader, Scratch, scan_chunk
from stratalog.clean.job import CleanSpec, Order
from stratalog.config.settings import resolve
from stratalog.record.builder import NewRecord
from stratalog.record.kernel.columns import SIZES
from tests.admin.helpers import DISK, HOUR_MS, NOW_MS, copy_of, run, write_log
from tests.clean.test_properties import random_case, seeds
from tests.clean.test_versions import features_of
from tests.naive import files
from tests.naive.versions import version_of
from tests.oracle import fold

BY_TIME = {"compaction.strategy": "timestamp"}
BY_HEADER = {"compaction.strategy": "header", "compaction.strategy.header": "v"}


def event(key: str, value: str | None, hours: int, version: str | None = None) -> NewRecord:
    headers = () if version is None else ((b"v", version.encode()),)
    content = None if value is None else value.encode()
    return NewRecord(key.encode(), content, NOW_MS - 48 * HOUR_MS + hours * HOUR_MS, headers)


def compared(one: Path, other: Path, given: dict[str, str]) -> Comparison:
    places = [find_partitions([str(path)], DISK)[0] for path in (one, other)]
    settings = resolve(given, {"cleanup.policy": ("compact",)})
    return compare_partitions(
        places[0], places[1], settings, DISK, FixedClock(NOW_MS), lambda _: None
    )


LATE = [
    event("a", "new", 9, "2"),
    event("a", "late", 3, "1"),
    event("b", None, 9, "-1"),
    event("b", "late", 3),
]


@pytest.mark.requirement("CMP-17", "CMP-18")
@pytest.mark.parametrize("given", [BY_TIME, BY_HEADER], ids=lambda given: str(len(given)))
def test_the_state_is_that_of_the_highest_versions(tmp_path: Path, given: dict[str, str]) -> None:
    log = write_log(tmp_path / "log" / "t-0", [[LATE]])
    same = write_log(tmp_path / "same" / "t-0", [[[event("a", "new", 0)]]])
    last = write_log(tmp_path / "last" / "t-0", [[[event("a", "late", 0), event("b", "late", 0)]]])
    by_version, by_offset = compared(log, same, given), compared(log, last, {})
    assert (by_version.keys, by_version.different) == (1, 0)
    assert (by_offset.keys, by_offset.different) == (2, 0)
    assert compared(log, last, given).different == 2
    assert compared(log, same, {}).different == 2


@pytest.mark.requirement("CMP-17", "CMP-18")
@pytest.mark.parametrize("given", [BY_TIME, BY_HEADER], ids=lambda given: str(len(given)))
def test_cleaning_by_versions_keeps_the_state_by_versions_only(
    tmp_path: Path, given: dict[str, str]
) -> None:
    log = write_log(tmp_path / "log" / "t-0", [[LATE[:1]], [LATE[1:]]])
    before = copy_of(log, tmp_path / "before" / "t-0")
    report = run([log], Mode.IN_PLACE, given=given)
    assert report.partitions[0].counts.dropped.superseded == 2
    assert compared(before, log, given).different == 0
    assert compared(before, log, {}).different == 2


@pytest.mark.requirement("CMP-17", "CMP-18", "LOG-4")
def test_random_logs_have_the_columns_and_states_of_the_naive_twin(
    tmp_path: Path, hasty_disk: None
) -> None:
    compared_rows = 0
    for seed in seeds(6):
        case = random_case(seed, tmp_path / f"{seed}", features_of(seed))
        settings = case.inputs.settings
        order = Order(settings["compaction.strategy"])
        spec = CleanSpec(
            0,
            order=order,
            version_header=settings["compaction.strategy.header"],
            chunk_bytes=Random(seed).choice([300, 1 << 20]),
        )
        for segment in files.read_segments(case.partition):
            expected = {
                record.offset: version_of(record, settings)
                for batch in segment.batches
                for record in batch.records()
            }
            path = case.partition / files.name(segment.base, ".log")
            found = versions_by_offset(path, segment.base, spec)
            assert found == expected
            compared_rows += len(found)
        given = {**settings, "internal.segment.bytes": settings["segment.bytes"]}
        del given["segment.bytes"]
        state = fold(case.partition, settings)
        same = compared(case.partition, case.partition, given)
        assert (same.keys, same.different) == (len(state), 0)
    assert compared_rows > 500 // len(seeds(6))


def versions_by_offset(path: Path, base: int, spec: CleanSpec) -> dict[int, int]:
    scratch, found = Scratch(), {}
    reader = ChunkReader(DISK, str(path), base, path.stat().st_size, spec)
    while (chunk := reader.take(scratch)) is not None:
        table = scan_chunk(chunk, spec, -1, scratch)
        wanted = np.ones(len(table), np.bool_)
        secret = np.uint64(1), np.uint64(2)
        for c in record_columns(chunk, table, wanted, spec, secret, scratch, hashing=SIZES):
            found.update(zip(c.offsets.tolist(), c.versions.tolist(), strict=True))
    return found
