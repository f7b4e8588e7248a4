"""A site whose subscriptions are looked after, and a receiver of webhooks on a real socket."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio

from durastreamd.model.subscription import SubscriptionState
from durastreamd.streams.limits import SubscriptionLimits
from tests.service.harness import JSON, Reply, Site, serving
from tests.support.patience import PATIENCE_S

DS = "__ds/subscriptions/"
HOOK = "http://127.0.0.1:{port}/hook"
TTL = 1000

Answerer = Callable[[dict[str, Any]], tuple[int, bytes]]


class Receiver:
    """A receiver of webhooks on a real socket; ``answers`` says what it says."""

    def __init__(self) -> None:
        self.port = 0
        self.answers: Answerer = lambda _: (200, b"{}")
        self.got: list[dict[str, Any]] = []
        self.raw: list[tuple[bytes, str]] = []
        self.hold: trio.Event | None = None
        self.open = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        connection, body, signature = h11.Connection(h11.SERVER), b"", ""
        self.open += 1
        try:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(bytes(await stream.receive_some(65536)))
                elif isinstance(event, h11.Request):
                    signature = dict(event.headers)[b"webhook-signature"].decode()
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    return
            said = json.loads(body)
            self.got.append(said)
            self.raw.append((body, signature))
            if self.hold is not None:
                await self.hold.wait()
            status, answer = self.answers(said)
            head = b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n" % (status, len(answer))
            more = b"Location: http://127.0.0.1:1/\r\n" if status == 302 else b""
            await stream.send_all(head + more + b"\r\n" + answer)
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1
            await trio.aclose_forcefully(stream)


class Place:
    """A site whose subscriptions are looked after, and a receiver."""

    def __init__(self, site: Site, receiver: Receiver) -> None:
        self.site = site
        self.receiver = receiver
        self.held = site.app.subscribing.held

    async def put(self, name: str, **fields: Any) -> Reply:
        body = json.dumps({"lease_ttl_ms": TTL, **fields}).encode()
        return await self.site.ask("PUT", DS + name, JSON, body)

    async def hook(self, name: str, **fields: Any) -> Reply:
        url = HOOK.format(port=self.receiver.port)
        return await self.put(name, type="webhook", webhook={"url": url}, **fields)

    async def pull(self, name: str, **fields: Any) -> Reply:
        return await self.put(name, type="pull-wake", wake_stream="wakes", **fields)

    async def post(self, what: str, body: object, token: str = "") -> Reply:
        head = {**JSON, "Authorization": f"Bearer {token}"} if token else JSON
        return await self.site.ask("POST", DS + what, head, json.dumps(body).encode())

    async def look(self, name: str) -> dict[str, Any]:
        reply = await self.site.ask("GET", DS + name)
        assert reply.status == 200, reply
        found: dict[str, Any] = reply.json
        return found

    async def until(self, true: Callable[[], object]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not true():
                await trio.sleep(0.01)

    async def received(self, count: int) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.receiver.got) >= count)
        return self.receiver.got

    def state(self, name: str) -> SubscriptionState:
        return self.held.by_id["", name].state

    async def settled(self, name: str, state: SubscriptionState) -> None:
        await self.until(lambda: self.state(name) is state)


IDLE, WAKING, LIVE = SubscriptionState


@asynccontextmanager
async def placed(limits: SubscriptionLimits | None = None) -> AsyncIterator[Place]:
    receiver = Receiver()
    async with serving() as site, trio.open_nursery() as nursery:
        if limits is not None:
            site.app.webhooks.reconfigure(limits)
        site.app.webhooks.local = True
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        receiver.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, receiver.serve, [listener])
        nursery.start_soon(site.app.subscribing.run)
        try:
            yield Place(site, receiver)
        finally:
            nursery.cancel_scope.cancel()


def code(reply: Reply) -> str:
    found = reply.json
    assert found["error"]["message"] == found["detail"]
    return str(found["error"]["code"])
