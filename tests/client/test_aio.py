"""The asynchronous half: the same streams, on trio and on asyncio."""

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from durastreamd.client import (
    AnswerError,
    Bookmark,
    ClientSettings,
    DurableStream,
    FencedError,
    IdempotentProducer,
    ServerRefusedError,
    UnreachableError,
)
from durastreamd.client.aio import AsyncClient, AsyncDurableStream
from durastreamd.client.aio_producer import AsyncIdempotentProducer
from tests.support.daemon import Daemon
from tests.support.plain_server import Scripted, as_json, plain_server

QUICK = ClientSettings(retry_s=5, retry_interval_s=0.001, timeout_s=5)
BACKENDS = ["trio", "asyncio"]
on_both = pytest.mark.parametrize("backend", BACKENDS)


def run(backend: str, work: Callable[[], Awaitable[None]]) -> None:
    anyio.run(work, backend=backend)


@on_both
def test_a_stream_is_made_written_read_followed_and_deleted(daemon: Daemon, backend: str) -> None:
    async def work() -> None:
        async with AsyncDurableStream(daemon.stream(f"aio-{backend}"), QUICK) as stream:
            await stream.create()
            await stream.append_json(0, 1, 2)
            head = await stream.head()
            assert head.message_count == 3
            assert (await stream.append("3")).next_offset > head.next_offset
            found = [each async for each in stream.messages()]
            assert [each.data for each in found] == [b"0", b"1", b"2", b"3"]
            assert [each.data async for each in stream.messages(found[1].after)] == [b"2", b"3"]
            assert (
                await stream.offset_of(found[1].after)
                == (await stream.find("at-message", 2)).offset
            )

            fork = AsyncDurableStream(daemon.stream(f"fork-{backend}"), client=stream.client)
            await fork.fork(stream.url, found[0].after)
            assert [each.data async for each in fork.messages()] == [b"0"]

            assert await stream.snapshot() is None
            offset = found[-1].after.offset
            assert await stream.put_snapshot(offset, b"[6]") == offset
            assert (await stream.bootstrap()).snapshot == await stream.snapshot()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, stream)
                reading = stream.messages(offset, live=True)
                seen = [message.data async for message in reading]
            assert seen == [b"4", b"5", b"6"]
            names = [each.name for each in await stream.client.list_streams(daemon.url)]
            assert {f"aio-{backend}", f"fork-{backend}"} <= set(names)
            await fork.delete()
            await stream.delete()
            with pytest.raises(ServerRefusedError, match="404"):
                await stream.head()

    async def write(stream: AsyncDurableStream) -> None:
        for number in (4, 5, 6):
            await stream.append_json(number)
        await stream.close()

    run(backend, work)


@on_both
def test_whoever_stops_reading_in_the_midst_leaves_nothing_open(
    daemon: Daemon, backend: str
) -> None:
    async def work() -> None:
        async with AsyncDurableStream(daemon.stream(f"stop-{backend}"), QUICK) as stream:
            await stream.create()
            await stream.append_json(*range(1000))
            async for message in stream.messages(live=True):
                assert message.after == Bookmark("-1", 1)
                break
            with anyio.move_on_after(0.01):
                async for _ in stream.messages("now", live=True):
                    pass

    run(backend, work)


def test_a_certificate_of_nobody_is_refused_at_once(tmp_path: Path) -> None:
    with Daemon(tmp_path, tls=True) as daemon:
        assert daemon.certificates is not None
        trusting = ClientSettings(ca_file=str(daemon.certificates.authority), retry_s=5)

        async def work() -> None:
            async with AsyncDurableStream(daemon.stream("x"), trusting) as stream:
                await stream.create("text/plain")
            with pytest.raises(UnreachableError, match=r"tried once.*certificate"):
                async with AsyncDurableStream(daemon.stream("x"), QUICK) as stream:
                    await stream.head()

        run("trio", work)


def test_a_unix_socket_is_spoken_to_redirects_included(tmp_path: Path) -> None:
    with Daemon(tmp_path, arguments=["--listen", f"unix:{tmp_path}/ds.sock"]):
        url = f"unix:{tmp_path}/ds.sock:/v1/stream/x"

        async def work() -> None:
            async with AsyncDurableStream(url, QUICK) as stream:
                await stream.create("text/plain")
                offset = (await stream.append("one")).next_offset
                assert [each.data async for each in stream.messages()] == [b"one"]
                await stream.put_snapshot(offset, b"{}")
                assert await stream.snapshot() is not None

        run("asyncio", work)
        with DurableStream(url, QUICK) as stream:
            assert stream.snapshot() is not None


def test_trouble_is_met_as_the_blocking_half_meets_it() -> None:
    async def work() -> None:
        with plain_server(page=5) as server:
            server.streams["/v1/stream/x"] = ("application/json", as_json(*range(5)))
            async with AsyncDurableStream(f"{server.url}/v1/stream/x", QUICK) as stream:
                busy = b'{"code": "UNAVAILABLE", "detail": "later"}'
                server.script += [Scripted(0), Scripted(503, {}, busy), Scripted(502)]
                await stream.head()
                whole = b"0\n1\n2\n3\n4\n"
                head = {"Content-Type": "application/x-ndjson", "Stream-Next-Offset": "tokf"}
                cut = {**head, "Content-Length": str(len(whole))}
                server.script += [
                    Scripted(-2, cut, whole[:5]),
                    Scripted(200, {**head, "Stream-Up-To-Date": "true"}, whole),
                ]
                found = [each.data async for each in stream.messages()]
                assert found == [b"0", b"1", b"2", b"3", b"4"]
                server.script.append(Scripted(200, {"Content-Type": "text/html"}, b"<html>"))
                with pytest.raises(AnswerError, match="is this a Durable Streams server"):
                    await stream.head()
                server.script.append(Scripted(0))
                with pytest.raises(UnreachableError):
                    await stream.append_json(1)
                assert [seen[0] for seen in server.seen].count("POST") == 1, "sent once"

    run("trio", work)


@on_both
def test_a_producer_gathers_and_goes_on_after_its_death(
    daemon: Daemon, backend: str, tmp_path: Path
) -> None:
    url = daemon.stream(f"producer-{backend}")

    async def work() -> None:
        async with AsyncIdempotentProducer.open(
            url, "worker", state=tmp_path / "state", settings=QUICK
        ) as producer:
            for number in range(int(producer.mark or -1) + 1, 500):
                await producer.append_json(number, mark=str(number))
                if number == 200:
                    assert await producer.flush() != ""
                    raise InterruptedError

    with DurableStream(url, QUICK) as stream:
        stream.create()
        with pytest.raises(InterruptedError):
            run(backend, work)
        run(backend, work)
        assert [each.data for each in stream.messages()] == [b"%d" % each for each in range(500)]


def test_what_a_producer_meets_is_raised_where_it_is_used(daemon: Daemon) -> None:
    url = daemon.stream("fenced-aio")

    async def work() -> None:
        with pytest.raises(FencedError):
            async with AsyncIdempotentProducer.open(url, "worker", settings=QUICK) as producer:
                with pytest.raises(ValueError, match="not one JSON value"):
                    await producer.append("1,2")
                await producer.append("1")
                await producer.flush()
                with IdempotentProducer(stream, "worker") as other:
                    other._core.state.epoch += 1000
                    other.append("2")
                await producer.append("3")
                await producer.flush()

    with DurableStream(url, QUICK) as stream:
        stream.create()
        run("trio", work)
        assert [each.data for each in stream.messages()] == [b"1", b"2"]


BLOCKED = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"trio", "h11", "h2", "httpx", "anyio", "pyspark", "rich",
                                      "msgspec", "cbor2", "xxhash", "cryptography", "jwt"}:
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
import durastreamd.client
for name in durastreamd.client.__all__:
    assert hasattr(durastreamd.client, name)
try:
    import durastreamd.client.aio
except ImportError as exc:
    assert "durastreamd[client]" in str(exc) or exc.name in ("anyio", "httpx", None), exc
else:
    raise AssertionError
"""


def test_the_client_can_be_imported_where_nothing_is_installed() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)


def test_async_clients_hang_up(daemon: Daemon) -> None:
    async def work() -> None:
        client = AsyncClient(QUICK)
        async with AsyncDurableStream(daemon.stream("kept"), client=client) as stream:
            await stream.create()
        assert client._kept, "one that was handed in stays"
        await client.aclose()
        assert not client._kept

    run("trio", work)
