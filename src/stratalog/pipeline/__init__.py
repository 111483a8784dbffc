"""Logs as Spark tables: what people call from a Spark program (SPK-4 to SPK-9).

The engine that cleans on Spark is two floors lower, in `stratalog.spark`, since the cleaner of a
store uses it; what stands here uses both it and `stratalog.admin`. Importing this package loads no
Spark; `LogTable` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.pipeline.table import LogTable

__all__ = ["LogTable", "register"]


def __getattr__(name: str) -> Any:
    if name == "LogTable":
        from stratalog.pipeline.table import LogTable

        return LogTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("stratalog")` and the SQL functions of jobs known to a session.

    The source only needs it where Spark does not look for sources by itself: it does, for every
    installed module that is named `pyspark_*`, on the interpreter of its workers (SPK-4). Of the
    functions `stratalog_compact`, `stratalog_vacuum`, `stratalog_history` and `stratalog_detail`
    (SPK-8) a session knows nothing before this.
    """
    from stratalog.pipeline.functions import register_functions
    from stratalog.pipeline.source import StratalogDataSource

    spark.dataSource.register(StratalogDataSource)
    register_functions(spark)
