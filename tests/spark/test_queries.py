"""Real queries in a real Spark session: what only Spark itself can show."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.driving import Hand
from tests.support.patience import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LONG_MS = str(int(2000 * PATIENCE_S))  # longer than any test waits


def run(
    spark: "SparkSession", home: Path, source: Mapping[str, object], sink: Mapping[str, object]
) -> "StreamingQuery":
    """Copy streams up to now."""
    query = (
        spark.readStream.format("durastream")
        .options(**_texts(source))
        .load()
        .writeStream.format("durastream")
        .options(**_texts(sink))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(int(PATIENCE_S))
    return query


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def test_the_format_is_found_by_name_read_written_and_queried(
    spark: "SparkSession", hand: Hand, name: str
) -> None:
    url = hand.make(name, [{"k": n % 3, "v": n} for n in range(300)])
    rows = spark.read.format("durastream").option("minPartitions", "2").load(url)
    assert rows.rdd.getNumPartitions() == 2
    parsed = rows.selectExpr("from_json(value, 'k INT, v INT') m", "offset").select("m.*", "offset")
    found = sorted(parsed.collect(), key=lambda row: int(row.v))
    assert found == [(n % 3, n, n) for n in range(300)]
    copy = f"{name}-copy"
    sink = {"url": hand.server.url, "stream": copy, "createStreams": "true"}
    for _ in range(2):
        job = {**sink, "txnAppId": "nightly", "txnVersion": "1"}
        parsed.select("k", "v").write.format("durastream").options(**job).mode("append").save()
    assert sorted(hand.values(copy), key=str) == sorted(hand.values(name), key=str)
    spark.sql(f"CREATE TEMPORARY VIEW streams USING durastream OPTIONS (path '{url}')")
    assert spark.sql("SELECT max(offset) FROM streams").first() == (299,)
    empty = hand.make(f"{name}-empty")
    assert spark.read.format("durastream").load(empty).count() == 0


def test_a_query_copies_streams_and_its_last_batch_can_run_again(
    spark: "SparkSession", hand: Hand, name: str, tmp_path: Path
) -> None:
    hand.bucket(name)
    hand.bucket(f"{name}-out")
    for each in ("a", "b"):
        hand.make(each, list(range(100)), bucket=name)
    source = {"url": hand.server.url, "bucket": name, "maxOffsetsPerTrigger": 80}
    sink = {"url": hand.server.url, "bucket": f"{name}-out", "createStreams": "true"}
    query = run(spark, tmp_path, source, sink)
    assert [each["numInputRows"] for each in query.recentProgress] == [80, 80, 40]
    # Undo the last commit, as a crash before it does; meanwhile everything has grown.
    for file in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / file).unlink()
    hand.add("a", list(range(100, 150)), bucket=name)
    hand.make("c", [7], bucket=name)
    run(spark, tmp_path, {**source, "minPartitions": 5}, sink)
    found = hand.values("a", bucket=f"{name}-out")
    assert (found[:100], hand.values("b", bucket=f"{name}-out")) == ([*range(100)],) * 2
    # Asked for more partitions than streams, so the last batch of one came through several tasks.
    assert sorted(map(str, found[100:])) == [str(n) for n in range(100, 150)]
    assert hand.values("c", bucket=f"{name}-out") == [7]


def test_a_running_query_follows_and_stops_at_once(
    spark: "SparkSession", hand: Hand, name: str, tmp_path: Path
) -> None:
    hand.make(name)
    read = spark.readStream.format("durastream").option("pollTimeoutMs", LONG_MS)
    rows = read.load(hand.url(name)).select("value")
    sink = {"url": hand.server.url, "stream": f"{name}-out", "createStreams": "true"}

    def arrived(last: int) -> bool:
        assert query.isActive, query.exception()
        there = hand.http.head(hand.url(f"{name}-out")).status_code == 200
        return there and hand.values(f"{name}-out")[-1:] == [last]

    query = (
        rows.writeStream.format("durastream")
        .options(commitMode="driver", **sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for batch in ([1, 2], [3]):
            hand.add(name, batch)
            wait_until(partial(arrived, batch[-1]), "a row does not arrive")
        assert hand.values(f"{name}-out") == [1, 2, 3]
    finally:
        query.stop()  # returns, although it waits for news


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"path": "http://127.0.0.1:9/v1/stream/a"}, "no answer from http://127.0.0.1:9"),
        ({"valueType": "string"}, "holds application/octet-stream, which is not text"),
        ({"schema": "value INT"}, "value of format durastream is string or binary, not int"),
    ],
)
def test_a_mistake_is_one_clear_sentence_of_spark_s_exception(
    spark: "SparkSession", hand: Hand, name: str, options: dict[str, str], told: str
) -> None:
    from pyspark.errors import PySparkException

    url = hand.make(name, b"\xff", kind={"Content-Type": "application/octet-stream"})
    given = {"path": url, "retryTimeoutMs": "0", **options}
    read = spark.read.format("durastream")
    if "schema" in given:
        read = read.schema(given.pop("schema"))
    with pytest.raises(PySparkException) as caught:
        read.options(**given).load().collect()
    assert told in str(caught.value)
