"""A stream folded from whatever records and states of it are left.

The server's own fold (``model.stream_state.apply``) asserts that nothing is missing. This one is
for evidence with holes: a record is taken at its word about where it starts, so the state after it
is right even where the records before it are lost; and what is known about a producer only grows.
"""

from functools import lru_cache

import cbor2

from durastreamd.model.producers import SumRun
from durastreamd.model.records import (
    Append,
    Create,
    Delete,
    Publish,
    Record,
    RecordPlace,
    Retain,
    Touch,
    UnreadableRecordError,
    parse,
)
from durastreamd.model.stream_state import Detail, Stream, retain
from durastreamd.storage import format as fmt

_PLAIN_BYTES_MAX = 64


def record_of(frame: fmt.StoredFrame) -> Record | None:
    """Return the record of a frame, None if its header cannot be understood."""
    place = RecordPlace(frame.stream, frame.start, frame.size, frame.time_ms, frame.ordinal)
    try:
        return parse(place, frame.header)
    except UnreadableRecordError:
        return None


@lru_cache(maxsize=4096)
def plain(header: bytes) -> tuple[int, int] | None:
    """Return the messages of an append without producers or the like, and their bytes.

    -1 bytes where only their number is kept (JSON); None if it is no such append. Such headers are
    few and come again and again.
    """
    if len(header) > _PLAIN_BYTES_MAX:
        return None
    record = record_of(fmt.StoredFrame(0, 0, 0, 0, 0, 0, 0, header, b""))
    if not isinstance(record, Append) or record.closes or record.producers:
        return None
    if record.seq is not None:
        return None
    return record.count, -1 if record.lengths is None else sum(record.lengths)


def state_of(header: bytes) -> tuple[Stream, Detail] | None:
    """Return the stream and detail that a state in an index holds, None if it holds none."""
    try:
        row, detail = cbor2.loads(header)
        return Stream.from_row(row), Detail.from_row(detail)
    except (cbor2.CBORDecodeError, TypeError, ValueError, LookupError):
        return None


def learn(known: Detail, told: Detail) -> None:
    """Take over what another source knows of producers and Stream-Seq, where it knows more."""
    for name, mark in told.producers.items():
        known.producers[name] = max(known.producers.get(name, mark), mark)
    if told.seq is not None and (known.seq is None or told.seq > known.seq):
        known.seq = told.seq
    for name, run in told.sums.items():
        before = known.sums.get(name)
        if before is None or (run.epoch, run.last) > (before.epoch, before.last):
            known.remember(name, run)


def detail_of(record: Append) -> Detail:
    """Return what one append says of producers and Stream-Seq."""
    told = Detail()
    told.producers = {name: (epoch, seq) for name, epoch, seq in record.producers}
    told.seq = record.seq
    told.sums = {name: SumRun(epoch, last, sums) for name, epoch, last, sums in record.sums}
    return told


def begin(record: Create, lsn: int) -> Stream:
    """Return the stream that a create record makes."""
    stream = Stream(record)
    stream.lsn = lsn
    return stream


def advance(stream: Stream, record: Record, lsn: int) -> None:
    """Fold one later record of a stream into it, whatever lies between."""
    if isinstance(record, Append | Publish | Delete | Touch | Retain):
        # What lies before a record was there, also where the record of it is lost.
        stream.tail = max(stream.tail, record.start)
        stream.messages = max(stream.messages, record.ordinal)
    if isinstance(record, Append):
        stream.tail = max(stream.tail, record.start + record.size)
        stream.messages = max(stream.messages, record.ordinal + record.count)
        stream.written_ms = max(stream.written_ms, record.time_ms)
        stream.closed = stream.closed or record.closes
        if record.seq is not None or record.producers:
            stream.plain = False
    elif isinstance(record, Publish):
        if record.snapshot.position >= stream.floor:
            stream.snapshot = record.snapshot
            stream.floor = record.snapshot.position
    elif isinstance(record, Retain):
        retain(stream, record)
    elif isinstance(record, Delete):
        stream.gone = True
    elif not isinstance(record, Touch):
        return
    stream.lsn = max(stream.lsn, lsn)
    stream.accessed_ms = max(stream.accessed_ms, record.time_ms)


def knows_less(told: Detail, known: Detail) -> bool:
    """Tell whether ``told`` lacks anything that ``known`` has."""
    behind = any(
        told.producers.get(name, (-1, -1)) < mark for name, mark in known.producers.items()
    )
    return behind or (known.seq is not None and (told.seq is None or told.seq < known.seq))
