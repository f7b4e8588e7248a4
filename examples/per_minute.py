"""From one stream to another, exactly once: how many messages came in each minute.

    python examples/per_minute.py /srv/streams http://127.0.0.1:4437 orders counts

Reads the log files of a data directory (no server is asked, none is disturbed), counts, and
appends one JSON message for each minute to a stream of a server. Run again with the same
``--version`` it writes nothing twice.
"""

import argparse

from pyspark.sql import functions as F  # noqa: N812

from durastreamd.spark.session import build_session


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="a data directory, or a backup of one")
    parser.add_argument("url", help="the server to write to")
    parser.add_argument("source", help="the stream to count")
    parser.add_argument("target", help="the stream to append to; made if it is missing")
    parser.add_argument("--version", default="0", help="of the result; a higher one writes again")
    given = parser.parse_args()
    spark = build_session("per minute", settings={"spark.sql.shuffle.partitions": "2"})
    rows = spark.read.format("durastream-segments").option("subscribe", given.source)
    minute = F.date_format(F.date_trunc("minute", "timestamp"), "yyyy-MM-dd'T'HH:mm'Z'")
    counts = rows.load(given.directory).groupBy(minute.alias("minute")).count()
    message = F.to_json(F.struct("minute", "count")).alias("value")
    # In one partition and sorted: what is written again must come in the same order.
    ordered = counts.coalesce(1).sortWithinPartitions("minute").select(message)
    sink = ordered.write.format("durastream").mode("append")
    sink.options(
        url=given.url,
        stream=given.target,
        createStreams="true",
        txnAppId=f"per-minute-{given.source}",
        txnVersion=given.version,
    ).save()
    print(f"{ordered.count()} minutes of {given.source} are in {given.target}")
    spark.stop()


if __name__ == "__main__":
    main()
