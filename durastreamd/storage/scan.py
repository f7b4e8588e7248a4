"""The one walk through bytes that may be damaged: what verifies, and the gaps between.

A journal, an index and a catalogue are each a run of *frames*: a struct that begins with a magic
and the length of the header after it, and that holds the checksum of both. A reader knows where
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
2. A *place* is a magic after which the struct could be a real one: fields that are never so large
   have zeros where they must (a compiled pattern says it, so rubbish costs no hash and no Python),
   the header ends within the file, and the caller's ``could`` agrees (a journal's sequence numbers
   are known within bounds). This is the cheap half and turns away all but careful imitations.
3. A place whose head holds more than ``NESTED_MAX`` other places is *crowded*. Crowded places are
   hashed, too, but only while all of them together cost no more than ``CROWDED_FACTOR`` files.

This bounds the effort. Take any byte, and the places whose heads are hashed and hold it, the
crowded ones left out, from left to right: the first one's head holds all others, so there are at
most ``NESTED_MAX + 1``. Therefore

    bytes hashed while looking  <=  (NESTED_MAX + 1 + CROWDED_FACTOR) * length of the file

in the worst case, for bytes chosen by somebody who knows these rules and every field of the struct
but the seed. (A real header of a megabyte is hashed once; only what is nested is hashed again.)

And it loses no frame, because real heads are not crowded. Places are at least eight bytes apart
(the first one's zeros), so a struct holds ten at most. The magic begins with FF FE, which no text
holds, so in a header it can stand only inside an integer, once. A create has twelve integers in
its header, a snapshot six. The lengths of messages are too small to hold the magic (it would be a
message of 4 GB). That leaves producers, of which an append may have thousands: ``[id, epoch,
seq]``, the epoch of the client's choice, the seq counted up from 0 by real appends. After a magic
in an epoch the struct needs zeros at many of its bytes; but between one epoch and the next stand
the heads of an array and of a text, a character at least, and the head of an integer, none of them
zero. While seqs are below 256 these can be laid out in no way that leaves the zeros
(``tests/storage/test_scan.py`` tries every one). So twenty-two is the most, unless somebody who may
write to a stream makes thousands of appends to it for no other end. Such a frame of his own is
crowded, and found from the left within the extra effort, unless he puts decoys before it as well.
Nobody can do that to a stream he may not write to. What is found is never less for it: sequence
numbers have no gaps, so whatever comes later tells that a frame is missing.

A gap says how many places in it were *passed* unhashed, and dsadmin says so, too.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from durastreamd.storage import format as fmt

# More places than any head that the server wrote can hold; see the theory. At worst a byte is
# hashed so many times, which still is faster than reading it from most disks.
NESTED_MAX = 24
CROWDED_FACTOR = 2  # one real head as long as the file, and as much again

_LENGTH_AT = 4  # of the header's length, in every struct: right after the magic


class Gap(NamedTuple):
    """Bytes of a file that do not verify, up to where something does again (or the end)."""

    position: int
    end: int
    passed: int = 0  # crowded places in it that were not hashed; see rule 3


class Shape(NamedTuple):
    """How the frames of one kind of file begin: what a place matches, and the struct's size."""

    place: re.Pattern[bytes]
    struct_bytes: int


class Framed(Protocol):
    """What a walk yields: it knows where it stands and where it ends."""

    @property
    def position(self) -> int:
        """Return where it begins in its file."""

    @property
    def end(self) -> int:
        """Return where the next one begins, which may lie beyond the end of a torn file."""


FrameT = TypeVar("FrameT", bound=Framed)


def _anything(_position: int) -> bool:
    return True


class Walk(Generic[FrameT]):
    """Walks one file's bytes. ``parse`` returns the frame at a position if one verifies there.

    ``could`` tells cheaply that none stands at a place, from what the caller knows of the file.
    """

    def __init__(
        self,
        data: bytes,
        shape: Shape,
        parse: Callable[[int], FrameT | None],
        could: Callable[[int], bool] = _anything,
    ) -> None:
        self._data = data
        self._shape = shape
        self._parse = parse
        self._could = could
        # Places are found in order and once, whatever is asked: these wait, those come from here.
        self._ahead: deque[tuple[int, int]] = deque()
        self._cursor = 0
        self._passed = 0
        self._spare = CROWDED_FACTOR * len(data)  # bytes of crowded places that may be hashed
        self.hashed_bytes = 0  # by looking for frames

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
        ahead = self._ahead
        self._passed = 0
        self._cursor = max(self._cursor, position)
        while ahead and ahead[0][0] < position:
            ahead.popleft()
        while ahead or self._pull():
            at, reach = ahead.popleft()
            while len(ahead) <= NESTED_MAX and (not ahead or ahead[-1][0] < reach):
                if not self._pull():
                    break
            if len(ahead) > NESTED_MAX and ahead[NESTED_MAX][0] < reach:
                if reach - at > self._spare:
                    self._passed += 1
                    continue
                self._spare -= reach - at
            self.hashed_bytes += reach - at
            found = self._parse(at)
            if found is not None:
                return found
        return None

    def _pull(self) -> bool:
        """Find one more place; False if there is none."""
        data, could = self._data, self._could
        search, struct_bytes = self._shape.place.search, self._shape.struct_bytes
        size = len(data)
        while True:
            match = search(data, self._cursor)
            if match is None:
                self._cursor = size
                return False
            at = match.start()
            self._cursor = at + 1
            length = int.from_bytes(data[at + _LENGTH_AT : at + _LENGTH_AT + 4], "little")
            reach = at + struct_bytes + length
            if reach <= size and could(at):
                self._ahead.append((at, reach))
                return True


# --- shapes ---
# The zeros: a header has less than 16 MiB, a payload less than 2^40 bytes; there are fewer than
# 2^40 checkpoints; ids, times and lsns are below 2^48, positions and ordinals below 2^56. Marks
# have the id 2^64-1.

_ID = rb"(?:.{6}\0\0|\xff{8})"
_COUNT = rb".{6}\0\0"
_PLACE = rb".{7}\0"
_LENGTHS = rb".{3}\0.{5}\0\0\0"
_ARRAY = rb"[\x81-\x9b]"  # a header is one, and not an empty one

JOURNAL = Shape(
    re.compile(
        re.escape(fmt.FRAME_MAGIC)
        + rb"(?="
        + _LENGTHS
        + _ID
        + _PLACE
        + _COUNT
        + _PLACE
        + rb".{8}"
        + _COUNT
        + _COUNT
        + _ID
        + rb".{8}"
        + _ARRAY
        + rb")",
        re.DOTALL,
    ),
    fmt.FRAME.size,
)

INDEX = Shape(
    re.compile(
        rb"\xff\xfeI[ES](?=" + _LENGTHS + _PLACE + _COUNT + _PLACE + rb".{8}" + _COUNT + rb".{8})",
        re.DOTALL,
    ),
    fmt.ENTRY.size,
)

CATALOG = Shape(re.compile(rb"\xff\xfeC[RC](?=.{9}\0\0\0.{8})", re.DOTALL), fmt.CATALOG_FRAME.size)
