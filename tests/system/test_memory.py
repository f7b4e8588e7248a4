"""What the worst client may cost in memory: the resident size of a real server, at its peak."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.resident import Resident

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1024 * 1024
BODY_BYTES = 64 * MIB
BODY_TIMES_MAX = 4  # what a JSON body may cost, itself included


def connect(daemon: Daemon) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", daemon.port))
    sock.settimeout(120)
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
