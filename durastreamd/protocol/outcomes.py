"""What a command can come to. Values, not exceptions: every one is an answer a client may get.

``service`` turns each into a status and headers; nothing here knows HTTP numbers.
"""

from msgspec import Struct

from durastreamd.protocol.offsets import Position


class Created(Struct, frozen=True):
    """The stream is new and durable."""

    content_type: str
    tail: Position
    closed: bool


class Exists(Struct, frozen=True):
    """The stream was there with the same configuration; nothing changed."""

    content_type: str
    tail: Position
    closed: bool


class ConfigConflict(Struct, frozen=True):
    """The stream was there with another configuration; ``detail`` says what differs."""

    detail: str


class Appended(Struct, frozen=True, gc=False):
    """The bytes (or the closure alone) are durable; ``epoch`` is -1 without a producer."""

    tail: Position
    closed: bool
    epoch: int = -1
    seq: int = -1
    empty: bool = False


class Duplicate(Struct, frozen=True, gc=False):
    """The producer had this stored already; ``seq`` is the highest accepted.

    ``strict``: it was asked whether it is the same, and it is.
    """

    tail: Position
    closed: bool
    epoch: int
    seq: int
    strict: bool = False


class RepeatDiffers(Struct, frozen=True):
    """The producer had this number stored already, with other bytes, or nobody knows with which."""

    tail: Position
    epoch: int
    last: int  # the highest accepted
    given: int
    unknown: bool


class AlreadyClosed(Struct, frozen=True):
    """Asked to close, and it was closed: fine."""

    tail: Position


class StreamClosed(Struct, frozen=True):
    """Asked to append, and it is closed: refused."""

    tail: Position


class StaleEpoch(Struct, frozen=True):
    """The producer was fenced by a newer one of its name."""

    current: int


class EpochNotAtZero(Struct, frozen=True):
    """A new epoch must begin with sequence number 0."""

    epoch: int
    seq: int


class SequenceGap(Struct, frozen=True):
    """The producer skipped a sequence number."""

    expected: int
    received: int


class SeqRegression(Struct, frozen=True):
    """Stream-Seq did not grow."""

    last: str
    given: str
    tail: Position


class OffsetConflict(Struct, frozen=True):
    """The stream does not end where the append expected it to."""

    expected: int
    tail: Position


class OtherLife(Struct, frozen=True):
    """The name belongs to another stream than the one that was meant, or to none."""


class StreamFull(Struct, frozen=True):
    """There is no offset for the end of these bytes."""

    tail: Position


class ContentTypeMismatch(Struct, frozen=True):
    """The body's type is not the stream's."""

    expected: str
    actual: str


class TooManyProducers(Struct, frozen=True):
    """The stream's table of producers is full."""

    limit: int


class Malformed(Struct, frozen=True):
    """The body is not what the stream takes; ``code`` is a problem code."""

    code: str
    detail: str


class NotFound(Struct, frozen=True):
    """No stream of this name."""


class Gone(Struct, frozen=True):
    """The stream was deleted and is kept only for its forks."""


class Deleted(Struct, frozen=True):
    """The deletion is durable."""


class ForkRefused(Struct, frozen=True):
    """The source cannot be forked so.

    ``code`` is NOT_FOUND, GONE, MISMATCH, INVALID, EXPIRED, DAMAGED or TOO_DEEP.
    """

    code: str
    detail: str


class SnapshotPublished(Struct, frozen=True):
    """The snapshot is durable and visible; the stream is retained from here."""

    position: Position


class SnapshotTooOld(Struct, frozen=True):
    """The place lies below what is retained."""

    floor: Position


class SnapshotPastTail(Struct, frozen=True):
    """The place lies above what is written."""

    tail: Position


class Retained(Struct, frozen=True):
    """The stream is retained from here."""

    floor: Position


class BucketCreated(Struct, frozen=True):
    """The bucket is new and durable."""


class BucketExists(Struct, frozen=True):
    """A bucket of this name was there."""


class BucketMissing(Struct, frozen=True):
    """No bucket of this name."""


class BucketDeleted(Struct, frozen=True):
    """The bucket is gone, durably."""


class BucketNotEmpty(Struct, frozen=True):
    """The bucket still has streams; ``kept`` of them are deleted ones that forks still read."""

    streams: int
    kept: int = 0


class Touched(Struct, frozen=True):
    """A lifetime was renewed."""


Outcome = (
    Created
    | Exists
    | ConfigConflict
    | Appended
    | Duplicate
    | RepeatDiffers
    | AlreadyClosed
    | StreamClosed
    | StaleEpoch
    | EpochNotAtZero
    | SequenceGap
    | SeqRegression
    | OffsetConflict
    | OtherLife
    | StreamFull
    | ContentTypeMismatch
    | TooManyProducers
    | Malformed
    | NotFound
    | Gone
    | Deleted
    | ForkRefused
    | SnapshotPublished
    | SnapshotTooOld
    | SnapshotPastTail
    | Retained
    | BucketCreated
    | BucketExists
    | BucketMissing
    | BucketDeleted
    | BucketNotEmpty
    | Touched
)
