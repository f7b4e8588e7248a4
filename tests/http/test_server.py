"""Accepting, limits on connections, drain; over real sockets where they matter."""

import json
import socket
import ssl
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest
import trio
import trio.testing
import trustme

from durastreamd.http.exchange import Exchange
from durastreamd.http.limits import HttpLimits
from durastreamd.http.listener import Listener, adopt, open_tcp, open_unix, tls_context
from durastreamd.http.server import Server
from tests.http.harness import PLAIN, Gone, echo, running, settle

GET = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def fetch(stream: trio.abc.Stream, request: bytes = GET) -> bytes:
    await stream.send_all(request)
    return await drained(stream)


async def drained(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while more := await stream.receive_some():
        data += more
    return data


async def serve_and_fetch(listener: Listener, open_stream: object) -> bytes:
    assert callable(open_stream)
    server = Server([listener])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, echo)
        async with await open_stream() as stream:
            data = await fetch(stream)
        server.drain()
    assert listener.sock.fileno() == -1
    return data


async def test_tcp() -> None:
    (listener,) = open_tcp("127.0.0.1", 0, 10)

    async def open_stream() -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", listener.port)

    assert (await serve_and_fetch(listener, open_stream)).endswith(b"GET /a 1.1 ")


async def test_body_that_ends_with_the_connection_is_reset_when_incomplete(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (listener,) = open_tcp("127.0.0.1", 0, 10)

    async def stumble(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        await exchange.send(b"abc")
        raise ValueError

    server = Server([listener])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, stumble)
        async with await trio.open_tcp_stream("127.0.0.1", listener.port) as stream:
            # An orderly end would make "abc" look like all of it.
            with pytest.raises(trio.BrokenResourceError):
                await fetch(stream, b"GET / HTTP/1.0\r\n\r\n")
        server.drain()
    caplog.clear()


async def test_port_in_use_is_reported_before_serving() -> None:
    (listener,) = open_tcp("127.0.0.1", 0, 10)
    with pytest.raises(OSError, match="in use"):
        open_tcp("127.0.0.1", listener.port, 10)
    listener.release()


async def test_unix_socket_has_its_mode_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listener = open_unix(path, 10, mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600

    async def open_stream() -> trio.SocketStream:
        return await trio.open_unix_socket(str(path))

    assert (await serve_and_fetch(listener, open_stream)).endswith(b"GET /a 1.1 ")
    assert not path.exists()


async def test_stale_unix_socket_is_replaced_but_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    live = open_unix(path, 10)
    with pytest.raises(OSError, match="in use"):
        open_unix(path, 10)
    assert path.exists()
    live.release()
    path.write_text("not a socket")
    with pytest.raises(OSError, match="in use"):
        open_unix(path, 10)
    assert path.read_text() == "not a socket"


async def test_inherited_descriptor() -> None:
    inherited = socket.create_server(("127.0.0.1", 0))
    port = inherited.getsockname()[1]
    (listener,) = adopt([inherited.detach()])

    async def open_stream() -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", port)

    assert (await serve_and_fetch(listener, open_stream)).endswith(b"GET /a 1.1 ")


async def test_descriptor_that_does_not_listen_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with pytest.raises(OSError, match="not a listening socket"):
        adopt([theirs.fileno()])
    ours.close()
    theirs.close()


class Authority:
    """A certificate authority and what it signed, as files."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.certificate, self.key, self.root = (folder / name for name in ("c", "k", "r"))
        signed = self.ca.issue_cert("localhost")
        signed.private_key_pem.write_to_path(str(self.key))
        for blob in signed.cert_chain_pems:
            blob.write_to_path(str(self.certificate), append=True)
        self.ca.cert_pem.write_to_path(str(self.root))

    def client_context(self, alpn: list[str]) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if alpn:
            context.set_alpn_protocols(alpn)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def open_tls(port: int, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    stream = await trio.open_ssl_over_tcp_stream(
        "localhost", port, ssl_context=context, https_compatible=True
    )
    await stream.do_handshake()
    return stream


@pytest.mark.parametrize("alpn", [[], ["http/1.1"]])
async def test_http_1_over_tls(authority: Authority, alpn: list[str]) -> None:
    context = tls_context(authority.certificate, authority.key)
    (listener,) = open_tcp("127.0.0.1", 0, 10, context)
    seen: list[str] = []

    async def pour(exchange: Exchange) -> None:
        seen.append(exchange.request.scheme)
        await exchange.start(200, PLAIN)
        for _ in range(20):
            assert not exchange.send_nowait(b"x" * 10_000)
            await exchange.send(b"x" * 10_000)
        await exchange.finish()

    server = Server([listener])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, pour)
        async with await open_tls(listener.port, authority.client_context(alpn)) as stream:
            data = await fetch(stream)
        server.drain()
    assert data.count(b"x" * 10_000) == 20
    assert data.endswith(b"0\r\n\r\n")
    assert seen == ["https"]


async def test_http_2_over_tls_by_alpn(authority: Authority) -> None:
    context = tls_context(authority.certificate, authority.key)
    (listener,) = open_tcp("127.0.0.1", 0, 10, context)
    server = Server([listener])
    body = b""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, echo)
        stream = await open_tls(listener.port, authority.client_context(["h2", "http/1.1"]))
        assert stream.selected_alpn_protocol() == "h2"
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        client.initiate_connection()
        headers = [(":method", "GET"), (":path", "/t"), (":scheme", "https"), (":authority", "x")]
        client.send_headers(1, headers, end_stream=True)
        await stream.send_all(client.data_to_send())
        ended = False
        while not ended:
            for event in client.receive_data(await stream.receive_some()):
                if isinstance(event, h2.events.DataReceived):
                    body += event.data or b""
                ended = ended or isinstance(event, h2.events.StreamEnded)
        await stream.aclose()
        server.drain()
    assert body == b"GET /t 2 "


async def test_client_that_leaves_is_noticed_over_tls(authority: Authority) -> None:
    context = tls_context(authority.certificate, authority.key)
    (listener,) = open_tcp("127.0.0.1", 0, 10, context)
    waiting, gone = trio.Event(), trio.Event()

    async def wait(exchange: Exchange) -> None:
        async with exchange.until_hang_up():
            waiting.set()
            await trio.sleep_forever()
        gone.set()

    server = Server([listener])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, wait)
        stream = await open_tls(listener.port, authority.client_context([]))
        await stream.send_all(GET)
        await waiting.wait()
        await stream.aclose()
        await gone.wait()
        server.drain()


async def test_mutual_tls_refuses_strangers(authority: Authority) -> None:
    context = tls_context(authority.certificate, authority.key, client_ca=authority.root)
    (listener,) = open_tcp("127.0.0.1", 0, 10, context)
    server = Server([listener])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, echo)
        known = authority.client_context([])
        authority.ca.issue_cert("client").configure_cert(known)
        async with await open_tls(listener.port, known) as stream:
            assert (await fetch(stream)).endswith(b"GET /a 1.1 ")
        try:
            async with await open_tls(listener.port, authority.client_context([])) as stream:
                assert await fetch(stream) == b""
        except trio.BrokenResourceError:
            pass  # TLS 1.2 fails in the handshake, 1.3 with the first bytes.
        server.drain()
    assert server.statistics.exchanges_total == 1


@pytest.mark.parametrize("begun", ["GET", "noise", "nothing"])
async def test_plain_bytes_on_a_tls_port_hurt_nobody(authority: Authority, begun: str) -> None:
    context = tls_context(authority.certificate, authority.key)
    (listener,) = open_tcp("127.0.0.1", 0, 10, context)
    server = Server([listener])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, echo)
        async with await trio.open_tcp_stream("127.0.0.1", listener.port) as stream:
            if begun == "GET":
                answer = await fetch(stream)
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert b"Connection: close" in answer
                told = json.loads(answer.partition(b"\r\n\r\n")[2])
                assert "use https://" in told["detail"]
                assert (told["code"], told["instance"]) == ("BAD_REQUEST", "/a")
            elif begun == "noise":
                await stream.send_all(b"\x80\x00\x01noise that is neither\r\n\r\n")
                assert b"HTTP/1.1" not in await drained(stream)
        server.drain()
    assert server.statistics.connections_open == 0


async def test_connections_beyond_the_limit_are_told_503() -> None:
    async with running(echo, HttpLimits(connections_max=2)) as harness:
        first, second = harness.connect(), harness.connect()
        surplus = harness.connect()
        response = await surplus.response()
        assert response.status == 503
        assert response.headers[b"retry-after"] == b"1"
        assert json.loads(response.body)["code"] == "UNAVAILABLE"
        first.hang_up()
        surplus.hang_up()
        while harness.server.statistics.connections_open == 2:
            await trio.lowlevel.checkpoint()
        assert (await harness.connect().ask(GET)).status == 200
        assert (await second.ask(GET)).status == 200
        assert harness.server.statistics.connections_refused == 1


async def test_one_address_cannot_take_every_connection() -> None:
    async with running(echo, HttpLimits(connections_per_address_max=1)) as harness:
        harness.connect(peer="192.0.2.1:1")
        assert (await harness.connect(peer="192.0.2.1:2").response()).status == 503
        assert (await harness.connect(peer="192.0.2.2:1").ask(GET)).status == 200
        for _ in range(3):
            assert (await harness.connect(peer="unix").ask(GET)).status == 200


async def test_refusals_are_bounded_too(autojump_clock: trio.testing.MockClock) -> None:
    async with running(echo, HttpLimits(connections_max=1, refusals_max=2)) as harness:
        harness.connect()
        refused = [harness.connect() for _ in range(4)]
        answers = [await client.rest() for client in refused]
        assert [bool(answer) for answer in answers] == [True, True, False, False]


async def test_drain_ends_idle_connections_and_lets_exchanges_finish() -> None:
    gate = trio.Event()

    async def wait(exchange: Exchange) -> None:
        if exchange.request.path == "/slow":
            await gate.wait()
        await exchange.respond(200, PLAIN, b"done")

    async with running(wait) as harness:
        silent, idle, busy = harness.connect(), harness.connect(), harness.connect()
        assert (await idle.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
        await busy.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await settle()
        harness.server.drain()
        assert await idle.receive() == b""
        assert await silent.receive() == b""
        gate.set()
        response = await busy.response()
        assert (response.body, response.headers[b"connection"]) == (b"done", b"close")
        assert await busy.receive() == b""


async def test_request_that_arrives_with_the_drain_is_served() -> None:
    async with running(echo) as harness:
        client = harness.connect()
        assert (await client.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
        await settle()
        # No checkpoint between the two: the connection's task has not seen the request yet.
        client.raw.send(b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n")
        harness.server.drain()
        try:
            response = await client.response()
        except Gone:
            pytest.fail("the last request was lost")
        assert (response.body, response.headers[b"connection"]) == (b"GET /last 1.1 ", b"close")


async def test_cancelling_the_server_ends_everything() -> None:
    async def wait(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN)
        await trio.sleep_forever()

    server = Server([])
    ours, theirs = socket.socketpair()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, wait)
        server.admit(theirs, "unix")
        client = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        await client.send_all(GET)
        assert await client.receive_some()
        nursery.cancel_scope.cancel()
    assert server.statistics.connections_open == 0
    assert theirs.fileno() == -1
    await client.aclose()


async def test_running_out_of_descriptors_only_pauses_accepting(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    (listener,) = open_tcp("127.0.0.1", 0, 10)
    real = listener.sock
    failures = [24, 24]

    class Exhausted:
        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if failures:
                raise OSError(failures.pop(), "too many open files")
            return real.accept()

        def fileno(self) -> int:
            return real.fileno()

        def close(self) -> None:
            real.close()

    listener.sock = Exhausted()  # type: ignore[assignment]
    server = Server([listener])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, echo)
        begun = trio.current_time()
        async with await trio.open_tcp_stream("127.0.0.1", real.getsockname()[1]) as stream:
            assert (await fetch(stream)).endswith(b"GET /a 1.1 ")
        assert trio.current_time() - begun >= 0.4
        server.drain()
    assert len(caplog.records) == 1, "said once, not with every try"
