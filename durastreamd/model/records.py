"""Records: everything that can happen to the data directory, as it is written to the journal.

A record has a fixed part that storage understands (stream, start, size, time, ordinal, see
``storage.format``) and a header of its own kind, a short CBOR array, encoded here. Trailing
defaults are left out, so the header of a plain append is four to six bytes.

Strings in headers are CBOR text, so the bytes FF FE never stand inside one; the index relies on
that to find its entries again after damage.
"""

from functools import lru_cache

import cbor2
from msgspec import Struct

from durastreamd.model.subscription_records import (
    SUBSCRIPTION_CHANGE,
    SUBSCRIPTION_PUT,
    SubscriptionRecord,
    parse_subscription,
)

APPEND, CREATE, DELETE, SNAPSHOT, TOUCH, BUCKET_CREATE, BUCKET_DELETE, MARK, RETAIN = range(9)

# A mark belongs to no stream; its number tells it from a bucket's record, which has stream 0.
MARK_STREAM = 2**64 - 1

Producer = tuple[str, int, int]
Policy = tuple[int, int, int]  # what is kept at least: milliseconds, bytes, messages; -1: all

NO_POLICY: Policy = (-1, -1, -1)


class Snapshot(Struct, frozen=True):
    """A published snapshot: the blob's file is known by owner, position and serial."""

    owner: int
    position: int
    serial: int
    content_type: str
    size: int
    sum: int

    def row(self) -> list[object]:
        """Return the snapshot as a CBOR array."""
        return [self.owner, self.position, self.serial, self.content_type, self.size, self.sum]


@lru_cache(maxsize=4096)
def _one_message(size: int) -> bytes:
    """Return the header of the most frequent record: one plain message."""
    return cbor2.dumps([APPEND, [size]])


class Append(Struct, frozen=True, gc=False):
    """Bytes added to a stream by one batch, with all they change: producers, Stream-Seq, closure.

    ``lengths`` are the messages of a binary or text stream; a JSON stream's messages are marked in
    its bytes, so there ``lengths`` is None and ``count`` alone is kept.
    """

    stream: int
    start: int
    size: int
    time_ms: int
    ordinal: int
    count: int
    lengths: list[int] | None = None
    closes: bool = False
    seq: str | None = None
    producers: tuple[Producer, ...] = ()
    sums: tuple[tuple[str, int, int, str], ...] = ()  # producer, and its run (``producers.SumRun``)

    def header(self) -> bytes:
        """Return the record's own part."""
        messages = self.count if self.lengths is None else self.lengths
        if self.sums:
            told = [messages, self.closes, self.seq, self.producers, self.sums]
            return cbor2.dumps([APPEND, *told])
        if self.closes or self.seq is not None or self.producers:
            return cbor2.dumps([APPEND, messages, self.closes, self.seq, self.producers])
        if self.lengths is not None and len(self.lengths) == 1:
            return _one_message(self.size)
        return cbor2.dumps([APPEND, messages])


class Create(Struct, frozen=True):
    """A stream begins, perhaps with bytes, perhaps closed, perhaps as a fork.

    ``start`` is where its own bytes begin: 0, or the fork's position. ``anchor`` and ``sub`` are
    the fork offset as the client asked for it (-1 for none), kept to recognise the same request.
    """

    stream: int
    start: int
    size: int
    time_ms: int
    ordinal: int
    count: int
    lengths: list[int] | None
    key: str
    content_type: str
    ttl_ms: int = -1
    expires_ms: int = -1
    closes: bool = False
    source: int = 0
    anchor: int = -1
    sub: int = 0
    floor: int = 0
    snapshot: Snapshot | None = None
    trimmed: int = 0  # of a fork: up to where its source had given up its bytes on purpose

    def header(self) -> bytes:
        """Return the record's own part."""
        fields: list[object] = [
            CREATE,
            self.count if self.lengths is None else self.lengths,
            self.key,
            self.content_type,
            self.ttl_ms,
            self.expires_ms,
            self.closes,
        ]
        if self.source:
            blob = self.snapshot.row() if self.snapshot else None
            fields += [self.source, self.anchor, self.sub, self.floor, blob]
            fields += [self.trimmed] if self.trimmed else []
        return cbor2.dumps(fields)


class Delete(Struct, frozen=True):
    """A stream ends; a soft one stays for its forks."""

    stream: int
    start: int
    time_ms: int
    ordinal: int
    soft: bool
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([DELETE, self.soft])


class Publish(Struct, frozen=True):
    """A snapshot becomes visible and the stream is retained from its position."""

    stream: int
    start: int
    time_ms: int
    ordinal: int
    snapshot: Snapshot
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([SNAPSHOT, self.snapshot.row()])


class Retain(Struct, frozen=True):
    """A stream is retained from this position on, and by this policy from now on."""

    stream: int
    start: int
    time_ms: int
    ordinal: int
    floor: int
    policy: Policy
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([RETAIN, self.floor, self.policy])


class Touch(Struct, frozen=True):
    """A read renewed a sliding lifetime."""

    stream: int
    start: int
    time_ms: int
    ordinal: int
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([TOUCH])


class BucketChange(Struct, frozen=True):
    """A bucket begins or ends; it belongs to no stream, so ``stream`` is 0."""

    bucket: str
    time_ms: int
    exists: bool
    stream: int = 0
    start: int = 0
    ordinal: int = 0
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([BUCKET_CREATE if self.exists else BUCKET_DELETE, self.bucket])


class Mark(Struct, frozen=True):
    """Nothing happened; but the frame says that all before it is durable.

    Written when the server falls idle, so that the last batch has a witness, too: without one, rot
    in it could not be told from a torn write.
    """

    time_ms: int
    stream: int = MARK_STREAM
    start: int = 0
    ordinal: int = 0
    size: int = 0

    def header(self) -> bytes:
        """Return the record's own part."""
        return cbor2.dumps([MARK])


Record = (
    Append | Create | Delete | Publish | Touch | BucketChange | Mark | Retain | SubscriptionRecord
)


class RecordPlace(Struct, frozen=True, gc=False):
    """The fixed part of a stored record, as storage hands it back."""

    stream: int
    start: int
    size: int
    time_ms: int
    ordinal: int


class UnreadableRecordError(ValueError):
    """A header that verifies but is of no kind we know: written by a newer version."""


def parse(place: RecordPlace, header: bytes) -> Record:
    """Rebuild a record from its fixed part and its header."""
    try:
        fields = cbor2.loads(header)
        return _PARSERS[fields[0]](place, fields)
    except (cbor2.CBORDecodeError, LookupError, TypeError, ValueError) as exc:
        reason = f"record header not understood ({exc})"
        raise UnreadableRecordError(reason) from exc


def _messages(field: int | list[int]) -> tuple[int, list[int] | None]:
    return (field, None) if isinstance(field, int) else (len(field), field)


def _parse_append(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]  # CBOR is untyped
    count, lengths = _messages(fields[1])
    stream, start, size = place.stream, place.start, place.size
    if len(fields) == 2:
        return Append(stream, start, size, place.time_ms, place.ordinal, count, lengths)
    closes, seq, producers = fields[2:5]
    return Append(
        stream,
        start,
        size,
        place.time_ms,
        place.ordinal,
        count,
        lengths,
        closes,
        seq,
        tuple((name, epoch, last) for name, epoch, last in producers),
        tuple(map(tuple, fields[5])) if len(fields) > 5 else (),
    )


def _parse_create(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    count, lengths = _messages(fields[1])
    plain = (place.stream, place.start, place.size, place.time_ms, place.ordinal, count, lengths)
    if len(fields) == 7:
        return Create(*plain, *fields[2:7])
    blob = Snapshot(*fields[11]) if fields[11] else None
    return Create(*plain, *fields[2:11], blob, *fields[12:])  # type: ignore[call-arg]


def _parse_delete(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    return Delete(place.stream, place.start, place.time_ms, place.ordinal, fields[1])


def _parse_publish(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    blob = Snapshot(*fields[1])
    return Publish(place.stream, place.start, place.time_ms, place.ordinal, blob)


def _parse_retain(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    age_ms, size, messages = fields[2]
    policy = (age_ms, size, messages)
    return Retain(place.stream, place.start, place.time_ms, place.ordinal, fields[1], policy)


def _parse_touch(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    del fields  # a touch is its time
    return Touch(place.stream, place.start, place.time_ms, place.ordinal)


def _parse_bucket(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    return BucketChange(fields[1], place.time_ms, fields[0] == BUCKET_CREATE)


def _parse_mark(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    del fields
    return Mark(place.time_ms)


def _parse_subscription(place: RecordPlace, fields: list) -> Record:  # type: ignore[type-arg]
    return parse_subscription(fields, place.time_ms)


_PARSERS = {
    APPEND: _parse_append,
    CREATE: _parse_create,
    DELETE: _parse_delete,
    SNAPSHOT: _parse_publish,
    TOUCH: _parse_touch,
    BUCKET_CREATE: _parse_bucket,
    BUCKET_DELETE: _parse_bucket,
    MARK: _parse_mark,
    RETAIN: _parse_retain,
    **dict.fromkeys(range(SUBSCRIPTION_PUT, SUBSCRIPTION_CHANGE + 1), _parse_subscription),
}
