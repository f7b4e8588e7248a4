"""Where a query stands, and how that is written into Spark's checkpoint. Pure.

A place is an opaque token of the server with counts beside it. Two forms:

* told: the server numbers messages and bytes (``Stream-At-Message``), so a token is the place
  itself and reads can be bounded. ``[messages before, bytes before, incarnation]``: the token of
  such a server is made of the bytes. The incarnation is the life of the stream's name that was
  read; a place of one life says nothing about another.
* counted: any other server. The place is so many messages behind the token, which was the nearest
  that the server gave. ``{"t": token, "n": messages before the token, "k": before the place}``.

Spark logs the end of a batch before it runs, but neither the start of the first one nor that of a
stream found later. So each end carries, for such a stream, where its rows begin (``from``), and
the first start is a constant. The layout of partitions is logged, too (``cut``): a batch that is
run again after somebody changed an option still has the same partitions, on which the sink's
producer ids depend. ``leaving`` names streams that may go without a loss: closed or of limited
lifetime, and read to their end.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from durastreamd.protocol.offsets import mint
from durastreamd.spark.errors import CheckpointError

VERSION = 2
_READ = (1, VERSION)  # the first one named no incarnation, and gathered no streams

Json = dict[str, object]


@dataclass(frozen=True)
class StreamPlace:
    """A place between two messages of one stream."""

    token: str
    number: int  # messages before it
    byte: int = -1  # bytes before it; -1 if the server does not tell
    token_number: int = -1  # counted: messages before the token
    incarnation: str = ""  # of the stream; empty if nobody told

    @property
    def told(self) -> bool:
        """Tell whether the token is this very place."""
        return self.byte >= 0

    def to_json(self) -> object:
        """Return it as it stands in the checkpoint."""
        if self.told and self.token == mint(self.byte):
            return [self.number, self.byte, self.incarnation]
        if self.told:
            counts = {"t": self.token, "n": self.number, "b": self.byte}
            return {**counts, "i": self.incarnation}
        return {"t": self.token, "n": self.token_number, "k": self.number}

    @classmethod
    def of(cls, found: object) -> "StreamPlace":
        """Read it back."""
        match found:
            case [int(number), int(byte), str(incarnation)]:
                return cls(mint(byte), number, byte, incarnation=incarnation)
            case {"t": str(token), "n": int(number), "b": int(byte), **rest}:
                return cls(token, number, byte, incarnation=str(rest.get("i", "")))
            case {"t": str(token), "n": int(before), "k": int(number)}:
                return cls(token, number, token_number=before)
            case _:
                message = f"{found!r} is no place in a stream."
                raise CheckpointError(message)


class Begin(NamedTuple):
    """Where the rows of a stream begin: at a place, perhaps with the snapshot published there."""

    place: StreamPlace
    snapshot: str = ""  # its offset


class MessageRange(NamedTuple):
    """What a batch reads of one stream."""

    stream: str
    begin: Begin
    end: StreamPlace

    @property
    def messages(self) -> int:
        """The number of its messages."""
        return self.end.number - self.begin.place.number


@dataclass(frozen=True)
class Cut:
    """How ranges become partitions."""

    partitions_min: int = 0
    bytes_max: int = 0
    # Small streams share a partition, up to so many bytes and streams; 0: each has its own.
    shared_bytes: int = 0
    shared_streams: int = 0


@dataclass
class Offset:
    """Where all streams of a query stand."""

    places: dict[str, StreamPlace] = field(default_factory=dict)
    begins: dict[str, Begin] = field(default_factory=dict)
    cut: Cut = Cut()
    first: bool = False  # the constant before the first batch
    leaving: set[str] = field(default_factory=set)

    def to_json(self) -> Json:
        """Return it for the checkpoint; streams in order, since Spark compares the text."""
        if self.first:
            return {"v": VERSION, "streams": {}}
        made: Json = {"v": VERSION, "cut": [*astuple(self.cut)]}
        made["streams"] = {name: self.places[name].to_json() for name in sorted(self.places)}
        if self.begins:
            made["from"] = {
                name: [begin.place.to_json(), begin.snapshot]
                for name, begin in sorted(self.begins.items())
            }
        if self.leaving:
            made["leaving"] = sorted(self.leaving)
        return made

    @classmethod
    def of(cls, found: Mapping[str, object]) -> "Offset":
        """Read it back."""
        streams = found.get("streams")
        if found.get("v") not in _READ or not isinstance(streams, dict):
            message = (
                f"The checkpoint was not written by this version of format durastream: "
                f"{json.dumps(found)[:200]}"
            )
            raise CheckpointError(message)
        made = cls(first="cut" not in found)
        match found.get("cut"):
            case [int(partitions), int(size)]:
                made.cut = Cut(partitions, size)
            case [int(partitions), int(size), int(shared), int(count)]:
                made.cut = Cut(partitions, size, shared, count)
            case _:
                pass
        made.places = {name: StreamPlace.of(entry) for name, entry in streams.items()}
        begins = found.get("from")
        made.begins = dict(_begins(begins if isinstance(begins, dict) else streams))
        leaving = found.get("leaving")
        made.leaving = set(map(str, leaving)) if isinstance(leaving, list) else set()
        return made


def _begins(found: Mapping[str, object]) -> Iterator[tuple[str, Begin]]:
    """Yield where streams begin; the first version wrote it beside their ends."""
    for name, entry in found.items():
        match entry:
            case [place, str(snapshot)]:
                yield name, Begin(StreamPlace.of(place), snapshot)
            case {"from": place, **rest}:
                yield name, Begin(StreamPlace.of(place), str(rest.get("snapshot", "")))
            case _:
                pass


def initial() -> Json:
    """Return where every query starts: nowhere yet."""
    return Offset(first=True).to_json()


def ranges(start: Offset, end: Offset) -> list[MessageRange]:
    """Return what lies between two offsets, in the order of the streams' names."""
    found = []
    for name in sorted(end.places):
        begin = end.begins.get(name)
        if begin is None:
            if name not in start.places:
                message = f"The checkpoint does not say where stream {name} begins."
                raise CheckpointError(message)
            begin = Begin(start.places[name])
        each = MessageRange(name, begin, end.places[name])
        if each.messages < 0:
            message = (
                f"Stream {name} would be read from message {begin.place.number} back to "
                f"{each.end.number}; the checkpoint does not belong to this query."
            )
            raise CheckpointError(message)
        if each.messages or begin.snapshot:
            found.append(each)
    return found


def shares(limit: int, available: Mapping[str, int]) -> dict[str, int]:
    """Divide a limit over streams by what each has; everyone who has something gets something.

    So many small streams may exceed the limit by one message each, as with Kafka.
    """
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    return {
        name: min(size, max(1, limit * size // total)) if size else 0
        for name, size in available.items()
    }
