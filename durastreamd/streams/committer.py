"""The way from decided records to committed ones: batches, one at a time, through one thread.

Actors ``submit`` records without waiting for each other. While one batch is being written and
synced, everything submitted meanwhile gathers for the next, so the batch grows with the load and
there is no timer. A batch is handed over a scheduler round after its first record came, which
lets every actor that is ready put its record in. It is encoded in that round; a large one is so in
the writer's thread, since joining and summing it takes as long as it has bytes.

States, and what moves between them (``TRANSITIONS`` is the whole truth, ``check`` says what holds):

    IDLE       nobody waits                                     gather   -> GATHERING
                                                                end      -> ENDED
    GATHERING  the next round hands over what waits by then     write    -> WRITING
                                                                rotate   -> ROTATING
                                                                rest     -> IDLE
                                                                end      -> ENDED
    WRITING    the writer has a batch; others wait              report   -> IDLE
                                                                end      -> ENDED
    ROTATING   the writer begins a journal file; others wait    report   -> IDLE
                                                                end      -> ENDED
    ENDED      everybody was told; a report comes too late      report   -> ENDED

Two things stand beside it: whether a rotation is wanted, and whether the checkpoint that the last
one began is still under way. The next rotation waits for that, and batches do not.
"""

from collections.abc import Sequence
from enum import IntEnum, auto
from time import perf_counter
from typing import Final, Protocol

import trio
from msgspec import Struct

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.errors import (
    DurastreamError,
    OutcomeUnknownError,
    StreamStoppedError,
    WriteFailedError,
)
from durastreamd.machines import moves
from durastreamd.model.records import Append, Mark, Record
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data
from durastreamd.storage.format import StoredFrame
from durastreamd.streams.histogram import Histogram
from durastreamd.streams.writer import InlineWriter, ThreadWriter

COMMIT_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

# A batch of more bytes is joined, summed and encoded in the writer's thread, and not on the event
# loop. Each of the three may go over all bytes, so that so many are less than a turn's work.
STAGE_BYTES_MAX = 512 * 1024

BATCH_RECORDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class CommitterState(IntEnum):
    """What is under way."""

    IDLE = auto()
    GATHERING = auto()
    WRITING = auto()
    ROTATING = auto()
    ENDED = auto()


class CommitterEvent(IntEnum):
    """What happens to it."""

    GATHER = auto()  # there is something to do
    WRITE = auto()  # a batch goes to the writer
    ROTATE = auto()  # the journal is to go on in a new file, which comes first
    REST = auto()  # there was nothing to do after all
    REPORT = auto()  # the writer is done
    END = auto()  # the server is going down


TRANSITIONS: Final = {
    (CommitterState.IDLE, CommitterEvent.GATHER): CommitterState.GATHERING,
    (CommitterState.IDLE, CommitterEvent.END): CommitterState.ENDED,
    (CommitterState.GATHERING, CommitterEvent.WRITE): CommitterState.WRITING,
    (CommitterState.GATHERING, CommitterEvent.ROTATE): CommitterState.ROTATING,
    (CommitterState.GATHERING, CommitterEvent.REST): CommitterState.IDLE,
    (CommitterState.GATHERING, CommitterEvent.END): CommitterState.ENDED,
    (CommitterState.WRITING, CommitterEvent.REPORT): CommitterState.IDLE,
    (CommitterState.WRITING, CommitterEvent.END): CommitterState.ENDED,
    (CommitterState.ROTATING, CommitterEvent.REPORT): CommitterState.IDLE,
    (CommitterState.ROTATING, CommitterEvent.END): CommitterState.ENDED,
    (CommitterState.ENDED, CommitterEvent.REPORT): CommitterState.ENDED,
}

_IDLE, _GATHERING, _WRITING, _ROTATING, _ENDED = CommitterState  # looked up once
_GATHER, _WRITE, _ROTATE, _REST, _REPORT, _END = moves(TRANSITIONS, CommitterEvent)


class Waiter(Protocol):
    """Who has submitted a record."""

    def landed(self, error: DurastreamError | None) -> None:
        """Hear that it is durable and applied, or failed; once."""


class Drafter(Waiter, Protocol):
    """Who has submitted a record in the making."""

    def take(self) -> tuple[Record, Sequence[Data]]:
        """Close it and give it away, its payload in parts: it is about to be written; once."""


class Owner(Protocol):
    """Whom the committer serves, as far as it goes on there."""

    def applied(self, record: Record, ended: list[Stream]) -> None:
        """Hear of a record that was applied, and of the streams that ended by it."""

    def batch_applied(self) -> None:
        """Hear that the last record of a batch was."""

    def rotated(self, begun: tuple[cp.Steps, cp.Job] | None) -> None:
        """Carry out the checkpoint that a rotation has begun; None if it failed."""


class _Decided:
    """A record that was whole when it was submitted."""

    __slots__ = ("_record", "_waiter")

    def __init__(self, record: Record, payload: Data, waiter: Waiter | None) -> None:
        self._record = (record, (payload,))
        self._waiter = waiter

    def take(self) -> tuple[Record, Sequence[Data]]:
        return self._record

    def landed(self, error: DurastreamError | None) -> None:
        if self._waiter is not None:
            self._waiter.landed(error)


def joined(parts: Sequence[Data]) -> Data:
    """Return the payload of a record that is not of one part."""
    return b"".join(parts)


class _Flight(Struct):
    """A batch with the writer, and whose records it has."""

    committer: "Committer"
    drafters: list[Drafter]
    records: list[Record]
    payloads: list[Sequence[Data]]
    frames: list[StoredFrame] = []
    pieces: list[Data] = []
    took_s: float = 0.0

    def stage(self) -> None:
        """Encode the batch as it will stand in the journal, which is nobody else's meanwhile."""
        engine = self.committer.engine
        journal, stage, frames = engine.journal, engine.stage, self.frames
        lsn = journal.next_lsn
        for record, parts in zip(self.records, self.payloads, strict=True):
            frames.append(stage(record, parts[0] if len(parts) == 1 else joined(parts), lsn))
            lsn += 1
        self.payloads = []  # the frames have what is needed of them
        self.pieces = journal.encode(frames)

    def work(self) -> None:
        """Commit, in the writer's thread; nobody reads the time before it has reported."""
        if not self.frames:
            self.stage()
        begun = perf_counter()
        self.committer.engine.declare()
        self.committer.engine.journal.commit(self.frames, self.pieces)
        self.took_s = perf_counter() - begun

    def report(self, error: WriteFailedError | None) -> None:
        self.committer.landed(self, error)


class _Rotation:
    """The beginning of another journal file."""

    def __init__(self, committer: "Committer") -> None:
        self._committer = committer

    def work(self) -> None:
        self._committer.engine.journal.rotate()

    def report(self, error: WriteFailedError | None) -> None:
        self._committer.rotated(error)


class Committer:
    """Gathers records into batches and applies them when they are durable."""

    def __init__(self, engine: Engine, writer: ThreadWriter | InlineWriter, owner: Owner) -> None:
        self.engine = engine
        self._writer = writer
        self._owner = owner
        self.state = _IDLE
        self._task: trio.lowlevel.Task | None = None  # the one that hands over, parked
        self._waiting: list[Drafter] = []
        self._flight: _Flight | None = None
        self.checkpointing = False
        self.rotation_wanted = False
        self._marked = True
        self.batches = 0
        self.records = 0
        self.busy_since: float | None = None  # when the writer got what it is at now
        self.commit_s = Histogram(COMMIT_S)  # how long the writing and syncing of batches took
        self.batch_records = Histogram(BATCH_RECORDS)
        self.appended_bytes = 0
        self.appended_messages = 0

    def __repr__(self) -> str:
        return f"<Committer {self.state.name} waiting={len(self._waiting)}>"

    def check(self) -> None:
        """Assert what each state promises; for tests, after each step."""
        state = self.state
        assert not self._waiting or state not in {_IDLE, _ENDED}, self
        assert (self._flight is not None) is (state is _WRITING), self
        assert (self.busy_since is not None) is (state in {_WRITING, _ROTATING}), self
        assert not self.checkpointing or state is not _ROTATING, self

    # --- submitting ---

    def submit(self, record: Record, payload: Data, waiter: Waiter | None) -> None:
        """Take a decided record.

        Records are written and applied in the order they were submitted, so a decision may rely
        on every decision before it.
        """
        self.engine.namespace.hold(record)
        self.submit_open(_Decided(record, payload, waiter))

    def submit_open(self, drafter: Drafter) -> None:
        """Like ``submit`` for a record in the making."""
        self._waiting.append(drafter)
        if self.state is _IDLE:
            self._gather()

    def mark(self, now_ms: int) -> None:
        """Give the last batch a witness, if nothing else is under way and it has none."""
        if self.state is _IDLE and not self._marked:
            self.submit(Mark(now_ms), b"", None)

    def rotate(self) -> None:
        """Have the journal rotated and a checkpoint begun, soon."""
        self.rotation_wanted = True
        if self.state is _IDLE:
            self._gather()

    def checkpoint_ended(self) -> None:
        """Note that the checkpoint is done or has failed; another may be wanted already."""
        self.checkpointing = False
        if self.rotation_wanted and self.state is _IDLE:
            self._gather()

    def _gather(self) -> None:
        self.state = _GATHER[self.state]
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    # --- writing ---

    async def run(self) -> None:
        """Hand over what was gathered, in the next round of the scheduler, until cancelled."""
        while True:
            if self.state is _GATHERING:
                await trio.lowlevel.checkpoint()
            else:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._leave)
            self._hand_over()

    def _leave(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _hand_over(self) -> None:
        if self.state is _ENDED:
            return
        if (self.rotation_wanted or self.engine.rotation_due()) and not self.checkpointing:
            self.state = _ROTATE[self.state]
            self.busy_since = trio.current_time()
            self._writer.put(_Rotation(self))
        elif self._waiting:
            self.state = _WRITE[self.state]
            self.busy_since = trio.current_time()
            self._writer.put(self._depart())
        else:
            self.state = _REST[self.state]

    def _depart(self) -> _Flight:
        """Make a batch of what waits, in the order it came."""
        drafters, self._waiting = self._waiting, []
        records: list[Record] = []
        payloads: list[Sequence[Data]] = []
        size = 0
        for drafter in drafters:
            record, parts = drafter.take()
            records.append(record)
            payloads.append(parts)
            size += record.size
        self._flight = flight = _Flight(self, drafters, records, payloads)
        if size <= STAGE_BYTES_MAX:
            flight.stage()
        return flight

    def rotated(self, error: WriteFailedError | None) -> None:
        """Begin the checkpoint that a new journal file is for, or fail those who wait for it."""
        self.state = _REPORT[self.state]
        if self.state is _ENDED:
            return
        self.busy_since = None
        self.rotation_wanted = False
        if error is not None:
            self._owner.rotated(None)
            self._fail_waiting(error)
            return
        self.checkpointing = True
        steps = cp.checkpoint(self.engine)
        # The first step notes what the checkpoint covers; it must come before the next batch.
        self._owner.rotated((steps, next(steps)))
        if self._waiting and self.state is _IDLE:
            self._gather()

    def landed(self, flight: _Flight, error: WriteFailedError | None) -> None:
        """Apply a batch that is durable, or fail those whose it was."""
        self.state = _REPORT[self.state]
        if self.state is _ENDED:
            return
        self.busy_since = None
        self._flight = None
        if error is None:
            self._apply(flight)
        else:
            self._fail(flight.drafters, flight.records, error)
        if (self._waiting or self.rotation_wanted) and self.state is _IDLE:
            self._gather()

    def _apply(self, flight: _Flight) -> None:
        records = flight.records
        count = len(records)
        self.commit_s.add(flight.took_s)
        self.batch_records.add(count)
        self._marked = type(records[-1]) is Mark
        self.batches += 1
        self.records += count
        applied, tell = self.engine.applied, self._owner.applied
        for drafter, record, frame in zip(flight.drafters, records, flight.frames, strict=True):
            if type(record) is Append:
                self.appended_bytes += record.size
                self.appended_messages += record.count
            else:
                self.engine.namespace.release(record)
            tell(record, applied(record, frame))
            drafter.landed(None)
        self._owner.batch_applied()

    # --- failing ---

    def _fail(self, drafters: list[Drafter], records: list[Record], error: DurastreamError) -> None:
        for drafter, record in zip(drafters, records, strict=True):
            self.engine.namespace.release(record)
            drafter.landed(error)

    def _fail_waiting(self, error: DurastreamError) -> None:
        waiting, self._waiting = self._waiting, []
        self._fail(waiting, [drafter.take()[0] for drafter in waiting], error)

    def abandon(self) -> None:
        """Settle everything under way: the server is going down.

        What waits was never handed to the writer and is not stored. Whether a batch that was
        handed over is on the disk is not known, and not claimed.
        """
        self.state = _END[self.state]
        self.busy_since = None
        flight, self._flight = self._flight, None
        self._fail_waiting(StreamStoppedError("the server stopped before it began with this"))
        unknown = OutcomeUnknownError("the server stopped before the outcome was known")
        for drafter in flight.drafters if flight is not None else ():
            drafter.landed(unknown)
