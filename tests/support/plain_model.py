"""What the engine must look like to a client, written the plain way: lists, dicts, if and else.

Nothing is shared with ``durastreamd.model`` but the vocabulary of outcomes. A fork copies the
messages it inherits, so there is nothing to retain, to pin or to trim; a crash changes nothing.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from durastreamd.protocol import outcomes as out
from durastreamd.protocol.offsets import Position

Lifetime = tuple[int | None, int | None]  # sliding and absolute, in milliseconds
Tuple3 = tuple[str, int, int]
Found = "PlainStream | out.NotFound | out.Gone"


def media(content_type: str) -> str:
    return content_type.split(";")[0].strip().lower()


@dataclass
class PlainStream:
    """One stream: every message it ever had, from position 0."""

    name: str
    content_type: str
    lifetime: Lifetime
    accessed_ms: int
    messages: list[bytes] = field(default_factory=list)
    closed: bool = False
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    seq: str | None = None
    floor: int = 0
    snapshot_at: int | None = None
    parent: "PlainStream | None" = None
    anchor: int = -1
    sub: int = 0
    gone: bool = False
    read_ms: int = 0

    @property
    def data(self) -> bytes:
        return b"".join(self.messages)

    @property
    def tail(self) -> int:
        return sum(map(len, self.messages))

    def ends(self) -> list[int]:
        """Return every boundary from 0 to the tail."""
        found = [0]
        for message in self.messages:
            found.append(found[-1] + len(message))
        return found

    def retained(self) -> list[tuple[int, int]]:
        """Return (start, end) of the messages from the floor on."""
        ends = self.ends()
        return [(a, b) for a, b in pairwise(ends) if a >= self.floor]

    def expired(self, now_ms: int) -> bool:
        sliding, absolute = self.lifetime
        if sliding is not None:
            return now_ms >= max(self.accessed_ms, self.read_ms) + sliding
        return absolute is not None and now_ms >= absolute


@dataclass
class Fork:
    """Where a fork is asked to leave its source."""

    source: str
    position: int
    anchor: int
    sub: int = 0


@dataclass
class Birth:
    """What a create asks for; None is "not said"."""

    content_type: str | None = None
    lifetime: Lifetime = (None, None)
    closed: bool = False
    messages: list[bytes] = field(default_factory=list)
    fork: Fork | None = None


@dataclass
class Write:
    """What an append asks for: messages, closure, or both. ``broken`` is a body of bad JSON."""

    messages: list[bytes] = field(default_factory=list)
    content_type: str = ""
    closes: bool = False
    producer: Tuple3 | None = None
    seq: str | None = None
    broken: out.Malformed | None = None


class PlainModel:
    """All streams and buckets by name."""

    def __init__(self) -> None:
        self.streams: dict[str, PlainStream] = {}
        self.buckets: set[str] = set()

    def forks_of(self, stream: PlainStream) -> list[PlainStream]:
        return [other for other in self.streams.values() if other.parent is stream]

    def find(self, name: str, now_ms: int) -> PlainStream | out.NotFound | out.Gone:
        stream = self.streams.get(name)
        if stream is None:
            return out.NotFound()
        if stream.gone:
            return out.Gone()
        if stream.expired(now_ms):
            return out.Gone() if self.forks_of(stream) else out.NotFound()
        return stream

    # --- create ---

    def create(self, name: str, birth: Birth, now_ms: int) -> out.Outcome:
        found = self.find(name, now_ms)
        if isinstance(found, out.Gone):
            return out.ConfigConflict("")
        bucket = name.split("/")[0]
        if bucket and bucket not in self.buckets:
            return out.BucketMissing()
        if isinstance(found, PlainStream):
            if self._matches(found, birth):
                return out.Exists(found.content_type, Position(found.tail), found.closed)
            return out.ConfigConflict("")
        source: PlainStream | None = None
        if birth.fork is not None:
            from_source = self._source(birth.fork, now_ms)
            if isinstance(from_source, out.ForkRefused):
                return from_source
            source = from_source
        content_type = birth.content_type or (
            source.content_type if source else "application/octet-stream"
        )
        if source and media(content_type) != media(source.content_type):
            return out.ForkRefused("MISMATCH", "")
        if name in self.streams:
            self._remove(self.streams[name])
        stream = self._make(name, birth, source, content_type, now_ms)
        return out.Created(content_type, Position(stream.tail), stream.closed)

    def _make(
        self,
        name: str,
        birth: Birth,
        source: PlainStream | None,
        content_type: str,
        now_ms: int,
    ) -> PlainStream:
        stream = PlainStream(name, content_type, birth.lifetime, now_ms, closed=birth.closed)
        if source and birth.fork:
            if birth.lifetime == (None, None):
                stream.lifetime = source.lifetime
            stream.messages = cut(source.messages, birth.fork.position)
            stream.floor, stream.snapshot_at = source.floor, source.snapshot_at
            stream.parent = source
            stream.anchor, stream.sub = birth.fork.anchor, birth.fork.sub
        stream.messages += birth.messages
        self.streams[name] = stream
        return stream

    def _source(self, fork: Fork, now_ms: int) -> PlainStream | out.ForkRefused:
        source = self.find(fork.source, now_ms)
        if isinstance(source, out.NotFound):
            return out.ForkRefused("NOT_FOUND", "")
        if isinstance(source, out.Gone):
            return out.ForkRefused("GONE", "")
        if fork.position > source.tail:
            return out.ForkRefused("INVALID", "")
        if fork.position < source.floor:
            return out.ForkRefused("EXPIRED", "")
        return source

    def _matches(self, stream: PlainStream, birth: Birth) -> bool:
        fork = birth.fork
        content_type = birth.content_type
        if fork is None:
            content_type = content_type or "application/octet-stream"
        if content_type is not None and media(content_type) != media(stream.content_type):
            return False
        inherits = fork is not None and birth.lifetime == (None, None)
        if not inherits and birth.lifetime != stream.lifetime:
            return False
        if birth.closed != stream.closed:
            return False
        if fork is None or stream.parent is None:
            return fork is None and stream.parent is None
        asked = (fork.source, fork.anchor, fork.sub)
        return (stream.parent.name, stream.anchor, stream.sub) == asked

    # --- append ---

    def append(self, name: str, write: Write, now_ms: int) -> out.Outcome:
        found = self.find(name, now_ms)
        if not isinstance(found, PlainStream):
            return found
        if found.closed:
            return self._append_closed(found, write)
        has_body = bool(write.messages) or write.broken is not None
        if has_body and media(write.content_type) != media(found.content_type):
            return out.ContentTypeMismatch(found.content_type, write.content_type)
        if write.producer is not None:
            refused = self._refuse_producer(found, write.producer)
            if refused is not None:
                return refused
        if write.seq is not None and found.seq is not None and write.seq <= found.seq:
            return out.SeqRegression(found.seq, write.seq, Position(found.tail))
        if write.broken is not None:
            return write.broken
        found.messages += write.messages
        found.closed = write.closes
        found.accessed_ms = max(found.accessed_ms, now_ms)
        if write.seq is not None:
            found.seq = write.seq
        epoch = seq = -1
        if write.producer is not None:
            producer, epoch, seq = write.producer
            found.producers[producer] = (epoch, seq)
        return out.Appended(Position(found.tail), write.closes, epoch, seq, not has_body)

    def _append_closed(self, stream: PlainStream, write: Write) -> out.Outcome:
        tail = Position(stream.tail)
        if write.producer is None:
            only_closes = not write.messages and write.broken is None
            return out.AlreadyClosed(tail) if only_closes else out.StreamClosed(tail)
        name, epoch, seq = write.producer
        last_epoch, last_seq = stream.producers.get(name, (-1, -1))
        if epoch == last_epoch and seq <= last_seq:
            return out.Duplicate(tail, closed=True, epoch=last_epoch, seq=last_seq)
        return out.StreamClosed(tail)

    def _refuse_producer(self, stream: PlainStream, producer: Tuple3) -> out.Outcome | None:
        name, epoch, seq = producer
        if name not in stream.producers:
            return None if seq == 0 else out.SequenceGap(0, seq)
        last_epoch, last_seq = stream.producers[name]
        if epoch < last_epoch:
            return out.StaleEpoch(last_epoch)
        if epoch > last_epoch:
            return None if seq == 0 else out.EpochNotAtZero(epoch, seq)
        if seq <= last_seq:
            tail = Position(stream.tail)
            return out.Duplicate(tail, closed=False, epoch=last_epoch, seq=last_seq)
        return None if seq == last_seq + 1 else out.SequenceGap(last_seq + 1, seq)

    # --- the rest ---

    def delete(self, name: str, now_ms: int) -> out.Outcome:
        found = self.find(name, now_ms)
        if not isinstance(found, PlainStream):
            return found
        self.end(found)
        return out.Deleted()

    def end(self, stream: PlainStream) -> None:
        """Delete softly where forks are left, else with every ancestor that waited for this."""
        if self.forks_of(stream):
            stream.gone = True
        else:
            self._remove(stream)

    def _remove(self, stream: PlainStream) -> None:
        del self.streams[stream.name]
        parent = stream.parent
        if parent is not None and parent.gone and not self.forks_of(parent):
            self._remove(parent)

    def publish(self, name: str, position: int, now_ms: int) -> out.Outcome:
        found = self.find(name, now_ms)
        if not isinstance(found, PlainStream):
            return found
        if position < found.floor:
            return out.SnapshotTooOld(Position(found.floor))
        if position > found.tail:
            return out.SnapshotPastTail(Position(found.tail))
        found.floor = found.snapshot_at = position
        found.accessed_ms = max(found.accessed_ms, now_ms)
        return out.SnapshotPublished(Position(position))

    def bucket(self, name: str, *, exists: bool) -> out.Outcome:
        if exists:
            if name in self.buckets:
                return out.BucketExists()
            self.buckets.add(name)
            return out.BucketCreated()
        if name not in self.buckets:
            return out.BucketMissing()
        inside = [key for key in self.streams if key.startswith(f"{name}/")]
        if inside:
            return out.BucketNotEmpty(len(inside), sum(self.streams[key].gone for key in inside))
        self.buckets.remove(name)
        return out.BucketDeleted()

    def reopened(self, now_ms: int, touch_fraction: int) -> None:
        """Reads since the last journalled access are forgotten, and made good by a fraction."""
        for stream in self.streams.values():
            sliding = stream.lifetime[0]
            if sliding is not None:
                stream.read_ms = min(stream.accessed_ms + sliding // touch_fraction, now_ms)


def cut(messages: list[bytes], position: int) -> list[bytes]:
    """Return the messages before a position; one that lies across it is cut."""
    kept: list[bytes] = []
    for message in messages:
        if position <= 0:
            break
        kept.append(message[:position])
        position -= len(message)
    return kept
