"""The format ``durastream``, as Spark looks it up by name.

The look-up imports this in a process of its own for every query, so what is heavy, pyarrow above
all, is imported where it is needed.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from durastreamd.spark.errors import OptionError
from durastreamd.spark.options import SinkOptions, SourceOptions, parse

if TYPE_CHECKING:
    from durastreamd.spark.server.sink import BatchSinkWriter, StreamSinkWriter
    from durastreamd.spark.server.source import BatchReader, StreamReader


class DurastreamSource(DataSource):
    """Streams of a durastreamd, or of any Durable Streams server, read and written."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "durastream"

    def schema(self) -> StructType:
        """Return the columns of the source."""
        from durastreamd.spark.server.source import schema_of

        return schema_of(parse(SourceOptions, self.options))

    def reader(self, schema: StructType) -> "BatchReader":
        """Return what reads for a batch query."""
        from durastreamd.spark.server.source import BatchReader

        return BatchReader(parse(SourceOptions, self.options), schema)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802
        """Return what reads for a streaming query."""
        from durastreamd.spark.server.source import StreamReader

        return StreamReader(parse(SourceOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchSinkWriter":  # noqa: FBT001
        """Return what writes for a batch job."""
        from durastreamd.spark.server.sink import BatchSinkWriter

        if overwrite:
            message = "Streams only grow: write with mode('append')."
            raise OptionError(message)
        return BatchSinkWriter(parse(SinkOptions, self.options), schema)

    # Spark passes both by keyword, so the names are fixed.
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamSinkWriter":  # noqa: FBT001, N802
        """Return what writes for a streaming query."""
        from durastreamd.spark.server.sink import StreamSinkWriter

        if overwrite:
            message = "Streams only grow: use outputMode append or update, not complete."
            raise OptionError(message)
        return StreamSinkWriter(parse(SinkOptions, self.options), schema)
