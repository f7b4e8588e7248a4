"""The catalogue's rows: what a checkpoint says of one stream or one bucket.

On disk a row is a CBOR array that begins with its kind; here each kind is a type, and nothing else
knows the numbers. What a stream's row says of the stream itself is the model's to read
(``Stream.from_row``): storage knows that it begins with the stream's id. A row that is none of
these was written by another version, or is damaged in a way its frame's checksum does not show; it
is kept as it stands, so that whoever reads it can say so.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

from durastreamd.storage.log import Placement

_STREAM, _STREAM_END, _BUCKET, _BUCKET_END = range(4)
_FACT, _FACT_END = 16, 17


class StreamRow(NamedTuple):
    """A stream that is there: the model's fields, and how much of it its files hold."""

    fields: list[object]
    placement: Placement

    @property
    def subject(self) -> int:
        """Return the stream's id."""
        return cast(int, self.fields[0])


class StreamEndRow(NamedTuple):
    """A stream that is there no longer; its files are to go."""

    subject: int


class BucketRow(NamedTuple):
    """A bucket that is there, and when it was made."""

    subject: str
    created_ms: int


class BucketEndRow(NamedTuple):
    """A bucket that is there no longer."""

    subject: str


class FactRow(NamedTuple):
    """What an extension keeps under a name of its own: the model's fields, None: no longer."""

    name: str
    fields: list[object] | None

    @property
    def subject(self) -> str:
        """Return what nothing else is about: a NUL is in no name."""
        return f"\0{self.name}"


class StrangeRow(NamedTuple):
    """Something in the place of a row."""

    item: object

    @property
    def subject(self) -> str:
        """Return what nothing else is about: a NUL is in no name."""
        return f"\0\0{self.item!r}"


Row = StreamRow | StreamEndRow | BucketRow | BucketEndRow | FactRow | StrangeRow


def encode_row(row: Row) -> object:
    """Return a row as CBOR has it."""
    match row:
        case StreamRow(fields, placement):
            return [_STREAM, fields, list(placement)]
        case StreamEndRow(stream):
            return [_STREAM_END, stream]
        case BucketRow(name, created_ms):
            return [_BUCKET, name, created_ms]
        case BucketEndRow(name):
            return [_BUCKET_END, name]
        case FactRow(name, said):
            return [_FACT_END, name] if said is None else [_FACT, name, said]
        case StrangeRow(item):
            return item


def decode_row(item: object) -> Row:
    """Return what a row says."""
    match item:
        case [0, [int(), *_] as fields, [int(base), int(size), int(length), int(at), bool(made)]]:
            return StreamRow(list(fields), Placement(base, size, length, at, made))
        case [1, int(stream)]:
            return StreamEndRow(stream)
        case [2, str(name), int(created_ms)]:
            return BucketRow(name, created_ms)
        case [3, str(name)]:
            return BucketEndRow(name)
        case [16, str(name), list(fields)]:
            return FactRow(name, fields)
        case [17, str(name)]:
            return FactRow(name, None)
        case _:
            return StrangeRow(item)


def latest(rows: Iterable[Row]) -> dict[int | str, Row]:
    """Return rows by what they are about; a later row takes the place of an earlier one."""
    found: dict[int | str, Row] = {}
    for row in rows:
        subject = row.subject
        found.pop(subject, None)
        found[subject] = row
    return found
