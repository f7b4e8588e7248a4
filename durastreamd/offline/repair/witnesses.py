"""What entries of an index still prove that do not verify any more.

An entry vouches for the bytes of its record by their sum, and for itself by its own. Where rot has
hit it, one of the two often stands yet, and sixty-four bits that fit do not fit by chance:

* the sum of the bytes holds for the place that the entry names, or for the one that its neighbours
  leave: then the bytes are proven, and where the record begins and ends; what the entry said of
  producers, number and time is not.
* the entry's own sum holds once a field that can be known from elsewhere (where the record begins
  and ends, the sum of its bytes, the length of the header) is put right: then all of it is proven.

Nothing else is taken for proof: a length that fits, or text that can be parsed, proves no byte.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from durastreamd.offline.repair.pieces import SegmentBytes
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.index import IndexFile
from durastreamd.storage.scan import Gap

# Bytes read and summed for the hurt entries of one index, in lengths of its segment: real ones
# name each byte once, and an entry alone between two others may be tried in four ways.
EFFORT = 8


class Witness(NamedTuple):
    """Bytes of a segment that a hurt entry proves; ``whole`` if the entry itself is proven."""

    frame: fmt.StoredFrame
    whole: bool


class Witnesses:
    """The hurt entries of one index."""

    def __init__(self, file: IndexFile, raw: bytes, segment: SegmentBytes) -> None:
        self._file = file
        self._raw = raw
        self._segment = segment
        self._spare = EFFORT * (segment.end - segment.base)

    def of(self, gap: Gap, before: int, after: int) -> Iterator[Witness]:
        """Yield what the entries in a gap prove.

        The records around it end at ``before`` and begin at ``after``; -1 where none is known.
        """
        places = list(self._places(gap))
        for place in places:
            alone = len(places) == 1
            found = self._look(place, gap.end, (before, after) if alone else (-1, -1))
            if found is not None:
                yield found

    def _places(self, gap: Gap) -> Iterator[int]:
        """Yield where entries may begin: where one was due, and at each magic."""
        at = gap.position
        while 0 <= at <= gap.end - fmt.ENTRY.size:
            yield at
            at = self._raw.find(fmt.ENTRY_MAGIC, at + 1, gap.end)

    def _look(self, place: int, gap_end: int, edges: tuple[int, int]) -> Witness | None:
        told = fmt.ENTRY.unpack_from(self._raw, place)
        _, header_size, size, start, time_ms, ordinal, total, lsn, _ = told
        body = place + fmt.ENTRY.size
        headers = [
            self._raw[body : body + length]
            for length in dict.fromkeys((header_size, gap_end - body))
            if 0 < length <= gap_end - body
        ]
        for low, high in _extents(start, size, edges):
            known = self._sum_of(low, high)
            if known is None:
                continue
            fields = (self._file.stream, low, high - low, time_ms, ordinal)
            for header in headers:
                frame = fmt.StoredFrame(*fields, known, lsn, header, b"")
                if self._is_entry(frame, place):
                    return Witness(frame, whole=True)
            if known == total:
                header = headers[0] if headers else b""
                return Witness(fmt.StoredFrame(*fields, known, lsn, header, b""), whole=False)
        return None

    def _is_entry(self, frame: fmt.StoredFrame, place: int) -> bool:
        """Tell whether the checksum that stands at a place is that of an entry."""
        entry = self._file.entry(frame, place)
        end = place + fmt.ENTRY.size
        return entry[: fmt.ENTRY.size].endswith(self._raw[end - fmt.CHECKSUM.size : end])

    def _sum_of(self, low: int, high: int) -> int | None:
        """Return the checksum of a range of the segment, None if it is not all there."""
        _, base, end, read = self._segment
        if not base <= low < high <= end or high - low > self._spare:
            return None
        self._spare -= high - low
        data = read(high - low, low - base)
        return payload_sum(data, self._file.stream, low) if len(data) == high - low else None


def _extents(start: int, size: int, edges: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield where a record may lie, as the entry says and as its neighbours say."""
    before, after = edges
    starts = [start, *([before] if before >= 0 else [])]
    ends = [*([after] if after >= 0 else [])]
    tried = itertools.chain(((low, low + size) for low in starts), itertools.product(starts, ends))
    yield from dict.fromkeys(tried)
