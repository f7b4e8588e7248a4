"""The format ``durastream-segments``: the log files of a data directory as rows, without a server.

For bulk work: a whole history at the speed of the disk. It reads the directory of a stopped
server, of a running one (which is not disturbed) or a backup; driver and executors must see it
under the same path. Rows are those of the format ``durastream`` (value, stream, and as offset the
message's number) and when the message was written.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from durastreamd.engine.view import View
from durastreamd.errors import StreamDamagedError
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import Opened, disk_at, with_directory
from durastreamd.protocol import offsets
from durastreamd.spark.errors import OptionError
from durastreamd.spark.options import names_of, parse, pattern_of
from durastreamd.spark.schema import OFFSET, STREAM, TIMESTAMP, VALUE, check_columns
from durastreamd.spark.segments.options import SegmentOptions
from durastreamd.spark.segments.plan import ByteRange, Piece, gathered, levels_of, pieces_of
from durastreamd.spark.server.places import is_textual
from durastreamd.storage import datadir

# --- planning ---


def plan(options: SegmentOptions, coarser: int = 1) -> list[tuple[Piece, ...]]:
    """Return what each task reads, in ``coarser`` pieces than asked for; runs in the driver."""
    return with_directory(options.path, lambda found: _plan(found, options, coarser))


def _plan(found: Opened, options: SegmentOptions, coarser: int) -> list[tuple[Piece, ...]]:
    ranges = ranges_of(found, options)
    total = sum(wanted.high - wanted.low for wanted in ranges)
    size = options.max_bytes_per_partition * coarser
    if options.min_partitions > 1:
        size = max(min(size, total // options.min_partitions), 1)
    return gathered(pieces_of(found, ranges, size), size)


def ranges_of(found: Opened, options: SegmentOptions) -> list[ByteRange]:
    """Return what is wanted of each stream that was chosen."""
    ranges = []
    for name, stream in chosen(found, options):
        if stream.damage and options.fail_on_data_loss:
            reason = f"stream {name!r} is damaged: {stream.damage}"
            raise StreamDamagedError(reason)
        if not stream.damage:
            ranges.append(_range(found, name, stream, options))
    return ranges


def chosen(found: Opened, options: SegmentOptions) -> Iterator[tuple[str, Stream]]:
    """Yield the streams that were chosen, with the names they go by."""
    if options.bucket and options.bucket not in found.engine.namespace.buckets:
        reason = f"there is no bucket {options.bucket!r} in {options.path}"
        raise OptionError(reason)
    missing = dict.fromkeys(names_of(options))
    pattern = pattern_of(options)
    for stream in _there(found):
        name = name_of(stream.key, options.bucket)
        if name is None:
            continue
        if name in missing:
            del missing[name]
        elif options.subscribe or not pattern.fullmatch(name):
            continue
        yield name, stream
    if missing:
        reason = f"there is no stream {next(iter(missing))!r} in {options.path}"
        raise OptionError(reason)


def name_of(key: str, bucket: str = "") -> str | None:
    """Return the name of a stream in options and rows; None for one outside the bucket.

    In a bucket it is the stream's id there. Otherwise it is what follows /v1/stream/ in its URL,
    or, beginning with a slash, the whole path of the URL: /bucket/id.
    """
    if bucket:
        return key.removeprefix(f"{bucket}/") if key.startswith(f"{bucket}/") else None
    return key[1:] if key.startswith("/") else f"/{key}"


def _range(found: Opened, name: str, stream: Stream, options: SegmentOptions) -> ByteRange:
    if options.value_type == "string" and not is_textual(stream.content_type):
        reason = (
            f"stream {name!r} is {stream.content_type}, which is not text; set valueType=binary"
        )
        raise OptionError(reason)
    low, high = stream.floor, stream.tail
    view = found.engine.view(stream)
    starting, ending = options.bounds()
    for given, is_start in ((starting, True), (ending, False)):
        token = given.get(name)
        if token is None:
            continue
        position = _position(view, token)
        if position is None or not low <= position <= high or not view.is_boundary(position):
            reason = (
                f"{token!r} is no offset of stream {name!r}, which is there from "
                f"{view.ordinal_at(low)} ({low:016d}) to {stream.messages} ({stream.tail:016d})"
            )
            raise OptionError(reason)
        low, high = (position, high) if is_start else (low, position)
    since_ms, until_ms = options.times()
    if since_ms is not None:
        low = max(low, view.position_at(since_ms))
    if until_ms is not None:
        high = min(high, view.position_at(until_ms))
    return ByteRange(name, stream.json, low, max(low, high), levels_of(found.engine, stream))


def _position(view: View, given: str | int) -> int | None:
    """Return where an offset is: a message's number, or a token of the server."""
    if isinstance(given, str):
        return offsets.parse(given)
    first, last = view.ordinal_at(view.floor), view.ordinal_at(view.tail)
    return view.position_of_message(given) if first <= given <= last else None


# --- the data source ---


class SegmentPartition(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


class SegmentReader(DataSourceReader):
    """Plans in the driver, reads in the executors."""

    def __init__(self, schema: StructType, options: SegmentOptions) -> None:
        own = (VALUE, STREAM, OFFSET, TIMESTAMP)
        check_columns(schema, options.FORMAT, own, options.column_name_of_corrupt_record)
        self._schema = schema
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task."""
        return [SegmentPartition(pieces) for pieces in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[object]:
        """Yield the rows of a partition as Arrow batches."""
        if not isinstance(partition, SegmentPartition):  # Spark's own, in place of none at all
            return
        from durastreamd.spark.rows import RowMaker, gathered
        from durastreamd.spark.segments.read import Losses, PieceReader, messages_in

        options = self._options
        losses = Losses(fail=options.fail_on_data_loss)
        maker = RowMaker(self._schema, options.member_options())
        reader = PieceReader(options.path, losses, verify=options.verify_checksums)
        yield from gathered(
            batch
            for piece in partition.pieces
            for group in reader.groups(piece)
            for batch in maker.rows(group.extent.name, messages_in(group))
        )
        if losses.found and options.bad_records_path:
            lines = [json.dumps(loss._asdict()) for loss in losses.found]
            _write_report(options.bad_records_path, partition.pieces, lines)


def _write_report(directory: str, pieces: tuple[Piece, ...], lines: list[str]) -> None:
    """Write what a task left out; the same task run again writes the same file."""
    mark = hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]
    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    beside = home / f".{mark}.{os.getpid()}"
    beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    beside.replace(home / f"lost-{mark}.json")


def is_binary(options: SegmentOptions) -> bool:
    """Tell whether values are bytes: because it was asked for, or some are not text."""
    if options.value_type != "auto":
        return options.value_type == "binary"

    def look(found: Opened) -> bool:
        streams = chosen(found, options)
        return not all(is_textual(stream.content_type) for _, stream in streams)

    return with_directory(options.path, look)


class SegmentSource(DataSource):
    """The format ``durastream-segments``; see the module."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "durastream-segments"

    def schema(self) -> str:
        """Return the columns; looks at the options and the directory, so that errors come early."""
        options = parse(SegmentOptions, self.options)
        datadir.read_identity(disk_at(options.path))
        kind = "BINARY" if is_binary(options) else "STRING"
        return f"value {kind}, stream STRING, offset LONG, timestamp TIMESTAMP"

    def reader(self, schema: StructType) -> SegmentReader:
        """Return the reader of a batch query."""
        return SegmentReader(schema, parse(SegmentOptions, self.options))


def _there(found: Opened) -> Iterator[Stream]:
    """Yield the streams that are there to be read, in the order of their names."""
    for stream in found.namespace.by_key.values():
        if not stream.gone and not stream.expired(found.now_ms):
            yield stream
