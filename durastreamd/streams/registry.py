"""The streams of a server: what handlers call. Starts actors, wakes followers, flushes, sweeps.

``Streams.run`` hosts everything that has a life of its own: the journal's writer, the flusher, the
sweeper, the actors. It returns when it is cancelled; it raises when the disk failed, and then the
server must end.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Generic, TypeVar

import trio

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.errors import (
    OverloadedError,
    StorageError,
    StreamStoppedError,
    SyncFailedError,
    WriteFailedError,
)
from durastreamd.model.records import Append, Create, Delete, Record, Retain, Touch
from durastreamd.model.retention import Change
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.outcomes import Deleted, Gone, NotFound, Outcome
from durastreamd.streams.actor import Actor
from durastreamd.streams.committer import Committer, Waiter
from durastreamd.streams.follower import Follower, Following, ReaderFacts
from durastreamd.streams.keeper import Keeper, floor_by_policy
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.sweeper import Sweeper
from durastreamd.streams.ticket import Command, DeleteCommand, RetainCommand, Ticket, TouchCommand
from durastreamd.streams.writer import InlineWriter, ThreadWriter

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Streams:
    """Every stream of one data directory, live."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], int],
        limits: StreamLimits | None = None,
        *,
        threads: bool = True,
        read_only: bool = False,
    ) -> None:
        self.engine = engine
        self._hot_bytes_max = 2 * engine.options.hot_bytes_max
        self.clock = clock
        self.limits = limits or StreamLimits()
        self._threads = threads
        self._read_only = read_only
        self._writer = ThreadWriter() if threads else InlineWriter()
        self.committer = Committer(engine, self._writer, self)
        self._actors: dict[str, Actor] = {}
        self._following: dict[int, Following] = {}
        self._to_wake: dict[int, Following] = {}
        self._touching: set[int] = set()  # renewals under way; emptied with every sweep
        self._nursery: trio.Nursery | None = None
        self._flush_wanted = trio.Event()
        self._checkpoint: tuple[cp.Steps, cp.Job] | None = None
        self._retry_wanted = False
        self._sweeper = Sweeper(engine.namespace)
        self._subscriptions = engine.subscriptions
        self.on_stirred: Callable[[], None] | None = None  # subscriptions are to be looked at
        self._keeper = Keeper(engine.namespace)
        self.actors_started = 0
        self.created_total = 0
        self.deleted_total = 0
        self.swept_total = 0  # of these: a lifetime was over, or the last fork was gone
        # The time as of the last sweep: fine enough to tell who is idle, free to read.
        self._now = 0.0

    # --- asking ---

    def find(self, key: str) -> Stream | NotFound | Gone:
        """Return a stream to read from."""
        return self.engine.namespace.find(key, self.clock())

    async def ask(self, key: str, command: Command) -> Outcome:
        """Have a command decided, made durable and applied; return its outcome."""
        ticket = self.post(key, command)
        return await ticket.outcome()

    def post(self, key: str, command: Command) -> Ticket:
        """Put a command before the actor of a name; raise OverloadedError if it is full."""
        if self.engine.hot_bytes > self._hot_bytes_max:
            message = "too many bytes are waiting to be flushed"
            raise OverloadedError(message)
        if self._nursery is None:
            message = "the server is not running"
            raise StreamStoppedError(message)
        actor = self._actors.get(key) or self._make(key)
        actor.used_at = self._now
        ticket = Ticket(command)
        try:
            actor.put(ticket)
        except trio.WouldBlock:
            message = "too many requests are waiting for this stream"
            raise OverloadedError(message) from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            message = "the server is stopping"
            raise StreamStoppedError(message) from None
        return ticket

    def submit(self, record: Record, waiter: Waiter) -> None:
        """Have a record made durable that is no stream's; raise if nobody does that any more."""
        if self._nursery is None:
            message = "the server is not running"
            raise StreamStoppedError(message)
        self.committer.submit(record, b"", waiter)

    def touch(self, stream: Stream) -> None:
        """Renew a sliding lifetime because of a read; on disk only now and then."""
        if stream.ttl_ms < 0:
            return
        now_ms = self.clock()
        stream.read_ms = max(stream.read_ms, now_ms)
        if self._read_only:
            return
        due = now_ms - stream.accessed_ms >= stream.ttl_ms // self.engine.options.touch_fraction
        if due and stream.id not in self._touching:
            self._touching.add(stream.id)
            try:
                self.post(stream.key, TouchCommand())
            except (OverloadedError, StreamStoppedError):
                pass  # memory has it; a later read will put it on disk

    @contextmanager
    def follow(self, stream: Stream, reader: ReaderFacts | None = None) -> Iterator[Follower]:
        """Lend a place at the tail of a stream; ``reader`` is told to whoever asks for readers."""
        following = self._following.get(stream.id)
        if following is None:
            following = self._following[stream.id] = Following()
        follower = Follower(following, reader)
        try:
            yield follower
        finally:
            follower.release()
            if not following.followers and self._following.get(stream.id) is following:
                del self._following[stream.id]

    def wake_all(self) -> None:
        """Wake every follower, whatever it waits for."""
        for following in list(self._following.values()):
            following.wake()

    def reader_count(self, stream: Stream) -> int:
        """Return how many readers wait at the tail of a stream."""
        following = self._following.get(stream.id)
        return len(following.followers) if following is not None else 0

    def readers_of(self, stream: Stream) -> list[ReaderFacts]:
        """Return who waits at the tail of a stream, those who came first in front."""
        following = self._following.get(stream.id)
        followers = following.followers if following is not None else ()
        return sorted(each.reader for each in followers if each.reader is not None)

    def follower_count(self) -> int:
        """Return how many readers wait at a tail."""
        return sum(len(following.followers) for following in self._following.values())

    @property
    def actor_count(self) -> int:
        """Return how many streams are live."""
        return len(self._actors)

    # --- living ---

    def _make(self, key: str) -> Actor:
        actor = self._actors[key] = Actor(key, self, self.limits.mailbox_max)
        self.actors_started += 1
        return actor

    def spawn(self, actor: Actor) -> None:
        """Give an actor that has tickets waiting its task."""
        assert self._nursery is not None, "only while the server runs"
        self._nursery.start_soon(actor.run, name=f"stream {actor.key}")

    async def blocking(self, job: Callable[[], T]) -> T:
        """Run a job that touches the disk, off the event loop where there are threads.

        A sync that fails in it ends the server, whoever asked for it: no later sync would tell.
        """
        try:
            return await self._off_the_loop(job)
        except SyncFailedError as exc:
            if self._nursery is not None:
                self._nursery.start_soon(_raise, exc)
            raise

    async def _off_the_loop(self, job: Callable[[], T]) -> T:
        if self._threads:
            return await trio.to_thread.run_sync(job)
        await trio.lowlevel.checkpoint()
        return job()

    async def prove_writer(self) -> None:
        """Return when the journal's writer has done all that was put before it until now."""
        await self.by_writer(lambda: None)

    async def by_writer(self, job: Callable[[], T]) -> T:
        """Run a short job in the journal's thread, after all that was put before it.

        For what comes again and again: a thread of its own would keep the memory of whatever else
        it is lent to. An OSError of the job is raised here; the thread goes on.
        """
        asked = _Asked(job)
        self._writer.put(asked)
        return await asked.answer()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run for the length of an async with block, then bring everything to rest."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            while self._nursery is None:
                await trio.lowlevel.checkpoint()
            yield
            await self.settle()
            nursery.cancel_scope.cancel()

    async def run(self) -> None:
        """Host the writer, the flusher, the sweeper and the actors until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._now = trio.current_time()
                nursery.start_soon(self._writer.run)
                nursery.start_soon(self.committer.run)
                if not self._read_only:
                    nursery.start_soon(self._flush_forever)
                    nursery.start_soon(self._sweep_forever)
                    nursery.start_soon(self._retain_forever)
        finally:
            self._nursery = None
            self._actors.clear()
            self.committer.abandon()

    async def settle(self) -> None:
        """Wait until all that was posted is done, then take a last checkpoint."""
        while any(not actor.idle for actor in self._actors.values()):
            await trio.sleep(0.001)
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Bring everything into the files and retire the journal."""
        while self.committer.checkpointing:
            await trio.sleep(0.001)
        if self._changed():
            self.committer.rotate()
            while self.committer.rotation_wanted or self.committer.checkpointing:
                await trio.sleep(0.001)

    def _changed(self) -> bool:
        engine = self.engine
        return bool(
            engine.dirty
            or engine.removed
            or engine.dirty_buckets
            or engine.trimmed
            or engine.subscriptions.dirty
        )

    def applied(self, record: Record, ended: list[Stream]) -> None:
        """Note who waits for what a committed record changed."""
        if type(record) is Append:
            following = self._following.get(record.stream)
            if following is not None:
                self._to_wake[record.stream] = following
        else:
            self._applied_rare(record, ended)
        if self.engine.hot_bytes > self.engine.options.hot_bytes_max:
            self._flush_wanted.set()

    def _applied_rare(self, record: Record, ended: list[Stream]) -> None:
        for stream in (record.stream, *[stream.id for stream in ended]):
            following = self._following.get(stream)
            if following is not None and not isinstance(record, Touch):
                self._to_wake[stream] = following
        if isinstance(record, Retain):
            self._keeper.watch(self.engine.namespace.by_id.get(record.stream))
        if isinstance(record, Create | Delete):
            self.created_total += isinstance(record, Create)
            self.deleted_total += isinstance(record, Delete)
            self._sweeper.watch(self.engine.namespace.by_id.get(record.stream))

    def batch_applied(self) -> None:
        """Wake the followers once per batch, however many records it had for them."""
        waking, self._to_wake = self._to_wake, {}
        for following in waking.values():
            following.wake()
        if self._subscriptions.stirred and self.on_stirred is not None:
            self.on_stirred()

    # --- flushing ---

    def rotated(self, begun: tuple[cp.Steps, cp.Job] | None) -> None:
        """The journal goes on in a new file and a checkpoint has begun, or neither."""
        self._checkpoint = begun
        self._retry_wanted = begun is None
        self._flush_wanted.set()

    async def _flush_forever(self) -> None:
        while True:
            with trio.move_on_after(self.limits.checkpoint_s):
                await self._flush_wanted.wait()
            if self._flush_wanted.is_set():
                self._flush_wanted = trio.Event()
                await self._flush_once()
            elif self._changed():
                self.committer.rotate()

    async def _flush_once(self) -> None:
        try:
            if self._checkpoint is not None:
                (steps, job), self._checkpoint = self._checkpoint, None
                try:
                    await self._drive(steps, job)
                finally:
                    self.committer.checkpoint_ended()
            if self.engine.hot_bytes > self.engine.options.hot_bytes_max:
                steps = cp.flush(self.engine)
                await self._drive(steps, next(steps))
        except WriteFailedError as exc:
            logger.warning("flush failed, will be tried again: %s", exc)
            self._retry_wanted = True
        if self._retry_wanted:
            self._retry_wanted = False
            await trio.sleep(self.limits.retry_s)
            self._flush_wanted.set()
            self.committer.rotate()

    async def _drive(self, steps: cp.Steps, job: cp.Job) -> None:
        """Run the steps of a flush: jobs off the event loop, the rest here."""
        try:
            while True:
                try:
                    result = await self._off_the_loop(partial(cp.attempt, job))
                except WriteFailedError as exc:
                    job = steps.throw(exc)
                else:
                    job = steps.send(result)
        except StopIteration:
            return

    # --- sweeping ---

    async def _sweep_forever(self) -> None:
        while True:
            await trio.sleep(self.limits.sweep_s)
            self._now = trio.current_time()
            self._retire_idle()
            self._touching.clear()
            self.committer.mark(self.clock())
            await self._sweep(self._sweeper.due(self.clock()))

    async def _sweep(self, keys: list[str]) -> None:
        """Have streams removed whose time has come; one that stays is looked at again later."""
        tickets: list[Ticket] = []
        try:
            tickets += [self.post(key, DeleteCommand(sweep=True)) for key in keys]
            for ticket in tickets:
                self.swept_total += isinstance(await ticket.outcome(), Deleted)
        except (OverloadedError, StorageError) as exc:
            logger.warning("a sweep failed, will be tried again: %s", exc)
        for key in keys:
            self._sweeper.watch(self.engine.namespace.by_key.get(key))

    async def _retain_forever(self) -> None:
        while True:
            await trio.sleep(self.limits.retention_s)
            for stream in self._keeper.streams():
                try:
                    await self._retain(stream)
                except (OverloadedError, StorageError) as exc:
                    logger.warning("retention of %s will be tried again: %s", stream.key, exc)

    async def _retain(self, stream: Stream) -> None:
        """Move the floor of a stream as far as its policy says."""
        if stream.damage or self.find(stream.key) is not stream:
            return
        with self.engine.reading(stream) as view:
            view.wait = True
            find = partial(floor_by_policy, view, stream, self.clock())
            floor = await self.blocking(find)
        if floor > stream.floor:
            await self.ask(stream.key, RetainCommand(stream.id, Change(floor)))

    def _retire_idle(self) -> None:
        oldest = trio.current_time() - self.limits.idle_s
        for key in [key for key, actor in self._actors.items() if actor.used_at < oldest]:
            if self._actors[key].idle:
                self._actors.pop(key).retire()


class _Asked(Generic[T]):
    """A job for the journal's thread, and the place where its result appears."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._done = trio.Event()
        self._results: list[T] = []
        self._failure: OSError | None = None

    def work(self) -> None:
        try:
            self._results.append(self._job())
        except OSError as exc:
            self._failure = exc

    def report(self, error: WriteFailedError | None) -> None:
        assert error is None, "work raises none"
        self._done.set()

    async def answer(self) -> T:
        await self._done.wait()
        if self._failure is not None:
            raise self._failure
        return self._results[0]


async def _raise(exc: Exception) -> None:
    raise exc
