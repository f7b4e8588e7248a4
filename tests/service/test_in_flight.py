"""Bytes of writes are counted from their arrival until they are durable, or written to a file."""

import socket
from collections.abc import Callable

import pytest
import trio
from h2.errors import ErrorCodes
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.http.budget import TINY_BYTES
from durastreamd.service.limits import Limits, WriteLimits
from durastreamd.service.snapshots import PIECE_BYTES
from durastreamd.service.writes import SPLITS_MAX
from tests.http.h2_client import H2Client
from tests.http.harness import Client
from tests.service.harness import BINARY, JSON, TEXT, Site, request_bytes, serving

KIB = 1024


@pytest.mark.parametrize("size", [1, TINY_BYTES, TINY_BYTES + 1, 100_000])
@pytest.mark.parametrize("pieces", [1, 2])
async def test_an_append_is_counted_until_it_is_durable(
    autojump_clock: MockClock, site: Site, size: int, pieces: int
) -> None:
    """Also on the quick lane, which small ones in one piece take on a connection's second turn.

    Tiny ones are a part of what their connection costs.
    """
    await site.make("s", BINARY)
    connection = site.connect()
    assert (await connection.ask("POST", "/v1/stream/s", BINARY, b"first")).status == 204
    await wait_all_tasks_blocked()
    site.bench.writer.holding = True
    whole = request_bytes("POST", "/v1/stream/s", BINARY, b"x" * size)
    cut = len(whole) - len(whole) // pieces  # in two pieces, the cut lies inside
    await connection.send_bytes(whole[:cut] or whole, "POST")
    await wait_all_tasks_blocked()
    if cut:
        await connection.sock.send(whole[cut:])
        await wait_all_tasks_blocked()
    assert site.app.budget.used == (size if size > TINY_BYTES else 0)
    site.bench.writer.release()
    assert (await connection.whole()).status == 204
    await wait_all_tasks_blocked()
    assert site.app.budget.used == 0


async def test_an_append_whose_client_left_is_counted_until_it_is_durable(
    autojump_clock: MockClock, site: Site
) -> None:
    await site.make("s", BINARY)
    site.bench.writer.holding = True
    client = H2Client(over(site))
    fields = [(b"content-type", b"application/octet-stream")]
    for _ in range(5):
        number = await client.request(b"POST", b"/v1/stream/s", fields, b"x" * 5000)
        await wait_all_tasks_blocked()
        client.h2.reset_stream(number, ErrorCodes.CANCEL)
        await client.flush()
    await wait_all_tasks_blocked()
    assert site.app.budget.used == 25_000
    site.bench.writer.release()
    await wait_all_tasks_blocked()
    assert site.app.budget.used == 0
    assert len((await site.get("s?offset=-1")).body) == 25_000
    client.client.hang_up()


@pytest.mark.parametrize("size", [6, TINY_BYTES + 1])
async def test_a_client_that_hangs_up_a_quick_append_leaves_it_counted(
    autojump_clock: MockClock, site: Site, size: int
) -> None:
    await site.make("s", TEXT)
    connection = site.connect()
    assert (await connection.ask("POST", "/v1/stream/s", TEXT, b"first")).status == 204
    site.bench.writer.holding = True
    await connection.send("POST", "/v1/stream/s", TEXT, b"x" * size)
    await wait_all_tasks_blocked()
    connections = site.server.statistics.connections_open
    connection.hang_up()
    await wait_all_tasks_blocked()
    assert site.app.budget.used == (size if size > TINY_BYTES else 0)
    assert site.server.statistics.connections_open == connections, "tiny ones are counted by this"
    site.bench.writer.release()
    await wait_all_tasks_blocked()
    assert site.app.budget.used == 0
    assert site.server.statistics.connections_open == connections - 1


async def test_a_reload_does_not_forget_what_is_in_flight(
    autojump_clock: MockClock, site: Site
) -> None:
    await site.make("s", BINARY)
    site.bench.writer.holding = True
    connection = site.connect()
    await connection.send("POST", "/v1/stream/s", BINARY, b"x" * 100_000)
    await wait_all_tasks_blocked()
    limits = WriteLimits(in_flight_bytes_max=100_000, in_flight_wait_s_max=1.0)
    site.app.reconfigure(Limits(writes=limits))
    assert site.app.budget.used == 100_000
    reply = await site.ask("POST", "s", BINARY, b"y" * 100_000)
    assert (reply.status, reply["Retry-After"]) == (503, "1")
    assert reply.json["detail"].startswith("The server holds as many bytes of other requests as")
    site.bench.writer.release()
    assert (await connection.whole()).status == 204


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_few_json_bodies_are_taken_apart_at_one_time(
    autojump_clock: MockClock, site: Site, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Taking one apart needs memory that the budget does not count."""
    await site.make("s", JSON)
    go_on, blocking, sizes = trio.Event(), site.bench.streams.blocking, [0]

    async def held(job: Callable[[], object]) -> object:
        sizes.append(sizes[-1] + 1)
        await go_on.wait()
        try:
            return await blocking(job)
        finally:
            sizes.append(sizes[-1] - 1)

    monkeypatch.setattr(site.bench.streams, "blocking", held)
    connections = [site.connect() for _ in range(3 * SPLITS_MAX)]
    body = b"[" + b"0," * 50_000 + b"0]"
    for number, connection in enumerate(connections):
        name = "s" if method == "POST" else f"new{number}"
        await connection.send(method, f"/v1/stream/{name}", JSON, body)
    await wait_all_tasks_blocked()
    assert sizes[-1] == SPLITS_MAX
    assert (await site.add("s", b"[1,2]", JSON)).status == 204, "a short one does not wait"
    go_on.set()
    for connection in connections:
        assert (await connection.whole()).status in (201, 204)
    assert (max(sizes), sizes[-1]) == (SPLITS_MAX, 0)


async def test_a_snapshot_holds_what_is_not_written_yet(
    autojump_clock: MockClock, site: Site
) -> None:
    created = await site.make("s", TEXT, b"data")
    connection = site.connect()
    target = f"/v1/stream/s/snapshot/{created.next}"
    head = {**BINARY, "Content-Length": str(8 * PIECE_BYTES)}
    await connection.send_bytes(request_bytes("PUT", target, head), "PUT")
    most = 0
    for _ in range(8 * 8):
        await wait_all_tasks_blocked()
        most = max(most, site.app.budget.used)
        await connection.sock.send(b"x" * (PIECE_BYTES // 8))
    assert (await connection.whole()).status == 204
    assert PIECE_BYTES // 2 < most <= PIECE_BYTES + 64 * KIB


async def test_snapshots_that_find_no_room_are_told_to_come_back(
    autojump_clock: MockClock,
) -> None:
    limits = WriteLimits(in_flight_bytes_max=400 * KIB)
    async with serving(Limits(writes=limits)) as site:
        created = await site.make("s", TEXT, b"data")
        target = f"/v1/stream/s/snapshot/{created.next}"
        head = {**BINARY, "Content-Length": str(PIECE_BYTES)}
        uploads = [site.connect() for _ in range(4)]
        for upload in uploads:
            await upload.send_bytes(request_bytes("PUT", target, head), "PUT")
            await upload.sock.send(b"x" * 100 * KIB)
            await wait_all_tasks_blocked()
        assert site.app.budget.used <= 400 * KIB
        refused = await uploads[-1].whole()
        assert (refused.status, refused["Retry-After"]) == (503, "1")


def over(site: Site) -> Client:
    """Connect with a client of the HTTP tests."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003
    site.server.admit(theirs, "192.0.2.1:5")
    return Client(ours, bytewise=False)
