"""Bodies are counted against the budget as they arrive, however they are framed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from h2.errors import ErrorCodes
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.http.budget import TINY_BYTES, Budget
from durastreamd.http.exchange import Exchange
from durastreamd.http.gathering import LARGE_BYTES
from durastreamd.http.limits import BudgetLimits, HttpLimits
from durastreamd.http.transport import RECEIVE_BYTES
from tests.http.h2_client import H2Client
from tests.http.harness import PLAIN, Client, Harness, running

KIB = 1024
MIB = 1024 * KIB
DECLARED = 8 * MIB
FORMS = ("length", "chunked", "h2", "h2 with length")


class Uploader:
    """Sends a body as slowly as a test wants it to, in one of four framings."""

    def __init__(self, client: Client, form: str) -> None:
        self.client = client
        self.form = form
        self.h2 = H2Client(client) if form.startswith("h2") else None
        self.number = 0
        self.sent = trio.Event()

    async def send_all(self, data: bytes) -> None:
        await self.send(data)
        self.sent.set()

    async def begin(self, declared: int = DECLARED) -> None:
        length = b"%d" % declared
        if self.h2 is not None:
            fields = [(b"content-length", length)] if "length" in self.form else []
            self.number = await self.h2.request(b"POST", headers=fields, end=False)
        elif self.form == "length":
            await self.client.send(
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % length
            )
        else:
            await self.client.send(
                b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            )

    async def send(self, data: bytes) -> None:
        """Send a piece; over HTTP/2 only what its window takes."""
        if self.h2 is None:
            framed = b"%x\r\n%b\r\n" % (len(data), data) if self.form == "chunked" else data
            await self.client.try_send(framed)
            return
        for at in range(0, len(data), 16_000):
            piece = data[at : at + 16_000]
            while self.h2.h2.local_flow_control_window(self.number) < len(piece):
                if not await self.h2.read() or self.h2.answers[self.number].status:
                    return
            self.h2.h2.send_data(self.number, piece)
            await self.h2.flush()

    async def end(self) -> None:
        if self.h2 is not None:
            self.h2.h2.end_stream(self.number)
            await self.h2.flush()
        elif self.form == "chunked":
            await self.client.send(b"0\r\n\r\n")

    async def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        if self.h2 is not None:
            found = await self.h2.answer(self.number)
            return found.status, found.headers, found.body
        answer = await self.client.response("POST")
        return answer.status, answer.headers, answer.body


class Keeper:
    """Reads bodies, and keeps them until it is told to answer."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.read: list[bytes] = []
        self.go_on = trio.Event()
        if at_once:
            self.go_on.set()

    async def __call__(self, exchange: Exchange) -> None:
        body = await exchange.body(16 * MIB)
        self.read.append(bytes(body))
        await self.go_on.wait()
        await exchange.respond(200, PLAIN, b"%d" % len(body))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def serving(
    keeper: Keeper, budget: Budget, limits: HttpLimits | None = None
) -> AsyncIterator[Harness]:
    async with running(keeper, limits, budget=budget) as harness:
        yield harness


def upload(harness: Harness, form: str, client: int = 1) -> Uploader:
    return Uploader(harness.connect(peer=f"192.0.2.{client}:5"), form)


async def test_what_has_arrived_is_counted_not_what_was_declared(
    autojump_clock: MockClock, form: str
) -> None:
    budget, keeper = Budget(), Keeper()
    async with serving(keeper, budget) as harness:
        one = upload(harness, form)
        await one.begin()
        await wait_all_tasks_blocked()
        assert budget.used == 0
        sent = 0
        for size in (10, 1000, 70_000, 300_000, DECLARED - 371_010):
            await one.send(b"x" * size)
            await wait_all_tasks_blocked()
            sent += size
            assert budget.used == (sent if sent > TINY_BYTES else 0)
        await one.end()
        await wait_all_tasks_blocked()
        assert keeper.read == [b"x" * DECLARED]
        assert budget.used == DECLARED, "it is in memory until the answer"
        keeper.go_on.set()
        assert (await one.answer())[0] == 200
        await wait_all_tasks_blocked()
        assert budget.used == 0


async def test_a_body_that_came_with_its_head_is_counted(autojump_clock: MockClock) -> None:
    budget, keeper = Budget(), Keeper()
    async with serving(keeper, budget) as harness:
        client = harness.connect()
        size = TINY_BYTES + 1
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        await client.send(head + b"x" * size)
        await wait_all_tasks_blocked()
        assert budget.used == size
        keeper.go_on.set()
        assert (await client.response("POST")).body == b"%d" % size


async def test_bodies_of_one_h2_connection_share_what_needs_no_claim(
    autojump_clock: MockClock,
) -> None:
    budget = Budget()
    async with serving(Keeper(), budget) as harness:
        client = H2Client(harness.connect())
        half = b"x" * (TINY_BYTES // 2)
        first, _ = [await client.request(b"POST", body=half, end=False) for _ in range(2)]
        await wait_all_tasks_blocked()
        assert budget.used == 0
        third = await client.request(b"POST", body=half, end=False)
        await wait_all_tasks_blocked()
        assert budget.used == len(half)
        for number in (first, third):
            client.h2.reset_stream(number, ErrorCodes.CANCEL)
        await client.flush()
        await wait_all_tasks_blocked()
        await client.request(b"POST", body=half)  # in the place of the first
        await wait_all_tasks_blocked()
        assert budget.used == 0
        await client.request(b"POST", body=half)
        await wait_all_tasks_blocked()
        assert budget.used == len(half)


async def test_hanging_up_in_the_middle_gives_everything_back(
    autojump_clock: MockClock, form: str
) -> None:
    budget = Budget()
    async with serving(Keeper(), budget) as harness:
        one = upload(harness, form)
        await one.begin()
        await one.send(b"x" * 500_000)
        await wait_all_tasks_blocked()
        assert budget.used == 500_000
        one.client.hang_up()
        await wait_all_tasks_blocked()
        assert budget.used == 0


FULL = BudgetLimits(bytes_max=4 * MIB, small_bytes=64 * KIB, wait_s_max=5.0)


async def test_who_finds_no_room_in_time_is_told_to_come_back(
    autojump_clock: MockClock, form: str
) -> None:
    """The uploads of one client fill its share; the younger waits, and its bytes are not read."""
    budget, keeper = Budget(FULL), Keeper()
    async with serving(keeper, budget) as harness, trio.open_nursery() as nursery:
        first, second = upload(harness, "length"), upload(harness, form)
        await first.begin(MIB)
        await first.send(b"x" * MIB)
        await wait_all_tasks_blocked()  # the first is whole, and waits for its answer
        await second.begin()
        begun = trio.current_time()
        nursery.start_soon(second.send_all, b"y" * DECLARED)
        await trio.sleep(1)
        assert budget.used <= 2 * MIB
        if second.h2 is not None:
            await second.sent.wait()  # it reads what it is told meanwhile
        status, headers, _ = await second.answer()
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert trio.current_time() - begun >= FULL.wait_s_max
        await wait_all_tasks_blocked()
        assert budget.used == MIB
        if second.h2 is None:
            assert headers[b"connection"] == b"close"
            assert await second.client.rest() == b""
        keeper.go_on.set()
        assert (await first.answer())[0] == 200
        nursery.cancel_scope.cancel()


async def test_who_finds_no_room_goes_on_when_there_is_some(
    autojump_clock: MockClock, form: str
) -> None:
    budget, keeper = Budget(FULL), Keeper()
    async with serving(keeper, budget) as harness, trio.open_nursery() as nursery:
        first, second = upload(harness, "chunked"), upload(harness, form)
        await first.begin(MIB)
        await first.send(b"x" * MIB)
        await second.begin(MIB)
        nursery.start_soon(second.send_all, b"y" * MIB)
        await trio.sleep(FULL.wait_s_max / 2)
        assert MIB < budget.used < 2 * MIB
        await first.end()
        keeper.go_on.set()
        assert (await first.answer())[0] == 200
        await second.sent.wait()
        await second.end()
        assert (await second.answer())[::2] == (200, b"%d" % MIB)


@pytest.mark.parametrize("small", FORMS)
async def test_large_uploads_never_refuse_a_small_body(
    autojump_clock: MockClock, form: str, small: str
) -> None:
    budget, keeper = Budget(FULL), Keeper()
    async with serving(keeper, budget) as harness, trio.open_nursery() as nursery:
        for _ in range(4):
            one = upload(harness, form)
            await one.begin()
            nursery.start_soon(one.send, b"x" * 700 * KIB)
        await wait_all_tasks_blocked()
        assert budget.large.used > MIB
        begun = trio.current_time()
        other = upload(harness, small)
        await other.begin(60 * KIB)
        await other.send(b"y" * 30 * KIB)
        await wait_all_tasks_blocked()
        await other.send(b"y" * 30 * KIB)
        await other.end()
        keeper.go_on.set()
        assert (await other.answer())[0] == 200
        assert trio.current_time() - begun < FULL.wait_s_max
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("tiny", FORMS)
async def test_slow_uploads_of_the_same_address_never_refuse_a_tiny_body(
    autojump_clock: MockClock, form: str, tiny: str
) -> None:
    """As behind a proxy, where all clients have one address: their share of the reserve is full."""
    budget, keeper = Budget(FULL), Keeper()
    async with serving(keeper, budget) as harness:
        for _ in range(20):
            one = upload(harness, form)
            await one.begin(60 * KIB)
            await one.send(b"x" * 50 * KIB)
        await wait_all_tasks_blocked()
        assert budget.small.used + 50 * KIB > budget.small.size // 2
        begun = trio.current_time()
        other = upload(harness, tiny)
        await other.begin(TINY_BYTES)
        for _ in range(4):
            await other.send(b"y" * (TINY_BYTES // 4))
            await wait_all_tasks_blocked()
        await other.end()
        keeper.go_on.set()
        assert (await other.answer())[0] == 200
        assert trio.current_time() == begun


async def test_exchanges_beside_a_refused_body_go_on(autojump_clock: MockClock) -> None:
    """On one HTTP/2 connection: the large body is refused, the small one is not."""
    budget, keeper = Budget(FULL), Keeper()
    async with serving(keeper, budget) as harness:
        first = upload(harness, "chunked")
        await first.begin()
        await first.send(b"x" * 1400 * KIB)
        client = H2Client(harness.connect())
        large = await client.request(b"POST", body=b"y" * 16_000, end=False)
        await wait_all_tasks_blocked()
        await client.read()
        for _ in range(10):
            client.h2.send_data(large, b"y" * 16_000)
        await client.flush()
        small = await client.request(b"POST", body=b"z" * 100)
        keeper.go_on.set()
        assert (await client.answer(small)).status == 200
        assert (await client.answer(large)).status == 503
        assert client.terminated is None


async def test_resets_with_unread_bodies_leave_nothing_counted(autojump_clock: MockClock) -> None:
    budget, keeper = Budget(), Keeper()
    async with serving(keeper, budget) as harness:
        client = H2Client(harness.connect())
        for _ in range(20):
            number = client.h2.get_next_available_stream_id()
            await client.request(b"POST", body=b"x" * 1000, end=False)
            client.h2.reset_stream(number, ErrorCodes.CANCEL)
            await client.flush()
        await wait_all_tasks_blocked()
        assert budget.used == 0


async def test_a_connection_ended_for_abuse_leaves_nothing_counted(
    autojump_clock: MockClock,
) -> None:
    """Its last bytes hold requests whose handlers never start."""
    budget = Budget()
    async with serving(Keeper(), budget) as harness:
        client = H2Client(harness.connect())
        await client.flush()
        await wait_all_tasks_blocked()
        number = client.h2.get_next_available_stream_id()
        fields = [(b":method", b"POST"), (b":path", b"/"), (b":scheme", b"http")]
        client.h2.send_headers(number, [*fields, (b":authority", b"x")])
        client.h2.send_data(number, b"x" * 1000)
        await client.client.send(client.h2.data_to_send() + b"\0\0\0\x06\0\0\0\0\0" * 3000)
        assert await client.client.rest()
        await wait_all_tasks_blocked()
        assert budget.used == 0


# --- the pace ---


async def test_a_body_that_came_fast_may_not_rest_for_hours(
    mock_clock: MockClock, form: str
) -> None:
    limits = HttpLimits()
    async with serving(Keeper(), Budget(), limits) as harness:
        one = upload(harness, form)
        await one.begin()
        await one.send(b"x" * 4 * MIB)  # at body_rate_min worth more than an hour
        await wait_all_tasks_blocked()
        mock_clock.jump(limits.body_idle_s_max - 1)
        await wait_all_tasks_blocked()
        await one.send(b"x" * RECEIVE_BYTES)
        await wait_all_tasks_blocked()
        mock_clock.jump(limits.body_idle_s_max + 1)
        await wait_all_tasks_blocked()
        status, _, _ = await one.answer()
        assert status == 408
        mock_clock.rate = 1000


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES, LARGE_BYTES + 1, 5 * LARGE_BYTES + 3])
async def test_bodies_of_any_size_are_put_together(
    autojump_clock: MockClock, form: str, size: int
) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    async with serving(keeper := Keeper(at_once=True), Budget()) as harness:
        one = upload(harness, form)
        await one.begin(size)
        if size:
            await one.send(body[:size])
        await one.end()
        assert (await one.answer())[2] == b"%d" % size
    assert keeper.read == [body[:size]]
