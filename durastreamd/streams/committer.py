"""The way from decided records to committed ones: batches, one at a time, through one thread.

Actors ``submit`` records without waiting for each other. While one batch is being written and
synced, everything submitted meanwhile gathers for the next, so the batch grows with the load and
there is no timer. A batch is handed over a scheduler round after its first record came, which
lets every actor that is ready put its record in.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter

import trio

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.errors import (
    DurastreamError,
    OutcomeUnknownError,
    StreamStoppedError,
    WriteFailedError,
)
from durastreamd.model.records import Append, Mark, Record
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data
from durastreamd.storage.format import StoredFrame
from durastreamd.streams.histogram import Histogram
from durastreamd.streams.writer import InlineWriter, ThreadWriter, Work

Landed = Callable[[DurastreamError | None], None]


Take = Callable[[], tuple[Record, Data]]


_Pending = tuple[Record, Landed]


COMMIT_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
BATCH_RECORDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Committer:
    """Gathers records into batches and applies them when they are durable."""

    def __init__(
        self,
        engine: Engine,
        writer: ThreadWriter | InlineWriter,
        on_applied: Callable[[Record, list[Stream]], None],
        on_batch: Callable[[], None],
        on_rotated: Callable[[tuple[cp.Steps, cp.Job] | None], None],
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._on_applied = on_applied
        self._on_batch = on_batch
        self._on_rotated = on_rotated
        self._waiting: list[tuple[Take, Landed]] = []
        self._flying: list[_Pending] = []
        self._frames: list[StoredFrame] = []
        self._scheduled = False
        self._busy = False
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
        self._took_s = 0.0

    def submit(self, record: Record, payload: Data, landed: Landed) -> None:
        """Take a decided record; ``landed`` is told when it is durable and applied, or failed.

        Records are written and applied in the order they were submitted, so a decision may rely
        on every decision before it.
        """
        self._engine.namespace.hold(record)
        self._waiting.append((lambda: (record, payload), landed))
        self._schedule()

    def submit_open(self, take: Take, landed: Landed) -> None:
        """Like ``submit`` for a record in the making: ``take`` closes it when it is written."""
        self._waiting.append((take, landed))
        self._schedule()

    def mark(self, now_ms: int) -> None:
        """Give the last batch a witness, if nothing else is under way and it has none."""
        if not (self._marked or self._busy or self._scheduled or self._waiting):
            self.submit(Mark(now_ms), b"", lambda _: None)

    def rotate(self) -> None:
        """Have the journal rotated and a checkpoint begun, soon."""
        self.rotation_wanted = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._busy:
            self._scheduled = True
            trio.lowlevel.current_trio_token().run_sync_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._scheduled = False
        if self._busy:
            return
        engine = self._engine
        if (self.rotation_wanted or engine.rotation_due()) and not self.checkpointing:
            self._busy = True
            self.busy_since = trio.current_time()
            self._writer.put(engine.journal.rotate, self._rotated)
            return
        if not self._waiting:
            return
        self._busy = True
        self.busy_since = trio.current_time()
        batch, self._waiting = self._waiting, []
        journal, stage = engine.journal, engine.stage
        frames: list[StoredFrame] = []
        for lsn, (take, landed) in enumerate(batch, journal.next_lsn):
            record, payload = take()
            self._flying.append((record, landed))
            frames.append(stage(record, payload, lsn))
        self._frames = frames
        commit = partial(journal.commit, frames, journal.encode(frames))
        self._writer.put(partial(self._timed, commit), self._landed)

    def _timed(self, commit: Work) -> None:
        """Commit, in the writer's thread; nobody reads the time before it has reported."""
        begun = perf_counter()
        commit()
        self._took_s = perf_counter() - begun

    def _rotated(self, error: WriteFailedError | None) -> None:
        self._busy = False
        self.busy_since = None
        self.rotation_wanted = False
        if error is not None:
            self._on_rotated(None)
            self._fail_waiting(error)
            return
        self.checkpointing = True
        steps = cp.checkpoint(self._engine)
        # The first step notes what the checkpoint covers; it must come before the next batch.
        self._on_rotated((steps, next(steps)))
        self._hand_over()

    def checkpoint_ended(self) -> None:
        """Note that the checkpoint is done or has failed; another may be wanted already."""
        self.checkpointing = False
        if self.rotation_wanted:
            self._schedule()

    def _fail_waiting(self, error: DurastreamError) -> None:
        batch, self._waiting = self._waiting, []
        self._fail([(take()[0], landed) for take, landed in batch], error)

    def _landed(self, error: WriteFailedError | None) -> None:
        batch, self._flying = self._flying, []
        self._busy = False
        self.busy_since = None
        if error is not None:
            self._fail(batch, error)
        elif batch:  # if not, it was given up meanwhile: the server is stopping
            self.commit_s.add(self._took_s)
            self.batch_records.add(len(batch))
            self._settle(batch)
        if self._waiting or self.rotation_wanted:
            self._schedule()

    def _fail(self, batch: list[_Pending], error: DurastreamError) -> None:
        for record, landed in batch:
            self._engine.namespace.release(record)
            landed(error)

    def _settle(self, batch: list[_Pending]) -> None:
        self._marked = isinstance(batch[-1][0], Mark)
        self.batches += 1
        self.records += len(batch)
        applied, on_applied = self._engine.applied, self._on_applied
        for (record, landed), frame in zip(batch, self._frames, strict=True):
            if type(record) is Append:
                self.appended_bytes += record.size
                self.appended_messages += record.count
            else:
                self._engine.namespace.release(record)
            on_applied(record, applied(record, frame))
            landed(None)
        self._frames = []
        self._on_batch()

    def abandon(self) -> None:
        """Settle everything under way: the server is going down.

        What waits was never handed to the writer and is not stored. Whether a batch that was
        handed over is on the disk is not known, and not claimed.
        """
        self._fail_waiting(StreamStoppedError("the server stopped before it began with this"))
        unknown = OutcomeUnknownError("the server stopped before the outcome was known")
        flying, self._flying = self._flying, []
        for _, landed in flying:
            landed(unknown)
