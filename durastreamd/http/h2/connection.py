"""HTTP/2 on one connection.

Theory of operation. One reader task owns what comes in; one sender task (``H2Wire.run_sender``)
owns what goes out; each exchange has a task for its handler. The reader takes a batch of bytes,
has the ``FrameMeter`` weigh it, lets h2 take it apart and tells the exchanges what concerns them.
Handlers of new requests start only after the whole batch is digested, so a request that is reset
in the same breath (rapid reset) costs no task.

Back-pressure, both ways. In: windows are given back as handlers take their bodies; the windows in
``HttpLimits`` bound what is unread. Bytes of bodies are counted against the budget as they come; if
one finds no room the connection is not read on until it does, so that no more than one receive is
ever uncounted. Out: frames wait in one bounded queue; while it is full nobody
adds to it and the reader does not read, so acknowledgements of PING and SETTINGS cannot pile up.

What a client may cost (``flood``): control frames come out of a bucket that refills with time
and with DATA sent; resets before an answer are counted against completed exchanges. Out of budget:
GOAWAY(ENHANCE_YOUR_CALM). A client that does not open its window is reset by the exchange's write
deadline; one that does not read at all is ended by the transport's.

Time. As in ``h1``: one scope around the reader, and only its deadline moves. It is ``idle_s_max``
while there is no exchange, ``head_s_max`` while a header block is open, else infinite. PINGs do
not count as activity.

The end. GOAWAY for a drain is announced with the last id we accepted; later ones are refused,
running ones go on, and the connection ends with the last of them. When the client is gone every
exchange is told (``hang_up``) and the connection waits for their handlers, which may be in a
shielded commit.
"""

import math
from typing import Final

import h2.events
import h2.exceptions
import trio
from h2.errors import ErrorCodes

from durastreamd.http.context import ServeContext
from durastreamd.http.errors import RefusedError
from durastreamd.http.exchange import Phase, answer_problem, run_handler
from durastreamd.http.h2.exchange import H2Exchange
from durastreamd.http.h2.flood import Allowance, FloodError, FrameMeter, ResetBudget
from durastreamd.http.h2.request import read_request
from durastreamd.http.h2.wire import H2Wire
from durastreamd.http.transport import Transport

_PREFACE_BYTES: Final = 24

# A client may open its next exchange before our handler of the last one has returned, so twice the
# number it may have open is still honest. Beyond that handlers are stuck and more would not help.
_RUNNING_FACTOR: Final = 2


class H2Connection:
    """Serves HTTP/2 exchanges on ``transport`` until one side hangs up."""

    def __init__(self, transport: Transport, context: ServeContext, first: bytes) -> None:
        limits = context.limits
        now = trio.current_time()
        self._transport = transport
        self._context = context
        self._limits = limits
        self._first = first
        self._bucket = Allowance(limits.h2_control_frames_max, limits.h2_control_frames_per_s, now)
        self._meter = FrameMeter(self._bucket, _PREFACE_BYTES)
        self._resets = ResetBudget(limits)
        self._scope = trio.CancelScope()  # Around the reader.
        self._wire = H2Wire(transport, limits, self._bucket, self._scope.cancel)
        self._exchanges: dict[int, H2Exchange] = {}  # Whose handler has not returned.
        self._short: list[H2Exchange] = []  # With bytes that found no room in the budget.
        self._new: list[tuple[H2Exchange, RefusedError | None]] = []
        self._last_id = 0
        self._accepted_id_max: float = math.inf  # Finite once the end is announced.
        self._head_since: float | None = None
        self._idle_since = now

    def drain(self) -> None:
        """Take no more exchanges and hang up after the last."""
        if self._accepted_id_max == math.inf:
            self._accepted_id_max = self._last_id
            self._wire.announce_end(self._last_id)
            if not self._exchanges:
                self._scope.cancel()

    async def serve(self) -> None:
        """Serve until one side hangs up."""
        try:
            async with trio.open_nursery() as nursery:
                self._wire.open()
                nursery.start_soon(self._wire.run_sender)
                if self._context.draining:
                    self.drain()
                await self._read(nursery)
                for exchange in list(self._exchanges.values()):
                    exchange.hang_up()
                # Past this point nobody can reset or open anything; only handlers are waited for.
                self._wire.end()
        finally:
            for exchange, _ in self._new:
                exchange.release()  # Its handler never started.
            if not self._transport.released:
                with trio.move_on_after(self._limits.linger_s_max):
                    await self._transport.linger(self._limits.linger_bytes_max)
            await self._transport.hang_up()

    # --- The reader ---

    async def _read(self, nursery: trio.Nursery) -> None:
        try:
            with self._scope:
                await self._read_batches(nursery)
                return
        except FloodError:
            self._context.statistics.refused_total += 1
            self._wire.go_away(ErrorCodes.ENHANCE_YOUR_CALM)
        except h2.exceptions.ProtocolError:
            # h2 has queued the GOAWAY that fits.
            self._context.statistics.refused_total += 1
            self._wire.flush()
        else:
            # The deadline, the drain or a dead transport.
            self._wire.go_away(ErrorCodes.NO_ERROR)

    async def _read_batches(self, nursery: trio.Nursery) -> None:
        data, self._first = self._first, b""
        while True:
            if data:
                self._digest(data)
                self._start_handlers(nursery)
                if self._short:
                    await self._cover()
            self._move_deadline()
            await self._wire.room()
            data = await self._transport.receive()
            if not data:
                return

    async def _cover(self) -> None:
        """Find room for what has arrived; one body is waited for, or it would take too long."""
        short, self._short = self._short, []
        first = True
        for exchange in short:
            if not exchange.short:
                continue
            if first:
                await exchange.cover()
                first = False
            else:
                exchange.cover_nowait()

    def _digest(self, data: bytes) -> None:
        self._bucket.refill(trio.current_time())
        try:
            for event in self._wire.receive(self._meter.pass_on(data)):
                self._digest_event(event)
        finally:
            self._wire.flush()

    def _digest_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                self._open(event)
            case h2.events.DataReceived():
                self._put(event)
            case h2.events.StreamEnded(stream_id=int(exchange_id)):
                if exchange_id in self._exchanges:
                    self._exchanges[exchange_id].put_end()
            case h2.events.StreamReset(stream_id=int(exchange_id)):
                self._reset(exchange_id)
            case h2.events.WindowUpdated(stream_id=int(exchange_id)) if exchange_id:
                if exchange_id in self._exchanges:
                    self._exchanges[exchange_id].window_moved()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for exchange in self._exchanges.values():
                    exchange.window_moved()
            case _:
                pass  # h2 has answered it, or it changes nothing for us.

    def _open(self, event: h2.events.RequestReceived) -> None:
        exchange_id = event.stream_id
        assert exchange_id is not None
        self._last_id = max(self._last_id, exchange_id)
        running_max = self._limits.h2_exchanges_max * _RUNNING_FACTOR
        if exchange_id > self._accepted_id_max or len(self._exchanges) >= running_max:
            self._wire.reset(exchange_id, ErrorCodes.REFUSED_STREAM)
            return
        request, refusal = read_request(
            [(bytes(name), bytes(value)) for name, value in event.headers or ()],
            self._limits,
            has_body=event.stream_ended is None,
        )
        request.peer = self._transport.peer
        request.scheme = self._transport.scheme
        exchange = H2Exchange(request, exchange_id, self._wire, self._context)
        self._exchanges[exchange_id] = exchange
        self._new.append((exchange, refusal))

    def _put(self, event: h2.events.DataReceived) -> None:
        exchange_id = event.stream_id
        counted = event.flow_controlled_length or 0
        assert exchange_id is not None
        exchange = self._exchanges.get(exchange_id)
        if exchange is None:
            # Its handler is done; the connection's window must not shrink for it.
            self._wire.acknowledge(exchange_id, counted)
        else:
            exchange.put(event.data or b"", counted)
            if exchange.short:
                self._short.append(exchange)

    def _reset(self, exchange_id: int) -> None:
        exchange = self._exchanges.get(exchange_id)
        # An exchange that is being answered (SSE) is ended by a reset; that is no abuse.
        if exchange is None or exchange.phase is Phase.UNANSWERED:
            self._resets.reset()
        if exchange is not None:
            exchange.hang_up()

    def _move_deadline(self) -> None:
        now = trio.current_time()
        if not self._meter.head_open:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = now
        if self._head_since is not None:
            self._scope.deadline = self._head_since + self._limits.head_s_max
        elif self._exchanges:
            self._scope.deadline = math.inf
        else:
            self._scope.deadline = self._idle_since + self._limits.idle_s_max

    # --- Exchanges ---

    def _start_handlers(self, nursery: trio.Nursery) -> None:
        started, self._new = self._new, []
        for exchange, refusal in started:
            if exchange.gone:
                exchange.release()
                del self._exchanges[exchange.id]
            else:
                nursery.start_soon(self._serve_exchange, exchange, refusal)

    async def _serve_exchange(self, exchange: H2Exchange, refusal: RefusedError | None) -> None:
        context = self._context
        context.statistics.exchanges_total += 1
        context.statistics.exchanges_open += 1
        try:
            with exchange.scope:
                if refusal is None:
                    await run_handler(context.handler, exchange)
                else:
                    context.statistics.refused_total += 1
                    await answer_problem(exchange, refusal.problem, refusal.detail)
        finally:
            exchange.release()
            context.statistics.exchanges_open -= 1
            context.statistics.answered(exchange.request.method, exchange.status)
            self._finish(exchange)

    def _finish(self, exchange: H2Exchange) -> None:
        if exchange.phase is Phase.FINISHED:
            self._resets.completed()
        elif exchange.phase is not Phase.ABORTED:
            exchange.abort()
        del self._exchanges[exchange.id]
        if not self._exchanges:
            self._idle_since = trio.current_time()
            if self._accepted_id_max != math.inf:
                self._scope.cancel()
        self._move_deadline()
