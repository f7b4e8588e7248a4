"""What the log and its actors do on this machine: see ``main`` for the rows.

Each measurement runs in a process of its own, on a fresh data directory, so that memory and caches
of one do not colour the next.
"""

import argparse
import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from durastreamd.cli import tune_collector
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Record
from durastreamd.storage.disk import RealDisk
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.registry import Streams

KIND = "application/octet-stream"
CALLERS = 64
Figures = dict[str, float]


def clock() -> int:
    return time.time_ns() // 1_000_000


def opened(directory: str, options: EngineOptions | None = None) -> Engine:
    disk = RealDisk(directory)
    engine, _ = open_engine(
        disk, options or EngineOptions(), lambda: os.urandom(16), clock(), create=True
    )
    return engine


async def make_streams(streams: Streams, count: int) -> None:
    for at in range(0, count, 500):
        keys = [f"/bench/stream-{number}" for number in range(at, min(at + 500, count))]
        tickets = [streams.post(key, CreateCommand(key, KIND)) for key in keys]
        for ticket in tickets:
            await ticket.outcome()


def appends(directory: str, count: int, seconds: float) -> Figures:
    """Durable appends of 256 bytes by 64 callers, round robin over ``count`` streams."""

    async def main() -> Figures:
        streams = Streams(opened(directory), clock)
        async with streams.running():
            await make_streams(streams, count)
            await streams.checkpoint()
            command = AppendCommand(Payload(b"x" * 256), KIND)
            tune_collector()
            turn = itertools.count()
            done = 0
            batches = streams.committer.batches
            begin = time.perf_counter()

            async def caller() -> None:
                nonlocal done
                while time.perf_counter() < begin + seconds:
                    await streams.ask(f"/bench/stream-{next(turn) % count}", command)
                    done += 1

            async with trio.open_nursery() as nursery:
                for _ in range(CALLERS):
                    nursery.start_soon(caller)
            taken = time.perf_counter() - begin
            per_sync = done / max(streams.committer.batches - batches, 1)
        streams.engine.release()
        return {"per_s": done / taken, "per_sync": per_sync}

    return trio.run(main)


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def at_rest(directory: str, count: int) -> Figures:
    """Memory, descriptors and start-up time of many streams at rest."""

    async def make() -> None:
        streams = Streams(opened(directory), clock, StreamLimits(idle_s=0.5))
        async with streams.running():
            await make_streams(streams, count)
            command = AppendCommand(Payload(b"x" * 64), KIND)
            for at in range(0, count, 500):
                tickets = [
                    streams.post(f"/bench/stream-{number}", command)
                    for number in range(at, min(at + 500, count))
                ]
                for ticket in tickets:
                    await ticket.outcome()
        streams.engine.release()

    if not Path(directory, "DURASTREAMD").exists():
        trio.run(make)
        return {}
    before = resident()
    begin = time.perf_counter()
    engine = opened(directory)
    taken = time.perf_counter() - begin
    grown = resident() - before
    handles = len(list(Path("/proc/self/fd").iterdir()))
    assert len(engine.namespace.by_id) == count
    return {"bytes_each": grown / count, "open_s": taken, "handles": handles}


def fill(directory: str, total: int, streams: int) -> Figures:
    """Write ``total`` bytes into a few streams, then leave a clean directory behind."""

    async def main() -> None:
        server = Streams(opened(directory), clock)
        async with server.running():
            await make_streams(server, streams)
            piece = Payload(os.urandom(min(1024 * 1024, total // streams)))
            command = AppendCommand(piece, KIND)
            for _ in range(total // streams // len(piece.data)):
                tickets = [
                    server.post(f"/bench/stream-{number}", command) for number in range(streams)
                ]
                for ticket in tickets:
                    await ticket.outcome()
                while server.engine.hot_bytes > server.engine.options.hot_bytes_max:
                    await trio.sleep(0.01)
        server.engine.release()

    trio.run(main)
    return {}


def opening(directory: str) -> Figures:
    begin = time.perf_counter()
    opened(directory)
    return {"open_s": time.perf_counter() - begin}


def recovery(directory: str, size: int) -> Figures:
    """Replay a full journal of 256-byte appends, 64 to a batch, over 100 streams."""
    options = EngineOptions(journal_bytes_max=2 * size, hot_bytes_max=4 * size)
    engine = opened(directory, options)
    for number in range(100):
        making = CreateCommand(f"/bench/stream-{number}", KIND)
        _, drafted = engine.namespace.decide_create(making, clock())
        assert drafted is not None
        engine.commit([drafted])
    streams = itertools.cycle(list(engine.namespace.by_id.values()))
    command = AppendCommand(Payload(b"x" * 256), KIND)
    while engine.journal.length < size:
        batch: list[tuple[Record, bytes | memoryview]] = []
        for stream in itertools.islice(streams, 64):
            draft = Draft(stream, 100)
            draft.decide(command)
            batch.append(draft.record(clock()))
        engine.commit(batch)
    length = engine.journal.length
    engine.release()
    begin = time.perf_counter()
    engine = opened(directory)
    taken = time.perf_counter() - begin
    engine.release()
    return {"mb_per_s": length / taken / 1e6, "seconds": taken, "mb": length / 1e6}


PARTS: dict[str, Callable[..., Figures]] = {  # type: ignore[explicit-any]  # arguments vary
    "appends": appends,
    "at_rest": at_rest,
    "fill": fill,
    "opening": opening,
    "recovery": recovery,
}


def part(name: str, *arguments: object) -> Figures:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, "--part", name, json.dumps(arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


@contextmanager
def directory(parent: str) -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="durastreamd-bench-", dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def row(name: str, figure: str, note: str = "") -> None:
    print(f"{name:<52} {figure:>16}  {note}", flush=True)


def report_appends(parent: str, *, quick: bool) -> None:
    rates = {}
    for count in (1, 100, 10_000):
        with directory(parent) as path:
            found = part("appends", path, count, 2.0 if quick else 5.0)
        rates[count] = found["per_s"]
        note = f"{found['per_sync']:.0f} appends per sync"
        row(f"durable append/s, {CALLERS} callers, {count} streams", f"{found['per_s']:,.0f}", note)
    ratio = rates[10_000] / rates[1]
    row("10,000 streams against 1", f"{ratio:.2f}", "at least 0.5 wanted")


def report_rest(parent: str, *, quick: bool) -> None:
    count = 20_000 if quick else 100_000
    with directory(parent) as path:
        part("at_rest", path, count)
        found = part("at_rest", path, count)
    row(
        f"memory per stream at rest, {count} streams", f"{found['bytes_each']:,.0f} B", "under 2048"
    )
    row("descriptors held by all of them", f"{found['handles']:.0f}", "of the whole process")
    row(f"opening {count} streams", f"{found['open_s']:.2f} s")


def report_opening(parent: str, *, quick: bool) -> None:
    times = {}
    for total in (5_000_000, 500_000_000 if quick else 5_000_000_000):
        with directory(parent) as path:
            part("fill", path, total, 10)
            times[total] = min(part("opening", path)["open_s"] for _ in range(3))
        row(f"opening {total / 1e6:,.0f} MB in 10 streams", f"{times[total]:.3f} s")
    small, large = times.values()
    row("difference", f"{large - small:+.3f} s", "at most +0.1 wanted")


def report_recovery(parent: str) -> None:
    with directory(parent) as path:
        found = part("recovery", path, 64 * 1024 * 1024)
    note = f"{found['mb']:.0f} MB of 256-byte appends in {found['seconds']:.2f} s"
    row("recovery of a full journal", f"{found['mb_per_s']:.0f} MB/s", note)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench engine", description=__doc__)
    parser.add_argument("--dir", default=".", help="where the data directories are made")
    parser.add_argument("--quick", action="store_true", help="smaller and rougher")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        name, arguments = chosen.part
        print(json.dumps(PARTS[name](*json.loads(arguments))))
        return
    report_appends(chosen.dir, quick=chosen.quick)
    report_rest(chosen.dir, quick=chosen.quick)
    report_opening(chosen.dir, quick=chosen.quick)
    report_recovery(chosen.dir)


if __name__ == "__main__":
    main()
