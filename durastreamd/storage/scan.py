"""The one walk through bytes that may be damaged: what verifies, and the gaps between.

A journal, an index and a catalogue are each a run of *frames*: a struct that begins with a magic
and the length of the header after it, and that ends with the checksum of both. A reader knows where
the next frame begins. Where that one does not verify, somebody has to look for the next that does:
recovery, to tell a torn write from rot; dsadmin, to show, verify and mend; Spark, to read on. All
of them walk with ``Walk``.

Theory of operation
-------------------
Most bytes of a journal were chosen by clients, and a client may choose bytes that look like frames,
with headers of megabytes, one begun inside the other. To know that such a *place* is none, its head
(struct and header) must be hashed with the seed of its position; so many places with long headers
cost the square of the file. The walk is nevertheless both linear and complete:

1. Whatever stands inside a frame that verifies is passed over: its lengths are true.
2. A *place* is a magic after which the struct could be a real one: every field whose range is known
   has a value in it, as far as a compiled pattern can say: lengths are bounded, and the sequence
   numbers of a journal file are known but for their lowest bytes. No client knows them, for a
   directory's first one is drawn by lot (``first_lsn``). So the pattern looks for their upper bytes
   first, and whatever a client sends costs what noise does: no hash, no Python, no try at a magic.
   In a journal of an older version, numbered from 1, a magic that is no place costs some ten
   nanoseconds; and the rest of this theory is for it, and for somebody who knows the numbers.
3. A place is *crowded* if another place is in its struct, or more than ``NESTED_MAX`` are in its
   head. Crowded places are hashed, too, but only until all of them together have cost
   ``CROWDED_FACTOR`` files, each its header and ``CROWDED_BYTES``.

This bounds the effort. Take any byte, and the places whose heads are hashed and hold it, the
crowded ones left out, from left to right: the first one's head holds all others, so there are at
most ``NESTED_MAX + 1``; and no two of their structs meet. Therefore, in the worst case, for bytes
chosen by somebody who knows these rules and every field of the struct but the seed,

    bytes hashed while looking  <=  (NESTED_MAX + 1 + CROWDED_FACTOR) * length of the file
    hashes  <=  length of the file / length of a struct + CROWDED_FACTOR * length / CROWDED_BYTES

(A real header of a megabyte is hashed once; only what is nested is hashed again.)

And it loses no frame, because real heads are not crowded. A place inside a real struct would have
its own fields where the checksum of the real one stands, whose bytes nobody can choose, or it
stands in a time, a payload sum or a count of a thousand million: an accident of one in 2^32, or
weeks of a client's work for one frame of his own. In a header the magic can stand only inside an
integer, once, because it begins with FF FE, which no text holds. A place has zeros at its 8th byte
and from the 13th to the 16th, so two places are sixteen bytes apart. The integers at the end of a
create, before the bytes that the client chose, are six, of nine bytes each; so are a snapshot's.
That is room for four. The lengths of messages are too small to hold the magic (it would be a
message of 4 GB). That leaves producers, of which an append may have thousands: ``[id, epoch,
seq]``, the epoch of the client's choice, the seq counted up from 0 by real appends. But between
one epoch and the next stand the heads of an array and of a text, a character at least, and the head
of an integer, none of them zero. They can be laid out in no way that leaves the zeros
(``tests/storage/test_scan.py`` tries every one); so it is the last epoch alone. Should a real frame
be crowded all the same, it is found from the left within the extra effort, unless there are decoys
before it as well. Nobody can make a frame so of a stream that he may not write to. And sequence
numbers have no gaps, so whatever comes later tells that a frame is missing.

A gap says how many places in it were *passed* unhashed, and dsadmin says so, too.
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from xxhash import xxh3_64_intdigest

from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import seed

# More places than any head of the journal that the server wrote can hold; see the theory. Entries
# and rows were never chosen byte by byte by anybody, and may hold a few more.
NESTED_MAX = 4
NESTED_MAX_ELSEWHERE = 24
CROWDED_FACTOR = 2  # one real head as long as the file, and as much again
CROWDED_BYTES = 1024  # what a look at a crowded place counts as, beside its header

_BATCH = 1024  # places found at once: what is found ahead in vain costs less than asking each time
_NOWHERE = 2**63  # beyond every file
_SUM_BYTES = fmt.CHECKSUM.size


class Gap(NamedTuple):
    """Bytes of a file that do not verify, up to where something does again (or the end)."""

    position: int
    end: int
    passed: int = 0  # crowded places in it that were not hashed; see rule 3


class Shape(NamedTuple):
    """How the frames of one kind of file begin: what a place matches, and the struct's size."""

    place: re.Pattern[bytes]
    struct_bytes: int
    nested_max: int = NESTED_MAX_ELSEWHERE
    lead: int = 0  # the pattern matches so far into the struct


class Framed(Protocol):
    """What a walk yields: it knows where it stands and where it ends."""

    @property
    def position(self) -> int:
        """Return where it begins in its file."""

    @property
    def end(self) -> int:
        """Return where the next one begins, which may lie beyond the end of a torn file."""


FrameT = TypeVar("FrameT", bound=Framed)


class Walk(Generic[FrameT]):
    """Walks one file's bytes. ``parse`` returns the frame at a position if one verifies there.

    ``base`` is the seed of the checksums, before the position is added. ``could`` tells cheaply
    that no frame stands at a place, from what the caller knows of the file.
    """

    def __init__(
        self,
        data: bytes,
        shape: Callable[[], Shape],
        base: int,
        parse: Callable[[int], FrameT | None],
        could: Callable[[int], bool] | None = None,
    ) -> None:
        self._data = data
        self._make_shape = shape  # most files are whole: then there is nothing to look for
        self._base = base
        self._parse = parse
        self._could = could
        self._shape: Shape | None = None
        # Places are found in order and once, whatever is asked: these wait, those come from here.
        self._ahead: list[int] = []
        self._matches: Iterator[re.Match[bytes]] | None = None
        self._all_found = False
        self._passed = 0
        self._spare = CROWDED_FACTOR * len(data)  # what crowded places may cost

    def items(self, position: int) -> Iterator[FrameT | Gap]:
        """Yield every frame that verifies from ``position`` on, and the gaps between."""
        size = len(self._data)
        while position < size:
            found = self._parse(position)
            if found is None:
                found = self.next_frame(position + 1)
                yield Gap(position, size if found is None else found.position, self._passed)
                if found is None:
                    return
            yield found
            position = found.end

    def next_frame(self, position: int) -> FrameT | None:
        """Return the first frame that verifies at ``position`` or later."""
        self._passed = 0
        self._seek(position)
        found = None
        while found is None and (not self._all_found or self._ahead):
            if not self._all_found:
                self._pull()
            found = self._first_of(self._ahead)
        return found

    def _seek(self, position: int) -> None:
        """Forget the places before a position."""
        ahead = self._ahead
        del ahead[: bisect_left(ahead, position)]
        if self._shape is None:
            self._shape = self._make_shape()
        if not ahead and not self._all_found:
            start = position + self._shape.lead
            self._matches = self._shape.place.finditer(self._data, start)

    def _pull(self) -> None:
        """Find more places."""
        assert self._matches is not None
        assert self._shape is not None
        lead = self._shape.lead
        found = [match.start() - lead for match in islice(self._matches, _BATCH)]
        self._ahead += found
        self._all_found = len(found) < _BATCH

    def _first_of(self, ahead: list[int]) -> FrameT | None:
        """Return the first frame at these places. What is looked at is taken out.

        Of each place it must be known which others follow, so the last few stay for the next time
        unless there are no more. This is the loop that a client can have run a million times.
        """
        assert self._shape is not None
        _, struct_bytes, nested_max, _ = self._shape
        data, base, could, size = self._data, self._base, self._could, len(self._data)
        bare = struct_bytes - _SUM_BYTES
        fields = struct.Struct(f"<4xI{bare - 8}xQ").unpack_from
        known = [*ahead, *[_NOWHERE] * (nested_max + 1)] if self._all_found else ahead[:]
        spare, passed, at, found = self._spare, 0, -1, None
        for at, after, crowd in zip(known, known[1:], known[nested_max + 1 :], strict=False):
            length, check = fields(data, at)
            reach = at + struct_bytes + length
            if reach > after and (after - at < struct_bytes or crowd < reach):
                if reach > size:
                    continue
                cost = CROWDED_BYTES + length
                if cost > spare:
                    passed += 1
                    continue
                spare -= cost
            if reach > size or (could is not None and not could(at)):
                continue
            # The seed of a checksum is taken modulo 2^64.
            head = data[at : at + bare] + data[at + struct_bytes : reach]
            if xxh3_64_intdigest(head, base + at) == check:
                found = self._parse(at)
                if found is not None:
                    break
        del ahead[: bisect_right(ahead, at)]
        self._spare = spare
        self._passed += passed
        return found


# --- shapes ---
# What is known of every struct: a header has less than 16 MiB; there are fewer than 2^40
# checkpoints; times and lsns are below 2^48, positions and ordinals below 2^56. A payload has less
# than 2^40 bytes; it is in memory when it is written, and one that a journal file does not hold
# whole has less than a gigabyte.

_COUNT = rb"......\0\0"
_PLACE = rb".{7}\0"
_LENGTHS = rb"...\0.....\0\0\0"
_LSN_MAX = 2**48 - 1
_LSN_AT = 56  # in a journal frame's struct
_PAYLOAD_MAX = 2**30
_ARRAY = rb"[\x81-\x9b]"  # a header is one, and not an empty one


# The first lsn of a directory is drawn from these: half of all that fit, and none that is likely.
_FIRST_LSN_MIN = 2**40
_FIRST_LSN_MAX = 2**47


def first_lsn(uuid: bytes) -> int:
    """Return where a directory's sequence numbers begin, which no client can guess or ask for."""
    return _FIRST_LSN_MIN + seed("first lsn", uuid) % (_FIRST_LSN_MAX - _FIRST_LSN_MIN)


def is_drawn(lsn: int) -> bool:
    """Tell whether sequence numbers this high began by lot; older versions began with 1."""
    return lsn >= _FIRST_LSN_MIN


def _common(low: int, high: int) -> tuple[int, bytes]:
    """Return what integers from ``low`` to ``high`` share: how many low bytes vary, the others."""
    varying = ((low ^ high).bit_length() + 7) // 8
    return varying, re.escape(low.to_bytes(8, "little")[varying:])


def journal_shape(size: int, first_lsn: int | None) -> Shape:
    """Return what is known of the frames of a journal file of a size, numbered from the first one.

    They are numbered without gaps, and none is shorter than its struct, so the upper bytes of both
    lsns are known. If they are secret they are what is looked for; otherwise it is the magic, and
    to jump to them and compare is the cheapest way to turn it away. What stands between them and
    the lengths would turn away little else.
    """
    low, high = (0, _LSN_MAX)
    if first_lsn is not None:
        low, high = max(first_lsn - 1, 0), first_lsn + size // fmt.FRAME.size
    varying, upper = _common(low, high)
    # A place may begin inside another, so most of it is only looked at. But none begins inside the
    # lengths, which have too many zeros; unless there is room for a payload of many gigabytes.
    lengths, seen = rb"...\0...[\0-\x3f]\0\0\0\0", b""
    if size > _PAYLOAD_MAX:
        lengths, seen = rb"...\0", rb".....\0\0\0"
    magic, between = re.escape(fmt.FRAME_MAGIC), b".{%d}" % (_LSN_AT - 16 + varying)
    after = b"." * varying + upper + rb".{16}" + _ARRAY
    if is_drawn(low):
        before = magic + lengths + seen + between + upper
        pattern, lead = upper + b"(?<=" + before + b")(?=" + after + b")", _LSN_AT + varying
    else:
        pattern, lead = magic + lengths + b"(?=" + seen + between + upper + after + b")", 0
    return Shape(re.compile(pattern, re.DOTALL), fmt.FRAME.size, NESTED_MAX, lead)


INDEX = Shape(
    re.compile(
        rb"\xff\xfeI[ES](?=" + _LENGTHS + _PLACE + _COUNT + _PLACE + rb".{8}" + _COUNT + rb".{8})",
        re.DOTALL,
    ),
    fmt.ENTRY.size,
)

CATALOG = Shape(re.compile(rb"\xff\xfeC[RC](?=.{9}\0\0\0.{8})", re.DOTALL), fmt.CATALOG_FRAME.size)
