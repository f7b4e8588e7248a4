"""The App behind a real Server over socket pairs, on a simulated disk; the mock clock works.

``Site`` is the whole server in one process. ``Connection`` is one HTTP/1.1 client connection,
judged by h11; ``Reply`` is what it got.
"""

import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio

from durastreamd.engine.options import EngineOptions
from durastreamd.http.limits import HttpLimits
from durastreamd.http.server import Server
from durastreamd.service.access.visitors import Visitors
from durastreamd.service.app import App
from durastreamd.service.limits import Limits
from durastreamd.streams.limits import StreamLimits
from tests.support.draining import served
from tests.support.held_writer import Bench

PREFIX = "/v1/stream/"
NOW = 1_800_000_000_000  # after the epoch of cursors
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
BINARY = {"Content-Type": "application/octet-stream"}
CLOSE = {"Stream-Closed": "true"}

Head = Mapping[str, str]


def now_ms() -> int:
    """Return the time of day of a site: trio's clock from a fixed moment on."""
    return NOW + int(trio.current_time() * 1000)


class HungUpError(Exception):
    """The server hung up where more was expected."""


@dataclass
class Reply:
    """A response: its body is complete once ``ended``."""

    status: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    ended: bool = False

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name.lower()]

    def get(self, name: str) -> str | None:
        found = self.all(name)
        assert len(found) < 2, f"{name} is there twice"
        return found[0] if found else None

    def __getitem__(self, name: str) -> str:
        found = self.get(name)
        assert found is not None, f"no {name} in {self.fields}"
        return found

    @property
    def next(self) -> str:
        return self["Stream-Next-Offset"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The reason of a problem document, its code where it has none."""
        found = self.json
        return str(found.get("reason", found["code"]))


def producer(name: str, epoch: int, seq: int) -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def request_bytes(method: str, target: str, head: Head | None = None, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: streams.example"]
    lines += [f"{name}: {value}" for name, value in (head or {}).items()]
    if (body or method in ("POST", "PUT")) and "Content-Length" not in (head or {}):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Connection:
    """One client connection; exchanges follow each other on it."""

    def __init__(self, sock: socket.socket) -> None:
        self.raw = sock
        self.sock = trio.socket.from_stdlib_socket(sock)
        self.reply = Reply()
        self._judge = h11.Connection(h11.CLIENT)
        self._rest = b""

    async def send(self, method: str, target: str, head: Head | None, body: bytes = b"") -> None:
        """Send a request; the reply begins anew."""
        await self.send_bytes(request_bytes(method, target, head, body), method)

    async def send_bytes(self, request: bytes, method: str = "GET") -> None:
        """Send what may not be a proper request; the reply begins anew."""
        self.reply = Reply()
        self._judge = h11.Connection(h11.CLIENT)
        self._judge.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        self._judge.send(h11.EndOfMessage())
        if self._rest:
            self._judge.receive_data(self._rest)
            self._rest = b""
        data = memoryview(request)
        while data:
            data = data[await self.sock.send(data) :]

    async def step(self) -> bytes:
        """Take the next event of the reply; returns the bytes of its body that came."""
        while True:
            event = self._judge.next_event()
            if event is h11.NEED_DATA:
                try:
                    data = await self.sock.recv(65536)
                except ConnectionResetError:
                    raise HungUpError from None
                if not data and not self.reply.status:
                    raise HungUpError
                self._judge.receive_data(data)
            elif isinstance(event, h11.Response):
                self.reply.status = event.status_code
                self.reply.fields = [(n.decode(), v.decode("latin-1")) for n, v in event.headers]
                return b""
            elif isinstance(event, h11.Data):
                return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._rest = bytes(self._judge.trailing_data[0])
                self.reply.ended = True
                return b""

    def take_nowait(self) -> None:
        """Empty the kernel's buffer without letting any other task run."""
        try:
            while data := self.raw.recv(65536):
                self._judge.receive_data(data)
        except BlockingIOError:
            pass

    async def head(self) -> Reply:
        """Wait for the head of the reply."""
        while not self.reply.status:
            await self.step()
        return self.reply

    async def whole(self) -> Reply:
        """Wait for the end of the reply."""
        while not self.reply.ended:
            self.reply.body += await self.step()
        return self.reply

    async def ask(
        self, method: str, target: str, head: Head | None = None, body: bytes = b""
    ) -> Reply:
        await self.send(method, target, head, body)
        return await self.whole()

    def hang_up(self) -> None:
        self.sock.close()


class Site:
    """A running server."""

    def __init__(self, bench: Bench, app: App, server: Server) -> None:
        self.bench = bench
        self.app = app
        self.server = server
        self.connections: list[Connection] = []
        self._first: Connection | None = None

    def connect(self, buffer_bytes: int | None = None) -> Connection:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003
        if buffer_bytes is not None:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        made = Connection(ours)
        self.connections.append(made)
        self.server.admit(theirs, "192.0.2.1:5")
        return made

    async def raw(
        self, method: str, target: str, head: Head | None = None, body: bytes = b""
    ) -> Reply:
        """Ask on a connection that is kept as long as the server keeps it."""
        if self._first is None:
            self._first = self.connect()
        reply = await self._first.ask(method, target, head, body)
        if reply.get("Connection") == "close":
            self._first = None
        return reply

    async def ask(
        self, method: str, name: str, head: Head | None = None, body: bytes = b""
    ) -> Reply:
        """Ask about a stream; ``name`` may have a query."""
        return await self.raw(method, PREFIX + name, head, body)

    async def make(self, name: str, head: Head = TEXT, body: bytes = b"") -> Reply:
        reply = await self.ask("PUT", name, head, body)
        assert reply.status == 201, reply
        return reply

    async def add(self, name: str, body: bytes, head: Head = TEXT) -> Reply:
        reply = await self.ask("POST", name, head, body)
        assert reply.status in (200, 204), reply
        return reply

    async def get(self, name: str, head: Head | None = None) -> Reply:
        return await self.ask("GET", name, head)

    async def head(self, name: str) -> Reply:
        return await self.ask("HEAD", name)

    async def open(
        self, name: str, head: Head | None = None, buffer_bytes: int | None = None
    ) -> Connection:
        """Begin a GET on a connection of its own; does not wait for the answer."""
        made = self.connect(buffer_bytes)
        await made.send("GET", PREFIX + name, head)
        return made


@asynccontextmanager
async def serving(
    limits: Limits | None = None,
    *,
    http: HttpLimits | None = None,
    options: EngineOptions | None = None,
    streams: StreamLimits | None = None,
    visitors: Visitors | None = None,
) -> AsyncIterator[Site]:
    """Serve for the length of an async with block; in the end every task has gone by itself."""
    bench = Bench(options, streams)
    bench.streams.clock = now_ms
    app = App(bench.streams, limits, visitors=visitors)
    server = Server(
        [], http, common_headers=app.admission.visitors.common, quick=app.quick, budget=app.budget
    )
    site = Site(bench, app, server)
    async with bench.running(), served(server, app, site.connections):
        yield site
    assert app.budget.used == 0
    assert bench.streams.follower_count() == 0
