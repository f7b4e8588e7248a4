"""Bounds that hold on a real disk and real sockets: what the event loop does, memory per reader.

Figures are in the assertion messages and in pytest's captured output.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trio

from durastreamd.storage.disk import RealDisk
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S, wait_until
from tools.load.subjects import in_process, read_until

pytestmark = [pytest.mark.system, pytest.mark.slow]

MIB = 1024 * 1024
OCTETS = {"Content-Type": "application/octet-stream"}

# --- what the event loop does itself ---

TURN_BYTES_MAX = MIB  # copied from the page cache in one turn: a fraction of a millisecond
APPENDS, APPEND_BYTES = 6, 32 * MIB


class LoopsDisk(RealDisk):
    """Counts what the thread of the event loop does with files by itself."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.loop = threading.get_ident()
        self.turn_bytes = 0
        self.waits: list[str] = []

    def _waits(self, what: str) -> None:
        if threading.get_ident() == self.loop:
            self.waits.append(what)

    def _read(self, size: int, *, wait: bool) -> None:
        if threading.get_ident() == self.loop:
            self.turn_bytes += size
            if wait:
                self.waits.append("read")

    def pread(self, handle: int, size: int, position: int, *, wait: bool = True) -> bytes:
        data = super().pread(handle, size, position, wait=wait)
        self._read(len(data), wait=wait)
        return data

    def pread_into(
        self, handle: int, buffer: memoryview, position: int, *, wait: bool = True
    ) -> int:
        taken = super().pread_into(handle, buffer, position, wait=wait)
        self._read(taken, wait=wait)
        return taken

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        self._waits("write")
        return super().pwrite(handle, data, position)

    def sync(self, handle: int) -> None:
        self._waits("sync")
        super().sync(handle)

    def sync_everything(self) -> None:
        self._waits("sync")
        super().sync_everything()


class Turns(trio.abc.Instrument):
    """Notes the most that one turn of a task read."""

    def __init__(self, disk: LoopsDisk) -> None:
        self._disk = disk
        self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._disk.turn_bytes = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self._disk.turn_bytes)


def append_much(port: int) -> None:
    """Append big bodies, again where the server has too much in memory."""
    url, body, left = f"http://127.0.0.1:{port}/v1/stream/s", os.urandom(APPEND_BYTES), APPENDS
    with httpx.Client(timeout=PATIENCE_S) as client:
        assert client.put(url).status_code == 201
        while left:
            reply = client.post(url, content=body, headers=OCTETS)
            assert reply.status_code in (204, 503), reply.text
            left -= reply.status_code == 204


def read_much(port: int) -> int:
    """Read all of it; return how many bytes came."""
    total, place = 0, "-1"
    with httpx.Client(timeout=PATIENCE_S) as client:
        while place:
            with client.stream(
                "GET", f"http://127.0.0.1:{port}/v1/stream/s?offset={place}"
            ) as reply:
                assert reply.status_code == 200
                total += sum(map(len, reply.iter_raw(MIB)))
                up_to_date = reply.headers.get("stream-up-to-date")
                place = "" if up_to_date else reply.headers["stream-next-offset"]
    return total


async def test_the_event_loop_leaves_to_threads_what_waits_and_reads_in_small_pieces(
    tmp_path: Path,
) -> None:
    """So nothing holds it for long; how long, ``tools/bench bounds`` says."""
    disk = LoopsDisk(str(tmp_path))
    turns = Turns(disk)
    async with in_process(disk) as (streams, port):
        disk.waits.clear()
        await trio.to_thread.run_sync(append_much, port)
        await streams.checkpoint()
        trio.lowlevel.add_instrument(turns)
        assert await trio.to_thread.run_sync(read_much, port) == APPENDS * APPEND_BYTES
        trio.lowlevel.remove_instrument(turns)
        waited = list(disk.waits)
    assert waited == []
    assert 0 < turns.most <= TURN_BYTES_MAX


# --- memory per reader ---

READERS = 1000
STALLED = 200
READER_BYTES_MAX = 40 * 1024
STALLED_BYTES_MAX = MIB
STALL_S_MAX = 2.0
ROUNDS = 5  # each a new crowd: without using memory again the last would take five times it


def rss(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except FileNotFoundError:
            pass  # released meanwhile
    return found


@contextmanager
def crowd(port: int, target: str, count: int, buffer_bytes: int) -> Iterator[list[socket.socket]]:
    """Open connections that ask for something; nobody reads yet."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            sock.settimeout(PATIENCE_S)
            sock.connect(("127.0.0.1", port))
            sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            made.append(sock)
        yield made
    finally:
        for sock in made:
            sock.close()


def curl(*arguments: str) -> None:
    subprocess.run(
        ["curl", "-sS", "-f", "-o", "/dev/null", *arguments], check=True, timeout=PATIENCE_S
    )


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    settings = {
        "http.write_s_max": STALL_S_MAX,
        "http.connections_per_address_max": 5000,
        "reads.sse_s": 600,
        "engine.hot_bytes_max": 4 * MIB,  # what is kept in memory anyway would blur the figures
    }
    with Daemon(tmp_path, settings=settings) as running:
        yield running


def test_thousand_event_readers_cost_little_memory_each(daemon: Daemon) -> None:
    curl("-X", "PUT", "-H", "Content-Type: text/plain", daemon.stream("s"))
    before = rss(daemon.pid)
    with crowd(daemon.port, "/v1/stream/s?offset=-1&live=sse", READERS, 4096) as readers:
        for reader in readers:
            read_until(reader, b'"upToDate":true')
        waiting = rss(daemon.pid)
        curl("-H", "Content-Type: text/plain", "--data-binary", "hello", daemon.stream("s"))
        for reader in readers:
            assert b"data:hello\n" in read_until(reader, b'"upToDate":true')
        after = rss(daemon.pid)
    each, each_after = (waiting - before) / READERS, (after - before) / READERS
    text = (
        f"{READERS} event readers: {each / 1024:.1f} KiB each waiting, "
        f"{each_after / 1024:.1f} KiB after an append"
    )
    sys.stdout.write(text + "\n")
    assert max(each, each_after) < READER_BYTES_MAX, text


def stall(daemon: Daemon) -> int:
    """Let readers stall until they are all hung up; return the peak of memory."""
    quiet = sockets(daemon.pid)
    peak = seen = 0

    def hung_up() -> bool:
        nonlocal peak, seen
        there = sockets(daemon.pid) - quiet
        peak, seen = max(peak, rss(daemon.pid)), max(seen, there)
        return seen > 0 >= there

    with crowd(daemon.port, "/v1/stream/s?offset=-1", STALLED, 4096):
        wait_until(hung_up, "stalled readers are not hung up")
    return peak


def test_stalled_readers_are_hung_up_and_their_memory_is_used_again(
    daemon: Daemon, tmp_path: Path
) -> None:
    body = tmp_path / "body"
    body.write_bytes(os.urandom(4 * MIB))
    kind = ("-H", "Content-Type: application/octet-stream")
    curl("-X", "PUT", *kind, daemon.stream("s"))
    for _ in range(16):
        curl("--retry", "20", "-X", "POST", *kind, "--data-binary", f"@{body}", daemon.stream("s"))
    curl(daemon.stream("s"))  # whatever reading costs once is paid
    before = rss(daemon.pid)
    peaks = [stall(daemon) - before for _ in range(ROUNDS)]
    each = ", ".join(f"{peak / STALLED / 1024:.0f}" for peak in peaks)
    text = f"{STALLED} stalled readers, the peak of each time: {each} KiB each"
    sys.stdout.write(text + "\n")
    assert max(peaks) < STALLED * STALLED_BYTES_MAX, text
    assert peaks[-1] < 2 * max(peaks[:2]) + 8 * MIB, f"memory is not used again: {text}"
