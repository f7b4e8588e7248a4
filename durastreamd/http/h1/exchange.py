"""One exchange on an HTTP/1 connection.

The exchange borrows the connection's transport and read-ahead buffer while it runs. It decides how
the response is framed and whether the connection can serve another request afterwards
(``keep_alive``); the connection acts on that.

Three facts make a connection unusable and are never undone: a response that was not completed, a
request body too long to be worth discarding, and a send that was interrupted in the middle.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

import trio

from durastreamd.http import render
from durastreamd.http.budget import TINY_BYTES
from durastreamd.http.context import ServeContext
from durastreamd.http.errors import (
    BodyTooLargeError,
    BodyTooSlowError,
    HungUpError,
)
from durastreamd.http.exchange import Headers, Phase, Request
from durastreamd.http.gathering import Gathering, Pace
from durastreamd.http.h1.chunked import ChunkedDecoder
from durastreamd.http.served import ServedExchange
from durastreamd.http.transport import Transport


class Buffered(Protocol):
    """The part of a connection that an exchange reads from: bytes received but not used yet."""

    buffer: bytes


class H1Exchange(ServedExchange):
    """An exchange whose connection belongs to it alone until it ends."""

    __slots__ = (
        "_body_left",
        "_chunked",
        "_connection",
        "_context",
        "_corked",
        "_decoder",
        "_flushed",
        "_transport",
        "keep_alive",
    )

    def __init__(
        self, request: Request, transport: Transport, connection: Buffered, context: ServeContext
    ) -> None:
        super().__init__(request, context)
        request.peer = transport.peer
        request.scheme = transport.scheme
        self._transport = transport
        self._connection = connection
        self._context = context
        self._corked = b""  # A response head that waits for the first bytes of its body.
        self._chunked = False
        self._flushed: trio.Event | None = None  # Set when a remainder of send_nowait is out.
        self._decoder: ChunkedDecoder | None = None
        self._body_left = request.content_length or 0
        self.keep_alive = True
        if request.headers.get(b"connection") is not None or request.version == "1.0":
            self.keep_alive = _keeps_alive(request)
        if request.has_body and request.content_length is None:
            self._decoder = ChunkedDecoder()

    # --- The request body ---

    async def body(self, bytes_max: int) -> bytes | memoryview:
        """Read the whole request body."""
        bytes_max = min(bytes_max, self._context.limits.body_bytes_max)
        if self._decoder is None:
            left = self._body_left
            if left > bytes_max:
                raise BodyTooLargeError(bytes_max)
            buffer = self._connection.buffer
            if len(buffer) >= left:
                # The common case: the body came with the head. No scope, no list.
                if left > TINY_BYTES:
                    await self.claim.wait(left)
                self._connection.buffer = buffer[left:]
                self._body_left = 0
                return buffer[:left]
        unclaimed = 0
        gathering = Gathering()
        pace = Pace(self._context.limits, trio.current_time())
        while not self._body_read():
            piece = await self._next_piece(pace.due)
            if gathering.size + len(piece) > bytes_max:
                raise BodyTooLargeError(bytes_max)
            arrived = trio.current_time()
            unclaimed += len(piece)
            if gathering.size + len(piece) > TINY_BYTES:
                await self.claim.wait(unclaimed)
                unclaimed = 0
            gathering.add(piece)
            now = trio.current_time()
            pace.earn(len(piece), now, now - arrived)
        return gathering.whole()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Read the request body as it arrives."""
        bytes_max = self._context.limits.body_bytes_max
        if self._body_left > bytes_max:
            raise BodyTooLargeError(bytes_max)
        total = 0
        while not self._body_read():
            piece = await self._next_piece(
                trio.current_time() + self._context.limits.body_idle_s_max
            )
            total += len(piece)
            if total > bytes_max:
                raise BodyTooLargeError(bytes_max)
            if piece:
                yield piece

    async def discard_body(self) -> bool:
        """Swallow what the handler left of the body; False when it is not worth the connection."""
        if self._body_read():
            return True
        deadline = trio.current_time() + self._context.limits.body_grace_s
        try:
            while not self._body_read():
                await self._next_piece(deadline)
        except (BodyTooSlowError, HungUpError):
            return False
        return True

    def _body_read(self) -> bool:
        decoder = self._decoder
        return self._body_left == 0 if decoder is None else decoder.ended

    def _body_is_disposable(self) -> bool:
        """Tell whether what is left of the body is short, known, and certainly on its way."""
        if self._body_read():
            return True
        if self._decoder is not None or self._expects_continue:
            return False
        return self._body_left <= self._context.limits.discard_bytes_max

    async def _next_piece(self, deadline: float) -> bytes:
        """Give the next bytes of the body; b"" may happen in the middle of chunk framing."""
        data = self._connection.buffer
        self._connection.buffer = b""
        if not data:
            data = await self._receive(deadline)
        if self._decoder is not None:
            piece = self._decoder.feed(data)
            if self._decoder.ended:
                self._connection.buffer = self._decoder.rest
            return piece
        piece = data[: self._body_left]
        self._connection.buffer = data[self._body_left :]
        self._body_left -= len(piece)
        return piece

    async def _receive(self, deadline: float) -> bytes:
        with trio.CancelScope(deadline=deadline):
            if self._expects_continue:
                self._expects_continue = False
                if self.phase is Phase.UNANSWERED:
                    await self._transport.send(render.CONTINUE)
            data = await self._transport.receive()
            if not data:
                self.keep_alive = False
                msg = "the client hung up in the middle of its body"
                raise HungUpError(msg)
            return data
        self.keep_alive = False
        raise BodyTooSlowError

    # --- The response ---

    async def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a complete response in one piece."""
        self._expect_phase(Phase.UNANSWERED)
        self.status = status
        length, body = render.content_of(status, self.request.method, body)
        framing = render.length_line(length) + self.common.block
        head = render.head(status, headers, framing, keep_alive=self._settle_keep_alive())
        self.phase = Phase.FINISHED
        data = head + body
        sent = 0
        try:
            # Nearly always the kernel takes all of it; then no more frames, no more scopes.
            sent = self._transport.send_nowait(data)
        except HungUpError:
            self.abort()
            raise
        if sent < len(data):
            await self._send_whole(memoryview(data)[sent:])

    async def start(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Begin a streamed response."""
        self._expect_phase(Phase.UNANSWERED)
        self.status = status
        framing = b""
        if length is not None:
            framing = render.length_line(length)
        elif self.request.version == "1.1":
            self._chunked = True
            framing = b"Transfer-Encoding: chunked\r\n"
        else:
            self.keep_alive = False  # The end of the connection is the end of the body.
        framing += self.common.block
        head = render.head(status, headers, framing, keep_alive=self._settle_keep_alive())
        self._length_left = length
        self.phase = Phase.STREAMING
        if self.request.method == "HEAD":
            self._chunked = False
        elif length:
            # The body is about to follow: one packet for both.
            self._corked = head
            return
        await self._send_whole(head)

    async def send(self, data: bytes | memoryview) -> None:
        """Send a piece of a streamed response."""
        self._expect_phase(Phase.STREAMING)
        self._count(len(data))
        if not data or self.request.method == "HEAD":
            await trio.lowlevel.checkpoint()
            return
        if self._chunked:
            await self._send_whole(b"%x\r\n" % len(data), data, b"\r\n")
        elif self._corked:
            head, self._corked = self._corked, b""
            await self._send_whole(head, data)
        else:
            await self._send_whole(data)
        # The transport may have taken it without waiting; a fast reader must not starve the others.
        await trio.lowlevel.checkpoint()

    def send_nowait(self, data: bytes) -> bool:
        """Hand over all of ``data`` or nothing; see ``_flush`` for what the kernel did not take."""
        if self.phase is not Phase.STREAMING or self._sending or self._corked:
            return False
        if self._flushed is not None:
            return False
        if self.request.method == "HEAD" or not data:
            return True
        if not self._fits(data):
            return False
        framed = _chunk(data) if self._chunked else data
        try:
            sent = self._transport.send_nowait(framed)
        except HungUpError:
            return False  # The handler's own send will find out as well.
        if sent == 0:
            return False
        self._count(len(data))
        if sent < len(framed):
            self._flushed = trio.Event()
            self._context.nursery.start_soon(self._flush, framed[sent:], self._flushed)
        return True

    async def finish(self) -> None:
        """End a streamed response."""
        self._expect_phase(Phase.STREAMING)
        self._expect_whole()
        if self._chunked:
            await self._send_whole(render.LAST_CHUNK)
        elif self._flushed is not None:
            await self._flushed.wait()
        if self.phase is Phase.STREAMING:
            self.phase = Phase.FINISHED

    def until_hang_up(self) -> AbstractAsyncContextManager[trio.CancelScope, bool]:
        """Cancel the block when the client goes away."""
        return _UntilHangUp(self._transport, self._context)

    def abort(self) -> None:
        """Break the connection."""
        self.phase = Phase.ABORTED
        self.keep_alive = False
        self._context.watch.fire(self._transport.fileno())
        self._transport.break_off()

    def _settle_keep_alive(self) -> bool:
        """Decide, at the latest possible moment, what the head says about the connection."""
        if self.keep_alive and (self._context.draining or not self._body_is_disposable()):
            self.keep_alive = False
        return self.keep_alive

    async def _send_whole(self, *pieces: bytes | memoryview) -> None:
        """Send, or make sure that nothing is ever sent after a part of it."""
        if self._flushed is not None:
            await self._flushed.wait()
            self._check_gone()
        self._sending = True
        complete = False
        try:
            await self._transport.send(*pieces)
            complete = True
        finally:
            self._sending = False
            if not complete:
                self.abort()

    async def _flush(self, remainder: bytes, flushed: trio.Event) -> None:
        """Send what the kernel did not take of a send_nowait; runs beside the handler."""
        try:
            await self._transport.send(remainder)
        except HungUpError:
            self.abort()
        else:
            self._flushed = None
        finally:
            flushed.set()


class _UntilHangUp:
    """A cancel scope that a hang-up cancels."""

    __slots__ = ("_context", "_fileno", "_scope", "_transport")

    def __init__(self, transport: Transport, context: ServeContext) -> None:
        self._transport = transport
        self._context = context
        self._scope = trio.CancelScope()
        self._fileno = -1

    async def __aenter__(self) -> trio.CancelScope:
        self._fileno = self._transport.fileno()
        self._scope.__enter__()
        if self._fileno == -1:
            self._scope.cancel()
        else:
            self._context.watch.add(self._fileno, self._scope)
        return self._scope

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._context.watch.discard(self._fileno, self._scope)
        return self._scope.__exit__(kind, exc, traceback)


_framed: tuple[bytes, bytes] = (b"", b"")


def _chunk(data: bytes) -> bytes:
    """Return ``data`` as a chunk; the same object for the many readers of one event."""
    global _framed  # A cache of one entry.
    if _framed[0] is not data:
        _framed = (data, b"%x\r\n%b\r\n" % (len(data), data))
    return _framed[1]


def _keeps_alive(request: Request) -> bool:
    tokens = request.headers.get(b"connection", b"").lower().split(b",")
    return request.version == "1.1" and b"close" not in [token.strip() for token in tokens]
