"""Where a query stands, and how that is written into Spark's checkpoint. Pure.

A place is an opaque token of the server with counts beside it. Two forms:

* told: the server numbers messages and bytes (``Stream-At-Message``), so a token is the place
  itself and reads can be bounded. ``{"t": token, "n": messages before, "b": bytes before}``.
* counted: any other server. The place is so many messages behind the token, which was the nearest
  that the server gave. ``{"t": token, "n": messages before the token, "k": before the place}``.

Spark logs the end of a batch before it runs, but neither the start of the first one nor that of a
stream found later. So each end carries, for such a stream, where its rows begin (``from``), and
the first start is a constant. The layout of partitions is logged, too (``cut``): a batch that is
run again after somebody changed an option still has the same partitions, on which the sink's
producer ids depend.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from durastreamd.spark.errors import CheckpointError

VERSION = 1

Json = dict[str, object]


@dataclass(frozen=True)
class StreamPlace:
    """A place between two messages of one stream."""

    token: str
    number: int  # messages before it
    byte: int = -1  # bytes before it; -1 if the server does not tell
    token_number: int = -1  # counted: messages before the token

    @property
    def told(self) -> bool:
        """Tell whether the token is this very place."""
        return self.byte >= 0

    def to_json(self) -> Json:
        """Return it as it stands in the checkpoint."""
        if self.told:
            return {"t": self.token, "n": self.number, "b": self.byte}
        return {"t": self.token, "n": self.token_number, "k": self.number}

    @classmethod
    def of(cls, found: object) -> "StreamPlace":
        """Read it back."""
        match found:
            case {"t": str(token), "n": int(number), "b": int(byte)}:
                return cls(token, number, byte)
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


@dataclass
class Offset:
    """Where all streams of a query stand."""

    places: dict[str, StreamPlace] = field(default_factory=dict)
    begins: dict[str, Begin] = field(default_factory=dict)
    cut: Cut = Cut()
    first: bool = False  # the constant before the first batch

    def to_json(self) -> Json:
        """Return it for the checkpoint; streams in order, since Spark compares the text."""
        streams: Json = {}
        for name in sorted(self.places):
            entry = self.places[name].to_json()
            if name in self.begins:
                begin = self.begins[name]
                entry["from"] = begin.place.to_json()
                if begin.snapshot:
                    entry["snapshot"] = begin.snapshot
            streams[name] = entry
        if self.first:
            return {"v": VERSION, "streams": {}}
        cut = [self.cut.partitions_min, self.cut.bytes_max]
        return {"v": VERSION, "cut": cut, "streams": streams}

    @classmethod
    def of(cls, found: Mapping[str, object]) -> "Offset":
        """Read it back."""
        streams = found.get("streams")
        if found.get("v") != VERSION or not isinstance(streams, dict):
            message = (
                f"The checkpoint was not written by this version of format durastream: "
                f"{json.dumps(found)[:200]}"
            )
            raise CheckpointError(message)
        made = cls(first="cut" not in found)
        match found.get("cut"):
            case [int(partitions), int(size)]:
                made.cut = Cut(partitions, size)
            case _:
                pass
        for name, entry in streams.items():
            made.places[name] = StreamPlace.of(entry)
            if "from" in entry:
                snapshot = entry.get("snapshot", "")
                made.begins[name] = Begin(StreamPlace.of(entry["from"]), snapshot)
        return made


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
