"""The server beside every peer that can be had on this machine, under the same load.

``tools/bench compare [--quick] [--only WORKLOAD]... [--servers NAME...] [--out DIR]``. The servers
run one at a time, each on a fresh directory of the same disk, and are loaded by the same generator;
each workload meets all of them within minutes, and what counts is the ratio of ours to theirs. The
table is printed as it grows; ``results.json`` and the plots go to the output directory.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools.load import peers, servers
from tools.load.clients import Figures
from tools.load.plots import draw
from tools.load.servers import AXUM, CADDY, ELECTRIC, FILE, MEMORY, OURS, ROOT, SERVERS
from tools.load.workloads import (
    BINARY,
    JSON,
    ONE_VALUE,
    PLAIN,
    TEN_VALUES,
    Workload,
    alone,
    appending,
    catching_up,
    creating,
    following,
    mixing,
    polling,
    producing,
    restarting,
    stampeding,
    sustaining,
    waking,
    wrk,
)

ANY = "the fastest peer"
FASTER = {MEMORY: ">= 1.5", ANY: ">= 0.7"}
COSTS = (
    ("p50_ms", "ms", "p50"),
    ("p99_ms", "ms", "p99"),
    ("p999_ms", "ms", "p99.9"),
    ("delivery_p50_ms", "ms", "SSE delivery p50"),
    ("delivery_p99_ms", "ms", "SSE delivery p99"),
    ("cpu_s", "s", "server CPU"),
    ("peak_mb", "MB", "server memory, peak"),
    ("drift_mb", "MB", "server memory, drift"),
    ("clean_s", "s", "after a stop in good order"),
)


def workloads(*, quick: bool) -> dict[str, Workload]:
    """Return everything that is measured, in the order of the table."""
    many = 10_000 if quick else 100_000
    return {**_writes(), **_reads(), **_whole(15 if quick else 60), **_many(many)}


def _writes() -> dict[str, Workload]:
    return {
        "append-1": Workload(
            "append, 1 stream", appending(1), "per_s", "/s", {MEMORY: ">= 1.1", FILE: ">= 30"}
        ),
        "append-100": Workload(
            "append, 100 streams", appending(100), "per_s", "/s", {MEMORY: ">= 1.0", FILE: ">= 8"}
        ),
        "append-1k": Workload(
            "append, 1,000 streams", appending(1000), "per_s", "/s", {MEMORY: ">= 1.0"}
        ),
        "append-10k": Workload("append, 10,000 streams", appending(10_000), "per_s", "/s"),
        "producer-1": Workload("append, producers, 1 stream", producing(1), "per_s", "/s"),
        "producer-100": Workload("append, producers, 100 streams", producing(100), "per_s", "/s"),
        "json-1": Workload(
            "append, JSON value, 100 streams", appending(100, JSON, ONE_VALUE), "per_s", "/s"
        ),
        "json-10": Workload(
            "append, JSON array of 10, 100 streams", appending(100, JSON, TEN_VALUES), "per_s", "/s"
        ),
        "alone": Workload("append, one at a time: p50", alone, "p50_ms", "ms"),
        "create": Workload("create 1,000 streams", creating(1000), "per_s", "/s", {FILE: ">= 5"}),
    }


def _reads() -> dict[str, Workload]:
    return {
        **{
            f"catch-up-{kind}-{readers}": Workload(
                f"catch-up 16 MiB {kind}, {readers} readers",
                catching_up(BINARY if kind == "binary" else JSON, readers),
                "mb_per_s",
                "MB/s",
                FASTER if readers == 8 else {},
            )
            for kind in ("binary", "JSON")
            for readers in (8, 32, 128)
        },
        "stampede": Workload(
            "stampede: 500 readers, 200 KiB each", stampeding(500, 200), "mb_per_s", "MB/s"
        ),
        **{
            f"sse-{readers}": Workload(
                f"SSE p50, {readers:,} readers at 50/s",
                following(readers),
                "p50_ms",
                "ms",
                {MEMORY: "<= 0.2", ANY: "<= 2"} if readers == 1000 else {},
            )
            for readers in (1, 10, 100, 1000, 2000)
        },
        "long-poll": Workload("long-poll round trip p50", polling, "p50_ms", "ms"),
    }


def _whole(sustained_s: int) -> dict[str, Workload]:
    return {
        "mixed": Workload("mixed: append p50", mixing, "p50_ms", "ms"),
        "sustained": Workload(
            f"sustained {sustained_s} s, 2,000/s: p99",
            sustaining(sustained_s, 2000, 100),
            "p99_ms",
            "ms",
        ),
        "restart": Workload(
            "restart after a crash, 10,000 streams",
            restarting(10_000),
            "restart_s",
            "s",
            durable_only=True,
        ),
    }


def _many(streams: int) -> dict[str, Workload]:
    return {
        "restart-100k": Workload(
            f"restart after a crash, {streams:,} streams",
            restarting(streams),
            "restart_s",
            "s",
            durable_only=True,
        ),
        "at-rest": Workload(
            f"append to {streams:,} streams at rest",
            waking(streams),
            "per_s",
            "/s",
            durable_only=True,
        ),
    }


class Table:
    """Prints a line per workload and remembers everything."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.found: dict[str, dict[str, Figures]] = {}
        self._line = "{:<38}" + " {:>14}" * len(names) + "   {}"
        print(self._line.format("workload", *[name[:14] for name in names], "ours / theirs"))

    def add(self, key: str, workload: Workload, found: dict[str, Figures]) -> None:
        """Print the figures of a workload, and below them what they cost."""
        self.found[key] = found
        figures = [_shown(found.get(name), workload.figure, workload.unit) for name in self.names]
        print(self._line.format(workload.title, *figures, "  ".join(ratios(workload, found))))
        for cost, unit, label in COSTS:
            if cost != workload.figure and cost in found[OURS]:
                figures = [_shown(found.get(name), cost, unit) for name in self.names]
                print(self._line.format(f"  {label}", *figures, "").rstrip())
        sys.stdout.flush()


def _shown(figures: Figures | None, key: str, unit: str) -> str:
    if figures is None or key not in figures:
        return "-"
    value = figures[key]
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def ratios(workload: Workload, found: dict[str, Figures]) -> list[str]:
    """Return ours against each other one, and whether what was wanted of it came true."""
    ours = found[OURS][workload.figure]
    more_is_better = workload.unit not in ("ms", "s")
    # One that finished nothing within the time has a zero, and no ratio.
    others = {
        name: figures[workload.figure]
        for name, figures in found.items()
        if name != OURS and figures[workload.figure]
    }
    built = {name: value for name, value in others.items() if name not in (MEMORY, FILE)}
    shown = []
    for name, value in others.items():
        shown.append(f"{_short(name)} {ours / value:.2f}{_verdict(workload, name, ours / value)}")
    if built and ANY in workload.wanted:
        best = (max if more_is_better else min)(built.values())
        shown.append(f"best peer {ours / best:.2f}{_verdict(workload, ANY, ours / best)}")
    return shown


def _short(name: str) -> str:
    return {MEMORY: "memory", FILE: "file"}.get(name, name.partition(" ")[0])


def _verdict(workload: Workload, name: str, ratio: float) -> str:
    wanted = workload.wanted.get(name)
    if wanted is None:
        return ""
    sign, _, bound = wanted.partition(" ")
    reached = ratio >= float(bound) if sign == ">=" else ratio <= float(bound)
    return f" ({wanted}: {'yes' if reached else 'NO'})"


def present(wanted: list[str]) -> list[str]:
    """Return the servers that can be run here; say of the others why not."""
    built: dict[str, Callable[[], Path]] = {
        ELECTRIC: peers.electric,
        AXUM: peers.axum,
        CADDY: peers.caddy,
    }
    found = []
    for name in wanted:
        try:
            if name in built:
                built[name]()
        except peers.Unavailable as exc:
            print(f"skipped: {name}: {exc}")
        else:
            print(f"{name}: {SERVERS[name][0]}")
            found.append(name)
    return found


def calibrate() -> Figures:
    """Say what the generator can do, so that a reader can judge the rest."""
    command = [sys.executable, "-m", "tools.load.trivial", "constant"]
    with servers.child("constant", command, ROOT) as server:
        found = wrk(server.port, BINARY, PLAIN, 1, 3)
    rate = found["requests"] / found["seconds"]
    print(f"generator: {rate:,.0f} appends/s against a server that answers a constant")
    return {"generator_per_s": rate}


def measure(
    workload: Workload, names: list[str], seconds: float, parent: str
) -> dict[str, Figures]:
    """Run a workload against each server; one that fails has no figures, and says why."""
    found: dict[str, Figures] = {}
    for name in names:
        if workload.durable_only and name == MEMORY:
            continue
        try:
            with servers.started(name, parent) as server:
                found[name] = workload.run(server, seconds)
        except (RuntimeError, OSError) as exc:
            if name == OURS:
                raise
            print(f"  {name} failed at {workload.title!r}: {str(exc)[:200]}")
    return found


def main() -> None:
    """Parse the command line, run, print, write."""
    parser = argparse.ArgumentParser(prog="tools/bench compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--only", action="append", default=[], help="a workload; may be repeated")
    names = {_short(name).lower(): name for name in SERVERS}
    parser.add_argument("--servers", nargs="+", choices=names, default=list(names))
    parser.add_argument("--dir", default=".", help="where the data directories are made")
    parser.add_argument("--out", default=str(ROOT / "bench"), help="where the results go")
    chosen = parser.parse_args()
    seconds = 2.0 if chosen.quick else 5.0
    available = workloads(quick=chosen.quick)
    unknown = [name for name in chosen.only if name not in available]
    if unknown:
        sys.exit(f"no workload {unknown[0]}; there are {', '.join(available)}")
    calibration = calibrate()
    table = Table(present([names[short] for short in chosen.servers]))
    for name in chosen.only or available:
        found = measure(available[name], table.names, seconds, chosen.dir)
        table.add(name, available[name], found)
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    result = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "calibration": calibration,
        "servers": {name: SERVERS[name][0] for name in table.names},
        "workloads": table.found,
    }
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    for path in draw(table.found, table.names, out):
        print("wrote", path)


if __name__ == "__main__":
    main()
