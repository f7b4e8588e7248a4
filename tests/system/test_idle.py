"""What a server costs that keeps much and has nothing to do; durastreamd(7) states the figures.

Its share of a processor is measured by ``tools/bench bounds``; here its turns are counted, on the
mock clock, and its memory is looked at in a real process.
"""

import re
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from durastreamd.service.limits import Limits, ReadLimits
from durastreamd.streams.limits import StreamLimits
from tests.service.harness import serving
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

STREAMS, READERS = 10_000, 1_000
MEMORY_KIB_MAX = 160 * 1024  # several times what was measured


class Turns(trio.abc.Instrument):
    """Counts how often a task is given its turn."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def turns_of_an_hour(streams: int, readers: int) -> float:
    """Return the turns per second of a server that nobody uses."""
    limits = Limits(reads=ReadLimits(sse_s=10_000))
    turns = Turns()
    async with serving(limits, streams=StreamLimits(idle_s=1)) as site:
        for number in range(streams):
            await site.make(f"s{number}")
        for number in range(readers):
            connection = await site.open(f"s{number}?offset=now&live=sse")
            assert (await connection.head()).status == 200
        await trio.sleep(60)
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(600)
        trio.lowlevel.remove_instrument(turns)
    return turns.count / 600


async def test_an_idle_server_takes_few_turns_however_many_streams_it_has(
    autojump_clock: MockClock,
) -> None:
    few, many = await turns_of_an_hour(10, 0), await turns_of_an_hour(1000, 0)
    assert many < few + 1
    assert many < 25, "some timers of a second, no more"
    assert await turns_of_an_hour(100, 100) < many + 100, "less than one a second for each reader"


def memory_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.system
@pytest.mark.slow
def test_an_idle_server_needs_little_memory(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"streams.idle_s": 1}) as daemon, ExitStack() as opened:
        place = ("127.0.0.1", daemon.port)
        readers = [
            opened.enter_context(socket.create_connection(place, timeout=PATIENCE_S))
            for _ in range(READERS)
        ]
        for first in range(0, STREAMS, READERS):
            for number, sock in enumerate(readers, first):
                sock.sendall(
                    f"PUT /v1/stream/s{number} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                )
            for sock in readers:
                assert sock.recv(65536).startswith(b"HTTP/1.1 201 Created")
        for number, sock in enumerate(readers):
            path = f"/v1/stream/s{number}?offset=now&live=sse"
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for sock in readers:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        memory = memory_kib(daemon.pid)
    assert memory < MEMORY_KIB_MAX, f"{memory // 1024} MiB"
