"""``dspipeline stats``: how much each stream holds, how fast it came, where it fell silent.

The indexes alone are read: a record tells its time, its bytes and how many messages it has, so a
terabyte of messages costs megabytes of reading.
"""

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

import cbor2
import pyarrow as pa
from pyspark.sql import DataFrame, Window, functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from durastreamd.engine.engine import Engine
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK
from durastreamd.model.records import APPEND, CREATE
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import Opened, with_directory
from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.jobs import plot
from durastreamd.spark.jobs.job import progress_of, session_of
from durastreamd.spark.jobs.source import add_source, source_options
from durastreamd.spark.options import parse
from durastreamd.spark.segments.options import SegmentOptions
from durastreamd.spark.segments.plan import Piece
from durastreamd.spark.segments.read import Losses, PieceReader
from durastreamd.spark.segments.source import SegmentPartition, SegmentReader, chosen, plan

RECORDS = "stream STRING, timestamp TIMESTAMP, messages LONG, bytes LONG"
RECORDS_MAX = 20_000  # in one batch
BINS = 120  # of the plot, over the whole time


class StreamStats(NamedTuple):
    """One line of the table."""

    stream: str
    messages: int
    bytes: int
    first_ms: int
    last_ms: int
    gap_ms: int  # the longest silence between two records
    gap_from_ms: int
    producers: int  # that the stream knows

    @property
    def rate(self) -> float:
        """Return messages per second, from the first to the last."""
        return self.messages / max((self.last_ms - self.first_ms) / 1000, 0.001)


class Bin(NamedTuple):
    """How much of a stream came in a slice of time."""

    stream: str
    begin_ms: int
    messages: int
    bytes: int


# --- records of a data directory ---


class RecordReader(SegmentReader):
    """Reads what the indexes say."""

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task; an index is some percent of the bytes it describes."""
        return [SegmentPartition(pieces) for pieces in plan(self._options, coarser=16)]

    def read(self, partition: InputPartition) -> Iterator[object]:
        """Yield the records of a partition."""
        if isinstance(partition, SegmentPartition):
            yield from records_of(self._options.path, partition.pieces)


class RecordSource(DataSource):
    """The records of a data directory; chosen as in ``durastream-segments``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "durastream-records"

    def schema(self) -> str:
        """Return the columns."""
        return RECORDS

    def reader(self, schema: StructType) -> RecordReader:
        """Return the reader of a batch query."""
        return RecordReader(schema, parse(SegmentOptions, self.options))


def producers_of(options: SegmentOptions) -> dict[str, int]:
    """Return how many producers each stream knows."""

    def look(found: Opened) -> dict[str, int]:
        return {
            name: _producers(found.engine, stream)
            for name, stream in chosen(found, options)
            if not stream.damage
        }

    return with_directory(options.path, look)


def _producers(engine: Engine, stream: Stream) -> int:
    if engine.needs_loading(stream):
        return len(engine.load_detail(stream).producers)
    return len(stream.loaded().producers)


def records_of(root: str, pieces: tuple[Piece, ...]) -> Iterator[RecordBatch]:
    """Yield (stream, time, messages, bytes) of each record; runs in an executor."""
    reader = PieceReader(root, Losses(fail=False), verify=False)
    names: list[str] = []
    times: list[int] = []
    counts: list[int] = []
    sizes: list[int] = []

    def batch() -> RecordBatch:
        kind = pa.timestamp("us", tz="UTC")
        arrays = [pa.array(names, pa.string()), pa.array(times, kind)]
        arrays += [pa.array(counts, pa.int64()), pa.array(sizes, pa.int64())]
        columns = ["stream", "timestamp", "messages", "bytes"]
        made: RecordBatch = pa.RecordBatch.from_arrays(arrays, names=columns)
        for column in (names, times, counts, sizes):
            column.clear()
        return made

    for piece in pieces:
        for extent, frame in reader.frames(piece):
            low, high = max(frame.start, extent.low), min(frame.start + frame.size, extent.high)
            fields = cbor2.loads(frame.header)
            assert fields[0] in (APPEND, CREATE), fields[0]
            count = fields[1] if isinstance(fields[1], int) else len(fields[1])
            # A fork may have a part of a record: its messages are estimated by their bytes.
            counts.append(round(count * (high - low) / frame.size))
            names.append(extent.name)
            times.append(frame.time_ms * 1000)
            sizes.append(high - low)
            if len(names) >= RECORDS_MAX:
                yield batch()
    if names:
        yield batch()


# --- the figures ---


def figures(records: DataFrame, producers: dict[str, int]) -> list[StreamStats]:
    """Return the table, the largest stream first."""
    before = F.lag("ms").over(Window.partitionBy("stream").orderBy("ms"))
    timed = records.withColumn("ms", F.unix_millis("timestamp"))
    spaced = timed.withColumn("gap", F.col("ms") - F.coalesce(before, F.col("ms")))
    found = spaced.groupBy("stream").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("ms").alias("first"),
        F.max("ms").alias("last"),
        F.max(F.struct("gap", (F.col("ms") - F.col("gap")).alias("since"))).alias("silence"),
    )
    table = [
        StreamStats(
            row.stream,
            row.messages,
            row.bytes,
            row.first,
            row.last,
            row.silence.gap,
            row.silence.since,
            producers.get(row.stream, 0),
        )
        for row in found.collect()
    ]
    return sorted(table, key=lambda stats: (-stats.bytes, stats.stream))


def bins(records: DataFrame, table: list[StreamStats]) -> tuple[list[Bin], int]:
    """Return how much came when, and how many ms a slice of time is."""
    first = min(stats.first_ms for stats in table)
    last = max(stats.last_ms for stats in table)
    width = max(-(-(last - first + 1) // BINS), 1)
    slot = F.floor((F.unix_millis("timestamp") - first) / width)
    found = records.groupBy("stream", slot.alias("slot")).agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )
    return [
        Bin(row.stream, first + row.slot * width, row.messages, row.bytes)
        for row in found.collect()
    ], width


# --- the table ---

_SUMS = show.numbers("messages", "bytes", "per s")
_STREAMS = (
    show.Column("stream", least=16),
    *_SUMS,
    show.Column("first", number=True, spare=True),
    show.Column("last", number=True),
    show.Column("longest gap", number=True, spare=True),
    show.Column("producers", number=True),
)
_BUCKETS = (show.Column("bucket", least=16), *show.numbers("streams"), *_SUMS)


class BucketStats(NamedTuple):
    """All streams of a bucket, or all that are in none."""

    bucket: str
    streams: int
    messages: int
    bytes: int
    first_ms: int
    last_ms: int

    @property
    def rate(self) -> float:
        """Return messages per second, from the first to the last."""
        return self.messages / max((self.last_ms - self.first_ms) / 1000, 0.001)


def buckets_of(table: list[StreamStats], bucket: str) -> list[BucketStats]:
    """Return the sums of each bucket; names tell which one a stream is in."""
    found: dict[str, list[StreamStats]] = {}
    for row in table:
        name = bucket or (row.stream.split("/")[1] if row.stream.startswith("/") else "")
        found.setdefault(name, []).append(row)
    return [
        BucketStats(
            name,
            len(rows),
            sum(row.messages for row in rows),
            sum(row.bytes for row in rows),
            min(row.first_ms for row in rows),
            max(row.last_ms for row in rows),
        )
        for name, rows in sorted(found.items())
    ]


def write_tables(table: list[StreamStats], buckets: list[BucketStats], console: Console) -> None:
    """Write a line for each stream, then one for each bucket."""
    show.table(console, _STREAMS, [_stream_cells(stats) for stats in table])
    console.line("")
    show.table(console, _BUCKETS, [_bucket_cells(stats) for stats in buckets])


def _bucket_cells(stats: BucketStats) -> tuple[str, ...]:
    return (
        show.name(stats.bucket) or "(no bucket)",
        f"{stats.streams:,}",
        f"{stats.messages:,}",
        show.size(stats.bytes),
        f"{stats.rate:,.1f}",
    )


def _stream_cells(stats: StreamStats) -> tuple[str, ...]:
    return (
        show.name(stats.stream),
        f"{stats.messages:,}",
        show.size(stats.bytes),
        f"{stats.rate:,.1f}" if stats.last_ms > stats.first_ms else "-",
        show.moment(stats.first_ms, "seconds"),
        show.moment(stats.last_ms, "seconds"),
        show.duration(stats.gap_ms),
        f"{stats.producers:,}",
    )


# --- the job ---


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, server=False)
    parser.add_argument("--plot", metavar="FILE", help="draw it, too: an .svg or .png file")


def _run(args: argparse.Namespace, console: Console) -> int:
    if args.plot is not None:
        plot.check(args.plot)
    options = {"valueType": "binary", **source_options(args)}
    producers = producers_of(parse(SegmentOptions, options))
    spark = session_of(args)
    begin = time.monotonic()
    with progress_of(spark, console):
        spark.dataSource.register(RecordSource)
        records = spark.read.format(RecordSource.name()).options(**options).load().cache()
        table = figures(records, producers)
        if not table:
            reason = "there are no messages in what was chosen"
            raise CommandError(NO_INPUT, reason)
        if args.plot is not None:
            found, width = bins(records, table)
            plot.draw(args.plot, table, found, width)
        records.unpersist()
    buckets = buckets_of(table, args.bucket)
    if not console.as_json:
        write_tables(table, buckets, console)
    seconds = time.monotonic() - begin
    messages, size = sum(row.messages for row in table), sum(row.bytes for row in table)
    text = (
        f"{len(table)} streams, {messages:,} messages, {show.size(size)}, "
        f"{show.moment(min(row.first_ms for row in table), 'seconds')} to "
        f"{show.moment(max(row.last_ms for row in table), 'seconds')}; took {seconds:.1f} s"
    )
    members: dict[str, object] = {
        "messages": messages,
        "bytes": size,
        "seconds": round(seconds, 3),
        "streams": [row._asdict() for row in table],
        "buckets": [row._asdict() for row in buckets],
    }
    console.summary(text, members)
    return OK


COMMAND = Command(
    "stats", "messages, bytes, rates, gaps and producers, as table and plot", _arguments, _run
)
