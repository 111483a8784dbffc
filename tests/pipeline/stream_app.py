"""A streaming query as a program of its own, which may be killed: `stream_app.py ROOT now|on`.

It reads ROOT/logs in little batches and writes each one to ROOT/out/<batch>, whole or not at all.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.spark.session import spark_session
from tests.pipeline.stream_play import patiently

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(root: Path, *, ends: bool) -> None:
    spark = spark_session("local[2]", app_name="stratalog-stream")

    def keep(frame: DataFrame, number: int) -> None:
        rows = frame.select("topic", "partition", "offset", "value").collect()
        content = sorted((r.topic, r.partition, r.offset, bytes(r.value).decode()) for r in rows)
        beside = root / f"{number}.part"
        beside.write_text(json.dumps(content))
        os.replace(beside, root / "out" / str(number))

    writer = (
        spark.readStream.format("stratalog")
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="20")
        .load(str(root / "logs"))
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(root / "checkpoint"))
    )
    writer = writer.trigger(availableNow=True) if ends else writer
    patiently(lambda: writer.start().awaitTermination())
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), ends=sys.argv[2] == "now")
