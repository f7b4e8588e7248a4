"""Create, append, close, delete: parse, ask the stream's actor, answer."""

from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import trio

from durastreamd.http.exchange import Exchange, Request
from durastreamd.model.draft import AppendCommand, Payload
from durastreamd.model.namespace import CreateCommand, ForkPoint
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data, content_type as ct, json_mode, offsets, problems
from durastreamd.protocol.names import place_of
from durastreamd.protocol.outcomes import Gone, Malformed, NotFound, Outcome
from durastreamd.protocol.requests import (
    ForkHead,
    ProblemError,
    append_head,
    create_head,
)
from durastreamd.service.access.gate import Permit
from durastreamd.service.answers import (
    Answer,
    answer_append,
    answer_create,
    answer_delete,
    refusal_of,
)
from durastreamd.service.limits import WriteLimits
from durastreamd.service.operating.counts import Counts
from durastreamd.service.reader import Reader
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import DeleteCommand

Told = Callable[[Outcome | Exception], None]

_EMPTY_ARRAY = Malformed("EMPTY_ARRAY", "An empty array appends nothing; send at least one value.")


class Writes:
    """The write half of the protocol."""

    def __init__(
        self, streams: Streams, reader: Reader, limits: WriteLimits, counts: Counts
    ) -> None:
        self._counts = counts
        self._streams = streams
        self._reader = reader
        self._limits = limits

    async def append(self, exchange: Exchange, key: str) -> Answer:
        """POST: append, close, or both."""
        request = exchange.request
        _refuse_encoding(request)
        head = append_head(request.headers)
        begun = self._counts.begin_append()
        body = await self._body(exchange)
        if not body and not head.closes:
            detail = "The body is empty; an append needs data, a closure needs Stream-Closed: true."
            raise ProblemError(problems.EMPTY_BODY, detail)
        payload: Payload | Malformed | None = None
        if body:
            if head.content_type is None:
                detail = "A body needs a Content-Type: that of the stream."
                raise ProblemError(problems.MISSING_CONTENT_TYPE, detail)
            payload = await self._payload(head.content_type, body) or _EMPTY_ARRAY
        command = AppendCommand(payload, head.content_type, head.closes, head.producer, head.seq)
        outcome = await self._stored(key, command)
        self._counts.end_append(outcome, begun)
        return answer_append(outcome)

    async def _body(self, exchange: Exchange) -> Data:
        """Return the body; it is counted against the budget until the exchange ends."""
        if not exchange.request.has_body:
            return b""
        return await exchange.body(self._limits.append_bytes_max)

    async def _stored(self, key: str, command: AppendCommand | CreateCommand) -> Outcome:
        """Have a body stored. It is in memory until that is done, also for a client that left."""
        with trio.CancelScope(shield=True):
            return await self._streams.ask(key, command)
        message = "nobody cancels this scope"
        raise AssertionError(message)

    def append_quickly(self, request: Request, key: str, body: bytes, told: Told) -> bool:
        """POST of a short body that is here already; False, or an exception, if it cannot be."""
        head = append_head(request.headers)
        kind = head.content_type
        limits = self._limits
        if kind is None or not 0 < len(body) <= limits.parse_inline_bytes:
            return False
        if len(body) > limits.append_bytes_max:
            return False
        _refuse_encoding(request)
        payload = _payload_of(kind, body, limits.append_messages_max) or _EMPTY_ARRAY
        command = AppendCommand(payload, kind, head.closes, head.producer, head.seq)
        self._streams.post(key, command).tell(told)
        return True

    async def _payload(self, content_type: str, body: Data) -> Payload | Malformed | None:
        """Return a body in wire form, None for an empty array."""
        job = partial(_payload_of, content_type, body, self._limits.append_messages_max)
        if len(body) <= self._limits.parse_inline_bytes or not ct.is_json(content_type):
            return job()
        return await self._streams.blocking(job)

    async def create(self, exchange: Exchange, key: str, permit: Permit | None = None) -> Answer:
        """PUT: make the stream, or find it with the same configuration."""
        request = exchange.request
        _refuse_encoding(request)
        head = create_head(request.headers)
        if permit is not None and head.fork is not None:
            permit.check_read(_source_key(head.fork.source))  # a fork shows what its source has
        body = await self._body(exchange)
        fork = await self._fork_point(key, head.fork) if head.fork is not None else None
        kind = head.content_type or (self._source_type(fork) if fork else ct.DEFAULT)
        payload = await self._payload(kind, body) if body else None
        command = CreateCommand(
            key, head.content_type, head.ttl_ms, head.expires_ms, head.closes, payload, fork
        )
        outcome = await self._stored(key, command)
        location = f"{request.scheme}://{request.authority}{request.path}"
        return answer_create(outcome, location)

    def _source_type(self, fork: ForkPoint) -> str:
        source = self._streams.find(fork.source)
        return source.content_type if isinstance(source, Stream) else ct.DEFAULT

    async def _fork_point(self, key: str, fork: ForkHead) -> ForkPoint:
        """Find the place a fork names; where the fork exists already its words are enough."""
        source_key = _source_key(fork.source)
        position = _fork_position(fork.offset)
        anchor = -1 if position is None else position
        try:
            return await self._resolve(source_key, position, fork.sub)
        except ProblemError:
            if isinstance(self._streams.find(key), Stream):
                # Enough to recognise the same request; not enough to make a fork by.
                return ForkPoint(source_key, -1, 0, anchor, fork.sub)
            raise

    async def _resolve(self, source_key: str, position: int | None, sub: int) -> ForkPoint:
        source = self._streams.find(source_key)
        if isinstance(source, NotFound):
            raise ProblemError(problems.NOT_FOUND, "The source of the fork does not exist.")
        if isinstance(source, Gone):
            raise ProblemError(problems.FORK_CONFLICT, "The source of the fork was deleted.")
        if position is None:
            return ForkPoint(source_key, source.tail, source.messages)
        if position > source.tail:
            detail = "Stream-Fork-Offset lies past the end of the source."
            raise ProblemError(problems.INVALID_FORK, detail)
        found = await self._reader.resolve_fork(source, position, sub)
        return ForkPoint(source_key, *found, position, sub)

    async def delete(self, key: str) -> Answer:
        """DELETE: the stream ends."""
        return answer_delete(await self._streams.ask(key, DeleteCommand()))

    def head(self, key: str) -> Stream:
        """Return the stream for HEAD; raises the problem if there is none."""
        found = self._streams.find(key)
        if isinstance(found, Stream):
            return found
        refusal = refusal_of(found)
        assert refusal is not None
        raise refusal


def _payload_of(content_type: str, body: Data, messages_max: int) -> Payload | Malformed | None:
    if not ct.is_json(content_type):
        return Payload(body)
    try:
        wire, count = json_mode.split(body, messages_max)
    except json_mode.TooManyMessagesError as exc:
        detail = f"The body holds more than {messages_max} messages; send them in several."
        raise ProblemError(problems.PAYLOAD_TOO_LARGE, detail) from exc
    except json_mode.InvalidJsonError as exc:
        reason = str(exc)
        return Malformed("INVALID_JSON", reason[0].upper() + reason[1:] + ".")
    return Payload(wire, count) if count else None


def _source_key(source: str) -> str:
    """Return the key of the stream that Stream-Forked-From names, by its path or its URL."""
    try:
        path = urlsplit(source).path
    except ValueError:
        path = ""
    if not path.startswith("/"):
        detail = "Stream-Forked-From is the path of a stream on this server."
        raise ProblemError(problems.INVALID_FORK, detail)
    place = place_of(path)
    if place.part or place.is_bucket:
        detail = "Stream-Forked-From names a bucket or a part of a stream, not a stream."
        raise ProblemError(problems.INVALID_FORK, detail)
    return place.key


def _fork_position(token: str | None) -> int | None:
    """Return the position of a fork offset, None for the tail."""
    if token is None or token == offsets.NOW:
        return None
    if token == offsets.START:
        return 0
    position = offsets.parse(token)
    if position is None:
        detail = f"Stream-Fork-Offset {problems.quoted(token)} is not an offset of this server."
        raise ProblemError(problems.INVALID_FORK, detail)
    return position


def _refuse_encoding(request: Request) -> None:
    encoding = request.headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        detail = "Bodies are stored as sent; send them without Content-Encoding."
        raise ProblemError(problems.UNSUPPORTED_ENCODING, detail)
