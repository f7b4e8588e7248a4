"""The sink of format ``durastream``: every row once, whatever is killed when.

An append carries a producer, and the server stores one (producer, epoch, sequence number) once. The
epoch is the batch, so that a task or driver of an earlier batch that is still alive somewhere is
refused (403); the sequence counts the appends to one stream, from 0. It is not the batch: one
without rows would leave a gap, which the protocol forbids.

commitMode=driver, the default, appends in the driver what the log of the batch says (``commits``).
It holds for any query: producer ``<query>.driver``.

commitMode=partition appends in the tasks, side by side, each row once over the network: producer
``<query>.<partition>``. What that rests on: a partition holds the same rows in the same order when
its batch runs again. That is so for rows of format durastream, whose layout is in the offset of the
batch, as long as nothing shuffles; and for nothing else.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.errors import OptionError
from durastreamd.spark.options import SinkOptions
from durastreamd.spark.server.appends import Appender, SinkProducer, Written
from durastreamd.spark.server.commits import BatchLog, TaskRows
from durastreamd.spark.server.values import RowSplitter, check_schema
from durastreamd.spark.tasks import this_batch, this_partition

DRIVER = "driver"


class WriteTask:
    """What tasks of both writers do; pickled to executors."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self.options = options
        self.settings = options.client_settings()
        self._rows = RowSplitter(schema, options)

    @property
    def by_driver(self) -> bool:
        """Tell whether the driver appends what tasks bring."""
        return self.options.commit_mode == DRIVER

    def log(self, name: str, query: str, batch: int) -> BatchLog:
        """Return the log of a batch."""
        producer = SinkProducer(f"{name}.{DRIVER}", batch)
        return BatchLog(self.options, self.settings, query, producer)

    def gather(self, batches: Iterator[RecordBatch], log: BatchLog, written: Written) -> Written:
        """Bring all rows of a partition to the driver, or stage them."""
        staging = TaskRows(log, written)
        for stream, values in self._groups(batches):
            staging.add(stream, values)
        return staging.finish()

    def append(
        self, batches: Iterator[RecordBatch], producer: SinkProducer, written: Written
    ) -> Written:
        """Append all rows of a partition."""
        appender = Appender(self.options, self.settings, producer)
        for stream, values in self._groups(batches):
            appender.add(stream, values, written)
        appender.finish(written)
        return written

    def _groups(self, batches: Iterator[RecordBatch]) -> Iterator[tuple[str, list[bytes]]]:
        for batch in batches:
            for stream, values in self._rows.groups(batch):
                if values:
                    yield stream, values

    def report(self, done: list[Written], batch: int) -> None:
        """Say what a batch came to, where that was asked for; in the driver."""
        if self.options.report_file:
            rows, known = streams_of(done), sum(each.repeated_rows for each in done)
            told = {"batch": batch, "rows": sum(rows.values()), "recognised": known}
            with open(self.options.report_file, "a", encoding="utf-8") as file:
                file.write(json.dumps({**told, "streams": rows}) + "\n")


def streams_of(done: list[Written]) -> dict[str, int]:
    """Return how many rows there were for each stream."""
    found: Counter[str] = Counter()
    for each in done:
        found.update(each.streams)
    return dict(found)


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.txn_app_id:
            message = "txnAppId is for batch jobs; a streaming query counts its batches itself."
            raise OptionError(message)
        if options.close_on_finish:
            message = "closeOnFinish is for batch jobs; a streaming query does not end."
            raise OptionError(message)
        self._task = WriteTask(options, schema)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        """Write one partition of a batch: in a task."""
        partition, (query, batch) = this_partition(), this_batch()
        written = Written(partition, query)
        if self._task.by_driver:
            return self._task.gather(iterator, self._log(query, batch), written)
        producer = SinkProducer(f"{self._name(query)}.{partition}", batch)
        return self._task.append(iterator, producer, written)

    def _name(self, query: str) -> str:
        return self._task.options.producer_id or query

    def _log(self, query: str, batch: int) -> BatchLog:
        return self._task.log(self._name(query), query, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what the tasks brought, in commitMode=driver; otherwise all is done."""
        done = [each for each in messages if isinstance(each, Written)]
        if self._task.by_driver and done:
            log = self._log(done[0].query, batchId)
            done = [log.commit(done)]
            log.forget(batchId - 1)
        self._task.report(done, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Throw away what was staged; what was appended stays, and is recognised."""
        done = [each for each in messages if isinstance(each, Written)]
        if done:
            self._log(done[0].query, batchId).discard(done)


class BatchSinkWriter(DataSourceArrowWriter):
    """Writes one batch job."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task = WriteTask(options, schema)
        # Without txnAppId a name of its own: the job's tasks may be repeated, the job not.
        self._name = options.txn_app_id or f"{options.producer_id or 'spark'}-{uuid.uuid4()}"
        self._epoch = max(options.txn_version, 0)

    @property
    def _log(self) -> BatchLog:
        return self._task.log(self._name, self._name, self._epoch)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        """Write one partition: in a task."""
        partition = this_partition()
        if self._task.by_driver:
            return self._task.gather(iterator, self._log, Written(partition))
        producer = SinkProducer(f"{self._name}.{partition}", self._epoch)
        return self._task.append(iterator, producer, Written(partition))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the tasks brought, and close what is to be closed."""
        done = [each for each in messages if isinstance(each, Written)]
        options = self._task.options
        if self._task.by_driver:
            settled = self._log.commit(done, inline=not options.txn_app_id)
            rows = streams_of(done)
            known = settled.repeated_rows if settled.appends else sum(rows.values())
            done = [replace(settled, streams=rows, repeated_rows=known)]
            self._log.forget(self._epoch - 1 if options.txn_app_id else self._epoch)
        if options.close_on_finish:
            producer = SinkProducer(f"{self._name}.{DRIVER}", self._epoch)
            closer = Appender(options, self._task.settings, producer)
            for stream in sorted(streams_of(done)):
                closer.close(stream)
        self._task.report(done, self._epoch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what was staged; what was appended stays."""
        self._log.discard([each for each in messages if isinstance(each, Written)])
