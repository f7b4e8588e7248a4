"""One stream's state, and how a committed record changes it.

Theory of operation
-------------------
A stream is what its records made of it: ``apply`` folds one record into a ``Stream``, and it is
the only code that changes one. It runs in three places and must mean the same in each: when a
batch has been committed, when a stream is opened from its index, and when the journal is replayed
after a crash. Therefore it decides nothing and refuses nothing; what may happen was decided by
``Draft`` (appends) and ``Namespace`` (names, forks, buckets) before the record was written, and
data, producers, Stream-Seq and closure stand in one record, so they are durable together or not
at all.

States of a stream, and what holds in each:

    open     closed=False, gone=False    tail grows
    closed   closed=True                 tail never changes again
    gone     gone=True                   deleted, kept because forks read its bytes; takes no writes
    damaged  damage != ""                bytes do not verify; refused until repaired, or, if
                                         provisional, until they are found to verify after all
    expired  now >= deadline             to be treated as if it were deleted; judged, never stored

    snapshot position = floor <= tail      (a snapshot at p makes p the floor)
    trimmed = floor                        retention raised the floor, above a snapshot or without
    both < floor                           bytes between were lost, and a repair raised the floor
    fork:  start of its own bytes = fork position >= floor; below it the source's bytes are read

``read_ms`` is the one field not folded from records: a read renews a sliding lifetime in memory at
once and on disk now and then (``Touch``), so ``accessed_ms`` may lag behind it by a fraction of
the lifetime.

A stream at rest keeps no ``Detail`` (producers and the like); its index has it. ``plain`` says
that there is none to load. ``links`` are the subscriptions that want the stream, None for nobody.
"""

from typing import TYPE_CHECKING

from durastreamd.model.producers import STREAM_SUMS_MAX, SumRun
from durastreamd.model.records import (
    NO_POLICY,
    Append,
    Create,
    Publish,
    Retain,
    Snapshot,
    Touch,
)
from durastreamd.protocol.content_type import is_json

if TYPE_CHECKING:
    from durastreamd.model.subscription import Link

# How the damage of a stream begins that was met in its files while it was served. Nothing was set
# aside for it, so it is taken back if all of the files verify later (a cable, a controller's
# cache). Any other damage may have cost records, and only a repair brings them back.
MET = "met while serving: "
# How it begins of a stream all of whose newer records are kept in quarantine/, up to the one whose
# number follows: its files could not be read or written when they were wanted. A start at which
# they can takes the records up.
ASIDE = "set aside up to record "


def aside_mark(lsn: int, reason: str) -> str:
    """Return the damage of a stream whose records up to ``lsn`` are set aside."""
    text = "a start at which its files can be read and written takes them up again"
    return f"{ASIDE}{lsn}: {reason}; {text}"


_ROW_FIELDS = 18  # of a row; one more where retention has something to say


class Detail:
    """What only writers need: the producers and the last Stream-Seq.

    ``sums`` are of producers that asked for it; the one that appended longest ago comes first, and
    is the first to be forgotten.
    """

    __slots__ = ("producers", "seq", "sums")

    def __init__(self) -> None:
        self.producers: dict[str, tuple[int, int]] = {}
        self.seq: str | None = None
        self.sums: dict[str, SumRun] = {}

    def remember(self, name: str, run: SumRun) -> None:
        """Keep the sums of a producer's appends, and not too many of all together."""
        before = self.sums.pop(name, None)
        self.sums[name] = run if before is None else before.then(run)
        while sum(each.appends for each in self.sums.values()) > STREAM_SUMS_MAX:
            del self.sums[next(iter(self.sums))]

    def row(self) -> list[object]:
        """Return the detail as a CBOR array."""
        producers = [[name, epoch, seq] for name, (epoch, seq) in self.producers.items()]
        if not self.sums:
            return [producers, self.seq]
        return [producers, self.seq, [[name, *run] for name, run in self.sums.items()]]

    @classmethod
    def from_row(cls, row: list) -> "Detail":  # type: ignore[type-arg]  # CBOR is untyped
        """Rebuild a detail from its CBOR array."""
        detail = cls()
        detail.producers = {name: (epoch, seq) for name, epoch, seq in row[0]}
        detail.seq = row[1]
        if len(row) > 2:
            detail.sums = {name: SumRun(*run) for name, *run in row[2]}
        return detail


class Stream:
    """One stream: identity, extent, lifetime. Small, because every stream at rest has one."""

    __slots__ = (
        "accessed_ms",
        "anchor",
        "closed",
        "content_type",
        "created_ms",
        "damage",
        "detail",
        "expires_ms",
        "floor",
        "fork_position",
        "gone",
        "id",
        "json",
        "key",
        "links",
        "lsn",
        "messages",
        "plain",
        "policy",
        "read_ms",
        "snapshot",
        "source",
        "sub",
        "tail",
        "trimmed",
        "ttl_ms",
        "written_ms",
    )

    def __init__(self, record: Create) -> None:
        self.id = record.stream
        self.key = record.key
        self.content_type = record.content_type
        self.json = is_json(record.content_type)
        self.ttl_ms = record.ttl_ms
        self.expires_ms = record.expires_ms
        self.created_ms = self.written_ms = self.accessed_ms = self.read_ms = record.time_ms
        self.source = record.source
        self.fork_position = record.start
        self.anchor = record.anchor
        self.sub = record.sub
        self.floor = record.floor
        self.snapshot: Snapshot | None = record.snapshot
        self.tail = record.start + record.size
        self.messages = record.ordinal + record.count
        self.closed = record.closes
        self.gone = False
        self.damage = ""
        self.lsn = 0
        self.plain = True
        self.detail: Detail | None = None
        self.links: dict[int, Link] | None = None
        self.trimmed = record.trimmed
        self.policy = NO_POLICY

    def deadline_ms(self) -> int | None:
        """Return when the stream expires, None for never."""
        if self.ttl_ms >= 0:
            return max(self.accessed_ms, self.read_ms) + self.ttl_ms
        return self.expires_ms if self.expires_ms >= 0 else None

    def expired(self, now_ms: int) -> bool:
        """Tell whether the lifetime is over."""
        deadline = self.deadline_ms()
        return deadline is not None and now_ms >= deadline

    @property
    def provisional(self) -> bool:
        """Tell whether the stream is refused only as long as its files do not verify."""
        return self.damage.startswith(MET)

    @property
    def aside_lsn(self) -> int | None:
        """Return the last record that was set aside, if all are that the row does not include."""
        if not self.damage.startswith(ASIDE):
            return None
        return int(self.damage.removeprefix(ASIDE).partition(":")[0])

    def lost_from(self) -> int | None:
        """Return from where on, up to the floor, a loss left nothing; None where nothing is lost.

        A snapshot stands for what lies below its position, and what retention passed was given up
        on purpose. Nothing stands for the rest: only a repair after a loss raises a floor further.
        """
        folded = self.snapshot.position if self.snapshot is not None else 0
        known = max(folded, self.trimmed)
        return known if known < self.floor else None

    @property
    def whole(self) -> bool:
        """Tell whether all ever appended is there: in the snapshot, or after it."""
        return self.floor == (self.snapshot.position if self.snapshot is not None else 0)

    def loaded(self) -> Detail:
        """Return the detail, which must have been loaded (or be known to be empty)."""
        if self.detail is None:
            assert self.plain, "detail used before it was loaded"
            self.detail = Detail()
        return self.detail

    def row(self) -> list[object]:
        """Return everything but the detail as a CBOR array: the catalogue's row."""
        extra = [self.trimmed, *self.policy]
        return [
            self.id,
            self.key,
            self.content_type,
            self.ttl_ms,
            self.expires_ms,
            self.created_ms,
            self.written_ms,
            self.accessed_ms,
            [self.source, self.fork_position, self.anchor, self.sub] if self.source else None,
            self.floor,
            self.snapshot.row() if self.snapshot else None,
            self.tail,
            self.messages,
            self.closed,
            self.gone,
            self.damage,
            self.lsn,
            self.plain,
            *([extra] if extra != [0, *NO_POLICY] else ()),
        ]

    @classmethod
    def from_row(cls, row: list) -> "Stream":  # type: ignore[type-arg]  # CBOR is untyped
        """Rebuild a stream from its catalogue row."""
        stream = cls.__new__(cls)
        (
            stream.id,
            stream.key,
            stream.content_type,
            stream.ttl_ms,
            stream.expires_ms,
            stream.created_ms,
            stream.written_ms,
            stream.accessed_ms,
            fork,
            stream.floor,
            blob,
            stream.tail,
            stream.messages,
            stream.closed,
            stream.gone,
            stream.damage,
            stream.lsn,
            stream.plain,
        ) = row[:_ROW_FIELDS]
        stream.trimmed, stream.policy = 0, NO_POLICY
        if len(row) > _ROW_FIELDS:
            stream.trimmed, *policy = row[_ROW_FIELDS]
            stream.policy = (policy[0], policy[1], policy[2])
        stream.source, stream.fork_position, stream.anchor, stream.sub = fork or (0, 0, -1, 0)
        stream.snapshot = Snapshot(*blob) if blob else None
        stream.json = is_json(stream.content_type)
        stream.read_ms = stream.accessed_ms
        stream.detail = None
        stream.links = None
        return stream


def apply(stream: Stream, record: Append | Publish | Touch | Retain, lsn: int) -> None:
    """Fold one committed record of this stream into its state."""
    assert lsn > stream.lsn, f"record {lsn} applied after {stream.lsn}"
    stream.lsn = lsn
    if record.time_ms > stream.accessed_ms:
        stream.accessed_ms = record.time_ms
    if isinstance(record, Append):
        _apply_append(stream, record)
    elif isinstance(record, Publish):
        stream.snapshot = record.snapshot
        stream.floor = record.snapshot.position
    elif isinstance(record, Retain):
        retain(stream, record)


def retain(stream: Stream, record: Retain) -> None:
    """Raise the floor of a stream, if it rises, and take its policy over."""
    stream.policy = record.policy
    if record.floor > stream.floor:
        stream.floor = stream.trimmed = record.floor


def _apply_append(stream: Stream, record: Append) -> None:
    assert record.start == stream.tail, f"append at {record.start}, tail is {stream.tail}"
    assert not stream.closed, "append to a closed stream"
    stream.tail += record.size
    stream.messages += record.count
    stream.written_ms = record.time_ms
    stream.closed = record.closes
    if record.seq is not None or record.producers:
        detail = stream.loaded()
        stream.plain = False
        if record.seq is not None:
            detail.seq = record.seq
        for name, epoch, seq in record.producers:
            detail.producers[name] = (epoch, seq)
        for name, epoch, last, sums in record.sums:
            detail.remember(name, SumRun(epoch, last, sums))


def check_invariants(stream: Stream) -> None:
    """Assert what the table of states above says."""
    assert 0 <= stream.floor <= stream.tail
    assert stream.fork_position <= stream.tail
    assert stream.snapshot is None or stream.snapshot.position <= stream.floor
    assert stream.trimmed <= stream.floor
    assert stream.source or stream.fork_position == 0
    assert stream.detail is None or not stream.plain or not stream.detail.producers
