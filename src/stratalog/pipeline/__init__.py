"""Logs as Spark tables: what people call from a Spark program (SPK-4 to SPK-9).

The engine that cleans on Spark is two floors lower, in `stratalog.spark`, since the cleaner of a
store uses it; what stands here uses both it and `stratalog.admin`. Importing this package loads no
Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("stratalog")` known to a session.

    Only needed where Spark does not look for sources by itself: it does, for every installed module
    that is named `pyspark_*`, on the interpreter of its workers (SPK-4).
    """
    from stratalog.pipeline.source import StratalogDataSource

    spark.dataSource.register(StratalogDataSource)
