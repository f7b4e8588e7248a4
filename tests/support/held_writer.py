"""Streams on a simulated disk whose commits a test can hold back, release, and let fail.

``HeldWriter`` stands in for the writer's thread. ``FullDisk`` fails on request, as a full disk
does: it takes a part first. ``Bench`` ties both to ``Streams``; its clock is trio's, so the mock
clock moves lifetimes, too.
"""

import errno
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import SyncFailedError
from durastreamd.model.draft import AppendCommand, Payload
from durastreamd.model.namespace import CreateCommand, ForkPoint
from durastreamd.model.records import Producer
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.outcomes import Appended, Created, Outcome
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import Ticket
from durastreamd.streams.writer import Errand, InlineWriter
from tests.support.fault_disk import FaultDisk
from tests.support.sim_disk import SimDisk

NOW = 1_700_000_000_000
TEXT = "text/plain"


class HeldWriter(InlineWriter):
    """Does work at once, or when the test says so; what work raises ends ``run``, as a thread's."""

    def __init__(self) -> None:
        self.holding = False
        self.held: deque[Errand] = deque()
        self.done = 0
        self._failed = trio.Event()
        self._failure: Exception | None = None

    def put(self, errand: Errand) -> None:
        self.held.append(errand)
        if not self.holding:
            self.do_one()

    def do_one(self) -> None:
        """Do the oldest piece of work that waits."""
        errand = self.held.popleft()
        self.done += 1
        try:
            super().put(errand)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is the thread's end
            self._failure = exc
            self._failed.set()

    def release(self) -> None:
        """Do what waits, and from now on everything at once."""
        self.holding = False
        while self.held:
            self.do_one()

    async def run(self) -> None:
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure


class FullDisk(FaultDisk):
    """A disk that is full, out of names or broken for as long as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.full = ""  # writes to paths that start so fail; a part is taken first
        self.room = 0  # how many bytes are still taken
        self.no_new_files = False
        self.syncs_left = -1
        self.open_error = ""  # opening paths that start so finds no free descriptor
        self.synced: list[str] = []

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        if create and self.no_new_files:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if self.open_error and path.startswith(self.open_error):
            raise OSError(errno.EMFILE, "Too many open files", path)
        return super().open(path, create=create, write=write)

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        if self.full and self._paths[handle].startswith(self.full):
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[: self.room]
            self.room -= len(data)
        return super().pwrite(handle, data, position)

    def sync(self, handle: int) -> None:
        if not self.syncs_left:
            message = "fdatasync failed: Input/output error"
            raise SyncFailedError(message)
        self.syncs_left -= 1
        self.synced.append(self._paths[handle])
        super().sync(handle)

    def sync_everything(self) -> None:
        self.synced.append("everything")
        super().sync_everything()


def append(
    body: bytes | None,
    producer: Producer | None = None,
    *,
    closes: bool = False,
    seq: str | None = None,
) -> AppendCommand:
    payload = None if body is None else Payload(body)
    return AppendCommand(payload, TEXT, closes, producer, seq)


def reopen(disk: SimDisk, options: EngineOptions | None = None, now_ms: int = NOW) -> Engine:
    """Open the disk as a process finds it after kill -9."""
    engine, _ = open_engine(disk.survivor(), options or EngineOptions(), bytes, now_ms)
    return engine


def content(engine: Engine, key: str) -> bytes:
    stream = engine.namespace.by_key[key]
    return engine.view(stream).read(stream.floor, stream.tail)


class Bench:
    """One engine on a FullDisk, live, with a held writer."""

    def __init__(
        self, options: EngineOptions | None = None, limits: StreamLimits | None = None
    ) -> None:
        self.disk = FullDisk()
        self.options = options or EngineOptions()
        self.engine, _ = open_engine(
            self.disk, self.options, lambda: b"\x07" * 16, NOW, create=True
        )
        self.streams = Streams(self.engine, self.clock, limits, threads=False)
        self.writer = HeldWriter()
        self.streams._writer = self.writer
        self.streams.committer._writer = self.writer

    @staticmethod
    def clock() -> int:
        return NOW + int(trio.current_time() * 1000)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the streams for the length of an async with block; nothing is held at its end.

        An hour of the mock clock is the most a test may wait: a hang is a failure.
        """
        with trio.fail_after(3600):
            async with self.streams.running():
                yield
                self.writer.release()

    async def make(self, key: str, **options: object) -> Outcome:
        command = CreateCommand(key, content_type=TEXT, **options)  # type: ignore[arg-type]
        outcome = await self.streams.ask(key, command)
        assert isinstance(outcome, Created), outcome
        return outcome

    async def add(self, key: str, body: bytes, producer: Producer | None = None) -> Outcome:
        outcome = await self.streams.ask(key, append(body, producer))
        assert isinstance(outcome, Appended), outcome
        return outcome

    def fork(self, key: str, source: str) -> Ticket:
        """Ask for a fork at the tail of its source."""
        stream = self.stream(source)
        point = ForkPoint(source, stream.tail, stream.messages, stream.tail)
        return self.streams.post(key, CreateCommand(key, fork=point))

    def stream(self, key: str) -> Stream:
        found: Stream = self.engine.namespace.by_key[key]
        return found

    def content(self, key: str) -> bytes:
        return content(self.engine, key)

    async def hold(self) -> None:
        """Hold commits from here on; what was under way is done."""
        await wait_all_tasks_blocked()
        self.writer.holding = True

    async def commit_one(self) -> None:
        """Let one held batch (or rotation) through and everything that follows from it."""
        self.writer.do_one()
        await wait_all_tasks_blocked()

    def after_kill(self) -> Engine:
        return reopen(self.disk, self.options)


@asynccontextmanager
async def serving(*keys: str) -> AsyncIterator[Bench]:
    """Run a bench with these streams for the length of an async with block."""
    bench = Bench()
    async with bench.running():
        for key in keys:
            await bench.make(key)
        yield bench


@asynccontextmanager
async def cancelled(*keys: str) -> AsyncIterator[Bench]:
    """Run a bench with these streams, commits held, and have it cancelled at the end of a block."""
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.streams.run)
        await wait_all_tasks_blocked()
        for key in keys:
            await bench.make(key)
        await bench.hold()
        yield bench
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def held(*keys: str) -> AsyncIterator[Bench]:
    """Like ``serving``, with commits held from the beginning."""
    async with serving(*keys) as bench:
        await bench.hold()
        yield bench
