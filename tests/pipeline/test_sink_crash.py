"""The sink's commit is cut at every call: a batch is there once and whole, or never was.

After a cut the query starts again as Spark does it: it runs the batches again that it does not know
to be committed, with tasks that write other files and other rows (they name their attempt).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest

from stratalog.base.clock import FixedClock
from stratalog.log.settings import DAY_MS, LogSettings
from stratalog.pipeline.sink_commit import ABANDONED_MS
from stratalog.pipeline.staging import writer_key
from tests.pipeline.sink_driver import DIR, Driver, attempts_of, left_over, stored_rows
from tests.sim.disk import SimDisk
from tests.sim.explore import Depth2, Journal, explore
from tests.sim.sweeps import budget

pytestmark = pytest.mark.requirement("SPK-6")

VERSIONS = ({"a": 2}, {"a": 2, "b": 1}, {"a": 2})
"""The topics of each batch; the sink makes `b` in the second."""
WIDE = LogSettings(index_interval_bytes=64)
NARROW = LogSettings(index_interval_bytes=64, segment_bytes=700)


def driver(disk: SimDisk, settings: LogSettings, old_ms: int) -> Driver:
    # As many batches as make a log forget the first ones of a producer.
    batches, records = (4, 1) if settings is NARROW else (1, 2)
    return Driver(disk, settings=settings, old_ms=old_ms, batches=batches, records=records)


def job(disk: SimDisk, settings: LogSettings) -> Driver:
    return Driver(disk, writer="job", is_once=True, tasks=1, batches=1, settings=settings)


def laid(settings: LogSettings) -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIR)
    Driver(disk, writer="first", is_once=True, tasks=1, settings=settings).write(0, {"a": 2})
    return disk.sync_all()


def judge_of(settings: LogSettings, old_ms: int) -> Callable[[SimDisk, Hashable, Hashable], None]:
    def judge(image: SimDisk, promise: Hashable, in_flight: Hashable) -> None:
        """`promise`: batches and jobs that are committed; `in_flight`: the one that may be."""
        promised = tuple(promise or ())  # type: ignore[call-overload]
        again(image, settings, old_ms, attempt=9)
        rows = stored_rows(image, settings)
        query, once = driver(image, settings, old_ms), job(image, settings)
        for key, found in rows.items():
            for version, counts in enumerate(VERSIONS):
                attempts = attempts_of(found, query, version)
                assert bool(attempts) == (key.topic in counts), f"{key}: {version}, {attempts}"
                if version in promised:
                    assert attempts <= {0}, f"{key}: batch {version} was committed and is gone"
            there = attempts_of(found, once, 0)
            if key.topic == "a" and "job" in promised:
                assert there == {0}, "the job is gone"
        # What was there is there, and nothing is there that nobody wrote.
        total = sum(len(found) for found in rows.values())
        jobs = sum(bool(attempts_of(found, once, 0)) for found in rows.values())
        assert jobs in (0, 2), "half a job"
        a_batch = len(query.expected(0, 0))
        assert total == 2 * 4 + 7 * a_batch + jobs * 2, total
        check_swept(image, query, once)

    return judge


def check_swept(image: SimDisk, query: Driver, once: Driver) -> None:
    """Of the query nothing lies about; of a job that nobody knows only for a week."""
    left = left_over(image)
    assert all(writer_key(once.writer) in name for name in left), left
    if left:
        query.clock = FixedClock(query.clock.now_ms() + ABANDONED_MS + DAY_MS)
        query.write(len(VERSIONS), {"a": 2})
        assert not left_over(image), left_over(image)


def again(disk: SimDisk, settings: LogSettings, old_ms: int, attempt: int) -> None:
    """The query starts again, from its first batch: what is done is skipped."""
    query = driver(disk, settings, old_ms)
    for version, counts in enumerate(VERSIONS):
        query.write(version, counts, attempt)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("settings", "old_ms"),
    [
        pytest.param(WIDE, 0, id="wide"),
        pytest.param(NARROW, 90 * DAY_MS, id="narrow, old rows"),
        pytest.param(WIDE, 90 * DAY_MS, id="wide, old rows", marks=pytest.mark.slow),
        pytest.param(NARROW, 0, id="narrow", marks=pytest.mark.slow),
    ],
)
def test_every_row_once(
    settings: LogSettings, old_ms: int, count_cases: Callable[[str, int], None]
) -> None:
    def run(disk: SimDisk, journal: Journal) -> None:
        promised: tuple[Hashable, ...] = ()
        query = driver(disk, settings, old_ms)
        for version, counts in enumerate(VERSIONS):
            journal.begin(version)
            assert query.write(version, counts) > 0
            promised = (*promised, version)
            journal.promise(promised)
            if version == 1:
                journal.begin("job")
                job(disk, settings).write(0, {"a": 2})
                promised = (*promised, "job")
                journal.promise(promised)

    stats = explore(
        run,
        judge_of(settings, old_ms),
        seed=1,
        max_states=budget(80),
        start=laid(settings),
        depth2=Depth2(
            lambda disk: again(disk, settings, old_ms, attempt=1),
            share=0.02,
            max_states=budget(8),
        ),
        name="a query and a job",
    ).count(count_cases)
    assert stats.operations > 100
    assert stats.states >= budget(80)
