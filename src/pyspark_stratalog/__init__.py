"""Lets Spark find `format("stratalog")` by itself: it imports every module named `pyspark_*` that
is installed and registers its `DefaultSource`."""

from __future__ import annotations

from stratalog.pipeline.source import StratalogDataSource as DefaultSource

__all__ = ["DefaultSource"]
