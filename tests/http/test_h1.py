"""HTTP/1 as it should be: framing, keep-alive, pipelining, both lanes."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11
import pytest
import trio
import trio.testing

from durastreamd.http.errors import HungUpError, ResponseError
from durastreamd.http.exchange import Exchange
from durastreamd.http.limits import HttpLimits
from tests.http.harness import PLAIN, Client, Gone, Harness, echo, running

GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(params=["lane", "h11"])
async def echoing(request: pytest.FixtureRequest, delivery: str) -> AsyncIterator[Harness]:
    async with running(echo, delivery=delivery, lane=request.param == "lane") as harness:
        yield harness


@asynccontextmanager
async def answering(handler: object, *, delivery: str) -> AsyncIterator[Client]:
    assert callable(handler)
    async with running(handler, delivery=delivery) as harness:
        yield harness.connect()


async def test_connection_is_kept_alive(echoing: Harness) -> None:
    client = echoing.connect()
    for _ in range(3):
        response = await client.ask(GET)
        assert response.status == 200
        assert response.body == b"GET /a?b=c 1.1 "
        assert b"connection" not in response.headers
    assert echoing.server.statistics.exchanges_total == 3


async def test_request_is_seen_the_same_by_both_lanes(delivery: str) -> None:
    seen = []

    async def note(exchange: Exchange) -> None:
        request = exchange.request
        body = await exchange.body(100)
        fields = (request.method, request.target, request.path, request.query, request.headers)
        rest = (request.version, request.scheme, request.authority, request.peer, body)
        seen.append((*fields, *rest, request.content_length, request.has_body))
        await exchange.respond(204, ())

    raw = b"POST /p%20q?x=1 HTTP/1.1\r\nHost: a:1\r\nX-A:  y \r\nContent-Length: 3\r\n\r\nabc"
    for lane in (True, False):
        async with running(note, delivery=delivery, lane=lane) as harness:
            assert (await harness.connect().ask(raw)).status == 204
            assert harness.server.statistics.lane_total == lane
    assert seen[0] == seen[1]
    headers = {b"host": b"a:1", b"x-a": b"y", b"content-length": b"3"}
    assert seen[0][:5] == ("POST", "/p%20q?x=1", "/p%20q", "x=1", headers)
    assert seen[0][5:] == ("1.1", "http", "a:1", "192.0.2.1:5", b"abc", 3, True)


@pytest.mark.parametrize(
    ("line", "host", "target"),
    [
        (b"GET http://a:1/p?x=1 HTTP/1.1", b"A:1", b"GET /p?x=1 1.1 "),
        (b"GET HTTPS://a:1/ HTTP/1.1", b"a:1", b"GET / 1.1 "),
        (b"GET http://a:1 HTTP/1.1", b"a:1", b"GET / 1.1 "),
        (b"GET http://a:1?x HTTP/1.1", b"a:1", b"GET /?x 1.1 "),
        (b"GET http://[::1]:1//p HTTP/1.1", b"[::1]:1", b"GET //p 1.1 "),
        (b"OPTIONS * HTTP/1.1", b"a", b"OPTIONS * 1.1 "),
        (b"OPTIONS http://a HTTP/1.1", b"a", b"OPTIONS * 1.1 "),
        (b"OPTIONS http://a/ HTTP/1.1", b"a", b"OPTIONS / 1.1 "),
    ],
)
async def test_every_form_of_a_target_is_read(
    echoing: Harness, line: bytes, host: bytes, target: bytes
) -> None:
    client = echoing.connect()
    for _ in range(2):
        response = await client.ask(line + b"\r\nHost: " + host + b"\r\n\r\n")
        assert (response.status, response.body) == (200, target)


async def test_the_authority_of_an_absolute_target_is_that_of_the_request(delivery: str) -> None:
    async def show(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, exchange.request.authority.encode())

    async with answering(show, delivery=delivery) as client:
        response = await client.ask(b"GET http://a.example:1/x HTTP/1.0\r\n\r\n")
        assert response.body == b"a.example:1"


async def test_an_empty_line_before_a_request_is_passed_over(
    autojump_clock: trio.testing.MockClock, delivery: str
) -> None:
    limits = HttpLimits(head_s_max=10, idle_s_max=75)
    async with running(echo, limits, delivery=delivery) as harness:
        client = harness.connect()
        assert (await client.ask(b"\r\n" + GET)).status == 200
        post = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab\r\n"
        for _ in range(2):
            assert (await client.ask(post, "POST")).body.endswith(b"ab")
        await trio.sleep(20)  # an empty line that came alone is no head that takes its time
        assert (await client.ask(GET)).status == 200
        await client.send(b"\r\n")
        await trio.sleep(20)
        await client.send(b"\r\n")
        assert (await client.response()).status == 400
        other = harness.connect()
        await other.send(b"\r")
        assert (await other.response()).status == 408


async def test_extensions_and_trailers_of_chunks_are_dropped(echoing: Harness) -> None:
    client = echoing.connect()
    head = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
    body = b'2;a="b c"\r\nab\r\n1 ; x\r\nc\r\n0;y\r\nX-Sum: 1\r\nX-Other:\r\n\r\n'
    for _ in range(2):
        response = await client.ask(head + body, "POST")
        assert (response.status, response.body) == (200, b"POST /a 1.1 abc")


async def test_repeated_fields_are_joined(delivery: str) -> None:
    async def show(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, exchange.request.headers[b"x"])

    async with answering(show, delivery=delivery) as client:
        response = await client.ask(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nx: 2\r\n\r\n")
        assert response.body == b"1, 2"


async def test_pipelined_requests_are_answered_in_order(echoing: Harness) -> None:
    client = echoing.connect()
    requests = [
        b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (n, n, b"z" * n)
        for n in range(20)
    ]
    await client.send(b"".join(requests))
    for n in range(20):
        assert (await client.response()).body == b"POST /%d 1.1 %b" % (n, b"z" * n)


async def test_chunked_request_body_is_decoded_and_the_next_request_follows(
    echoing: Harness,
) -> None:
    client = echoing.connect()
    raw = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"
    )
    await client.send(raw + GET)
    assert (await client.response()).body == b"POST / 1.1 abc0123456789"
    assert (await client.response()).body == b"GET /a?b=c 1.1 "


async def test_body_is_streamed_piece_by_piece(delivery: str) -> None:
    pieces: list[bytes] = []

    async def gather(exchange: Exchange) -> None:
        async for piece in exchange.chunks():
            pieces.append(piece)  # noqa: PERF401 - the test looks at them meanwhile
        await exchange.respond(204, ())

    async with answering(gather, delivery=delivery) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for word in (b"one", b"two", b"three"):
            await client.send(b"%x\r\n%b\r\n" % (len(word), word))
            while not b"".join(pieces).endswith(word):
                await trio.lowlevel.checkpoint()
        assert (await client.ask(b"0\r\n\r\n")).status == 204
        assert all(pieces)


async def test_100_continue_is_sent_only_when_the_body_is_wanted(delivery: str) -> None:
    async def picky(exchange: Exchange) -> None:
        if exchange.request.path == "/no":
            await exchange.respond(403, PLAIN, b"no")
        else:
            await exchange.respond(200, PLAIN, bytes(await exchange.body(10)))

    head = b" HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    async with running(picky, delivery=delivery) as harness:
        client = harness.connect()
        await client.send(b"POST /yes" + head)
        client.received = await client.receive()
        assert client.received == b"HTTP/1.1 100 Continue\r\n\r\n"
        response = await client.ask(b"abc")
        assert (response.status, response.body, response.interim) == (200, b"abc", [100])
        client = harness.connect()
        response = await client.ask(b"POST /no" + head)
        assert (response.status, response.interim) == (403, [])
        # The client may or may not send the body now, so the connection cannot be reused.
        assert response.headers[b"connection"] == b"close"


async def test_head_has_headers_but_no_body(echoing: Harness) -> None:
    client = echoing.connect()
    response = await client.ask(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD")
    assert response.headers[b"content-length"] == b"%d" % len(b"HEAD / 1.1 ")
    assert response.body == b""
    assert (await client.ask(GET)).status == 200


@pytest.mark.parametrize("status", [204, 304])
async def test_some_statuses_have_neither_body_nor_length(status: int, delivery: str) -> None:
    async def empty(exchange: Exchange) -> None:
        await exchange.respond(status, (), b"ignored")

    async with answering(empty, delivery=delivery) as client:
        for _ in range(2):
            response = await client.ask(GET)
            assert (response.status, response.body) == (status, b"")
            assert b"content-length" not in response.headers


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("length", [None, 6])
async def test_streamed_response(method: str, length: int | None, delivery: str) -> None:
    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN, length=length)
        await exchange.send(b"abc")
        await exchange.send(b"")
        await exchange.send(memoryview(b"def"))
        await exchange.finish()

    async with answering(pour, delivery=delivery) as client:
        for _ in range(2):
            raw = b"%b / HTTP/1.1\r\nHost: x\r\n\r\n" % method.encode()
            response = await client.ask(raw, method)
            assert response.body == (b"abcdef" if method == "GET" else b"")
            if length is None:
                assert response.headers[b"transfer-encoding"] == b"chunked"
            else:
                assert response.headers[b"content-length"] == b"6"


async def test_http_1_0_gets_a_body_that_ends_with_the_connection(delivery: str) -> None:
    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        await exchange.send(b"abc")
        await exchange.finish()

    async with answering(pour, delivery=delivery) as client:
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        raw = await client.rest()
        assert raw.endswith(b"\r\n\r\nabc")
        assert b"Transfer-Encoding" not in raw
        assert b"Connection: close" in raw


@pytest.mark.parametrize("value", [b"close", b"Close", b"keep-alive, close"])
async def test_connection_close_is_honoured(echoing: Harness, value: bytes) -> None:
    client = echoing.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: %b\r\n\r\n" % value)
    assert (await client.response()).headers[b"connection"] == b"close"
    assert await client.receive() == b""


async def test_unread_short_body_is_discarded_and_a_long_one_ends_the_connection(
    delivery: str,
) -> None:
    async def ignore(exchange: Exchange) -> None:
        await exchange.respond(404, PLAIN, b"no")

    async with running(ignore, HttpLimits(discard_bytes_max=10), delivery=delivery) as harness:
        client = harness.connect()
        post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        response = await client.ask(post % (10, b"GET / HTTP"))
        assert b"connection" not in response.headers
        assert await client.try_send(post % (500, b"x" * 500))
        response = await client.response()
        assert (response.status, response.headers[b"connection"]) == (404, b"close")
        assert await client.receive() == b""


async def test_a_failing_handler_is_a_500_and_the_connection_serves_on(
    delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(exchange: Exchange) -> None:
        if exchange.request.path == "/raise":
            msg = "boom"
            raise ValueError(msg)
        if exchange.request.path == "/split":
            await exchange.respond(200, [(b"X", b"a\r\nSet-Cookie: b")])

    common = [(b"Access-Control-Allow-Origin", b"*"), (b"X-Content-Type-Options", b"nosniff")]
    async with running(fail, delivery=delivery, common_headers=common) as harness:
        client = harness.connect()
        for path in (b"raise", b"silent", b"split"):
            response = await client.ask(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            assert response.status == 500
            assert response.headers[b"content-type"] == b"application/problem+json"
            assert response.headers[b"access-control-allow-origin"] == b"*"
            assert response.headers[b"x-content-type-options"] == b"nosniff"
            assert b"set-cookie" not in response.headers
            assert b"boom" not in response.body
    messages = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(messages) == 3
    caplog.clear()


@pytest.mark.parametrize("fault", ["raise", "return", "abort", "short"])
async def test_an_incomplete_streamed_body_never_looks_complete(
    fault: str, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def stumble(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN, length=9 if fault == "short" else None)
        await exchange.send(b"abc")
        if fault == "raise":
            raise OSError
        if fault == "abort":
            exchange.abort()
        if fault == "short":
            await exchange.finish()

    async with answering(stumble, delivery=delivery) as client:
        await client.send(GET)
        with pytest.raises((h11.RemoteProtocolError, Gone)):
            await client.response()
    caplog.clear()


async def test_more_than_the_promised_length_is_refused(delivery: str) -> None:
    caught: list[BaseException] = []

    async def babble(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN, length=3)
        assert not exchange.send_nowait(b"abcd")
        try:
            await exchange.send(b"abcd")
        except ResponseError as exc:
            caught.append(exc)
        await exchange.send(b"abc")
        await exchange.finish()

    async with answering(babble, delivery=delivery) as client:
        assert (await client.ask(GET)).body == b"abc"
    assert caught


async def test_second_response_is_a_programming_error(delivery: str) -> None:
    caught: list[BaseException] = []

    async def twice(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, b"1")
        try:
            await exchange.respond(200, PLAIN, b"2")
        except ResponseError as exc:
            caught.append(exc)

    async with answering(twice, delivery=delivery) as client:
        assert (await client.ask(GET)).body == b"1"
        assert (await client.ask(GET)).body == b"1"
    assert len(caught) == 2


async def test_client_that_hangs_up_in_its_body_ends_the_exchange(delivery: str) -> None:
    caught: list[BaseException] = []

    async def read(exchange: Exchange) -> None:
        try:
            await exchange.body(100)
        except HungUpError as exc:
            caught.append(exc)
            raise

    async with answering(read, delivery=delivery) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
        client.sock.shutdown(trio.socket.SHUT_WR)
        assert await client.receive() == b""
    assert caught
