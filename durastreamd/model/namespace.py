"""All streams by name and by id, the buckets, and who forked whom.

A key is ``bucket/stream`` on the bucket surface and ``/path/of/the/stream`` on the path surface:
a bucket id has no slash, so both live in one ordered table and a bucket's streams are one range
of it. Names never become paths; files are found by id.

Deciding and applying are apart, as everywhere: ``decide_*`` look and answer, ``apply`` folds a
committed record. Between the two a record is in flight, and other streams' decisions must take it
into account: a fork in flight ``pins`` its source (a delete then is a soft one), a delete in
flight dooms its stream (nobody forks it any more), a create in flight counts for its bucket.
Those marks are taken with ``hold`` and given back with ``release``, whatever the commit came to.

Reference counts are not stored: forks name their source, so the count is the number of forks, and
a deleted source goes when its last fork does, as part of applying that fork's deletion. Clients
choose how long chains of forks are, so chains are never walked by recursion, and what a walk found
is kept where it can be (``lineage``, ``_reads_below``).
"""

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct
from sortedcontainers import SortedDict

from durastreamd.model.buckets import Bucket, bucket_of
from durastreamd.model.draft import Payload
from durastreamd.model.lineage import Lineage
from durastreamd.model.records import (
    Append,
    BucketChange,
    Create,
    Delete,
    Mark,
    Publish,
    Record,
    Retain,
    Snapshot,
    Touch,
)
from durastreamd.model.stream_state import Stream, apply
from durastreamd.model.subscription_records import SubscriptionRecord
from durastreamd.protocol import Data, content_type
from durastreamd.protocol.offsets import Position
from durastreamd.protocol.outcomes import (
    BucketCreated,
    BucketDeleted,
    BucketExists,
    BucketMissing,
    BucketNotEmpty,
    ConfigConflict,
    Created,
    Deleted,
    Exists,
    ForkRefused,
    Gone,
    Malformed,
    NotFound,
    OtherLife,
    Outcome,
    SnapshotPastTail,
    SnapshotPublished,
    SnapshotTooOld,
)

_NOTHING = sys.maxsize  # where nobody reads: above every position


class ForkPoint(Struct, frozen=True):
    """Where a fork leaves its source, resolved to a position; ``anchor`` and ``sub`` as asked."""

    source: str
    position: int
    ordinal: int
    anchor: int = -1
    sub: int = 0


class CreateCommand(Struct, frozen=True):
    """Make a stream, or find that it is there. Unset fields of a fork are its source's."""

    key: str
    content_type: str | None = None
    ttl_ms: int | None = None
    expires_ms: int | None = None
    closes: bool = False
    payload: Payload | Malformed | None = None
    fork: ForkPoint | None = None
    life: int | None = None  # only if the name belongs to the stream of this id


class Namespace:
    """Every stream and bucket of the data directory."""

    def __init__(self, fork_depth_max: int = sys.maxsize) -> None:
        self.by_id: dict[int, Stream] = {}
        self.by_key = SortedDict()  # key -> Stream
        self.buckets: dict[str, Bucket] = {}
        self.next_id = 1
        self._forks: dict[int, set[int]] = {}
        self._pins: Counter[int] = Counter()
        self._doomed: set[str] = set()
        self._arriving: Counter[str] = Counter()
        self._fork_depth_max = fork_depth_max
        self.lineage = Lineage(self.by_id)
        # Snapshots by the stream that owns the blob, and how many streams show each.
        self._shown: dict[int, Counter[Snapshot]] = {}
        # What each fork and its own forks read below it; good until a fork or a floor changes.
        self._lowest_below: dict[int, int] = {}

    # --- looking ---

    def find(self, key: str, now_ms: int) -> Stream | NotFound | Gone:
        """Return the stream of this name if it is there to be used."""
        stream = self.by_key.get(key)
        if stream is None:
            return NotFound()
        if stream.gone:
            return Gone()
        if stream.expired(now_ms):
            return Gone() if self.read_by_forks(stream) else NotFound()
        return stream  # type: ignore[no-any-return]  # sortedcontainers is untyped

    def forks_of(self, stream: int) -> frozenset[int]:
        """Return the ids of the live forks of a stream."""
        return frozenset(self._forks.get(stream, ()))

    def snapshots_of(self, owner: int) -> list[Snapshot]:
        """Return the snapshots of a stream that it or a fork of it still shows."""
        return list(self._shown.get(owner, ()))

    def read_by_forks(self, stream: Stream) -> bool:
        """Tell whether forks, made or in the making, read this stream's bytes."""
        return bool(self._forks.get(stream.id)) or self._pins[stream.id] > 0

    def abandoned(self, stream: Stream) -> bool:
        """Tell whether a deleted stream is kept for forks that never came to be."""
        return stream.gone and not self.read_by_forks(stream)

    def listing(self, low: str, after: str, limit: int) -> Iterator[Stream]:
        """Yield up to ``limit`` streams whose keys begin with ``low``, past the key ``after``."""
        # No name holds a NUL, so this is the least key after the cursor.
        for key in islice(self.by_key.irange(max(low, f"{after}\0")), limit):
            if not key.startswith(low):
                return
            yield self.by_key[key]

    # --- deciding ---

    def decide_create(
        self, command: CreateCommand, now_ms: int
    ) -> tuple[Outcome, tuple[Create, Data] | None]:
        """Answer a create; with a record where a stream is to be made."""
        found = self.find(command.key, now_ms)
        if command.life is not None and (not isinstance(found, Stream) or found.id != command.life):
            return OtherLife(), None
        if isinstance(found, Gone):
            return ConfigConflict("the stream was deleted and its name is held by its forks"), None
        bucket = bucket_of(command.key)
        if bucket and (bucket not in self.buckets or bucket in self._doomed):
            return BucketMissing(), None
        source = self._fork_source(command.fork, now_ms)
        if isinstance(found, Stream):
            return self._match(found, command), None
        if isinstance(source, ForkRefused):
            return source, None
        kind = command.content_type or (source.content_type if source else content_type.DEFAULT)
        if source is not None and not content_type.same(kind, source.content_type):
            detail = f"a fork has its source's type, {source.content_type}, not {kind}"
            return ForkRefused("MISMATCH", detail), None
        if isinstance(command.payload, Malformed):
            return command.payload, None
        return self._create(command, source, kind, now_ms)

    def _create(
        self, command: CreateCommand, source: Stream | None, kind: str, now_ms: int
    ) -> tuple[Outcome, tuple[Create, Data]]:
        payload = command.payload if isinstance(command.payload, Payload) else Payload(b"", 0)
        size = len(payload.data)
        ttl_ms, expires_ms = command.ttl_ms, command.expires_ms
        if source is not None and ttl_ms is None and expires_ms is None:
            ttl_ms, expires_ms = source.ttl_ms, source.expires_ms
        fork = command.fork
        start = fork.position if fork else 0
        record = Create(
            self.next_id,
            start,
            size,
            now_ms,
            fork.ordinal if fork else 0,
            payload.count if size else 0,
            None if content_type.is_json(kind) else ([size] if size else []),
            command.key,
            kind,
            -1 if ttl_ms is None else ttl_ms,
            -1 if expires_ms is None else expires_ms,
            command.closes,
        )
        if source is not None and fork is not None:
            record = _with_fork(record, source, fork)
        self.next_id += 1
        return Created(kind, Position(start + size), command.closes), (record, payload.data)

    def _fork_source(self, fork: ForkPoint | None, now_ms: int) -> Stream | ForkRefused | None:
        if fork is None:
            return None
        source = self.find(fork.source, now_ms)
        if isinstance(source, NotFound):
            return ForkRefused("NOT_FOUND", "the source of the fork does not exist")
        if isinstance(source, Gone) or source.key in self._doomed:
            return ForkRefused("GONE", "the source of the fork was deleted")
        if source.damage:
            return ForkRefused("DAMAGED", "the source of the fork is damaged")
        if not 0 <= fork.position <= source.tail:
            where = "names no place in" if fork.position < 0 else "lies past the end of"
            return ForkRefused("INVALID", f"the fork offset {where} the source")
        if fork.position < source.floor:
            return ForkRefused("EXPIRED", "the fork offset lies below what the source retains")
        if self.lineage.depth(source) >= self._fork_depth_max:
            detail = f"the source is the last of {self._fork_depth_max} generations of forks, and "
            detail += "more are not allowed (engine.fork_depth_max); fork one of its ancestors"
            return ForkRefused("TOO_DEEP", detail)
        return source

    def _match(self, stream: Stream, command: CreateCommand) -> Outcome:
        """Compare an existing stream with a request for it; what a fork left out matches."""
        forked = command.fork is not None
        kind = command.content_type or (None if forked else content_type.DEFAULT)
        lifetime = (
            -1 if command.ttl_ms is None else command.ttl_ms,
            -1 if command.expires_ms is None else command.expires_ms,
        )
        inherits = forked and lifetime == (-1, -1)
        differs = ""
        if kind is not None and not content_type.same(kind, stream.content_type):
            differs = f"its content type is {stream.content_type}, not {kind}"
        elif not inherits and lifetime != (stream.ttl_ms, stream.expires_ms):
            differs = "its lifetime is another"
        elif command.closes != stream.closed:
            differs = "it is closed" if stream.closed else "it is not closed"
        elif not self._same_fork(stream, command.fork):
            differs = "it was forked from elsewhere"
        if differs:
            return ConfigConflict(f"the stream exists, but {differs}")
        return Exists(stream.content_type, Position(stream.tail), stream.closed)

    def _same_fork(self, stream: Stream, fork: ForkPoint | None) -> bool:
        if fork is None or not stream.source:
            return fork is None and not stream.source
        source = self.by_id.get(stream.source)
        same_source = source is not None and source.key == fork.source
        return same_source and (stream.anchor, stream.sub) == (fork.anchor, fork.sub)

    def decide_delete(
        self, key: str, now_ms: int, life: int | None = None
    ) -> tuple[Outcome, Delete | None]:
        """Answer a delete; soft while forks, made or in the making, read this stream."""
        found = self.find(key, now_ms)
        if not isinstance(found, Stream):
            return found, None
        if life not in (None, found.id):
            return OtherLife(), None
        return Deleted(), self.removal(found, now_ms)

    def removal(self, stream: Stream, now_ms: int) -> Delete:
        """Return the record that ends a stream: for its client, its lifetime or its last fork."""
        time_ms = max(now_ms, stream.accessed_ms)
        soft = self.read_by_forks(stream)
        return Delete(stream.id, stream.tail, time_ms, stream.messages, soft)

    def decide_publish(
        self, key: str, snapshot: Snapshot, now_ms: int
    ) -> tuple[Outcome, Publish | None]:
        """Answer a snapshot whose blob is durable already; its alignment was checked before."""
        stream = self.find(key, now_ms)
        if not isinstance(stream, Stream):
            return stream, None
        if stream.id != snapshot.owner:
            return NotFound(), None
        if snapshot.position < stream.floor:
            return SnapshotTooOld(Position(stream.floor)), None
        if snapshot.position > stream.tail:
            return SnapshotPastTail(Position(stream.tail)), None
        time_ms = max(now_ms, stream.accessed_ms)
        record = Publish(stream.id, stream.tail, time_ms, stream.messages, snapshot)
        return SnapshotPublished(Position(snapshot.position)), record

    def decide_bucket(
        self, bucket: str, now_ms: int, *, exists: bool
    ) -> tuple[Outcome, BucketChange | None]:
        """Answer the making or ending of a bucket."""
        found = self.buckets.get(bucket)
        if exists:
            if found is not None:
                return BucketExists(), None
            return BucketCreated(), BucketChange(bucket, now_ms, exists=True)
        if found is None:
            return BucketMissing(), None
        streams = found.streams + self._arriving[bucket]
        if streams:
            return BucketNotEmpty(streams, found.kept), None
        return BucketDeleted(), BucketChange(bucket, now_ms, exists=False)

    # --- in flight ---

    def hold(self, record: Record) -> None:
        """Mark what a record in flight relies on, so that others' decisions respect it."""
        match record:
            case Create():
                self._pins[record.source] += 1
                self._arriving[bucket_of(record.key)] += 1
            case Delete():
                self._doomed.add(self.by_id[record.stream].key)
            case BucketChange(exists=False):
                self._doomed.add(record.bucket)
            case _:
                pass

    def release(self, record: Record) -> None:
        """Take the marks back: call before applying, or when the commit failed."""
        match record:
            case Create():
                self._pins[record.source] -= 1
                self._arriving[bucket_of(record.key)] -= 1
            case Delete():
                self._doomed.discard(self.by_id[record.stream].key)
            case BucketChange(exists=False):
                self._doomed.discard(record.bucket)
            case _:
                pass

    # --- applying ---

    def apply(self, record: Record, lsn: int) -> list[Stream]:
        """Fold a committed record; return the streams that ceased to exist by it."""
        if isinstance(record, Append):
            apply(self.by_id[record.stream], record, lsn)
            return []
        if isinstance(record, Publish):
            stream = self.by_id[record.stream]
            self._hide(stream)
            apply(stream, record, lsn)
            self._show(stream)
            return []
        if isinstance(record, Touch | Retain):
            apply(self.by_id[record.stream], record, lsn)
            self._lowest_below.clear()
            return []
        if isinstance(record, Create):
            stream = Stream(record)
            stream.lsn = lsn
            ended = self._displaced(record.key)
            self.add(stream)
            return ended
        if isinstance(record, Delete):
            stream = self.by_id[record.stream]
            stream.lsn = lsn
            if record.soft:
                self._hide(stream)
                if bucket := bucket_of(stream.key):
                    self.buckets[bucket].kept += not stream.gone
                stream.gone = True
                return []
            return self._remove(stream)
        if isinstance(record, Mark | SubscriptionRecord):
            return []
        if record.exists:
            self.buckets[record.bucket] = Bucket(record.time_ms)
        else:
            del self.buckets[record.bucket]
        return []

    def add(self, stream: Stream) -> None:
        """Enter a stream that exists: created just now, or read from the catalogue."""
        assert stream.key not in self.by_key, stream.key
        self.by_id[stream.id] = stream
        self.by_key[stream.key] = stream
        self.next_id = max(self.next_id, stream.id + 1)
        bucket = bucket_of(stream.key)
        if bucket:
            self.buckets[bucket].streams += 1
            self.buckets[bucket].kept += stream.gone
        if stream.source:
            self._forks.setdefault(stream.source, set()).add(stream.id)
        self._show(stream)

    def _show(self, stream: Stream) -> None:
        """Note what a stream shows from now on: its snapshot, and its bytes from its floor.

        One that was deleted shows nothing; it is kept for what its forks show.
        """
        self._lowest_below.clear()
        if (blob := stream.snapshot) is not None and not stream.gone:
            self._shown.setdefault(blob.owner, Counter())[blob] += 1

    def _hide(self, stream: Stream) -> None:
        """Take back what ``_show`` noted."""
        self._lowest_below.clear()
        if (blob := stream.snapshot) is not None and not stream.gone:
            shown = self._shown[blob.owner]
            shown[blob] -= 1
            if not shown[blob]:
                del shown[blob]
            if not shown:
                del self._shown[blob.owner]

    def _displaced(self, key: str) -> list[Stream]:
        """An expired stream may still stand under a name that is created anew; it ends here."""
        found = self.by_key.get(key)
        return [] if found is None else self._remove(found)

    def _remove(self, stream: Stream) -> list[Stream]:
        """Remove a stream and every deleted ancestor that was kept only for it."""
        ended = []
        last: Stream | None = stream
        while last is not None:
            ended.append(last)
            self._hide(last)
            self.lineage.forget(last)
            del self.by_id[last.id]
            del self.by_key[last.key]
            bucket = bucket_of(last.key)
            if bucket:
                self.buckets[bucket].streams -= 1
                self.buckets[bucket].kept -= last.gone
            last = self._abandoned_source(last)
        return ended

    def _abandoned_source(self, stream: Stream) -> Stream | None:
        forks = self._forks.get(stream.source)
        if forks is None:
            return None
        forks.discard(stream.id)
        if forks:
            return None
        del self._forks[stream.source]
        source = self.by_id.get(stream.source)
        # Forks in flight do not matter: records are applied in the order they were decided, and
        # nobody forks a stream whose deletion was decided.
        return source if source is not None and source.gone else None

    def retained_from(self, stream: Stream) -> int:
        """Return the lowest position of a stream's own bytes that it or a fork still reads."""
        lowest = stream.tail if stream.gone else stream.floor
        for fork in self._forks_of(stream):
            lowest = min(lowest, self._reads_below(fork))
        return max(lowest, stream.fork_position)

    def _forks_of(self, stream: Stream) -> list[Stream]:
        return [self.by_id[fork] for fork in self._forks.get(stream.id, ())]

    def _reads_below(self, fork: Stream) -> int:
        """Return the lowest position below a fork's own bytes that it, or one of its own, reads.

        ``_NOTHING`` where they read nothing there. Forks of forks come first, so that each is
        looked at once.
        """
        known = self._lowest_below
        stack = [fork]
        while stack:
            each = stack[-1]
            forks = self._forks_of(each)
            unknown = [child for child in forks if child.id not in known]
            if unknown:
                stack += unknown
                continue
            stack.pop()
            lowest = _NOTHING if each.gone else each.floor
            lowest = min([lowest, *(known[child.id] for child in forks)])
            known[each.id] = lowest if lowest < each.fork_position else _NOTHING
        return known[fork.id]


def _with_fork(record: Create, source: Stream, fork: ForkPoint) -> Create:
    return Create(
        record.stream,
        record.start,
        record.size,
        record.time_ms,
        record.ordinal,
        record.count,
        record.lengths,
        record.key,
        record.content_type,
        record.ttl_ms,
        record.expires_ms,
        record.closes,
        source.id,
        fork.anchor,
        fork.sub,
        source.floor,
        source.snapshot,
        source.trimmed,
    )
