"""The driver of tests/spark/test_exactly_once.py: a program of its own, because it gets killed.

Copies a bucket into another. On the way its tasks fail, and in the sink's commit of one batch,
after everything was appended and before Spark writes its checkpoint, the whole driver is killed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.options import SinkOptions, parse
from durastreamd.spark.server.appends import Written
from durastreamd.spark.server.format import DurastreamSource
from durastreamd.spark.server.sink import StreamSinkWriter
from durastreamd.spark.session import build_session
from durastreamd.spark.tasks import BATCH_PROPERTY

FAILED_BATCH = 0
KILLED_BATCH = 1


class KillingWriter(StreamSinkWriter):
    """Fails tasks of one batch once; kills the driver, Python and JVM, in the commit of another."""

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        done = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty(BATCH_PROPERTY)
        if batch == str(FAILED_BATCH) and context.attemptNumber() == 0:
            (Path(os.environ["COPY_HOME"]) / f"failed-{context.partitionId()}").touch()
            reason = "fails on purpose, after everything was appended"
            raise RuntimeError(reason)
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        home = Path(os.environ["COPY_HOME"])
        if batchId == KILLED_BATCH and not (home / "killed").exists():
            (home / "killed").touch()
            for pid in (home / "pids").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


class KillingSink(DurastreamSource):
    """The format, with that writer."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSinkWriter:  # noqa: FBT001, N802
        assert not overwrite
        return KillingWriter(parse(SinkOptions, self.options), schema)


def main() -> None:
    """Run the query up to now."""
    url, home = sys.argv[1], Path(sys.argv[2])
    os.environ["COPY_HOME"] = str(home)
    spark = build_session("copy", "local[2,4]", {"spark.sql.shuffle.partitions": "2"})
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    (home / "pids").write_text(f"{jvm} {os.getpid()}")
    spark.dataSource.register(KillingSink)
    rows = (
        spark.readStream.format("durastream")
        .options(url=url, bucket="copy-in", maxOffsetsPerTrigger="100")
        .load()
        .select("stream", "value")
    )
    query = (
        rows.writeStream.format("killing")
        .options(url=url, bucket="copy-out", createStreams="true", maxAppendBytes="100")
        .option("commitMode", "partition")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
