"""The format ``durastream``, as Spark looks it up by name."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from durastreamd.spark.options import OptionError, SinkOptions, SourceOptions, parse
from durastreamd.spark.sink import BatchWriter, StreamWriter
from durastreamd.spark.source import BatchReader, StreamReader, schema_of


class DurastreamSource(DataSource):
    """Streams of a durastreamd, or of any Durable Streams server, read and written."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "durastream"

    def schema(self) -> StructType:
        """Return the columns of the source."""
        return schema_of(parse(SourceOptions, self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """Return what reads for a batch query."""
        return BatchReader(parse(SourceOptions, self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return what reads for a streaming query."""
        return StreamReader(parse(SourceOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001
        """Return what writes for a batch job."""
        if overwrite:
            message = "Streams only grow: write with mode('append')."
            raise OptionError(message)
        return BatchWriter(parse(SinkOptions, self.options), schema)

    # Spark passes both by keyword, so the names are fixed.
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Return what writes for a streaming query."""
        if overwrite:
            message = "Streams only grow: use outputMode append or update, not complete."
            raise OptionError(message)
        return StreamWriter(parse(SinkOptions, self.options), schema)
