"""The sink of format ``durastream``: every row once, whatever is killed when.

An append carries a producer, and the server stores one (producer, epoch, sequence number) once:

    Producer-Id     <query>.<partition>        a batch job: <txnAppId>.<partition>
    Producer-Epoch  the batch's id             a batch job: txnVersion
    Producer-Seq    the chunk's number within batch, partition and stream, from 0

A batch that runs again sends the same again, which is recognised; a task of an earlier batch that
is still alive somewhere is refused (403). The sequence is not the batch's id: a partition without
rows would leave a gap, which the protocol forbids.

What that rests on: a partition holds the same rows when it runs again. Up to ``maxAppendBytes``
it is one append and their order does not matter; above, the order must repeat, too, which it does
unless the plan shuffles. ``commitMode=driver`` needs neither: tasks hand their rows to the driver,
which appends once for each stream and batch.
"""

import base64
import datetime as dt
import decimal
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from durastreamd.client import ClientSettings, ServerRefusedError, shared_client
from durastreamd.protocol import content_type as ct
from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.errors import OptionError, SinkError
from durastreamd.spark.options import SinkOptions
from durastreamd.spark.tasks import this_batch, this_partition

_ELEMENTS: "msgspec.json.Decoder[list[msgspec.Raw]] | None" = None
try:
    import msgspec

    _ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
except ImportError:
    pass  # executors that got this package as a zip alone: slower, not less strict


@dataclass(frozen=True)
class SinkProducer:
    """Who appends: one partition of one batch."""

    name: str
    epoch: int

    def headers(self, seq: int) -> dict[str, str]:
        """Return the producer headers of a chunk."""
        return {
            "Producer-Id": self.name,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(seq),
        }


@dataclass
class Written(WriterCommitMessage):
    """What a task has done: counts, and in commitMode=driver the rows themselves."""

    partition: int
    query: str = ""
    streams: dict[str, int] = field(default_factory=dict)  # rows of each
    appends: int = 0
    repeated: int = 0  # appends that the server knew already
    rows: dict[str, list[bytes]] = field(default_factory=dict)


# --- rows ---


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Refuse rows that say neither what to write nor where."""
    columns = {each.name: each.dataType for each in schema.fields}
    named = bool(options.stream or options.path)
    if "stream" in columns:
        if not isinstance(columns["stream"], StringType):
            message = f"The column stream is a string, not {columns['stream'].simpleString()}."
            raise OptionError(message)
    elif not named:
        message = (
            "Say where to write: option stream, save(<URL of a stream>), or a column stream "
            f"(there are only {', '.join(columns) or 'none'})."
        )
        raise OptionError(message)
    value = columns.get("value")
    if value is not None and not isinstance(value, StringType | BinaryType):
        message = (
            f"The column value is a string or binary, not {value.simpleString()}; "
            "use to_json for structures, or cast it."
        )
        raise OptionError(message)
    if not columns.keys() - {"stream"}:
        message = "There is nothing to write: add a column value, or columns for a JSON object."
        raise OptionError(message)


def _plain(value: object) -> object:
    """Return what JSON has no type for as Spark's to_json writes it."""
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal) and value == value.to_integral_value():
        return int(value)
    if isinstance(value, decimal.Decimal) and decimal.Decimal(repr(float(value))) == value:
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    message = f"{value!r} has no exact JSON form here; use to_json(struct(*)) as value."
    raise SinkError(message)


def _object(row: dict[str, object]) -> bytes:
    kept = {name: value for name, value in row.items() if value is not None}
    try:
        return _ENCODER.encode(kept).encode()
    except ValueError as exc:
        message = f"JSON has no NaN and no infinity; use to_json(struct(*)) as value: {exc}"
        raise SinkError(message) from exc


_ENCODER = json.JSONEncoder(
    default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
)


class RowSplitter:
    """Takes record batches apart: which bytes go to which stream."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._columns = [each.name for each in schema.fields]
        self._only = options.stream or (options.site().name if options.path else "")

    def groups(self, batch: RecordBatch) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the values for each stream, in the order of the rows."""
        values = self._values(batch)
        if self._only or "stream" not in self._columns:
            yield self._only, values
            return
        found: dict[str, list[bytes]] = {}
        for name, value in zip(batch.column("stream").to_pylist(), values, strict=True):
            if not isinstance(name, str) or not name:
                message = "A row has no stream: the column stream is null or empty."
                raise SinkError(message)
            found.setdefault(name, []).append(value)
        yield from found.items()

    def _values(self, batch: RecordBatch) -> list[bytes]:
        if "value" not in self._columns:
            rows = batch.to_pylist()
            for row in rows:
                row.pop("stream", None)
            return [_object(row) for row in rows]
        values = batch.column("value").cast(pa.binary()).to_pylist()
        if None in values:
            message = "A row has no value: the column value is null; filter such rows out."
            raise SinkError(message)
        return cast(list[bytes], values)


# --- appends ---


class Appender:
    """Appends the rows of one producer, gathered into chunks for each stream."""

    def __init__(
        self, options: SinkOptions, settings: ClientSettings, producer: SinkProducer
    ) -> None:
        self._options = options
        self._site = options.site()
        self._client = shared_client(settings)
        self._producer = producer
        self._targets: dict[str, Target] = {}

    def add(self, stream: str, values: list[bytes], written: Written) -> None:
        """Take rows; append whole chunks."""
        target = self._target(stream)
        written.streams[stream] = written.streams.get(stream, 0) + len(values)
        for value in values:
            size = len(value) + target.overhead
            if target.values and (target.alone or target.size + size > self._limit):
                self._append(target, written)
            target.values.append(value)
            target.size += size

    @property
    def _limit(self) -> int:
        return self._options.max_append_bytes

    def finish(self, written: Written) -> None:
        """Append what is left, stream by stream in the order of names."""
        for name in sorted(self._targets):
            if self._targets[name].values:
                self._append(self._targets[name], written)

    def once(self, stream: str, values: list[bytes], written: Written) -> None:
        """Append rows to a stream at once, or refuse: there must be one append for all of them."""
        target = self._target(stream)
        size = sum(len(value) + target.overhead for value in values)
        if size > self._limit or (target.alone and len(values) > 1):
            message = (
                f"commitMode=driver writes a batch to a stream in one append; {len(values)} rows "
                f"of {size} bytes for {stream} exceed that. Make batches smaller "
                "(maxOffsetsPerTrigger), raise maxAppendBytes, set lineSep, or use "
                "commitMode=partition."
            )
            raise SinkError(message)
        self.add(stream, values, written)

    def close(self, stream: str) -> None:
        """Close a stream."""
        url = self._site.stream(stream)
        self._send(stream, url, {"Stream-Closed": "true"}, None)

    def _target(self, stream: str) -> "Target":
        if stream not in self._targets:
            url = self._site.stream(stream)
            kind = self._content_type(stream, url)
            self._targets[stream] = Target(stream, url, kind, self._options.line_sep.encode())
        return self._targets[stream]

    def _content_type(self, stream: str, url: str) -> str:
        reply = self._client.head(url, accept=(404,))
        wanted = self._options.content_type
        if reply.status == 404:
            if not self._options.create_streams:
                message = (
                    f"There is no stream {stream} at {url}; set createStreams=true to make it."
                )
                raise SinkError(message)
            wanted = wanted or ct.JSON
            made = self._send(stream, url, {"Content-Type": wanted}, None, method="PUT")
            return made.get("content-type", wanted)
        found = reply.headers.get("content-type", ct.DEFAULT)
        if wanted and not ct.same(wanted, found):
            message = f"Stream {stream} holds {found}; option contentType says {wanted}."
            raise SinkError(message)
        return found

    def _append(self, target: "Target", written: Written) -> None:
        target.check()
        headers = {"Content-Type": target.content_type, **self._producer.headers(target.seq)}
        status = self._send(target.stream, target.url, headers, target.body())
        written.appends += 1
        written.repeated += status.get("", "") == "204"
        target.next_chunk()

    def _send(
        self,
        stream: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        *,
        method: str = "POST",
    ) -> dict[str, str]:
        try:
            reply = self._client.request(method, url, headers, body)
        except ServerRefusedError as exc:
            message = f"Stream {stream}: {exc} {_ADVICE.get(exc.name, '')}".rstrip()
            raise SinkError(message) from exc
        return {**reply.headers, "": str(reply.status)}


_ADVICE = {
    "STALE_EPOCH": (
        "Another run of this query has written a later batch: stop one of them. After a checkpoint "
        "was deleted, choose another producerId (or a higher txnVersion)."
    ),
    "SEQUENCE_GAP": (
        "An earlier run of this batch wrote another number of chunks: rows or their order changed. "
        "Sort within partitions, raise maxAppendBytes, or use commitMode=driver."
    ),
    "STREAM_CLOSED": "Rows for it must go to another stream.",
    "CONTENT_TYPE_MISMATCH": "Leave contentType out to take that of the stream.",
    "PAYLOAD_TOO_LARGE": "Lower maxAppendBytes; one row may also be too large by itself.",
    "PERMISSION_DENIED": "The token (authToken) does not allow to append here.",
    "UNAUTHENTICATED": "Set option authToken or authTokenFile.",
    "ALREADY_EXISTS": "Create it with the configuration it has, or leave createStreams out.",
}


def _are_json(values: list[bytes]) -> bool:
    """Tell whether each value is one JSON text, all at once; False may also mean "ask each".

    It is not enough that they make an array together: ``1,2`` would be two of its elements, and
    ``{"a":1`` with ``"b":2},3`` two others.
    """
    if _ELEMENTS is None:
        return False
    try:
        return [bytes(each) for each in _ELEMENTS.decode(b"[" + b",".join(values) + b"]")] == values
    except (msgspec.DecodeError, RecursionError):
        return False


class Target:
    """One stream that is being appended to: the chunk under way."""

    def __init__(self, stream: str, url: str, content_type: str, separator: bytes) -> None:
        self.stream = stream
        self.url = url
        self.content_type = content_type
        self.json = ct.is_json(content_type)
        self._separator = separator
        # A message that is not JSON has no other end than that of its append.
        self.alone = not self.json and not separator
        self.overhead = 1 if self.json else len(separator)
        self.seq = 0
        self.values: list[bytes] = []
        self.size = 0

    def check(self) -> None:
        """Refuse a chunk in which a row would not become one message."""
        if not self.json or not _are_json(self.values):
            for value in self.values:
                self._check(value)

    def _check(self, value: bytes) -> None:
        if self.json:
            try:
                json.loads(value)
            except ValueError as exc:
                shown = value[:80].decode(errors="replace")
                message = (
                    f"Stream {self.stream} holds JSON and a row's value is none: {shown!r}: {exc}. "
                    "Use to_json, or a stream of another content type."
                )
                raise SinkError(message) from exc
        elif not value:
            message = f"Stream {self.stream}: a row's value is empty, and no message can be."
            if self.alone:
                raise SinkError(message)
        elif self._separator and self._separator in value:
            message = (
                f"Stream {self.stream}: a row's value holds lineSep and would be read as two rows."
            )
            raise SinkError(message)

    def body(self) -> bytes:
        """Return the body of the append."""
        if self.json:
            return b"[" + b",".join(self.values) + b"]"
        return b"".join(value + self._separator for value in self.values)

    def next_chunk(self) -> None:
        """Begin the next chunk."""
        self.values, self.size = [], 0
        self.seq += 1


# --- writers ---


class WriteTask:
    """What tasks of both writers do; pickled to executors."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self.options = options
        self.settings = options.client_settings()
        self._rows = RowSplitter(schema, options)

    def write(
        self, batches: Iterator[RecordBatch], producer: SinkProducer, written: Written
    ) -> Written:
        """Append all rows of a partition, or gather them for the driver."""
        if self.options.commit_mode == "driver":
            for batch in batches:
                for stream, values in self._rows.groups(batch):
                    written.rows.setdefault(stream, []).extend(values)
            return written
        appender = Appender(self.options, self.settings, producer)
        for batch in batches:
            for stream, values in self._rows.groups(batch):
                if values:
                    appender.add(stream, values, written)
        appender.finish(written)
        return written

    def settle(self, messages: list[Written], producer: SinkProducer) -> Written:
        """Append what the tasks gathered: in the driver, once for each stream."""
        written = Written(-1)
        gathered: dict[str, list[bytes]] = {}
        for message in sorted(messages, key=lambda each: each.partition):
            for stream, values in message.rows.items():
                gathered.setdefault(stream, []).extend(values)
        appender = Appender(self.options, self.settings, producer)
        for stream in sorted(gathered):
            appender.once(stream, gathered[stream], written)
        appender.finish(written)
        return written


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
        query = self._task.options.producer_id or query
        producer = SinkProducer(f"{query}.{partition}", batch)
        return self._task.write(iterator, producer, Written(partition, query))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append what was gathered, in commitMode=driver; otherwise all is done."""
        done = [each for each in messages if isinstance(each, Written)]
        if self._task.options.commit_mode == "driver" and done:
            self._task.settle(done, SinkProducer(f"{done[0].query}.driver", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what was appended stays, and is recognised when the batch runs again."""


class BatchSinkWriter(DataSourceArrowWriter):
    """Writes one batch job."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._task = WriteTask(options, schema)
        # Without txnAppId a name of its own: the job's tasks may be repeated, the job not.
        name = options.txn_app_id or options.producer_id or f"spark-{uuid.uuid4()}"
        self._producer = SinkProducer(name, max(options.txn_version, 0))

    def _named(self, part: str | int) -> SinkProducer:
        return SinkProducer(f"{self._producer.name}.{part}", self._producer.epoch)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        """Write one partition: in a task."""
        partition = this_partition()
        return self._task.write(iterator, self._named(partition), Written(partition))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what was gathered, and close what is to be closed."""
        done = [each for each in messages if isinstance(each, Written)]
        streams = {name for each in done for name in (*each.streams, *each.rows)}
        if self._task.options.commit_mode == "driver":
            self._task.settle(done, self._named("driver"))
        if self._task.options.close_on_finish:
            closer = Appender(self._task.options, self._task.settings, self._named("driver"))
            for stream in sorted(streams):
                closer.close(stream)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what was appended stays."""
