"""The seam, the same for both HTTP versions: send_nowait, until_hang_up, aborts."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from durastreamd.http.errors import HungUpError
from durastreamd.http.exchange import Exchange
from durastreamd.http.limits import HttpLimits
from tests.http.h2_client import H2Client
from tests.http.harness import PLAIN, Client, Harness, running, settle, until_nothing_is_open

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Caller:
    """Starts one exchange and hangs up on it, in either version."""

    def __init__(self, client: Client, version: str) -> None:
        self.client = client
        self.h2 = H2Client(client) if version == "2" else None
        self.number = 0

    async def ask(self) -> None:
        if self.h2 is None:
            await self.client.send(GET)
        else:
            self.number = await self.h2.request()

    async def body(self) -> bytes:
        if self.h2 is None:
            return (await self.client.response()).body
        return (await self.h2.answer(self.number)).body

    async def hang_up(self) -> None:
        if self.h2 is None:
            self.client.hang_up()
        else:
            self.h2.h2.reset_stream(self.number, ErrorCodes.CANCEL)
            await self.h2.flush()


@pytest.fixture(params=["1.1", "2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def exchanging(
    version: str,
    act: Callable[[Exchange], Awaitable[None]],
    limits: HttpLimits | None = None,
    buffer_bytes: int | None = None,
) -> AsyncIterator[tuple[Harness, Caller]]:
    async with running(act, limits) as harness:
        yield harness, Caller(harness.connect(buffer_bytes), version)


async def test_block_is_cancelled_when_the_client_goes_away(version: str) -> None:
    seen: list[object] = []

    async def wait(exchange: Exchange) -> None:
        async with exchange.until_hang_up() as scope:
            seen.append("waiting")
            await trio.sleep_forever()
        seen.append(scope.cancelled_caught)
        await exchange.respond(204, ())

    async with exchanging(version, wait) as (harness, caller):
        await caller.ask()
        while not seen:
            await trio.lowlevel.checkpoint()
        await caller.hang_up()
        while harness.server.statistics.exchanges_open:
            await trio.lowlevel.checkpoint()
        assert seen == ["waiting", True]


async def test_block_that_ends_by_itself_is_left_alone(version: str) -> None:
    async def wait(exchange: Exchange) -> None:
        async with exchange.until_hang_up() as scope:
            await trio.lowlevel.checkpoint()
        await exchange.respond(200, PLAIN, b"%d" % scope.cancelled_caught)

    async with exchanging(version, wait) as (_, caller):
        for _ in range(3):
            await caller.ask()
            assert await caller.body() == b"0"


async def test_failure_inside_the_block_keeps_its_type(version: str) -> None:
    async def fail(exchange: Exchange) -> None:
        try:
            async with exchange.until_hang_up():
                raise KeyError
        except KeyError:
            await exchange.respond(200, PLAIN, b"caught")

    async with exchanging(version, fail) as (_, caller):
        await caller.ask()
        assert await caller.body() == b"caught"


async def test_pipelined_request_waits_while_the_first_is_watched() -> None:
    gate = trio.Event()

    async def wait(exchange: Exchange) -> None:
        async with exchange.until_hang_up() as scope:
            await gate.wait()
        assert not scope.cancelled_caught
        await exchange.respond(200, PLAIN, exchange.request.path.encode())

    async with running(wait) as harness:
        client = harness.connect()
        await client.send(GET)
        await settle()
        await client.send(b"GET /second HTTP/1.1\r\nHost: x\r\n\r\n")
        await settle()
        gate.set()
        assert (await client.response()).body == b"/"
        assert (await client.response()).body == b"/second"


async def test_client_gone_before_the_block_is_noticed_at_once(version: str) -> None:
    gate = trio.Event()
    seen: list[bool] = []

    async def wait(exchange: Exchange) -> None:
        with trio.CancelScope(shield=True):
            await gate.wait()
        async with exchange.until_hang_up() as scope:
            await trio.sleep_forever()
        seen.append(scope.cancelled_caught)

    async with exchanging(version, wait) as (harness, caller):
        await caller.ask()
        await settle()
        await caller.hang_up()
        await settle()
        gate.set()
        while harness.server.statistics.exchanges_open:
            await trio.lowlevel.checkpoint()
        if version == "1.1":
            assert seen == [True]  # On HTTP/2 the reset has cancelled the whole handler.


async def test_send_nowait_hands_over_all_or_nothing_in_order(version: str) -> None:
    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        total = 0
        for n in range(1000):
            piece = b"%05d" % n * 100
            if not exchange.send_nowait(piece):
                await exchange.send(piece)
            total += len(piece)
        await exchange.finish()

    async with exchanging(version, pour, buffer_bytes=4096) as (_, caller):
        await caller.ask()
        expected = b"".join(b"%05d" % n * 100 for n in range(1000))
        assert await caller.body() == expected


async def test_send_nowait_refuses_when_the_client_is_full(version: str) -> None:
    taken: list[int] = []
    gate = trio.Event()

    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        count = 0
        while exchange.send_nowait(b"x" * 1000):
            count += 1
            assert count < 100_000
        taken.append(count)
        await gate.wait()
        await exchange.send(b"y")
        await exchange.finish()

    async with exchanging(version, pour, buffer_bytes=4096) as (_, caller):
        await caller.ask()
        while not taken:
            await trio.lowlevel.checkpoint()
        gate.set()
        assert await caller.body() == b"x" * 1000 * taken[0] + b"y"


async def test_send_nowait_from_another_task_does_not_cut_into_a_send(version: str) -> None:
    taken = 0
    done = trio.Event()

    async def pour(exchange: Exchange) -> None:
        nonlocal taken

        async def send() -> None:
            await exchange.send(b"x" * 500_000)
            done.set()

        await exchange.start(200, PLAIN)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await settle()
            while not done.is_set():
                taken += exchange.send_nowait(b"y")
                await trio.lowlevel.checkpoint()
        await exchange.finish()

    async with exchanging(version, pour, buffer_bytes=4096) as (_, caller):
        await caller.ask()
        await settle()
        assert await caller.body() == b"x" * 500_000 + b"y" * taken


async def test_remainder_of_send_nowait_goes_out_by_itself() -> None:
    gate = trio.Event()
    taken: list[bool] = []

    async def once(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        taken.append(exchange.send_nowait(b"x" * 1_000_000))
        # The kernel has taken a part and has room again; still nothing may overtake the rest.
        begun.append(client.raw.recv(1_000_000))
        taken.append(exchange.send_nowait(b"y"))
        await gate.wait()
        await exchange.finish()

    begun: list[bytes] = []
    async with running(once) as harness:
        client = harness.connect(buffer_bytes=4096)
        await client.send(GET)
        while not begun:
            await trio.lowlevel.checkpoint()
        data = begun[0]
        while len(data) < 1_000_000:
            more = await client.receive()
            assert more, "hung up with the remainder unsent"
            data += more
        assert taken == [True, False]
        gate.set()
        client.received = data
        assert (await client.response()).body == b"x" * 1_000_000


async def test_remainder_that_nobody_reads_breaks_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def once(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        assert exchange.send_nowait(b"x" * 1_000_000)
        try:
            await exchange.send(b"y")
        except HungUpError:
            return

    async with running(once) as harness:
        client = harness.connect(buffer_bytes=4096)
        begun = trio.current_time()
        await client.send(GET)
        await settle()
        await until_nothing_is_open(harness.server)
        assert trio.current_time() - begun == pytest.approx(30, abs=2)


async def test_waiting_handler_learns_that_its_remainder_was_never_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    woken: list[float] = []

    async def wait(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        assert exchange.send_nowait(b"x" * 1_000_000)
        async with exchange.until_hang_up():
            await trio.sleep_forever()
        woken.append(trio.current_time())

    async with running(wait) as harness:
        client = harness.connect(buffer_bytes=4096)
        begun = trio.current_time()
        await client.send(GET)
        await settle()
        await until_nothing_is_open(harness.server)
        assert woken[0] - begun == pytest.approx(30, abs=1)


async def test_send_nowait_after_the_client_left_takes_nothing(version: str) -> None:
    seen: list[bool] = []

    async def wait(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        async with exchange.until_hang_up():
            await trio.sleep_forever()
        with trio.CancelScope(shield=True):
            await settle()
        # The first may be taken by a kernel that does not know yet.
        exchange.send_nowait(b"x")
        seen.append(exchange.send_nowait(b"x"))
        with pytest.raises(HungUpError):
            await exchange.send(b"x")

    async with exchanging(version, wait) as (harness, caller):
        await caller.ask()
        await settle()
        await caller.hang_up()
        while harness.server.statistics.exchanges_open:
            await trio.lowlevel.checkpoint()
    assert seen == [False]


async def test_cancelled_send_breaks_the_exchange(version: str) -> None:
    cancelled = trio.Event()

    async def pour(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        with trio.move_on_after(0.01):
            await exchange.send(b"x" * 10_000_000)
        cancelled.set()
        try:
            await exchange.finish()
        except HungUpError:
            return

    async with exchanging(version, pour, buffer_bytes=4096) as (_, caller):
        await caller.ask()
        await cancelled.wait()
        if version == "2":
            assert caller.h2 is not None
            answer = await caller.h2.answer(caller.number)
            assert (answer.ended, answer.reset) == (False, ErrorCodes.INTERNAL_ERROR)
        else:
            assert not (await caller.client.rest()).endswith(b"0\r\n\r\n")
