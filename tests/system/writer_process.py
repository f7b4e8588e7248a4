"""A real process that writes until it is stopped, and notes what it was promised; the checker, too.

    writer_process.py DIRECTORY ACKS RUN [SYNCS]

Several callers with idempotent producers append to a few streams; another makes streams and
deletes them. Every acknowledged change becomes a line of ACKS, which must be on another file
system where the power is cut: one write each, which a kill does not undo. After a restart each
producer goes on behind its last acknowledged number, as a client would: what was stored without
an answer is then a duplicate. With SYNCS that many syncs succeed and the next one fails.
"""

import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import trio

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import (
    OutcomeUnknownError,
    OverloadedError,
    StreamStoppedError,
    SyncFailedError,
    WriteFailedError,
)
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand
from durastreamd.protocol.outcomes import Appended, Created, Deleted, Duplicate, Exists, Outcome
from durastreamd.storage.disk import RealDisk
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import Command, DeleteCommand

EXIT_DISK = 74  # EX_IOERR
STREAMS = ("/a", "/b", "/c")
PRODUCERS = ("p", "q", "r")
KIND = "text/plain"
# Small, so that a short life sees rotations, flushes, new segments and folded states.
OPTIONS = EngineOptions(
    journal_bytes_max=16 * 1024,
    segment_bytes_max=8 * 1024,
    hot_bytes_max=8 * 1024,
    state_every_bytes=1024,
    syncs_max=8,
    slice_streams=2,
)
_MESSAGE = re.compile(rb"<(\w+) (\d+) x*>")


class Ack(NamedTuple):
    """A promise: this number of this producer is in this stream, up to ``tail`` (-1: unknown)."""

    stream: str
    producer: str
    seq: int
    tail: int


def now_ms() -> int:
    return int(time.time() * 1000)


def body(producer: str, seq: int) -> bytes:
    return b"<%s %d %s>" % (producer.encode(), seq, b"x" * (seq * 37 % 120))


def read_acks(path: Path) -> list[Ack]:
    """Return what was promised; a line without its end was being written at the kill."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    split = [line.split() for line in lines]
    return [Ack(stream, producer, int(seq), int(tail)) for stream, producer, seq, tail in split]


class FailingDisk(RealDisk):
    """Its syncs fail from the n-th on."""

    def __init__(self, root: str, syncs: int) -> None:
        super().__init__(root)
        self._left = syncs

    def sync(self, handle: int) -> None:
        self._left -= 1
        if self._left < 0:
            message = "fdatasync failed: Input/output error"
            raise SyncFailedError(message)
        super().sync(handle)


class Writer:
    """The callers of one life."""

    def __init__(self, streams: Streams, acks: Path, run: int) -> None:
        self._streams = streams
        self._run = run
        known = read_acks(acks)
        self._last = {(ack.stream, ack.producer): ack.seq for ack in known}
        self._acks = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _acknowledge(self, ack: Ack) -> None:
        line = f"{ack.stream} {ack.producer} {ack.seq} {ack.tail}\n".encode()
        assert os.write(self._acks, line) == len(line)

    async def _ask(self, key: str, command: Command) -> Outcome:
        while True:
            try:
                return await self._streams.ask(key, command)
            except (StreamStoppedError, OutcomeUnknownError):
                await trio.sleep_forever()  # the process is about to end
            except (OverloadedError, WriteFailedError):
                await trio.sleep(0.005)

    async def append_forever(self, key: str, producer: str) -> None:
        seq = self._last.get((key, producer), -1)
        while True:
            seq += 1
            command = AppendCommand(Payload(body(producer, seq)), KIND, producer=(producer, 0, seq))
            outcome = await self._ask(key, command)
            assert isinstance(outcome, Appended | Duplicate), outcome
            tail = outcome.tail if isinstance(outcome, Appended) else -1
            self._acknowledge(Ack(key, producer, seq, tail))

    async def churn_forever(self) -> None:
        number = 0
        while True:
            key = f"/churn-{self._run}-{number}"
            number += 1
            assert isinstance(await self._ask(key, CreateCommand(key, KIND)), Created)
            await self._ask(key, AppendCommand(Payload(b"x" * 50), KIND))
            assert isinstance(await self._ask(key, DeleteCommand()), Deleted)
            self._acknowledge(Ack(key, "deleted", 0, -1))

    async def serve(self) -> None:
        async with self._streams.running(), trio.open_nursery() as nursery:
            for key in STREAMS:
                outcome = await self._ask(key, CreateCommand(key, KIND))
                assert isinstance(outcome, Created | Exists)
                for producer in PRODUCERS:
                    nursery.start_soon(self.append_forever, key, producer)
            nursery.start_soon(self.churn_forever)


def main(directory: str, acks: str, run: str, syncs: str = "") -> int:
    disk = FailingDisk(directory, int(syncs)) if syncs else RealDisk(directory)
    status = 0
    try:
        engine, _ = open_engine(disk, OPTIONS, lambda: os.urandom(16), now_ms(), create=True)
        trio.run(Writer(Streams(engine, now_ms), Path(acks), int(run)).serve)
    except* SyncFailedError:
        status = EXIT_DISK
    return status


# --- the checker ---


class Checked(NamedTuple):
    """How much was looked at."""

    acknowledged: int
    stored: int
    deleted: int


def check(directory: Path, acks: Path) -> Checked:
    """Open the directory and hold it against what was promised."""
    known = read_acks(acks)
    engine, report = open_engine(RealDisk(str(directory)), OPTIONS, bytes, now_ms())
    try:
        assert not report.damaged, report.damaged
        deleted = [ack.stream for ack in known if ack.producer == "deleted"]
        for key in deleted:
            assert key not in engine.namespace.by_key, f"{key} came back"
        stored = 0
        for key in STREAMS:
            stored += _check_stream(engine, key, [ack for ack in known if ack.stream == key])
    finally:
        engine.release()
    return Checked(len(known), stored, len(deleted))


def _check_stream(engine: Engine, key: str, known: list[Ack]) -> int:
    stream = engine.namespace.by_key[key]
    view = engine.view(stream)
    data = view.read(0, stream.tail)
    ends: dict[tuple[str, int], int] = {}
    following: Counter[str] = Counter()
    position = 0
    while position < len(data):
        found = _MESSAGE.match(data, position)
        assert found, f"{key}: torn at {position}: {data[position : position + 60]!r}"
        producer, seq = found[1].decode(), int(found[2])
        assert found[0] == body(producer, seq), f"{key}: not what was sent at {position}"
        assert seq == following[producer], f"{key}: {producer} {seq} at {position} is out of order"
        following[producer] += 1
        position = found.end()
        ends[producer, seq] = position
    assert [end for _, end in view.messages(0)] == list(ends.values())
    for ack in known:
        assert (ack.producer, ack.seq) in ends, f"{ack} is lost"
        assert ack.tail in (-1, ends[ack.producer, ack.seq]), f"{ack} is elsewhere"
    _check_producers(engine, key, following)
    return len(ends)


def _check_producers(engine: Engine, key: str, following: Counter[str]) -> None:
    """The last number stored is a duplicate if it is sent again, and the one after is taken."""
    stream = engine.namespace.by_key[key]
    if engine.needs_loading(stream):
        stream.detail = engine.load_detail(stream)
    for producer, count in following.items():
        draft = Draft(stream, 100)
        for seq, kind in ((count - 1, Duplicate), (count, Appended)):
            again = AppendCommand(Payload(body(producer, seq)), KIND, producer=(producer, 0, seq))
            assert isinstance(draft.decide(again), kind), (key, producer, seq)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
