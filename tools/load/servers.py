"""The servers under load, one at a time, and what they cost by the kernel's own books."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools import node

OURS, MEMORY, FILE = "durastreamd", "reference, memory", "reference, file"
ALL = (OURS, MEMORY, FILE)
STOP_S_MAX = 20
_TICKS = os.sysconf("SC_CLK_TCK")

# The script of the tests cannot be given a data directory; this one takes it from its argument.
REFERENCE = """
import { DurableStreamTestServer } from "@durable-streams/server"
const options = { port: 0, host: "127.0.0.1", ...JSON.parse(process.argv[1]) }
const server = new DurableStreamTestServer(options)
console.log(`reference listening on ${await server.start()}`)
process.on("SIGTERM", () => process.exit(0))
"""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    name: str
    pid: int
    host: str
    port: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    def cpu_s(self) -> float:
        """Return the processor time used so far, by all threads, in user space and kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak_mb(self) -> float:
        """Return the largest resident size so far."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0


@contextmanager
def started(name: str, parent: str) -> Iterator[Running]:
    """Run the named server on a fresh directory under ``parent``."""
    with tempfile.TemporaryDirectory(prefix="durastreamd-bench-", dir=parent) as home:
        data = str(Path(home).resolve() / "data")
        if name == OURS:
            # All load comes from one address; the default allows it 1,000 connections.
            most = "--set=http.connections_per_address_max=4000"
            command = [sys.executable, "-m", "durastreamd", "--listen", "127.0.0.1:0"]
            with child(name, [*command, "--data-dir", data, most], None) as running:
                yield running
            return
        Path(data).mkdir()
        prepared = node.prepare()
        options = json.dumps({"dataDir": data} if name == FILE else {})
        command = [str(prepared.interpreter), "--input-type=module", "-e", REFERENCE, options]
        with child(name, command, prepared.home) as running:
            yield running


@contextmanager
def child(name: str, command: list[str], directory: Path | None) -> Iterator[Running]:
    """Run a command that says its URL on stdout, at the end of a line."""
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=complaints, text=True
        )
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if "://" in line), "")
            if not line:
                complaints.seek(0)
                text = f"{name} did not start: {complaints.read().decode()[-2000:]}"
                raise RuntimeError(text)
            host, _, port = line.strip().rpartition("://")[2].rstrip("/").partition(":")
            yield Running(name, process.pid, host, int(port))
        finally:
            process.terminate()
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
