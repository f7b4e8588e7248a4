"""A page of a large bucket costs what one of a small bucket does; a bootstrap needs no memory."""

import re
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
import pytest

from durastreamd.model.namespace import Namespace
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S
from tools.load.subjects import bucket_of

pytestmark = [pytest.mark.slow]

MIB = 1024 * 1024
STREAM_MIB = 512
GROWTH_MIB_MAX = 96
PAGE = 1000


def show(text: str) -> None:
    """Print a figure: seen with -s, and in the report of a failed test."""
    sys.stdout.write(f"\n{text}\n")


def calls_of_first_page(namespace: Namespace) -> int:
    """Return how many functions the first page calls, asked for as the service does."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    page = []
    sys.setprofile(count)
    try:
        for stream in namespace.listing("agents/", "", len(namespace.by_key)):
            page.append(stream)
            if len(page) == PAGE:
                break
    finally:
        sys.setprofile(None)
    assert len(page) == PAGE
    return calls


def test_the_first_page_of_a_bucket_costs_the_same_however_many_streams_it_has() -> None:
    small, large = calls_of_first_page(bucket_of(PAGE)), calls_of_first_page(bucket_of(100 * PAGE))
    show(f"first page: {small} calls of {PAGE}, {large} of {100 * PAGE} streams")
    assert small > PAGE
    assert large < 1.1 * small


def rss_mib(pid: int, key: str = "VmRSS") -> float:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) / 1024


class Watch:
    """The most memory that a process had while this ran."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.most = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, rss_mib(self.pid))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def discard(url: str, path: str) -> int:
    """GET and forget; return how many bytes came."""
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    received = 0
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as sock:
        sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        first = sock.recv(65536)
        assert first.startswith(b"HTTP/1.1 200 "), first[:200]
        received = len(first)
        while size := len(sock.recv(MIB)):
            received += size
    return received


@pytest.mark.system
@pytest.mark.parametrize("message_mib", [0.25, 8])
def test_a_bootstrap_of_a_long_stream_is_not_held_in_memory(
    tmp_path: Path, message_mib: float
) -> None:
    octets = {"Content-Type": "application/octet-stream"}
    body = bytes(range(256)) * int(message_mib * MIB / 256)
    with Daemon(tmp_path) as daemon, httpx.Client(timeout=PATIENCE_S) as client:
        url = daemon.stream("big")
        assert client.put(url, headers=octets).status_code == 201
        for _ in range(int(STREAM_MIB / message_mib)):
            assert client.post(url, headers=octets, content=body).status_code == 204
        daemon.restart()
        discard(daemon.url, "/v1/stream/big?offset=now")
        before = rss_mib(daemon.pid)
        with Watch(daemon.pid) as watch:
            received = discard(daemon.url, "/v1/stream/big/bootstrap")
        growth = watch.most - before
    shutil.rmtree(tmp_path / "data")  # pytest would keep a gigabyte
    show(
        f"bootstrap of {received / MIB:.0f} MiB in messages of {message_mib} MiB: "
        f"memory {before:.0f} + {growth:.1f} MiB"
    )
    assert received > STREAM_MIB * MIB
    assert growth < GROWTH_MIB_MAX
