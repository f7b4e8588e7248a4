"""The streams and buckets a data directory has by now: the catalogue's, and what the journal added.

Folded without the server's engine, and without its assertions: a record that does not fit is
reported and the stream goes on from what the record says.
"""

from collections import Counter

from durastreamd.model.buckets import bucket_of
from durastreamd.model.records import (
    Append,
    BucketChange,
    Create,
    Delete,
    Mark,
    Publish,
    Retain,
    Touch,
)
from durastreamd.model.stream_state import Stream
from durastreamd.model.subscription_records import SubscriptionRecord
from durastreamd.offline.names import stream_named
from durastreamd.offline.verify.findings import Finding
from durastreamd.offline.verify.folding import advance, begin, record_of
from durastreamd.offline.verify.scan import JournalHead
from durastreamd.offline.verify.survey import NEVER, Survey
from durastreamd.storage import format as fmt

Ranges = list[tuple[int, int]]


class Census:
    """Every stream by id, and how many forks each has."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.names: dict[str, int] = {}
        self.buckets: set[str] = set()
        self.findings: list[Finding] = []
        self._forks: Counter[int] = Counter()

    def add(self, stream: Stream) -> None:
        """Enter a stream."""
        self.streams[stream.id] = stream
        self.names[stream.key] = stream.id
        self._forks[stream.source] += 1

    def remove(self, stream: Stream) -> None:
        """End a stream, and every deleted ancestor that was kept only for it."""
        last: Stream | None = stream
        while last is not None:
            source = last.source
            if self.streams.pop(last.id, None) is not None:
                self._forks[source] -= 1
            last = self.streams.get(source) if source else None
            if last is not None and (not last.gone or self._forks[source]):
                return


def take_census(found: Survey) -> Census:
    """Count the streams."""
    census = Census()
    census.buckets = set(found.buckets)
    for row in found.listed.values():
        census.add(Stream.from_row(row.stream.row()))
    # Without a whole catalogue a record of an unknown stream says nothing but that.
    next_id = found.commit.next_id if found.commit is not None else 0
    known_from = next_id if found.catalog_trusted else NEVER
    torn = found.torn_lsn
    for head in found.heads:
        if head.payload_ok and head.frame.lsn < torn:
            _fold(census, head, next_id, known_from)
    _check_names(census, found)
    return census


def stream_in(census: Census, name: str) -> int:
    """Return the id of the stream a user means."""
    return stream_named({s.key: s for s in census.streams.values()}, census.streams, name).id


def _report(census: Census, head: JournalHead, kind: str, detail: str, key: str = "") -> None:
    path = fmt.journal_path(head.number)
    census.findings.append(Finding(path, head.position, kind, detail, key))


def _fold(census: Census, head: JournalHead, next_id: int, known_from: int) -> None:
    frame = head.frame
    record = record_of(frame)
    if record is None:
        _report(census, head, "record", f"the header of frame {frame.lsn} is of no known kind")
        return
    if isinstance(record, Mark | SubscriptionRecord):
        return  # see ``subscribed``
    if isinstance(record, BucketChange):
        (census.buckets.add if record.exists else census.buckets.discard)(record.bucket)
        return
    if isinstance(record, Create):
        if record.stream >= next_id:
            _create(census, record, frame.lsn)
        return
    _fold_into(census, head, record, known_from)


def _create(census: Census, record: Create, lsn: int) -> None:
    before = census.streams.get(census.names.get(record.key, 0))
    if before is not None:
        census.remove(before)
    census.add(begin(record, lsn))


def _fold_into(
    census: Census,
    head: JournalHead,
    record: Append | Delete | Publish | Touch | Retain,
    known_from: int,
) -> None:
    frame = head.frame
    stream = census.streams.get(record.stream)
    if stream is None:
        if record.stream >= known_from:
            _report(census, head, "order", f"frame {frame.lsn} is of a stream nobody created")
        return
    if frame.lsn <= stream.lsn:
        return
    if isinstance(record, Delete) and not record.soft:
        census.remove(stream)
        return
    if frame.start != stream.tail and not stream.damage:
        detail = f"the record starts at {frame.start}, the tail is {stream.tail}"
        _report(census, head, "gap", detail, stream.key)
    advance(stream, record, frame.lsn)


def _check_names(census: Census, found: Survey) -> None:
    """A name stands for one stream, and a stream's bucket exists."""
    path = fmt.catalog_path(found.catalog_number)
    seen: dict[str, int] = {}
    for stream in census.streams.values():
        if stream.key in seen:
            detail = f"{seen[stream.key]:016x} and {stream.id:016x} have the same name"
            census.findings.append(Finding(path, 0, "name", detail, stream.key))
        seen[stream.key] = stream.id
        bucket = bucket_of(stream.key)
        if bucket and bucket not in census.buckets:
            census.findings.append(Finding(path, 0, "bucket", "its bucket is gone", stream.key))


class Readers:
    """Who reads which of a stream's own bytes: itself, its forks, their forks.

    What a fork and all its own read below it is put together once, from the last forks up.
    """

    def __init__(self, streams: dict[int, Stream]) -> None:
        self._forks: dict[int, list[Stream]] = {}
        for stream in streams.values():
            if stream.source:
                self._forks.setdefault(stream.source, []).append(stream)
        self._below: dict[int, Ranges] = {}

    def ranges(self, stream: Stream) -> Ranges:
        """Return which of a stream's own bytes anybody reads."""
        low, high = stream.fork_position, stream.tail
        read = [] if stream.gone else [(max(stream.floor, low), high)]
        for fork in self._forks.get(stream.id, ()):
            read += [(max(first, low), min(last, high)) for first, last in self._read_below(fork)]
        return joined(read)

    def _read_below(self, fork: Stream) -> Ranges:
        known = self._below
        begun: set[int] = set()
        stack = [fork]
        while stack:
            each = stack[-1]
            forks = self._forks.get(each.id, ())
            # A circle cannot be, but nothing is trusted here: nobody is begun twice.
            unknown = [c for c in forks if c.id not in known and c.id not in begun]
            begun.add(each.id)
            if unknown:
                stack += unknown
                continue
            stack.pop()
            limit = each.fork_position
            read = [] if each.gone else [(each.floor, limit)]
            for child in forks:
                read += [(low, min(high, limit)) for low, high in known.get(child.id, ())]
            known[each.id] = joined(read)
        return known[fork.id]


def joined(ranges: Ranges) -> Ranges:
    """Return ranges in order, those that touch made one."""
    found: Ranges = []
    for low, high in sorted(ranges):
        if low >= high:
            continue
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """Return what is in ``ranges`` and not in ``taken``."""
    left: Ranges = []
    holes = joined(taken)
    for low, high in joined(ranges):
        at = low
        for first, last in holes:
            if last <= at or first >= high:
                continue
            if first > at:
                left.append((at, first))
            at = last
        if at < high:
            left.append((at, high))
    return left
