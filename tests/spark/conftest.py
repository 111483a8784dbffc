"""One Spark session for all tests that ask for it, on one test worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
