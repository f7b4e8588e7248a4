"""What tests/spark/test_cluster.py submits: reads, writes and tells who did it. A user's program.

Nothing here imports the package: Spark finds the format by its name.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession


def whereabouts(numbers: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Tell who runs this: the executor's directory, and where the package came from."""
    source = importlib.import_module("durastreamd.spark.server.source")
    yield os.getcwd(), str(source.__file__)
    time.sleep(1)  # so that nobody is quick enough to take all tasks
    yield from ()


def main() -> None:
    """Copy a stream with a streaming query, a batch job reads the copy."""
    url, home = sys.argv[1:]
    spark = SparkSession.builder.appName("cluster").getOrCreate()
    read = spark.read.format("durastream").option("minPartitions", "2").load(f"{url}/in")
    who = spark.sparkContext.parallelize(range(2), 2).mapPartitions(whereabouts).collect()
    query = (
        spark.readStream.format("durastream")
        .option("maxOffsetsPerTrigger", "1500")
        .option("minPartitions", "2")
        .load(f"{url}/in")
        .select("value")
        .writeStream.format("durastream")
        .option("createStreams", "true")
        .option("path", f"{url}/out")
        .option("checkpointLocation", f"{home}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = spark.read.format("durastream").load(f"{url}/out").count()
    told = {
        "executors": sorted({place for place, _ in who}),
        "code": sorted({code for _, code in who}),
        "rows": read.count(),
        "batches": len(query.recentProgress),
        "copied": copied,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
