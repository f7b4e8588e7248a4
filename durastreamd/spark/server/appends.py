"""Appends of the sink, each by a producer, so that the server stores it once."""

import json
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from durastreamd.client import ClientSettings, Reply, ServerRefusedError, shared_client
from durastreamd.protocol import content_type as ct
from durastreamd.spark.errors import SinkError
from durastreamd.spark.options import SinkOptions

KNOWN = 204  # the status of an append that the server has stored before

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
    """What a task has done: counts, and in commitMode=driver the rows, or where they wait."""

    partition: int
    query: str = ""
    streams: dict[str, int] = field(default_factory=dict)  # rows of each
    appends: int = 0
    repeated: int = 0  # appends that the server knew already
    repeated_rows: int = 0
    rows: dict[str, list[bytes]] = field(default_factory=dict)
    staged: str = ""  # the URL of a stream that holds the rows


class Appender:
    """Appends the rows of one producer, gathered into chunks for each stream."""

    def __init__(
        self,
        options: SinkOptions,
        settings: ClientSettings,
        producer: SinkProducer,
        append_bytes: int = 0,
    ) -> None:
        self._options = options
        self._limit = append_bytes or options.max_append_bytes
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

    def finish(self, written: Written) -> None:
        """Append what is left, stream by stream in the order of names."""
        for name in sorted(self._targets):
            if self._targets[name].values:
                self._append(self._targets[name], written)

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
            return made.headers.get("content-type", wanted)
        found = reply.headers.get("content-type", ct.DEFAULT)
        if wanted and not ct.same(wanted, found):
            message = f"Stream {stream} holds {found}; option contentType says {wanted}."
            raise SinkError(message)
        return found

    def _append(self, target: "Target", written: Written) -> None:
        target.check()
        headers = {"Content-Type": target.content_type, **self._producer.headers(target.seq)}
        reply = self._send(target.stream, target.url, headers, target.body())
        written.appends += 1
        if reply.status == KNOWN:
            written.repeated += 1
            written.repeated_rows += len(target.values)
        target.next_chunk()

    def _send(
        self,
        stream: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        *,
        method: str = "POST",
    ) -> Reply:
        try:
            return self._client.request(method, url, headers, body)
        except ServerRefusedError as exc:
            message = f"Stream {stream}: {exc} {_ADVICE.get(exc.name, '')}".rstrip()
            raise SinkError(message) from exc


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
