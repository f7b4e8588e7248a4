"""PATCH of a stream: how far back it is kept, by hand or by a policy (docs/http.md)."""

from durastreamd.http.exchange import Exchange
from durastreamd.model.retention import Change
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import offsets, outcomes as oc, problems
from durastreamd.protocol.requests import ProblemError, retention_head
from durastreamd.service.answers import next_offset, refusal_of
from durastreamd.service.reader import Reader
from durastreamd.service.reads import policy_fields
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import RetainCommand


class Retention:
    """Changes how far back streams are kept."""

    def __init__(self, streams: Streams, reader: Reader) -> None:
        self._streams = streams
        self._reader = reader

    async def answer(self, exchange: Exchange, stream: Stream) -> None:
        """Answer a PATCH."""
        head = retention_head(exchange.request.headers)
        floor = None if head.start is None else await self._place(stream, head.start)
        change = Change(floor, head.age_ms, head.size, head.messages)
        outcome = await self._streams.ask(stream.key, RetainCommand(stream.id, change))
        if not isinstance(outcome, oc.Retained):
            refusal = refusal_of(outcome)
            assert refusal is not None
            raise refusal
        fields = [
            (b"Stream-First-Offset", offsets.mint(outcome.floor).encode()),
            next_offset(stream.tail),
            self._reader.life(stream),
            *policy_fields(stream.policy),
        ]
        await exchange.respond(204, fields)

    async def _place(self, stream: Stream, token: str) -> int:
        """Return the position of an offset between two messages; what is gone already stays so."""
        if token == offsets.NOW:
            return stream.tail
        position = 0 if token == offsets.START else offsets.parse(token)
        if position is None or position > stream.tail:
            detail = f"Stream-Retain-From {problems.quoted(token)} is no offset of this stream."
            raise ProblemError(problems.INVALID_OFFSET, detail, (next_offset(stream.tail),))
        if position > stream.floor:
            with self._streams.engine.reading(stream) as view:
                await self._reader.page(view, stream, position, 1)  # refuses one inside a message
        return position
