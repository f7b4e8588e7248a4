"""The server over HTTP against the public reference server, under the same load on the same disk.

``tools/bench http [--quick] [--only WORKLOAD] [--dir DIR]``. Each workload runs against a fresh
process and directory of each server in turn, a few rounds of it; the median round counts. Ratios
within one run count; the machine may be busy. CPU is what the kernel booked on the server.
"""

import argparse
import shutil
import statistics
import sys
from dataclasses import dataclass

from tools.load import servers
from tools.load.clients import Figures
from tools.load.servers import FILE, MEMORY, OURS, ROOT
from tools.load.workloads import (
    BINARY,
    JSON,
    PLAIN,
    Workload,
    appending,
    catching_up,
    following,
    polling,
    wrk,
)

ALL = (OURS, MEMORY, FILE)
LINE = "{:<34} {:>11} {:>11} {:>11}   {:<26} {:<26}"


@dataclass(frozen=True)
class Options:
    """How long, how often, where."""

    seconds: float
    rounds: int
    parent: str


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
        found = wrk(server.port, BINARY, PLAIN, 1, min(options.seconds, 3.0))
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
