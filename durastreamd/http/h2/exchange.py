"""One exchange on an HTTP/2 connection.

The connection's reader puts what arrives into the exchange (``put``, ``put_end``, ``hang_up``,
``window_moved``); the handler's task takes it out. A client gets its window back only as the
handler takes the body, so what is unread is bounded by the window, and it is counted against the
budget as it arrives: where there is no room the connection is not read on until there is
(``cover``), or the body is refused. What is sent waits for the client's window under the write
deadline: a reader that starves us is reset and its memory is free.
"""

import math
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import trio
from h2.errors import ErrorCodes

from durastreamd.errors import OverloadedError
from durastreamd.http import render
from durastreamd.http.budget import Claim, client_of
from durastreamd.http.context import ServeContext
from durastreamd.http.errors import (
    BodyTooLargeError,
    BodyTooSlowError,
    HungUpError,
)
from durastreamd.http.exchange import Headers, Phase, Request
from durastreamd.http.gathering import Gathering, Pace
from durastreamd.http.h2.wire import H2Wire
from durastreamd.http.served import ServedExchange


class H2Exchange(ServedExchange):
    """An exchange that shares its connection with others."""

    __slots__ = (
        "_arrived",
        "_body_claim",
        "_body_ended",
        "_limits",
        "_moved",
        "_pieces",
        "_refused",
        "_statistics",
        "_tiny",
        "_unacknowledged",
        "_uncounted",
        "_waits",
        "_wire",
        "id",
        "scope",
    )

    def __init__(
        self, request: Request, exchange_id: int, wire: H2Wire, context: ServeContext
    ) -> None:
        super().__init__(request, context)
        self.id = exchange_id
        self.scope = trio.CancelScope()  # Around the handler.
        self._wire = wire
        self._limits = context.limits
        self._statistics = context.statistics
        self._pieces: list[bytes] = []  # Of the body: arrived, not taken yet.
        self._body_claim: Claim | None = None  # For the body, from its arrival to the end.
        self._tiny = 0  # Bytes of the body that need no claim.
        self._uncounted = 0  # Those that found no room in the budget.
        self._refused = False  # For want of room; what else comes of the body is dropped.
        self._unacknowledged = 0  # Their size as flow control counts it, padding included.
        self._body_ended = not request.has_body
        self._arrived = trio.Event()
        self._moved = trio.Event()
        self._waits: list[trio.CancelScope] = []

    # --- What the reader tells ---

    def put(self, data: bytes, counted: int) -> None:
        """Take a piece of the body that costs ``counted`` bytes of window."""
        if self.phase in (Phase.FINISHED, Phase.ABORTED) or not data or self._refused:
            self._wire.acknowledge(self.id, counted)
            return
        if self._body_claim is None and len(data) <= self._wire.tiny_left:
            self._wire.tiny_left -= len(data)
            self._tiny += len(data)
        else:
            self._count_body(len(data) + self._give_tiny_back())
        self._pieces.append(data)
        self._unacknowledged += counted
        self._arrived.set()

    def _count_body(self, size: int) -> None:
        if self._body_claim is None:
            self._body_claim = self._budget.claim(client_of(self.request.peer))
        if self._uncounted or not self._body_claim.take(size):
            self._uncounted += size

    @property
    def short(self) -> bool:
        """Whether bytes have arrived that found no room in the budget."""
        return self._uncounted > 0

    async def cover(self) -> None:
        """Wait for room for what has arrived; refuse the body if there is none in time."""
        claim, size = self._body_claim, self._uncounted
        assert claim is not None
        try:
            await claim.wait(size)
        except OverloadedError:
            self.refuse_body()
        else:
            claim.give(size - self._uncounted)  # The handler may have taken some meanwhile.
            self._uncounted = 0

    def cover_nowait(self) -> None:
        """Refuse the body unless there is room for it now."""
        claim = self._body_claim
        assert claim is not None
        if claim.take(self._uncounted):
            self._uncounted = 0
        else:
            self.refuse_body()

    def refuse_body(self) -> None:
        """Drop the body; its handler is told, and the client by its answer."""
        self._refused = True
        self._uncounted = 0
        self.release_body()
        self._release_claim()
        self._arrived.set()

    def put_end(self) -> None:
        """Note that the body is complete."""
        self._body_ended = True
        self._arrived.set()

    def hang_up(self) -> None:
        """Note that the client is gone; ends what waits for it."""
        self.gone = True
        self.release_body()
        self._arrived.set()
        self._moved.set()
        if self._waits:
            # As on HTTP/1: the block ends, the handler goes on and may tidy up.
            for scope in self._waits:
                scope.cancel()
        else:
            self.scope.cancel()

    def window_moved(self) -> None:
        """Note that the client may take more."""
        self._moved.set()

    def release(self) -> None:
        """Give back what the exchange holds of the budget."""
        self._release_claim()
        super().release()

    def _release_claim(self) -> None:
        self._give_tiny_back()
        if self._body_claim is not None:
            self._body_claim.close()
            self._body_claim = None

    def _give_tiny_back(self) -> int:
        tiny, self._tiny = self._tiny, 0
        self._wire.tiny_left += tiny
        return tiny

    def release_body(self) -> None:
        """Forget what was not read, and give the window back."""
        self._pieces.clear()
        self._wire.acknowledge(self.id, self._unacknowledged)
        self._unacknowledged = 0

    # --- The request body ---

    async def body(self, bytes_max: int) -> bytes | memoryview:
        """Read the whole request body."""
        bytes_max = min(bytes_max, self._limits.body_bytes_max)
        self._check_length(bytes_max)
        if self._body_ended:
            # The common case: it came with its head, within the window. No pace, no list.
            whole = await self._next_piece(math.inf)
            if len(whole) > bytes_max:
                raise BodyTooLargeError(bytes_max)
            return whole
        gathering = Gathering()
        pace = Pace(self._limits, trio.current_time())
        while piece := await self._next_piece(pace.due):
            if gathering.size + len(piece) > bytes_max:
                raise BodyTooLargeError(bytes_max)
            gathering.add(piece)
            pace.earn(len(piece), trio.current_time())
        return gathering.whole()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Read the request body as it arrives."""
        bytes_max = self._limits.body_bytes_max
        self._check_length(bytes_max)
        total = 0
        while piece := await self._next_piece(trio.current_time() + self._limits.body_idle_s_max):
            total += len(piece)
            if total > bytes_max:
                raise BodyTooLargeError(bytes_max)
            self._give(len(piece))
            yield piece

    def _give(self, size: int) -> None:
        """Count a piece no longer: it is the handler's now."""
        tiny = min(size, self._tiny)
        self._tiny -= tiny
        self._wire.tiny_left += tiny
        uncounted = min(size - tiny, self._uncounted)
        self._uncounted -= uncounted
        if self._body_claim is not None:
            self._body_claim.give(size - tiny - uncounted)

    def _check_length(self, bytes_max: int) -> None:
        if (self.request.content_length or 0) > bytes_max:
            raise BodyTooLargeError(bytes_max)

    async def _next_piece(self, deadline: float) -> bytes:
        """Give what has arrived; b"" at the end."""
        if not self._arrival():
            with trio.CancelScope(deadline=deadline) as scope:
                self._continue()
                while not self._arrival():
                    self._arrived = trio.Event()
                    await self._arrived.wait()
            if scope.cancelled_caught:
                raise BodyTooSlowError
        self._check_gone()
        if self._refused:
            message = "the server holds as many bytes of other requests as it may"
            raise OverloadedError(message)
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self.release_body()
        self._wire.flush()
        return data

    def _arrival(self) -> bool:
        return bool(self._pieces) or self._body_ended or self.gone or self._refused

    def _continue(self) -> None:
        if self._expects_continue:
            self._expects_continue = False
            if self.phase is Phase.UNANSWERED:
                self._wire.headers(self.id, [(b":status", b"100")])
                self._wire.flush()

    # --- The response ---

    async def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a complete response."""
        self._expect_phase(Phase.UNANSWERED)
        self.status = status
        length, body = render.content_of(status, self.request.method, body)
        fields = self._fields(status, headers, length)
        await self._wire.room()
        self._check_gone()
        self._wire.headers(self.id, fields, end=not body)
        self.phase = Phase.STREAMING
        if body:
            await self._send_all(body, end=True)
        self._finished()

    async def start(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Begin a streamed response."""
        self._expect_phase(Phase.UNANSWERED)
        self.status = status
        fields = self._fields(status, headers, length)
        await self._wire.room()
        self._check_gone()
        self._length_left = length
        self.phase = Phase.STREAMING
        self._wire.headers(self.id, fields)
        self._wire.flush()

    async def send(self, data: bytes | memoryview) -> None:
        """Send a piece of a streamed response."""
        self._expect_phase(Phase.STREAMING)
        self._count(len(data))
        if data and self.request.method != "HEAD":
            await self._send_all(data)
            self._wire.flush()
        await trio.lowlevel.checkpoint()

    def send_nowait(self, data: bytes) -> bool:
        """Queue all of ``data`` or nothing; the connection's sender sees to the rest."""
        if self.phase is not Phase.STREAMING or self._sending or self.gone:
            return False
        if self.request.method == "HEAD" or not data:
            return True
        if not self._fits(data):
            return False
        try:
            if not self._wire.has_room() or self._wire.window(self.id) < len(data):
                return False
            step = self._wire.frame_bytes_max()
            for at in range(0, len(data), step):
                self._wire.data(self.id, data[at : at + step])
        except HungUpError:
            return False
        self._count(len(data))
        self._wire.flush()
        return True

    async def finish(self) -> None:
        """End a streamed response."""
        self._expect_phase(Phase.STREAMING)
        self._expect_whole()
        self._check_gone()
        # An empty DATA frame needs no window.
        self._wire.data(self.id, b"", end=True)
        self._finished()
        await trio.lowlevel.checkpoint()

    def until_hang_up(self) -> AbstractAsyncContextManager[trio.CancelScope, bool]:
        """Cancel the block when the client goes away."""
        return _UntilReset(self, self._waits)

    def abort(self) -> None:
        """Reset the exchange."""
        self.phase = Phase.ABORTED
        self.release_body()
        self._wire.reset(self.id, ErrorCodes.INTERNAL_ERROR)
        self._wire.flush()

    def _finished(self) -> None:
        self.phase = Phase.FINISHED
        self.release_body()
        if not self._body_ended:
            # RFC 9113 8.1: an early answer, and the rest of the body is not wanted.
            self._wire.reset(self.id, ErrorCodes.NO_ERROR)
        self._wire.flush()

    def _fields(
        self, status: int, headers: Headers, length: int | None
    ) -> list[tuple[bytes, bytes]]:
        render.field_block(headers)  # Refuses CR, LF and NUL as on HTTP/1.
        return [
            (b":status", b"%d" % status),
            (b"date", render.date()),
            *((name.lower(), value) for name, value in (*headers, *self.common.fields)),
            *(() if length is None else ((b"content-length", b"%d" % length),)),
        ]

    async def _send_all(self, data: bytes | memoryview, *, end: bool = False) -> None:
        view = memoryview(data)
        self._sending = True
        try:
            while view:
                await self._wire.room()
                window = min(self._wire.window(self.id), self._wire.frame_bytes_max())
                size = min(window, len(view))
                if size <= 0:
                    # What is queued must reach the client, or it will not open its window.
                    self._wire.flush()
                    await self._wait_for_window()
                    continue
                self._wire.data(self.id, bytes(view[:size]), end=end and size == len(view))
                view = view[size:]
                if view:
                    self._wire.flush()
        finally:
            self._sending = False
            if view:
                # Cancelled or failed half-way: what follows must not make it look complete.
                self.abort()

    async def _wait_for_window(self) -> None:
        with trio.CancelScope(deadline=trio.current_time() + self._limits.write_s_max):
            self._moved = trio.Event()
            await self._moved.wait()
            self._check_gone()
            return
        self._statistics.stalled_total += 1
        msg = f"the client took nothing for {self._limits.write_s_max} s"
        raise HungUpError(msg)


class _UntilReset:
    """A cancel scope that ``H2Exchange.hang_up`` cancels."""

    __slots__ = ("_exchange", "_scope", "_waits")

    def __init__(self, exchange: H2Exchange, waits: list[trio.CancelScope]) -> None:
        self._exchange = exchange
        self._waits = waits
        self._scope = trio.CancelScope()

    async def __aenter__(self) -> trio.CancelScope:
        self._scope.__enter__()
        if self._exchange.gone:
            self._scope.cancel()
        self._waits.append(self._scope)
        return self._scope

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._waits.remove(self._scope)
        return self._scope.__exit__(kind, exc, traceback)
