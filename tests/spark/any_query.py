"""The driver of tests/spark/test_any_query.py: a program of its own, because it gets killed.

Writes what a source of Spark's own brings into a stream: one whose layout follows the number of
cores. It is killed, Python and JVM, before a chosen request of the sink, in a task or a commit.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from durastreamd.client import Client
from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.options import SinkOptions, parse
from durastreamd.spark.server import commits
from durastreamd.spark.server.appends import Written
from durastreamd.spark.server.format import DurastreamSource
from durastreamd.spark.server.sink import StreamSinkWriter
from durastreamd.spark.session import build_session

FILES, RATE, SHUFFLE = "files", "rate", "shuffle"
ROWS_PER_BATCH = 200  # of the rate source


class DyingWriter(StreamSinkWriter):
    """Kills everything before a request."""

    def __init__(self, options: SinkOptions, schema: StructType, home: str, where: str) -> None:
        super().__init__(options, schema)
        self._home = home
        self._place, _, number = where.partition(":")
        self._number = int(number or 0)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        self._arm("task")
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._arm("commit")
        super().commit(messages, batchId)
        self._kill_at(0, "end")

    def _arm(self, place: str) -> None:
        commits.INLINE_BYTES_MAX = 1000  # so that most tasks stage their rows
        left = self._number
        request = Client.request

        def dying(self_: Client, *rest: Any, **more: Any) -> object:
            nonlocal left
            self._kill_at(left, place)
            left -= 1
            return request(self_, *rest, **more)

        if self._place == place:
            Client.request = dying  # type: ignore[method-assign, assignment]

    def _kill_at(self, left: int, place: str) -> None:
        if left == 0 and place == self._place:
            (Path(self._home) / "killed").touch()
            for pid in (Path(self._home) / "pids").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


class DyingSink(DurastreamSource):
    """The format, with that writer."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSinkWriter:  # noqa: FBT001, N802
        assert not overwrite
        given = {**self.options}
        home, where = given.pop("home"), given.pop("where")
        return DyingWriter(parse(SinkOptions, given), schema, home, where)


def rows_of(spark: SparkSession, kind: str, home: Path, cores: int) -> DataFrame:
    """Return what a source brings; how it is cut depends on the number of cores."""
    if kind == RATE:
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
        return rate.option("numPartitions", cores).load().selectExpr("to_json(struct(value)) value")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(100_000 // cores**2))
    spark.conf.set("spark.sql.files.openCostInBytes", "0")
    files = spark.readStream.option("maxFilesPerTrigger", 4).text(str(home / "in"))
    return files.repartition(cores, "value") if kind == SHUFFLE else files


def main() -> None:
    """Run the query up to a batch, or until it is killed."""
    url, place, kind, cores, where, last = sys.argv[1:]
    home = Path(place)
    spark = build_session("any", f"local[{cores},4]", {"spark.sql.shuffle.partitions": cores})
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    (home / "pids").write_text(f"{jvm} {os.getpid()}")
    spark.dataSource.register(DyingSink)
    query = (
        rows_of(spark, kind, home, int(cores))
        .writeStream.format("dying")
        .options(url=url, stream=kind, createStreams="true", maxAppendBytes="3000")
        .options(home=str(home), where=where)
        .option("checkpointLocation", str(home / "checkpoint"))
        .start()
    )
    while not (home / "checkpoint" / "commits" / last).exists():
        assert query.isActive, query.exception()
        query.awaitTermination(0.2)  # type: ignore[arg-type]
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
