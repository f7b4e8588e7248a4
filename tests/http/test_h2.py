"""HTTP/2 as it should be: exchanges side by side, flow control both ways."""

import json

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from durastreamd.http.exchange import Exchange, Handler
from durastreamd.http.limits import HttpLimits
from tests.http.h2_client import H2Client
from tests.http.harness import PLAIN, echo, ponder, running, settle


async def test_requests_are_answered(delivery: str) -> None:
    async with running(echo, delivery=delivery) as harness:
        client = H2Client(harness.connect())
        for n in range(3):
            number = await client.request(b"POST", b"/a?b=%d" % n, body=b"abc")
            answer = await client.answer(number)
            assert (answer.status, answer.body) == (200, b"POST /a?b=%d 2 abc" % n)
            assert answer.headers[b"content-length"] == b"%d" % len(answer.body)
            assert b"date" in answer.headers
        assert harness.server.statistics.exchanges_total == 3


async def test_request_fields_are_those_of_http_1(delivery: str) -> None:
    seen: list[tuple[object, ...]] = []

    async def note(exchange: Exchange) -> None:
        request = exchange.request
        seen.append((request.method, request.path, request.query, request.headers))
        seen.append((request.version, request.scheme, request.authority, request.peer))
        seen.append((request.content_length, request.has_body))
        await exchange.respond(204, ())

    async with running(note, delivery=delivery) as harness:
        client = H2Client(harness.connect())
        headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"0")]
        number = await client.request(b"PUT", b"/p%20q?r", headers)
        assert (await client.answer(number)).status == 204
    assert seen == [
        ("PUT", "/p%20q", "r", {b"x-a": b"1, 2", b"content-length": b"0"}),
        ("2", "http", "x", "192.0.2.1:5"),
        (0, False),
    ]


async def test_exchanges_run_side_by_side() -> None:
    gate = trio.Event()

    async def wait(exchange: Exchange) -> None:
        if exchange.request.path == "/slow":
            await gate.wait()
        await exchange.respond(200, PLAIN, exchange.request.path.encode())

    async with running(wait) as harness:
        client = H2Client(harness.connect())
        slow = await client.request(target=b"/slow")
        fast = await client.request(target=b"/fast")
        assert (await client.answer(fast)).body == b"/fast"
        assert not client.answers[slow].ended
        gate.set()
        assert (await client.answer(slow)).body == b"/slow"


@pytest.mark.parametrize("size", [1, 65_536, 3_000_000])
async def test_large_bodies_pass_both_ways_under_flow_control(size: int) -> None:
    async def mirror(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, bytes(await exchange.body(10_000_000)))

    body = bytes(range(256)) * (size // 256 + 1)
    async with running(mirror) as harness:
        client = H2Client(harness.connect())
        number = await client.request(b"POST", end=False)
        view = memoryview(body)
        while view:
            window = min(
                client.h2.local_flow_control_window(number), client.h2.max_outbound_frame_size
            )
            if not window:
                assert await client.read()
                continue
            client.h2.send_data(number, bytes(view[:window]))
            view = view[window:]
            await client.flush()
        client.h2.end_stream(number)
        await client.flush()
        assert (await client.answer(number)).body == body


async def test_window_is_given_back_only_as_the_handler_reads() -> None:
    gate = trio.Event()
    limits = HttpLimits(h2_exchange_window_bytes=70_000)

    async def late(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.respond(200, PLAIN, b"%d" % len(await exchange.body(1 << 20)))

    async with running(late, limits) as harness:
        client = H2Client(harness.connect())
        number = await client.request(b"POST", end=False)
        await client.read()
        sent = 0
        while window := min(client.h2.local_flow_control_window(number), 16_384):
            client.h2.send_data(number, b"x" * window)
            await client.flush()
            sent += window
        await settle()
        assert sent == 70_000
        with trio.move_on_after(0.05) as quiet:
            while await client.read():
                pass
        assert quiet.cancelled_caught
        assert client.h2.local_flow_control_window(number) == 0
        gate.set()
        while client.h2.local_flow_control_window(number) == 0:
            assert await client.read()
        client.h2.end_stream(number)
        await client.flush()
        assert (await client.answer(number)).body == b"70000"


async def test_an_exchange_that_does_not_read_leaves_the_others_their_window() -> None:
    gate = trio.Event()
    limits = HttpLimits(h2_exchange_window_bytes=65_535, h2_connection_window_bytes=200_000)

    async def pick(exchange: Exchange) -> None:
        if exchange.request.path == "/stuck":
            await gate.wait()
            await exchange.respond(204, ())
        else:
            await exchange.respond(200, PLAIN, b"%d" % len(await exchange.body(1 << 20)))

    async with running(pick, limits) as harness:
        client = H2Client(harness.connect())
        stuck = await client.request(b"POST", b"/stuck", end=False)
        await client.read()
        for _ in range(3):
            client.h2.send_data(stuck, b"x" * 16_384)
        for n in range(20):
            number = await client.request(b"POST", b"/%d" % n, body=b"y" * 16_000)
            assert (await client.answer(number)).body == b"16000"
        gate.set()
        # An early answer ends with a reset that is no error, and its window comes back as well.
        answer = await client.answer(stuck)
        assert answer.status == 204
        while answer.reset is None:
            assert await client.read()
        assert answer.reset == ErrorCodes.NO_ERROR
        for _ in range(20):
            number = await client.request(b"POST", body=b"y" * 16_000)
            assert (await client.answer(number)).body == b"16000"


async def test_body_is_streamed_piece_by_piece_both_ways() -> None:
    async def shout(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        async for piece in exchange.chunks():
            await exchange.send(piece.upper())
        await exchange.finish()

    async with running(shout) as harness:
        client = H2Client(harness.connect())
        number = await client.request(b"POST", end=False)
        for word in (b"one", b"two", b"three"):
            client.h2.send_data(number, word)
            await client.flush()
            while not client.answers[number].body.endswith(word.upper()):
                assert await client.read()
        client.h2.end_stream(number)
        await client.flush()
        answer = await client.answer(number)
        assert (answer.body, answer.ended, answer.reset) == (b"ONETWOTHREE", True, None)


@pytest.mark.parametrize("way", ["whole", "streamed"])
async def test_head_has_headers_but_no_body(way: str) -> None:
    async def both(exchange: Exchange) -> None:
        if way == "streamed":
            await exchange.start(200, PLAIN, length=3)
            await exchange.send(b"abc")
            await exchange.finish()
        else:
            await exchange.respond(200, PLAIN, b"abc")

    async with running(both) as harness:
        client = H2Client(harness.connect())
        answer = await client.answer(await client.request(b"HEAD"))
        assert (answer.headers[b"content-length"], answer.body) == (b"3", b"")


async def test_100_continue_is_sent_when_the_body_is_wanted() -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        number = await client.request(b"POST", headers=[(b"expect", b"100-continue")], end=False)
        while not client.answers[number].interim:
            assert await client.read()
        client.h2.send_data(number, b"abc", end_stream=True)
        await client.flush()
        assert (await client.answer(number)).body == b"POST / 2 abc"


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        (b"GET", b"/" + b"a" * 9000, [], 414),
        (b"GET", b"/", [(b"a%d" % n, b"b") for n in range(101)], 431),
        (b"GET", b"/", [(b"a", b"b" * 17_000)], 431),
        (b"GET", b"a", [], 400),
        (b"GET", b"/a#b", [], 400),
        (b"GET", b"/a b", [], 400),
        (b"GET", b"/", [(b"a", b"b\x01c")], 400),
        (b"POST", b"/", [(b"content-length", b"99999999999")], 413),
    ],
)
async def test_refusals_are_problems_and_the_connection_goes_on(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        client.h2.config.validate_outbound_headers = False
        number = await client.request(method, target, headers, end=status != 413)
        answer = await client.answer(number)
        assert answer.status == status
        assert answer.headers[b"content-type"] == b"application/problem+json"
        assert json.loads(answer.body)["status"] == status
        assert (await client.answer(await client.request())).status == 200


async def test_host_that_contradicts_the_authority_is_not_served() -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        client.h2.config.validate_outbound_headers = False
        await client.request(headers=[(b"host", b"other")])
        assert await client.until_terminated() == ErrorCodes.PROTOCOL_ERROR
        assert harness.server.statistics.exchanges_total == 0


async def test_body_beyond_the_bound_is_a_readable_413() -> None:
    async def small(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, bytes(await exchange.body(10)))

    async with running(small) as harness:
        client = H2Client(harness.connect())
        number = await client.request(b"POST", body=b"x" * 16_000, end=False)
        answer = await client.answer(number)
        assert (answer.status, answer.ended) == (413, True)
        while answer.reset is None:
            assert await client.read()
        assert answer.reset == ErrorCodes.NO_ERROR
        assert (await client.answer(await client.request())).status == 200


async def test_failing_handler_is_a_500_or_a_reset(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(exchange: Exchange) -> None:
        if exchange.request.path == "/late":
            await exchange.start(200, PLAIN)
            await exchange.send(b"abc")
        raise ValueError

    async with running(fail) as harness:
        client = H2Client(harness.connect())
        assert (await client.answer(await client.request())).status == 500
        answer = await client.answer(await client.request(target=b"/late"))
        assert (answer.status, answer.ended, answer.reset) == (
            200,
            False,
            ErrorCodes.INTERNAL_ERROR,
        )
        assert (await client.answer(await client.request())).status == 500
    caplog.clear()


async def test_reset_by_the_client_cancels_the_handler() -> None:
    ended: list[str] = []

    async def wait(exchange: Exchange) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(exchange.request.path)

    async with running(wait) as harness:
        client = H2Client(harness.connect())
        number = await client.request(target=b"/a")
        await client.read()
        client.h2.reset_stream(number, ErrorCodes.CANCEL)
        await client.flush()
        while not ended:
            await trio.lowlevel.checkpoint()
        assert harness.server.statistics.connections_open == 1


def behind(gate: trio.Event, body: bytes) -> Handler:
    """Return a handler that answers when a gate opens."""

    async def wait(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.respond(200, PLAIN, body)

    return wait


async def test_client_that_says_goodbye_still_gets_its_answers() -> None:
    gate = trio.Event()
    async with running(behind(gate, b"late")) as harness:
        client = H2Client(harness.connect())
        number = await client.request()
        await client.read()
        # By hand, as the client's own h2 would go silent afterwards.
        await client.client.send(b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8))
        await settle()
        gate.set()
        assert (await client.answer(number)).body == b"late"


async def test_idle_connection_is_ended_and_pings_do_not_keep_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        assert (await client.answer(await client.request())).status == 200
        begun = trio.current_time()

        async def ping() -> None:
            while True:
                await trio.sleep(10)
                client.h2.ping(b"12345678")
                await client.flush()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ping)
            assert await client.until_terminated() == ErrorCodes.NO_ERROR
            nursery.cancel_scope.cancel()
        assert trio.current_time() - begun == pytest.approx(75, abs=0.1)


async def test_a_running_exchange_keeps_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(ponder) as harness:
        client = H2Client(harness.connect())
        assert (await client.answer(await client.request())).status == 204


async def test_drain_lets_exchanges_finish_and_refuses_new_ones() -> None:
    gate = trio.Event()
    async with running(behind(gate, b"done")) as harness:
        client = H2Client(harness.connect())
        number = await client.request()
        await client.read()
        await settle()
        harness.server.drain()
        # The client's own h2 would end on GOAWAY; look at the bytes instead.
        data = await client.client.receive()
        while b"\x00\x00\x08\x07" not in data:
            data += await client.client.receive()
        at = data.index(b"\x00\x00\x08\x07")
        assert data[at + 9 : at + 17] == number.to_bytes(4, "big") + bytes(4)
        later = await client.request()
        gate.set()
        rest = data[:at] + data[at + 17 :] + await client.client.rest()
        client.h2.receive_data(b"")
        end = rest.rindex(b"\x00\x00\x08\x07")
        for event in client.h2.receive_data(rest[:end]):
            client._note(event)
        assert client.answers[number].body == b"done"
        assert client.answers[later].reset == ErrorCodes.REFUSED_STREAM
