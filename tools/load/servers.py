"""The servers under load, one at a time, and what they cost by the kernel's own books."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools import node
from tools.load import peers

OURS, MEMORY, FILE = "durastreamd", "reference, memory", "reference, file"
ELECTRIC, AXUM, CADDY = "Electric (Rust)", "axum (Rust)", "Caddy (Go)"
START_S_MAX = 120.0
STOP_S_MAX = 20
ROOT = Path(__file__).resolve().parent.parent.parent
_TICKS = os.sysconf("SC_CLK_TCK")

# The script of the tests cannot be given a data directory; this one takes it from its argument.
REFERENCE = """
import { DurableStreamTestServer } from "@durable-streams/server"
const options = { host: "127.0.0.1", ...JSON.parse(process.argv[1]) }
const server = new DurableStreamTestServer(options)
await server.start()
process.on("SIGTERM", () => process.exit(0))
"""


@dataclass(frozen=True)
class Launch:
    """How a server is started: what to run, where, with what in its environment."""

    command: list[str]
    directory: Path = ROOT
    environment: dict[str, str] | None = None


class Running:
    """A server that answers."""

    def __init__(self, name: str, launch: Launch, port: int, home: Path) -> None:
        self.name = name
        self.port = port
        self._launch = launch
        self._complaints = home / "complaints"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the process; return how long it took until it took a connection."""
        launch = self._launch
        begin = time.perf_counter()
        with self._complaints.open("ab") as complaints:
            self._process = subprocess.Popen(
                launch.command,
                cwd=launch.directory,
                env={**os.environ, **(launch.environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
            )
        while time.perf_counter() < begin + START_S_MAX:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.005)
            else:
                return time.perf_counter() - begin
        self.stop()
        text = f"{self.name} did not start: {self._complaints.read_bytes()[-2000:].decode()}"
        raise RuntimeError(text)

    def crash(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it, in good manners if it has any."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _proc(self, name: str) -> str:
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/{name}").read_text()

    def cpu_s(self) -> float:
        """Return the processor time used so far, by all threads, in user space and kernel."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mb(self, which: str = "VmHWM") -> float:
        """Return the largest resident size so far, or with VmRSS the present one."""
        for line in self._proc("status").splitlines():
            if line.startswith(f"{which}:"):
                return int(line.split()[1]) / 1024
        return 0.0


def _ours(port: int, data: str) -> Launch:
    # All load comes from one address; the default allows it 1,000 connections.
    most = "--set=http.connections_per_address_max=4000"
    command = [sys.executable, "-m", "durastreamd", "--listen", f"127.0.0.1:{port}"]
    return Launch([*command, "--data-dir", data, "--init", most])


def _reference(port: int, options: dict[str, str]) -> Launch:
    prepared = node.prepare()
    chosen = json.dumps({"port": port, **options})
    command = [str(prepared.interpreter), "--input-type=module", "-e", REFERENCE, chosen]
    return Launch(command, prepared.home)


def _electric(port: int, data: str) -> Launch:
    where = ["--host", "127.0.0.1", "--port", str(port), "--data-dir", data]
    return Launch([str(peers.electric()), *where, "--durability", "wal"])


def _axum(port: int, data: str) -> Launch:
    settings = {
        "DS_SERVER__BIND_ADDRESS": f"127.0.0.1:{port}",
        "DS_STORAGE__MODE": "file-durable",
        "DS_STORAGE__DATA_DIR": data,
        "DS_LIMITS__MAX_MEMORY_BYTES": str(8 * 2**30),
        "DS_LIMITS__MAX_STREAM_BYTES": str(4 * 2**30),
        "RUST_LOG": "error",
    }
    return Launch([str(peers.axum())], Path(data), settings)


def _caddy(port: int, data: str) -> Launch:
    file = Path(data) / "Caddyfile"
    file.write_text(
        f"{{\n admin off\n}}\nhttp://127.0.0.1:{port} {{\n"
        f" route /v1/stream/* {{\n  durable_streams {{\n   data_dir {data}\n  }}\n }}\n}}\n"
    )
    return Launch([str(peers.caddy()), "run", "--config", str(file), "--adapter", "caddyfile"])


Start = Callable[[int, str], Launch]
# Each with the durability it is run with.
SERVERS: dict[str, tuple[str, Start]] = {
    OURS: ("fdatasync before every answer, batched", _ours),
    MEMORY: ("none: memory only", lambda port, _: _reference(port, {})),
    FILE: ("fsync per append", lambda port, data: _reference(port, {"dataDir": data})),
    ELECTRIC: ("--durability wal: fdatasync, batched", _electric),
    AXUM: ("DS_STORAGE__MODE=file-durable: fsync per append", _axum),
    CADDY: ("its default: bbolt and files", _caddy),
}


@contextmanager
def started(name: str, parent: str) -> Iterator[Running]:
    """Run the named server on a fresh directory under ``parent``."""
    with tempfile.TemporaryDirectory(prefix="durastreamd-bench-", dir=parent) as home:
        data = Path(home).resolve() / "data"
        data.mkdir()
        port = free_port()
        running = Running(name, SERVERS[name][1](port, str(data)), port, Path(home).resolve())
        running.start()
        try:
            yield running
        finally:
            running.stop()


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextmanager
def child(name: str, command: list[str], directory: Path) -> Iterator[Running]:
    """Run a command that takes the port to listen on as its last argument."""
    with tempfile.TemporaryDirectory(prefix="durastreamd-bench-") as home:
        port = free_port()
        running = Running(name, Launch([*command, str(port)], directory), port, Path(home))
        running.start()
        try:
            yield running
        finally:
            running.stop()
