"""Reading without holding the event loop: memory first, the page cache, then a thread.

A job on a view runs on the loop only as long as its bytes are at hand and its work stays within
what a turn may do (``engine.view.TURN_BYTES``); then it begins anew in a thread. So whatever a
client asks for, the loop is held for one turn's work at most. Nothing here, nor in the forms that
pages are sent in, holds more than a few pieces of a page or a message for a reader.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from durastreamd.engine.view import TURN_BYTES, View
from durastreamd.errors import ColdReadError, LongReadError, StreamDamagedError
from durastreamd.http.exchange import Request
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data, json_mode, offsets, problems
from durastreamd.protocol.requests import Lookup, ProblemError, incarnation_of, query_of
from durastreamd.service.answers import next_offset, other_life, refusal_of
from durastreamd.streams.registry import Streams

T = TypeVar("T")

_SHARES = 4  # jobs as large as this part of a turn do not share one


class Page(NamedTuple):
    """A range of whole messages, and whether it reaches what was the end when it was taken."""

    start: int
    end: int
    tail: int
    closed: bool

    @property
    def up_to_date(self) -> bool:
        """Tell whether there was nothing after it."""
        return self.end == self.tail

    @property
    def final(self) -> bool:
        """Tell whether there never will be anything after it."""
        return self.up_to_date and self.closed


class Reader:
    """Looks things up in views."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def existing(self, key: str) -> Stream:
        """Return a stream that is there, or raise the problem."""
        found = self._streams.find(key)
        if isinstance(found, Stream):
            return found
        refusal = refusal_of(found)
        assert refusal is not None
        raise refusal

    def readable(self, key: str) -> Stream:
        """Return a stream that is there and whole, or raise the problem."""
        stream = self.existing(key)
        if stream.damage:
            raise StreamDamagedError(stream.damage)
        return stream

    def asked(self, request: Request, key: str, *, whole: bool = True) -> Stream:
        """Return the stream that a request reads, if it is there and the one that was meant.

        Which one is meant a header says, or the URL: then an answer can be kept for ever.
        """
        stream = self.readable(key) if whole else self.existing(key)
        meant = incarnation_of(request.headers)
        if meant is not None:
            self.require(stream, meant)
        if "incarnation" in request.query:
            for each in query_of(request.query).get("incarnation", ()):
                self.require(stream, each)
        return stream

    def life(self, stream: Stream) -> tuple[bytes, bytes]:
        """Return the header that says which life of its name a stream is."""
        return (b"Stream-Incarnation", self._streams.engine.incarnation(stream).encode())

    def require(self, stream: Stream, incarnation: str) -> None:
        """Raise the problem of a request that is for another life of a stream's name."""
        if incarnation != self._streams.engine.incarnation(stream):
            raise other_life(self.life(stream))

    async def look(self, view: View, job: Callable[[], T]) -> T:
        """Run a job on a view here if that is soon done, in a thread if it is not."""
        try:
            view.at_once()
            found = job()
            if view.spent > TURN_BYTES // _SHARES:
                await trio.lowlevel.checkpoint()  # what follows has a turn of its own
            return found
        except (ColdReadError, LongReadError):
            view.wait = True
            return await self._streams.blocking(job)

    def position_of(self, stream: Stream, token: str | None) -> int:
        """Return where a read begins; alignment is not looked at yet."""
        if token == offsets.NOW:
            return stream.tail
        if token is None or token == offsets.START:
            position = 0
        else:
            parsed = offsets.parse(token)
            if parsed is None:
                detail = offsets.misread(problems.quoted(token), token)
                raise ProblemError(problems.INVALID_OFFSET, detail)
            position = min(parsed, stream.tail)
        # A snapshot makes the start unreadable as such, also one of nothing: what it folds is only
        # in the snapshot.
        from_start = token is None or token == offsets.START
        if position < stream.floor or (from_start and stream.snapshot is not None):
            raise below_floor(stream)
        return position

    async def page(
        self, view: View, stream: Stream, start: int, bytes_max: int, stop: int | None = None
    ) -> Page:
        """Return the page from ``start``, at most to ``stop``; refuse places inside a message."""
        closed = stream.closed

        def find() -> Page | int:
            for place in (start, stop):
                inside = place is not None and view.floor < place < view.tail
                if place is not None and inside and not view.is_boundary(place):
                    return place
            end = view.page_end(start, bytes_max)
            if stop is not None:
                end = max(min(end, stop), start)
            return Page(start, end, view.tail, closed)

        found = await self.look(view, find)
        if isinstance(found, int):
            detail = f"Offset {offsets.mint(found)} lies inside a message."
            raise ProblemError(problems.INVALID_OFFSET, detail)
        return found

    async def find(self, stream: Stream, lookup: Lookup) -> tuple[int, int]:
        """Return a place that can be read from, and how many messages lie before it."""
        with self._streams.engine.reading(stream) as view:
            if lookup.by != "at-offset":
                return await self.look(view, partial(_found, view, lookup))
            start = self.position_of(stream, lookup.offset)
            await self.page(view, stream, start, 1)  # refuses a place inside a message
            return await self.look(view, lambda: (start, view.ordinal_at(start)))

    async def read(self, view: View, start: int, end: int) -> bytes:
        """Return a range of bytes."""
        return await self.look(view, partial(view.read, start, end))

    async def piece_end(self, view: View, start: int, end: int, bytes_max: int) -> int:
        """Return where the piece from ``start`` ends; see ``View``."""
        return await self.look(view, partial(view.piece_end, start, end, bytes_max))

    async def lend(self, view: View, start: int, end: int, buffer: memoryview) -> Data:
        """Return a range of bytes, good until ``buffer`` is used again."""
        return await self.look(view, partial(view.lend, start, end, buffer))

    async def resolve_fork(self, source: Stream, anchor: int, sub: int) -> tuple[int, int]:
        """Return position and ordinal of the place ``sub`` bytes or messages after the anchor."""
        with self._streams.engine.reading(source) as view:
            return await self.look(view, partial(_fork_point, view, source, anchor, sub))


def below_floor(stream: Stream) -> ProblemError:
    """Return the refusal of whatever lies before the first offset that can be read."""
    fields = (next_offset(stream.floor),)
    low = stream.lost_from()
    first = offsets.mint(stream.floor)
    if low is None and stream.whole:
        detail = "The data before the latest snapshot is gone; read /bootstrap, then go on."
        return ProblemError(problems.OFFSET_EXPIRED, detail, fields)
    if low is None:
        detail = (
            f"What came before {first} is not kept any more; that is the first that can be read."
        )
        return ProblemError(problems.RETENTION_PASSED, detail, fields)
    detail = f"What this stream held from {offsets.mint(low)} to {first} was lost, and its operator"
    detail += f" repaired it without; the first offset that can be read is {first}."
    if stream.snapshot is not None:
        detail += f" The snapshot at {offsets.mint(low)} is whole and can be read by itself."
    return ProblemError(problems.DATA_LOST, detail, fields)


def _found(view: View, lookup: Lookup) -> tuple[int, int]:
    if lookup.by == "at":
        position = view.position_at(lookup.number)
    elif lookup.by == "at-message":
        position = view.position_of_message(lookup.number)
    else:
        wanted = lookup.number - view.floor
        position = view.page_end(view.floor, wanted) if wanted > 0 else view.floor
    return position, view.ordinal_at(position)


def _fork_point(view: View, source: Stream, anchor: int, sub: int) -> tuple[int, int]:
    if anchor < source.floor:
        if source.lost_from() is not None:
            raise below_floor(source)
        detail = "Stream-Fork-Offset lies below what the source retains."
        raise ProblemError(problems.OFFSET_EXPIRED, detail, (next_offset(source.floor),))
    if not view.is_boundary(anchor):
        raise ProblemError(problems.INVALID_FORK, "Stream-Fork-Offset lies inside a message.")
    ordinal = view.ordinal_at(anchor)
    if sub == 0:
        return anchor, ordinal
    if source.json:
        return _after_messages(view, ordinal, sub)
    message = next(view.messages(anchor), None)
    if message is None or anchor + sub > message[1]:
        detail = f"The message at the fork offset has fewer than {sub} bytes."
        raise ProblemError(problems.INVALID_FORK, detail)
    return anchor + sub, ordinal + 1


def _after_messages(view: View, ordinal: int, count: int) -> tuple[int, int]:
    if ordinal + count > view.ordinal_at(view.tail):
        detail = f"There are fewer than {count} messages after the fork offset."
        raise ProblemError(problems.INVALID_FORK, detail)
    return view.position_of_message(ordinal + count), ordinal + count


def array_length(page: Page) -> int:
    """Return the length of a page as a JSON array: its brackets replace a separator."""
    return max(page.end - page.start, len(b"[]"))


assert len(json_mode.SEPARATOR) == len(b"[]"), "array_length relies on it"
