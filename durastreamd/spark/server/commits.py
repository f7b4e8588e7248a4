"""A batch that is the same however often it runs: what its first run commits is what is written.

Tasks append nothing to the streams themselves. They hand their rows to the driver, or, where those
are many, stage them in a stream of their own and hand over its URL. The driver then creates the
batch's log, a stream with all of that in its first bytes. A create is atomic and the first one
wins: if a run of this batch before has come so far, its log is there and counts, and what the
present run brought is thrown away. Only then rows are appended to their streams, out of the log, in
its order, by one producer with the batch as epoch. Whatever is killed when, the next run goes on
with the same bytes in the same appends, of which the server stores each once.

So nothing rests on the query: neither the layout of its partitions, nor the order of rows, nor that
it computes the same again.

    {log}                  the log: a header, then rows, or the URLs of staged ones
    {log}/{random}         rows of one task

The log of a batch is deleted when the next one is committed. Staged rows are deleted when all of
the batch was appended, which the log says by then; those of a run that was killed expire.
"""

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote

from durastreamd.client import Client, ClientSettings, Reply, ServerRefusedError, shared_client
from durastreamd.spark.errors import SinkError
from durastreamd.spark.options import SinkOptions
from durastreamd.spark.server.appends import Appender, SinkProducer, Written

VERSION = 1
KIND = {"Content-Type": "application/octet-stream"}
CREATED, OK = 201, 200
# A task's rows up to here travel with its commit message; more would burden the driver's memory.
INLINE_BYTES_MAX = 256 * 1024
# Staged rows of a run that was killed go by themselves. Longer than anybody leaves a query lie that
# is to go on; one that does finds them gone, and fails.
STAGED_S = 30 * 24 * 3600


class LogHeader(NamedTuple):
    """The first record of a log: which query made it, and into which appends its rows are cut."""

    query: str
    append_bytes: int

    def encode(self) -> bytes:
        """Return its line."""
        return _line({"v": VERSION, **self._asdict()})


class RowsRecord(NamedTuple):
    """Some rows of one stream."""

    stream: str
    values: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return a line that says what follows, and that."""
        head = _line({"stream": self.stream, "lengths": [*map(len, self.values)]})
        return head + b"".join(self.values)


class StagedRecord(NamedTuple):
    """Where rows wait: the URL of a stream of records."""

    url: str

    def encode(self) -> bytes:
        """Return its line."""
        return _line({"staged": self.url})


class DoneRecord(NamedTuple):
    """All of it has been appended."""

    def encode(self) -> bytes:
        """Return its line."""
        return _line({"done": True})


LogRecord = LogHeader | RowsRecord | StagedRecord | DoneRecord


def _line(head: dict[str, object]) -> bytes:
    return json.dumps(head).encode() + b"\n"


class _Paged:
    """Bytes that come in pages, which may end anywhere."""

    def __init__(self, pages: Iterable[bytes]) -> None:
        self._pages = iter(pages)
        self._held = b""

    def line(self) -> bytes:
        """Return the next line, nothing at the end."""
        while b"\n" not in self._held:
            page = next(self._pages, b"")
            if not page:
                self._check(b"" if not self._held else page, len(self._held))
                return b""
            self._held += page
        line, _, self._held = self._held.partition(b"\n")
        return line

    def take(self, size: int) -> bytes:
        """Return so many bytes."""
        parts, missing = [self._held], size - len(self._held)
        while missing > 0 and (page := next(self._pages, b"")):
            parts.append(page)
            missing -= len(page)
        whole = b"".join(parts)
        self._check(whole, size)
        self._held = whole[size:]
        return whole[:size]

    def _check(self, found: bytes, wanted: int) -> None:
        if len(found) < wanted:
            message = "A batch's log ends in the midst of a record."
            raise SinkError(message)


def decoded(pages: Iterable[bytes]) -> Iterator[LogRecord]:
    """Yield the records of a log."""
    source = _Paged(pages)
    while line := source.line():
        match json.loads(line):
            case {"v": 1, "query": str(query), "append_bytes": int(size)}:
                yield LogHeader(query, size)
            case {"done": True}:
                yield DoneRecord()
            case {"staged": str(url)}:
                yield StagedRecord(url)
            case {"stream": str(stream), "lengths": list(lengths)}:
                data, at, values = source.take(sum(lengths)), 0, []
                for length in lengths:
                    values.append(data[at : at + length])
                    at += length
                yield RowsRecord(stream, tuple(values))
            case _:
                message = f"A batch's log was written by another version: {line[:200]!r}."
                raise SinkError(message)


class TaskRows:
    """Gathers the rows of one task: for the commit message, or in a stream."""

    def __init__(self, log: "BatchLog", written: Written) -> None:
        self._log = log
        self._written = written
        self._held = 0
        self._seq = 0

    def add(self, stream: str, values: list[bytes]) -> None:
        """Take rows."""
        self._written.streams[stream] = self._written.streams.get(stream, 0) + len(values)
        self._written.rows.setdefault(stream, []).extend(values)
        self._held += sum(map(len, values))
        limit = self._log.append_bytes if self._written.staged else INLINE_BYTES_MAX
        if self._held > limit:
            self._flush()

    def finish(self) -> Written:
        """Return the message to the driver."""
        if self._written.staged:
            self._flush()
        return self._written

    def _flush(self) -> None:
        rows = self._written.rows
        records = [RowsRecord(stream, tuple(values)) for stream, values in rows.items() if values]
        if not self._written.staged:
            self._written.staged = self._log.stage()
        self._seq = self._log.extend(self._written.staged, records, self._seq)
        self._written.rows, self._held = {}, 0


def segment_of(name: str) -> str:
    """Return any name as one segment of a path: no two alike, and none with a slash in disguise.

    A server refuses an encoded slash, because proxies do not agree on what it is.
    """
    return "~7E".join(quote(part, safe="").replace("%", "~") for part in name.split("~"))


class BatchLog:
    """What one batch of one query writes; ``name`` is that of its producer."""

    def __init__(
        self, options: SinkOptions, settings: ClientSettings, query: str, producer: SinkProducer
    ) -> None:
        self._options = options
        self._settings = settings
        self._query = query
        self._producer = producer
        self.append_bytes = options.max_append_bytes

    @property
    def _client(self) -> Client:
        return shared_client(self._settings)

    def _url(self, batch: int) -> str:
        return f"{self._options.log_base()}/{segment_of(self._producer.name)}/{batch}"

    # --- in tasks ---

    def stage(self) -> str:
        """Make a stream for the rows of a task."""
        url = f"{self._url(self._producer.epoch)}/{uuid.uuid4().hex}"
        self._send("PUT", url, {**KIND, "Stream-TTL": str(STAGED_S)}, None)
        return url

    def extend(self, url: str, records: list[RowsRecord], seq: int = 0) -> int:
        """Append records to a staged stream; return the number of the next append."""
        writer = SinkProducer("task", 0)
        for number, body in enumerate(_bodies(records, self.append_bytes), seq):
            self._send("POST", url, {**KIND, **writer.headers(number)}, body)
            seq = number + 1
        return seq

    # --- in the driver ---

    def commit(self, messages: list[Written], *, inline: bool = True) -> Written:
        """Settle what this batch is, if no run before did, and append it.

        Without ``inline`` no rows stay in the log, which may then stay for ever.
        """
        done = Written(-1)
        records = self._settled(sorted(messages, key=lambda each: each.partition), inline=inline)
        if not records:
            return done
        header, *rest = records
        assert isinstance(header, LogHeader)
        if header.query != self._query:
            message = (
                f"Batch {self._producer.epoch} of {self._producer.name} was written by another "
                f"query, {header.query}; give each its own producerId, and another one if a "
                "checkpoint was deleted."
            )
            raise SinkError(message)
        staged = [each.url for each in rest if isinstance(each, StagedRecord)]
        if not any(isinstance(each, DoneRecord) for each in rest):
            appender = Appender(self._options, self._settings, self._producer, header.append_bytes)
            for each in self._rows(rest):
                appender.add(each.stream, [*each.values], done)
            appender.finish(done)
            if staged:
                self._send("POST", self._url(self._producer.epoch), KIND, DoneRecord().encode())
        self._delete(*{*staged, *(each.staged for each in messages if each.staged)})
        return done

    def forget(self, batch: int) -> None:
        """Delete the log of a batch that Spark has committed."""
        if batch >= 0:
            self._delete(self._url(batch))

    def discard(self, messages: list[Written]) -> None:
        """Delete what tasks of a failed run staged."""
        self._delete(*(each.staged for each in messages if each.staged))

    def _settled(self, messages: list[Written], *, inline: bool) -> list[LogRecord]:
        """Return the log of this batch: that of the first run that came so far; nothing of none."""
        url = self._url(self._producer.epoch)
        records: list[RowsRecord | StagedRecord] = []
        for each in messages:
            records += [RowsRecord(name, tuple(rows)) for name, rows in each.rows.items() if rows]
            records += [StagedRecord(each.staged)] if each.staged else []
        if not records:
            reply = self._send("HEAD", url, {}, None, accept=(404, 410))
            return [*decoded(self._pages(url))] if reply.status == OK else []
        sizes = [sum(map(len, each.values)) for each in records if isinstance(each, RowsRecord)]
        if sum(sizes) > (self.append_bytes if inline else 0):
            records = [*self._restaged(records)]
        ours: list[LogRecord] = [LogHeader(self._query, self.append_bytes), *records]
        body = b"".join(each.encode() for each in ours)
        reply = self._send("PUT", url, KIND, body, accept=(409,))
        # It may be ours also where it was there: a create is repeated after a lost answer.
        return ours if reply.status == CREATED else [*decoded(self._pages(url))]

    def _restaged(
        self, records: list[RowsRecord | StagedRecord]
    ) -> Iterator[RowsRecord | StagedRecord]:
        """Yield records without rows: those of several tasks in one staged stream."""
        waiting: list[RowsRecord] = []
        for each in [*records, None]:
            if isinstance(each, RowsRecord):
                waiting.append(each)
                continue
            if waiting:
                url = self.stage()
                self.extend(url, waiting)
                yield StagedRecord(url)
                waiting = []
            if each is not None:
                yield each

    def _rows(self, records: list[LogRecord]) -> Iterator[RowsRecord]:
        for each in records:
            if isinstance(each, RowsRecord):
                yield each
            elif isinstance(each, StagedRecord):
                for some in decoded(self._pages(each.url)):
                    assert isinstance(some, RowsRecord)
                    yield some

    def _pages(self, url: str) -> Iterator[bytes]:
        token = "-1"
        while True:
            reply = self._send("GET", f"{url}?offset={quote(token)}", {}, None)
            if reply.body:
                yield reply.body
            after = reply.headers.get("stream-next-offset", token)
            if after == token or reply.headers.get("stream-up-to-date") == "true":
                return
            token = after

    def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        *,
        accept: tuple[int, ...] = (),
    ) -> Reply:
        try:
            return self._client.request(method, url, headers, body, accept=accept)
        except ServerRefusedError as exc:
            message = (
                f"{exc} commitMode=driver keeps a batch below {self._options.log_base()} until it "
                "is committed; name a place that may be written with option commitLog, or, if the "
                "query reads format durastream and does not shuffle, use commitMode=partition."
            )
            raise SinkError(message) from exc

    def _delete(self, *urls: str) -> None:
        for url in urls:  # what may not be deleted stays, and harms nobody
            self._client.request("DELETE", url, accept=(403, 404, 405, 410))


def _bodies(records: list[RowsRecord], bytes_max: int) -> Iterator[bytes]:
    """Yield records in bodies of about a size; one of many rows is cut."""
    body: list[bytes] = []
    size = 0
    for record in records:
        for part in _parts(record, bytes_max):
            piece = part.encode()
            if body and size + len(piece) > bytes_max:
                yield b"".join(body)
                body, size = [], 0
            body.append(piece)
            size += len(piece)
    if body:
        yield b"".join(body)


def _parts(record: RowsRecord, bytes_max: int) -> Iterator[RowsRecord]:
    values: list[bytes] = []
    size = 0
    for value in record.values:
        if values and size + len(value) > bytes_max:
            yield RowsRecord(record.stream, tuple(values))
            values, size = [], 0
        values.append(value)
        size += len(value)
    yield RowsRecord(record.stream, tuple(values))
