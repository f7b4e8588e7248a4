"""What the worst client may cost in memory: the resident size of a real server, at its peak."""

import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.resident import Resident

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1024 * 1024
BODY_BYTES = 64 * MIB
BODY_TIMES_MAX = 4  # what a JSON body may cost, itself included


def connect(daemon: Daemon) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", daemon.port))
    sock.settimeout(PATIENCE_S)
    return sock


def ask(daemon: Daemon, method: str, name: str, kind: str, body: bytes = b"") -> bytes:
    """Send a request and return the head of its answer, whose body is a short one."""
    head = f"{method} /v1/stream/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(daemon) as sock:
        sock.sendall(head.encode())
        sock.sendall(body)
        found = b""
        while data := sock.recv(65536):
            found += data
        return found


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    settings = {"writes.append_messages_max": BODY_BYTES, "engine.hot_bytes_max": 4 * MIB}
    with Daemon(tmp_path, settings=settings) as running:
        yield running


GROUP = b"[" * 120 + b"]" * 120 + b","
BODIES = {
    "zeros": (b"0,", b"0"),
    "nesting": (GROUP, b"0"),
    "mixed nesting": (b'[{"":' * 60 + b"0" + b"}]" * 60 + b",", b"0"),
    "one message": (b'{"a":[]},', b"0"),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_json_body_costs_a_few_times_its_length(daemon: Daemon, kind: str) -> None:
    unit, last = BODIES[kind]
    around = 2 if kind == "one message" else 1
    times = (BODY_BYTES - 2 * around - len(last)) // len(unit)
    body = b"[" * around + unit * times + last + b"]" * around
    assert b" 201 " in ask(daemon, "PUT", "s", "application/json", b"[1]")
    resident = Resident(daemon.pid)
    before = resident.begin()
    assert b" 204 " in ask(daemon, "POST", "s", "application/json", body)
    cost = resident.peak() - before
    text = f"{kind}: {cost / MIB:.0f} MiB for a body of {len(body) / MIB:.0f} MiB\n"
    sys.stdout.write(text)
    assert cost <= BODY_TIMES_MAX * len(body), text


def test_too_many_messages_are_refused_at_little_cost(tmp_path: Path) -> None:
    body = b"[" + b"0," * (BODY_BYTES // 2 - 2) + b"0]"
    with Daemon(tmp_path) as daemon:
        assert b" 201 " in ask(daemon, "PUT", "s", "application/json", b"[1]")
        resident = Resident(daemon.pid)
        before = resident.begin()
        answer = ask(daemon, "POST", "s", "application/json", body)
        cost = resident.peak() - before
    assert b" 413 " in answer
    assert b"more than 2097152 messages" in answer
    assert cost < len(body) + 16 * MIB + 3 * 2097152, f"{cost / MIB:.0f} MiB"


# --- readers that do not read ---

READER_BYTES_MAX = MIB  # a few pieces, and the compressor's memory
LARGE_BYTES = 60 * MIB
PAGE_BYTES = 8 * MIB
QUIET_S = 0.25


def settled(resident: Resident) -> int:
    """Wait until the peak does not rise any more; return it."""
    before = -1
    while (peak := resident.peak()) != before:
        before = peak
        time.sleep(QUIET_S)
    return peak


@contextmanager
def readers(daemon: Daemon, count: int, target: str, fields: str = "") -> Iterator[None]:
    """Have so many readers ask and take nothing but the beginning of their answers."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            made.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(PATIENCE_S)
            sock.connect(("127.0.0.1", daemon.port))
            head = f"GET /v1/stream/{target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
            sock.sendall(head.encode())
        for sock in made:
            assert sock.recv(16).startswith(b"HTTP/1.1 200")
        yield
    finally:
        for sock in made:
            sock.close()


READING = {
    "gzip": (100, "text/plain", PAGE_BYTES, "s?offset=-1", "Accept-Encoding: gzip\r\n"),
    "gzip of JSON": (
        *(100, "application/json", PAGE_BYTES),
        *("s?offset=-1", "Accept-Encoding: gzip\r\n"),
    ),
    "framed": (
        *(40, "application/octet-stream", LARGE_BYTES),
        *("s?offset=-1", "Accept: application/vnd.durastream.messages\r\n"),
    ),
    "events, base64": (
        *(10, "application/octet-stream", LARGE_BYTES),
        *("s?offset=-1&live=sse", ""),
    ),
    "events, lines": (10, "text/plain", LARGE_BYTES, "s?offset=-1&live=sse", ""),
    "events, JSON": (10, "application/json", LARGE_BYTES, "s?offset=-1&live=sse", ""),
}


@pytest.mark.parametrize("kind", READING)
def test_readers_that_do_not_read_cost_a_few_pieces_each(daemon: Daemon, kind: str) -> None:
    count, content_type, size, target, fields = READING[kind]
    text = random.Random(1).randbytes(size // 4).hex(" ", 1).encode()[: size // 2].ljust(size, b"y")
    body = b'"%b"' % text[2:] if content_type == "application/json" else text
    resident = Resident(daemon.pid)
    at_first = resident.now()
    assert b" 201 " in ask(daemon, "PUT", "s", content_type)
    assert b" 204 " in ask(daemon, "POST", "s", content_type, body)
    with readers(daemon, 1, target, fields):  # what the first one costs is paid
        settled(resident)
    wait_until(lambda: resident.now() < at_first + size // 2, "the body stays in memory")
    before = resident.begin()
    with readers(daemon, count, target, fields):
        cost = settled(resident) - before
    told = f"{kind}: {cost / MIB:.1f} MiB for {count} readers of {size / MIB:.0f} MiB\n"
    sys.stdout.write(told)
    assert cost <= count * READER_BYTES_MAX, told
