"""What a run of appends would do to a stream: decided here, written once, applied after the sync.

A ``Draft`` sees the stream as it will be once everything decided so far is committed, so the
second append of a batch meets the state the first one leaves. It changes nothing: the stream
itself moves only when ``stream_state.apply`` is given the draft's record. A batch whose commit
fails is dropped with its draft.

The order of the checks is part of the protocol (another life of the name is reported before a
closed stream, that before a wrong type, a duplicate before an end that is not the expected one or a
Stream-Seq that did not grow, all of them before a body that is not JSON).
"""

from msgspec import Struct, structs

from durastreamd.model.producers import ProducerVerdict, SumRun, judge
from durastreamd.model.records import Append, Producer
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data, content_type
from durastreamd.protocol.offsets import POSITION_MAX, Position
from durastreamd.protocol.outcomes import (
    AlreadyClosed,
    Appended,
    ContentTypeMismatch,
    Duplicate,
    EpochNotAtZero,
    Malformed,
    OffsetConflict,
    OtherLife,
    Outcome,
    RepeatDiffers,
    SeqRegression,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamFull,
    TooManyProducers,
)


class Payload(Struct, frozen=True, gc=False):
    """A body in wire form: its bytes and how many messages they are (one, if not JSON)."""

    data: Data
    count: int = 1


class Conditions(Struct, frozen=True, gc=False):
    """What must be true of a stream for an append to be taken: which one it is, where it ends."""

    life: int | None = None  # the id it had when the request came; -1 if it was not the one meant
    expected: int | None = None  # the tail
    sum: str | None = None  # of the append: its repeats are to be told from other bytes


class AppendCommand(Struct, frozen=True, gc=False):
    """Append bytes, or close, or both. No payload and ``closes`` means close only."""

    payload: Payload | Malformed | None
    content_type: str | None = None
    closes: bool = False
    producer: Producer | None = None
    seq: str | None = None
    conditions: Conditions | None = None


class Draft:
    """The stream as a batch in the making will leave it."""

    __slots__ = (
        "_closes",
        "_count",
        "_parts",
        "_producers",
        "_producers_max",
        "_seq",
        "_stream",
        "_sums",
        "size",
    )

    def __init__(self, stream: Stream, producers_max: int) -> None:
        self._stream = stream
        self._producers_max = producers_max
        self._parts: list[Data] = []
        self.size = 0  # of all that was accepted
        self._count = 0
        self._closes = False
        self._seq: str | None = None
        self._producers: dict[str, tuple[int, int]] = {}
        self._sums: dict[str, SumRun] | None = None  # of those that asked for it

    def decide(self, command: AppendCommand) -> Outcome:
        """Answer one command and, where it is accepted, take it into the draft."""
        stream = self._stream
        tail = Position(stream.tail + self.size)
        if command.conditions is not None and command.conditions.life not in (None, stream.id):
            return OtherLife()
        if stream.closed or self._closes:
            return self._decide_closed(command, tail)
        payload = command.payload
        expected, actual = stream.content_type, command.content_type or ""
        if payload is not None and expected != actual and not content_type.same(expected, actual):
            return ContentTypeMismatch(expected, actual)
        if command.producer is not None:
            refused = self._judge_producer(command.producer, tail)
            if refused is not None:
                return self._strictly(command, refused)
        if command.seq is not None or command.conditions is not None:
            refused = self._judge_order(command, tail)
            if refused is not None:
                return refused
        if isinstance(payload, Malformed):
            return payload
        return self._take(command, payload, tail)

    def _take(self, command: AppendCommand, payload: Payload | None, tail: Position) -> Outcome:
        if payload is not None:
            size = len(payload.data)
            if tail + size > POSITION_MAX:
                return StreamFull(tail)
            self._parts.append(payload.data)
            self.size += size
            self._count += payload.count
            tail = Position(tail + size)
        if command.seq is not None:
            self._seq = command.seq
        epoch = seq = -1
        if command.producer is not None:
            name, epoch, seq = command.producer
            self._producers[name] = (epoch, seq)
        if command.closes:
            self._closes = True
        return Appended(tail, command.closes, epoch, seq, payload is None)

    def _decide_closed(self, command: AppendCommand, tail: Position) -> Outcome:
        """A closed stream takes nothing, but a retry of what it took is still recognised."""
        if command.producer is not None:
            name, epoch, seq = command.producer
            known = self._known(name)
            if known is not None and judge(known, epoch, seq) is ProducerVerdict.DUPLICATE:
                found = Duplicate(tail, closed=True, epoch=known[0], seq=known[1])
                return self._strictly(command, found)
        elif command.payload is None:
            return AlreadyClosed(tail)
        return StreamClosed(tail)

    def _judge_order(self, command: AppendCommand, tail: Position) -> Outcome | None:
        """Refuse what comes elsewhere or later than its writer believes; the last of the checks."""
        if command.conditions is not None:
            expected = command.conditions.expected
            if expected is not None and expected != tail:
                return OffsetConflict(expected, tail)
        if command.seq is not None:
            last = self._seq if self._seq is not None else self._stream.loaded().seq
            if last is not None and command.seq <= last:
                return SeqRegression(last, command.seq, tail)
        if command.conditions is not None and not isinstance(command.payload, Malformed):
            self._remember(command)  # nothing refuses it any more
        return None

    def _strictly(self, command: AppendCommand, found: Outcome) -> Outcome:
        """Return what a repeat is to a producer that wants to know whether it is one."""
        wanted = command.conditions.sum if command.conditions is not None else None
        if wanted is None or not isinstance(found, Duplicate) or command.producer is None:
            return found
        name, epoch, seq = command.producer
        known = None
        for runs in (self._sums or {}, self._stream.loaded().sums):
            if known is None and name in runs:
                known = runs[name].of(epoch, seq)
        if known == wanted:
            return structs.replace(found, strict=True)
        return RepeatDiffers(found.tail, found.epoch, found.seq, seq, unknown=known is None)

    def _remember(self, command: AppendCommand) -> None:
        """Keep the sum of an append that is taken, if its producer wants it."""
        if command.producer is None or command.conditions is None or command.conditions.sum is None:
            return
        name, epoch, seq = command.producer
        runs = self._sums = self._sums or {}
        run = SumRun(epoch, seq, command.conditions.sum)
        runs[name] = runs[name].then(run) if name in runs else run

    def _known(self, name: str) -> tuple[int, int] | None:
        return self._producers.get(name) or self._stream.loaded().producers.get(name)

    def _judge_producer(self, producer: Producer, tail: Position) -> Outcome | None:
        name, epoch, seq = producer
        known = self._known(name)
        verdict = judge(known, epoch, seq)
        if verdict is ProducerVerdict.ACCEPT:
            return self._room_for_producer(known)
        current, last = known or (epoch, -1)
        if verdict is ProducerVerdict.DUPLICATE:
            return Duplicate(tail, closed=False, epoch=current, seq=last)
        if verdict is ProducerVerdict.STALE:
            return StaleEpoch(current)
        if verdict is ProducerVerdict.NOT_AT_ZERO:
            return EpochNotAtZero(epoch, seq)
        return SequenceGap(last + 1, seq)

    def _room_for_producer(self, known: tuple[int, int] | None) -> Outcome | None:
        if known is None:
            stored = self._stream.loaded().producers
            total = len(stored) + sum(name not in stored for name in self._producers)
            if total >= self._producers_max:
                return TooManyProducers(self._producers_max)
        return None

    @property
    def empty(self) -> bool:
        """Tell whether nothing was accepted."""
        return not (self._parts or self._closes or self._producers)

    def record(self, now_ms: int) -> tuple[Append, Data]:
        """Return the one record with its payload in one: for callers without an event loop."""
        record, parts = self.in_parts(now_ms)
        return record, b"".join(parts)

    def in_parts(self, now_ms: int) -> tuple[Append, list[Data]]:
        """Return the one record of all that was accepted, and the parts of its payload."""
        stream = self._stream
        record = Append(
            stream.id,
            stream.tail,
            self.size,
            max(now_ms, stream.accessed_ms),
            stream.messages,
            self._count,
            None if stream.json else [len(part) for part in self._parts],
            self._closes,
            self._seq,
            tuple([(name, epoch, seq) for name, (epoch, seq) in self._producers.items()]),
        )
        if self._sums is not None:
            sums = tuple([(name, *run) for name, run in self._sums.items()])
            return structs.replace(record, sums=sums), self._parts
        return record, self._parts
