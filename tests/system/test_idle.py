"""What a server costs that keeps much and has nothing to do; durastreamd(7) states the figures."""

import os
import re
import socket
import time
from pathlib import Path

import pytest

from tests.support.daemon import Daemon

pytestmark = [pytest.mark.system, pytest.mark.slow]

STREAMS, READERS = 10_000, 1_000
SETTLE_S, MEASURED_S = 3.0, 4.0
# Several times what was measured: the machine may be slow and busy, a busy loop is far above it.
CPU_SHARE_MAX = 0.10
MEMORY_KIB_MAX = 160 * 1024


def memory_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_server_costs_next_to_nothing(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"streams.idle_s": 1}) as daemon:
        readers = [
            socket.create_connection(("127.0.0.1", daemon.port), timeout=20) for _ in range(READERS)
        ]
        for first in range(0, STREAMS, READERS):
            for number, sock in enumerate(readers, first):
                sock.sendall(f"PUT /v1/stream/s{number} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            for sock in readers:
                assert sock.recv(65536).startswith(b"HTTP/1.1 201 Created")
        for number, sock in enumerate(readers):
            path = f"/v1/stream/s{number}?offset=now&live=sse"
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        for sock in readers:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        time.sleep(SETTLE_S)
        before = cpu_s(daemon.pid)
        time.sleep(MEASURED_S)
        share = (cpu_s(daemon.pid) - before) / MEASURED_S
        memory = memory_kib(daemon.pid)
        for sock in readers:
            sock.close()
    print(f"{share:.1%} of a processor, {memory // 1024} MiB")  # noqa: T201
    assert share < CPU_SHARE_MAX
    assert memory < MEMORY_KIB_MAX
