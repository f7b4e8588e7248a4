"""HTTP/2 clients that cost more than they pay."""

import hpack
import hyperframe.frame as frames
import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes
from hypothesis import given, settings, strategies as st

from durastreamd.http.exchange import Exchange
from durastreamd.http.limits import HttpLimits
from tests.http.h2_client import PREFACE, H2Client, RawClient
from tests.http.harness import PLAIN, echo, running, settle

CALM = ErrorCodes.ENHANCE_YOUR_CALM


def settings_frame(value: int) -> bytes:
    return frames.SettingsFrame(0, settings={3: value}).serialize()


FLOODS = {
    "ping": frames.PingFrame(0, opaque_data=b"12345678").serialize(),
    "settings": settings_frame(7),
    "empty data": frames.DataFrame(1, b"").serialize(),
    "priority": frames.PriorityFrame(9, stream_weight=1).serialize(),
    "connection window": frames.WindowUpdateFrame(0, window_increment=1).serialize(),
    "exchange window": frames.WindowUpdateFrame(1, window_increment=1).serialize(),
    "unknown kind": b"\x00\x00\x01\xbb\x00\x00\x00\x00\x00z",
    "goodbyes": b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_control_frame_flood_ends_the_connection(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def wait(exchange: Exchange) -> None:
        await exchange.body(100)

    async with running(wait) as harness:
        client = RawClient(harness.connect())
        await client.open()
        await client.client.send(client.headers(1, b"POST"))
        assert await client.flood(FLOODS[name] * 50, rounds=1000) == CALM
        assert harness.server.statistics.refused_total == 1


@pytest.mark.parametrize("name", ["ping", "connection window"])
async def test_control_frames_at_a_decent_pace_are_welcome(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        await client.flush()
        for _ in range(40):
            await client.client.send(FLOODS[name] * 95)
            assert (await client.answer(await client.request())).status == 200
            await trio.sleep(1)


async def test_reader_of_a_long_body_may_update_its_windows_often() -> None:
    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        for _ in range(1000):
            await exchange.send(b"x" * 1000)
        await exchange.finish()

    async with running(pour) as harness:
        client = H2Client(harness.connect(), gives_back=False)
        number = await client.request()
        answer = client.answers[number]
        known = 0
        while len(answer.body) < 1_000_000:
            assert await client.read()
            assert client.terminated is None
            if len(answer.body) == 1_000_000:
                break  # It has ended and takes no more updates.
            for _ in range((len(answer.body) - known) // 1000):
                # Two updates for every frame, as some clients do.
                client.h2.increment_flow_control_window(1000)
                client.h2.increment_flow_control_window(1000, number)
                known += 1000
            await client.flush()


@pytest.mark.parametrize("pace", ["same batch", "later"])
async def test_rapid_reset_ends_the_connection(pace: str) -> None:
    started = 0

    async def wait(exchange: Exchange) -> None:
        nonlocal started
        started += 1
        await trio.sleep_forever()

    async with running(wait) as harness:
        client = RawClient(harness.connect())
        await client.open()
        code: int | None = None
        async with trio.open_nursery() as nursery:

            async def attack() -> None:
                for n in range(1, 2000, 2):
                    reset = frames.RstStreamFrame(n, error_code=8).serialize()
                    request = client.headers(n, b"GET", "END_STREAM")
                    if pace == "same batch":
                        sent = await client.client.try_send(request + reset)
                    else:
                        sent = await client.client.try_send(request)
                        await settle()
                        sent = sent and await client.client.try_send(reset)
                    if not sent:
                        return

            nursery.start_soon(attack)
            code = await client.goaway()
        assert code == CALM
        # Reset in the same breath: no handler ever ran. Otherwise: no more than the budget.
        assert started <= (20 if pace == "same batch" else 110)


async def test_made_you_reset_counts_as_a_reset() -> None:
    async def wait(exchange: Exchange) -> None:
        await trio.sleep_forever()

    async with running(wait) as harness:
        client = RawClient(harness.connect())
        await client.open()
        overflow = 2**31 - 1
        attack = b"".join(
            client.headers(n, b"POST")
            + frames.WindowUpdateFrame(n, window_increment=overflow).serialize()
            for n in range(1, 600, 2)
        )
        assert await client.flood(attack, rounds=1) == CALM


async def test_resets_of_answered_exchanges_are_no_abuse() -> None:
    async def events(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        async with exchange.until_hang_up():
            await trio.sleep_forever()

    async with running(events, HttpLimits(h2_resets_max=3)) as harness:
        client = H2Client(harness.connect())
        for _ in range(20):
            number = await client.request()
            while not client.answers[number].status:
                assert await client.read()
            client.h2.reset_stream(number, ErrorCodes.CANCEL)
            await client.flush()
        await settle()
        assert client.terminated is None
        assert harness.server.statistics.connections_open == 1


async def test_continuation_flood_ends_the_connection() -> None:
    async with running(echo) as harness:
        client = RawClient(harness.connect())
        await client.open()
        await client.client.send(frames.HeadersFrame(1, b"").serialize())
        more = frames.ContinuationFrame(1, b"").serialize()
        assert await client.flood(more * 10, rounds=1000) is not None


async def test_header_bomb_ends_the_connection() -> None:
    async with running(echo) as harness:
        client = RawClient(harness.connect())
        await client.open()
        encoder = hpack.Encoder()
        block = encoder.encode([(b"x-a", b"v" * 4000)]) + b"\xbe" * 12_000
        frame = frames.HeadersFrame(1, block)
        frame.flags.add("END_HEADERS")
        frame.flags.add("END_STREAM")
        await client.client.send(frame.serialize())
        assert await client.goaway() == CALM


async def test_header_block_that_never_ends_is_timed_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def ponder(exchange: Exchange) -> None:
        await trio.sleep_forever()

    async with running(ponder) as harness:
        client = RawClient(harness.connect())
        await client.open()
        # A running exchange must not protect the slow header block of another.
        await client.client.send(client.headers(1, b"GET", "END_STREAM"))
        await client.client.send(frames.HeadersFrame(3, b"").serialize())
        begun = trio.current_time()
        assert await client.goaway() == ErrorCodes.NO_ERROR
        assert trio.current_time() - begun < 15


async def test_silent_client_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    async with running(echo) as harness:
        client = RawClient(harness.connect())
        await client.client.send(PREFACE)
        begun = trio.current_time()
        assert await client.goaway() == ErrorCodes.NO_ERROR
        assert trio.current_time() - begun == pytest.approx(75, abs=2)


async def test_starved_reader_is_reset_and_its_memory_is_freed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    freed: list[float] = []

    async def pour(exchange: Exchange) -> None:
        try:
            await exchange.start(200, PLAIN)
            while True:
                await exchange.send(b"x" * 100_000)
        finally:
            freed.append(trio.current_time())

    async with running(pour) as harness:
        client = H2Client(harness.connect(), window=10, gives_back=False)
        begun = trio.current_time()
        answer = await client.answer(await client.request())
        assert answer.reset == ErrorCodes.INTERNAL_ERROR
        assert answer.body == b"x" * 10
        assert freed[0] - begun == pytest.approx(30, abs=1)
        # The others of the connection are not touched.
        assert harness.server.statistics.connections_open == 1
        assert harness.server.statistics.exchanges_open == 0


async def test_client_that_reads_nothing_is_cut_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        while True:
            await exchange.send(b"x" * 16_384)

    async with running(pour) as harness:
        client = H2Client(harness.connect(buffer_bytes=4096))
        client.h2.increment_flow_control_window(2**31 - 70_000)
        for _ in range(5):
            await client.request()
        await trio.sleep(70)
        assert harness.server.statistics.connections_open == 0


async def test_unread_answers_stop_the_reading_of_more_requests(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # PINGs are answered; a client that does not read the answers must not fill our memory.
    limits = HttpLimits(h2_control_frames_max=10_000_000, h2_outbound_bytes_max=1000)
    async with running(echo, limits) as harness:
        client = RawClient(harness.connect(buffer_bytes=2048))
        await client.open()
        sent = 0
        with trio.move_on_after(20):
            while await client.client.try_send(FLOODS["ping"] * 100):
                sent += 100
        # What the socket buffers hold, not what the client would like to send.
        assert sent < 60_000
        assert harness.server.statistics.connections_open == 1


async def test_more_exchanges_than_allowed_end_the_connection() -> None:
    async def wait(exchange: Exchange) -> None:
        await trio.sleep_forever()

    async with running(wait, HttpLimits(h2_exchanges_max=10)) as harness:
        client = RawClient(harness.connect())
        await client.open()
        for n in range(1, 40, 2):
            await client.client.try_send(client.headers(n, b"GET", "END_STREAM"))
        assert await client.goaway() is not None
        assert harness.server.statistics.exchanges_total <= 10


async def test_handlers_that_do_not_end_are_bounded() -> None:
    gate = trio.Event()
    running_max = 0
    now = 0

    async def commit(exchange: Exchange) -> None:
        nonlocal now, running_max
        now += 1
        running_max = max(now, running_max)
        with trio.CancelScope(shield=True):
            await gate.wait()
        now -= 1

    limits = HttpLimits(h2_exchanges_max=5, h2_resets_max=1000)
    async with running(commit, limits) as harness:
        client = H2Client(harness.connect())
        for _ in range(50):
            number = await client.request()
            await settle()
            client.h2.reset_stream(number, ErrorCodes.CANCEL)
            await client.flush()
        await settle()
        assert running_max == 10
        gate.set()


async def test_slow_body_gets_408(autojump_clock: trio.testing.MockClock) -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        number = await client.request(b"POST", body=b"x", end=False)
        begun = trio.current_time()
        assert (await client.answer(number)).status == 408
        assert trio.current_time() - begun == pytest.approx(10, abs=0.1)


_frames = st.builds(
    lambda length, kind, flags, number, payload: (
        (len(payload) if length is None else length).to_bytes(3, "big")
        + bytes((kind, flags))
        + number.to_bytes(4, "big")
        + payload
    ),
    st.one_of(st.none(), st.none(), st.integers(0, 20_000)),
    st.integers(0, 11),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 255]),
    st.sampled_from([0, 1, 1, 2, 3, 5, 2**31 - 1, 2**32 - 1]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"\x82\x84\x86\x41\x01x",
                b"\x83\x84\x86\x41\x01x",
                bytes(4),
                bytes(8),
                b"\x00\x00\x00\x01",
            ]
        ),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_frames, max_size=8))
async def test_whatever_frames_come_no_task_is_left(raw: list[bytes]) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, PLAIN, bytes(await exchange.body(1 << 16)))

    async with running(answer) as harness:
        client = harness.connect()
        await client.try_send(PREFACE + frames.SettingsFrame(0).serialize())
        for data in raw:
            await client.try_send(data)
        client.sock.shutdown(trio.socket.SHUT_WR)
        await client.rest()


GOODBYE = bytes(4) + bytes(4)


@pytest.mark.parametrize("cut", [0, 5, 12])
async def test_a_goodbye_of_one_exchange_is_malformed(cut: int) -> None:
    async with running(echo) as harness:
        client = RawClient(harness.connect())
        await client.open()
        frame = b"\x00\x00\x08\x07\x00\x00\x00\x00\x01" + GOODBYE
        await client.client.send(frame[:cut])
        await client.client.send(frame[cut:])
        assert await client.goaway() == ErrorCodes.PROTOCOL_ERROR


async def test_a_goodbye_with_the_reserved_bit_is_one() -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        await client.flush()
        await client.client.send(b"\x00\x00\x08\x07\x00\x80\x00\x00\x00" + GOODBYE)
        assert (await client.answer(await client.request())).status == 200


async def test_a_window_above_the_largest_resets_its_exchange() -> None:
    async def wait(exchange: Exchange) -> None:
        await exchange.body(100)

    async with running(wait) as harness:
        client = RawClient(harness.connect())
        await client.open()
        update = frames.WindowUpdateFrame(1, window_increment=2**31 - 1).serialize()
        await client.client.send(client.headers(1, b"POST") + update * 2)
        expected = frames.RstStreamFrame(1, error_code=ErrorCodes.FLOW_CONTROL_ERROR).serialize()
        data = b""
        while expected not in data:
            more = await client.client.receive()
            assert more, data
            data += more


async def test_what_is_no_preface_is_taken_for_http_1() -> None:
    async with running(echo) as harness:
        client = harness.connect()
        await client.send(b"INVALID CONNECTION PREFACE\r\n\r\n")
        assert (await client.response()).status == 400
        assert await client.rest() == b""


async def test_the_asterisk_is_a_target_of_options_alone() -> None:
    async with running(echo) as harness:
        client = H2Client(harness.connect())
        assert (await client.answer(await client.request(b"OPTIONS", b"*"))).body == (
            b"OPTIONS * 2 "
        )
        assert (await client.answer(await client.request(target=b"*"))).status == 400
