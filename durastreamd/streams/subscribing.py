"""Who looks after subscriptions: has decisions made durable, keeps their time, tells those to tell.

Everything that changes a subscription passes its lock: it is decided on what is committed, made
durable and applied before the next is. What it led to is shown only then. A delivery is the one
thing that goes on without the lock, since its receiver may call back meanwhile; its outcome is
judged with the lock again, and counts only for the wake it was sent for.

One task has the timers. It hears of subscriptions that are stirred (once per batch, and only if
there are any), looks at those whose time has come, and has a task attend to each. Nothing is
forgotten in it: all it goes by is committed, and at the start every subscription is looked at.

Time is the time of day as of the start, and goes on by a clock that nobody sets.
"""

import heapq
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from durastreamd.errors import DurastreamError, OverloadedError, StorageError, StreamStoppedError
from durastreamd.model.draft import AppendCommand, Payload
from durastreamd.model.globs import Pattern
from durastreamd.model.records import Record
from durastreamd.model.subscription import (
    Ack,
    Refused,
    Subscription,
    SubscriptionState,
    retry_ms,
)
from durastreamd.model.subscription_records import (
    EXPLICIT,
    SubscriptionChange,
    SubscriptionConfig,
    SubscriptionEnd,
    SubscriptionLinks,
)
from durastreamd.model.subscriptions import Subscriptions, put_of
from durastreamd.protocol.names import RESERVED_ROOT
from durastreamd.protocol.outcomes import Appended, Duplicate, Outcome
from durastreamd.storage.extensions import SUBSCRIPTIONS
from durastreamd.streams.limits import SubscriptionLimits
from durastreamd.streams.registry import Streams

logger = logging.getLogger(__name__)

SCAN_STREAMS = 1000  # names that are matched in one turn of the loop
JITTER = 0.2  # of a delay between two attempts, so that receivers are not hit in step
LINK_CHARACTERS_MAX = 3 * 1024 * 1024  # in one record, whose header has at most 16 MiB
RESTART_MS = 1000  # when the journal refused a record: until it is tried again


class Told(NamedTuple):
    """What became of a delivery: taken, perhaps done with; or why it was not."""

    error: str = ""
    done: bool = False
    wait_ms: int | None = None  # the receiver asked for it


class Fenced(NamedTuple):
    """What a holder sends along: the generation of its token, and of what wake it speaks."""

    token: int
    generation: int
    wake_id: str


_CLAIMS = (
    *("ok", "already_claimed", "no_pending_work"),
    *("subscription_not_found", "invalid_request"),
)
_ACKS = ("ok", "fenced", "invalid_offset", "subscription_not_found")


class SubscribingCounts:
    """What happened, for the metrics."""

    def __init__(self) -> None:
        self.wakes = {"webhook": 0, "pull-wake": 0}
        self.deliveries = {"done": 0, "taken": 0, "failed": 0, "late": 0}
        self.claims = dict.fromkeys(_CLAIMS, 0)
        self.acks = dict.fromkeys(_ACKS, 0)


class _Landing:
    """A record on its way, and who waits for it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: DurastreamError | None = None

    def landed(self, error: DurastreamError | None) -> None:
        self.error = error
        self.done.set()


Deliver = Callable[[Subscription], Awaitable[Told]]


class Subscribing:
    """Looks after every subscription of one data directory."""

    def __init__(self, streams: Streams, limits: SubscriptionLimits, *, read_only: bool) -> None:
        self._streams = streams
        self.limits = limits
        self.read_only = read_only
        self.held: Subscriptions = streams.engine.subscriptions
        self.counts = SubscribingCounts()
        self.deliver: Deliver | None = None  # given by whoever can
        self.delivering = 0
        self.draining = False
        self._locks: dict[tuple[str, str], tuple[trio.Lock, int]] = {}
        self._attended: set[int] = set()
        self._heap: list[tuple[int, int]] = []
        self._wanted = trio.Event()
        self._zero_ms: int | None = None
        self._places = secrets.SystemRandom()
        streams.on_stirred = self._wake_up

    def now_ms(self) -> int:
        """Return the time that leases and retries go by."""
        if self._zero_ms is None:
            self._zero_ms = self._streams.clock() - int(trio.current_time() * 1000)
        return self._zero_ms + int(trio.current_time() * 1000)

    # --- making things durable ---

    @asynccontextmanager
    async def _locked(self, root: str, name: str) -> AsyncIterator[None]:
        """Have a subscription to oneself; the lock is kept as long as somebody wants it."""
        lock, users = self._locks.get((root, name), (None, 0))
        lock = lock or trio.Lock()
        self._locks[root, name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[root, name]
            self._locks[root, name] = (lock, users - 1)
            if users == 1:
                del self._locks[root, name]

    async def _commit(self, record: Record) -> None:
        """Make a decision durable; who is called away meanwhile leaves when it is done."""
        landing = _Landing()
        self._streams.engine.extend(SUBSCRIPTIONS)
        self._streams.submit(record, landing)
        with trio.CancelScope(shield=True):
            await landing.done.wait()
        if landing.error is not None:
            raise landing.error

    async def _change(self, subscription: Subscription, record: SubscriptionChange) -> None:
        before = subscription.head.generation
        await self._commit(record)
        if record.head.generation > before:
            self.counts.wakes[subscription.config.type] += 1

    # --- what clients ask for ---

    async def put(
        self, root: str, name: str, config: SubscriptionConfig, base: str
    ) -> tuple[Subscription, bool] | Refused:
        """Make a subscription, or find it with the same configuration."""
        async with self._locked(root, name):
            found = self.held.find(root, name)
            if found is not None:
                return (found, False) if found.config == config else _EXISTS
            if len(self.held.by_id) >= self.limits.subscriptions_max:
                detail = f"There are {self.limits.subscriptions_max} subscriptions already."
                return Refused("UNAVAILABLE", detail)
            incarnation = self._places.getrandbits(63)
            pattern = Pattern(config.pattern) if config.pattern else None
            try:
                if pattern is not None:
                    self.held.expect(incarnation, root, pattern)
                matching = await self._matching(root, pattern) if pattern is not None else []
                if isinstance(matching, Refused):
                    return matching
                if refused := self._too_many(len(matching) + len(config.streams), 0):
                    return refused
                if sum(map(len, (*matching, *config.streams))) > LINK_CHARACTERS_MAX:
                    return Refused("INVALID_REQUEST", "The names of its streams are too long.")
                record = put_of(
                    self.held, (root, name), config, incarnation, matching, self._streams.clock(),
                    base,
                )  # fmt: skip
                await self._commit(record)
            finally:
                self.held.forget(incarnation)
            return self.held.by_incarnation[incarnation], True

    async def _matching(self, root: str, pattern: Pattern) -> list[str] | Refused:
        """Look for streams that match, some at a time; ``expect`` notes what is made meanwhile."""
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            some, after = self.held.scan(root, pattern, after, SCAN_STREAMS)
            found += some
            if refused := self._too_many(len(found), 0):
                return refused
            await trio.lowlevel.checkpoint()
        return found

    def _too_many(self, new: int, held: int) -> Refused | None:
        if held + new > self.limits.links_each_max:
            most = self.limits.links_each_max
            return Refused("INVALID_REQUEST", f"A subscription links at most {most} streams.")
        if self.held.link_count + new > self.limits.links_max:
            return Refused("UNAVAILABLE", f"All together link {self.limits.links_max} streams.")
        return None

    async def end(self, root: str, name: str) -> bool:
        """End a subscription; False if there is none."""
        async with self._locked(root, name):
            if self.held.find(root, name) is None:
                return False
            await self._commit(SubscriptionEnd(root, name, self._streams.clock()))
            return True

    async def link(
        self, root: str, name: str, paths: Iterable[str], *, there: bool
    ) -> Refused | None:
        """Name streams, or take their names back."""
        async with self._locked(root, name):
            found = self.held.find(root, name)
            if found is None:
                return NOT_FOUND
            links = []
            for path in dict.fromkeys(paths):
                if there and path == found.config.wake_stream:
                    return Refused("INVALID_REQUEST", "It is the subscription's own wake stream.")
                if there or path in found.links:
                    marks = EXPLICIT if there else 0
                    links.append(self.held.link_at_tail(root, path, marks))
            if there and (refused := self._too_many(len(links), len(found.links))):
                return refused
            if links:
                now_ms = self._streams.clock()
                await self._commit(SubscriptionLinks(found.incarnation, tuple(links), now_ms))
            return None

    async def claim(self, root: str, name: str, worker: str) -> Subscription | Refused:
        """Give pending work to a worker."""
        async with self._locked(root, name):
            found = self.held.find(root, name)
            if found is None:
                return self._claimed(NOT_FOUND)
            if found.webhook:
                return self._claimed(_WRONG_KIND)
            decided = found.claim(worker, self.now_ms(), _lot())
            if isinstance(decided, Refused):
                return self._claimed(decided)
            await self._change(found, decided)
            return self._claimed(found)

    def _claimed(self, result: Subscription | Refused) -> Subscription | Refused:
        word = result.code.lower() if isinstance(result, Refused) else "ok"
        self.counts.claims[word] += 1
        return result

    async def settle(
        self,
        found: Subscription,
        fenced: Fenced,
        acks: list[Ack],
        *,
        done: bool,
    ) -> bool | Refused:
        """Move cursors for a holder; tell whether another wake was made."""
        result = await self._settle(found, fenced, acks, done=done)
        word = result.code.lower() if isinstance(result, Refused) else "ok"
        self.counts.acks[word] += 1
        return result

    async def _settle(
        self, found: Subscription, fenced: Fenced, acks: list[Ack], *, done: bool
    ) -> bool | Refused:
        async with self._locked(found.root, found.id):
            if self.held.by_incarnation.get(found.incarnation) is not found:
                return NOT_FOUND
            now_ms = self.now_ms()
            cursors = found.fence(*fenced, now_ms) or found.cursors(acks)
            if isinstance(cursors, Refused):
                return cursors
            if not done:
                await self._change(found, found.hold(cursors, now_ms))
                return False
            record = found.finish(cursors, now_ms, _lot())
            await self._change(found, record)
            return record.head.state != SubscriptionState.IDLE

    # --- time ---

    def _wake_up(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Look after all subscriptions until cancelled."""
        if self.read_only:
            return
        for found in self.held.by_incarnation.values():
            found.head = found.clamped(self.now_ms())
            self.held.stirred[found] = None
        self._wanted.set()
        async with trio.open_nursery() as nursery:
            while True:
                await self._until_due()
                for found in self._due():
                    self._attended.add(found.incarnation)
                    nursery.start_soon(self._attend, found)

    async def _until_due(self) -> None:
        self._take_stirred()
        if self._heap:
            with trio.move_on_after(max(self._heap[0][0] - self.now_ms(), 0) / 1000):
                await self._wanted.wait()
            await trio.lowlevel.checkpoint()
        else:
            await self._wanted.wait()
        self._take_stirred()

    def _take_stirred(self) -> None:
        self._wanted = trio.Event()
        stirred, self.held.stirred = self.held.stirred, {}
        for found in stirred:
            self._schedule(found)

    def _schedule(self, found: Subscription) -> None:
        if found.incarnation in self._attended:
            return  # it is looked at when that is done
        due_ms = found.deadline_ms()
        if found.head.failures and not found.webhook and self._wake_stream_is_back(found):
            due_ms = 0
        if due_ms is not None:
            heapq.heappush(self._heap, (due_ms, found.incarnation))

    def _wake_stream_is_back(self, found: Subscription) -> bool:
        there = self.held.stream(found.root, found.config.wake_stream)
        return there is not None and "missing" in found.head.error

    def _due(self) -> list[Subscription]:
        due: dict[Subscription, None] = {}
        now_ms = self.now_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            _, incarnation = heapq.heappop(self._heap)
            found = self.held.by_incarnation.get(incarnation)
            if found is not None and incarnation not in self._attended:
                due[found] = None
        return list(due)

    async def _attend(self, found: Subscription) -> None:
        """Do what a subscription is due for, one thing after another."""
        try:
            while not self.draining and await self._step(found):
                pass
        except StreamStoppedError:
            return  # the next start looks after it
        except (StorageError, OverloadedError, OSError) as exc:
            logger.warning("subscription %r waits for the disk: %s", found.id, exc)
            heapq.heappush(self._heap, (self.now_ms() + RESTART_MS, found.incarnation))
        finally:
            self._attended.discard(found.incarnation)
            if found.incarnation in self.held.by_incarnation and not self.draining:
                self.held.stirred[found] = None
                self._wanted.set()

    async def _step(self, found: Subscription) -> bool:
        """Do one thing; False if there is nothing left that is due."""
        async with self._locked(found.root, found.id):
            if self.held.by_incarnation.get(found.incarnation) is not found:
                return False
            now_ms = self.now_ms()
            record = found.lapse(now_ms, _lot()) or found.wake(now_ms, _lot())
            if record is not None:
                await self._change(found, record)
                return True
            head = found.head
            late = head.failures and self._wake_stream_is_back(found) and not found.webhook
            if head.lease_ms or not head.due_ms or (now_ms < head.due_ms and not late):
                return False
            if not found.webhook:
                await self._announce(found)
                return True
        await self._deliver(found)
        return True

    # --- telling ---

    async def _announce(self, found: Subscription) -> None:
        """Put the event of a wake into the wake stream, once for each announcement."""
        head = found.head
        event = {
            "type": "wake",
            "subscription_id": found.id,
            "stream": head.trigger,
            "generation": head.generation,
            "ts": self._streams.clock(),
        }
        payload = Payload(json.dumps(event, ensure_ascii=False).encode() + b",\n")
        producer = (f"{RESERVED_ROOT}/{found.id}", head.generation, head.announced)
        command = AppendCommand(payload, "application/json", producer=producer)
        key = f"{found.root}/{found.config.wake_stream}"
        outcome: Outcome | None = None
        if self.held.stream(found.root, found.config.wake_stream) is not None:
            outcome = await self._streams.ask(key, command)
        now_ms = self.now_ms()
        if isinstance(outcome, Appended | Duplicate):
            await self._change(found, found.announced(now_ms))
        else:
            said = type(outcome).__name__ if outcome is not None else "missing"
            error = f"the wake stream does not take the event: {said}"
            await self._change(found, found.failed(error, now_ms, self._jittered(found)))

    def _jittered(self, found: Subscription) -> int:
        delay = retry_ms(found.head.failures + 1)
        return int(delay * self._places.uniform(1 - JITTER, 1))

    async def _deliver(self, found: Subscription) -> None:
        """Send a webhook; its outcome counts if the wake it was sent for is still the current."""
        sent = (found.head.generation, found.head.wake_id)
        assert self.deliver is not None, "webhooks are refused where nobody delivers"
        self.delivering += 1
        try:
            told = await self.deliver(found)
        finally:
            self.delivering -= 1
        async with self._locked(found.root, found.id):
            head = found.head
            known = self.held.by_incarnation.get(found.incarnation) is found
            over = bool(head.lease_ms) and self.now_ms() >= head.lease_ms
            if not known or sent != (head.generation, head.wake_id) or over:
                self.counts.deliveries["late"] += 1
                return
            now_ms = self.now_ms()
            if not told.error:
                self.counts.deliveries["done" if told.done else "taken"] += 1
                await self._change(found, found.taken(now_ms, _lot(), done=told.done))
                return
            self.counts.deliveries["failed"] += 1
            if not head.taken:  # else its receiver has called back: it has the wake
                wait_ms = self._jittered(found) if told.wait_ms is None else told.wait_ms
                await self._change(found, found.failed(told.error, now_ms, wait_ms))


NOT_FOUND = Refused("SUBSCRIPTION_NOT_FOUND", "There is no such subscription.")
_WRONG_KIND = Refused("INVALID_REQUEST", "This is not for a webhook subscription.")
_EXISTS = Refused(
    "SUBSCRIPTION_ALREADY_EXISTS",
    "The subscription exists with another configuration; delete it first.",
)


def _lot() -> str:
    return secrets.token_hex(12)
