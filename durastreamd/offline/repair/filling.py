"""Records made up for bytes of a segment that no whole entry of an index vouches for.

Where a hurt entry still proves bytes (``witnesses``) the record is proven, too. All others are
*doubtful*: nothing says whether the disk gave back what was written, so they are served only if the
operator says so. Their messages are told apart as far as the bytes themselves show it: JSON where
every message parses and the count fits, others at places that are made up.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from durastreamd.model.records import Append, Create
from durastreamd.model.stream_state import Stream
from durastreamd.offline.repair.pieces import Messages, Piece, SegmentBytes, messages_of
from durastreamd.offline.verify.folding import record_of
from durastreamd.protocol.json_text import SEPARATOR
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_sum

_at = itemgetter(0)


class _Place(NamedTuple):
    """What is known of a stream at a place: the record, the messages and the time before it."""

    lsn: int
    messages: int
    time_ms: int


class _Stretch(NamedTuple):
    """A range of bytes that becomes records; ``proven`` is the one that a hurt entry says it is."""

    low: int
    high: int
    proven: Messages | None = None


class Filling:
    """The gaps of one stream, filled from its first byte on.

    ``hurt`` are entries that do not verify and prove their bytes all the same.
    """

    def __init__(
        self,
        stream: Stream,
        pieces: list[Piece],
        states: Iterable[Stream],
        hurt: Iterable[fmt.StoredFrame],
    ) -> None:
        self._stream = stream
        self._hurt = sorted(hurt, key=lambda frame: frame.start)
        told = [(p.frame.start, _Place(p.frame.lsn, p.frame.ordinal, 0)) for p in pieces]
        reached = [(p.end, _Place(p.frame.lsn, p.messages, p.frame.time_ms)) for p in pieces]
        known = [(s.tail, _Place(s.lsn, s.messages, s.written_ms)) for s in states]
        # A state's own record lies before it: what comes next has a higher number.
        beyond = [(tail, place._replace(lsn=place.lsn + 1, time_ms=0)) for tail, place in known]
        first = (0, _Place(0, 0, stream.created_ms))
        last = (2**63, _Place(stream.lsn + 1, stream.messages, 0))
        # The highest of all up to a place, and the lowest of all from there on.
        self._before = list(accumulate(sorted([first, *reached, *known]), _rising))
        after = sorted([*told, *beyond, last], reverse=True)
        self._after = list(accumulate(after, _falling))[::-1]
        self._made = _Place(0, 0, 0)  # after the last record that was made up

    def fill(self, low: int, high: int, source: SegmentBytes) -> Iterator[Piece]:
        """Yield records for a range of a segment's bytes; ranges come in order."""
        at = bisect_right(self._before, low, key=_at) - 1
        self._made = max(self._before[at][1], self._made)
        limit = self._after[bisect_left(self._after, high, key=_at)][1]
        parts = list(self._parts(low, high, source))
        # What is proven is counted first: what is not makes do with the rest.
        reserved = sum(_number(part.proven) for part in parts if part.proven is not None)
        for part in parts:
            data = source.read(part.high - part.low, part.low - source.base)
            if part.proven is not None:
                found = iter([part.proven])
                reserved -= _number(part.proven)
            else:
                room = limit.messages - self._made.messages - reserved
                found = messages_of(data, json=self._stream.json, count=room)
            for messages in found:
                piece = self._record(part, messages, data, source)
                if piece.frame.lsn >= limit.lsn or piece.messages > limit.messages:
                    return
                self._made = self._made._replace(lsn=piece.frame.lsn, messages=piece.messages)
                yield piece

    def _parts(self, low: int, high: int, source: SegmentBytes) -> Iterator[_Stretch]:
        """Yield a range in order: what hurt entries prove, and what lies between."""
        at = low
        first = bisect_left(self._hurt, low, key=lambda frame: frame.start)
        for frame in self._hurt[first:]:
            end = frame.start + frame.size
            if frame.start >= high:
                break
            if frame.start < at or end > high:
                continue
            if at < frame.start:
                yield _Stretch(at, frame.start)
            data = source.read(frame.size, frame.start - source.base)
            yield _Stretch(frame.start, end, _witnessed(frame, data, json=self._stream.json))
            at = end
        if at < high:
            yield _Stretch(at, high)

    def _record(self, part: _Stretch, found: Messages, data: bytes, source: SegmentBytes) -> Piece:
        start, size, messages = found
        lsn, ordinal, time_ms = self._made
        at, owner = part.low + start, self._stream.id
        lengths = None if isinstance(messages, int) else messages
        record = Append(owner, at, size, time_ms, ordinal, _number(found), lengths)
        total = payload_sum(memoryview(data)[start : start + size], owner, at)
        fields = (owner, at, size, time_ms, ordinal, total, lsn + 1)
        frame = fmt.StoredFrame(*fields, record.header(), b"")
        return Piece(frame, record, source.path, at - source.base, part.proven is not None)


def _witnessed(frame: fmt.StoredFrame, data: bytes, *, json: bool) -> Messages:
    """Return the one record that proven bytes are, with its messages as far as they are known."""
    if json:
        return 0, len(data), data.count(SEPARATOR)
    record = record_of(frame)
    lengths = record.lengths if isinstance(record, Append | Create) else None
    if lengths and sum(lengths) == len(data):
        return 0, len(data), list(lengths)
    return 0, len(data), [len(data)]


def _number(found: Messages) -> int:
    return found[2] if isinstance(found[2], int) else len(found[2])


def _rising(one: tuple[int, _Place], other: tuple[int, _Place]) -> tuple[int, _Place]:
    return other[0], max(one[1], other[1])


def _falling(one: tuple[int, _Place], other: tuple[int, _Place]) -> tuple[int, _Place]:
    return other[0], min(one[1], other[1])
