"""Accepts connections and serves them: the top of the connection layer.

One task per listener accepts, one task per connection serves it. Connections beyond the limits are
told 503 on plain sockets, so that clients retry later instead of guessing. ``drain`` stops
accepting and lets what runs come to its end; cancelling ``serve`` stops at once. ``serve`` returns
when it was drained and the last connection is gone.
"""

import errno
import logging
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio
from trio.lowlevel import notify_closing, wait_readable

from durastreamd.http import render
from durastreamd.http.budget import Budget, client_of
from durastreamd.http.connection import Served, choose_version
from durastreamd.http.context import ServeContext, Statistics
from durastreamd.http.errors import HungUpError
from durastreamd.http.exchange import (
    PROBLEM_HEADERS,
    RETRY_AFTER,
    CommonHeaders,
    Handler,
    Headers,
    QuickHandler,
)
from durastreamd.http.h1.strict import target_of
from durastreamd.http.h2.connection import H2Connection
from durastreamd.http.limits import HttpLimits
from durastreamd.http.listener import Listener
from durastreamd.http.loop.alarm import AlarmClock
from durastreamd.http.loop.arrivals import Arrivals
from durastreamd.http.loop.hang_up import HangUpWatch
from durastreamd.http.seldom import Seldom
from durastreamd.http.transport import PlainTransport, TlsTransport, Transport
from durastreamd.protocol import problems

log = logging.getLogger("durastreamd.http")

# accept() fails with these when the process or the machine is out of something; it will pass.
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_EXHAUSTED_PAUSE_S: Final = 0.2  # Long enough not to spin, short enough not to be noticed.
_ACCEPT_BATCH: Final = 64  # Then let others run.
_BEGUN_BYTES: Final = 512  # of a connection for TLS, to see whether it speaks that
_PLAIN_HTTP: Final = re.compile(rb"[A-Z]")  # a method; TLS begins with the byte 22


class ConnectionFacts(NamedTuple):
    """One connection, for whoever looks."""

    peer: str
    protocol: str  # h1 or h2
    tls: bool
    open_s: float


class Server:
    """Serves a handler on its listeners."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        limits: HttpLimits | None = None,
        *,
        common_headers: Headers = (),
        quick: QuickHandler | None = None,
        budget: Budget | None = None,
        lane: bool = True,
        relief: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.statistics = Statistics()
        self._listeners = list(listeners)
        self._common = CommonHeaders(common_headers)
        self._quick = quick if lane else None
        self._lane = lane
        self._budget = budget or Budget()
        # Gives descriptors back that the process could do without; tells whether it had any.
        self._relief = relief
        self._exhausted = Seldom(log, logging.WARNING)
        self._context: ServeContext | None = None
        self._served: dict[Served, tuple[str, bool, float]] = {}  # peer, TLS or not, since when
        self._opening: set[trio.CancelScope] = set()  # Connections that have not said a word yet.
        self._per_address: Counter[str] = Counter()
        self._refusing = 0
        self._drained = trio.Event()

    async def serve(
        self, handler: Handler, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until drained or cancelled."""
        watch = HangUpWatch()
        clock = AlarmClock()
        arrivals = Arrivals()
        try:
            async with trio.open_nursery() as background:
                background.start_soon(watch.run)
                background.start_soon(clock.run)
                background.start_soon(arrivals.run)
                async with trio.open_nursery() as nursery:
                    self._context = ServeContext(
                        handler,
                        self.limits,
                        self._common,
                        nursery,
                        watch,
                        clock,
                        arrivals,
                        self._budget,
                        self._quick,
                        self.statistics,
                    )
                    self._context.lane = self._lane
                    nursery.start_soon(self._drained.wait)
                    for listener in self._listeners:
                        nursery.start_soon(self._accept, listener)
                    task_status.started()
                background.cancel_scope.cancel()
        finally:
            self._context = None
            self.release()

    def release(self) -> None:
        """Stop listening; for its owner, where serving did not begin."""
        for listener in self._listeners:
            listener.release()

    def reconfigure(self, handler: Handler, common_headers: Headers) -> None:
        """Serve requests that begin from now on by this handler, with these headers."""
        self._common = CommonHeaders(common_headers)
        if self._context is not None:
            self._context.handler = handler
            self._context.common = self._common

    def renew_tls(self, tls: ssl.SSLContext) -> None:
        """Shake hands with these keys from now on; connections that are there keep theirs."""
        for listener in self._listeners:
            if listener.tls is not None:
                listener.tls = tls

    @property
    def draining(self) -> bool:
        """Whether no new connections are taken; handlers of endless responses should end them."""
        return self._drained.is_set()

    def connections(self) -> list[ConnectionFacts]:
        """Return every connection that has said a word, the oldest first."""
        now = trio.current_time()
        return [
            ConnectionFacts(
                peer, "h2" if isinstance(each, H2Connection) else "h1", tls, now - since
            )
            for each, (peer, tls, since) in self._served.items()
        ]

    def drain(self) -> None:
        """Stop accepting; hang up each connection when its exchanges are done."""
        if self._context is None or self._context.draining:
            return
        self._context.draining = True
        self._drained.set()
        for scope in self._opening:
            scope.cancel()
        for connection in list(self._served):
            connection.drain()

    def admit(self, sock: socket.socket, peer: str, tls: ssl.SSLContext | None = None) -> None:
        """Serve a connected socket, as if it had been accepted; the server owns it from now on."""
        context = self._context
        if context is None:
            msg = "the server is not running"
            raise RuntimeError(msg)
        sock.setblocking(False)  # noqa: FBT003
        address = client_of(peer) if ":" in peer else ""  # one proxy is behind a unix socket
        limits = self.limits
        if self.statistics.connections_open >= limits.connections_max or (
            address and self._per_address[address] >= limits.connections_per_address_max
        ):
            self.statistics.connections_refused += 1
            if tls is not None or self._refusing >= limits.refusals_max:
                sock.close()
                return
            self._refusing += 1
            context.nursery.start_soon(self._refuse, sock, peer)
            return
        self.statistics.connections_total += 1
        self.statistics.connections_open += 1
        self._per_address[address] += 1
        context.nursery.start_soon(self._serve_connection, sock, peer, address, tls)

    async def _accept(self, listener: Listener) -> None:
        # Every listener's task shares one way to be stopped, but a scope serves one task only.
        with trio.CancelScope() as scope:
            self._opening.add(scope)
            try:
                while True:
                    await wait_readable(listener.sock)
                    if not self._accept_batch(listener):
                        await trio.sleep(_EXHAUSTED_PAUSE_S)
            finally:
                self._opening.discard(scope)
                notify_closing(listener.sock)
                listener.release()

    def _accept_batch(self, listener: Listener) -> bool:
        """Accept what waits; False when the process is out of descriptors or memory."""
        for _ in range(_ACCEPT_BATCH):
            try:
                sock, address = listener.sock.accept()
            except BlockingIOError:
                break
            except OSError as exc:
                if exc.errno in _EXHAUSTED:
                    if self._relief():
                        continue
                    self._exhausted.say("cannot accept on %s: %s", listener.name, exc)
                    return False
                continue  # The client hung up before we got to it.
            peer = "unix"
            if isinstance(address, tuple):
                host = f"[{address[0]}]" if ":" in address[0] else address[0]
                peer = f"{host}:{address[1]}"
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.admit(sock, peer, listener.tls)
        return True

    async def _serve_connection(
        self, sock: socket.socket, peer: str, address: str, tls: ssl.SSLContext | None
    ) -> None:
        try:
            await self._serve_socket(sock, peer, tls)
        except HungUpError:
            pass
        except Exception:
            # The outermost frame of a connection: the others go on.
            log.exception("unexpected failure of the connection from %s", peer)
        finally:
            if sock.fileno() != -1:
                # Cut short by cancellation or failure; somebody may still wait for the socket.
                notify_closing(sock)
                sock.close()
            self.statistics.connections_open -= 1
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    async def _serve_socket(
        self, sock: socket.socket, peer: str, tls: ssl.SSLContext | None
    ) -> None:
        context = self._context
        assert context is not None
        connection: Served | None = None
        transport: Transport | None = None
        with trio.CancelScope() as opening:
            self._opening.add(opening)
            try:
                alpn: str | None = None
                if tls is None:
                    transport = PlainTransport(sock, peer, self.limits.write_s_max)
                else:
                    begun = await self._first_bytes(sock)
                    if _PLAIN_HTTP.match(begun):
                        await self._refuse_plain(sock, peer, begun)
                        return
                    transport, alpn = await self._shake_hands(sock, peer, tls)
                connection = await choose_version(transport, context, alpn)
            finally:
                self._opening.discard(opening)
        if connection is None or transport is None:
            if transport is not None:
                await transport.hang_up()
            return
        self._served[connection] = (peer, tls is not None, trio.current_time())
        newer = isinstance(connection, H2Connection)
        self.statistics.h2_open += newer
        try:
            await connection.serve()
        finally:
            del self._served[connection]
            self.statistics.h2_open -= newer
            self.statistics.stalled_total += transport.stalled

    async def _first_bytes(self, sock: socket.socket) -> bytes:
        """Look at what a client of TLS begins with, and leave it there."""
        with trio.move_on_after(self.limits.tls_handshake_s_max):
            await wait_readable(sock)
            try:
                return sock.recv(_BEGUN_BYTES, socket.MSG_PEEK)
            except OSError as exc:
                msg = "the client hung up before the TLS handshake"
                raise HungUpError(msg) from exc
        msg = "the TLS handshake took too long"
        raise HungUpError(msg)

    async def _shake_hands(
        self, sock: socket.socket, peer: str, tls: ssl.SSLContext
    ) -> tuple[Transport, str | None]:
        stream = trio.SSLStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(sock)),
            tls,
            server_side=True,
            https_compatible=True,
        )
        with trio.move_on_after(self.limits.tls_handshake_s_max) as scope:
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError as exc:
                msg = "the TLS handshake failed"
                raise HungUpError(msg) from exc
        if scope.cancelled_caught:
            msg = "the TLS handshake took too long"
            raise HungUpError(msg)
        alpn = stream.selected_alpn_protocol()
        return TlsTransport(sock, peer, self.limits.write_s_max, stream), alpn

    async def _refuse(self, sock: socket.socket, peer: str) -> None:
        """Tell a surplus client to come back later."""
        detail = "There are too many connections."
        # Nothing was read of it, so it is the server itself that was asked.
        body = problems.render(problems.UNAVAILABLE, detail, "/", retryAfter=int(RETRY_AFTER))
        headers = [*PROBLEM_HEADERS, (b"Retry-After", RETRY_AFTER)]
        try:
            await self._last_words(sock, peer, 503, headers, body)
        finally:
            self._refusing -= 1

    async def _refuse_plain(self, sock: socket.socket, peer: str, begun: bytes) -> None:
        """Tell a client that speaks plain HTTP on a port for TLS."""
        self.statistics.refused_total += 1
        detail = "This port speaks TLS, and the request came without; use https:// in its URL."
        body = problems.render(problems.BAD_REQUEST, detail, target_of(begun))
        await self._last_words(sock, peer, problems.BAD_REQUEST.status, PROBLEM_HEADERS, body)

    async def _last_words(
        self, sock: socket.socket, peer: str, status: int, headers: Headers, body: bytes
    ) -> None:
        """Answer on a connection that is not served, and hang up."""
        transport = PlainTransport(sock, peer, self.limits.linger_s_max)
        framing = b"Content-Length: %d\r\n" % len(body) + self._common.block
        head = render.head(status, headers, framing, keep_alive=False)
        try:
            with trio.move_on_after(self.limits.linger_s_max):
                await transport.send(head + body)
                await transport.linger(self.limits.linger_bytes_max)
        except HungUpError:
            pass  # It did not wait for an answer.
        finally:
            await transport.hang_up()
