"""What is done to a server under measurement; ``bench_http`` and ``bench_compare`` choose from it.

A workload gets a running server with no data and returns figures; which of them counts is said
beside it. The load comes from processes of its own, never from the one that reads the clock here.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.load import clients
from tools.load.clients import Figures, request
from tools.load.servers import Running

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY, JSON, TEXT = "application/octet-stream", "application/json", "text/plain"
MIB = 1024 * 1024
CATCH_UP_BYTES = 16 * MIB
GENERATOR_S_MAX = 400
PATH = "/v1/stream/bench/"

PLAIN = "x" * 256
ONE_VALUE = json.dumps({"n": 1, "text": "x" * 230})
TEN_VALUES = f"[{','.join([ONE_VALUE] * 10)}]"

Run = Callable[[Running, float], Figures]
Arguments = dict[str, str | float]


@dataclass(frozen=True)
class Workload:
    """What is done to a server, which figure counts, and what is wanted of its ratio to others."""

    title: str
    run: Run
    figure: str
    unit: str
    wanted: dict[str, str] = field(default_factory=dict)
    durable_only: bool = False  # a server without files has nothing to show here


# --- the generators ---


def wrk(port: int, kind: str, body: str, streams: int, seconds: float) -> Figures:
    """Append over 64 connections; by wrk, or by our own generator where it is missing."""
    found = shutil.which("wrk")
    if found is None:
        more: Arguments = {"path": PATH, "kind": kind, "body": body, "streams": streams}
        return generator("appends", port, seconds=seconds, **more)
    script = str(ROOT / "tools" / "load" / "append.lua")
    command = [found, "-t1", "-c64", f"-d{max(seconds, 1):.0f}s", "-s", script]
    before = _children_s()
    with tempfile.NamedTemporaryFile() as file:
        file.write(body.encode())
        file.flush()
        place = f"http://127.0.0.1:{port}"
        output = _run([*command, place, "--", PATH, kind, file.name, str(streams)])
    return {**_last_line(output), "generator_cpu_s": _children_s() - before}


def generator(name: str, port: int, **arguments: str | float) -> Figures:
    """Run one of our own generators in a process of its own."""
    text = json.dumps({"port": port, **arguments})
    return _last_line(_run([sys.executable, "-m", "tools.load.clients", name, text]))


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=GENERATOR_S_MAX
    )
    if done.returncode != 0:
        text = f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}"
        raise RuntimeError(text)
    return done.stdout


def _last_line(output: str) -> Figures:
    figures: Figures = json.loads(output.splitlines()[-1])
    if figures.get("errors"):
        text = f"the generator met errors: {figures}"
        raise RuntimeError(text)
    return figures


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measured(server: Running, work: Callable[[], Figures]) -> Figures:
    """Add to the figures of the work what it cost the server."""
    before = server.cpu_s()
    found = work()
    used = server.cpu_s() - before
    if "seconds" in found:
        found["per_s"] = found["requests"] / found["seconds"]
    found["cpu_s"] = used
    found["cpu_s_per_1000"] = used / max(found["requests"], 1) * 1000
    found["peak_mb"] = server.memory_mb()
    return found


# --- the workloads ---


def made(server: Running, count: int, kind: str) -> Figures:
    """Make the streams that a workload works on."""
    return generator("creates", server.port, path=PATH, kind=kind, count=count)


def appending(streams: int, kind: str = BINARY, body: str = PLAIN) -> Run:
    """Appends over 64 connections."""

    def run(server: Running, seconds: float) -> Figures:
        made(server, streams, kind)
        wrk(server.port, kind, body, streams, 1)  # Warm: the reference compiles as it goes.
        return measured(server, lambda: wrk(server.port, kind, body, streams, seconds))

    return run


def producing(streams: int) -> Run:
    """Appends of 64 idempotent producers."""

    def run(server: Running, seconds: float) -> Figures:
        made(server, streams, BINARY)

        def work(time_s: float) -> Figures:
            more: Arguments = {"path": PATH, "kind": BINARY, "body": PLAIN, "streams": streams}
            return generator("producers", server.port, seconds=time_s, **more)

        work(0.5)
        return measured(server, lambda: work(seconds))

    return run


def alone(server: Running, seconds: float) -> Figures:
    """One connection, one append at a time."""
    made(server, 1, BINARY)
    more: Arguments = {"path": PATH, "kind": BINARY, "body": PLAIN, "streams": 1, "connections": 1}

    def work(time_s: float) -> Figures:
        return generator("appends", server.port, seconds=time_s, **more)

    work(0.5)
    return measured(server, lambda: work(seconds))


def _to_each(server: Running, streams: int) -> Figures:
    more: Arguments = {"path": PATH, "kind": BINARY, "body": PLAIN, "streams": streams}
    return generator("each", server.port, **more)


def waking(streams: int) -> Run:
    """One append to each of many streams that nobody has used since the start."""

    def run(server: Running, _seconds: float) -> Figures:
        made(server, streams, BINARY)
        _to_each(server, streams)
        server.stop()
        server.start()
        return measured(server, lambda: _to_each(server, streams))

    return run


def creating(count: int) -> Run:
    """Streams made at once over 64 connections."""
    return lambda server, _: measured(server, lambda: made(server, count, BINARY))


def catching_up(kind: str, connections: int = 8) -> Run:
    """Read a stream of 16 MiB."""

    def run(server: Running, seconds: float) -> Figures:
        path = "/v1/stream/bench"
        message = json.dumps({"n": 1, "text": "x" * 1000}).encode()
        count = MIB // (len(message) + 1)
        body = b"[" + b",".join([message] * count) + b"]" if kind == JSON else b"x" * MIB
        clients.ask(server.port, request("PUT", path, kind))
        clients.ask(server.port, *([request("POST", path, kind, body)] * (CATCH_UP_BYTES // MIB)))
        size = (len(body) - 2) * (CATCH_UP_BYTES // MIB)

        def read(time_s: float) -> Figures:
            more: Arguments = {"path": path, "size": size, "connections": connections}
            return generator("catch_up", server.port, seconds=time_s, **more)

        read(0.5)
        return measured(server, lambda: read(seconds))

    return run


def stampeding(readers: int, events: int) -> Run:
    """Every reader at once, each of a stream of its own."""

    def run(server: Running, _seconds: float) -> Figures:
        made(server, readers, TEXT)
        bodies = [
            request("POST", f"{PATH}{place}", TEXT, b"x" * 1024 * events)
            for place in range(readers)
        ]
        clients.ask(server.port, *bodies)
        more: Arguments = {"path": PATH, "readers": readers, "size": 1024 * events}
        return measured(server, lambda: generator("stampede", server.port, **more))

    return run


def following(readers: int) -> Run:
    """SSE: one writer at 50 events/s."""

    def run(server: Running, seconds: float) -> Figures:
        path = "/v1/stream/bench"
        clients.ask(server.port, request("PUT", path, TEXT))

        def follow(time_s: float) -> Figures:
            found = generator("events", server.port, path=path, readers=readers, seconds=time_s)
            return {**found, "requests": found["sent"] * readers * found["share"]}

        follow(1.0)
        return measured(server, lambda: follow(seconds))

    return run


def polling(server: Running, seconds: float) -> Figures:
    """One long-poll reader that waits, one writer."""
    path = "/v1/stream/bench"
    clients.ask(server.port, request("PUT", path, TEXT))
    generator("long_poll", server.port, path=path, rounds=100)
    rounds = int(100 * seconds)
    return measured(server, lambda: generator("long_poll", server.port, path=path, rounds=rounds))


def mixing(server: Running, seconds: float) -> Figures:
    """1,000 appends/s over 50 streams, 100 SSE readers at 50/s and a catch-up reader, together."""
    path = "/v1/stream/followed"
    big = "/v1/stream/big"
    made(server, 50, BINARY)
    clients.ask(server.port, request("PUT", path, TEXT), request("PUT", big, BINARY))
    clients.ask(server.port, *([request("POST", big, BINARY, b"x" * MIB)] * 4))
    jobs: dict[str, dict[str, str | float]] = {
        "events": {"path": path, "readers": 100, "seconds": seconds},
        "catch_up": {"path": big, "size": 4 * MIB, "connections": 1, "seconds": seconds},
        "paced": {"path": PATH, "streams": 50, "rate": 1000, "seconds": seconds},
    }

    def work() -> Figures:
        found: dict[str, Figures] = {}
        threads = [
            threading.Thread(
                target=lambda name=name, job=job: found.update(
                    {name: generator(name, server.port, **job)}
                )
            )
            for name, job in jobs.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {
            **found["paced"],
            "delivery_p50_ms": found["events"]["p50_ms"],
            "delivery_p99_ms": found["events"]["p99_ms"],
            "catch_up_mb_per_s": found["catch_up"]["mb_per_s"],
        }

    return measured(server, work)


def sustaining(duration_s: float, rate: float, streams: int) -> Run:
    """A steady rate for long: does latency stay, does memory?"""

    def run(server: Running, _seconds: float) -> Figures:
        made(server, streams, BINARY)

        def steady(seconds: float) -> Figures:
            more: Arguments = {"path": PATH, "streams": streams, "rate": rate}
            return generator("paced", server.port, seconds=seconds, **more)

        steady(min(10.0, duration_s / 4))
        before = server.memory_mb("VmRSS")
        found = measured(server, lambda: steady(duration_s))
        return {**found, "drift_mb": server.memory_mb("VmRSS") - before}

    return run


def restarting(streams: int) -> Run:
    """Time from the start of the process to its first answer, after a crash with many streams.

    Each has one record; beside it stands what a start takes after a stop in good order.
    """

    def run(server: Running, _seconds: float) -> Figures:
        made(server, streams, BINARY)
        _to_each(server, streams)
        server.crash()
        took = server.start()
        clients.ask(server.port, request("GET", f"{PATH}0?offset=-1"))
        found = {"restart_s": took, "peak_mb": server.memory_mb(), "requests": 1.0}
        server.stop()
        return {**found, "clean_s": server.start()}

    return run
