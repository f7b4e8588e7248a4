"""Live reads: long-poll and server-sent events.

A response never moves its client past bytes it did not deliver: the position told is the end of
what was sent, taken together with "up to date" and "closed" from one look at the stream. A reader
at the tail follows *before* it looks, so nothing that lands in between is missed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import trio

from durastreamd.engine.view import View
from durastreamd.errors import StorageError
from durastreamd.http.exchange import Exchange
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import cursor, offsets, problems, sse
from durastreamd.protocol.requests import ProblemError, ReadHead
from durastreamd.service.access.gate import END_S, Lease, Permit
from durastreamd.service.answers import CLOSED, NOT_CACHED, Fields, next_offset, refusal_of
from durastreamd.service.limits import Limits
from durastreamd.service.operating.counts import LONG_POLL, SSE, Counts
from durastreamd.service.reader import Page, Reader, below_floor
from durastreamd.service.reads import UP_TO_DATE, Reads
from durastreamd.streams.follower import Follower, ReaderFacts
from durastreamd.streams.registry import Streams

# Of a message that is larger than an event should be: made and sent at once. Six times as much in
# the event, if it is nothing but line ends.
EVENT_PIECE_BYTES = 64 * 1024

_TOLD_MAX = 1024  # connections that are remembered for being told that a stream is closed ...
_TOLD_S = 5.0  # ... and for how long: who comes back later is in no hurry


class LiveReads:
    """GET with ``live``."""

    def __init__(
        self, streams: Streams, reader: Reader, reads: Reads, limits: Limits, counts: Counts
    ) -> None:
        self.counts = counts
        self.streams = streams
        self.reader = reader
        self.limits = limits
        self.ending = False  # the server is draining: live reads are answered and not renewed
        self._reads = reads
        # Who was told lately that a stream is closed: the connection, the stream, and when.
        self._told: dict[tuple[str, int], float] = {}

    def end_all(self) -> None:
        """Have every waiting reader answered now; their clients go on elsewhere or later."""
        self.ending = True
        self.streams.wake_all()

    @contextmanager
    def _following(self, exchange: Exchange, stream: Stream, mode: str) -> Iterator[Follower]:
        """Lend a place at the tail, counted and shown as that of a live reader."""
        reader = ReaderFacts(self.streams.clock(), mode, exchange.request.peer)
        self.counts.live[mode] += 1
        try:
            with self.streams.follow(stream, reader) as follower:
                yield follower
        finally:
            self.counts.live[mode] -= 1

    async def _pause(
        self, exchange: Exchange, stream: Stream, start: int, echoed: str | None
    ) -> None:
        """Slow down a client that asks for what follows the end of a closed stream, over and over.

        There are clients that do not know Stream-Closed (durable-streams 0.1.0 for Python); the
        protocol has them answered at once, so they would ask a thousand times a second. One that
        comes back is known by the cursor it echoes, or by its connection.
        """
        if not stream.closed or start < stream.tail:
            return
        now = trio.current_time()
        who = (exchange.request.peer, stream.id)
        before = self._told.pop(who, -math.inf)
        self._told[who] = now
        if len(self._told) > _TOLD_MAX:
            del self._told[next(iter(self._told))]
        if echoed is not None or now - before < _TOLD_S:
            self.counts.closed_pauses += 1
            await trio.sleep(self.limits.reads.closed_pause_s)
            self._told[who] = trio.current_time()

    # --- long-poll ---

    async def long_poll(
        self, exchange: Exchange, stream: Stream, head: ReadHead, permit: Permit | None = None
    ) -> None:
        """Answer when there is data after the offset, when the stream closes, or in the end."""
        self._refuse_new()
        self.streams.touch(stream)
        start = self.reader.position_of(stream, head.offset)
        await self._pause(exchange, stream, start, head.cursor)
        lease = permit.lease() if permit is not None else None
        with self._following(exchange, stream, LONG_POLL) as follower:
            async with exchange.until_hang_up() as scope:
                with lease or nullcontext():
                    await self._wait_past(stream, follower, start)
            if scope.cancelled_caught:
                exchange.abort()
                return
        if lease is not None and lease.ended:
            raise lease.refusal()
        self._still_there(stream)
        mark = cursor.after(head.cursor, self.streams.clock())
        fields: Fields = [(b"Stream-Cursor", b"%d" % mark)]
        if start < stream.floor:
            raise below_floor(stream)
        if stream.tail > start:
            # Kept by caches as a catch-up is, so that one answer serves all who wait here; who goes
            # on echoes the cursor and so asks by a URL that nobody has used before.
            lasting = head.offset != offsets.NOW
            reads = self._reads
            sent = await reads.send_page(exchange, stream, start, lasting=lasting, extra=fields)
            self.counts.read_bytes[LONG_POLL] += sent
            return
        fields += [next_offset(start), self.reader.life(stream), UP_TO_DATE, NOT_CACHED]
        if stream.closed:
            fields.append(CLOSED)
        await exchange.respond(204, fields)

    async def _wait_past(self, stream: Stream, follower: Follower, start: int) -> None:
        with trio.move_on_after(self.limits.reads.long_poll_s):
            while stream.tail <= start and not stream.closed and not self.ending:
                if not self.present(stream):
                    return
                await follower.changed()

    def _refuse_new(self) -> None:
        """Send new live readers elsewhere: one that is accepted and ended at once, three times,
        makes the public client give up server-sent events for good.
        """
        if self.ending:
            detail = "The server is going down; come back in a moment."
            later = ((b"Retry-After", b"1"),)
            raise ProblemError(problems.UNAVAILABLE, detail, later, retryAfter=1)

    def present(self, stream: Stream) -> bool:
        """Tell whether this very stream, not one made anew, is still to be read."""
        return self.streams.find(stream.key) is stream

    def _still_there(self, stream: Stream) -> None:
        """Raise if the stream ceased to exist while it was followed."""
        found = self.streams.find(stream.key)
        if found is stream:
            return
        if isinstance(found, Stream):
            raise ProblemError(problems.NOT_FOUND, "The stream was deleted and made anew.")
        refusal = refusal_of(found)
        assert refusal is not None
        raise refusal

    # --- server-sent events ---

    async def events(
        self, exchange: Exchange, stream: Stream, head: ReadHead, permit: Permit | None = None
    ) -> None:
        """Send everything after the offset as events, then follow."""
        self._refuse_new()
        self.streams.touch(stream)
        start = self.reader.position_of(stream, head.offset)
        with self.streams.engine.reading(stream) as view:
            await self.reader.page(view, stream, start, 1)  # refuses a place inside a message
        await self._pause(exchange, stream, start, head.cursor)
        fields = [(b"Content-Type", b"text/event-stream"), (b"Cache-Control", b"no-cache")]
        fields += [(b"X-Accel-Buffering", b"no"), self.reader.life(stream)]
        if sse.needs_base64(stream.content_type):
            fields.append((b"Stream-SSE-Data-Encoding", b"base64"))
        with self._following(exchange, stream, SSE) as follower:
            session = _Session(self, exchange, stream, follower, start, head.cursor)
            lease = permit.lease(follower.rouse) if permit is not None else None
            await exchange.start(200, fields)
            async with exchange.until_hang_up() as scope:
                with lease or nullcontext():
                    await session.run(lease)
            if scope.cancelled_caught:
                exchange.abort()
            else:
                await exchange.finish()


class _Session:
    """One SSE response: where it stands, and how it goes on."""

    def __init__(
        self,
        live: LiveReads,
        exchange: Exchange,
        stream: Stream,
        follower: Follower,
        position: int,
        echoed: str | None,
    ) -> None:
        self._live = live
        self._exchange = exchange
        self._stream = stream
        self._follower = follower
        self._position = position
        self._echoed = echoed
        self._told_closed = False

    async def run(self, lease: Lease | None) -> None:
        """Catch up, then follow until the stream ends or the response has lived long enough.

        It ends between two events: who is cut off in the middle of one sees a broken connection.
        Only a client that takes what is being sent for more than ``END_S`` is cut off.
        """
        limits = self._live.limits.reads
        renewal_s = trio.current_time() + limits.sse_s
        told = False
        with trio.move_on_at(renewal_s + END_S):
            while not self._live.ending:
                end_s = renewal_s if lease is None else min(renewal_s, lease.end_s)
                if trio.current_time() >= end_s or not self._live.present(self._stream):
                    return
                if self._position < self._stream.tail:
                    await self._catch_up()
                    told = True
                elif not told or self._stream.closed:
                    await self._exchange.send(self._control(self._position))
                    told = True
                if self._told_closed:
                    return
                if self._position < self._stream.tail or self._stream.closed:
                    continue
                await self._wait(limits.heartbeat_s, end_s)

    async def _wait(self, heartbeat_s: float, end_s: float) -> None:
        """Wait at the tail. What comes meanwhile is delivered without waking this task."""
        while True:
            with trio.move_on_at(min(trio.current_time() + heartbeat_s, end_s)) as quiet:
                await self._follower.changed(self._deliver)
            if not quiet.cancelled_caught or trio.current_time() >= end_s:
                break
            if not self._exchange.send_nowait(sse.HEARTBEAT):
                await self._exchange.send(sse.HEARTBEAT)

    def _deliver(self) -> bool:
        """Hand the newest batch to the transport at once; False if this task must do it."""
        stream = self._stream
        start, end = self._position, stream.tail
        if start >= end or stream.closed or end - start > self._live.limits.reads.event_bytes_max:
            return False
        try:
            events = self._shared(start, end)
        except StorageError:  # cold or damaged: the task meets it again, and may wait or be refused
            return False
        if not self._exchange.send_nowait(events):
            return False
        self._position = end
        self._live.counts.read_bytes[SSE] += end - start
        return True

    def _shared(self, start: int, end: int) -> bytes:
        """Return the events of a range up to the tail, made once for all who follow there."""

        def make() -> bytes:
            view = self._live.streams.engine.view(self._stream)
            view.at_once()
            data = sse.data_event(self._stream.content_type, view.read(start, end))
            return data + self._control(end)

        return self._follower.following.shared((start, end, self._echoed), make)

    async def _catch_up(self) -> None:
        """Send the next data event and its control event, from wherever the bytes are."""
        stream, live = self._stream, self._live
        start = self._position
        if start < stream.floor:
            detail = "retention has passed the reader"
            raise ProblemError(problems.OFFSET_EXPIRED, detail)
        reader, limit = live.reader, live.limits.reads.event_bytes_max
        with live.streams.engine.reading(stream) as view:
            page = await reader.page(view, stream, start, limit)
            if page.end - page.start > limit:
                await self._send_large(view, page)
                return
            data = await reader.read(view, page.start, page.end)
        await self._exchange.send(sse.data_event(stream.content_type, data) + self._after(page))

    async def _send_large(self, view: View, page: Page) -> None:
        """Send a message that is larger than an event should be, without ever holding it all."""
        kind = self._stream.content_type
        event = sse.DataEvent(kind)
        await self._exchange.send(event.begin())
        at, end = page.start, sse.payload_end(kind, page.end)
        while at < end:
            reader = self._live.reader
            stop = await reader.piece_end(view, at, end, EVENT_PIECE_BYTES)
            data = await reader.read(view, at, stop)
            await self._exchange.send(event.add(data))
            at = stop
        await self._exchange.send(event.end() + self._after(page))

    def _after(self, page: Page) -> bytes:
        """Note that a page is as good as sent; return the control event that follows it."""
        self._position = page.end
        self._live.counts.read_bytes[SSE] += page.end - page.start
        # The stream may have gone on meanwhile; then this reader is not up to date any more.
        return self._control(page.end)

    def _control(self, position: int) -> bytes:
        stream = self._stream
        mark = cursor.after(self._echoed, self._live.streams.clock())
        at_tail = position == stream.tail
        self._told_closed = self._told_closed or (at_tail and stream.closed)
        return sse.Control(position, mark, at_tail, at_tail and stream.closed).event()
