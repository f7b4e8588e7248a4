"""HTTP/1 clients that mean harm, are broken, or are slow."""

import json

import pytest
import trio
import trio.testing

from durastreamd.http.exchange import Exchange
from durastreamd.http.limits import HttpLimits
from tests.http.harness import (
    PLAIN,
    Client,
    Response,
    echo,
    ponder,
    running,
    settle,
    until_nothing_is_open,
)
from tests.http.vectors import REFUSED, REFUSED_BODIES

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SMALL = HttpLimits(
    head_bytes_max=400, target_bytes_max=100, header_count_max=5, body_bytes_max=1000
)


async def never(exchange: Exchange) -> None:
    pytest.fail(f"{exchange.request!r} reached the handler")


def check_problem(response: Response, status: int) -> None:
    assert response.status == status
    assert response.headers[b"content-type"] == b"application/problem+json"
    assert response.headers[b"connection"] == b"close"
    body = json.loads(response.body)
    assert body["status"] == status
    assert body["instance"].startswith("/")


async def check_ended(client: Client) -> None:
    """After an error nothing more is served, whatever follows."""
    await client.try_send(GET)
    assert await client.rest() == b""


@pytest.mark.parametrize("name", REFUSED)
async def test_ambiguous_head_is_refused_and_ends_the_connection(name: str, delivery: str) -> None:
    raw, status = REFUSED[name]
    async with running(never, delivery=delivery) as harness:
        client = harness.connect()
        await client.try_send(raw)
        check_problem(await client.response(), status)
        await check_ended(client)


@pytest.mark.parametrize("name", REFUSED_BODIES)
async def test_ambiguous_body_is_refused_and_ends_the_connection(name: str, delivery: str) -> None:
    async with running(echo, delivery=delivery) as harness:
        client = harness.connect()
        await client.try_send(REFUSED_BODIES[name])
        check_problem(await client.response(), 400)
        await check_ended(client)
        assert harness.server.statistics.exchanges_total == 1


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 100), 414),
        (b"GET /%b" % (b"a" * 1000), 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: %b\r\n\r\n" % (b"a" * 400), 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: %b" % (b"a" * 400), 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % (b"A: b\r\n" * 5), 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", 413),
    ],
)
async def test_sizes_and_counts_are_bounded(raw: bytes, status: int, delivery: str) -> None:
    async with running(echo, SMALL, delivery=delivery) as harness:
        client = harness.connect()
        await client.try_send(raw)
        check_problem(await client.response(), status)
        await check_ended(client)


async def test_sizes_at_the_bound_are_accepted(delivery: str) -> None:
    async with running(echo, SMALL, delivery=delivery) as harness:
        client = harness.connect()
        assert (
            await client.ask(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 99))
        ).status == 200
        five = b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % b"".join(b"%d: b\r\n" % n for n in range(4))
        assert (await client.ask(five)).status == 200
        padding = 400 - len(b"GET / HTTP/1.1\r\nHost: x\r\nA: \r\n\r\n")
        full = b"GET / HTTP/1.1\r\nHost: x\r\nA: %b\r\n\r\n" % (b"a" * padding)
        assert (await client.ask(full)).status == 200


@pytest.mark.parametrize("judge", ["handler", "connection"])
@pytest.mark.parametrize("coding", ["length", "chunked"])
async def test_client_can_read_the_413_for_a_body_it_is_still_sending(
    coding: str, judge: str
) -> None:
    async def small(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, bytes(await exchange.body(1000)))

    body = b"x" * 900_000
    if coding == "length":
        raw = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    else:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    limits = HttpLimits(body_bytes_max=1000) if judge == "connection" else None
    async with running(small, limits) as harness:
        client = harness.connect()
        assert await client.try_send(raw), "the upload was cut off before it could end"
        check_problem(await client.response(), 413)
        await check_ended(client)


async def test_an_endless_upload_is_not_swallowed_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(never, SMALL) as harness:
        client = harness.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999999\r\n\r\n")
        sent = 0
        while await client.try_send(b"x" * 65536):
            sent += 65536
            assert sent < 10 * SMALL.linger_bytes_max


async def test_slow_head_gets_408(autojump_clock: trio.testing.MockClock, delivery: str) -> None:
    limits = HttpLimits()
    async with running(never, limits, delivery=delivery) as harness:
        client = harness.connect()
        begun = trio.current_time()
        for byte in b"GET / HTTP/1.1\r\nHos":
            if not await client.try_send(bytes([byte])):
                break
            await trio.sleep(1)
        check_problem(await client.response(), 408)
        assert await client.rest() == b""
        assert trio.current_time() - begun < limits.head_s_max + 15


async def test_slow_second_head_gets_408_too(autojump_clock: trio.testing.MockClock) -> None:
    async with running(echo) as harness:
        client = harness.connect()
        assert (await client.ask(GET)).status == 200
        await trio.sleep(60)
        begun = trio.current_time()
        await client.send(GET[:-1])
        check_problem(await client.response(), 408)
        assert trio.current_time() - begun == pytest.approx(10, abs=0.1)


async def test_idle_connection_is_hung_up_without_a_word(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(echo) as harness:
        silent, served = harness.connect(), harness.connect()
        begun = trio.current_time()
        assert await silent.receive() == b""
        assert trio.current_time() - begun == pytest.approx(75, abs=0.1)
        served = harness.connect()
        for _ in range(3):
            await trio.sleep(50)
            assert (await served.ask(GET)).status == 200
        begun = trio.current_time()
        assert await served.receive() == b""
        assert trio.current_time() - begun == pytest.approx(75, abs=0.1)


async def test_a_running_handler_is_never_timed_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(ponder) as harness:
        client = harness.connect()
        for _ in range(2):
            assert (await client.ask(GET)).status == 204


async def test_slow_body_gets_408(autojump_clock: trio.testing.MockClock) -> None:
    limits = HttpLimits(body_rate_min=100, body_grace_s=5)
    async with running(echo, limits) as harness:
        client = harness.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        begun = trio.current_time()
        while harness.server.statistics.exchanges_open or begun == trio.current_time():
            await client.try_send(b"x" * 50)
            await trio.sleep(1)
        check_problem(await client.response(), 408)
        assert trio.current_time() - begun < 15


async def test_body_at_the_lowest_rate_arrives(autojump_clock: trio.testing.MockClock) -> None:
    async with running(echo, HttpLimits(body_rate_min=100, body_grace_s=5)) as harness:
        client = harness.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n")
        for _ in range(30):
            await trio.sleep(1)
            await client.send(b"x" * 100)
        assert (await client.response()).status == 200


async def test_streamed_body_may_pause_but_not_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def gather(exchange: Exchange) -> None:
        async for _ in exchange.chunks():
            pass
        await exchange.respond(204, ())

    async with running(gather) as harness:
        client = harness.connect()
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            await trio.sleep(50)
            await client.send(b"1\r\nx\r\n")
        check_problem(await client.response(), 408)


@pytest.mark.parametrize("length", [None, 1 << 30])
async def test_slow_reader_is_cut_off_and_its_exchange_ends(
    length: int | None, autojump_clock: trio.testing.MockClock
) -> None:
    limits = HttpLimits(write_s_max=7)

    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN, length=length)
        while True:
            await exchange.send(b"x" * 65536)

    async with running(pour, limits) as harness:
        client = harness.connect(buffer_bytes=4096)
        begun = trio.current_time()
        await client.send(GET)
        await trio.sleep(1)
        assert harness.server.statistics.exchanges_open == 1
        await client.receive()  # A little progress moves the deadline.
        await until_nothing_is_open(harness.server)
        assert 7 <= trio.current_time() - begun < 10


async def test_slow_reader_of_a_whole_response_is_cut_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def large(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, b"x" * 10_000_000)

    async with running(large) as harness:
        client = harness.connect()
        await client.send(GET)
        await trio.sleep(29)
        assert harness.server.statistics.connections_open == 1
        await trio.sleep(3)
        assert harness.server.statistics.connections_open == 0


async def test_pipelined_flood_does_not_starve_others() -> None:
    turns: list[str] = []

    async def quick(exchange: Exchange) -> None:
        turns.append(exchange.request.path)
        await exchange.respond(204, ())

    async with running(quick) as harness:
        flooder, other = harness.connect(), harness.connect()
        await flooder.send(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        await other.send(b"GET /o HTTP/1.1\r\nHost: x\r\n\r\n")
        await settle()
        assert "/o" in turns
        assert turns.index("/o") < 100
