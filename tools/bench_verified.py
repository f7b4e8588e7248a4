"""What verifying costs a catch-up: the server beside itself with verification turned off.

``tools/bench verified [--quick] [--dir DIR]``. Streams at rest are read by two servers on the same
directory, in turn, a few rounds of it; the median counts, and the ratio within one run. "First" is
one read right after the start, whose proofs are still to be made; "steady" is eight connections
that read the stream again and again. Bytes are also told per second of the server's processor
time: that is what bounds its throughput, and it can be compared while the machine is busy.
"""

import argparse
import http.client
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.load import clients
from tools.load.clients import request
from tools.load.servers import Launch, Running, free_port
from tools.load.workloads import BINARY, JSON, MIB, Arguments, generator

MODULES = {"verified": "durastreamd", "not verified": "tools.load.unverified"}
WANTED = 0.9
STREAM_BYTES = {"large": 32 * MIB, "small": 7 * MIB}  # a page of JSON has 8 MiB
PATH = "/v1/stream/bench-"
LINE = "{:<44} {:>12} {:>14} {:>8}  {}"
LARGE, SMALL = b"x" * MIB, b'{"n":1,"text":"%s"}' % (b"x" * 4000)
# Records of a megabyte, and of four kilobytes: the latter have more sums to compare.
STREAMS = {"large": (BINARY, LARGE, LARGE), "small": (JSON, SMALL, SMALL + b",\n")}


@contextmanager
def serving(kind: str, data: Path) -> Iterator[Running]:
    """Run a server of a kind on a directory that stays."""
    port = free_port()
    command = [sys.executable, "-m", MODULES[kind], "--listen", f"127.0.0.1:{port}", "--init"]
    running = Running(kind, Launch([*command, "--data-dir", str(data)]), port, data.parent)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def fill(data: Path) -> None:
    """Write the streams; stopping brings them into segments."""
    with serving("verified", data) as server:
        for name, (kind, body, stored) in STREAMS.items():
            clients.ask(server.port, request("PUT", PATH + name, kind))
            append = request("POST", PATH + name, kind, body)
            for _ in range(STREAM_BYTES[name] // MIB):
                clients.ask(server.port, *([append] * (MIB // len(stored))))


def read_once(port: int, path: str) -> float:
    """Return the speed of one read, in MB/s."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    begin = time.perf_counter()
    connection.request("GET", f"{path}?offset=-1")
    size = len(connection.getresponse().read())
    taken = time.perf_counter() - begin
    connection.close()
    return size / taken / 1e6


def size_of(name: str) -> int:
    """Return how many bytes a stream's page has at least."""
    stored = STREAMS[name][2]
    return MIB // len(stored) * len(stored) * (STREAM_BYTES[name] // MIB) - len(stored)


def measure(data: Path, rounds: int, seconds: float) -> dict[tuple[str, str], dict[str, float]]:
    """Return the median of each figure, by kind of server."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for _ in range(rounds):
        for kind in MODULES:
            with serving(kind, data) as server:
                for name in STREAMS:
                    path = PATH + name
                    first = found.setdefault((name, "first"), {}).setdefault(kind, [])
                    first.append(read_once(server.port, path))
                    more: Arguments = {"path": path, "size": size_of(name), "connections": 8}
                    before = server.cpu_s()
                    figures = generator("catch_up", server.port, seconds=seconds, **more)
                    used = max(server.cpu_s() - before, 0.01)
                    steady = found.setdefault((name, "steady"), {}).setdefault(kind, [])
                    steady.append(figures["mb_per_s"])
                    per_cpu = found.setdefault((name, "steady, per CPU s"), {}).setdefault(kind, [])
                    per_cpu.append(figures["mb_per_s"] * seconds / used)
    return {
        place: {kind: statistics.median(values) for kind, values in kinds.items()}
        for place, kinds in found.items()
    }


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="tools/bench verified", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--dir", default=".", help="where the data directory is made")
    chosen = parser.parse_args()
    print(LINE.format("catch-up, MB/s", *MODULES, "ratio", ""))
    with tempfile.TemporaryDirectory(prefix="durastreamd-bench-", dir=chosen.dir) as home:
        data = Path(home).resolve() / "data"
        fill(data)
        rounds, seconds = (3, 1.0) if chosen.quick else (7, 3.0)
        for (name, when), kinds in measure(data, rounds, seconds).items():
            figures = [kinds[kind] for kind in MODULES]
            ratio = figures[0] / figures[1]
            judged = "yes" if ratio >= WANTED else "NO"
            wanted = f"(wanted >= {WANTED}: {judged})" if "CPU" in when else ""
            title = f"{name} records, {when}"
            shown = [f"{figure:,.0f}" for figure in figures]
            print(LINE.format(title, *shown, f"{ratio:.2f}", wanted), flush=True)


if __name__ == "__main__":
    main()
