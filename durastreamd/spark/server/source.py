"""The source of format ``durastream``: readers for batch and streaming queries.

The driver plans (``planning``), tasks read. A task reads exactly the messages between two places
and counts them: a server that gives more, fewer or others than were planned fails the task.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import cast
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from durastreamd.client import (
    Body,
    Client,
    CutShortError,
    Patience,
    ServerRefusedError,
    Watch,
    shared_client,
)
from durastreamd.protocol import problems
from durastreamd.protocol.content_type import is_json
from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.errors import ContentError, DataLossError
from durastreamd.spark.options import SourceOptions
from durastreamd.spark.rows import Messages, RowMaker, gathered, messages_of
from durastreamd.spark.schema import OFFSET, SNAPSHOT, STREAM, VALUE, check_columns, is_text
from durastreamd.spark.server import offsets
from durastreamd.spark.server.answers import ACCEPT, FRAMED, LINES, framed, lines, split_lines
from durastreamd.spark.server.offsets import Cut, Offset, StreamPlace
from durastreamd.spark.server.places import ServerStreams, is_textual
from durastreamd.spark.server.planning import (
    SHARED_BYTES,
    SHARED_STREAMS,
    Bounds,
    Planner,
    ReadPart,
    Slice,
)

logger = logging.getLogger(__name__)

# Of one task of a batch query: a second's work, so that all cores have some of it.
BATCH_CUT_BYTES = 16 * 1024 * 1024
LOAD_RETRY_S_MAX = 5.0  # a wrong address is told at load, soon; a running query is more patient


# --- the schema ---


def schema_of(options: SourceOptions) -> StructType:
    """Return the columns; a value is text where all streams found now are."""
    kind: DataType = StringType()
    if options.value_type == "binary" or (options.value_type == "auto" and _any_binary(options)):
        kind = BinaryType()
    columns = [
        StructField(VALUE, kind),
        StructField(STREAM, StringType()),
        StructField(OFFSET, LongType()),
    ]
    if options.on_snapshot == "restart":
        columns.append(StructField(SNAPSHOT, BooleanType()))
    return StructType(columns)


def _any_binary(options: SourceOptions) -> bool:
    settings = options.client_settings()
    client = Client(replace(settings, retry_s=min(settings.retry_s, LOAD_RETRY_S_MAX)))
    streams = ServerStreams(options, client)
    try:
        for name, listed in streams.names().items():
            look = listed.info or streams.look(name)
            if look is not None and not is_textual(look.content_type):
                return True
    finally:
        client.hang_up()
    return False


def _check(schema: StructType, options: SourceOptions) -> None:
    own = (VALUE, STREAM, OFFSET, *((SNAPSHOT,) if options.on_snapshot == "restart" else ()))
    check_columns(schema, options.FORMAT, own, options.column_name_of_corrupt_record)


# --- readers ---


class BatchReader(DataSourceReader):
    """Reads what is there."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        _check(schema, options)
        self._task = ReadTask(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Plan: in the driver."""
        options = self._task.options
        streams = ServerStreams(options, shared_client(self._task.settings))
        planner = Planner(options, streams, text=is_text(self._task.schema))
        bytes_max = options.max_bytes_per_partition or BATCH_CUT_BYTES
        cut = Cut(options.min_partitions, bytes_max, SHARED_BYTES, SHARED_STREAMS)
        return [*planner.parts(planner.everything(), cut)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Read one partition: in a task."""
        # An empty list of partitions becomes one partition that is none of ours.
        return self._task.read(partition) if isinstance(partition, ReadPart) else iter(())


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads for ever, or up to now."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        _check(schema, options)
        self._task = ReadTask(options, schema)
        self._planner: Planner | None = None
        self._watch: Watch | None = None
        self._frozen = False
        self._latest: dict[str, object] | None = None

    def _plan(self) -> Planner:
        if self._planner is None:
            streams = ServerStreams(self._task.options, shared_client(self._task.settings))
            self._planner = Planner(self._task.options, streams, text=is_text(self._task.schema))
            self._watch = Watch(streams.client)
        return self._planner

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Return the constant before the first batch: its end says where it began."""
        return offsets.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options allow a batch; both limits hold together, see below."""
        options = self._task.options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix how far this run goes."""
        self._plan().freeze()
        self._frozen = True

    def latestOffset(  # noqa: N802
        self, start: dict[str, object], limit: ReadLimit
    ) -> dict[str, object]:
        """Return the end of the next batch; ``start`` where there is nothing after a wait."""
        planner, known = self._plan(), Offset.of(start)
        bounds = self._bounds(limit)
        end = planner.progress(known, bounds)
        if end is known and not self._frozen:
            # Spark asks dozens of times a second; one long-poll is an answer to many of them.
            if self._watch is not None:
                self._watch.wait(planner.watched, self._task.options.poll_timeout_ms / 1000)
            end = planner.progress(known, bounds)
        self._latest = _report(planner.latest, end)
        return start if end is known else end.to_json()

    def _bounds(self, limit: ReadLimit) -> Bounds:
        options = self._task.options
        if isinstance(limit, ReadAllAvailable) and (
            options.max_offsets_per_trigger or options.max_bytes_per_trigger
        ):
            return Bounds()  # Trigger.Once: all there is, whatever the options say
        return Bounds(
            limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger,
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes_per_trigger,
            options.min_offsets_per_trigger,
        )

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        """Return where the streams end and how far the last batch is behind, for Spark's progress.

        The same shape as an offset, so that one can be subtracted from the other.
        """
        return self._latest

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Cut a batch: from its offsets alone."""
        until = Offset.of(end)
        return [*self._plan().parts(offsets.ranges(Offset.of(start), until), until.cut)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Read one partition: in a task."""
        return self._task.read(cast(ReadPart, partition))

    def commit(self, end: dict[str, object]) -> None:
        """Nothing to do: a server keeps no place for its readers."""

    def stop(self) -> None:
        """End the long-polls."""
        if self._watch is not None:
            self._watch.hang_up()

    def __getstate__(self) -> dict[str, object]:
        # Tasks get what tasks need; connections stay in the driver.
        return {**self.__dict__, "_planner": None, "_watch": None}


# --- tasks ---


class ReadTask:
    """Reads slices; what is pickled to executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        # Taken here, in the driver: a token from the environment is not in the executors'.
        self.settings = options.client_settings()

    def read(self, part: ReadPart) -> Iterator[RecordBatch]:
        """Yield the rows of a partition."""
        maker = RowMaker(self.schema, self.options.member_options())
        return gathered(batch for each in part.slices for batch in self._rows(maker, each))

    def _rows(self, maker: RowMaker, part: Slice) -> Iterator[RecordBatch]:
        client = shared_client(self.settings)
        number = part.begin.number
        separator = self.options.line_sep.encode()
        try:
            if part.snapshot:
                blob = messages_of([_snapshot(client, part)], [number - 1], json=False)
                yield from maker.rows(part.stream, blob, snapshot=True)
            read = _told if part.begin.told else self._counted
            for messages in read(client, part):
                number += messages.count
                split = separator and not messages.json
                rows = split_lines(messages, separator) if split else messages
                yield from maker.rows(part.stream, rows)
            if number != part.end.number:
                wanted = part.end.number - part.begin.number
                message = (
                    f"Stream {part.stream}: {number - part.begin.number} messages came where "
                    f"{wanted} were planned."
                )
                raise DataLossError(message)
        except (DataLossError, ServerRefusedError) as exc:
            self._lost(part, exc)

    def _lost(self, part: Slice, exc: DataLossError | ServerRefusedError) -> None:
        if isinstance(exc, ServerRefusedError) and not _is_loss(exc):
            raise exc
        if self.options.fail_on_data_loss:
            message = (
                f"Stream {part.stream}: rows {part.begin.number} to {part.end.number} were planned "
                f"and cannot be read any more: {exc} With failOnDataLoss=false the query goes on "
                "without."
            )
            raise DataLossError(message) from exc
        logger.warning("Stream %s: %s", part.stream, exc)

    def _counted(self, client: Client, part: Slice) -> Iterator[Messages]:
        """Yield the messages of a server that neither numbers nor bounds."""
        streams = ServerStreams(self.options, client)
        token, at = part.begin.token, part.begin.token_number
        while at < part.end.number:
            messages, reply = streams.page(part.stream, token)
            low = max(part.begin.number - at, 0)
            wanted = messages[low : part.end.number - at]
            if wanted:
                numbers = range(at + low, at + low + len(wanted))
                yield messages_of(wanted, numbers, json=is_json(reply.headers["content-type"]))
            at += len(messages)
            after = reply.headers.get("stream-next-offset", token)
            if after == token or not messages:
                return
            token = after


def _is_loss(exc: ServerRefusedError) -> bool:
    """Tell whether what was asked for is not there, or no place of the stream that is."""
    return exc.status in (404, 410, 412) or exc.name == problems.INVALID_OFFSET.code


def _report(latest: dict[str, StreamPlace], end: Offset) -> dict[str, object] | None:
    if not latest:
        return None
    pairs = [(latest[name], end.places[name]) for name in latest if name in end.places]
    made = Offset(latest).to_json()
    made["behind"] = {
        "messages": sum(max(tail.number - place.number, 0) for tail, place in pairs),
        "bytes": sum(max(tail.byte - place.byte, 0) for tail, place in pairs),
    }
    return made


def _told(client: Client, part: Slice) -> Iterator[Messages]:
    """Yield the messages of a bounded range; a connection lost in the midst is taken up again."""
    token, page_number, number = part.begin.token, part.begin.number, part.begin.number
    patience = Patience(client.settings)
    while token != part.end.token and number <= part.end.number:
        url = f"{part.url}?offset={quote(token)}&end={quote(part.end.token)}"
        if part.end.incarnation:  # never of another life of the name
            url += f"&incarnation={quote(part.end.incarnation)}"
        try:
            with client.reading(url, {"Accept": ACCEPT}) as body:
                for messages in _messages(body, page_number):
                    known = number - int(messages.numbers[0])
                    fresh = messages.part(known, messages.count) if known > 0 else messages
                    number += fresh.count
                    if fresh.count:
                        yield fresh
                after = body.headers["stream-next-offset"]
        except CutShortError as exc:
            client.hang_up()
            patience.after_failure("GET", url, exc)
            continue
        if after == token:
            return
        token, page_number = after, number
        patience = Patience(client.settings)


def _messages(body: Body, number: int) -> Iterator[Messages]:
    kind = body.headers.get("content-type", "")
    if kind not in (LINES, FRAMED):
        message = f"The server shows messages no longer apart, but as {kind}; was it replaced?"
        raise ContentError(message)
    return (lines if kind == LINES else framed)(body.pieces(), number)


def _snapshot(client: Client, part: Slice) -> bytes:
    """Return the blob of a snapshot: the first part of what bootstrap sends."""
    with client.reading(f"{part.url}/bootstrap") as body:
        offset = body.headers.get("stream-snapshot-offset", "")
        if offset != part.snapshot:
            message = (
                f"The snapshot at {part.snapshot} was superseded by one at {offset}; "
                "the batch cannot be read again as it was."
            )
            raise DataLossError(message)
        kind = body.headers.get("content-type", "")
        delimiter = b"\r\n--" + kind.partition("boundary=")[2].strip('"').encode()
        data = bytearray(b"\r\n")
        for piece in body.pieces():
            before = max(len(data) - len(delimiter), len(delimiter))
            data += piece
            end = data.find(delimiter, before)
            if end >= 0:
                return bytes(data[data.index(b"\r\n\r\n") + 4 : end])
    message = "The answer of bootstrap ended before its first part did."
    raise ContentError(message)
