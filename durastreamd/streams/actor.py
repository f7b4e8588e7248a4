"""The actor: the one owner of a stream's writes.

Theory of operation
-------------------
An actor belongs to a name, and serves it through creation, appends, closure and deletion, also
when the stream is deleted and made again. Tickets are answered strictly in the order they came.

A run of appends is decided against a draft, so that each append sees the ones before it, and
becomes one record. The draft stays open until the committer takes it along with everybody else's:
an append that comes while it is open, with nobody waiting before it, joins it on the spot. From
then until the record is durable and applied the actor is *in flight*, and tickets wait in its
mailbox, where the task finds them: it takes the first, drains the rest without waiting, and works
through them. So batches grow while a sync runs, without a timer and without a lock. Mailbox and
task come with the first ticket that has to wait: a stream that is written to now and then costs
neither, and ten thousand of them little.

Everything an actor decides from is committed state plus its own open draft. An answer waits for
the commit of its draft, also a duplicate's (its original may be in the same draft) and also a
refusal's (what it was refused for may not come to be). If the commit fails, all get the error.

Between the decision of anything but an append and its ``submit`` there is no await, and the
committer keeps the order: decisions that concern other streams (forks, deletions, buckets) reach
the journal in the order they were made, and rely on it.

On the way out every ticket is settled, those still in the mailbox included: the drain there has no
bound, and no await stands between it and the closing of the mailbox.
"""

from collections.abc import Awaitable, Callable

import trio

from durastreamd.engine.engine import Engine
from durastreamd.errors import (
    CorruptDataError,
    DurastreamError,
    ReadFailedError,
    StorageError,
    StreamDamagedError,
    StreamStoppedError,
)
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Record, Touch
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.protocol import Data
from durastreamd.protocol.outcomes import Deleted, NotFound, Outcome, Touched
from durastreamd.streams.committer import Committer
from durastreamd.streams.ticket import (
    BucketCommand,
    Command,
    DeleteCommand,
    PublishCommand,
    Ticket,
    TouchCommand,
)

# The parts of a draft are joined in one copy on the event loop, a millisecond or two for so many. A
# larger append is a draft of its own and is not copied.
DRAFT_BYTES_MAX = 4 * 1024 * 1024

Blocking = Callable[[Callable[[], Detail]], Awaitable[Detail]]


class Actor:
    """Owns the writes of one name."""

    def __init__(
        self,
        key: str,
        engine: Engine,
        committer: Committer,
        clock: Callable[[], int],
        blocking: Blocking,
        spawn: Callable[["Actor"], None],
        mailbox_max: int,
    ) -> None:
        self.key = key
        self._engine = engine
        self._committer = committer
        self._clock = clock
        self._blocking = blocking
        self._spawn = spawn
        self._send: trio.MemorySendChannel[Ticket] | None = None
        self._mailbox_max = mailbox_max
        self._waiting = 0
        self._batch: list[Ticket] = []
        self._draft: Draft | None = None
        self._answers: list[tuple[Ticket, Outcome]] = []
        self._in_flight = False
        self._landing: trio.Event | None = None
        self._awake: set[int] = set()
        self.used_at = 0.0

    def __repr__(self) -> str:
        return f"<Actor {self.key!r} waiting={self._waiting} in_flight={self._in_flight}>"

    def put(self, ticket: Ticket) -> None:
        """Take a ticket: decide it on the spot where that keeps the order, else let it wait.

        Raises trio.WouldBlock if too many wait.
        """
        if self._waiting or self._batch or self._in_flight:
            self._let_wait(ticket)
        elif isinstance(ticket.command, AppendCommand) and self._has_room(ticket.command):
            assert self._draft is not None
            self._join(self._draft, ticket)
        elif self._draft is not None or self._must_load(ticket.command):
            self._let_wait(ticket)
        elif isinstance(ticket.command, AppendCommand):
            self._append([ticket])
        else:
            self._decide_one(ticket)

    def _let_wait(self, ticket: Ticket) -> None:
        if self._send is None:
            self._send, self._mailbox = trio.open_memory_channel[Ticket](self._mailbox_max)
            self._spawn(self)
        self._send.send_nowait(ticket)
        self._waiting += 1

    def _has_room(self, command: AppendCommand) -> bool:
        """Tell whether a draft is open that takes one more; it is bounded as the mailbox is."""
        draft = self._draft
        return (
            draft is not None
            and len(self._answers) < self._mailbox_max
            and draft.size + _bytes_of(command) <= DRAFT_BYTES_MAX
        )

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way."""
        return not (self._waiting or self._batch or self._in_flight or self._draft)

    def retire(self) -> None:
        """Let the task end, if there is one; only for an idle actor that nobody can find any more.

        The stream goes to rest here and now: when the task ends, another actor may be at work.
        """
        self._let_rest()
        if self._send is not None:
            self._send.close()

    async def run(self) -> None:
        """Serve the mailbox until it is closed."""
        try:
            async for first in self._mailbox:
                self._waiting -= 1
                self._batch.append(first)
                await self._land()
                self._batch += self._drain()
                await self._serve()
        finally:
            # No await from here to the closing: no ticket can slip in between. What was submitted
            # is settled by the committer, whatever becomes of it.
            for ticket in [*self._batch, *self._drain()]:
                ticket.settle(StreamStoppedError("the stream's task has ended"))
            self._mailbox.close()
            self._let_rest()

    def _drain(self) -> list[Ticket]:
        tickets: list[Ticket] = []
        while True:
            try:
                tickets.append(self._mailbox.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                self._waiting -= len(tickets)
                return tickets

    async def _land(self) -> None:
        """Wait until what was submitted is durable and applied."""
        if self._in_flight or self._draft is not None:
            self._landing = trio.Event()
            await self._landing.wait()

    def _let_rest(self) -> None:
        awake, self._awake = self._awake, set()
        self._engine.awake -= awake
        for stream_id in awake:
            stream = self._engine.namespace.by_id.get(stream_id)
            if stream is not None:
                self._engine.rest(stream)

    async def _serve(self) -> None:
        """Work through the batch; a ticket leaves it when it is answered or submitted."""
        while self._batch:
            await self._land()
            if self._must_load(self._batch[0].command) and not await self._load():
                continue
            run = self._run_length()
            tickets, self._batch = self._batch[: run or 1], self._batch[run or 1 :]
            if run:
                self._append(tickets)
            else:
                self._decide_one(tickets[0])

    # --- appends ---

    def _run_length(self) -> int:
        """Return how many tickets at the head of the batch are appends that fit one draft."""
        size = 0
        for run, ticket in enumerate(self._batch):
            if not isinstance(ticket.command, AppendCommand):
                return run
            size += _bytes_of(ticket.command)
            if run and size > DRAFT_BYTES_MAX:
                return run
        return len(self._batch)

    def _must_load(self, command: Command) -> bool:
        """Tell whether the detail must come from disk before a command can be decided."""
        stream = self._engine.namespace.by_key.get(self.key)
        return (
            stream is not None
            and self._engine.needs_loading(stream)
            and not stream.damage
            and isinstance(command, AppendCommand | DeleteCommand | PublishCommand)
        )

    async def _load(self) -> bool:
        """Load the stream's detail; if that fails the first ticket is answered with the failure.

        The stream cannot change meanwhile: all changes come by here.
        """
        engine = self._engine
        stream = engine.namespace.by_key[self.key]
        try:
            stream.detail = await self._blocking(lambda: engine.load_detail(stream))
        except CorruptDataError as exc:
            engine.mark_damaged(stream, str(exc))
        except ReadFailedError as exc:
            engine.failed_reads += 1
            self._batch.pop(0).settle(exc)
            return False
        except OSError as exc:
            reason = f"the stream's index cannot be read: {exc.strerror or exc}"
            error = StorageError(reason)
            error.__cause__ = exc
            self._batch.pop(0).settle(error)
            return False
        self._keep_awake(stream)
        return True

    def _keep_awake(self, stream: Stream) -> None:
        """Have the engine keep the stream's detail as long as this actor is at work."""
        if stream.id not in self._awake:
            self._engine.awake.add(stream.id)
            self._awake.add(stream.id)

    def _append(self, tickets: list[Ticket]) -> None:
        """Open a draft for a run of appends."""
        engine = self._engine
        found = engine.namespace.find(self.key, self._clock())
        if not isinstance(found, Stream):
            for ticket in tickets:
                ticket.settle(found)
            return
        if found.damage:
            for ticket in tickets:
                ticket.settle(StreamDamagedError(found.damage))
            return
        self._keep_awake(found)
        draft = Draft(found, engine.options.producers_max)
        for ticket in tickets:
            self._join(draft, ticket)

    def _join(self, draft: Draft, ticket: Ticket) -> None:
        """Decide an append against a draft; the first one accepted puts it before the committer."""
        command = ticket.command
        assert isinstance(command, AppendCommand)
        outcome = draft.decide(command)
        if draft.empty:
            ticket.settle(outcome)  # it rests on committed state alone
            return
        self._answers.append((ticket, outcome))
        if self._draft is None:
            self._draft = draft
            self._committer.submit_open(self._take, self._landed)

    def _take(self) -> tuple[Record, Data]:
        """Close the draft: the committer is about to write it."""
        assert self._draft is not None
        record, payload = self._draft.record(self._clock())
        self._draft = None
        self._in_flight = True
        return record, payload

    def _landed(self, error: DurastreamError | None) -> None:
        """What was submitted is durable and applied, or failed as a whole."""
        answers, self._answers = self._answers, []
        self._draft = None
        self._in_flight = False
        if self._landing is not None:
            self._landing.set()
            self._landing = None
        for ticket, outcome in answers:
            ticket.settle(error or outcome)

    # --- everything else ---

    def _decide_one(self, ticket: Ticket) -> None:
        decided = self._decide(ticket.command)
        if isinstance(decided, tuple):
            outcome, record, payload = decided
            self._answers.append((ticket, outcome))
            self._in_flight = True
            self._committer.submit(record, payload, self._landed)
        else:
            ticket.settle(decided)

    def _decide(self, command: Command) -> Outcome | StorageError | tuple[Outcome, Record, Data]:
        space, now_ms = self._engine.namespace, self._clock()
        outcome: Outcome
        record: Record | None
        match command:
            case CreateCommand():
                outcome, drafted = space.decide_create(command, now_ms)
                return (outcome, *drafted) if drafted else outcome
            case DeleteCommand():
                outcome, record = self._decide_delete(command, now_ms)
            case PublishCommand():
                outcome, record = space.decide_publish(self.key, command.snapshot, now_ms)
            case BucketCommand():
                bucket = self.key.removesuffix("/")
                outcome, record = space.decide_bucket(bucket, now_ms, exists=command.exists)
            case TouchCommand():
                outcome, record = self._decide_touch(now_ms)
            case AppendCommand():
                message = "appends are decided in runs"
                raise AssertionError(message)
        return (outcome, record, b"") if record is not None else outcome

    def _decide_delete(self, command: DeleteCommand, now_ms: int) -> tuple[Outcome, Record | None]:
        space = self._engine.namespace
        if not command.sweep:
            return space.decide_delete(self.key, now_ms)
        stream = space.by_key.get(self.key)
        over = stream is not None and (
            space.abandoned(stream) or (stream.expired(now_ms) and not stream.gone)
        )
        return (Deleted(), space.removal(stream, now_ms)) if over else (NotFound(), None)

    def _decide_touch(self, now_ms: int) -> tuple[Outcome, Record | None]:
        stream = self._engine.namespace.find(self.key, now_ms)
        if not isinstance(stream, Stream):
            return stream, None
        time_ms = max(now_ms, stream.accessed_ms)
        return Touched(), Touch(stream.id, stream.tail, time_ms, stream.messages)


def _bytes_of(command: AppendCommand) -> int:
    payload = command.payload
    return len(payload.data) if isinstance(payload, Payload) else 0
