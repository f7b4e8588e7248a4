"""A stream's bytes as of one moment: from memory, from its segments, from the streams it forked.

A view is made in one go by the engine, costs no system call, and stays true: it names only
committed bytes, and those never change. What it takes from files is verified on the way
(``storage.proofs``), each time. Its methods read files and may block, so they are called from a
worker thread, or ``at_once``: then they raise ColdReadError instead of waiting for the disk, and
LongReadError instead of holding the event loop for more than a turn's work.

Nothing here reads a record or a message whole to find a place in it: JSON is searched in strides,
and counted in them, so that memory is bounded and so is every single call.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from durastreamd.errors import ColdReadError, CorruptDataError, LongReadError
from durastreamd.model.records import Append, Create, Record, RecordPlace, Snapshot, parse
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import Data
from durastreamd.protocol.json_mode import SEPARATOR
from durastreamd.storage import format as fmt, log
from durastreamd.storage.blobs import BlobFile
from durastreamd.storage.disk import Disk, faults_of
from durastreamd.storage.index import IndexReader
from durastreamd.storage.proofs import Proofs, Segment

# How much a scan for a message boundary reads at once.
_STRIDE = 64 * 1024

# The longest piece of work on the event loop, in bytes that are read or scanned: 1 ms on an idle
# machine. What takes its time for other reasons counts as bytes, so that no mixture of it takes
# more than 10 ms.
TURN_BYTES = 1024 * 1024
_SEARCH_BYTES = 32 * 1024  # a search in an index of 20,000 entries: 0.155 ms measured, of 0.31
_ENTRY_BYTES = 1024  # a span made of an entry of an index: 3.0 us, of a record: 1.6; of 9.8
_MESSAGE_BYTES = 64  # a message that is looked at by itself: 0.3 us


class Level(NamedTuple):
    """The part of a view that one stream holds: its own bytes, or those a fork inherited."""

    stream: int
    low: int
    high: int
    placement: log.Placement
    hot: tuple[fmt.StoredFrame, ...]


class Span(NamedTuple):
    """A record that holds bytes of a view."""

    start: int
    size: int
    time_ms: int
    ordinal: int
    record: Append | Create


def record_of(frame: fmt.StoredFrame) -> Record:
    """Return the record of a stored frame."""
    place = RecordPlace(frame.stream, frame.start, frame.size, frame.time_ms, frame.ordinal)
    return parse(place, frame.header)


def blob_of(shown: Snapshot) -> BlobFile:
    """Return the file that holds a snapshot."""
    return BlobFile(shown.owner, shown.position, shown.serial, shown.size, shown.sum)


class View:
    """Reads one stream up to ``tail``; see the module."""

    def __init__(self, disk: Disk, proofs: Proofs, levels: list[Level], stream: Stream) -> None:
        self._disk = disk
        self._proofs = proofs
        self.levels = levels  # in position order: the oldest ancestor first
        self._lows = [level.low for level in levels]
        self._json = stream.json
        self._messages = stream.messages
        self.floor = stream.floor
        self.tail = stream.tail
        # Whether reads may wait for the disk and take long; if not, they raise instead.
        self.wait = True
        self.spent = 0  # work done since ``at_once``, in bytes
        self._bases: dict[int, list[int]] = {}

    def at_once(self) -> None:
        """Begin a turn on the event loop: no waiting, and no more work than a turn may do."""
        self.wait = False
        self.spent = 0

    def _spend(self, size: int) -> None:
        """Count work; raise where the event loop would be held by more of it."""
        self.spent += size
        if self.spent > TURN_BYTES and not self.wait:
            raise LongReadError

    # --- bytes ---

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of [start, end), which must lie within the view."""
        self._spend(end - start)
        parts: list[bytes] = []
        for level in self._levels_from(start):
            low, high = max(start, level.low), min(end, level.high)
            if low >= high:
                break
            parts += self._read_level(level, low, high)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def lend(self, start: int, end: int, buffer: memoryview) -> Data:
        """Return the bytes of [start, end) where that can be done without a copy, in ``buffer``.

        What is returned is good until the buffer, which must be large enough, is used again.
        """
        self._spend(end - start)
        level = self._level_at(start)
        flushed = level.placement.flushed
        if end <= min(level.high, flushed):
            base, limit = self._segment_at(level, start)
            if end <= limit:
                place = (start - base, end - base)
                segment = _segment(level, base)
                found = self._proofs.lend(segment, *place, buffer, wait=self.wait)
                return found if found is not None else self.read(start, end)
        elif start >= flushed and end <= level.high:
            frames = level.hot
            frame = frames[max(bisect_right(frames, start, key=lambda each: each.start) - 1, 0)]
            if frame.start <= start and end <= frame.start + frame.size:
                return memoryview(frame.payload)[start - frame.start : end - frame.start]
        return self.read(start, end)

    def piece_end(self, start: int, end: int, bytes_max: int) -> int:
        """Return where the piece from ``start`` ends of a range that is read in pieces to ``end``.

        Bytes are verified in blocks, so a piece ends where a block of its segment does; then no
        block is read twice, if ``bytes_max`` holds one.
        """
        stop = min(start + bytes_max, end)
        level = self._level_at(start)
        if start >= level.placement.flushed:
            return stop
        base, limit = self._segment_at(level, start)
        edge = stop - (stop - base) % self._proofs.block_bytes
        if start < edge and stop < end:
            stop = edge
        return min(stop, limit, level.high)

    def _read_level(self, level: Level, start: int, end: int) -> Iterator[bytes]:
        flushed = level.placement.flushed
        while start < min(end, flushed):
            base, limit = self._segment_at(level, start)
            stop = min(end, limit)
            place = (start - base, stop - base)
            yield self._proofs.read(_segment(level, base), *place, wait=self.wait)
            start = stop
        if start < end:
            yield from _read_hot(level.hot, start, end)

    def _segment_at(self, level: Level, position: int) -> tuple[int, int]:
        """Return the base of the segment that holds a position, and where it ends."""
        if position >= level.placement.base:
            return level.placement.base, level.placement.flushed
        bases = self._segments(level)
        at = bisect_right(bases, position) - 1
        if at < 0 or at + 1 == len(bases):
            where = fmt.stream_dir(level.stream)
            raise CorruptDataError(where, position, "no segment holds this position")
        return bases[at], bases[at + 1]

    def _segments(self, level: Level) -> list[int]:
        found = self._bases.get(level.stream)
        if found is None:
            if not self.wait:
                raise ColdReadError  # a directory waits for the disk, and grows with the stream
            # A segment that began after this view was made is not part of it.
            with faults_of(fmt.stream_dir(level.stream)):
                found = log.bases(self._disk, level.stream, level.placement.base)
            self._bases[level.stream] = found
        return found

    # --- records ---

    def _index(self, level: Level, base: int) -> IndexReader:
        segment = _segment(level, base)
        size = self._proofs.index_size(segment, wait=self.wait)
        return self._proofs.index_reader(segment, size, wait=self.wait)

    def _level_at(self, position: int) -> Level:
        return self.levels[max(bisect_right(self._lows, position) - 1, 0)]

    def _levels_from(self, position: int) -> Iterator[Level]:
        """Yield the levels that hold bytes at a position or above."""
        return islice(self.levels, max(bisect_right(self._lows, position) - 1, 0), None)

    def span_at(self, position: int) -> Span | None:
        """Return the record that holds the byte at ``position``, None at the tail."""
        if position >= self.tail:
            return None
        level = self._level_at(position)
        if position >= level.placement.flushed:
            self._spend(_ENTRY_BYTES)
            # Records without bytes stand before the one that starts where they do.
            frames = level.hot
            return _span(frames[bisect_right(frames, position, key=_start_of) - 1])
        base, _ = self._segment_at(level, position)
        self._spend(_SEARCH_BYTES)
        reader = self._index(level, base)
        # Records without bytes share their start with the next one that has some.
        entry = reader.last_at_or_before(_start_of, position)
        while entry is not None and not entry.frame.size:
            self._spend(_SEARCH_BYTES)
            entry = reader.last_at_or_before(lambda frame: frame.lsn, entry.frame.lsn - 1)
        if entry is None or entry.frame.start + entry.frame.size <= position:
            path = fmt.index_path(level.stream, base)
            raise CorruptDataError(path, position, "no entry of the index holds this position")
        return _span(entry.frame)

    def spans(self, start: int) -> Iterator[Span]:
        """Yield the records that hold bytes from ``start`` on, in order."""
        for level in self._levels_from(start):
            if level.high > start:
                yield from self._level_spans(level, max(start, level.low))

    def _level_spans(self, level: Level, start: int) -> Iterator[Span]:
        while start < min(level.high, level.placement.flushed):
            base, limit = self._segment_at(level, start)
            self._spend(_SEARCH_BYTES)
            reader = self._index(level, base)
            found = reader.last_at_or_before(_start_of, start)
            at = found.position if found is not None else None
            for entry in reader.entries(at) if at is not None else reader.entries():
                self._spend(_ENTRY_BYTES)
                frame = entry.frame
                if not entry.is_state and frame.size and start < frame.start + frame.size:
                    if frame.start >= level.high:
                        return
                    yield _span(frame)
            start = max(limit, start + 1)
        first = max(bisect_right(level.hot, start, key=_start_of) - 1, 0)
        for frame in islice(level.hot, first, None):
            self._spend(_ENTRY_BYTES)
            if frame.start >= level.high:
                return
            if frame.size and frame.start + frame.size > start:
                yield _span(frame)

    # --- messages ---

    def _ends(self, span: Span, start: int) -> Iterator[int]:
        """Yield where the messages of a record end, from the boundary ``start`` in it on."""
        end = self._span_end(span)
        if span.record.lengths is None:
            for stop in self._separated(start, end):
                self._spend(_MESSAGE_BYTES)
                if stop < end:
                    yield stop
        else:
            position = span.start
            for length in span.record.lengths:
                self._spend(_MESSAGE_BYTES)
                position += length
                if start < position < end:
                    yield position
        yield end

    def _span_end(self, span: Span) -> int:
        """Return where a record ends; a fork may end in the midst of one of its source."""
        return min(span.start + span.size, self._level_at(span.start).high)

    def _strides(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield a range in strides, each from the last byte of the one before.

        So that each separator lies in one of them.
        """
        last = b""
        while start < end:
            stop = self.piece_end(start, end, _STRIDE)
            data = self.read(start, stop)
            yield start - len(last), last + data
            last = data[-1:]
            start = stop

    def _separated(self, start: int, end: int) -> Iterator[int]:
        """Yield where the separators in a range of JSON messages end."""
        for low, data in self._strides(start, end):
            at = data.find(SEPARATOR)
            while at >= 0:
                yield low + at + len(SEPARATOR)
                at = data.find(SEPARATOR, at + len(SEPARATOR))

    def _after_separators(self, start: int, end: int, count: int) -> int:
        """Return where the ``count``th separator of a range ends; the end if it has fewer."""
        if not count:
            return start
        for low, data in self._strides(start, end):
            found = data.count(SEPARATOR)
            if found < count:
                count -= found
                continue
            few, enough = 0, len(data)
            while enough - few > 1:
                middle = (few + enough) // 2
                if data.count(SEPARATOR, 0, middle) < count:
                    few = middle
                else:
                    enough = middle
            return low + enough
        return end

    def is_boundary(self, position: int) -> bool:
        """Tell whether a message ends, or the stream begins, at ``position``."""
        if position in (self.floor, self.tail, self._level_at(position).low):
            return True
        if not self.floor < position < self.tail:
            return False
        if self._json:
            before = position - len(SEPARATOR)
            return before >= self.floor and self.read(before, position) == SEPARATOR
        span = self.span_at(position)
        return span is not None and (
            position == span.start or position in self._ends(span, span.start)
        )

    def page_end(self, start: int, bytes_max: int) -> int:
        """Return where a page from the boundary ``start`` ends: on a boundary, after a message.

        A message larger than the page is a page of its own.
        """
        limit = start + bytes_max
        if limit >= self.tail:
            return self.tail
        if self._json:
            return self._json_page_end(start, limit)
        span = self.span_at(limit)
        assert span is not None
        ends = self._ends(span, max(span.start, start))
        if span.start > start:
            return max([span.start, *(end for end in ends if end <= limit)])
        last = 0
        for end in ends:
            if end > limit:
                return last or end
            last = end
        return last

    def _json_page_end(self, start: int, limit: int) -> int:
        at = limit
        while at > start:
            low = max(start, at - _STRIDE)
            found = self.read(low, min(at + 1, limit)).rfind(SEPARATOR)
            if found >= 0:
                return low + found + len(SEPARATOR)
            at = low
        return next(self._separated(max(limit - 1, start), self.tail), self.tail)

    def messages(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each message from the boundary ``start`` to the tail.

        A JSON message's end includes its separator.
        """
        for span in self.spans(start):
            low = max(span.start, start)
            for end in self._ends(span, low):
                if end > low:
                    yield low, end
                    low = end

    def ordinal_at(self, position: int) -> int:
        """Return how many messages lie before a boundary, those no longer retained included."""
        span = self.span_at(position)
        if span is None:
            return self._messages
        if span.record.lengths is None:
            strides = self._strides(span.start, position)
            return span.ordinal + sum(data.count(SEPARATOR) for _, data in strides)
        return span.ordinal + sum(1 for end in self._ends(span, span.start) if end <= position)

    def position_of_message(self, number: int) -> int:
        """Return where the message before which lie ``number`` others begins, within what is held.

        By halving the bytes: ordinals grow with positions, across segments and forks alike.
        """
        if number >= self._messages:
            return self.tail
        low, high, found = self.floor, self.tail, None
        while low < high:
            middle = (low + high) // 2
            span = self.span_at(middle)
            assert span is not None
            if span.ordinal > number:
                high = span.start
            else:
                # A fork may end in the midst of a record of its source.
                low, found = min(span.start + span.size, self._level_at(middle).high), span
        if found is None:
            return self.floor
        count = number - found.ordinal
        if found.record.lengths is None:
            place = self._after_separators(found.start, self._span_end(found), count)
        else:
            starts = [found.start, *self._ends(found, found.start)]
            place = starts[min(count, len(starts) - 1)]
        return max(place, self.floor)

    def position_at(self, time_ms: int) -> int:
        """Return where the first record written at or after a time begins; the tail if none was."""
        # Times never decrease along a stream: the last level that begins before is the first that
        # may hold it.
        held = [level for level in self._levels_from(self.floor) if level.low < level.high]
        first = bisect_left(held, time_ms, key=self._begins_ms)
        for level in held[max(first - 1, 0) :]:
            found = self._level_position_at(level, time_ms)
            if found is not None:
                return found
        return self.tail

    def _begins_ms(self, level: Level) -> int:
        """Return when the first record was written that a level retains."""
        span = self.span_at(max(level.low, self.floor))
        assert span is not None, "a level that is not empty lies below the tail"
        return span.time_ms

    def _level_position_at(self, level: Level, time_ms: int) -> int | None:
        flushed = min(level.high, level.placement.flushed)
        low = max(level.low, self.floor)  # what lies below may be gone
        position = low
        while position < flushed:
            base, limit = self._segment_at(level, position)
            self._spend(_SEARCH_BYTES)
            entry = self._index(level, base).last_at_or_before(
                lambda frame: frame.time_ms, time_ms - 1
            )
            after = entry.frame.start + entry.frame.size if entry is not None else position
            if after < min(limit, level.high):
                return max(after, low)
            position = limit
        first = bisect_left(level.hot, time_ms, key=lambda frame: frame.time_ms)
        for frame in islice(level.hot, first, None):
            self._spend(_ENTRY_BYTES)
            if frame.size and frame.start < level.high:
                return max(frame.start, low)
        return None


def _segment(level: Level, base: int) -> Segment:
    place = level.placement
    if base == place.base:
        return Segment(level.stream, base, place.segment_bytes, place.index_bytes)
    return Segment(level.stream, base)


def _start_of(frame: fmt.StoredFrame) -> int:
    return frame.start


def _span(frame: fmt.StoredFrame) -> Span:
    record = record_of(frame)
    assert isinstance(record, Append | Create)
    return Span(frame.start, frame.size, frame.time_ms, frame.ordinal, record)


def _read_hot(hot: tuple[fmt.StoredFrame, ...], start: int, end: int) -> Iterator[bytes]:
    at = max(bisect_right(hot, start, key=lambda frame: frame.start) - 1, 0)
    for frame in hot[at:]:
        low, part = frame.start, frame.payload
        if low >= end:
            return
        high = low + frame.size
        if low < start or high > end:
            part = part[max(start - low, 0) : max(end - low, 0)]
        if part:
            yield part if isinstance(part, bytes) else bytes(part)
