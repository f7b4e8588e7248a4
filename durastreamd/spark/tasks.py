"""What a task of a sink knows of itself.

Spark does not hand a stream writer its batch; it is in the task's local properties, under names
that are Spark's own. Where they are missing nothing may be written: what is written once is known
by them.
"""

from pyspark import TaskContext

from durastreamd.spark.errors import SinkError

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        message = "A sink writes in Spark tasks only."
        raise SinkError(message)
    return context


def this_partition() -> int:
    """Return the number of the partition that is being written."""
    return _context().partitionId()


def this_batch() -> tuple[str, int]:
    """Return the query and the batch that are being written."""
    context = _context()
    query = context.getLocalProperty(QUERY_PROPERTY)
    batch = context.getLocalProperty(BATCH_PROPERTY)
    if query is None or batch is None:
        message = "Spark does not tell the query and batch of this task; exactly once needs both."
        raise SinkError(message)
    return query, int(batch)
