"""What stands in a file, frame by frame, damage included.

A walk never stops at damage: it looks for the next place at which a frame verifies, says how many
bytes it passed over, and goes on. Verdicts:

    ok            head and payload verify
    bad-header    the file's header does not verify
    bad-head      bytes that are no frame, and a frame that verifies after them
    bad-payload   the head verifies, the payload does not
    no-payload    the head verifies, the file that should hold the payload ends before it
    out-of-order  a whole frame, but not the one that should stand here
    unknown-kind  a whole frame whose header this version does not understand
    torn          bytes that are no frame, and none after them: as a crash leaves it
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import cbor2

from durastreamd.engine.view import record_of
from durastreamd.kit import show
from durastreamd.model.records import (
    MARK_STREAM,
    Append,
    BucketChange,
    Create,
    Delete,
    Publish,
    Record,
    Retain,
    UnreadableRecordError,
)
from durastreamd.model.stream_state import Stream
from durastreamd.model.subscription import SubscriptionState
from durastreamd.model.subscription_records import (
    SubscriptionEnd,
    SubscriptionLinks,
    SubscriptionPut,
    SubscriptionRecord,
)
from durastreamd.protocol.offsets import mint
from durastreamd.storage import catalog, format as fmt, index, journal
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.rows import (
    BucketEndRow,
    BucketRow,
    FactRow,
    Row,
    StrangeRow,
    StreamEndRow,
    StreamRow,
    encode_row,
)
from durastreamd.storage.scan import Gap

OK = "ok"
TORN = "torn"

Fields = dict[str, object]
Read = Callable[[int, int], bytes]  # (size, position) of a segment


class Found(NamedTuple):
    """One thing in a file. ``header`` is its CBOR; ``order`` what it is sorted by there."""

    path: str
    position: int
    end: int
    kind: str
    verdict: str
    fields: Fields
    order: int = 0  # the lsn in a journal, the position in the stream in an index
    header: bytes = b""
    detail: str = ""
    stream: int = 0


def _lost(path: str, data: bytes, gap: Gap) -> Found:
    """Return what to say of bytes that are no frame."""
    position, end, passed = gap
    last = end == len(data)
    count = show.counted(end - position, "byte")
    zero = "" if any(memoryview(data)[position:end]) else ", all zero"
    rest = "nothing after them verifies" if last else f"the next frame verifies at {end}"
    crowd = f"; {show.counted(passed, 'place')} in them imitate frames" if passed else ""
    verdict = TORN if last else "bad-head"
    detail = f"{count}{zero}; {rest}{crowd}"
    return Found(path, position, end, "bytes", verdict, {}, 0, b"", detail)


# --- records ---


def _kind(record: Record) -> str:
    if isinstance(record, BucketChange):
        return "bucket" if record.exists else "bucket-end"
    if isinstance(record, SubscriptionRecord):
        return type(record).__name__.lower().replace("subscription", "subscription-")
    return "snapshot" if isinstance(record, Publish) else type(record).__name__.lower()


def _details(record: Record) -> Fields:
    """Return what a record says besides its place."""
    if isinstance(record, Append | Create):
        fields: Fields = {"messages": record.count}
        if isinstance(record, Append):
            fields["producers"] = [list(producer) for producer in record.producers] or None
            fields["seq"] = record.seq
            fields["sums"] = [list(run) for run in record.sums] or None
        else:
            fields |= {"key": record.key, "type": record.content_type}
            fields["ttl_ms"] = record.ttl_ms if record.ttl_ms >= 0 else None
            fields["expires"] = show.moment(record.expires_ms) if record.expires_ms >= 0 else None
            fields["fork_of"] = f"{record.source:016x}" if record.source else None
        fields["closes"] = record.closes or None
        return fields
    if isinstance(record, Delete):
        return {"soft": record.soft}
    if isinstance(record, Retain):
        return {"floor": record.floor, "policy": list(record.policy)}
    if isinstance(record, Publish):
        blob = record.snapshot
        return {
            "snapshot": mint(blob.position),
            "snapshot_bytes": blob.size,
            "type": blob.content_type,
        }
    if isinstance(record, SubscriptionRecord):
        return _subscription_details(record)
    return {"bucket": record.bucket} if isinstance(record, BucketChange) else {}


def _subscription_details(record: SubscriptionRecord) -> Fields:
    """Return what a record of a subscription says."""
    if isinstance(record, SubscriptionEnd):
        return {"root": record.root, "id": record.id}
    fields: Fields = {"incarnation": f"{record.incarnation:016x}"}
    if isinstance(record, SubscriptionPut):
        about = {"root": record.root, "id": record.id, "type": record.config.type}
        return fields | about | {"links": len(record.links)}
    if isinstance(record, SubscriptionLinks):
        return fields | {"links": [list(link) for link in record.links]}
    head = record.head
    return fields | {
        "state": SubscriptionState(head.state).name.lower(),
        "generation": head.generation,
        "holder": head.holder or None,
        "lease_until": show.moment(head.lease_ms) if head.lease_ms else None,
        "due": show.moment(head.due_ms) if head.due_ms else None,
        "failures": head.failures or None,
        "cursors": [list(cursor) for cursor in record.cursors] or None,
    }


def _place(frame: fmt.StoredFrame) -> Fields:
    return {"offset": mint(frame.start), "length": frame.size, "ordinal": frame.ordinal}


def _sums(frame: fmt.StoredFrame, check: int) -> Fields:
    return {
        "time": show.moment(frame.time_ms),
        "payload_sum": f"{frame.payload_sum:016x}",
        "sum": f"{check:016x}",
    }


def _read_record(frame: fmt.StoredFrame) -> tuple[str, Fields, str]:
    """Return a frame's kind, what it says, and why it cannot be understood, if so."""
    try:
        record = record_of(frame)
        return _kind(record), _details(record), ""
    except UnreadableRecordError as exc:
        return "record", {}, str(exc)


# --- journal ---


def journal_frames(
    path: str, data: bytes, uuid: bytes, number: int, names: dict[int, str]
) -> Iterator[Found]:
    """Yield what a journal file holds; ``names`` learns the streams that begin in it."""
    head = journal.decode_header(data, uuid, number)
    yield _journal_header(path, data, head)
    first_lsn = head.first_lsn if head is not None else None
    walk = journal.walk(data, journal.file_seed(uuid, number), first_lsn)
    expected = first_lsn
    for found in walk.items(min(fmt.JOURNAL_HEADER.size, len(data))):
        if isinstance(found, Gap):
            yield _lost(path, data, found)
            expected = None
            continue
        check = _sum_of(data, found.position + fmt.FRAME.size)
        yield _journal_frame(path, found, check, expected, names, len(data))
        expected = found.frame.lsn + 1


def _sum_of(data: bytes, end: int) -> int:
    """Return the checksum of a struct, which is its last field."""
    (check,) = fmt.CHECKSUM.unpack_from(data, end - fmt.CHECKSUM.size)
    return int(check)


def _journal_header(path: str, data: bytes, head: journal.FileHead | None) -> Found:
    size = min(fmt.JOURNAL_HEADER.size, len(data))
    if head is None:
        return Found(path, 0, size, "header", "bad-header", {}, 0, b"", _why_header(data))
    fields: Fields = {
        "uuid": data[16:32].hex(),
        "number": int.from_bytes(data[32:40], "little"),
        "first_lsn": head.first_lsn,
        "durable_lsn": head.durable_lsn,
    }
    return Found(path, 0, size, "header", OK, fields)


def _why_header(data: bytes) -> str:
    if not any(data[:64]):
        return "the header is missing" if not data else "the header is all zero"
    return "the header does not verify, or belongs to another directory or file"


def _journal_frame(
    path: str,
    found: journal.JournalFrame,
    check: int,
    expected: int | None,
    names: dict[int, str],
    length: int,
) -> Found:
    frame = found.frame
    kind, details, unknown = _read_record(frame)
    if kind == "create":
        names[frame.stream] = str(details.pop("key"))
    fields: Fields = {"lsn": frame.lsn}
    if frame.stream not in (0, MARK_STREAM):
        fields |= {"stream": f"{frame.stream:016x}", "key": names.get(frame.stream)}
        fields |= _place(frame)
    fields |= details | {"durable_lsn": found.durable_lsn} | _sums(frame, check)
    verdict, detail = OK, ""
    if found.end > length:
        verdict, detail = "no-payload", f"the file ends {found.end - length} bytes early"
    elif not found.payload_ok:
        verdict, detail = "bad-payload", "the payload does not verify"
    elif expected is not None and frame.lsn != expected:
        verdict, detail = "out-of-order", f"frame {expected} should stand here"
    elif unknown:
        verdict, detail = "unknown-kind", unknown
    end = min(found.end, length)
    return Found(
        path,
        found.position,
        end,
        kind,
        verdict,
        fields,
        frame.lsn,
        frame.header,
        detail,
        frame.stream,
    )


# --- index ---


def index_entries(
    path: str, data: bytes, stream: int, base: int, read: Read | None
) -> Iterator[Found]:
    """Yield what an index file holds; ``read`` gives the bytes of its segment, if there is one."""
    size = min(index.HEADER_BYTES, len(data))
    file = index.IndexFile(stream, base)
    good = data[: index.HEADER_BYTES] == file.header()
    fields: Fields = {"stream": f"{stream:016x}", "base": mint(base)}
    why = "" if good else _why_header(data)
    yield Found(path, 0, size, "header", OK if good else "bad-header", fields, base, b"", why)
    last_lsn = -1
    for entry in file.walk(data).items(size):
        if isinstance(entry, Gap):
            yield _lost(path, data, entry)
            continue
        check = _sum_of(data, entry.position + fmt.ENTRY.size)
        if entry.is_state:
            yield _state(path, entry, check)
        else:
            yield _entry(path, entry, check, read, last_lsn)
            last_lsn = entry.frame.lsn


def _state(path: str, entry: index.Entry, check: int) -> Found:
    frame = entry.frame
    fields: Fields = {"lsn": frame.lsn, "offset": mint(frame.start), "ordinal": frame.ordinal}
    verdict, detail = OK, ""
    try:
        _, (producers, seq) = cbor2.loads(frame.header)
        fields |= {"producers": producers or None, "seq": seq}
    except (cbor2.CBORDecodeError, TypeError, ValueError) as exc:
        verdict, detail = "unknown-kind", f"state not understood ({exc})"
    fields |= {"time": show.moment(frame.time_ms), "sum": f"{check:016x}"}
    return _found(path, entry, "state", fields, (verdict, detail))


def _found(
    path: str, entry: index.Entry, kind: str, fields: Fields, judged: tuple[str, str]
) -> Found:
    frame, (verdict, detail) = entry.frame, judged
    place = (path, entry.position, entry.end)
    return Found(*place, kind, verdict, fields, frame.start, frame.header, detail, frame.stream)


def _entry(path: str, entry: index.Entry, check: int, read: Read | None, last_lsn: int) -> Found:
    frame = entry.frame
    kind, details, unknown = _read_record(frame)
    fields: Fields = {"lsn": frame.lsn} | _place(frame) | details | _sums(frame, check)
    verdict, detail = OK, ""
    if frame.lsn <= last_lsn:
        verdict, detail = "out-of-order", f"record {last_lsn} stands before it"
    elif unknown:
        verdict, detail = "unknown-kind", unknown
    elif frame.size:
        verdict, detail = _payload_verdict(frame, read)
    return _found(path, entry, kind, fields, (verdict, detail))


def _payload_verdict(frame: fmt.StoredFrame, read: Read | None) -> tuple[str, str]:
    if read is None:
        return "no-payload", "the segment is missing"
    payload = read(frame.size, frame.start)
    if len(payload) < frame.size:
        return "no-payload", f"the segment ends {frame.size - len(payload)} bytes early"
    if payload_sum(payload, frame.stream, frame.start) != frame.payload_sum:
        return "bad-payload", "the segment's bytes do not verify"
    return OK, ""


# --- catalogue ---


def catalog_frames(path: str, data: bytes, uuid: bytes, number: int) -> Iterator[Found]:
    """Yield what a catalogue holds: its frames, and each row of them."""
    size = min(fmt.CATALOG_HEADER.size, len(data))
    good = data[:size] == catalog.file_header(uuid, number)
    fields: Fields = {"uuid": data[16:32].hex(), "number": number}
    why = "" if good else _why_header(data)
    yield Found(path, 0, size, "header", OK if good else "bad-header", fields, 0, b"", why)
    expected = None
    for found in catalog.walk(data, catalog.file_seed(uuid, number)).items(size):
        if isinstance(found, Gap):
            yield _lost(path, data, found)
            expected = None
            continue
        late = expected is not None and found.checkpoint != expected
        common: Fields = {"checkpoint": found.checkpoint}
        body = found.position + fmt.CATALOG_FRAME.size
        sums: Fields = {"sum": f"{_sum_of(data, body):016x}"}
        verdict = "out-of-order" if late else OK
        place = (path, found.position, found.end)
        if found.commit is not None:
            expected = found.checkpoint + 1
            yield _commit(place, verdict, common, sums, data[body : found.end])
        else:
            expected = found.checkpoint
            yield from _rows(place, verdict, common, sums, found.rows)


Extent = tuple[str, int, int]


def _commit(place: Extent, verdict: str, common: Fields, sums: Fields, body: bytes) -> Found:
    lsn, journal_first, next_id, removals = cbor2.loads(body)
    fields = common | {
        "lsn": lsn,
        "journal_first": journal_first,
        "next_id": f"{next_id:016x}",
        "removals": removals or None,
    }
    return Found(*place, "commit", verdict, fields | sums, lsn, body)


def _rows(
    place: Extent, verdict: str, common: Fields, sums: Fields, rows: list[Row]
) -> Iterator[Found]:
    yield Found(*place, "rows", verdict, common | {"rows": len(rows)} | sums)
    for row in rows:
        body = cbor2.dumps(encode_row(row))
        try:
            kind, fields = _row(row)
        except (TypeError, ValueError):
            detail = "a row that this version does not understand"
            yield Found(*place, "row", "unknown-kind", common, 0, body, detail)
        else:
            yield Found(*place, kind, verdict, common | fields, 0, body)


def _row(row: Row) -> tuple[str, Fields]:
    match row:
        case StreamRow(fields, place):
            stream = Stream.from_row(fields)
            return "stream-row", {
                "stream": f"{stream.id:016x}",
                "key": stream.key,
                "tail": mint(stream.tail),
                "messages": stream.messages,
                "lsn": stream.lsn,
                "segment": mint(place.base),
                "segment_bytes": place.segment_bytes,
                "index_bytes": place.index_bytes,
                "damage": stream.damage or None,
            }
        case StreamEndRow(stream_id):
            return "stream-end-row", {"stream": f"{stream_id:016x}"}
        case BucketRow(name, _):
            return "bucket-row", {"bucket": name}
        case BucketEndRow(name):
            return "bucket-end-row", {"bucket": name}
        case FactRow(name, said):
            kind = "fact-row" if said is not None else "fact-end-row"
            return kind, {"fact": name, "fields": said}
        case StrangeRow(item):
            raise ValueError(repr(item))
