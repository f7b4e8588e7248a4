"""A table that is always up to date: the last value of each key of a stream, kept in memory.

    python examples/last_values.py http://127.0.0.1:4437/v1/stream/orders id

Reads what is there, prints the newest message of every key, and ends; ``--follow`` goes on with
what comes. The query is an ordinary Structured Streaming query: give it a checkpoint and it goes
on where it ended.
"""

import argparse

from pyspark.sql import DataFrame, functions as F  # noqa: N812

from durastreamd.spark.session import build_session


def show(batch: DataFrame, number: int) -> None:
    """Print one state of the table."""
    print(f"batch {number}:")
    for row in batch.orderBy("key").collect():
        print(f"  {row.key}\t{row.newest}")


def main() -> None:
    """Parse the command line and run the query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of a JSON stream")
    parser.add_argument("key", help="the member of a message that is its key")
    parser.add_argument("--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--checkpoint", help="a directory; goes on where it ended")
    given = parser.parse_args()
    spark = build_session("last values", settings={"spark.sql.shuffle.partitions": "2"})
    rows = spark.readStream.format("durastream").load(given.url)
    key = F.get_json_object("value", f"$['{given.key}']").alias("key")
    newest = rows.groupBy(key).agg(F.max_by("value", "offset").alias("newest"))
    query = newest.writeStream.outputMode("complete").foreachBatch(show)
    if given.checkpoint:
        query = query.option("checkpointLocation", given.checkpoint)
    if not given.follow:
        query = query.trigger(availableNow=True)
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
