"""What every test may use: the golden directories, markers, and a count of the cases that ran."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# `from tests.oracle import ...` works in every import mode and from every working directory.
_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from tests.archives import corpus_path, golden_path  # noqa: E402

_CASES = "stratalog_cases"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "requirement(*ids): the lines of REQUIREMENTS.md that the test proves"
    )
    config.addinivalue_line(
        "markers", "sweep: runs many cases in one test; says how many through count_cases"
    )
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        # Hashes wrap around; numba does so in silence, numpy's scalars do not.
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered:RuntimeWarning")
    # The first example to call a kernel loads it; a slow machine is no fault of the code.
    settings.register_profile("patient", settings(), deadline=None)
    settings.load_profile("patient")
    # Which tests come first must not say which of them run compiled kernels.
    from stratalog.record.kernel.compile import switch

    switch()


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The unpacked golden fixtures; read only, copy a state before changing it."""
    return golden_path()


@pytest.fixture(scope="session")
def corpus_dir() -> Path:
    """The unpacked random corpus (`log-NNN` directories); read only."""
    return corpus_path()


@pytest.fixture(scope="module")
def hasty_disk() -> Iterator[None]:
    """For thousands of little logs: nobody cuts the power, so nothing waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture
def count_cases(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """`count_cases(name, n)` adds n cases to the total of `name`, printed after the run."""

    def count(name: str, n: int) -> None:
        # User properties travel with the report, so this works under xdist too.
        request.node.user_properties.append((_CASES, f"{n} {name}"))

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for key, value in report.user_properties:
                if key == _CASES:
                    count, name = str(value).split(" ", 1)
                    totals[name] += int(count)
    if totals:
        terminalreporter.section("cases")
        for name, n in sorted(totals.items()):
            terminalreporter.write_line(f"{n:>10,}  {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            # A session costs seconds and a gigabyte: --dist loadgroup keeps these together.
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on local[2,4], as `stratalog compact` starts it."""
    from stratalog.spark.session import spark_session

    session = spark_session("local[2]", app_name="stratalog-tests")
    yield session
    session.stop()
