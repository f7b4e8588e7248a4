"""Those who use a server all night: producers that repeat until they are told, readers that follow.

Both know nothing of what happens to the server; they only do what the protocol lets them do.
"""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx
import trio

from tests.service.guards import bearer
from tests.support.patience import PATIENCE_S

AGAIN_S = 0.1  # before something is tried again
TEXT = {"Content-Type": "text/plain"}
ACCEPTED, DUPLICATE = 200, 204  # how an append of a producer is answered


@dataclass
class Secrets:
    """Where everybody finds the token that is good now, after being refused with another."""

    token: str


@dataclass
class Place:
    """The server, as clients know it."""

    port: int
    trust: ssl.SSLContext
    secrets: Secrets

    async def knock(self) -> trio.SSLStream[trio.SocketStream]:
        """Connect; a server that is down lets one wait for its part of the handshake."""
        plain = await trio.open_tcp_stream("127.0.0.1", self.port)
        return trio.SSLStream(plain, self.trust, server_hostname="127.0.0.1", https_compatible=True)

    def client(self) -> httpx.AsyncClient:
        """Return a client of its own connections."""
        url = f"https://127.0.0.1:{self.port}"
        return httpx.AsyncClient(base_url=url, verify=self.trust, timeout=PATIENCE_S)


# --- HTTP/1.1, as much of it as these need ---


class HungUpError(Exception):
    """The server hung up in the middle of an answer."""


GONE = (HungUpError, OSError, trio.BrokenResourceError)  # the ways to lose a connection


class Answer(NamedTuple):
    """The head of an answer, and its body unless that comes in chunks."""

    status: int
    fields: Mapping[str, str]
    body: bytes


class Wire:
    """One connection."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._buffer = b""

    async def ask(
        self, method: str, target: str, head: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """Send a request, and wait for the answer as far as its length is known."""
        fields = {"Host": "x", "Content-Length": str(len(body)), **head}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
        await self._stream.send_all("\r\n".join([*lines, "", ""]).encode() + body)
        line, *told = (await self._until(b"\r\n\r\n")).decode().split("\r\n")
        found = dict(field.lower().split(": ", 1) for field in told)
        length = int(found.get("content-length", "0"))
        return Answer(int(line.split()[1]), found, await self._take(length))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give the body of an answer as it comes, to its proper end."""
        while size := int(await self._until(b"\r\n"), 16):
            yield (await self._take(size + 2))[:-2]
        assert await self._take(2) == b"\r\n"

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            await self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    async def _more(self) -> None:
        data = await self._stream.receive_some(65536)
        if not data:
            raise HungUpError
        self._buffer += data


# --- writing ---


class Producer:
    """Appends numbered messages to one stream, each until it is acknowledged."""

    def __init__(self, place: Place, name: str, pace_s: float) -> None:
        self.path = f"/v1/stream/{name}"
        self.sent = b""  # all that was ever offered, in order; no reader may see anything else
        self.acknowledged = 0  # messages
        self.acknowledged_bytes = 0
        self.statuses: dict[int, int] = {}  # of answers
        self.unanswered = 0
        self.working = True
        self._name = name
        self._pace_s = pace_s
        self._place = place
        self._token = place.secrets.token

    @property
    def settled(self) -> bool:
        """Tell whether nothing is offered and not yet acknowledged."""
        return len(self.sent) == self.acknowledged_bytes

    def message(self, number: int) -> bytes:
        """Return a message that is like no other: some lines, as logs have, and a rest."""
        line = f"<{self._name} {number:06d} {number * 7919 % 10_000:0100d}>\n".encode()
        return line * (number % 5 * 10 + 1) + line[: number % 50]

    async def run(self) -> None:
        """Append until told to stop, then finish what was begun."""
        while self.working or not self.settled:
            try:
                async with await self._place.knock() as stream:
                    await self._append_to(Wire(stream))
            except GONE:
                self.unanswered += 1
                await trio.sleep(AGAIN_S)

    async def _append_to(self, wire: Wire) -> None:
        while self.working or not self.settled:
            if self.settled:
                self.sent += self.message(self.acknowledged)
            if await self.offer(wire, self.acknowledged) in (ACCEPTED, DUPLICATE):
                self.acknowledged += 1
                self.acknowledged_bytes = len(self.sent)
                await trio.sleep(self._pace_s)
            else:
                await trio.sleep(AGAIN_S)

    async def offer(self, wire: Wire, number: int) -> int:
        """Send one message once and return the status."""
        head = {"Producer-Id": self._name, "Producer-Epoch": "0", "Producer-Seq": str(number)}
        answer = await wire.ask(
            "POST", self.path, bearer(self._token, **head, **TEXT), self.message(number)
        )
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        match answer.status:
            case 401:
                self._token = self._place.secrets.token
            case 507:
                assert json.loads(answer.body)["code"] == "INSUFFICIENT_STORAGE"
                assert int(answer.fields["retry-after"]) >= 1
            case other:
                assert other in (ACCEPTED, DUPLICATE), answer
        return answer.status


# --- following ---


@dataclass
class Reader:
    """Follows one stream by server-sent events and resumes where it was, over and over.

    Every byte must come exactly once and in order: what comes is compared with what the producer
    sent from this reader's position on.
    """

    place: Place
    producer: Producer
    position: int = 0
    token: str = field(init=False)
    live: bool = False  # an answer is under way
    knocking: bool = False  # the kernel has the connection, a server not yet
    connections: int = 0
    refused: int = 0  # connections
    denied: int = 0  # by 401
    ended: int = 0  # answers that came to their proper end
    broken: int = 0  # answers and handshakes that did not

    def __post_init__(self) -> None:
        self.token = self.place.secrets.token

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                async with await self.place.knock() as stream:
                    self.knocking = True
                    await stream.do_handshake()
                    self.knocking = False
                    self.connections += 1
                    wire = Wire(stream)
                    while True:
                        await self._follow(wire)
            except ConnectionRefusedError:
                self.refused += 1
            except GONE:
                self.broken += 1
            await trio.sleep(AGAIN_S)

    async def _follow(self, wire: Wire) -> None:
        """Ask once, and take what comes until the answer ends."""
        target = f"{self.producer.path}?offset={self.position:016d}&live=sse"
        answer = await wire.ask("GET", target, bearer(self.token))
        if answer.status != 200:
            assert answer.status in (401, 503), answer
            if answer.status == 401:
                self.denied += 1
                self.token = self.place.secrets.token
            return
        self.live = True
        try:
            text = b""
            async for chunk in wire.chunks():
                *events, text = (text + chunk).split(b"\n\n")
                self._take(events)
            self.ended += 1
        finally:
            self.live = False

    def _take(self, events: list[bytes]) -> None:
        """Believe a data event only with the control event that follows it."""
        data = b""
        for event in events:
            kind, *lines = event.split(b"\n")
            if kind == b"event: data":
                data = b"\n".join(line.removeprefix(b"data:") for line in lines)
            elif kind == b"event: control":
                told = json.loads(lines[0].removeprefix(b"data:"))
                end = int(told["streamNextOffset"])
                assert data == self.producer.sent[self.position : end], self.producer.path
                assert end == self.position + len(data)
                self.position = end
                data = b""
        assert not data, "a data event and its control event are sent together"


# --- looking on ---


class Operator:
    """Asks the pages for operators."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self._http = http
        self._head = bearer(token)

    async def metrics(self) -> dict[str, float]:
        """Return every value of the page, named without the common prefix."""
        reply = await self._http.get("/-/metrics", headers=self._head)
        assert reply.status_code == 200, reply.text
        lines = [line for line in reply.text.splitlines() if not line.startswith("#")]
        pairs = [line.removeprefix("durastreamd_").rsplit(" ", 1) for line in lines]
        return {name: float(value) for name, value in pairs}

    async def ready(self) -> tuple[int, str]:
        """Return what a load balancer is told."""
        reply = await self._http.get("/-/readyz")
        return reply.status_code, reply.text
