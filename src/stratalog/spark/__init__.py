"""The Spark floor: a session, the jobs that clean logs on it, and logs as a source of rows.

Importing this package loads no Spark; only `session.spark_session` does, and it names the extra to
install where Spark or Java is missing.
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
    from stratalog.spark.source import StratalogDataSource

    spark.dataSource.register(StratalogDataSource)
