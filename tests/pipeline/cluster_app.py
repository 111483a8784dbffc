"""What test_cluster.py gives to spark-submit: a compaction by the command line, and a source read.

cluster_app.py LOGS ANSWER    ANSWER: JSON of the rows, and of which package the workers ran
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stratalog.cli import main
from stratalog.spark.session import spark_session

if TYPE_CHECKING:
    import pyarrow as pa


def packages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where a worker imported the package from."""
    import pyarrow as pa

    import stratalog

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"package": [stratalog.__file__]})


if __name__ == "__main__":
    logs, answer = sys.argv[1:]
    spark = spark_session()
    code = main(["compact", logs, "--in-place"])
    source = spark.read.format("stratalog").option("view", "latest").load(logs)
    rows = source.select("topic", "partition", "offset", "key", "value").collect()
    found = spark.range(2, numPartitions=2).mapInArrow(packages, "package string").collect()
    with open(answer, "w") as file:
        json.dump(
            {
                "code": code,
                "master": spark.sparkContext.master,
                "packages": sorted({row.package for row in found}),
                "rows": sorted(
                    [row.topic, row.partition, row.offset, row.key.hex(), row.value.hex()]
                    for row in rows
                ),
            },
            file,
        )
    spark.stop()
