"""A program that somebody kills: a stream of text files into a log directory, until all is read.

python sink_app.py SOURCE LOG_DIR CHECKPOINT
"""

from __future__ import annotations

import sys


def main(source: str, log_dir: str, checkpoint: str) -> None:
    from stratalog.pipeline import register
    from stratalog.spark.session import spark_session

    spark = spark_session("local[2]", app_name="sink-app")
    register(spark)
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", "1")
        .load(source)
        .repartition(2)
        .selectExpr("value", "value key")
        .writeStream.format("stratalog")
        .option("topic", "numbers")
        .option("num.partitions", "3")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(log_dir)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
