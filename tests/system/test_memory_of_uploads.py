"""The worst clients that the bounds allow, and what they cost: the resident size of a real server.

I10 for what clients send: bodies in every framing, heads, pipelines, connections. In each test the
clients go as far as they are let, and those who behave are served meanwhile.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.crowd import H2Upload, connect, crowd, head, push, status_of
from tests.support.daemon import Daemon
from tests.support.patience import wait_until
from tests.support.resident import Resident

pytestmark = [pytest.mark.system, pytest.mark.slow]

KIB = 1024
MIB = 1024 * KIB
BUDGET_BYTES = 64 * MIB  # in_flight_bytes_max in these tests, to have them short
LARGE_BYTES = BUDGET_BYTES * 3 // 4  # of it for large claims
AROUND_BYTES = 32 * MIB  # what a server takes besides: code that runs for the first time, the heap
READ_AHEAD_BYTES = 64 * KIB  # what may be received on a connection and not be counted yet
OCTETS = "Content-Type: application/octet-stream"
ATTACKER = "127.0.0.2"
BYSTANDER = "127.0.0.1"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    settings = {
        "writes.in_flight_bytes_max": BUDGET_BYTES,
        "writes.in_flight_wait_s_max": 2.0,
        "engine.hot_bytes_max": 4 * MIB,
        "engine.journal_bytes_max": 4 * MIB,
        "http.connections_max": 2000,
        "http.connections_per_address_max": 1500,
    }
    with Daemon(tmp_path, settings=settings) as running:
        with connect(running.port) as sock:
            sock.sendall(head("PUT", "/v1/stream/s", OCTETS, "Content-Length: 0"))
            assert status_of(sock) == 201
        yield running


@contextmanager
def costing(daemon: Daemon, what: str, bytes_max: int) -> Iterator[Resident]:
    """Judge what is done meanwhile by the peak of the server's resident size."""
    resident = Resident(daemon.pid)
    before = resident.begin()
    yield resident
    peak = resident.peak() - before
    text = f"{what}: {peak / MIB:.0f} MiB at the peak, {bytes_max / MIB:.0f} MiB allowed\n"
    sys.stdout.write(text)
    assert peak <= bytes_max, text


def serves_everybody(daemon: Daemon, source: str = BYSTANDER) -> None:
    """Write in every way there is, as a client who behaves."""
    post = head("POST", "/v1/stream/s", OCTETS, "Content-Length: 100")
    with connect(daemon.port, source) as sock:
        for pieces in (1, 2, 1):
            whole = post + b"x" * 100
            for part in range(pieces):
                sock.sendall(whole[part * 120 : (part + 1) * 120 if part + 1 < pieces else None])
            assert status_of(sock) == 204
        sock.sendall(head("POST", "/v1/stream/s", OCTETS, "Content-Length: 60000"))
        sock.sendall(b"x" * 60_000)
        assert status_of(sock) == 204
        chunked = head("POST", "/v1/stream/s", OCTETS, "Transfer-Encoding: chunked")
        sock.sendall(chunked + b"3\r\nabc\r\n0\r\n\r\n")
        assert status_of(sock) == 204
    with connect(daemon.port, source) as sock:
        client = H2Upload(sock)
        number = client.begin("POST", "/v1/stream/s", ("content-type", "application/octet-stream"))
        assert client.send(number, b"x" * 1000) == 1000
        client.h2.end_stream(number)
        client.flush()
        assert client.status(number) == 204


def serves_larger_ones(daemon: Daemon, source: str = BYSTANDER) -> None:
    """Write what is too large for the reserve of small appends."""
    with connect(daemon.port, source) as sock:
        for method, name in (("POST", "s"), ("PUT", f"new{source}")):
            target = f"/v1/stream/{name}"
            sock.sendall(head(method, target, OCTETS, "Content-Length: 100000") + b"x" * 100_000)
            assert status_of(sock) in (200, 201, 204)


def test_slow_uploads_refuse_nobody(daemon: Daemon) -> None:
    """They declare all there is; what counts is what they have sent."""
    declared = head("POST", "/v1/stream/s", OCTETS, f"Content-Length: {64 * MIB}")
    with (
        costing(daemon, "100 uploads of 64 MiB that have only begun", AROUND_BYTES),
        crowd(daemon.port, 100, BYSTANDER) as uploads,
    ):
        push(uploads, declared + b"x" * 1200)
        for _ in range(3):
            serves_everybody(daemon)
            serves_larger_ones(daemon)
            push(uploads, b"x" * 1200)


FRAMINGS = {
    "by length": head("POST", "/v1/stream/s", OCTETS, f"Content-Length: {61 * MIB}"),
    "chunked": head("POST", "/v1/stream/s", OCTETS, "Transfer-Encoding: chunked")
    + b"%x\r\n" % (61 * MIB),
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_unfinished_uploads_are_bounded_and_given_back(daemon: Daemon, framing: str) -> None:
    allowed = LARGE_BYTES + 30 * READ_AHEAD_BYTES + AROUND_BYTES
    with costing(daemon, f"30 uploads of 60 MiB, {framing}", allowed) as resident:
        before = resident.now()
        with crowd(daemon.port, 30, ATTACKER) as uploads:
            push(uploads, FRAMINGS[framing] + b"x" * 60 * MIB)
            serves_everybody(daemon, ATTACKER)
            serves_everybody(daemon)
            serves_larger_ones(daemon)
        text = "memory is kept after the clients have gone"
        wait_until(lambda: resident.now() - before < AROUND_BYTES, text)


def test_unfinished_uploads_over_http2_are_bounded_and_given_back(daemon: Daemon) -> None:
    """On connections of their own, and many on one connection."""
    allowed = LARGE_BYTES + 12 * READ_AHEAD_BYTES + AROUND_BYTES
    field = ("content-type", "application/octet-stream")
    with costing(daemon, "22 HTTP/2 uploads of 55 MiB without a length", allowed) as resident:
        before = resident.now()
        with crowd(daemon.port, 12, ATTACKER) as sockets:
            clients = [H2Upload(sock) for sock in sockets]
            tasks = []
            for client in clients:
                numbers = [client.begin("POST", "/v1/stream/s", field)]
                if client is clients[0]:
                    numbers += [client.begin("POST", "/v1/stream/s", field) for _ in range(10)]
                tasks.append(threading.Thread(target=send_in_turn, args=(client, numbers)))
            for task in tasks:
                task.start()
            serves_everybody(daemon, ATTACKER)
            serves_everybody(daemon)
            serves_larger_ones(daemon)
            for task in tasks:
                task.join()
        text = "memory is kept after the clients have gone"
        wait_until(lambda: resident.now() - before < AROUND_BYTES, text)


def send_in_turn(client: H2Upload, numbers: list[int]) -> None:
    """Send 55 MiB to each, a MiB at a time, as far as the server lets."""
    try:
        for _ in range(55):
            for number in numbers:
                client.send(number, b"x" * MIB)
    except OSError:
        pass  # it was refused, and hung up


def test_snapshot_uploads_are_bounded(daemon: Daemon) -> None:
    """Each keeps almost a piece in memory, which is written when it is whole."""
    with connect(daemon.port) as sock:
        sock.sendall(head("HEAD", "/v1/stream/s"))
        found = sock.recv(65536)
    offset = (
        found.partition(b"stream-next-offset: ")[2] or found.partition(b"Stream-Next-Offset: ")[2]
    )
    target = f"/v1/stream/s/snapshot/{offset.split()[0].decode()}"
    put = head("PUT", target, OCTETS, f"Content-Length: {1024 * MIB}")
    allowed = LARGE_BYTES + 600 * (READ_AHEAD_BYTES + 40 * KIB) + AROUND_BYTES
    with (
        costing(daemon, "600 snapshots that have only begun", allowed),
        crowd(daemon.port, 600, ATTACKER) as uploads,
    ):
        push(uploads, put + b"x" * 255 * KIB)
        serves_everybody(daemon)
        serves_larger_ones(daemon)


def test_small_appends_at_one_moment_are_bounded(daemon: Daemon) -> None:
    """More at once than a stream's mailbox takes, and than the reserve has room for."""
    post = head("POST", "/v1/stream/s", OCTETS, "Content-Length: 60000") + b"x" * 60_000
    allowed = BUDGET_BYTES + 1400 * (READ_AHEAD_BYTES + 40 * KIB) + AROUND_BYTES
    with (
        costing(daemon, "1400 appends of 60 kB at once, three times", allowed),
        crowd(daemon.port, 1400, ATTACKER) as clients,
    ):
        for _ in range(3):
            push(clients, post)
            answers = [status_of(sock) for sock in clients]
            assert set(answers) <= {204, 503}
            assert answers.count(204) > 50
        serves_everybody(daemon)


def test_pipelines_are_bounded(daemon: Daemon) -> None:
    """Clients that ask and ask and never read: no more is received than one piece each."""
    get = head("GET", "/v1/stream/s?offset=-1&live=sse")
    allowed = 400 * (2 * READ_AHEAD_BYTES + 40 * KIB) + AROUND_BYTES
    with (
        costing(daemon, "400 pipelines of 2 MiB", allowed),
        crowd(daemon.port, 400, ATTACKER) as clients,
    ):
        taken = push(clients, get * (2 * MIB // len(get)))
        assert taken > 400 * READ_AHEAD_BYTES
        serves_everybody(daemon)


def test_heads_are_bounded(daemon: Daemon) -> None:
    """Heads that never end, as large as they may be, and header lists over HTTP/2."""
    unfinished = head("GET", "/v1/stream/s")[:-2] + b"X-A: " + b"a" * 15 * KIB
    allowed = 1400 * (16 * KIB + 40 * KIB) + AROUND_BYTES
    with (
        costing(daemon, "1400 heads of 15 KiB", allowed),
        crowd(daemon.port, 1300, ATTACKER) as clients,
        crowd(daemon.port, 100, BYSTANDER) as others,
    ):
        push(clients, unfinished)
        for sock in others:
            H2Upload(sock).begin("GET", "/v1/stream/s", ("x-a", "a" * 15 * KIB))
        serves_everybody(daemon)


def test_connections_are_bounded(daemon: Daemon) -> None:
    """One address gets so many, all together some more, and who comes then is told."""
    allowed = 2000 * 40 * KIB + AROUND_BYTES
    with (
        costing(daemon, "2000 connections", allowed),
        crowd(daemon.port, 1499, ATTACKER) as clients,
    ):
        push(clients, b"P")
        with connect(daemon.port, ATTACKER) as last, connect(daemon.port, ATTACKER) as surplus:
            last.sendall(b"P")
            assert status_of(surplus) == 503
            serves_everybody(daemon)
        with crowd(daemon.port, 450, "127.0.0.3") as others:
            push(others, b"P")
            serves_everybody(daemon)
            with crowd(daemon.port, 60, "127.0.0.4") as too_many:
                assert status_of(too_many[-1]) == 503
    wait_until(lambda: _has_room(daemon), "connections that were closed count still")
    serves_everybody(daemon)


def _has_room(daemon: Daemon) -> bool:
    with connect(daemon.port, BYSTANDER) as sock, suppress(OSError):  # who is refused is hung up
        sock.sendall(head("POST", "/v1/stream/s", OCTETS, "Content-Length: 1") + b"x")
        return status_of(sock) == 204
    return False
