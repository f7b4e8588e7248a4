"""Turns that the connection's task sleeps through look to the client like any other."""

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.abc import Clock
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.http.exchange import Reply, Request
from durastreamd.http.limits import HttpLimits
from durastreamd.http.transport import RECEIVE_BYTES
from tests.http.harness import PLAIN, Client, Gone, Harness, echo, running

IDLE_S = HttpLimits().idle_s_max


def post(target: str, body: bytes = b"x", *fields: str) -> bytes:
    head = [f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join([*head, "", ""]).encode() + body


class Quick:
    """Takes what it is told to take, and answers when it is told to answer."""

    def __init__(self, *, at_once: bool = True, declines: str = "/slow") -> None:
        self.at_once = at_once
        self.declines = declines
        self.taken: list[str] = []
        self.owed: list[tuple[Reply, bytes]] = []

    def __call__(self, request: Request, body: bytes, reply: Reply) -> bool:
        if request.target.startswith(self.declines):
            return False
        self.taken.append(request.target)
        self.owed.append((reply, f"POST {request.target} 1.1 ".encode() + body))
        if self.at_once:
            self.answer()
        return True

    def answer(self) -> None:
        reply, body = self.owed.pop(0)
        reply(200, PLAIN, body)


@asynccontextmanager
async def met(quick: Quick) -> AsyncIterator[tuple[Harness, Client, Quick]]:
    """Serve, and connect a client whose first request, which is never a quick one, is done."""
    async with running(echo, quick=quick) as harness:
        client = harness.connect()
        await client.ask(post("/first"))
        yield harness, client, quick


async def test_a_request_is_answered_without_the_task(autojump_clock: Clock) -> None:
    quick = Quick()
    async with running(echo, quick=quick) as harness:
        client = harness.connect()
        for number in range(3):
            found = await client.ask(post(f"/{number}", b"abc"))
            assert (found.status, found.body) == (200, f"POST /{number} 1.1 abc".encode())
        assert harness.server.statistics.lane_total == 3
    # The first one came with the connection, before it was known to speak HTTP/1.
    assert quick.taken == ["/1", "/2"]


async def test_what_is_declined_goes_the_ordinary_way(autojump_clock: Clock) -> None:
    quick = Quick()
    async with running(echo, quick=quick) as harness:
        client = harness.connect()
        for target in ("/", "/slow/1", "/1", "/slow/2", "/2"):
            found = await client.ask(post(target, b"abc"))
            assert found.body == f"POST {target} 1.1 abc".encode()
        assert (await client.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).body == b"GET / 1.1 "
        assert (await client.ask(post("/3"))).body == b"POST /3 1.1 x"
        assert harness.server.statistics.exchanges_total == 7
    assert quick.taken == ["/1", "/2", "/3"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("/b", b"abc", "Connection: close"),
        post("/b", b"abc", "Expect: 100-continue"),
        post("/b", b"abc", "X-A: 1", "X-A: 2"),
        b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"POST /b HTTP/1.0\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"PUT /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    ],
    ids=["close", "expect", "repeated", "chunked", "http10", "put"],
)
async def test_only_ordinary_posts_are_offered(autojump_clock: Clock, request_bytes: bytes) -> None:
    async with met(Quick()) as (_harness, client, quick):
        found = await client.ask(request_bytes)
        assert found.body.endswith(b" abc")
    assert quick.taken == []


@pytest.mark.parametrize("cut", [1, 30, 58])
async def test_a_request_in_pieces_is_put_together(autojump_clock: Clock, cut: int) -> None:
    async with met(Quick()) as (_harness, client, quick):
        whole = post("/pieces", b"abcdef")
        await client.send(whole[:cut])
        await wait_all_tasks_blocked()
        found = await client.ask(whole[cut:])
        assert found.body == b"POST /pieces 1.1 abcdef"
        assert (await client.ask(post("/after"))).body == b"POST /after 1.1 x"
    assert quick.taken == ["/after"]


async def test_requests_that_come_before_the_answer_keep_their_order(
    autojump_clock: Clock,
) -> None:
    async with met(Quick(at_once=False)) as (_harness, client, quick):
        await client.send(post("/1"))
        await wait_all_tasks_blocked()
        await client.send(post("/2") + post("/3"))
        await wait_all_tasks_blocked()
        assert quick.taken == ["/1"]
        quick.answer()
        for number in (1, 2, 3):
            assert (await client.response()).body == f"POST /{number} 1.1 x".encode()
        await client.send(post("/4"))
        await wait_all_tasks_blocked()
        quick.answer()
        assert (await client.response()).body == b"POST /4 1.1 x"
    assert quick.taken == ["/1", "/4"]


async def test_what_follows_a_full_receive_is_not_forgotten(autojump_clock: Clock) -> None:
    async with met(Quick()) as (_harness, client, quick):
        full = post("/full", b"f" * 65_000)
        full = post("/full", b"f" * (65_000 + RECEIVE_BYTES - len(full)))
        assert len(full) == RECEIVE_BYTES
        await client.send(full + post("/after"))
        assert (await client.response()).body.startswith(b"POST /full")
        assert (await client.response()).body == b"POST /after 1.1 x"
    assert quick.taken == ["/full"]


async def test_a_client_that_leaves_before_the_answer_disturbs_nobody(
    autojump_clock: Clock,
) -> None:
    async with met(Quick(at_once=False)) as (harness, client, quick):
        await client.send(post("/1"))
        await wait_all_tasks_blocked()
        client.hang_up()
        await wait_all_tasks_blocked()
        assert harness.server.statistics.exchanges_open == 1
        quick.answer()
        await wait_all_tasks_blocked()
        assert harness.server.statistics.connections_open == 0


async def test_drain_waits_for_the_answer_and_says_that_it_is_the_last(
    autojump_clock: Clock,
) -> None:
    quick = Quick(at_once=False)
    async with running(echo, quick=quick) as harness:
        client, idle = harness.connect(), harness.connect()
        await client.ask(post("/first"))
        await idle.ask(post("/first"))
        await client.send(post("/1"))
        await wait_all_tasks_blocked()
        harness.server.drain()
        assert await idle.rest() == b""
        quick.answer()
        found = await client.response()
        assert found.headers[b"connection"] == b"close"
        assert await client.rest() == b""


async def test_idle_time_counts_from_the_answer(mock_clock: MockClock) -> None:
    async with met(Quick(at_once=False)) as (harness, client, quick):
        await client.send(post("/1"))
        await wait_all_tasks_blocked()
        mock_clock.jump(2 * IDLE_S)  # the answer takes as long as it takes
        await wait_all_tasks_blocked()
        assert harness.server.statistics.connections_open == 1
        quick.answer()
        assert (await client.response()).status == 200
        mock_clock.jump(IDLE_S * 0.9)
        await wait_all_tasks_blocked()
        assert harness.server.statistics.connections_open == 1
        mock_clock.jump(IDLE_S * 0.2)
        await wait_all_tasks_blocked()
        assert harness.server.statistics.connections_open == 0
        assert await client.rest() == b""
        mock_clock.rate = math.inf


async def test_an_answer_the_kernel_does_not_take_is_sent_by_the_task(
    autojump_clock: Clock,
) -> None:
    quick = Quick(at_once=False)
    async with running(echo, quick=quick) as harness:
        client = harness.connect(buffer_bytes=4096)
        await client.ask(post("/first"))
        await client.send(post("/1"))
        await wait_all_tasks_blocked()
        reply, _ = quick.owed.pop()
        reply(200, PLAIN, b"z" * 300_000)
        assert (await client.response()).body == b"z" * 300_000
        await client.send(post("/2"))
        await wait_all_tasks_blocked()
        quick.answer()
        assert (await client.response()).body == b"POST /2 1.1 x"


async def test_an_answer_after_the_server_was_cancelled_is_harmless() -> None:
    quick = Quick(at_once=False)
    with trio.CancelScope() as scope:
        async with running(echo, quick=quick) as harness:
            client = harness.connect()
            await client.ask(post("/first"))
            await client.send(post("/1"))
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    quick.answer()


async def test_a_quick_handler_that_fails_ends_its_connection_only(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_request: Request, _body: bytes, _reply: Reply) -> bool:
        raise ZeroDivisionError

    async with running(echo, quick=broken) as harness:
        client, other = harness.connect(), harness.connect()
        await client.ask(post("/first"))
        await other.ask(post("/first"))
        await client.send(post("/1"))
        with pytest.raises(Gone):
            await client.response()
        assert (await other.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    assert "ZeroDivisionError" in caplog.text


pieces = st.lists(
    st.sampled_from(
        [
            post("/a"),
            post("/slow", b"yy"),
            b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n",
            post("/c", b"z" * 70_000),
            post("/d", b"w" * 200, "X-B: c"),
        ]
    ),
    min_size=1,
    max_size=6,
)


@given(requests=pieces, cuts=st.lists(st.integers(0, 500), max_size=8), late=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_delivery_gives_the_same_answers_in_order(
    requests: list[bytes], cuts: list[int], *, late: bool
) -> None:
    whole = b"".join(requests)
    expected = []
    for one in requests:
        line, _, rest = one.partition(b"\r\n")
        method, target, _ = line.split(b" ")
        expected.append(b"%b %b 1.1 %b" % (method, target, rest.partition(b"\r\n\r\n")[2]))

    async def run() -> None:
        quick = Quick(at_once=not late)
        async with running(echo, quick=quick) as harness, trio.open_nursery() as nursery:
            client = harness.connect()
            got: list[bytes] = []

            async def read() -> None:
                for _ in expected:
                    got.append((await client.response()).body)  # noqa: PERF401
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            start = 0
            for size in [*cuts, len(whole)]:
                await client.send(whole[start : start + size])
                start += size
                await wait_all_tasks_blocked()
                while quick.owed:
                    quick.answer()
                    await wait_all_tasks_blocked()
            await trio.sleep(1000)
        assert got == expected

    trio.run(run, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_client_that_ends_with_its_last_request_is_let_go(
    autojump_clock: Clock, *, at_once: bool
) -> None:
    async with met(Quick(at_once=at_once)) as (_harness, client, quick):
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        os.write(client.sock.fileno(), post("/last"))
        client.sock.shutdown(trio.socket.SHUT_WR)  # before the server had a turn
        await wait_all_tasks_blocked()
        if not at_once:
            quick.answer()
        assert (await client.response()).body == b"POST /last 1.1 x"
        assert await client.rest() == b""
        assert trio.current_time() - begun < IDLE_S, "nobody waited for the idle time to pass"
    assert quick.taken == ["/last"]
