"""The actor: the one owner of a stream's writes.

Theory of operation
-------------------
An actor belongs to a name, and serves it through creation, appends, closure and deletion, also
when the stream is deleted and made again. Tickets are answered strictly in the order they came.

A run of appends is decided against a draft, so that each append sees the ones before it, and
becomes one record. The draft stays open until the committer takes it along with everybody else's:
an append that comes while it is open joins it on the spot. From then until the record is durable
and applied it is in flight.

States, and what moves between them (``TRANSITIONS`` is the whole truth, ``check`` says what holds):

    RESTING    nothing of it is with the committer              open     -> DRAFTING
                                                                submit   -> IN_FLIGHT
                                                                load     -> LOADING
    DRAFTING   a draft is, and takes more                       take     -> IN_FLIGHT
    IN_FLIGHT  a record is, and becomes durable                 land     -> RESTING
    LOADING    the task reads what a decision needs             loaded   -> RESTING

A ticket that can be decided in the state it finds is decided on the spot. Any other is *queued*, in
whatever state, and so is every one that comes while others are: they wait in the mailbox, where the
task finds them. It takes the first, drains the rest without waiting, and works through them. So
batches grow while a sync runs, without a timer and without a lock. Mailbox and task come with the
first ticket that has to wait: a stream that is written to now and then costs neither, and ten
thousand of them little.

Everything an actor decides from is committed state plus its own open draft. An answer waits for
the commit of its draft, also a duplicate's (its original may be in the same draft) and also a
refusal's (what it was refused for may not come to be). If the commit fails, all get the error.

Between the decision of anything but an append and its ``submit`` there is no await, and the
committer keeps the order: decisions that concern other streams (forks, deletions, buckets) reach
the journal in the order they were made, and rely on it.

On the way out every ticket is settled, those still in the mailbox included: the drain there has no
bound, and no await stands between it and the closing of the mailbox.
"""

from collections.abc import Callable
from enum import IntEnum, auto
from typing import Final, Protocol, TypeVar

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
from durastreamd.machines import moves
from durastreamd.model import retention
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Record, Touch
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data
from durastreamd.protocol.offsets import Position
from durastreamd.protocol.outcomes import (
    Deleted,
    NotFound,
    OtherLife,
    Outcome,
    Retained,
    Touched,
)
from durastreamd.storage.extensions import RETENTION
from durastreamd.streams.committer import Committer
from durastreamd.streams.ticket import (
    BucketCommand,
    Command,
    DeleteCommand,
    PublishCommand,
    RetainCommand,
    Ticket,
    TouchCommand,
)

# The parts of a draft are joined in one copy by the committer, a millisecond or two for so many. A
# larger append is a draft of its own and is not copied.
DRAFT_BYTES_MAX = 4 * 1024 * 1024

T = TypeVar("T")


class ActorState(IntEnum):
    """What of a stream is under way."""

    RESTING = auto()
    DRAFTING = auto()
    IN_FLIGHT = auto()
    LOADING = auto()


class ActorEvent(IntEnum):
    """What happens to it."""

    OPEN = auto()  # an append is accepted: its draft goes before the committer
    SUBMIT = auto()  # anything else is
    TAKE = auto()  # the committer closes the draft
    LAND = auto()  # and tells what became of it
    LOAD = auto()  # the first ticket needs what is on disk
    LOADED = auto()  # and has it, or cannot have it


TRANSITIONS: Final = {
    (ActorState.RESTING, ActorEvent.OPEN): ActorState.DRAFTING,
    (ActorState.RESTING, ActorEvent.SUBMIT): ActorState.IN_FLIGHT,
    (ActorState.RESTING, ActorEvent.LOAD): ActorState.LOADING,
    (ActorState.DRAFTING, ActorEvent.TAKE): ActorState.IN_FLIGHT,
    (ActorState.IN_FLIGHT, ActorEvent.LAND): ActorState.RESTING,
    (ActorState.LOADING, ActorEvent.LOADED): ActorState.RESTING,
}

_RESTING, _DRAFTING, _IN_FLIGHT, _LOADING = ActorState  # looked up once
_OPEN, _SUBMIT, _TAKE, _LAND, _LOAD, _LOADED = moves(TRANSITIONS, ActorEvent)


class Host(Protocol):
    """Where actors live."""

    engine: Engine
    committer: Committer
    clock: Callable[[], int]

    async def blocking(self, job: Callable[[], T]) -> T:
        """Run a job that touches the disk."""

    def spawn(self, actor: "Actor") -> None:
        """Give an actor its task."""


class Actor:
    """Owns the writes of one name."""

    def __init__(self, key: str, host: Host, mailbox_max: int) -> None:
        self.key = key
        self._host = host
        self._engine = host.engine
        self._committer = host.committer
        self._clock = host.clock
        self.state = _RESTING
        self._send: trio.MemorySendChannel[Ticket] | None = None
        self._mailbox_max = mailbox_max
        self._queued = 0  # tickets that came and are not decided yet
        self._batch: list[Ticket] = []  # of these: what the task has taken from the mailbox
        self._draft: Draft | None = None
        self._answers: list[tuple[Ticket, Outcome]] = []  # due when it lands
        self._landing: trio.Event | None = None  # the task waits for that
        self._awake: set[int] = set()
        self.used_at = 0.0

    def __repr__(self) -> str:
        return f"<Actor {self.key!r} {self.state.name} queued={self._queued}>"

    def check(self) -> None:
        """Assert what each state promises; for tests, after each step."""
        state = self.state
        assert (self._draft is not None) is (state is _DRAFTING), self
        assert bool(self._answers) is (state is _DRAFTING or state is _IN_FLIGHT), self
        assert self._landing is None or self._answers, self
        assert self._queued or not (self._batch or state is _LOADING), self
        assert self._queued >= len(self._batch), self

    def put(self, ticket: Ticket) -> None:
        """Take a ticket: decide it on the spot where that keeps the order, else let it wait.

        Raises trio.WouldBlock if too many wait.
        """
        command = ticket.command
        if self._queued:
            self._let_wait(ticket)
        elif self.state is _RESTING and not self._must_load(command):
            if isinstance(command, AppendCommand):
                self._append([ticket])
            else:
                self._decide_one(ticket)
        elif (
            (draft := self._draft) is not None
            and isinstance(command, AppendCommand)
            and self._has_room(draft, command)
        ):
            self._join(draft, ticket)
        else:
            self._let_wait(ticket)

    def _let_wait(self, ticket: Ticket) -> None:
        if self._send is None:
            self._send, self._mailbox = trio.open_memory_channel[Ticket](self._mailbox_max)
            self._host.spawn(self)
        self._send.send_nowait(ticket)
        self._queued += 1

    def _has_room(self, draft: Draft, command: AppendCommand) -> bool:
        """Tell whether the open draft takes one more; it is bounded as the mailbox is."""
        if len(self._answers) >= self._mailbox_max:
            return False
        payload = command.payload
        return type(payload) is not Payload or draft.size + len(payload.data) <= DRAFT_BYTES_MAX

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way."""
        return self.state is _RESTING and not self._queued

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
                self._batch.append(first)
                await self._land()
                self._batch += self._drain()
                await self._serve()
        finally:
            # No await from here to the closing: no ticket can slip in between. What was submitted
            # is settled by the committer, whatever becomes of it.
            tickets, self._batch, self._queued = [*self._batch, *self._drain()], [], 0
            for ticket in tickets:
                ticket.settle(StreamStoppedError("the stream's task has ended"))
            self._mailbox.close()
            self._let_rest()

    def _drain(self) -> list[Ticket]:
        tickets: list[Ticket] = []
        while True:
            try:
                tickets.append(self._mailbox.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return tickets

    async def _land(self) -> None:
        """Wait until what was submitted is durable and applied."""
        if self.state is not _RESTING:
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
            self._queued -= len(tickets)  # whoever came meanwhile went behind them

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
            and isinstance(command, AppendCommand | DeleteCommand | PublishCommand | RetainCommand)
        )

    async def _load(self) -> bool:
        """Load the stream's detail; if that fails the first ticket is answered with the failure.

        The stream cannot change meanwhile: all changes come by here.
        """
        engine = self._engine
        stream = engine.namespace.by_key[self.key]
        self.state = _LOAD[self.state]
        try:
            stream.detail = await self._host.blocking(lambda: engine.load_detail(stream))
        except CorruptDataError as exc:
            engine.note_damage(exc)
        except ReadFailedError as exc:
            engine.failed_reads += 1
            self._refuse_first(exc)
            return False
        except OSError as exc:
            reason = f"the stream's index cannot be read: {exc.strerror or exc}"
            error = StorageError(reason)
            error.__cause__ = exc
            self._refuse_first(error)
            return False
        finally:
            self.state = _LOADED[self.state]
        self._keep_awake(stream)
        return True

    def _refuse_first(self, error: StorageError) -> None:
        """Answer the first ticket with what kept it from being decided."""
        self._queued -= 1
        self._batch.pop(0).settle(error)

    def _keep_awake(self, stream: Stream) -> None:
        """Have the engine keep the stream's detail as long as this actor is at work."""
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
        if found.id in engine.unwritable:
            for ticket in tickets:
                ticket.settle(engine.unwritable[found.id].refusal())
            return
        if found.id not in self._awake:
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
            self.state = _OPEN[self.state]
            self._committer.submit_open(self)

    def take(self) -> tuple[Record, list[Data]]:
        """Close the draft: the committer is about to write it."""
        self.state = _TAKE[self.state]
        draft, self._draft = self._draft, None
        assert draft is not None
        return draft.in_parts(self._clock())

    def landed(self, error: DurastreamError | None) -> None:
        """What was submitted is durable and applied, or failed as a whole."""
        self.state = _LAND[self.state]
        answers, self._answers = self._answers, []
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
            self.state = _SUBMIT[self.state]
            self._committer.submit(record, payload, self)
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
                stream = space.by_key.get(self.key)
                if stream is not None and stream.id in self._engine.unwritable:
                    return self._engine.unwritable[stream.id].refusal()
                outcome, record = space.decide_publish(self.key, command.snapshot, now_ms)
            case RetainCommand():
                outcome, record = self._decide_retain(command, now_ms)
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
            return space.decide_delete(self.key, now_ms, command.life)
        stream = space.by_key.get(self.key)
        over = stream is not None and (
            space.abandoned(stream) or (stream.expired(now_ms) and not stream.gone)
        )
        return (Deleted(), space.removal(stream, now_ms)) if over else (NotFound(), None)

    def _decide_retain(self, command: RetainCommand, now_ms: int) -> tuple[Outcome, Record | None]:
        stream = self._engine.namespace.find(self.key, now_ms)
        if not isinstance(stream, Stream):
            return stream, None
        if stream.id != command.stream:
            return OtherLife(), None
        record = retention.decide(stream, command.change, now_ms)
        if record is None:
            return Retained(Position(stream.floor)), None
        self._engine.extend(RETENTION)
        return Retained(Position(record.floor)), record

    def _decide_touch(self, now_ms: int) -> tuple[Outcome, Record | None]:
        stream = self._engine.namespace.find(self.key, now_ms)
        if not isinstance(stream, Stream):
            return stream, None
        time_ms = max(now_ms, stream.accessed_ms)
        return Touched(), Touch(stream.id, stream.tail, time_ms, stream.messages)


def _bytes_of(command: AppendCommand) -> int:
    payload = command.payload
    return len(payload.data) if isinstance(payload, Payload) else 0
