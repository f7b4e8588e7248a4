"""Create, append, close, delete: parse, ask the stream's actor, answer."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import trio
from msgspec import structs

from durastreamd.engine.view import TURN_BYTES
from durastreamd.http.exchange import Exchange, Request
from durastreamd.model.draft import AppendCommand, Conditions
from durastreamd.model.namespace import CreateCommand, ForkPoint
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data, content_type as ct, offsets, problems
from durastreamd.protocol.names import place_of
from durastreamd.protocol.outcomes import Gone, NotFound, Outcome
from durastreamd.protocol.requests import (
    ConditionHead,
    ForkHead,
    ProblemError,
    create_head,
    incarnation_of,
)
from durastreamd.service.access.gate import Permit
from durastreamd.service.answers import (
    Answer,
    answer_append,
    answer_create,
    answer_delete,
)
from durastreamd.service.bodies import (
    append_command,
    append_head,
    payload_of,
    refuse_encoding,
    repeat_sum,
)
from durastreamd.service.limits import Limits
from durastreamd.service.operating.counts import Counts
from durastreamd.service.reader import Reader
from durastreamd.storage.extensions import STRICT_PRODUCERS
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import DeleteCommand, Ticket

T = TypeVar("T")

# Large JSON bodies that are taken apart at one time. Each takes up to twice its length besides what
# the budget counts; more at once would not be faster, since each needs the interpreter.
SPLITS_MAX = 2


class Writes:
    """The write half of the protocol."""

    def __init__(self, streams: Streams, reader: Reader, limits: Limits, counts: Counts) -> None:
        self._counts = counts
        self._streams = streams
        self._reader = reader
        self._limits = limits
        self._splits = trio.CapacityLimiter(SPLITS_MAX)

    async def append(self, exchange: Exchange, key: str) -> Answer:
        """POST: append, close, or both."""
        limits = self._limits.writes
        head = append_head(exchange.request)
        begun = self._counts.begin_append()
        body = await self._body(exchange)
        job = partial(append_command, head, body, limits)
        command = await self._judged(head.content_type, body, job)
        if head.conditions is not None:
            same = None
            if head.conditions.strict:
                short = len(body) <= TURN_BYTES
                summing = partial(repeat_sum, command)
                same = summing() if short else await self._streams.blocking(summing)
            command = self._bound(key, head.conditions, command, same)
        del body, job  # of JSON the command has a copy: what is counted is held once
        return self.appended(await self._stored(key, command), begun)

    def post(self, request: Request, key: str, body: bytes) -> Ticket:
        """POST of a short body that is here already; the ticket gets the outcome."""
        head = append_head(request)
        command = append_command(head, body, self._limits.writes)
        if head.conditions is not None:
            same = repeat_sum(command) if head.conditions.strict else None
            command = self._bound(key, head.conditions, command, same)
        return self._streams.post(key, command)

    def _bound(
        self, key: str, asked: ConditionHead, command: AppendCommand, same: str | None
    ) -> AppendCommand:
        """Return the command with what the stream has to be when it is decided."""
        conditions = Conditions(self._life(key, asked.incarnation), asked.expected, same)
        if same is not None:
            self._streams.engine.extend(STRICT_PRODUCERS)
        return structs.replace(command, conditions=conditions)

    def _life(self, key: str, incarnation: str | None) -> int | None:
        """Return the id of the stream a request is for, None where any will do, -1 if it is gone.

        Raises the problem of another stream in its place. That may change until the request is
        decided, so who decides it compares ids: they are given once.
        """
        if incarnation is None:
            return None
        stream = self._streams.find(key)
        if not isinstance(stream, Stream):
            return -1
        self._reader.require(stream, incarnation)
        return stream.id

    def appended(self, outcome: Outcome | Exception, begun: float) -> Answer:
        """Note what became of an append, and answer it, or raise why it has no answer."""
        if isinstance(outcome, Exception):
            raise outcome
        self._counts.end_append(outcome, begun)
        return answer_append(outcome)

    async def _body(self, exchange: Exchange) -> Data:
        """Return the body; it is counted against the budget until the exchange ends."""
        if not exchange.request.has_body:
            return b""
        return await exchange.body(self._limits.writes.append_bytes_max)

    async def _stored(self, key: str, command: AppendCommand | CreateCommand) -> Outcome:
        """Have a body stored. It is in memory until that is done, also for a client that left."""
        return await self._streams.post(key, command).outcome(stays=True)

    async def _judged(self, content_type: str | None, body: Data, job: Callable[[], T]) -> T:
        """Return what is made of a body; where that takes long, a thread makes it."""
        short = len(body) <= self._limits.writes.parse_inline_bytes
        if short or content_type is None or not ct.is_json(content_type):
            return job()
        async with self._splits:
            return await self._streams.blocking(job)

    async def create(self, exchange: Exchange, key: str, permit: Permit | None = None) -> Answer:
        """PUT: make the stream, or find it with the same configuration."""
        request = exchange.request
        refuse_encoding(request)
        head = create_head(request.headers)
        if permit is not None and head.fork is not None:
            permit.check_read(_source_key(head.fork.source))  # a fork shows what its source has
        body = await self._body(exchange)
        fork = await self._fork_point(key, head.fork) if head.fork is not None else None
        kind = head.content_type or (self._source_type(fork) if fork else ct.DEFAULT)
        job = partial(payload_of, kind, body, self._limits.writes)
        payload = await self._judged(kind, body, job) if body else None
        del body, job
        life = self._life(key, incarnation_of(request.headers))
        command = CreateCommand(
            key, head.content_type, head.ttl_ms, head.expires_ms, head.closes, payload, fork, life
        )
        outcome = await self._stored(key, command)
        location = f"{request.scheme}://{request.public or request.authority}{request.path}"
        answer = answer_create(outcome, location)
        stream = self._streams.find(key)
        if isinstance(stream, Stream):
            answer.headers.append(self._reader.life(stream))
        return answer

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

    async def delete(self, exchange: Exchange, key: str) -> Answer:
        """DELETE: the stream ends."""
        life = self._life(key, incarnation_of(exchange.request.headers))
        return answer_delete(await self._streams.ask(key, DeleteCommand(life=life)))


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
