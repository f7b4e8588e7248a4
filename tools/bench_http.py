"""The server over HTTP against the public reference server, under the same load on the same disk.

``tools/bench http [--quick] [--only WORKLOAD] [--dir DIR]``. Each workload runs against a fresh
process and directory of each server in turn, a few rounds of it; the median round counts. Ratios
within one run count; the machine may be busy. CPU is what the kernel booked on the server.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.load import clients, servers
from tools.load.clients import Figures, request
from tools.load.servers import ALL, FILE, MEMORY, OURS, Running

ROOT = Path(__file__).resolve().parent.parent
BINARY, JSON, TEXT = "application/octet-stream", "application/json", "text/plain"
MIB = 1024 * 1024
CATCH_UP_BYTES = 16 * MIB
GENERATOR_S_MAX = 120
LINE = "{:<34} {:>11} {:>11} {:>11}   {:<26} {:<26}"


@dataclass(frozen=True)
class Options:
    """How long, how often, where."""

    seconds: float
    rounds: int
    parent: str


@dataclass(frozen=True)
class Workload:
    """What is done to a server, which figure counts, and what is wanted of it."""

    title: str
    run: Callable[[Running, float], Figures]
    figure: str
    unit: str
    wanted: dict[str, str] = field(default_factory=dict)


# --- the generators ---


def wrk(port: int, path: str, kind: str, streams: int, seconds: float) -> Figures:
    """Append 256 bytes over 64 connections; by wrk, or by our own generator where it is missing."""
    found = shutil.which("wrk")
    if found is None:
        return generator(
            "appends", port, path=path, kind=kind, size=256, streams=streams, seconds=seconds
        )
    script = str(ROOT / "tools" / "load" / "append.lua")
    command = [found, "-t1", "-c64", f"-d{seconds:.0f}s", "-s", script, f"http://127.0.0.1:{port}"]
    before = _children_s()
    output = _run([*command, "--", path, kind, "256", str(streams)])
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


# --- the workloads ---


def appending(streams: int) -> Callable[[Running, float], Figures]:
    """Durable appends of 256 bytes over 64 connections."""

    def run(server: Running, seconds: float) -> Figures:
        path = "/v1/stream/bench/"
        puts = [request("PUT", f"{path}{number}", BINARY) for number in range(streams)]
        clients.ask(server.port, *puts)
        wrk(server.port, path, BINARY, streams, 1)  # Warm: the reference compiles as it goes.
        return measured(server, lambda: wrk(server.port, path, BINARY, streams, seconds))

    return run


def catching_up(kind: str) -> Callable[[Running, float], Figures]:
    """Read a stream of 16 MiB over 8 connections."""

    def run(server: Running, seconds: float) -> Figures:
        path = "/v1/stream/bench"
        message = json.dumps({"n": 1, "text": "x" * 1000}).encode()
        count = MIB // (len(message) + 1)
        body = b"[" + b",".join([message] * count) + b"]" if kind == JSON else b"x" * MIB
        clients.ask(server.port, request("PUT", path, kind))
        clients.ask(server.port, *([request("POST", path, kind, body)] * (CATCH_UP_BYTES // MIB)))
        size = (len(body) - 2) * (CATCH_UP_BYTES // MIB)

        def read(time_s: float) -> Figures:
            return generator("catch_up", server.port, path=path, size=size, seconds=time_s)

        read(0.5)
        return measured(server, lambda: read(seconds))

    return run


def following(readers: int) -> Callable[[Running, float], Figures]:
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


def measured(server: Running, work: Callable[[], Figures]) -> Figures:
    """Add to the figures of the work what it cost the server."""
    before = server.cpu_s()
    found = work()
    used = server.cpu_s() - before
    if "seconds" in found:
        found["per_s"] = found["requests"] / found["seconds"]
    found["cpu_s_per_1000"] = used / max(found["requests"], 1) * 1000
    found["peak_mb"] = server.peak_mb()
    return found


LESS = {MEMORY: "<= 0.3"}
WORKLOADS = {
    "append-1": Workload(
        "append 256 B, 64 conn, 1 stream",
        appending(1),
        "per_s",
        "/s",
        {MEMORY: ">= 0.8", FILE: ">= 20"},
    ),
    "append-100": Workload(
        "append 256 B, 64 conn, 100 streams",
        appending(100),
        "per_s",
        "/s",
        {MEMORY: ">= 0.6", FILE: ">= 6"},
    ),
    "catch-up-binary": Workload(
        "catch-up 16 MiB binary, 8 conn",
        catching_up(BINARY),
        "mb_per_s",
        "MB/s",
        {MEMORY: ">= 1.5"},
    ),
    "catch-up-json": Workload(
        "catch-up 16 MiB JSON, 8 conn", catching_up(JSON), "mb_per_s", "MB/s", {MEMORY: ">= 1.5"}
    ),
    "sse-1": Workload("SSE p50, 50/s, 1 reader", following(1), "p50_ms", "ms"),
    "sse-100": Workload("SSE p50, 50/s, 100 readers", following(100), "p50_ms", "ms"),
    "sse-1000": Workload("SSE p50, 50/s, 1,000 readers", following(1000), "p50_ms", "ms", LESS),
    "long-poll": Workload("long-poll round trip p50", polling, "p50_ms", "ms"),
}


# --- the tables ---


def compare(workload: Workload, options: Options) -> dict[str, Figures]:
    """Run a workload against each server in turn; return each one's median round."""
    rounds: dict[str, list[Figures]] = {name: [] for name in ALL}
    for _ in range(options.rounds):
        for name in ALL:
            with servers.started(name, options.parent) as server:
                rounds[name].append(workload.run(server, options.seconds))
    return {
        name: sorted(found, key=lambda figures: figures[workload.figure])[len(found) // 2]
        for name, found in rounds.items()
    }


def report(workload: Workload, found: dict[str, Figures]) -> None:
    """Print the line of a workload."""
    figures = [_figure(found[name][workload.figure], workload.unit) for name in ALL]
    ratios = [_ratio(workload, found, name) for name in (MEMORY, FILE)]
    print(LINE.format(workload.title, *figures, *ratios), flush=True)


def report_costs(workload: Workload, found: dict[str, Figures]) -> None:
    """Print what the same runs cost."""
    for label, key, unit in (
        ("  p50", "p50_ms", "ms"),
        ("  p99", "p99_ms", "ms"),
        ("  server CPU s per 1,000", "cpu_s_per_1000", ""),
        ("  server peak RSS", "peak_mb", "MB"),
    ):
        if key in found[OURS] and key != workload.figure:
            figures = [_figure(found[name][key], unit) for name in ALL]
            ratios = [f"{found[OURS][key] / (found[name][key] or 1):.2f}" for name in ALL[1:]]
            print(LINE.format(label, *figures, *ratios), flush=True)


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _ratio(workload: Workload, found: dict[str, Figures], other: str) -> str:
    ratio = found[OURS][workload.figure] / found[other][workload.figure]
    wanted = workload.wanted.get(other)
    if wanted is None:
        return f"{ratio:.2f}"
    sign, _, bound = wanted.partition(" ")
    reached = ratio >= float(bound) if sign == ">=" else ratio <= float(bound)
    return f"{ratio:.2f} (wanted {wanted}: {'yes' if reached else 'NO'})"


def calibrate(options: Options) -> None:
    """Say what the generator can do, so that a reader can judge the rest."""
    rate, own = _trivial("constant", options)
    kind = "wrk" if shutil.which("wrk") else "tools/load/clients.py (no wrk here)"
    print(f"generator of appends: {kind}; {rate:,.0f} requests/s against a constant answer,")
    print(f"  {own / rate:.0%} of one core at that: good for about {rate * rate / own:,.0f}/s\n")


def report_lanes(options: Options) -> None:
    """Print what the HTTP layer alone does, with the fast lane and without."""
    lane = statistics.median(_trivial("lane", options)[0] for _ in range(options.rounds))
    h11 = statistics.median(_trivial("h11", options)[0] for _ in range(options.rounds))
    print(f"\nHTTP layer alone, POST 256 B -> 204, 64 connections (ours): fast lane {lane:,.0f}/s,")
    print(f"  every head through h11 {h11:,.0f}/s: {lane / h11:.1f}x")


def _trivial(kind: str, options: Options) -> tuple[float, float]:
    """Return requests per second, and requests times the generator's share of a core."""
    command = [sys.executable, "-m", "tools.load.trivial", kind]
    with servers.child(kind, command, ROOT) as server:
        found = wrk(server.port, "/v1/stream/bench/", BINARY, 1, min(options.seconds, 3.0))
    rate = found["requests"] / found["seconds"]
    return rate, rate * min(found["generator_cpu_s"] / found["seconds"], 1.0)


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="tools/bench http", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of each")
    parser.add_argument("--only", choices=[*WORKLOADS, "lanes"], help="one workload")
    parser.add_argument("--dir", default=".", help="where the data directories are made")
    chosen = parser.parse_args()
    options = Options(3.0 if chosen.quick else 6.0, 1 if chosen.quick else 3, chosen.dir)
    calibrate(options)
    print(LINE.format("workload", "ours", "ref memory", "ref file", "ours/memory", "ours/file"))
    for name, workload in WORKLOADS.items():
        if chosen.only in (None, name):
            found = compare(workload, options)
            report(workload, found)
            report_costs(workload, found)
    if chosen.only in (None, "lanes"):
        report_lanes(options)


if __name__ == "__main__":
    main()
