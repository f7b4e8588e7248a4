"""Turns of an HTTP/1 connection that its task sleeps through.

An append waits for a disk, not for code. Where a whole request comes in one piece, in the form the
fast lane knows, and the handler's quick half takes it, it is read in the turn of ``Arrivals`` and
answered in the turn of whoever has the answer: no exchange, no coroutine, no task switch. Anything
else wakes the task with the bytes, and goes the ordinary way as if they had come to it.

    parked    the task waits in ``first_bytes``; nothing is under way     event: read, decide
    replying  still parked; the quick half owes an answer                 event: remembered
    awake     the task is at work, or gone                                event: remembered

An event remembered is looked at by the task before it parks again. So a client that pipelines is
served in order, and a deep pipeline is never recursion.
"""

import logging
import math
from typing import Final

import outcome
import trio

from durastreamd.http import render
from durastreamd.http.alarm import Alarm
from durastreamd.http.budget import client_of
from durastreamd.http.context import ServeContext
from durastreamd.http.errors import HungUpError
from durastreamd.http.exchange import Headers
from durastreamd.http.recognise import recognise
from durastreamd.http.strict import HEAD_END
from durastreamd.http.transport import RECEIVE_BYTES, Transport

log = logging.getLogger("durastreamd.http")

_HEAD_END_BYTES: Final = len(HEAD_END)


class QuickTurns:
    """Lets a connection's task sleep while requests are answered without it."""

    __slots__ = (
        "_claim",
        "_claimed",
        "_context",
        "_event",
        "_fileno",
        "_parked",
        "_transport",
        "_unsent",
        "alarm",
        "ended",
        "replying",
    )

    def __init__(self, transport: Transport, context: ServeContext, alarm: Alarm) -> None:
        self.alarm = alarm
        self.replying = False
        self.ended = False  # The last answer said that the connection ends.
        self._transport = transport
        self._context = context
        self._parked: trio.lowlevel.Task | None = None
        self._event = False
        self._unsent = b""
        self._fileno = transport.fileno()
        self._claim = context.budget.claim(client_of(transport.peer))
        self._claimed = 0
        context.arrivals.add(self._fileno, self._arrived)

    def release(self) -> None:
        """Hear of nothing any more."""
        self._context.arrivals.discard(self._fileno, self._arrived)
        if not self.replying:
            self._claim.close()

    async def first_bytes(self) -> bytes:
        """Wait for bytes that need the task; b"" when the client sends no more."""
        while True:
            if self._event:
                self._event = False
                data = self._transport.receive_nowait()
                if data is not None:
                    await trio.lowlevel.checkpoint()
                    return self._noticed(data)
            self._parked = trio.lowlevel.current_task()
            woken: bytes = await trio.lowlevel.wait_task_rescheduled(self._give_up)
            if self._unsent:
                rest, self._unsent = self._unsent, b""
                await self._transport.send(rest)
            elif woken or self.ended or not self._event:
                return woken

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self, data: bytes) -> None:
        task, self._parked = self._parked, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Value(data))

    def _noticed(self, data: bytes) -> bytes:
        if len(data) == RECEIVE_BYTES:
            self._event = True  # There may be more, and no event will tell.
        return data

    def _arrived(self) -> None:
        if self._parked is None or self.replying:
            self._event = True
            return
        data = self._transport.receive_nowait()
        if data is None:
            return
        self._noticed(data)
        try:
            if not self._answered_quickly(data):
                self._wake(data)
        except Exception:
            # The outermost frame of a quick handler: its failure must not take the others along.
            log.exception("unexpected failure in a quick turn")
            self._transport.break_off()
            self._context.statistics.exchanges_open -= self.replying
            self._give_back()
            self.replying = False
            self._wake(b"")

    def _answered_quickly(self, data: bytes) -> bool:
        """Offer a request to the quick half; False where the task has to see to it."""
        context = self._context
        quick = context.quick
        # Only appends are asked for so often that the offer pays.
        if quick is None or not data.startswith(b"POST ") or context.draining:
            return False
        end = data.find(HEAD_END) + _HEAD_END_BYTES
        request = recognise(data[:end], context.limits)
        if (
            request is None
            or request.content_length != len(data) - end
            or request.content_length > context.limits.body_bytes_max
            or b"connection" in request.headers
            or not self._claim.take(request.content_length)
        ):
            return False
        request.peer, request.scheme = self._transport.peer, self._transport.scheme
        statistics = context.statistics
        statistics.exchanges_open += 1
        self.replying = True
        self._claimed = request.content_length
        due, self.alarm.due = self.alarm.due, math.inf
        if not quick(request, data[end:], self._reply):
            statistics.exchanges_open -= 1
            self.replying = False
            self._give_back()
            self.alarm.due = due
            return False
        statistics.lane_total += 1
        statistics.exchanges_total += 1
        return True

    def _give_back(self) -> None:
        size, self._claimed = self._claimed, 0
        self._claim.give(size)

    def _reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the answer and be parked again, or wake the task to what is left to do."""
        context = self._context
        context.statistics.exchanges_open -= 1
        self.replying = False
        self._give_back()
        if self._parked is None:
            self._claim.close()
            context.statistics.answered("POST", 0)
            return  # The connection has ended meanwhile.
        context.statistics.answered("POST", status)
        framing, body = render.framing_of(status, "POST", body)
        self.ended = context.draining
        framing += context.common.block
        data = render.head(status, headers, framing, keep_alive=not self.ended) + body
        try:
            sent = self._transport.send_nowait(data)
        except HungUpError:
            self._wake(b"")
            return
        self.alarm.set(trio.current_time() + context.limits.idle_s_max)
        if sent < len(data):
            self._unsent = data[sent:]
        if self._unsent or self.ended or self._event:
            self._wake(b"")
