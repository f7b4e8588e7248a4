"""Turns of an HTTP/1 connection that its task sleeps through.

An append waits for a disk, not for code. Where a whole request comes in one piece, in the form the
fast lane knows, and the handler's quick half takes it, it is read in the turn of ``Arrivals`` and
answered in the turn of whoever has the answer: no exchange, no coroutine, no task switch. Anything
else wakes the task with the bytes, and goes the ordinary way as if they had come to it.

States, and what moves between them (``TRANSITIONS`` is the whole truth, ``check`` holds it):

    AWAKE      the task is at work, or gone                     park     -> PARKED
    PARKED     it waits in ``first_bytes``; nothing under way   take     -> REPLYING
                                                                wake     -> AWAKE
                                                                cancel   -> AWAKE
    REPLYING   still parked; the quick half owes an answer      answer   -> PARKED
                                                                decline  -> PARKED
                                                                cancel   -> ORPHANED
    ORPHANED   the task has left, and the answer is owed still  answer   -> AWAKE

Bytes that arrive while it is PARKED are read and decided on. In any other state it is remembered
that there are some, and the task looks before it parks again. So a client that pipelines is served
in order, and a deep pipeline is never recursion.
"""

import logging
import math
from enum import IntEnum, auto
from typing import Final

import outcome
import trio

from durastreamd.http import render
from durastreamd.http.budget import TINY_BYTES, client_of
from durastreamd.http.context import ServeContext
from durastreamd.http.errors import HungUpError
from durastreamd.http.exchange import Headers
from durastreamd.http.h1.recognise import recognise
from durastreamd.http.h1.strict import HEAD_END
from durastreamd.http.loop.alarm import Alarm
from durastreamd.http.transport import RECEIVE_BYTES, Transport
from durastreamd.machines import moves

log = logging.getLogger("durastreamd.http")

_HEAD_END_BYTES: Final = len(HEAD_END)


class State(IntEnum):
    """Who sees to the connection."""

    AWAKE = auto()
    PARKED = auto()
    REPLYING = auto()
    ORPHANED = auto()


class Event(IntEnum):
    """What happens to it."""

    PARK = auto()  # the task has nothing to do
    TAKE = auto()  # a request is offered to the quick half
    DECLINE = auto()  # which does not want it
    ANSWER = auto()  # or has its answer
    WAKE = auto()  # there is something for the task to do
    CANCEL = auto()  # the task is called away


TRANSITIONS: Final = {
    (State.AWAKE, Event.PARK): State.PARKED,
    (State.PARKED, Event.TAKE): State.REPLYING,
    (State.PARKED, Event.WAKE): State.AWAKE,
    (State.PARKED, Event.CANCEL): State.AWAKE,
    (State.REPLYING, Event.ANSWER): State.PARKED,
    (State.REPLYING, Event.DECLINE): State.PARKED,
    (State.REPLYING, Event.CANCEL): State.ORPHANED,
    (State.ORPHANED, Event.ANSWER): State.AWAKE,
}

_AWAKE, _PARKED, _REPLYING, _ORPHANED = State  # looked up once, not with every request
_PARK, _TAKE, _DECLINE, _ANSWER, _WAKE, _CANCEL = moves(TRANSITIONS, Event)


class QuickTurns:
    """Lets a connection's task sleep while requests are answered without it."""

    __slots__ = (
        "_claim",
        "_claimed",
        "_context",
        "_fileno",
        "_remembered",
        "_task",
        "_transport",
        "_unsent",
        "alarm",
        "ended",
        "state",
    )

    def __init__(self, transport: Transport, context: ServeContext, alarm: Alarm) -> None:
        self.alarm = alarm
        self.state = _AWAKE
        self.ended = False  # the last answer said that the connection ends
        self._transport = transport
        self._context = context
        self._task: trio.lowlevel.Task | None = None  # the one that is parked
        self._remembered = False  # bytes have come that nobody has looked at
        self._unsent = b""  # of an answer: what the kernel did not take
        self._fileno = transport.fileno()
        self._claim = context.budget.claim(client_of(transport.peer))
        self._claimed = 0
        context.arrivals.add(self._fileno, self)

    @property
    def replying(self) -> bool:
        """Whether an answer is owed, so that the connection must not end."""
        return self.state is _REPLYING

    def release(self) -> None:
        """Hear of nothing any more; an answer that is owed keeps its bytes counted."""
        self._context.arrivals.discard(self._fileno, self)
        if self.state is not _ORPHANED:
            self._claim.close()

    def check(self) -> None:
        """Assert what each state promises; the tests do so whenever it changes."""
        state = self.state
        assert (self._task is not None) is (state is _PARKED or state is _REPLYING), state
        assert not self._claimed or state is _REPLYING or state is _ORPHANED, state

    # --- The task ---

    async def first_bytes(self) -> bytes:
        """Wait for bytes that need the task; b"" when the client sends no more."""
        while True:
            if self._remembered:
                self._remembered = False
                data = self._transport.receive_nowait()
                if data is not None:
                    await trio.lowlevel.checkpoint()
                    return self._noticed(data)
            self._task = trio.lowlevel.current_task()
            self.state = _PARK[self.state]
            woken: bytes = await trio.lowlevel.wait_task_rescheduled(self._give_up)
            if self._unsent:
                rest, self._unsent = self._unsent, b""
                await self._transport.send(rest)
            elif woken or self.ended or not self._remembered:
                return woken

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        self.state = _CANCEL[self.state]
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self, data: bytes) -> None:
        task, self._task = self._task, None
        assert task is not None
        self.state = _WAKE[self.state]
        trio.lowlevel.reschedule(task, outcome.Value(data))

    def _noticed(self, data: bytes) -> bytes:
        if len(data) == RECEIVE_BYTES:
            self._remembered = True  # there may be more, and no event will tell
        return data

    # --- Without the task ---

    def arrived(self) -> None:
        """Read what has come and decide who answers it, or remember that it is there."""
        if self.state is not _PARKED:
            self._remembered = True
            return
        data = self._transport.receive_nowait()
        if data is None:
            return
        self._noticed(data)
        if not self._answered_quickly(data):
            self._wake(data)

    def _answered_quickly(self, data: bytes) -> bool:
        """Offer a request to the quick half; False where the task has to see to it."""
        context = self._context
        quick = context.quick
        # Only appends are asked for so often that the offer pays.
        if quick is None or not data.startswith(b"POST ") or context.draining:
            return False
        end = data.find(HEAD_END) + _HEAD_END_BYTES
        size, limits = len(data) - end, context.limits
        request = recognise(data[:end], limits)
        if (
            request is None
            or request.content_length != size
            or size > limits.body_bytes_max
            or b"connection" in request.headers
            or (size > TINY_BYTES and not self._finds_room(size))
        ):
            return False
        transport, alarm, statistics = self._transport, self.alarm, context.statistics
        request.peer = transport.peer
        request.scheme = transport.scheme
        statistics.exchanges_open += 1
        due, alarm.due = alarm.due, math.inf
        self.state = _TAKE[self.state]
        try:
            taken = quick(request, data[end:], self._reply)
        except Exception:
            # The outermost frame of a quick handler: its failure must not take the others along.
            log.exception("unexpected failure in a quick turn")
            transport.break_off()
            if self.state is _REPLYING:
                self._decline()
            if self.state is _PARKED:
                self._wake(b"")
            return True
        if taken:
            statistics.lane_total += 1
            statistics.exchanges_total += 1
        else:
            self._decline()
            alarm.due = due
        return taken

    def _finds_room(self, size: int) -> bool:
        found = self._claim.take(size)
        self._claimed = size if found else 0
        return found

    def _decline(self) -> None:
        self._context.statistics.exchanges_open -= 1
        self._give_back()
        self.state = _DECLINE[self.state]

    def _give_back(self) -> None:
        size, self._claimed = self._claimed, 0
        self._claim.give(size)

    def _reply(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the answer and be parked again, or wake the task to what is left to do."""
        context = self._context
        statistics = context.statistics
        statistics.exchanges_open -= 1
        if self._claimed:
            self._give_back()
        self.state = state = _ANSWER[self.state]
        if state is _AWAKE:
            self._claim.close()  # the connection has ended meanwhile
            statistics.answered("POST", 0)
            return
        statistics.answers["POST"][status // 100] += 1
        length, body = render.content_of(status, "POST", body)
        self.ended = context.draining
        framing = render.length_line(length) + context.common.block
        data = render.head(status, headers, framing, keep_alive=not self.ended) + body
        try:
            sent = self._transport.send_nowait(data)
        except HungUpError:
            self._wake(b"")
            return
        self.alarm.set(context.clock.now() + context.limits.idle_s_max)
        if sent < len(data):
            self._unsent = data[sent:]
        if self._unsent or self.ended or self._remembered:
            self._wake(b"")
