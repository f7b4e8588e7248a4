"""Writers driven as Spark drives them, without a JVM: rows as batches, a task's context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from durastreamd.spark import tasks
from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.options import SinkOptions, parse
from durastreamd.spark.server.appends import Written
from durastreamd.spark.server.sink import BatchSinkWriter, StreamSinkWriter
from tests.spark.driving import Hand

VALUE = StructType([StructField("value", StringType())])
BOTH = StructType([StructField("stream", StringType()), *VALUE.fields])


def batches(rows: list[dict[str, object]], size: int = 3) -> Iterator[RecordBatch]:
    for at in range(0, len(rows), size):
        yield cast(RecordBatch, pa.RecordBatch.from_pylist(rows[at : at + size]))


def rows_of(*values: object, stream: str = "") -> list[dict[str, object]]:
    named = {"stream": stream} if stream else {}
    return [{**named, "value": value} for value in values]


def options(hand: Hand, **given: object) -> SinkOptions:
    said = {"url": hand.server.url, **{name: str(value) for name, value in given.items()}}
    return parse(SinkOptions, said)


class Context:
    """What a task asks Spark."""

    def __init__(self, partition: int, **properties: str) -> None:
        self._partition = partition
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802
        return self._partition

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802
        return self._properties.get(key)


@contextmanager
def task(monkeypatch: pytest.MonkeyPatch, partition: int, batch: int | None) -> Iterator[None]:
    known = {} if batch is None else {tasks.QUERY_PROPERTY: "q", tasks.BATCH_PROPERTY: str(batch)}
    with monkeypatch.context() as patch:
        patch.setattr(TaskContext, "get", lambda: Context(partition, **known))
        yield


def run(
    monkeypatch: pytest.MonkeyPatch,
    writer: StreamSinkWriter | BatchSinkWriter,
    layout: list[list[str]],
    batch: int | None = None,
) -> list[Written | None]:
    """Run the tasks of a batch."""
    found: list[Written | None] = []
    for partition, values in enumerate(layout):
        with task(monkeypatch, partition, batch):
            found.append(writer.write(batches(rows_of(*values))))
    return found
