"""Refusals that need a server in trouble or a client out of bounds; none tells about the host."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine.options import EngineOptions
from durastreamd.http.limits import HttpLimits
from durastreamd.model.records import Snapshot
from durastreamd.service.limits import Limits, ReadLimits, WriteLimits
from durastreamd.service.reader import Reader
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.ticket import PublishCommand
from tests.service.harness import (
    JSON,
    PREFIX,
    TEXT,
    Connection,
    Reply,
    Site,
    producer,
    request_bytes,
    serving,
)
from tests.service.test_statuses import check_problem

PATH = PREFIX + "s"
HOST = b" HTTP/1.1\r\nHost: a\r\n"
HALF = b"POST " + PATH.encode() + HOST + b"Content-Length: 9\r\n\r\nx"


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_body_too_large_is_told_and_the_limit_is_exact(
    autojump_clock: MockClock, framing: str
) -> None:
    async with serving(Limits(writes=WriteLimits(append_bytes_max=10))) as site:
        await site.make("s")
        await site.add("s", b"x" * 10)
        if framing == "length":
            reply = await site.ask("POST", "s", TEXT, b"x" * 11)
        else:
            connection = site.connect()
            head = (
                b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
            )
            chunks = b"Transfer-Encoding: chunked\r\n\r\n6\r\nxxxxxx\r\n5\r\nxxxxx\r\n0\r\n\r\n"
            await connection.send_bytes(head + chunks, "POST")
            reply = await connection.whole()
        check_problem(reply, "PAYLOAD_TOO_LARGE", PATH)
        assert (await site.head("s")).next == f"{10:016d}"


@pytest.mark.parametrize("padding", ["", " " * 100_000], ids=["inline", "in a thread"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_too_many_messages_are_told_and_the_limit_is_exact(
    autojump_clock: MockClock, method: str, padding: str
) -> None:
    async with serving(Limits(writes=WriteLimits(append_messages_max=3))) as site:
        await site.make("s", JSON)
        await site.add("s", f"[1,2,{padding}3]".encode(), JSON)
        await site.add("s", f"[[1,2,3,{padding}4]]".encode(), JSON)
        before = await site.get("s?offset=-1")
        name = "s" if method == "POST" else "other"
        reply = await site.ask(method, name, JSON, f"[1,2,{padding}3,4]".encode())
        check_problem(reply, "PAYLOAD_TOO_LARGE", PREFIX + name)
        assert "more than 3 messages" in reply.json["detail"]
        assert (await site.get("s?offset=-1")).body == before.body
        assert (await site.head("other")).status == 404


async def test_forks_of_forks_end_at_the_setting(autojump_clock: MockClock) -> None:
    async with serving(options=EngineOptions(fork_depth_max=2)) as site:
        await site.make("s", TEXT, b"root")
        for name, source in (("1", PATH), ("2", PREFIX + "1")):
            await site.make(name, {"Stream-Forked-From": source})
        refused = await site.ask("PUT", "3", {"Stream-Forked-From": PREFIX + "2"})
        check_problem(refused, "FORK_TOO_DEEP", PREFIX + "3")
        assert "engine.fork_depth_max" in refused.json["detail"]
        await site.make("other", {"Stream-Forked-From": PREFIX + "1"})


async def test_too_many_producers_are_rate_limited(autojump_clock: MockClock) -> None:
    async with serving(options=EngineOptions(producers_max=1)) as site:
        await site.make("s")
        await site.add("s", b"x", {**TEXT, **producer("p", 0, 0)})
        reply = await site.ask("POST", "s", {**TEXT, **producer("q", 0, 0)}, b"y")
        check_problem(reply, "TOO_MANY_PRODUCERS", PATH, retryAfter=60)
        assert reply["Retry-After"] == "60"
        await site.add("s", b"y", {**TEXT, **producer("p", 0, 1)})


async def test_full_mailbox_is_told_to_come_back(autojump_clock: MockClock) -> None:
    async with serving(streams=StreamLimits(mailbox_max=1)) as site:
        await site.make("s")
        await site.bench.hold()
        waiting = [site.connect() for _ in range(6)]
        for connection in waiting:
            await connection.send("POST", PATH, TEXT, b"x")
            await wait_all_tasks_blocked()
        site.bench.writer.release()
        replies = [await connection.whole() for connection in waiting]
        busy = [reply for reply in replies if reply.status == 503]
        assert busy
        assert {reply.status for reply in replies} == {204, 503}
        for reply in busy:
            check_problem(reply, "UNAVAILABLE", PATH, retryAfter=1)
            assert reply["Retry-After"] == "1"
        assert (await site.head("s")).next == f"{6 - len(busy):016d}"


async def test_event_reader_of_a_draining_server_is_told_to_come_back(site: Site) -> None:
    await site.make("s")
    site.app.live.end_all()
    reply = await site.get("s?offset=-1&live=sse")
    check_problem(reply, "UNAVAILABLE", PATH, retryAfter=1)
    assert reply["Retry-After"] == "1"


async def test_connection_too_many_is_told_to_come_back(autojump_clock: MockClock) -> None:
    async with serving(http=HttpLimits(connections_max=1)) as site:
        await site.make("s")
        extra = site.connect()
        await extra.send("GET", PATH, None)
        reply = await extra.whole()
        check_problem(reply, "UNAVAILABLE", "/", retryAfter=1)
        assert reply["Retry-After"] == "1"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
async def test_full_disk_refuses_and_recovers(site: Site, method: str) -> None:
    await site.make("s")
    name = "new" if method == "PUT" else "s"
    site.bench.disk.full = "journal"
    reply = await site.ask(method, name, TEXT, b"" if method == "DELETE" else b"x")
    check_problem(reply, "INSUFFICIENT_STORAGE", PREFIX + name, retryAfter=1)
    assert reply["Retry-After"] == "1"
    assert (await site.get("s?offset=-1")).status == 200
    site.bench.disk.full = ""
    again = await site.ask(method, name, TEXT, b"" if method == "DELETE" else b"x")
    assert again.status in (201, 204)


@pytest.mark.parametrize("live", ["", "&live=sse", "&live=long-poll"])
async def test_damaged_stream_is_refused_without_naming_a_file(site: Site, live: str) -> None:
    await site.make("s", TEXT, b"hello")
    await site.make("sound", TEXT, b"hello")
    site.bench.stream("/s").damage = "/var/lib/durastreamd/streams/00/1.seg:77: bad sum"
    check_problem(await site.get(f"s?offset=-1{live}"), "STREAM_DAMAGED", PATH)
    check_problem(await site.ask("POST", "s", TEXT, b"x"), "STREAM_DAMAGED", PATH)
    fork = await site.ask("PUT", "f", {"Stream-Forked-From": PATH})
    check_problem(fork, "STREAM_DAMAGED", PREFIX + "f")
    assert (await site.get("sound?offset=-1")).body == b"hello"


async def test_unforeseen_failure_tells_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: Reader, key: str) -> None:
        message = f"/srv/secret/path of {key}"
        raise RuntimeError(message)

    await site.make("s")
    with monkeypatch.context() as patched:
        patched.setattr(Reader, "existing", fail)
        check_problem(await site.get("s?offset=-1"), "INTERNAL_ERROR", PATH + "?offset=-1")
    assert (await site.get("s?offset=-1")).status == 200


@pytest.mark.parametrize("live", ["", "&live=sse", "&live=long-poll"])
async def test_offset_below_what_is_retained_is_gone_and_says_where_to_go_on(
    site: Site, live: str
) -> None:
    await site.make("s", TEXT, b"hello")
    await site.add("s", b"world")
    stream = site.bench.stream("/s")
    snapshot = Snapshot(stream.id, 5, 1, "text/plain", 0, 0)
    await site.bench.streams.ask("/s", PublishCommand(snapshot))
    for start in ("-1", f"{0:016d}"):
        reply = await site.get(f"s?offset={start}{live}")
        check_problem(reply, "OFFSET_EXPIRED", PATH)
        assert reply.next == f"{5:016d}"
    fork = {"Stream-Forked-From": PATH, "Stream-Fork-Offset": f"{0:016d}"}
    check_problem(await site.ask("PUT", "f", fork), "OFFSET_EXPIRED", PREFIX + "f")
    assert (await site.get("s?offset=" + f"{5:016d}")).body == b"world"


@pytest.mark.parametrize("live", ["", "&live=sse", "&live=long-poll"])
@pytest.mark.parametrize("folded", [None, 5])
async def test_what_was_lost_is_told_as_a_loss_and_not_as_folded(
    site: Site, live: str, folded: int | None
) -> None:
    """As a repair leaves it: the floor above the snapshot, or without one."""
    await site.make("s", TEXT, b"hello")
    await site.add("s", b"world")
    await site.add("s", b"again")
    stream = site.bench.stream("/s")
    if folded is not None:
        blob = await site.ask("PUT", f"s/snapshot/{folded:016d}", TEXT, b"folded")
        assert blob.status == 204
    stream.floor = 10
    low = f"{folded or 0:016d}"
    for start in ("-1", low, f"{0:016d}"):
        reply = await site.get(f"s?offset={start}{live}")
        check_problem(reply, "DATA_LOST", PATH)
        assert reply.next == f"{10:016d}"
        assert f"from {low} to {10:016d} was lost" in reply.body.decode()
    assert (await site.get(f"s?offset={10:016d}")).body == b"again"
    check_problem(await site.get("s/bootstrap"), "DATA_LOST", PATH + "/bootstrap")
    below = f"s/snapshot/{7:016d}"
    check_problem(await site.ask("PUT", below, TEXT, b"x"), "DATA_LOST", PREFIX + below)
    fork = {"Stream-Forked-From": PATH, "Stream-Fork-Offset": low}
    check_problem(await site.ask("PUT", "f", fork), "DATA_LOST", PREFIX + "f")
    assert (await site.head("s")).get("Stream-Snapshot-Offset") is None
    if folded is not None:
        assert (await site.get(f"s/snapshot/{low}")).body == b"folded"
    # The next snapshot stands for everything, also for what was lost.
    assert (await site.ask("PUT", f"s/snapshot/{10:016d}", TEXT, b"new")).status == 204
    check_problem(await site.get("s?offset=-1"), "OFFSET_EXPIRED", PATH)
    assert (await site.get("s/bootstrap")).status == 200


# --- what the connection layer refuses has the same form ---

LINE = b"GET " + PATH.encode()


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (LINE + b" HTTP/3.0\r\nHost: a\r\n\r\n", "HTTP_VERSION_NOT_SUPPORTED"),
        (LINE + b"?" + b"q" * 9000 + HOST + b"\r\n", "URI_TOO_LONG"),
        (LINE + HOST + b"X: " + b"x" * 20000 + b"\r\n\r\n", "HEADERS_TOO_LARGE"),
        (LINE + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "NOT_IMPLEMENTED"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", "NOT_IMPLEMENTED"),
        (LINE + b" HTTP/1.1\r\n\r\n", "BAD_REQUEST"),
        (LINE + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "BAD_REQUEST"),
        (b"GET /v1/stream/\xc3\xa9" + HOST + b"\r\n", "BAD_REQUEST"),
    ],
)
async def test_refusal_of_the_connection_layer_has_the_same_form(
    site: Site, request_bytes: bytes, code: str
) -> None:
    connection = site.connect()
    await connection.send_bytes(request_bytes)
    reply = await connection.whole()
    path = reply.json.get("instance", "")
    check_problem(reply, code, path)


@pytest.mark.parametrize(
    "sent", [LINE, b"POST " + PATH.encode() + HOST + b"Content-Length: 9\r\n\r\nx"]
)
async def test_request_that_does_not_arrive_times_out(
    autojump_clock: MockClock, site: Site, sent: bytes
) -> None:
    connection: Connection = site.connect()
    begun = trio.current_time()
    await connection.send_bytes(sent)
    reply = await connection.whole()
    check_problem(reply, "REQUEST_TIMEOUT", reply.json.get("instance", ""))
    assert 9 < trio.current_time() - begun < 12


async def test_a_reload_bounds_every_part_and_forgets_no_byte_in_memory(site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    tail = (await site.add("s", b"world")).next
    budget = site.app.budget
    reads = ReadLimits(page_bytes_max=5)
    writes = WriteLimits(append_bytes_max=3, snapshot_bytes_max=3)
    site.app.reconfigure(Limits(reads, writes))
    assert (await site.ask("POST", "s", TEXT, b"long")).status == 413
    assert (await site.ask("PUT", "t", TEXT, b"long")).status == 413
    assert (await site.ask("PUT", f"s/snapshot/{tail}", TEXT, b"long")).status == 413
    assert (await site.get("s?offset=-1")).body == b"hello"
    assert (await site.get("s?offset=-1&live=long-poll")).body == b"hello"
    assert site.app.budget is budget


@pytest.mark.parametrize("pieces", [1, 2], ids=["quick", "ordinary"])
async def test_appends_faster_than_the_disk_takes_them_are_told_to_come_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """What is not flushed yet is in memory: at most twice ``engine.hot_bytes_max`` and one more."""
    options = EngineOptions(hot_bytes_max=1000)
    async with serving(options=options) as site:
        await site.make("s")
        flushed, thread = trio.Event(), site.bench.streams._off_the_loop

        async def held(job: Callable[[], object]) -> object:
            await flushed.wait()
            return await thread(job)

        monkeypatch.setattr(site.bench.streams, "_off_the_loop", held)
        connection, stored = site.connect(), 0

        async def append() -> Reply:
            whole = request_bytes("POST", PATH, TEXT, b"x" * 300)
            cut = len(whole) if pieces == 1 else len(whole) - 1
            await connection.send_bytes(whole[:cut], "POST")
            if whole[cut:]:
                await wait_all_tasks_blocked()
                await connection.sock.send(whole[cut:])
            return await connection.whole()

        while (reply := await append()).status == 204:
            stored += 300
            assert stored < 10 * options.hot_bytes_max
        assert (reply.status, reply["Retry-After"]) == (503, "1")
        beyond = site.bench.engine.hot_bytes - 2 * options.hot_bytes_max
        assert 0 < beyond <= 300
        assert (await site.get("s?offset=-1")).body == b"x" * stored, "what is there can be read"
        flushed.set()
        await wait_all_tasks_blocked()
        await site.add("s", b"y")
        assert (await site.get("s?offset=-1")).body == b"x" * stored + b"y"
