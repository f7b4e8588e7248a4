"""The export that keeps everything: a CBOR sequence (RFC 8742) of checked items.

FORMAT.md, "Export", describes the same bytes. Every item of the sequence is ``[sum, 24(body)]``:
the body is CBOR inside a byte string (tag 24), the sum is its checksum, seeded with where the item
stands. So an item that is damaged, moved, repeated or left out is found at its very byte, and a
reader holds one item at a time. The last item says that it is the last: a file without it was cut.

The items of a stream follow one another: ``stream``, its ``record`` items, each ``snapshot`` with
its ``piece`` items, ``stream-end``. A stream that others were forked from stands before them.
"""

import struct
from collections.abc import Iterator
from typing import Annotated, BinaryIO, Protocol

import cbor2
import msgspec
from msgspec import Struct

from durastreamd.kit.command import CommandError
from durastreamd.kit.status import CORRUPT
from durastreamd.storage.checksum import digest, seed

VERSION = 1

# Tag 55799, "this is CBOR", before the first item: file(1) and its like know it.
SELF_DESCRIBED = b"\xd9\xd9\xf7"
# array(2), uint64, tag 24, byte string with a length of four bytes.
ITEM = struct.Struct(">BBQBBBI")
_ITEM_FIXED = (0x82, 0x1B, 0xD8, 0x18, 0x5A)

# Far above any batch a server takes; a length beyond it is damage, not data.
BODY_BYTES_MAX = 2**30

FORMATS = ("ndjson", "raw", "cbor")  # that export writes and import reads


class Source(Protocol):
    """A file to be imported."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes, none at the end."""

    def readline(self, size: int, /) -> bytes:
        """Return up to the next line end, no more than so many bytes."""


# What a file may say is bounded where it is read: these go into structs of fixed size.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Maybe = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]  # -1: there is none
Serial = Annotated[int, msgspec.Meta(ge=0)]

ProducerRow = tuple[str, Number, Number]


class ExportHead(Struct, tag_field="kind", tag="durastreamd-export", frozen=True):
    """The first item: where the export is from, and every name in it."""

    version: Number
    uuid: bytes
    made_ms: Number
    names: list[str]
    buckets: list[tuple[str, Number]] = []


class ForkOf(Struct, frozen=True):
    """Where a fork left its source, which stands earlier in the export under that number."""

    source: Number
    position: Number
    anchor: Maybe
    sub: Number


class StreamItem(Struct, tag_field="kind", tag="stream", frozen=True, omit_defaults=True):
    """A stream begins; everything here is as of ``start``, where its records begin."""

    number: Number
    name: str
    content_type: str
    created_ms: Number
    start: Number
    messages: Number
    floor: Number = 0
    ttl_ms: Maybe = -1
    expires_ms: Maybe = -1
    closed: bool = False
    fork: ForkOf | None = None
    producers: list[ProducerRow] = []
    seq: str | None = None


class RecordItem(Struct, tag_field="kind", tag="record", frozen=True, omit_defaults=True):
    """A batch of the stream: its bytes, its messages' lengths (JSON: their number), its time."""

    at: Number
    time_ms: Number
    messages: Number | list[Number]
    data: bytes = b""
    closes: bool = False
    seq: str | None = None
    producers: list[ProducerRow] = []


class SnapshotItem(Struct, tag_field="kind", tag="snapshot", frozen=True):
    """A snapshot that the stream or a fork of it shows; its bytes follow in pieces."""

    position: Number
    serial: Serial
    content_type: str
    size: Number


class PieceItem(Struct, tag_field="kind", tag="piece", frozen=True):
    """Some bytes of the snapshot before it."""

    data: bytes


class StreamEnd(Struct, tag_field="kind", tag="stream-end", frozen=True, omit_defaults=True):
    """The stream as it was when it was exported; what its records made of it must be the same.

    ``snapshot`` is the one it shows: the number of the stream whose it is, position, serial.
    """

    number: Number
    tail: Number
    messages: Number
    floor: Number
    written_ms: Number
    accessed_ms: Number
    closed: bool = False
    gone: bool = False
    snapshot: tuple[Number, Number, Serial] | None = None
    producers: list[ProducerRow] = []
    seq: str | None = None
    trimmed: Number = 0
    policy: tuple[Maybe, Maybe, Maybe] | None = None


class End(Struct, tag_field="kind", tag="end", frozen=True):
    """The last item: nothing was cut off."""

    streams: Number
    records: Number
    data_bytes: Number


Item = ExportHead | StreamItem | RecordItem | SnapshotItem | PieceItem | StreamEnd | End

_SEED = seed("export")


def encode(item: Item, position: int) -> bytes:
    """Return an item as it stands at a position of the sequence."""
    body = cbor2.dumps(msgspec.to_builtins(item, builtin_types=(bytes,)))
    array, uint, tag, embedded, string = _ITEM_FIXED
    head = ITEM.pack(array, uint, digest(body, _SEED, position), tag, embedded, string, len(body))
    return head + body


class ItemWriter:
    """Writes the sequence; ``length`` is how much of it there is."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.length = len(SELF_DESCRIBED)
        out.write(SELF_DESCRIBED)

    def write(self, item: Item) -> None:
        """Add an item."""
        data = encode(item, self.length)
        self._out.write(data)
        self.length += len(data)


class ItemReader:
    """Reads the sequence, one item at a time, and believes none that does not verify."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self.name = name
        self.position = 0  # where the item handed out last begins
        self._next = 0

    def refusal(self, reason: str, position: int | None = None) -> CommandError:
        """Return the error for an item: this file, this byte."""
        at = self.position if position is None else position
        return CommandError(CORRUPT, f"{self.name}: byte {at}: {reason}; nothing was imported")

    def items(self) -> Iterator[Item]:
        """Yield the items after the head's tag; the last one is an ``End`` with nothing after it.

        Raise CommandError, with the position, where the sequence is damaged or cut.
        """
        if self._take(len(SELF_DESCRIBED)) != SELF_DESCRIBED:
            reason = "this is not a durastreamd export (--format cbor)"
            raise self.refusal(reason, 0)
        while True:
            item = self._item()
            yield item
            if isinstance(item, End):
                break
        if self._source.read(1):
            reason = "bytes follow the end of the export"
            raise self.refusal(reason, self._next)

    def _take(self, size: int) -> bytes:
        """Read so many bytes; fewer only at the end of the file."""
        data = self._source.read(size)
        while len(data) < size:
            more = self._source.read(size - len(data))
            if not more:
                break
            data += more
        self._next += len(data)
        return data

    def _item(self) -> Item:
        self.position = self._next
        head = self._take(ITEM.size)
        if len(head) < ITEM.size:
            raise self._cut(head)
        array, uint, total, tag, embedded, string, size = ITEM.unpack(head)
        if (array, uint, tag, embedded, string) != _ITEM_FIXED or size > BODY_BYTES_MAX:
            reason = "no item begins here: the export is damaged"
            raise self.refusal(reason)
        body = self._take(size)
        if len(body) < size:
            raise self._cut(head + body)
        if digest(body, _SEED, self.position) != total:
            reason = "the item does not verify: the export is damaged"
            raise self.refusal(reason)
        try:
            item: Item = msgspec.convert(cbor2.loads(body), Item)
        except (cbor2.CBORDecodeError, msgspec.ValidationError) as exc:
            reason = f"the item is not understood ({exc}); a newer dsadmin may have written it"
            raise self.refusal(reason) from exc
        return item

    def _cut(self, found: bytes) -> CommandError:
        if not found:
            return self.refusal("the export ends here, without its last item: it was cut short")
        return self.refusal(
            f"the export ends at byte {self._next} inside the item that begins here: "
            "it was cut short"
        )
