"""HTTP/1.0 and HTTP/1.1 on one connection.

Theory of operation. One task serves one connection, one request after the other, so pipelined
requests are answered in order by construction. A turn is: wait for a head; recognise it (the fast
lane) or examine it (``strict``, then h11); run the handler on an ``H1Exchange``; discard what it
left of the body. An ordinary turn is one receive and one send. Between two turns ``h1.quick`` may
answer requests while the task sleeps on.

Time. One alarm spans the connection and only moves: ``idle_s_max`` while no byte of a head is here,
``head_s_max`` from its first byte on, never while a handler runs (an exchange limits its own
receives and sends). ``alarm`` says why this is not the deadline of a cancel scope.

Drain. An idle connection is woken by cancelling that scope. A request may have arrived in the same
moment; so a woken connection looks once more into the socket before it hangs up.

Errors. After a refusal nothing on the connection can be trusted: the refusal says Connection:
close, the rest of the client's bytes are swallowed for a moment so that it can read the refusal,
and the connection is hung up. It is never reused.
"""

import math
from typing import Final

import trio

from durastreamd.http import render
from durastreamd.http.context import ServeContext
from durastreamd.http.errors import BodyTooLargeError, HungUpError, RefusedError
from durastreamd.http.exchange import PROBLEM_HEADERS, Phase, Request, run_handler
from durastreamd.http.h1.exchange import H1Exchange
from durastreamd.http.h1.quick import QuickTurns
from durastreamd.http.h1.recognise import recognise
from durastreamd.http.h1.strict import HEAD_END, examine, refuse_hopeless, target_of
from durastreamd.http.transport import Transport
from durastreamd.protocol import problems

_HEAD_END_BYTES: Final = len(HEAD_END)


class H1Connection:
    """Serves HTTP/1 requests on ``transport`` until one side hangs up."""

    def __init__(self, transport: Transport, context: ServeContext, buffer: bytes) -> None:
        self.buffer = buffer  # Received, not used yet: at most one receive beyond a body.
        self._transport = transport
        self._context = context
        self._alarm = context.clock.new_alarm()
        self._asked = b""  # The head that is being read, for the answer if it is refused.
        self._idle = False  # Waiting for the first byte of a head: the only time to be woken.
        self._linger = False
        self._quick: QuickTurns | None = None

    def drain(self) -> None:
        """Hang up as soon as no exchange is running."""
        if self._idle and not (self._quick is not None and self._quick.replying):
            self._alarm.scope.cancel()

    async def serve(self) -> None:
        """Serve until one side hangs up."""
        if self._context.quick is not None and self._transport.answers_at_once:
            self._quick = QuickTurns(self._transport, self._context, self._alarm)
        try:
            await self._serve()
        finally:
            if self._quick is not None:
                self._quick.release()
        await self._part()

    async def _serve(self) -> None:
        while True:
            try:
                with self._alarm.scope:
                    await self._serve_requests()
            finally:
                self._context.clock.discard(self._alarm)
            if not self._alarm.scope.cancelled_caught:
                break
            if not self._idle:
                detail = f"The request head took more than {self._context.limits.head_s_max} s."
                await self._refuse(RefusedError(problems.REQUEST_TIMEOUT, detail))
                break
            self._idle = False
            waiting = self._transport.receive_nowait() if self._context.draining else b""
            if not waiting:
                break
            self.buffer = waiting
            self._alarm = self._context.clock.new_alarm()
            if self._quick is not None:
                self._quick.alarm = self._alarm

    async def _serve_requests(self) -> None:
        keep_alive = True
        while keep_alive:
            try:
                request = await self._next_request()
            except RefusedError as refusal:
                self._alarm.due = math.inf
                await self._refuse(refusal)
                return
            if request is None:
                return
            if (request.content_length or 0) > self._context.limits.body_bytes_max:
                await self._refuse(BodyTooLargeError(self._context.limits.body_bytes_max))
                return
            keep_alive = await self._serve_exchange(request)

    async def _next_request(self) -> Request | None:
        """Wait for a head and read it; None when the client hung up instead."""
        buffer = self.buffer
        if buffer:
            # A client that pipelines must not keep the others waiting.
            await trio.lowlevel.checkpoint()
        else:
            buffer = await self._idle_bytes()
        if buffer[:1] == b"\r":
            buffer = await self._without_empty_line(buffer)
        if not buffer:
            return None
        self._asked = buffer
        end = buffer.find(HEAD_END)
        if end < 0:
            buffer, end = await self._rest_of_head(buffer)
            if end < 0:
                return None
        self._alarm.due = math.inf
        end += _HEAD_END_BYTES
        head = buffer[:end]
        self.buffer = buffer[end:]
        if self._context.lane:
            request = recognise(head, self._context.limits)
            if request is not None:
                self._context.statistics.lane_total += 1
                return request
        return examine(head, self._context.limits)

    async def _idle_bytes(self) -> bytes:
        """Wait for the beginning of a head; b"" when there will be none."""
        self.buffer = b""
        context = self._context
        if context.draining:
            return b""
        self._idle = True
        self._alarm.set(context.clock.now() + context.limits.idle_s_max)
        buffer = await self._first_bytes()
        self._idle = False
        return buffer

    async def _without_empty_line(self, buffer: bytes) -> bytes:
        """Pass over one empty line before a head (RFC 9112, 2.2): old clients end bodies with it.

        One that came alone is no beginning of a head, and the connection stays idle. A second one
        is refused with the head that it begins.
        """
        self._asked = b""
        while buffer == b"\r":
            self._alarm.set(trio.current_time() + self._context.limits.head_s_max)
            more = await self._transport.receive()
            if not more:
                return b""
            buffer += more
        if buffer[:2] != b"\r\n":
            return buffer
        return buffer[2:] or await self._idle_bytes()

    async def _first_bytes(self) -> bytes:
        if self._quick is None:
            return await self._transport.receive()
        data = await self._quick.first_bytes()
        self._linger = self._quick.ended
        return data

    async def _rest_of_head(self, buffer: bytes) -> tuple[bytes, int]:
        """Receive until a head is complete; the position of its end is -1 if it never was."""
        limits = self._context.limits
        self._alarm.set(trio.current_time() + limits.head_s_max)
        while True:
            refuse_hopeless(buffer, limits)
            more = await self._transport.receive()
            if not more:
                return buffer, -1
            # The end may straddle two receives.
            searched = max(0, len(buffer) - _HEAD_END_BYTES + 1)
            buffer += more
            self._asked = buffer
            end = buffer.find(HEAD_END, searched)
            if end >= 0:
                return buffer, end

    async def _serve_exchange(self, request: Request) -> bool:
        """Run the handler; tell whether the connection can serve another request."""
        context = self._context
        statistics = context.statistics
        exchange = H1Exchange(request, self._transport, self, context)
        statistics.exchanges_total += 1
        statistics.exchanges_open += 1
        try:
            await run_handler(context.handler, exchange)
        finally:
            exchange.release()
            statistics.exchanges_open -= 1
            statistics.answered(request.method, exchange.status)
        if exchange.phase is not Phase.FINISHED:
            return False
        if exchange.keep_alive:
            return await exchange.discard_body()
        # Bytes the client has sent in vain, or is sending now, would turn our hang-up into a reset.
        # Over TLS it is told of the end only by the hang-up, so that must not wait without need.
        self._linger = self._transport.half_closes or request.has_body
        return False

    async def _refuse(self, refusal: RefusedError) -> None:
        """Answer a head that never became an exchange."""
        self._context.statistics.refused_total += 1
        self._linger = True
        body = problems.render(refusal.problem, refusal.detail, target_of(self._asked))
        framing = b"Content-Length: %d\r\n" % len(body) + self._context.common.block
        head = render.head(refusal.problem.status, PROBLEM_HEADERS, framing, keep_alive=False)
        try:
            await self._transport.send(head + body)
        except HungUpError:
            self._linger = False

    async def _part(self) -> None:
        if self._linger and not self._transport.released:
            limits = self._context.limits
            with trio.move_on_after(limits.linger_s_max):
                await self._transport.linger(limits.linger_bytes_max)
        await self._transport.hang_up()
