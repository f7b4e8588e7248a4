"""What an export is made of: a stream's records, read from its files and verified on the way.

Two ways to look at a stream. Its *own* records are what its files hold; a fork has the rest from
its source, and both are exported, linked. Its *readable* records are what a client gets, from the
floor to the tail, whoever holds them: for a fork that is exported without its source, and for the
formats that hold messages alone.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import cbor2

from durastreamd.engine.engine import Engine
from durastreamd.engine.view import record_of
from durastreamd.errors import CorruptDataError
from durastreamd.model.records import Append, Create, Producer
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.protocol.json_mode import SEPARATOR
from durastreamd.storage import format as fmt, log
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.disk import Disk
from durastreamd.storage.index import Entry, IndexFile

# Segments are read in runs of this size: few calls, and nothing to speak of in memory.
_RUN_BYTES = 1024 * 1024


class Batch(NamedTuple):
    """One record with its bytes; ``lengths`` is None where the messages are JSON."""

    at: int
    time_ms: int
    message_count: int
    lengths: list[int] | None
    data: bytes
    closes: bool = False
    seq: str | None = None
    producers: tuple[Producer, ...] = ()


class Own(NamedTuple):
    """A stream's own records from ``start`` on, and what had come before them."""

    start: int
    messages: int
    closed: bool
    detail: Detail
    batches: Iterator[Batch]


class _SegmentReader:
    """Reads one segment forwards."""

    def __init__(self, disk: Disk, stream: int, base: int, length: int) -> None:
        self._disk = disk
        self._path = fmt.segment_path(stream, base)
        self._stream = stream
        self._base = base
        self._length = length
        self._run = b""
        self._run_at = 0
        self._handle = -1

    def payload(self, frame: fmt.StoredFrame) -> bytes:
        """Return a record's bytes; raise where they do not verify."""
        at = frame.start - self._base
        data = self._read(at, frame.size)
        if len(data) < frame.size:
            raise CorruptDataError(self._path, at + len(data), "the file ends here")
        if payload_sum(data, self._stream, frame.start) != frame.payload_sum:
            raise CorruptDataError(self._path, at, f"record {frame.lsn} does not verify")
        return data

    def _read(self, at: int, size: int) -> bytes:
        if self._handle < 0:
            self._handle = self._disk.open(self._path)
        begin = at - self._run_at
        if begin < 0 or begin + size > len(self._run):
            wanted = min(max(size, _RUN_BYTES), max(self._length - at, 0))
            self._run, self._run_at, begin = b"", at, 0
            while len(self._run) < wanted:
                missing = wanted - len(self._run)
                more = self._disk.pread(self._handle, missing, at + len(self._run))
                if not more:
                    break
                self._run += more
        return self._run[begin : begin + size]

    def release(self) -> None:
        if self._handle >= 0:
            self._disk.release(self._handle)


def _bases(engine: Engine, stream: Stream, start: int) -> list[int]:
    """Return the bases of the segments from the one that holds ``start`` on."""
    place = engine.placements[stream.id]
    bases = log.bases(engine.disk, stream.id, place.base)
    at = bisect_right(bases, start) - 1
    if at < 0 or bases[-1] != place.base:
        where = fmt.stream_dir(stream.id)
        raise CorruptDataError(where, start, "no segment holds this position")
    return bases[at:]


def _entries(engine: Engine, stream: Stream, base: int) -> Iterator[Entry]:
    place = engine.placements[stream.id]
    length = place.index_bytes if base == place.base else None
    with IndexFile(stream.id, base).opened(engine.disk, length) as reader:
        reader.verify_header()
        yield from reader.entries()


def _walk(
    engine: Engine, stream: Stream, start: int
) -> Iterator[tuple[Entry, Append | Create | None, bytes]]:
    """Yield the entries of a stream's index from the segment that holds ``start`` on.

    Records come with their payload; what changes no bytes and no producers comes without record.
    """
    bases = _bases(engine, stream, start)
    flushed = engine.placements[stream.id].flushed
    expected = -1
    for base, limit in zip(bases, [*bases[1:], flushed], strict=True):
        segment = _SegmentReader(engine.disk, stream.id, base, limit - base)
        try:
            for entry in _entries(engine, stream, base):
                if entry.is_state:
                    yield entry, None, b""
                    continue
                frame, record = entry.frame, record_of(entry.frame)
                if expected not in (-1, frame.start):
                    path = fmt.index_path(stream.id, base)
                    reason = f"a record starts at {frame.start}, the one before ends at {expected}"
                    raise CorruptDataError(path, entry.position, reason)
                expected = frame.start + frame.size
                payload = segment.payload(frame) if frame.size else b""
                yield entry, record if isinstance(record, Append | Create) else None, payload
        finally:
            segment.release()
    if expected not in (-1, flushed):
        path = fmt.index_path(stream.id, bases[-1])
        raise CorruptDataError(path, 0, f"the index ends at {expected}, not {flushed}")


def _batch(record: Append | Create, data: bytes) -> Batch:
    plain = Batch(record.start, record.time_ms, record.count, record.lengths, data, record.closes)
    if isinstance(record, Create):
        return plain
    return plain._replace(seq=record.seq, producers=record.producers)


def _after(batch: Batch, position: int) -> Batch:
    """Leave out the messages of a batch before a boundary inside it."""
    cut = position - batch.at
    if cut <= 0:
        return batch
    if batch.lengths is None:
        count = batch.message_count - batch.data[:cut].count(SEPARATOR)
        return batch._replace(at=position, message_count=count, data=batch.data[cut:])
    kept = list(batch.lengths)
    while cut > 0 and kept:
        cut -= kept.pop(0)
    if cut < 0:  # the boundary is a fork's, inside a message of its source
        kept.insert(0, -cut)
    data = batch.data[position - batch.at :]
    return batch._replace(at=position, message_count=len(kept), lengths=kept, data=data)


def _before(batch: Batch, position: int) -> Batch:
    """Leave out the bytes of a batch from a position inside it on."""
    size = position - batch.at
    if size >= len(batch.data):
        return batch
    data = batch.data[:size]
    if batch.lengths is None:
        return batch._replace(message_count=data.count(SEPARATOR), data=data)
    kept: list[int] = []
    for length in batch.lengths:
        taken = min(length, size - sum(kept))
        if taken:
            kept.append(taken)
    return batch._replace(message_count=len(kept), lengths=kept, data=data)


def own(engine: Engine, stream: Stream) -> Own:
    """Return the records a stream's own files hold and somebody still reads.

    What was before them is folded: an index begins with its create record or with a state.
    """
    start = engine.namespace.retained_from(stream)
    detail, messages, closed = Detail(), 0, False
    walk = _walk(engine, stream, start)
    first: Batch | None = None
    for entry, record, payload in walk:
        if entry.is_state:
            row, detail_row = cbor2.loads(entry.frame.header)
            detail, closed = Detail.from_row(detail_row), Stream.from_row(row).closed
            messages = entry.frame.ordinal
            continue
        frame = entry.frame
        end = frame.start + frame.size
        if isinstance(record, Create):
            messages = record.ordinal
        if record is not None and (frame.start >= start or end > start):
            batch = _batch(record, payload)
            first = _after(batch, start)
            messages += batch.message_count - first.message_count
            break
        if isinstance(record, Append):
            _fold(detail, record)
        if record is not None:
            messages += record.count
            closed = record.closes
    return Own(start, messages, closed, detail, _rest(first, walk))


def _fold(detail: Detail, record: Append) -> None:
    if record.seq is not None:
        detail.seq = record.seq
    for name, epoch, seq in record.producers:
        detail.producers[name] = (epoch, seq)


def _rest(
    first: Batch | None, walk: Iterator[tuple[Entry, Append | Create | None, bytes]]
) -> Iterator[Batch]:
    if first is not None:
        yield first
    for _, record, payload in walk:
        if record is not None:
            yield _batch(record, payload)


def readable(engine: Engine, stream: Stream, start: int) -> Iterator[Batch]:
    """Yield what a client gets from ``start`` on, in batches, whoever's files hold it.

    A batch inherited from a source is its bytes, messages and time: the source's producers and
    closure are not the fork's. Times never decrease, even where a clock did between two streams.
    """
    # A source that holds nothing from there on may have given up the files that ended there.
    parts = [
        part
        for part in engine.namespace.lineage.parts(stream)
        if part.holder is stream or part.high > start
    ]
    last = 0
    for holder, low, high in reversed(parts):
        for batch in _held(engine, holder, max(start, low), high):
            batch = batch._replace(time_ms=max(batch.time_ms, last))
            if holder is stream:
                yield batch
            elif batch.data:
                last = batch.time_ms
                yield batch._replace(closes=False, seq=None, producers=())


def _held(engine: Engine, holder: Stream, start: int, end: int) -> Iterator[Batch]:
    """Yield the batches of one stream's own files between two positions."""
    for _, record, payload in _walk(engine, holder, start):
        if record is None:
            continue
        if record.start > end:
            return
        batch = _before(_batch(record, payload), end)
        if batch.at + len(batch.data) <= start and batch.at < start:
            continue
        yield _after(batch, start)
