"""A running server and clients for it, over socket pairs: no ports, and the mock clock works."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import h11
import trio

from durastreamd.http.budget import Budget
from durastreamd.http.exchange import Exchange, Handler, Headers, QuickHandler
from durastreamd.http.limits import HttpLimits
from durastreamd.http.server import Server
from tests.support.draining import served

PLAIN: Headers = ((b"Content-Type", b"text/plain"),)


@dataclass
class Response:
    status: int
    headers: dict[bytes, bytes]
    body: bytes
    interim: list[int]


class Gone(Exception):  # noqa: N818 - a fact about the peer, not an error of ours
    """The server hung up where an answer was expected."""


class Client:
    """One connection to the server, as raw as a test needs it."""

    def __init__(self, sock: socket.socket, *, bytewise: bool) -> None:
        self.raw = sock
        self.sock = trio.socket.from_stdlib_socket(sock)
        self.bytewise = bytewise
        self.received = b""

    async def send(self, data: bytes) -> None:
        step = 1 if self.bytewise else max(1, len(data))
        for at in range(0, len(data), step):
            piece = memoryview(data)[at : at + step]
            while piece:
                piece = piece[await self.sock.send(piece) :]
            await trio.lowlevel.checkpoint()

    async def try_send(self, data: bytes) -> bool:
        try:
            await self.send(data)
        except OSError:
            return False
        return True

    async def receive(self) -> bytes:
        try:
            return await self.sock.recv(65536)
        except ConnectionResetError:
            return b""

    async def rest(self) -> bytes:
        """Everything until the server hangs up."""
        data, self.received = self.received, b""
        while more := await self.receive():
            data += more
        return data

    async def response(self, method: str = "GET") -> Response:
        """The next response, judged by h11."""
        judge = h11.Connection(h11.CLIENT)
        judge.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        judge.send(h11.EndOfMessage())
        found = Response(0, {}, b"", [])
        if self.received:
            judge.receive_data(self.received)
        self.received = b""
        while True:
            event = judge.next_event()
            if event is h11.NEED_DATA:
                data = await self.receive()
                if not data and not found.status:
                    raise Gone
                judge.receive_data(data)
            elif isinstance(event, h11.InformationalResponse):
                found.interim.append(event.status_code)
            elif isinstance(event, h11.Response):
                found.status = event.status_code
                found.headers = dict(event.headers)
            elif isinstance(event, h11.Data):
                found.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self.received = bytes(judge.trailing_data[0])
                return found

    async def ask(self, data: bytes, method: str = "GET") -> Response:
        await self.send(data)
        return await self.response(method)

    def hang_up(self) -> None:
        self.sock.close()


class Harness:
    def __init__(self, server: Server, *, bytewise: bool) -> None:
        self.server = server
        self.bytewise = bytewise
        self.clients: list[Client] = []

    def connect(self, buffer_bytes: int | None = None, peer: str = "192.0.2.1:5") -> Client:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003
        if buffer_bytes is not None:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        client = Client(ours, bytewise=self.bytewise)
        self.clients.append(client)
        self.server.admit(theirs, peer)
        return client


@asynccontextmanager
async def running(
    handler: Handler,
    limits: HttpLimits | None = None,
    *,
    delivery: str = "whole",
    lane: bool = True,
    quick: QuickHandler | None = None,
    budget: Budget | None = None,
    common_headers: Sequence[tuple[bytes, bytes]] = (),
) -> AsyncIterator[Harness]:
    """Serve ``handler``; in the end every task must have gone by itself."""
    budget = budget or Budget()
    server = Server(
        [], limits, common_headers=common_headers, quick=quick, budget=budget, lane=lane
    )
    harness = Harness(server, bytewise=delivery == "bytewise")
    async with served(server, handler, harness.clients):
        yield harness
    assert server.statistics.connections_open == 0
    assert budget.used == 0, "bytes are counted that nobody holds"


async def echo(exchange: Exchange) -> None:
    """Answer with what was asked."""
    request = exchange.request
    body = await exchange.body(1 << 20) if request.has_body else b""
    line = f"{request.method} {request.target} {request.version} ".encode()
    await exchange.respond(200, PLAIN, line + body)


async def until_nothing_is_open(server: Server) -> None:
    while server.statistics.connections_open:
        await trio.sleep(0.5)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await trio.lowlevel.checkpoint()


async def ponder(exchange: Exchange) -> None:
    """Answer after longer than anything else may take."""
    await trio.sleep(1000)
    await exchange.respond(204, ())
