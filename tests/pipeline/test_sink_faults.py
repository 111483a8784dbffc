"""A disk error at every call of the sink's tasks and commits: no row twice, and none lost.

After an error Spark aborts, and the query starts again from the batch that is not committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from stratalog.base.errors import StratalogError
from stratalog.log.settings import LogSettings
from stratalog.pipeline import sink_commit
from tests.pipeline.sink_driver import DIR, Driver, attempts_of, left_over, stored_rows
from tests.sim.disk import SimDisk
from tests.sim.faults import MEETS, Faults
from tests.sim.sweeps import IS_SWEEP

STRIDE = 41
SETTINGS = LogSettings(index_interval_bytes=64, segment_bytes=700)
VERSIONS = ({"a": 2}, {"a": 2, "b": 1})


def start() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIR)
    Driver(disk, writer="first", is_once=True, settings=SETTINGS).write(0, {"a": 2})
    return disk.sync_all()


def faults_to_try(stride: int) -> Iterator[Faults]:
    for lasting in (False, True):
        for error in MEETS:
            nth = len(error) % stride
            while True:
                faults = Faults(error, nth, None, lasting)
                yield faults
                if not faults.struck:
                    break
                nth += stride


def run(query: Driver, attempt: int, done: dict[int, int], files_aborted: list[int]) -> None:
    """What Spark does from the first batch that it does not know to be committed."""
    for version, counts in enumerate(VERSIONS):
        if version not in done:
            try:
                query.write(version, counts, attempt)
            except StratalogError:
                files_aborted.append(version)
                try:
                    sink_commit.abort(DIR, query.batch(version), query.filesystem)
                except StratalogError:
                    files_aborted.append(version)
                raise
            done[version] = attempt


@pytest.mark.sweep
@pytest.mark.requirement("SPK-6", "RCV-3")
def test_an_error_at_any_call(count_cases: Callable[[str, int], None]) -> None:
    ends: Counter[str] = Counter()
    laid = start()
    for faults in faults_to_try(1 if IS_SWEEP else STRIDE):
        disk = laid.fork()
        # More batches than a log remembers of a producer.
        query = Driver(disk, settings=SETTINGS, batches=4, records=1)
        done: dict[int, int] = {}
        disk.hook = faults
        try:
            run(query, 0, done, [])
        except StratalogError:
            ends["errors"] += 1
        faults.heal()
        disk.hook = None
        disk.forget_locks()
        try:
            run(query, 1, done, [])
            rows = stored_rows(disk, SETTINGS)
            for key, found in rows.items():
                for version, counts in enumerate(VERSIONS):
                    attempts = attempts_of(found, query, version)
                    assert bool(attempts) == (key.topic in counts), f"{key}: {version}"
                    if done[version] == 0:
                        assert attempts <= {0}, f"{key}: {version} is of {attempts}"
                    ends["finished from the first attempt"] += done[version] > min(
                        attempts, default=1
                    )
            # The next batch sweeps what an error has kept from being swept.
            query.write(2, {"a": 2}, 1)
            assert not left_over(disk), left_over(disk)
        except (AssertionError, StratalogError) as error:
            raise AssertionError(f"{faults}: {error}") from error
        ends["runs"] += 1
    assert ends["errors"] > 10
    assert ends["finished from the first attempt"] > 1
    count_cases("writes with a fault", ends["runs"])
